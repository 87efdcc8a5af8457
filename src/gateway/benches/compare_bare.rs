//! Compares the gateway with bare sockets in the lab of the tests: connecting, moving bytes,
//! scanning closed ports.
//!
//! All are measured in turns, so that a busy machine slows each alike, and bare twice, to show the
//! noise. Run by `cargo bench -p cofferdam-gateway`; needs the programs of the lab, nmap for the
//! scan, and pasta (as root) to compare with it.

#[path = "../tests/lab/world.rs"]
#[expect(dead_code, reason = "the claims use the rest")]
mod world;

use std::process::Command;

use world::{Cell, LIST, Lab};

/// How often each measurement is repeated; the median counts.
const TURNS: usize = 5;

/// Microseconds per connection, for 500 in a row.
const CONNECT: &str = "import socket,time\nt=time.perf_counter()\n\
    for _ in range(500):\n s=socket.create_connection(('203.0.113.20',7)); s.close()\n\
    print((time.perf_counter()-t)/500*1e6)";
/// Microseconds per round trip of one byte.
const ROUND: &str = "import socket,time\ns=socket.create_connection(('203.0.113.20',7)); s.setsockopt(6,1,1)\n\
    t=time.perf_counter()\nfor _ in range(2000): s.sendall(b'x'); s.recv(1)\nprint((time.perf_counter()-t)/2000*1e6)";
/// Gigabytes per second from the server.
const RECEIVE: &str = "import socket,time\ns=socket.create_connection(('203.0.113.20',9000)); n=400<<20\n\
    t=time.perf_counter(); s.sendall(str(n).encode().ljust(20)); b=bytearray(1<<20)\n\
    while k:=s.recv_into(b): n-=k\nassert n==0\nprint((400<<20)/(time.perf_counter()-t)/1e9)";
/// Gigabytes per second to the server.
const SEND: &str = "import socket,time\ns=socket.create_connection(('203.0.113.20',9001)); b=bytes(1<<20)\n\
    t=time.perf_counter()\nfor _ in range(400): s.sendall(b)\ns.shutdown(1); s.recv(99)\n\
    print((400<<20)/(time.perf_counter()-t)/1e9)";
/// Milliseconds for a scan of 1,000 closed ports.
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
        measure(what, unit, script, &cell, pasta.as_ref());
    }
    println!("an idle worker: {} KiB private", private_memory(&lab));
    println!("load {} at the end", load());
    drop::<Cell<'_>>(cell);
}

/// Measures one script in each environment, in turns, and prints median, minimum and maximum of
/// each. Bare is measured twice: differences as large as between the two mean nothing.
fn measure(what: &str, unit: &str, script: &str, cell: &Cell<'_>, pasta: Option<&Pasta>) {
    let words = ["-c", script];
    let bare = || Some(number(Command::new("/usr/bin/python3").args(words)));
    let within = || Some(number(cell.command("/usr/bin/python3").args(words)));
    let with_pasta = || pasta.and_then(|pasta| attempted(&mut pasta.command(script)));
    let environments: [(&str, &dyn Fn() -> Option<f64>); 4] =
        [("bare", &bare), ("cell", &within), ("pasta", &with_pasta), ("bare again", &bare)];
    let mut taken: [Vec<f64>; 4] = Default::default();
    for turn in 0..TURNS {
        for position in 0..environments.len() {
            // Each turn begins with a different one.
            let index = (position + turn) % environments.len();
            if let (Some((_, once)), Some(numbers)) =
                (environments.get(index), taken.get_mut(index))
            {
                numbers.extend(once());
            }
        }
    }
    println!("{what}, {unit}, {TURNS} turns, load {}:", load());
    for ((name, _), mut numbers) in environments.iter().zip(taken) {
        numbers.sort_by(f64::total_cmp);
        let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
        if let Some(last) = numbers.len().checked_sub(1) {
            let median = at(numbers.len() / 2);
            let min = at(0);
            let max = at(last);
            println!("    {name:<12} {median:9.2} ({min:.2} to {max:.2})");
        }
        if *name == "pasta" && pasta.is_some() && numbers.len() < TURNS {
            println!("    {name:<12} failed in {} turns", TURNS - numbers.len());
        }
    }
}

/// Returns the machine's one-minute load average.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

fn number(command: &mut Command) -> f64 {
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// Returns the number that a command prints, or `None` if it fails: pasta of 2023 resets
/// connections that send much.
fn attempted(command: &mut Command) -> Option<f64> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// pasta (Debian's package `passt`), which also connects a network namespace through a user-mode
/// stack.
struct Pasta;

impl Pasta {
    /// Prepares this namespace: a tun device that an ordinary user may open, and a default route.
    /// Returns `None` if pasta is missing or cannot run, and prints so.
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

    /// Returns a command that runs Python in a namespace made by pasta; as user `nobody`, since
    /// pasta drops root's rights.
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

/// Returns the private memory of a fresh worker in KiB.
fn private_memory(lab: &Lab) -> u64 {
    let cell = lab.cell(LIST);
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    let pid = *lab.workers().last().expect("a worker");
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let is_private =
        |line: &&str| line.starts_with("Private_Dirty:") || line.starts_with("Private_Clean:");
    let sizes = text.lines().filter(is_private).filter_map(|line| line.split_whitespace().nth(1));
    sizes.filter_map(|size| size.parse::<u64>().ok()).sum()
}
