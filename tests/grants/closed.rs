//! Directories of a granted directory that the supervisor may not search, and cells may or may not.

use crate::support::{Caller, Check, Claim, For, Need, USER, Who, claim, equal, holds};

pub const CLAIMS: &[Claim] = &[
    claim("a_directory_of_a_group_without_an_id_hides_nothing_from_the_guard", of_a_group)
        .only(For::Root)
        .needs(&[Need::Git]),
    claim("what_the_host_obeys_stays_guarded_when_a_cell_closes_a_directory", by_a_cell)
        .needs(&[Need::Git]),
    claim("a_closed_repository_around_a_granted_directory_is_refused", around).needs(&[Need::Git]),
    claim("a_repository_that_is_a_link_is_that_of_the_links_directory", by_a_link)
        .needs(&[Need::Git]),
];

/// No capability of the supervisor's namespace covers a directory of such a group.
fn of_a_group(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let made = format!(
        "set -e; cd {path}; git init -q; git config core.hooksPath deep/hooks; mkdir -p deep/hooks
         chown -R {USER}:{USER} .; chown -R {USER}:64999 deep; chmod 755 . .."
    );
    // Cells enter the first, and could open the second.
    let script = "cd /workspace; chmod 755 deep; echo x > deep/hooks/pre-commit; echo x > free && echo wrote";
    let ways = [
        ("700", "deep/hooks/pre-commit: Read-only file system"),
        ("000", "chmod: changing permissions of 'deep': Read-only file system"),
    ];
    let made = caller.bash_outside(&made)?;
    holds("made", &made, made.code == 0)?;
    for (mode, refusal) in ways {
        let closed = caller.bash_outside(&format!("chmod {mode} {path}/deep"))?;
        holds("closed", &closed, closed.code == 0)?;
        let output = caller.run(&["--rw", &path], &["bash", "-c", script])?;
        // The control: the rest of the grant is writable.
        holds(mode, &output, output.stderr.contains(refusal) && output.stdout == "wrote\n")?;
    }
    Ok(())
}

/// A cell closes a directory, and a later one opens it and writes what git on the host runs: a file
/// named `hook`.
fn by_a_cell(caller: &Caller) -> Check {
    const REFUSED: &str = "is closed to its owner";
    let ways = [
        (
            "a directory of hooks",
            "mkdir -p deep/hk; git config core.hooksPath deep/hk",
            "deep",
            "deep/hk",
        ),
        ("its repository", "mkdir hk; git config core.hooksPath hk", ".git", "hk"),
        (
            "a repository in it",
            "git init -q sub; mkdir hk; git -C sub config core.hooksPath ../hk",
            "sub/.git",
            "hk",
        ),
        ("above a command", "mkdir -p a/b; git config alias.x '!a/b/hook'", "a", "a/b"),
        (
            "above a repository",
            "mkdir a; git init -q a/sub; mkdir a/sub/hk; git -C a/sub config core.hooksPath hk",
            "a",
            "a/sub/hk",
        ),
        (
            "a repository's work tree",
            "mkdir a; git init -q a/sub; mkdir a/sub/hk; git -C a/sub config core.hooksPath hk",
            "a/sub",
            "a/sub/hk",
        ),
        (
            "above an included file",
            "mkdir -p cfg/in hk; git config -f cfg/in/inc core.hooksPath hk; git config include.path ../cfg/in/inc",
            "cfg",
            "hk",
        ),
    ];
    for (number, (name, made, closed, hooks)) in ways.into_iter().enumerate() {
        let path = caller.directory(&format!("grant-{number}"))?.display().to_string();
        let made = format!("set -e; umask 022; cd {path}; git init -q; {made}");
        let made = caller.bash_outside(&made)?;
        holds(name, &made, made.code == 0)?;
        let cell = |script: &str| {
            let script = format!("cd /workspace; {script}");
            caller.run(&["--rw", &path], &["bash", "-c", &script])
        };
        let write = format!("chmod 755 {closed}; echo x > {hooks}/hook");
        // The control: the guard holds while the directory is open.
        let open = cell(&write)?;
        holds(name, &open, open.code == 1)?;
        let closing = cell(&format!("chmod 000 {closed} && echo closed"))?;
        holds(name, &closing, closing.stdout == "closed\n")?;
        let output = cell(&write)?;
        if caller.who == Who::User {
            holds(name, &output, output.code != 0 && output.stderr.contains(REFUSED))?;
            equal(name, output.stderr.matches("hint: ").count(), 1)?;
        }
        let look = format!("cd {path}; chmod 755 {closed}; find . -name hook");
        equal(name, caller.bash_outside(&look)?.stdout.as_str(), "")?;
        // It is written to again once its owner has opened it.
        let again = cell("echo x > free && echo wrote")?;
        holds(name, &again, again.stdout == "wrote\n")?;
    }
    Ok(())
}

/// What is granted is a part of a work tree, whose repository is closed.
fn around(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let made = format!(
        "set -e; umask 022; cd {path}; git init -q; mkdir -p part/hk; git config core.hooksPath part/hk"
    );
    let made = caller.bash_outside(&made)?;
    holds("made", &made, made.code == 0)?;
    let part = format!("{path}/part");
    let write = || {
        let script = "cd /workspace; echo x > free; echo x > hk/hook";
        caller.run(&["--rw", &part], &["bash", "-c", script])
    };
    let open = write()?;
    holds("the control", &open, open.stderr.contains("hk/hook: "))?;
    let closed = caller.bash_outside(&format!("chmod 000 {path}/.git"))?;
    holds("closed", &closed, closed.code == 0)?;
    let output = write()?;
    if caller.who == Who::User {
        holds("refused", &output, output.stderr.contains("is closed to its owner"))?;
    }
    let look = format!("cd {path}; chmod 755 .git; find . -name hook");
    equal("the hook", caller.bash_outside(&look)?.stdout.as_str(), "")
}

/// The work tree of such a repository is where the link is, not where it leads.
fn by_a_link(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let made = format!(
        "set -e; umask 022; cd {path}; mkdir meta; git init -q --separate-git-dir meta/g; rm .git; ln -s meta/g .git
         mkdir hk; git config core.hooksPath hk"
    );
    let made = caller.bash_outside(&made)?;
    holds("made", &made, made.code == 0)?;
    let script = "cd /workspace; echo x > free && echo wrote; echo x > hk/hook";
    let output = caller.run(&["--rw", &path], &["bash", "-c", script])?;
    holds("the control", &output, output.stdout == "wrote\n")?;
    holds("the hook", &output, output.stderr.contains("hk/hook: Read-only file system"))
}
