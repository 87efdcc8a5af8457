//! Conditions of containers and distributions, made here: told apart by doctor, never a weaker run.

mod support;

use std::process::{Command, ExitCode};

use serde_json::Value;
use support::{Caller, Check, Need, PATIENCE, Told, Who, claim, equal, holds};

fn main() -> ExitCode {
    const TOOLS: &[Need] = &[Need::Unshare, Need::Bc];
    support::main(&[
        claim("here_doctor_finds_everything", healthy).needs(TOOLS),
        claim("a_masked_proc_is_told_with_its_remedy", masked_doctor).needs(TOOLS),
        claim("under_a_masked_proc_bash_is_refused_and_bc_runs", masked_runs).needs(TOOLS),
        claim("no_user_namespaces_is_told_with_its_remedy", none_doctor).needs(TOOLS),
        claim("without_user_namespaces_everything_is_refused", none_runs).needs(TOOLS),
        claim("root_of_a_user_namespace_is_not_taken_for_the_hosts", inner_root).needs(TOOLS),
    ])
}

/// A line of a shell in a container that masks a part of `/proc`, as container engines do.
fn masked(caller: &Caller, line: &str) -> Command {
    let mask = "mount --bind /dev/null /proc/keys";
    let mut command = caller.outside("unshare");
    let namespaces = ["--mount", "--pid", "--fork", "--mount-proc"];
    match caller.who {
        Who::Root => command.args(namespaces).args(["bash", "-c", &format!("{mask}; {line}")]),
        Who::User => {
            let own = as_the_user(caller, line);
            command.args(["--user", "--map-root-user"]).args(namespaces);
            command.args(["bash", "-c", &format!("{mask}; {own}")])
        }
    };
    command
}

/// A line where no user namespace can be made: in one that allows no further one. The host's own
/// setting stays as it is.
fn none(caller: &Caller, line: &str) -> Command {
    let set = |most: u8| format!("echo {most} > /proc/sys/user/max_user_namespaces");
    let mut command = caller.outside("unshare");
    command.args(["--user", "--map-root-user", "bash", "-c"]);
    match caller.who {
        Who::Root => command.arg(format!("{}; {line}", set(0))),
        // The one that is left makes the caller an ordinary user again.
        Who::User => command.arg(format!("{}; {}", set(1), as_the_user(caller, line))),
    };
    command
}

fn as_the_user(caller: &Caller, line: &str) -> String {
    let (uid, gid) = (caller.uid(), caller.gid());
    format!("exec unshare --user --map-user={uid} --map-group={gid} bash -c '{line}'")
}

fn doctor(caller: &Caller) -> String {
    format!("{} doctor --json", caller.binary().display())
}

/// The verdict, and the layers that are missing with their remedies.
type Report = (i32, String, Vec<(String, String)>);

fn report(command: Command) -> Result<Report, support::Failed> {
    let told = Told::of(command, PATIENCE)?;
    let report: Value = serde_json::from_str(&told.stdout).map_err(|_| format!("{told:?}"))?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let layers = report.get("layers").and_then(Value::as_array).cloned().unwrap_or_default();
    let missing = layers.iter().filter(|layer| text(layer.get("state")) == "missing");
    let named = missing.map(|layer| (text(layer.get("name")), text(layer.get("remedy"))));
    Ok((told.code, text(report.get("verdict")), named.collect()))
}

fn healthy(caller: &Caller) -> Check {
    let mut command = caller.outside("/bin/bash");
    command.args(["-c", &doctor(caller)]);
    equal("doctor", report(command)?, (0, "can_run".to_owned(), Vec::new()))
}

const CONTAINER: &str = "start the container with --security-opt seccomp=unconfined \
    --security-opt apparmor=unconfined --security-opt systempaths=unconfined; in Kubernetes: \
    hostUsers: false, procMount: Unmasked and a seccomp profile that permits user namespaces";

fn masked_doctor(caller: &Caller) -> Check {
    let (code, verdict, missing) = report(masked(caller, &doctor(caller)))?;
    equal("doctor", (code, verdict.as_str()), (1, "cannot_run"))?;
    let remedy = format!("parts of /proc are masked here: {CONTAINER}");
    equal("the layer", missing.first(), Some(&("own /proc".to_owned(), remedy)))?;
    let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
    equal("and what follows from it", names, ["own /proc", "profile bash"])
}

fn masked_runs(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    let told = Told::of(masked(caller, &format!("{binary} calc 2^70")), PATIENCE)?;
    equal("calc", (told.code, told.said()), (0, "1180591620717411303424"))?;
    let told = Told::of(masked(caller, &format!("{binary} run -- touch ran")), PATIENCE)?;
    equal("bash's profile", (told.code, told.stdout.as_str()), (125, ""))?;
    let expected = "cofferdam: the supervisor refused the job: profile `bash` cannot be used here: \
        mounting /proc (parts of the outer /proc are masked; `cofferdam doctor` has the remedy): \
        EPERM: Operation not permitted\n";
    equal("why, and where the remedy is", told.stderr.as_str(), expected)
}

fn none_doctor(caller: &Caller) -> Check {
    let (code, verdict, missing) = report(none(caller, &doctor(caller)))?;
    equal("doctor", (code, verdict.as_str()), (1, "cannot_run"))?;
    let remedy = "as root: sysctl -w user.max_user_namespaces=15000";
    let expected = ("user namespaces".to_owned(), remedy.to_owned());
    equal("the layer", missing.first(), Some(&expected))
}

fn none_runs(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    for words in ["calc 1+1", "run -- touch ran"] {
        let told = Told::of(none(caller, &format!("{binary} {words}")), PATIENCE)?;
        equal(words, (told.code, told.stdout.as_str()), (125, ""))?;
        let why = &told.stderr;
        holds(
            "why, and the way out",
            why,
            why.starts_with("cofferdam: ") && why.contains("\nhint: "),
        )?;
    }
    Ok(())
}

/// As in a rootless container: uid 0, one id in the map, and no more rights than its user.
fn inner_root(caller: &Caller) -> Check {
    let line = format!("id -u; exec {} run -- id -u", caller.binary().display());
    let mut command = caller.outside("unshare");
    command.args(["--user", "--map-root-user", "bash", "-c", &line]);
    let told = Told::of(command, PATIENCE)?;
    match caller.who {
        Who::User => equal("a cell runs", (told.code, told.said()), (0, "0\n1000")),
        // The host's root in disguise: a cell would have host uid 0, which none may have.
        Who::Root => {
            equal("refused", (told.code, told.said()), (125, "0"))?;
            let why = "the payload has host id 0";
            support::holds("with the reason", &told.stderr, told.stderr.contains(why))
        }
    }
}
