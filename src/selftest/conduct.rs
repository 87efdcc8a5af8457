//! Runs the whole corpus: each attack without the sandbox and inside it, several at a time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nix::unistd::{AccessFlags, access};
use serde::Serialize;

use super::corpus::{Attack, Class, Network};
use super::judge::{
    self, AttackVerdict, ControlResult, Isolation, Memory, Observed, OuterFilter, Target,
};
use super::launch::{Bench, PRIVATE};
use super::resources;
use super::run_result::{Ran, RunEnd};
use super::served::{ServerPlace, ToolServer};
use super::stage::{self, Stage};

/// The verdict on one attack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttackResult {
    pub id: String,
    pub topic: &'static str,
    pub class: Class,
    pub title: String,
    pub source: String,
    #[serde(flatten)]
    pub verdict: AttackVerdict,
    pub took_ms: u64,
}

/// Prepares what all attacks share: above all the helper, executable by every user.
///
/// # Errors
/// A file cannot be written.
pub fn bench(directory: &Path, program: PathBuf, target: Target) -> std::io::Result<Bench> {
    use std::os::unix::fs::PermissionsExt;
    let make_executable =
        |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755));
    make_executable(directory)?;
    let helper = directory.join("cofferdam-probe");
    std::fs::write(&helper, helpers::PROBE)?;
    make_executable(&helper)?;
    let config = directory.join("config");
    std::fs::create_dir(&config)?;
    let private = directory.join(PRIVATE);
    std::fs::create_dir(&private)?;
    // Like /tmp: files are removed by their owner, which is another user if root runs the test.
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o1777))?;
    // Placeholders until the sandbox reports them.
    let memory = Memory::ControlGroup;
    let isolation = Isolation::Shared;
    let pace = 1;
    let directory = directory.to_owned();
    let stop = Arc::default();
    let outer = outer_filter()?;
    let no_lab = None;
    Ok(Bench {
        target,
        program,
        directory,
        config,
        helper,
        memory,
        isolation,
        outer,
        no_lab,
        pace,
        stop,
    })
}

/// Checks whether a filter is in force for this process (`Seccomp:` of proc_pid_status(5)), which
/// has not loaded one itself.
fn outer_filter() -> std::io::Result<OuterFilter> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    Ok(match mode.map(str::trim) {
        Some("0") | None => OuterFilter::None,
        Some(_) => OuterFilter::Some,
    })
}

/// Makes a directory for a run, on a filesystem that allows executing programs: engines often mount
/// `/tmp` noexec.
///
/// # Errors
/// No writable directory allows executing programs.
pub fn working_directory() -> std::io::Result<tempfile::TempDir> {
    let others = ["/var/tmp", "/dev/shm", "/run"].map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let candidates = std::iter::once(std::env::temp_dir()).chain(others).chain(home);
    let mut first_error = None;
    for candidate in candidates {
        match working_directory_in(&candidate) {
            Ok(directory) => return Ok(directory),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound)))
}

fn working_directory_in(parent: &Path) -> std::io::Result<tempfile::TempDir> {
    let directory = tempfile::Builder::new().prefix("cofferdam-selftest-").tempdir_in(parent)?;
    let flags = nix::sys::statvfs::statvfs(directory.path())?.flags();
    if flags.contains(nix::sys::statvfs::FsFlags::ST_NOEXEC) {
        let reason = format!("{} lets no program run (noexec)", parent.display());
        return Err(std::io::Error::other(reason));
    }
    Ok(directory)
}

/// Runs the attacks and returns the verdicts in order; only those reached so far if it is stopped.
/// Calls `on_progress` with the number of finished attacks after each of them.
pub fn all(
    bench: &Bench,
    probes: &[Attack],
    on_progress: &(dyn Fn(usize) + Sync),
) -> Vec<AttackResult> {
    let is_root = nix::unistd::geteuid().is_root();
    let verdicts = Mutex::new(vec![None; probes.len()]);
    let done = AtomicUsize::new(0);
    let settle = |at: usize, probe: &Attack| {
        let result = judge_attack(bench, probe, is_root);
        let mut verdicts = verdicts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(slot) = verdicts.get_mut(at) {
            *slot = result;
        }
        on_progress(done.fetch_add(1, Ordering::Relaxed).saturating_add(1));
    };
    let workers = match &bench.target {
        // A server may limit the calls of one client.
        Target::Served(_) => 2,
        Target::Own | Target::Lower | Target::Other(_) => {
            std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 8))
        }
    };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((at, probe)) = next_attack(probes, &next) {
                    if !probe.alone {
                        settle(at, probe);
                    }
                }
            });
        }
    });
    let alone = probes.iter().enumerate().filter(|(_, probe)| probe.alone);
    alone.for_each(|(at, probe)| settle(at, probe));
    let verdicts = verdicts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    verdicts.into_iter().flatten().collect()
}

fn next_attack<'a>(probes: &'a [Attack], next: &AtomicUsize) -> Option<(usize, &'a Attack)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, probes.get(at)?))
}

fn judge_attack(bench: &Bench, probe: &Attack, is_root: bool) -> Option<AttackResult> {
    if bench.is_stopped() {
        return None;
    }
    let began = std::time::Instant::now();
    let not_applicable = judge::not_applicable(probe, &bench.target, bench.isolation, is_root);
    let no_lab = bench.no_lab.clone().filter(|_| probe.network == Network::Lab);
    let verdict = match not_applicable.or(no_lab.map(|why| AttackVerdict::NotApplicable { why })) {
        Some(verdict) => verdict,
        None => run_attack(bench, probe, is_root)
            .unwrap_or_else(|error| AttackVerdict::NoVerdict { seen: error.to_string() }),
    };
    Some(AttackResult {
        id: probe.id.clone(),
        topic: probe.topic,
        class: probe.class,
        title: probe.title.clone(),
        source: probe.source.clone(),
        verdict,
        took_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

fn run_attack(bench: &Bench, probe: &Attack, is_root: bool) -> std::io::Result<AttackVerdict> {
    let shortage = resources::short_of(probe, &bench.directory);
    let mut absent = None;
    let shown =
        match (judge::without_control(probe, is_root, bench.outer), &shortage, &bench.target) {
            (_, Some(why), Target::Other(_) | Target::Served(_)) => {
                return Ok(AttackVerdict::NotApplicable { why: why.clone() });
            }
            (_, None, Target::Served(served)) if is_elsewhere(served) => {
                ControlResult::NotHere("the server runs on another machine".to_owned())
            }
            (Some(shown), _, _) => shown,
            (None, Some(why), Target::Own | Target::Lower) => ControlResult::NotHere(why.clone()),
            (None, None, _) => match missing_program(probe, stage::PATH) {
                Some(program) => {
                    absent = Some(program);
                    ControlResult::NotHere("its control lacks a program".to_owned())
                }
                None => judge::shown_to(is_root, probe, control(bench, probe)?),
            },
        };
    let (seen, _) = observe(bench, probe, |stage| {
        if let Some(first) = &probe.first {
            bench.inside(probe, first, stage)?;
        }
        bench.inside(probe, &judge::checked_line(probe, line_inside(bench, probe)), stage)
    })?;
    let verdict = judge::verdict(probe, &bench.target, shown, &seen);
    match (absent, &verdict) {
        // Nothing shows that it would have worked; a breach shows itself.
        (Some(program), AttackVerdict::Held { .. } | AttackVerdict::NoVerdict { .. }) => {
            Ok(judge::without_program(program))
        }
        (Some(program), AttackVerdict::Breach { .. })
            if judge::may_be_outer(probe, bench.outer, &seen) =>
        {
            Ok(judge::without_program(program))
        }
        _ => Ok(judge::known(probe, &bench.target, bench.memory, verdict)),
    }
}

/// Returns a program that the control needs and that no directory of `path` has.
fn missing_program<'a>(probe: &'a Attack, path: &str) -> Option<&'a str> {
    probe.control_needs().find(|program| {
        !path
            .split(':')
            .any(|directory| access(&Path::new(directory).join(program), AccessFlags::X_OK).is_ok())
    })
}

/// Returns the line that is run in the sandbox. Other sandboxes show what they grant at the path that
/// it has outside, where the control finds it too.
fn line_inside<'a>(bench: &Bench, probe: &'a Attack) -> &'a str {
    match (&bench.target, &probe.control_run) {
        (Target::Other(_), Some(line)) if probe.is_granted_directory() => line,
        _ => &probe.run,
    }
}

fn is_elsewhere(served: &ToolServer) -> bool {
    matches!(served.place, ServerPlace::Elsewhere(_))
}

fn control(bench: &Bench, probe: &Attack) -> std::io::Result<ControlResult> {
    let (seen, unseen) = observe(bench, probe, |stage| {
        if let Some(first) = &probe.first {
            bench.without(probe, first, stage)?;
        }
        bench.without(probe, probe.control_run.as_ref().unwrap_or(&probe.run), stage)
    })?;
    Ok(match unseen {
        Some(part) => {
            let story = seen.ran.summary();
            ControlResult::Failed(format!("without a sandbox no server has seen `{part}`: {story}"))
        }
        None => judge::shown(probe, &seen, bench.outer),
    })
}

/// Runs the attack once with new targets. Returns also a string that some server of the lab should
/// have seen but did not.
fn observe(
    bench: &Bench,
    probe: &Attack,
    run: impl Fn(&Stage) -> std::io::Result<Ran>,
) -> std::io::Result<(Observed, Option<String>)> {
    let mut stage = Stage::new(probe, &bench.helper)?;
    if let Target::Served(served) = &bench.target
        && let Some((words, secret)) = served.planted()
    {
        stage.use_planted(words, secret);
    }
    let ran = run(&stage)?;
    let hits = stage.hits(probe, &ran);
    let is_short =
        probe.network == Network::Lab && ran.end == RunEnd::Own && !stage.is_recorded_whole();
    let unseen = stage.unseen(probe).map(str::to_owned);
    stage.clear()?;
    if is_short {
        let reason = format!("the servers did not end by themselves: {}", ran.summary());
        return Err(std::io::Error::other(reason));
    }
    Ok((Observed { ran, hits }, unseen))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::corpus;

    #[test]
    fn a_control_whose_program_is_absent_is_found_before_it_runs() -> std::io::Result<()> {
        let directories = [tempfile::tempdir()?, tempfile::tempdir()?];
        let path = directories.each_ref().map(|one| one.path().display().to_string()).join(":");
        let attack = |line: &str| {
            let common = "id = 'F1'\nclass = 'kernel'\ntitle = 't'\nsource = 's'\nrun = 'true'\nheld = ['EPERM']\nbreach = '0'";
            corpus::single(&format!("{common}\n{line}")).unwrap_or_else(|error| panic!("{error}"))
        };
        let plain = attack("");
        let by_python = attack("needs = ['python3']");
        let in_namespaces = attack("control = 'namespaces'");
        let missing = || {
            [&plain, &by_python, &in_namespaces]
                .map(|probe| missing_program(probe, &path).map(str::to_owned))
        };
        let absent = |name: &str| Some(name.to_owned());
        assert_eq!(missing(), [None, absent("python3"), absent("unshare")]);
        let file = directories[1].path().join("python3");
        std::fs::write(&file, "")?;
        // No program yet.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
        assert_eq!(missing(), [None, absent("python3"), absent("unshare")]);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
        assert_eq!(missing(), [None, None, absent("unshare")]);
        Ok(())
    }
}
