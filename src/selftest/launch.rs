//! How an attack is started, without a sandbox and within one, and how its end is seen.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::corpus::{Attack, ControlMode, Network, StartMode};
use super::judge::{Isolation, Memory, OuterFilter, Target};
use super::stage::{self, Stage};
use model::profile::calls;
use model::receipt::Tier;

/// Path of the helper in a cell.
const HELPER_IN_CELL: &str = "/mnt/cofferdam-probe";
/// Directory of the private directories of cells in the lower tier.
pub const PRIVATE: &str = "private";
/// How long what removes them may take after the last attack.
const SWEEPING: Duration = Duration::from_secs(60);
/// Time of a trivial run within which a machine is fast: the time that attacks have is for such a machine.
const FAST: Duration = Duration::from_millis(250);
/// Most times that this time is lengthened.
const SLOWEST: u32 = 10;
/// How much of the output is looked at.
const KEPT: u64 = 64 * 1024;

/// How a run ended and what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    /// The exit code; none where a signal ended it.
    pub code: Option<i32>,
    pub took: Duration,
    /// Of both streams.
    pub bytes: u64,
    pub end: RunEnd,
    /// The process group it was started in.
    pub group: i32,
}

/// By whom a run was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// By itself.
    Own,
    /// By us, as the attack wanted it.
    Wanted,
    /// By us, as it did not end.
    Overdue,
}

impl Ran {
    pub fn said(&self) -> &str {
        self.stdout.trim()
    }

    /// Returns the result on one line.
    pub fn story(&self) -> String {
        let short =
            |text: &str| text.trim().chars().take(200).collect::<String>().replace('\n', " | ");
        let code = self.code.map_or("a signal".to_owned(), |code| format!("exit {code}"));
        match short(&self.stderr) {
            none if none.is_empty() => format!("`{}`, {code}", short(&self.stdout)),
            errors => format!("`{}`, {code}, `{errors}`", short(&self.stdout)),
        }
    }
}

/// Everything that runs share.
#[derive(Debug, Clone)]
pub struct Bench {
    pub target: Target,
    /// This program.
    pub program: PathBuf,
    /// Directory in which all targets are put up.
    pub directory: PathBuf,
    /// An empty directory: cells are those of the shipped profiles, whatever is configured here.
    pub config: PathBuf,
    /// The helper on the host.
    pub helper: PathBuf,
    /// Of cells.
    pub memory: Memory,
    pub isolation: Isolation,
    /// Around this process: an engine's.
    pub outer: OuterFilter,
    /// Why the network of attacks on egress cannot be made here, if so.
    pub no_lab: Option<String>,
    /// Times that a run may be longer than on a fast machine: an emulated one is slow.
    pub pace: u32,
    /// Set by whoever wants it to end: what runs is ended, nothing more is begun.
    pub stop: Arc<AtomicBool>,
}

impl Bench {
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until the private directories of cells are gone, which outlive their calls for a moment.
    pub fn await_sweepers(&self) {
        let until = Instant::now() + SWEEPING;
        let some = || {
            let left = std::fs::read_dir(self.directory.join(PRIVATE));
            left.is_ok_and(|mut left| left.next().is_some())
        };
        while some() && Instant::now() < until && !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a line of an attack within the sandbox.
    ///
    /// # Errors
    /// The program could not be started or looked at.
    pub fn inside(&self, probe: &Attack, line: &str, stage: &Stage) -> std::io::Result<Ran> {
        let place = self.place(stage);
        let line = stage.filled(&place.entered(line), &place);
        let mut words = match &self.target {
            Target::Own | Target::Lower => self.own(probe, stage),
            Target::Other(prefix) => {
                prefix.iter().map(|word| stage.filled(word, &self.outside(stage))).collect()
            }
        };
        words.extend(["bash".to_owned(), "-c".to_owned(), line]);
        self.run(probe, &self.in_network(probe, words, stage), stage)
    }

    /// Returns the command as it runs in the network that the attack wants.
    fn in_network(&self, probe: &Attack, words: Vec<String>, stage: &Stage) -> Vec<String> {
        match probe.network {
            Network::Host => words,
            Network::Lab => self.in_lab(stage.record(), words),
        }
    }

    fn in_lab(&self, record: &Path, words: Vec<String>) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let fixed =
            ["selftest".to_owned(), "--within-lab".to_owned(), text(record), "--".to_owned()];
        std::iter::once(text(&self.program)).chain(fixed).chain(words).collect()
    }

    /// Tries the network of attacks on egress. Returns the reason where it cannot be made.
    ///
    /// # Errors
    /// The program could not be started.
    pub fn lab_trial(&self) -> std::io::Result<Option<String>> {
        let record = self.directory.join("lab");
        let words = self.in_lab(&record, vec!["true".to_owned()]);
        let Some((program, rest)) = words.split_first() else { return Ok(None) };
        let output = Command::new(program).args(rest).stdin(Stdio::null()).output()?;
        let why = String::from_utf8_lossy(&output.stderr);
        Ok((!output.status.success()).then(|| why.trim().to_owned()))
    }

    /// Runs the control: the same attack without the sandbox.
    ///
    /// # Errors
    /// The program could not be started or looked at.
    pub fn without(&self, probe: &Attack, line: &str, stage: &Stage) -> std::io::Result<Ran> {
        let line = stage.filled(line, &self.outside(stage));
        let around: &[&str] = match probe.control {
            ControlMode::Namespaces => &[
                "unshare",
                "--user",
                "--map-root-user",
                "--mount",
                "--net",
                "--ipc",
                "--uts",
                "--cgroup",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
            ],
            ControlMode::Outside | ControlMode::Root | ControlMode::None => &[],
        };
        let words = around.iter().copied().chain(["bash", "-c", &line]);
        let words: Vec<String> = words.map(str::to_owned).collect();
        self.run(probe, &self.in_network(probe, words, stage), stage)
    }

    /// Returns a command that runs the helper in the sandbox and must answer `EBADF`.
    pub fn trial(&self) -> Vec<String> {
        let number = calls::number("close").map(|number| number.to_string());
        let number = number.unwrap_or_default();
        let place = self.helper_inside();
        self.prefixed([place, "call".to_owned(), number, "-1".to_owned()])
    }

    /// Returns a command of no attack, with what goes before it.
    fn prefixed<const N: usize>(&self, words: [String; N]) -> Vec<String> {
        let helper = self.helper.display().to_string();
        let mut all = match &self.target {
            Target::Own | Target::Lower => {
                let mut words = self.granted(Some(&self.config));
                words.push("--".to_owned());
                words
            }
            Target::Other(prefix) => {
                prefix.iter().map(|word| word.replace("{probe}", &helper)).collect()
            }
        };
        all.extend(words);
        all
    }

    /// Compares the sandbox's mount and pid namespaces with the host's, by their inode numbers, which are
    /// the same for every reader.
    ///
    /// # Errors
    /// The program could not be started or looked at.
    pub fn seen_isolation(&self) -> std::io::Result<Isolation> {
        const LINE: &str = "stat -Lc %i /proc/self/ns/mnt /proc/self/ns/pid";
        let words = self.prefixed(["bash", "-c", LINE].map(str::to_owned));
        let Some((program, rest)) = words.split_first() else { return Ok(Isolation::Shared) };
        let output = Command::new(program).args(rest).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let inside: Vec<&str> = text.lines().collect();
        let outside = |name| {
            std::fs::metadata(format!("/proc/self/ns/{name}")).map(|file| file.ino().to_string())
        };
        let mounts = outside("mnt")?;
        let pids = outside("pid")?;
        Ok(match inside.as_slice() {
            [mount, pid] if *mount != mounts && *pid != pids => Isolation::Own,
            _ => Isolation::Shared,
        })
    }

    /// Measures how slow this machine is, by a run that does nothing.
    ///
    /// # Errors
    /// The program could not be started.
    pub fn measured_pace(&self) -> std::io::Result<u32> {
        let words = self.prefixed(["true"].map(str::to_owned));
        let Some((program, rest)) = words.split_first() else { return Ok(1) };
        let began = Instant::now();
        Command::new(program).args(rest).stdin(Stdio::null()).output()?;
        let times = began.elapsed().as_millis().div_ceil(FAST.as_millis());
        Ok(u32::try_from(times).unwrap_or(SLOWEST).clamp(1, SLOWEST))
    }

    /// Returns the mechanism that bounds the memory of a cell here, from the receipt of one.
    ///
    /// # Errors
    /// The program could not be started.
    pub fn held_memory(&self) -> std::io::Result<Memory> {
        // No control group is used in the lower tier.
        if self.target != Target::Own {
            return Ok(Memory::BestEffort);
        }
        let arguments = ["run", "--json", "--", "true"];
        let mut output = Command::new(&self.program);
        output.arg("--config").arg(&self.config).args(arguments);
        let output = output.stdin(Stdio::null()).output()?;
        let output: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let held = output.pointer("/receipt/configured/memory").and_then(serde_json::Value::as_str);
        let is_held = held.is_some_and(|held| held.starts_with("cgroup"));
        Ok(if is_held { Memory::ControlGroup } else { Memory::BestEffort })
    }

    /// Returns `cofferdam run` as a command, with the helper in its place.
    fn granted(&self, config: Option<&Path>) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let config = config.into_iter().flat_map(|path| ["--config".to_owned(), text(path)]);
        let (tier, helper) = match &self.target {
            Target::Lower => (Tier::Bare, text(&self.helper)),
            Target::Own | Target::Other(_) => {
                (Tier::Full, format!("{}:{HELPER_IN_CELL}", text(&self.helper)))
            }
        };
        let fixed = ["run", "--tier", tier.name(), "--ro", &helper].map(str::to_owned);
        std::iter::once(text(&self.program)).chain(config).chain(fixed).collect()
    }

    fn own(&self, probe: &Attack, stage: &Stage) -> Vec<String> {
        let mut words = match probe.network {
            Network::Host => self.granted(Some(stage.config().unwrap_or(&self.config))),
            // By the environment: in the lab of an ordinary user there is another.
            Network::Lab => self.granted(None),
        };
        words.extend(probe.options.iter().map(|word| stage.filled(word, &self.outside(stage))));
        words.push("--".to_owned());
        words
    }

    /// Starts a command and waits for its end. Output goes to files: whoever holds them open then
    /// holds nobody up.
    fn run(&self, probe: &Attack, words: &[String], stage: &Stage) -> std::io::Result<Ran> {
        let mut command = started_as(probe, words, stage)?;
        if probe.network == Network::Lab {
            command.env("COFFERDAM_CONFIG", &self.config);
        }
        if self.target == Target::Lower {
            command.env("TMPDIR", self.directory.join(PRIVATE));
        }
        let mut stdout = tempfile::tempfile()?;
        let mut stderr = tempfile::tempfile()?;
        command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        let began = Instant::now();
        let mut child = command.spawn()?;
        let group = i32::try_from(child.id()).unwrap_or(i32::MAX);
        let (end, code) = self.ended(probe, &mut child, &mut stdout, stage)?;
        let took = began.elapsed();
        let bytes = stdout.metadata()?.len() + stderr.metadata()?.len();
        Ok(Ran {
            stdout: text(&mut stdout)?,
            stderr: text(&mut stderr)?,
            code,
            took,
            bytes,
            end,
            group,
        })
    }

    /// Waits, and does from outside what the attack wants done while it runs.
    fn ended(
        &self,
        probe: &Attack,
        child: &mut Child,
        stdout: &mut File,
        stage: &Stage,
    ) -> std::io::Result<(RunEnd, Option<i32>)> {
        let deadline = Instant::now() + Duration::from_secs(probe.within) * self.pace;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((
                    RunEnd::Own,
                    status.code().or(status.signal().map(|signal| 128 + signal)),
                ));
            }
            stage.look();
            if probe.start == StartMode::Killed && text(stdout)?.contains("ready") {
                child.kill()?;
                child.wait()?;
                return Ok((RunEnd::Wanted, None));
            }
            if Instant::now() > deadline || self.is_stopped() {
                child.kill()?;
                child.wait()?;
                return Ok((RunEnd::Overdue, None));
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    fn helper_inside(&self) -> String {
        match &self.target {
            Target::Own => HELPER_IN_CELL.to_owned(),
            Target::Lower | Target::Other(_) => self.helper.display().to_string(),
        }
    }

    /// Returns the place of an attack. In another sandbox it works in the directory of its stage: that one may
    /// be the host's.
    fn place(&self, stage: &Stage) -> stage::RunPlace {
        match &self.target {
            Target::Own => {
                stage::RunPlace { helper: self.helper_inside(), tmp: "/tmp".to_owned(), made: true }
            }
            // The cell reports its private directory.
            Target::Lower => stage::RunPlace {
                helper: self.helper_inside(),
                tmp: "$TMPDIR".to_owned(),
                made: true,
            },
            Target::Other(_) => stage::RunPlace { made: false, ..self.outside(stage) },
        }
    }

    fn outside(&self, stage: &Stage) -> stage::RunPlace {
        stage::RunPlace {
            helper: self.helper.display().to_string(),
            tmp: stage.work.display().to_string(),
            made: true,
        }
    }
}

fn text(file: &mut File) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(KEPT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn started_as(probe: &Attack, words: &[String], stage: &Stage) -> std::io::Result<Command> {
    let missing = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let mut command = match probe.start {
        StartMode::Leaking => {
            // A shell, as it can leave a descriptor open across exec(2) and this program will not.
            let mut command = Command::new("bash");
            command.args(["-c", "exec 7<\"$0\"; exec \"$@\""]).arg(&stage.watched).args(words);
            command
        }
        StartMode::Plain | StartMode::Within | StartMode::Grouped | StartMode::Killed => {
            let (program, rest) = words.split_first().ok_or_else(missing)?;
            let mut command = Command::new(program);
            command.args(rest);
            command
        }
    };
    let group = match probe.start {
        StartMode::Grouped => stage.sentinel_group().unwrap_or(0),
        StartMode::Plain | StartMode::Leaking | StartMode::Within | StartMode::Killed => 0,
    };
    command.process_group(group).current_dir(&stage.work).stdin(match probe.start {
        StartMode::Within => Stdio::from(File::open(&stage.watched)?),
        StartMode::Plain | StartMode::Leaking | StartMode::Grouped | StartMode::Killed => {
            Stdio::null()
        }
    });
    let kept = ["HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR"];
    let kept = kept.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
    command.env_clear().envs(kept).env("PATH", stage::PATH).env("LC_ALL", "C");
    command.env("COFFERDAM_SELFTEST_SECRET", &stage.secret);
    Ok(command)
}
