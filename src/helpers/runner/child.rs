//! Starts the process of the script and waits for it.

use alloc::vec::Vec;
use core::ffi::CStr;

use crate::environment::{Environment, addresses};
use crate::errno::Errno;
use crate::file::{self, OpenFile};
use crate::files::{Files, PROJECT, duplicate};
use crate::sys::{self, number};

/// The shell of every cell.
const BASH: &CStr = c"/bin/bash";
/// Scripts that cofferdam provides.
const POLICY: &CStr = c"/etc/cofferdam/lib/policy.sh";
const PROVIDER: &CStr = c"/etc/cofferdam/lib/provider.sh";
const EMBED: &CStr = c"/etc/cofferdam/lib/embed.sh";

const SIGINT: usize = 2;
const SIGPIPE: usize = 13;
const SIGTERM: usize = 15;
const SIGCHLD: usize = 17;
/// SIG_DFL of signal(7).
const DEFAULT: usize = 0;
/// SIG_IGN of signal(7).
const IGNORED: usize = 1;
/// Returns a pidfd of the child (clone(2)).
const CLONE_PIDFD: usize = 0x1000;
/// Exit code of a program that cannot be executed, as shells have it.
const NOT_EXECUTED: u8 = 126;
/// Exit code of a program that is not there.
const NOT_FOUND: u8 = 127;

crate::by_architecture! {
    EXECVE 59 221,
    RT_SIGACTION 13 134,
}

/// The program to run.
pub enum Launch<'w> {
    /// A script of the project, executed directly.
    Program(&'w CStr),
    /// A script of the project, run by bash.
    Bash(&'w CStr),
    /// The project's policy decision about a call.
    Policy,
    /// The provider of a resource that a variable names.
    Provider,
}

/// Standard streams of the script.
pub struct Streams {
    input: OpenFile,
    output: OpenFile,
}

/// A running script.
pub struct Child {
    pid: usize,
    /// Becomes readable when the process ends (pidfd_open(2)).
    pub end: OpenFile,
}

impl<'w> Launch<'w> {
    /// Parses the arguments of the runner.
    pub fn parse(words: &[&'w CStr]) -> Result<Self, Errno> {
        match words {
            [kind, path] if kind.to_bytes() == b"program" => Ok(Self::Program(path)),
            [kind, path] if kind.to_bytes() == b"bash" => Ok(Self::Bash(path)),
            [kind] if kind.to_bytes() == b"policy" => Ok(Self::Policy),
            [kind] if kind.to_bytes() == b"provider" => Ok(Self::Provider),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns true for a script that is not the regular file it was when the project was read: a
    /// link could lead to another program.
    pub fn is_rejected(&self) -> bool {
        match self {
            Self::Program(path) | Self::Bash(path) => !is_plain(path.to_bytes()),
            Self::Policy | Self::Provider => false,
        }
    }

    /// Returns the path of the script, for messages.
    pub fn name(&self) -> &'w CStr {
        match self {
            Self::Program(path) | Self::Bash(path) => path,
            Self::Policy => POLICY,
            Self::Provider => PROVIDER,
        }
    }

    /// Starts the script.
    pub fn start(&self, environment: &Environment, streams: Streams) -> Result<Child, Errno> {
        Child::start(self.name(), || {
            duplicate(streams.input.0, 0)?;
            match self {
                // A policy answers on descriptor 3, so that output of a hook is not taken for the
                // answer.
                Self::Policy => {
                    duplicate(streams.output.0, 3)?;
                    duplicate(2, 1)?;
                }
                Self::Program(_) | Self::Bash(_) | Self::Provider => {
                    duplicate(streams.output.0, 1)?;
                }
            }
            let environment = environment.addresses();
            match self {
                Self::Program(path) => match execute(path, &[path], &environment) {
                    // Shells do the same with a script that names no interpreter.
                    Errno::NOEXEC => Err(execute(BASH, &[c"bash", path], &environment)),
                    errno => Err(errno),
                },
                Self::Bash(path) => Err(execute(BASH, &[c"bash", path], &environment)),
                Self::Policy => Err(execute(BASH, &[c"bash", POLICY], &environment)),
                Self::Provider => Err(execute(BASH, &[c"bash", PROVIDER], &environment)),
            }
        })
    }
}

impl Streams {
    pub fn open(files: &Files) -> Result<Self, Errno> {
        let input = file::read(b"/dev/null")?;
        let output = files.appended()?;
        file::block_reads(&input)?;
        file::block_appends(&output)?;
        Ok(Self { input, output })
    }
}

impl Child {
    /// Forks a child that becomes another program (clone(2)). `exec` only returns if that
    /// failed.
    fn start(name: &CStr, exec: impl FnOnce() -> Result<(), Errno>) -> Result<Self, Errno> {
        let mut end = [0_i32];
        match sys::call(number::CLONE, &[SIGCHLD | CLONE_PIDFD, 0, sys::address_mut(&mut end)])? {
            0 => {
                let done = on_term(DEFAULT).and_then(|()| exec());
                sys::exit(done.err().map_or(NOT_EXECUTED, |errno| refused(name, errno)))
            }
            pid => {
                let [end] = end;
                let end = usize::try_from(end).map_err(|_| Errno::INVAL)?;
                Ok(Self { pid, end: OpenFile(end) })
            }
        }
    }

    /// Waits for the child to end; returns its exit code as shells have it (wait4(2)), and prints
    /// the signal that killed it.
    pub fn code(&self, name: &CStr) -> Result<u8, Errno> {
        let mut status = [0_i32];
        loop {
            match sys::call(number::WAIT4, &[self.pid, sys::address_mut(&mut status), 0, 0]) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let [[low, high, ..]] = status.map(i32::to_le_bytes);
        Ok(match low & 0x7f {
            0 => high,
            signal => {
                // Like shells, stays silent about SIGPIPE and requested ends.
                if ![SIGINT, SIGPIPE, SIGTERM].contains(&usize::from(signal)) {
                    let text = alloc::format!(": was ended by signal {signal}\n");
                    print_error(&[name.to_bytes(), text.as_bytes()].concat());
                }
                128 + signal
            }
        })
    }
}

/// Prints the files that accompany the result to standard output.
pub fn embed(environment: &Environment) -> Result<(), Errno> {
    let null = file::read(b"/dev/null")?;
    let child = Child::start(EMBED, || {
        duplicate(null.0, 0)?;
        Err(execute(BASH, &[c"bash", EMBED], &environment.addresses()))
    })?;
    child.code(EMBED).map(drop)
}

/// Prints why a program does not run; returns the exit code for it.
pub fn refused(name: &CStr, errno: Errno) -> u8 {
    let (code, reason) = match errno {
        Errno::NOENT => (NOT_FOUND, "no such file, or its interpreter is missing".into()),
        errno => (NOT_EXECUTED, alloc::format!("cannot be executed: {errno}")),
    };
    print_error(&[name.to_bytes(), b": ", reason.as_bytes(), b"\n"].concat());
    code
}

/// Writes to standard error. A failure does not matter, as the exit code reports the same.
fn print_error(text: &[u8]) {
    file::write_all(2, text).unwrap_or_default();
}

/// Ignores SIGTERM: the script gets a moment to end, and its report must still be sent.
pub fn ignore_term() -> Result<(), Errno> {
    on_term(IGNORED)
}

/// Sets the disposition of SIGTERM (rt_sigaction(2)), with no flags, restorer or mask.
fn on_term(effect: usize) -> Result<(), Errno> {
    let action = [effect, 0, 0, 0];
    sys::call(RT_SIGACTION, &[SIGTERM, sys::address(&action), 0, 8]).map(drop)
}

/// Becomes another program (execve(2)); returns only on failure.
fn execute(path: &CStr, words: &[&CStr], environment: &[usize]) -> Errno {
    let words: Vec<usize> = addresses(words.iter().copied());
    let path = path.as_ptr().expose_provenance();
    let given = [path, sys::address(&words), sys::address(environment)];
    sys::call(EXECVE, &given).err().unwrap_or(Errno::INVAL)
}

/// Returns true for a regular file of the project whose path contains no symbolic link.
fn is_plain(path: &[u8]) -> bool {
    let is_below = path.strip_prefix(PROJECT).is_some_and(|rest| rest.starts_with(b"/"));
    let ends = path.iter().enumerate().skip(PROJECT.len() + 1).filter(|(_, byte)| **byte == b'/');
    let mut folders = ends.filter_map(|(at, _)| path.get(..at));
    is_below
        && folders.all(|folder| file::has_kind(folder, "directory"))
        && file::has_kind(path, "file")
}
