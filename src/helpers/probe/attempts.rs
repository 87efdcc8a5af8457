//! Names of the attempts.

use core::ffi::CStr;

use crate::answer::Answer;
use crate::words::number;
use crate::{calls, files, memory, network, processes, random, sys};

/// Makes the attempt named by the first word. Returns `None` if there is no such attempt, or its
/// arguments are wrong.
pub fn attempt(words: &[&CStr]) -> Option<Answer> {
    let (name, rest) = words.split_first()?;
    match (name.to_bytes(), rest) {
        (b"call", _) => calls::calls(rest),
        (b"call32", [number_word]) => Some(answer(sys::call_32(number(number_word.to_bytes())?))),
        (b"clone", [flags]) => Some(calls::clone(number(flags.to_bytes())?)),
        (b"clone3", [flags]) => {
            Some(calls::clone_3(u64::try_from(number(flags.to_bytes())?).ok()?))
        }
        (b"sweep", [list]) => calls::sweep(list),
        (b"open", [mode, path]) => files::open_only(mode, path),
        (b"read", [path]) => Some(files::first_line(path)),
        (b"size", [path]) => Some(files::size(path)),
        (b"list", [path]) => Some(files::names(path)),
        (b"fill", [path, mib]) => Some(files::fill(path, number(mib.to_bytes())?)),
        (b"inodes", [directory, count]) => {
            Some(files::inodes(directory, number(count.to_bytes())?))
        }
        (b"deep", [directory, count]) => Some(files::deep(directory, number(count.to_bytes())?)),
        (b"connect", _) => network::connect(rest),
        (b"send", _) => network::send(rest),
        (b"listen", [port]) => network::listen(number(port.to_bytes())?),
        (b"touch", [kind, mib]) => memory::touch(kind, number(mib.to_bytes())?),
        (b"pipes", [mib]) => Some(memory::pipes(number(mib.to_bytes())?)),
        (b"buffers", [mib]) => Some(memory::buffers(number(mib.to_bytes())?)),
        (b"connections", [mib]) => Some(memory::connections(number(mib.to_bytes())?)),
        (b"mappings", [count, seconds]) => {
            Some(memory::mappings(number(count.to_bytes())?, number(seconds.to_bytes())?))
        }
        (b"flood", [descriptor, mib]) => {
            Some(memory::flood(number(descriptor.to_bytes())?, number(mib.to_bytes())?))
        }
        (b"forks", [count]) => Some(processes::forks(number(count.to_bytes())?)),
        (b"zombies", [count]) => Some(processes::zombies(number(count.to_bytes())?)),
        (b"descriptors", [count]) => Some(processes::descriptors(number(count.to_bytes())?)),
        // The second word only identifies the process.
        (b"sleep", [seconds] | [seconds, _]) => Some(processes::sleep(number(seconds.to_bytes())?)),
        (b"session", [seconds, _]) => Some(processes::session(number(seconds.to_bytes())?)),
        (b"spin", []) => processes::spin(),
        (b"random", _) => random::random(rest),
        _ => None,
    }
}

/// Converts the result of one call.
pub fn answer(result: sys::Result<usize>) -> Answer {
    match result {
        Ok(value) => Answer::Value(value),
        Err(errno) => Answer::Refused(errno),
    }
}
