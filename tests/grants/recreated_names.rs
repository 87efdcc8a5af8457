//! Guarded names that the host creates in a writable grant: a cell cannot change them, by any call
//! or race.

use crate::support::{Caller, Check, Claim, Need, claim, equal, holds};

pub const CLAIMS: &[Claim] = &[
    claim("recreated_guarded_files_cannot_be_changed", recreated).needs(&[Need::Git, Need::Python]),
    claim("two_racing_processes_cannot_build_a_repository", pairs).needs(&[Need::Git]),
    claim("git_keeps_branches_and_remotes_despite_the_guard", references).needs(&[Need::Git]),
    claim("each_process_has_its_own_umask", umasks).needs(&[Need::Python]),
];

/// Prints each change it could make to files that the host created again.
const ATTACK: &str = r#"
cd /workspace; until [ -e go ]; do sleep 0.02; done; exec 2>/tmp/err
cat > /tmp/attack.py <<'END'
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def tried(what, action):
    try:
        action()
        print("DID", what)
    except OSError:
        pass
tried("truncate", lambda: os.truncate("notes/.envrc", 3))
tried("empty", lambda: os.open("empty/.envrc", os.O_RDONLY | os.O_TRUNC))
# The host renames it to the configuration next.
tried("lock", lambda: os.open(".git/config.lock", os.O_WRONLY))
tried("deep", lambda: open(".git/hooks/pre-commit.d/one", "w").close())
def without_head():
    os.rename(".git/HEAD", ".git/H")
    try: open(".git/hooks/pre-push", "w").close()
    finally: os.rename(".git/H", ".git/HEAD")
tried("hook", without_head)
tried("umlaut", lambda: os.mkdir("sub/.h\u00fcsky"))
tried("short", lambda: os.mkdir("git~1"))
tried("ligature", lambda: open("bare/con\ufb01g", "w").close())
# A number that stands for a guarded file in one moment and for a plain one in the next.
guarded, plain = os.open(".envrc", os.O_RDONLY), os.open("plain", os.O_RDONLY | os.O_CREAT)
number, stop, inode, won = os.dup(plain), False, os.fstat(guarded).st_ino, set()
def swap():
    while not stop:
        os.dup2(guarded, number)
        os.dup2(plain, number)
thread = threading.Thread(target=swap)
thread.start()
# Until both were won: how the two threads are scheduled decides when. Guarded, neither ever is.
tries, end = 0, time.monotonic() + 20
while tries < 1500 or (len(won) < 2 and os.environ.get("RACE") == "on" and time.monotonic() < end):
    tries += 1
    try:
        file = os.open(f"/dev/fd/{number}", os.O_RDWR)
        if os.fstat(file).st_ino == inode: won.add("reopen")
        os.close(file)
    except OSError: pass
    try:
        libc.linkat(-100, b"/proc/self/fd/%d" % number, -100, b"l", 0x400)
        if os.stat("l").st_ino == inode: won.add("link")
    except OSError: pass
    try: os.unlink("l")
    except OSError: pass
stop = True
thread.join()
for what in sorted(won): print("DID", what)
END
python3 /tmp/attack.py
mv tools x; mkdir -p evil/hooks; ln -s evil tools && echo DID symlink && rm tools
echo evil > x/hooks/pre-commit; mv -T x tools && echo DID back
echo fine >> plain && echo fine; true"#;

/// Saves files as editors, git and a user do, after the grant.
const HOST: &str = "mkdir notes empty && echo trusted > notes/.envrc && echo trusted > empty/.envrc && echo trusted > .envrc && \
    touch .git/config.lock && mkdir -p .git/hooks/pre-commit.d && echo true > .git/hooks/pre-commit.d/one && \
    git init -q --bare bare && mv tools h && cp -r h tools && rm -r h && touch go && echo done";

fn recreated(caller: &Caller) -> Check {
    let mut lines = Vec::new();
    for options in [&["--unguarded", "--env", "RACE=on"][..], &[]] {
        let path = caller.directory(&format!("grant{}", options.len()))?;
        let text = path.display().to_string();
        let made = "git init -q . && git config core.hooksPath tools/hooks && mkdir -p tools/hooks && \
            rm -rf .git/hooks && git init -q sub && git -C sub config core.hooksPath .hüsky && echo made";
        let output = caller.bash_outside(&format!("cd {text} && {made}"))?;
        equal("a repository", output.trimmed(), "made")?;
        let options: Vec<&str> = options.iter().copied().chain(["--rw", &text]).collect();
        let live = caller.live(&options, ATTACK)?;
        let output = caller.bash_outside(&format!("cd {text} && {HOST}"))?;
        equal("the host", output.trimmed(), "done")?;
        lines.push(live.finish(crate::support::patience())?.stdout);
    }
    let [unguarded, guarded] = lines.as_slice() else { return Err("two runs".into()) };
    // The positive control: without the guard of names each of these is open to the cell.
    let all = "truncate empty lock deep hook umlaut short ligature reopen link symlink back";
    for what in all.split(' ') {
        let line = format!("DID {what}\n");
        holds("the attack works unguarded", unguarded, unguarded.contains(&line))?;
    }
    equal("guarded", guarded.trim(), "fine")
}

/// Creates each part of a repository alone in its own directory, before the others exist there: no
/// call may complete a repository whose other half another process creates meanwhile.
const PARTS: &str = r"cd /workspace; exec 2>/tmp/err
    for d in .git .git/x .git/refs .git/refs/x .git/refs/heads/x .git/refs/tags .git/refs/remotes/x .git/refs/Remotes/x \
             .git/logs .git/logs/x .git/logs/refs .git/logs/refs/heads/x .git/logs/refs/remotes/x tree; do
        mkdir -p $d; for n in HEAD config hooks objects commondir config.lock; do
            # In the top of a repository these are.
            [ -e $d/$n ] && continue
            if mkdir $d/$n; then rmdir $d/$n; echo $d $n; elif echo x > $d/$n; then rm $d/$n; echo $d $n; fi
        done
    done";

/// Names that can still be created: of each directory a pair that is no repository.
const LEFT: &str = ".git/x objects
.git/refs/heads/x config
.git/refs/heads/x hooks
.git/refs/heads/x config.lock
.git/refs/tags config
.git/refs/tags hooks
.git/refs/tags config.lock
.git/refs/remotes/x HEAD
.git/logs HEAD
.git/logs/refs/heads/x config
.git/logs/refs/heads/x hooks
.git/logs/refs/heads/x config.lock
.git/logs/refs/remotes/x HEAD
tree config
tree hooks
tree objects
tree commondir
tree config.lock";

fn pairs(caller: &Caller) -> Check {
    let path = caller.directory("repository")?;
    let text = path.display().to_string();
    let output = caller.bash_outside(&format!("cd {text} && git init -q . && echo made"))?;
    equal("a repository", output.trimmed(), "made")?;
    let output = caller.run(&["--rw", &text], &["bash", "-c", PARTS])?;
    equal("what is left", output.trimmed(), LEFT)?;
    // A name that may be created must not be movable to the place of the other half.
    let script = "cd /workspace/.git; mkdir -p refs/remotes/o refs/heads/b; exec 2>/tmp/err
        echo 'ref: refs/heads/main' > refs/remotes/o/HEAD; echo x > refs/heads/b/config
        move() { perl -e 'rename($ARGV[0], $ARGV[1]) and print \"MOVED $ARGV[0]\n\"' $1 $2; }
        move refs/remotes/o refs/heads/o; move refs/remotes/o refs/heads/b/o; move refs/heads/b refs/remotes/b
        move refs/remotes refs/x; move refs/remotes/o/HEAD refs/heads/b/HEAD; move refs/heads/b/config refs/remotes/o/config
        move refs/remotes/o ../o; move refs/remotes logs/refs
        # Attributes choose among the configured programs, and a directory with them could become `info`.
        mkdir y; for d in . info y; do echo x > $d/attributes && echo MADE $d; done; echo x > refs/heads/attributes; echo end";
    let output = caller.run(&["--rw", &text], &["bash", "-c", script])?;
    equal("nothing moved", output.trimmed(), "end")
}

fn references(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let text = path.display().to_string();
    let made = "git init -q -b main up && cd up && git config user.email a@b && git config user.name n && \
        git commit -q --allow-empty -m first && git branch fix/config && cd .. && git clone -q up down && \
        cd down && git remote set-url origin ../up && \
        git config user.email a@b && git config user.name n && git branch -q topic && echo made";
    let output = caller.bash_outside(&format!("cd {text} && {made}"))?;
    equal("two repositories", output.trimmed(), "made")?;
    let script = "set -e; exec 2>/tmp/err; cd /workspace/up; git commit -q --allow-empty -m second; git branch new
        cd ../down; git fetch -q; git merge -q origin/main; git log --oneline | wc -l
        git remote set-head origin -d; git remote set-head origin -a >/tmp/out; git symbolic-ref refs/remotes/origin/HEAD
        git checkout -q topic; git branch -m topic subject || git rev-parse -q --verify subject > /tmp/out; git reflog subject | wc -l
        git checkout -q -b other; echo x > f; git add f; git stash -q; git stash pop -q; git commit -qm f
        git rebase -q --no-ff main; git pack-refs --all; git branch -q -D subject || true; git tag config; git tag -d config >/tmp/out
        git for-each-ref --format='%(refname)' | tr '\n' ' '; git fsck --no-dangling";
    let output = caller.run(&["--rw", &text], &["bash", "-c", script])?;
    let lines = "2\nrefs/remotes/origin/main\n2\nrefs/heads/main refs/heads/other refs/remotes/origin/HEAD \
        refs/remotes/origin/fix/config refs/remotes/origin/main refs/remotes/origin/new";
    equal("each works", (output.trimmed(), output.stderr.as_str()), (lines, ""))?;
    // The one thing that a name costs: a branch of a remote that is called as a part of a repository.
    let refs = "cd /workspace/down && git fetch -q . main:refs/remotes/origin/config 2>/dev/null || echo refused";
    equal("refused", caller.run(&["--rw", &text], &["bash", "-c", refs])?.trimmed(), "refused")
}

fn umasks(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let script = r#"
import os
def mode(name):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o666)); os.mkdir(name + "d", 0o777)
    return oct(os.stat(name).st_mode & 0o777), oct(os.stat(name + "d").st_mode & 0o777)
os.chdir("/workspace")
print(*mode("before"), flush=True)
child = os.fork()
if child == 0:
    print(oct(os.umask(0o077)), *mode("child"), flush=True); os._exit(0)
os.waitpid(child, 0)
print(*mode("parent"))
print(oct(os.umask(0)), *mode("none"))
"#;
    let options = ["--rw", &path.display().to_string()];
    let output = caller.run(&options, &["/usr/bin/python3", "-c", script])?;
    let modes = "0o644 0o755\n0o22 0o600 0o700\n0o644 0o755\n0o22 0o666 0o777";
    equal("modes", (output.trimmed(), output.stderr.as_str()), (modes, ""))
}
