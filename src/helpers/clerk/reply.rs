//! The clerk's answer, as the front end reads it: a first line, a verdict, facts, an empty line,
//! bytes.
//!
//! A fact is a name and a value in plain characters. `bytes` says how many bytes follow, so that an
//! answer that was cut off, or that another process wrote into, is not accepted.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{Display, Write};

use crate::errno::Errno;
use crate::file::write_all;
use crate::sys;

/// First line of every answer.
const FIRST: &str = "cofferdam-clerk 1\n";

/// Result of a successful request.
pub struct Done {
    facts: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Done {
    pub fn new() -> Self {
        Self { facts: Vec::new(), body: Vec::new() }
    }

    pub fn fact(mut self, name: &'static str, value: impl Display) -> Self {
        self.facts.push((name, value.to_string()));
        self
    }

    pub fn body(self, body: Vec<u8>) -> Self {
        Self { body, ..self }
    }
}

/// Why a request was refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// The arguments describe no request.
    Words,
    /// There is no file of that name.
    Absent,
    /// The file is not a regular one but of this type.
    Kind(&'static str),
    /// The path leads out of the workspace.
    Outside,
    /// The file exceeds the maximum size.
    Large(u64),
    /// The file exists already.
    Exists,
    /// The text to replace is not in the file.
    Unmatched,
    /// The text to replace occurs on these lines: the first of them, and the total number.
    Many(Vec<usize>, usize),
    /// The file has fewer lines than that.
    Range(usize),
    /// The file was replaced by another while it was being edited.
    Changed,
    /// The kernel refused this step.
    Errno(&'static str, Errno),
}

impl Refused {
    fn facts(&self) -> (&'static str, Vec<(&'static str, String)>) {
        let one = |name, value: &dyn Display| [(name, value.to_string())].into();
        match self {
            Self::Words => ("words", Vec::new()),
            Self::Absent => ("absent", Vec::new()),
            Self::Kind(kind) => ("kind", one("kind", kind)),
            Self::Outside => ("outside", Vec::new()),
            Self::Large(size) => ("large", one("size", size)),
            Self::Exists => ("exists", Vec::new()),
            Self::Unmatched => ("no-match", Vec::new()),
            Self::Many(lines, count) => {
                let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
                ("many", [("lines", lines.join(",")), ("count", count.to_string())].into())
            }
            Self::Range(lines) => ("range", one("lines", lines)),
            Self::Changed => ("changed", Vec::new()),
            Self::Errno(step, errno) => {
                ("errno", [("step", step.to_string()), ("errno", errno.0.to_string())].into())
            }
        }
    }
}

/// Writes the answer to standard output.
pub fn write(done: &Result<Done, Refused>) -> sys::Result<()> {
    let mut head = String::from(FIRST);
    let body = match done {
        Ok(done) => {
            head.push_str("ok\n");
            put(&mut head, &done.facts);
            done.body.as_slice()
        }
        Err(no) => {
            let (kind, facts) = no.facts();
            put(&mut head, &[("no", kind.to_string())]);
            put(&mut head, &facts);
            &[]
        }
    };
    put(&mut head, &[("bytes", body.len().to_string())]);
    head.push('\n');
    write_all(1, head.as_bytes())?;
    write_all(1, body)
}

fn put(head: &mut String, facts: &[(&'static str, String)]) {
    for (name, value) in facts {
        // Writing to a `String` does not fail.
        writeln!(head, "{name} {value}").unwrap_or_default();
    }
}
