//! Kinds of standard input and output that a client may give a server: each is served, and only
//! those that cannot be waited for take a thread.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

/// A server that ends with its test.
struct Server(Child);

impl Server {
    fn start(input: impl Into<OwnedFd>, output: impl Into<OwnedFd>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        command.arg("serve").stdin(input.into()).stdout(output.into());
        Self(command.spawn().expect("a server"))
    }

    /// A session opened over these, and how many threads the server has then.
    fn opened(&self, to: &mut impl Write, from: &mut impl BufRead) -> usize {
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        });
        let reply = exchange(to, from, 1, "initialize", &params);
        assert_eq!(reply["result"]["serverInfo"]["name"], "cofferdam", "{reply}");
        let opened = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        to.write_all(format!("{opened}\n").as_bytes()).expect("written");
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id()));
        tasks.expect("threads").count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("an end");
    }
}

fn exchange(
    to: &mut impl Write,
    from: &mut impl BufRead,
    id: u32,
    method: &str,
    params: &Value,
) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    to.write_all(format!("{request}\n").as_bytes()).expect("written");
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).expect("JSON")
}

fn pipe() -> (File, File) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (OwnedFd::from(reader).into(), OwnedFd::from(writer).into())
}

/// Returns true if calls on this open file description wait.
fn waits(fd: impl AsFd) -> bool {
    let flags = fcntl(fd, FcntlArg::F_GETFL).expect("flags");
    !OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK)
}

/// Kilobytes of files that are mapped and resident.
fn mapped(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("kilobytes")
}

#[test]
fn the_server_releases_its_startup_memory() {
    let ((theirs, mut to), (from, written)) = (pipe(), pipe());
    let server = Server::start(theirs, written);
    server.opened(&mut to, &mut BufReader::new(from));
    let pid = server.0.id().to_string();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("children");
    let supervisor = children.split_whitespace().next().expect("a supervisor");
    // Much of what a process has mapped is code of its start.
    let mut seen = [(pid.as_str(), 0, 0), (supervisor, 0, 0)];
    let have_released = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        for (process, now, largest) in &mut seen {
            *now = mapped(process);
            *largest = (*largest).max(*now);
        }
        seen.iter().all(|(_, now, largest)| now * 4 < largest * 3)
    });
    assert!(have_released, "processes with kilobytes now and before: {seen:?}");
}

#[test]
fn pipes_take_no_thread_and_keep_their_flags() {
    let ((theirs, mut to), (from, written)) = (pipe(), pipe());
    let same_input = theirs.try_clone().expect("a copy");
    let same_output = written.try_clone().expect("a copy");
    let server = Server::start(theirs, written);
    assert_eq!(server.opened(&mut to, &mut BufReader::new(from)), 1);
    assert!(waits(&same_input) && waits(&same_output));
}

#[test]
fn a_socket_takes_no_thread_and_keeps_its_flags() {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let same = theirs.try_clone().expect("a copy");
    let server = Server::start(theirs.try_clone().expect("a copy"), theirs);
    let mut to = ours.try_clone().expect("a copy");
    assert_eq!(server.opened(&mut to, &mut BufReader::new(ours)), 1);
    assert!(waits(&same));
}

#[test]
fn a_terminal_is_served_by_a_thread() {
    let pty = nix::pty::openpty(None, None).expect("a terminal");
    let (from, written) = pipe();
    let server = Server::start(pty.slave, written);
    // Control of the two above: here a read may block, and runs in its own thread.
    assert!(server.opened(&mut File::from(pty.master), &mut BufReader::new(from)) > 1);
}

#[test]
fn a_pty_master_as_output_works() {
    let pty = nix::pty::openpty(None, None).expect("a terminal");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.args(["run", "--timeout", "20s", "--", "echo", "typed"]).stdin(Stdio::null());
    assert!(command.stdout(pty.master).status().expect("a run").success());
    let slave = File::from(pty.slave);
    let mut waiting = [PollFd::new(slave.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut waiting, PollTimeout::from(10_000_u16)), Ok(1), "no output");
    let mut line = String::new();
    BufReader::new(slave).read_line(&mut line).expect("a line");
    assert_eq!(line, "typed\n");
}

#[test]
fn a_large_reply_reaches_a_slow_client_whole() {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    setsockopt(&theirs, sockopt::SndBuf, &4096).expect("a small buffer");
    let server = Server::start(theirs.try_clone().expect("a copy"), theirs);
    let mut to = ours.try_clone().expect("a copy");
    let mut from = BufReader::with_capacity(500, ours);
    server.opened(&mut to, &mut from);
    let listed = exchange(&mut to, &mut from, 2, "tools/list", &json!({}));
    let size = listed.to_string().len();
    assert!(size > 4 * 4096, "{size}");
    assert_eq!(listed["result"]["tools"][0]["name"], "bash");
    // And nothing is left behind it.
    let pinged = exchange(&mut to, &mut from, 3, "ping", &json!({}));
    assert_eq!(pinged, json!({ "jsonrpc": "2.0", "id": 3, "result": {} }));
}

#[test]
fn closed_sockets_and_missing_stdin_end_a_server() {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let mut server = Server::start(theirs.try_clone().expect("a copy"), theirs);
    let mut to = ours.try_clone().expect("a copy");
    server.opened(&mut to, &mut BufReader::new(&ours));
    ours.shutdown(std::net::Shutdown::Write).expect("the end");
    let mut rest = String::new();
    (&ours).read_to_string(&mut rest).expect("the end of the replies");
    assert_eq!((rest.as_str(), server.0.wait().expect("an end").code()), ("", Some(0)));

    let (_from, written) = pipe();
    let mut server = Server::start(File::open("/dev/null").expect("null"), written);
    assert_eq!(server.0.wait().expect("an end").code(), Some(0));
}

#[test]
fn a_fifo_with_a_name_ends_with_its_writer() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let writer = {
        let path = path.clone();
        std::thread::spawn(move || std::fs::write(path, "all of it\n"))
    };
    let input = File::open(&path).expect("opened");
    // The only writer is gone before the first look.
    writer.join().expect("a thread").expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    let output = command.args(["run", "--timeout", "20s", "--", "cat"]).stdin(input).output();
    let output = output.expect("a run");
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), b"all of it\n".as_slice())
    );
}

#[test]
fn the_wrong_end_of_a_pipe_is_not_turned_around() {
    let (mut reader, mut writer) = pipe();
    writer.write_all(b"for somebody else\n").expect("written");
    let input = writer.try_clone().expect("another");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    let output = command.args(["run", "--timeout", "20s", "--", "cat"]).stdin(input).output();
    assert_eq!(output.expect("a run").stdout, b"");
    // All of its write ends, so that there is an end.
    drop((command, writer));
    let mut left = String::new();
    reader.read_to_string(&mut left).expect("read");
    assert_eq!(left, "for somebody else\n");
}
