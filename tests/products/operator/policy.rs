//! `cofferdam policy`: rules with their examples, mistakes with their places, decisions with their reasons.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;

use super::{Configured, TEAM, refused, shipped, well};

#[test]
fn a_policy_check_prints_each_rule_with_its_examples() -> io::Result<()> {
    let configured = Configured::with(&[("policies/team.toml", TEAM)])?;
    let expected = "\
DIR/policies/team.toml:4: rule `sums`
  allows       calculate under profile `bc`
  why          the team needs sums
  lowers       timeout to 5s, memory to 64M
  matches      calculate
  matches not  bash
DIR/policies/team.toml:14: rule `no-scripts`
  denies   calculate_advanced
  why      sums are enough
  matches  calculate_advanced
2 rules, 1 file: every example holds
";
    assert_eq!(configured.run(&["policy", "check"])?, well(expected));
    Ok(())
}

#[test]
fn a_policy_file_is_checked_without_being_in_force() -> io::Result<()> {
    let configured = shipped()?;
    let path = configured.directory.path().join("a.toml");
    fs::write(&path, TEAM.replace("profile = \"bc\"", "profile = \"bcc\""))?;
    // The file's write permissions matter only once it is in force.
    fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    let mistake = "cofferdam: a.toml:7:11: there is no profile `bcc` to run under\n\
                   hint: did you mean `bc`?\n";
    assert_eq!(configured.run(&["policy", "check", "a.toml"])?, refused(mistake));
    let second = configured.directory.path().join("b.toml");
    fs::write(second, TEAM.replace("why = \"sums are enough\"", "wyh = \"sums are enough\""))?;
    let both = format!(
        "{mistake}b.toml:17:1: unknown field `wyh`, expected one of `id`, `tools`, `clients`, `action`, \
         `profile`, `choice`, `egress`, `commands`, `limits`, `why`, `matches`, `not_matches`\nhint: did you mean `why`?\n"
    );
    assert_eq!(configured.run(&["policy", "check", "a.toml", "b.toml"])?, refused(&both));
    Ok(())
}

#[test]
fn conflicting_policy_files_are_reported() -> io::Result<()> {
    let configured = shipped()?;
    for name in ["a.toml", "b.toml"] {
        fs::write(configured.directory.path().join(name), TEAM)?;
    }
    let mistake = "cofferdam: b.toml:4:6: there are two rules `sums`\n";
    assert_eq!(configured.run(&["policy", "check", "a.toml", "b.toml"])?, refused(mistake));
    Ok(())
}

#[test]
fn a_failing_example_is_reported_with_its_line() -> io::Result<()> {
    let wrong = TEAM
        .replace("not_matches = [{ tool = \"bash\" }]", "not_matches = [{ tool = \"calculate\" }]");
    let configured = Configured::with(&[("policies/team.toml", &wrong)])?;
    let mistake = "cofferdam: DIR/policies/team.toml:11:16: \
                   rule `sums` should not match and does: `calculate`\n";
    for command in [&["policy", "check"][..], &["policy", "explain", "bash"], &["config", "show"]] {
        assert_eq!(configured.run(command)?, refused(mistake), "{command:?}");
    }
    Ok(())
}

#[test]
fn a_checked_file_cannot_control_the_terminal() -> io::Result<()> {
    let configured = shipped()?;
    let path = configured.directory.path().join("a.toml");
    fs::write(&path, TEAM.replace("the team needs sums", "\\u001b[2Jfine\\n2 rules"))?;
    let (code, stdout, _) = configured.run(&["policy", "check", "a.toml"])?;
    assert_eq!(code, Some(0));
    assert!(stdout.contains("\n  why          \\u{1b}[2Jfine 2 rules\n"), "{stdout}");
    fs::write(&path, TEAM.replace("action = \"deny\"", "\"m\\u001b[2J\" = 1"))?;
    let (code, _, stderr) = configured.run(&["policy", "check", "a.toml"])?;
    assert_eq!(code, Some(125));
    assert!(stderr.contains("unknown field `m\\u{1b}[2J`"), "{stderr}");
    Ok(())
}

#[test]
fn explain_prints_rule_profile_and_limits() -> io::Result<()> {
    let configured = Configured::with(&[("policies/team.toml", TEAM)])?;
    let expected = "\
tool      calculate
decision  allowed
rule      sums (DIR/policies/team.toml:4)
why       the team needs sums
profile   bc: bc(1) and nothing else: no fork, no network, no files
limits    timeout 5s
          cpu 40s
          memory 64M
          processes 4
          open_files 64
          file_size 1M
          workspace 0
          tmp 16M
          shm 1M
          inodes 1000
          output 256M
";
    assert_eq!(configured.run(&["policy", "explain", "calculate"])?, well(expected));
    Ok(())
}

#[test]
fn explain_prints_a_denial_by_rule_and_by_default() -> io::Result<()> {
    let configured = Configured::with(&[("policies/team.toml", TEAM)])?;
    let by_rule = "\
tool      calculate_advanced
decision  denied
rule      no-scripts (DIR/policies/team.toml:14)
why       sums are enough
hint      only the operator can change this rule; no call can
";
    assert_eq!(configured.run(&["policy", "explain", "calculate_advanced"])?, well(by_rule));
    let by_default = "\
tool      bash
decision  denied
rule      default-deny
why       no rule allows `bash`
hint      the operator can allow it with a rule under policies/
";
    assert_eq!(configured.run(&["policy", "explain", "bash"])?, well(by_default));
    let (code, stdout, _) = configured.run(&["policy", "explain", "bash", "--json"])?;
    let json: serde_json::Value = serde_json::from_str(&stdout)?;
    let expected = serde_json::json!({
        "tool": "bash",
        "decision": "denied",
        "rule": "default-deny",
        "place": null,
        "why": "no rule allows `bash`",
        "hint": "the operator can allow it with a rule under policies/",
    });
    assert_eq!((code, json), (Some(0), expected));
    Ok(())
}
