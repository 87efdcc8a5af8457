//! Layers: cells change a directory as they like, the host's files stay, and what is applied later is
//! what a person may have.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use cell::mediate::names::OBEYED;
use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{
    self, Caller, Check, Claim, Failed, Finished, For, Need, claim, equal, holds, patience, soon,
};

pub const CLAIMS: &[Claim] = &[
    claim("nothing_in_a_layer_changes_the_host", unchanged).needs(&[Need::Git, Need::Python]),
    claim("applied_changes_are_those_of_the_list", applied).needs(&[Need::Python]),
    claim("a_hostile_layer_leaves_nothing_that_the_host_obeys", hostile)
        .needs(&[Need::Git, Need::Python]),
    claim("a_file_that_the_host_changed_too_is_kept", conflicts),
    claim("paths_choose_what_is_applied", chosen),
    claim("a_layer_has_one_start_at_a_time", used),
    claim("a_later_start_finds_the_changes", continued),
    claim("a_start_waits_until_the_kernel_has_freed_the_last_one", freed).needs(&[Need::RootLooks]),
    claim("a_killed_apply_is_finished_by_the_next", killed),
    claim("layers_are_never_granted_for_writing", own_directory),
    claim("a_directory_that_cannot_have_a_layer_is_refused", refused).only(For::Root),
    claim("a_server_keeps_changes_apart_too", served).needs(&[Need::Git]),
    claim("sockets_and_fifos_of_the_host_are_not_those_of_a_layer", sockets).needs(&[Need::Python]),
];

/// Makes a project of the caller's by a script.
pub(crate) fn project(caller: &Caller, name: &str, script: &str) -> Result<String, Failed> {
    let path = caller.directory(name)?.display().to_string();
    let made = caller.bash_outside(&format!("cd {path} && {{ {script}; }} && echo made"))?;
    equal("a project", made.trimmed(), "made")?;
    older(caller, &path)?;
    Ok(path)
}

/// Waits until the kernel's clock for files has moved on, so that a layer is newer than the files of a
/// directory: by a second where a file has the time of a whole one, as on a filesystem with coarse times.
pub(crate) fn older(caller: &Caller, path: &str) -> Check {
    let script = format!(
        "find {path} -printf '%C@\\n' | grep -q '\\.0*$' && sleep 1; sleep 0.02; echo older"
    );
    equal("the wait", caller.bash_outside(&script)?.trimmed(), "older")
}

/// Describes every file of a tree: kind, mode, size, time, text of a link, and contents.
pub(crate) fn tree(caller: &Caller, path: &str) -> Result<String, Failed> {
    let script = format!(
        "cd {path} && find . -printf '%p %y %m %s %T@ %l\\n' | LC_ALL=C sort && \
         find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum"
    );
    Ok(caller.bash_outside(&script)?.stdout)
}

pub(crate) fn in_layer(caller: &Caller, path: &str, script: &str) -> Result<Finished, Failed> {
    caller.run(&["--cow", path], &["bash", "-c", script])
}

pub(crate) fn review(caller: &Caller, arguments: &[&str]) -> Result<Finished, Failed> {
    let words = [&["review"], arguments].concat();
    Finished::run(caller.cofferdam(&words), patience())
}

/// Runs a review, and returns its exit code with its lines.
pub(crate) fn reviewed(caller: &Caller, arguments: &[&str]) -> Result<(i32, String), Failed> {
    let output = review(caller, arguments)?;
    Ok((output.code, output.trimmed().to_owned()))
}

pub(crate) const REPOSITORY: &str = "git init -q && git config user.email a@b && git config user.name n && \
    mkdir src old && echo a > src/a && echo b > src/b && echo c > old/c && echo d > removed && \
    ln -s src/a link && ln src/a hard && git add -A && git commit -qm first";

fn unchanged(caller: &Caller) -> Check {
    let path = project(caller, "project", REPOSITORY)?;
    let before = tree(caller, &path)?;
    let script = "set -e
        echo more >> src/a; chmod 4755 src/b || true; rm removed; rm -r old; mkdir old; mv src moved
        echo evil > .git/hooks/post-commit; git config alias.x '!evil'; echo evil > .envrc
        git init -q inner; git commit -qam inside; git log --oneline | wc -l
        mkfifo fifo; ln -s /etc out; touch -d 2001-01-01 hard; truncate -s 0 hard
        python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind(\"s\"); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect(\"s\"); print(\"connected\")'";
    let output = in_layer(caller, &path, script)?;
    equal("in the cell", (output.trimmed(), output.code), ("2\nconnected", 0))?;
    equal("the host's tree", tree(caller, &path)?, before.clone())?;
    let listed = review(caller, &[&path])?;
    equal("changes are left", listed.code, 1)?;
    review(caller, &["--diff", &path])?;
    equal("after the review", tree(caller, &path)?, before.clone())?;
    let discarded = review(caller, &["--discard", &path])?;
    equal("discarded", discarded.code, 0)?;
    equal("nothing is left", reviewed(caller, &[&path])?, (0, String::new()))?;
    equal("after that", tree(caller, &path)?, before)
}

fn applied(caller: &Caller) -> Check {
    let made = "mkdir src old empty && echo a > src/a && echo b > src/b && echo c > old/c && \
        echo d > removed && echo x > script && chmod 640 src/a && mkdir kind && echo k > kind/k";
    let path = project(caller, "project", made)?;
    let script = "set -e
        echo more >> src/a; touch -d '2020-02-02 02:02:02 UTC' src/a; chmod +x script; rm removed
        rm -r old; mkdir old; echo n > old/new; mkdir -p new/deep; ln -s ../src/b new/link
        echo '#!/bin/sh' > new/tool; chmod 755 new/tool; rm -r kind; echo file > kind
        mkdir -p .github/workflows; echo on > .github/workflows/ci.yml; touch same; rm same";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let lines = "A .github/\nA .github/workflows/\nA .github/workflows/ci.yml  [runs in CI]\n\
        D kind/k\nD kind/\nA kind\nA new/\nA new/deep/\nA new/link -> ../src/b\nA new/tool  [executable]\n\
        A old/new\nD old/c\nD removed\nM script  [executable]\nM src/a";
    equal("the list", reviewed(caller, &[&path])?, (1, lines.to_owned()))?;
    let json: Value = serde_json::from_str(&review(caller, &["--json", &path])?.stdout)?;
    let rows = json.pointer("/changes").and_then(Value::as_array).cloned().unwrap_or_default();
    equal("rows", rows.len(), 15)?;
    equal("the last", rows.last().and_then(|row| row.pointer("/act")), Some(&"changed".into()))?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal("applied", (applied.code, applied.trimmed()), (0, ""))?;
    let look = "find . ! -name . -printf '%p %y %m %l\\n' | LC_ALL=C sort; cat src/a kind; \
        stat -c '%Y %u' src/a; stat -c %u new new/tool new/link";
    let user = caller.uid();
    let look = caller.bash_outside(&format!("umask 022; cd {path} && {look}"))?;
    let expected = format!(
        "./.github d 755 \n./.github/workflows d 755 \n./.github/workflows/ci.yml f 644 \n\
         ./empty d 755 \n./kind f 644 \n./new d 755 \n./new/deep d 755 \n./new/link l 777 ../src/b\n\
         ./new/tool f 755 \n./old d 755 \n./old/new f 644 \n./script f 755 \n./src d 755 \n\
         ./src/a f 640 \n./src/b f 644 \na\nmore\nfile\n1580608922 {user}\n{user}\n{user}\n{user}\n"
    );
    equal("on the host", look.stdout, expected)?;
    equal("no layer is left", reviewed(caller, &["--list"])?, (0, String::new()))
}

/// Returns a script that plants each name that the host obeys: as a file, as a directory with a file,
/// in another spelling, and deeper.
fn plant_names() -> String {
    let mut script = String::new();
    for (name, _) in OBEYED {
        let upper = name.to_uppercase();
        script.push_str(&format!(
            "echo evil > '{name}'; mkdir -p 'deep/{name}'; echo evil > 'deep/{name}/x'; \
             echo evil > 'deep/{upper}'\n"
        ));
    }
    script
}

fn hostile(caller: &Caller) -> Check {
    let made = format!(
        "{REPOSITORY} && git config core.hooksPath tools/hooks && mkdir -p bare .claude && \
         git init -q --bare bare && echo '{{}}' > .claude/settings.json"
    );
    let path = project(caller, "project", &made)?;
    let obeyed_before = caller.bash_outside(&format!(
        "cd {path} && find .git bare .claude -printf '%p %y %m %s %l\\n' | LC_ALL=C sort | grep -v index"
    ))?;
    let script = format!(
        "{}
        echo evil > .git/hooks/post-commit; chmod +x .git/hooks/post-commit
        git config core.fsmonitor evil; echo evil >> .git/config; rm -rf .claude
        mkdir -p tools/hooks; echo evil > tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit
        for d in .GIT 'git~1' '.git ' deep/.git deep/.Git; do mkdir -p \"$d\"; echo evil > \"$d/config\"; done
        echo 'gitdir: /tmp/evil' > src/.git
        mkdir -p repo/objects repo/refs repo/hooks; echo 'ref: x' > repo/HEAD; echo evil > repo/config
        echo evil > bare/config; echo evil > bare/hooks/post-receive; echo evil > bare/info/attributes
        mkdir -p .github/hooks .clinerules/hooks; echo evil > .github/hooks/x; echo evil > .clinerules/hooks/x
        ln -s /etc/passwd out; ln -s ../../.. up; ln -s src/../../x climb; ln -s .git/config gitlink
        ln -s /proc/self/exe magic; mkdir real; ln -s .envrc real/link; ln -s ../.envrc real/uplink
        mkfifo fifo; chmod 6755 src/b; chmod 2777 deep; ln src/a alias; echo evil >> alias
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'
        mknod null c 1 3; mkdir .cofferdam-apply-x; echo harmless > harmless
        i=0; d=nest; while [ $i -lt 200 ]; do d=$d/n; i=$((i+1)); done; mkdir -p $d; touch $d/end
        printf x > \"$(printf 'esc\\033[2Jname')\"; mkdir closed; touch closed/x; chmod 0 closed; true",
        plant_names()
    );
    let output = in_layer(caller, &path, &script)?;
    equal("in the cell", output.code, 0)?;
    let before = review(caller, &[&path])?;
    holds("no escape sequence", &before.stdout, !before.stdout.contains('\u{1b}'))?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal("something is held back", applied.code, 1)?;
    equal(
        "the control",
        std::fs::read_to_string(Path::new(&path).join("harmless"))?,
        "harmless\n",
    )?;
    // Only what was there before, and without a change.
    let obeyed_after = caller.bash_outside(&format!(
        "cd {path} && find .git bare .claude -printf '%p %y %m %s %l\\n' | LC_ALL=C sort | grep -v index"
    ))?;
    equal("what is obeyed", obeyed_after.stdout, obeyed_before.stdout)?;
    let found = caller.bash_outside(&format!(
        "cd {path} && find . \\( -path ./.git -o -path ./bare -o -path ./.claude \\) -prune -o \
         \\( -perm /6000 -o ! -type f ! -type d ! -type l -o -name '.cofferdam*' -o -iname '*git~*' \
         -o -name 'HEAD' -o -path './tools/hooks*' -o -path '*hooks/x' \\) -print"
    ))?;
    equal("nothing of the kinds", found.stdout.as_str(), "")?;
    let links = caller
        .bash_outside(&format!("cd {path} && find . -type l -printf '%p %l\\n' | LC_ALL=C sort"))?;
    equal("links", links.stdout.as_str(), "./link src/a\n")?;
    for (name, _) in OBEYED {
        let there = caller
            .bash_outside(&format!("cd {path} && find . -iname '{name}' ! -path './.claude'"))?;
        equal(name, there.stdout.as_str(), "")?;
    }
    let git = caller.bash_outside(&format!(
        "cd {path} && find . -path ./.git -prune -o -path ./bare -prune -o -iname '.git*' ! -name '.github' -print"
    ))?;
    equal("no repository", git.stdout.as_str(), "")?;
    // The link was one more name of a file; the copy is a file.
    equal("a copy", std::fs::read_to_string(Path::new(&path).join("src/a"))?, "a\nevil\n")?;
    let discarded = review(caller, &["--discard", &path])?;
    equal("a layer of any kind can be discarded", discarded.code, 0)
}

fn conflicts(caller: &Caller) -> Check {
    let path =
        project(caller, "project", "echo a > a; echo b > b; echo c > c; mkdir d; echo x > d/x")?;
    let script =
        "echo agent > a; echo agent > b; rm c; rm -r d; echo agent > new; echo agent > other";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    let edit =
        format!("cd {path}; echo host > a; echo host > c; rm b; echo y > d/y; echo host > new");
    caller.bash_outside(&edit)?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal("left", applied.code, 1)?;
    let conflict = "  [conflict: the host changed it too]";
    let lines = format!(
        "M a{conflict}\nA b{conflict}\nD c{conflict}\nD d/x{conflict}\nD d/y{conflict}\n\
         D d/{conflict}\nM new{conflict}"
    );
    equal("the rest", applied.trimmed(), lines)?;
    let host = caller.bash_outside(&format!("cd {path} && cat a c d/x d/y new other; ls"))?;
    equal(
        "on the host",
        host.stdout.as_str(),
        "host\nhost\nx\ny\nhost\nagent\na\nc\nd\nnew\nother\n",
    )?;
    // The layer still has its version of each.
    let layer = in_layer(caller, &path, "cat a b new other; ls")?;
    equal("in the layer", layer.stdout.as_str(), "agent\nagent\nagent\nagent\na\nb\nnew\nother\n")
}

fn chosen(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let script = "echo b >> a; mkdir -p x/y x/z; echo 1 > x/y/f; echo 2 > x/z/f; echo 3 > top";
    in_layer(caller, &path, script)?;
    let unknown = review(caller, &[&path, "--apply", "missing"])?;
    equal("a path without a change", unknown.code, 125)?;
    let first = reviewed(caller, &[&path, "--apply", "x/y/f"])?;
    equal("one path", first, (1, "M a\nA top\nA x/z/\nA x/z/f".to_owned()))?;
    // Applied files are no conflicts of the layer with itself.
    in_layer(caller, &path, "echo more >> x/y/f; echo 4 > x/y/g")?;
    let rest = reviewed(caller, &[&path])?;
    let lines = "M a\nA top\nM x/y/f\nA x/y/g\nA x/z/\nA x/z/f";
    equal("the rest", rest, (1, lines.to_owned()))?;
    // From a directory in the project.
    let mut command = caller.cofferdam(&["review", "--apply"]);
    command.current_dir(Path::new(&path).join("x"));
    let applied = Finished::run(command, patience())?;
    equal("all", (applied.code, applied.trimmed()), (0, ""))?;
    let host = caller.bash_outside(&format!("cd {path} && cat a top x/*/*"))?;
    equal("on the host", host.stdout.as_str(), "a\nb\n3\n1\nmore\n4\n2\n")?;
    // Without a layer no path has a change, and the directory is easily taken for one.
    let taken = review(caller, &["--apply", &path])?;
    equal("the directory as a path", taken.code, 125)?;
    holds("the way out", &taken.stderr, taken.stderr.contains("DIR comes first"))
}

fn used(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let live = caller.live(&["--cow", &path], "echo live >> a; sleep 1000")?;
    let end = Instant::now() + soon(10);
    while reviewed(caller, &[&path])?.1 != "M a" {
        holds("the change is listed", &path, Instant::now() < end)?;
    }
    for act in ["--apply", "--discard"] {
        let refused = review(caller, &[&path, act])?;
        equal(act, refused.code, 125)?;
        holds("the reason", &refused.stderr, refused.stderr.contains("is in use"))?;
    }
    equal("the host", std::fs::read_to_string(Path::new(&path).join("a"))?, "a\n")?;
    // Another start at the same time has another layer, without the changes of the first.
    let second = in_layer(caller, &path, "cat a; echo second >> a")?;
    equal("the second", second.stdout.as_str(), "a\n")?;
    drop(live);
    let several = review(caller, &[&path])?;
    equal("which one", several.code, 125)?;
    let list = reviewed(caller, &["--list", "--json"])?;
    let list: Value = serde_json::from_str(&list.1)?;
    let ids = list.pointer("/layers").and_then(Value::as_array).cloned().unwrap_or_default();
    let ids: Vec<&str> =
        ids.iter().filter_map(|row| row.pointer("/layer").and_then(Value::as_str)).collect();
    equal("two layers", ids.len(), 2)?;
    for (id, text) in ids.iter().zip(["+live", "+second"]) {
        let diff = review(caller, &["--layer", id, "--diff"])?;
        holds(id, &diff.stdout, diff.stdout.contains(text))?;
        equal(id, review(caller, &["--layer", id, "--discard"])?.code, 0)?;
    }
    Ok(())
}

fn continued(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    in_layer(caller, &path, "echo b > b; chmod 0 .; true")?;
    // At once: the cells of the first start may not be gone yet.
    let later = in_layer(caller, &path, "cat a b; echo c > c; id -u; stat -c %U:%a . b")?;
    let expected = "a\nb\n1000\nagent:755\nagent:644\n";
    equal("a later start", later.stdout.as_str(), expected)?;
    let nested = caller.run(&["--cow", &path, "--json"], &["cat", "c"])?;
    holds("a third", &nested.stdout, nested.stdout.contains("\"c\\n\""))?;
    equal("all changes", reviewed(caller, &[&path])?, (1, "A b\nA c".to_owned()))
}

fn freed(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let live = caller.live(&["--cow", &path], "echo first >> a; sleep 1000")?;
    // An open file keeps the kernel from freeing the overlay.
    let held = std::fs::File::open(format!("/proc/{}/root/workspace/a", live.payload()?))?;
    drop(live);
    let mut command = caller.cofferdam(&["run", "--cow", &path, "--", "cat", "a"]);
    let mut second = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let end = Instant::now() + soon(10);
    let waits =
        |pid: &u32| support::proc_file(*pid, "wchan").is_ok_and(|at| at.ends_with(b"nanosleep"));
    while !support::children(second.id()).iter().any(waits) {
        equal("the second start waits", second.try_wait()?.map(|status| status.code()), None)?;
        holds("it waits for the overlay", &path, Instant::now() < end)?;
    }
    drop(held);
    let output = second.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    equal("the second start", (output.status.code(), &*text), (Some(0), "a\nfirst\n"))
}

fn killed(caller: &Caller) -> Check {
    let made = "for i in $(seq 400); do echo before $i > $i; done";
    let path = project(caller, "project", made)?;
    let script = "for i in $(seq 200); do echo after $i > $i; done; \
        for i in $(seq 201 400); do rm $i; done; mkdir new; for i in $(seq 300); do echo $i > new/$i; done";
    in_layer(caller, &path, script)?;
    let is_whole =
        |name: &str, text: &str| match std::fs::read_to_string(Path::new(&path).join(name)) {
            Ok(found) => found == text || found == text.replace("after", "before"),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
    let mut interrupted = 0;
    for attempt in 0..12_u64 {
        let mut child = caller.cofferdam(&["review", &path, "--apply"]).spawn()?;
        std::thread::sleep(Duration::from_millis(15 * attempt));
        child.kill()?;
        let status = child.wait()?;
        interrupted += u32::from(!status.success());
        for number in 1..=200 {
            holds(
                "a whole file",
                number,
                is_whole(&number.to_string(), &format!("after {number}\n")),
            )?;
        }
    }
    holds("at least one was killed", interrupted, interrupted > 0)?;
    let last = review(caller, &[&path, "--apply"])?;
    equal("finished", (last.code, last.trimmed()), (0, ""))?;
    let script =
        "for i in $(seq 200); do echo after $i; done; for i in $(seq 300); do echo $i; done";
    let expected = caller.bash_outside(script)?.stdout;
    let look = format!(
        "cd {path} && for i in $(seq 200); do cat $i; done; for i in $(seq 300); do cat new/$i; done; ls -A | wc -l"
    );
    equal("on the host", caller.bash_outside(&look)?.stdout, format!("{expected}201\n"))
}

fn own_directory(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    in_layer(caller, &path, "echo b > b")?;
    for directory in [".local", ".local/state", ".local/state/cofferdam/layers"] {
        let directory = caller.home.join(directory).display().to_string();
        for flag in ["--rw", "--cow"] {
            let refused = caller.run(&[flag, &directory], &["true"])?;
            equal(flag, refused.code, 125)?;
            let is_named = refused.stderr.contains("holds cofferdam's own configuration");
            holds("the reason", &refused.stderr, is_named)?;
        }
    }
    // The directory of the layers is closed to others.
    let layers = caller.home.join(".local/state/cofferdam/layers");
    equal("its mode", std::fs::metadata(&layers)?.permissions().mode() & 0o777, 0o700)?;
    mode_of(&layers, 0o755)?;
    let refused = in_layer(caller, &path, "true")?;
    holds(
        "opened to others",
        &refused.stderr,
        refused.stderr.contains("must belong to you alone"),
    )?;
    mode_of(&layers, 0o700)
}

fn mode_of(path: &Path, mode: u32) -> Check {
    Ok(crate::support::mode(path, mode)?)
}

fn refused(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a; mkdir below")?;
    let state: PathBuf = caller.directory("state")?;
    let binary = caller.binary();
    let tried = |mounts: &str| {
        caller.bash_outside(&format!(
            "unshare -m sh -c '{mounts} && XDG_STATE_HOME={state} exec {binary} run --cow {path} -- \
             sh -c \"echo changed >> a\"'",
            state = state.display(),
            binary = binary.display(),
        ))
    };
    equal("the control", tried("true")?.code, 0)?;
    let attributes = tried(&format!("mount -t ramfs ramfs {}", state.display()))?;
    equal("without user attributes", attributes.code, 125)?;
    let reason = "the filesystem of the layers has no user attributes";
    holds("the reason", &attributes.stderr, attributes.stderr.contains(reason))?;
    let below = tried(&format!("mount -t tmpfs tmpfs {path}/below"))?;
    equal("with a mount below", below.code, 125)?;
    let reason = "other filesystems are mounted below it";
    holds("the reason", &below.stderr, below.stderr.contains(reason))?;
    let bare = caller.run(&["--tier", "landlock+seccomp", "--cow", &path], &["true"])?;
    equal("in the lower tier", bare.code, 125)?;
    equal("the host", std::fs::read_to_string(Path::new(&path).join("a"))?, "a\n")
}

fn served(caller: &Caller) -> Check {
    let path = project(caller, "project", REPOSITORY)?;
    let before = tree(caller, &path)?;
    let workspace = format!("{path}:cow");
    let mut server = Server::configured(
        caller,
        "",
        &[],
        &["--workspace", &workspace, "--tools", "shell,files"],
    )?;
    server.gives(
        "echo more >> src/a; git init -q inner; echo evil > .envrc; cat src/a",
        0,
        "a\nmore\n",
    )?;
    // Cells of other tools have the same layer, whatever their slot and host id.
    for number in 0..3 {
        let file = format!("/workspace/src/new{number}");
        let written = server.tool("put_file", &json!({ "path": file, "content": "new\n" }))?;
        let failed = written.pointer("/isError").and_then(Value::as_bool) == Some(true);
        holds("another cell", &written, !failed)?;
        let edit = format!("echo more >> {file} && test -O {file} && cat {file}");
        server.gives(&edit, 0, "new\nmore\n")?;
        let read = server.tool("get_file", &json!({ "path": file }))?;
        holds("read again", &read, crate::server::text(&read).contains("more"))?;
    }
    equal("the host's tree", tree(caller, &path)?, before)?;
    drop(server);
    let listed = reviewed(caller, &[&path])?;
    holds("the list", &listed.1, listed.1.contains("M src/a\nA src/new0"))
}

fn sockets(caller: &Caller) -> Check {
    let path = project(caller, "project", "mkfifo fifo")?;
    let listen = "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\n\
        s.bind(sys.argv[1] + '/socket')\ns.listen()\nprint('ready', flush=True)\ntime.sleep(1000)";
    let mut command = caller.outside("/usr/bin/python3");
    command.args(["-c", listen, &path]);
    let live = crate::support::Live::start(command)?;
    let connect = "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('socket')";
    let control =
        caller.bash_outside(&format!("cd {path} && python3 -c \"{connect}\" && echo connected"))?;
    equal("outside", control.trimmed(), "connected")?;
    for options in [&["--toolchains", "none"][..], &[]] {
        let options = [options, &["--cow", &path]].concat();
        let script = format!(
            "cd /workspace && python3 -c \"{connect}\"; touch socket; python3 -c \"{connect}\""
        );
        let output = caller.run(&options, &["bash", "-c", &script])?;
        let refusals = output.stderr.matches("ConnectionRefusedError").count();
        equal("in the cell", (refusals, output.stdout.as_str()), (2, ""))?;
        // A reader of the host's FIFO gets nothing of a writer in the cell.
        let write = "timeout 1 bash -c 'echo secret > fifo'; echo $?";
        let reader = caller
            .outside("/bin/bash")
            .args(["-c", &format!("timeout 3 cat {path}/fifo")])
            .spawn()?;
        let output = caller.run(&options, &["bash", "-c", write])?;
        holds("a FIFO", &output, output.trimmed() == "124")?;
        let mut reader = reader;
        reader.wait()?;
    }
    drop(live);
    Ok(())
}
