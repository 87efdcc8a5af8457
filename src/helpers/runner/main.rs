//! `cofferdam-runner`: runs a script of a project in its cell. It creates the script's files,
//! handles messages of the server while the script runs, and reports how it ended.
//!
//! The arguments are the kind of the call, and the program for it ([`child::Launch`]). Standard
//! input has, in this order:
//!
//! - `MARK METADATA ARGUMENTS` and a line break: a word that begins the report, and two lengths;
//! - the description of the tool and the arguments of the call, with these lengths, which may be 0;
//! - lines of the server until the script ends ([`listener`]).
//!
//! Standard output gets an empty line, then what the script writes to its stream, and at the end
//! the report ([`report`]). The exit code is 0 if the report was sent, and 125 if the files of the
//! call could not be created or the report could not be sent.
//!
//! `build.rs` builds it freestanding, like the clerk: a shell in its place took as long to start as
//! the script itself.
#![cfg_attr(freestanding, no_std, no_main)]

extern crate alloc;

mod child;
mod environment;
#[path = "../probe/errno.rs"]
#[allow(dead_code, reason = "the self-test's helper uses the rest")]
mod errno;
#[path = "../clerk/file.rs"]
#[allow(dead_code, reason = "the clerk uses the rest")]
mod file;
mod files;
#[cfg(freestanding)]
#[path = "../clerk/heap.rs"]
mod heap;
mod listener;
#[cfg(not(freestanding))]
#[path = "../probe/ordinary.rs"]
mod ordinary;
mod report;
#[cfg(freestanding)]
#[path = "../probe/start.rs"]
mod start;
#[path = "../probe/sys.rs"]
#[allow(dead_code, reason = "the self-test's helper uses the rest")]
mod sys;

use core::ffi::CStr;

use child::{Launch, Streams};
use environment::Environment;
use errno::Errno;
use files::{Files, Input};
use listener::Listener;

/// Exit code of this program if it could not report.
const NOT_BEGUN: u8 = 125;
/// Exit code reported for a rejected call.
const REJECTED: u8 = 1;
/// Error of a call whose script is no longer the regular file that was read: a link could lead to
/// another program.
const REJECTION: &[u8] = br#"{"code":-32602,"message":"Tool path rejected by policy"}"#;

#[cfg(not(freestanding))]
fn main() -> std::process::ExitCode {
    ordinary::run(answered)
}

/// Runs the script and reports its end.
fn answered(words: &[&CStr]) -> u8 {
    match run(words) {
        Ok(()) => 0,
        Err(_) => NOT_BEGUN,
    }
}

fn run(words: &[&CStr]) -> Result<(), Errno> {
    let launch = Launch::parse(words)?;
    let mut environment = Environment::inherited();
    let mut input = Input::new();
    let head = input.head()?;
    files::keep_from_others()?;
    let files = Files::make()?;
    environment.set(b"MCP_TOOL_METADATA_JSON", &input.take(head.metadata)?);
    if head.arguments > 0 {
        files.keep_arguments(&input.take(head.arguments)?)?;
        environment.set(b"MCP_TOOL_ARGS_FILE", files::ARGUMENTS);
    }
    let stream = files::stream()?;
    for name in [&b"MCP_PROGRESS_STREAM"[..], b"MCP_LOG_STREAM"] {
        environment.set(name, stream);
    }
    files::enter_project()?;
    // Variables that a shell around the script would set.
    environment.set(b"PWD", files::PROJECT);
    environment.set(b"OLDPWD", files::PROJECT);
    environment.set(b"SHLVL", b"1");
    file::write_all(1, b"\n")?;
    let code = if launch.is_rejected() {
        files.keep_error(REJECTION)?;
        REJECTED
    } else {
        child::ignore_term()?;
        match launch.start(&environment, Streams::open(&files)?) {
            Ok(child) => {
                Listener::new(&environment).wait(&child, input.into_rest())?;
                child.code(launch.name())?
            }
            Err(errno) => child::refused(launch.name(), errno),
        }
    };
    report::send(&head.mark, code, &files, &environment)
}
