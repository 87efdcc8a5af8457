//! Tools in short form: four lines of an operator's file, and files that `policy new-tool` makes.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{asked, has, names, serving};
use crate::server::PROGRAM;

/// A configuration directory with this policy, and with this text as `cofferdam.toml`.
fn configured(policy: &str, server: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("policies")).expect("made");
    let policy = format!("schema = 1\nextends = \"shipped\"\n{policy}");
    std::fs::write(at("policies/mine.toml"), policy).expect("written");
    if !server.is_empty() {
        std::fs::write(at("cofferdam.toml"), format!("schema = 1\n{server}")).expect("written");
    }
    directory
}

/// The tool of the page: four lines, and nothing else is written anywhere.
const WC: &str = r#"
[[tool]]
command = "wc"
why = "counting needs no shell"
flags = { -l = "lines", -c = "bytes" }
"#;

#[test]
fn four_lines_are_a_tool() {
    let configuration = configured(WC, "");
    let workspace = tempfile::tempdir().expect("a directory");
    std::fs::write(workspace.path().join("a"), "12345").expect("written");
    std::fs::write(workspace.path().join("b"), "1").expect("written");
    let mut server = serving(configuration.path(), Some(workspace.path()));
    let listed = names(&mut server);
    assert!(listed.contains(&"cli_wc".to_owned()), "{listed:?}");
    assert!(listed.contains(&"bash".to_owned()), "the shipped rules stay: {listed:?}");
    let cases = [
        (json!({"path": "a", "extra_args": "-c"}), json!("5 /workspace/a\n"), Value::Null),
        (
            json!({"path": ["a", "b"], "extra_args": ["-c"]}),
            json!("5 /workspace/a\n1 /workspace/b\n6 total\n"),
            Value::Null,
        ),
        (json!({"stdin": "123", "extra_args": "-c"}), json!("3\n"), Value::Null),
        (
            json!({"path": "a", "extra_args": "--files0-from=a"}),
            json!(""),
            json!(
                "cli_wc: `--files0-from=a` is not a flag on this tool's list\n\
                 hint: extra_args takes -c, -l"
            ),
        ),
        (
            json!({"path": "/etc/passwd"}),
            json!(""),
            json!("cli_wc: path `/etc/passwd` is not inside /workspace"),
        ),
    ];
    for (arguments, stdout, error) in cases {
        let answer = asked(&mut server, "cli_wc", arguments);
        assert_eq!((&answer["stdout"], &answer["error"]), (&stdout, &error), "{answer}");
    }
    // The reference implementation names tools by their classes.
    let answer = asked(&mut server, "WcTool", json!({"path": "a", "dry_run": true}));
    let metadata = &answer["metadata"];
    assert_eq!((&metadata["rule"], &metadata["profile"]), (&json!("cli-wc"), &json!("bash")));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_tool_in_short_form_is_off_or_denied_where_the_operator_says_so() {
    let configuration = configured(WC, "[tools]\noff = [\"cli_wc\"]\n");
    let mut server = serving(configuration.path(), None);
    assert!(!names(&mut server).contains(&"cli_wc".to_owned()));
    let denied = server.result("cli_wc", json!({"stdin": "1"}));
    let text = denied["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("[`cli_wc` is switched off]"), "{text}");
    assert_eq!(server.close(), Some(0));
    let deny = "[[rule]]\nid = \"no\"\ntools = [\"cli_wc\"]\naction = \"deny\"\nwhy = \"not today\"\n\
                matches = [{ tool = \"cli_wc\" }]\n";
    let configuration = configured(&format!("{WC}{deny}"), "");
    let mut server = serving(configuration.path(), None);
    assert!(!names(&mut server).contains(&"cli_wc".to_owned()));
    let denied = server.result("cli_wc", json!({"stdin": "1"}));
    let text = denied["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("[denied by rule `no`: not today]"), "{text}");
    assert_eq!(server.close(), Some(0));
}

/// Runs `policy new-tool` with these words: the exit code, the file, and what it says.
fn new_tool(words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(PROGRAM)
        .args(["policy", "new-tool"])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Checks a file with `policy check`: the exit code, and what it says.
fn check(text: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("new.toml");
    std::fs::write(&file, text).expect("written");
    let output = Command::new(PROGRAM).args(["policy", "check"]).arg(&file).output();
    let output = output.expect("it runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the flags of a file that are in force.
fn in_force(file: &str) -> Vec<&str> {
    let lines = file.lines().skip_while(|line| *line != "[tool.flags]");
    lines.filter_map(|line| line.strip_prefix('"')?.split('"').next()).collect()
}

/// Words of an example.
type Words = &'static [&'static str];

/// Programs, the words of a call, flags that have to be in force, and flags that must not be.
const PROGRAMS: [(&str, Words, Words, Words); 6] = [
    ("/usr/bin/jq", &["jq"], &["-c", "--tab"], &["--arg", "--slurpfile", "--rawfile", "-f", "-L"]),
    (
        "/usr/bin/curl",
        &["curl", "--ask", "--help all"],
        &["--fail", "--max-redirs 0..1000000"],
        &[
            "-o",
            "-O",
            "-T",
            "-K",
            "-x",
            "-u",
            "-b",
            "-c",
            "-D",
            "-k",
            "--next",
            "--resolve",
            "--xattr",
        ],
    ),
    (
        "/usr/bin/nmap",
        &["nmap"],
        &["-sL", "-F"],
        &["-iL", "-oN", "-oA", "--script", "-sC", "--datadir", "--resume", "--proxies", "-D"],
    ),
    ("/usr/bin/ls", &["ls"], &["-a", "--all", "-w 0..1000000"], &["--hide", "-I", "--ignore"]),
    ("/usr/bin/git", &["git"], &[], &["-C", "-c", "--exec-path", "--git-dir", "--paginate"]),
    ("/usr/bin/sort", &["sort"], &["-r", "--reverse"], &["-o", "--compress-program", "-T", "-S"]),
];

#[test]
fn new_tool_lists_harmless_flags_of_real_programs() {
    for (path, words, kept, left) in PROGRAMS {
        if !has(path) {
            continue;
        }
        let (code, file, said) = new_tool(words);
        if *words == ["git"] && code == Some(127) {
            // A git elsewhere than in /usr is not in the cell.
            continue;
        }
        assert_eq!(code, Some(0), "{words:?}: {said}");
        let flags = in_force(&file);
        for flag in kept {
            assert!(flags.contains(flag), "{words:?} {flag}: {file}");
        }
        for flag in left {
            let is_it = |form: &&str| form.split(' ').next() == Some(*flag);
            assert_eq!(flags.iter().copied().find(is_it), None, "{words:?}: {file}");
        }
        // As printed it grants nothing: a person has to write the reason.
        let (code, error) = check(&file);
        assert_eq!(code, Some(125), "{file}");
        assert!(error.contains("`why` is blank"), "{error}");
        let completed = file.replace("why = \"\"", "why = \"reviewed\"");
        assert_eq!(check(&completed), (Some(0), String::new()), "{completed}");
    }
}

#[test]
fn a_made_and_completed_file_is_a_tool() {
    let (code, file, said) = new_tool(&["ls"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("complete `why`"), "{said}");
    let configuration = tempfile::tempdir().expect("a directory");
    let policies = configuration.path().join("policies");
    std::fs::create_dir(&policies).expect("made");
    let completed = file.replace("why = \"\"", "why = \"names of files need no shell\"");
    std::fs::write(policies.join("ls.toml"), completed).expect("written");
    let workspace = tempfile::tempdir().expect("a directory");
    std::fs::write(workspace.path().join(".hidden"), "").expect("written");
    let mut server = serving(configuration.path(), Some(workspace.path()));
    let answer = asked(&mut server, "cli_ls", json!({"path": ".", "extra_args": "-A"}));
    assert_eq!(answer["stdout"], ".hidden\n", "{answer}");
    let answer = asked(&mut server, "cli_ls", json!({"path": ".", "extra_args": ["--hide", "a"]}));
    assert_eq!(answer["error_type"], "validation_error", "{answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_program_without_help_or_without_a_file_makes_no_tool() {
    let (code, file, said) = new_tool(&["no-such-program"]);
    assert_eq!((code, file.as_str()), (Some(127), ""), "{said}");
    assert!(said.contains("`no-such-program` was not found"), "{said}");
    // It prints nothing, and ends when its time is over or at once.
    let (code, file, said) = new_tool(&["true", "--ask", "x"]);
    assert_eq!((code, file.as_str()), (Some(125), ""));
    assert_eq!(
        said,
        "cofferdam: `true` prints no flags that can be read\n\
         hint: name the words that make it print them with --ask\n"
    );
    // The words of the program are those of its cell: nothing of the host is there.
    let (code, file, _) = new_tool(&["cat", "--ask", "/etc/shadow"]);
    assert_eq!((code, file.as_str()), (Some(125), ""));
    assert!(Path::new("/etc/shadow").exists());
}

#[test]
fn further_words_begin_every_call() {
    let (code, file, said) = new_tool(&["sort", "--reverse", "--ask", "--help"]);
    // A word with a dash is an argument of this command.
    assert_eq!((code, file.as_str()), (Some(125), ""), "{said}");
    let (code, file, said) = new_tool(&["bash", "-c", "exit"]);
    assert_eq!((code, file.as_str()), (Some(125), ""), "{said}");
    let (code, file, said) = new_tool(&["env", "sort", "--profile", "nested"]);
    assert_eq!(code, Some(0), "{said}");
    let head = file.lines().skip_while(|line| *line != "[[tool]]").skip(1).take(4);
    let head: Vec<&str> = head.collect();
    let expected = [
        "name = \"cli_env_sort\"",
        "command = \"env\"",
        "always = [\"sort\"]",
        "profile = \"nested\"",
    ];
    assert_eq!(head, expected);
}
