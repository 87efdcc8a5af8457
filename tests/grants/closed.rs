//! Directories of a granted directory that the supervisor may not search, and cells may or may not.

use crate::support::{Caller, Check, Claim, For, Need, USER, claim, holds};

pub const CLAIMS: &[Claim] =
    &[claim("a_directory_of_a_group_without_an_id_hides_nothing_from_the_guard", of_a_group)
        .only(For::Root)
        .needs(&[Need::Git])];

/// No capability of the supervisor's namespace covers a directory of such a group.
fn of_a_group(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let made = format!(
        "set -e; cd {path}; git init -q; git config core.hooksPath deep/hooks; mkdir -p deep/hooks
         chown -R {USER}:{USER} .; chown -R {USER}:64999 deep; chmod 755 . .."
    );
    // Cells enter the first, and could open the second.
    let script = "cd /workspace; chmod 755 deep; echo x > deep/hooks/pre-commit; echo x > free && echo wrote";
    let ways = [
        ("700", "deep/hooks/pre-commit: Read-only file system"),
        ("000", "chmod: changing permissions of 'deep': Read-only file system"),
    ];
    let made = caller.bash_outside(&made)?;
    holds("made", &made, made.code == 0)?;
    for (mode, refusal) in ways {
        let closed = caller.bash_outside(&format!("chmod {mode} {path}/deep"))?;
        holds("closed", &closed, closed.code == 0)?;
        let output = caller.run(&["--rw", &path], &["bash", "-c", script])?;
        // The control: the rest of the grant is writable.
        holds(mode, &output, output.stderr.contains(refusal) && output.stdout == "wrote\n")?;
    }
    Ok(())
}
