//! Folders of a project that the operator names: `MCPBASH_TOOLS_DIR` and its like.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{listed, server};
use crate::server::Server;
use crate::server::patience::patience;

/// Names of the folders.
const FOLDERS: [(&str, &str); 6] = [
    ("MCPBASH_TOOLS_DIR", "mcp/tools"),
    ("MCPBASH_PROMPTS_DIR", "mcp/prompts"),
    ("MCPBASH_RESOURCES_DIR", "data"),
    ("MCPBASH_PROVIDERS_DIR", "readers"),
    ("MCPBASH_UI_DIR", "pages"),
    ("MCPBASH_SERVER_DIR", "settings"),
];
/// Files of the project, with some in the usual folders, which do not belong to it.
const FILES: [(&str, &str); 10] = [
    ("mcp/tools/t/tool.sh", TOOL),
    ("mcp/prompts/p.txt", "Hello, {{name}}!"),
    ("data/note.txt", "A note\n"),
    ("data/up.txt", "# mcp: {\"name\": \"up\", \"uri\": \"upper://word\"}\n"),
    ("readers/upper.sh", "printf %s \"${1#upper://}\" | tr a-z A-Z\n"),
    ("pages/board/index.html", "<p>board</p>"),
    ("settings/server.meta.json", "{\"name\": \"moved\", \"version\": \"2.0.0\"}"),
    ("settings/env.sh", "export FROM_HOOK=\"$MCPBASH_SERVER_DIR\"\n"),
    ("tools/other/tool.sh", "# mcp: {\"name\": \"other\"}\n"),
    ("server.d/policy.sh", "exit 1\n"),
];
const TOOL: &str = "# mcp: {\"name\": \"t\"}\n\
    echo \"$MCP_TOOL_PATH $MCPBASH_TOOLS_DIR $MCPBASH_RESOURCES_DIR $MCPBASH_PROMPTS_DIR ${FROM_HOOK:-}\"\n";

fn write(directory: &Path, path: &str, text: &str) {
    let target = directory.join(path);
    let missing = target.ancestors().skip(1).take_while(|folder| !folder.exists());
    for folder in missing.collect::<Vec<_>>().into_iter().rev() {
        fs::create_dir(folder).expect("made");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    fs::write(&target, text).expect("written");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).expect("a mode");
}

fn project() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    for (path, text) in FILES {
        write(directory.path(), path, text);
    }
    directory
}

/// Serves the project with its folders' names, relative or absolute.
fn served(directory: &tempfile::TempDir, more: &str, words: &[&str]) -> Server {
    let mut command = Command::new(server::PROGRAM);
    let place = format!("{}{more}", directory.path().display());
    command.args(["serve", "--toolchains", "none", "--project", &place]).args(words);
    for (number, (variable, folder)) in FOLDERS.into_iter().enumerate() {
        let absolute = directory.path().join(folder);
        let value = if number % 2 == 0 { absolute.into_os_string() } else { folder.into() };
        command.env(variable, value);
    }
    Server::of(command)
}

fn answer(server: &mut Server, method: &str, params: Value) -> Value {
    let id = server.request(method, params);
    let answer = server.answer(id);
    answer.get("error").unwrap_or(&answer["result"]).clone()
}

/// The error of a call of the tool.
fn refusal(server: &mut Server) -> Value {
    let id = server.call("t", json!({}));
    server.answer(id)["error"].clone()
}

#[test]
fn each_folder_is_used_by_the_name_that_it_is_given() {
    let directory = project();
    let mut server = served(&directory, "", &["--project-hooks"]);
    assert_eq!(listed(&mut server), ["t"], "the usual folder has no tools here");
    let said = "/workspace/mcp/tools/t/tool.sh /workspace/mcp/tools /workspace/data \
                /workspace/mcp/prompts /workspace/settings\n";
    assert_eq!(server.result("t", json!({}))["content"][0]["text"], said);
    let prompt = json!({"name": "p", "arguments": {"name": "Ada"}});
    assert_eq!(answer(&mut server, "prompts/get", prompt)["text"], "Hello, Ada!");
    for (name, uri, text) in [
        ("note", "file://./data/note.txt", "A note\n"),
        ("up", "upper://word", "WORD"),
        ("board", "ui://moved/board", "<p>board</p>"),
    ] {
        let read = answer(&mut server, "resources/read", json!({"name": name}));
        let contents = &read["contents"][0];
        assert_eq!((&contents["uri"], &contents["text"]), (&json!(uri), &json!(text)), "{read}");
    }
    // The hook that decides about calls is found by the folder's name too.
    write(directory.path(), "settings/policy.sh", "mcp_tools_policy_check() { return 1; }\n");
    let mut server = served(&directory, "", &["--project-hooks"]);
    assert_eq!(refusal(&mut server)["code"], -32602);
    let mut server = served(&directory, "", &[]);
    let refused = refusal(&mut server);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("policy.sh"), "{message}");
}

#[test]
fn a_change_in_a_named_folder_is_seen() {
    let directory = project();
    fs::rename(directory.path().join("mcp"), directory.path().join("later")).expect("moved");
    let mut server = served(&directory, "", &[]);
    assert_eq!(listed(&mut server), Vec::<String>::new());
    let changed = |server: &mut Server, expected: &[&str]| {
        let end = Instant::now() + patience();
        while listed(server) != expected {
            assert!(Instant::now() < end, "{expected:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    fs::rename(directory.path().join("later"), directory.path().join("mcp")).expect("moved");
    changed(&mut server, &["t"]);
    write(directory.path(), "mcp/tools/u/tool.sh", "# mcp: {\"name\": \"u\"}\n");
    changed(&mut server, &["t", "u"]);
    fs::remove_dir_all(directory.path().join("mcp/tools")).expect("removed");
    changed(&mut server, &[]);
    write(directory.path(), "mcp/tools/v/tool.sh", "# mcp: {\"name\": \"v\"}\n");
    changed(&mut server, &["v"]);
}

#[test]
fn scripts_that_may_write_change_no_named_folder_with_scripts() {
    let directory = project();
    let tries = "# mcp: {\"name\": \"t\"}\n\
        try() { \"$@\" 2>&1 && echo done: \"$*\"; }\n\
        add() { echo x >>\"$1\"; }\n\
        for file in mcp/tools/t/tool.sh mcp/prompts/p.txt mcp/new readers/upper.sh pages/board/index.html \
            settings/env.sh completions/x lib/x config/x; do try add $file; done\n\
        for folder in mcp mcp/tools readers settings; do try mv $folder gone; try rm -rf $folder; done\n\
        for file in tools/other/tool.sh server.d/env.sh ui/x; do try add $file; done\n\
        for file in data/new.txt free; do try add $file; done\n";
    write(directory.path(), "mcp/tools/t/tool.sh", tries);
    let mut server = served(&directory, ":rw", &[]);
    let result = server.result("t", json!({}));
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    let done: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("done: ")).collect();
    // The usual folders stay as they are too: a start without the variables obeys them.
    assert_eq!(done, ["add data/new.txt", "add free"], "{text}");
    assert!(text.contains("mv: cannot move 'mcp' to 'gone': Device or resource busy"), "{text}");
    assert!(text.contains("mcp/tools/t/tool.sh: Read-only file system"), "{text}");
    let now = fs::read_to_string(directory.path().join("mcp/tools/t/tool.sh")).expect("there");
    assert_eq!(now, tries);
    for folder in ["mcp", "readers", "settings", "pages"] {
        assert!(directory.path().join(folder).is_dir(), "{folder}");
    }
}

#[test]
fn a_folder_outside_of_the_project_prevents_the_start() {
    let directory = project();
    let outside = tempfile::tempdir().expect("a directory");
    write(outside.path(), "t/tool.sh", TOOL);
    std::os::unix::fs::symlink(outside.path(), directory.path().join("link")).expect("a link");
    let outside = outside.path().display().to_string();
    for (variable, value) in [
        ("MCPBASH_TOOLS_DIR", outside.as_str()),
        ("MCPBASH_RESOURCES_DIR", "link"),
        ("MCPBASH_PROMPTS_DIR", ".."),
        ("MCPBASH_PROVIDERS_DIR", "."),
        ("MCPBASH_UI_DIR", "/etc"),
        ("MCPBASH_SERVER_DIR", "a\nb"),
    ] {
        for words in [&["serve", "--project"][..], &["project", "validate"]] {
            let mut command = Command::new(server::PROGRAM);
            command.args(words).arg(directory.path()).env(variable, value);
            let output = command.output().expect("it runs");
            let text = String::from_utf8_lossy(&output.stderr);
            let shown = value.escape_default();
            let expected = format!("{variable}: `{shown}` is no folder within the project");
            assert_eq!(output.status.code(), Some(125), "{variable}: {text}");
            assert!(text.contains(&expected), "{variable}: {text}");
        }
    }
    // One that becomes a link later leads nowhere.
    let mut server = served(&directory, "", &[]);
    assert_eq!(listed(&mut server), ["t"]);
    fs::remove_dir_all(directory.path().join("mcp")).expect("removed");
    std::os::unix::fs::symlink(&outside, directory.path().join("mcp")).expect("a link");
    let end = Instant::now() + patience();
    while !listed(&mut server).is_empty() {
        assert!(Instant::now() < end, "the tools of another folder are listed");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_authors_commands_use_the_named_folders() {
    let directory = project();
    let run = |words: &[&str], place: &[&str]| {
        let mut command = Command::new(server::PROGRAM);
        command.arg("project").args(words).args(place).arg(directory.path()).envs(FOLDERS);
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (text, output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (kind, made) in [
        ("tool", "made mcp/tools/new/tool.sh, mcp/tools/new/tool.meta.json\n"),
        ("prompt", "made mcp/prompts/new.txt, mcp/prompts/new.meta.json\n"),
        ("resource", "made data/new.txt, data/new.meta.json\n"),
        ("ui", "made mcp/tools/new/ui/index.html, mcp/tools/new/ui/ui.meta.json\n"),
    ] {
        let (text, code, error) = run(&["scaffold", kind, "new"], &["--dir"]);
        assert_eq!((text.as_str(), code), (made, Some(0)), "{error}");
    }
    let (text, code, error) = run(&["validate"], &[]);
    assert_eq!(code, Some(0), "{text}{error}");
    for entry in ["moved 2.0.0", "tool new", "tool t", "prompt new", "resource note"] {
        assert!(text.contains(entry), "{entry}: {text}");
    }
    assert!(!text.contains("tool other"), "{text}");
    let (text, code, error) = run(&["run-tool", "new"], &["--dir"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(text.contains("Hello, World!"), "{text}");
    fs::set_permissions(
        directory.path().join("mcp/tools/t/tool.sh"),
        fs::Permissions::from_mode(0o666),
    )
    .expect("a mode");
    let (text, code, _) = run(&["validate", "--fix"], &[]);
    assert!(code == Some(0) && text.contains("fixed mcp/tools/t/tool.sh: mode 644"), "{text}");
}
