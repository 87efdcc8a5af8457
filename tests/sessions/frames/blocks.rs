//! Arguments, environment and directory of a job, as a front end sends them: in the frame or in a memfd.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use model::call::{Argv, Cwd, Env};
use model::outcome::{Failure, Outcome};
use model::wire::{Block, Carried, JobInput, Request, Start};
use sys::memory;

use super::{Check, Front, expect};

pub fn block(words: &[&str]) -> Result<OwnedFd, String> {
    let wrong = |error: &dyn std::fmt::Display| error.to_string();
    let block = Block {
        argv: Argv::new(words.iter().map(|word| (*word).to_owned()).collect())
            .map_err(|error| wrong(&error))?,
        env: Env::default(),
        cwd: Cwd::workspace(),
    };
    let bytes = postcard::to_stdvec(&block).map_err(|error| wrong(&error))?;
    memory::sealed(c"block", &bytes).map_err(|error| wrong(&error))
}

pub fn descriptors(front: &mut Front) -> Check {
    let fd = block(&["true"])?;
    let start = front.frame();
    front.refused(start, &[], "0 descriptors where 1 belong")?;
    let start = front.frame();
    front.refused(start, &[fd.as_fd(); 6], "6 descriptors where 1 belong")?;
    let start = Start { script: Some(Carried::Sealed), ..front.frame() };
    let directory = std::fs::File::open("/").map_err(|error| error.to_string())?;
    let fds = [fd.as_fd(), directory.as_fd()];
    front.refused(start, &fds, "a descriptor that is not a sealed memfd")
}

pub fn in_the_frame(front: &mut Front) -> Check {
    let job = |words: &[&str]| forged_bytes(words, &[], "/tmp").map(Carried::Inline);
    let start = Start { block: job(&["true"])?, ..front.frame() };
    let call = start.call;
    front.send(&Request::Start(start), &[])?;
    expect(front.end_of(call)?, (Outcome::Exited { code: 0 }, String::new()))?;
    let start = Start { block: Carried::Inline(b"\x09no block".to_vec()), ..front.frame() };
    front.refused(start, &[], "a frame that cannot be decoded")?;
    // Checked by the same code: a directory outside of the two places.
    let start = Start { block: job(&[])?, ..front.frame() };
    front.refused(start, &[], "argv is empty")?;
    let fd = block(&["true"])?;
    let start = Start { block: job(&["true"])?, ..front.frame() };
    front.refused(start, &[fd.as_fd()], "1 descriptors where 0 belong")?;
    script_and_input(front)
}

/// The kind of descriptor makes no difference to a program: it reads a file that it cannot change.
fn script_and_input(front: &mut Front) -> Check {
    let text =
        b"read -r word; echo \"$word\"; (echo more >> /proc/self/fd/0) 2> /dev/null || echo sealed";
    let block = forged_bytes(&["bash", "/proc/self/fd/3"], &[], "/tmp").map(Carried::Inline)?;
    let sealed = |bytes: &[u8]| memory::sealed(c"given", bytes).map_err(|error| error.to_string());
    for (here_script, here_input) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut fds = Vec::new();
        let mut carried = |here, bytes: &[u8]| match here {
            true => Ok::<_, String>(Carried::Inline(bytes.to_vec())),
            // A new memfd each time: every reader moves its offset.
            false => sealed(bytes).map(|fd| fds.push(fd)).map(|()| Carried::Sealed),
        };
        let start = Start {
            script: Some(carried(here_script, text)?),
            stdin: JobInput::Bytes(carried(here_input, b"given\n")?),
            block: block.clone(),
            ..front.frame()
        };
        let call = start.call;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        front.send(&Request::Start(start), &fds)?;
        expect(front.end_of(call)?, (Outcome::Exited { code: 0 }, "given\nsealed\n".to_owned()))?;
    }
    let start =
        Start { stdin: JobInput::Bytes(Carried::Inline(Vec::new())), block, ..front.frame() };
    let fd = sealed(b"more")?;
    front.refused(start, &[fd.as_fd()], "1 descriptors where 0 belong")
}

pub fn unsealed(front: &mut Front) -> Check {
    let file = tempfile::tempfile().map_err(|error| error.to_string())?;
    let socket = std::os::unix::net::UnixStream::pair().map_err(|error| error.to_string())?;
    let directory = std::fs::File::open("/").map_err(|error| error.to_string())?;
    for fd in [file.as_fd(), socket.0.as_fd(), directory.as_fd(), std::io::stdin().as_fd()] {
        let start = front.frame();
        front.refused(start, &[fd], "a descriptor that is not a sealed memfd")?;
    }
    let start = front.frame();
    let call = start.call;
    let noise = memory::sealed(c"noise", &[0xff; 4096]).map_err(|error| error.to_string())?;
    front.send(&Request::Start(start), &[noise.as_fd()])?;
    match front.end_of(call)? {
        (Outcome::Failed(Failure::Refused { .. }), _) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Encodes a block by hand, past the types that would refuse its values.
fn forged_bytes(argv: &[&str], env: &[(&str, &str)], cwd: &str) -> Result<Vec<u8>, String> {
    let env: BTreeMap<&str, &str> = env.iter().copied().collect();
    postcard::to_stdvec(&(argv, env, cwd)).map_err(|error| error.to_string())
}

fn forged(argv: &[&str], env: &[(&str, &str)], cwd: &str) -> Result<OwnedFd, String> {
    let bytes = forged_bytes(argv, env, cwd)?;
    memory::sealed(c"forged", &bytes).map_err(|error| error.to_string())
}

pub fn forged_block(front: &mut Front) -> Check {
    // The control: the same encoding with honest values is taken.
    let start = front.frame();
    let call = start.call;
    let honest = forged(&["bash", "-c", "echo $A"], &[("A", "b")], "/tmp")?;
    front.send(&Request::Start(start), &[honest.as_fd()])?;
    expect(front.end_of(call)?, (Outcome::Exited { code: 0 }, "b\n".to_owned()))?;
    let cases = [
        (forged(&[], &[], "/tmp")?, "argv is empty"),
        (
            forged(&["true"], &[("LD_PRELOAD", "x")], "/tmp")?,
            "env `LD_PRELOAD` is refused: it changes what programs load or run",
        ),
        (forged(&["true"], &[], "/etc")?, "cwd `/etc` is not inside /workspace or /tmp"),
        (forged(&["true", "a\0b"], &[], "/tmp")?, "argv contains a NUL byte at offset 1"),
    ];
    for (fd, reason) in cases {
        let start = front.frame();
        front.refused(start, &[fd.as_fd()], reason)?;
    }
    Ok(())
}
