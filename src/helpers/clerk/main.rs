//! `cofferdam-clerk`: reads and writes files of `/workspace` inside a cell, for the tools `edit`,
//! `put_file` and `get_file`.
//!
//! The host never opens by path what a cell has written, so this program does, where a wrong turn
//! leads nowhere. Its words say what to do, standard input has the bytes, standard output the answer
//! ([`reply`]); it ends with 0 whatever the answer is, so that no shell takes it for a failure.
//!
//! `build.rs` makes it freestanding like the helper of the self-test, whose entry it shares: a cell's
//! root has it as one static file. As an example of the package it is an ordinary program:
//! `cargo run -p cofferdam-helpers --example cofferdam-clerk -- get /workspace/a 0 100`.
#![cfg_attr(freestanding, no_std, no_main)]

extern crate alloc;

mod act;
#[path = "../probe/errno.rs"]
#[allow(dead_code, reason = "the self-test's helper uses the rest")]
mod errno;
#[allow(dead_code, reason = "the runner uses the rest")]
mod file;
#[cfg(freestanding)]
mod heap;
mod lines;
mod list;
#[cfg(not(freestanding))]
#[path = "../probe/ordinary.rs"]
mod ordinary;
mod path;
mod replace;
mod reply;
#[cfg(freestanding)]
#[path = "../probe/start.rs"]
mod start;
#[path = "../probe/sys.rs"]
#[allow(dead_code, reason = "the self-test's helper uses the rest")]
mod sys;

use core::ffi::CStr;

#[cfg(not(freestanding))]
fn main() -> std::process::ExitCode {
    ordinary::run(answered)
}

/// Does what the words say and tells what came of it.
fn answered(words: &[&CStr]) -> u8 {
    let done = act::act(words);
    // A failed write cannot be reported.
    reply::tell(&done).unwrap_or_default();
    0
}
