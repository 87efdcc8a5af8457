//! `cofferdam profile list`, `show` and `check`.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Configured, SMALL, refused, shipped, well};

#[test]
fn profiles_are_listed_with_their_files() -> io::Result<()> {
    let configured = Configured::with(&[("sandbox-profiles/small.toml", SMALL)])?;
    let expected = "\
bash            a shell with the host's programs, a workspace, and its own loopback network
                embedded:sandbox-profiles/bash.toml
bc              bc(1) and nothing else: no fork, no network, no files
                embedded:sandbox-profiles/bc.toml
cli-curl        curl and nothing else: no other program in the cell, only the target of the call
                embedded:sandbox-profiles/cli-curl.toml
cli-dig         dig and nothing else: no other program in the cell, only the target of the call
                embedded:sandbox-profiles/cli-dig.toml
cli-file        file(1) and nothing else: no fork, no network, files only in /workspace
                embedded:sandbox-profiles/cli-file.toml
cli-jq          jq(1) and nothing else: no fork, no network, files only in /workspace
                embedded:sandbox-profiles/cli-jq.toml
cli-nmap        nmap(1) and nothing else: no fork, no raw sockets, only the target of the call
                embedded:sandbox-profiles/cli-nmap.toml
cli-ping        ping and nothing else: no fork, no raw sockets, only the target of the call
                embedded:sandbox-profiles/cli-ping.toml
cli-traceroute  traceroute and nothing else: no fork, no raw sockets, only the target of the call
                embedded:sandbox-profiles/cli-traceroute.toml
nested          as bash, with the sockets that the operator names in /tmp/mcp-sockets
                embedded:sandbox-profiles/nested.toml
project-fetch   curl and git for a script project: nothing of the host but programs, and the one host of the call
                embedded:sandbox-profiles/project-fetch.toml
small           bash with less memory
                DIR/sandbox-profiles/small.toml
";
    assert_eq!(configured.run(&["profile", "list"])?, well(expected));
    let (code, stdout, _) = configured.run(&["profile", "list", "--json"])?;
    let json: serde_json::Value = serde_json::from_str(&stdout)?;
    let small = serde_json::json!({
        "name": "small",
        "description": "bash with less memory",
        "file": "DIR/sandbox-profiles/small.toml",
    });
    assert_eq!((code, json.get(11)), (Some(0), Some(&small)));
    Ok(())
}

#[test]
fn profile_show_prints_additions_and_reasons() -> io::Result<()> {
    let configured = Configured::with(&[("sandbox-profiles/small.toml", SMALL)])?;
    let (code, stdout, stderr) = configured.run(&["profile", "show", "small"])?;
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let head = "\
name          small
description   bash with less memory
file          DIR/sandbox-profiles/small.toml
extends       embedded:sandbox-profiles/bash.toml
extends       embedded:sandbox-profiles/base.toml
exec          any program in the cell
              why: a shell runs programs; the cell holds them, not their names
";
    assert!(stdout.starts_with(head), "{stdout}");
    for part in [
        "\n  io_setup\n    why: a database under test uses it\n",
        "\nunix_sockets  none\n",
        "\n              memory 512M\n",
        "\n  /usr\n    why: the host's programs and libraries\n",
        "\n  clone               cells make no namespaces\n",
        "\n  setns\n    why: it enters another namespace\n",
        "    answer: function not implemented (ENOSYS)\n",
    ] {
        assert!(stdout.contains(part), "{part:?} is not in:\n{stdout}");
    }
    Ok(())
}

#[test]
fn profile_show_groups_every_call_with_a_reason() -> io::Result<()> {
    let (code, stdout, _) = shipped()?.run(&["profile", "show", "bash", "--json"])?;
    assert_eq!(code, Some(0));
    let json: serde_json::Value = serde_json::from_str(&stdout)?;
    let list = |group: &str| {
        let found = json.pointer(&format!("/calls/{group}")).and_then(|list| list.as_array());
        found.cloned().unwrap_or_default()
    };
    let mut seen = std::collections::BTreeSet::new();
    for group in list("allowed").iter().chain(&list("quiet")) {
        assert!(group.get("why").is_some_and(serde_json::Value::is_string), "{group}");
        for name in group.get("names").and_then(|names| names.as_array()).into_iter().flatten() {
            assert!(seen.insert(name.to_string()), "{name} is in two groups");
        }
    }
    for call in list("conditional") {
        assert!(call.get("why").is_some_and(serde_json::Value::is_string), "{call}");
        assert_ne!(call.get("condition"), Some(&serde_json::json!("on a condition")), "{call}");
        let name = call.get("name").map(ToString::to_string).unwrap_or_default();
        assert!(seen.insert(name), "{call} is in two groups");
    }
    assert!(seen.contains("\"read\"") && seen.contains("\"clone\"") && seen.len() > 250);
    Ok(())
}

#[test]
fn profile_files_are_checked_with_those_in_force() -> io::Result<()> {
    let configured = Configured::with(&[("sandbox-profiles/small.toml", SMALL)])?;
    let write = |name: &str, text: &str| fs::write(configured.directory.path().join(name), text);
    write("less.toml", &SMALL.replace("\"small\"", "\"less\"").replace("\"bash\"", "\"small\""))?;
    assert_eq!(
        configured.run(&["profile", "check", "less.toml"])?,
        well("less.toml: profile `less`: bash with less memory\n")
    );
    write("again.toml", SMALL)?;
    assert_eq!(
        configured.run(&["profile", "check", "again.toml"])?,
        well("again.toml: profile `small`: bash with less memory\n")
    );
    write("base.toml", "schema = 1\nname = \"part\"\ndescription = \"a part\"\n")?;
    let part = "base.toml: it can be extended, but not used, for nothing in it grants `exec`\n";
    assert_eq!(configured.run(&["profile", "check", "base.toml"])?, well(part));
    Ok(())
}

#[test]
fn a_path_unreachable_for_root_is_refused() -> io::Result<()> {
    let configured = shipped()?;
    let closed = tempfile::tempdir()?;
    let open = tempfile::tempdir()?;
    fs::set_permissions(open.path(), Permissions::from_mode(0o755))?;
    fs::set_permissions(closed.path(), Permissions::from_mode(0o700))?;
    let checked = |directory: &Path| {
        let path = directory.join("models");
        fs::create_dir(&path)?;
        let granted = format!(
            "[[path]]\nhost = {path:?}\ncell = \"/opt/models\"\nwhy = \"models of the tests\"\n"
        );
        let profile = "schema = 1\nname = \"p\"\nextends = \"bash\"\ndescription = \"x\"\n";
        fs::write(configured.directory.path().join("p.toml"), format!("{profile}{granted}"))?;
        configured.run(&["profile", "check", "p.toml"])
    };
    let taken = well("p.toml: profile `p`: x\n");
    assert_eq!(checked(open.path())?, taken);
    let directory = closed.path().display();
    let refusal = format!(
        "cofferdam: profile `p`: {directory}/models cannot be put in a cell: root's cells run as another user, and \
         {directory} lets only its owner in\nhint: grant it for a call instead (`--ro {directory}/models`), or move it to \
         where others may go\n"
    );
    let is_root = nix::unistd::geteuid().is_root();
    assert_eq!(checked(closed.path())?, if is_root { refused(&refusal) } else { taken });
    Ok(())
}

#[test]
fn a_mistake_in_a_profile_has_line_and_column() -> io::Result<()> {
    let configured = shipped()?;
    let cases = [
        (
            "io_setup",
            "oi_setup",
            "8:10: `oi_setup` is no system call\nhint: did you mean `io_setup`?",
        ),
        (
            "[\"io_setup\"]",
            "[\"mount\"]",
            "8:10: no profile can grant `mount`: it changes or reads the mount tree, \
             which is the wall of the cell",
        ),
        (
            "extends = \"bash\"",
            "extends = \"bsh\"",
            "4:11: there is no profile `bsh`\nhint: did you mean `bash`?",
        ),
        (
            "a database under test uses it",
            "",
            "7:7: `why` is blank\nhint: every grant and every rule says why it is there",
        ),
    ];
    for (from, to, mistake) in cases {
        fs::write(configured.directory.path().join("p.toml"), SMALL.replace(from, to))?;
        let expected = refused(&format!("cofferdam: p.toml:{mistake}\n"));
        assert_eq!(configured.run(&["profile", "check", "p.toml"])?, expected);
    }
    Ok(())
}
