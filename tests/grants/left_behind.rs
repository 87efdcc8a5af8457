//! What a cell leaves in a repository for git on the host: names of submodules and worktrees, links of files that git
//! replaces, and files that git reads without a check.

use crate::parts::{cell_and_host_output, repository};
use crate::support::{Caller, Check, Claim, Need, claim, equal};

pub const CLAIMS: &[Claim] = &[
    claim("a_submodule_or_worktree_is_guarded_whatever_its_name", any_name)
        .needs(&[Need::Git, Need::Python]),
    claim("no_cell_can_write_to_an_index_that_the_host_makes", locks)
        .needs(&[Need::Git, Need::Python]),
    claim("git_lists_no_directory_of_the_host_for_a_cell", untracked)
        .needs(&[Need::Git, Need::Python]),
    claim("no_conflict_of_the_host_brings_its_files_to_a_cell", resolutions).needs(&[Need::Git]),
    claim("git_removes_no_references_of_another_repository", tables).needs(&[Need::Git]),
    claim("an_object_that_another_repository_has_too_stays", shared).needs(&[Need::Git]),
    claim("parts_of_bare_repositories_are_guarded_at_any_depth", bare).needs(&[Need::Git]),
    claim("no_cell_leaves_what_git_reads_without_a_check", unchecked).needs(&[Need::Git]),
];

/// Among references cells make files with the names of a repository's parts. A submodule's name may have `refs` in it.
fn any_name(caller: &Caller) -> Check {
    let more = "git init -q ../sub && w=../w-$(basename $PWD) && git -C ../sub -c user.name=n -c user.email=e commit -q --allow-empty -m s && \
        for name in refs/heads/x logs lib/hooks; do git -c protocol.file.allow=always submodule --quiet add \
        --name $name ../sub m/$name; done && git commit -qam m && git worktree add -q $w/refs && \
        git worktree add -q $w/logs";
    let cell = "exec 2> /dev/null
        for at in modules/refs/heads/x modules/logs modules/lib/hooks worktrees/refs worktrees/logs; do
            mv .git/$at/HEAD .git/$at/H; mkdir -p .git/$at/hooks
            printf '[core]\\n\\tfsmonitor = \"echo RAN >> ~/ran; false\"\\n' >> .git/$at/config && echo config $at
            printf '#!/bin/sh\\necho RAN >> ~/ran' > .git/$at/hooks/post-checkout && echo hook $at
            chmod 755 .git/$at/hooks/post-checkout; mv .git/$at/H .git/$at/HEAD
            : >> .git/$at/index && echo index $at; echo x > .git/$at/MERGE_RR && echo conflicts $at
            mv .git/$at .git/moved && echo moved $at
        done
        mkdir -p .git/modules/refs/heads/y; echo > .git/modules/refs/heads/y/config && echo new
        mkdir -p .git/modules/x/refs/{heads,remotes}/o; for move in x/refs/heads/o:x/refs/remotes/p x/refs:x/r x:y; do
            python3 -c 'import os, sys; os.rename(*sys.argv[1:])' .git/modules/${move%:*} .git/modules/${move#*:} &&
                echo moved $move; done
        for m in m/refs/heads/x m/logs m/lib/hooks; do
            cd /workspace/$m; git checkout -qb new && echo > f && git add f && git -c user.name=n -c user.email=e commit -qm f && git branch remotes/config
            git log --oneline | wc -l; done";
    let host = "for m in m/refs/heads/x m/logs m/lib/hooks ../w-$(basename $PWD)/*; do
        git -C $m checkout -q --detach 2>&1; git -C $m status --short; done; cat ~/ran 2> /dev/null";
    let seen = cell_and_host_output(caller, ("names", &[]), more, (cell, host))?;
    equal("git", (seen.0.as_str(), seen.1.as_str()), ("2\n2\n2", ""))
}

/// Takes hold of a new index of git on the host in each way, while that is written, or puts another one in its place.
const HOLD: &str = r#"
import os, sys, time
name = ".git/index.lock"
def linked(): os.link(name, ".git/y")
def opened(): return os.open(name, os.O_RDWR)
def truncated(): return os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
def moved(): os.rename(name, ".git/z"); os.link(".git/z", ".git/y"); os.rename(".git/z", name)
def placed():
    open(".git/z", "w").write("EVIL"); os.rename(".git/z", name)
def added():
    open(".git/z", "w").write("EVIL"); os.link(".git/z", name)
way = globals()[sys.argv[1]]
try:
    way(); print("HELD")
except OSError as error: print(type(error).__name__)
"#;

fn locks(caller: &Caller) -> Check {
    let path = repository(caller, "held", "echo a > f && git add f")?;
    let shown = path.display().to_string();
    for way in ["linked", "opened", "truncated", "moved", "placed", "added"] {
        let is_there = !matches!(way, "placed" | "added");
        if is_there {
            caller.bash_outside(&format!("cd {shown} && cp .git/index .git/index.lock"))?;
        }
        let output = caller.run(&["--rw", &shown], &["python3", "-c", HOLD, way])?;
        equal(way, output.trimmed(), "PermissionError")?;
        caller.bash_outside(&format!("cd {shown} && rm -f .git/index.lock .git/y .git/z"))?;
    }
    // The control: those of the cell's own, also where git runs programs with the lock as the index.
    let own = "exec 2> /dev/null; exec 3> .git/index.lock; echo one >&3; cat .git/index.lock; echo two > .git/index.lock
        cat .git/index.lock; echo three > .git/x; mv .git/x .git/index.lock; echo four >> .git/index.lock
        cat .git/index.lock; ln .git/index.lock .git/y; mv .git/index.lock .git/index || echo refused; rm .git/index.lock
        echo x > other; ls .git/y";
    let output = caller.run(&["--rw", &shown], &["bash", "-c", own])?;
    equal("its own", output.trimmed(), "one\ntwo\nthree\nfour\nrefused")?;
    let git = "git add other && git commit -qm o && git stash list && echo b >> f && git stash -q && git stash pop -q && \
        printf 'y\\n' | git commit -q -p -m p > /dev/null && git read-tree --index-output=.git/i HEAD && git ls-files && ls .git/*.lock";
    let output = caller.run(&["--rw", &shown], &["bash", "-c", git])?;
    equal("git", output.trimmed(), "f\nother")
}

/// Puts directories of the host into the names of files without an entry, as git would keep them.
const LIST: &str = r#"
import hashlib, os, struct
b = open(".git/index", "rb").read()
def number(value):
    found = [value & 127]; value >>= 7
    while value:
        value -= 1; found.append(128 | value & 127); value >>= 7
    return bytes(reversed(found))
end = b.find(b"UNTR"); length = struct.unpack(">I", b[end + 4:end + 8])[0]
data = b[end + 8:end + 8 + length]
assert b"src\0" in data
data = data.replace(b"src\0", b"../private\0")
body = b[:end] + b"UNTR" + struct.pack(">I", len(data)) + data
open(".git/new", "wb").write(body + hashlib.sha1(body).digest())
os.rename(".git/new", ".git/index")
print(b"UNTR" in open(".git/index", "rb").read())
"#;

fn untracked(caller: &Caller) -> Check {
    let more = "mkdir src ../private && touch ../private/SECRET && echo a > src/a && git add src && git commit -qm src && \
        git update-index --force-untracked-cache && git status -s && sleep 1.1 && git status -s";
    let path = repository(caller, "listed", more)?.display().to_string();
    let output = caller.run(&["--rw", &path], &["python3", "-c", LIST])?;
    equal("the names", output.trimmed(), "False")?;
    let host = caller.bash_outside(&format!(
        "cd {path} && git status -s && git fsck 2>&1 && grep -c SECRET .git/index"
    ))?;
    equal("the host", host.trimmed(), "0")
}

fn resolutions(caller: &Caller) -> Check {
    let more = "echo SECRET > ../secret && echo a > f && echo g > g && git add f g && git commit -qm f && \
        git checkout -qb topic && echo t > f && git commit -qam t && git checkout -q main && echo m > f && git commit -qam m";
    for (name, made) in [("new", ""), ("known", "&& mkdir .git/rr-cache")] {
        let path = repository(caller, name, &format!("{more} {made}"))?.display().to_string();
        let run = |script: &str| {
            caller.run(&["--rw", &path], &["bash", "-c", &format!("exec 2> /dev/null; {script}")])
        };
        run("mkdir .git/rr-cache; mkdir .git/rr-cache/x")?;
        caller.bash_outside(&format!("cd {path}; git merge -q topic"))?;
        run(
            "echo r > f; git add f; git commit -qm r; git update-index --assume-unchanged f; ln -sf ../secret f",
        )?;
        caller.bash_outside(&format!("cd {path}; echo w >> g; git commit -qam w"))?;
        let seen = run("ls -A .git/rr-cache; cat .git/rr-cache/*/postimage; echo seen")?;
        equal(name, seen.trimmed(), "seen")?;
    }
    Ok(())
}

fn tables(caller: &Caller) -> Check {
    let made = "git init -q --ref-format=reftable -b main";
    let ids = "-c user.name=n -c user.email=e commit -q --allow-empty -m";
    let script = format!(
        "mkdir t && cd t && {made} a && {made} victim && git -C a {ids} a && git -C victim {ids} v && \
         git -C victim branch other && git -C a config user.name n && git -C a config user.email e && pwd"
    );
    let top = caller.bash_outside(&script)?.trimmed().to_owned();
    // Git before 2.45 has no such repositories.
    if top.is_empty() {
        let has = caller.bash_outside("git init -h | grep -c ref-format")?;
        return equal("git has no reftable", has.trimmed(), "0");
    }
    let cell = "exec 2> /dev/null; cd .git/reftable; other=../../../victim/.git/reftable/x.ref
        echo $other >> tables.list && echo WROTE; (cat tables.list; echo $other) > /tmp/t; cp /tmp/t new
        mv new tables.list && echo MOVED; cp new tables.list.lock && mv tables.list.lock tables.list && echo LOCKED
        rm -f new tables.list.lock; cd ../..; git commit -q --allow-empty -m b && git branch c && git pack-refs && git branch | wc -l";
    let output = caller.run(&["--rw", &format!("{top}/a")], &["bash", "-c", cell])?;
    equal("in the cell", output.trimmed(), "2")?;
    let host = caller.bash_outside(&format!(
        "cd {top}; git -C a pack-refs; git -C a branch | wc -l; git -C victim branch | wc -l"
    ))?;
    equal("on the host", host.trimmed(), "2\n2")
}

fn shared(caller: &Caller) -> Check {
    let original =
        repository(caller, "original", "echo good > f && git add f && git commit -qm f")?;
    let original = original.display().to_string();
    let clone = caller.bash_outside(&format!(
        "git clone -q {original} clone && cd clone && git clone -q --bare . .bare && pwd"
    ))?;
    let clone = clone.trimmed().to_owned();
    let cell = "exec 2> /dev/null; id=$(git rev-parse :f); object=.git/objects/${id:0:2}/${id:2}; stat -c %h $object
        chmod u+w $object; echo EVIL > $object && echo WROTE; ln $object y && echo EVIL > y && echo LINKED
        mkdir .git/q; mv $object .git/q/o; echo EVIL > .git/q/o && echo MOVED; truncate -s 0 .git/q/o && echo CUT
        mv .git/q/o .git/o; echo EVIL > .git/o && echo TOP; ln .git/o .git/refs/heads/x; echo EVIL > .git/refs/heads/x && echo REF
        rm .git/refs/heads/x; mv .git/o $object; echo EVIL > .bare/${object#.git/} && echo BARE
        echo free > .git/free; echo free >> .git/free; cat .git/free; git -c user.name=n -c user.email=e commit -q --allow-empty -m c; echo $?";
    let output = caller.run(&["--rw", &clone], &["bash", "-c", cell])?;
    equal("in the cell", (output.trimmed(), output.stderr.as_str()), ("3\nfree\nfree\n0", ""))?;
    let host = caller.bash_outside(&format!(
        "cd {original} && rm f && git checkout -q f && cat f && git fsck"
    ))?;
    equal("on the host", host.trimmed(), "good")
}

fn bare(caller: &Caller) -> Check {
    let path =
        repository(caller, "project", "git clone -q --bare . .bare && git -C .bare repack -adq")?;
    let path = path.display().to_string();
    let cell = "exec 2> /dev/null; cd .bare; mkdir -p worktrees/w modules/x info objects/info
        for name in objects/pack/multi-pack-index objects/info/alternates info/attributes worktrees/w/gitdir \
            worktrees/w/commondir worktrees/w/index modules/x/config modules/x/config.worktree reftable/tables.list; do
            mkdir -p ${name%/*}; echo x > $name && echo MADE $name; done
        mkdir modules/x/hooks && echo MADE hooks; mv objects o; mv config c
        echo x > modules/x/config && echo MADE after; mv o objects; mv c config
        git -c user.name=n -c user.email=e commit-tree -m x HEAD^{tree} > /dev/null && git branch b main && git gc -q && git branch
        cd ..; mkdir -p src/hooks src/info && echo x > src/config && echo x > src/index && echo free";
    let output = caller.run(&["--rw", &path], &["bash", "-c", cell])?;
    equal("in the cell", output.trimmed(), "b\n* main\nfree")
}

fn unchecked(caller: &Caller) -> Check {
    let more = "git config core.splitIndex true && echo a > f && git add f && git commit -qm f";
    let cell = "exec 2> /dev/null; ls .git/sharedindex.* | wc -l
        for name in .git/sharedindex.* .git/sharedindex.x .git/MERGE_AUTOSTASH .git/MERGE_RR.lock .git/MERGE_RR; do
            echo x >> $name && echo WROTE $name; echo x > .git/n && mv -f .git/n $name && echo MOVED $name; done; ls -A .git/rr-cache
        mkdir -p .git/q/r; cp .git/index .git/n; mv .git/n .git/q/r/index && echo ELSEWHERE";
    let seen = cell_and_host_output(caller, ("unchecked", &[]), more, (cell, "git status -s"))?;
    equal("git", (seen.0.as_str(), seen.1.as_str()), ("1", ""))
}
