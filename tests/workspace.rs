//! A granted directory: an agent can work in it, and cannot leave there what the host runs later.

mod support;

use std::path::Path;
use std::process::ExitCode;

use support::{Caller, Check, Need, claim, equal, holds};

fn main() -> ExitCode {
    support::main(&[
        claim("git_commits_in_a_granted_repository", commits).needs(&[Need::Git]),
        claim("what_the_host_obeys_cannot_be_changed_or_moved_away", guarded).needs(&[Need::Git]),
        claim("nested_repositories_and_submodules_are_guarded_too", nested).needs(&[Need::Git]),
        claim("a_link_where_the_host_obeys_refuses_the_grant", link_refused),
        claim("a_read_only_grant_needs_no_guards", read_only),
    ])
}

/// Makes a repository with one commit, as the caller.
fn repository(caller: &Caller, name: &str) -> Result<String, libtest_mimic::Failed> {
    let path = caller.directory(name)?.display().to_string();
    let script = format!(
        "cd {path} && git init -q && git config user.email a@b && git config user.name n && \
         mkdir .vscode && echo trusted > .envrc && git commit -q --allow-empty -m first && echo made"
    );
    equal("a repository", caller.bash_outside(&script)?.said(), "made")?;
    Ok(path)
}

fn commits(caller: &Caller) -> Check {
    let path = repository(caller, "repository")?;
    let script = "echo x > file && git add file && git commit -qm inside && git log --oneline | wc -l \
                  && git checkout -q -b topic && git stash list && echo done";
    let told = caller.run(&["--rw", &path], &["bash", "-c", script])?;
    equal("in the cell", (told.said(), told.stderr.as_str()), ("2\ndone", ""))?;
    let log = caller.bash_outside(&format!("cd {path} && git log --format=%s topic"))?;
    equal("on the host", log.said(), "inside\nfirst")
}

/// Each line tries to plant something; it says so when it worked.
const PLANT: &str = "cd \"$1\" || exit 9
    echo evil > .git/hooks/post-commit && echo PLANTED hook
    echo '[core] fsmonitor = evil' >> .git/config && echo PLANTED config
    mv .git .git-away && echo PLANTED rename
    rm -rf .git/hooks && echo PLANTED removed
    echo evil > .envrc && echo PLANTED envrc
    rm -f .envrc && echo PLANTED unlinked
    mv .vscode .vscode-away && echo PLANTED vscode
    echo '{}' > .vscode/tasks.json && echo PLANTED task
    ln -f .git/config config-by-another-name && echo evil >> config-by-another-name && echo PLANTED link
    true";

fn guarded(caller: &Caller) -> Check {
    // The positive control: where nothing guards the places, every line works but those that an
    // earlier one has taken the ground from.
    let bare = repository(caller, "bare")?;
    let control = caller.bash_outside(&format!("set -- {bare}; {PLANT}"))?;
    for what in ["hook", "config", "rename", "envrc", "vscode"] {
        let line = format!("PLANTED {what}");
        holds("the attack works outside", &control.stdout, control.stdout.contains(&line))?;
    }
    let path = repository(caller, "guarded")?;
    let before =
        caller.bash_outside(&format!("cd {path}; cat .git/config .envrc; ls -A .vscode"))?;
    let told =
        caller.run(&["--rw", &path], &["bash", "-c", &format!("set -- /workspace; {PLANT}")])?;
    equal("nothing planted", told.stdout.as_str(), "")?;
    holds("told apart", &told.stderr, told.stderr.contains("Read-only file system"))?;
    holds("moves are refused", &told.stderr, told.stderr.contains("Device or resource busy"))?;
    let after =
        caller.bash_outside(&format!("cd {path}; cat .git/config .envrc; ls -A .vscode"))?;
    equal("as it was", after.stdout, before.stdout)?;
    let hook = Path::new(&path).join(".git/hooks/post-commit");
    equal("no hook", hook.exists(), false)
}

fn nested(caller: &Caller) -> Check {
    let path = repository(caller, "outer")?;
    let script = format!(
        "cd {path} && mkdir -p deep/inner && git -C deep/inner init -q && \
         mkdir -p .git/modules/lib/hooks && echo ref > .git/modules/lib/HEAD && \
         echo '[core]' > .git/modules/lib/config && \
         mkdir -p .git/modules/lib/modules .git/worktrees/w && \
         cp -r .git/modules/lib /tmp/lib.$$ && mv /tmp/lib.$$ .git/modules/lib/modules/sub && \
         echo ../.. > .git/worktrees/w/commondir && echo made"
    );
    equal("made", caller.bash_outside(&script)?.said(), "made")?;
    let plant = "for d in deep/inner/.git .git/modules/lib .git/modules/lib/modules/sub; do
        echo evil > $d/hooks/pre-commit && echo PLANTED; echo evil >> $d/config && echo PLANTED
        echo fine > $d/other && echo wrote
    done
    echo /tmp > .git/worktrees/w/commondir && echo PLANTED
    for d in deep deep/inner .git/modules .git/modules/lib; do mv $d $d-away && echo PLANTED; done";
    let told = caller.run(&["--rw", &path], &["bash", "-c", plant])?;
    equal("only what git does not obey", told.said(), "wrote\nwrote\nwrote")?;
    equal("refusals", told.stderr.matches("Read-only file system").count(), 7)?;
    // A directory on the way could be moved off with what guards the place, and made anew.
    equal("pinned", told.stderr.matches("Device or resource busy").count(), 4)
}

fn link_refused(caller: &Caller) -> Check {
    let path = caller.directory("linked")?;
    caller.file("elsewhere", "x")?;
    std::os::unix::fs::symlink("../elsewhere", path.join(".envrc"))?;
    let told = caller.run(&["--rw", &path.display().to_string()], &["true"])?;
    equal("refused", told.code, 125)?;
    holds("named", &told.stderr, told.stderr.contains(".envrc") && told.stderr.contains("ELOOP"))
}

fn read_only(caller: &Caller) -> Check {
    let path = caller.directory("plain")?;
    std::os::unix::fs::symlink("nowhere", path.join(".envrc"))?;
    let told = caller.run(&["--ro", &path.display().to_string()], &["ls", "-A", "/mnt/plain"])?;
    equal("seen", told.said(), ".envrc")
}
