//! A listening socket that a service manager hands over: how it is served, handed on to another version, and refused.

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{
    ALICE, Connection, PROGRAM, Server, TOKENS, bearer, call, configured_command, patience,
    request, secret,
};
use crate::reach::family;

/// Moves the socket from standard input to descriptor 3, and names this process in `LISTEN_PID`.
const AS_SYSTEMD: &str =
    "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 4</etc/passwd";

/// Returns a shell that runs this script with the socket as its standard input, and the program as `$0`.
fn shell(socket: impl Into<OwnedFd>, script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, PROGRAM]).stdin(Stdio::from(socket.into()));
    command
}

fn started(socket: impl Into<OwnedFd>, toml: &str, arguments: &[&str]) -> Server {
    let command = shell(socket, AS_SYSTEMD);
    let arguments = [arguments, &["--http", "systemd"]].concat();
    let (home, command) = configured_command(command, toml, &arguments);
    secret(&home.path().join("alice"), ALICE);
    secret(&home.path().join("bob"), &ALICE.to_uppercase());
    Server::spawned(home, command)
}

/// Returns what a server says that does not start.
fn refused(socket: impl Into<OwnedFd>, script: &str, toml: &str, arguments: &[&str]) -> String {
    let arguments = [arguments, &["--http", "systemd"]].concat();
    let (_home, mut command) = configured_command(shell(socket, script), toml, &arguments);
    let ended = command.output().expect("it runs");
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

fn loopback() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

fn copy(socket: &TcpListener) -> TcpListener {
    socket.try_clone().expect("a copy")
}

/// Runs a command through a new connection.
///
/// # Errors
/// A refused connection, or an answer other than the command's output.
fn run(at: &str) -> Result<(), String> {
    let stream = TcpStream::connect(at).map_err(|error| format!("connect: {error}"))?;
    stream.set_read_timeout(Some(patience())).expect("a time");
    let mut connection = Connection(Box::new(stream));
    let headers = [("content-type", "application/json")];
    connection.send(&request("POST", "/run", &headers, "{\"command\": \"echo on\"}"));
    let answer = connection.answer();
    match answer.status == 200 && answer.message()["stdout"] == "on\n" {
        true => Ok(()),
        false => Err(format!("{answer:?}")),
    }
}

#[test]
fn no_request_is_lost_when_one_server_follows_another() {
    let socket = loopback();
    let at = socket.local_addr().expect("an address").to_string();
    let mut server = started(copy(&socket), "", &[]);
    assert_eq!(server.at, at);
    let is_over = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    let lost = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    match run(&at) {
                        Ok(()) => _ = answers.fetch_add(1, Ordering::Relaxed),
                        Err(reason) => {
                            lost.lock().expect("no thread panicked").push(reason);
                            is_over.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let more = |number: usize| {
            let end = Instant::now() + patience();
            let wanted = answers.load(Ordering::Relaxed) + number;
            let waits = || answers.load(Ordering::Relaxed) < wanted && Instant::now() < end;
            while waits() && !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        for _ in 0..3 {
            more(20);
            let next = started(copy(&socket), "", &[]);
            server.terminate();
            assert_eq!(server.ended(), Some(0));
            server = next;
        }
        // One at a time: connections wait in the socket until the next server takes them.
        server.terminate();
        assert_eq!(server.ended(), Some(0));
        server = started(copy(&socket), "", &[]);
        more(20);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(lost.into_inner().expect("no thread panicked"), Vec::<String>::new());
    assert!(answers.load(Ordering::Relaxed) >= 80, "{answers:?}");
}

#[test]
fn only_the_front_end_has_the_socket() {
    if !nix::unistd::geteuid().is_root() {
        // Only root can read the descriptors of the supervisor and of cells.
        return;
    }
    let socket = loopback();
    let held = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&socket)));
    let held = held.expect("a descriptor");
    for tier in [&[][..], &["--tier", "landlock+seccomp"]] {
        let server = started(copy(&socket), TOKENS, tier);
        let token = bearer(ALICE);
        let id = server.session(&[("authorization", &token)]);
        let of = [("authorization", token.as_str()), ("mcp-session-id", &id)];
        let began = call("bash", json!({"command": "sleep 600", "background": true}));
        assert_eq!(server.mcp(&of, &began).status, 200);
        let all = family(server.child.id());
        assert!(all.len() >= 3, "the supervisor, an init and a shell: {all:?}");
        let has = |pid: &&u32| {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("root can read it");
            open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == held))
        };
        let holders: Vec<&u32> = all.iter().filter(has).collect();
        assert_eq!(holders, [&server.child.id()]);
        let of_the_caller = fs::read_dir(format!("/proc/{}/fd", server.child.id()));
        let names = of_the_caller.expect("its own").flatten();
        let leads_to = |path: &str| {
            names
                .into_iter()
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new(path)))
        };
        assert!(!leads_to("/etc/passwd"), "other descriptors of the caller are closed");
    }
}

#[test]
fn the_conditions_are_those_of_the_sockets_address() {
    let any = || TcpListener::bind("0.0.0.0:0").expect("a port");
    let text = refused(any(), AS_SYSTEMD, "", &[]);
    assert!(text.contains("0.0.0.0:") && text.contains("no token is configured"), "{text}");
    let tokens = TOKENS.replace("HOME", "/nonexistent");
    let text = refused(any(), AS_SYSTEMD, &tokens, &[]);
    assert!(text.contains("a token would pass in clear"), "{text}");
    // The control, on the same address.
    let server = started(any(), TOKENS, &["--behind-proxy", "127.0.0.1"]);
    assert_eq!(server.ask("GET", "/tools", &[], "").status, 401);
    assert_eq!(server.ask("GET", "/tools", &[("authorization", &bearer(ALICE))], "").status, 200);
    // On loopback a token is needed only if something is granted.
    let server = started(loopback(), "", &["--env", "KEY=value"]);
    assert_eq!(server.ask("GET", "/tools", &[], "").status, 401);
    let server = started(loopback(), "", &[]);
    assert_eq!(server.ask("GET", "/tools", &[], "").status, 200);
    assert_eq!(server.ask("GET", "/tools", &[("host", "evil.example")], "").status, 403);
}

#[test]
fn a_socket_at_a_path_serves_its_owner_only() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("its mode");
    let path = directory.path().join("s");
    let server = started(UnixListener::bind(&path).expect("a socket"), "", &[]);
    assert_eq!(server.at, path.display().to_string());
    assert_eq!(server.ask("GET", "/tools", &[], "").status, 200);
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    // A socket unit makes a socket that every user may connect to, unless it has another SocketMode=.
    fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("its mode");
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "65534", "--clear-groups", "curl", "-s", "-m", "20", "--unix-socket"]);
    let output = other.arg(&path).arg("http://localhost/health").output().expect("curl runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    server.said("a user who is not allowed");
}

#[test]
fn other_descriptors_are_refused() {
    let stream = || {
        let listener = loopback();
        TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens")
    };
    let abstract_name = SocketAddr::from_abstract_name(format!("cofferdam-{}", std::process::id()));
    let abstract_name = UnixListener::bind_addr(&abstract_name.expect("a name")).expect("it");
    let no_listener = "is no listening stream socket of TCP, or of Unix at a path";
    let cases: [(OwnedFd, &str); 4] = [
        (UdpSocket::bind("127.0.0.1:0").expect("a port").into(), no_listener),
        (stream().into(), no_listener),
        (abstract_name.into(), no_listener),
        (fs::File::open("/dev/null").expect("a file").into(), no_listener),
    ];
    for (socket, expected) in cases {
        let text = refused(socket, AS_SYSTEMD, "", &[]);
        assert!(text.contains(expected), "{text}");
    }
    let none = "no socket was handed over, or more than one";
    for script in [
        "exec \"$0\" \"$@\" 3<&0 </dev/null",
        "exec 3<&0 </dev/null; LISTEN_PID=1 LISTEN_FDS=1 exec \"$0\" \"$@\"",
        "exec 3<&0 4<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" \"$@\"",
        "exec </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"",
    ] {
        let text = refused(loopback(), script, "", &[]);
        assert!(text.contains(none), "{script}: {text}");
    }
}

#[test]
fn a_socket_that_is_not_asked_for_is_closed() {
    let socket = loopback();
    let at = socket.local_addr().expect("an address");
    let (home, command) =
        configured_command(shell(socket, AS_SYSTEMD), "", &["--http", "127.0.0.1:0"]);
    let server = Server::spawned(home, command);
    assert_ne!(server.at, at.to_string());
    assert!(TcpStream::connect(at).is_err(), "no process listens there");
    assert_eq!(server.ask("GET", "/tools", &[], "").status, 200);
}
