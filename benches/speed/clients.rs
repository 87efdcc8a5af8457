//! Many clients at once: cells in a second, and how long each of many calls that begin together takes.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::direct::{Direct, Job};
use crate::peers::{in_path, run, settle};
use crate::samples::{micros, ratio};
use crate::{Asked, Report, Result};

/// With its whole path, as in a cold run.
const BARE: &[&str] = &["/bin/bash", "-c", "true"];
/// All namespaces and the parts of the host's root that bash needs.
const BWRAP: &[&str] = &[
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "/bin/bash",
    "-c",
    "true",
];
/// The host's root, changed only in a layer of the container; limits that a caller without
/// CAP_SYS_RESOURCE may set.
const PODMAN: &[&str] = &[
    "podman",
    "--cgroup-manager=cgroupfs",
    "--events-backend=none",
    "run",
    "--rm",
    "--network=none",
    "--ulimit=nofile=1024:1024",
    "--ulimit=nproc=4096:4096",
    "--rootfs",
    "/:O",
    "/bin/bash",
    "-c",
    "true",
];

/// When the clients stop.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// Each makes one call.
    Once,
    /// Each makes call after call for this long.
    Over(Duration),
}

impl Until {
    /// Returns true if a client that has ended a call makes another one.
    pub fn again(self, started: Instant) -> bool {
        match self {
            Self::Once => false,
            Self::Over(time) => started.elapsed() < time,
        }
    }
}

/// Makes calls by so many clients at once, and returns how long each took.
type Calls<'a> = Box<dyn Fn(usize, Until) -> Result<Vec<Duration>> + 'a>;

/// What makes a cell, or none, for each call.
struct Maker<'a> {
    name: &'static str,
    calls: Calls<'a>,
    /// Clients at once, at most: a container engine takes a second for each.
    max: usize,
}

fn makers<'a>(direct: &'a Direct, server: &'a RefCell<Client>) -> Vec<Maker<'a>> {
    let job = Job::bash(&["bash", "-c", "true"]);
    let command = json!({ "command": "true" });
    let by_mcp = move |clients, until| {
        let mut server = server.borrow_mut();
        server.at_once("bash_exec", &command, clients, until)
    };
    let in_process = move |clients, until| {
        let samples = direct.by_clients(&job, clients, until)?;
        Ok(samples.into_iter().map(|sample| sample.took).collect())
    };
    let maker = |name, calls: Calls<'a>| Maker { name, calls, max: usize::MAX };
    let mut all = vec![
        maker("bare", Box::new(|clients, until| processes(BARE, clients, until))),
        maker("cofferdam", Box::new(in_process)),
        maker("cofferdam by MCP", Box::new(by_mcp)),
    ];
    for (name, words, max) in [("bwrap", BWRAP, usize::MAX), ("podman", PODMAN, 20)] {
        if !in_path(name) {
            println!("peer {name}: not installed, skipped");
            continue;
        }
        match run(words) {
            Ok(_) => {
                let calls = move |clients, until| processes(words, clients, until);
                all.push(Maker { name, calls: Box::new(calls), max });
            }
            Err(error) => println!("peer {name}: cannot be used here, skipped: {error}"),
        }
    }
    all
}

fn processes(words: &[&str], clients: usize, until: Until) -> Result<Vec<Duration>> {
    let started = Instant::now();
    let client = || -> std::result::Result<Vec<Duration>, String> {
        let mut took = Vec::new();
        loop {
            let began = Instant::now();
            run(words).map_err(|error| error.to_string())?;
            took.push(began.elapsed());
            if !until.again(started) {
                return Ok(took);
            }
        }
    };
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        for client in clients {
            all.extend(client.join().map_err(|_| "a client failed")??);
        }
        Ok(all)
    })
}

/// Cells in a second against the number of clients.
pub fn clients(asked: &Asked, direct: &Direct, report: &mut Report) -> Result<()> {
    const CLIENTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
    const TURNS: usize = 3;
    let slice = Duration::from_secs(asked.seconds.max(1)) / 5;
    let server = RefCell::new(Client::start(&["serve", "--tools", "exec"])?);
    let makers = makers(direct, &server);
    let makers: Vec<&Maker<'_>> = makers.iter().filter(|maker| maker.name != "podman").collect();
    println!("\nclients: `bash -c true` in a second, medians of {TURNS} turns of {slice:?}");
    println!(
        "{:<20} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "", "clients", "a second", "of bare", "p50 us", "p99 us"
    );
    for clients in CLIENTS {
        let mut rates = vec![Vec::new(); makers.len()];
        let mut took = vec![Vec::new(); makers.len()];
        for turn in 0..TURNS {
            for place in 0..makers.len() {
                let index = (place + turn) % makers.len();
                let (Some(maker), Some(rates), Some(took)) =
                    (makers.get(index), rates.get_mut(index), took.get_mut(index))
                else {
                    continue;
                };
                settle();
                let started = Instant::now();
                let calls = (maker.calls)(clients, Until::Over(slice))?;
                rates.push(per_second(calls.len(), started.elapsed()));
                took.extend(calls);
            }
        }
        let rates: Vec<f64> = rates.into_iter().map(middle).collect();
        let bare = rates.first().copied().unwrap_or(f64::NAN);
        for ((maker, rate), took) in makers.iter().zip(&rates).zip(&mut took) {
            let times = Times::of(took);
            println!(
                "{:<20} {clients:>8} {rate:>9.0} {:>9.2} {:>9.0} {:>9.0}",
                maker.name,
                rate / bare,
                micros(times.p50),
                micros(times.p99)
            );
            report.keep(json!({
                "case": "clients", "name": maker.name, "clients": clients, "per_second": rate,
                "of_bare": rate / bare, "times": times.json(),
            }));
        }
    }
    Ok(())
}

/// How long each of 1, 20 and 100 calls takes that begin together: to create, execute and destroy.
pub fn together(asked: &Asked, direct: &Direct, report: &mut Report) -> Result<()> {
    const TOGETHER: [usize; 3] = [1, 20, 100];
    let server = RefCell::new(Client::start(&["serve", "--tools", "exec"])?);
    let makers = makers(direct, &server);
    println!("\ntogether: create, execute `bash -c true` and destroy");
    println!(
        "{:<20} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "", "at once", "samples", "p50 us", "p99 us", "p50/bare"
    );
    for many in TOGETHER {
        let turns = (asked.rounds.count / many).clamp(3, 100);
        let makers: Vec<&Maker<'_>> = makers.iter().filter(|maker| many <= maker.max).collect();
        let mut took = vec![Vec::new(); makers.len()];
        for turn in 0..turns {
            for place in 0..makers.len() {
                let index = (place + turn) % makers.len();
                if let (Some(maker), Some(took)) = (makers.get(index), took.get_mut(index)) {
                    took.extend((maker.calls)(many, Until::Once)?);
                    std::thread::sleep(asked.rounds.pause);
                }
            }
        }
        let all: Vec<Times> = took.iter_mut().map(|took| Times::of(took)).collect();
        let bare = all.first().map_or(Duration::ZERO, |times| times.p50);
        for (maker, times) in makers.iter().zip(&all) {
            println!(
                "{:<20} {many:>8} {:>9} {:>9.0} {:>9.0} {:>9.2}",
                maker.name,
                times.samples,
                micros(times.p50),
                micros(times.p99),
                ratio(times.p50, bare)
            );
            report.keep(json!({
                "case": "together", "name": maker.name, "at_once": many,
                "of_bare": ratio(times.p50, bare), "times": times.json(),
            }));
        }
    }
    Ok(())
}

fn per_second(calls: usize, time: Duration) -> f64 {
    u32::try_from(calls).map_or(f64::NAN, f64::from) / time.as_secs_f64()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Times of many calls.
struct Times {
    samples: usize,
    p50: Duration,
    p99: Duration,
}

impl Times {
    fn of(all: &mut [Duration]) -> Self {
        all.sort_unstable();
        let last = all.len().saturating_sub(1);
        let at = |percent| all.get(last * percent / 100).copied().unwrap_or_default();
        Self { samples: all.len(), p50: at(50), p99: at(99) }
    }

    fn json(&self) -> Value {
        json!({ "samples": self.samples, "p50_us": micros(self.p50), "p99_us": micros(self.p99) })
    }
}
