//! Attempts that are system calls: any, in any order, by number.

use core::ffi::CStr;

use crate::attempts::Answer;
use crate::errno::Errno;
use crate::sys::{self, number};
use crate::words::{Room, number as parsed};

/// The most calls of one attempt.
const MOST: usize = 8;

/// Makes calls, `NUMBER ARGUMENT… , NUMBER ARGUMENT…`: the answer of the last, or the first that failed.
pub fn calls(words: &[&CStr]) -> Option<Answer> {
    let mut room = Room::new();
    let mut answers = [0; MOST];
    let mut made = 0;
    let sequence = words.split(|word| *word == c",");
    let length = sequence.clone().count();
    for one in sequence {
        let (name, arguments) = one.split_first()?;
        let mut given = [0; 6];
        for (place, word) in given.iter_mut().zip(arguments) {
            *place = room.argument(word, answers.get(..made)?)?;
        }
        match sys::call(parsed(name.to_bytes())?, &given) {
            Ok(value) => *answers.get_mut(made)? = value,
            Err(errno) if made + 1 < length => return Some(Answer::Early(made + 1, errno)),
            Err(errno) => return Some(Answer::Refused(errno)),
        }
        made += 1;
    }
    Some(Answer::Value(*answers.get(made.checked_sub(1)?)?))
}

/// Calls clone(2) with flags; the child ends at once.
pub fn clone(flags: usize) -> Answer {
    const SIGCHLD: usize = 17;
    made(sys::call(number::CLONE, &[flags | SIGCHLD]))
}

/// Calls clone3(2), whose flags are behind a pointer.
pub fn clone_3(flags: u64) -> Answer {
    const SIGCHLD: u64 = 17;
    let arguments = [flags, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, 0];
    made(sys::call(number::CLONE3, &[sys::address(&arguments), size_of_val(&arguments)]))
}

fn made(answer: sys::Result<usize>) -> Answer {
    match answer {
        Ok(0) => sys::exit(0),
        Ok(pid) => {
            // Only not to leave it; whether it could be made is known.
            sys::call(number::WAIT4, &[pid]).map(drop).unwrap_or_default();
            Answer::Done("made")
        }
        Err(errno) => Answer::Refused(errno),
    }
}

/// Calls each number without arguments, each in a process of its own, and tells which were answered by
/// more than a refusal (EPERM, ENOSYS).
pub fn sweep(list: &CStr) -> Option<Answer> {
    let mut reached = [0; 256];
    let mut count = 0;
    for item in list.to_bytes().split(|byte| *byte == b',') {
        let number = parsed(item)?;
        if is_reached(number)? {
            *reached.get_mut(count)? = number;
            count += 1;
        }
    }
    Some(Answer::Reached(reached, count))
}

fn is_reached(number: usize) -> Option<bool> {
    const SIGCHLD: usize = 17;
    const REFUSED: u8 = 77;
    const SIGSYS: u64 = 31;
    match sys::call(number::CLONE, &[SIGCHLD]) {
        Ok(0) => {
            // A call that waits is one that was reached: the alarm ends it.
            let second = [0_u64, 0, 1, 0];
            sys::call(number::SETITIMER, &[0, sys::address(&second)]).map(drop).unwrap_or_default();
            let refused = matches!(sys::call(number, &[]), Err(errno) if errno == Errno(1) || errno == Errno::NOSYS);
            sys::exit(if refused { REFUSED } else { 0 })
        }
        Ok(pid) => {
            let mut status = [0_u64];
            sys::call(number::WAIT4, &[pid, sys::place(&mut status)]).ok()?;
            let [status] = status;
            // wait(2): the signal is in the low seven bits, an exit code in the second byte. SIGSYS is
            // how some filters refuse.
            let refused = status & 0xffff == u64::from(REFUSED) << 8;
            Some(!refused && status & 0x7f != SIGSYS)
        }
        Err(_) => None,
    }
}
