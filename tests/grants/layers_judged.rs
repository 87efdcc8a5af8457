//! What of a hostile layer is applied, with a real overlay, a real git and a person's review: nothing that
//! the host obeys, follows or has in another version; and commits that come out as data.

use std::path::Path;
use std::time::Instant;

use crate::layers::{REPOSITORY, in_layer, project, review, reviewed, tree};
use crate::support::{Caller, Check, Claim, Failed, For, Need, claim, equal, holds, soon};

pub const CLAIMS: &[Claim] = &[
    claim("a_hook_is_held_back_however_large_the_directory_is", large).needs(&[Need::Git]),
    claim("names_of_hooks_directories_are_held_back_in_any_form", holders),
    claim("hooks_at_the_top_of_a_directory_of_hooks_are_held_back", top_holder),
    claim("a_repository_without_a_git_directory_is_one_unit", repositories).needs(&[Need::Git]),
    claim("a_repository_made_at_the_top_is_one_unit", top_repository).needs(&[Need::Git]),
    claim("links_that_take_long_to_follow_hold_nothing_else_back", long_links),
    claim("a_directory_that_cannot_be_entered_holds_nothing_else_back", closed),
    claim("a_directory_that_cannot_be_listed_may_have_a_repository", unlisted)
        .needs(&[Need::Git])
        .only(For::User),
    claim("names_that_a_start_guarded_are_held_back_later", guarded_by_start),
    claim("links_of_a_layer_are_followed_as_the_host_would", links),
    claim("files_that_the_host_moved_into_a_removed_directory_stay", moved_in),
    claim("commits_come_out_without_moving_a_branch", commits).needs(&[Need::Git]),
    claim("hostile_commits_are_refused_or_named", hostile_commits).needs(&[Need::Git]),
    claim("commits_with_more_files_than_memory_holds_are_not_listed", bomb).needs(&[Need::Git]),
    claim("a_new_repository_comes_out_as_a_bundle", new_repository).needs(&[Need::Git]),
    claim("roots_git_has_the_ids_of_the_repositorys_owner", owners)
        .needs(&[Need::Git])
        .only(For::Root),
    claim("build_files_are_marked", flagged),
    claim("a_layer_can_be_chosen_by_its_name", by_name),
];

/// Returns the lines of a list that have a note.
fn held(list: &str) -> Vec<&str> {
    list.lines().filter(|line| line.contains("[held back")).collect()
}

fn large(caller: &Caller) -> Check {
    // A nested repository far below, whose hooks are in the work tree, behind more directories than a
    // start has time to look at.
    let made = "mkdir -p a && (cd a && seq 30000 | xargs mkdir) && mkdir -p z/y/x/deep && cd z/y/x/deep && \
        git init -q && git config core.hooksPath tools && mkdir tools && echo before > tools/pre-commit && \
        echo before > plain";
    let path = project(caller, "project", made)?;
    let script = "cd z/y/x/deep && echo evil > tools/pre-commit && echo evil > tools/new && echo after > plain";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let applied = review(caller, &[&path, "--apply"])?;
    let read = |name: &str| std::fs::read_to_string(Path::new(&path).join("z/y/x/deep").join(name));
    equal("the control", read("plain")?, "after\n")?;
    equal("the hook", read("tools/pre-commit")?, "before\n")?;
    holds("a new hook", &path, read("tools/new").is_err())?;
    equal("both are listed", held(applied.trimmed()).len(), 2)
}

fn holders(caller: &Caller) -> Check {
    let path = project(caller, "project", "mkdir gh; echo x > gh/x")?;
    // `hooks` in a directory to which the name leads would be one that agents run.
    let script = "set -e
        mkdir gh/hooks; echo evil > gh/hooks/pre; ln -s gh .github; ln -s ../gh gh/.clinerules
        mkdir -p a b c d; echo evil > a/.github; ln -s ../gh b/.GITHUB
        mkdir -p c/.Github/hooks; echo evil > c/.Github/hooks/x
        mkdir -p \"d/.github$(printf '\\342\\200\\214')/hooks\"; mkdir -p 'd/GITHUB~1'
        for name in .git .vscode .husky .claude .devcontainer; do ln -s gh $name; ln -s ../gh a/$name; done
        ln -s gh .GIT; ln -s gh 'GIT~1'; ln -s gh '.vscode .'; ln -s gh .Husky
        mkdir -p e/.github/workflows; echo on > e/.github/workflows/ci.yml; echo harmless > harmless";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal("something is held back", applied.code, 1)?;
    let found = caller.bash_outside(&format!(
        "cd {path} && find . -iname '.*' ! -name . -printf '%p %y\\n' -o -name '*~*' -print | LC_ALL=C sort; \
         cat harmless e/.github/workflows/ci.yml gh/hooks/pre"
    ))?;
    let expected = "./e/.github d\nharmless\non\nevil\n";
    equal("on the host", found.stdout.as_str(), expected)
}

fn top_holder(caller: &Caller) -> Check {
    let script = "set -e; mkdir hooks workflows; echo evil > hooks/evil.json; echo evil > Hooks
        mkdir HOOKS.; echo evil > HOOKS./x; echo on > workflows/ci.yml";
    for name in ["new/.github", "odd/.Clinerules"] {
        caller.directory(name.split('/').next().unwrap_or_default())?;
        let path = project(caller, name, "true")?;
        equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
        equal(name, review(caller, &[&path, "--apply"])?.code, 1)?;
        let found = caller.bash_outside(&format!("cd {path} && find . | LC_ALL=C sort"))?;
        equal(name, found.stdout.as_str(), ".\n./workflows\n./workflows/ci.yml\n")?;
    }
    Ok(())
}

fn top_repository(caller: &Caller) -> Check {
    let path = project(caller, "project", "mkdir src; echo a > src/a")?;
    let script = "git init -q --bare . && echo evil > hooks/post-update && echo b > src/a";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    equal("held back", review(caller, &[&path, "--apply"])?.code, 1)?;
    let found = caller.bash_outside(&format!("cd {path} && find . | LC_ALL=C sort; cat src/a"))?;
    equal("on the host", found.stdout.as_str(), ".\n./src\n./src/a\na\n")
}

fn long_links(caller: &Caller) -> Check {
    let path = project(caller, "project", "mkdir d; ln -s d/x here; ln -s m/n/x through")?;
    let script = "set -e; mkdir -p bomb/a good; cd bomb
        text=$(printf 'a/../%.0s' $(seq 680)); for i in $(seq 150); do ln -s \"$text\" l$i; done
        cd ..; echo f > good/f; ln -s good/f goodlink; ln -s ../good zz; ln -s bomb/l1 m";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let start = Instant::now();
    let applied = review(caller, &[&path, "--apply"])?;
    holds("the time", start.elapsed(), start.elapsed() < soon(60))?;
    let list = held(applied.trimmed());
    let is_long = |line: &&&str| line.contains("following the link takes too long");
    // The links of the bomb, and the two that lead through it or out of the directory.
    equal("the long ones", list.iter().filter(is_long).count(), 151)?;
    equal("all", list.len(), 152)?;
    let found =
        caller.bash_outside(&format!("cd {path} && cat good/f goodlink; ls -d bomb/a zz m"))?;
    equal("on the host", found.stdout.as_str(), "f\nf\nbomb/a\n")
}

fn closed(caller: &Caller) -> Check {
    let made = "mkdir -p src shut gone/in; echo a > src/a; echo a > gone/in/f; chmod 0444 shut";
    let path = project(caller, "project", made)?;
    let script = "set -e; echo x > src/new; mkdir -p made/in; echo x > made/in/f
        chmod 0755 shut; echo x > shut/new; echo x > plain; chmod 0444 src made .";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let is_root = caller.uid() == 0;
    for arguments in [&[path.as_str()][..], &[&path, "--diff"], &[&path, "--apply"]] {
        let output = review(caller, arguments)?;
        holds("nothing fails", &output, output.stderr.is_empty() || output.code != 125)?;
        equal(
            "changes",
            output.code,
            if is_root && arguments.contains(&"--apply") { 0 } else { 1 },
        )?;
    }
    let list = reviewed(caller, &[&path])?.1;
    let expected = "A made/  [held back: it cannot be read]\nM shut/  [held back: it cannot be read]\n\
        M src/  [held back: it cannot be read]";
    equal("what is left", list.as_str(), if is_root { "" } else { expected })?;
    let found = caller.bash_outside(&format!("cd {path} && cat plain; chmod 0755 shut"))?;
    equal("on the host", found.stdout.as_str(), "x\n")
}

fn unlisted(caller: &Caller) -> Check {
    let cases = [
        (
            "itself",
            "git init -q closed; git -C closed config core.hooksPath ../tools; chmod 0311 closed",
            false,
        ),
        (
            "below",
            "git init -q closed/in; git -C closed/in config core.hooksPath ../../tools; chmod 0311 closed",
            false,
        ),
        (
            "shut",
            "git init -q closed; git -C closed config core.hooksPath ../tools; chmod 0 closed",
            true,
        ),
    ];
    for (name, made, is_applied) in cases {
        let path = project(caller, name, &format!("mkdir closed; {made}"))?;
        let script = "mkdir tools; echo evil > tools/post-commit";
        equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
        let output = review(caller, &[&path, "--apply"])?;
        let found = caller.bash_outside(&format!("cd {path} && chmod 0700 closed; ls -d tools"))?;
        equal(name, found.stdout.as_str(), if is_applied { "tools\n" } else { "" })?;
        holds(name, &output, output.stderr.contains("everything is held back") != is_applied)?;
    }
    Ok(())
}

fn guarded_by_start(caller: &Caller) -> Check {
    let config = caller.directory("config")?;
    let made = "mkdir tools; echo a > tools/run; ln -s tools/run deploy.sh";
    let path = project(caller, "project", made)?;
    let directory = config.display().to_string();
    let start = |names: &str, script: &str| -> Check {
        let text = format!("schema = 1\n[guard]\nnames = {names}\n");
        std::fs::write(config.join("cofferdam.toml"), text)?;
        let options = ["--config", &directory, "--cow", &path];
        equal("in the cell", caller.run(&options, &["bash", "-c", script])?.code, 0)
    };
    // Each start adds its names, and what a link of such a name leads to is held back too.
    start(r#"["deploy.sh"]"#, "mkdir new; echo x > new/Deploy.SH; echo x > tools/run")?;
    start(r#"["release"]"#, "echo x > new/release; echo x > fine")?;
    start("[]", "echo x > new/fine")?;
    equal("applied", review(caller, &[&path, "--apply"])?.code, 1)?;
    let found = caller.bash_outside(&format!("cd {path} && ls fine new; cat tools/run"))?;
    equal("on the host", found.stdout.as_str(), "fine\n\nnew:\nfine\na\n")
}

fn repositories(caller: &Caller) -> Check {
    let made = format!(
        "{REPOSITORY} && git clone -q --bare . bare && cp -r bare gone.git && mkdir deep && cp -r bare deep/inner && \
         git clone -q --separate-git-dir=store . sep && git -C bare worktree add -q ../linked && mkdir lib && \
         echo source > lib/HEAD && git -C bare symbolic-ref HEAD refs/heads/other && \
         mkdir -p later half/objects half/refs && echo x > later/plain"
    );
    let path = project(caller, "project", &made)?;
    let all = "bare gone.git deep/inner store later half";
    let before = tree_of(caller, &path, all)?;
    let script = "set -e
        echo evil > bare/description; git -C bare config core.fsmonitor evil; rm bare/HEAD bare/packed-refs
        rm -r gone.git deep; rm -r store/objects store/refs; echo x > store/new
        git init -q --bare made; mkdir -p lib/objects lib/refs; echo y > lib/plain; echo z > harmless
        rm -rf bare/worktrees; rm -r linked; git init -q --bare later
        mkdir half/hooks; echo evil > half/hooks/post-update; echo x > half/config; echo ref > half/HEAD";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal("something is held back", applied.code, 1)?;
    equal("the repositories", tree_of(caller, &path, all)?, before)?;
    let list = held(applied.trimmed());
    for unit in
        ["M bare/", "D gone.git/", "D deep/inner/", "M store/", "A made/", "M later/", "M half/"]
    {
        let is_one = list.iter().filter(|line| line.starts_with(unit)).count() == 1;
        holds(unit, &list, is_one)?;
        let below = list.iter().any(|line| {
            line.strip_prefix(unit).is_some_and(|rest| !rest.is_empty() && !rest.starts_with(' '))
        });
        holds("one line", &list, !below)?;
    }
    let look = caller.bash_outside(&format!(
        "cd {path} && cat harmless lib/plain; ls -d made lib/objects lib/refs linked/src 2>/dev/null; \
         git -C bare fsck 2>&1 | grep -c error"
    ))?;
    equal("the rest", look.stdout.as_str(), "z\ny\n0\n")
}

fn tree_of(caller: &Caller, path: &str, directories: &str) -> Result<String, Failed> {
    let mut all = String::new();
    for directory in directories.split(' ') {
        all.push_str(&tree(caller, &format!("{path}/{directory}"))?);
    }
    Ok(all)
}

fn links(caller: &Caller) -> Check {
    let made = "mkdir -p src/deep tools/t k/b; echo a > src/a; echo b > src/deep/b; ln -s / root; ln -s .. up; \
        ln -s src/deep down; ln -s b/../../x k/a; echo x > x; ln -s ../.github tools/gh; mkdir .github";
    let path = project(caller, "project", made)?;
    let script = "set -e
        ln -s root/etc/passwd l1; ln -s up/x l2; ln -s down/../../.. l3; ln -s tools/gh/hooks l4
        ln -s down/b good; ln -s src/../src/a also; ln -s src hop; ln -s hop/../up/.. l5
        rmdir k/b; ln -s ../src k/b; ln -s /proc/self/cwd l6
        ln -s \"$(printf 'src/\\033[2J')\" strange";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let list = review(caller, &[&path])?;
    for line in
        ["A good -> down/b\n", "A also -> src/../src/a\n", "A strange -> \"src/\\033[2J\"\n"]
    {
        holds(line, &list.stdout, list.stdout.contains(line))?;
    }
    equal("applied", review(caller, &[&path, "--apply"])?.code, 1)?;
    let found = caller.bash_outside(&format!(
        "cd {path} && find . -type l -printf '%p %l\\n' | LC_ALL=C sort | grep -v strange; cat good also k/a; ls -d k/b"
    ))?;
    let expected = "./also src/../src/a\n./down src/deep\n./good down/b\n./hop src\n./k/a b/../../x\n./root /\n\
        ./tools/gh ../.github\n./up ..\nb\na\nx\nk/b\n";
    equal("on the host", found.stdout.as_str(), expected)
}

fn moved_in(caller: &Caller) -> Check {
    let made = "mkdir -p d/sub e f; echo a > d/a; echo b > d/sub/b; echo c > e/c; echo g > f/g";
    let path = project(caller, "project", made)?;
    let aside = caller.directory("aside")?.display().to_string();
    let old = format!(
        "mkdir -p {aside}/m/n {aside}/o && echo old > {aside}/m/n/old && echo old > {aside}/o/c"
    );
    equal("older files", caller.bash_outside(&old)?.code, 0)?;
    std::thread::sleep(std::time::Duration::from_millis(20));
    let script = "rm -r d f; rm -r e && mkdir -p e/o && echo agent > e/o/c";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let edit = format!(
        "mv {aside}/m {path}/d/ && touch {path}/d/m/later && mv {aside}/o {path}/e/ && touch {path}/e/o/x"
    );
    equal("the host", caller.bash_outside(&edit)?.code, 0)?;
    equal("applied", review(caller, &[&path, "--apply"])?.code, 1)?;
    let look = format!("cd {path} && cat d/m/n/old e/o/c && ls -d f d/sub/b 2>/dev/null");
    equal("on the host", caller.bash_outside(&look)?.stdout.as_str(), "old\nold\nd/sub/b\n")
}

const AS_AGENT: &str = "git config user.email agent@x; git config user.name agent";

fn commits(caller: &Caller) -> Check {
    // A hook of the host that would run for a reference, and a configuration that would run a program.
    let made = format!(
        "{REPOSITORY} && printf '#!/bin/sh\\ntouch {{}}/ran || true\\n' | sed \"s#{{}}#$PWD#\" > .git/hooks/reference-transaction && \
         chmod +x .git/hooks/reference-transaction && git rev-parse --abbrev-ref HEAD"
    );
    let path = project(caller, "project", &format!("{{ {made}; }} >/dev/null; rm -f ran"))?;
    let state = format!(
        "cd {path} && git rev-parse HEAD && git status --porcelain && ls -A . && git branch -a"
    );
    let before = caller.bash_outside(&state)?.stdout;
    let script = format!(
        "set -e; {AS_AGENT}; echo more >> src/a; git commit -qam second; git tag -a v1 -m v1
        git checkout -qb feature; echo x > .envrc; ln -s /etc out; git add .envrc out; git commit -qm third
        git checkout -q --detach; echo y > y; git add y; git commit -qm detached; echo rest > rest"
    );
    equal("in the cell", in_layer(caller, &path, &script)?.code, 0)?;
    let output = review(caller, &[&path, "--commits"])?;
    equal("the commits", (output.code, output.stderr.contains("no branch has moved")), (0, true))?;
    for part in [
        "/heads/feature  2 new commits\n",
        "/tags/v1  1 new commit\n",
        "/detached  3 new commits\n",
        "  .envrc  [direnv runs it as a shell script, once allowed]\n",
        "  out  [a link]\n",
        &format!("  git -C {path} merge refs/cofferdam/project-"),
    ] {
        holds(part, &output.stdout, output.stdout.contains(part))?;
    }
    equal("nothing else", caller.bash_outside(&state)?.stdout, before)?;
    let look = format!(
        "cd {path} && ls .git/FETCH_HEAD ran 2>/dev/null; git log --format=%s $(git for-each-ref --format='%(refname)' \
         'refs/cofferdam/*/heads/feature'); git fsck 2>&1 | grep -c error; git show-ref --tags | wc -l"
    );
    let found = caller.bash_outside(&look)?;
    equal("fetched", found.stdout.as_str(), "third\nsecond\nfirst\n0\n0\n")?;
    let again = review(caller, &[&path, "--commits"])?;
    equal("once", (again.code, again.stdout.as_str()), (0, ""))?;
    // The merge is the person's.
    let merged = format!(
        "cd {path} && rm .git/hooks/reference-transaction && git merge -q --ff-only $(git for-each-ref \
         --format='%(refname)' 'refs/cofferdam/*/heads/feature') && cat src/a"
    );
    equal("merged", caller.bash_outside(&merged)?.stdout.as_str(), "a\nmore\n")?;
    let live = caller.live(&["--cow", &path], "echo live > live; sleep 1000")?;
    let end = Instant::now() + soon(10);
    while !reviewed(caller, &[&path])?.1.contains("A live") {
        holds("the change is listed", &path, Instant::now() < end)?;
    }
    let used = review(caller, &[&path, "--commits"])?;
    let is_named = used.code == 125 && used.stderr.contains("is in use");
    holds("in use", &used.stderr, is_named)?;
    drop(live);
    Ok(())
}

fn hostile_commits(caller: &Caller) -> Check {
    let base = project(caller, "project", REPOSITORY)?;
    let tried = |name: &str, script: &str| -> Result<(String, String), Failed> {
        let path = caller.directory(name)?.display().to_string();
        caller.bash_outside(&format!("cp -rT {base} {path}"))?;
        std::thread::sleep(std::time::Duration::from_millis(20));
        let before =
            caller.bash_outside(&format!("cd {path} && git rev-parse HEAD; cat .git/config"))?;
        let script = format!("{AS_AGENT}\n{script}");
        equal(name, in_layer(caller, &path, &script)?.code, 0)?;
        let output = review(caller, &[&path, "--commits"])?;
        let after =
            caller.bash_outside(&format!("cd {path} && git rev-parse HEAD; cat .git/config"))?;
        equal(name, after.stdout, before.stdout)?;
        holds(
            name,
            &output.stdout,
            !output.stdout.contains('\u{1b}') && !output.stderr.contains('\u{1b}'),
        )?;
        let found = format!(
            "cd {path} && git for-each-ref --format='%(refname)' | grep -v refs/heads | sed 's#refs/cofferdam/[^/]*/##'; \
             ls ran .git/modules .git/FETCH_HEAD .git/shallow .git/objects/info/alternates 2>/dev/null"
        );
        Ok((caller.bash_outside(&found)?.stdout, format!("{}{}", output.stdout, output.stderr)))
    };
    // The control.
    let (found, _) = tried("control", "git commit -q --allow-empty -m x")?;
    holds("the control", &found, found.starts_with("heads/") && found.lines().count() == 1)?;
    // Programs that the layer's configuration names run in the cell at most.
    let program = "printf '#!/bin/sh\\ntouch /workspace/ran; echo evil\\n' > evil; chmod +x evil";
    let (found, _) = tried(
        "programs",
        &format!(
            "{program}; git commit -q --allow-empty -m x; git config core.fsmonitor /workspace/evil
            git config core.alternateRefsCommand /workspace/evil; git config alias.bundle '!/workspace/evil'
            git config core.hooksPath /workspace; cp evil reference-transaction; cp evil .git/hooks/post-commit
            git config pager.bundle /workspace/evil; git config core.pager /workspace/evil"
        ),
    )?;
    holds("programs", &found, found.starts_with("heads/") && found.lines().count() == 1)?;
    // A submodule whose URL is an option, in a commit: refused as a whole.
    let (found, text) = tried(
        "submodule",
        "git commit -q --allow-empty -m x; printf '[submodule \"a\"]\\n\\tpath = a\\n\\turl = --upload-pack=evil\\n' > .gitmodules
        git add .gitmodules; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),a; git commit -qm y",
    )?;
    equal("a submodule", found.as_str(), "")?;
    holds("the reason", &text, text.contains("your git refuses them"))?;
    // A tree with `.git` in it, and one with a name that folds to it.
    for (name, entry) in [("dotgit", ".git"), ("folds", ".Git"), ("dots", "..")] {
        let script = format!(
            "blob=$(echo evil | git hash-object -w --stdin); tree=$(printf '100644 blob %s\\tconfig\\n' $blob | git mktree)
            top=$(printf '040000 tree %s\\t%s\\n' $tree x | git mktree)
            top=$(git cat-file tree $top | sed 's#40000 x#40000 {entry}#' | git hash-object -w --stdin -t tree --literally)
            git update-ref refs/heads/evil $(echo m | git commit-tree $top)"
        );
        let (found, text) = tried(name, &script)?;
        equal(name, found.as_str(), "")?;
        holds(name, &text, text.contains("your git refuses them"))?;
    }
    // References with odd names, replaced objects, grafts, alternates, a shallow end.
    let (found, _) = tried(
        "references",
        "git commit -q --allow-empty -m x; head=$(git rev-parse HEAD); mkdir -p .git/refs/heads/-x .git/refs/remotes/o
        echo $head > .git/refs/heads/-x/y; echo $head > .git/refs/remotes/o/z; echo $head > '.git/refs/heads/a..b'
        echo $head > \"$(printf '.git/refs/heads/e\\033[2J')\"; echo $head > .git/refs/stash; git update-ref refs/cofferdam/x $head
        git update-ref refs/replace/$(git rev-parse HEAD~1) $head",
    )?;
    let is_narrow = found.lines().all(|line| line.starts_with("heads/"));
    holds("references", &found, is_narrow)?;
    let (found, _) = tried(
        "grafts",
        "git commit -q --allow-empty -m x; git commit -q --allow-empty -m y; git rev-parse HEAD > .git/info/grafts
        git rev-parse HEAD > .git/shallow; mkdir -p /tmp/o; echo /tmp/o > .git/objects/info/alternates",
    )?;
    let is_narrow = found.lines().all(|line| line.starts_with("heads/"));
    holds("grafts", &found, is_narrow)?;
    // No bundle at all, and one that is no bundle.
    let (found, text) = tried("broken", "rm -rf .git/objects; echo x > .git/HEAD")?;
    equal("broken", found.as_str(), "")?;
    holds("the reason", &text, text.contains("the commits stay in the layer"))
}

fn bomb(caller: &Caller) -> Check {
    let path = project(caller, "project", REPOSITORY)?;
    let script = format!(
        "{AS_AGENT}; tree=$(printf '100644 blob %s\\tf\\n' $(echo x | git hash-object -w --stdin) | git mktree)
        for level in 1 2 3 4 5 6 7 8 9; do
            tree=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf '040000 tree %s\\td%s\\n' $tree $i; done | git mktree)
        done; git update-ref refs/heads/bomb $(echo m | git commit-tree $tree)"
    );
    equal("in the cell", in_layer(caller, &path, &script)?.code, 0)?;
    let output = review(caller, &[&path, "--commits"])?;
    for part in ["/heads/bomb  1 new commit\n", "  the files cannot be listed: your git "] {
        holds(part, &output, output.code == 0 && output.stdout.contains(part))?;
    }
    Ok(())
}

fn new_repository(caller: &Caller) -> Check {
    let path = project(caller, "project", "mkdir lib .vscode; echo a > a")?;
    let script = format!(
        "set -e; for d in . lib/new 'odd;name' gone/deep .vscode/ext; do mkdir -p \"$d\"; (cd \"$d\"; git init -qb main; {AS_AGENT}
        echo x > x; git add x; git commit -qm first); done; git init -q --bare bare; git -C lib/new push -q ../../bare main
        mkdir 'esc'; git init -q \"$(printf 'esc/\\033[2J')\""
    );
    equal("in the cell", in_layer(caller, &path, &script)?.code, 0)?;
    let output = review(caller, &[&path, "--commits"])?;
    // One path cannot be shown, and in one directory nothing is written.
    let stay = output.stderr.matches("stay in the layer").count();
    holds("two stay", &output, stay == 2)?;
    holds(
        "plain",
        &output.stderr,
        !format!("{}{}", output.stdout, output.stderr).contains('\u{1b}'),
    )?;
    let look = format!(
        "cd {path} && find . -type f | LC_ALL=C sort; for b in project lib/new 'odd;name' gone-deep bare; do \
         git clone -q -c transfer.fsckObjects=true \"$b.bundle\" \"$HOME/clones/$b\" -b main && cat \"$HOME/clones/$b/x\"; done"
    );
    let expected = "./a\n./bare.bundle\n./gone-deep.bundle\n./lib/new.bundle\n./odd;name.bundle\n./project.bundle\n\
        x\nx\nx\nx\nx\n";
    equal("on the host", caller.bash_outside(&look)?.stdout.as_str(), expected)?;
    let command =
        format!("git clone -c transfer.fsckObjects=true '{path}/odd;name.bundle' DIRECTORY");
    holds("quoted", &output.stdout, output.stdout.contains(&command))?;
    // Never over a file that is there.
    let again = review(caller, &[&path, "--commits"])?;
    equal("again", again.code, 1)?;
    holds("the reason", &again.stderr, again.stderr.contains("is there already"))
}

fn owners(caller: &Caller) -> Check {
    let path = project(caller, "project", REPOSITORY)?;
    let given = format!("cd {path} && chown -R 4711:4711 . && chmod 711 .. && echo given");
    equal("given", caller.bash_outside(&given)?.trimmed(), "given")?;
    std::thread::sleep(std::time::Duration::from_millis(20));
    let script = format!(
        "{AS_AGENT}; git commit -q --allow-empty -m second; git log -1 --format=%s
        git init -q new; cd new; {AS_AGENT}; git commit -q --allow-empty -m new"
    );
    equal("in the cell", in_layer(caller, &path, &script)?.stdout.as_str(), "second\n")?;
    // A third user could put another repository there, in which root or the owner would write.
    let given =
        |owner: &str| caller.bash_outside(&format!("chown {owner} {path}/.. && echo given"));
    equal("a third user", given("4712")?.trimmed(), "given")?;
    let refused = review(caller, &[&path, "--commits"])?;
    let is_named = refused.stderr.contains("a directory around the repository is another user's");
    holds("refused", &refused, refused.code == 1 && is_named)?;
    let fetched = caller.bash_outside(&format!("cd {path} && find .git -path '*cofferdam*'"))?;
    equal("nothing is fetched", fetched.stdout.as_str(), "")?;
    equal("as before", given("0")?.trimmed(), "given")?;
    equal("the bundle", caller.bash_outside(&format!("rm {path}/new.bundle && echo"))?.code, 0)?;
    let output = review(caller, &[&path, "--commits"])?;
    let owner = caller.bash_outside(&format!("cd {path} && ls new.bundle && find . -user root"))?;
    equal("nothing of root", owner.stdout.as_str(), "new.bundle\n")?;
    let is_out = output.stdout.contains("  1 new commit\n");
    holds("the commit", &output, output.code == 0 && is_out)
}

fn flagged(caller: &Caller) -> Check {
    let path =
        project(caller, "project", "echo a > Makefile; echo a > src.c; echo b > Cargo.toml")?;
    let script = "mkdir sub .cargo; for f in Makefile src.c sub/package.json .cargo/config.toml sub/makefile.c \
        gradlew .mvn/extensions.xml compose.yaml; do mkdir -p .mvn; \
        echo more >> $f; done; rm Cargo.toml";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let list = "A .cargo/\nA .cargo/config.toml  [build file]\nA .mvn/\nA .mvn/extensions.xml  [build file]\n\
        D Cargo.toml\nM Makefile  [build file]\nA compose.yaml  [build file]\nA gradlew  [build file]\nM src.c\n\
        A sub/\nA sub/makefile.c\nA sub/package.json  [build file]";
    equal("the list", reviewed(caller, &[&path])?, (1, list.to_owned()))
}

fn by_name(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    equal("a first", in_layer(caller, &path, "echo b > b")?.code, 0)?;
    let list = reviewed(caller, &["--list"])?.1;
    let id = list.split(' ').next().unwrap_or_default();
    let named = caller.run(&["--cow", &path, "--layer", id], &["cat", "b"])?;
    equal("the same layer", named.stdout.as_str(), "b\n")?;
    let unknown = caller.run(&["--cow", &path, "--layer", "other-1"], &["cat", "b"])?;
    equal("another", unknown.code, 125)?;
    holds("the reason", &unknown.stderr, unknown.stderr.contains("is no layer of the directory"))
}
