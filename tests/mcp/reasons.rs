//! Reasons of failures in replies: hosts that a cell without a network does not reach, with the grant, and limits that a
//! command met, by the real program.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::server::patience::soon;
use crate::server::{PROGRAM, Server};

const WHY: &str = "the cell has no network";

/// Calls a tool; returns its text and its fields.
fn call(server: &mut Server, tool: &str, command: &str) -> (String, Value) {
    let result = server.result(tool, json!({ "command": command }));
    let text = result["content"].as_array().unwrap().iter();
    let text: Vec<&str> = text.filter_map(|block| block["text"].as_str()).collect();
    (text.join("\n"), result["structuredContent"].clone())
}

/// Returns a call of getaddrinfo(3) for each name, which prints its error.
fn lookups(names: &[&str]) -> String {
    format!(
        "python3 -c '
import socket
for name in {names:?}:
    try: socket.getaddrinfo(name, 443)
    except OSError as error: print(error.errno)
'"
    )
}

#[test]
fn a_name_that_does_not_resolve_is_listed_with_the_grant() {
    let mut server = Server::start(&["--tools", "shell,exec"]);
    let pypi = json!({
        "to": "pypi.org", "why": WHY, "count": 2,
        "grant": "--egress python, or [[egress]] hosts = [\"pypi.org\"], ports = [443]",
    });
    let other = json!({
        "to": "example.org", "why": WHY, "count": 1,
        "grant": "--egress example.org:443, or [[egress]] hosts = [\"example.org\"], ports = [443]",
    });
    let line = "[denied: connect pypi.org, twice: the cell has no network; the operator can grant it: --egress python, \
                or [[egress]] hosts = [\"pypi.org\"], ports = [443]]";
    let names = ["pypi.org", "PyPI.org", "example.org", "localhost", "cofferdam", "a.local"];
    for tool in ["bash", "bash_exec", "bash"] {
        let began = Instant::now();
        let (text, fields) = call(&mut server, tool, &lookups(&names));
        // EAI_NONAME, for which no program tries again.
        assert_eq!(fields["stdout"], "-2\n-2\n-2\n-2\n", "{fields}");
        assert!(began.elapsed() < soon(20), "{text}");
        let expected = json!({
            "connections": 0, "sent": 0, "received": 0, "denied": [pypi, other],
        });
        assert_eq!(fields["network"], expected, "{tool}");
        assert!(tool == "bash_exec" || text.contains(line), "{text}");
    }
    let (_, fields) = call(&mut server, "bash", "echo hi; python3 -c 'print(1)'");
    assert_eq!(fields["network"], Value::Null, "a later command has none of it: {fields}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn names_of_an_attacker_change_no_reply() {
    let mut server = Server::start(&[]);
    let script = r#"python3 -c '
import socket
def ask(*labels, kind=1, flags=1):
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    head = b"\0\1" + bytes([flags]) + b"\0\0\1\0\0\0\0\0\0"
    udp.send(head + name + bytes([0, kind, 0, 1]))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(("127.0.0.1", 53))
udp.settimeout(5)
ask(b"a]\n[exit 0", b"org"); udp.recv(512)
ask(b"x\x1b[2J", b"org"); udp.recv(512)
ask(b"xn--e1awd7f", b"org"); print(udp.recv(512)[3] & 15)
for junk in (b"", b"\xff" * 600, b"\0" * 12, b"\0\1\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1"): udp.send(junk)
ask(b"again", b"org", flags=0x81)
ask(b"last", b"org"); print(udp.recv(512)[3] & 15)
for number in range(5000): ask(b"n%d" % number, b"org")
'; exit 1"#;
    let (text, fields) = call(&mut server, "bash", script);
    // NXDOMAIN is 3.
    assert_eq!((&fields["stdout"], &fields["exit_code"]), (&json!("3\n3\n"), &json!(1)), "{text}");
    let denied = fields["network"]["denied"].as_array().unwrap();
    let hosts: Vec<&str> = denied.iter().filter_map(|one| one["to"].as_str()).collect();
    let first = ["xn--e1awd7f.org", "last.org", "n0.org", "n1.org"];
    assert_eq!((hosts.len(), hosts.get(..4)), (8, Some(&first[..])), "{text}");
    let (_, fields) = call(&mut server, "bash", "echo there");
    assert_eq!(fields["stdout"], "there\n");
    assert_eq!(server.close(), Some(0));
}

/// Connects to an address of a network for documentation, which no machine has.
const CONNECT: &str = "python3 -c '
import socket
for host, port in ((\"192.0.2.7\", 8080), (\"2001:db8::7\", 22), (\"169.254.169.254\", 80)):
    try: socket.create_connection((host, port))
    except OSError as error: print(error.errno)
'";

#[test]
fn an_address_without_a_route_is_listed_where_a_directory_is_granted() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(&["--workspace", directory.path().to_str().unwrap()]);
    let (text, fields) = call(&mut server, "bash", CONNECT);
    assert_eq!(fields["stdout"], "101\n101\n101\n", "ENETUNREACH: {text}");
    let expected = json!([
        { "to": "192.0.2.7:8080", "why": WHY, "count": 1,
          "grant": "--egress 192.0.2.7:8080, or [[egress]] nets = [\"192.0.2.7\"], ports = [8080]" },
        { "to": "[2001:db8::7]:22", "why": WHY, "count": 1,
          "grant": "--egress [2001:db8::7]:22, or [[egress]] nets = [\"2001:db8::7\"], ports = [22]" },
    ]);
    assert_eq!(fields["network"]["denied"], expected, "{text}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn run_prints_the_grant_for_a_name() {
    let lookup = "import socket; socket.getaddrinfo('pypi.org', 443)";
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--", "python3", "-c", lookup]).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let line = "\ncofferdam: denied: connect pypi.org, once: the cell has no network; the operator can grant it: \
                --egress python, or [[egress]] hosts = [\"pypi.org\"], ports = [443]\n";
    assert!(output.status.code() == Some(1) && text.contains(line), "{text}");
}

/// A command that meets a limit, and what the reply says about it.
const LIMITS: &[(&str, &str)] = &[
    (
        "dd if=/dev/zero of=/tmp/full bs=1M count=200",
        "/tmp is full: it may have 128M and 100000 files; the operator can raise it: tmp under [limits] of the profile",
    ),
    (
        "rm /tmp/full; dd if=/dev/zero of=/workspace/full bs=1M count=500 2>/dev/null",
        "/workspace is full: it may have 384M and 100000 files; the operator can raise it: workspace under [limits] of \
         the profile",
    ),
    (
        "rm /workspace/full; exec 2>&1; dd if=/dev/zero of=/dev/shm/full bs=1M count=200 >&2",
        "/dev/shm is full: it may have 64M and 100000 files; the operator can raise it: shm under [limits] of the profile",
    ),
    (
        "rm /dev/shm/full; python3 -c 'import os\nwhile True: os.dup(0)'",
        "a process may have 1024 open files; the operator can raise it: open_files under [limits] of the profile",
    ),
    (
        "python3 -c 'import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()'",
        "the cell may have 256 processes and threads; the operator can raise it: processes under [limits] of the profile",
    ),
    (
        "(truncate -s 600M f)",
        "a file may have 512M; the operator can raise it: file_size under [limits] of the profile",
    ),
];

#[test]
fn a_limit_that_a_command_met_is_named_with_its_value() {
    let mut server = Server::start(&[]);
    for (command, expected) in LIMITS {
        let (text, fields) = call(&mut server, "bash", command);
        assert_ne!(fields["exit_code"], 0, "{fields}");
        assert_eq!(fields["notes"], json!([expected]), "{command}");
        assert!(text.contains(&format!("[{expected}]")), "{text}");
    }
    for command in ["(exit 1)", "ls /nowhere", "echo EMFILE >&2; true"] {
        let (_, fields) = call(&mut server, "bash", command);
        assert_eq!(fields["notes"], Value::Null, "{command}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn run_names_a_full_filesystem() {
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--", "dd", "if=/dev/zero", "of=/tmp/full", "bs=1M", "count=200"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("\ncofferdam: /tmp is full: it may have 128M and 100000 files; "),
        "{text}"
    );
}

#[test]
fn an_editor_and_a_prompt_of_node_are_named_as_waiting() {
    let mut server = Server::start(&["--tools", "shell"]);
    let mut wait = |command: &str, has_terminal: bool, expected: &str| {
        let arguments = json!({ "command": command, "tty": has_terminal, "restart": true });
        let began = Instant::now();
        let result = server.result("bash", arguments);
        let fields = &result["structuredContent"];
        let program = command.split(' ').next().unwrap();
        if fields["exit_code"] == 127 {
            return;
        }
        assert_eq!(fields["outcome"], "running", "{program}: {result}");
        assert!(fields["notes"].as_array().unwrap().contains(&json!(expected)), "{result}");
        assert_eq!(fields["waiting_for_input"] == true, has_terminal, "{result}");
        // Without a terminal vim sleeps for two seconds first.
        assert!(began.elapsed() < soon(15), "{result}");
    };
    for command in ["vi f", "node", "python3 -q"] {
        wait(command, true, "it waits for input");
    }
    wait("vi f", false, "it waits for a terminal and has none; `tty: true` gives a command one");
    assert_eq!(server.close(), Some(0));
}
