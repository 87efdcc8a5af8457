//! The process of the script.

use alloc::vec::Vec;
use core::ffi::CStr;

use crate::environment::{Environment, addresses};
use crate::errno::Errno;
use crate::file::{self, OpenFile};
use crate::places::{Files, PROJECT, duplicate};
use crate::sys::{self, number};

/// The shell of every cell.
const BASH: &CStr = c"/bin/bash";
/// Scripts of cofferdam's own.
const POLICY: &CStr = c"/etc/cofferdam/lib/policy.sh";
const PROVIDER: &CStr = c"/etc/cofferdam/lib/provider.sh";
const EMBED: &CStr = c"/etc/cofferdam/lib/embed.sh";

const SIGINT: usize = 2;
const SIGPIPE: usize = 13;
const SIGTERM: usize = 15;
const SIGCHLD: usize = 17;
/// SIG_DFL and SIG_IGN (signal(7)).
const DEFAULT: usize = 0;
const IGNORED: usize = 1;
/// The child has a descriptor that can be waited for (clone(2)).
const CLONE_PIDFD: usize = 0x1000;
/// Codes of a program that cannot be executed and of one that is not there, as shells have them.
const NOT_EXECUTED: u8 = 126;
const NOT_FOUND: u8 = 127;

#[cfg(target_arch = "x86_64")]
const EXECVE: usize = 59;
#[cfg(target_arch = "x86_64")]
const RT_SIGACTION: usize = 13;
#[cfg(target_arch = "aarch64")]
const EXECVE: usize = 221;
#[cfg(target_arch = "aarch64")]
const RT_SIGACTION: usize = 134;

/// What is to be run.
pub enum Launch<'w> {
    /// A script of the project, by itself.
    Program(&'w CStr),
    /// A script of the project, by bash.
    Bash(&'w CStr),
    /// The project's decision about a call.
    Policy,
    /// The reading of a resource, which a variable names.
    Provider,
}

/// Streams of the script.
pub struct Streams {
    input: OpenFile,
    output: OpenFile,
}

/// A script that runs.
pub struct Child {
    pid: usize,
    /// Becomes readable when it ends (pidfd_open(2)).
    pub end: OpenFile,
}

impl<'w> Launch<'w> {
    /// Reads the words of the runner.
    pub fn of(words: &[&'w CStr]) -> Result<Self, Errno> {
        match words {
            [kind, path] if kind.to_bytes() == b"program" => Ok(Self::Program(path)),
            [kind, path] if kind.to_bytes() == b"bash" => Ok(Self::Bash(path)),
            [kind] if kind.to_bytes() == b"policy" => Ok(Self::Policy),
            [kind] if kind.to_bytes() == b"provider" => Ok(Self::Provider),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns true for a script that is not the regular file it was when the project was read: whatever a link leads to
    /// now is not believed.
    pub fn is_rejected(&self) -> bool {
        match self {
            Self::Program(path) | Self::Bash(path) => !is_plain(path.to_bytes()),
            Self::Policy | Self::Provider => false,
        }
    }

    /// Returns the name of the script, for messages.
    pub fn name(&self) -> &'w CStr {
        match self {
            Self::Program(path) | Self::Bash(path) => path,
            Self::Policy => POLICY,
            Self::Provider => PROVIDER,
        }
    }

    /// Starts it.
    pub fn start(&self, environment: &Environment, streams: Streams) -> Result<Child, Errno> {
        Child::start(self.name(), || {
            duplicate(streams.input.0, 0)?;
            match self {
                // It answers on descriptor 3, so that nothing that a hook prints is an answer.
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
                    // Do as shells with a script that does not name what reads it.
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
    pub fn of(files: &Files) -> Result<Self, Errno> {
        let (input, output) = (file::read(b"/dev/null")?, files.appended()?);
        file::wait_to_read(&input)?;
        file::wait_to_append(&output)?;
        Ok(Self { input, output })
    }
}

impl Child {
    /// Forks a child that becomes another program (clone(2)). `become_it` returns only why it could not.
    fn start(name: &CStr, become_it: impl FnOnce() -> Result<(), Errno>) -> Result<Self, Errno> {
        let mut end = [0_i32];
        match sys::call(number::CLONE, &[SIGCHLD | CLONE_PIDFD, 0, sys::place(&mut end)])? {
            0 => {
                let done = at_term(DEFAULT).and_then(|()| become_it());
                sys::exit(done.err().map_or(NOT_EXECUTED, |errno| refused(name, errno)))
            }
            pid => {
                let [end] = end;
                let end = usize::try_from(end).map_err(|_| Errno::INVAL)?;
                Ok(Self { pid, end: OpenFile(end) })
            }
        }
    }

    /// Waits for its end; returns its code as shells have it (wait4(2)), and says by which signal it ended.
    pub fn code(&self, name: &CStr) -> Result<u8, Errno> {
        let mut status = [0_i32];
        loop {
            match sys::call(number::WAIT4, &[self.pid, sys::place(&mut status), 0, 0]) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let [[low, high, ..]] = status.map(i32::to_le_bytes);
        Ok(match low & 0x7f {
            0 => high,
            signal => {
                // Say nothing of a closed pipe and of an end that was asked for, as shells do.
                if ![SIGINT, SIGPIPE, SIGTERM].contains(&usize::from(signal)) {
                    let text = alloc::format!(": was ended by signal {signal}\n");
                    say(&[name.to_bytes(), text.as_bytes()].concat());
                }
                128 + signal
            }
        })
    }
}

/// Prints the files beside the result to standard output.
pub fn embed(environment: &Environment) -> Result<(), Errno> {
    let null = file::read(b"/dev/null")?;
    let child = Child::start(EMBED, || {
        duplicate(null.0, 0)?;
        Err(execute(BASH, &[c"bash", EMBED], &environment.addresses()))
    })?;
    child.code(EMBED).map(drop)
}

/// Says why a program does not run; returns the code for that.
pub fn refused(name: &CStr, errno: Errno) -> u8 {
    let (code, why) = match errno {
        Errno::NOENT => {
            (NOT_FOUND, "there is no such file, or none that its first line names".into())
        }
        errno => (NOT_EXECUTED, alloc::format!("cannot be executed: {errno}")),
    };
    say(&[name.to_bytes(), b": ", why.as_bytes(), b"\n"].concat());
    code
}

/// Writes to standard error. Where nobody reads it, the code of the end tells as much.
fn say(text: &[u8]) {
    file::write_all(2, text).unwrap_or_default();
}

/// Outlives the end that a script is asked for: it has a moment to come to it, and its report is still sent.
pub fn outlive_term() -> Result<(), Errno> {
    at_term(IGNORED)
}

/// Sets what SIGTERM does to the process (rt_sigaction(2)): flags, restorer and mask are none.
fn at_term(effect: usize) -> Result<(), Errno> {
    let action = [effect, 0, 0, 0];
    sys::call(RT_SIGACTION, &[SIGTERM, sys::address(&action), 0, 8]).map(drop)
}

/// Becomes another program (execve(2)); returns why not.
fn execute(path: &CStr, words: &[&CStr], environment: &[usize]) -> Errno {
    let words: Vec<usize> = addresses(words.iter().copied());
    let path = path.as_ptr().expose_provenance();
    let given = [path, sys::address(&words), sys::address(environment)];
    sys::call(EXECVE, &given).err().unwrap_or(Errno::INVAL)
}

/// Returns true for a regular file of the project that no link is on the way to.
fn is_plain(path: &[u8]) -> bool {
    let is_below = path.strip_prefix(PROJECT).is_some_and(|rest| rest.starts_with(b"/"));
    let ends = path.iter().enumerate().skip(PROJECT.len() + 1).filter(|(_, byte)| **byte == b'/');
    let mut folders = ends.filter_map(|(at, _)| path.get(..at));
    is_below && folders.all(|folder| file::is(folder, "directory")) && file::is(path, "file")
}
