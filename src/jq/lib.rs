//! A small jq(1) based on the interpreter jaq, with the filters and options that scripts use. Every
//! cell of a script project has it, whether or not the host has jq.
//!
//! *Invariant:* it reads only standard input and the files on its command line, and writes only to
//! standard output and standard error.

#![deny(unreachable_pub)]
#![allow(clippy::wildcard_enum_match_arm, reason = "no enum here decides about security")]

// Named by the macros of jaq_json.
extern crate alloc;

mod input;
mod options;
mod paths;
mod print;
mod program;
mod rewrite;

use std::ffi::OsString;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use jaq_json::Val;
use jaq_json::write::Pp;

use input::Inputs;
use options::{Command, Options, Output};
use program::{Ended, Program};

/// Exit codes, as jq(1) has them.
const USAGE: u8 = 2;
const COMPILE: u8 = 3;
const NO_OUTPUT: u8 = 4;
const FALSE: u8 = 1;
const FAILED: u8 = 5;

const HELP: &str = "Usage: jq [OPTIONS] FILTER [FILE...]\n\
    -n -r -j -a -c -s -S -e -R -f FILE --tab --indent N --arg A V --argjson A JSON --slurpfile A F --rawfile A F\n\
    --args --jsonargs --unbuffered -C -M -h -V\n\
    This jq is a part of cofferdam, on the interpreter jaq. Without: modules, --stream, --seq.";

/// Runs jq with the arguments that follow the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match options::parse(arguments) {
        Ok(Command::Help) => print_line(HELP),
        // Scripts check for a version that they know.
        Ok(Command::Version) => print_line("jq-1.7-cofferdam"),
        Ok(Command::Run(options)) => ExitCode::from(run(*options)),
        Err(error) => {
            eprintln!("jq: error: {error}\nUse jq --help for help with command-line options.");
            ExitCode::from(USAGE)
        }
    }
}

fn print_line(text: &str) -> ExitCode {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(USAGE),
    }
}

fn run(options: Options) -> u8 {
    let Options { filter, variables, files, reading, layout, output, has_status } = options;
    let program = match Program::compile(&filter, &variables) {
        Ok(program) => program,
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| eprintln!("jq: error: {mistake}"));
            eprintln!(
                "jq: {} compile error{}",
                mistakes.len(),
                if mistakes.len() == 1 { "" } else { "s" }
            );
            return COMPILE;
        }
    };
    let inputs = match Inputs::open(&files, reading) {
        Ok(inputs) => inputs,
        Err(error) => {
            eprintln!("jq: error: {error}");
            return USAGE;
        }
    };
    let values = variables.into_iter().map(|(_, value)| value).collect();
    let mut printer =
        Printer { to: BufWriter::new(io::stdout().lock()), layout, output, last: None };
    let ended = program.run(values, inputs, |value| printer.print(&value));
    let flushed = printer.to.flush();
    match (ended, flushed) {
        (Ended::Unwritten(error), _) | (_, Err(error)) => write_failed(&error),
        (Ended::Halted(code), Ok(())) => code,
        (Ended::BadInput, Ok(())) => USAGE,
        (Ended::Failed, Ok(())) => FAILED,
        (Ended::Done, Ok(())) if !has_status => 0,
        (Ended::Done, Ok(())) => match printer.last {
            None => NO_OUTPUT,
            Some(true) => 0,
            Some(false) => FALSE,
        },
    }
}

/// Returns the exit code for a failed write, and prints the error unless the reader closed the
/// pipe.
fn write_failed(error: &io::Error) -> u8 {
    if error.kind() != ErrorKind::BrokenPipe {
        eprintln!("jq: error: writing output failed: {error}");
    }
    USAGE
}

/// Writes values to standard output.
struct Printer<W> {
    to: W,
    layout: Pp,
    output: Output,
    /// True if the last value was neither null nor false; unset before the first one.
    last: Option<bool>,
}

impl<W: Write> Printer<W> {
    fn print(&mut self, value: &Val) -> io::Result<()> {
        self.last = Some(!matches!(value, Val::Null | Val::Bool(false)));
        match value {
            Val::TStr(text) if self.output.is_raw && !self.output.is_ascii => {
                self.to.write_all(text)?;
            }
            value => {
                let is_raw = self.output.is_raw && matches!(value, Val::TStr(_));
                let text =
                    if is_raw { print::plain(value) } else { print::json(value, &self.layout) };
                let text = if self.output.is_ascii { print::ascii(&text) } else { text };
                self.to.write_all(text.as_bytes())?;
            }
        }
        if !self.output.is_joined {
            self.to.write_all(b"\n")?;
        }
        if self.output.is_unbuffered { self.to.flush() } else { Ok(()) }
    }
}
