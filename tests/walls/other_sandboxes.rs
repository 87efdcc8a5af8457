//! `selftest` against other sandboxes: a weakened one is found out where it is weak, and only there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{
    Caller, Check, Claim, Failed, Finished, For, Need, claim, equal, holds, patience,
};

pub fn claims() -> [Claim; 8] {
    [
        claim("a_weakened_bwrap_is_found_out_where_it_is_weak", bwrap_weakened)
            .only(For::User)
            .wants(&[Need::Bwrap]),
        claim("a_weakened_cofferdam_is_found_out_where_it_is_weak", own_weakened).only(For::User),
        claim("two_runs_have_the_same_verdicts", same_verdicts)
            .only(For::User)
            .wants(&[Need::Bwrap]),
        claim("a_server_without_a_sandbox_is_found_out", bare_server)
            .only(For::User)
            .needs(&[Need::Python]),
        claim("a_server_with_cells_holds", own_server).only(For::User),
        claim("random_calls_touch_nothing_outside_of_a_cell", fuzzed),
        claim("random_calls_find_a_weakened_bwrap", fuzzed_bwrap)
            .only(For::User)
            .wants(&[Need::Bwrap]),
        claim("random_calls_are_not_made_where_the_host_is_shared", not_fuzzed).only(For::User),
    ]
}

/// A secret of the host, a planted file, a TCP listener, a process, a process that outlives the call, and
/// a system call that only a wider profile allows.
const ATTACKS: [&str; 6] = ["F01", "F34", "N01", "P01", "P19", "K10"];

/// Returns the directory in which the targets of attacks are made.
fn stages(caller: &Caller) -> Result<PathBuf, Failed> {
    let path = caller.home.join("stages");
    if path.exists() { Ok(path) } else { caller.directory("stages") }
}

type Verdicts = BTreeMap<String, String>;

/// Runs attacks and returns the verdicts by id.
fn verdicts(
    caller: &Caller,
    stages: &Path,
    arguments: &[&str],
    ids: &[&str],
) -> Result<Verdicts, Failed> {
    let mut command = caller.cofferdam(&["selftest", "--json"]);
    command.args(arguments).args(ids).env("TMPDIR", stages);
    let output = Finished::run(command, patience() * 2)?;
    by_id(&output)
}

fn by_id(output: &Finished) -> Result<Verdicts, Failed> {
    let report: Value =
        serde_json::from_str(&output.stdout).map_err(|error| format!("{error}: {output:?}"))?;
    let probes = report.get("probes").and_then(Value::as_array).ok_or("no attacks")?;
    let text =
        |probe: &Value, name: &str| probe.get(name).and_then(Value::as_str).map(str::to_owned);
    Ok(probes
        .iter()
        .filter_map(|probe| Some((text(probe, "id")?, text(probe, "verdict")?)))
        .collect())
}

/// Compares the breaches with the ids of those expected. All others must be held.
fn breaches_are(
    caller: &Caller,
    stages: &Path,
    target: &str,
    expected: &[&str],
    ids: &[&str],
) -> Check {
    let found = verdicts(caller, stages, &["--target", target], ids)?;
    let verdict = |id: &&str| if expected.contains(id) { "breach" } else { "held" };
    let all = ids.iter().map(|id| ((*id).to_owned(), verdict(id).to_owned())).collect::<Verdicts>();
    equal(target, found, all)
}

/// A separate root with `/usr`, and all namespaces; each variant lacks one thing.
fn bwrap_weakened(caller: &Caller) -> Check {
    const ROOT: &str = "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
        --proc /proc --dev /dev --tmpfs /tmp --ro-bind {probe} {probe}";
    // All but the last: bwrap loads no filter by itself.
    let ids = &ATTACKS[..5];
    let stages = &stages(caller)?;
    let bwrap =
        |root: &str, namespaces: &str| format!("bwrap {root} {namespaces} --die-with-parent {{}}");
    breaches_are(caller, stages, &bwrap(ROOT, "--unshare-all"), &[], ids)?;
    // The control of the others: the same with one wall less.
    breaches_are(
        caller,
        stages,
        &bwrap("--ro-bind / / --proc /proc", "--unshare-all"),
        &["F01"],
        ids,
    )?;
    breaches_are(
        caller,
        stages,
        &bwrap("--dev-bind / / --proc /proc", "--unshare-all"),
        &["F01", "F34"],
        ids,
    )?;
    breaches_are(caller, stages, &bwrap(ROOT, "--unshare-all --share-net"), &["N01"], ids)?;
    let namespaces = "--unshare-user --unshare-ipc --unshare-net --unshare-uts";
    breaches_are(caller, stages, &bwrap(ROOT, namespaces), &["P01", "P19"], ids)
}

/// A grant too many, and a call too many.
fn own_weakened(caller: &Caller) -> Check {
    let program = caller.binary().display().to_string();
    // Not in /tmp, which is the cell's: a directory is granted at its own path.
    let stages = tempfile::Builder::new().prefix("cofferdam-test-").tempdir_in("/var/tmp")?;
    let stages = stages.path();
    caller.own(stages)?;
    let own = |options: &str| format!("{program} run --ro {{probe}}:{{probe}} {options} --");
    breaches_are(caller, stages, &own(""), &[], &ATTACKS)?;
    let grant = format!("--ro {0}:{0}", stages.display());
    breaches_are(caller, stages, &own(&grant), &["F01"], &ATTACKS)?;
    let config = caller.directory("weak")?;
    caller.directory("weak/sandbox-profiles")?;
    caller.file(
        "weak/sandbox-profiles/weak.toml",
        "schema = 1\nname = \"weak\"\nextends = \"bash\"\ndescription = \"asynchronous input and output\"\n\n\
         [[syscalls]]\nwhy = \"a mistake\"\nnames = [\"io_setup\"]\n",
    )?;
    let weak = format!(
        "{program} --config {} run --profile weak --ro {{probe}}:{{probe}} --",
        config.display()
    );
    breaches_are(caller, stages, &weak, &["K10"], &ATTACKS)
}

fn same_verdicts(caller: &Caller) -> Check {
    let ids = ["F01", "F29", "F34", "N01", "N03", "N36", "P01", "P19", "K10", "K64", "I21", "I28"];
    let targets: [&[&str]; 2] = [&[], &["--target", "bwrap"]];
    let stages = &stages(caller)?;
    for target in targets {
        let first = verdicts(caller, stages, target, &ids)?;
        equal("number of verdicts", first.len(), ids.len())?;
        equal("second run", verdicts(caller, stages, target, &ids)?, first)?;
    }
    Ok(())
}

/// A server of MCP whose tool is a plain shell, and which repeats the command in its answer.
const BARE_SERVER: &str = r#"
import json, subprocess, sys
def result(message):
    method = message["method"]
    if method == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "bare", "version": "1"}}
    if method == "tools/list":
        return {"tools": [{"name": "shell", "inputSchema": {"type": "object"}}]}
    line = message["params"]["arguments"]["script"]
    done = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    return {"content": [{"type": "text", "text": "$ " + line + "\n" + done.stdout.decode(errors="replace")}]}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result(message)}), flush=True)
"#;

/// Runs attacks against a server on the standard streams of a command.
fn served(
    caller: &Caller,
    options: &[&str],
    ids: &str,
    server: &[&str],
) -> Result<Finished, Failed> {
    let mut command = caller.cofferdam(&["selftest", "serve", "--json", "--id", ids]);
    command.args(options).arg("--").args(server).env("TMPDIR", stages(caller)?);
    Finished::run(command, patience() * 2)
}

fn bare_server(caller: &Caller) -> Check {
    let script = caller.file("server.py", BARE_SERVER)?.display().to_string();
    let server = ["/usr/bin/python3", script.as_str()];
    let tool = ["--tool", "shell", "--argument", "script"];
    // A process of the host is hurt only where harm is allowed.
    let ids = "F01,F34,N01,P01,P19,F08,R01";
    let output = served(caller, &tool, ids, &server)?;
    let verdicts = by_id(&output)?;
    let of = |id: &str| verdicts.get(id).map(String::as_str);
    let breach = Some("breach");
    let expected =
        [breach, breach, breach, breach, breach, Some("not_applicable"), Some("not_applicable")];
    let found = ["F01", "F34", "N01", "P01", "P19", "F08", "R01"].map(of);
    equal("verdicts", (found, output.code), (expected, 1))?;
    // A tool that the server does not have.
    let output = served(caller, &[], "F01", &server)?;
    let message =
        "cofferdam: selftest: the server has no tool `bash`\nhint: --tool names one of: shell\n";
    equal("no tool", (output.code, output.stderr.as_str()), (3, message))
}

fn own_server(caller: &Caller) -> Check {
    let program = caller.binary().display().to_string();
    let server = [program.as_str(), "serve", "--tools", "shell"];
    let output = served(caller, &[], "F01,F34,N01,P01,P19,I21", &server)?;
    let verdicts = by_id(&output)?;
    let held = verdicts.values().filter(|verdict| *verdict == "held").count();
    equal("held", (held, output.code), (6, 0))?;
    holds("verdicts", &verdicts, verdicts.len() == 6)
}

fn fuzzed(caller: &Caller) -> Check {
    let output = Finished::run(
        caller.cofferdam(&["fuzz", "--seed", "7", "--rounds", "2", "--json"]),
        patience() * 2,
    )?;
    let report: Value =
        serde_json::from_str(&output.stdout).map_err(|error| format!("{error}: {output:?}"))?;
    let field = |name: &str| report.get(name).cloned().unwrap_or_default();
    let seen = (field("seed"), field("rounds"), field("touched"), output.code);
    equal("report", &seen, &(Value::from(7), Value::from(2), Value::Null, 0))?;
    holds("calls", &report, field("calls").as_u64().is_some_and(|calls| calls > 500))
}

/// The host's files are writable there, and the seed of the breach plays it again.
fn fuzzed_bwrap(caller: &Caller) -> Check {
    const WEAK: &str = "bwrap --dev-bind / / --proc /proc --unshare-pid --unshare-net {}";
    let stages = stages(caller)?;
    let report = |seed: &str, rounds: &str| {
        let mut command = caller.cofferdam(&["fuzz", "--json", "--target", WEAK, "--seed", seed]);
        command.args(["--rounds", rounds]).env("TMPDIR", &stages);
        let output = Finished::run(command, patience() * 2)?;
        let report: Value =
            serde_json::from_str(&output.stdout).map_err(|error| format!("{error}: {output:?}"))?;
        let touched = report.get("touched").cloned().unwrap_or_default();
        Ok::<_, Failed>((touched, output.code))
    };
    let (first, code) = report("1", "20")?;
    holds("touched", &first, first.is_object())?;
    equal("code", code, 1)?;
    let seed = first.get("seed").and_then(Value::as_u64).ok_or("no seed")?;
    let (again, _) = report(&seed.to_string(), "1")?;
    equal("the same seed", again.get("seed").cloned(), first.get("seed").cloned())
}

fn not_fuzzed(caller: &Caller) -> Check {
    let output =
        Finished::run(caller.cofferdam(&["fuzz", "--target", "env", "--rounds", "1"]), patience())?;
    let message = "cofferdam: fuzz: the sandbox shares processes or mounts with the host, which random calls may harm\n\
        hint: on a machine that is thrown away afterwards: --disposable\n";
    equal("env", (output.code, output.stderr.as_str()), (3, message))
}
