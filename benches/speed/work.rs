//! Work inside a cell: what the walls cost a program that runs for a while.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::direct::{Direct, Job};
use crate::peers::{in_path, run};
use crate::samples::{Contender, Rounds, interleaved, ratio, timed};
use crate::{Report, Result};

const DIRECTORIES: u32 = 1000;
const FILES: u32 = 60;
/// Bytes that go through a cell's pipe.
const OUTPUT: u64 = 1 << 30;

/// A repository with many files, which cells have read-only at `/workspace`.
pub struct Tree {
    directory: TempDir,
}

impl Tree {
    /// The directory, with nothing in it yet.
    pub fn new() -> Result<Self> {
        Ok(Self { directory: tempfile::tempdir()? })
    }

    fn fill(&self) -> Result<()> {
        for number in 0..DIRECTORIES {
            let below = self.path().join(format!("d{number}"));
            std::fs::create_dir(&below)?;
            for file in 0..FILES {
                std::fs::write(below.join(format!("f{file}.txt")), format!("{number} {file}\n"))?;
            }
        }
        let source =
            (0..400).map(|n| format!("int f{n}(int x) {{ return x * {n} + (x >> 3); }}\n"));
        let path = self.path();
        std::fs::write(path.join("x.c"), source.collect::<String>())?;
        if in_path("git") {
            let git = |words: &[&str]| -> Result<()> {
                let mut command = Command::new("git");
                command.arg("-C").arg(&path).args(["-c", "user.name=b", "-c", "user.email=b@b"]);
                let done =
                    command.args(words).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
                if done.success() { Ok(()) } else { Err(format!("git {words:?}: {done}").into()) }
            };
            git(&["init", "-q"])?;
            git(&["add", "."])?;
            git(&["commit", "-q", "-m", "all"])?;
        }
        Ok(())
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }
}

/// Runs something under the shortest filter there is, one that allows everything: what no sandbox with
/// seccomp can be below.
fn filtered(command: impl FnOnce() -> Result<Vec<u8>> + Send) -> Result<Vec<u8>> {
    let allow_all =
        [seccompiler::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }];
    let ran = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            seccompiler::apply_filter(&allow_all).map_err(|error| error.to_string())?;
            command().map_err(|error| error.to_string())
        });
        thread.join().unwrap_or_else(|_| Err("the thread that runs it panicked".to_owned()))
    });
    ran.map_err(Into::into)
}

/// The same script, bare in the tree and in a cell that has the tree as its workspace. git compares
/// without owners: a cell of root's sees others, and git would read every file again.
pub fn work(direct: &Direct, tree: &Tree, report: &mut Report) -> Result<()> {
    tree.fill()?;
    let scripts = [
        (
            "git",
            "git status, 60,000 files",
            "git -c safe.directory='*' -c core.checkStat=minimal --no-optional-locks status -s",
        ),
        ("find", "find /usr", "find /usr -xdev -type f -size +1k > /dev/null 2>&1; true"),
        (
            "cc",
            "a compile",
            "cc -O1 -c x.c -o /tmp/cofferdam-bench-x.o; rm /tmp/cofferdam-bench-x.o",
        ),
        (
            "dd",
            "dd bs=1, 300,000 bytes",
            "dd if=/dev/zero of=/dev/null bs=1 count=300000 2> /dev/null",
        ),
    ];
    let rounds = Rounds { count: 15, pause: Duration::from_millis(20) };
    for (program, title, script) in scripts {
        if !in_path(program) {
            println!("work: {title}: no {program} here, skipped");
            continue;
        }
        let path = tree.path().to_string_lossy().into_owned();
        let there = format!("cd '{path}' && {script}");
        let words = ["bash", "-c", there.as_str()];
        let job = Job::bash(&["bash", "-c", script]).in_workspace();
        let mut all = [
            Contender::new("bare", || timed(|| run(&words))),
            Contender::new("in a cell", || Ok(direct.call(&job)?.took)),
            Contender::new("bare, any filter at all", || timed(|| filtered(|| run(&words)))),
            Contender::new("bare again (control)", || timed(|| run(&words))),
        ];
        let table = interleaved(&format!("work: {title}"), "at most 1.03x", rounds, &mut all)?;
        report.table(&table);
    }
    Ok(())
}

/// A gibibyte through a cell's pipe, captured, and the same through a pipe into `cat`.
pub fn output(direct: &Direct, report: &mut Report) -> Result<()> {
    let count = OUTPUT.to_string();
    let script = format!("head -c {count} /dev/zero | cat > /dev/null");
    let words = ["bash", "-c", script.as_str()];
    let job = Job::bash(&["head", "-c", &count, "/dev/zero"]);
    let before = crate::machine::resident();
    let captured = || -> Result<Duration> {
        let done = direct.call(&job)?;
        match done.stdout.total() == OUTPUT {
            true => Ok(done.took),
            false => Err(format!("{} bytes came through", done.stdout.total()).into()),
        }
    };
    let mut all = [
        Contender::new("head | cat > /dev/null", || timed(|| run(&words))),
        Contender::new("head in a cell, captured", captured),
        Contender::new("head | cat again (control)", || timed(|| run(&words))),
    ];
    let rounds = Rounds { count: 7, pause: Duration::from_millis(20) };
    let table =
        interleaved("output: 1 GiB", "0.8 of cat's bandwidth: at most 1.25x", rounds, &mut all)?;
    report.table(&table);
    let median = |index: usize| table.rows.get(index).map_or(Duration::ZERO, |row| row.median());
    let share = 1.0 / ratio(median(1), median(0));
    let grown = crate::machine::resident().saturating_sub(before);
    let text = format!("{share:.2} of cat's bandwidth; the reader grew by {grown} kB");
    report.figure(
        "output: 1 GiB",
        "0.8, memory flat",
        &text,
        json!({ "share": share, "grown_kb": grown }),
    );
    Ok(())
}
