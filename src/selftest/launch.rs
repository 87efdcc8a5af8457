//! Starts an attack, with and without a sandbox, and observes its end.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::corpus::{Attack, ControlMode, NAMESPACES_PROGRAM, Network, StartMode};
use super::judge::{Isolation, Memory, NOT_TRIED, OuterFilter, Target};
use super::mcp_client::Surroundings;
use super::run_result::{Ran, RunEnd};
use super::served::{ServerPlace, ToolServer};
use super::stage::{self, Stage};
use super::targets::Granted;
use model::profile::calls;
use model::receipt::Tier;
use model::shells::ShellKind;

/// Path of the helper in a cell.
const HELPER_IN_CELL: &str = "/mnt/cofferdam-probe";
/// Stands for the helper's path in a run on a server.
const HELPER_ON_SERVER: &str = "{probe}";
/// Maximum time of a run on a server that is not an attack.
const MAX_TRIAL_TIME: Duration = Duration::from_secs(30);
/// Directory for the private directories of cells in the lower tier.
pub const PRIVATE: &str = "private";
/// Maximum time to remove these after the last attack.
const MAX_SWEEP_TIME: Duration = Duration::from_secs(60);
/// Duration of a trivial run on a fast machine, for which the time limits of attacks are meant.
const FAST_RUN: Duration = Duration::from_millis(250);
/// Maximum factor by which the time limits are extended.
const MAX_PACE: u32 = 10;
/// Maximum bytes of the output that are read.
const MAX_OUTPUT: u64 = 64 * 1024;

/// Everything that the runs share.
#[derive(Debug, Clone)]
pub struct Bench {
    pub target: Target,
    /// Path of this program.
    pub program: PathBuf,
    /// Directory that contains all targets.
    pub directory: PathBuf,
    /// An empty directory: cells use the shipped profiles, whatever is configured on this machine.
    pub config: PathBuf,
    /// The helper on the host.
    pub helper: PathBuf,
    /// Mechanism that limits the memory of cells.
    pub memory: Memory,
    pub isolation: Isolation,
    /// Filter around this process, such as an engine's.
    pub outer: OuterFilter,
    /// Why the lab cannot be used here, if so.
    pub no_lab: Option<String>,
    /// Factor by which time limits are extended: an emulated machine is slow.
    pub pace: u32,
    /// Set to stop: running attacks are ended, and no more are started.
    pub stop: Arc<AtomicBool>,
}

impl Bench {
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until the private directories of cells are removed, which outlive their calls for a
    /// moment.
    pub fn await_sweepers(&self) {
        let until = Instant::now() + MAX_SWEEP_TIME;
        let remain = || {
            let left = std::fs::read_dir(self.directory.join(PRIVATE));
            left.is_ok_and(|mut left| left.next().is_some())
        };
        while remain() && Instant::now() < until && !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a line of an attack inside the sandbox.
    ///
    /// # Errors
    /// The program cannot be started or observed.
    pub fn inside(&self, probe: &Attack, line: &str, stage: &Stage) -> std::io::Result<Ran> {
        if let Target::Served(served) = &self.target {
            return self.inside_server(served, probe, line, stage);
        }
        let location = self.location(stage);
        let line = stage.fill(&location.entered(line), &location);
        let argv = vec!["bash".to_owned(), "-c".to_owned(), line];
        let words = match &self.target {
            Target::Own | Target::Lower => [self.command_line(probe, stage), argv].concat(),
            Target::Other(sandbox) => {
                let fill = |word: &str| stage.fill(word, &self.outside(stage));
                let granted = sandbox.granted(&probe.options).unwrap_or_default();
                let directory = stage.work.parent().unwrap_or(&self.directory);
                let settings = sandbox.write_settings(directory, &granted, fill)?;
                sandbox.around(argv, &granted, &settings, fill)
            }
            Target::Served(_) => argv,
        };
        // Some sandboxes protect files below their current directory, and users start them in the one
        // that they grant.
        let is_granted = probe.options.iter().any(|option| option == "--rw");
        let directory = match (&self.target, is_granted) {
            (Target::Other(_), true) => &stage.grant,
            _ => &stage.work,
        };
        self.run(probe, &self.with_network(probe, words, stage), stage, directory)
    }

    /// Sends a line to a server, and performs the attack's steps outside of it meanwhile.
    fn inside_server(
        &self,
        served: &ToolServer,
        probe: &Attack,
        line: &str,
        stage: &Stage,
    ) -> std::io::Result<Ran> {
        let id = stage::random()?;
        let location = served.location(&id);
        let line = stage.fill(&location.entered(line), &location);
        let within = Duration::from_secs(probe.within) * self.pace;
        let surroundings = Surroundings { directory: &stage.work, secret: &stage.secret };
        std::thread::scope(|scope| {
            let call = scope.spawn(|| served.run(&line, &id, helpers::PROBE, within, surroundings));
            while !call.is_finished() {
                stage.observe();
                std::thread::sleep(Duration::from_millis(3));
            }
            call.join().map_err(|_| std::io::Error::other("the call has panicked"))?
        })
    }

    /// Returns the command with which the words run in the network that the attack requires.
    fn with_network(&self, probe: &Attack, words: Vec<String>, stage: &Stage) -> Vec<String> {
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

    /// Tries out the lab. Returns the reason if it cannot be used.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn lab_trial(&self) -> std::io::Result<Option<String>> {
        let record = self.directory.join("lab");
        let words = self.in_lab(&record, vec!["true".to_owned()]);
        let Some((program, rest)) = words.split_first() else { return Ok(None) };
        let output = Command::new(program).args(rest).stdin(Stdio::null()).output()?;
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason = reason.trim().trim_start_matches("cofferdam: selftest: ");
        Ok((!output.status.success()).then(|| format!("{NOT_TRIED}{reason}")))
    }

    /// Runs the control: the same attack without the sandbox.
    ///
    /// # Errors
    /// The program cannot be started or observed.
    pub fn without(&self, probe: &Attack, line: &str, stage: &Stage) -> std::io::Result<Ran> {
        let line = stage.fill(line, &self.outside(stage));
        let prefix: &[&str] = match probe.control {
            ControlMode::Namespaces => &[
                NAMESPACES_PROGRAM,
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
        let words = prefix.iter().copied().chain(["bash", "-c", &line]);
        let words: Vec<String> = words.map(str::to_owned).collect();
        self.run(probe, &self.with_network(probe, words, stage), stage, &stage.work)
    }

    /// Runs the helper in the sandbox; it must print `EBADF`. Returns both streams.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn trial(&self) -> std::io::Result<[String; 2]> {
        let number = calls::number("close").map(|number| number.to_string());
        let number = number.unwrap_or_default();
        let helper = self.helper_inside();
        self.printed([helper, "call".to_owned(), number, "-1".to_owned()])
    }

    /// Runs a command that is not an attack in the sandbox. Returns both streams.
    fn printed<const N: usize>(&self, words: [String; N]) -> std::io::Result<[String; 2]> {
        if let Target::Served(served) = &self.target {
            let id = stage::random()?;
            // The path of the helper is that of this run.
            let own = served.location(&id).helper;
            let words = words.map(|word| if word == HELPER_ON_SERVER { own.clone() } else { word });
            let line = words.map(|word| ShellKind::Sh.quoted(&word)).join(" ");
            let line = line.replace(&ShellKind::Sh.quoted(&own), &own);
            let surroundings = Surroundings { directory: &self.directory, secret: &id };
            let ran = served.run(&line, &id, helpers::PROBE, MAX_TRIAL_TIME, surroundings)?;
            return Ok([ran.stdout, ran.stderr]);
        }
        let words = self.prefixed(words)?;
        let missing = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let (program, rest) = words.split_first().ok_or_else(missing)?;
        let output = Command::new(program).args(rest).stdin(Stdio::null()).output();
        let output = output
            .map_err(|error| std::io::Error::new(error.kind(), format!("{program}: {error}")))?;
        Ok([output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    /// Returns a command with the sandbox's words before it.
    fn prefixed<const N: usize>(&self, words: [String; N]) -> std::io::Result<Vec<String>> {
        let helper = self.helper.display().to_string();
        Ok(match &self.target {
            Target::Served(_) => words.into(),
            Target::Own | Target::Lower => {
                let mut all = self.granted(Some(&self.config));
                all.push("--".to_owned());
                all.extend(words);
                all
            }
            Target::Other(sandbox) => {
                let fill = |word: &str| word.replace("{probe}", &helper);
                let granted = Granted::default();
                let settings = sandbox.write_settings(&self.directory, &granted, fill)?;
                sandbox.around(words.into(), &granted, &settings, fill)
            }
        })
    }

    /// Compares the sandbox's mount and pid namespaces with the host's by their inode numbers,
    /// which all readers see alike.
    ///
    /// # Errors
    /// The program cannot be started or observed.
    pub fn seen_isolation(&self) -> std::io::Result<Isolation> {
        const LINE: &str = "stat -Lc %i /proc/self/ns/mnt /proc/self/ns/pid";
        if let Target::Served(served) = &self.target
            && matches!(served.place, ServerPlace::Elsewhere(_))
        {
            // There is nothing to compare with.
            return Ok(Isolation::Shared);
        }
        let [text, _] = self.printed(["bash", "-c", LINE].map(str::to_owned))?;
        let inside: Vec<&str> = text.split_whitespace().collect();
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

    /// Measures how slow this machine is by a trivial run.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn measured_pace(&self) -> std::io::Result<u32> {
        let began = Instant::now();
        self.printed(["true"].map(str::to_owned))?;
        let times = began.elapsed().as_millis().div_ceil(FAST_RUN.as_millis());
        Ok(u32::try_from(times).unwrap_or(MAX_PACE).clamp(1, MAX_PACE))
    }

    /// Reads the mechanism that limits the memory of a cell here from a receipt.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn memory_mechanism(&self) -> std::io::Result<Memory> {
        // The lower tier uses no control group.
        if self.target != Target::Own {
            return Ok(Memory::BestEffort);
        }
        let arguments = ["run", "--json", "--", "true"];
        let mut output = Command::new(&self.program);
        output.arg("--config").arg(&self.config).args(arguments);
        let output = output.stdin(Stdio::null()).output()?;
        let output: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let mechanism =
            output.pointer("/receipt/configured/memory").and_then(serde_json::Value::as_str);
        let is_held = mechanism.is_some_and(|mechanism| mechanism.starts_with("cgroup"));
        Ok(if is_held { Memory::ControlGroup } else { Memory::BestEffort })
    }

    /// Returns the command `cofferdam run` with the helper granted.
    fn granted(&self, config: Option<&Path>) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let config = config.into_iter().flat_map(|path| ["--config".to_owned(), text(path)]);
        let (tier, helper) = match &self.target {
            Target::Lower => (Tier::Bare, text(&self.helper)),
            Target::Own | Target::Other(_) | Target::Served(_) => {
                (Tier::Full, format!("{}:{HELPER_IN_CELL}", text(&self.helper)))
            }
        };
        let fixed = ["run", "--tier", tier.name(), "--ro", &helper].map(str::to_owned);
        std::iter::once(text(&self.program)).chain(config).chain(fixed).collect()
    }

    fn command_line(&self, probe: &Attack, stage: &Stage) -> Vec<String> {
        let mut words = match probe.network {
            Network::Host => self.granted(Some(stage.config().unwrap_or(&self.config))),
            // Set by the environment: the lab of an ordinary user has another one.
            Network::Lab => self.granted(None),
        };
        words.extend(probe.options.iter().map(|word| stage.fill(word, &self.outside(stage))));
        words.push("--".to_owned());
        words
    }

    /// Starts a command and waits for its end. Output is written to files: a process that keeps
    /// them open blocks no reader.
    fn run(
        &self,
        probe: &Attack,
        words: &[String],
        stage: &Stage,
        directory: &Path,
    ) -> std::io::Result<Ran> {
        let mut command = command_for(probe, words, stage)?;
        command.current_dir(directory);
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
        let (end, code) = self.wait_for_end(probe, &mut child, &mut stdout, stage)?;
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

    /// Waits for the end, and performs the attack's steps outside of the sandbox meanwhile.
    fn wait_for_end(
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
            stage.observe();
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
            Target::Served(_) => HELPER_ON_SERVER.to_owned(),
            Target::Lower | Target::Other(_) => self.helper.display().to_string(),
        }
    }

    /// Returns where an attack runs. In another sandbox, which may use the host's directories, it
    /// works in the directory of its stage.
    fn location(&self, stage: &Stage) -> stage::RunLocation {
        match &self.target {
            Target::Own => stage::RunLocation {
                helper: self.helper_inside(),
                tmp: "/tmp".to_owned(),
                made: true,
            },
            // The cell's environment names its private directory.
            Target::Lower => stage::RunLocation {
                helper: self.helper_inside(),
                tmp: "$TMPDIR".to_owned(),
                made: true,
            },
            Target::Other(_) | Target::Served(_) => {
                stage::RunLocation { made: false, ..self.outside(stage) }
            }
        }
    }

    fn outside(&self, stage: &Stage) -> stage::RunLocation {
        stage::RunLocation {
            helper: self.helper.display().to_string(),
            tmp: stage.work.display().to_string(),
            made: true,
        }
    }
}

fn text(file: &mut File) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(MAX_OUTPUT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn command_for(probe: &Attack, words: &[String], stage: &Stage) -> std::io::Result<Command> {
    let missing = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let mut command = match probe.start {
        StartMode::Leaking => {
            // Through a shell, as this program cannot leave a descriptor open across exec(2).
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
    command.process_group(group).stdin(match probe.start {
        StartMode::Within => Stdio::from(File::open(&stage.watched)?),
        StartMode::Plain | StartMode::Leaking | StartMode::Grouped | StartMode::Killed => {
            Stdio::null()
        }
    });
    let passed_on = ["HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR"];
    let passed_on = passed_on.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
    command.env_clear().envs(passed_on).env("PATH", stage::PATH).env("LC_ALL", "C");
    command.env("COFFERDAM_SELFTEST_SECRET", &stage.secret);
    Ok(command)
}
