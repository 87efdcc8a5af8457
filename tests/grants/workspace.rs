//! A granted directory: an agent can work in it, and cannot leave there what the host runs later.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::support::{Caller, Check, Claim, Finished, Need, claim, equal, holds, patience, soon};

pub const CLAIMS: &[Claim] = &[
    claim("git_commits_in_a_granted_repository", commits).needs(&[Need::Git]),
    claim("guarded_files_cannot_be_changed_or_moved", guarded).needs(&[Need::Git]),
    claim("nested_repositories_and_submodules_are_guarded_too", nested).needs(&[Need::Git]),
    claim("nothing_a_cell_leaves_runs_at_the_next_commit", layouts).needs(&[Need::Git]),
    claim("a_link_at_a_guarded_name_is_guarded_or_reported", links),
    claim("no_workspace_hangs_or_prevents_a_start", left).needs(&[Need::Git]),
    claim("no_name_of_any_bytes_prevents_a_start", any_bytes).needs(&[Need::Git]),
    claim("an_inaccessible_directory_is_named_with_a_hint", closed),
    claim("a_read_only_grant_needs_no_guards", read_only),
    claim("no_link_redirects_a_nested_grant", linked),
    claim("nested_grants_work_in_any_order_or_are_refused", placed),
];

/// Makes a repository with one commit, as the caller.
fn repository(caller: &Caller, name: &str) -> Result<String, libtest_mimic::Failed> {
    let path = caller.directory(name)?.display().to_string();
    let script = format!(
        "cd {path} && git init -q && git config user.email a@b && git config user.name n && \
         mkdir .vscode && echo trusted > .envrc && git commit -q --allow-empty -m first && echo made"
    );
    equal("a repository", caller.bash_outside(&script)?.trimmed(), "made")?;
    Ok(path)
}

fn commits(caller: &Caller) -> Check {
    let path = repository(caller, "repository")?;
    let script = "echo x > file && git add file && git commit -qm inside && git log --oneline | wc -l \
                  && git checkout -q -b topic && git stash list && echo done";
    let output = caller.run(&["--rw", &path], &["bash", "-c", script])?;
    equal("in the cell", (output.trimmed(), output.stderr.as_str()), ("2\ndone", ""))?;
    let log = caller.bash_outside(&format!("cd {path} && git log --format=%s topic"))?;
    equal("on the host", log.trimmed(), "inside\nfirst")
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
    let output =
        caller.run(&["--rw", &path], &["bash", "-c", &format!("set -- /workspace; {PLANT}")])?;
    equal("nothing planted", output.stdout.as_str(), "")?;
    holds("a distinct error", &output.stderr, output.stderr.contains("Read-only file system"))?;
    holds("moves are refused", &output.stderr, output.stderr.contains("Device or resource busy"))?;
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
    equal("made", caller.bash_outside(&script)?.trimmed(), "made")?;
    let plant = "for d in deep/inner/.git .git/modules/lib .git/modules/lib/modules/sub; do
        echo evil > $d/hooks/pre-commit && echo PLANTED; echo evil >> $d/config && echo PLANTED
        echo fine > $d/other && echo wrote
    done
    echo /tmp > .git/worktrees/w/commondir && echo PLANTED
    for d in deep deep/inner .git/modules .git/modules/lib; do mv $d $d-away && echo PLANTED; done";
    let output = caller.run(&["--rw", &path], &["bash", "-c", plant])?;
    equal("only what git does not obey", output.trimmed(), "wrote\nwrote\nwrote")?;
    equal("refusals", output.stderr.matches("Read-only file system").count(), 7)?;
    // A parent directory could be moved away with the guard in it, and created again.
    equal("pinned", output.stderr.matches("Device or resource busy").count(), 4)
}

/// Ways in which the host comes to run a file of the work tree: how the repository is set up, where in it
/// the grant is, and what is planted there.
const LAYOUTS: [(&str, &str, &str, &str); 9] = [
    (
        "linked hook",
        "mkdir tools && cp /bin/true tools/check && ln -s ../../tools/check .git/hooks/pre-commit",
        "",
        "plant tools/check; mv tools t; mkdir tools; plant tools/check",
    ),
    (
        "hook by two links",
        "mkdir tools x && cp /bin/true x/true && ln -s ../x/true tools/check && ln -s ../../tools/check .git/hooks/pre-commit",
        "",
        "plant e; ln -sf ../e tools/check; rm -f tools/check; ln -s ../e tools/check; plant x/true",
    ),
    (
        "included hooks",
        "git config include.path ../team.gitconfig && printf '[core]\n\thooksPath = .githooks\n' > team.gitconfig",
        "",
        "mkdir .githooks; plant .githooks/pre-commit",
    ),
    (
        "missing include",
        "git config include.path ../team.gitconfig && printf '[include]\n\tpath = local.gitconfig\n' > team.gitconfig",
        "",
        "printf '[core]\n\thooksPath = .h\n' > local.gitconfig; mkdir .h; plant .h/pre-commit",
    ),
    (
        "subdirectory",
        "mkdir sub && git config core.hooksPath sub/hooks",
        "sub",
        "mkdir hooks; plant hooks/pre-commit",
    ),
    (
        "spelled by a link",
        "ln -s \"$PWD\" \"$PWD-spelled\" && git config core.hooksPath \"$PWD-spelled/githooks\"",
        "",
        "mkdir githooks; plant githooks/pre-commit",
    ),
    (
        "comment after a section",
        "printf '[core] # see [docs]\n\thooksPath = githooks\n' >> .git/config",
        "",
        "mkdir githooks; plant githooks/pre-commit",
    ),
    (
        "no continued comment",
        "printf '[user] # me \\\\\n[core]\n\thooksPath = githooks\n' >> .git/config",
        "",
        "mkdir githooks; plant githooks/pre-commit",
    ),
    (
        "command",
        "mkdir tools && git config core.fsmonitor 'tools/watch'",
        "",
        "plant tools/watch; mv tools t; mkdir tools; plant tools/watch",
    ),
];

fn layouts(caller: &Caller) -> Check {
    for (name, made, grant, plant) in LAYOUTS {
        for (place, planted) in [("in the cell", false), ("outside", true)] {
            let path = repository(caller, &format!("{name} {place}").replace(' ', "-"))?;
            let output = caller.bash_outside(&format!("cd {path} && {made} && echo made"))?;
            equal(name, output.trimmed(), "made")?;
            let marker = caller.home.join("marker");
            let plant = format!(
                "plant() {{ printf '#!/bin/sh\ntouch {}\n' > $1; chmod +x $1; }}; exec 2>/dev/null; {plant}",
                marker.display()
            );
            let grant = format!("{path}/{grant}");
            if planted {
                caller.bash_outside(&format!("cd {grant} && {plant}"))?;
            } else {
                caller.run(&["--rw", &grant], &["bash", "-c", &plant])?;
            }
            let next = "git status >/dev/null 2>&1; git commit -q --allow-empty -m next; git log --oneline | wc -l";
            let output = caller.bash_outside(&format!("cd {path} && {next}"))?;
            equal(name, output.trimmed(), "2")?;
            // Planted outside it runs: the positive control.
            equal(&format!("{name}, planted {place}"), marker.exists(), planted)?;
            caller.bash_outside("rm -f marker")?;
        }
    }
    Ok(())
}

fn links(caller: &Caller) -> Check {
    let path = caller.directory("linked")?;
    caller.file("elsewhere", "x")?;
    let text = path.display().to_string();
    let made = "mkdir env .claude conf && echo trusted > env/rc && ln -s env/rc .envrc && echo {} > conf/s && \
        ln -s ../conf/s .claude/settings.json && ln -s ../elsewhere .mcp.json && ln -s conf/vscode .vscode && echo made";
    equal("made", caller.bash_outside(&format!("cd {text} && {made}"))?.trimmed(), "made")?;
    let script = "echo evil > env/rc; echo evil > conf/s; mkdir conf/vscode; mv env e; rm .envrc && echo evil > .envrc
        echo fine > env/other; echo ran";
    let output = caller.run(&["--rw", &text], &["bash", "-c", script])?;
    equal("the grant is made", output.trimmed(), "ran")?;
    let count = |what: &str| output.stderr.matches(what).count();
    equal("targets", count("Read-only file system"), 2)?;
    let reason = "`/workspace/.mcp.json` leads out of the directory";
    holds("the link is reported", &output.stderr, output.stderr.contains(reason))?;
    let after =
        caller.bash_outside(&format!("cd {text} && cat env/rc conf/s; ls conf; ls .envrc"))?;
    holds("as it was", &after, after.trimmed().starts_with("trusted\n{}\ns"))?;
    let object = caller.json(&["--rw", &text], &["true"])?;
    let workspace =
        object.pointer("/receipt/configured/workspace").and_then(|value| value.as_str());
    let output =
        workspace.is_some_and(|text| text.contains("not guarded in full") && text.contains(reason));
    holds("in the receipt", workspace, output)?;
    let mut doctor = caller.cofferdam(&["doctor"]);
    doctor.current_dir(&path);
    let output = Finished::run(doctor, patience())?;
    let line =
        output.stdout.lines().find(|line| line.contains("this directory")).unwrap_or_default();
    holds("by doctor", &output, line.contains(".mcp.json"))
}

fn left(caller: &Caller) -> Check {
    let path = repository(caller, "left")?;
    let made = "mkdir -p .git/modules .git/worktrees && ln -s . .git/modules/a && ln -s . .git/modules/b && \
        ln -s / .git/modules/root && ln -s .. .git/worktrees/x && rm .git/hooks -r && ln -s / up && \
        d=d && for i in $(seq 60); do d=$d/d; done && mkdir -p $d && echo trusted > $d/.envrc && \
        mkfifo .git/config.worktree && echo made";
    equal("left", caller.bash_outside(&format!("cd {path} && {made}"))?.trimmed(), "made")?;
    let script = "cd $(find d -name .envrc -printf %h); echo evil > .envrc || echo evil > /workspace/.git/config || echo ran";
    let output = caller.run(&["--rw", &path], &["bash", "-c", script])?;
    equal("it starts", output.trimmed(), "ran")?;
    equal("and guards", output.stderr.matches("Read-only file system").count(), 2)?;
    // A look that followed the links took minutes, and one of the whole host as long.
    holds("at once", output.took, output.took < soon(10))
}

fn read_only(caller: &Caller) -> Check {
    let path = caller.directory("plain")?;
    std::os::unix::fs::symlink("nowhere", path.join(".envrc"))?;
    let output = caller.run(&["--ro", &path.display().to_string()], &["ls", "-A", "/mnt/plain"])?;
    equal("seen", output.trimmed(), ".envrc")
}

/// A cell leaves a link in its workspace; the next is to have a grant beyond it.
fn linked(caller: &Caller) -> Check {
    let [project, own, other] = ["project", "own", "other"].map(|name| caller.directory(name));
    let project = project?;
    let own = own?;
    let other = other?;
    let rw = project.display().to_string();
    let at = other.display();
    let plant = format!("mkdir real; echo in > real/key; ln -s {at} abs; ln -s real here");
    caller.run(&["--rw", &rw], &["bash", "-c", &plant])?;
    for (name, link) in [("abs/made", "abs"), ("here/key", "here"), ("abs", "abs")] {
        let grant = format!("{}:/workspace/{name}", own.display());
        let output = caller.run(&["--rw", &rw, "--ro", &grant], &["echo", "started"])?;
        equal(name, (output.code, output.trimmed()), (125, ""))?;
        let expected =
            format!("/{link}` is a link, so what is granted beyond it would move with it");
        holds(name, &output.stderr, output.stderr.contains(&expected))?;
    }
    equal("nothing was made", std::fs::read_dir(&other)?.count(), 0)?;
    // The host's side of a grant is led as little.
    std::fs::write(other.join("secret"), "not granted")?;
    let planted = format!("{rw}/abs");
    for grant in [["--ro", planted.as_str()], ["--rw", &format!("{planted}:/mnt/abs")]] {
        let options = [&["--rw", rw.as_str()], &grant[..]].concat();
        let output = caller.run(&options, &["cat", "/mnt/abs/secret"])?;
        equal("refused", (output.code, output.trimmed()), (125, ""))?;
        let expected = format!("leads through the link `{planted}`, which cells can make");
        holds("by name", &output.stderr, output.stderr.contains(&expected))?;
    }
    // A workspace that was not granted by this start is at least reported.
    let output = caller.run(&["--rw", &planted], &["cat", "/workspace/secret"])?;
    let expected = format!("`{planted}` leads through a link to `{at}`, which is granted");
    holds("reported", &output.stderr, output.stderr.contains(&expected))?;
    equal("as the operator asked", output.trimmed(), "not granted")?;
    let hooks = project.join("real/.git/hooks");
    std::fs::create_dir_all(&hooks)?;
    std::os::unix::fs::symlink("real/.git/hooks", project.join("out"))?;
    let led = format!("{rw}/out:/mnt/out");
    let output = caller.run(&["--rw", &led], &["touch", "/mnt/out/pre-commit"])?;
    let reason = "which the host obeys";
    holds("not to a guarded place", &output, output.code == 125 && output.stderr.contains(reason))?;
    equal("no hook", std::fs::read_dir(&hooks)?.count(), 0)?;
    std::fs::remove_file(other.join("secret"))?;
    // A path of the grant without a link.
    let output =
        caller.run(&["--rw", &rw, "--ro", &format!("{rw}/real")], &["cat", "/mnt/real/key"])?;
    equal("the same without a link", output.trimmed(), "in")?;
    // The positive control: the place that the link leads to.
    std::fs::write(own.join("key"), "covered")?;
    let grant = format!("{}:/workspace/real", own.display());
    let output = caller.run(&["--rw", &rw, "--ro", &grant], &["cat", "/workspace/real/key"])?;
    equal("the place itself", output.trimmed(), "covered")
}

/// A cell without a granted workspace mounts its own over whatever is there.
fn placed(caller: &Caller) -> Check {
    let [project, part, file] =
        [caller.directory("project")?, caller.directory("part")?, caller.file("file", "file")?];
    for (directory, name) in
        [(&project, "x"), (&project, "deep"), (&project, "deep/y"), (&part, "sub")]
    {
        let made = directory.join(name);
        std::fs::create_dir(&made)?;
        caller.own(&made)?;
    }
    std::fs::write(part.join("key"), "part")?;
    let at = |path: &std::path::Path, target: &str| format!("{}:{target}", path.display());
    let whole = at(&project, "/workspace");
    let x = at(&part, "/workspace/x");
    let y = at(&part, "/workspace/deep/y");
    let inner = at(&file, "/workspace/x/key");
    let grants: [&[&str]; 6] = [
        &["--rw", &whole, "--ro", &x, "--ro", &y],
        &["--ro", &y, "--ro", &x, "--ro", &whole],
        &["--ro", &x, "--rw", &y, "--rw", &whole],
        &["--rw", &x, "--ro", &y, "--ro", &whole],
        &["--ro", &inner, "--ro", &y, "--rw", &x, "--rw", &whole],
        &["--rw", &whole, "--rw", &x, "--ro", &inner, "--ro", &y],
    ];
    for (index, options) in grants.iter().enumerate() {
        let output =
            caller.run(options, &["bash", "-c", "cat /workspace/x/key /workspace/deep/y/key"])?;
        let expected = if index < 4 { "partpart" } else { "filepart" };
        equal(&format!("{options:?}"), (output.code, output.trimmed()), (0, expected))?;
    }
    for flag in ["--ro", "--rw"] {
        for options in
            [&[flag, &x][..], &["--ro", &y, flag, &x], &["--rw", &at(&project, "/mnt/p"), flag, &x]]
        {
            let output = caller.run(options, &["echo", "started"])?;
            equal(&format!("{options:?}"), (output.code, output.trimmed()), (125, ""))?;
            let reason = "lies in a /workspace that is not granted\nhint: ";
            holds("why", &output.stderr, output.stderr.contains(reason))?;
        }
    }
    Ok(())
}

/// Names that are not UTF-8, on the way to what the host obeys, of the grant itself, and of what is granted in it.
fn any_bytes(caller: &Caller) -> Check {
    let path = caller.directory("any")?;
    let odd = path.join(OsStr::from_bytes(b"a\xffb"));
    let made =
        "mkdir -p $'a\\xffb/.vscode' $'a\\xffb/\\xfe' && git init -q $'a\\xffb/repo' && echo made";
    let output = caller.bash_outside(&format!("cd {} && {made}", path.display()))?;
    equal("the directory", output.trimmed(), "made")?;
    let text = path.display().to_string();
    let script = ["bash", "-c", "cd /workspace/a* && mkdir .vscode/x; mkdir .envrc; ls -A"];
    let output = caller.run(&["--rw", &text], &script)?;
    equal("in the grant", output.stdout.as_str(), ".vscode\nrepo\n\u{fffd}\n")?;
    holds("covered", &output.stderr, output.stderr.contains("vscode/x’: Read-only file system"))?;
    holds("guarded", &output.stderr, output.stderr.contains("envrc’: Operation not permitted"))?;
    // The grant itself, by its path and by its place in the cell.
    for (flag, suffix, place) in
        [("--rw", "", "/workspace"), ("--ro", "", "/mnt/a*"), ("--ro", ":/mnt/x\u{7f}", "/mnt/x*")]
    {
        let grant = [odd.as_os_str().as_bytes(), suffix.as_bytes()].concat();
        let mut command = caller.cofferdam(&["run", flag]);
        let script = format!("cd {place} && ls -d repo");
        command.arg(OsStr::from_bytes(&grant)).args(["--", "bash", "-c", &script]);
        equal(place, Finished::run(command, patience())?.trimmed(), "repo")?;
    }
    let mut command = caller.cofferdam(&["run", "--rw", "."]);
    command.current_dir(&odd).args(["--", "ls", "-d", "repo"]);
    equal("as the current directory", Finished::run(command, patience())?.trimmed(), "repo")?;
    let mut command = caller.cofferdam(&["serve", "--workspace"]);
    command.arg(&odd);
    let mut server = crate::server::Server::of(command)?;
    server.gives("ls -d repo", 0, "repo\n")
}

/// Checks what a cell can do to the directory itself: its user owns it.
fn closed(caller: &Caller) -> Check {
    let path = caller.directory("closed")?;
    let text = path.display().to_string();
    let output =
        caller.run(&["--rw", &text], &["bash", "-c", "chmod 0 /workspace && echo closed"])?;
    equal("by a cell", output.trimmed(), "closed")?;
    let remedy = format!("chmod u+rwx {text}");
    let neighbour = caller.directory("beside")?.display().to_string();
    for (mode, options) in [
        ("0000", vec!["--rw", &text]),
        ("0100", vec!["--rw", &text, "--unguarded"]),
        ("0670", vec!["--rw", &text]),
        ("0000", vec!["--ro", &text]),
        ("0277", vec!["--rw", &neighbour, "--ro", &text]),
    ] {
        caller.bash_outside(&format!("chmod {mode} {text}"))?;
        let output = caller.run(&options, &["echo", "started"])?;
        let printed = match options.contains(&"--ro") {
            true => format!("cofferdam: --ro: `{text}`: its mode is {mode}: {remedy}\n"),
            false => format!("cofferdam: the workspace's mode is {mode}: {remedy}\n"),
        };
        equal("said", (output.code, output.stderr.as_str()), (125, printed.as_str()))?;
        let mut serve = caller.cofferdam(&["serve"]);
        serve.args(options);
        let output = Finished::run(serve, patience())?;
        holds(
            "served",
            &output.stderr,
            output.code == 125 && (output.stderr == printed || mode == "0000"),
        )?;
    }
    // The positive controls: names alone, files whose names are known, and the way out.
    for (mode, printed) in [("0400", "started"), ("0100", "started"), ("0500", "started")] {
        caller.bash_outside(&format!("chmod {mode} {text}"))?;
        equal(mode, caller.run(&["--ro", &text], &["echo", "started"])?.trimmed(), printed)?;
    }
    caller.bash_outside(&remedy)?;
    equal("mended", caller.run(&["--rw", &text], &["echo", "started"])?.trimmed(), "started")
}
