//! Parts of a git repository that could redirect git on the host: legacy remotes, `info` as a link, and what a
//! repository is known by.

use std::path::PathBuf;

use crate::names::BIND;
use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Live, Need, claim, equal, holds, patience,
};

pub const CLAIMS: &[Claim] = &[
    claim("no_cell_makes_a_remote_in_an_older_form", remotes).needs(&[Need::Git]),
    claim("no_link_stands_for_the_directory_of_attributes", info).needs(&[Need::Git]),
    claim("no_cell_makes_a_link_in_a_repository", linked).needs(&[Need::Git, Need::Python]),
    claim("what_git_runs_is_guarded_in_each_grant_that_has_it", overlapping).needs(&[Need::Git]),
    claim("no_repository_loses_what_it_is_known_by", headless).needs(&[Need::Git]),
    claim("no_number_of_names_makes_a_guarded_file_writable", many_names)
        .needs(&[Need::Git, Need::Python]),
    claim("what_looks_like_a_repository_takes_no_guard_from_others", forged)
        .needs(&[Need::Git, Need::Python]),
    claim("a_changing_link_leads_no_socket_into_a_repository", turns)
        .needs(&[Need::Git, Need::Python]),
];

/// The two ways to be granted a repository: with the guard, and as the positive control without it.
pub(crate) const GUARDS: [(&str, &[&str]); 2] = [("guarded", &[]), ("unguarded", &["--unguarded"])];

/// A repository of the caller's with one commit, and `more` done in it.
pub(crate) fn repository(caller: &Caller, name: &str, more: &str) -> Result<PathBuf, Failed> {
    let path = caller.directory(name)?;
    let script = format!(
        "cd {} && git init -q -b main && git config user.email a@b && git config user.name n && \
         git commit -q --allow-empty -m first && {more} && echo made",
        path.display()
    );
    equal("a repository", caller.bash_outside(&script)?.trimmed(), "made")?;
    Ok(path)
}

/// Runs a script in a cell with the repository, then git on the host, and returns both outputs.
pub(crate) fn cell_and_host_output(
    caller: &Caller,
    (name, options): (&str, &[&str]),
    more: &str,
    (cell, host): (&str, &str),
) -> Result<(String, String), Failed> {
    let path = repository(caller, name, more)?.display().to_string();
    let options = [options, &["--rw", &path]].concat();
    let script = format!("cd /workspace; {cell}");
    let inside = caller.run(&options, &["bash", "-c", &script])?;
    let outside = caller.bash_outside(&format!("cd {path}; {host}"))?;
    Ok((inside.trimmed().to_owned(), outside.trimmed().to_owned()))
}

fn remotes(caller: &Caller) -> Check {
    let elsewhere = repository(caller, "elsewhere", "true")?.display().to_string();
    // One of the two is there before, as git's own template has it.
    let more = "rm -rf .git/remotes .git/branches && mkdir .git/branches && git update-ref refs/remotes/branches/remotes HEAD";
    let cell = format!(
        "exec 2> /dev/null; mkdir .git/remotes && echo MADE remotes; mkdir -p src/remotes .git/refs/remotes/up
         for to in .git/remotes/there src/remotes/there; do echo 'URL: {elsewhere}' > $to && echo wrote $to; done
         echo {elsewhere} > .git/branches/there && echo WROTE a branch
         mv src/remotes .git/remotes && echo MOVED; ln -s ../src/remotes .git/remotes && echo LINKED
         git branch branches/x && git update-ref refs/remotes/up/branches HEAD && echo references"
    );
    let host = "git fetch -q there main 2> /dev/null && echo reached";
    for (name, options) in GUARDS {
        let seen = cell_and_host_output(caller, (name, options), more, (&cell, host))?;
        let expected = match name {
            "guarded" => ("wrote src/remotes/there\nreferences", ""),
            _ => (
                "MADE remotes\nwrote .git/remotes/there\nwrote src/remotes/there\nMOVED\nreferences",
                "reached",
            ),
        };
        equal(name, (seen.0.as_str(), seen.1.as_str()), expected)?;
    }
    Ok(())
}

/// Tries to write to a file by every 20th of the names in `many`, and to a file with a single name, in each way; prints
/// how many attempts succeeded.
const BY_ALL_NAMES: &str = r##"
import ctypes, os, stat, threading
libc = ctypes.CDLL(None)
os.chdir("/workspace")
def write(name): open(name, "ab").write(b"#")
def replace(name): open(name, "wb").close()
def both(name): open(name, "r+b").close()
def empty(name): os.close(os.open(name, os.O_RDONLY | os.O_TRUNC))
def cut(name): os.truncate(name, 1)
def raw(name):
    file = libc.creat(name.encode(), 0o600)
    if file < 0: raise OSError
    os.close(file)
def again(name):
    held = os.open(name, os.O_RDONLY)
    try: open(f"/proc/self/fd/{held}", "ab").write(b"#")
    finally: os.close(held)
def linked(name):
    os.symlink("../" + name, "free/link")
    try: write("free/link")
    finally: os.unlink("free/link")
def moved(name):
    os.rename(name, "free/moved")
    try: write("free/moved")
    finally: os.rename("free/moved", name)
for way in write, replace, both, empty, cut, raw, again, linked, moved:
    for directory in "many", "plain":
        done = 0
        for name in sorted(os.listdir(directory))[::20]:
            try: way(f"{directory}/{name}")
            except OSError: continue
            done += 1
        print(way.__name__, directory, done)
# A name that stands for the guarded file in one moment and for another file in the next: one that can be exchanged.
inode, stop, won, seen = os.stat("many/0").st_ino, False, 0, set()
write("many/other")
def exchanged(name): return libc.renameat2(-100, name, -100, b"many/other", 2) == 0
name = next(name for name in map(b"many/%d".__mod__, range(1, 1200)) if exchanged(name))
def swap():
    while not stop: exchanged(name)
thread = threading.Thread(target=swap); thread.start()
tries = 0
while tries < 500 or len(seen) < 2:
    tries += 1
    try: seen.add(os.stat(name).st_ino == inode); file = os.open(name, os.O_WRONLY | os.O_CREAT)
    except OSError: continue
    won += os.fstat(file).st_ino == inode
    os.close(file)
stop = True; thread.join()
if os.stat("many/other").st_ino == inode: exchanged(name)
os.unlink("many/other")
print("raced", won > 0)
"##;

/// A cell gives a file more names than there can be mounts, before the user names it in the configuration.
fn many_names(caller: &Caller) -> Check {
    const NAMES: usize = 1200;
    let more = format!(
        "mkdir many plain free && echo true > many/0 && echo x > plain/x && \
         for ((i = 1; i < {NAMES}; i++)); do ln many/0 many/$i; done"
    );
    let path = repository(caller, "grant", &more)?.display().to_string();
    let run = || caller.run(&["--rw", &path], &["python3", "-c", BY_ALL_NAMES]);
    let ways = ["write", "replace", "both", "empty", "cut", "raw", "again", "linked", "moved"];
    let expected =
        |many: usize| ways.map(|way| format!("{way} many {many}\n{way} plain 1\n")).concat();
    // The control, before the configuration names it.
    let free = run()?;
    holds("free", &free, free.stdout == expected(NAMES / 20) + "raced True\n")?;
    let named = caller
        .bash_outside(&format!("cd {path}; echo true > many/0; git config diff.external many/0"))?;
    equal("named", named.code, 0)?;
    let guarded = run()?;
    holds("guarded", &guarded, guarded.stdout == expected(0) + "raced False\n")?;
    let kept = caller.bash_outside(&format!("cat {path}/many/0"))?;
    equal("the file", kept.stdout.as_str(), "true\n")
}

/// A repository is known by its HEAD. Without it, a later start would guard nothing there, and git would obey what a
/// cell has changed once the user has brought HEAD back.
fn headless(caller: &Caller) -> Check {
    let more = "git clone -q --bare . deep.git && git -C deep.git worktree add -q -b w ../tree && \
        rm -r deep.git/hooks && mkdir -p .git/modules/a && git clone -q --bare . .git/modules/a/lib && \
        git clone -q --bare . bare";
    let path = repository(caller, "grant", more)?.display().to_string();
    let bare = format!("{path}/bare");
    let kept = [(&path, "deep.git"), (&path, "deep.git/worktrees/tree"), (&bare, ".")];
    // The second time without its other parts.
    for (rw, git) in kept.into_iter().chain(kept) {
        let script = format!(
            "cd /workspace/{git}; mv HEAD lost; rm HEAD; ln HEAD lost && rm -f HEAD; > HEAD; rm -rf HEAD; cat HEAD; \
             mkdir away; mv objects refs commondir away; [ ! -d logs ] || echo >> logs/HEAD && mkdir free && rmdir free && echo free"
        );
        let output = caller.run(&["--rw", rw], &["bash", "-c", &script])?;
        let lines: Vec<&str> = output.stdout.lines().collect();
        // The control: git can write its logs, and other files can be made and removed there.
        let is_there = matches!(lines[..], [head, "free"] if head.starts_with("ref: refs/heads/"));
        holds(git, &output, is_there)?;
        let busy = output.stderr.matches("Device or resource busy").count();
        holds(git, &output, busy >= 3)?;
    }
    // Git replaces the HEAD of a submodule. Its configuration stays, by which it is known too.
    let run = |script: &str| {
        let script = format!("cd /workspace/.git/modules/a/lib; {script}");
        caller.run(&["--rw", &path], &["bash", "-c", &script])
    };
    let moved = run("mkdir away && mv HEAD away/lost && rm -r objects refs && ls")?;
    holds("moved", &moved, moved.code == 0 && !moved.stdout.contains("HEAD"))?;
    let guarded = run(
        "for to in config hooks/update.sample; do echo '#' | dd of=$to oflag=append conv=notrunc,nocreat && echo $to; done
         for to in hooks/update commondir config.worktree; do echo x > $to && echo $to; done
         rm -rf config hooks; mv config gone; mv hooks gone; echo x > free && echo free; ls config hooks/update.sample",
    )?;
    equal("of a submodule", guarded.trimmed(), "free\nconfig\nhooks/update.sample")
}

/// Git on the host writes these files where a link in their place leads, with text that a cell may choose.
fn linked(caller: &Caller) -> Check {
    let more = "git clone -q --bare . b.git && git clone -q --bare . .git/modules/m && mkdir src";
    let path = repository(caller, "grant", more)?.display().to_string();
    let script = "cd /workspace; mkdir links && ln -s ../src links/l && ln -s src plain && echo made
        rename() { python3 -c 'import ctypes, sys; a, b = (x.encode() for x in sys.argv[1:3])
if ctypes.CDLL(None).renameat2(-100, a, -100, b, int(sys.argv[3])): sys.exit(1)' $*; }
        for at in .git/COMMIT_EDITMSG .git/FETCH_HEAD .git/x .git/logs/HEAD .git/logs/refs/heads/x .git/modules/m/FETCH_HEAD \
            .git/objects/x .git/refs/heads/x b.git/FETCH_HEAD b.git/refs/x b.git/worktrees b.git/objects/info/x; do
            rm -f $at; ln -s ../src/HEAD $at && echo linked $at; ln -P links/l $at && echo second $at
            rename links/l $at 0 && echo moved $at; rename links $at 0 && echo directory $at
            mkdir -p $at; rename links $at 2 && echo swapped $at; rename $at links 2 && echo swapped $at; rmdir $at
        done 2> /dev/null; rename links/l src/l 0 && rename src links/l 0 && echo free
        git -C b.git branch y && git -C b.git gc -q && git -C b.git log --format=%s y
        git commit -qm second --allow-empty && git gc -q && git log --format=%s";
    let output = caller.run(&["--rw", &path], &["bash", "-c", script])?;
    // The controls: links elsewhere, and git's own work in each repository.
    equal("links", output.trimmed(), "made\nfree\nfirst\nsecond\nfirst")?;
    let unguarded = caller.run(
        &["--unguarded", "--rw", &path],
        &["bash", "-c", "ln -s ../x /workspace/.git/FETCH_HEAD && echo linked"],
    )?;
    equal("without the guard", unguarded.trimmed(), "linked")
}

/// Cells have a directory in two grants, and git obeys what is in both.
fn overlapping(caller: &Caller) -> Check {
    let more = "mkdir -p sub/own conf && echo true > sub/own/pre-commit && echo '[a]' > sub/inc && echo x > conf/rc && \
        ln -s conf/rc .envrc && git config core.hooksPath sub/own && git config include.path ../sub/inc";
    let path = repository(caller, "grant", more)?.display().to_string();
    let script = "shopt -s globstar nullglob; for at in /workspace /other; do
            for file in $at/**/{pre-commit,inc,rc}; do echo x >> $file && echo changed $file; done
            mv $at/sub $at/gone && echo moved; echo x > $at/free && echo free
        done 2> /dev/null";
    for other in ["", "/sub", "/sub/own", "/conf"] {
        let other = format!("{path}{other}:/other");
        for grants in [[path.as_str(), &other], [&other, path.as_str()]] {
            let options = grants.map(|grant| ["--rw", grant]).concat();
            let output = caller.run(&options, &["bash", "-c", script])?;
            // The control: the rest can be written to.
            equal(&other, output.trimmed(), "free\nfree")?;
        }
    }
    Ok(())
}

/// Ways to make what looks like parts of a repository, and what they name: more than can be guarded.
const FORGERIES: [&str; 7] = [
    "mkdir -p q hooks && includes q > config",
    "mkdir -p f/q f/hooks && includes q > f/config",
    "mkdir -p f/q && echo > f/head && includes q > f/config",
    "mkdir -p f/q f/HEAD. && includes q > f/config",
    "mkdir -p q && includes ../../../q > .git/refs/heads/config",
    "for i in $(seq 132); do at=.git/refs/remotes/$i; mkdir -p $at/{branches,remotes,rebase-merge,rebase-apply}
        echo > $at/HEAD; done; cd .git/refs/remotes/1/rebase-merge; links",
    "mkdir .git/rebase-merge && cd .git/rebase-merge && links",
];

/// Prints a configuration that includes files which it makes in the directory, and others; makes links to files and to
/// chains of links.
const FORGE: &str = r#"includes() {
        echo "[include]"
        for i in $(seq 540); do echo > /workspace/${1#../../../../}/$i 2>/dev/null || echo > f/$1/$i; echo " path = $1/$i"; done
        for i in $(seq 1100); do echo " path = m$i"; done
    }
    links() { python3 -c "
import os
def link(to, name):
    try: os.symlink(to, name)
    except PermissionError: pass
for i in range(540):
    open('f%d' % i, 'w')
    link('f%d' % i, 'a%d' % i)
for i in range(28):
    link(os.path.relpath('/workspace/c%d_0' % i), 'b%d' % i)
    for j in range(38):
        link('c%d_%d' % (i, j + 1), '/workspace/c%d_%d' % (i, j))
"; }
"#;

/// A cell must not take the guard from what git runs by making what a later start guards.
fn forged(caller: &Caller) -> Check {
    let more = "mkdir -p p/q/r/s/sub && git init -q p/q/r/s/sub && for at in . p/q/r/s/sub; do mkdir $at/own && echo true > $at/own/pre-commit && \
        git -C $at config core.hooksPath own; done";
    for (number, forgery) in FORGERIES.into_iter().enumerate() {
        let path = repository(caller, &format!("grant-{number}"), more)?.display().to_string();
        let run = |script: &str| {
            let script = format!("cd /workspace; {script}");
            caller.run(&["--rw", &path], &["bash", "-c", &script])
        };
        let output = run(&format!("{FORGE}\n{forgery} && echo forged"))?;
        equal(forgery, output.trimmed(), "forged")?;
        let output = run(
            "for at in . p/q/r/s/sub; do echo x >> $at/own/pre-commit && echo changed; done; echo x >> p/free && echo free",
        )?;
        // The control: the rest can be written to.
        equal(forgery, output.trimmed(), "free")?;
        equal(forgery, output.stderr.matches("Read-only file system").count(), 2)?;
    }
    Ok(())
}

fn info(caller: &Caller) -> Check {
    let cell = "exec 2> /dev/null; mkdir x; echo '* filter=evil' > x/attributes; rm -r .git/info
         ln -s ../x .git/info && echo LINKED; mv -T x .git/info && echo MOVED
         ln -s ../x .git/i; mv -T .git/i .git/info && echo RENAMED
         mkdir .git/info && echo made; echo > .git/info/exclude && echo excludes
         echo '* filter=evil' > .git/info/attributes && echo WROTE";
    let host = "echo > f; git check-attr filter f";
    for (name, options) in GUARDS {
        let seen = cell_and_host_output(caller, (name, options), "true", (cell, host))?;
        let expected = match name {
            "guarded" => ("made\nexcludes", "f: filter: unspecified"),
            _ => ("LINKED\nRENAMED\nexcludes\nWROTE", "f: filter: evil"),
        };
        equal(name, (seen.0.as_str(), seen.1.as_str()), expected)?;
    }
    Ok(())
}

/// Names that may be made in a work tree and not in a repository: one cell binds sockets with them, by whole paths and
/// others, through a link that the other cell keeps turning between the two.
fn turns(caller: &Caller) -> Check {
    let more = "rm -r .git/hooks && mkdir a && ln -s a way";
    let path = repository(caller, "repository", more)?.display().to_string();
    let turn = "
import time
os.chdir('/workspace'); print('ready', flush=True)
end = time.monotonic() + 5
while time.monotonic() < end:
    for to in ('.git', 'a'):
        os.symlink(to, 'new'); os.rename('new', 'way')
";
    let bind = "
import time
os.chdir('/workspace'); end = time.monotonic() + 4; made = set()
while time.monotonic() < end:
    for way in ('/workspace/way/', 'way/', '/workspace/./a/../way/'):
        for name in ('commondir', 'hooks', 'config.lock', 'plain'):
            met = bound(way + name); made.add((way, name, met if met.startswith('E') else 'bound'))
            try: os.unlink('a/' + name)
            except FileNotFoundError: pass
            if name == 'plain':
                try: os.unlink('.git/plain')
                except FileNotFoundError: pass
for line in sorted(made): print(*line)
";
    let python = |script: &str| {
        let script = format!("{CALLS}\n{BIND}\n{script}");
        caller.run_command(&["--rw", &path], &["/usr/bin/python3", "-c", &script])
    };
    let turning = Live::start(python(turn))?;
    let output = crate::support::Finished::run(python(bind), patience())?;
    turning.finish(patience())?;
    equal("no error", output.stderr.as_str(), "")?;
    // Both ends of the link were met, by each kind of path.
    for way in ["/workspace/way/", "way/", "/workspace/./a/../way/"] {
        for name in ["commondir", "hooks", "config.lock"] {
            for met in ["bound", "EPERM"] {
                let line = format!("{way} {name} {met}\n");
                holds("met", (&line, &output.stdout), output.stdout.contains(&line))?;
            }
        }
    }
    let script =
        format!("cd {path}/.git; ls -d commondir hooks config.lock 2> /dev/null; echo end");
    equal("nothing in the repository", caller.bash_outside(&script)?.trimmed(), "end")
}
