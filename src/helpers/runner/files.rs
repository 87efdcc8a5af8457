//! Files and input of one call. The paths match the script's environment (`launch.rs` of
//! `project`).

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::file::{self, OpenFile};
use crate::sys::{self, number};

/// Directory of the project.
pub const PROJECT: &[u8] = b"/workspace";
/// Arguments of a call that are too long for a variable.
pub const ARGUMENTS: &[u8] = b"/tmp/.mcp-arguments";
/// Error of the script.
pub const ERROR: &[u8] = b"/tmp/.mcp-error";
/// List of files that accompany the script's result.
pub const RESOURCES: &[u8] = b"/tmp/.mcp-resources";
/// Question of the script to the user.
pub const QUESTION: &[u8] = b"/tmp/.mcp-elicit-request";
/// The user's answer to it.
pub const ANSWER: &[u8] = b"/tmp/.mcp-elicit-response";
/// Exists once the call is cancelled.
pub const CANCEL: &[u8] = b"/tmp/.mcp-cancel";
/// Beginning of the paths of downloads.
pub const DOWNLOAD: &[u8] = b"/tmp/.mcp-download-";
const DEBUG: &[u8] = b"/tmp/.mcp-debug";
const OUTPUT: &[u8] = b"/tmp/.mcp-output";
/// Stream file for a script that cannot open the descriptor; it is never read.
const STREAM: &[u8] = b"/tmp/.mcp-stream";

/// Descriptor of the stream in the script, which inherits it: where names are guarded, a script
/// cannot open the descriptors of another process.
const STREAM_NUMBER: usize = 203;
const STREAM_NAME: &[u8] = b"/dev/fd/203";

/// Maximum size of the input's first line.
const MAX_HEAD_BYTES: usize = 256;
/// Number of bytes read at once.
pub const READ_BYTES: usize = 64 << 10;

mod more {
    crate::by_architecture! {
        DUP3 292 24,
        UMASK 95 166,
    }
}

/// Files that are open while the script runs.
pub struct Files {
    /// Output of the script, opened for reading.
    pub output: OpenFile,
}

impl Files {
    /// Creates the files of the call, empty.
    pub fn make() -> Result<Self, Errno> {
        for path in [ERROR, RESOURCES, DEBUG, OUTPUT] {
            file::write(path, b"")?;
        }
        Ok(Self { output: file::read(OUTPUT)? })
    }

    /// Opens the output file for the script to append to.
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
    /// Length of the tool's description.
    pub metadata: usize,
    /// Length of the arguments.
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
                None if self.read.len() > MAX_HEAD_BYTES => return Err(Errno::INVAL),
                None => self.read_more()?,
            }
        };
        let line: Vec<u8> = self.read.drain(..=end).collect();
        let text = core::str::from_utf8(&line).map_err(|_| Errno::INVAL)?;
        let mut words = text.trim_end().split(' ');
        let mark = words.next().filter(|mark| !mark.is_empty()).ok_or(Errno::INVAL)?;
        let mut length = || words.next().and_then(|word| word.parse().ok()).ok_or(Errno::INVAL);
        let metadata = length()?;
        let arguments = length()?;
        Ok(Head { mark: mark.as_bytes().to_vec(), metadata, arguments })
    }

    /// Reads exactly `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<Vec<u8>, Errno> {
        while self.read.len() < count {
            self.read_more()?;
        }
        Ok(self.read.drain(..count).collect())
    }

    /// Returns the bytes read after those that were taken.
    pub fn into_rest(self) -> Vec<u8> {
        self.read
    }

    /// Reads available bytes. The end of the input is an error here, as all of it is required.
    fn read_more(&mut self) -> Result<(), Errno> {
        let mut room = [0; READ_BYTES];
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

/// Makes new files accessible to the script's user only (umask(2)).
pub fn keep_from_others() -> Result<(), Errno> {
    sys::call(more::UMASK, &[0o077]).map(drop)
}

/// Changes to the project's directory.
pub fn enter_project() -> Result<(), Errno> {
    sys::call(number::CHDIR, &[sys::address(b"/workspace\0")]).map(drop)
}

/// Makes the script's stream from standard output, and returns its name.
pub fn stream() -> Result<&'static [u8], Errno> {
    duplicate(1, STREAM_NUMBER)?;
    Ok(if file::is_writable(STREAM_NAME)? { STREAM_NAME } else { STREAM })
}

/// Copies a descriptor to another number, open across exec (dup3(2)).
pub fn duplicate(descriptor: usize, number: usize) -> Result<(), Errno> {
    sys::call(more::DUP3, &[descriptor, number, 0]).map(drop)
}
