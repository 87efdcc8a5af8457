//! The attachments of a job: a script and an input, either inside the frame or in sealed memfds.

use std::borrow::Cow;
use std::ffi::CStr;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::stat::fstat;

use cell::errno_of;
use model::egress::Only;
use model::wire::{Block, Carried, JobInput, Start, WireError};
use sys::memory;
use sys::socket::Received;

/// The script and the input of a job. Every memfd was checked to be sealed.
#[derive(Debug)]
pub(crate) struct Attachments {
    pub script: Option<Attachment>,
    pub stdin: Option<Attachment>,
}

/// Bytes that can no longer change.
#[derive(Debug)]
pub(crate) enum Attachment {
    Inline(Vec<u8>),
    /// A memfd that the front end has sealed and may still hold.
    Sealed(OwnedFd),
}

impl Attachment {
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// The errno of fstat(2).
    pub(crate) fn length(&self) -> Result<usize, Errno> {
        match self {
            Self::Inline(bytes) => Ok(bytes.len()),
            Self::Sealed(fd) => usize::try_from(fstat(fd)?.st_size).map_err(|_| Errno::EFBIG),
        }
    }

    /// Reads all bytes.
    ///
    /// # Errors
    /// EFBIG: there are more than `limit`. Otherwise the errno of pread(2).
    pub(crate) fn read(&self, limit: usize) -> Result<Cow<'_, [u8]>, Errno> {
        match self {
            Self::Inline(bytes) if bytes.len() > limit => Err(Errno::EFBIG),
            Self::Inline(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Sealed(fd) => {
                memory::contents(fd, limit).map(Cow::Owned).map_err(|error| errno_of(&error))
            }
        }
    }

    /// Returns the bytes as a sealed memfd for a cell; an attached memfd is passed on.
    ///
    /// # Errors
    /// The errno of dup(2), memfd_create(2) or write(2).
    pub(crate) fn file(&self, name: &CStr) -> Result<OwnedFd, Errno> {
        let file = match self {
            Self::Inline(bytes) => memory::sealed(name, bytes),
            Self::Sealed(fd) => fd.try_clone(),
        };
        file.map_err(|error| errno_of(&error))
    }
}

/// Takes the attachments of a `start` frame, and checks each descriptor.
///
/// # Errors
/// The first mistake, for people.
pub(crate) fn received(
    start: &mut Start,
    received: Received,
) -> Result<(Block, Attachments), String> {
    if !start.only.as_ref().is_none_or(Only::is_bounded) {
        return Err("a narrowing of the network that is too long".to_owned());
    }
    let got = received.fds.iter().flatten().count();
    let want = start.descriptors();
    if got != want {
        return Err(WireError::Descriptors { got, want }.to_string());
    }
    let mut fds = received.fds.into_iter().flatten();
    let sealed = match start.block {
        Carried::Inline(_) => None,
        Carried::Sealed => fds.next(),
    };
    let block = Block::open(&start.block, sealed).map_err(|error| error.to_string())?;
    let mut bytes = |carried: &mut Carried| match carried {
        // Moved out of the frame: a job may wait for a long time and needs them once.
        Carried::Inline(bytes) => Ok(Attachment::Inline(std::mem::take(bytes))),
        Carried::Sealed => {
            let fd = fds.next().filter(|fd| memory::is_sealed(fd).unwrap_or(false));
            fd.map(Attachment::Sealed).ok_or_else(|| WireError::NotSealed.to_string())
        }
    };
    let script = start.script.as_mut().map(&mut bytes).transpose()?;
    let stdin = match &mut start.stdin {
        JobInput::Bytes(carried) => Some(bytes(carried)?),
        JobInput::Empty | JobInput::Pipe | JobInput::Terminal => None,
    };
    Ok((block, Attachments { script, stdin }))
}
