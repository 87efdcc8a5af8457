//! The escape corpus, an attack a test: `cofferdam selftest` as an ordinary user, and as root in the
//! thorough part of the tests.
//!
//! The whole corpus runs once for each of them, as a user would run it; a test is the verdict on
//! its attack. The self-test's own report of a protection that fails is tested at the end.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use crate::support::{
    Caller, Check, Failed, Finished, For, Need, Part, Who, equal, holds, patience,
};
use selftest::corpus::corpus;
use serde_json::Value;

/// Returns the time for the whole corpus on a machine that does other things as well.
fn whole() -> Duration {
    3 * patience()
}

type Checked = fn(&Caller) -> Check;

/// Tests that are no attack.
const OTHERS: [(&str, For, Checked); 6] = [
    ("a_sandbox_that_holds_nothing_is_a_breach", For::Both, nothing_held),
    ("a_sandbox_that_holds_nothing_is_left_as_it_was", For::User, nothing_left),
    ("an_interrupted_self_test_leaves_nothing", For::User, nothing_left_by_an_interrupt),
    ("a_sandbox_that_does_not_start_is_unavailable", For::Both, not_started),
    ("the_reports_agree", For::Both, reports_agree),
    ("an_unknown_attack_is_refused", For::Both, unknown),
];

/// Returns the names of all tests of the parts that are asked for.
pub fn names() -> Vec<(String, For)> {
    let probes = corpus().unwrap_or_else(|error| panic!("{error}"));
    // The whole corpus takes more than a minute for each caller.
    let attacks =
        |whom| probes.iter().map(move |probe| (format!("{} {}", probe.id, probe.title), whom));
    let mut names: Vec<(String, For)> = Vec::new();
    if Part::Usual.is_asked() {
        names.extend(attacks(For::User));
        names.extend(OTHERS.iter().map(|(name, whom, _)| ((*name).to_owned(), *whom)));
    }
    if Part::Thorough.is_asked() {
        names.extend(attacks(For::Root));
    }
    names
}

pub fn check(caller: &Caller, name: &str) -> Check {
    match OTHERS.iter().find(|(other, ..)| *other == name) {
        Some((_, _, check)) => check(caller),
        None => is_held(caller, name.split(' ').next().unwrap_or_default()),
    }
}

/// The verdicts by id.
type Verdicts = Result<BTreeMap<String, Value>, String>;

/// The verdicts of one run of the corpus for each caller.
fn verdicts(caller: &Caller) -> &'static Verdicts {
    static OF_ROOT: OnceLock<Verdicts> = OnceLock::new();
    static OF_USER: OnceLock<Verdicts> = OnceLock::new();
    let place = match caller.who {
        Who::Root => &OF_ROOT,
        Who::User => &OF_USER,
    };
    place.get_or_init(|| {
        let output = Finished::run(caller.cofferdam(&["selftest", "--json"]), whole());
        let output = output.map_err(|failed| format!("{:?}", failed.message()))?;
        let report: Value = serde_json::from_str(&output.stdout)
            .map_err(|error| format!("no JSON ({error}): {output:?}"))?;
        let probes = report.get("probes").and_then(Value::as_array).cloned().unwrap_or_default();
        let named = probes
            .into_iter()
            .filter_map(|probe| Some((probe.get("id").and_then(Value::as_str)?.to_owned(), probe)));
        Ok(named.collect())
    })
}

fn is_held(caller: &Caller, id: &str) -> Check {
    let found = verdicts(caller).as_ref().map_err(Failed::from)?;
    let found = found.get(id).ok_or("no verdict")?;
    let text = |field| found.get(field).and_then(Value::as_str).unwrap_or_default();
    // Known ones are those listed in SECURITY.md.
    let is_held = match text("verdict") {
        "held" | "known" => true,
        "not_applicable" => {
            let must_run = std::env::var_os("COFFERDAM_MUST_RUN").is_some();
            // Take it on other processors than x86, on which every attack has its calls.
            let is_of_x86 = cfg!(not(target_arch = "x86_64")) && text("why").starts_with(NO_CALL);
            let is_without_node = Need::Node.is_excused() && text("why").contains(WITHOUT_NODE);
            OF_THE_OTHER.contains(&text("why")) || is_of_x86 || is_without_node || !must_run
        }
        _ => false,
    };
    holds("held", found, is_held)
}

/// Reasons why an attack does not apply to this caller. Any other reason is something that the machine lacks.
const OF_THE_OTHER: [&str; 2] = ["for root only", "for ordinary users only"];

/// In the reasons for an attack by Node on a machine without it: the attack or its control needs it.
const WITHOUT_NODE: &str = "needs `node`, which ";

/// Beginning of the reason for an attack whose call another architecture has.
const NO_CALL: &str = "processors of this kind have no call";

/// The positive control of the self-test: env(1) holds nothing back.
fn nothing_held(caller: &Caller) -> Check {
    for (id, seen) in [
        ("F01", "a secret of the host was printed"),
        ("P01", "a process of the host was hurt"),
        ("P19", "a process outlived the call"),
        ("N01", "a TCP listener of the host was reached"),
        ("N15", "a listener of the program was reached from the host"),
        ("N36", "System V or POSIX objects were left on the host"),
        ("I21", "exit 0"),
        ("K91", "`made`, exit 0"),
    ] {
        let output =
            Finished::run(caller.cofferdam(&["selftest", "--target", "env", id]), whole())?;
        let breach = output.stdout.starts_with("BREACH") && output.stdout.contains(seen);
        holds(id, &output, output.code == 1 && breach)?;
    }
    Ok(())
}

/// Prints what is left on a host: files, objects, queues, and processes but the one that looks.
const LEFT: &str = r#"
    find /tmp /var/tmp /dev/shm /mnt/queues -mindepth 1 | head -n 20
    for kind in shm msg sem; do tail -n +2 /proc/sysvipc/$kind; done
    for at in /proc/[0-9]*; do [ $at = /proc/$$ ] || ! tr '\0' ' ' 2>/dev/null <$at/cmdline; done
"#;

/// Bash on a host that may be harmed: with separate mounts, objects and processes that end with it.
/// There, `selftest` is the command as an ordinary user, and `left` prints what is left.
fn on_a_host(caller: &Caller, done: &str) -> Result<Finished, Failed> {
    let script = format!(
        r#"mount -t tmpfs none /mnt && cp "$0" /mnt/cofferdam && mkdir /mnt/queues || exit 90
        mount -t mqueue none /mnt/queues || exit 91
        for at in /tmp /var/tmp /dev/shm; do
            mount -t tmpfs -o mode=1777,size=3G,nr_inodes=1M none $at || exit 92
        done
        selftest() {{
            setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all \
                /mnt/cofferdam selftest "$@"
        }}
        left() {{ {LEFT} }}
        cd /; {done}"#
    );
    let mut command = caller.outside("unshare");
    command.args(["--user", "--map-current-user", "--keep-caps", "--mount", "--ipc", "--pid"]);
    command.args(["--fork", "--kill-child", "--mount-proc", "bash", "-c", &script]);
    command.arg(caller.binary());
    Finished::run(command, whole())
}

/// The control: what attacks leave is seen.
fn residue_is_seen(caller: &Caller) -> Check {
    let seen = on_a_host(
        caller,
        "left; echo; >/tmp/file; >/dev/shm/object; ipcmk -Q >&2; sleep 50 & left",
    )?;
    let lines: Vec<&str> = seen.stdout.lines().filter(|line| !line.is_empty()).collect();
    let expected = ["/tmp/file", "/dev/shm/object"];
    equal("files", lines.get(..2), Some(&expected[..]))?;
    let is_left = |word: &str| lines.iter().any(|line| line.contains(word));
    holds("a queue and a process", &seen, lines.len() == 4 && is_left("644") && is_left("sleep 50"))
}

/// For an ordinary user: as root the corpus would reach beyond what namespaces hold.
fn nothing_left(caller: &Caller) -> Check {
    residue_is_seen(caller)?;
    let output =
        on_a_host(caller, "selftest --target env --json >/mnt/report; left; cat /mnt/report")?;
    let (left, report) = output.stdout.split_once('{').ok_or("no report")?;
    equal("left", left, "")?;
    let report: Value = serde_json::from_str(&format!("{{{report}"))?;
    let breaches = report.get("breaches").and_then(Value::as_u64).unwrap_or_default();
    // Otherwise there was nothing that could have been left.
    holds("breaches", &report, breaches > 150)
}

/// While a process sleeps, a directory stands and a daemon runs.
fn nothing_left_by_an_interrupt(caller: &Caller) -> Check {
    let output = on_a_host(
        caller,
        "(sleep 2; kill -INT $(pidof cofferdam)) & selftest --target env P24 P19 P20 P21; \
        echo code $?; wait; left",
    )?;
    equal("interrupted", output.stdout.as_str(), "code 130\n")
}

fn not_started(caller: &Caller) -> Check {
    for target in ["/nowhere/sandbox", "false", "echo"] {
        let output =
            Finished::run(caller.cofferdam(&["selftest", "--target", target, "F01"]), whole())?;
        let words = (output.code, output.stdout.as_str());
        equal(target, words, (3, ""))?;
        holds(target, &output.stderr, output.stderr.starts_with("cofferdam: selftest: "))?;
    }
    Ok(())
}

fn reports_agree(caller: &Caller) -> Check {
    let file = caller.home.join("report.xml");
    let path = file.display().to_string();
    let output = Finished::run(
        caller.cofferdam(&["selftest", "F01", "P01", "--json", "--junit", &path]),
        whole(),
    )?;
    let report: Value = serde_json::from_str(&output.stdout)?;
    let counts = ["held", "breaches", "no_verdict"].map(|name| report.get(name).cloned());
    equal("json", counts, [2, 0, 0].map(|count| Some(Value::from(count))))?;
    equal("code and log", (output.code, output.stderr.as_str()), (0, ""))?;
    let junit = std::fs::read_to_string(&file)?;
    holds(
        "junit",
        &junit,
        junit.contains("tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"0\""),
    )?;
    let output = Finished::run(caller.cofferdam(&["selftest", "F01", "P01"]), whole())?;
    let last = output.stdout.lines().last().map(|line| line.split_whitespace().collect::<Vec<_>>());
    equal("table", last, Some(vec!["all", "2", "0", "0", "0", "0", "0"]))?;
    failures_are_in_the_log(caller)
}

/// The JSON object is on standard output, and what failed is in plain words on standard error.
fn failures_are_in_the_log(caller: &Caller) -> Check {
    let attack = ["selftest", "--json", "--target", "env", "F01"];
    let output = Finished::run(caller.cofferdam(&attack), whole())?;
    let report: Value = serde_json::from_str(&output.stdout)?;
    equal("breaches", report.get("breaches"), Some(&Value::from(1)))?;
    let log: Vec<&str> = output.stderr.lines().collect();
    let first = log.first().copied().unwrap_or_default();
    holds("the attack", &output, first.starts_with("BREACH     F01  "))?;
    let last = "selftest: of 1 attacks, 1 got through, and 0 showed nothing either way";
    equal("its count", (output.code, log.last().copied()), (1, Some(last)))
}

fn unknown(caller: &Caller) -> Check {
    let output = Finished::run(caller.cofferdam(&["selftest", "F999"]), whole())?;
    let expected = "cofferdam: selftest: there is no attack `F999`\n\
        hint: cofferdam selftest --list names them\n";
    equal("F999", (output.code, output.stderr.as_str()), (125, expected))
}
