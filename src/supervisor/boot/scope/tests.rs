//! Tests of asking for a scope, with managers that are slow, silent, refuse, or speak another
//! protocol.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::dbus::{self, Malformed, Message, Method, Writer};
use super::groups::UnitLimits;
use super::manager::{Manager, Refusal, Request};
use super::{Answer, MAX_FIRST_CALL_WAIT, Wish, receive_answer, wait};
use crate::patience::soon;
use model::wire::ScopeResult;
use sys::socket;

/// Type of an answer (D-Bus specification, "Message Format").
const RETURN: u8 = 2;
const UNIT: &str = "cofferdam-4711-1.scope";
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(150);

type Check = Result<(), Box<dyn std::error::Error>>;

fn request() -> Request {
    let limits = UnitLimits { memory_max: Some(1 << 30), ..UnitLimits::default() };
    Request { unit: UNIT.to_owned(), pid: 4711, limits }
}

/// Builds a message like a manager: header fields by code, type and text, then the body.
fn message(kind: u8, fields: &[(u8, &str, &str)], answers: u32, body: &[u8]) -> Vec<u8> {
    let mut head = vec![b'l', kind, 1, 1];
    head.extend(u32::try_from(body.len()).unwrap_or(0).to_le_bytes());
    head.extend(7_u32.to_le_bytes());
    let mut array: Vec<u8> = Vec::new();
    for (code, kind, text) in fields {
        array.resize(array.len().next_multiple_of(8), 0);
        array.extend([*code, 1]);
        array.extend(kind.as_bytes());
        array.push(0);
        if *kind == "g" {
            array.push(u8::try_from(text.len()).unwrap_or(0));
        } else {
            array.extend(u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
        }
        array.extend(text.as_bytes());
        array.push(0);
    }
    if answers > 0 {
        array.resize(array.len().next_multiple_of(8), 0);
        array.extend([5, 1, b'u', 0]);
        array.extend(answers.to_le_bytes());
    }
    head.extend(u32::try_from(array.len()).unwrap_or(0).to_le_bytes());
    head.extend(array);
    head.resize(head.len().next_multiple_of(8), 0);
    head.extend(body);
    head
}

fn texts(texts: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    for text in texts {
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
        body.extend(text.as_bytes());
        body.push(0);
    }
    body
}

fn job_removed(unit: &str, result: &str) -> Vec<u8> {
    let mut body = 9_u32.to_le_bytes().to_vec();
    body.extend(texts(&["/org/freedesktop/systemd1/job/9", unit, result]));
    message(dbus::SIGNAL, &[(3, "s", "JobRemoved"), (8, "g", "uoss")], 0, &body)
}

fn job_made() -> Vec<u8> {
    message(RETURN, &[(8, "g", "o")], 3, &texts(&["/org/freedesktop/systemd1/job/9"]))
}

const OK: &[u8] = b"OK 00000000000000000000000000000000\r\n";

/// Starts a fake manager that sends all of `words` after the first request, each after its pause.
fn manager(words: Vec<(Duration, Vec<u8>)>) -> std::io::Result<Fake> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("private");
    let listener = UnixListener::bind(&path)?;
    let request = std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return Vec::new() };
        let mut request = vec![0; 65_536];
        let length = stream.read(&mut request).unwrap_or(0);
        request.truncate(length);
        let ends = words.is_empty();
        for (pause, bytes) in words {
            std::thread::sleep(pause);
            // Fails if the client has disconnected.
            stream.write_all(&bytes).unwrap_or_default();
        }
        if !ends {
            // Waits until the client disconnects, so that it does not see an unintended end.
            stream.read(&mut [0; 16]).unwrap_or_default();
        }
        request
    });
    Ok(Fake { path, request, _directory: directory })
}

struct Fake {
    path: PathBuf,
    request: JoinHandle<Vec<u8>>,
    _directory: tempfile::TempDir,
}

impl Fake {
    fn ask(&self, within: Duration) -> Result<(), Refusal> {
        Manager::Direct(self.path.clone()).ask(&request(), Instant::now() + within)
    }
}

fn at_once(bytes: impl Into<Vec<u8>>) -> Vec<(Duration, Vec<u8>)> {
    vec![(Duration::ZERO, bytes.into())]
}

#[test]
fn a_request_succeeds_when_its_job_is_done() -> Check {
    let other = job_removed("other.scope", "failed");
    let fake =
        manager(at_once([OK.to_vec(), other, job_made(), job_removed(UNIT, "done")].concat()))?;
    assert_eq!(fake.ask(LONG), Ok(()));
    Ok(())
}

#[test]
fn an_answer_in_pieces_within_the_time_is_accepted() -> Check {
    let whole = [OK.to_vec(), job_made(), job_removed(UNIT, "done")].concat();
    let pieces = whole.chunks(7).map(|piece| (Duration::from_millis(1), piece.to_vec()));
    let fake = manager(pieces.collect())?;
    assert_eq!(fake.ask(LONG), Ok(()));
    Ok(())
}

#[test]
fn a_refusal_is_reported_in_the_managers_escaped_words() -> Check {
    let refused = |why: &str| Err(Refusal::Refused(why.to_owned()));
    let error = |text: &str| {
        let fields = [(4, "s", "org.freedesktop.DBus.Error.AccessDenied"), (8, "g", "s")];
        message(dbus::ERROR, &fields, 3, &texts(&[text]))
    };
    let bare = message(dbus::ERROR, &[(4, "s", "org.x.Error")], 3, &[]);
    let long = "x".repeat(1000);
    let cases = [
        (b"REJECTED EXTERNAL\r\n".to_vec(), refused("it does not take this user")),
        (
            [OK.to_vec(), error("Access \u{1b}[31mdenied")].concat(),
            refused("Access \\u{1b}[31mdenied"),
        ),
        ([OK.to_vec(), error(&long)].concat(), refused(&"x".repeat(200))),
        ([OK.to_vec(), bare].concat(), refused("org.x.Error")),
        (
            [OK.to_vec(), job_made(), job_removed(UNIT, "failed")].concat(),
            refused("its job ended as `failed`"),
        ),
    ];
    for (words, expected) in cases {
        assert_eq!(manager(at_once(words))?.ask(LONG), expected);
    }
    Ok(())
}

#[test]
fn asking_a_silent_or_slow_manager_times_out() -> Check {
    let beyond = |bytes: Vec<u8>| vec![(Duration::from_secs(2), bytes)];
    let half = [OK, job_made().get(..20).unwrap_or_default()].concat();
    for words in [at_once([]), beyond(OK.to_vec()), at_once(OK), at_once(half)] {
        let fake = manager(words)?;
        let begun = Instant::now();
        assert_eq!(fake.ask(SHORT), Err(Refusal::Late));
        assert!(begun.elapsed() >= SHORT && begun.elapsed() < SHORT * 10, "{:?}", begun.elapsed());
    }
    Ok(())
}

#[test]
fn connecting_to_a_listener_that_accepts_nothing_times_out() -> Check {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("private");
    let listener = UnixListener::bind(&path)?;
    // Fill the listener's queue.
    let mut waiting = Vec::new();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0)?)?;
    for _ in 0..1 {
        waiting.push(UnixStream::connect(&path)?);
    }
    let answer = Manager::Direct(path).ask(&request(), Instant::now() + SHORT);
    assert_eq!(answer, Err(Refusal::Late));
    Ok(())
}

#[test]
fn a_manager_that_never_stops_sending_is_refused() -> Check {
    let signal = job_removed("other.scope", "done");
    let flood = signal.repeat((2 << 20) / signal.len());
    assert_eq!(manager(at_once([OK, &flood].concat()))?.ask(LONG), Err(Refusal::Malformed));
    Ok(())
}

#[test]
fn other_protocols_are_malformed() -> Check {
    let mut big = job_made();
    big.splice(4..8, u32::MAX.to_le_bytes());
    let mut foreign = job_made();
    foreign.splice(..1, [b'B']);
    let mut torn = job_removed(UNIT, "done");
    // A text that is longer than its message.
    let at = torn.len() - 12;
    torn.splice(at..at + 4, 9999_u32.to_le_bytes());
    let cases: [Vec<u8>; 6] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        [OK, &[0xff; 64]].concat(),
        [OK, &big].concat(),
        [OK, &foreign].concat(),
        [OK, &torn].concat(),
    ];
    for words in cases {
        assert_eq!(
            manager(at_once(words.clone()))?.ask(LONG),
            Err(Refusal::Malformed),
            "{words:?}"
        );
    }
    Ok(())
}

#[test]
fn a_disconnect_and_a_missing_manager_are_distinguished() -> Check {
    assert_eq!(manager(Vec::new())?.ask(LONG), Err(Refusal::Closed));
    let nowhere = Manager::Direct(PathBuf::from("/nonexistent/private"));
    let answer = nowhere.ask(&request(), Instant::now() + LONG);
    assert_eq!(answer, Err(Refusal::Unreachable(Errno::ENOENT)));
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("private");
    drop(UnixListener::bind(&path)?);
    let answer = Manager::Direct(path).ask(&request(), Instant::now() + LONG);
    assert_eq!(answer, Err(Refusal::Unreachable(Errno::ECONNREFUSED)));
    Ok(())
}

/// Parses the request that a fake received, like a manager.
#[test]
fn the_request_is_one_scope_with_one_process_and_the_limits_of_its_unit() -> Check {
    let fake = manager(at_once([OK.to_vec(), job_removed(UNIT, "done")].concat()))?;
    assert_eq!(fake.ask(LONG), Ok(()));
    let request = fake.request.join().map_err(|_| "the fake manager panicked")?;
    let head: String =
        nix::unistd::geteuid().to_string().bytes().map(|b| format!("{b:02x}")).collect();
    let head = format!("\0AUTH EXTERNAL {head}\r\nBEGIN\r\n").into_bytes();
    let call = request.strip_prefix(head.as_slice()).ok_or("no AUTH first")?;
    let read = Message::read(call).map_err(|_| "no message")?;
    let header = (read.kind, read.member, read.signature);
    assert_eq!(header, (dbus::CALL, "StartTransientUnit", "ssa(sv)a(sa(sv))"));
    let mut body = read.body();
    assert_eq!((body.text(), body.text()), (Some(UNIT), Some("fail")));
    let mut expected = Writer::default();
    expected.text(UNIT);
    expected.text("fail");
    expected.array(8, |all| {
        let mut one = |name: &str, kind: &str, value: &dyn Fn(&mut Writer)| {
            all.structure(|one| {
                one.text(name);
                one.signature(kind);
                value(one);
            });
        };
        one("Description", "s", &|value| value.text("cells of cofferdam"));
        one("PIDs", "au", &|value| value.array(4, |pids| pids.word(4711)));
        one("Slice", "s", &|value| value.text("app.slice"));
        one("Delegate", "b", &|value| value.word(1));
        one("CollectMode", "s", &|value| value.text("inactive-or-failed"));
        one("KillSignal", "i", &|value| value.word(9));
        one("MemoryMax", "t", &|value| value.long(1 << 30));
    });
    expected.array(8, |_| {});
    let method = Method {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        name: "StartTransientUnit",
    };
    assert_eq!(call, dbus::call(3, &method, "ssa(sv)a(sa(sv))", &expected));
    Ok(())
}

/// On a bus two more calls precede the request, and their failure is a failure of the request.
#[test]
fn a_bus_gets_hello_and_a_match_rule_before_the_request() -> Check {
    let words = [OK.to_vec(), job_made(), job_removed(UNIT, "done")].concat();
    let fake = manager(at_once(words))?;
    let bus = Manager::Bus(fake.path.clone());
    assert_eq!(bus.ask(&request(), Instant::now() + LONG), Ok(()));
    let request = fake.request.join().map_err(|_| "the fake manager panicked")?;
    let begin = request.windows(7).position(|seven| seven == b"BEGIN\r\n").ok_or("no BEGIN")?;
    let mut rest = request.get(begin + 7..).ok_or("nothing after BEGIN")?;
    let mut members = Vec::new();
    while !rest.is_empty() {
        let length = dbus::length(rest).map_err(|_| "no message")?.ok_or("cut")?;
        let (first, others) = rest.split_at(length);
        members.push(Message::read(first).map_err(|_| "no message")?.member.to_owned());
        rest = others;
    }
    assert_eq!(members, ["Hello", "AddMatch", "StartTransientUnit"]);
    Ok(())
}

#[test]
fn a_truncated_message_is_incomplete_or_malformed_at_every_length() {
    let whole = job_removed(UNIT, "done");
    assert_eq!(dbus::length(&whole), Ok(Some(whole.len())));
    for end in 0..whole.len() {
        let cut = whole.get(..end).unwrap_or_default();
        assert!(matches!(dbus::length(cut), Ok(None | Some(_))), "{end}");
        assert_eq!(Message::read(cut), Err(Malformed), "{end}");
    }
    // Changing any byte must neither make the reader go past the end nor panic.
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed.splice(at..=at, [value]);
            if let Ok(message) = Message::read(&changed) {
                let mut body = message.body();
                let _word = body.word();
                let _first = body.text();
                let _second = body.text();
            }
        }
    }
}

#[test]
fn the_managers_private_socket_is_preferred_to_the_bus() -> Check {
    let directory = tempfile::tempdir()?;
    let manager = || Manager::find(Some(directory.path()));
    assert_eq!(manager(), None);
    fs::write(directory.path().join("bus"), "")?;
    assert_eq!(manager(), Some(Manager::Bus(directory.path().join("bus"))));
    fs::create_dir(directory.path().join("systemd"))?;
    fs::write(directory.path().join("systemd/private"), "")?;
    assert_eq!(manager(), Some(Manager::Direct(directory.path().join("systemd/private"))));
    // A relative path would depend on the current directory.
    let usual = Manager::find(None);
    assert_eq!(Manager::find(Some(Path::new("."))), usual);
    Ok(())
}

#[test]
fn the_tightest_limits_of_a_unit_apply_to_its_scope() -> Check {
    let root = tempfile::tempdir()?;
    let unit = root.path().join("user.slice/app.slice/a.service");
    fs::create_dir_all(&unit)?;
    let write =
        |group: &str, file: &str, text: &str| fs::write(root.path().join(group).join(file), text);
    write("user.slice", "memory.max", "2147483648\n")?;
    write("user.slice", "pids.max", "max\n")?;
    write("user.slice/app.slice", "memory.max", "max\n")?;
    write("user.slice/app.slice", "cpu.max", "max 100000\n")?;
    write("user.slice/app.slice/a.service", "memory.max", "1073741824\n")?;
    write("user.slice/app.slice/a.service", "memory.swap.max", "0\n")?;
    write("user.slice/app.slice/a.service", "cpu.max", "50000 100000\n")?;
    let limits = UnitLimits::read(root.path(), "/user.slice/app.slice/a.service");
    let properties: Vec<_> = limits.properties().collect();
    let expected = [("MemoryMax", 1 << 30), ("MemorySwapMax", 0), ("CPUQuotaPerSecUSec", 500_000)];
    assert_eq!(properties, expected);
    // The group is in another cgroup namespace: its limits are unknown.
    assert_eq!(UnitLimits::read(root.path(), "/../a.service"), UnitLimits::default());
    Ok(())
}

/// Makes both ends of the socket for the answer, and of the supervisor's link.
fn ends() -> Result<[std::os::fd::OwnedFd; 4], Errno> {
    let (from, theirs) = crate::cells::cell::packets()?;
    let (link, front_end) = crate::cells::cell::packets()?;
    Ok([from, theirs, link, front_end])
}

#[test]
fn only_a_first_call_limits_the_wait_to_fifty_milliseconds() -> Check {
    let [from, _theirs, link, front_end] = ends()?;
    socket::send(&front_end, b"a call", &[])?;
    let begun = Instant::now();
    assert_eq!(wait(&from, &link, Wish::Optional), Ok(false));
    let took = begun.elapsed();
    assert!(took >= MAX_FIRST_CALL_WAIT - Duration::from_millis(1) && took < soon(1), "{took:?}");
    // A call does not shorten the wait for a required scope.
    let [from, theirs, link, front_end] = ends()?;
    socket::send(&front_end, b"a call", &[])?;
    let later = std::thread::spawn(move || {
        std::thread::sleep(MAX_FIRST_CALL_WAIT * 4);
        drop(theirs);
    });
    assert_eq!(wait(&from, &link, Wish::Needed), Ok(true));
    later.join().map_err(|_| "a thread panicked")?;
    assert!(receive_answer(&from).is_none(), "it ended without an answer");
    Ok(())
}

#[test]
fn a_scope_counts_only_with_its_directory() -> Check {
    let had = || ScopeResult::Granted { unit: UNIT.to_owned(), took: Duration::from_millis(5) };
    let send = |scope: ScopeResult,
                directory: Option<&fs::File>|
     -> Result<_, Box<dyn std::error::Error>> {
        let [from, theirs, _link, _front_end] = ends()?;
        let bytes = postcard::to_stdvec(&Answer { scope, shares_processors: true })?;
        let directory: Vec<_> = directory.iter().map(|file| file.as_fd()).collect();
        socket::send(&theirs, &bytes, &directory)?;
        Ok(receive_answer(&from).map(|(answer, directory)| (answer.scope, directory.is_some())))
    };
    let directory = fs::File::open("/")?;
    assert_eq!(send(had(), Some(&directory))?, Some((had(), true)));
    assert_eq!(send(had(), None)?, None);
    let refused = || ScopeResult::Refused { why: "no".to_owned() };
    assert_eq!(send(refused(), None)?, Some((refused(), false)));
    assert_eq!(send(refused(), Some(&directory))?, None);
    Ok(())
}
