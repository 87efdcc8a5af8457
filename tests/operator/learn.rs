//! `cofferdam profile learn`: a command behind the walls, and what they refused it.

use std::path::Path;
use std::{fs, io};

use super::shipped;

/// Whether cells can be made here at all; where they cannot, what needs one is not tried.
fn cells_can_be_made() -> io::Result<bool> {
    let (code, ..) = shipped()?.told(&["run", "--", "true"])?;
    let must = std::env::var_os("COFFERDAM_MUST_RUN").is_some();
    assert!(code == Some(0) || !must, "no cell can be made here");
    Ok(code == Some(0))
}

#[test]
fn learning_prints_what_was_refused_and_writes_nothing() -> io::Result<()> {
    if !cells_can_be_made()? || !Path::new("/usr/bin/python3").exists() {
        return Ok(());
    }
    let configured = shipped()?;
    let before = fs::read_dir(configured.directory.path())?.count();
    // sync(2) takes nothing, may be granted, and is in no shipped profile.
    let program = "import os; os.sync(); print('done')";
    let told = configured.told(&["profile", "learn", "--", "python3", "-c", program])?;
    let expected = "\
# What the command was refused under profile `bash`. It grants nothing yet:
# strike what is not needed, write each `why`, then `cofferdam profile check FILE`.
schema = 1
name = \"bash-learned\"
description = \"\"
extends = \"bash\"

# refused once; it makes one process wait for the whole machine's disks
[[syscalls]]
names = [\"sync\"]
why = \"\"
";
    let stderr = "done\ncofferdam: the command exited with 0\n".to_owned();
    assert_eq!(told, (Some(0), expected.to_owned(), stderr));
    assert_eq!(fs::read_dir(configured.directory.path())?.count(), before);
    Ok(())
}
