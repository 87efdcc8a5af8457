//! Attempts with processes and descriptors: as many as there may be, or as long as there is time.

use crate::attempts::{Answer, answer_of};
use crate::sys::{self, Result, number};

const SIGCHLD: usize = 17;
const SIGKILL: usize = 9;

/// Makes processes that all live at once, and ends them.
pub fn forks(count: usize) -> Answer {
    let mut pids = [0; 1024];
    let mut made = Ok(Answer::Counted("forks", count));
    for place in pids.iter_mut().take(count) {
        match child(|| sleep(600)) {
            Ok(pid) => *place = pid,
            Err(errno) => {
                made = Err(errno);
                break;
            }
        }
    }
    for pid in pids.iter().filter(|pid| **pid != 0) {
        // It cannot be gone: nobody has waited for it.
        sys::call(number::KILL, &[*pid, SIGKILL]).map(drop).unwrap_or_default();
        sys::call(number::WAIT4, &[*pid]).map(drop).unwrap_or_default();
    }
    answer_of(made)
}

/// Makes processes that end and that nobody waits for.
pub fn zombies(count: usize) -> Answer {
    for _ in 0..count {
        if let Err(errno) = child(|| Answer::Done("")) {
            return Answer::Refused(errno);
        }
    }
    Answer::Counted("zombies", count)
}

/// Forks a child that does its part and ends (fork(2)).
fn child(part: impl FnOnce() -> Answer) -> Result<usize> {
    match sys::call(number::CLONE, &[SIGCHLD])? {
        0 => {
            part();
            sys::exit(0)
        }
        pid => Ok(pid),
    }
}

/// Holds descriptors, as many as the hard limit lets it.
pub fn descriptors(count: usize) -> Answer {
    const RLIMIT_NOFILE: usize = 7;
    let mut limit = [0_u64; 2];
    let place = sys::place(&mut limit);
    answer_of(sys::call(number::PRLIMIT64, &[0, RLIMIT_NOFILE, 0, place]).and_then(|_| {
        let [_, hard] = limit;
        let raised = [hard, hard];
        sys::call(number::PRLIMIT64, &[0, RLIMIT_NOFILE, sys::address(&raised)])?;
        for _ in 0..count {
            sys::call(number::DUP, &[1])?;
        }
        Ok(Answer::Counted("descriptors", count))
    }))
}

/// Sleeps.
pub fn sleep(seconds: usize) -> Answer {
    let time = [seconds, 0];
    answer_of(sys::call(number::NANOSLEEP, &[sys::address(&time)]).map(|_| Answer::Done("slept")))
}

/// Uses a processor for ever.
pub fn spin() -> ! {
    loop {
        core::hint::spin_loop();
    }
}
