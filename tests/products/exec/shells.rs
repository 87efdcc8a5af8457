//! Shells that interpret a command: bash, or another one in the cell.

use std::path::Path;

use serde_json::{Value, json};

use super::fields;
use crate::server::Server;

/// Returns true if a cell finds this shell: it has the host's /usr.
fn is_there(shell: &str) -> bool {
    ["/usr/local/bin", "/usr/bin"].iter().any(|path| Path::new(path).join(shell).exists())
}

fn ran(server: &mut Server, shell: &str, command: &str) -> (Value, Value, Value) {
    let answer = fields(server, "bash_exec", json!({"command": command, "shell": shell}));
    (answer["stdout"].clone(), answer["stderr"].clone(), answer["exit_code"].clone())
}

#[test]
fn installed_shells_work_and_others_are_refused() {
    let mut server = Server::start(&["--tools", "exec"]);
    // Each command prints text that only its shell makes, with both kinds of quotes in it.
    let commands = [
        ("bash", r#"echo "it's" ${BASH_VERSION:+bash} $0; exit 3"#, "it's bash bash\n"),
        ("sh", r#"echo "it's" $0; exit 3"#, "it's sh\n"),
        ("zsh", r#"echo "it's" ${ZSH_VERSION:+zsh} $0; exit 3"#, "it's zsh zsh\n"),
        (
            "fish",
            r#"set a it\'s; echo $a (count $argv) (string upper fish); exit 3"#,
            "it's 0 FISH\n",
        ),
    ];
    for (shell, command, text) in commands {
        let answer = ran(&mut server, shell, command);
        if is_there(shell) {
            assert_eq!(answer, (json!(text), json!(""), json!(3)), "{shell}");
        } else {
            let reason = format!("{shell} is not in this cell; ");
            assert!(answer.1.as_str().unwrap_or_default().starts_with(&reason), "{answer:?}");
            assert_eq!((answer.0, answer.2), (json!(""), json!(127)), "{shell}");
        }
    }
    let unknown = server.result("bash_exec", json!({"command": "true", "shell": "csh"}));
    assert_eq!(
        unknown["content"][0]["text"],
        "bash_exec: `shell`: unknown variant `csh`, expected one of `bash`, `sh`, `zsh`, `fish`"
    );
    assert_eq!(server.close(), Some(0));
}
