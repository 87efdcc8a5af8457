//! Claims about calls: when they begin, which traffic counts for them, and their limits.

use model::egress::Only;
use model::egress::frames::{FromGateway, ToGateway};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Claim;
use crate::world::{LIMITED, LIST, Lab, WIDE};

pub(super) const ALL: &[Claim] = &[
    ("no_packet_leaves_before_a_call_has_begun", before_a_call),
    ("a_connection_belongs_to_the_call_in_which_it_began", of_its_call),
    ("the_last_bytes_of_a_call_are_in_its_tally", sent_last),
    ("limits_end_connections_and_are_reported", limits),
    ("many_connections_share_one_limit", shared_limit),
    ("a_tally_counts_connections_bytes_and_denials", tallies),
];

fn before_a_call(lab: &Lab) {
    let cell = lab.waiting_cell(LIST);
    let workers = lab.workers().len();
    let asked = lab.server_log();
    assert_eq!(cell.connect("203.0.113.20", 7), "timeout");
    let answer = cell.run("dig +short +timeout=1 +tries=1 early.wild.test");
    assert!(answer.contains("no servers could be reached"), "{answer}");
    // No worker reads its packets, and no name was asked for. Workers of other cells may have
    // ended.
    assert!(lab.workers().len() <= workers, "a worker more");
    assert_eq!(lab.server_log(), asked);
    // The narrowing also applies to packets that were sent before the call began.
    let only = Only { ports: vec!["22".parse().expect("a port")], ..Only::default() };
    cell.begin(1, Some(only));
    assert_eq!(cell.connect("203.0.113.20", 22), "ok");
    assert_eq!(cell.connect("203.0.113.20", 7), "EHOSTUNREACH");
}

fn of_its_call(lab: &Lab) {
    let cell = lab.cell(LIST);
    // The program echoes two bytes once the file exists, which is during the second call, then
    // closes.
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
    // Reported for the first call, in which the connection began.
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

fn shared_limit(lab: &Lab) {
    let cell = lab.cell(WIDE);
    // All connections are open before the server sends more than the limit on each of them.
    let open = cell.python(
        "a=[socket.create_connection(('203.0.113.20',9000)) for _ in range(250)]\n\
         for s in a: s.sendall(b'400000'.ljust(20))\n\
         def all(s):\n n=0\n try:\n  while d:=s.recv(65536): n+=len(d)\n except OSError: pass\n return n\n\
         print(len(a)); sum(map(all,a))",
    );
    assert_eq!(open, "250");
    let tally = cell.tally(1);
    assert_eq!((tally.connections, tally.sent), (250, 5_000), "{tally:?}");
    assert_eq!(tally.received, 300_000);
    // The same in the other direction.
    cell.begin(2, None);
    cell.python(
        "a=[socket.create_connection(('203.0.113.20',9003)) for _ in range(250)]\n\
         import threading\n\
         def all(s):\n try: s.sendall(bytes(400000))\n except OSError: pass\n\
         t=[threading.Thread(target=all,args=(s,)) for s in a]\n\
         for x in t: x.start()\nfor x in t: x.join()",
    );
    assert_eq!(cell.tally(2).sent, 100_000);
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
    // A refused connection is not counted as a connection.
    assert_eq!(cell.connect("203.0.113.20", 9), "ECONNREFUSED");
    assert_eq!(cell.tally(1).connections, 1);
    cell.begin(2, None);
    assert!(cell.tally(2).is_empty());
    // The tally of an unknown call is incomplete.
    assert!(cell.tally(77).incomplete);
}

fn sent_last(lab: &Lab) {
    let cell = lab.cell(LIST);
    let go = lab.path("last");
    let mut program = cell.command("python3");
    let script = format!(
        "import os,socket,time\ns=socket.create_connection(('203.0.113.20',9002)); open('{go}.ready','w')\n\
         while not os.path.exists('{go}'): time.sleep(.01)\n\
         s.sendall(b'12345'); open('{go}.sent','w'); time.sleep(5)"
    );
    let mut child = program.args(["-c", &script]).spawn().expect("python");
    let there = |name: &str| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !std::path::Path::new(&format!("{go}{name}")).exists() {
            assert!(std::time::Instant::now() < end, "no {name}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    there(".ready");
    // The worker finds the bytes and the question at the same time.
    let worker = Pid::from_raw(*lab.workers().last().expect("a worker"));
    kill(worker, Signal::SIGSTOP).expect("sent");
    std::fs::write(&go, "").expect("written");
    there(".sent");
    lab.send_frame(&ToGateway::Ask { cell: cell.key, call: 1 });
    std::thread::sleep(std::time::Duration::from_millis(50));
    kill(worker, Signal::SIGCONT).expect("sent");
    let tally = loop {
        match lab.frame() {
            Some(FromGateway::Tally { cell: of, tally, .. }) if of == cell.key => break tally,
            Some(_) => {}
            None => panic!("no tally"),
        }
    };
    assert_eq!((tally.connections, tally.sent, tally.incomplete), (1, 5, false), "{tally:?}");
    child.kill().unwrap_or_default();
    child.wait().expect("its end");
}
