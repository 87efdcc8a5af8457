//! The self-test on a machine that lacks programs, as a minimal image does.

use std::process::{Command, Stdio};

use crate::support::{Caller, Check, Claim, Finished, Need, PATH, claim, equal, holds, patience};
use serde_json::Value;

pub const CLAIMS: &[Claim] = &[claim("an_attack_whose_program_is_absent_is_not_tried", not_tried)
    .needs(&[Need::Unshare, Need::Setpriv, Need::RootLooks])
    .alone()];

/// Hides programs, for this shell and its children.
const HIDDEN: &str = "
    for name in setsid script unshare python3; do
        for file in $(type -ap $name); do
            target=$(readlink -f $file)
            [ ! -x $target ] || mount --bind /dev/null $target || exit 93
        done
    done";

/// What needs these programs is not tried, and other controls do without them.
fn not_tried(caller: &Caller) -> Check {
    let binary = caller.binary();
    let uid = caller.uid();
    let gid = caller.gid();
    let line = format!(
        "{HIDDEN}
        exec setpriv --reuid={uid} --regid={gid} --clear-groups {} selftest --json K64 F43 N46 P19 P37 P41",
        binary.display()
    );
    // Root hides them, for each caller of the attack.
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &line]).env_clear();
    command.env("PATH", PATH).env("HOME", &caller.home);
    command.current_dir(&caller.home).stdin(Stdio::null());
    let output = Finished::run(command, 2 * patience())?;
    let report: Value = serde_json::from_str(&output.stdout).map_err(|_| format!("{output:?}"))?;
    let results = report.get("probes").and_then(Value::as_array);
    let verdict = |result: &Value| {
        let text = |key| result.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        [text("id"), text("verdict"), text("why")]
    };
    let seen: Vec<[String; 3]> = results.into_iter().flatten().map(verdict).collect();
    let absent = |id: &str, program: &str| {
        let why = format!("not tried: its control needs `{program}`, which this machine lacks");
        [id.to_owned(), "not_applicable".to_owned(), why]
    };
    let held = |id: &str| [id, "held", ""].map(str::to_owned);
    let expected = vec![
        absent("F43", "unshare"),
        held("P19"),
        held("P37"),
        held("P41"),
        absent("N46", "python3"),
        absent("K64", "unshare"),
    ];
    equal("verdicts", seen, expected)?;
    holds("each control worked", &report, report.get("unshown") == Some(&Value::from(0)))?;
    equal("code", output.code, 0)
}
