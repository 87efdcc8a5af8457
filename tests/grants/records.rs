//! Files of a repository with paths that git on the host opens, operations that it continues, and what a configuration names
//! where a cell has left more than there is time for.

use crate::parts::{GUARDS, cell_and_host_output, repository};
use crate::support::{Caller, Check, Claim, Need, claim, equal, holds};

pub const CLAIMS: &[Claim] = &[
    claim("no_path_outside_of_the_work_tree_comes_into_an_index", crafted)
        .needs(&[Need::Git, Need::Python]),
    claim("git_writes_each_kind_of_index_in_a_cell", ordinary).needs(&[Need::Git]),
    claim("no_conflict_outside_of_the_work_tree_is_recorded", conflicts).needs(&[Need::Git]),
    claim("no_cell_lists_packs_for_the_host", packs).needs(&[Need::Git]),
    claim("no_cell_adds_to_an_operation_of_the_host", steps).needs(&[Need::Git]),
    claim("git_applies_mailed_patches_in_a_cell", mailed).needs(&[Need::Git]),
    claim("a_program_with_blanks_in_its_path_is_guarded", blanks).needs(&[Need::Git]),
    claim("what_fills_a_directory_of_hooks_takes_no_guard_from_others", filled)
        .needs(&[Need::Git, Need::Python]),
];

/// Adds entries with the names of the arguments to the index, in each way, and prints the names that are in it then.
const CRAFT: &str = r##"
import ctypes, hashlib, os, struct, subprocess, sys
os.chdir("/workspace")
libc = ctypes.CDLL(None)
def git(*words, text=""):
    return subprocess.run(["git", *words], input=text.encode(), capture_output=True).stdout.decode()
blob = git("hash-object", "-w", "--stdin", text="#!/bin/sh\necho RAN\n").strip()
old = open(".git/index", "rb").read()
def entry(name):
    packed = bytes(24) + struct.pack(">I", 0o100755) + bytes(12) + bytes.fromhex(blob) + struct.pack(">H", len(name)) + name
    return packed + bytes(8 - len(packed) % 8)
def crafted(name):
    body = b"DIRC" + struct.pack(">II", 2, 1) + entry(name)
    return body + hashlib.sha1(body).digest()
def new(bytes, path=".git/index.lock"):
    with open(path, "wb") as file: file.write(bytes)
    return path
def rename(bytes): os.rename(new(bytes), ".git/index")
def outside(bytes): os.rename(new(bytes, "made"), ".git/index")
def exchange(bytes):
    if libc.renameat2(-100, new(bytes).encode(), -100, b".git/index", 2): raise OSError
def link(bytes):
    os.rename(".git/index", ".git/away"); os.link(new(bytes), ".git/index")
def write(bytes): open(".git/index", "r+b").write(bytes)
def make(bytes):
    os.rename(".git/index", ".git/away"); new(bytes, ".git/index")
def held(bytes):
    # Checked as it is, and written to once it has its name.
    file = open(new(old), "r+b"); os.rename(".git/index.lock", ".git/index")
    file.write(bytes); file.truncate()
def second(bytes):
    new(old); os.link(".git/index.lock", ".git/second"); os.rename(".git/index.lock", ".git/index"); new(bytes, ".git/second")
for way in rename, outside, exchange, link, write, make, held, second:
    for name in sys.argv[1:]:
        try: way(crafted(name.encode()))
        except OSError: pass
        shown = git("ls-files")
        if name in shown: print(way.__name__, name)
        for left in "made", ".git/index.lock", ".git/second", ".git/away":
            if os.path.exists(left): os.unlink(left)
        if not os.path.exists(".git/index") or open(".git/index", "rb").read() != old:
            os.rename(new(old), ".git/index")
"##;

fn crafted(caller: &Caller) -> Check {
    let names =
        ["../outside", "/tmp/outside", ".git/hooks/post-checkout", "a/../../outside", ".GIT/x"];
    for (guard, options) in GUARDS {
        let path =
            repository(caller, guard, "echo a > f && git add f && git commit -qm f && mkdir a")?;
        let shown = path.display().to_string();
        let arguments = [&["python3", "-c", CRAFT][..], &names].concat();
        let options = [options, &["--rw", &shown]].concat();
        let output = caller.run(&options, &arguments)?;
        let came = output.stdout.lines().count();
        // Without the guard each name comes in, if not in each way.
        let is_expected = match guard {
            "guarded" => output.code == 0 && came == 0,
            _ => output.code == 0 && came >= 5 * names.len(),
        };
        holds(guard, &output, is_expected)?;
        // What git does with such an index.
        let write = format!("{CRAFT}\nrename(crafted(b'.git/hooks/post-checkout'))");
        drop(caller.run(&options, &["python3", "-c", &write])?);
        let host = caller
            .bash_outside(&format!("cd {shown} && git checkout . 2>&1; git checkout -b x 2>&1"))?;
        equal(guard, host.stdout.contains("RAN"), guard != "guarded")?;
    }
    Ok(())
}

fn ordinary(caller: &Caller) -> Check {
    let more = "for format in sha1 sha256; do git init -q -b main --object-format=$format $format && \
        git -C $format config user.email a@b && git -C $format config user.name n && \
        echo a > $format/f && git -C $format add f && git -C $format commit -qm one || exit; done; \
        git -c protocol.file.allow=always submodule --quiet add -b main $PWD/sha1 sub && \
        git -C sub config user.email a@b && git -C sub config user.name n";
    let cell = "for directory in sha1 sha256 sub; do cd /workspace/$directory
        for version in 2 3 4; do git update-index --index-version $version && echo $version > f && git add f &&
            git commit -qm $version && git status --short; done
        mkdir d && echo > d/g && git add -N d/g; git add . && git commit -qm d && echo > f && git stash -q
        git mv d/g h && git rm -q --cached f && git reset -q --hard && git read-tree HEAD
        git checkout-index -fa && git ls-files | tr '\n' ' '; git status --short; done";
    let host = "for directory in sha1 sha256 sub; do git -C $directory status --short --branch; \
        git -C $directory fsck --strict --no-dangling 2>&1; done";
    let seen = cell_and_host_output(caller, ("ordinary", &[]), more, (cell, host))?;
    let branches = "## main\n## main\n## main...origin/main [ahead 4]";
    equal("git", (seen.0.as_str(), seen.1.as_str()), ("d/g f d/g f d/g f", branches))
}

fn conflicts(caller: &Caller) -> Check {
    let more = "echo SECRET > ../secret && echo a > f && git add f && git commit -qm f";
    let cell = "exec 2> /dev/null; id=$(printf '1%.0s' {1..40}); mkdir -p .git/rr-cache/$id; echo x > .git/rr-cache/$id/preimage
        printf '%s\\t../secret\\0' $id > .git/lock; mv .git/lock .git/MERGE_RR || cp .git/lock .git/MERGE_RR || echo refused";
    let host = "echo b > f; git commit -qam two; cat .git/rr-cache/*/postimage; rm ../secret";
    for (guard, options) in GUARDS {
        let seen = cell_and_host_output(caller, (guard, options), more, (cell, host))?;
        let is_refused = (seen.0 == "refused", seen.1.contains("SECRET"));
        equal(guard, is_refused, (guard == "guarded", guard != "guarded"))?;
    }
    // Git in a cell continues its own.
    let own = "git checkout -qb a; echo 1 > f; git commit -qam 1; git checkout -q main; echo 2 > f; git commit -qam 2
        git merge -q a > /dev/null; echo $?; echo 3 > f; git commit -qam m; git checkout -q a
        echo 5 > f; git commit -qam 5; git rebase -q main > /dev/null 2>&1; echo $?
        echo 4 > f; git add f; git -c core.editor=true rebase --continue > /dev/null; echo $?; ls .git/rr-cache";
    let more = format!("{more} && mkdir .git/rr-cache");
    let seen = cell_and_host_output(caller, ("own", &[]), &more, (own, "git status --short"))?;
    equal("own", (seen.0.as_str(), seen.1.as_str()), ("1\n1\n0", ""))
}

/// By a list of packs with paths of elsewhere, git on the host removed packs of another repository.
fn packs(caller: &Caller) -> Check {
    let more = "git repack -qd";
    let cell = "exec 2> /dev/null; cd .git/objects/pack; git multi-pack-index write && echo WRITTEN
        for name in multi-pack-index multi-pack-index.d/chain Multi-Pack-Index-x; do
            mkdir -p ${name%/*}; echo x > $name && echo WRITTEN $name; done
        echo x > other; mv other multi-pack-index && echo MOVED; git gc -q && git fsck --no-dangling && echo collected";
    let host = "git multi-pack-index write && git multi-pack-index verify 2>&1";
    let seen = cell_and_host_output(caller, ("packs", &[]), more, (cell, host))?;
    equal("packs", (seen.0.as_str(), seen.1.as_str()), ("collected", ""))
}

/// `git am` makes a file of the name `info`, which no link may have.
fn mailed(caller: &Caller) -> Check {
    let more = "echo a > f && git add f && git commit -qm f";
    let own = "exec 2> /dev/null; for i in 1 2; do echo $i >> f; git commit -qam $i; done
        git format-patch -q --stdout HEAD~2 > p; git reset -q --hard HEAD~2; git am -q p; echo $?; cat f
        git am -q p > /dev/null; echo $?; echo 0 > .git/rebase-apply/info; echo $?; git am --abort; echo $?
        mkdir .git/rebase-apply; cd .git/rebase-apply; echo > x; echo > ../x; umask 077
        ln -s x info; ln -s x /tmp/l; mv /tmp/l info; ln x info; mv x info; mkfifo info; echo > ../info; ls; rm x
        echo > info; stat -c %a info; cat info; rm info; mkdir info; ls; cd ..; rm -r info; echo > info || echo refused";
    let seen = cell_and_host_output(caller, ("mailed", &[]), more, (own, "git status -s f"))?;
    let expected = "0\na\n1\n2\n128\n0\n0\nx\n600\n\ninfo\nrefused";
    equal("git am", (seen.0.as_str(), seen.1.as_str()), (expected, ""))
}

/// A cherry-pick of two commits that stopped at the first: the cell names a strategy, which git looks for as a program.
fn steps(caller: &Caller) -> Check {
    let more = "echo a > f && echo z > g && git add . && git commit -qm base && git checkout -qb topic && \
        echo t > f && git commit -qam t1 && echo y > g && git commit -qam t2 && git checkout -q main && \
        echo m > f && git commit -qam m1 && { git cherry-pick main..topic > /dev/null 2>&1 || true; }";
    let cell = "exec 2> /dev/null; echo resolved > f; git add f; mkdir git-merge-
        printf '#!/bin/sh\\necho RAN\\nexit 0\\n' > git-merge-/evil; chmod 755 git-merge-/evil
        for file in sequencer/opts other; do
            printf '[options]\\n\\tstrategy = /evil\\n' > .git/$file && echo wrote $file; done
        rm -r .git/sequencer; ls .git/sequencer";
    let host =
        "git -c core.editor=true cherry-pick --continue 2>&1; git log --format=%s | head -n 1";
    let seen = cell_and_host_output(caller, ("steps", &[]), more, (cell, host))?;
    equal("in the cell", seen.0.as_str(), "wrote other\nabort-safety\nhead\ntodo")?;
    holds("on the host", &seen.1, seen.1.ends_with("\nt2") && !seen.1.contains("RAN"))
}

fn blanks(caller: &Caller) -> Check {
    let more = "mkdir 'my tools' && for name in a b c d; do printf 'echo own\n' > \"my tools/$name\"; done && \
        chmod 755 'my tools'/* && git config diff.external \"'$PWD/my tools/a' --x\" && \
        git config core.editor \"$PWD/my\\\\ tools/b -w\" && git config gpg.program \"$PWD/my tools/c\"";
    let cell = "for file in 'my tools'/*; do { echo 'echo RAN' > \"$file\"; } 2> /dev/null && echo \"$file\"; done";
    let seen =
        cell_and_host_output(caller, ("guarded", &[]), more, (cell, "cat 'my tools'/[abc]"))?;
    // The control: another file there.
    equal(
        "written",
        (seen.0.as_str(), seen.1.as_str()),
        ("my tools/d", "echo own\necho own\necho own"),
    )
}

/// Two repositories in which a cell has left links that take long to follow, and then the user configures both.
fn filled(caller: &Caller) -> Check {
    let more = "mkdir githooks tools && for name in githooks/pre-commit tools/x; do printf 'echo own\n' > $name; done && \
        chmod 755 githooks/* tools/*";
    let one = repository(caller, "one", more)?.display().to_string();
    let two = repository(caller, "two", more)?.display().to_string();
    let fill = "import os; os.chdir('/workspace/githooks'); os.mkdir('d')
for i in range(180): os.symlink('d/../' * 700, f'l{i}')";
    holds("filled", "by a cell", caller.run(&["--rw", &one], &["python3", "-c", fill])?.code == 0)?;
    let configure = format!(
        "for in in {one} {two}; do cd $in && git config core.hooksPath githooks && git config diff.external tools/x; done"
    );
    equal("configured", caller.bash_outside(&configure)?.code, 0)?;
    let script = "for file in {/workspace,/two}/{githooks/pre-commit,tools/x,free}; do
        { echo 'echo RAN' >> $file; } 2> /dev/null && echo $file; done";
    let at = format!("{two}:/two");
    let output = caller.run(&["--rw", &one, "--rw", &at], &["bash", "-c", script])?;
    equal("written", output.stdout.as_str(), "/workspace/free\n/two/free\n")
}
