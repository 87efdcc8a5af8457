//! What the gateway claims, each shown with real programs.

use model::egress::Only;
use model::egress::frames::{FromGateway, ToGateway};

use super::world::{ANY, LIMITED, LIST, Lab, PRIVATE, READ, SECRET, SEED, SLOW};

type Claim = (&'static str, fn(&Lab));

pub(crate) const ALL: &[Claim] = &[
    ("curl_reaches_a_named_host_by_v4_v6_and_tls", curl_reaches_a_named_host),
    ("a_connection_gets_the_servers_own_answer", true_answers),
    ("an_upload_and_a_download_arrive_whole", bulk),
    ("a_half_closed_connection_still_carries_the_answer", half_closed),
    ("what_a_program_wrote_before_its_cell_ended_arrives", last_words),
    ("a_datagram_that_a_cell_sent_last_arrives_and_is_counted", last_datagrams),
    ("names_without_a_rule_are_not_forwarded", names_by_rule),
    ("answers_of_the_host_itself_or_of_a_tenants_private_network_are_dropped", rebinding),
    ("dig_sees_truncation_and_asks_by_tcp", dns_by_tcp),
    ("an_address_of_a_named_host_is_reached_only_by_its_name", pinned),
    ("the_server_name_must_be_one_that_was_resolved", server_name),
    ("the_host_of_a_request_must_be_one_that_was_resolved", host_header),
    ("a_server_that_speaks_first_is_relayed_but_not_where_tls_is_expected", server_first),
    ("the_never_list_holds_in_every_class_and_spelling", never),
    ("ports_of_mail_and_dns_need_a_rule_that_names_them", named_ports),
    ("class_private_reaches_private_networks_and_no_others", private),
    ("datagrams_go_both_ways_and_their_errors_come_back", datagrams),
    ("ping_gets_its_echo_and_traceroute_its_hops", echo),
    ("a_call_is_narrowed_to_its_target_and_never_widened", narrowed),
    ("a_connection_with_the_ends_of_one_that_was_reset_is_another", same_ends),
    ("a_program_that_is_gone_leaves_no_connection_of_the_host", left_half_open),
    ("a_server_that_floods_a_flow_is_slowed_and_leaves_others_alone", flooded),
    ("limits_end_connections_and_are_told", limits),
    ("a_tally_counts_connections_bytes_and_denials", tallies),
    ("nmap_sees_the_same_states_as_bare", nmap),
    ("a_killed_worker_is_told_and_nothing_takes_its_place", killed_worker),
    ("frames_of_another_cell_change_nothing", other_cells),
    ("gateway_and_worker_hold_no_capability_no_file_and_a_filter", confined),
    ("requests_of_a_rule_are_judged_one_by_one", requests),
    ("a_secret_is_put_in_on_the_way_out_and_is_nowhere_in_the_cell", secret),
    ("no_packet_goes_anywhere_before_a_call_has_begun", before_a_call),
    ("a_connection_belongs_to_the_call_in_which_it_began", of_its_call),
    ("questions_in_disguise_are_not_forwarded", disguised),
    ("a_window_of_one_byte_and_floods_leave_other_connections_alone", hostile_windows),
];

fn curl_reaches_a_named_host(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.run("curl -sS -4 http://web.test/"), "hello web.test 0\n");
    assert_eq!(cell.run("curl -sS -6 http://web.test/"), "hello web.test 0\n");
    assert_eq!(cell.run("curl -sSk https://web.test/"), "hello web.test 0\n");
    let tally = cell.tally(1);
    assert_eq!((tally.connections, tally.denied.len()), (3, 0), "{tally:?}");
}

fn requests(lab: &Lab) {
    let cell = lab.cell(READ);
    let curl =
        |words: &str| cell.run(&format!("curl -sS --cacert {} {words}", lab.path("authority")));
    assert_eq!(curl("https://web.test/ok/a"), "hello web.test 0\n");
    assert_eq!(curl("-6 https://web.test/ok/a"), "hello web.test 0\n");
    assert_eq!(curl("http://api.test/ok/a"), "hello api.test 0\n");
    assert_eq!(
        curl("-T /proc/self/environ https://web.test/ok/a").matches("hello web.test").count(),
        1
    );
    for words in [
        "https://web.test/no",
        "-d x https://web.test/ok/a",
        "http://web.test/no",
        "-H Host:other.test https://web.test/ok/a",
    ] {
        let said = curl(&format!("-i {words}"));
        assert!(said.contains(" 403 ") && said.contains("cofferdam: denied: "), "{words}: {said}");
    }
    // Of the same address, but not by a rule of the profile; and by none of the cell's authorities.
    assert!(curl("https://other.test/ok/a").contains("Could not resolve"), "other.test");
    let trusted = cell.run("curl -sS https://web.test/ok/a");
    assert!(trusted.contains("certificate"), "{trusted}");
    let tally = cell.tally(1);
    let denied: Vec<_> = tally.denied.iter().map(|it| format!("{}; {}", it.to, it.why)).collect();
    assert!(
        denied.contains(&"POST https://web.test/ok/a; rule api takes GET, PUT".to_owned()),
        "{denied:?}"
    );
    assert!(
        denied.contains(&"GET http://web.test/no; rule api takes GET for other paths".to_owned()),
        "{denied:?}"
    );
    assert!(tally.sent > 1_000 && tally.received > 1_000, "{tally:?}");
}

fn secret(lab: &Lab) {
    let cell = lab.cell(READ);
    let placeholder = model::egress::placeholder("token", &SEED);
    let mut curl = cell.command("curl");
    curl.args(["-sS", "--cacert", &lab.path("authority"), "https://api.test/ok/a"]);
    let output =
        curl.args(["-H", &format!("Authorization: Bearer {placeholder}")]).output().expect("curl");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("welcome") && said.contains("Bearer *****") && !said.contains(SECRET),
        "{said}"
    );
    let mut curl = cell.command("curl");
    curl.args(["-sSi", "--cacert", &lab.path("authority")]);
    let output =
        curl.arg(format!("https://api.test/ok/a?token={placeholder}")).output().expect("curl");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(" 403 ") && said.contains("placeholder"), "{said}");
    let tally = cell.tally(1);
    assert_eq!(tally.denied.len(), 1, "{tally:?}");
    assert!(!format!("{tally:?}").contains(SECRET), "{tally:?}");
}

fn true_answers(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    assert_eq!(cell.connect("2001:db8::20", 7), "ok");
    assert_eq!(cell.connect("203.0.113.20", 9), "ECONNREFUSED");
    assert_eq!(cell.connect("2001:db8::20", 9), "ECONNREFUSED");
    assert_eq!(cell.connect("203.0.113.99", 7), "timeout");
    assert_eq!(cell.connect("198.51.100.14", 7), "EHOSTUNREACH");
    assert_eq!(cell.connect("2001:db8:1::9", 7), "ENETUNREACH");
    // Denied: by no rule.
    assert_eq!(cell.connect("203.0.113.10", 7), "EHOSTUNREACH");
    assert_eq!(cell.connect("2001:db8::10", 7), "EACCES");
}

fn bulk(lab: &Lab) {
    let cell = lab.cell(LIST);
    for address in ["203.0.113.20", "2001:db8::20"] {
        let sent = cell.python(&format!(
            "s=socket.create_connection(('{address}',9001))\n\
             b=bytes(1<<20)\nfor _ in range(40): s.sendall(b)\ns.shutdown(1)\nprint(s.recv(100).decode())"
        ));
        assert_eq!(sent, (40 << 20).to_string());
        let received = cell.python(&format!(
            "s=socket.create_connection(('{address}',9000))\ns.sendall(b'41943040'.ljust(20))\nn=0\n\
             while d:=s.recv(1<<20): n+=len(d)\nprint(n)"
        ));
        assert_eq!(received, (40 << 20).to_string());
    }
}

fn half_closed(lab: &Lab) {
    let cell = lab.cell(LIST);
    let echoed = cell.python(
        "s=socket.create_connection(('203.0.113.20',7))\ns.sendall(b'x'*300000)\ns.shutdown(1)\nn=0\n\
         while d:=s.recv(65536): n+=len(d)\nprint(n)",
    );
    assert_eq!(echoed, "300000");
}

fn last_words(lab: &Lab) {
    let cell = lab.cell(LIST);
    // It leaves with the bytes still in the kernel, and nothing waits for an answer.
    cell.python(
        "s=socket.create_connection(('203.0.113.20',9003))\ns.setsockopt(1,7,1<<22)\ns.sendall(bytes(1000000))",
    );
    drop(cell);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !lab.asked().contains("kept 1000000") {
        assert!(std::time::Instant::now() < end, "{}", lab.asked());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn last_datagrams(lab: &Lab) {
    for (closes_first, bytes) in [(true, 123), (false, 124)] {
        // The packet waits for the call. The cell's end and the question come before anybody looks at it.
        let cell = lab.waiting_cell(LIST);
        cell.python(&format!(
            "socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(bytes({bytes}),('203.0.113.20',9006))"
        ));
        cell.begin(1, None);
        let (ask, close) =
            (ToGateway::Ask { cell: cell.key, call: 1 }, ToGateway::Close { cell: cell.key });
        for frame in if closes_first { [close, ask] } else { [ask, close] } {
            lab.tell(&frame);
        }
        let (mut told, mut listed) = (None, None);
        while told.is_none() || listed.is_none() {
            match lab.frame() {
                Some(FromGateway::Tally { cell: of, tally, .. }) if of == cell.key => {
                    told = Some((tally.connections, tally.sent));
                }
                Some(FromGateway::Connection { cell: of, connection, .. }) if of == cell.key => {
                    listed = Some(connection.sent);
                }
                Some(_) => {}
                None => panic!("no frame: {told:?} {listed:?}"),
            }
        }
        assert_eq!((told, listed), (Some((1, bytes)), Some(bytes)), "{closes_first}");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !lab.asked().contains(&format!("datagram {bytes}")) {
            assert!(std::time::Instant::now() < end, "{}", lab.asked());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn names_by_rule(lab: &Lab) {
    let cell = lab.cell(LIST);
    let answer = cell.run("dig +noall +comments +answer secret-data.other.test");
    assert!(answer.contains("NXDOMAIN") && answer.contains("EDE: 18"), "{answer}");
    assert!(answer.contains("secret-data.other.test"), "{answer}");
    assert!(cell.run("dig +short web.test").contains("203.0.113.10"));
    assert_eq!(cell.run("dig +short known.test"), "");
    let answer = cell.run("dig +noall +comments HTTPS web.test");
    assert!(answer.contains("NOERROR") && answer.contains("ANSWER: 0"), "{answer}");
    assert!(cell.run("dig +noall +comments localhost").contains("NXDOMAIN"));
    let asked = lab.asked();
    assert!(asked.contains("web.test 1"), "{asked}");
    assert!(!asked.contains("secret-data") && !asked.contains("web.test 65"), "{asked}");
    // The letters' case could carry data.
    cell.run("dig +short wEb.tEsT");
    assert!(!lab.asked().contains("wEb"), "{}", lab.asked());
    let denied = cell.tally(1).denied;
    let told = denied.iter().find(|denied| denied.to == "secret-data.other.test");
    assert!(told.is_some_and(|told| told.grant.is_some()), "{denied:?}");
}

fn rebinding(lab: &Lab) {
    let cell = lab.cell(LIST);
    for name in ["loop.test", "host.test", "tenant.wild.test"] {
        assert_eq!(cell.run(&format!("dig +short {name} A")), "", "{name}");
        assert_eq!(cell.run(&format!("dig +short {name} AAAA")), "", "{name}");
    }
    assert_eq!(cell.run("dig +short mixed.test"), "203.0.113.10\n");
    assert_eq!(cell.run("dig +short inside.test"), "10.77.0.10\n");
    assert_eq!(cell.run("curl -sS http://inside.test/"), "hello inside.test 0\n");
    // A network that a rule has may be told for a tenant's name, and is reached on that rule's ports alone.
    assert_eq!(cell.run("dig +short lab.wild.test"), "10.77.0.20\n");
    assert_eq!(cell.connect("10.77.0.20", 22), "ok");
    assert_eq!(cell.connect("10.77.0.20", 80), "EHOSTUNREACH");
    let refused = cell.run("curl -sS http://lab.wild.test/");
    assert!(!refused.contains("hello"), "{refused}");
}

fn dns_by_tcp(lab: &Lab) {
    let cell = lab.cell(LIST);
    let answer = cell.run("dig +noall +answer +ignore +bufsize=512 big.test TXT");
    assert_eq!(answer, "");
    let answer = cell.run("dig +noall +answer +tcp big.test TXT");
    assert_eq!(answer.lines().count(), 20, "{answer}");
    let answer = cell.run("dig +noall +answer +tcp @fd00::3 web.test AAAA");
    assert!(answer.contains("2001:db8::10"), "{answer}");
}

fn pinned(lab: &Lab) {
    let cell = lab.cell(LIST);
    // Another name of the same address, which no rule has.
    assert_eq!(cell.connect("203.0.113.10", 80), "EHOSTUNREACH");
    assert!(cell.run("dig +short web.test").contains("203.0.113.10"));
    assert_eq!(cell.connect("203.0.113.10", 80), "ok");
    // Not on a port that the rule does not have.
    assert_eq!(cell.connect("203.0.113.10", 9000), "EHOSTUNREACH");
}

fn server_name(lab: &Lab) {
    let cell = lab.cell(LIST);
    let tls = |name: &str| {
        cell.python(&format!(
            "socket.getaddrinfo('web.test',443)\nc=ssl._create_unverified_context()\n\
             s=socket.create_connection(('203.0.113.10',443))\ntry:\n \
             t=c.wrap_socket(s,server_hostname={name}); t.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(t.recv(15).decode())\n\
             except OSError as e: print(name(e))"
        ))
    };
    assert_eq!(tls("'web.test'"), "HTTP/1.1 200 OK");
    assert_eq!(tls("'other.test'"), "ECONNRESET");
    assert_eq!(tls("None"), "ECONNRESET");
    let hello = "c=ssl._create_unverified_context()\ni,o=ssl.MemoryBIO(),ssl.MemoryBIO()\n\
        b=c.wrap_bio(i,o,server_hostname='NAME')\ntry: b.do_handshake()\nexcept ssl.SSLWantReadError: pass\n\
        h=o.read()[5:]\n";
    let split = |name: &str| {
        cell.python(&format!(
            "socket.getaddrinfo('web.test',443)\n{}\
             s=socket.create_connection(('203.0.113.10',443)); s.setsockopt(6,1,1)\ntry:\n \
             [(s.sendall(b'\\x16\\x03\\x01'+struct.pack('>H',len(h[k:k+20]))+h[k:k+20]),time.sleep(.002)) for k in range(0,len(h),20)]\n \
             print(s.recv(1)[0])\nexcept OSError as e: print(name(e))",
            hello.replace("NAME", name)
        ))
    };
    // A name over many records and segments is read whole: the server answers with a handshake.
    assert_eq!(split("web.test"), "22");
    assert_eq!(split("other.test"), "ECONNRESET");
}

fn host_header(lab: &Lab) {
    let cell = lab.cell(LIST);
    let to = "http://web.test/";
    assert_eq!(cell.run(&format!("curl -sS -H Host:web.test {to}")), "hello web.test 0\n");
    let refused = cell.run(&format!("curl -sS -H Host:other.test {to}"));
    assert!(refused.contains("reset"), "{refused}");
    let none = cell.run(&format!("curl -sS -H Host: {to}"));
    assert!(none.contains("reset"), "{none}");
    let prior = cell.run(&format!("curl -sS --http2-prior-knowledge {to}"));
    assert!(!prior.contains("hello"), "{prior}");
    // A second request on one connection names another host: the server never sees it.
    let second = cell.python(
        "s=socket.create_connection(('web.test',80))\n\
         s.sendall(b'POST / HTTP/1.1\\r\\nHost: web.test\\r\\nContent-Length: 3\\r\\n\\r\\nabcGET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')\n\
         d=b''\ntry:\n while x:=s.recv(999): d+=x\nexcept OSError as e: d+=name(e).encode()\nprint(b'hello other' in d)",
    );
    assert_eq!(second, "False");
}

fn server_first(lab: &Lab) {
    let cell = lab.cell(LIST);
    let first = |port: u16| {
        cell.python(&format!(
            "socket.getaddrinfo('web.test',80)\ns=socket.create_connection(('203.0.113.10',{port}))\ns.settimeout(3)\n\
             try: print(s.recv(20).decode().strip())\nexcept OSError as e: print(name(e))"
        ))
    };
    assert_eq!(first(22), "SSH-2.0-lab");
    let other = cell.python(
        "socket.getaddrinfo('web.test',80)\ns=socket.create_connection(('203.0.113.10',443))\ns.sendall(b'\\0\\0\\0\\x08')\n\
         try: print(s.recv(20))\nexcept OSError as e: print(name(e))",
    );
    assert_eq!(other, "ECONNRESET");
}

fn never(lab: &Lab) {
    let any = lab.cell(ANY);
    assert_eq!(any.connect("203.0.113.20", 7), "ok");
    for address in [
        "169.254.169.254",
        "203.0.113.1",
        "10.77.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "240.0.0.1",
        "10.0.2.2",
        "198.18.0.1",
    ] {
        assert_eq!(any.connect(address, 80), "EHOSTUNREACH", "{address}");
    }
    for address in [
        "2001:db8::1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
        "2001:0:7f00:1::1",
        "fd00:ec2::254",
        "::ffff:0:7f00:1",
        "fd00::2",
        // The host's own address of IPv4, by a translator to which there is a route.
        "64:ff9b::203.0.113.1",
    ] {
        assert_eq!(any.connect(address, 80), "EACCES", "{address}");
    }
    let denied = any.tally(1).denied;
    assert!(
        denied.iter().all(|denied| denied.grant.is_none() || denied.to.starts_with("198.18")),
        "{denied:?}"
    );
}

fn named_ports(lab: &Lab) {
    let any = lab.cell(ANY);
    for port in [25, 53, 853] {
        assert_eq!(any.connect("203.0.113.53", port), "EHOSTUNREACH", "{port}");
    }
    let list = lab.cell(LIST);
    // A range does not name it.
    assert_eq!(list.connect("203.0.113.20", 53), "EHOSTUNREACH");
    assert_eq!(list.connect("203.0.113.20", 54), "ECONNREFUSED");
}

fn private(lab: &Lab) {
    let cell = lab.cell(PRIVATE);
    assert_eq!(cell.connect("10.77.0.10", 80), "ok");
    assert_eq!(cell.connect("203.0.113.20", 7), "EHOSTUNREACH");
    assert_eq!(cell.run("dig +short web.test"), "");
}

fn datagrams(lab: &Lab) {
    let cell = lab.cell(LIST);
    let udp = |address: &str, port: u16, size: usize| {
        let family = if address.contains(':') { "socket.AF_INET6" } else { "socket.AF_INET" };
        cell.python(&format!(
            "s=socket.socket({family},socket.SOCK_DGRAM)\ns.settimeout(3)\ns.connect(('{address}',{port}))\n\
             try:\n s.send(b'x'*{size}); print(len(s.recv(65536)))\nexcept socket.timeout: print('timeout')\n\
             except OSError as e: print(name(e))"
        ))
    };
    assert_eq!(udp("203.0.113.20", 7, 10), "10");
    assert_eq!(udp("203.0.113.20", 7, 0), "0");
    assert_eq!(udp("203.0.113.20", 7, 20_000), "20000");
    assert_eq!(udp("2001:db8::20", 7, 10), "10");
    assert_eq!(udp("203.0.113.20", 8, 10), "ECONNREFUSED");
    assert_eq!(udp("2001:db8::20", 8, 10), "ECONNREFUSED");
    // A rule for TCP alone, and none.
    cell.run("dig +short web.test");
    assert_eq!(udp("203.0.113.10", 7, 10), "EHOSTUNREACH");
    assert_eq!(udp("2001:db8::30", 7, 10), "EACCES");
    // QUIC, where TCP to the same port is allowed: refused at once, so that clients take TCP.
    assert_eq!(udp("203.0.113.10", 443, 1_200), "EHOSTUNREACH");
    assert_eq!(cell.connect("203.0.113.10", 443), "ok");
    // Another resolver than the gateway's.
    assert_eq!(udp("203.0.113.53", 53, 30), "EHOSTUNREACH");
}

fn echo(lab: &Lab) {
    let cell = lab.cell(LIST);
    let ping = cell.run("ping -c 2 -i 0.2 -W 2 203.0.113.20");
    assert!(ping.contains("2 received"), "{ping}");
    let ping = cell.run("ping -c 1 -W 2 2001:db8::20");
    assert!(ping.contains("1 received"), "{ping}");
    let ping = cell.run("ping -c 1 -W 2 203.0.113.10");
    assert!(ping.contains("Packet filtered"), "{ping}");
    let hop = cell.run("ping -c 1 -W 2 -t 1 198.51.100.20");
    assert!(hop.contains("203.0.113.10") && hop.contains("Time to live exceeded"), "{hop}");
    let far = cell.run("ping -c 1 -W 2 198.51.100.14");
    assert!(far.contains("Destination Host Unreachable"), "{far}");
    let hops = cell.run("traceroute -n -q 1 -w 1 -m 3 198.51.100.20");
    assert!(hops.contains(" 1  203.0.113.10"), "{hops}");
}

fn narrowed(lab: &Lab) {
    let cell = lab.cell(LIST);
    let only = |hosts: &[&str], nets: &[&str], ports: &[&str]| {
        Some(Only {
            hosts: hosts.iter().map(|host| host.parse().expect("a host")).collect(),
            nets: nets.iter().map(|net| net.parse().expect("a net")).collect(),
            ports: ports.iter().map(|ports| ports.parse().expect("ports")).collect(),
            ..Only::default()
        })
    };
    cell.begin(2, only(&[], &["203.0.113.20"], &["7"]));
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    assert_eq!(cell.connect("203.0.113.20", 80), "EHOSTUNREACH");
    assert_eq!(cell.connect("2001:db8::20", 7), "EACCES");
    cell.begin(3, only(&["web.test"], &[], &[]));
    assert_eq!(cell.run("curl -sS http://web.test/"), "hello web.test 0\n");
    assert_eq!(cell.connect("203.0.113.20", 7), "EHOSTUNREACH");
    assert_eq!(cell.run("dig +short a.wild.test"), "");
    // What the profile does not allow stays so.
    cell.begin(4, only(&["other.test"], &["203.0.113.10"], &[]));
    assert_eq!(cell.run("dig +short other.test"), "");
    assert_eq!(cell.connect("203.0.113.10", 9000), "EHOSTUNREACH");
    // A name is no way around the networks of the call, and without a rule there is nothing.
    let held = |within: &str| Only {
        hosts: vec!["web.test".parse().expect("a host")],
        within: vec![within.parse().expect("a net")],
        ..Only::default()
    };
    cell.begin(6, Some(held("10.0.0.0/8")));
    assert_eq!(cell.connect("203.0.113.20", 80), "EHOSTUNREACH");
    cell.begin(7, Some(held("203.0.113.0/24")));
    assert_eq!(cell.run("curl -sS -4 http://web.test/"), "hello web.test 0\n");
    cell.begin(8, Some(Only { rules: Some(Vec::new()), ..Only::default() }));
    assert_eq!(cell.connect("203.0.113.20", 80), "EHOSTUNREACH");
    cell.begin(5, None);
    assert_eq!(cell.connect("203.0.113.20", 80), "ok");
}

fn same_ends(lab: &Lab) {
    let cell = lab.cell(LIST);
    // The first leaves bytes that its server never takes, and is reset; the second comes from the same port.
    let echoed = cell.python(
        "def made():\n s=socket.socket(); s.setsockopt(1,2,1); s.bind(('10.0.2.15',40001)); s.settimeout(5); \
         s.connect(('203.0.113.20',9004)); return s\n\
         a=made(); a.sendall(b'stuck'); a.setblocking(False)\n\
         for _ in range(40):\n  try: a.send(bytes(1<<20))\n  except BlockingIOError: time.sleep(.01)\n\
         a.setsockopt(1,13,struct.pack('ii',1,0)); a.close()\n\
         b=made(); b.sendall(b'echo.'); n=0\n\
         try:\n  for k in range(30): b.sendall(b'%03d'%k); n+=b.recv(3)==b'%03d'%k; time.sleep(.1)\n\
         except OSError as e: print(name(e))\nprint(n)",
    );
    assert_eq!(echoed, "30");
}

fn left_half_open(lab: &Lab) {
    let cell = lab.cell(LIST);
    let open = || {
        let output = std::process::Command::new("ss").args(["-Htn", "dport = :9005"]).output();
        String::from_utf8_lossy(&output.expect("ss").stdout).lines().count()
    };
    let before = open();
    // TCP_LINGER2: its kernel forgets the connection a second after the program has closed it.
    cell.python(
        "s=socket.create_connection(('203.0.113.20',9005)); s.setsockopt(6,8,1); s.close()",
    );
    assert_eq!(open(), before + 1);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while open() > before {
        assert!(std::time::Instant::now() < end, "it is still open");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

fn flooded(lab: &Lab) {
    // It sends as fast as it can for two seconds; the rate of the profile is 20 KB a second.
    let cell = lab.cell(SLOW);
    let count = cell.python(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(1,8,1<<22); s.connect(('203.0.113.20',12)); s.send(b'x')\n\
         s.settimeout(1); n=0\n\
         try:\n  while True: n+=len(s.recv(99))\n\
         except socket.timeout: print(n)",
    );
    let received: u64 = count.parse().expect("a number");
    assert!((1_000..200_000).contains(&received), "{received}");
    // While it lasts, frames of the gateway and other connections have their turn.
    let cell = lab.cell(LIST);
    let slowest = cell.python(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(('203.0.113.20',12)); t=socket.create_connection(('203.0.113.20',7))\n\
         s.send(b'x'); time.sleep(.2); worst=0\n\
         for _ in range(20): a=time.time(); t.sendall(b'x'); t.recv(1); worst=max(worst,time.time()-a); time.sleep(.02)\nprint(worst<1)",
    );
    assert_eq!(slowest, "True");
}

fn limits(lab: &Lab) {
    let cell = lab.cell(LIMITED);
    let open = cell.python(
        "a=[]\nfor _ in range(3):\n try: a.append(socket.create_connection(('203.0.113.20',9002),3))\n except OSError as e: print(name(e))\nprint(len(a))",
    );
    assert_eq!(open, "EHOSTUNREACH\n2");
    let sent = cell.python(
        "s=socket.create_connection(('203.0.113.20',9001))\n\
         try:\n for _ in range(100): s.sendall(bytes(100000)); time.sleep(.01)\nexcept OSError as e: print(name(e))",
    );
    assert!(["ECONNRESET", "EPIPE"].contains(&sent.as_str()), "{sent}");
    let tally = cell.tally(1);
    assert_eq!(tally.sent, 100_000, "{tally:?}");
    assert!(
        tally.denied.iter().any(|denied| denied.why.contains("egress_limits.connections")),
        "{tally:?}"
    );
    cell.begin(2, None);
    let received = cell.python(
        "s=socket.create_connection(('203.0.113.20',9000))\ns.sendall(b'4000000'.ljust(20))\nn=0\n\
         try:\n while d:=s.recv(65536): n+=len(d)\nexcept OSError as e: print(name(e))",
    );
    assert_eq!(received, "ECONNRESET");
    assert_eq!(cell.tally(2).received, 300_000);
}

fn tallies(lab: &Lab) {
    let cell = lab.cell(LIST);
    cell.run("curl -sS http://web.test/");
    assert_eq!(cell.connect("203.0.113.10", 9000), "EHOSTUNREACH");
    assert_eq!(cell.connect("203.0.113.10", 9000), "EHOSTUNREACH");
    let tally = cell.tally(1);
    let row = tally.rows.iter().find(|row| row.to == "web.test:80").expect("a row");
    assert_eq!((row.rule.as_str(), row.connections), ("web", 1));
    assert!(row.sent > 50 && row.received > 50, "{row:?}");
    let denied = tally.denied.first().expect("a denial");
    assert_eq!(
        (denied.to.as_str(), denied.why.as_str(), denied.count),
        ("web.test:9000", "no rule", 2)
    );
    let grant = "[[egress]] hosts = [\"web.test\"], ports = [9000]";
    assert_eq!(denied.grant.as_deref(), Some(grant));
    // A connection that nobody took is none.
    assert_eq!(cell.connect("203.0.113.20", 9), "ECONNREFUSED");
    assert_eq!(cell.tally(1).connections, 1);
    cell.begin(2, None);
    assert!(cell.tally(2).is_empty());
    // An answer to a question about a call that never was.
    assert!(cell.tally(77).incomplete);
}

fn nmap(lab: &Lab) {
    let cell = lab.cell(LIST);
    let ports = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("/tcp"));
        lines
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let inside = cell.run("nmap -n -Pn -sT -p 1-1000 203.0.113.20");
    // Of the ports of the range, 25 and 53 need a rule of their own.
    assert_eq!(
        ports(&inside),
        [
            "7/tcp open",
            "22/tcp open",
            "25/tcp filtered",
            "53/tcp filtered",
            "80/tcp open",
            "443/tcp open",
            "853/tcp filtered"
        ],
        "{inside}"
    );
    assert!(
        inside.contains("993 closed tcp ports") || inside.contains("Not shown: 993 closed"),
        "{inside}"
    );
}

fn killed_worker(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    while lab.waiting() {
        lab.frame();
    }
    let workers = lab.workers();
    let worker = *workers.last().expect("a worker");
    let pid = nix::unistd::Pid::from_raw(worker);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("killed");
    let told = std::iter::from_fn(|| lab.frame()).take(50).find_map(|frame| {
        let FromGateway::Failed { cell: Some(failed), why } = frame else { return None };
        (failed == cell.key).then_some(why)
    });
    assert_eq!(told.as_deref(), Some("the worker of the cell's network has died"));
    assert_eq!(cell.connect("203.0.113.20", 7), "timeout");
    assert!(cell.tally(1).incomplete);
    // Others go on.
    assert_eq!(lab.cell(LIST).connect("203.0.113.20", 7), "ok");
}

fn other_cells(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    let late = model::egress::frames::CellKey { generation: cell.key.generation - 1, ..cell.key };
    lab.tell(&ToGateway::Close { cell: late });
    lab.tell(&ToGateway::Begin {
        cell: late,
        call: 9,
        only: Some(Only { ports: vec!["1".parse().expect("a port")], ..Only::default() }),
    });
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    assert_eq!(cell.tally(1).connections, 2);
    // The control: a frame of its own ends it.
    lab.tell(&ToGateway::Close { cell: cell.key });
    assert_eq!(cell.connect("203.0.113.20", 7), "timeout");
}

fn confined(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    let worker = *lab.workers().last().expect("a worker");
    for pid in [lab.gateway, worker] {
        // The lab has an environment, and they had it.
        for (file, left) in [("environ", ""), ("cmdline", "cofferdam-gateway")] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).expect("readable by root");
            let text = String::from_utf8_lossy(&bytes).replace('\0', "");
            assert_eq!(text, left, "{file}");
            assert!(std::fs::read("/proc/self/environ").is_ok_and(|own| own.len() > 20));
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let line = |key: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(key));
            found.map(str::trim).unwrap_or_default().to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(line(set), "0000000000000000", "{set}");
        }
        assert_eq!((line("NoNewPrivs:").as_str(), line("Seccomp:").as_str()), ("1", "2"));
        let filters: u32 = line("Seccomp_filters:").parse().expect("a number");
        assert_eq!(filters, if pid == worker { 2 } else { 1 });
        if super::world::by_root() {
            assert_eq!(line("Uid:"), "60000\t60000\t60000\t60000");
        }
        let root = std::fs::read_dir(format!("/proc/{pid}/root/")).map(std::iter::Iterator::count);
        assert_eq!(root.map_err(|error| error.kind()), Ok(0));
        for space in ["user", "mnt", "pid", "ipc", "uts"] {
            let of = |pid: &str| {
                std::fs::read_link(format!("/proc/{pid}/ns/{space}")).expect("a namespace")
            };
            assert_ne!(of(&pid.to_string()), of("self"), "{space}");
        }
    }
}

fn before_a_call(lab: &Lab) {
    let cell = lab.waiting_cell(LIST);
    let workers = lab.workers().len();
    let asked = lab.asked();
    assert_eq!(cell.connect("203.0.113.20", 7), "timeout");
    let answer = cell.run("dig +short +timeout=1 +tries=1 early.wild.test");
    assert!(answer.contains("no servers could be reached"), "{answer}");
    // Nobody reads its packets, and no name has left. Workers of other cells may have ended.
    assert!(lab.workers().len() <= workers, "a worker more");
    assert_eq!(lab.asked(), asked);
    // Narrowed from its first packet on, also by packets that came before.
    let only = Only { ports: vec!["22".parse().expect("a port")], ..Only::default() };
    cell.begin(1, Some(only));
    assert_eq!(cell.connect("203.0.113.20", 22), "ok");
    assert_eq!(cell.connect("203.0.113.20", 7), "EHOSTUNREACH");
}

fn of_its_call(lab: &Lab) {
    let cell = lab.cell(LIST);
    // It echoes a word when the file is there, which is during the second call, and ends when it is gone.
    let go = lab.path("go");
    let mut program = cell.command("python3");
    let script = format!(
        "import os,socket,time\ns=socket.create_connection(('203.0.113.20',7)); s.sendall(b'1'); s.recv(1)\n\
         open('{go}.ready','w')\nwhile not os.path.exists('{go}'): time.sleep(.02)\n\
         s.sendall(b'23'); s.recv(2); s.close()"
    );
    let mut child = program.args(["-c", &script]).spawn().expect("python");
    let there = |name: &str| std::path::Path::new(name).exists();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !there(&format!("{go}.ready")) && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let first = cell.tally(1);
    assert_eq!((first.connections, first.sent, first.session), (1, 1, None));
    cell.begin(2, None);
    assert_eq!(cell.connect("203.0.113.20", 22), "ok");
    std::fs::write(&go, "").expect("written");
    assert!(child.wait().expect("its end").success());
    // Told as the first call's, as which it began.
    let closed = std::iter::from_fn(|| lab.frame()).take(50).find_map(|frame| {
        let FromGateway::Connection { call, connection, .. } = frame else { return None };
        (connection.address.port() == 7).then_some((call, connection.sent, connection.received))
    });
    assert_eq!(closed, Some((1, 3, 3)));
    let second = cell.tally(2);
    assert_eq!((second.connections, second.sent), (1, 0), "{second:?}");
    let session = second.session.expect("a session");
    assert_eq!((session.connections, session.sent, session.earlier_sent), (2, 3, 2));
}

fn disguised(lab: &Lab) {
    let cell = lab.cell(LIST);
    let asked = |what: &str, message: &str| {
        let answer = cell.python(&format!(
            "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(2)\n\
             q=lambda n,t=1,c=1: b''.join(bytes([len(l)])+l for l in n)+b'\\0'+struct.pack('>HH',t,c)\n\
             h=lambda n=1,f=0x100: struct.pack('>6H',7,f,n,0,0,0)\n\
             s.sendto({message},('10.0.2.3',53))\n\
             try: print(s.recv(999)[3]&15)\nexcept OSError as e: print('none')"
        ));
        (what.to_owned(), answer)
    };
    // The control: a name that a rule has.
    assert_eq!(asked("plain", "h()+q([b'd4ta',b'wild',b'test'])").1, "3");
    assert!(lab.asked().contains("d4ta.wild.test"), "{}", lab.asked());
    let expected = [
        // Two questions, of which the second would go along.
        ("two questions", "h(2)+q([b'web',b'test'])+q([b's3cret',b'evil'])", "1"),
        ("an update", "h(1,0x2800)+q([b's3cret',b'wild',b'test'])", "4"),
        ("class chaos", "h()+q([b's3cret',b'wild',b'test'],1,3)", "4"),
        ("a transfer", "h()+q([b's3cret',b'wild',b'test'],252)", "4"),
        // A dot within a label: `s3cret.wild.test` as one label, or with a rule's name behind it.
        ("a dot in a label", "h()+q([b's3cret.wild',b'test'])", "3"),
        ("a zero in a label", "h()+q([b's3cret\\0',b'wild',b'test'])", "3"),
        ("a name around a rule's", "h()+q([b'web',b'test',b's3cret',b'evil'])", "3"),
        ("an answer", "h(1,0x8180)+q([b's3cret',b'wild',b'test'])", "none"),
        ("a pointer to itself", "h()+b'\\xc0\\x0c\\0\\1\\0\\1'", "none"),
        ("half a question", "h()+b'\\6s3cret'", "none"),
    ];
    for (what, message, code) in expected {
        assert_eq!(asked(what, message), (what.to_owned(), code.to_owned()));
    }
    assert!(!lab.asked().contains("s3cret"), "{}", lab.asked());
}

fn hostile_windows(lab: &Lab) {
    let cell = lab.cell(LIST);
    let slow = cell.python(
        "t=socket.create_connection(('203.0.113.20',7)); t.settimeout(20)\n\
         a=[socket.socket() for _ in range(60)]\n\
         [x.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,1) for x in a]\n\
         [x.connect(('203.0.113.20',9000)) for x in a]\n[x.sendall(b'9000000'.ljust(20)) for x in a]\ntime.sleep(.3)\n\
         [x.recv(1) for x in a]\n\
         u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
         [u.sendto(b'x',('203.0.113.20',7)) for _ in range(5000)]\n\
         b=[]\n\
         for _ in range(700):\n x=socket.socket(); x.setblocking(False); x.connect_ex(('203.0.113.99',7)); b.append(x)\n\
         t.sendall(b'still'); print(t.recv(5).decode())",
    );
    // One that was open before is served. More cannot be opened while 512 are on their way.
    assert_eq!(slow, "still");
    assert_eq!(lab.cell(LIST).connect("203.0.113.20", 7), "ok");
}
