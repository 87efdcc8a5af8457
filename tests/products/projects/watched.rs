//! A project that changes while it is served: lists, resources that a client asked about, and what is no change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::hooks::project;
use super::listed;
use super::transcript::modern;
use crate::server::patience::patience;
use crate::server::{PROGRAM, Server};

const TOOLS: &str = "notifications/tools/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const UPDATED: &str = "notifications/resources/updated";
const LISTEN: &str = "subscriptions/listen";

fn serving(directory: &tempfile::TempDir, more: &str) -> Server {
    let mut command = Command::new(PROGRAM);
    let place = format!("{}{more}", directory.path().display());
    command.args(["serve", "--toolchains", "none", "--project", &place]);
    Server::of(command)
}

fn write(directory: &tempfile::TempDir, path: &str, text: &str) {
    let target = directory.path().join(path);
    let missing = target.ancestors().skip(1).take_while(|folder| !folder.exists());
    for folder in missing.collect::<Vec<_>>().into_iter().rev() {
        fs::create_dir(folder).expect("made");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let is_new = !target.exists();
    fs::write(&target, text).expect("written");
    if is_new {
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).expect("a mode");
    }
}

/// The next notification, whatever it is.
fn next(server: &Server) -> Value {
    loop {
        let line = server.message(Instant::now() + patience());
        if line.get("method").is_some() {
            return line;
        }
    }
}

/// Notifications up to the one of a prompt that is added now: whatever was to come before it has come.
fn until_marked(directory: &tempfile::TempDir, server: &Server, mark: &str) -> Vec<Value> {
    // Waits, so that the marker is not merged with the expected notification.
    std::thread::sleep(Duration::from_millis(1200));
    write(directory, &format!("prompts/{mark}.txt"), "");
    let mut before = Vec::new();
    loop {
        let line = next(server);
        if line["method"] == PROMPTS {
            return before;
        }
        before.push(json!([line["method"], line["params"]["uri"]]));
    }
}

#[test]
fn changed_lists_are_notified() {
    let directory = project(&[("tools/a/a.sh", "echo one\n")]);
    let mut server = serving(&directory, "");
    assert_eq!(listed(&mut server), ["a", "t"]);
    write(&directory, "tools/b/b.sh", "echo two\n");
    assert_eq!(next(&server)["method"], TOOLS);
    assert_eq!(listed(&mut server), ["a", "b", "t"]);
    assert_eq!(server.result("b", json!({}))["content"][0]["text"], "two\n");
    write(&directory, "tools/b/b.meta.json", r#"{"name": "b", "description": "Two"}"#);
    assert_eq!(next(&server)["method"], TOOLS);
    fs::remove_dir_all(directory.path().join("tools/b")).expect("removed");
    assert_eq!(next(&server)["method"], TOOLS);
    assert_eq!(listed(&mut server), ["a", "t"]);
    let id = server.call("b", json!({}));
    assert_eq!(server.answer(id)["error"]["code"], -32602);
    // A folder that comes whole, from outside.
    let outside = tempfile::tempdir_in(directory.path().parent().expect("a folder")).expect("made");
    fs::write(outside.path().join("c.sh"), "echo three\n").expect("written");
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::rename(outside.path(), directory.path().join("tools/c")).expect("moved");
    assert_eq!(next(&server)["method"], TOOLS);
    fs::write(directory.path().join("tools/c/d.sh"), "echo four\n").expect("written");
    assert_eq!(next(&server)["method"], TOOLS);
    assert_eq!(listed(&mut server), ["a", "c", "d", "t"]);
    write(&directory, "resources/r.txt", "text");
    assert_eq!(next(&server)["method"], RESOURCES);
    write(&directory, "prompts/p.txt", "text");
    assert_eq!(next(&server)["method"], PROMPTS);
    // With a register its lists are the project's.
    let tools = r#"{"version": 1, "tools": [{"name": "only", "path": "a/a.sh"}]}"#;
    write(&directory, "server.d/register.json", tools);
    assert_eq!(next(&server)["method"], TOOLS);
    assert_eq!(listed(&mut server), ["only"]);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn irrelevant_changes_are_not_notified() {
    let directory = project(&[
        ("tools/a/a.sh", "echo one\n"),
        ("tools/a/a.meta.json", r#"{"name": "a", "description": "One"}"#),
        ("prompts/p.txt", "Hello\n"),
        ("data/d.txt", ""),
    ]);
    let mut server = serving(&directory, "");
    assert_eq!(until_marked(&directory, &server, "first"), Vec::<Value>::new());
    let metadata = fs::read(directory.path().join("tools/a/a.meta.json")).expect("read");
    // Touched, written again with the same content, replaced by a copy, and another program of the same tool.
    fs::write(directory.path().join("tools/a/a.meta.json"), &metadata).expect("written");
    fs::write(directory.path().join("tools/a/new"), &metadata).expect("written");
    fs::rename(directory.path().join("tools/a/new"), directory.path().join("tools/a/a.meta.json"))
        .expect("renamed");
    write(&directory, "tools/a/a.sh", "echo other\n");
    write(&directory, "data/d.txt", "more");
    write(&directory, "tools/a/notes.txt", "no tool");
    write(&directory, "tools/.hidden/x.sh", "echo hidden\n");
    assert_eq!(until_marked(&directory, &server, "second"), Vec::<Value>::new());
    assert_eq!(server.result("a", json!({}))["content"][0]["text"], "other\n");
    // Text of a prompt is in no list, and current all the same.
    write(&directory, "prompts/p.txt", "Goodbye\n");
    assert_eq!(until_marked(&directory, &server, "third"), Vec::<Value>::new());
    let id = server.request("prompts/get", json!({"name": "p"}));
    assert_eq!(server.answer(id)["result"]["messages"][0]["content"]["text"], "Goodbye\n");
}

#[test]
fn stateless_clients_get_the_notifications_they_chose() {
    let directory = project(&[("resources/r.txt", "one")]);
    let mut server = serving(&directory, "");
    let uri = "file://./resources/r.txt";
    let wanted =
        json!({"toolsListChanged": true, "resourceSubscriptions": [uri, "file:///etc/passwd"]});
    let params = json!({"notifications": wanted, "_meta": modern(json!({}))});
    let id = server.request(LISTEN, params);
    let acknowledged = next(&server);
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    let accepted = json!({"toolsListChanged": true, "resourceSubscriptions": [uri]});
    assert_eq!(acknowledged["params"]["notifications"], accepted, "{acknowledged}");
    // The session of the same connection gets list changes too: messages of the stream carry its number.
    let output = |path: &str, text: &str, method: &str| {
        write(&directory, path, text);
        let mut streamed = Value::Null;
        let end = Instant::now() + patience();
        while streamed.is_null() {
            let line = server.message(end);
            let of = line["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone();
            if line["method"] == method && !of.is_null() {
                assert_eq!(of, id, "{line}");
                streamed = line;
            }
        }
        streamed["params"]["uri"].clone()
    };
    assert_eq!(output("tools/b/b.sh", "echo\n", TOOLS), Value::Null);
    assert_eq!(output("resources/r.txt", "two", UPDATED), uri);
}

#[test]
fn changed_resources_notify_their_subscribers() {
    let directory = project(&[("resources/r.txt", "one"), ("data/in/d.txt", "one")]);
    write(&directory, "resources/said.txt.meta.json", r#"{"uri": "echo://said"}"#);
    write(&directory, "resources/said.txt", "");
    write(&directory, "resources/page.txt.meta.json", r#"{"uri": "https://example.org/"}"#);
    write(&directory, "resources/page.txt", "");
    write(
        &directory,
        "resources/all.meta.json",
        r#"{"uriTemplate": "file:///workspace/data/{path}"}"#,
    );
    let mut server = serving(&directory, "");
    let ask = |server: &mut Server, method: &str, uri: &str| {
        let id = server.request(method, json!({ "uri": uri }));
        let answer = server.answer(id);
        answer.get("error").map_or(Value::Null, |error| error["message"].clone())
    };
    let file = "file://./resources/r.txt";
    let data = "file:///workspace/data/in/d.txt";
    for uri in [file, data, "echo://said"] {
        assert_eq!(ask(&mut server, "resources/subscribe", uri), Value::Null, "{uri}");
    }
    let reason = "resources of the provider `https` are not watched";
    assert_eq!(ask(&mut server, "resources/subscribe", "https://example.org/"), reason);
    assert_ne!(ask(&mut server, "resources/subscribe", "file:///etc/passwd"), Value::Null);
    write(&directory, "resources/r.txt", "two");
    let line = next(&server);
    assert_eq!((&line["method"], &line["params"]["uri"]), (&json!(UPDATED), &json!(file)));
    // Same content, and another file in the same folder.
    write(&directory, "resources/r.txt", "two");
    write(&directory, "data/in/other.txt", "two");
    assert_eq!(until_marked(&directory, &server, "first"), Vec::<Value>::new());
    let changed = json!([UPDATED, data]);
    write(&directory, "data/in/d.txt", "two");
    assert_eq!(until_marked(&directory, &server, "second"), std::slice::from_ref(&changed));
    fs::remove_dir_all(directory.path().join("data")).expect("removed");
    assert_eq!(until_marked(&directory, &server, "third"), std::slice::from_ref(&changed));
    // The project comes back with its folders.
    write(&directory, "data/in/d.txt", "two");
    assert_eq!(until_marked(&directory, &server, "fourth"), [changed]);
    assert_eq!(ask(&mut server, "resources/unsubscribe", data), Value::Null);
    write(&directory, "data/in/d.txt", "three");
    assert_eq!(until_marked(&directory, &server, "fifth"), Vec::<Value>::new());
}

#[test]
fn a_subscription_has_an_id_that_ends_it() {
    let directory = project(&[("resources/r.txt", "one")]);
    let mut server = serving(&directory, "");
    let uri = "file://./resources/r.txt";
    let ask = |server: &mut Server, method: &str, params: Value| {
        let id = server.request(method, params);
        server.answer(id)["result"].clone()
    };
    let id = ask(&mut server, "resources/subscribe", json!({ "uri": uri }));
    assert_eq!(id, json!({ "subscriptionId": uri }));
    write(&directory, "resources/r.txt", "two");
    assert_eq!(next(&server)["method"], UPDATED);
    assert_eq!(ask(&mut server, "resources/unsubscribe", id), json!({}));
    write(&directory, "resources/r.txt", "three");
    assert_eq!(until_marked(&directory, &server, "first"), Vec::<Value>::new());
    let id = server.request("resources/unsubscribe", json!({"subscriptionId": "none"}));
    assert_ne!(server.answer(id)["error"], Value::Null);
}

#[test]
fn a_stream_subscribes_only_to_watched_files() {
    let directory = project(&[]);
    let uris: Vec<String> =
        (0..66).map(|number| format!("file://./resources/r{number:02}.txt")).collect();
    for uri in &uris {
        write(&directory, uri.trim_start_matches("file://./"), "");
    }
    let listen = |server: &mut Server, uris: &[String]| {
        let params =
            json!({"notifications": {"resourceSubscriptions": uris}, "_meta": modern(json!({}))});
        let id = server.request(LISTEN, params);
        loop {
            let line = next(server);
            if line["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == id {
                return (id, line["params"]["notifications"]["resourceSubscriptions"].clone());
            }
        }
    };
    let mut server = serving(&directory, "");
    let (first, accepted) = listen(&mut server, &uris);
    assert_eq!(accepted, json!(uris[..64]));
    // The last of them is watched, so the others are as well.
    write(&directory, "resources/r63.txt", "two");
    while next(&server)["params"]["uri"] != uris[63] {}
    let one_more = uris[64..65].to_vec();
    assert_eq!(listen(&mut server, &one_more).1, Value::Null);
    let cancelled = json!({"requestId": first});
    server
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}));
    let end = Instant::now() + patience();
    while listen(&mut server, &one_more).1 != json!(one_more) {
        assert!(Instant::now() < end, "its files are counted still");
    }
    write(&directory, "resources/r64.txt", "two");
    while next(&server)["params"]["uri"] != uris[64] {}
    // No notifications either if the operator disabled watching.
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--toolchains", "none", "--project"]).arg(directory.path());
    command.env("MCPBASH_RESOURCES_POLL_INTERVAL_SECS", "0");
    assert_eq!(listen(&mut Server::of(command), &uris).1, Value::Null);
}

#[test]
fn added_and_removed_providers_take_effect() {
    let directory = project(&[("resources/page.txt", "")]);
    write(&directory, "resources/page.txt.meta.json", r#"{"uri": "https://example.org/"}"#);
    let mut server = serving(&directory, "");
    let mut read = || {
        let id = server.request("resources/read", json!({"uri": "https://example.org/"}));
        server.answer(id)
    };
    // The server would fetch it, and has no host that it may.
    let refused = read()["error"].clone();
    assert_ne!(refused, Value::Null);
    let until = |read: &mut dyn FnMut() -> Value, is: &dyn Fn(&Value) -> bool| {
        let end = Instant::now() + patience();
        while !is(&read()) {
            assert!(Instant::now() < end, "it was not seen: {}", read());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    write(&directory, "providers/https.sh", "echo own\n");
    until(&mut read, &|answer| answer["result"]["contents"][0]["text"] == "own\n");
    fs::remove_file(directory.path().join("providers/https.sh")).expect("removed");
    until(&mut read, &|answer| answer["error"] == refused);
}

#[test]
fn one_client_hears_of_so_many_files() {
    let directory = project(&[]);
    for number in 0..65 {
        write(&directory, &format!("resources/r{number:02}.txt"), "");
    }
    let mut server = serving(&directory, "");
    let mut subscribe = |number: usize| {
        let uri = format!("file://./resources/r{number:02}.txt");
        let id = server.request("resources/subscribe", json!({ "uri": uri }));
        server.answer(id).get("error").is_none()
    };
    assert!((0..64).all(&mut subscribe));
    assert!(subscribe(0), "it is watched");
    assert!(!subscribe(64));
    let id = server.request("resources/unsubscribe", json!({"uri": "file://./resources/r07.txt"}));
    assert!(server.answer(id).get("error").is_none());
    let id = server.request("resources/subscribe", json!({"uri": "file://./resources/r64.txt"}));
    assert!(server.answer(id).get("error").is_none());
}

#[test]
fn a_broken_register_empties_the_lists() {
    let directory = project(&[("tools/a/a.sh", "echo one\n")]);
    let mut server = serving(&directory, "");
    assert_eq!(listed(&mut server), ["a", "t"]);
    write(&directory, "server.d/register.json", "{");
    let end = Instant::now() + patience();
    let error = loop {
        let id = server.request("tools/list", json!({}));
        let answer = server.answer(id);
        if let Some(error) = answer.get("error") {
            break error.clone();
        }
        assert!(Instant::now() < end, "the mistake was not seen");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(error["code"], -32603);
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("server.d/register.json:1:"), "{message}");
    let id = server.call("a", json!({}));
    assert_eq!(server.answer(id)["error"], error);
    fs::remove_file(directory.path().join("server.d/register.json")).expect("removed");
    write(&directory, "tools/b/b.sh", "echo two\n");
    assert_eq!(next(&server)["method"], TOOLS);
    assert_eq!(listed(&mut server), ["a", "b", "t"]);
}

#[test]
fn links_lead_a_watched_project_nowhere() {
    let directory = project(&[("resources/r.txt", "one")]);
    let outside = tempfile::tempdir().expect("a directory");
    fs::write(outside.path().join("x.sh"), "echo outside\n").expect("written");
    let mut server = serving(&directory, "");
    let mut subscribe = |name: &str| {
        let uri = format!("file://./resources/{name}");
        let id = server.request("resources/subscribe", json!({ "uri": uri }));
        server.answer(id).get("error").is_none()
    };
    assert!(subscribe("r.txt"));
    // A file becomes a link to a file outside, and a folder of tools a link to a folder there.
    fs::remove_file(directory.path().join("resources/r.txt")).expect("removed");
    symlink(outside.path().join("x.sh"), directory.path().join("resources/r.txt")).expect("linked");
    symlink(outside.path(), directory.path().join("tools/out")).expect("linked");
    let output = until_marked(&directory, &server, "first");
    // The resource has gone from the list, and from its place.
    assert!(output.contains(&json!([RESOURCES, null])), "{output:?}");
    assert!(output.contains(&json!([UPDATED, "file://./resources/r.txt"])), "{output:?}");
    assert_eq!(output.len(), 2, "{output:?}");
    assert_eq!(listed(&mut server), ["t"]);
    // Changes behind the links are ignored.
    fs::write(outside.path().join("x.sh"), "echo changed\n").expect("written");
    fs::write(outside.path().join("y.sh"), "echo new\n").expect("written");
    assert_eq!(until_marked(&directory, &server, "second"), Vec::<Value>::new());
    assert_eq!(listed(&mut server), ["t"]);
}

#[test]
fn a_storm_of_changes_ends_in_the_right_lists() {
    // With the project granted for writing, a script can change what is no list of tools.
    let storm = "for i in {1..40}; do for j in {1..200}; do : >resources/x$j; done; rm -f resources/x*; done\n\
                 echo last >resources/last.txt\n";
    let directory = project(&[
        ("tools/a/a.sh", "echo one\n"),
        ("tools/s/s.sh", storm),
        ("resources/r.txt", ""),
    ]);
    let mut server = serving(&directory, ":rw");
    let stormy = server.call("s", json!({}));
    let mut output = 0;
    let mut calls = 0;
    let end = Instant::now() + patience();
    let mut is_over = false;
    while !is_over {
        let call = server.call("a", json!({}));
        loop {
            let line = server.message(end);
            output += usize::from(line["method"] == RESOURCES);
            is_over |= line["id"] == stormy;
            if line["id"] == call {
                assert_eq!(line["result"]["content"][0]["text"], "one\n", "{line}");
                calls += 1;
                break;
            }
        }
    }
    assert!(calls > 0);
    // Each of 16,000 changes could have been one.
    assert!(output < 100, "{output} notifications");
    let has_last = |server: &mut Server| {
        let id = server.request("resources/list", json!({}));
        server.answer(id)["result"]["resources"].to_string().contains("\"last\"")
    };
    while !has_last(&mut server) {
        assert!(Instant::now() < end, "the lists are not current");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn removing_a_policy_refuses_calls() {
    let allow = "mcp_tools_policy_check() { return 0; }\n";
    let directory = project(&[("tools/a/a.sh", "echo one\n"), ("server.d/policy.sh", allow)]);
    let mut command = Command::new(PROGRAM);
    command
        .args(["serve", "--toolchains", "none", "--project-hooks", "--project"])
        .arg(directory.path());
    let mut server = Server::of(command);
    assert_eq!(server.result("a", json!({}))["content"][0]["text"], "one\n");
    fs::remove_file(directory.path().join("server.d/policy.sh")).expect("removed");
    assert_eq!(until_marked(&directory, &server, "first"), Vec::<Value>::new());
    let id = server.call("a", json!({}));
    assert_eq!(server.answer(id)["error"]["code"], -32602);
    fs::write(directory.path().join("server.d/policy.sh"), allow).expect("written");
    assert_eq!(until_marked(&directory, &server, "second"), Vec::<Value>::new());
    assert_eq!(server.result("a", json!({}))["content"][0]["text"], "one\n");
}

/// The process that watches for a server.
fn watcher(server: &Server) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", server.child.id());
    let children = fs::read_to_string(children).expect("its children");
    let is_it = |pid: &&str| {
        let name = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        name.starts_with(b"cofferdam-watcher\0")
    };
    let found: Vec<&str> = children.split_whitespace().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{children}");
    found.first().and_then(|pid| pid.parse().ok()).expect("a process")
}

/// A line of a file of /proc.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_default().trim().to_owned()
}

#[test]
fn the_watcher_ignores_unlisted_files() {
    let directory = project(&[("log.txt", "")]);
    let server = serving(&directory, "");
    write(&directory, "prompts/p.txt", "");
    assert_eq!(next(&server)["method"], PROMPTS);
    let pid = watcher(&server);
    // Times that it went to sleep: one that was taken off its processor is not counted.
    let slept = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        field(&status, "voluntary_ctxt_switches").parse::<u128>().expect("a number")
    };
    let begun = Instant::now();
    let before = slept();
    let mut changes = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        write(&directory, "log.txt", "more");
        changes += 1;
    }
    let looks = begun.elapsed().as_millis() / 50 + 1;
    let slept = slept() - before;
    assert!(slept > 0, "it looks at notices");
    assert!(slept <= 3 * looks, "it slept {slept} times in {changes} changes, {looks} looks");
    // Relevant changes are still seen.
    write(&directory, "prompts/q.txt", "");
    assert_eq!(next(&server)["method"], PROMPTS);
}

#[test]
fn notifications_are_limited_to_two_a_second() {
    let directory = project(&[]);
    let begun = Instant::now();
    let server = serving(&directory, "");
    let mut output = 0;
    let mut number = 0;
    while output < 6 {
        write(&directory, &format!("prompts/p{number}.txt"), "");
        number += 1;
        // Spaced out, so that each could cause a separate notification.
        std::thread::sleep(Duration::from_millis(150));
        output += server.lines.try_iter().filter(|line| line["method"] == PROMPTS).count();
        assert!(begun.elapsed() < patience(), "{output} of {number} were reported");
    }
    // From before the first: a busy machine makes it longer only.
    assert!(begun.elapsed() >= Duration::from_millis(500) * 5, "{:?}", begun.elapsed());
}

#[test]
fn the_watcher_has_no_privileges() {
    let directory = project(&[]);
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--toolchains", "none", "--project"]).arg(directory.path());
    command.env("SECRET", "hunter2-of-the-operator");
    let mut server = Server::of(command);
    // Wait for its first notification: it has started then.
    write(&directory, "prompts/p.txt", "");
    assert_eq!(next(&server)["method"], PROMPTS);
    let pid = watcher(&server);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let field = |name: &str| field(&status, name);
    for capabilities in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(capabilities), "0000000000000000", "{capabilities}");
    }
    let walls = ["NoNewPrivs", "Seccomp", "Threads"].map(field);
    assert_eq!(walls, ["1", "2", "1"]);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("a process");
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let both = line.unwrap_or_default().split_whitespace().take(2);
        both.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = [
        ("data size", "1073741824"),
        ("open files", "64"),
        ("file size", "0"),
        // core_dumps::LIMIT: the kernel starts no program for a crash.
        ("core file size", "1"),
    ];
    for (name, most) in expected {
        assert_eq!(limit(&format!("Max {name}")), [most, most], "{name}");
    }
    if nix::unistd::geteuid().is_root() {
        assert_eq!(field("CapBnd"), "0000000000000000");
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("root reads it");
        let has = |bytes: &[u8]| bytes.windows(7).any(|part| part == b"hunter2");
        assert!(!has(&environment), "{environment:?}");
        let own = fs::read(format!("/proc/{}/environ", server.child.id())).expect("root reads it");
        assert!(has(&own), "the control: it was there");
        let mut directory: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("root lists them")
            .flatten()
            .map(|entry| fs::read_link(entry.path()).unwrap_or_default().display().to_string())
            .map(|place| if place.starts_with("socket:") { "socket".to_owned() } else { place })
            .collect();
        directory.sort();
        let null = "/dev/null".to_owned();
        assert_eq!(directory.iter().filter(|place| **place == null).count(), 3, "{directory:?}");
        directory.retain(|place| *place != null);
        assert_eq!(directory.len(), 4, "link, pipe, directory, queue: {directory:?}");
    }
    // A stopped process stands for one that waits for a slow file: it cannot see the end of its link.
    let number = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid"));
    nix::sys::signal::kill(number, nix::sys::signal::Signal::SIGSTOP).expect("it runs");
    server.child.kill().expect("ours");
    let end = Instant::now() + patience();
    // A zombie has an empty command line, and is not our child.
    while fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|name| !name.is_empty()) {
        assert!(Instant::now() < end, "the watcher outlived its server");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_without_watcher_keeps_its_lists() {
    let directory = project(&[("tools/a/a.sh", "echo one\n"), ("resources/r.txt", "")]);
    let mut server = serving(&directory, "");
    write(&directory, "prompts/p.txt", "");
    assert_eq!(next(&server)["method"], PROMPTS);
    let pid = i32::try_from(watcher(&server)).expect("a process");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .expect("ours");
    assert_eq!(listed(&mut server), ["a", "t"]);
    assert_eq!(server.result("a", json!({}))["content"][0]["text"], "one\n");
    let end = Instant::now() + patience();
    let refused = loop {
        let uri = json!({"uri": "file://./resources/r.txt"});
        let id = server.request("resources/subscribe", uri.clone());
        if let Some(error) = server.answer(id).get("error") {
            break error["message"].clone();
        }
        let id = server.request("resources/unsubscribe", uri);
        server.answer(id);
        assert!(Instant::now() < end, "its end was not seen");
    };
    assert_eq!(refused, "this server does not see changes of the project's files");
}
