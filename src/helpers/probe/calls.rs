//! Attempts that make arbitrary system calls, by number and in sequence.

use core::ffi::CStr;

use crate::answer::Answer;
use crate::errno::Errno;
use crate::sys::{self, number};
use crate::words::{Room, number as parsed};

/// Maximum number of calls in one attempt.
const MAX_CALLS: usize = 8;

/// Makes the calls `NUMBER ARGUMENT… , NUMBER ARGUMENT…`. Returns the answer of the last one, or of
/// the first that failed.
pub fn calls(words: &[&CStr]) -> Option<Answer> {
    let mut room = Room::new();
    let mut answers = [0; MAX_CALLS];
    let mut made = 0;
    let sequence = words.split(|word| *word == c",");
    let length = sequence.clone().count();
    for one in sequence {
        let (name, arguments) = one.split_first()?;
        let mut given = [0; 6];
        for (argument, word) in given.iter_mut().zip(arguments) {
            *argument = room.argument(word, answers.get(..made)?)?;
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

/// Calls clone(2) with flags; the child exits at once.
pub fn clone(flags: usize) -> Answer {
    const SIGCHLD: usize = 17;
    finish_clone(sys::call(number::CLONE, &[flags | SIGCHLD]))
}

/// Calls clone3(2), whose flags are behind a pointer.
pub fn clone_3(flags: u64) -> Answer {
    const SIGCHLD: u64 = 17;
    let arguments = [flags, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, 0];
    finish_clone(sys::call(number::CLONE3, &[sys::address(&arguments), size_of_val(&arguments)]))
}

fn finish_clone(answer: sys::Result<usize>) -> Answer {
    match answer {
        Ok(0) => sys::exit(0),
        Ok(pid) => {
            // Only cleans up: that the child was made is known already.
            sys::call(number::WAIT4, &[pid]).map(drop).unwrap_or_default();
            Answer::Done("made")
        }
        Err(errno) => Answer::Refused(errno),
    }
}

/// Calls each number without arguments, each in a new process, and lists those that were not
/// refused (EPERM, ENOSYS).
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
            // The call may block, which means that it was not refused: the alarm then ends it.
            let second = [0_u64, 0, 1, 0];
            // Without an alarm a call that blocks hangs, which the caller notices.
            sys::call(number::SETITIMER, &[0, sys::address(&second)]).map(drop).unwrap_or_default();
            let refused = matches!(sys::call(number, &[]), Err(errno) if errno == Errno(1) || errno == Errno::NOSYS);
            sys::exit(if refused { REFUSED } else { 0 })
        }
        Ok(pid) => {
            let mut status = [0_u64];
            sys::call(number::WAIT4, &[pid, sys::address_mut(&mut status)]).ok()?;
            let [status] = status;
            // wait(2): the signal is in the low seven bits, the exit code in the second byte. Some
            // filters refuse a call with SIGSYS.
            let refused = status & 0xffff == u64::from(REFUSED) << 8;
            Some(!refused && status & 0x7f != SIGSYS)
        }
        Err(_) => None,
    }
}
