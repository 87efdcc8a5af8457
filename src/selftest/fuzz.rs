//! Random system calls in a sandbox, judged by targets outside of it.
//!
//! A round is one start of the sandbox, in which the helper makes calls with the arguments of a
//! seed. Files, a process and sockets of the host, its name and its time must be the same
//! afterwards. The same seed makes the same calls, as far as the kernel schedules them in the same
//! way.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::corpus::{self, Attack};
use super::launch::Bench;
use super::report::RunAbout;
use super::stage::Stage;

/// Version of the JSON report's schema.
const SCHEMA: u64 = 1;
/// Calls without which nothing was shown.
const MIN_CALLS: u64 = 100;
/// Processes of a round that make calls, one after another.
const WORKERS: u32 = 20;
/// Maximum change of the time of day that is no setting of the clock: clock synchronization moves it.
const MAX_CLOCK_DRIFT_MS: i128 = 2_000;

/// A round as an attack. The shell's limits hold for the calls too: they may ask for any size, and
/// the sandbox may have no limits. The first line names targets that only need to be there.
const ROUND: &str = r#"
    id = "fuzz"
    class = "escape"
    title = "random system calls"
    source = "syscalls(2)"
    run = ": {udp} {socket}; ulimit -f 20480 -v 2000000; exec {probe} random SEED WORKERS {sentinel} {port} {abstract} {dir}"
    held = ["made"]
    breach = "never"
    within = 60
"#;

/// What ends the fuzzing, besides a touched target.
#[derive(Debug, Clone, Copy)]
pub enum FuzzEnd {
    /// A number of rounds.
    Rounds(u64),
    /// The first round that ends after this time.
    After(Duration),
}

/// A target that a round has touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Touched {
    /// The seed that plays the round again.
    pub seed: u64,
    pub seen: String,
}

/// Results of all rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FuzzResult {
    pub seed: u64,
    pub rounds: u64,
    /// System calls, as the program counted them.
    pub calls: u64,
    /// `None` if nothing was touched.
    pub touched: Option<Touched>,
}

impl FuzzResult {
    /// Returns the exit code: 1 if a target was touched, 2 if too few calls were made.
    pub fn exit_code(&self) -> u8 {
        match (&self.touched, self.calls) {
            (Some(_), _) => 1,
            (None, 0..MIN_CALLS) => 2,
            (None, _) => 0,
        }
    }

    /// Returns the report for programs: one JSON object.
    ///
    /// # Errors
    /// A value cannot be represented in JSON.
    pub fn json(&self, about: &RunAbout) -> serde_json::Result<String> {
        let RunAbout { cofferdam, target, kernel, uid, time } = about;
        let object = serde_json::json!({
            "schema": SCHEMA, "cofferdam": cofferdam, "target": target, "kernel": kernel,
            "uid": uid, "time": time, "seed": self.seed, "rounds": self.rounds,
            "calls": self.calls, "touched": self.touched,
        });
        Ok(serde_json::to_string_pretty(&object)? + "\n")
    }

    /// Returns the report for people.
    pub fn text(&self) -> String {
        let Self { seed, rounds, calls, touched } = self;
        let made = format!("{calls} calls in {rounds} starts, from seed {seed}");
        match touched {
            Some(Touched { seed, seen }) => {
                format!("BREACH      {seen}\n            again: --seed {seed} --rounds 1\n{made}\n")
            }
            None if *calls < MIN_CALLS => format!("NO VERDICT  too few calls were made\n{made}\n"),
            None => format!("nothing outside was touched: {made}\n"),
        }
    }
}

/// Runs rounds until the end, the first touched target, or a stop. The seed of each round is the
/// first one plus its number.
///
/// # Errors
/// A target cannot be prepared or looked at, or the sandbox does not start.
pub fn rounds(bench: &Bench, seed: u64, end: FuzzEnd) -> std::io::Result<FuzzResult> {
    let attack = corpus::single(ROUND).map_err(std::io::Error::other)?;
    let began = Instant::now();
    let mut result = FuzzResult { seed, rounds: 0, calls: 0, touched: None };
    while result.touched.is_none() && !bench.is_stopped() {
        let is_over = match end {
            FuzzEnd::Rounds(rounds) => result.rounds >= rounds,
            FuzzEnd::After(time) => result.rounds > 0 && began.elapsed() >= time,
        };
        if is_over {
            break;
        }
        let own = seed.wrapping_add(result.rounds);
        let (calls, seen) = round(bench, &attack, own)?;
        result.calls = result.calls.saturating_add(calls);
        result.rounds = result.rounds.saturating_add(1);
        result.touched = seen.map(|seen| Touched { seed: own, seen });
    }
    Ok(result)
}

/// Runs one round. Returns the number of its calls and the first effect outside, if there is one.
fn round(bench: &Bench, attack: &Attack, seed: u64) -> std::io::Result<(u64, Option<String>)> {
    let line =
        attack.run.replace("SEED", &seed.to_string()).replace("WORKERS", &WORKERS.to_string());
    let mut stage = Stage::new(attack, &bench.helper)?;
    let process = stage.sentinel_group().unwrap_or_default();
    let before = HostState::now(&stage.watched, process)?;
    let ran = bench.inside(attack, &line, &stage)?;
    let hits = stage.hits(attack, &ran);
    let change = match HostState::now(&stage.watched, process) {
        Ok(after) => before.first_change(&after),
        // The calls have taken it away.
        Err(error) => {
            Some(format!("a file or the process of the host is not there any more: {error}"))
        }
    };
    stage.clear()?;
    let counts = ran.stdout.lines().filter_map(|line| line.strip_prefix("made ")?.parse().ok());
    let calls = counts.max().unwrap_or_default();
    Ok((calls, hits.into_iter().next().or(change)))
}

/// Attributes of a file that a call may change: mode, owner, times.
type FileAttributes = (u32, u32, u32, i64, i64, i64, i64);

/// State of the host that does not show in the content of files.
#[derive(Debug)]
struct HostState {
    files: BTreeMap<PathBuf, FileAttributes>,
    /// Lines of the sentinel's files in `/proc`: ids, signals, limits, priority.
    process: Vec<String>,
    name: String,
    /// Time of day minus the time since boot, in milliseconds.
    clock: i128,
}

impl HostState {
    fn now(watched: &Path, pid: i32) -> std::io::Result<Self> {
        let mut files = BTreeMap::new();
        let entries = std::fs::read_dir(watched)?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        for path in paths.into_iter().chain([watched.to_owned()]) {
            let data = std::fs::symlink_metadata(&path)?;
            let attributes = (
                data.mode(),
                data.uid(),
                data.gid(),
                data.mtime(),
                data.mtime_nsec(),
                data.ctime(),
                data.ctime_nsec(),
            );
            files.insert(path, attributes);
        }
        let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
        let since_boot = Duration::from(since_boot).as_millis();
        let day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let clock = |time: u128| i128::try_from(time).map_err(std::io::Error::other);
        Ok(Self {
            files,
            process: process_state(pid)?,
            name: std::fs::read_to_string("/proc/sys/kernel/hostname")?,
            clock: clock(day.as_millis())? - clock(since_boot)?,
        })
    }

    /// Returns the first difference in words.
    fn first_change(&self, now: &Self) -> Option<String> {
        if self.files != now.files {
            return Some("attributes of a file of the host were changed".to_owned());
        }
        let changed = self.process.iter().zip(&now.process).find(|(before, now)| before != now);
        if let Some((before, now)) = changed {
            return Some(format!("a process of the host was changed: `{before}`, then `{now}`"));
        }
        if self.name != now.name {
            return Some("the host's name was changed".to_owned());
        }
        let is_set = (self.clock - now.clock).abs() > MAX_CLOCK_DRIFT_MS;
        is_set.then(|| "the time of day was set".to_owned())
    }
}

/// Returns what other processes may change about a process (proc_pid_status(5), proc_pid_stat(5)).
fn process_state(pid: i32) -> std::io::Result<Vec<String>> {
    const KEPT: [&str; 5] = ["Uid", "SigPnd", "ShdPnd", "Cpus_allowed", "NoNewPrivs"];
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let status = read("status")?;
    let kept = status.lines().filter(|line| KEPT.iter().any(|name| line.starts_with(name)));
    let mut lines: Vec<String> = kept.map(str::to_owned).collect();
    lines.extend(read("limits")?.lines().map(str::to_owned));
    lines.push(read("oom_score_adj")?.trim().to_owned());
    let stat = read("stat")?;
    // The name may contain anything and ends with the last parenthesis; the 16th and 17th field
    // after it are priority and niceness.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    lines.extend(fields.split_whitespace().skip(15).take(2).map(str::to_owned));
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(calls: u64, touched: Option<Touched>) -> FuzzResult {
        FuzzResult { seed: 7, rounds: 3, calls, touched }
    }

    #[test]
    fn a_round_is_a_well_formed_attack() {
        let attack = corpus::single(ROUND).expect("well-formed");
        assert_eq!((attack.id.as_str(), attack.within), ("fuzz", 60));
    }

    #[test]
    fn the_exit_code_is_that_of_the_verdict_and_a_breach_has_its_seed() {
        let touched = || Some(Touched { seed: 9, seen: "a process".to_owned() });
        assert_eq!(result(MIN_CALLS, None).exit_code(), 0);
        assert_eq!(result(MIN_CALLS - 1, None).exit_code(), 2);
        assert_eq!(result(0, touched()).exit_code(), 1);
        let text = result(4_000, touched()).text();
        assert!(text.contains("again: --seed 9 --rounds 1\n"), "{text}");
    }

    /// Each kind of change that the content of files does not show.
    #[test]
    fn a_change_of_the_host_is_seen() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("secret");
        std::fs::write(&file, "x").expect("written");
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("started");
        let pid = i32::try_from(sleeper.id()).expect("small");
        let now = || HostState::now(directory.path(), pid).expect("readable");
        // Until it has replaced its program.
        std::thread::sleep(Duration::from_millis(100));
        let before = now();
        assert_eq!(before.first_change(&now()), None);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o604);
        std::fs::set_permissions(&file, mode).expect("changed");
        let seen = before.first_change(&now());
        assert_eq!(seen.as_deref(), Some("attributes of a file of the host were changed"));
        let before = now();
        let limited = std::process::Command::new("prlimit")
            .args(["--nofile=77:77", "--pid", &pid.to_string()])
            .status();
        assert!(limited.is_ok_and(|status| status.success()));
        let seen = before.first_change(&now()).unwrap_or_default();
        assert!(seen.starts_with("a process of the host was changed: `Max open files"), "{seen}");
        let before = HostState { clock: before.clock - 10_000, ..now() };
        assert_eq!(before.first_change(&now()).as_deref(), Some("the time of day was set"));
        sleeper.kill().and_then(|()| sleeper.wait()).expect("ended");
    }
}
