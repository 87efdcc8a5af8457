//! Claims about names: which are forwarded, and that an address is reached by the name it was
//! resolved for.

use model::egress::ConnectionEnd;
use model::egress::frames::FromGateway;

use super::Claim;
use crate::world::{LIMITED, LIST, Lab};

pub(super) const ALL: &[Claim] = &[
    ("names_without_a_rule_are_not_forwarded", names_by_rule),
    ("answers_of_the_host_itself_or_of_a_tenants_private_network_are_dropped", rebinding),
    ("dig_sees_truncation_and_asks_by_tcp", dns_by_tcp),
    ("disguised_questions_are_not_forwarded", disguised),
    ("only_questions_of_listed_types_are_forwarded", types),
    ("a_forwarded_question_carries_only_name_and_type_of_the_cell", canonical),
    ("an_answer_is_cached_for_its_time_to_live", kept),
    ("questions_count_for_their_call_and_end_at_its_limits", counted),
    ("an_address_of_a_named_host_is_reached_only_by_its_name", pinned),
    ("the_server_name_must_be_one_that_was_resolved", server_name),
    ("the_host_of_a_request_must_be_one_that_was_resolved", host_header),
];

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
    let asked = lab.server_log();
    assert!(asked.contains("web.test 1"), "{asked}");
    assert!(!asked.contains("secret-data") && !asked.contains("web.test 65"), "{asked}");
    // The case of letters could carry data.
    cell.run("dig +short wEb.tEsT");
    assert!(!lab.server_log().contains("wEb"), "{}", lab.server_log());
    let denied = cell.tally(1).denied;
    let denial = denied.iter().find(|denied| denied.to == "secret-data.other.test");
    assert!(denial.is_some_and(|denial| denial.grant.is_some()), "{denied:?}");
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
    // An address in a network of a rule is returned for a tenant's name, and is reached on that
    // rule's ports only.
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
    // Positive control: a name that a rule has.
    assert_eq!(asked("plain", "h()+q([b'd4ta',b'wild',b'test'])").1, "3");
    assert!(lab.server_log().contains("d4ta.wild.test"), "{}", lab.server_log());
    let expected = [
        // Two questions, of which the second would be forwarded along with the first.
        ("two questions", "h(2)+q([b'web',b'test'])+q([b's3cret',b'evil'])", "1"),
        ("an update", "h(1,0x2800)+q([b's3cret',b'wild',b'test'])", "4"),
        ("class chaos", "h()+q([b's3cret',b'wild',b'test'],1,3)", "4"),
        ("a transfer", "h()+q([b's3cret',b'wild',b'test'],252)", "4"),
        ("a type that is text", "h()+q([b's3cret',b'wild',b'test'],0x5345)", "4"),
        // A dot within a label: `s3cret.wild.test` as one label, or followed by a rule's name.
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
    assert!(!lab.server_log().contains("s3cret"), "{}", lab.server_log());
}

fn types(lab: &Lab) {
    let cell = lab.cell(LIST);
    let listed = [
        ("A", 1),
        ("AAAA", 28),
        ("CNAME", 5),
        ("MX", 15),
        ("TXT", 16),
        ("SRV", 33),
        ("NS", 2),
        ("SOA", 6),
        ("PTR", 12),
        ("CAA", 257),
        ("NAPTR", 35),
        ("DS", 43),
        ("DNSKEY", 48),
    ];
    for (word, number) in listed {
        let answer = cell.run(&format!("dig +noall +comments {word} types.wild.test"));
        assert!(answer.contains("status: NXDOMAIN"), "{word}: {answer}");
        assert!(lab.server_log().contains(&format!("types.wild.test {number}\n")), "{word}");
    }
    // Each type number would let a cell send two bytes of its choice.
    for word in
        ["TYPE21317", "TYPE65280", "ANY", "SSHFP", "TLSA", "NULL", "HINFO", "RRSIG", "TYPE0"]
    {
        let answer = cell.run(&format!("dig +noall +comments +notcp -t {word} types.wild.test"));
        assert!(
            answer.contains("status: NOTIMP") && answer.contains("EDE: 18"),
            "{word}: {answer}"
        );
    }
    for word in ["HTTPS", "SVCB"] {
        let answer = cell.run(&format!("dig +noall +comments {word} types.wild.test"));
        assert!(answer.contains("NOERROR") && answer.contains("ANSWER: 0"), "{word}: {answer}");
    }
    let forwarded =
        lab.server_log().lines().filter(|line| line.starts_with("types.wild.test ")).count();
    assert_eq!(forwarded, listed.len());
    let tally = cell.tally(1);
    assert_eq!(tally.questions, 13, "{tally:?}");
    let denied: Vec<_> = tally.denied.iter().map(|it| (it.why.as_str(), it.count)).collect();
    assert_eq!(denied, [("a question of a type that is not forwarded", 9)]);
}

fn canonical(lab: &Lab) {
    // Everything in a question that a program can set: number, flags, case of letters, EDNS
    // options, additional records.
    let plain = "struct.pack('>6H',1,0x100,1,0,0,0)+b'\\5canon\\4wild\\4test\\0\\0\\1\\0\\1'";
    let loaded = "struct.pack('>6H',0x5345,0x0130,1,0,0,2)+b'\\5cANoN\\4wIld\\4TEst\\0\\0\\1\\0\\1'\
        +b'\\0\\0\\x29\\4\\xd0\\0\\0\\x80\\0\\0\\x0a\\xfd\\xe9\\0\\6s3cret'+b'\\1x\\0\\0\\x10\\0\\1\\0\\0\\0\\0\\0\\7\\6s3cret'";
    let ask = |message: &str| {
        // A new cell, whose cache is empty.
        let cell = lab.cell(LIST);
        let before = lab.server_log().len();
        let code = cell.python(&format!(
            "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(3)\n\
             s.sendto({message},('10.0.2.3',53)); print(s.recv(999)[3]&15)"
        ));
        assert_eq!(code, "3");
        lab.server_log().get(before..).expect("what was added").to_owned()
    };
    let forwarded = ask(plain);
    assert!(forwarded.contains("canon.wild.test 1\n"), "{forwarded}");
    assert_eq!(ask(loaded), forwarded);
}

fn kept(lab: &Lab) {
    let cell = lab.cell(LIST);
    let times = |what: &str| lab.server_log().lines().filter(|line| *line == what).count();
    let before = (times("lab.wild.test 1"), times("absent.wild.test 1"));
    for _ in 0..5 {
        assert_eq!(cell.run("dig +short lab.wild.test A"), "10.77.0.20\n");
    }
    assert_eq!(times("lab.wild.test 1"), before.0 + 1);
    assert_eq!(cell.tally(1).questions, 1);
    // The cached answer ages.
    let answer = cell.run("dig +noall +answer lab.wild.test A");
    let seconds: u32 = answer.split_whitespace().nth(1).expect("a time").parse().expect("a number");
    assert!((1..=60).contains(&seconds), "{answer}");
    // Without an SOA record the absence is not cached. Another cell has a separate cache.
    for _ in 0..2 {
        assert_eq!(cell.run("dig +short absent.wild.test A"), "");
    }
    assert_eq!(times("absent.wild.test 1"), before.1 + 2);
    lab.cell(LIST).run("dig +short lab.wild.test A");
    assert_eq!(times("lab.wild.test 1"), before.0 + 2);
}

fn counted(lab: &Lab) {
    let cell = lab.cell(LIMITED);
    let before = lab.server_log().matches("\nraw ").count();
    // Sends names of its choice until it is refused.
    let asked = cell.python(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5)\n\
         def ask(i):\n \
         s.send(struct.pack('>6H',i,0x100,1,0,0,0)+b''.join(b'\\x3b%059d'%i for _ in range(3))+b'\\4wild\\4test\\0\\0\\1\\0\\1')\n \
         return s.recv(999)[3]&15\n\
         s.connect(('10.0.2.3',53)); n=0\n\
         while (c:=ask(n))==3: n+=1\nprint(n,c)",
    );
    let (count, code) = asked.split_once(' ').expect("a count and a code");
    let count: u64 = count.parse().expect("a number");
    // REFUSED: a client tries the next resolver, then gives up.
    assert_eq!(code, "5");
    let tally = cell.tally(1);
    assert_eq!((tally.questions, tally.connections), (count, 0), "{tally:?}");
    assert!((99_000..=100_000).contains(&tally.sent), "{tally:?}");
    assert!(tally.received >= count * 200, "{tally:?}");
    assert_eq!(
        lab.server_log().matches("\nraw ").count() - before,
        usize::try_from(count).expect("small")
    );
    let why = "limit of the profile: egress_limits.sent";
    assert!(tally.denied.iter().any(|denied| denied.why == why), "{tally:?}");
    // Each question has a line in the audit log, if there is room.
    let cell = lab.cell(LIST);
    cell.run("dig +short a.wild.test");
    let line = std::iter::from_fn(|| lab.frame()).find_map(|frame| {
        let FromGateway::Connection { cell: of, connection, .. } = frame else { return None };
        (of == cell.key).then_some(connection)
    });
    let line = line.expect("a line");
    assert_eq!(line.request.as_deref(), Some("question A"));
    assert_eq!((line.name.as_deref(), line.end), (Some("a.wild.test"), ConnectionEnd::Relayed));
    assert!(line.sent > 30 && line.received > 30, "{line:?}");
}

fn pinned(lab: &Lab) {
    let cell = lab.cell(LIST);
    // Another name of the same address, which no rule has.
    assert_eq!(cell.connect("203.0.113.10", 80), "EHOSTUNREACH");
    assert!(cell.run("dig +short web.test").contains("203.0.113.10"));
    assert_eq!(cell.connect("203.0.113.10", 80), "ok");
    // A port that the rule does not have.
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
    // A name spread over many records and segments is read whole: the server answers with a
    // handshake.
    assert_eq!(split("web.test"), "22");
    assert_eq!(split("other.test"), "ECONNRESET");
}

fn host_header(lab: &Lab) {
    let cell = lab.cell(LIST);
    let to = "http://web.test/";
    assert_eq!(cell.run(&format!("curl -sS -H Host:web.test {to}")), "hello web.test 0\n");
    let refused = cell.run(&format!("curl -sS -H Host:other.test {to}"));
    assert!(refused.contains("reset"), "{refused}");
    let without = cell.run(&format!("curl -sS -H Host: {to}"));
    assert!(without.contains("reset"), "{without}");
    let prior = cell.run(&format!("curl -sS --http2-prior-knowledge {to}"));
    assert!(!prior.contains("hello"), "{prior}");
    // Two pipelined requests on one connection. Positive control: both are served; one for another
    // host is not.
    let second = |host: &str| {
        cell.python(&format!(
            "s=socket.create_connection(('web.test',80)); s.settimeout(3)\n\
             s.sendall(b'POST /keep HTTP/1.1\\r\\nHost: web.test\\r\\nContent-Length: 3\\r\\n\\r\\nabcGET / HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n')\n\
             d=b''\ntry:\n while x:=s.recv(999): d+=x\nexcept OSError: pass\n\
             print([l.decode() for l in d.splitlines() if l.startswith(b'hello')])",
        ))
    };
    assert_eq!(second("web.test"), "['hello web.test 3', 'hello web.test 0']");
    assert_eq!(second("other.test"), "['hello web.test 3']");
}
