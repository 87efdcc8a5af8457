//! The directory of granted host sockets in a cell: private and read-only, with exactly the granted
//! sockets.
//!
//! The template has it in the hidden store. Each socket in it is a mount of the host's file: it can
//! be connected to, but not removed, renamed, replaced or given another mode. A cell gets the
//! directory with all its mounts at once, because a file that the host has removed since cannot be
//! bind-mounted again (ENOENT), and no cell could be made.

use std::ffi::CStr;
use std::io::Write;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, mkdir};

use super::slot::Slot;
use sys::Result;

/// The template's directory of socket directories, one for each name that [`Sockets::path`] makes.
pub const STORE: &str = "/tmp/.template/sockets";
/// The socket directory in a cell: [`model::profile::SOCKETS_DIRECTORY`].
const MOUNT_POINT: &CStr = c"/tmp/mcp-sockets";
const NONE: Option<&CStr> = None;

/// Selects a cell's directory in the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sockets {
    /// No socket is granted.
    #[default]
    None,
    /// One directory for all: every cell has the operator's id.
    Shared,
    /// One directory for each id.
    BySlot,
}

impl Sockets {
    /// Writes the path of the directory for `slot`, without allocation; `None` if no socket is
    /// granted.
    pub fn path(self, buffer: &mut [u8; 64], slot: Slot) -> Result<Option<&CStr>> {
        let number = match self {
            Self::None => return Ok(None),
            Self::Shared => Slot::new(0),
            Self::BySlot => slot,
        };
        let mut rest = buffer.as_mut_slice();
        write!(rest, "{STORE}/{number}\0").map_err(|_| Errno::ENAMETOOLONG)?;
        CStr::from_bytes_until_nul(buffer).map(Some).map_err(|_| Errno::EINVAL)
    }

    /// Returns the path of the socket directory in the cell, if it has one.
    pub fn mount_point(self) -> Option<&'static CStr> {
        (self != Self::None).then_some(MOUNT_POINT)
    }

    /// Changes to the cell's directory, before `/tmp` covers the store. [`Sockets::show`] mounts it
    /// from there.
    pub fn find(self, slot: Slot) -> Result<()> {
        let mut buffer = [0; 64];
        self.path(&mut buffer, slot)?.map_or(Ok(()), chdir)
    }

    /// Mounts the current directory where programs expect it.
    pub fn show(self) -> Result<()> {
        if self == Self::None {
            return Ok(());
        }
        mkdir(MOUNT_POINT, Mode::S_IRWXU)?;
        mount(Some(c"."), MOUNT_POINT, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
        chdir(c"/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_point_is_the_documented_directory() {
        assert_eq!(MOUNT_POINT.to_str(), Ok(model::profile::SOCKETS_DIRECTORY));
    }

    #[test]
    fn each_id_has_a_separate_directory() {
        let path = |sockets: Sockets, slot| {
            let mut buffer = [0; 64];
            let path = sockets.path(&mut buffer, slot);
            path.map(|path| path.map(|path| path.to_string_lossy().into_owned()))
        };
        assert_eq!(path(Sockets::None, Slot::new(7)), Ok(None));
        assert_eq!(
            path(Sockets::Shared, Slot::new(7)),
            Ok(Some("/tmp/.template/sockets/0".to_owned()))
        );
        let last = format!("/tmp/.template/sockets/{}", u16::MAX);
        assert_eq!(path(Sockets::BySlot, Slot::new(u16::MAX)), Ok(Some(last)));
    }
}
