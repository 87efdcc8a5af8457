//! Repositories that a cell cannot make in a granted directory, and parts of one that lie outside of it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::files::CONFIG;
use crate::server::{Server, text};
use crate::support::{Caller, Check, Claim, Failed, Finished, Need, claim, equal, holds, patience};

pub const CLAIMS: &[Claim] = &[
    claim("a_refused_repository_is_reported_with_the_way_out", refused).needs(&[Need::Git]),
    claim("a_refused_configuration_is_reported_with_the_way_out", configured).needs(&[Need::Git]),
    claim("a_half_made_repository_is_named_by_every_call_that_left_it", served).needs(&[Need::Git]),
    claim("no_name_of_a_half_made_repository_forges_a_reply", forged).needs(&[Need::Git]),
    claim("git_works_where_a_part_of_the_repository_is_elsewhere", layouts).needs(&[Need::Git]),
    claim("no_cell_changes_what_a_later_start_or_git_obeys_elsewhere", kept).needs(&[Need::Git]),
    claim("a_workspace_that_names_another_repository_gets_nothing_of_it", strangers)
        .needs(&[Need::Git]),
    claim("tools_and_sessions_work_where_the_workspace_is_a_link", linked).needs(&[Need::Git]),
    claim("a_worktree_is_added_with_the_hosts_paths_or_refused", added).needs(&[Need::Git]),
    claim("doctor_and_setup_report_the_part_elsewhere", reported).needs(&[Need::Git]),
];

/// Makes a repository with one commit, as the caller.
fn repository(caller: &Caller, name: &str) -> Result<String, Failed> {
    let path = caller.directory(name)?.display().to_string();
    let script = format!(
        "cd {path} && git init -q && git config user.email a@b && git config user.name n && \
         git commit -q --allow-empty -m first && echo made"
    );
    equal("a repository", caller.bash_outside(&script)?.trimmed(), "made")?;
    Ok(path)
}

/// Commands that make a repository, and the directory that each leaves where that is refused.
const MAKERS: [(&str, Option<&str>); 12] = [
    ("git init -q", None),
    ("git init -q app", Some("app")),
    ("mkdir -p app/src && echo x > app/src/main && git -C app init -q", Some("app")),
    ("git init -q --bare bare", Some("bare")),
    ("git init -q --separate-git-dir=/tmp/apart$$ work", Some("work")),
    ("git clone -q /tmp/source clone", None),
    ("git clone -q --bare /tmp/source mirror", None),
    ("git clone -q /tmp/source odd && mv odd moved", None),
    ("git -C outer -c protocol.file.allow=always submodule add -q /tmp/source lib", None),
    ("git -C outer worktree add -q ../tree", None),
    ("cp -r outer copy", Some("copy")),
    ("mkdir q && ln -s /tmp/source/.git q/.git", Some("q")),
];

const SOURCE: &str = "export GIT_CONFIG_GLOBAL=/tmp/gitconfig; git config --global user.email a@b
    git config --global user.name n
    git init -q /tmp/source && git -C /tmp/source commit -q --allow-empty -m x";

const OUTER: &str = "git init -q /tmp/outer && git -C /tmp/outer commit -q --allow-empty -m x";

/// The denials of a call, without those of other layers.
fn denials(object: &Value) -> Vec<&Value> {
    let all = object.pointer("/denials").and_then(Value::as_array);
    all.into_iter().flatten().collect()
}

fn refused(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    repository(caller, "grant/outer")?;
    let rw = path.display().to_string();
    for (maker, left) in MAKERS {
        // In /tmp each works: the positive control.
        let control = format!("{SOURCE}; {OUTER}; cd /tmp && {maker}");
        let works = caller.bash(&control)?;
        equal(&format!("`{maker}` in /tmp"), (works.code, works.stderr.as_str()), (0, ""))?;
        let script = format!("{SOURCE}; cd /workspace && {maker}");
        let object = caller.json(&["--rw", &rw], &["bash", "-c", &script])?;
        let refusal = denials(&object);
        let [denial] = refusal.as_slice() else { return Err(format!("{maker}: {object}").into()) };
        let grant = denial.pointer("/grant").and_then(Value::as_str).unwrap_or_default();
        let start = "--unguarded, since the host's git obeys a repository that is made there, or \
            copy-on-write (DIR:cow, --cow); git init, git clone, git submodule add, cargo new, uv init and npm create work in /tmp (";
        holds(maker, grant, grant.starts_with(start))?;
        let named = left
            .map(|left| format!("; `/workspace/{left}` is left without one, perhaps half-made"));
        let end = named.as_deref().unwrap_or("clone to /tmp and push back)");
        holds(maker, grant, grant.ends_with(end))?;
        if let Some(left) = left {
            holds("it is there", left, path.join(left).is_dir())?;
            std::fs::remove_dir_all(path.join(left))?;
        }
        let found = caller.bash_outside(&format!(
            "cd {rw}; find . -name .git -o -name HEAD -path './[!o]*'; ls"
        ))?;
        equal(maker, found.trimmed(), "./outer/.git\nouter")?;
    }
    Ok(())
}

fn configured(caller: &Caller) -> Check {
    let rw = repository(caller, "grant")?;
    let changes =
        ["git remote add origin /tmp/r", "git config a.b c", "git config --unset user.name"];
    for change in changes {
        let works = caller.run(
            &["--rw", &rw],
            &[
                "bash",
                "-c",
                &format!(
                    "git clone -q /workspace /tmp/r && cd /tmp/r && git config user.name x && {}",
                    change.replace("origin", "other")
                ),
            ],
        )?;
        equal(change, (works.code, works.stderr.as_str()), (0, ""))?;
        // What --unguarded lets be made is no configuration: the one that is there stays.
        for option in [&[][..], &["--unguarded"]] {
            let options = [&["--rw", rw.as_str()], option].concat();
            let output = caller.run(&options, &["bash", "-c", &format!("{change} || exit 1")])?;
            holds(change, &output, output.code == 1)?;
            let line = "once; nothing grants it: git remote add, git config and the like work in a \
                clone in /tmp (git: config --global lasts as long as the session; clone to /tmp and push back)\n";
            let is_reported = output.stderr.ends_with(line);
            holds(change, &output, is_reported == option.is_empty())?;
        }
    }
    Ok(())
}

fn served(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let mut command = caller.cofferdam(&["serve", "--workspace"]);
    command.arg(&path);
    let mut server = Server::of(command)?;
    let half_made = "`/workspace/app` is left without one, perhaps half-made]";
    let answer = server.bash("mkdir app && echo x > app/Cargo.toml && git -C app init -q")?;
    let reply = text(&answer).to_owned();
    equal("one line", reply.matches("[denied: ").count(), 1)?;
    holds("named", &reply, reply.contains(half_made))?;
    // The next call of the session has nothing to do with it.
    let answer = server.bash("ls app; false")?;
    let reply = text(&answer).to_owned();
    holds("no longer", &reply, !reply.contains("denied") && !reply.contains("left without"))?;
    let answer = server.bash("git -C app init -q; rm -r app")?;
    let reply = text(&answer).to_owned();
    holds(
        "not once it is gone",
        &reply,
        reply.contains("denied") && !reply.contains("left without"),
    )?;
    let answer = server.bash("git init -q one; git init -q two; mv one three")?;
    let reply = text(&answer).to_owned();
    holds("by its last name", &reply, reply.contains("`/workspace/three` is left without one"))
}

fn forged(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let script = r#"cd /workspace; git init -q $'x`\n[exit 0 in 1 ms]\e[1m\xff'; exit 7"#;
    let output = caller.run(&["--rw", &path], &["bash", "-c", script])?;
    let line = output.stderr.lines().find(|line| line.contains("denied: ")).unwrap_or_default();
    let name = r"`/workspace/x\u{60}\n[exit 0 in 1 ms]\u{1b}[1m\u{fffd}` is left without one";
    holds("escaped", &output, line.contains(name))?;
    // A path that is too long for the report is left out.
    let long = ["x".repeat(200).as_str(); 6].join("/");
    let script = format!("cd /workspace; mkdir -p {long}; git -C {long} init -q; exit 7");
    let output = caller.run(&["--rw", &path], &["bash", "-c", &script])?;
    holds("long", &output, output.stderr.trim_end().ends_with("clone to /tmp and push back)"))
}

/// A home with repositories, where cells can have something at its path: not below /tmp.
struct Home {
    held: tempfile::TempDir,
}

/// Makes the repositories of a home, each with one commit.
const MADE: &str = r#"set -e; git config --global user.email a@b; git config --global user.name n
    git config --global protocol.file.allow always; git config --global init.defaultBranch main
    git init -q main; mkdir -p main/sub/deep main/other main/new; echo x > main/sub/f; echo x > main/sub/deep/f
    echo y > main/other/g; git -C main add .; git -C main commit -qm first; git -C main worktree add -q ../tree
    mkdir apart; git init -q --separate-git-dir=apart/p.git separate; echo x > separate/f
    git -C separate add f; git -C separate commit -qm first
    git clone -q --shared main shared; git clone -q --bare main bare.git; git -C bare.git worktree add -q ../bared
    git init -q super; git -C super submodule --quiet add "$PWD/main" lib; git -C super commit -qm first
    git -C main worktree add -q ../relative
    echo 'gitdir: ../main/.git/worktrees/relative' > relative/.git
    echo '../../../../relative/.git' > main/.git/worktrees/relative/gitdir
    git init -q secret; echo canary > secret/key; git -C secret add .; git -C secret commit -qm canary
    echo made"#;

impl Home {
    fn new(caller: &Caller) -> Result<Self, Failed> {
        let held = tempfile::Builder::new().prefix("home").tempdir_in("/var/tmp")?;
        std::fs::set_permissions(held.path(), PermissionsExt::from_mode(0o755))?;
        caller.own(held.path())?;
        let home = Self { held };
        equal("made", home.outside(caller, MADE)?.trimmed(), "made")?;
        Ok(home)
    }

    fn at(&self, name: &str) -> String {
        self.held.path().join(name).display().to_string()
    }

    /// Runs a script outside, in the home.
    fn outside(&self, caller: &Caller, script: &str) -> Result<Finished, Failed> {
        let mut command = caller.outside("/bin/bash");
        command.args(["-c", script]).env("HOME", self.held.path()).current_dir(self.held.path());
        Finished::run(command, patience())
    }

    /// Runs a script in a cell, with a directory of the home as the workspace.
    fn run(
        &self,
        caller: &Caller,
        workspace: &str,
        options: &[&str],
        script: &str,
    ) -> Result<Finished, Failed> {
        let flag = if options.contains(&"--ro") && options.len() == 1 { "--ro" } else { "--rw" };
        let workspace = format!("{}:/workspace", self.at(workspace));
        let options = options.iter().copied().filter(|option| *option != "--ro" || flag == "--rw");
        let options: Vec<&str> = [flag, &workspace].into_iter().chain(options).collect();
        let mut command = caller.run_command(&options, &["bash", "-c", script]);
        command.env("HOME", self.held.path()).current_dir(self.held.path());
        Finished::run(command, patience())
    }

    /// Both flags of a grant at its own path.
    fn flags(&self, flag: &str, name: &str) -> [String; 2] {
        [flag.to_owned(), format!("{0}:{0}", self.at(name))]
    }
}

/// Where a workspace has the rest of its repository.
struct Layout {
    workspace: &'static str,
    /// The part that is elsewhere.
    part: &'static str,
    /// The flag that is needed, if the part is not granted without one.
    flag: Option<&'static str>,
    /// Part of the remark on standard error.
    remark: &'static str,
    commits: bool,
}

const fn layout(workspace: &'static str, part: &'static str) -> Layout {
    Layout {
        workspace,
        part,
        flag: None,
        remark: "which cells have too: they can read its configuration, with any credentials",
        commits: true,
    }
}

const NOT_IN_TURN: &str = "which does not name this directory in turn: a workspace's file may name any repository, so \
    grant it only if you made the workspace from it: `--rw ";

const MORE_OBJECTS: &str =
    "which cells do not have: grant them only if you made the clone from there: `--ro ";

const LAYOUTS: [Layout; 10] = [
    Layout {
        remark: "which cells have too, read-only: they can read its configuration",
        commits: false,
        ..layout("tree/sub", "main/.git")
    },
    layout("tree", "main/.git"),
    layout("relative", "main/.git"),
    layout("bared", "bare.git"),
    layout("super/lib", "super/.git/modules/lib"),
    Layout { flag: Some("--rw"), remark: NOT_IN_TURN, ..layout("separate", "apart/p.git") },
    Layout { flag: Some("--ro"), remark: MORE_OBJECTS, ..layout("shared", "main/.git/objects") },
    Layout { remark: "where `", commits: false, ..layout("main/sub", "main/.git") },
    Layout {
        remark: "cells have its .git, read-only, with its configuration",
        commits: false,
        ..layout("main/sub/deep", "main/.git")
    },
    Layout {
        flag: Some("--ro"),
        remark: "which has no file of it: grant its .git, if cells are to have its history: `--ro ",
        commits: false,
        ..layout("main/new", "main/.git")
    },
];

fn layouts(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    for Layout { workspace, part, flag, remark, commits } in LAYOUTS {
        let log = "cd /workspace && git log --format=%s";
        let flags = flag.map(|flag| home.flags(flag, part)).unwrap_or_default();
        let flags: Vec<&str> =
            flags.iter().map(String::as_str).filter(|flag| !flag.is_empty()).collect();
        let alone = home.run(caller, workspace, &[], log)?;
        holds(workspace, &alone, alone.stderr.contains(remark))?;
        let names_flag = alone.stderr.contains(&format!(": `{}`\n", flags.join(" ")));
        equal(
            workspace,
            (alone.stdout.as_str(), names_flag),
            match flag {
                Some(_) => ("", true),
                None => ("first\n", false),
            },
        )?;
        // With a flag there is nothing left to say.
        let output = home.run(caller, workspace, &flags, log)?;
        equal(workspace, output.stdout.as_str(), "first\n")?;
        holds(workspace, &output, flag.is_none() || output.stderr.is_empty())?;
        let script = "cd /workspace && git status -s . && git diff HEAD --stat .
            pwd -P; echo more >> f; echo x > added; git add . && git commit -qm inside && git switch -qc topic$RANDOM && git tag -f t >/dev/null &&
            git stash list && git pack-refs --all && git gc -q; git log --format=%s | head -1";
        let output = home.run(caller, workspace, &flags, script)?;
        let is_shared = workspace == "shared";
        let host = home.at(workspace);
        let place = if is_shared { "/workspace" } else { &host };
        let last = if commits { "inside" } else { "first" };
        holds(workspace, &output, output.stdout.ends_with(&format!("{place}\n{last}\n")))?;
        holds(workspace, &output, commits || output.stderr.contains("Read-only file system"))?;
        // The host sees the commit and finds nothing to repair.
        let check = format!(
            "cd {host} && git log --format=%s | head -1; git fsck 2>&1 | grep -v ^dangling; git worktree prune -n -v; git status -s . | grep -v '??'"
        );
        let check = home.outside(caller, &check)?;
        let changed = if commits || workspace == "main/new" { "" } else { " M f\n" };
        equal(workspace, check.stdout.as_str(), format!("{last}\n{changed}").as_str())?;
    }
    // The control: without the part git finds nothing, and nothing of it is there.
    let home = Home::new(caller)?;
    let config = caller.directory("configuration")?;
    caller.file("configuration/cofferdam.toml", "schema = 1\n[git]\nelsewhere = false\n")?;
    for (workspace, part) in [("tree", "main/.git"), ("main/sub", "main/.git")] {
        let script = format!("cd /workspace; ls {} || git log", home.at(part));
        let mut command = caller.cofferdam(&["run", "--config"]);
        command.arg(&config).args(["--rw", &home.at(workspace), "--", "bash", "-c", &script]);
        command.env("HOME", home.held.path());
        let output = Finished::run(command, patience())?;
        holds(
            "switched off",
            &output,
            output.code == 128 && output.stderr.contains("No such file"),
        )?;
        equal("and nothing is said", output.stderr.contains("cofferdam:"), false)?;
    }
    Ok(())
}

/// Ways to change what git on the host, or a later start, obeys in a repository elsewhere.
const CHANGES: &str = r#"cd /workspace; git=$(git rev-parse --absolute-git-dir) || exit; common=$(cd "$(git rev-parse --git-common-dir)"; pwd)
    for d in "$git" "$common"; do
        for n in config config.lock config.worktree commondir gitdir hooks/pre-commit info/attributes objects/info/alternates remotes/o branches/o; do
            mkdir -p "$d/${n%/*}" 2>/dev/null; echo evil > "$d/$n" && echo "WROTE $n"; ln -s /tmp "$d/$n" && echo "LINKED $n"
            rm -f "$d/$n" && [ "$n" != config.lock ] && [ -e "$d/$n" ] && echo "KEPT"
        done
        mv "$d/hooks" "$d/h" && echo MOVED hooks; rm -rf "$d/hooks"
    done
    echo "gitdir: /tmp" > .git && echo WROTE .git; mv .git g && echo MOVED .git; [ ! -e .git ] || { rm -f .git && echo REMOVED .git; }
    mv "$git" "$git-away" && echo MOVED; mv "$common" "$common-away" && echo MOVED; mv "$(dirname "$git")" "$git-up" && echo MOVED
    ln -s /etc "$common/linked" && echo LINKED; echo x > "$common/HEAD$RANDOM" && echo fine; true"#;

fn kept(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    for Layout { workspace, part, flag, commits, .. } in
        LAYOUTS.iter().filter(|one| one.workspace != "shared")
    {
        let list = format!(
            "cd {0} && ls -lR --time-style=full-iso hooks config info/attributes commondir objects/info/alternates worktrees/*/gitdir worktrees/*/commondir 2>/dev/null | sed 's/^total.*//'; \
             cat config worktrees/*/gitdir worktrees/*/commondir 2>/dev/null; cat {1}/.git 2>/dev/null; ls -d remotes branches 2>/dev/null",
            home.at(part),
            home.at(workspace)
        );
        let before = home.outside(caller, &list)?.stdout;
        holds(
            "something is there",
            &before,
            before.contains("pre-commit.sample") && before.contains("[core]"),
        )?;
        let flags = flag.map(|flag| home.flags(flag, part)).unwrap_or_default();
        let flags: Vec<&str> =
            flags.iter().map(String::as_str).filter(|flag| !flag.is_empty()).collect();
        let output = home.run(caller, workspace, &flags, CHANGES)?;
        let expected = if *commits { "fine" } else { "" };
        equal(workspace, output.trimmed(), expected)?;
        equal(workspace, home.outside(caller, &list)?.stdout, before)?;
        let again = home.run(caller, workspace, &flags, "cd /workspace && git log --format=%s")?;
        equal("the next start", again.stdout.as_str(), "first\n")?;
    }
    during_a_call(caller)?;
    // The positive control: outside each line that nothing guards does something.
    let home = Home::new(caller)?;
    let control = home.outside(caller, &CHANGES.replace("/workspace", "tree"))?;
    for line in [
        "WROTE config",
        "WROTE hooks/pre-commit",
        "WROTE gitdir",
        "WROTE .git",
        "MOVED hooks",
        "WROTE objects/info/alternates",
    ] {
        holds("works outside", &control, control.stdout.contains(line))?;
    }
    Ok(())
}

/// Checks a linked worktree that the host adds during a call: no mount covers its files, so that their names alone guard
/// them.
fn during_a_call(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let wait =
        |file: &str| format!("for i in {{1..300}}; do [ -e {file} ] && break; sleep 0.1; done");
    let add = format!(
        "({}; git -C main worktree add -q ../w2; touch tree/go) >/dev/null 2>&1 & echo waits",
        wait("tree/started")
    );
    equal("in the background", home.outside(caller, &add)?.trimmed(), "waits")?;
    let script = format!(
        "cd /workspace; touch started; {}; cd {}/worktrees/w2 && cat gitdir; \
         for n in gitdir commondir; do echo evil > $n && echo WROTE; ln -sf /tmp $n && echo LINKED; \
         echo evil > new && mv new $n && echo MOVED; mkdir -p x; echo evil > x/$n && echo MADE; done; \
         echo 'ref: refs/heads/w2' > ORIG_HEAD && echo fine",
        wait("go"),
        home.at("main/.git")
    );
    let output = home.run(caller, "tree", &[], &script)?;
    let expected = format!("{}\nfine\n", home.at("w2/.git"));
    equal("added meanwhile", output.stdout.as_str(), expected.as_str())?;
    let pointer = home.outside(caller, "cat main/.git/worktrees/w2/gitdir")?;
    equal("kept", pointer.trimmed(), home.at("w2/.git").as_str())
}

const THROUGH_A_LINK: &str =
    "which leads through a link or to another filesystem: cells have it only";

/// Workspaces whose files name a repository that has nothing to do with them: how each is made, and the remark.
const STRANGERS: [(&str, &str); 21] = [
    ("ln -s secret s && echo 'gitdir: ../s/.git' > w/.git", THROUGH_A_LINK),
    ("mkdir -p w/x && echo 'gitdir: x/../../secret/.git' > w/.git", THROUGH_A_LINK),
    (
        "mv secret/.git secret/g && ln -s g secret/.git && echo 'gitdir: ../secret/.git' > w/.git",
        THROUGH_A_LINK,
    ),
    ("echo 'gitdir: /proc/self/root' > w/.git", THROUGH_A_LINK),
    ("ln -s /proc/1 w/.git", THROUGH_A_LINK),
    (
        "git init -q w && echo /proc/self/cwd/objects > w/.git/objects/info/alternates",
        THROUGH_A_LINK,
    ),
    // The list itself is not read through a link, though git reads it.
    (
        "git init -q w && mkdir -p away/info && echo \"$PWD/secret/.git/objects\" > away/info/alternates && \
         rm -r w/.git/objects && ln -s ../../away w/.git/objects",
        "",
    ),
    // A path that a shell would not read as one path is in no flag.
    (
        "mv secret 'secret;x' && echo 'gitdir: ../secret;x/.git' > w/.git",
        "grant it only if you made the workspace from it\n",
    ),
    ("echo \"gitdir: $PWD/secret/.git\" > w/.git", NOT_IN_TURN),
    ("echo 'gitdir: ../secret/.git' > w/.git", NOT_IN_TURN),
    ("ln -s ../secret/.git w/.git", NOT_IN_TURN),
    (
        "git -C secret worktree add -q ../spare && echo 'gitdir: ../secret/.git/worktrees/spare' > w/.git",
        NOT_IN_TURN,
    ),
    (
        "mkdir -p w/x secret/.git/worktrees/x && echo \"$PWD/w/.git\" > secret/.git/worktrees/x/gitdir && echo 'gitdir: ../secret/.git/worktrees/x' > w/.git",
        "which is no repository",
    ),
    (
        "mkdir -p fake/worktrees/x && echo \"$PWD/w/.git\" > fake/worktrees/x/gitdir && echo \"$PWD/secret/.git\" > fake/worktrees/x/commondir && echo 'gitdir: ../fake/worktrees/x' > w/.git",
        "which is no repository",
    ),
    ("echo 'gitdir: ../secret' > w/.git", "which is no repository"),
    ("echo 'gitdir: ../missing' > w/.git", "which is not there"),
    ("mkfifo w/.git", "which is no"),
    (
        "git init -q w && echo ../../../secret/.git/objects > w/.git/objects/info/alternates",
        MORE_OBJECTS,
    ),
    ("git init -q w && echo ../../../secret > w/.git/objects/info/alternates", ""),
    (
        "git init -q w && git init -q w/in && echo ../../in/.git/objects > w/.git/objects/info/alternates",
        "",
    ),
    (
        "mv secret/.git secret/priv && git config -f secret/priv/config core.worktree \"$PWD/w\" && echo 'gitdir: ../secret/priv' > w/.git",
        "which is not named like a repository: a workspace's file may name any repository",
    ),
];

fn strangers(caller: &Caller) -> Check {
    let find = "ls / /var /var/tmp 2>/dev/null; find /var -name key -o -name pristine 2>/dev/null; echo searched";
    let home = Home::new(caller)?;
    home.outside(caller, "mv secret pristine")?;
    for (made, remark) in STRANGERS {
        let script = format!(
            "rm -rf w fake spare secret* s away; cp -r pristine secret; mkdir w; {made}; echo made"
        );
        equal(made, home.outside(caller, &script)?.trimmed(), "made")?;
        let output = home.run(caller, "w", &[], find)?;
        holds(
            made,
            &output,
            output.stdout.ends_with("\nsearched\n") && !output.stdout.contains("secret"),
        )?;
        if made.starts_with("mkfifo") {
            continue;
        }
        holds(
            made,
            &output,
            output.stderr.contains(remark) && output.stderr.is_empty() == remark.is_empty(),
        )?;
    }
    // The positive control: what names the workspace in turn is shown.
    let home = Home::new(caller)?;
    let output = home.run(caller, "tree", &[], "cat $(git rev-parse --git-common-dir)/HEAD")?;
    equal("shown", output.trimmed(), "ref: refs/heads/main")?;
    // The home itself, and what contains it, is no repository of a project.
    equal("made", home.outside(caller, "git init -q . && mkdir p && echo x > p/f && git add p && git commit -qm all && echo made")?.trimmed(), "made")?;
    let output =
        home.run(caller, "p", &[], &format!("ls -A {} 2>/dev/null; git log", home.at("")))?;
    holds("not the home", &output, !output.stdout.contains(".git") && output.code == 128)?;
    // A part that cannot be granted does not keep cells from starting.
    let home = Home::new(caller)?;
    for mode in ["0111", "0311"] {
        equal(
            "made",
            home.outside(caller, &format!("chmod {mode} main/.git && echo made"))?.trimmed(),
            "made",
        )?;
        let output = home.run(caller, "tree", &[], "echo started; ls -A $PWD/../main")?;
        let remark = format!("its mode is {mode}");
        let is_said =
            output.stderr.contains(&remark) && output.stderr.contains("; cells start without it\n");
        holds(mode, &output, output.stdout.starts_with("started\n") && is_said)?;
        holds("nothing of it", &output, output.stdout == "started\n")?;
        // What the operator typed is an error, as before.
        let flags = home.flags("--rw", "main/.git");
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let output = home.run(caller, "tree", &flags, "echo started")?;
        holds("typed", &output, output.code == 125 && output.stdout.is_empty())?;
    }
    equal("made", home.outside(caller, "chmod 0755 main/.git && echo made")?.trimmed(), "made")?;
    // An index behind a link is not opened: a cell may have led it to a device.
    let home = Home::new(caller)?;
    let moved = "mv main/.git/index main/.git/i && ln -s i main/.git/index && git -C main status -s . && echo made";
    equal("made", home.outside(caller, moved)?.trimmed(), "made")?;
    let output = home.run(caller, "main/sub", &[], "git log")?;
    let is_unread = output.stderr.contains("which has no file of it");
    holds("an index behind a link", &output, output.code != 0 && is_unread)?;
    if caller.uid() != 0 && nix::unistd::geteuid().is_root() {
        // A repository of another user, and of another user's making.
        let home = Home::new(caller)?;
        std::os::unix::fs::chown(home.held.path().join("main/.git"), Some(0), Some(0))?;
        let output = home.run(caller, "tree", &[], "ls -A $PWD/../main")?;
        let remark = "which belongs to another user: a workspace's file may name any repository";
        holds("another's", &output, output.code != 0 && output.stderr.contains(remark))?;
        let output =
            home.run(caller, "main/sub", &[], &format!("ls -A {}", home.at("main/.git")))?;
        holds("another's above", &output, output.code != 0 && !output.stderr.contains("part of"))?;
    }
    Ok(())
}

fn linked(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let mut server = Server::configured(caller, CONFIG, &[], &["--workspace", &home.at("tree")])?;
    let at = home.at("tree");
    server.gives(
        "pwd -P; git status -s; cd sub && git log --format=%s",
        0,
        &format!("{at}\nfirst\n"),
    )?;
    server.gives("cd /workspace/sub && git rev-parse --show-toplevel", 0, &format!("{at}\n"))?;
    let made = serde_json::json!({ "command": "create", "path": "/workspace/by-tool", "file_text": "x\n" });
    let answer = server.tool("edit", &made)?;
    holds("made", &answer, Path::new(&at).join("by-tool").exists())?;
    // `pwd` shows the host's path, so that both are taken.
    for cwd in ["/workspace/sub", "sub", &format!("{at}/sub"), &format!("{at}/./sub/../sub/")] {
        let answer = server
            .with(&serde_json::json!({ "command": "cat f", "cwd": cwd, "restart": false }))?;
        holds(cwd, &answer, text(&answer).starts_with("x\n"))?;
    }
    for cwd in [&format!("{at}/../main"), &format!("{at}-other"), &home.at("main")] {
        let answer = server
            .with(&serde_json::json!({ "command": "cat f", "cwd": cwd, "restart": false }))?;
        holds(cwd, &answer, text(&answer).contains("is not inside /workspace or /tmp"))?;
    }
    let seen = serde_json::json!({ "command": "view", "path": format!("{at}/sub/f") });
    let answer = server.tool("edit", &seen)?;
    holds("by the host's path", &answer, text(&answer).contains('x'))?;
    let output = home.run(caller, "tree", &["--cwd", &format!("{at}/sub")], "cat f; pwd -P")?;
    equal("run", output.stdout.as_str(), format!("x\n{at}/sub\n").as_str())?;
    server.gives(
        "cd /workspace && git add . && git -c user.name=n -c user.email=e commit -qm served && git log --format=%an:%s | head -1",
        0,
        "n:served\n",
    )?;
    let answer = server.bash("mkdir /workspace/.vscode; mkdir .git/x; false")?;
    holds("guarded", &answer, text(&answer).contains("denied: system call mkdir, once"))?;
    // A grant within the workspace moves with it.
    let part = format!("{}:/workspace/sub", home.at("main/other"));
    let output = home.run(
        caller,
        "tree",
        &["--ro", &part],
        "cat /workspace/sub/g; cat $PWD/sub/g; touch sub/x; git log --format=%s | tail -1",
    )?;
    equal("nested", output.stdout.as_str(), "y\ny\nfirst\n")?;
    // Where cells have something else at the path, nothing is granted, and it is said.
    let other = format!("{}:{at}", home.at("secret"));
    let output = home.run(caller, "tree", &["--ro", &other], "pwd; git log")?;
    holds(
        "elsewhere",
        &output,
        output.stdout.as_str() == "/workspace\n" && output.stderr.contains("which they cannot"),
    )
}

fn added(caller: &Caller) -> Check {
    let gits: Vec<PathBuf> = ["/usr/bin/git", "/usr/local/bin/git"]
        .map(PathBuf::from)
        .into_iter()
        .filter(|git| git.exists())
        .collect();
    for git in gits {
        let home = Home::new(caller)?;
        equal("made", home.outside(caller, "mkdir near; git worktree remove --force relative; rm -rf relative main/.git/worktrees/relative; echo made")?.trimmed(), "made")?;
        let git = git.display().to_string();
        let add = format!("cd /workspace && {git} worktree add -q {}/added", home.at("near"));
        let [flag, near] = home.flags("--rw", "near");
        let refused = home.run(caller, "main", &[&flag, &near], &add)?;
        let reason = "since the host's git obeys a repository that is made there";
        holds("refused", &refused, refused.code != 0 && refused.stderr.contains(reason))?;
        let output = home.run(caller, "main", &[&flag, &near, "--unguarded"], &add)?;
        equal("added", (output.code, output.stderr.as_str()), (0, ""))?;
        let pointer = std::fs::read_to_string(home.held.path().join("near/added/.git"))?;
        equal(
            "from it",
            pointer.trim(),
            format!("gitdir: {}", home.at("main/.git/worktrees/added")).as_str(),
        )?;
        let back =
            std::fs::read_to_string(home.held.path().join("main/.git/worktrees/added/gitdir"))?;
        equal("to it", back.trim(), home.at("near/added/.git").as_str())?;
        for host in ["/usr/bin/git", git.as_str()] {
            let output = home.outside(caller, &format!("{host} -C main worktree prune -v; {host} -C near/added log --format=%s; ls main/.git/worktrees"))?;
            equal(host, output.stdout.as_str(), "first\nadded\ntree\n")?;
        }
    }
    Ok(())
}

fn reported(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    for (workspace, remark) in [
        ("tree", "which cells have too"),
        ("main/sub", "cells have its .git, read-only"),
        ("separate", NOT_IN_TURN),
        ("shared", MORE_OBJECTS),
    ] {
        let mut command = caller.cofferdam(&["setup", "claude-code", "--print"]);
        command.env("HOME", home.held.path()).current_dir(home.at(workspace));
        let output = Finished::run(command, patience())?;
        holds("by setup", &output, output.code == 0 && output.stdout.contains(remark))?;
        let mut command = caller.cofferdam(&["doctor"]);
        command.env("HOME", home.held.path()).current_dir(home.at(workspace));
        let output = Finished::run(command, patience())?;
        let line = output.stdout.lines().find(|line| line.contains("repository elsewhere"));
        holds(
            "by doctor",
            &output,
            line.is_some_and(|line| line.contains(remark.trim_end_matches(['`', ' ']))),
        )?;
    }
    let mut command = caller.cofferdam(&["doctor"]);
    command.env("HOME", home.held.path()).current_dir(home.at("main"));
    let output = Finished::run(command, patience())?;
    holds("nothing to say", &output, !output.stdout.contains("repository elsewhere"))
}
