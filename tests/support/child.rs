//! Runs a part of a test in a child process, which may confine itself.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use sys::process::{self, Side};

/// Runs `act` in a child process; returns the errno of each result, 0 for success.
///
/// A forked copy of a process with threads may hold an allocator lock for ever: a child that does not
/// answer is killed, and another is made.
pub(crate) fn in_child(act: impl Fn() -> Vec<Result<(), Errno>>) -> Vec<i32> {
    let answers = (0..5).find_map(|_| of_one_child(&act));
    answers.expect("one of five children answers")
}

fn of_one_child(act: impl Fn() -> Vec<Result<(), Errno>>) -> Option<Vec<i32>> {
    let (read, write) = nix::unistd::pipe().expect("a pipe");
    match sys::fork::fork().expect("a child") {
        Side::Child => {
            let results = act().into_iter();
            let bytes: Vec<u8> =
                results.flat_map(|result| result.err().map_or(0, sys::raw).to_ne_bytes()).collect();
            let written = nix::unistd::write(&write, &bytes);
            process::exit_now(i32::from(written.is_err()));
        }
        Side::Parent(child) => {
            drop(write);
            let mut ready = [PollFd::new(read.as_fd(), PollFlags::POLLIN)];
            let polled = uninterrupted(|| poll(&mut ready, PollTimeout::from(20_000_u16)));
            if polled.expect("poll") == 0 {
                process::signal(&child.pidfd, Signal::SIGKILL).expect("killed");
            }
            let mut bytes = [0; 256];
            let length = uninterrupted(|| nix::unistd::read(&read, &mut bytes));
            let length = length.expect("its results");
            process::wait(&child.pidfd).expect("its end");
            let (numbers, _) = bytes.get(..length).expect("read").as_chunks::<4>();
            let errnos = numbers.iter().map(|number| i32::from_ne_bytes(*number)).collect();
            (length > 0).then_some(errnos)
        }
    }
}

/// Repeats a call that a signal interrupts: children of other tests end meanwhile.
fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}
