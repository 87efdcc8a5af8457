//! Shared parts of the layer tests: a claim as a test, run as root and as an ordinary user.
//!
//! A claim is checked from outside the cell wherever the program inside could lie. The needs of a
//! claim on the machine are probed by using them; without one the test is ignored, and fails if
//! COFFERDAM_MUST_RUN is 1.
#![allow(dead_code, unused_imports, reason = "each test program uses its part of what they share")]

mod calls;
mod copy;
mod held;
pub mod ids;
mod machine;
mod patience;
mod process;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use copy::{Copied, world_directory};
use libtest_mimic::{Arguments, Conclusion, Trial};
use serde_json::Value;

pub use calls::CALLS;
pub use held::Held;
pub use libtest_mimic::Failed;
pub use machine::{CGROUPS, Need, PATH, processors};
pub use patience::{patience, soon};
pub use process::{
    Finished, Live, Status, children, gone, kill, present, proc_file, status, with_argument,
};

/// A test's verdict.
pub type Check = Result<(), Failed>;

/// The ordinary user of these tests: an id that nothing else on the machine has.
pub const USER: u32 = 64_321;

/// User that starts cofferdam.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    User,
}

impl Who {
    /// The end of a test's name.
    fn words(self) -> &'static str {
        match self {
            Self::Root => "as root",
            Self::User => "as a user",
        }
    }
}

/// For whom a claim is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    Both,
    Root,
    User,
}

impl For {
    fn includes(self, who: Who) -> bool {
        match self {
            Self::Both => true,
            Self::Root => who == Who::Root,
            Self::User => who == Who::User,
        }
    }
}

/// Part of the tests, which `COFFERDAM_TESTS` chooses: `usual`, the default, `thorough` or `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Required for every change: `make test`.
    Usual,
    /// Storms, load and repetitions, which take minutes each: `make test-thorough`.
    Thorough,
}

impl Part {
    pub fn is_asked(self) -> bool {
        match std::env::var("COFFERDAM_TESTS").as_deref() {
            Ok("all") => true,
            Ok("thorough") => self == Self::Thorough,
            Ok(_) | Err(_) => self == Self::Usual,
        }
    }
}

/// One claim and how it is checked.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    name: &'static str,
    part: Part,
    /// The part in which root is the caller.
    part_as_root: Part,
    whom: For,
    needs: &'static [Need],
    wants: &'static [Need],
    alone: bool,
    check: fn(&Caller) -> Check,
}

/// A claim that holds for root and for an ordinary user.
pub const fn claim(name: &'static str, check: fn(&Caller) -> Check) -> Claim {
    let part = Part::Usual;
    let whom = For::Both;
    Claim { name, part, part_as_root: part, whom, needs: &[], wants: &[], alone: false, check }
}

impl Claim {
    /// The claim for one kind of caller only.
    pub const fn only(self, whom: For) -> Self {
        Self { whom, ..self }
    }

    /// The claim takes minutes to check, and a shorter test of the usual part covers its kind.
    pub const fn thorough(self) -> Self {
        Self { part: Part::Thorough, part_as_root: Part::Thorough, ..self }
    }

    /// The claim takes long to check and is not about ids, so that an ordinary user is enough in the usual part.
    pub const fn thorough_as_root(self) -> Self {
        Self { part_as_root: Part::Thorough, ..self }
    }

    fn part(self, who: Who) -> Part {
        match who {
            Who::Root => self.part_as_root,
            Who::User => self.part,
        }
    }

    /// The claim needs this of the machine.
    pub const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    /// The claim is about a program that few machines have: without it the test is ignored, and
    /// no failure where everything must run.
    pub const fn wants(self, wants: &'static [Need]) -> Self {
        Self { wants, ..self }
    }

    /// The claim is checked while no other test of the program runs: it looks at the host for remains, or counts what
    /// depends on load.
    pub const fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Makes one test for each available caller.
    fn trials(self, layer: &str, shared: &Arc<Shared>, must_run: bool) -> Vec<Trial> {
        callers()
            .into_iter()
            .filter(|who| self.whom.includes(*who) && self.part(*who).is_asked())
            .map(|who| self.trial(layer, who, shared, must_run))
            .collect()
    }

    fn trial(self, layer: &str, who: Who, shared: &Arc<Shared>, must_run: bool) -> Trial {
        let within = if layer.is_empty() { "" } else { "::" };
        let name = format!("{layer}{within}{} {}", self.name, who.words());
        let missing = |needs: &[Need]| -> Vec<Need> {
            needs.iter().filter(|need| !need.is_met()).copied().collect()
        };
        let unmet = missing(self.needs);
        let excused = unmet.iter().any(|need| need.is_excused()) || !missing(self.wants).is_empty();
        let must_run = must_run && !excused;
        let missing = [unmet, missing(self.wants)].concat();
        let shared = Arc::clone(shared);
        if missing.is_empty() {
            return Trial::test(name.clone(), move || {
                let check = || (self.check)(&Caller::new(who, Arc::clone(&shared))?);
                shared.run(&name, self.alone, check)
            });
        }
        let missing: Vec<&str> = missing.iter().map(|need| need.name()).collect();
        let kind = format!("lacks {}", missing.join(", "));
        let reason = format!("this machine {kind}");
        // The kind stands before the name in the list of tests: an ignored one shows why.
        Trial::test(name, move || Err(Failed::from(reason)))
            .with_kind(kind)
            .with_ignored_flag(!must_run)
    }
}

/// Returns the users that can be a caller on this machine.
fn callers() -> Vec<Who> {
    let is_root = nix::unistd::geteuid().is_root();
    [Who::Root, Who::User].into_iter().filter(|who| *who == Who::User || is_root).collect()
}

/// A test that is no claim of a caller's, and its name.
pub type PlainTest = (&'static str, fn() -> Check);

/// The tests of one program.
pub struct Tests {
    shared: Arc<Shared>,
    must_run: bool,
    trials: Vec<Trial>,
    /// Run after these.
    last: Vec<Trial>,
}

impl Tests {
    /// Adds the claims of a module under its name: `landlock::denies_outside`.
    pub fn claims(&mut self, module: &str, claims: &[Claim]) {
        for claim in claims {
            self.trials.extend(claim.trials(module, &self.shared, self.must_run));
        }
    }

    /// Adds one check under many names, for each caller there is and for whom the name is. One run has the verdicts on
    /// all of them: the first test of each caller begins it, and the others are the last ones, so that they do not wait
    /// in the place of other tests.
    pub fn each(
        &mut self,
        module: &str,
        names: &[(String, For)],
        check: fn(&Caller, &str) -> Check,
    ) {
        for who in callers() {
            for (index, (name, _)) in
                names.iter().filter(|(_, whom)| whom.includes(who)).enumerate()
            {
                let shared = Arc::clone(&self.shared);
                let name = name.clone();
                let title = format!("{module}::{name} {}", who.words());
                let trial = Trial::test(title.clone(), move || {
                    let check = || check(&Caller::new(who, Arc::clone(&shared))?, &name);
                    shared.run(&title, false, check)
                });
                if index == 0 { &mut self.trials } else { &mut self.last }.push(trial);
            }
        }
    }

    /// Adds tests that are no claim of a caller's. They are ignored where this machine `lacks` something for them, and fail
    /// there if everything must run.
    pub fn plain(&mut self, module: &str, tests: &[PlainTest], lacks: Option<&str>) {
        if !Part::Usual.is_asked() {
            return;
        }
        for (name, test) in tests {
            let shared = Arc::clone(&self.shared);
            let test = *test;
            let title = format!("{module}::{name}");
            let trial = Trial::test(title.clone(), move || shared.run(&title, false, test));
            let kind = lacks.map(|lacks| format!("lacks {lacks}")).unwrap_or_default();
            let is_ignored = lacks.is_some() && !self.must_run;
            self.trials.push(trial.with_kind(kind).with_ignored_flag(is_ignored));
        }
    }
}

/// What the tests of a program do most of their time.
#[derive(Debug, Clone, Copy)]
pub enum Mostly {
    /// Wait, for processes and limits of time.
    Wait,
    /// Compute, in programs of cells.
    Compute,
}

impl Mostly {
    /// Returns the number of tests that run at once for each processor.
    fn per_processor(self) -> usize {
        match self {
            Self::Wait => 3,
            Self::Compute => 2,
        }
    }
}

/// Runs the tests that `add` adds.
pub fn run(mostly: Mostly, add: impl FnOnce(&mut Tests)) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    arguments.test_threads.get_or_insert(mostly.per_processor() * processors);
    let shared = match Shared::new() {
        Ok(shared) => Arc::new(shared),
        Err(error) => {
            eprintln!("the tests cannot be set up: {error}");
            return ExitCode::FAILURE;
        }
    };
    let must_run = std::env::var("COFFERDAM_MUST_RUN").is_ok_and(|value| value == "1");
    let mut tests =
        Tests { shared: Arc::clone(&shared), must_run, trials: Vec::new(), last: Vec::new() };
    add(&mut tests);
    tests.trials.append(&mut tests.last);
    let conclusion: Conclusion = libtest_mimic::run(&arguments, tests.trials);
    shared.print_slowest();
    // Dropped before the exit, which runs no destructor: it holds the temporary directory.
    drop(shared);
    conclusion.exit_code()
}

/// State shared by all tests of one program.
#[derive(Debug)]
struct Shared {
    /// The ordinary user starts the program from here.
    program: Copied,
    /// This test program where the ordinary user can start it, once a test has asked for it.
    own: Mutex<Option<Copied>>,
    /// In the place of `/run/user` for callers whom ids are given.
    runtime: tempfile::TempDir,
    /// Held by each test that runs, and by one that runs alone without any other.
    turn: RwLock<()>,
    /// The tests that ended, and how long each took.
    times: Mutex<Vec<(Duration, String)>>,
}

/// Tests that are printed with their times.
const SLOWEST: usize = 10;
/// Time below which no test is among them.
const SLOW: Duration = Duration::from_secs(2);

impl Shared {
    fn new() -> std::io::Result<Self> {
        let runtime = tempfile::tempdir()?;
        if nix::unistd::geteuid().is_root() {
            ids::user_s_own(runtime.path())?;
        }
        let program = Copied::of(Path::new(env!("CARGO_BIN_EXE_cofferdam")))?;
        Ok(Self {
            program,
            own: Mutex::new(None),
            runtime,
            turn: RwLock::new(()),
            times: Mutex::default(),
        })
    }

    /// Runs a test once it has its turn.
    fn run(&self, name: &str, alone: bool, check: impl FnOnce() -> Check) -> Check {
        let timed = || {
            let begun = Instant::now();
            let verdict = check();
            let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
            times.push((begun.elapsed(), name.to_owned()));
            verdict
        };
        if alone {
            let _turn = self.turn.write().unwrap_or_else(PoisonError::into_inner);
            return timed();
        }
        let _turn = self.turn.read().unwrap_or_else(PoisonError::into_inner);
        timed()
    }

    /// Prints the slowest tests, by a word that scripts/test looks for.
    fn print_slowest(&self) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.retain(|(time, _)| *time >= SLOW);
        times.sort_by(|(one, _), (other, _)| other.cmp(one));
        for (time, name) in times.iter().take(SLOWEST) {
            println!("slowest: {:.1} s {name}", time.as_secs_f64());
        }
    }
}

/// Sets the mode of a file.
pub fn mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// A user that starts cofferdam, and a fresh directory of theirs.
#[derive(Debug)]
pub struct Caller {
    pub who: Who,
    pub home: PathBuf,
    held: tempfile::TempDir,
    shared: Arc<Shared>,
    /// Ids that subuid(5) gives them; `None`: what the machine has.
    given: Option<ids::Given>,
}

impl Caller {
    fn new(who: Who, shared: Arc<Shared>) -> Result<Self, Failed> {
        let directory = world_directory()?;
        let home = directory.path().to_owned();
        let caller = Self { who, home, held: directory, shared, given: None };
        caller.own(&caller.home)?;
        Ok(caller)
    }

    /// Returns the same user with a fresh directory and the ids that `change` sets.
    pub fn given(
        &self,
        change: impl FnOnce(ids::Given) -> Result<ids::Given, Failed>,
    ) -> Result<Self, Failed> {
        let mut caller = Self::new(self.who, Arc::clone(&self.shared))?;
        let files = caller.home.join("given");
        std::fs::create_dir(&files)?;
        caller.given = Some(change(ids::Given::new(&files, self.shared.runtime.path())?)?);
        Ok(caller)
    }

    /// Gives a file to the caller.
    pub fn own(&self, path: &Path) -> std::io::Result<()> {
        match self.id() {
            Some(id) => std::os::unix::fs::chown(path, Some(id), Some(id)),
            None => Ok(()),
        }
    }

    /// Writes a file of the caller's into their directory.
    pub fn file(&self, name: &str, text: &str) -> Result<PathBuf, Failed> {
        let path = self.home.join(name);
        std::fs::write(&path, text)?;
        self.own(&path)?;
        Ok(path)
    }

    /// Makes a directory of the caller's in their directory.
    pub fn directory(&self, name: &str) -> Result<PathBuf, Failed> {
        let path = self.home.join(name);
        std::fs::create_dir(&path)?;
        self.own(&path)?;
        Ok(path)
    }

    /// The id to change to; `None` where the test runs as the caller already.
    fn id(&self) -> Option<u32> {
        (self.who == Who::User && nix::unistd::geteuid().is_root()).then_some(USER)
    }

    /// The caller's user id.
    pub fn uid(&self) -> u32 {
        self.id().unwrap_or_else(|| nix::unistd::geteuid().as_raw())
    }

    /// The caller's group id.
    pub fn gid(&self) -> u32 {
        self.id().unwrap_or_else(|| nix::unistd::getegid().as_raw())
    }

    /// The program under test.
    pub fn binary(&self) -> PathBuf {
        self.shared.program.path()
    }

    /// This test program, where the caller can start it.
    pub fn this_program(&self) -> Result<PathBuf, Failed> {
        let mut own = self.shared.own.lock().unwrap_or_else(PoisonError::into_inner);
        if own.is_none() {
            *own = Some(Copied::of(&std::env::current_exe()?)?);
        }
        Ok(own.as_ref().ok_or("no copy")?.path())
    }

    /// A program outside any cell, as the caller, with nothing of the test's environment.
    pub fn outside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = match &self.given {
            Some(given) => given.command(program),
            None => Command::new(program),
        };
        command.env_clear().env("HOME", &self.home).env("PATH", machine::PATH);
        command.current_dir(&self.home).stdin(Stdio::null());
        if let (Some(id), None) = (self.id(), &self.given) {
            // Supplementary groups go as well: std drops them where root changes the uid.
            command.uid(id).gid(id);
        }
        command
    }

    /// cofferdam, as the caller.
    pub fn cofferdam(&self, arguments: &[&str]) -> Command {
        let mut command = self.outside(self.binary());
        command.args(arguments);
        command
    }

    /// `cofferdam run OPTIONS -- ARGV`, to its end.
    pub fn run(&self, options: &[&str], argv: &[&str]) -> Result<Finished, Failed> {
        Finished::run(self.run_command(options, argv), patience())
    }

    /// `cofferdam run OPTIONS -- ARGV`, not started yet.
    pub fn run_command(&self, options: &[&str], argv: &[&str]) -> Command {
        let mut command = self.cofferdam(&["run"]);
        command.args(options).arg("--").args(argv);
        command
    }

    /// A script of bash in a fresh cell.
    pub fn bash(&self, script: &str) -> Result<Finished, Failed> {
        self.run(&[], &["bash", "-c", script])
    }

    /// A script of Python in a fresh cell.
    pub fn python(&self, script: &str) -> Result<Finished, Failed> {
        self.run(&[], &["/usr/bin/python3", "-c", script])
    }

    /// Runs the same script of bash outside, as the caller: the positive control.
    pub fn bash_outside(&self, script: &str) -> Result<Finished, Failed> {
        let mut command = self.outside("/bin/bash");
        command.args(["-c", script]);
        Finished::run(command, patience())
    }

    /// Runs the same script of Python outside.
    pub fn python_outside(&self, script: &str) -> Result<Finished, Failed> {
        let mut command = self.outside("/usr/bin/python3");
        command.args(["-c", script]);
        Finished::run(command, patience())
    }

    /// `cofferdam run --json OPTIONS -- ARGV`: the object it prints.
    pub fn json(&self, options: &[&str], argv: &[&str]) -> Result<Value, Failed> {
        let options: Vec<&str> = ["--json"].iter().chain(options).copied().collect();
        let output = self.run(&options, argv)?;
        serde_json::from_str(&output.stdout)
            .map_err(|error| Failed::from(format!("no JSON ({error}): {output:?}")))
    }

    /// A cell that says `ready` and then runs on.
    pub fn live(&self, options: &[&str], script: &str) -> Result<Live, Failed> {
        let script = format!("echo ready; {script}");
        Live::start(self.run_command(options, &["bash", "-c", &script]))
    }
}

/// Equal, or a failure that shows both.
pub fn equal<T: PartialEq<U> + std::fmt::Debug, U: std::fmt::Debug>(
    what: &str,
    found: T,
    expected: U,
) -> Check {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}\n  found:    {found:?}\n  expected: {expected:?}").into())
}

/// True, or a failure that says what was seen.
pub fn holds(what: &str, seen: impl std::fmt::Debug, condition: bool) -> Check {
    if condition { Ok(()) } else { Err(format!("{what}\n  found: {seen:?}").into()) }
}

/// The denials of a call as (name, count), in order of names.
pub fn denials(report: &Value) -> Vec<(String, u64)> {
    let list = report.get("denials").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut all: Vec<(String, u64)> = list
        .iter()
        .map(|denial| {
            let name = denial.get("syscall").and_then(Value::as_str).unwrap_or_default();
            (name.to_owned(), denial.get("count").and_then(Value::as_u64).unwrap_or_default())
        })
        .collect();
    all.sort_unstable();
    all
}

/// A field of text of a call.
pub fn text<'a>(report: &'a Value, field: &str) -> &'a str {
    report.get(field).and_then(Value::as_str).unwrap_or_default()
}
