//! Commands for authors of script projects: new, scaffold, validate, doctor, registry, run-tool, learn.

use std::process::{Command, Output};

fn cofferdam(words: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_cofferdam")).arg("project").args(words).output()
}

/// Output of a command, its exit code, and its words about a failure.
fn run(words: &[&str]) -> std::io::Result<(String, Option<i32>, String)> {
    let output = cofferdam(words)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), output.status.code(), text(&output.stderr)))
}

#[test]
fn a_project_is_mended_looked_at_and_listed() -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p");
    let directory = path.to_str().unwrap_or_default();
    assert_eq!(run(&["new", directory])?.1, Some(0));
    for (kind, name) in [("ui", "hello"), ("ui", "board"), ("test", "hello")] {
        let (text, code, error) = run(&["scaffold", kind, name, "--dir", directory])?;
        assert_eq!(code, Some(0), "{kind}: {text}{error}");
    }
    let tool = path.join("tools/hello/tool.sh");
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o666))?;
    assert_eq!(run(&["validate", directory])?.1, Some(1));
    let (text, code, _) = run(&["validate", directory, "--fix", "--strict"])?;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("fixed tools/hello/tool.sh: mode 755"), "{text}");
    let (text, code, _) = run(&["doctor", directory])?;
    assert_eq!(code, Some(0), "{text}");
    let lists = path.join("server.d/register.json");
    let (text, code, _) = run(&["registry", directory])?;
    assert_eq!(code, Some(0), "{text}");
    std::fs::write(&lists, &text)?;
    std::fs::set_permissions(&lists, std::fs::Permissions::from_mode(0o644))?;
    assert_eq!(run(&["registry", directory])?.0, text, "it is read as it was written");
    let call = ["run-tool", "hello", "--dir", directory];
    let (text, code, _) = run(&[&call[..], &["--print-env"]].concat())?;
    assert!(code == Some(0) && text.contains("MCP_TOOL_NAME=hello\n"), "{text}");
    let (text, _, _) = run(&[&call[..], &["--dry-run", "--timeout", "5"]].concat())?;
    assert_eq!(text, "would run tools/hello/tool.sh for at most 30 s\n");
    std::fs::write(path.join("server.d/policy.sh"), "mcp_tools_policy_check() { return 1; }\n")?;
    std::fs::write(
        path.join("server.d/health-checks.sh"),
        "mcp_health_check_command sh Shell\nmcp_health_check_command nosuch Nosuch\n",
    )?;
    for hook in ["policy.sh", "health-checks.sh"] {
        std::fs::set_permissions(
            path.join("server.d").join(hook),
            std::fs::Permissions::from_mode(0o644),
        )?;
    }
    let (text, code, _) = run(&["doctor", directory])?;
    assert!(code == Some(2) && text.contains("every call is refused"), "{text}");
    let (text, code, _) = run(&["doctor", directory, "--project-hooks"])?;
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("ok    Shell is there\n")
            && text.contains("bad   Nosuch is absent in the cell\n"),
        "{text}"
    );
    let (_, code, error) = run(&[&call[..], &["--project-hooks"]].concat())?;
    assert!(code == Some(125) && error.contains("blocked by policy"), "{error}");
    Ok(())
}

#[test]
fn a_new_project_runs_as_it_is_and_grows_by_entries() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("my tools");
    let directory = path.to_str().unwrap_or_default();
    let (text, code, _) = run(&["new", directory])?;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("cofferdam serve --project"), "{text}");
    for kind in ["tool", "prompt", "resource", "completion"] {
        let (text, code, error) = run(&["scaffold", kind, "more", "--dir", directory])?;
        assert_eq!(code, Some(0), "{kind}: {text}{error}");
    }
    let (text, code, _) = run(&["validate", directory])?;
    assert_eq!(code, Some(0), "{text}");
    for entry in ["mytools 0.1.0", "tool hello", "tool more", "resource more", "prompt more"] {
        assert!(text.contains(entry), "{entry}: {text}");
    }
    let call = ["run-tool", "hello", "--dir", directory, "--args", r#"{"name": "Ada \"A\""}"#];
    let expected = "{\"message\":\"Hello, Ada \\\"A\\\"!\"}\n";
    assert_eq!(run(&call)?.0, expected);
    let (text, code, _) = run(&["run-tool", "more", "--dir", directory, "--json"])?;
    let result: serde_json::Value = serde_json::from_str(&text)?;
    let message = result.pointer("/structuredContent/message").and_then(|value| value.as_str());
    assert_eq!((message, code), (Some("Hello, World!"), Some(0)));
    Ok(())
}

#[test]
fn existing_files_stay_and_mistakes_are_reported() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let directory = folder.path().to_str().unwrap_or_default();
    for (words, reason) in [
        (vec!["scaffold", "tool", "one", "--dir", directory], "is no project"),
        (vec!["new", directory], ""),
        (vec!["new", directory], "is not empty"),
        (vec!["scaffold", "tool", "hello", "--dir", directory], "is there already"),
        (vec!["scaffold", "tool", "../out", "--dir", directory], "is not a name"),
        (vec!["run-tool", "none", "--dir", directory], "unknown tool `none`"),
        (vec!["run-tool", "hello", "--dir", directory, "--args", "[]"], "is not a JSON object"),
    ] {
        let (text, code, error) = run(&words)?;
        assert_eq!(code, Some(if reason.is_empty() { 0 } else { 125 }), "{words:?}: {text}{error}");
        assert!(error.contains(reason), "{words:?}: {error}");
    }
    // A folder of the project that leads elsewhere.
    let elsewhere = tempfile::tempdir()?;
    std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("prompts"))?;
    let (_, code, error) = run(&["scaffold", "prompt", "one", "--dir", directory])?;
    assert_eq!(code, Some(125), "{error}");
    assert!(error.contains("`prompts` is a symbolic link, and links are not followed"), "{error}");
    assert_eq!(std::fs::read_dir(elsewhere.path())?.count(), 0);
    // A tool that fails.
    let script = "#!/bin/sh\necho broken >&2\nexit 3\n";
    std::fs::write(folder.path().join("tools/hello/tool.sh"), script)?;
    let (text, code, _) = run(&["run-tool", "hello", "--dir", directory])?;
    assert_ne!(code, Some(0), "{text}");
    Ok(())
}

/// A script that asks for what no shipped profile gives, and says what became of it.
const ASKS: &str = "#!/bin/bash\n\
    source \"$MCP_SDK/tool-sdk.sh\"\n\
    chrt -d -T 100000 -D 500000 -P 1000000 0 true\n\
    [[ -e $(mcp_args_get .file) ]] && said=found || said=absent\n\
    mcp_result_success \"$(mcp_json_obj said \"$said\")\"\n";

#[test]
fn learn_prints_a_profile_that_works() -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir()?;
    let target = folder.path().join("p");
    let directory = target.to_str().unwrap_or_default();
    assert_eq!(run(&["new", directory])?.1, Some(0));
    // The script asks for nothing: the runner around it meets no refusal.
    let (text, code, error) = run(&["learn", "hello", "--dir", directory, "--args", "{}"])?;
    assert_eq!(text, "# Nothing that profile `bash` could grant was refused.\n", "{error}");
    assert!(code == Some(0) && error.starts_with("cofferdam: the tool answered: "), "{error}");
    std::fs::write(target.join("tools/hello/tool.sh"), ASKS)?;
    let outside = tempfile::Builder::new().prefix("cofferdam-learn").tempdir_in("/var/tmp")?;
    std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o755))?;
    let file = outside.path().join("data.txt");
    std::fs::write(&file, "data\n")?;
    let args = serde_json::json!({ "file": file }).to_string();
    let learn = ["learn", "hello", "--dir", directory, "--args", &args];
    let (learned, code, error) = run(&learn)?;
    assert_eq!(code, Some(0), "{learned}{error}");
    assert!(error.contains("the tool answered: ") && error.contains("absent"), "{error}");
    let path = format!("[[path]]\nhost = {file:?}\nwhy = \"\"\n");
    assert!(learned.contains(&path), "{learned}");
    assert!(learned.contains("names = [\"sched_setattr\"]\nwhy = \"\"\n"), "{learned}");
    // The profile grants nothing before its reasons are written, and then what was asked for.
    let configuration = folder.path().join("configuration");
    let profiles = configuration.join("sandbox-profiles");
    std::fs::create_dir_all(&profiles)?;
    let configured = configuration.to_str().unwrap_or_default();
    let again = [&["--config", configured][..], &["--profile", "bash-learned"]].concat();
    let learn_again = || run(&[&learn[..], &again].concat());
    std::fs::write(profiles.join("learned.toml"), &learned)?;
    let (_, code, error) = learn_again()?;
    assert!(code == Some(125) && error.contains("`why` is blank"), "{error}");
    let reasoned = learned.replace("why = \"\"", "why = \"this test asks for it\"");
    std::fs::write(profiles.join("learned.toml"), reasoned)?;
    let (text, code, error) = learn_again()?;
    assert_eq!(text, "# Nothing that profile `bash-learned` could grant was refused.\n", "{error}");
    assert!(code == Some(0) && error.contains("found"), "{error}");
    let (_, code, error) = run(&["learn", "none", "--dir", directory])?;
    assert_eq!((code, error.as_str()), (Some(125), "cofferdam: learn: there is no tool `none`\n"));
    Ok(())
}
