//! Claims about TCP connections: what they carry, how they end, and what hostile ends can do.

use model::egress::ConnectionEnd;
use model::egress::frames::FromGateway;

use super::Claim;
use crate::world::{LIST, Lab};

pub(super) const ALL: &[Claim] = &[
    ("curl_reaches_a_named_host_by_v4_v6_and_tls", curl_reaches_a_named_host),
    ("a_connection_gets_the_answer_of_the_server", true_answers),
    ("an_upload_and_a_download_arrive_whole", bulk),
    ("a_half_closed_connection_still_carries_the_answer", half_closed),
    ("bytes_written_before_a_cell_ended_arrive", last_words),
    ("connections_that_their_server_never_closes_are_listed", never_closed),
    ("a_server_that_speaks_first_is_relayed_but_not_where_tls_is_expected", server_first),
    ("addresses_and_ports_of_a_reset_connection_can_be_reused", same_ends),
    ("a_program_that_is_gone_leaves_no_open_connection_on_the_host", left_half_open),
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

fn true_answers(lab: &Lab) {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    assert_eq!(cell.connect("2001:db8::20", 7), "ok");
    assert_eq!(cell.connect("203.0.113.20", 9), "ECONNREFUSED");
    assert_eq!(cell.connect("2001:db8::20", 9), "ECONNREFUSED");
    assert_eq!(cell.connect("203.0.113.99", 7), "timeout");
    assert_eq!(cell.connect("198.51.100.14", 7), "EHOSTUNREACH");
    assert_eq!(cell.connect("2001:db8:1::9", 7), "ENETUNREACH");
    // Denied, as no rule has them.
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
    // The program exits with the bytes still in the kernel, and nothing waits for an answer.
    cell.python(
        "s=socket.create_connection(('203.0.113.20',9003))\ns.setsockopt(1,7,1<<22)\ns.sendall(bytes(1000000))",
    );
    drop(cell);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !lab.server_log().contains("kept 1000000") {
        assert!(std::time::Instant::now() < end, "{}", lab.server_log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
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

fn same_ends(lab: &Lab) {
    let cell = lab.cell(LIST);
    // The first connection has bytes that its server never reads, and is reset; the second uses the
    // same port.
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
    // TCP_LINGER2: the cell's kernel forgets the connection a second after the program has closed
    // it.
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
    // An open connection is still served. No more can be opened while 512 are pending.
    assert_eq!(slow, "still");
    assert_eq!(lab.cell(LIST).connect("203.0.113.20", 7), "ok");
}

fn never_closed(lab: &Lab) {
    let cell = lab.cell(LIST);
    let answer = cell.python(
        "all=[socket.create_connection(('203.0.113.20',9005)) for i in range(30)]\n\
         for s in all: s.sendall(b'12345')\ntime.sleep(.3); print(len(all))",
    );
    assert_eq!(answer, "30");
    let key = cell.key;
    drop(cell);
    let mut listed = 0;
    while listed < 30 {
        match lab.frame() {
            Some(FromGateway::Connection { cell, connection, .. }) if cell == key => {
                assert_eq!((connection.sent, connection.end), (5, ConnectionEnd::Relayed));
                listed += 1;
            }
            Some(_) => {}
            None => panic!("{listed} lines"),
        }
    }
}
