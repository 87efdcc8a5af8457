//! Files of one call and its input. The names are those that the script's environment has (`launch.rs` of `project`).

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::file::{self, OpenFile};
use crate::sys::{self, number};

/// Directory of the project.
pub const PROJECT: &[u8] = b"/workspace";
/// File for the arguments of a call that are too long for a variable.
pub const ARGUMENTS: &[u8] = b"/tmp/.mcp-arguments";
/// File in which a script leaves its error.
pub const ERROR: &[u8] = b"/tmp/.mcp-error";
/// File in which a script names files beside its result.
pub const RESOURCES: &[u8] = b"/tmp/.mcp-resources";
/// File in which a script asks the user something, and the one with the answer.
pub const QUESTION: &[u8] = b"/tmp/.mcp-elicit-request";
pub const ANSWER: &[u8] = b"/tmp/.mcp-elicit-response";
/// File that is there once the call is cancelled.
pub const CANCEL: &[u8] = b"/tmp/.mcp-cancel";
/// Beginning of the paths of downloads.
pub const DOWNLOAD: &[u8] = b"/tmp/.mcp-download-";
const DEBUG: &[u8] = b"/tmp/.mcp-debug";
const OUTPUT: &[u8] = b"/tmp/.mcp-output";
/// File that a script writes its stream to where it cannot open the descriptor: nobody reads it.
const STREAM: &[u8] = b"/tmp/.mcp-stream";

/// Descriptor of the stream in a script, and its name. It is inherited: where names are guarded, no other process's can be
/// opened.
const STREAM_NUMBER: usize = 203;
const STREAM_NAME: &[u8] = b"/dev/fd/203";

/// Bytes of the longest head of the input.
const HEAD_BYTES: usize = 256;
/// Bytes that are read at once.
pub const ROOM: usize = 64 << 10;

#[cfg(target_arch = "x86_64")]
mod more {
    pub const DUP3: usize = 292;
    pub const UMASK: usize = 95;
}

#[cfg(target_arch = "aarch64")]
mod more {
    pub const DUP3: usize = 24;
    pub const UMASK: usize = 166;
}

/// Files that are open while the script runs.
pub struct Files {
    /// Output of the script, for reading.
    pub output: OpenFile,
}

impl Files {
    /// Makes the files of the call, empty.
    pub fn make() -> Result<Self, Errno> {
        for place in [ERROR, RESOURCES, DEBUG, OUTPUT] {
            file::write(place, b"")?;
        }
        Ok(Self { output: file::read(OUTPUT)? })
    }

    /// Opens the output of the script for its own writing, behind what is there.
    pub fn appended(&self) -> Result<OpenFile, Errno> {
        file::append(OUTPUT)
    }

    pub fn keep_arguments(&self, arguments: &[u8]) -> Result<(), Errno> {
        file::write(ARGUMENTS, arguments)
    }

    pub fn keep_error(&self, error: &[u8]) -> Result<(), Errno> {
        file::write(ERROR, error)
    }
}

/// First line of the input.
pub struct Head {
    /// Word that begins the report.
    pub mark: Vec<u8>,
    /// Bytes of the tool's description.
    pub metadata: usize,
    /// Bytes of the arguments.
    pub arguments: usize,
}

/// Standard input before the script runs.
pub struct Input {
    read: Vec<u8>,
}

impl Input {
    pub fn new() -> Self {
        Self { read: Vec::new() }
    }

    /// Reads the first line.
    pub fn head(&mut self) -> Result<Head, Errno> {
        let end = loop {
            match self.read.iter().position(|byte| *byte == b'\n') {
                Some(end) => break end,
                None if self.read.len() > HEAD_BYTES => return Err(Errno::INVAL),
                None => self.more()?,
            }
        };
        let line: Vec<u8> = self.read.drain(..=end).collect();
        let text = core::str::from_utf8(&line).map_err(|_| Errno::INVAL)?;
        let mut words = text.trim_end().split(' ');
        let mark = words.next().filter(|mark| !mark.is_empty()).ok_or(Errno::INVAL)?;
        let mut length = || words.next().and_then(|word| word.parse().ok()).ok_or(Errno::INVAL);
        let (metadata, arguments) = (length()?, length()?);
        Ok(Head { mark: mark.as_bytes().to_vec(), metadata, arguments })
    }

    /// Reads so many bytes.
    pub fn take(&mut self, count: usize) -> Result<Vec<u8>, Errno> {
        while self.read.len() < count {
            self.more()?;
        }
        Ok(self.read.drain(..count).collect())
    }

    /// Returns what was read behind that.
    pub fn rest(self) -> Vec<u8> {
        self.read
    }

    /// Reads what there is. The end of the input is an error here: nothing that is read may be missing.
    fn more(&mut self) -> Result<(), Errno> {
        let mut room = [0; ROOM];
        loop {
            match sys::read(0, &mut room) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(count) => {
                    self.read.extend_from_slice(room.get(..count).unwrap_or_default());
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Has files of this call be the script's user's alone (umask(2)).
pub fn keep_from_others() -> Result<(), Errno> {
    sys::call(more::UMASK, &[0o077]).map(drop)
}

/// Makes the project the working directory.
pub fn enter_project() -> Result<(), Errno> {
    sys::call(number::CHDIR, &[sys::address(b"/workspace\0")]).map(drop)
}

/// Makes the stream of the script out of the output of this program, and returns its name.
pub fn stream() -> Result<&'static [u8], Errno> {
    duplicate(1, STREAM_NUMBER)?;
    Ok(if file::is_writable(STREAM_NAME)? { STREAM_NAME } else { STREAM })
}

/// Makes a descriptor another number, for programs that are executed too (dup3(2)).
pub fn duplicate(descriptor: usize, number: usize) -> Result<(), Errno> {
    sys::call(more::DUP3, &[descriptor, number, 0]).map(drop)
}
