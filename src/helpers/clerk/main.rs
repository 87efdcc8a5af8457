//! `cofferdam-clerk`: reads and writes files of `/workspace` inside a cell, for the tools `edit`,
//! `put_file` and `get_file`.
//!
//! The host never opens files written by a cell by path; this program does it inside the cell,
//! where a manipulated path cannot lead outside. Its arguments describe the request, standard input
//! has the contents, and the answer is written to standard output ([`reply`]). The exit code is
//! always 0, so that a refusal is not taken for a failure of the program.
//!
//! `build.rs` builds it freestanding like the probe, whose entry point it shares: a cell's root
//! holds it as one static file. As an example of the package it is an ordinary program: `cargo run
//! -p cofferdam-helpers --example cofferdam-clerk -- get /workspace/a 0 100`.
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

/// Performs the request and writes the answer.
fn answered(words: &[&CStr]) -> u8 {
    let outcome = act::act(words);
    // A failed write cannot be reported.
    reply::write(&outcome).unwrap_or_default();
    0
}
