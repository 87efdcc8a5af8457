//! Locks of a cell on what it has for reading only: they are the cell's own, and the host's programs get theirs.

use std::path::Path;
use std::time::Instant;

use crate::server::{Server, story};
use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Live, Need, claim, equal, mode, patience,
};

pub const CLAIMS: &[Claim] = &[
    claim("locks_on_read_only_grants_do_not_block_the_host", apart).needs(&[Need::Python]),
    claim("locks_on_a_read_only_grant_work_within_the_cell", within).needs(&[Need::Python]),
    claim("the_next_call_sees_the_hosts_changes", seen),
    claim("the_host_can_add_files_while_a_program_waits", awaited),
];

/// Takes a lock of each kind on files below `base`, runs a program there, and waits.
fn holding(base: &str) -> String {
    format!(
        "import fcntl, os, struct, subprocess
def opened(name): return os.open('{base}/' + name, os.O_RDONLY)
def read_lock(command, held): fcntl.fcntl(held, command, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0))
whole, classic, described = map(opened, ('whole', 'classic', 'described'))
fcntl.flock(whole, fcntl.LOCK_EX | fcntl.LOCK_NB)
read_lock(fcntl.F_SETLK, classic)
read_lock(37, described)
program = subprocess.Popen(['{base}/sleep', '3600'])
print('ready', flush=True)
program.wait()"
    )
}

/// Tries what the host does with the same files: a lock of each kind, and writing to the program.
fn of_the_host(caller: &Caller, base: &Path) -> Result<String, Failed> {
    let base = base.display();
    let script = format!(
        "{CALLS}
import fcntl
def write_lock(name): fcntl.lockf(open('{base}/' + name, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)
print(tried(lambda: fcntl.flock(open('{base}/whole'), fcntl.LOCK_EX | fcntl.LOCK_NB)), *[tried(lambda: write_lock(name)) for name in ('classic', 'described')], tried(lambda: open('{base}/sleep', 'r+b')))"
    );
    let output = caller.python_outside(&script)?;
    equal("stderr", output.stderr.as_str(), "")?;
    Ok(output.trimmed().to_owned())
}

fn apart(caller: &Caller) -> Check {
    let base = caller.directory("shared")?;
    for name in ["whole", "classic", "described"] {
        caller.file(&format!("shared/{name}"), "text")?;
    }
    let copy = format!("cp /usr/bin/sleep {}/sleep", base.display());
    equal("copied", caller.bash_outside(&copy)?.code, 0)?;
    equal("before", of_the_host(caller, &base)?, "ok ok ok ok")?;
    // The control: by the same script outside each of them is held up.
    let mut outside = caller.outside("/usr/bin/python3");
    outside.args(["-c", &holding(&base.display().to_string())]);
    let live = Live::start(outside)?;
    equal("by the control", of_the_host(caller, &base)?, "EAGAIN EAGAIN EAGAIN ETXTBSY")?;
    let program = crate::support::children(live.pid());
    program
        .into_iter()
        .try_for_each(|pid| crate::support::kill(pid, nix::sys::signal::Signal::SIGKILL))?;
    live.finish(patience())?;
    equal("after the control", of_the_host(caller, &base)?, "ok ok ok ok")?;
    let grant = format!("{}:/mnt/shared", base.display());
    let argv = ["/usr/bin/python3", "-c", &holding("/mnt/shared")];
    let live = Live::start(caller.run_command(&["--ro", &grant], &argv))?;
    equal("by the cell", of_the_host(caller, &base)?, "ok ok ok ok")?;
    drop(live);
    // A workspace is granted in the same way.
    let workspace = format!("{}:/workspace", base.display());
    let argv = ["/usr/bin/python3", "-c", &holding("/workspace")];
    let _live = Live::start(caller.run_command(&["--ro", &workspace], &argv))?;
    equal("by a workspace's", of_the_host(caller, &base)?, "ok ok ok ok")
}

fn within(caller: &Caller) -> Check {
    let base = caller.directory("shared")?;
    mode(&base, 0o755)?;
    let made = "import sqlite3; c = sqlite3.connect('shared/db'); c.execute('create table t(a)'); \
        c.execute('insert into t values (42)'); c.commit(); open('shared/file', 'w').close()";
    equal("made", caller.python_outside(made)?.code, 0)?;
    let script = format!(
        "{CALLS}
import fcntl, sqlite3
first, other = open('/mnt/shared/file'), open('/mnt/shared/file')
print(tried(lambda: fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)), tried(lambda: fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)))
fcntl.flock(first, fcntl.LOCK_UN); print(tried(lambda: fcntl.flock(other, fcntl.LOCK_EX)))
print(sqlite3.connect('file:/mnt/shared/db?mode=ro', uri=True).execute('select a from t').fetchall())"
    );
    let grant = format!("{}:/mnt/shared", base.display());
    let output = caller.run(&["--ro", &grant], &["/usr/bin/python3", "-c", &script])?;
    equal(&output.stderr, output.stdout.as_str(), "ok EAGAIN\nok\n[(42,)]\n")
}

/// An overlay takes its layers for unchanging, so each call has the kernel look names up again.
fn seen(caller: &Caller) -> Check {
    let base = caller.directory("shared")?;
    caller.file("shared/replaced", "old\n")?;
    let grant = format!("{}:ro", base.display());
    let mut server = Server::of(caller.cofferdam(&["serve", "--workspace", &grant]))?;
    let command = "cat replaced added 2>/dev/null; ls";
    server.gives(command, 0, "old\nreplaced\n")?;
    caller.file("new", "new\n")?;
    std::fs::rename(caller.home.join("new"), base.join("replaced"))?;
    caller.file("shared/added", "added\n")?;
    // Not at once: names are looked up again once a second.
    let end = Instant::now() + patience();
    let mut found = story(&server.bash(command)?);
    while found.1 != "new\nadded\nadded\nreplaced\n" && Instant::now() < end {
        found = story(&server.bash(command)?);
    }
    equal("seen", found, (Some(0), "new\nadded\nadded\nreplaced\n".to_owned()))?;
    // A change of a file is seen at once.
    std::fs::write(base.join("replaced"), "written\n")?;
    server.gives("cat replaced", 0, "written\n")
}

/// The name was looked up before, and is looked up again while the call runs.
fn awaited(caller: &Caller) -> Check {
    let base = caller.directory("shared")?;
    caller.file("shared/replaced", "old\n")?;
    let grant = format!("{}:/mnt/shared", base.display());
    let script = "cd /mnt/shared; until [ -e added ] && grep -q new replaced; do read -t 0.01 <> <(:); done; cat added";
    let live = caller.live(&["--ro", &grant], &format!("[ -e /mnt/shared/added ]; {script}"))?;
    caller.file("new", "new\n")?;
    std::fs::rename(caller.home.join("new"), base.join("replaced"))?;
    caller.file("shared/added", "added\n")?;
    let output = live.finish(patience())?;
    equal(&output.stderr, (output.code, output.stdout.as_str()), (0, "added\n"))
}
