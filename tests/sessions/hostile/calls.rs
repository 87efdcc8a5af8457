//! Random system calls with random arguments, from threads that may block or break their process.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::allowed;
use super::raw;
use crate::dice::Dice;

/// Running time of one process, if it does not break itself before.
const TIME: Duration = Duration::from_secs(2);
/// Size of a buffer for what a call writes. read(2) and getrandom(2) can write 2^31 and 2^25 bytes, but no file
/// that can be read here is that large.
const ROOM: usize = 64 << 20;
/// Threads at once, blocked ones included.
const THREADS: u64 = 24;

/// Makes calls until the time is over and prints their number from time to time.
pub fn storm(seed: u64) {
    let made = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + TIME;
    let mut started = 0;
    let mut last = 0;
    while Instant::now() < end {
        let now = made.load(Ordering::Relaxed);
        // Nothing moves: those that are there are blocked.
        if now == last && started < THREADS {
            let dice = Dice::new(seed.wrapping_add(started));
            let made = Arc::clone(&made);
            // Fails if a random limit of the process forbids it: the others continue.
            if std::thread::Builder::new().spawn(move || chaos(dice, &made)).is_ok() {
                started += 1;
            }
        }
        last = now;
        let mut out = std::io::stdout();
        // A random call may have closed it.
        writeln!(out, "made {now}").and_then(|()| out.flush()).unwrap_or_default();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Calls that mostly break the process that makes them: its memory, its stack, its descriptors. They are
/// made, but seldom.
const BREAKING: [i64; 16] = [
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_mmap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clone,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_set_robust_list,
    libc::SYS_tgkill,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup2,
    libc::SYS_dup3,
];

fn chaos(mut dice: Dice, made: &AtomicU64) {
    let numbered = |call: i64| u64::try_from(call).unwrap_or(0);
    let never = [libc::SYS_exit, libc::SYS_exit_group].map(numbered);
    let breaking = BREAKING.map(numbered);
    let allowed: Vec<u64> = allowed::numbers();
    // The longest write of one call ends inside of this room.
    let room: &[u8] = Vec::leak(vec![0; ROOM]);
    let address = u64::try_from(room.as_ptr().addr()).unwrap_or_default();
    loop {
        // An allowed call has the more interesting ways to fail.
        let number = match dice.one_in(3) {
            true => dice.below(1024),
            false => dice.pick(&allowed).copied().unwrap_or_default(),
        };
        let arguments = [(); 6].map(|()| argument(&mut dice, address));
        let seldom = breaking.contains(&number) && !dice.one_in(500);
        if seldom || never.contains(&number) || allowed::UNFILTERED.contains(&number) {
            continue;
        }
        // The answer is the kernel's business: effects are checked from outside.
        raw::call(number, arguments).map(drop).unwrap_or_default();
        made.fetch_add(1, Ordering::Relaxed);
    }
}

fn argument(dice: &mut Dice, address: u64) -> u64 {
    match dice.below(8) {
        0 => 0,
        1 | 2 => dice.below(16),
        3 => address,
        4 => address + dice.below(2048),
        5 => u64::MAX,
        6 => 1 << dice.below(64),
        _ => dice.next(),
    }
}
