//! User and group ids of a program, inside its cell and on the host.

use crate::support::{Caller, Check, Claim, Finished, For, Need, Who, claim, equal, holds, status};

pub const CLAIMS: &[Claim] = &[
    claim("a_program_is_agent_1000_in_its_cell", agent),
    claim("a_cell_cannot_exhaust_the_users_inotify_instances", inotify).needs(&[Need::Python]),
    claim("no_process_of_a_cell_has_the_hosts_uid_0", never_root),
    claim("two_cells_at_once_have_two_host_ids", distinct).only(For::Root),
    claim("an_ordinary_user_is_the_same_user_on_the_host", same_user).only(For::User),
    claim("supplementary_groups_of_root_are_dropped", groups_dropped)
        .only(For::Root)
        .needs(&[Need::Setpriv]),
    claim("supplementary_groups_are_reported", groups_reported)
        .only(For::User)
        .needs(&[Need::Setpriv, Need::RootLooks]),
    claim("no_other_id_can_be_taken", own_id_only).needs(&[Need::Python]),
];

fn agent(caller: &Caller) -> Check {
    let output = caller.bash("id; echo $HOME; whoami")?;
    let expected = if caller.who == Who::Root || !kept_groups(caller)? {
        "uid=1000(agent) gid=1000(agent) groups=1000(agent)\n/tmp/home\nagent"
    } else {
        "uid=1000(agent) gid=1000(agent) groups=1000(agent),65534(nogroup)\n/tmp/home\nagent"
    };
    equal("id, HOME, whoami", output.trimmed(), expected)
}

/// Returns true if the caller has supplementary groups, which show as nogroup in a cell.
fn kept_groups(caller: &Caller) -> Result<bool, crate::support::Failed> {
    Ok(caller.bash_outside("id -G")?.trimmed().contains(' '))
}

fn never_root(caller: &Caller) -> Check {
    let live = caller.live(&[], "sleep 60 & wait")?;
    let init = live.init()?;
    let bash = live.payload()?;
    // The process that made the cell may be there for a moment, and the sleep not yet.
    let end = std::time::Instant::now() + crate::support::patience();
    let cell = loop {
        let all = [init]
            .into_iter()
            .chain(crate::support::children(init))
            .chain(crate::support::children(bash));
        let all: Vec<u32> = all.collect();
        if all.len() == 3 || std::time::Instant::now() > end {
            break all;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    equal("init, bash and its sleep", cell.len(), 3)?;
    for pid in cell {
        for name in ["Uid", "Gid"] {
            let ids = status(pid)?.ids(name);
            holds(name, &ids, ids.len() == 4 && !ids.contains(&0))?;
        }
    }
    let supervisor = status(live.supervisor()?)?;
    holds("the supervisor", &supervisor, !supervisor.ids("Uid").contains(&0))?;
    equal("the caller is who they are", status(live.pid())?.ids("Uid"), [caller.uid(); 4])
}

fn distinct(caller: &Caller) -> Check {
    let one = caller.live(&[], "sleep 60")?;
    let two = caller.live(&[], "sleep 60")?;
    let mut ids = Vec::new();
    for pid in [one.supervisor()?, one.payload()?, two.supervisor()?, two.payload()?] {
        ids.extend(status(pid)?.ids("Uid").first().copied());
    }
    ids.sort_unstable();
    ids.dedup();
    equal("four host ids of two calls", ids.len(), 4)?;
    holds("none is anybody's", &ids, ids.iter().all(|id| *id > 0xffff))
}

fn same_user(caller: &Caller) -> Check {
    let live = caller.live(&[], "sleep 60")?;
    let output = status(live.payload()?)?;
    equal("Uid", output.ids("Uid"), [caller.uid(); 4])
}

/// Runs a line as the caller with a group more than their own.
fn with_group(caller: &Caller, line: &str) -> Result<Finished, crate::support::Failed> {
    let mut command = std::process::Command::new("setpriv");
    let uid = caller.uid().to_string();
    command.env_clear().env("HOME", &caller.home).env("PATH", "/usr/bin:/bin");
    command.args(["--reuid", &uid, "--regid", &uid, "--groups", "4,64322", "bash", "-c", line]);
    Finished::run(command, crate::support::patience())
}

/// A file that only the group 64322 may read, at `/mnt/secret` in the cell.
fn secret(caller: &Caller) -> Result<String, crate::support::Failed> {
    let path = caller.home.join("secret");
    std::fs::write(&path, "of the group\n")?;
    std::os::unix::fs::chown(&path, Some(64_323), Some(64_322))?;
    crate::support::mode(&path, 0o640)?;
    Ok(path.display().to_string())
}

fn groups_dropped(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    let report = with_group(caller, &format!("id -G; {binary} run -- id -G"))?;
    equal("outside and in a cell", report.trimmed(), "0 4 64322\n1000")?;
    let report =
        with_group(caller, &format!("{binary} run --json -- grep Groups /proc/self/status"))?;
    let report: serde_json::Value = serde_json::from_str(&report.stdout)?;
    let groups = report.pointer("/receipt/measured/supplementary_groups");
    equal("the receipt", groups, Some(&serde_json::json!([])))
}

fn groups_reported(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    let secret = secret(caller)?;
    let report =
        with_group(caller, &format!("{binary} run --json --ro {secret} -- cat /mnt/secret"))?;
    let report: serde_json::Value = serde_json::from_str(&report.stdout)?;
    let groups = report.pointer("/receipt/measured/supplementary_groups");
    equal("the receipt", groups, Some(&serde_json::json!([4, 64322])))?;
    // The reason for the report: the kernel keeps these groups, and their files are open to them.
    equal("what the group opens", report.get("stdout"), Some(&"of the group\n".into()))
}

fn own_id_only(caller: &Caller) -> Check {
    let script = format!(
        "{}\nprint([tried(lambda: os.setresuid(i, i, i)) for i in (0, 1, 65534, 1000)])\n\
         print([tried(lambda: os.setresgid(i, i, i)) for i in (0, 1, 65534, 1000)])\n\
         print(tried(lambda: os.setgroups([0])))",
        crate::support::CALLS
    );
    let output = caller.python(&script)?;
    // The answer to any program without the privilege; for ids that the namespace lacks the kernel would say EINVAL.
    let one = "['EPERM', 'EPERM', 'EPERM', 'ok']";
    equal("setresuid, setresgid, setgroups", output.trimmed(), format!("{one}\n{one}\nEPERM"))?;
    let script = format!(
        "{}
ids = (0, 65534, 1000)
print([tried(lambda: f(i)) for f in (os.setuid, os.setgid) for i in ids])
print([tried(lambda: f(i, -1)) for f in (os.setreuid, os.setregid) for i in ids])
open('/tmp/f', 'w').close()
held = os.open('/tmp/f', os.O_RDONLY)
ways = [lambda u, g: os.chown('/tmp/f', u, g), lambda u, g: os.lchown('/tmp/f', u, g),
        lambda u, g: os.fchown(held, u, g), lambda u, g: os.chown('f', u, g, dir_fd=os.open('/tmp', os.O_RDONLY))]
for way in ways:
    print([tried(lambda: way(u, g)) for u, g in ((0, 0), (0, -1), (-1, 0), (1000, 0), (1000, 1000), (-1, -1), (1000, -1))])",
        crate::support::CALLS
    );
    let output = caller.python(&script)?;
    let ids = "['EPERM', 'EPERM', 'ok', 'EPERM', 'EPERM', 'ok']";
    let owners = "['EPERM', 'EPERM', 'EPERM', 'EPERM', 'ok', 'ok', 'ok']";
    equal("by each call", output.trimmed(), [ids, ids, owners, owners, owners, owners].join("\n"))?;
    let output = caller.json(&[], &["chown", "0:0", "/tmp"])?;
    equal("is not counted as a denial", crate::support::denials(&output), Vec::new())
}

/// The kernel counts them for the host's user as well, 128 by default (inotify(7)).
fn inotify(caller: &Caller) -> Check {
    let script = "import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
n = 0
while n < 20 and libc.inotify_init1(0) >= 0: n += 1
print(n, errno.errorcode.get(ctypes.get_errno()))";
    let outside = caller.bash_outside(&format!("/usr/bin/python3 -c '{script}'"))?;
    equal("outside", outside.trimmed(), "20 None")?;
    equal("in a cell", caller.python(script)?.trimmed(), "4 EMFILE")
}
