//! SIGHUP: tokens, keys and certificates are read again while clients call.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::client::{ALICE, BOB, Server, TOKENS, bearer, call, initialize, patience, secret};
use crate::patience::soon;
use crate::reach::family;

const LIST: &str = "[http]\ntoken_list = \"HOME/list\"\n";
pub const READ_AGAIN: &str = "{\"cofferdam_reload\":{";
const KEPT: &str = "earlier tokens, keys and certificates stay";

fn listing(text: &str) -> Server {
    let text = text.to_owned();
    Server::prepared(LIST, &[], move |home, _| secret(&home.join("list"), &text))
}

impl Server {
    pub fn hang_up(&self) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), Signal::SIGHUP).expect("it runs");
    }

    /// Writes a file of the server's home, has it read again, and returns the line about it.
    pub fn rewritten(&self, name: &str, text: &str, said: &str) -> String {
        secret(&self.home.path().join(name), text);
        self.hang_up();
        self.said(said)
    }

    fn status(&self, token: &str) -> u16 {
        self.ask("GET", "/tools", &[("authorization", &bearer(token))], "").status
    }
}

#[test]
fn clients_come_and_go_with_the_lines_of_the_list() {
    let server = listing(&format!("alice {ALICE}\n"));
    assert_eq!([server.status(ALICE), server.status(BOB)], [200, 401]);
    let line = server.rewritten("list", &format!("alice {ALICE}\nbob {BOB}\n"), READ_AGAIN);
    let counts = |added, removed| {
        json!({"cofferdam_reload":
            {"files_read": 1, "clients_added": added, "clients_removed": removed}})
    };
    assert_eq!(serde_json::from_str(&line).ok(), Some(counts(1, 0)));
    assert_eq!([server.status(ALICE), server.status(BOB)], [200, 200]);
    let line = server.rewritten("list", &format!("bob {BOB}\n"), READ_AGAIN);
    assert_eq!(serde_json::from_str(&line).ok(), Some(counts(0, 1)));
    assert_eq!([server.status(ALICE), server.status(BOB)], [401, 200]);
    // Another token of the same client.
    server.rewritten("list", &format!("bob {ALICE}\n"), READ_AGAIN);
    assert_eq!([server.status(ALICE), server.status(BOB)], [200, 401]);
    // Rights are of the new line: an operator runs nothing.
    server.rewritten("list", &format!("bob {ALICE} operator\n"), READ_AGAIN);
    let header = bearer(ALICE);
    let of = [("authorization", header.as_str())];
    assert_eq!(server.mcp(&of, &initialize()).status, 403);
    assert_eq!(server.ask("GET", "/config", &of, "").status, 200);
}

#[test]
fn a_bad_file_keeps_every_credential_and_is_named_without_a_secret() {
    let server = listing(&format!("alice {ALICE}\n"));
    let list = server.home.path().join("list");
    for (text, fault) in [
        (format!("alice {ALICE}\nbob short-secret\n"), "list:2: a token has 32 characters"),
        (format!("{BOB}\n"), "list:1: a line is"),
        ("# cut off\n".to_owned(), "list: has no token"),
        (format!("alice {ALICE}\nbob {ALICE}\n"), "the same token"),
    ] {
        let line = server.rewritten("list", &text, KEPT);
        assert!(line.contains(fault), "{line}");
        let shows = |text: &str| line.contains(text);
        assert!(!shows(ALICE) && !shows(BOB) && !shows("short-secret"), "{line}");
        assert_eq!([server.status(ALICE), server.status(BOB)], [200, 401]);
    }
    fs::write(&list, [0xff, 0xfe]).expect("written");
    server.hang_up();
    server.said(KEPT);
    fs::remove_file(&list).expect("removed");
    server.hang_up();
    assert!(server.said(KEPT).contains("list"), "the file is named");
    nix::unistd::mkfifo(&list, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    server.hang_up();
    assert!(server.said(KEPT).contains("list"), "it waits for no writer");
    fs::remove_file(&list).expect("removed");
    // A file that others can read, and one that leads elsewhere.
    secret(&list, &format!("bob {BOB}\n"));
    fs::set_permissions(&list, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("a mode");
    server.hang_up();
    assert!(server.said(KEPT).contains("others can read"), "it is refused as at the start");
    let elsewhere = tempfile::tempdir().expect("a directory");
    secret(&elsewhere.path().join("list"), &format!("bob {BOB}\n"));
    fs::remove_file(&list).expect("removed");
    std::os::unix::fs::symlink(elsewhere.path().join("list"), &list).expect("a link");
    server.hang_up();
    server.said(KEPT);
    assert_eq!([server.status(ALICE), server.status(BOB)], [200, 401]);
    // The control: the next right file is taken.
    fs::remove_file(&list).expect("removed");
    server.rewritten("list", &format!("bob {BOB}\n"), READ_AGAIN);
    assert_eq!([server.status(ALICE), server.status(BOB)], [401, 200]);
}

/// Sets a flag when it is dropped.
struct SetAtEnd<'f>(&'f AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_call_is_lost_while_files_are_read_again() {
    let server = listing(&format!("alice {ALICE}\nbob {BOB}\n"));
    let header = bearer(ALICE);
    let of = [("authorization", header.as_str())];
    let id = server.session(&of);
    let in_session = [("authorization", header.as_str()), ("mcp-session-id", id.as_str())];
    let is_over = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    let lost = Mutex::new(Vec::new());
    let fail = |what: String| {
        lost.lock().expect("no thread panicked").push(what);
        is_over.store(true, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                count += 1;
                let command = "n=$((n+1)); sleep 0.02; echo $n";
                let answer = server.mcp(&in_session, &call("bash", json!({"command": command})));
                match answer.stdout() == format!("{count}\n") {
                    true => _ = answers.fetch_add(1, Ordering::Relaxed),
                    false => fail(format!("call {count}: {answer:?}")),
                }
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let answer = server.ask("GET", "/tools", &of, "");
                match answer.status == 200 {
                    true => _ = answers.fetch_add(1, Ordering::Relaxed),
                    false => fail(format!("{answer:?}")),
                }
            }
        });
        // Without it the threads would not end where this one panics.
        let _over = SetAtEnd(&is_over);
        for round in 0..6 {
            let bob = if round % 2 == 0 { "" } else { "bob" };
            let more = if bob.is_empty() { String::new() } else { format!("bob {BOB}\n") };
            server.rewritten("list", &format!("alice {ALICE}\n{more}"), READ_AGAIN);
            let wanted = answers.load(Ordering::Relaxed) + 10;
            let end = Instant::now() + patience();
            while answers.load(Ordering::Relaxed) < wanted
                && !is_over.load(Ordering::Relaxed)
                && Instant::now() < end
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    assert_eq!(lost.into_inner().expect("no thread panicked"), Vec::<String>::new());
    assert!(answers.load(Ordering::Relaxed) >= 60, "{answers:?}");
}

#[test]
fn a_removed_clients_running_call_is_answered_and_its_streams_and_shells_end() {
    let server = listing(&format!("alice {ALICE}\nbob {BOB}\n"));
    let header = bearer(BOB);
    let id = server.session(&[("authorization", &header)]);
    let of = [("authorization", header.as_str()), ("mcp-session-id", id.as_str())];
    let started = call("bash", json!({"command": "sleep 600 & echo on"}));
    assert_eq!(server.mcp(&of, &started).stdout(), "on\n");
    let sleepers = || {
        let all = family(server.child.id());
        let names =
            all.iter().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        names.filter(|name| name == "sleep\n").count()
    };
    // The shell does not wait until its child has become another program.
    let end = Instant::now() + patience();
    while sleepers() != 1 {
        assert!(Instant::now() < end, "it runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let accept = ("accept", "text/event-stream");
            let answer = server.ask("GET", "/mcp", &[of[0], of[1], accept], "");
            answer.status
        });
        let running = scope.spawn(|| {
            let slow = call("bash", json!({"command": "sleep 2; echo done"}));
            server.mcp(&of, &slow).stdout()
        });
        std::thread::sleep(Duration::from_millis(700));
        server.rewritten("list", &format!("alice {ALICE}\n"), READ_AGAIN);
        assert_eq!(server.status(BOB), 401);
        assert_eq!(stream.join().expect("it ends"), 200);
        assert_eq!(running.join().expect("it is answered"), "done\n");
    });
    let end = Instant::now() + patience();
    while sleepers() > 0 {
        assert!(Instant::now() < end, "its shell has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The session is gone, if the client has a token again.
    server.rewritten("list", &format!("bob {BOB}\n"), READ_AGAIN);
    let again = call("bash", json!({"command": "echo on"}));
    assert_eq!(server.mcp(&of, &again).status, 404);
}

#[test]
fn a_stream_of_a_client_that_stays_ends_and_can_be_resumed() {
    let server = listing(&format!("alice {ALICE}\n"));
    let header = bearer(ALICE);
    let id = server.session(&[("authorization", &header)]);
    let of = [
        ("authorization", header.as_str()),
        ("mcp-session-id", id.as_str()),
        ("accept", "text/event-stream"),
    ];
    for _ in 0..2 {
        std::thread::scope(|scope| {
            let stream = scope.spawn(|| server.ask("GET", "/mcp", &of, "").status);
            std::thread::sleep(Duration::from_millis(300));
            assert!(!stream.is_finished(), "it is open until the files are read again");
            server.rewritten("list", &format!("alice {ALICE}\n"), READ_AGAIN);
            assert_eq!(stream.join().expect("it ends"), 200);
        });
    }
}

#[test]
fn a_server_without_files_ends_and_one_with_separate_files_reads_each() {
    let mut server = Server::start(&[]);
    server.hang_up();
    assert_eq!(server.ended(), None, "the signal ends it");
    let server = Server::prepared(TOKENS, &[], |home, _| {
        secret(&home.join("alice"), ALICE);
        secret(&home.join("bob"), BOB);
    });
    let new = ALICE.to_uppercase();
    server.rewritten("alice", &new, READ_AGAIN);
    assert_eq!([server.status(ALICE), server.status(&new), server.status(BOB)], [401, 200, 200]);
    server.rewritten("alice", BOB, KEPT);
    assert_eq!([server.status(&new), server.status(BOB)], [200, 200]);
}

#[test]
fn a_request_whose_body_comes_after_its_client_was_removed_is_refused() {
    let server = listing(&format!("alice {ALICE}\nbob {BOB}\n"));
    let body = json!({"command": "echo ran"}).to_string();
    let head = |token: &str| {
        format!(
            "POST /run HTTP/1.1\r\nhost: {}\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n",
            server.at,
            bearer(token),
            body.len()
        )
    };
    let begun = [BOB, ALICE].map(|token| {
        let mut stream = std::net::TcpStream::connect(&server.at).expect("it listens");
        stream.set_read_timeout(Some(patience())).expect("a time");
        stream.write_all(head(token).as_bytes()).expect("sent");
        stream
    });
    std::thread::sleep(Duration::from_millis(500));
    server.rewritten("list", &format!("alice {ALICE}\n"), READ_AGAIN);
    let [bob, alice] = begun.map(|mut stream| {
        stream.write_all(body.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    });
    assert!(bob.starts_with("HTTP/1.1 401 ") && !bob.contains("ran"), "{bob}");
    // The control: a client that stays.
    assert!(alice.starts_with("HTTP/1.1 200 ") && alice.contains("ran"), "{alice}");
}

#[test]
fn a_rule_whose_client_has_no_credential_is_warned_of() {
    let server = Server::prepared(LIST, &[], |home, _| {
        secret(&home.join("list"), &format!("alice {ALICE}\nbob {BOB}\n"));
        let policies = home.join("config/policies");
        fs::create_dir_all(&policies).expect("a directory");
        let rule = "schema = 1\n[[rule]]\nid = \"no-bob\"\ntools = [\"bash\"]\nclients = [\"bob\"]\n\
                    action = \"deny\"\nwhy = \"a test\"\nmatches = [{ tool = \"bash\", client = \"bob\" }]\n";
        fs::write(policies.join("bob.toml"), rule).expect("written");
    });
    secret(&server.home.path().join("list"), &format!("alice {ALICE}\n"));
    server.hang_up();
    let line = server.said("names a client that has no credential");
    assert!(line.contains("bob"), "{line}");
}

#[test]
fn the_process_that_reads_has_its_link_and_little_else_and_ends_with_the_server() {
    if !nix::unistd::geteuid().is_root() {
        // Only root can read the descriptors of a process that is not traceable.
        return;
    }
    let mut server = listing(&format!("alice {ALICE}\n"));
    // It takes its name and confines itself while the server starts, and answers only then.
    server.rewritten("list", &format!("alice {ALICE}\n"), READ_AGAIN);
    let reader = reader(&server);
    let status = fs::read_to_string(format!("/proc/{reader}/status")).expect("it runs");
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{line}");
    }
    let open = fs::read_dir(format!("/proc/{reader}/fd")).expect("root can read it").flatten();
    let leads: Vec<_> = open.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
    let is_null = |path: &&std::path::PathBuf| path.as_path() == Path::new("/dev/null");
    // The link, and the pipe that ends with the server.
    assert_eq!(leads.len() - leads.iter().filter(is_null).count(), 2, "{leads:?}");
    let environment = fs::read(format!("/proc/{reader}/environ")).expect("root can read it");
    assert!(environment.iter().all(|byte| *byte == 0), "it is erased");
    server.terminate();
    assert_eq!(server.ended(), Some(0));
    wait_for_end(reader);
}

#[test]
fn the_process_that_reads_ends_with_a_killed_server_whatever_it_waits_for() {
    if !nix::unistd::geteuid().is_root() {
        // Only root can read the name of a process that is not traceable.
        return;
    }
    let mut server = listing(&format!("alice {ALICE}\n"));
    server.rewritten("list", &format!("alice {ALICE}\n"), READ_AGAIN);
    let reader = reader(&server);
    // A stopped process stands for one that waits for a slow file: it cannot see the end of its link.
    let pid = Pid::from_raw(i32::try_from(reader).expect("a pid"));
    kill(pid, Signal::SIGSTOP).expect("it runs");
    server.hang_up();
    assert!(Path::new(&format!("/proc/{reader}")).exists());
    server.child.kill().expect("it runs");
    server.child.wait().expect("its end");
    wait_for_end(reader);
}

/// Returns the process of a server that reads its files.
fn reader(server: &Server) -> u32 {
    let named = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"cofferdam-reader")
    };
    let readers: Vec<u32> = family(server.child.id()).into_iter().filter(named).collect();
    let [reader] = readers.as_slice() else { panic!("one process: {readers:?}") };
    *reader
}

/// Waits until a process has ended, whether or not its end was waited for.
fn wait_for_end(pid: u32) {
    let end = Instant::now() + soon(10);
    let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let has_ended = |stat: &str| stat.is_empty() || stat.contains(") Z ");
    while !has_ended(&stat()) {
        assert!(Instant::now() < end, "it runs on: {}", stat());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_certificate_is_replaced_without_a_new_start() {
    let make = |home: &Path, name: &str| {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-subj", &format!("/CN={name}"), "-keyout"])
            .arg(home.join("key"))
            .arg("-out")
            .arg(home.join("certificate"))
            .output();
        assert!(made.expect("openssl runs").status.success());
        let key = fs::read_to_string(home.join("key")).expect("a key");
        secret(&home.join("key"), &key);
    };
    let toml = "[http]\ncertificate = \"HOME/certificate\"\nkey = \"HOME/key\"\n\
                token_list = \"HOME/list\"\n";
    let server = Server::prepared(toml, &[], |home, _| {
        make(home, "before");
        secret(&home.join("list"), &format!("alice {ALICE}\n"));
    });
    let subject = || {
        let shown = Command::new("openssl")
            .args(["s_client", "-connect", &server.at])
            .stdin(std::process::Stdio::null())
            .output();
        String::from_utf8_lossy(&shown.expect("openssl runs").stdout).into_owned()
    };
    assert!(subject().contains("before"));
    make(server.home.path(), "after");
    server.hang_up();
    server.said(READ_AGAIN);
    assert!(subject().contains("after"));
    // A key of another certificate is refused with it, and the earlier pair stays.
    let key = fs::read_to_string(server.home.path().join("key")).expect("a key");
    make(server.home.path(), "third");
    server.rewritten("key", &key, KEPT);
    assert!(subject().contains("after"));
}
