//! Attempts with processes and descriptors: as many as the kernel allows, or for as long as asked.

use crate::answer::{Answer, answer_or_refusal};
use crate::sys::{self, Result, number};

const SIGCHLD: usize = 17;
const SIGKILL: usize = 9;

/// Makes processes that all live at the same time, then kills them.
pub fn forks(count: usize) -> Answer {
    let mut pids = [0; 1024];
    let mut made = Ok(Answer::Counted("forks", count));
    for slot in pids.iter_mut().take(count) {
        match child(|| sleep(600)) {
            Ok(pid) => *slot = pid,
            Err(errno) => {
                made = Err(errno);
                break;
            }
        }
    }
    for pid in pids.iter().filter(|pid| **pid != 0) {
        // Neither fails: these children have not been waited for yet.
        sys::call(number::KILL, &[*pid, SIGKILL]).map(drop).unwrap_or_default();
        sys::call(number::WAIT4, &[*pid]).map(drop).unwrap_or_default();
    }
    answer_or_refusal(made)
}

/// Makes processes that exit and are not waited for.
pub fn zombies(count: usize) -> Answer {
    for _ in 0..count {
        if let Err(errno) = child(|| Answer::Done("")) {
            return Answer::Refused(errno);
        }
    }
    Answer::Counted("zombies", count)
}

/// Forks a child that runs `part` and exits (fork(2)).
fn child(part: impl FnOnce() -> Answer) -> Result<usize> {
    match sys::call(number::CLONE, &[SIGCHLD])? {
        0 => {
            part();
            sys::exit(0)
        }
        pid => Ok(pid),
    }
}

/// Opens descriptors, as many as the hard limit allows.
pub fn descriptors(count: usize) -> Answer {
    const RLIMIT_NOFILE: usize = 7;
    let mut limit = [0_u64; 2];
    let pointer = sys::address_mut(&mut limit);
    answer_or_refusal(sys::call(number::PRLIMIT64, &[0, RLIMIT_NOFILE, 0, pointer]).and_then(
        |_| {
            let [_, hard] = limit;
            let raised = [hard, hard];
            sys::call(number::PRLIMIT64, &[0, RLIMIT_NOFILE, sys::address(&raised)])?;
            for _ in 0..count {
                sys::call(number::DUP, &[1])?;
            }
            Ok(Answer::Counted("descriptors", count))
        },
    ))
}

/// Sleeps for some seconds.
pub fn sleep(seconds: usize) -> Answer {
    let time = [seconds, 0];
    answer_or_refusal(
        sys::call(number::NANOSLEEP, &[sys::address(&time)]).map(|_| Answer::Done("slept")),
    )
}

/// Leaves the session of its caller (setsid(2)), then sleeps for some seconds.
pub fn session(seconds: usize) -> Answer {
    match sys::call(number::SETSID, &[]) {
        Ok(_) => sleep(seconds),
        Err(errno) => Answer::Refused(errno),
    }
}

/// Spins for ever.
pub fn spin() -> ! {
    loop {
        core::hint::spin_loop();
    }
}
