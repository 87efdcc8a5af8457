//! `cofferdam-runner`: stands around a script of a project in its cell. It makes the script's files, takes what the server
//! says while the script runs, and reports its end.
//!
//! Its words are the kind of the call and the program with its arguments ([`child::Launch`]). Standard input has, in this
//! order:
//!
//! - `MARK METADATA ARGUMENTS` and a line break: a word that begins the report, and two lengths;
//! - the description of the tool and the arguments of the call, as long as that, each none if its length is 0;
//! - lines of the server until the script ends ([`listener`]).
//!
//! Standard output has an empty line, then what the script writes to its stream, and at its end the report ([`report`]).
//! It ends with 0 once it has reported, with 125 where the files of the call could not be made or the report could not be
//! sent.
//!
//! `build.rs` makes it freestanding, like the clerk: a shell in its place took as long as the script's own.
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
#[cfg(freestanding)]
#[path = "../clerk/heap.rs"]
mod heap;
mod listener;
#[cfg(not(freestanding))]
#[path = "../probe/ordinary.rs"]
mod ordinary;
mod places;
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
use listener::Listener;
use places::{Files, Input};

/// Code of this program where a call has no report.
const NOT_BEGUN: u8 = 125;
/// Code of a call that was rejected.
const REJECTED: u8 = 1;
/// Error of a call whose script is not what was read: a link would be another program's name.
const REJECTION: &[u8] = br#"{"code":-32602,"message":"Tool path rejected by policy"}"#;

#[cfg(not(freestanding))]
fn main() -> std::process::ExitCode {
    ordinary::run(answered)
}

/// Runs the script and reports its end.
fn answered(words: &[&CStr]) -> u8 {
    match around(words) {
        Ok(()) => 0,
        Err(_) => NOT_BEGUN,
    }
}

fn around(words: &[&CStr]) -> Result<(), Errno> {
    let launch = Launch::of(words)?;
    let mut environment = Environment::own();
    let mut input = Input::new();
    let head = input.head()?;
    places::keep_from_others()?;
    let files = Files::make()?;
    environment.set(b"MCP_TOOL_METADATA_JSON", &input.take(head.metadata)?);
    if head.arguments > 0 {
        files.keep_arguments(&input.take(head.arguments)?)?;
        environment.set(b"MCP_TOOL_ARGS_FILE", places::ARGUMENTS);
    }
    let stream = places::stream()?;
    for name in [&b"MCP_PROGRESS_STREAM"[..], b"MCP_LOG_STREAM"] {
        environment.set(name, stream);
    }
    places::enter_project()?;
    // Set what a shell around the script would leave.
    environment.set(b"PWD", places::PROJECT);
    environment.set(b"OLDPWD", places::PROJECT);
    environment.set(b"SHLVL", b"1");
    file::write_all(1, b"\n")?;
    let code = if launch.is_rejected() {
        files.keep_error(REJECTION)?;
        REJECTED
    } else {
        child::outlive_term()?;
        match launch.start(&environment, Streams::of(&files)?) {
            Ok(child) => {
                Listener::new(&environment).wait(&child, input.rest())?;
                child.code(launch.name())?
            }
            Err(errno) => child::refused(launch.name(), errno),
        }
    };
    report::tell(&head.mark, code, &files, &environment)
}
