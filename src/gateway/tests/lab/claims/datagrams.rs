//! Claims about datagrams and echo requests.

use model::egress::frames::{FromGateway, ToGateway};

use super::Claim;
use crate::world::{LIMITED, LIST, Lab, SLOW};

pub(super) const ALL: &[Claim] = &[
    ("datagrams_pass_both_ways_and_their_errors_come_back", datagrams),
    ("the_last_datagram_of_a_cell_arrives_and_is_counted", last_datagrams),
    ("the_last_datagrams_of_a_cell_arrive_or_the_tally_is_incomplete", last_burst),
    ("each_datagram_denied_at_the_end_of_a_call_is_counted", last_denials),
    ("ping_gets_its_echo_and_traceroute_its_hops", echo),
    ("datagrams_and_echo_requests_count_with_their_headers_and_end_at_the_limit", limited),
    ("a_server_that_floods_a_flow_is_slowed_and_leaves_others_alone", flooded),
];

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
    // A rule for TCP only, and no rule.
    cell.run("dig +short web.test");
    assert_eq!(udp("203.0.113.10", 7, 10), "EHOSTUNREACH");
    assert_eq!(udp("2001:db8::30", 7, 10), "EACCES");
    // QUIC where only TCP to the port is allowed: refused at once, so that clients fall back to
    // TCP.
    assert_eq!(udp("203.0.113.10", 443, 1_200), "EHOSTUNREACH");
    assert_eq!(cell.connect("203.0.113.10", 443), "ok");
    // A resolver other than the gateway's.
    assert_eq!(udp("203.0.113.53", 53, 30), "EHOSTUNREACH");
}

fn last_datagrams(lab: &Lab) {
    for (closes_first, bytes) in [(true, 123), (false, 124)] {
        // The packet waits until the call begins. The cell's end and the question come before the
        // packet is read.
        let cell = lab.waiting_cell(LIST);
        cell.python(&format!(
            "socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(bytes({bytes}),('203.0.113.20',9006))"
        ));
        cell.begin(1, None);
        let ask = ToGateway::Ask { cell: cell.key, call: 1 };
        let close = ToGateway::Close { cell: cell.key };
        for frame in if closes_first { [close, ask] } else { [ask, close] } {
            lab.send_frame(&frame);
        }
        let mut tallied = None;
        let mut listed = None;
        while tallied.is_none() || listed.is_none() {
            match lab.frame() {
                Some(FromGateway::Tally { cell: of, tally, .. }) if of == cell.key => {
                    tallied = Some((tally.connections, tally.sent));
                }
                Some(FromGateway::Connection { cell: of, connection, .. }) if of == cell.key => {
                    listed = Some(connection.sent);
                }
                Some(_) => {}
                None => panic!("no frame: {tallied:?} {listed:?}"),
            }
        }
        // With its header.
        let counted = bytes + 8;
        assert_eq!((tallied, listed), (Some((1, counted)), Some(counted)), "{closes_first}");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !lab.server_log().contains(&format!("datagram {bytes}")) {
            assert!(std::time::Instant::now() < end, "{}", lab.server_log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
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

fn limited(lab: &Lab) {
    let cell = lab.cell(LIMITED);
    let ping = cell.run("ping -c 3 -i 0.01 -W 2 -s 100 203.0.113.20");
    assert!(ping.contains("3 received"), "{ping}");
    let tally = cell.tally(1);
    assert_eq!((tally.sent, tally.received), (324, 324), "{tally:?}");
    // Empty packets count too: they carry a sequence number, ports and hops.
    let cell = lab.cell(LIMITED);
    let ping = cell.run("ping -c 5 -i 0.01 -W 2 -s 0 203.0.113.20");
    assert!(ping.contains("5 received"), "{ping}");
    let tally = cell.tally(1);
    assert_eq!((tally.sent, tally.received), (40, 40), "{tally:?}");
    // A datagram must fit what is left of the limit of 100,000 bytes.
    let cell = lab.cell(LIMITED);
    cell.python(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(('203.0.113.20',7)); s.settimeout(2)\n\
         for size in [60000,30000,30000]:\n \
         s.send(bytes(size))\n \
         try: s.recv(65536)\n \
         except OSError: break",
    );
    let tally = cell.tally(1);
    assert_eq!((tally.sent, tally.received), (90_016, 90_016), "{tally:?}");
}

fn flooded(lab: &Lab) {
    // The server sends as fast as it can for two seconds; the profile's rate is 20 KB a second.
    let cell = lab.cell(SLOW);
    let count = cell.python(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(1,8,1<<22); s.connect(('203.0.113.20',12)); s.send(b'x')\n\
         s.settimeout(1); n=0\n\
         try:\n  while True: n+=len(s.recv(99))\n\
         except socket.timeout: print(n)",
    );
    let received: u64 = count.parse().expect("a number");
    assert!((1_000..200_000).contains(&received), "{received}");
    // Meanwhile frames of the gateway and other connections have their turn.
    let cell = lab.cell(LIST);
    let slowest = cell.python(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(('203.0.113.20',12)); t=socket.create_connection(('203.0.113.20',7))\n\
         s.send(b'x'); time.sleep(.2); worst=0\n\
         for _ in range(20): a=time.time(); t.sendall(b'x'); t.recv(1); worst=max(worst,time.time()-a); time.sleep(.02)\nprint(worst<1)",
    );
    assert_eq!(slowest, "True");
}

fn last_burst(lab: &Lab) {
    // On a busy machine some may not be sent in time; the tally is then incomplete.
    let whole = (0..20).any(|_| burst(lab, LIST) == Some(33_300));
    assert!(whole, "none of twenty tallies was whole");
    assert_eq!(burst(lab, SLOW), None, "the rate allows no such burst in time");
}

/// Sends a hundred datagrams right before the end of a call. Returns the bytes in its tally if the
/// tally is complete.
fn burst(lab: &Lab, profile: u16) -> Option<u64> {
    let cell = lab.waiting_cell(profile);
    cell.python(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
             for i in range(100): s.sendto(bytes(325),('203.0.113.20',9006))",
    );
    cell.begin(1, None);
    // The next call begins right after the question for the first tally, and must not change that
    // tally.
    lab.send_frame(&ToGateway::Ask { cell: cell.key, call: 1 });
    cell.begin(2, None);
    let tally = cell.tally(1);
    assert!(tally.connections <= 1 && tally.sent <= 33_300, "{tally:?}");
    assert!(tally.incomplete || tally.sent == 33_300, "{tally:?}");
    // The second call counts nothing of the first.
    let second = cell.tally(2);
    assert_eq!(second.connections, 0, "{second:?}");
    (!tally.incomplete).then_some(tally.sent)
}

fn last_denials(lab: &Lab) {
    let cell = lab.waiting_cell(LIST);
    cell.python(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
         for i in range(270): s.sendto(b'x',('203.0.113.10',10000+i))",
    );
    cell.begin(1, None);
    let tally = cell.tally(1);
    let denied: u64 = tally.denied.iter().map(|denied| denied.count).sum();
    // On a busy machine some may not be read in time; the tally is then incomplete.
    assert!(tally.incomplete || denied + tally.more == 270, "{denied} {}", tally.more);
}
