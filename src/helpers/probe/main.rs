//! `cofferdam-probe`: one attempt of a named kind, and the kernel's exact answer on one line.
//!
//! `cofferdam selftest` takes it into a cell, or into another sandbox, and runs attempts with it.
//! `build.rs` makes it freestanding: static, without a C library, its own system calls, so that
//! it starts wherever a program can be executed and nothing softens what the kernel answers. As
//! an example of the package it is an ordinary program, for lints and for trying it by hand:
//! `cargo run -p cofferdam-helpers --example cofferdam-probe -- call 39`.
#![cfg_attr(freestanding, no_std, no_main)]

mod attempts;
mod calls;
mod errno;
mod files;
mod memory;
mod network;
#[cfg(not(freestanding))]
mod ordinary;
mod processes;
#[cfg(freestanding)]
mod start;
mod sys;
mod words;

use core::ffi::CStr;
use core::fmt::{self, Write};

#[cfg(not(freestanding))]
fn main() -> std::process::ExitCode {
    ordinary::run(answered)
}

/// Makes the attempt that the words ask for and says the answer. The exit code is 0 where there is
/// one, whatever it is, and 2 where the words make no attempt.
fn answered(words: &[&CStr]) -> u8 {
    match attempts::attempt(words) {
        Some(answer) => {
            say(format_args!("{answer}\n"));
            0
        }
        None => {
            say(format_args!("no attempt\n"));
            2
        }
    }
}

/// Writes to standard output, past any buffer: what was said before an end by force was said.
fn say(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 4096], used: 0 };
    // More than a line takes is cut, which its reader sees.
    line.write_fmt(text).unwrap_or_default();
    let bytes = line.bytes.get(..line.used).unwrap_or_default();
    // A failed write cannot be reported.
    sys::write(1, bytes).map(drop).unwrap_or_default();
}

/// A line as it is put together.
struct Line {
    bytes: [u8; 4096],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.used + text.len();
        let place = self.bytes.get_mut(self.used..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}
