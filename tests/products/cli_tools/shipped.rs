//! The commands that are compiled in: jq and file.

use serde_json::json;

use super::{asked, configuration, has, names, serving};
use crate::server::Server;

#[test]
fn commands_are_listed_only_when_enabled() {
    let mut server = Server::start(&[]);
    assert!(!names(&mut server).iter().any(|name| name.starts_with("cli_")));
    let id = server.call("cli_jq", json!({"filter": "."}));
    assert_eq!(
        server.answer(id)["result"]["content"][0]["text"],
        "[`cli_jq` is switched off]\n\
         hint: the operator can switch it on with `[tools] on` in cofferdam.toml"
    );
    assert_eq!(server.close(), Some(0));
    let configuration = configuration();
    let mut server = serving(configuration.path(), None);
    let names = names(&mut server);
    assert!(names.ends_with(&["cli_jq".to_owned(), "cli_file".to_owned()]), "{names:?}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn jq_reads_stdin_and_echoes_the_correlation_id() {
    if !has("/usr/bin/jq") {
        return;
    }
    let configuration = configuration();
    let mut server = serving(configuration.path(), None);
    let arguments = json!({"filter": ".a[]", "extra_args": ["-c"], "correlation_id": "mine",
                           "stdin": "{\"a\":[1,{\"b\": 2}]}"});
    let fields = asked(&mut server, "cli_jq", arguments);
    let output = (&fields["stdout"], &fields["returncode"], &fields["correlation_id"]);
    assert_eq!(output, (&json!("1\n{\"b\":2}\n"), &json!(0), &json!("mine")), "{fields}");
    assert_eq!(fields.get("error"), None);
    let fields = asked(&mut server, "cli_jq", json!({"filter": "nope", "stdin": "1"}));
    let output = (&fields["returncode"], &fields["error_type"]);
    assert_eq!(output, (&json!(3), &json!("execution_error")), "{fields}");
    // The language can ask for the environment; there is nothing of the caller's in it.
    let fields = asked(&mut server, "cli_jq", json!({"filter": "env", "extra_args": "-n -c"}));
    let text = fields["stdout"].as_str().unwrap_or_default();
    assert!(text.contains("/tmp/home") && !text.contains("do-not-show"), "{fields}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn jq_reads_a_granted_file_and_no_other() {
    if !has("/usr/bin/jq") {
        return;
    }
    let configuration = configuration();
    let workspace = tempfile::tempdir().expect("a directory");
    std::fs::write(workspace.path().join("a.json"), "{\"x\": \"inside\"}").expect("written");
    let mut server = serving(configuration.path(), Some(workspace.path()));
    let arguments = json!({"filter": ".x", "extra_args": ["-r"], "path": "a.json"});
    assert_eq!(asked(&mut server, "cli_jq", arguments)["stdout"], "inside\n");
    let fields = asked(&mut server, "cli_jq", json!({"filter": ".", "path": "../etc/passwd"}));
    let output = (&fields["error_type"], &fields["error"]);
    let text = "cli_jq: path `../etc/passwd` is not inside /workspace";
    assert_eq!(output, (&json!("validation_error"), &json!(text)));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_planted_link_shows_nothing_of_the_host() {
    if !has("/usr/bin/file") {
        return;
    }
    let configuration = configuration();
    let workspace = tempfile::tempdir().expect("a directory");
    let inside = workspace.path();
    let outside = tempfile::tempdir().expect("a directory");
    let secret = outside.path().join("secret.json");
    std::fs::write(&secret, "\"host secret\"").expect("written");
    std::fs::write(inside.join("a.bin"), b"%PDF-1.4\n").expect("written");
    std::os::unix::fs::symlink(&secret, inside.join("link")).expect("a link");
    let mut server = serving(configuration.path(), Some(inside));
    let arguments = json!({"path": "a.bin", "extra_args": ["-b", "--mime-type"]});
    let fields = asked(&mut server, "cli_file", arguments);
    assert_eq!(fields["stdout"], "application/pdf\n", "{fields}");
    let fields = asked(&mut server, "cli_file", json!({"path": "link", "extra_args": ["-b"]}));
    let text = fields["stdout"].as_str().unwrap_or_default();
    assert!(text.starts_with("broken symbolic link to"), "{fields}");
    if has("/usr/bin/jq") {
        let fields = asked(&mut server, "cli_jq", json!({"filter": ".", "path": "link"}));
        assert_eq!((&fields["stdout"], &fields["returncode"]), (&json!(""), &json!(2)), "{fields}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn file_reads_what_it_is_sent() {
    if !has("/usr/bin/file") {
        return;
    }
    let configuration = configuration();
    let mut server = serving(configuration.path(), None);
    let arguments = json!({"stdin": "%PDF-1.4\n", "extra_args": ["-b", "--mime-type"]});
    let answer = asked(&mut server, "cli_file", arguments);
    assert_eq!(answer["stdout"], "application/pdf\n", "{answer}");
    let cases = [
        (json!({}), "cli_file: give `stdin` or `path`"),
        (json!({"path": "a", "stdin": "x"}), "cli_file: give `stdin` or `path`, not both"),
        (json!({"path": "-"}), "cli_file: path `-` begins with a dash"),
        (json!({"path": 5}), "cli_file: `path`: expected a string"),
        (
            json!({"pth": "a"}),
            "cli_file: unknown field `pth`\nhint: did you mean `path`? it takes path, extra_args, \
             stdin, dry_run, timeout_sec, correlation_id",
        ),
    ];
    for (arguments, error) in cases {
        let answer = asked(&mut server, "cli_file", arguments);
        let found = (&answer["error_type"], &answer["error"]);
        assert_eq!(found, (&json!("validation_error"), &json!(error)));
    }
    assert_eq!(server.close(), Some(0));
}

/// Both streams are shown whole up to their bound, and one byte more is cut and said so.
#[test]
fn output_is_cut_only_past_the_bound() {
    if !has("/usr/bin/jq") {
        return;
    }
    let configuration = configuration();
    let mut server = serving(configuration.path(), None);
    let bounds = [("halt_error(0)", "stderr", 256 << 10), (".", "stdout", 1_usize << 20)];
    for (end, stream, bound) in bounds {
        for (length, cut) in [(bound, false), (bound + 1, true)] {
            // Written by halt_error and by -j as it is, without a newline.
            let filter = format!("\"x\" * {length} | {end}");
            let answer =
                asked(&mut server, "cli_jq", json!({"filter": filter, "extra_args": ["-n", "-j"]}));
            let flags = (&answer["truncated_stdout"], &answer["truncated_stderr"]);
            let expected = (stream == "stdout" && cut, stream == "stderr" && cut);
            assert_eq!(flags, (&json!(expected.0), &json!(expected.1)), "{stream} of {length}");
            let text = answer[stream].as_str().unwrap_or_default();
            assert_eq!(text.len() == length, !cut, "{stream} of {length}: {}", text.len());
            assert!(text.len() <= bound, "{stream} of {length}: {}", text.len());
            assert_eq!(answer["metadata"][format!("{stream}_bytes")], length);
        }
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_long_run_is_ended() {
    if !has("/usr/bin/jq") {
        return;
    }
    let configuration = configuration();
    let mut server = serving(configuration.path(), None);
    let arguments =
        json!({"filter": "last(range(1e18))", "extra_args": ["-n"], "timeout_sec": 0.5});
    let fields = asked(&mut server, "cli_jq", arguments);
    let output = (&fields["returncode"], &fields["timed_out"], &fields["error_type"]);
    assert_eq!(output, (&json!(124), &json!(true), &json!("timeout")), "{fields}");
    assert_eq!(server.close(), Some(0));
}
