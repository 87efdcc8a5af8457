//! Reach of a request: each path needs a token, `/run` exists only with the shell tool, secrets stay hidden.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::client::{
    ALICE, PROGRAM, Server, bearer, call, initialize, modern, modern_call, secret, with_tokens,
};

const JSON: (&str, &str) = ("content-type", "application/json");

fn run(server: &Server, headers: &[(&str, &str)]) -> (u16, String) {
    let headers: Vec<_> = [JSON].iter().chain(headers).copied().collect();
    let answer = server.ask("POST", "/run", &headers, "{\"command\": \"echo ran\"}");
    (answer.status, answer.body)
}

#[test]
fn every_route_but_health_needs_a_token() {
    let server = with_tokens(&[]);
    let paths = [
        "/",
        "/mcp",
        "/mcp/",
        "//mcp",
        "/%6dcp",
        "/run",
        "/run/",
        "//run",
        "/tools",
        "/tools/bash",
        "/tools/bash/execute",
        "/health/",
        "//health",
        "/%68ealth",
        "/health/../run",
        "/health?x",
        "/metrics",
        "/events",
        "/config",
        "/openapi.json",
        "*",
        "/nothing",
    ];
    for path in paths {
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"]
        {
            if (method, path) == ("GET", "/health?x") {
                continue;
            }
            let answer = server.ask(method, path, &[JSON], "");
            // `*` is a target of OPTIONS alone.
            let expected: &[u16] = if path == "*" { &[400, 401] } else { &[401] };
            assert!(expected.contains(&answer.status), "{method} {path}: {answer:?}");
            assert!(!answer.body.contains("cofferdam-"), "no path of the host: {answer:?}");
        }
    }
    assert_eq!(server.ask("GET", "/health", &[], "").status, 200);
    let connect = server.ask("CONNECT", "localhost:80", &[], "");
    assert!(![200, 404].contains(&connect.status), "{connect:?}");
}

#[test]
fn run_needs_a_shell_tool() {
    let usual = run(&Server::start(&[]), &[]);
    assert!(usual.0 == 200 && usual.1.contains("ran"), "{usual:?}");
    let exec = run(&Server::start(&["--tools", "exec"]), &[]);
    assert_eq!(exec.0, 200, "{exec:?}");
    let none = run(&Server::start(&["--tools", "calc"]), &[]);
    assert!(none.0 == 403 && none.1.contains("switched off"), "{none:?}");
    let off = Server::configured("[tools]\noff = [\"bash_exec\"]\n", &[]);
    let off = run(&off, &[]);
    assert!(off.0 == 403 && off.1.contains("switched off"), "{off:?}");
}

/// Makes a project with one tool.
fn project(path: &Path) -> String {
    project_of(path, &["t"])
}

fn project_of(path: &Path, names: &[&str]) -> String {
    for name in names {
        let tool = path.join(format!("project/tools/{name}/tool.sh"));
        fs::create_dir_all(tool.parent().expect("a directory")).expect("made");
        let head = format!("#!/usr/bin/env bash\n# mcp: {{\"name\": \"{name}\"}}\n");
        fs::write(&tool, head + "echo from the tool\n").expect("written");
        fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).expect("its mode");
    }
    path.join("project").display().to_string()
}

#[test]
fn tools_on_later_pages_are_listed_and_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let names: Vec<String> = (0..60).map(|number| format!("t{number:02}")).collect();
    let project =
        project_of(directory.path(), &names.iter().map(String::as_str).collect::<Vec<_>>());
    let server = Server::prepared("", &["--project", &project], |_, command| {
        command.env("COFFERDAM_HTTP_TOKEN", ALICE);
    });
    let token = bearer(ALICE);
    let own = [JSON, ("authorization", token.as_str())];
    let listed = server.ask("GET", "/tools", &own, "").message();
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(60), "{listed}");
    for tool in ["t00", "t59"] {
        let path = format!("/tools/{tool}/execute");
        let called = server.ask("POST", &path, &own, "{}");
        assert!(
            called.status == 200 && called.body.contains("from the tool"),
            "{tool}: {called:?}"
        );
        let statuses: Vec<u16> =
            (0..10).map(|_| server.ask("POST", &path, &own, "{}").status).collect();
        assert_eq!(statuses.last(), Some(&429), "{tool}: {statuses:?}");
    }
}

#[test]
fn a_project_server_runs_scripts_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let project = project(directory.path());
    let server = Server::prepared("", &["--project", &project], |_, command| {
        command.env("COFFERDAM_HTTP_TOKEN", ALICE);
    });
    let token = bearer(ALICE);
    let own = [("authorization", token.as_str())];
    let refused = run(&server, &own);
    assert!(refused.0 == 403 && refused.1.contains("its project only"), "{refused:?}");
    let own = [JSON, own[0]];
    let called = server.ask("POST", "/tools/t/execute", &own, "{}");
    assert!(called.status == 200 && called.body.contains("from the tool"), "{called:?}");
}

#[test]
fn a_projects_remote_token_is_needed_over_http() {
    const REMOTE: &str = "remote-0123456789abcdef0123456789abcdef";
    let directory = tempfile::tempdir().expect("a directory");
    let project = project(directory.path());
    let server = Server::prepared("", &["--project", &project], |_, command| {
        command.env("COFFERDAM_HTTP_TOKEN", ALICE).env("MCPBASH_REMOTE_TOKEN", REMOTE);
    });
    let token = bearer(ALICE);
    let own = [("authorization", token.as_str())];
    let id = server.session(&own);
    let of = [own[0], ("mcp-session-id", id.as_str())];
    let with = |mut message: Value, meta: Value| {
        message["params"]["_meta"] = meta;
        message
    };
    let refused = server.mcp(&of, &call("t", json!({})));
    assert_eq!((refused.status, &refused.message()["error"]["code"]), (403, &json!(-32602)));
    let wrong = with(call("t", json!({})), json!({"remoteToken": &REMOTE[1..]}));
    assert_eq!(server.mcp(&of, &wrong).status, 403);
    let right = with(call("t", json!({})), json!({"mcpbash/remoteToken": REMOTE}));
    let called = server.mcp(&of, &right);
    assert!(called.status == 200 && called.body.contains("from the tool"), "{called:?}");
    // Two readers would take another of two `params`: only the one that was read is handed on.
    let twice = json!({"_meta": {"mcpbash/remoteToken": REMOTE}}).to_string();
    let both = ("accept", "application/json, text/event-stream");
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\",\"method\":\"tools/call\",\
         \"params\":{twice},\"params\":{{\"name\":\"t\",\"arguments\":{{}}}}}}"
    );
    let twofold = server.ask("POST", "/mcp", &[JSON, both, of[0], of[1]], &body);
    assert!(!twofold.body.contains("from the tool"), "{twofold:?}");
    // A text that this server's reader takes for no JSON reaches no other reader.
    let huge = "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/list\",\"x\":1e999}";
    assert_eq!(server.ask("POST", "/mcp", &[JSON, both, of[0], of[1]], huge).status, 403);
    // The revision without sessions, and requests outside of MCP.
    let headers = modern("t");
    let mut headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    headers.push(own[0]);
    assert_eq!(server.mcp(&headers, &modern_call("t", json!({}))).status, 403);
    let mut modern = modern_call("t", json!({}));
    modern["params"]["_meta"]["remoteToken"] = json!(REMOTE);
    assert!(server.mcp(&headers, &modern).body.contains("from the tool"));
    for (method, path) in [("GET", "/tools"), ("POST", "/tools/t/execute"), ("POST", "/run")] {
        assert_eq!(server.ask(method, path, &[JSON, own[0]], "{}").status, 403, "{path}");
    }
    // The client's token is in addition to the listener's and does not replace it.
    assert_eq!(server.mcp(&[], &initialize()).status, 401);
}

/// Returns the processes that descend from one, and that one.
pub fn family(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        next += 1;
    }
    all
}

/// Returns true if this text is in the memory of a process; `None` if its memory cannot be read.
fn is_in_memory(pid: u32, text: &[u8]) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mut memory = fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut read = false;
    let mut found = false;
    for line in maps.lines().filter(|line| line.contains("rw-p") || line.contains("r--p")) {
        let (range, _) = line.split_once(' ')?;
        let (begin, end) = range.split_once('-')?;
        let begin = u64::from_str_radix(begin, 16).ok()?;
        let length = u64::from_str_radix(end, 16).ok()?.saturating_sub(begin);
        let mut bytes = Vec::new();
        let piece = memory.seek(SeekFrom::Start(begin)).and_then(|_| {
            let mut piece = (&memory).take(length.min(64 << 20));
            piece.read_to_end(&mut bytes)
        });
        read |= piece.is_ok();
        found |= bytes.windows(text.len()).any(|window| window == text);
    }
    read.then_some(found)
}

#[test]
fn the_supervisor_and_its_cells_never_hold_a_token() {
    if !nix::unistd::geteuid().is_root() {
        // Only root can read the supervisor and its cells.
        return;
    }
    let server = Server::prepared("", &[], |_, command| {
        command.env("COFFERDAM_HTTP_TOKEN", ALICE);
    });
    let token = bearer(ALICE);
    let own = [("authorization", token.as_str())];
    let id = server.session(&own);
    let of = [own[0], ("mcp-session-id", id.as_str())];
    let began = call("bash", json!({"command": "sleep 600", "background": true}));
    assert_eq!(server.mcp(&of, &began).status, 200);
    let front = server.child.id();
    let others: Vec<u32> = family(front).into_iter().filter(|pid| *pid != front).collect();
    assert!(others.len() >= 3, "the supervisor, an init and a shell: {others:?}");
    let known = b"supervisor";
    let seen = others.iter().filter_map(|pid| is_in_memory(*pid, known)).filter(|it| *it).count();
    assert!(seen >= 2, "their memory can be read, and has what it must have");
    for pid in others {
        // The last eight characters are what an attacker could do least without.
        assert_ne!(is_in_memory(pid, &ALICE.as_bytes()[8..]), Some(true), "process {pid}");
    }
}

#[test]
fn a_socket_path_open_to_others_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = format!("unix:{}", directory.path().join("s").display());
    let server = Server::start(&["--http", &at]);
    for host in ["localhost", "localhost:8080", "d", "127.0.0.1"] {
        assert_eq!(server.mcp(&[("host", host)], &initialize()).status, 200, "{host}");
    }
    // A page that reaches the socket through a forwarded port: the origin is the page's own name.
    let page = [("host", "evil.example:8080"), ("origin", "http://evil.example:8080")];
    assert_eq!(server.mcp(&page, &initialize()).status, 403);
    assert_eq!(server.ask("GET", "/tools", &page[..1], "").status, 403);
}

#[test]
fn another_user_at_the_socket_gets_no_answer() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("its mode");
    let path = directory.path().join("s");
    let server = Server::start(&["--http", &format!("unix:{}", path.display())]);
    let ask = |as_nobody: bool| {
        let mut command = Command::new(if as_nobody { "setpriv" } else { "curl" });
        if as_nobody {
            command.args(["--reuid", "65534", "--clear-groups", "curl"]);
        }
        command.args(["-s", "-m", "20", "--unix-socket"]).arg(&path);
        command.arg("http://localhost/health").stderr(Stdio::null());
        String::from_utf8(command.output().expect("curl runs").stdout).expect("text")
    };
    assert!(ask(false).contains("healthy"), "its owner is answered");
    assert_eq!(ask(true), "", "the mode keeps others out");
    // Now with the mode out of the way: the user is looked at as well.
    fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("its mode");
    assert_eq!(ask(true), "");
    server.said("a user who is not allowed");
    assert!(ask(false).contains("healthy"));
}

/// Starts a server that does not start; what it says.
fn refused(toml: &str, files: &[(&str, &str)], arguments: &[&str]) -> String {
    let home = tempfile::tempdir().expect("a home");
    let config = home.path().join("c");
    fs::create_dir_all(config.join("sandbox-profiles")).expect("a directory");
    let toml = toml.replace("HOME", &home.path().display().to_string());
    fs::write(config.join("cofferdam.toml"), format!("schema = 1\n{toml}")).expect("written");
    for (name, text) in files {
        secret(&home.path().join(name), text);
    }
    let mut command = Command::new(PROGRAM);
    command.arg("--config").arg(&config).args(["serve", "--http", "127.0.0.1:0"]).args(arguments);
    command.env("HOME", home.path()).env_remove("XDG_STATE_HOME");
    let ended = command.stdin(Stdio::null()).output().expect("it runs");
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

#[test]
fn two_clients_have_two_tokens() {
    let toml = "[[http.tokens]]\nclient = \"a\"\nfile = \"HOME/t\"\n\
                [[http.tokens]]\nclient = \"b\"\nfile = \"HOME/u\"\n";
    let text = refused(toml, &[("t", ALICE), ("u", ALICE)], &[]);
    assert!(text.contains("clients `a` and `b` have the same token"), "{text}");
    assert!(!text.contains(ALICE), "the token is not shown: {text}");
}

/// Starts a server with this profile in place of the shipped `bash`; true if requests need a token.
fn needs_token(profile: &str, arguments: &[&str]) -> bool {
    let server = Server::prepared("", arguments, |home, _| {
        let profiles = home.join("config/sandbox-profiles");
        fs::create_dir_all(&profiles).expect("a directory");
        if !profile.is_empty() {
            fs::write(profiles.join("mine.toml"), profile).expect("written");
            let policies = home.join("config/policies");
            fs::create_dir_all(&policies).expect("a directory");
            let rule = "schema = 1\nextends = \"shipped\"\n[[rule]]\nid = \"shell\"\ntools = [\"bash\"]\n\
                action = \"allow\"\nprofile = \"mine\"\nwhy = \"a test\"\nmatches = [{ tool = \"bash\" }]\n";
            fs::write(policies.join("mine.toml"), rule).expect("written");
        }
        fs::write(home.join("notes"), "notes\n").expect("written");
    });
    match server.mcp(&[], &initialize()).status {
        200 => false,
        401 => true,
        other => panic!("status {other}"),
    }
}

#[test]
fn whatever_of_the_host_a_cell_has_asks_for_a_token() {
    assert!(!needs_token("", &[]), "nothing is granted");
    let profile = "schema = 1\nname = \"mine\"\nextends = \"bash\"\ndescription = \"a test\"\n";
    assert!(!needs_token(profile, &[]), "neither by a profile that adds nothing");
    let path = "[[path]]\nhost = \"/proc/version\"\nwhy = \"a test\"\n";
    let path = path.replace("/proc/version", "/etc/fstab");
    assert!(needs_token(&format!("{profile}{path}"), &[]), "a path of the host");
    assert!(needs_token("", &["--env", "KEY=value"]), "a variable");
    assert!(needs_token("", &["--egress", "example.com:443"]), "a network");
    assert!(needs_token("", &["--tier", "landlock+seccomp"]), "the lower tier");
}
