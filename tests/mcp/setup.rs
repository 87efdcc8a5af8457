//! `cofferdam setup`: what it writes into the files of clients, and what it leaves alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

type Failed = Box<dyn std::error::Error>;

/// The pages with recipes for clients.
const PAGES: [&str; 2] = [include_str!("../../README.md"), include_str!("../../docs/install.md")];
/// Each client, its file in a project, and the key of its servers.
const CLIENTS: [(&str, &str, &str); 6] = [
    ("claude-code", ".mcp.json", "mcpServers"),
    ("codex", ".codex/config.toml", "mcp_servers"),
    ("cursor", ".cursor/mcp.json", "mcpServers"),
    ("vscode", ".vscode/mcp.json", "servers"),
    ("gemini", ".gemini/settings.json", "mcpServers"),
    ("opencode", "opencode.json", "mcp"),
];

fn setup(project: &Path, arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .arg("setup")
        .args(arguments)
        .current_dir(project)
        .env("HOME", project.join("home"))
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null())
        .output()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Reads a client's file as a value, whatever its language is.
fn value(path: &Path) -> Result<serde_json::Value, Failed> {
    let text = fs::read_to_string(path)?;
    Ok(match path.extension().is_some_and(|end| end == "toml") {
        true => toml::from_str(&text)?,
        false => serde_json::from_str(&text)?,
    })
}

#[test]
fn setup_writes_an_entry_for_each_client() -> Result<(), Failed> {
    for (client, file, servers) in CLIENTS {
        let project = tempfile::tempdir()?;
        let real = project.path().canonicalize()?;
        let done = setup(project.path(), &[client, "--yes"])?;
        assert!(done.status.success(), "{client}: {}", errors(&done));
        let output = value(&project.path().join(file))?;
        let at = |member: &str| output.pointer(&format!("/{servers}/cofferdam/{member}"));
        let words = [at("command"), at("args")].into_iter().flatten();
        let words = words.flat_map(|word| match word.as_array() {
            Some(list) => list.clone(),
            None => vec![word.clone()],
        });
        let words: Vec<String> =
            words.filter_map(|word| word.as_str().map(str::to_owned)).collect();
        let expected = [
            env!("CARGO_BIN_EXE_cofferdam"),
            "serve",
            "--workspace",
            real.to_str().ok_or("no UTF-8")?,
        ];
        assert_eq!(words, expected, "{client}");
        assert!(out(&done).contains("shell") || out(&done).contains("terminal"), "{client}");
        let again = setup(project.path(), &[client, "--yes"])?;
        assert!(out(&again).contains("has it already"), "{client}: {}", out(&again));
    }
    Ok(())
}

#[test]
fn unknown_keys_of_an_entry_need_confirmation() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let project = directory.path().canonicalize()?;
    let file = project.join(".mcp.json");
    let planted =
        r#"{"mcpServers": {"cofferdam": {"command": "x", "env": {"LD_PRELOAD": "/evil.so"}}}}"#;
    std::fs::write(&file, planted)?;
    let output = setup(&project, &["claude-code", "--yes"])?;
    assert_eq!(output.status.code(), Some(125), "{}", errors(&output));
    assert!(errors(&output).contains("has env, which setup did not write"), "{}", errors(&output));
    assert!(out(&output).contains(r#"env = {"LD_PRELOAD":"/evil.so"}"#), "{}", out(&output));
    assert_eq!(std::fs::read_to_string(&file)?, planted);
    // setup recognizes an entry that it wrote and prints nothing.
    std::fs::remove_file(&file)?;
    for _ in 0..2 {
        let output = setup(&project, &["claude-code", "--yes"])?;
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        assert!(!out(&output).contains("besides"), "{}", out(&output));
    }
    Ok(())
}

#[test]
fn changes_are_kept_apart_by_option_only() -> Result<(), Failed> {
    for (options, access) in [(&["--yes"][..], ""), (&["--yes", "--cow"], ":cow")] {
        let project = tempfile::tempdir()?;
        let real = project.path().canonicalize()?;
        let done = setup(project.path(), &[&["claude-code"], options].concat())?;
        assert!(done.status.success(), "{options:?}: {}", errors(&done));
        let written = value(&project.path().join(".mcp.json"))?;
        let workspace = written.pointer("/mcpServers/cofferdam/args/2").and_then(|it| it.as_str());
        assert_eq!(workspace, Some(format!("{}{access}", real.display()).as_str()));
        assert_eq!(out(&done).contains("cofferdam review"), !access.is_empty(), "{}", out(&done));
    }
    Ok(())
}

#[test]
fn nothing_is_written_without_a_yes() -> Result<(), Failed> {
    let project = tempfile::tempdir()?;
    let shown = setup(project.path(), &["claude-code", "--print"])?;
    assert!(shown.status.success() && out(&shown).contains("+  \"mcpServers\""), "{}", out(&shown));
    let request = setup(project.path(), &["claude-code"])?;
    assert_eq!(request.status.code(), Some(125));
    assert!(errors(&request).contains("add --yes"), "{}", errors(&request));
    assert_eq!(fs::read_dir(project.path())?.count(), 0);
    Ok(())
}

#[test]
fn the_desktop_client_has_its_file_in_the_home() -> Result<(), Failed> {
    let project = tempfile::tempdir()?;
    let directory = project.path().join("home/.config/Claude");
    fs::create_dir_all(&directory)?;
    let file = directory.join("claude_desktop_config.json");
    fs::write(&file, "{\"theme\": \"dark\"}")?;
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600))?;
    let done = setup(project.path(), &["claude-desktop", "--yes"])?;
    assert!(done.status.success(), "{}", errors(&done));
    let now = value(&file)?;
    let has = |path: &str| now.pointer(path).is_some_and(serde_json::Value::is_string);
    assert!(has("/theme") && has("/mcpServers/cofferdam/command"), "{now}");
    assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&directory)?.count(), 1, "no temporary file is left");
    Ok(())
}

#[test]
fn an_unreadable_client_file_is_left_alone() -> Result<(), Failed> {
    let project = tempfile::tempdir()?;
    let elsewhere = tempfile::tempdir()?;
    fs::write(project.path().join(".mcp.json"), "{ not JSON")?;
    let refused = setup(project.path(), &["claude-code", "--yes"])?;
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(fs::read_to_string(project.path().join(".mcp.json"))?, "{ not JSON");
    fs::write(elsewhere.path().join("settings"), "{}")?;
    symlink(elsewhere.path().join("settings"), project.path().join("opencode.json"))?;
    symlink(elsewhere.path(), project.path().join(".cursor"))?;
    for client in ["opencode", "cursor"] {
        let refused = setup(project.path(), &[client, "--yes"])?;
        assert_eq!(refused.status.code(), Some(125));
        assert!(errors(&refused).contains("outside of the project"), "{}", errors(&refused));
    }
    assert_eq!(fs::read_to_string(elsewhere.path().join("settings"))?, "{}");
    assert_eq!(fs::read_dir(elsewhere.path())?.count(), 1);
    Ok(())
}

#[test]
fn a_directory_that_no_server_would_take_is_refused() -> Result<(), Failed> {
    let project = tempfile::tempdir()?;
    fs::create_dir(project.path().join("home"))?;
    for place in ["/", "home", "nothing"] {
        let refused = setup(project.path(), &["codex", "--print", "--workspace", place])?;
        assert_eq!(refused.status.code(), Some(125), "{place}");
        assert!(errors(&refused).contains("--workspace"), "{}", errors(&refused));
    }
    Ok(())
}

#[test]
fn documented_recipes_are_what_is_written() -> Result<(), Failed> {
    for (client, file) in [("claude-code", ".mcp.json"), ("codex", ".codex/config.toml")] {
        let project = tempfile::tempdir()?;
        setup(project.path(), &[client, "--yes"])?;
        let text = fs::read_to_string(project.path().join(file))?;
        let real = project.path().canonicalize()?;
        let text = text.replace(env!("CARGO_BIN_EXE_cofferdam"), "cofferdam");
        let text = text.replace(real.to_str().ok_or("no UTF-8")?, "/path/to/project");
        let recipe = format!("\n{text}```");
        assert!(PAGES.iter().any(|page| page.contains(&recipe)), "{client}: {text}");
    }
    Ok(())
}
