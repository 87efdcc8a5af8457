//! Capabilities and no_new_privs, as the host's kernel shows them for the program.

use crate::support::{CALLS, Caller, Check, Claim, For, Need, claim, equal, holds, status};

pub const CLAIMS: &[Claim] = &[
    claim("all_five_sets_of_program_and_init_are_empty", empty),
    claim("no_new_privs_is_set_and_stays", no_new_privs).needs(&[Need::Python]),
    claim("a_set_uid_program_gives_nothing", set_uid).only(For::Root),
    claim("what_needs_a_capability_is_refused", refused).needs(&[Need::Python]),
];

const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

fn empty(caller: &Caller) -> Check {
    let live = caller.live(&[], "sleep 60")?;
    for (role, pid) in [("init", live.init()?), ("payload", live.payload()?)] {
        let output = status(pid)?;
        equal(role, SETS.map(|set| output.get(set).to_owned()), SETS.map(|_| "0".repeat(16)))?;
    }
    // The control: the field is not empty for everybody.
    let own = status(std::process::id())?;
    holds("the test's own bounding set", own.get("CapBnd"), own.get("CapBnd") != "0".repeat(16))
}

fn no_new_privs(caller: &Caller) -> Check {
    let live = caller.live(&[], "sleep 60")?;
    equal("from outside", status(live.payload()?)?.get("NoNewPrivs"), "1")?;
    equal("the control", status(std::process::id())?.get("NoNewPrivs"), "0")?;
    // PR_SET_NO_NEW_PRIVS with 0 is no such thing.
    let output = caller
        .python(&format!("{CALLS}\nprint(call(157, 38, 0, 0, 0, 0), call(157, 39, 0, 0, 0, 0))"))?;
    let [set, get] = output.trimmed().split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("{output:?}").into());
    };
    holds("taking it back", set, set == "EINVAL" || set == "EPERM")?;
    equal("it is still set", get, "1")
}

/// A copy of id(1) that belongs to root and is set-user-id, granted to a cell.
fn set_uid(caller: &Caller) -> Check {
    let directory = caller.directory("tools")?;
    let copy = directory.join("id");
    std::fs::copy("/usr/bin/id", &copy)?;
    crate::support::mode(&copy, 0o4755)?;
    let ask = format!("{}:/mnt/tools", directory.display());
    let output = caller.run(&["--ro", &ask], &["/mnt/tools/id", "-u"])?;
    equal("in a cell", (output.code, output.trimmed()), (0, "1000"))?;
    let mut control = std::process::Command::new("setpriv");
    control.args(["--reuid", "64321", "--clear-groups"]).arg(&copy).arg("-u");
    equal(
        "outside",
        crate::support::Finished::run(control, crate::support::patience())?.trimmed(),
        "0",
    )
}

fn refused(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
s = socket.socket()
print(tried(lambda: os.chown('/tmp/home', 0, 0)), tried(lambda: os.nice(-1)))
print(tried(lambda: s.setsockopt(socket.SOL_SOCKET, 36, 1)), tried(lambda: s.bind(('127.0.0.1', 0))))
print(tried(lambda: os.mknod('/tmp/fifo', 0o10600)), tried(lambda: os.mknod('/tmp/null', 0o20600, 0x103)))
print(call(161, b'/tmp'), call(169, 0, 0, 0, None), call(103, 2, None, 0))"
    );
    let output = caller.python(&script)?;
    // os.nice passes EPERM of setpriority through; a mark needs CAP_NET_ADMIN.
    let expected = "EPERM EPERM\nEPERM ok\nok EPERM\nEPERM EPERM EPERM";
    equal("each with its control", output.trimmed(), expected)
}
