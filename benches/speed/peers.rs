//! The others: a bare process, and each sandbox that is installed, made to do the same.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::Result;
use crate::samples::{Contender, timed};

/// The program that cargo built with the benchmark, with what only tests need of its libraries.
const BESIDE: &str = env!("CARGO_BIN_EXE_cofferdam");

static NAMED: OnceLock<String> = OnceLock::new();

/// Measures this program in place of that one.
pub fn measure(program: &str) {
    NAMED.get_or_init(|| program.to_owned());
}

/// The program that is measured.
pub fn cofferdam() -> &'static str {
    NAMED.get().map_or(BESIDE, String::as_str)
}

/// Peers by the program that must be in `PATH`, with the words before the command.
///
/// Each gets its own namespaces as far as it offers them and the host's root read-only, which
/// is less work than a root put together from pieces.
const PEERS: [(&str, &[&str]); 7] = [
    (
        "bwrap",
        &[
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
        ],
    ),
    ("firejail", &["--quiet", "--noprofile", "--net=none", "--private-tmp", "--"]),
    ("nsjail", &["-Mo", "-Q", "--chroot", "/", "--"]),
    ("minijail0", &["-T", "static", "-U", "-m", "-M", "-v", "-p", "-l", "-e", "-N", "-n", "--"]),
    ("isolate", &["--silent", "--processes=8", "--run", "--"]),
    (
        "systemd-run",
        &[
            "--quiet",
            "--pipe",
            "--wait",
            "-p",
            "PrivateNetwork=yes",
            "-p",
            "ProtectSystem=strict",
            "--",
        ],
    ),
    ("crun", &[]),
];

/// Runs a command to its end, its output read to the end: what every caller does with one.
pub fn run(words: &[&str]) -> Result<Vec<u8>> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    // Without a closure before exec, this is posix_spawn(3).
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("{program}: {}: {said}", output.status).into());
    }
    Ok(output.stdout)
}

pub fn bare<'a>(name: &str, words: &'a [&'a str]) -> Contender<'a> {
    Contender::new(name, move || timed(|| run(words)))
}

/// Every installed peer that can run `true` here; why another cannot is printed.
pub fn installed(command: &'static [&'static str]) -> Vec<Contender<'static>> {
    let mut found = Vec::new();
    for (name, before) in PEERS {
        if !in_path(name) {
            println!("peer {name}: not installed, skipped");
            continue;
        }
        if name == "crun" {
            found.extend(crun(command));
            continue;
        }
        let words: Vec<&str> = std::iter::once(name)
            .chain(before.iter().copied())
            .chain(command.iter().copied())
            .collect();
        match run(&words) {
            Ok(_) => found.push(Contender::new(name, move || timed(|| run(&words)))),
            Err(error) => {
                println!("peer {name}: cannot be used here, skipped: {}", line(&error.to_string()))
            }
        }
    }
    found
}

fn line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

pub fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// crun wants a bundle: the host's root, read-only, in its own namespaces.
fn crun(command: &[&str]) -> Option<Contender<'static>> {
    let bundle = tempfile::tempdir().ok()?;
    let spec = Command::new("crun").arg("spec").current_dir(bundle.path()).output().ok()?;
    let config = bundle.path().join("config.json");
    let text = std::fs::read_to_string(&config).ok().filter(|_| spec.status.success())?;
    let mut spec: serde_json::Value = serde_json::from_str(&text).ok()?;
    *spec.pointer_mut("/process/args")? = serde_json::json!(command);
    *spec.pointer_mut("/process/terminal")? = serde_json::json!(false);
    *spec.pointer_mut("/root")? = serde_json::json!({ "path": "/", "readonly": true });
    std::fs::write(&config, spec.to_string()).ok()?;
    let name = format!("cofferdam-bench-{}", std::process::id());
    let once = move || {
        let at: &Path = bundle.path();
        timed(|| run(&["crun", "run", "--bundle", &at.to_string_lossy(), &name]))
    };
    let mut contender = Contender::new("crun", once);
    match (contender.once)() {
        Ok(_) => Some(contender),
        Err(error) => {
            println!("peer crun: cannot be used here, skipped: {}", line(&error.to_string()));
            None
        }
    }
}

/// Resident memory of a process by its share of shared pages, in kilobytes.
pub fn proportional(pid: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    field(&text, "Pss:")
}

/// The number after a name in a file of `/proc`.
pub fn field(text: &str, name: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A process and all that descend from it.
pub fn family(pid: u32) -> Vec<String> {
    let mut family = vec![pid.to_string()];
    let mut next = 0;
    while let Some(parent) = family.get(next).cloned() {
        next += 1;
        let threads =
            std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children"));
            family.extend(children.unwrap_or_default().split_whitespace().map(str::to_owned));
        }
    }
    family
}

/// How long until what was set going in the background has calmed down.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(400));
}
