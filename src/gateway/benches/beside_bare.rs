//! The gateway beside bare sockets, in the lab of the tests: connecting, moving bytes, scanning closed ports.
//!
//! Each pair runs in turns, so that a busy machine slows both. `cargo bench -p cofferdam-gateway`; needs what the lab
//! needs, and nmap for the scan.

#[path = "../tests/lab/world.rs"]
#[expect(dead_code, reason = "the claims use the rest")]
mod world;

use std::process::Command;

use world::{Cell, LIST, Lab};

/// Times that each measurement is repeated; the middle one is told.
const TURNS: usize = 5;

/// Microseconds for one connection, of 500 in a row.
const CONNECT: &str = "import socket,time\nt=time.perf_counter()\n\
    for _ in range(500):\n s=socket.create_connection(('203.0.113.20',7)); s.close()\n\
    print((time.perf_counter()-t)/500*1e6)";
/// Microseconds for a byte there and back.
const ROUND: &str = "import socket,time\ns=socket.create_connection(('203.0.113.20',7)); s.setsockopt(6,1,1)\n\
    t=time.perf_counter()\nfor _ in range(2000): s.sendall(b'x'); s.recv(1)\nprint((time.perf_counter()-t)/2000*1e6)";
/// Gigabytes per second from the server, and to it.
const RECEIVE: &str = "import socket,time\ns=socket.create_connection(('203.0.113.20',9000)); n=400<<20\n\
    t=time.perf_counter(); s.sendall(str(n).encode().ljust(20)); b=bytearray(1<<20)\n\
    while k:=s.recv_into(b): n-=k\nassert n==0\nprint((400<<20)/(time.perf_counter()-t)/1e9)";
const SEND: &str = "import socket,time\ns=socket.create_connection(('203.0.113.20',9001)); b=bytes(1<<20)\n\
    t=time.perf_counter()\nfor _ in range(400): s.sendall(b)\ns.shutdown(1); s.recv(99)\n\
    print((400<<20)/(time.perf_counter()-t)/1e9)";
/// Milliseconds of a scan of 1,000 closed ports.
const SCAN: &str = "import subprocess,time\nt=time.perf_counter()\n\
    subprocess.run(['nmap','-n','-Pn','-sT','-p','20000-20999','203.0.113.20'],stdout=subprocess.DEVNULL,check=True)\n\
    print((time.perf_counter()-t)*1e3)";

fn main() {
    if std::env::var_os("GATEWAY_LAB").is_none() {
        std::process::exit(world::reenter());
    }
    let lab = Lab::build();
    let cell = lab.cell(LIST);
    for (what, unit, script) in [
        ("connect", "us", CONNECT),
        ("round trip", "us", ROUND),
        ("receive", "GB/s", RECEIVE),
        ("send", "GB/s", SEND),
        ("scan of 1,000 closed ports", "ms", SCAN),
    ] {
        if script == SCAN && !world::installed("nmap") {
            println!("{what}: not run, nmap is missing");
            continue;
        }
        let (mut bare, mut through) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            bare.push(number(Command::new("python3").args(["-c", script])));
            through.push(number(cell.command("python3").args(["-c", script])));
        }
        println!("{what}: bare {:.2} {unit}, cell {:.2} {unit}", middle(bare), middle(through));
    }
    println!("an idle worker: {} KiB of its own", own_memory(&lab));
    drop::<Cell<'_>>(cell);
}

fn number(command: &mut Command) -> f64 {
    let output = command.output().expect("python runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

/// Returns the memory that a fresh worker shares with nobody, in KiB.
fn own_memory(lab: &Lab) -> u64 {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    let pid = *lab.workers().last().expect("a worker");
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let own =
        |line: &&str| line.starts_with("Private_Dirty:") || line.starts_with("Private_Clean:");
    let sizes = text.lines().filter(own).filter_map(|line| line.split_whitespace().nth(1));
    sizes.filter_map(|size| size.parse::<u64>().ok()).sum()
}
