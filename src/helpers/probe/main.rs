//! `cofferdam-probe`: makes one named attempt and prints the kernel's exact answer on one line.
//!
//! `cofferdam selftest` takes it into a cell, or into another sandbox, and runs attempts with it.
//! `build.rs` builds it freestanding: static, without a C library and with raw system calls, so
//! that it starts wherever a program can be executed and no library alters what the kernel answers.
//! As an example of the package it is an ordinary program, for lints and for trying it by hand:
//! `cargo run -p cofferdam-helpers --example cofferdam-probe -- call 39`.
#![cfg_attr(freestanding, no_std, no_main)]

mod answer;
mod attempts;
mod calls;
mod errno;
mod files;
mod memory;
mod network;
#[cfg(not(freestanding))]
mod ordinary;
mod processes;
mod random;
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

/// Makes the attempt that the words describe and prints the answer. The exit code is 0 for any
/// answer, and 2 if the words describe no attempt.
fn answered(words: &[&CStr]) -> u8 {
    match attempts::attempt(words) {
        Some(answer) => {
            print(format_args!("{answer}\n"));
            0
        }
        None => {
            print(format_args!("no attempt\n"));
            2
        }
    }
}

/// Writes to standard output without buffering, so that a line is out even if the process is killed
/// afterwards.
fn print(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 4096], used: 0 };
    // A longer text is cut off, which its reader sees.
    line.write_fmt(text).unwrap_or_default();
    let bytes = line.bytes.get(..line.used).unwrap_or_default();
    // A failed write cannot be reported.
    sys::write(1, bytes).map(drop).unwrap_or_default();
}

/// A line that is being composed.
struct Line {
    bytes: [u8; 4096],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.used + text.len();
        let destination = self.bytes.get_mut(self.used..end).ok_or(fmt::Error)?;
        destination.copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}
