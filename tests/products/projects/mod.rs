//! Script projects over real pipes: a tool's arguments, result, errors and surroundings, as a client has them.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

mod author;
mod dialect;
mod examples;
mod hooks;
mod hostile;
mod layout;
mod lists;
mod live;
mod over_http;
mod pages;
mod transcript;
mod watched;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::server::{self, Server};

/// Copies the project in this directory, with modes that do not depend on the umask of a checkout.
fn copied(to: &Path) -> std::io::Result<()> {
    copied_of("basics", to)
}

fn copied_of(project: &str, to: &Path) -> std::io::Result<()> {
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/products/projects").join(project), to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let path = entry.path();
        let place = to.join(entry.file_name());
        if path.is_dir() {
            fs::create_dir_all(&place)?;
            fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
            copy(&path, &place)?;
        } else {
            fs::copy(&path, &place)?;
            let mode = if path.extension().is_some_and(|it| it == "sh") { 0o755 } else { 0o644 };
            fs::set_permissions(&place, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// Serves a copy of the project.
fn served(folder: &tempfile::TempDir, more: &[&str]) -> Server {
    copied(folder.path()).expect("a copy");
    let directory = folder.path().to_str().expect("UTF-8");
    Server::start(&[&["--project", directory], more].concat())
}

fn listed(server: &mut Server) -> Vec<String> {
    let id = server.request("tools/list", json!({}));
    let tools = server.answer(id)["result"]["tools"].clone();
    let names = tools.as_array().cloned().unwrap_or_default();
    names.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The error of a call.
fn error(server: &mut Server, tool: &str, arguments: Value) -> Value {
    let id = server.call(tool, arguments);
    server.answer(id)["error"].clone()
}

#[test]
fn project_tools_only_unless_groups_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let names =
        ["basics-echo", "basics-fail", "basics-json", "basics-look", "basics-sdk", "basics-slow"];
    assert_eq!(listed(&mut server), names);
    assert_eq!(error(&mut server, "bash", json!({"command": "true"}))["code"], -32602);
    assert_eq!(server.close(), Some(0));
    let directory = tempfile::tempdir().expect("a directory");
    let with_shell = listed(&mut served(&directory, &["--tools", "shell"]));
    assert!(with_shell.contains(&"bash".to_owned()), "{with_shell:?}");
    assert!(with_shell.contains(&"basics-echo".to_owned()), "{with_shell:?}");
}

#[test]
fn arguments_reach_a_script_without_a_shell() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    for value in ["plain", "'; touch /tmp/x; '", "$(id) `id` \\ \" \n\t\u{1}\u{e9}", ""] {
        let result = server.result("basics-echo", json!({ "value": value, "$(id)": "'" }));
        // A reply shows a control character by its picture.
        let shown = value.replace('\u{1}', "\u{2401}");
        assert_eq!(result["structuredContent"]["value"], shown, "{result}");
        assert_eq!(result["isError"], false);
        assert_eq!(result["_meta"]["exitCode"], 0);
    }
    // Longer than any variable may be.
    let long = "x".repeat(300_000);
    let result = server.result("basics-echo", json!({ "value": long }));
    assert_eq!(result["structuredContent"]["value"], long);
}

#[test]
fn a_failure_is_the_error_that_the_script_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let reported = error(&mut server, "basics-fail", json!({"how": "fail"}));
    assert_eq!(reported, json!({"code": -32602, "message": "not \"this\"", "data": {"n": 1}}));
    let plain = error(&mut server, "basics-fail", json!({"how": "exit"}));
    assert_eq!((&plain["code"], &plain["message"]), (&json!(-32603), &json!("said on stderr")));
    assert_eq!(plain["data"]["exitCode"], 3);
    let result = server.result("basics-slow", json!({}));
    assert_eq!(result["content"][0]["text"], "Tool timed out after 1s\n\nSuggestion: Do less");
    assert_eq!((&result["isError"], &result["_meta"]["exitCode"]), (&json!(true), &json!(124)));
}

#[test]
fn a_script_has_a_jq_whether_the_host_has_one_or_not() {
    let directory = tempfile::tempdir().expect("a directory");
    has_its_jq(&mut served(&directory, &[]));
}

#[test]
fn scripts_have_jq_even_if_the_binary_is_private() {
    let closed = tempfile::tempdir().expect("a directory of mode 0700");
    let program = closed.path().join("cofferdam");
    // Not by fs::copy: a file that this process has open for writing when another thread forks cannot be executed.
    let copied = Command::new("cp").args([server::PROGRAM.as_ref(), program.as_os_str()]).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let directory = tempfile::tempdir().expect("a directory");
    self::copied(directory.path()).expect("a copy");
    let mut command = Command::new(program);
    command.args(["serve", "--project"]).arg(directory.path());
    has_its_jq(&mut Server::of(command));
}

fn has_its_jq(server: &mut Server) {
    let seen = server.result("basics-json", json!({}))["structuredContent"].clone();
    let own = "/etc/cofferdam/bin/jq";
    let version = "jq-1.7-cofferdam";
    let expected =
        json!({"own": own, "alone": own, "written": "no", "version": version, "half": "1.5"});
    assert_eq!(seen, expected);
}

#[test]
fn a_script_sees_only_its_project_read_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let seen = server.result("basics-look", json!({}))["structuredContent"].clone();
    let expected = json!({
        "cwd": "/workspace", "name": "basics-look", "root": "/workspace",
        "sees": "yes", "writes": "no", "secret": "", "stdin": "",
    });
    assert_eq!(seen, expected);
    assert!(!directory.path().join("written").exists());
    let directory = tempfile::tempdir().expect("a directory");
    copied(directory.path()).expect("a copy");
    let writable = format!("{}:rw", directory.path().display());
    let mut server = Server::start(&["--project", &writable]);
    assert_eq!(server.result("basics-look", json!({}))["structuredContent"]["writes"], "yes");
    assert!(directory.path().join("written").exists());
}

#[test]
fn metadata_can_only_reduce_a_tools_grants() {
    let folder = tempfile::tempdir().expect("a directory");
    copied(folder.path()).expect("a copy");
    let metadata = |meta: Value| {
        let text = json!({"name": "basics-look", "description": "Looks", "_meta": meta});
        fs::write(folder.path().join("tools/look/tool.meta.json"), text.to_string())
            .expect("written");
    };
    let directory = folder.path().to_str().expect("UTF-8");
    let writable = format!("{directory}:rw");
    let writes = |server: &mut Server| {
        server.result("basics-look", json!({}))["structuredContent"]["writes"].clone()
    };
    metadata(json!({"cofferdam/workspace": "ro"}));
    assert_eq!(writes(&mut Server::start(&["--project", &writable])), "no");
    assert!(!folder.path().join("written").exists());
    metadata(json!({"cofferdam/workspace": "rw"}));
    assert_eq!(writes(&mut Server::start(&["--project", directory])), "no");
    assert_eq!(writes(&mut Server::start(&["--project", &writable])), "yes");
    metadata(json!({"cofferdam/egress": ["api.example.org:443"]}));
    let result = Server::start(&["--project", directory]).result("basics-look", json!({}));
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    let reason = "profile `bash` leaves no call the egress `api.example.org:443`";
    assert!(result["isError"] == true && text.contains(reason), "{result}");
}

#[test]
fn a_failed_write_says_who_can_grant_it() {
    let folder = tempfile::tempdir().expect("a directory");
    copied(folder.path()).expect("a copy");
    let directory = folder.path().to_str().expect("UTF-8");
    let writable = format!("{directory}:rw");
    let write = |path: &str, text: &str, mode: u32| {
        let path = folder.path().join("tools/look").join(path);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
    };
    let metadata = |meta: Value| {
        let text = json!({"name": "basics-look", "description": "Looks", "_meta": meta});
        write("tool.meta.json", &text.to_string(), 0o644);
    };
    let project = "the project is read-only for its scripts, which can write to /tmp; the operator grants it for \
                   writing with `--project DIR:rw`";
    let tool = "the tool's metadata asks for reading only (`cofferdam/workspace`), so it can write to /tmp alone";
    let scripts = "scripts, metadata and settings of the project are read-only for scripts (`tools`, `server.d`, \
                   `config` and others); its other folders and /tmp are not";
    let command = "echo x >resources/new || exit";
    for (asked, meta, command, hint) in [
        (directory, json!({}), command, project),
        (directory, json!({}), "echo x >>resources/note.txt || exit", project),
        (directory, json!({}), "mkdir new || exit", project),
        (directory, json!({}), "rm resources/note.txt || exit", project),
        (directory, json!({}), "mv resources/note.txt new || exit", project),
        (&writable, json!({"cofferdam/workspace": "ro"}), command, tool),
        (&writable, json!({}), "echo x >tools/look/tool.sh || exit", scripts),
    ] {
        metadata(meta);
        write("tool.sh", &format!("#!/bin/bash\n{command}\n"), 0o755);
        let failed = error(&mut Server::start(&["--project", asked]), "basics-look", json!({}));
        let message = failed["message"].as_str().unwrap_or_default();
        assert!(message.contains("Read-only file system\nhint: "), "{command}: {message}");
        assert!(message.ends_with(&format!("\nhint: {hint}")), "{command}: {message}");
    }
    // A result that says itself that it failed has the reason as well.
    let own = "echo x >new\necho '{\"content\": [], \"isError\": true}'\n";
    write("tool.sh", &format!("#!/bin/bash\n{own}"), 0o755);
    metadata(json!({}));
    let result = Server::start(&["--project", directory]).result("basics-look", json!({}));
    let expected = json!([{"type": "text", "text": format!("hint: {project}")}]);
    assert_eq!(result["content"], expected, "{result}");
    // Neither a write that is granted nor another failure has it.
    write("tool.sh", "#!/bin/bash\necho x >new && cat none\n", 0o755);
    let failed = error(&mut Server::start(&["--project", &writable]), "basics-look", json!({}));
    assert_eq!(failed["message"], "cat: none: No such file or directory");
}

#[test]
fn a_projects_policy_file_refuses_every_call() {
    let directory = tempfile::tempdir().expect("a directory");
    copied(directory.path()).expect("a copy");
    fs::write(directory.path().join("server.d/policy.sh"), "exit 0\n").expect("written");
    let mut server = Server::start(&["--project", directory.path().to_str().expect("UTF-8")]);
    let refused = error(&mut server, "basics-echo", json!({"value": "x"}));
    assert_eq!(refused["code"], -32602);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("server.d/policy.sh"), "{message}");
}

#[test]
fn validate_lists_a_project_and_its_mistakes() {
    let directory = tempfile::tempdir().expect("a directory");
    copied(directory.path()).expect("a copy");
    let validated = || {
        let mut command = std::process::Command::new(server::PROGRAM);
        let output =
            command.args(["project", "validate"]).arg(directory.path()).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = validated();
    assert_eq!((code, text.contains("tool basics-echo")), (Some(0), true), "{text}");
    fs::write(directory.path().join("tools/echo/tool.meta.json"), "{").expect("written");
    let (code, text) = validated();
    assert_eq!((code, text.contains("tool basics-echo")), (Some(1), false), "{text}");
    assert!(text.contains("tools/echo/tool.meta.json:1:1: not valid JSON"), "{text}");
}

#[test]
fn a_prompt_is_listed_and_rendered() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let id = server.request("prompts/list", json!({}));
    let arguments = json!([{"name": "name", "description": "Who is greeted", "required": true}]);
    let expected = json!([{"name": "greeting", "description": "Greets", "arguments": arguments}]);
    assert_eq!(server.answer(id)["result"]["prompts"], expected);
    let get = |name: &str, arguments: Value| json!({"name": name, "arguments": arguments});
    let id = server.request("prompts/get", get("greeting", json!({"name": "Ada"})));
    let message = json!([{"role": "user", "content": {"type": "text", "text": "Hello, Ada!\n"}}]);
    assert_eq!(server.answer(id)["result"]["messages"], message);
    for refused in [get("greeting", json!({})), get("none", json!({}))] {
        let id = server.request("prompts/get", refused);
        assert_eq!(server.answer(id)["error"]["code"], -32602);
    }
}

#[test]
fn the_sdk_runs_programs_and_returns_long_results() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let ratios = "{\"progress\":25,\"message\":\"1/4\"}\n{\"progress\":90,\"message\":\"9/10\"}";
    let no_path = json!({"type": "path_not_found", "message": "there is no .b"});
    let no_syntax = json!({
        "type": "invalid_path_syntax", "message": "--array-path is .key or .key.nested",
    });
    for (of, expected) in [
        ("retry", json!([3, 2])),
        (
            "progress",
            json!(["printed", "4", "said", ratios, "{\"progress\":25,\"message\":\"us=50\"}"]),
        ),
        ("config", json!(["9", "8", "false", "3", "f", "1"])),
        (
            "truncate",
            json!([
                {"result": [11111, 22222], "truncated": true, "kept": 2, "total": 3},
                {"result": {"a": {"b": [1]}}, "truncated": true, "kept": 1, "total": 3},
                {"result": null, "truncated": false, "error": no_path},
                {"result": null, "truncated": false, "error": no_syntax},
            ]),
        ),
        ("errors", json!(["one", "two", "said", "The command ended with exit code 3"])),
        ("elicit", json!([{"action": "decline", "content": null}, 0])),
    ] {
        let result = server.result("basics-sdk", json!({ "of": of }));
        assert_eq!(script_output(&result), expected, "{of}: {result}");
    }
    let arguments = json!({
        "of": "arguments", "text": "'$(id)' \\n \\101 \"\t%s", "lines": "a\nb\n\n", "number": 7, "float": 1.5,
        "none": null, "list": [1, {"a": "b"}], "text x": "no", "n": "\ntext forged",
    });
    let result = server.result("basics-sdk", arguments);
    let expected = json!({"same": "yes", "other": "9", "number": "7"});
    assert_eq!(result["structuredContent"]["result"], expected, "{result}");
    let result = server.result("basics-sdk", json!({"of": "json"}));
    let valid = "yes yes yes no no no no no no no";
    assert_eq!(result["content"][0]["text"], valid, "{result}");
    let answer = script_output(&server.result("basics-sdk", json!({"of": "download"})));
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(answer["error"]["type"], "host_blocked", "{answer}");
    assert!(message.contains("[project] hosts = [\"example.com:443\"]"), "{message}");
    let failed = error(&mut server, "basics-sdk", json!({"of": "download-or-fail"}));
    let message = "Download failed (invalid_url): the address does not begin with https://";
    assert_eq!(failed, json!({"code": -32602, "message": message}));
}

/// Output of a script, which is JSON.
fn script_output(result: &Value) -> Value {
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_default()
}

#[test]
fn files_named_by_a_script_are_in_its_result() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let mut embedded = |of: &str| {
        let result = server.result("basics-sdk", json!({ "of": of }));
        assert_eq!(result["isError"], false, "{result}");
        let blocks = result["content"].as_array().cloned().unwrap_or_default();
        let resources = blocks.iter().skip(1).map(|block| {
            assert_eq!(block["type"], "resource", "{block}");
            block["resource"].clone()
        });
        (resources.collect::<Vec<_>>(), result["_meta"]["stderr"].clone())
    };
    let (resources, text) = embedded("embed");
    let markdown = json!({
        "uri": "file:///tmp/a \"\\n\nb", "mimeType": "text/markdown", "text": "said\n",
    });
    let raw = json!({"uri": "own:raw", "mimeType": "application/octet-stream", "blob": "YQBi"});
    let script = include_str!("basics/completions/broken.sh");
    let script = json!({
        "uri": "file:///workspace/completions/broken.sh", "mimeType": "text/plain", "text": script,
    });
    assert_eq!(resources, [markdown, raw, script]);
    assert_eq!(text, "/tmp/none is not embedded: there is no such file\n");
    let note = json!({"uri": "own:note", "mimeType": "text/x", "text": "A note\n"});
    let host = json!({
        "uri": "file:///etc/hostname", "mimeType": "text/plain", "text": "cofferdam\n",
    });
    assert_eq!(embedded("embed-lines").0, [note, host]);
    let (resources, text) = embedded("embed-long");
    assert_eq!(resources, Vec::<Value>::new());
    assert_eq!(text, "/tmp/long is not embedded: all such files have 512 KiB\n");
}

#[test]
fn messages_respect_the_level_and_precede_the_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let line = |server: &Server| {
        server.lines.recv_timeout(server::patience::patience()).expect("a line in time")
    };
    let text = json!({"level": "info", "logger": "one", "data": "\u{e9} \"x\"\n"});
    let fields = json!({"level": "notice", "data": {"a": 1}});
    let failed = json!({"code": -32602, "message": "\u{e9}"});
    for (level, heard) in
        [(None, vec![&text, &fields]), (Some("notice"), vec![&fields]), (Some("error"), vec![])]
    {
        if let Some(level) = level {
            let id = server.request("logging/setLevel", json!({ "level": level }));
            assert_eq!(line(&server)["id"], id);
        }
        let id = server.call("basics-sdk", json!({"of": "log"}));
        for message in heard {
            assert_eq!(&line(&server)["params"], message, "{level:?}");
        }
        let last = line(&server);
        assert_eq!((&last["id"], &last["error"]), (&json!(id), &failed), "{level:?}");
    }
}

/// The content of a resource, or the error of its reading.
fn read(server: &mut Server, uri: &str) -> Value {
    let id = server.request("resources/read", json!({ "uri": uri }));
    let answer = server.answer(id);
    match answer.get("error") {
        Some(error) => json!([error["code"], error["message"]]),
        None => answer["result"]["contents"].clone(),
    }
}

#[test]
fn resources_are_listed_and_read_by_their_providers() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let id = server.request("resources/list", json!({}));
    let note = json!({
        "name": "note", "description": "A note", "uri": "file://./resources/note.txt",
        "mimeType": "text/plain", "annotations": {"audience": ["user"]},
    });
    let resources = server.answer(id)["result"]["resources"].clone();
    assert_eq!(resources.as_array().map(Vec::len), Some(5), "{resources}");
    assert_eq!(resources[0], note);
    let id = server.request("resources/templates/list", json!({}));
    let template = json!([{
        "name": "files", "title": "Files", "uriTemplate": "file:///{path}", "mimeType": "text/plain",
    }]);
    assert_eq!(server.answer(id)["result"]["resourceTemplates"], template);
    let text =
        |uri: &str, text: &str| json!([{"uri": uri, "mimeType": "text/plain", "text": text}]);
    let file = "file://./resources/note.txt";
    assert_eq!(read(&mut server, file), text(file, "A note\n"));
    assert_eq!(read(&mut server, "note"), text(file, "A note\n"));
    let encoded = "file:///workspace/resources/n%6Fte.txt";
    assert_eq!(read(&mut server, encoded), text(encoded, "A note\n"));
    assert_eq!(read(&mut server, "said"), text("echo://as it is", "as it is"));
    assert_eq!(read(&mut server, "upper"), text("upper://word", "WORD"));
    let raw = "file://./resources/raw.bin";
    let kind = "application/octet-stream";
    assert_eq!(read(&mut server, raw), json!([{"uri": raw, "mimeType": kind, "blob": "YQBi"}]));
    let reason = "Resource is not granted: no rule lets a project reach example.com:443; the operator can grant it: \
               [project] hosts = [\"example.com:443\"]";
    assert_eq!(read(&mut server, "page"), json!([-32602, reason]));
    assert_eq!(read(&mut server, "none")[0], -32002);
    // The revision without sessions.
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let id = server.request("resources/read", json!({"uri": file, "_meta": meta}));
    assert_eq!(server.answer(id)["result"]["contents"], text(file, "A note\n"));
}

#[test]
fn a_resource_never_leads_out_of_the_project() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let link = |from: &str, to: &str| {
        std::os::unix::fs::symlink(to, directory.path().join("resources").join(from))
            .expect("linked");
    };
    link("file", "/etc/passwd");
    link("near", "note.txt");
    link("folder", "/etc");
    fs::write(directory.path().join("resources/plain\n"), "plain").expect("written");
    let outside = json!([-32603, "Resource outside allowed roots"]);
    let resource = |name: &str| format!("file:///workspace/resources/{name}");
    for uri in [
        "file:///etc/passwd".to_owned(),
        "file:///workspace/../etc/passwd".to_owned(),
        resource("%2e%2e/%2e%2e/etc/passwd"),
        resource("file"),
        resource("near"),
        resource("folder/passwd"),
    ] {
        assert_eq!(read(&mut server, &uri), outside, "{uri}");
    }
    assert_eq!(read(&mut server, &resource("plain%0A"))[0]["text"], "plain");
    assert_eq!(read(&mut server, &resource("plain"))[0], -32002);
    assert_eq!(read(&mut server, &resource(""))[0], -32002);
    for uri in [resource("%00"), resource("%zz"), resource("a%")] {
        assert_eq!(read(&mut server, &uri)[0], -32602, "{uri}");
    }
    // A shell would run this.
    assert_eq!(read(&mut server, &resource("$(id)`id`';id"))[0], -32002);
}

#[test]
fn arguments_are_completed_by_the_projects_scripts() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let mut complete = |of: Value, value: &str| {
        let argument = json!({"name": "name", "value": value});
        let context = json!({"arguments": {"other": "$(id)"}});
        let params = json!({"ref": of, "argument": argument, "context": context});
        let id = server.request("completion/complete", params);
        let answer = server.answer(id);
        match answer.get("error") {
            Some(error) => error.clone(),
            None => answer["result"]["completion"].clone(),
        }
    };
    let prompt = |name: &str| json!({"type": "ref/prompt", "name": name});
    let resource = |uri: &str| json!({"type": "ref/resource", "uri": uri});
    let values = json!(["'; id \"", "name", "$(id)"]);
    let given = json!({"values": values, "total": 3, "hasMore": false});
    assert_eq!(complete(prompt("greeting"), "'; id \""), given);
    let more = json!({"values": ["resources/raw.bin", "resources/raw.meta.json"], "hasMore": true});
    assert_eq!(complete(resource("file:///{path}"), "raw"), more);
    let nothing = complete(resource("file://./resources/note.txt"), "x");
    assert_eq!(nothing, json!({"values": []}));
    let failed = json!({"code": -32603, "message": "Completion failed", "data": "said on stderr"});
    assert_eq!(complete(prompt("broken"), "x"), failed);
    for unknown in [prompt("none"), resource("file://./none")] {
        assert_eq!(complete(unknown, "x")["code"], -32602);
    }
}

#[test]
fn a_completion_outside_the_project_stops_the_server() {
    let directory = tempfile::tempdir().expect("a directory");
    copied(directory.path()).expect("a copy");
    let script = directory.path().join("completions/files.sh");
    fs::remove_file(&script).expect("removed");
    std::os::unix::fs::symlink("/bin/true", &script).expect("linked");
    let mut command = std::process::Command::new(server::PROGRAM);
    let output =
        command.args(["serve", "--project"]).arg(directory.path()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("completions/files.sh: is a symbolic link"), "{text}");
}
