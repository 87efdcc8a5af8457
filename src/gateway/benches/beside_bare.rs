//! The gateway beside bare sockets, in the lab of the tests: connecting, moving bytes, scanning closed ports.
//!
//! All run in turns, so that a busy machine slows each alike, and bare twice, so that its noise shows. `cargo bench -p
//! cofferdam-gateway`; needs what the lab needs, nmap for the scan, and pasta (as root) to have that beside.

#[path = "../tests/lab/world.rs"]
#[expect(dead_code, reason = "the claims use the rest")]
mod world;

use std::process::Command;

use world::{Cell, LIST, Lab};

/// Times that each measurement is repeated; the middle one counts.
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
    let pasta = Pasta::prepare();
    println!("load {} at the beginning", load());
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
        measure((what, unit), script, &cell, pasta.as_ref());
    }
    println!("an idle worker: {} KiB of its own", own_memory(&lab));
    println!("load {} at the end", load());
    drop::<Cell<'_>>(cell);
}

/// Measures one script in each place, in turns, and tells the middle, the least and the most of each. The bare one is
/// there twice: as far as the second is from the first, differences mean nothing.
fn measure((what, unit): (&str, &str), script: &str, cell: &Cell<'_>, pasta: Option<&Pasta>) {
    let words = ["-c", script];
    let bare = || Some(number(Command::new("/usr/bin/python3").args(words)));
    let within = || Some(number(cell.command("/usr/bin/python3").args(words)));
    let beside = || pasta.and_then(|pasta| attempted(&mut pasta.command(script)));
    let places: [(&str, &dyn Fn() -> Option<f64>); 4] =
        [("bare", &bare), ("cell", &within), ("pasta", &beside), ("bare again", &bare)];
    let mut taken: [Vec<f64>; 4] = Default::default();
    for turn in 0..TURNS {
        for place in 0..places.len() {
            // Each turn begins with another.
            let index = (place + turn) % places.len();
            if let (Some((_, once)), Some(numbers)) = (places.get(index), taken.get_mut(index)) {
                numbers.extend(once());
            }
        }
    }
    println!("{what}, {unit}, {TURNS} turns, load {}:", load());
    for ((name, _), mut numbers) in places.iter().zip(taken) {
        numbers.sort_by(f64::total_cmp);
        let at = |place: usize| numbers.get(place).copied().unwrap_or_default();
        if let Some(last) = numbers.len().checked_sub(1) {
            let (middle, least, most) = (at(numbers.len() / 2), at(0), at(last));
            println!("    {name:<12} {middle:9.2} ({least:.2} to {most:.2})");
        }
        if *name == "pasta" && pasta.is_some() && numbers.len() < TURNS {
            println!("    {name:<12} failed in {} turns", TURNS - numbers.len());
        }
    }
}

/// Returns the machine's load, of one minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

fn number(command: &mut Command) -> f64 {
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// Returns the number that a command prints, if it succeeds: pasta of 2023 resets connections that send much.
fn attempted(command: &mut Command) -> Option<f64> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// pasta (Debian's package `passt`), which connects a network namespace by a stack in user mode too.
struct Pasta;

impl Pasta {
    /// Makes what it needs in this namespace: a tun device that an ordinary user may open, and a way to everywhere.
    /// Returns nothing where it is not there or cannot run, and says so.
    fn prepare() -> Option<Self> {
        if !world::installed("pasta") || !world::by_root() {
            println!("pasta: not run, it is missing, or this is not root");
            return None;
        }
        let script = "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && \
            ip route add default via 203.0.113.10 && ip -6 route add default via 2001:db8::10";
        let made = Command::new("sh").args(["-c", script]).status().expect("sh runs");
        let tried = made.success()
            && Self.command("print(1)").output().is_ok_and(|output| output.stdout == b"1\n");
        if !tried {
            println!("pasta: not run, it cannot make its link here");
        }
        tried.then_some(Self)
    }

    /// Returns a command that runs Python in a namespace that it makes; as nobody, since it gives up root's rights.
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.args([
            "timeout",
            "60",
            "pasta",
            "--config-net",
            "-f",
            "--",
            "/usr/bin/python3",
            "-c",
            script,
        ]);
        command.env("HOME", "/").env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        command
    }
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
