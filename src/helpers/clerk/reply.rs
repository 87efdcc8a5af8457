//! The answer as the front end reads it: a first line, a verdict, facts, an empty line, bytes.
//!
//! Facts are a name and a value in plain characters. `bytes` tells how many bytes follow, so that
//! an answer that was cut off, or that somebody else wrote into, is not taken for one.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{Display, Write};

use crate::errno::Errno;
use crate::file::write_all;
use crate::sys;

/// First line of every answer.
const FIRST: &str = "cofferdam-clerk 1\n";

/// Result of a request that succeeded.
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

/// Why nothing was done.
#[derive(Debug, PartialEq, Eq)]
pub enum No {
    /// The words make no request.
    Words,
    /// There is nothing of that name.
    Absent,
    /// It is no regular file but this.
    Kind(&'static str),
    /// A symbolic link leads out of the workspace.
    Outside,
    /// It has more bytes than are taken.
    Large(u64),
    /// It is there already.
    Exists,
    /// The text to be replaced is not in the file.
    Unmatched,
    /// The text to be replaced begins on these lines: the first of them, and the number of all.
    Many(Vec<usize>, usize),
    /// The file has only so many lines.
    Range(usize),
    /// It became another file while it was worked on.
    Changed,
    /// The kernel said no to this step.
    Errno(&'static str, Errno),
}

impl No {
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
pub fn tell(done: &Result<Done, No>) -> sys::Result<()> {
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
        // Writing to a text does not fail.
        writeln!(head, "{name} {value}").unwrap_or_default();
    }
}
