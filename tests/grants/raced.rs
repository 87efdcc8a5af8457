//! A grant whose path changes while it is looked up: what is granted is what was checked.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use crate::support::{Caller, Check, Claim, Finished, claim, equal, holds};

pub const CLAIMS: &[Claim] =
    &[claim("a_path_changed_during_lookup_redirects_no_grant", raced).thorough_as_root()];

/// Starts of each kind. A lookup in two steps was led elsewhere at two of five.
const STARTS: usize = 60;

fn raced(caller: &Caller) -> Check {
    let project = caller.directory("project")?;
    let secret = caller.directory("secret")?;
    let hooks = project.join(".git/hooks");
    for directory in [project.join("data"), hooks.clone()] {
        caller.bash_outside(&format!("mkdir -p {}", directory.display()))?;
    }
    std::fs::write(project.join("data/key"), "inside")?;
    std::fs::write(secret.join("key"), "not granted")?;
    let data = project.join("data");
    let grant = data.display().to_string();

    // Reads, with a second directory granted.
    linked(caller, &secret, &project.join("link"))?;
    let read = ["cat", "/mnt/data/key"];
    let all = starts(caller, &data, &project.join("link"), (&["--ro", &grant], &read))?;
    let text = |word: &str| all.iter().filter(|output| output.trimmed() == word).count();
    let silent = |output: &&Finished| {
        output.trimmed() == "not granted" && !output.stderr.contains("a link to")
    };
    equal("read without a word", all.iter().filter(silent).count(), 0)?;
    // The positive controls: the race was there to be won.
    holds("some read what was meant", &all, text("inside") > 0)?;
    holds("some met the link", &all, all.iter().any(|output| output.stderr.contains("a link to")))?;

    // The same, where cells can write to the place.
    let rw = project.display().to_string();
    let options = ["--rw", &rw, "--ro", &grant];
    let all = starts(caller, &data, &project.join("link"), (&options, &read))?;
    let text = |word: &str| all.iter().filter(|output| output.trimmed() == word).count();
    equal("read by what a cell can make", text("not granted"), 0)?;
    holds(
        "some were refused",
        &all,
        all.iter().any(|output| output.stderr.contains("cells can make")),
    )?;

    // Writes, next to a guarded name.
    linked(caller, Path::new(".git/hooks"), &project.join("hooks"))?;
    let write = ["touch", "/workspace/written"];
    let all = starts(caller, &data, &project.join("hooks"), (&["--rw", &grant], &write))?;
    equal("no hook", hooks.join("written").exists(), false)?;
    holds("some wrote where it was meant", &all, data.join("written").exists())?;
    let refused = |output: &Finished| output.stderr.contains("which the host obeys");
    holds("some met the link to the hooks", &all, all.iter().any(refused))
}

/// Creates a link as the caller: links of root are not reported.
fn linked(caller: &Caller, text: &Path, link: &Path) -> Check {
    let made = caller.bash_outside(&format!("ln -s {} {}", text.display(), link.display()))?;
    equal("a link", made.code, 0)
}

/// Starts cells while a directory and a link change places, and gives both back at their own.
fn starts(
    caller: &Caller,
    directory: &Path,
    link: &Path,
    (options, words): (&[&str], &[&str]),
) -> Result<Vec<Finished>, libtest_mimic::Failed> {
    let stop = AtomicBool::new(false);
    let exchange = || renameat2(AT_FDCWD, directory, AT_FDCWD, link, RenameFlags::RENAME_EXCHANGE);
    std::thread::scope(|scope| {
        let exchanging = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                exchange()?;
            }
            if directory.is_symlink() { exchange() } else { Ok(()) }
        });
        let output: Result<Vec<Finished>, _> =
            (0..STARTS).map(|_| caller.run(options, words)).collect();
        stop.store(true, Ordering::Relaxed);
        exchanging.join().unwrap_or(Err(Errno::EIO))?;
        output
    })
}
