//! What `review --commits` starts, over a hostile layer and in a repository that others may reach: a git
//! in a cell that cannot change the layer, and the operator's git apart from the operator's session.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use crate::layers::{REPOSITORY, in_layer, project, review};
use crate::support::{Caller, Check, Claim, Failed, Need, claim, equal, holds, soon};

pub const CLAIMS: &[Claim] = &[
    claim("a_layer_does_not_change_while_its_commits_are_bundled", frozen).needs(&[Need::Git]),
    claim("git_in_the_cell_fetches_nothing_for_a_bundle", lazy).needs(&[Need::Git]),
    claim("the_operators_git_runs_apart", apart).needs(&[Need::Git]),
    claim("a_repository_that_others_can_replace_gets_no_commits", replaceable).needs(&[Need::Git]),
    claim("a_repository_with_hooks_in_its_configuration_gets_no_commits", hooks)
        .needs(&[Need::Git]),
    claim("commits_that_git_cannot_read_stay_in_the_layer", damaged).needs(&[Need::Git]),
    claim("files_of_commits_are_named_by_kind", kinds).needs(&[Need::Git]),
    claim("a_diff_says_what_is_not_applied_and_what_a_file_is", described),
    claim("a_diff_has_a_bound", bounded),
    claim("names_that_look_the_same_are_shown_apart", alike),
];

const AS_AGENT: &str = "git config user.email agent@x; git config user.name agent";

fn id(caller: &Caller) -> Result<String, Failed> {
    let list = review(caller, &["--list"])?.stdout;
    Ok(list.split(' ').next().unwrap_or_default().to_owned())
}

fn frozen(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    equal("in the cell", in_layer(caller, &path, "echo fine > main.c")?.code, 0)?;
    let id = id(caller)?;
    let write =
        "cat main.c; echo EVIL > main.c; echo x > new; rm a; echo tmp > /tmp/x && cat /tmp/x";
    let options = ["--cow", &path, "--layer", &id, "--frozen"];
    let read = caller.run(&options, &["bash", "-c", write])?;
    equal("only read", read.stdout.as_str(), "fine\ntmp\n")?;
    equal("by the mount", read.stderr.matches("Read-only file system").count(), 3)?;
    let list = review(caller, &[&path])?;
    equal("the layer", list.stdout.as_str(), "A main.c\n")?;
    // Nor a network, whatever the profile or the command line has.
    for (frozen, has_network) in [(&["--frozen"][..], false), (&[], true)] {
        let options = [&["--cow", &path, "--layer", &id, "--egress", "a.example:443"], frozen];
        let routes = caller.run(&options.concat(), &["cat", "/proc/net/route"])?;
        equal("routes", (routes.code, routes.stdout.is_empty()), (0, !has_network))?;
    }
    // The control.
    let written = caller.run(&["--cow", &path, "--layer", &id], &["bash", "-c", "echo x > new"])?;
    equal("the control", written.code, 0)?;
    equal("the layer", review(caller, &[&path])?.stdout.as_str(), "A main.c\nA new\n")
}

/// Makes a repository in a layer that lacks a directory of its commit, and whose configuration has a
/// program that fetches it. `e` writes next to the repository.
const PARTIAL: &str = "git init -q nested; cd nested; git config user.email a@b; git config user.name n
    mkdir d; echo x > d/x; git add .; git commit -qm 1; p=$(git rev-parse HEAD:d); rm -f .git/objects/${p:0:2}/${p:2}
    git config core.repositoryformatversion 1; git config extensions.partialClone origin
    git config remote.origin.promisor true; git config protocol.ext.allow always
    git config remote.origin.url 'ext::bash /workspace/nested/.git/e'
    echo 'echo EVIL > /workspace/main.c' > .git/e; cd ..; echo fine > main.c";

fn lazy(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    equal("in the cell", in_layer(caller, &path, PARTIAL)?.code, 0)?;
    let output = review(caller, &[&path, "--commits"])?;
    holds("they stay", &output, output.code == 1 && output.stderr.contains("stay in the layer"))?;
    equal("applied", review(caller, &[&path, "--apply", "main.c"])?.code, 1)?;
    let found = caller.bash_outside(&format!("cat {path}/main.c"))?;
    equal("what was seen", found.stdout.as_str(), "fine\n")?;
    // The control: the program does run for a git without these settings.
    let control = "cd nested; git bundle create -q - --all >/dev/null 2>&1; cat ../main.c";
    equal("the control", in_layer(caller, &path, control)?.stdout.as_str(), "EVIL\n")
}

fn apart(caller: &Caller) -> Check {
    let path = project(caller, "project", REPOSITORY)?;
    let script = format!("{AS_AGENT}; git commit -q --allow-empty -m second");
    equal("in the cell", in_layer(caller, &path, &script)?.code, 0)?;
    // A git in the PATH that writes its session, its ids and its open files, and then is git.
    let bin = caller.directory("bin")?;
    let log = bin.join("log");
    let git = caller.bash_outside("command -v git")?.trimmed().to_owned();
    let wrapper = format!(
        "#!/bin/bash\nread -r pid name state parent group session terminal rest < /proc/$$/stat\n\
         [ $pid = $session ] && kind=apart || kind=shared\n\
         limit=$(ulimit -S -f); ulimit -S -f unlimited\n\
         echo $kind $terminal $(cd /proc/$$/fd; echo [0-9]*) $(readlink /proc/self/fd/77) >> {}\n\
         ulimit -S -f $limit; exec {git} \"$@\"\n",
        log.display()
    );
    let program = bin.join("git");
    std::fs::write(&program, wrapper)?;
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755))?;
    let script = format!(
        "exec 77</dev/null; PATH={}:$PATH; git --version; {} review {path} --commits",
        bin.display(),
        caller.binary().display()
    );
    let output = caller.bash_outside(&script)?;
    holds("the commit", &output, output.stdout.contains("  1 new commit\n"))?;
    let log = std::fs::read_to_string(&log)?;
    let mut lines = log.lines();
    // The control: what the shell starts has its session and its open file.
    let own = lines.next().unwrap_or_default();
    holds("the control", own, own.starts_with("shared ") && own.ends_with(" /dev/null"))?;
    let lines: Vec<&str> = lines.collect();
    let is_apart = |line: &&str| line.starts_with("apart 0 ") && !line.contains("/dev/null");
    holds("apart", &lines, lines.len() > 4 && lines.iter().all(is_apart))
}

fn replaceable(caller: &Caller) -> Check {
    let path = project(caller, "project", &format!("mkdir in && cd in && {REPOSITORY}"))?;
    let script = format!("cd in; {AS_AGENT}; git commit -q --allow-empty -m second");
    equal("in the cell", in_layer(caller, &path, &script)?.code, 0)?;
    let open = |mode: &str, at: &str| caller.bash_outside(&format!("chmod {mode} {path}/{at}"));
    let reason = "a directory around the repository is another user's, or others may write to it";
    for (at, reason) in
        [("in", reason), ("in/.git", reason), ("in/.git/config", "its configuration")]
    {
        let before = caller.bash_outside(&format!("stat -c %a {path}/{at}"))?.trimmed().to_owned();
        equal("opened", open("o+w", at)?.code, 0)?;
        let refused = review(caller, &[&path, "--commits"])?;
        let reason = reason.replace("its", "the repository's");
        holds(at, &refused, refused.code == 1 && refused.stderr.contains(&reason))?;
        equal("closed", open(&before, at)?.code, 0)?;
    }
    let output = review(caller, &[&path, "--commits"])?;
    holds("the control", &output, output.code == 0 && output.stdout.contains("  1 new commit\n"))
}

fn hooks(caller: &Caller) -> Check {
    let path = project(caller, "project", REPOSITORY)?;
    let script = format!("{AS_AGENT}; git commit -q --allow-empty -m second");
    equal("in the cell", in_layer(caller, &path, &script)?.code, 0)?;
    let git = |words: &str| caller.bash_outside(&format!("cd {path} && git {words}"));
    for key in ["hook.Mine.command", "hook.a.b.event"] {
        equal("set", git(&format!("config {key} reference-transaction"))?.code, 0)?;
        let refused = review(caller, &[&path, "--commits"])?;
        let is_named = refused.stderr.contains(&format!("configuration has `{key}`"));
        holds(key, &refused, refused.code == 1 && is_named && refused.stdout.is_empty())?;
        equal("unset", git(&format!("config --unset {key}"))?.code, 0)?;
    }
    let output = review(caller, &[&path, "--commits"])?;
    holds("the control", &output, output.code == 0 && output.stdout.contains("  1 new commit\n"))
}

fn damaged(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let made = |name: &str, then: &str| {
        format!(
            "git init -qb main {name}; cd {name}; {AS_AGENT}; git commit -q --allow-empty -m 1
            git commit -q --allow-empty -m 2; at() {{ p=$(git rev-parse $1); echo .git/objects/${{p:0:2}}/${{p:2}}; }}; {then}; cd .."
        )
    };
    let script = [
        made("tip", "rm -f $(at HEAD)"),
        made("junk", "chmod u+w $(at HEAD); echo junk > $(at HEAD)"),
        made("parent", "rm -f $(at HEAD~1)"),
        made("whole", "true"),
        "git init -q empty".to_owned(),
    ];
    equal("in the cell", in_layer(caller, &path, &script.join("\n"))?.code, 0)?;
    let output = review(caller, &[&path, "--commits"])?;
    equal("some stay", output.code, 1)?;
    for name in ["tip", "junk", "parent"] {
        let line = format!("cofferdam: {name}: the commits stay in the layer: ");
        holds(name, &output.stderr, output.stderr.contains(&line))?;
    }
    holds("the whole one", &output, output.stdout.contains("whole.bundle"))?;
    holds("an empty one", &output, !output.stderr.contains("empty: "))
}

fn kinds(caller: &Caller) -> Check {
    let path = project(caller, "project", REPOSITORY)?;
    let script = format!(
        "{AS_AGENT}; for i in $(seq 10 40); do mkdir -p \"!d/$i\"; echo x > \"!d/$i/crush.json\"; done
        mkdir .vscode; echo x > .vscode/tasks.json; echo x > .envrc; echo x > 'a -> b.envrc'; ln -s x 'to  link'
        git add -A; git commit -qm second"
    );
    equal("in the cell", in_layer(caller, &path, &script)?.code, 0)?;
    let output = review(caller, &[&path, "--commits"])?;
    for line in [
        "  .envrc  [",
        "  .vscode/tasks.json  [",
        "  !d/10/crush.json  [",
        "  \"to  link\"  [a link]",
    ] {
        holds(line, &output.stdout, output.stdout.contains(line))?;
    }
    Ok(())
}

fn described(caller: &Caller) -> Check {
    let made =
        "echo a > both; echo a > script; ln -s script link; echo a > Makefile; chmod 755 script";
    let path = project(caller, "project", made)?;
    let script = "echo b > both; chmod 644 script; echo b >> script; ln -s both new; ln -sf both link; echo b >> Makefile
        mkdir -p .github/workflows; echo on > .github/workflows/ci.yml; echo x > run; chmod +x run; rm both; echo c > both";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    equal("the host", caller.bash_outside(&format!("echo mine > {path}/both"))?.code, 0)?;
    let output = review(caller, &[&path, "--diff"])?;
    for part in [
        "diff --git a/both b/both\n# conflict: the host changed it too: not applied\n",
        "diff --git a/Makefile b/Makefile\n# build file\n--- a/Makefile\n",
        "diff --git a/new b/new\nnew file mode 120000\n--- /dev/null\n",
        "diff --git a/run b/run\n# executable\nnew file mode 100755\n",
        "# runs in CI\nnew file mode 100644\n",
    ] {
        holds(part, &output.stdout, output.stdout.contains(part))?;
    }
    // The digest is that of the list, and an apply takes it.
    let end = Instant::now() + soon(10);
    let mut text = output.stderr;
    // The cell may be ending still.
    while !text.contains("only if they are still as shown") {
        holds("the digest is shown", &text, Instant::now() < end)?;
        text = review(caller, &[&path, "--diff"])?.stderr;
    }
    let word = text.split("--apply --if ").nth(1).unwrap_or_default();
    let digest: String = word.chars().take_while(char::is_ascii_alphanumeric).collect();
    let applied = review(caller, &[&path, "--apply", "--if", &digest])?;
    holds(
        "the digest",
        &applied,
        applied.code == 1 && applied.stderr.contains("cofferdam: applied "),
    )
}

fn bounded(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let script = "echo z > z; for i in $(seq 10 20); do seq -f '%.0f some text that is long enough' 100000 | head -c 3000000 > f$i; done";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let output = format!(
        "{} review {path} --diff > {path}.out 2> {path}.err; wc -c < {path}.out; cat {path}.err",
        caller.binary().display()
    );
    let output = caller.bash_outside(&output)?;
    let length: u64 =
        output.stdout.lines().next().and_then(|line| line.parse().ok()).unwrap_or_default();
    holds("the length", length, (16_000_000..24_000_000).contains(&length))?;
    holds("the rest", &output.stdout, output.stdout.contains("are left out"))?;
    // The digest stands only for what was shown.
    holds("no digest", &output.stdout, !output.stdout.contains("--if"))
}

fn alike(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > auth.py")?;
    let script = "for c in '\\u200d' '\\u200c' '\\ufe0f' '\\u180b'; do printf x > \"auth$(printf \"$c\").py\"; done; echo b > auth.py";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let list = review(caller, &[&path])?.stdout;
    let expected = "M auth.py\nA \"auth\\341\\240\\213.py\"\nA \"auth\\342\\200\\214.py\"\nA \"auth\\342\\200\\215.py\"\n\
        A \"auth\\357\\270\\217.py\"\n";
    equal("the names", list.as_str(), expected)?;
    let lines = review(caller, &[&path, "--diff"])?.stdout;
    let heads = lines.lines().filter(|line| line.starts_with("diff --git")).count();
    let hidden = |character: char| "\u{200c}\u{200d}\u{fe0f}\u{180b}".contains(character);
    holds("the diff", &lines, heads == 5 && !lines.contains(hidden))
}
