//! Cells and interruptions that work against the review of a layer: nothing is written that was not judged
//! at that time, a digest stands for what was seen, and no layer is made unusable.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::layers::{in_layer, project, review, reviewed};
use crate::support::{Caller, Check, Claim, Failed, Finished, Need, claim, equal, holds, soon};

pub const CLAIMS: &[Claim] = &[
    claim("an_interrupted_apply_is_not_continued_where_it_is_refused", refused),
    claim("an_interrupted_apply_is_judged_again_by_the_next", judged_again).needs(&[Need::Git]),
    claim("a_discard_writes_nothing_of_an_interrupted_apply", discarded),
    claim("a_layer_in_use_has_no_digest", in_use),
    claim("each_start_with_a_layer_changes_its_digest", started).needs(&[Need::Python]),
    claim("attributes_of_the_top_keep_no_start_from_a_layer", attributes).needs(&[Need::Python]),
    claim("what_the_user_removed_does_not_come_back", removed),
    claim("changes_are_discarded_as_they_were_seen_or_not", discarded_as_seen),
];

/// Number of files that an apply has to write after those that a test looks at.
const FILES: usize = 2_000;

/// Changes a file, adds a hook for git and many files in a layer. Then applies that, and kills the apply
/// once its journal is written.
fn interrupted(caller: &Caller, path: &str) -> Check {
    let script = format!(
        "set -e; echo agent > t.txt; mkdir -p tools; echo '#!/bin/sh' > tools/pre-commit
         chmod +x tools/pre-commit; cd src; seq {FILES} | while read n; do echo $n > f$n; done"
    );
    equal("in the cell", in_layer(caller, path, &script)?.code, 0)?;
    let journal = layer(caller)?.join("journal.json");
    let mut child = caller.cofferdam(&["review", path, "--apply"]).spawn()?;
    let end = Instant::now() + soon(30);
    while !journal.exists() {
        holds("the journal is written", path, Instant::now() < end)?;
    }
    child.kill()?;
    child.wait()?;
    holds("it was interrupted", path, journal.exists())?;
    holds("files are missing", path, written(path)? < FILES)
}

fn layer(caller: &Caller) -> Result<PathBuf, Failed> {
    let layers = caller.home.join(".local/state/cofferdam/layers");
    Ok(std::fs::read_dir(layers)?.next().ok_or("no layer")??.path())
}

/// Returns the number of the files that were written to the host.
fn written(path: &str) -> Result<usize, Failed> {
    Ok(std::fs::read_dir(Path::new(path).join("src"))?.count())
}

fn has_staging(path: &str) -> Result<bool, Failed> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names.iter().any(|name| name.starts_with(".cofferdam-apply-")))
}

fn digest(caller: &Caller, path: &str) -> Result<Value, Failed> {
    let list: Value = serde_json::from_str(&reviewed(caller, &[path, "--json"])?.1)?;
    Ok(list.pointer("/digest").ok_or("no digest")?.clone())
}

/// Returns the digest once the cells of the last start have let the layer go.
fn digest_at_rest(caller: &Caller, path: &str) -> Result<Value, Failed> {
    let end = Instant::now() + soon(10);
    loop {
        let digest = digest(caller, path)?;
        if !digest.is_null() {
            return Ok(digest);
        }
        holds("a digest", path, Instant::now() < end)?;
    }
}

const MADE: &str = "mkdir src; echo public > t.txt; chmod 644 t.txt";

fn refused(caller: &Caller) -> Check {
    let path = project(caller, "project", MADE)?;
    interrupted(caller, &path)?;
    let before = written(&path)?;
    let refused = review(caller, &[&path, "--apply", "--if", "000000"])?;
    equal(&refused.stderr, refused.code, 125)?;
    for line in ["nothing was applied: the list has changed", "an interrupted apply had written"] {
        holds(line, &refused.stderr, refused.stderr.contains(line))?;
    }
    equal("files on the host", written(&path)?, before)?;
    // The control: the rest is applied when that is asked for.
    let digest = digest_at_rest(caller, &path)?;
    let digest = digest.as_str().ok_or("no digest")?;
    let applied = review(caller, &[&path, "--apply", "--if", digest])?;
    equal(&applied.stderr, applied.code, 0)?;
    equal("all files", written(&path)?, FILES)
}

fn judged_again(caller: &Caller) -> Check {
    let path = project(caller, "project", &format!("git init -q .; {MADE}"))?;
    interrupted(caller, &path)?;
    let before = written(&path)?;
    caller.bash_outside(&format!("cd {path}; chmod 600 t.txt; git config core.hooksPath tools"))?;
    let listed = review(caller, &[&path])?;
    let says =
        listed.stderr.contains("was interrupted") && !listed.stderr.contains("has not changed");
    holds("the list names it", &listed.stderr, says)?;
    let json: Value = serde_json::from_str(&reviewed(caller, &[&path, "--json"])?.1)?;
    equal("interrupted", json.pointer("/interrupted_apply"), Some(&Value::Bool(true)))?;
    equal("no digest", json.pointer("/digest"), Some(&Value::Null))?;
    let layers = reviewed(caller, &["--list"])?.1;
    holds("all layers", &layers, layers.ends_with("changes, an apply was interrupted"))?;
    // A start ends it, and writes nothing.
    let started = in_layer(caller, &path, "true")?;
    let line = "an interrupted apply had written";
    holds(line, &started.stderr, started.code == 0 && started.stderr.contains(line))?;
    equal("files on the host", written(&path)?, before)?;
    holds("prepared files", &path, !has_staging(&path)?)?;
    let applied = review(caller, &[&path, "--apply"])?;
    equal("some are left", applied.code, 1)?;
    let left = applied.trimmed();
    holds("the file that was closed", left, left.contains("M t.txt  [conflict"))?;
    holds("the hook", left, left.contains("tools/pre-commit  [held back"))?;
    let text = std::fs::read_to_string(Path::new(&path).join("t.txt"))?;
    equal("the file", text.as_str(), "public\n")?;
    holds("no hook", &path, !Path::new(&path).join("tools/pre-commit").exists())?;
    equal("all files", written(&path)?, FILES)
}

fn discarded(caller: &Caller) -> Check {
    let path = project(caller, "project", MADE)?;
    interrupted(caller, &path)?;
    let before = written(&path)?;
    // Its list has no digest, and the refusal has the way out.
    let refused = review(caller, &[&path, "--discard", "--if", "000000"])?;
    says(&refused, 125, "nothing was discarded: an apply of the layer was interrupted")?;
    says(&refused, 125, "--discard without --if leaves the rest out")?;
    holds("it is kept", &path, layer(caller)?.join("journal.json").exists())?;
    let discarded = review(caller, &[&path, "--discard"])?;
    equal(&discarded.stderr, discarded.code, 0)?;
    let line = "an interrupted apply had written";
    holds(line, &discarded.stderr, discarded.stderr.contains(line))?;
    equal("files on the host", written(&path)?, before)?;
    holds("prepared files", &path, !has_staging(&path)?)?;
    equal("no layer is left", review(caller, &["--list"])?.stdout, String::new())
}

fn in_use(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let live = caller.live(&["--cow", &path], "echo live > live; sleep 1000")?;
    let end = Instant::now() + soon(10);
    while reviewed(caller, &[&path])?.1 != "A live" {
        holds("the change is listed", &path, Instant::now() < end)?;
    }
    equal("in use", digest(caller, &path)?, Value::Null)?;
    let list = review(caller, &[&path])?.stderr;
    holds("why", &list, list.contains("needs a list of the layer when no cell uses it"))?;
    drop(live);
    // The control.
    digest_at_rest(caller, &path).map(drop)
}

fn started(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    equal("in the cell", in_layer(caller, &path, "echo GOOD > b")?.code, 0)?;
    let seen = digest_at_rest(caller, &path)?;
    equal("the control", digest_at_rest(caller, &path)?, seen.clone())?;
    let script = "python3 -c 'import mmap, os
file = os.open(\"b\", os.O_RDWR)
mmap.mmap(file, 5)[:5] = b\"EVIL\\n\"'";
    equal("through a mapping", in_layer(caller, &path, script)?.code, 0)?;
    let seen = seen.as_str().ok_or("no digest")?;
    let refused = review(caller, &[&path, "--apply", "--if", seen])?;
    equal(&refused.stderr, refused.code, 125)?;
    holds("nothing is written", &path, !Path::new(&path).join("b").exists())?;
    // The same for a start that changes nothing that has a time.
    let second = digest_at_rest(caller, &path)?;
    equal("another start", in_layer(caller, &path, "true")?.code, 0)?;
    holds("another digest", &second, digest_at_rest(caller, &path)? != second)
}

/// Returns a text of JSON.
fn text_of(value: Value) -> Result<String, Failed> {
    Ok(value.as_str().ok_or("no text")?.to_owned())
}

fn says(output: &Finished, code: i32, text: &str) -> Check {
    equal(text, output.code, code)?;
    holds(text, &output.stderr, output.stderr.contains(text))
}

fn discarded_as_seen(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    equal("made", in_layer(caller, &path, "echo b > b")?.code, 0)?;
    let first = text_of(digest_at_rest(caller, &path)?)?;
    equal("more", in_layer(caller, &path, "echo more > more")?.code, 0)?;
    let refused = review(caller, &[&path, "--discard", "--if", &first])?;
    says(&refused, 125, "nothing was discarded: the list has changed")?;
    equal("kept", review(caller, &[&path])?.trimmed(), "A b\nA more")?;
    let second = text_of(digest_at_rest(caller, &path)?)?;
    holds("the way out", &refused.stderr, refused.stderr.contains(&format!("is {second} now")))?;
    let part = review(caller, &[&path, "--discard", "--if", "0"])?;
    says(&part, 125, "the list has changed")?;
    // While a start uses the layer there is no such list, and nothing can be removed.
    let mut live = caller.live(&["--cow", &path], "echo ready; exec sleep 1000")?;
    equal("in use", live.line()?.as_str(), "ready")?;
    let used = review(caller, &[&path, "--discard", "--if", &second])?;
    says(&used, 125, "is in use")?;
    drop(live);
    let third = text_of(digest_at_rest(caller, &path)?)?;
    let discarded = review(caller, &[&path, "--discard", "--if", &third])?;
    says(&discarded, 0, "cofferdam: discarded the layer project-")?;
    equal("nothing is left", review(caller, &["--list"])?.trimmed(), "")?;
    let alone = review(caller, &[&path, "--if", &third])?;
    says(&alone, 125, "--discard")
}

fn attributes(caller: &Caller) -> Check {
    let path = project(caller, "project", "mkdir d; echo a > a")?;
    let script = "echo b > b; python3 -c 'import os
for size in [4000, 1000, 100, 10, 1]:
    for number in range(100):
        try: os.setxattr(\"/workspace\", \"user.f%d-%d\" % (size, number), b\"x\" * size)
        except OSError: break
print(len(os.listxattr(\"/workspace\")) > 0)'";
    equal("in the cell", in_layer(caller, &path, script)?.trimmed(), "True")?;
    let again = in_layer(caller, &path, "set -e; echo more >> a; rm -r d; mkdir d; cat b")?;
    equal("a later start", (again.code, again.trimmed()), (0, "b"))?;
    let remark = "cofferdam: the directory is as before; changes are in its layer: ";
    holds("nothing but the remark", &again.stderr, again.stderr.starts_with(remark))
}

fn removed(caller: &Caller) -> Check {
    let made = "mkdir -p old/deep kept; echo 1 > old/f1; echo 1 > old/deep/f2; ln -s old link";
    let path = project(caller, "project", made)?;
    let script =
        "set -e; echo more >> old/f1; echo more >> old/deep/f2; touch -h -d 2001-01-01 link
        mkdir new; echo n > new/n; ln -s new newlink";
    equal("in the cell", in_layer(caller, &path, script)?.code, 0)?;
    caller.bash_outside(&format!("cd {path}; rm -r old link"))?;
    let conflict = "  [conflict: the host changed it too]";
    let list = format!(
        "A link -> old{conflict}\nA new/\nA new/n\nA newlink -> new\nA old/{conflict}\nA old/deep/{conflict}\n\
         A old/deep/f2{conflict}\nA old/f1{conflict}"
    );
    equal("the list", reviewed(caller, &[&path])?, (1, list))?;
    equal("the rest is applied", review(caller, &[&path, "--apply"])?.code, 1)?;
    let found = caller.bash_outside(&format!("cd {path} && find . ! -name . | LC_ALL=C sort"))?;
    equal("on the host", found.stdout.as_str(), "./kept\n./new\n./new/n\n./newlink\n")?;
    // What was applied before, and removed then.
    equal("in the cell", in_layer(caller, &path, "echo n > new/n2")?.code, 0)?;
    caller.bash_outside(&format!("rm -r {path}/new"))?;
    let list = reviewed(caller, &[&path])?.1;
    holds("a directory that was applied", &list, list.contains(&format!("A new/{conflict}")))
}
