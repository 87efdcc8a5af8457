//! Landlock: a second wall behind the mounts, seen where no mount stands before it.

use crate::support::{CALLS, Caller, Check, Claim, Finished, Need, claim, equal, holds};
use serde_json::json;

pub const CLAIMS: &[Claim] = &[
    claim("the_receipt_names_the_abi_and_what_the_canary_met", receipt),
    claim("landlock_denies_outside_and_allows_inside", outside_and_inside).needs(&[Need::Python]),
    claim("directories_can_be_listed_where_files_are_granted", listing),
    claim("a_program_cannot_signal_init_and_can_signal_its_children", signals)
        .needs(&[Need::Python, Need::LandlockScope]),
    claim("no_signal_to_init_has_an_effect", deaf).needs(&[Need::Python]),
    claim("a_profile_that_requires_a_newer_abi_is_refused", newer_abi),
    claim("links_and_renames_stay_within_the_grants", refer).needs(&[Need::Python]),
];

fn receipt(caller: &Caller) -> Check {
    let report = caller.json(&[], &["true"])?;
    equal("canary", report.pointer("/receipt/probed/landlock_path"), Some(&json!("EACCES")))?;
    let abi = report.pointer("/receipt/configured/landlock_abi").and_then(|abi| abi.as_u64());
    equal("ABI", abi, Some(u64::from(cell::landlock::kernel_abi())))
}

/// `/proc/self/mem`-like writes are not stopped by the read-only mounts of `/proc`, which is
/// mounted for writing: what refuses here is Landlock, with EACCES and not EROFS.
fn outside_and_inside(caller: &Caller) -> Check {
    let look = format!(
        "{CALLS}
print(tried(lambda: open('/proc/self/comm', 'w').write('x')), tried(lambda: open('/proc/self/oom_score_adj', 'w')))
print(tried(lambda: open('/proc/self/comm').read()), tried(lambda: open('/tmp/f', 'w').write('x')))"
    );
    equal("in a cell", caller.python(&look)?.trimmed(), "EACCES EACCES\nok ok")?;
    let control = format!("{CALLS}\nprint(tried(lambda: open('/proc/self/comm', 'w').write('x')))");
    equal("the same write outside", caller.python_outside(&control)?.trimmed(), "ok")
}

fn listing(caller: &Caller) -> Check {
    let output = caller
        .bash("ls / /usr /etc /mnt >/dev/null && ls -d /workspace; cat /tmp/.template/canary")?;
    equal("listed", output.trimmed(), "/workspace")?;
    holds(
        "the canary is covered",
        &output.stderr,
        output.stderr.contains("No such file or directory"),
    )
}

fn signals(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
print([call(62, 1, s) for s in (0, 1, 9, 15, 19)], call(62, -1, 0))
fd = os.pidfd_open(1)
print(call(424, fd, 9, None, 0), call(234, 1, 1, 9), call(200, 1, 9))
child = os.fork()
if child == 0:
    signal.pause()
os.kill(child, 9)
print(os.waitpid(child, 0)[1])"
    );
    let output = caller.python(&script)?;
    // kill(-1) finds no process but itself and init, neither of which it may signal.
    let expected = "['EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM'] EPERM\nEPERM EPERM EPERM\n9";
    if output.trimmed() == expected {
        return Ok(());
    }
    let other = expected.replace("] EPERM", "] ESRCH");
    equal("init, then its own child", output.trimmed(), other)
}

/// If Landlock does not restrict signals, the kernel still delivers none to an init that has no
/// handler for it (pid_namespaces(7)).
fn deaf(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
for s in range(1, 65):
    tried(lambda: os.kill(1, s))
child = os.fork()
if child == 0:
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(7)"
    );
    let output = caller.python(&script)?;
    equal("the program ran on, and its end is reported", (output.code, output.trimmed()), (7, "5"))
}

fn newer_abi(caller: &Caller) -> Check {
    let abi = cell::landlock::kernel_abi();
    caller.directory("config")?;
    caller.directory("config/sandbox-profiles")?;
    let run = |needed: u32| -> Result<Finished, crate::support::Failed> {
        caller.file(
            "config/sandbox-profiles/strict.toml",
            &format!(
                "schema = 1\nname = \"strict\"\nextends = \"bash\"\ndescription = \"an ABI\"\n\n\
                 [requires]\nlandlock_abi = {needed}\n"
            ),
        )?;
        let config = caller.home.join("config").display().to_string();
        let options = ["--config", &config, "run", "--profile", "strict", "--", "echo", "ran"];
        Finished::run(caller.cofferdam(&options), crate::support::patience())
    };
    let here = run(abi)?;
    equal("what this kernel has", (here.code, here.trimmed()), (0, "ran"))?;
    let newer = run(abi + 1)?;
    equal("one more", (newer.code, newer.stdout.as_str()), (125, ""))?;
    let why = format!("Landlock ABI {} is required, this kernel has {abi}", abi + 1);
    holds("why", &newer.stderr, newer.stderr.contains(&why))
}

fn refer(caller: &Caller) -> Check {
    let granted = caller.directory("granted")?;
    caller.file("granted/file", "text\n")?;
    let ask = granted.display().to_string();
    let look = format!(
        "{CALLS}
os.chdir('/workspace'); os.mkdir('d')
print(tried(lambda: os.link('file', 'd/hard')), tried(lambda: os.rename('file', 'd/file')))
print(tried(lambda: os.link('d/file', '/tmp/hard')), tried(lambda: os.rename('d/file', '/tmp/file')))"
    );
    let output = caller.run(&["--rw", &ask], &["/usr/bin/python3", "-c", &look])?;
    equal("within and across", output.trimmed(), "ok ok\nEXDEV EXDEV")?;
    let both = [granted.join("d/hard").exists(), granted.join("d/file").exists()];
    equal("from outside", both, [true, true])
}
