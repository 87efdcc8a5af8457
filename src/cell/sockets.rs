//! The one directory of sockets of the host: the cell's alone, read-only, with what was granted and nothing else.
//!
//! The template has it in the hidden store, each socket in it a mount of the host's file: it can be
//! connected to, and neither removed, renamed, replaced nor given another mode. A cell has the
//! directory with all that is mounted in it: a file that the host has removed since can be bound
//! by itself no more (ENOENT), and no cell could be made.

use std::ffi::CStr;
use std::io::Write;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, mkdir};

use super::mounts::Slot;
use sys::Result;

/// The template's directory of socket directories, one for each name that [`Sockets::path`] makes.
pub const STORE: &str = "/tmp/.template/sockets";
/// The socket directory of a cell: [`model::profile::SOCKETS_DIRECTORY`].
const PLACE: &CStr = c"/tmp/mcp-sockets";
const NONE: Option<&CStr> = None;

/// Which directory of the store is a cell's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sockets {
    /// No socket is granted.
    #[default]
    None,
    /// Every cell has the operator's id: one for all.
    Shared,
    /// One for each id.
    BySlot,
}

impl Sockets {
    /// Returns the directory for `slot`, written without allocation; none where there is none.
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
    pub fn place(self) -> Option<&'static CStr> {
        (self != Self::None).then_some(PLACE)
    }

    /// Goes to the cell's directory, by which [`Sockets::show`] finds it. Before `/tmp` covers the store.
    pub fn find(self, slot: Slot) -> Result<()> {
        let mut buffer = [0; 64];
        self.path(&mut buffer, slot)?.map_or(Ok(()), chdir)
    }

    /// Shows the current directory where programs look for it.
    pub fn show(self) -> Result<()> {
        if self == Self::None {
            return Ok(());
        }
        mkdir(PLACE, Mode::S_IRWXU)?;
        mount(Some(c"."), PLACE, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
        chdir(c"/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_the_one_that_programs_are_told() {
        assert_eq!(PLACE.to_str(), Ok(model::profile::SOCKETS_DIRECTORY));
    }

    #[test]
    fn each_id_has_a_directory_of_its_own() {
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
