//! Measurements of the machine as a whole: calls in a second, memory, and remains.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::direct::{Direct, Job};
use crate::peers::{family, field, in_path, proportional, run, settle};
use crate::{Asked, Report, Result};

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The machine's size and what else it does: figures of a busy one say little.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let release = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split_whitespace().next().unwrap_or("?");
    let total = field(&read("/proc/meminfo"), "MemTotal:") / 1024;
    format!("{cores} processors, {total} MB, Linux {}, load {load}", release.trim())
}

/// `/bin/true` by eight clients, each in its own namespaces.
pub fn sustained(asked: &Asked, direct: &Direct, report: &mut Report) -> Result<()> {
    const CLIENTS: usize = 8;
    let time = Duration::from_secs(asked.seconds.max(1));
    let job = Job::bash(&["/bin/true"]);
    // Idle cells are no leftovers: the pool is filled before.
    direct.sustained(&job, CLIENTS, Duration::from_secs(1))?;
    settle();
    let before = Left::now();
    let by_tenth = direct.sustained(&job, CLIENTS, time)?;
    settle();
    settle();
    let after = Left::now();
    let rate = |count: u32| f64::from(count) / time.as_secs_f64();
    let ours = rate(by_tenth.iter().sum());
    let short = time.min(Duration::from_secs(5));
    let bare = sustained_by(&["/bin/true"], CLIENTS, short)?;
    let text = format!("{ours:.0} calls/s; bare {bare:.0}/s ({:.0} %)", 100.0 * ours / bare);
    let goal = "38 % of bare";
    report.figure(
        "sustained: /bin/true, 8 clients",
        goal,
        &text,
        json!({ "calls_per_s": ours, "bare": bare }),
    );
    if in_path("bwrap") {
        let words = [
            "bwrap",
            "--unshare-all",
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "/bin/true",
        ];
        let bwrap = sustained_by(&words, CLIENTS, short)?;
        let text = format!("{bwrap:.0}/s; cofferdam has {:.2}x of it", ours / bwrap);
        report.figure("sustained: bwrap", "2.2x bwrap", &text, json!({ "calls_per_s": bwrap }));
    }
    let text = format!("{by_tenth:?} calls in each tenth of {} s", time.as_secs());
    report.figure("sustained: over time", "no slowdown", &text, json!(by_tenth));
    let text = format!("before {before}, after {after}");
    report.figure("sustained: left behind", "nothing", &text, json!([before.json(), after.json()]));
    Ok(())
}

fn sustained_by(words: &[&str], clients: usize, time: Duration) -> Result<f64> {
    let done = AtomicU32::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let client = || -> std::result::Result<(), String> {
            while started.elapsed() < time {
                run(words).map_err(|error| error.to_string())?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().map_err(|_| "a client failed")?.map_err(Box::from))
    })
    .map(|()| f64::from(done.load(Ordering::Relaxed)) / time.as_secs_f64())
}

/// Resources that could be left behind.
struct Left {
    namespaces: usize,
    processes: usize,
    slab_kb: u64,
}

impl Left {
    fn now() -> Self {
        let mut namespaces = BTreeSet::new();
        let mut processes = 0;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            processes += 1;
            for kind in ["mnt", "net", "pid", "user", "ipc", "uts", "cgroup"] {
                let link = std::fs::read_link(entry.path().join("ns").join(kind));
                namespaces.extend(link.map(|link| link.to_string_lossy().into_owned()));
            }
        }
        let slab_kb = field(&read("/proc/meminfo"), "SUnreclaim:");
        Self { namespaces: namespaces.len(), processes, slab_kb }
    }

    fn json(&self) -> Value {
        json!({ "namespaces": self.namespaces, "processes": self.processes, "slab_kb": self.slab_kb })
    }
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { namespaces, processes, slab_kb } = self;
        write!(f, "{namespaces} namespaces, {processes} processes, {slab_kb} kB of slab")
    }
}

/// Memory of a server: alone, with idle cells, and with a hundred calls at once.
pub fn memory(direct: &Direct, report: &mut Report) -> Result<()> {
    let mut client = Client::start(&["serve"])?;
    settle();
    let (processes, kilobytes) = family_memory(client.pid());
    let text = format!("{kilobytes} kB in {processes} processes (by their share of shared pages)");
    report.figure("memory: server, no cells", "8 MB", &text, json!({ "kb": kilobytes }));
    let slab = || field(&read("/proc/meminfo"), "SUnreclaim:");
    let before = slab();
    client.call("bash", &json!({ "command": "true" }))?;
    settle();
    settle();
    let (processes, kilobytes) = family_memory(client.pid());
    let kernel = slab().saturating_sub(before);
    let text = format!(
        "{kilobytes} kB in {processes} processes, and {kernel} kB more of the kernel's slab"
    );
    let value = json!({ "kb": kilobytes, "slab_kb": kernel, "processes": processes });
    report.figure("memory: server, 8 idle cells", "12 MB with the kernel's", &text, value);
    drop(client);

    settle();
    let before_slab = slab();
    let before = family_memory(std::process::id());
    let job = Job::bash(&["sleep", "30"]);
    let seen = direct.at_once(&job, 100, || (slab(), family_memory(std::process::id())))?;
    let (after_slab, after) = seen;
    let user = after.1.saturating_sub(before.1);
    let kernel = after_slab.saturating_sub(before_slab);
    let text = format!(
        "{user} kB more in {} more processes, and {kernel} kB of slab: {} kB a call",
        after.0.saturating_sub(before.0),
        (user + kernel) / 100
    );
    let value = json!({ "kb": user, "slab_kb": kernel });
    report.figure("memory: 100 sleeping calls", "", &text, value);
    settle();
    Ok(())
}

/// How many processes a server has, and their memory together in kilobytes.
fn family_memory(pid: u32) -> (usize, u64) {
    let all = family(pid);
    (all.len(), all.iter().map(|pid| proportional(pid)).sum())
}

/// Memory of this process, in kilobytes.
pub fn resident() -> u64 {
    field(&read("/proc/self/status"), "VmRSS:")
}
