//! Fuzzing targets: each takes hostile bytes and checks a property that must hold.
//!
//! `fuzz_targets` runs these under libFuzzer, and `tests/tidy/corpus.rs` of the crate itself runs them on
//! the corpora and on mutations of them, without any tool.

mod http;
mod network;
mod reach;
mod requests;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub use self::http::{heads, run_bodies, tcp_lines, tokens};
use calc::{BcRun, CalcError, Evaluate};
use cell::mediate::address::{Address, SocketArguments};
use cell::mediate::names::{self, Depth, DirectoryClass, NameClass};
use cell::mediate::paths::{Text, descriptor_of, split};
use cell::mediate::registers::int;
use cell::mediate::{counted, inotify};
use cell::seccomp::{payload_filter, payload_verdicts};
use config::document::Document;
use config::policy::flags::{DeclaredCommand, Input, Takes};
use config::policy::{Policy, Principal};
use config::profile::Profiles;
use mcp::arguments::parse;
use mcp::lines::{Ends, Lines};
use mcp::tools::{
    BashArguments, CalculateAdvancedArguments, CalculateArguments, SandboxRulesArguments,
    SetPrecisionArguments,
};
use model::call::{Argv, Asked, Call, Env, Stdin};
use model::defaults::INLINE_CHARACTERS;
use model::egress::frames::{FromGateway, SocketRequest, ToGateway};
use model::job::Workspace;
use model::profile::calls;
use model::profile::condition::Verdict;
use model::receipt::MemoryHold;
use model::wire::{self, Event, Request};
pub use network::{first_flight, packets, questions};
pub use reach::reach;
pub use requests::{paths, requests};
use rmcp::transport::Transport;
use serde_json::Value;
use service::capture::Captured;
use service::capture::deceptive::always_deceives;
use service::capture::text::render;
use service::session;
use service::shell::{self, ScriptArgs};
use supervisor::protect::grammar::{self, Whole};

/// A target by its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target; a corpus has the same name.
pub const TARGETS: [Target; 20] = [
    ("frames", frames),
    ("profiles", profiles),
    ("policies", policies),
    ("arguments", arguments),
    ("flags", flags),
    ("reach", reach),
    ("output", output),
    ("calculator", calculator),
    ("lines", lines),
    ("mediated", mediated),
    ("gitconfig", gitconfig),
    ("paths", paths),
    ("requests", requests),
    ("packets", packets),
    ("first_flight", first_flight),
    ("questions", questions),
    ("run_bodies", run_bodies),
    ("tokens", tokens),
    ("heads", heads),
    ("tcp_lines", tcp_lines),
];

/// Bytes of a hostile front end: a frame decodes or is refused, and what decodes encodes again.
pub fn frames(bytes: &[u8]) {
    if let Ok(request) = wire::decode::<Request>(bytes)
        && let Ok(again) = wire::encode(&request)
    {
        assert_eq!(wire::decode::<Request>(&again).ok(), Some(request));
    }
    drop(wire::decode::<Event>(bytes));
    if let Ok(frame) = wire::decode::<ToGateway>(bytes)
        && let Ok(again) = wire::encode(&frame)
    {
        assert_eq!(wire::decode::<ToGateway>(&again).ok(), Some(frame));
    }
    drop(wire::decode::<FromGateway>(bytes));
    // Of a worker that may have been taken over, to the gateway.
    if let Ok(request) = wire::decode::<SocketRequest>(bytes)
        && let Ok(again) = wire::encode(&request)
    {
        assert_eq!(wire::decode::<SocketRequest>(&again).ok(), Some(request));
    }
}

/// Calls that no profile may ever get, whatever its text says.
const NEVER: [&str; 8] = [
    "mount",
    "ptrace",
    "bpf",
    "io_uring_setup",
    "keyctl",
    "perf_event_open",
    "init_module",
    "process_vm_writev",
];

/// Checks the text of a profile: it is parsed, or refused with a place. A parsed profile compiles
/// and stays on the floor.
pub fn profiles(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let written = Document::new("fuzz.toml", text);
    let Ok(profiles) = Profiles::parse(&config::profile::shipped(), &[written]) else { return };
    for profile in profiles.iter() {
        let verdicts = payload_verdicts(profile, MemoryHold::CgroupV2);
        for call in NEVER {
            let verdict = calls::number(call).and_then(|number| verdicts.get(&number));
            assert!(matches!(verdict, None | Some(Verdict::Errno(_))), "{call}: {verdict:?}");
        }
        assert!(payload_filter(&verdicts, &[]).is_ok(), "{} does not compile", profile.name);
    }
}

/// Checks the text of a policy: it is parsed, or refused with a place. Its grants are within the
/// profile's limits.
pub fn policies(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(profiles) = Profiles::parse(&config::profile::shipped(), &[]) else { return };
    let Ok(policy) = Policy::parse(&[Document::new("fuzz.toml", text)], &profiles) else { return };
    for tool in ["bash", "calculate", "run", "cli_jq"] {
        let Ok(argv) = Argv::new(vec!["true".to_owned()]) else { return };
        let call = Call {
            tool: tool.into(),
            argv,
            script: None,
            stdin: Stdin::Empty,
            env: Env::default(),
            cwd: None,
            asked: Asked { wall: Some(Duration::MAX), memory: Some(u64::MAX), ..Asked::default() },
            profile: None,
            only: None,
            correlation: None,
        };
        let Ok(grant) =
            policy.decide(&Principal::local(), call, &profiles, Workspace::Fresh.into())
        else {
            continue;
        };
        let job = grant.into_job();
        let own = profiles.get(&job.profile).map(|profile| profile.limits);
        let own = own.unwrap_or_else(|| panic!("{tool}: a profile that is not there"));
        assert!(job.limits.wall <= own.wall && job.limits.memory <= own.memory, "{tool}");
        assert!(job.limits.processes <= own.processes, "{tool}");
    }
}

/// Arguments of a tool call: taken whole, or refused with the field.
pub fn arguments(bytes: &[u8]) {
    let Ok(Value::Object(given)) = serde_json::from_slice::<Value>(bytes) else { return };
    drop(parse::<CalculateArguments>(Some(given.clone())));
    drop(parse::<CalculateAdvancedArguments>(Some(given.clone())));
    drop(parse::<SetPrecisionArguments>(Some(given.clone())));
    drop(parse::<SandboxRulesArguments>(Some(given.clone())));
    let Ok(BashArguments { command, stdin, cwd, env, timeout, session, .. }) = parse(Some(given))
    else {
        return;
    };
    if let Some(name) = session.filter(|name| session::check_name(name).is_ok()) {
        assert!((1..=64).contains(&name.len()) && !name.contains(['/', '\0', ' ']), "{name:?}");
    }
    let Some(command) = command else { return };
    let timeout = timeout.map(|seconds| seconds.0);
    let stdin = stdin.unwrap_or_default().into_bytes();
    let args = ScriptArgs { command, stdin, cwd, env, timeout, ..ScriptArgs::default() };
    let Ok(call) = shell::script("bash", args) else { return };
    for (name, value) in call.env.iter() {
        assert!(!name.starts_with("LD_") && !value.contains('\0'), "{name}={value}");
    }
    if let Some(cwd) = &call.cwd {
        let inside = |root: &str| {
            cwd.as_str()
                .strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        assert!(inside("/workspace") || inside("/tmp"), "{cwd:?}");
        assert!(!cwd.as_str().split('/').any(|part| part == ".."), "{cwd:?}");
    }
}

/// Words for a declared command, one a line: the argument vector has no flag but listed ones and the operator's own.
pub fn flags(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(profiles) = Profiles::parse(&config::profile::shipped(), &[]) else { return };
    let Ok(policy) = Policy::parse(&config::policy::shipped(), &profiles) else { return };
    let mut lines = text.lines();
    let choice = lines.next().map_or(0, str::len);
    let commands = policy.commands();
    let Some(command) = commands.get(choice % commands.len().max(1)) else { return };
    // `name: value` is a field, everything else is a word.
    let (fields, words): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.contains(": "));
    let given: Vec<(&str, &str)> =
        fields.iter().filter_map(|field| field.split_once(": ")).collect();
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let Ok(argv) = command.argv(&words, &given) else { return };
    assert_eq!(argv.program(), command.program);
    for word in argv.words().iter().skip(1).filter(|word| word.starts_with('-')) {
        assert!(is_listed(command, word), "{}: {word}", command.name);
    }
}

fn is_listed(command: &DeclaredCommand, word: &str) -> bool {
    let is = |name: &str, takes: &Takes| match takes {
        Takes::Nothing | Takes::Next(_) => name == word,
        Takes::Equals(_) => word.split_once('=').is_some_and(|(given, _)| given == name),
    };
    // The operator's own words, which stand whatever the caller gives.
    let conduct = &command.conduct;
    let defaults = conduct.defaults.iter().flat_map(|one| &one.args);
    command.flags.iter().any(|flag| is(&flag.name, &flag.takes))
        || conduct.always.iter().chain(defaults).any(|own| own == word)
        || (word == "-" && command.input == Input::Dash)
}

/// Output of a hostile program, its two streams with a NUL between: the text stays within its budget
/// and carries no control characters and no characters that hide text or turn it around.
pub fn output(bytes: &[u8]) {
    let middle = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (stdout, stderr) = bytes.split_at(middle);
    let rendered = render(&Captured::of(stdout), &Captured::of(stderr), INLINE_CHARACTERS);
    let text = [rendered.stdout, rendered.stderr].concat();
    assert!(text.chars().count() <= INLINE_CHARACTERS);
    assert!(text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t')));
    assert!(!text.chars().any(always_deceives));
}

/// A bc that prints what the fuzzer wants, and looks at what it is asked.
struct Puppet<'text> {
    prints: &'text str,
    runs: AtomicU32,
}

/// More evaluations than any calculation is worth.
const MAX_RUNS: u32 = 64;

impl Evaluate for Puppet<'_> {
    async fn bc(&self, _: &'static str, program: String, _: Duration) -> Result<BcRun, CalcError> {
        let runs = self.runs.fetch_add(1, Ordering::Relaxed);
        assert!(runs < MAX_RUNS, "it does not end");
        // `read()` would take the rest of the program for a number, `system` is no word of bc's.
        assert!(!program.contains('\0') && program.len() < 1 << 20);
        let took = Duration::from_millis(1);
        Ok(BcRun { stdout: self.prints.to_owned(), stderr: String::new(), took })
    }
}

/// An expression and, behind a NUL, what a lying bc prints: a result or a refusal, soon.
pub fn calculator(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (expression, prints) = text.split_once('\0').unwrap_or((text, "1"));
    let puppet = Puppet { prints, runs: AtomicU32::new(0) };
    blocking(async {
        drop(calc::calculate(&puppet, expression.to_owned(), 5).await);
    });
}

/// Lines of a hostile client: messages or refusals, and an end.
pub fn lines(bytes: &[u8]) {
    let input = std::io::Cursor::new(bytes.to_vec());
    let most = bytes.split(|byte| *byte == b'\n').count();
    blocking(async move {
        let mut lines = Lines::new(input, tokio::io::sink(), Ends::default());
        let mut messages = 0;
        while lines.receive().await.is_some() {
            messages += 1;
        }
        // Without an initialisation there are no batches: a line is one message at most.
        assert!(messages <= most, "{messages} of {most} lines");
    });
}

/// Checks the memory and registers of a program whose call init answers: a path, an address, a
/// name. Init reads the same bytes as the kernel, and a guarded name stays one in every spelling.
pub fn mediated(bytes: &[u8]) {
    path(bytes);
    address(bytes);
    registers(bytes);
    let (_, last) = split(bytes);
    let end = last.iter().position(|byte| *byte == b'/').unwrap_or(last.len());
    name(last.get(..end).unwrap_or_default(), bytes);
}

fn path(bytes: &[u8]) {
    let (directory, last) = split(bytes);
    assert_eq!([directory, last].concat(), bytes);
    assert!(directory.is_empty() || directory.ends_with(b"/"));
    let name = last.split(|byte| *byte == b'/').next().unwrap_or_default();
    assert!(last.iter().skip(name.len()).all(|byte| *byte == b'/'), "{last:?}");
    let text = Text::new(bytes);
    assert_eq!(text.is_ok(), bytes.len() < 4096);
    if let Ok(text) = text {
        assert_eq!(text.bytes(), bytes);
        let until = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        assert_eq!(text.as_c().map(std::ffi::CStr::to_bytes), Ok(until));
    }
    // One descriptor, by a path that leads to nothing else.
    if let Ok((process, Ok(number))) = descriptor_of(bytes) {
        let text = String::from_utf8_lossy(bytes);
        let (start, end) = text.rsplit_once('/').expect("a path");
        assert_eq!(end.trim_start_matches(['+', '0']).parse().unwrap_or(0), number, "{text}");
        let expected = process.map_or_else(
            || ["/proc/self/fd", "/proc/thread-self/fd", "/dev/fd"].contains(&start),
            |_| start.split('/').count() == 4 && start.starts_with("/proc/"),
        );
        assert!(expected && !text.contains(".."), "{text}");
    }
    // A grant holds what is beneath it, and nothing by the likeness of a name.
    assert!(inotify::lies_in(b"/workspace/x", b"/workspace"));
    if inotify::lies_in(bytes, b"/workspace") {
        let mut parts = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        assert_eq!((bytes.first(), parts.next()), (Some(&b'/'), Some(&b"workspace"[..])));
    }
}

fn address(bytes: &[u8]) {
    let address = Address::from_bytes(bytes);
    assert_eq!(address.is_ok(), bytes.len() <= 128);
    let Ok(address) = address else { return };
    let expected = match bytes {
        [1, 0, path @ ..] if cfg!(target_endian = "little") => {
            path.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())
        }
        _ => None,
    };
    assert_eq!(address.path(), expected);
}

fn registers(bytes: &[u8]) {
    let mut arguments = [0; 6];
    for (argument, word) in arguments.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
        *argument = u64::from_le_bytes(whole);
    }
    let [first, second, third, ..] = arguments;
    let low = |value: u64| {
        i32::from_le_bytes(value.to_le_bytes().first_chunk().copied().unwrap_or_default())
    };
    assert_eq!(int(first), low(first));
    let wanted = SocketArguments::from_registers(&arguments);
    assert_eq!((wanted.socket, wanted.address, wanted.length), (low(first), second, low(third)));
    assert!(counted::watched_files(bytes) <= bytes.split(|byte| *byte == b'\n').count());
}

fn name(name: &[u8], directory: &[u8]) {
    assert!(names::may_be_same(name, name));
    let kind = NameClass::classify(name);
    let same = |other: &[u8]| {
        let other_kind = NameClass::classify(other);
        let head = |kind| matches!(kind, NameClass::Head { .. });
        // In another spelling it is the same to the host, or more is guarded.
        assert!(
            kind == NameClass::Plain || other_kind == kind || (head(kind) && head(other_kind)),
            "{other:?}"
        );
    };
    same(&name.to_ascii_uppercase());
    same(&name.to_ascii_lowercase());
    if !name.contains(&b'~') && !name.contains(&b':') {
        same(&[name, b". "].concat());
        same(&[name, b"::$DATA"].concat());
    }
    let depth = Depth::of_path(directory);
    let places = match depth {
        Depth::Without => &[DirectoryClass::WorkTree, DirectoryClass::Headed][..],
        Depth::Top => &[DirectoryClass::Repository],
        Depth::Inside => &[DirectoryClass::Inside, DirectoryClass::Repository],
        Depth::Branches => &[DirectoryClass::Branches],
        Depth::Remotes | Depth::Logs => &[DirectoryClass::Remotes],
        Depth::Refs | Depth::References => &[DirectoryClass::References],
    };
    for place in places {
        assert!(kind != NameClass::Obeyed || place.refuses(kind), "{name:?} in {place:?}");
        assert!(kind != NameClass::Plain || !place.refuses(kind), "{name:?} in {place:?}");
    }
    // No way from a place of one kind to another, and back where there is one.
    for path in
        ["/w", "/w/.git", "/w/.git/x", "/w/.git/refs/heads", "/w/.git/logs", "/w/.git/refs/remotes"]
    {
        let other = Depth::of_path(path.as_bytes());
        let there = names::renames((depth, name), (other, name));
        assert_eq!(there, names::renames((other, name), (depth, name)));
    }
}

/// Runs to the end, with a clock that does not wait.
fn blocking(future: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(future);
}

/// Text of a git configuration: read as the installed git reads it, setting by setting.
pub fn gitconfig(bytes: &[u8]) {
    // More than names are kept of; and a NUL, which ends a text in C, git's listing does not show.
    const MAX_BYTES: usize = 4000;
    let mut own = Vec::new();
    let whole = grammar::settings(bytes, |setting| {
        let name = [setting.stem, setting.key].concat();
        own.push((name, setting.value.map(spaced)));
    });
    if bytes.len() > MAX_BYTES || bytes.contains(&0) {
        return;
    }
    let Some(listed) = listed_by_git(bytes) else { return };
    assert_eq!(whole == Whole::Yes, listed.is_ok(), "git: {listed:?}, here: {own:?}");
    if let Ok(listed) = listed {
        assert_eq!(own, listed);
    }
}

/// Blanks within a value are kept as they are by newer versions of git alone.
fn spaced(value: &[u8]) -> Vec<u8> {
    value.iter().map(|byte| if byte.is_ascii_whitespace() { b' ' } else { *byte }).collect()
}

/// A setting's name and value.
type Listed = (Vec<u8>, Option<Vec<u8>>);

/// Returns the output of `git config --list` for a text, or its refusal; `None` if there is no git.
fn listed_by_git(bytes: &[u8]) -> Option<Result<Vec<Listed>, String>> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut git = Command::new("git");
    git.args(["config", "--no-includes", "--file", "-", "--list", "-z"]).current_dir("/");
    git.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = git.spawn().ok()?;
    // It may have refused the text before its end.
    drop(child.stdin.take()?.write_all(bytes));
    let output = child.wait_with_output().ok()?;
    if !output.status.success() {
        return Some(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let records = output.stdout.split(|byte| *byte == 0).filter(|record| !record.is_empty());
    let listed = records.map(|record| {
        let mut parts = record.splitn(2, |byte| *byte == b'\n');
        (parts.next().unwrap_or_default().to_vec(), parts.next().map(spaced))
    });
    Some(Ok(listed.collect()))
}
