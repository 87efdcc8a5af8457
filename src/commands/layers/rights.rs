//! Rights of files that are applied: modes, groups and access lists (acl(5)).
//!
//! A file that replaces another has its rights, and a new one those that the directory gives to new
//! files. Where the group or the list cannot be kept, the file is closed to the users whom they
//! concern: an apply never widens rights.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{Gid, fchown};

use super::files::{Seen, is_kind};
use sys::xattr;

/// Access list of a file, and that of new files in a directory.
pub(crate) const ACCESS: &CStr = c"system.posix_acl_access";
pub(crate) const DEFAULT: &CStr = c"system.posix_acl_default";
/// Longest value of an attribute (xattr(7)).
const MAX_LIST: usize = 64 << 10;
/// Bits that new files do not get, whatever the umask is.
const NEVER_NEW: u32 = 0o022;

/// What a file of the layer says about its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Executable,
    Directory,
}

/// Rights of a file that is to be applied.
#[derive(Debug)]
pub(crate) struct Rights {
    /// Mode of the file that is replaced.
    replaced: Option<u32>,
    mask: u32,
    group: Option<u32>,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl Rights {
    /// Returns the rights of a file that is replaced.
    ///
    /// # Errors
    /// ESTALE: another file is open than the one that was seen.
    pub(crate) fn of_replaced(old: &OwnedFd, seen: &Seen) -> Result<Self, Errno> {
        let status = fstat(old)?;
        if !Seen::from(&status).is_unchanged(seen) {
            return Err(Errno::ESTALE);
        }
        Ok(Self {
            replaced: Some(status.st_mode & 0o777),
            mask: 0,
            group: Some(status.st_gid),
            access: list(old, ACCESS)?,
            default: None,
        })
    }

    /// Returns the rights in place of those of a file that cannot be read: its owner's.
    pub(crate) fn of_unreadable(seen: &Seen) -> Self {
        let replaced = Some(seen.mode & 0o700);
        Self { replaced, mask: 0, group: None, access: None, default: None }
    }

    /// Returns the rights of a new file in a directory.
    ///
    /// # Errors
    /// The errno of fstat(2) or fgetxattr(2).
    pub(crate) fn of_new(directory: &OwnedFd, umask: u32) -> Result<Self, Errno> {
        let status = fstat(directory)?;
        let default = list(directory, DEFAULT)?;
        Ok(Self {
            replaced: None,
            mask: umask | NEVER_NEW,
            group: (status.st_mode & libc::S_ISGID != 0).then_some(status.st_gid),
            access: default.clone(),
            default,
        })
    }

    /// Returns the rights that a directory has.
    ///
    /// # Errors
    /// The errno of fstat(2) or fgetxattr(2).
    pub(crate) fn of_directory(directory: &OwnedFd) -> Result<Self, Errno> {
        let status = fstat(directory)?;
        Ok(Self {
            replaced: Some(status.st_mode & 0o777),
            mask: 0,
            group: Some(status.st_gid),
            access: list(directory, ACCESS)?,
            default: list(directory, DEFAULT)?,
        })
    }

    /// Gives the rights to a file that this process has made with mode 0600 or 0700.
    ///
    /// # Errors
    /// The errno of a step other than one that only restricts more.
    pub(crate) fn give(&self, file: impl AsFd, kind: Kind) -> Result<(), Errno> {
        let made = fstat(&file)?;
        let keeps_group = match self.group.filter(|group| *group != made.st_gid) {
            Some(group) => fchown(&file, None, Some(Gid::from_raw(group))).is_ok(),
            None => true,
        };
        let asked = match kind {
            Kind::Directory => 0o777,
            // Never a set-id bit: only whether the file can be executed is the layer's.
            Kind::File | Kind::Executable => 0o666,
        };
        let mut mode = match (self.replaced, &self.access) {
            (Some(mode), _) => mode,
            // The list of the directory takes the place of the umask (acl(5)).
            (None, Some(_)) => asked,
            (None, None) => asked & !self.mask,
        };
        match &self.access {
            // The list names rights of the group that the file does not have.
            Some(_) if !keeps_group => mode &= 0o700,
            Some(list) => match xattr::set(&file, ACCESS, list) {
                Ok(()) if self.replaced.is_none() => mode &= fstat(&file)?.st_mode,
                Ok(()) => {}
                Err(_) => mode &= 0o700,
            },
            None if !keeps_group => mode = without_group(mode),
            None => {}
        }
        let mode = match kind {
            Kind::Directory => mode,
            Kind::File => mode & !0o111,
            // Users that may read the file may execute it.
            Kind::Executable => mode | (mode & 0o444) >> 2,
        };
        if let (Kind::Directory, Some(list)) = (kind, &self.default) {
            xattr::set(&file, DEFAULT, list)?;
        }
        fchmod(&file, Mode::from_bits_truncate(mode))
    }
}

/// Takes the lists from a directory that this process has made, and gives it a mode that closes it to
/// other users.
pub(crate) fn take_lists(made: &OwnedFd, closed: Mode) -> Result<(), Errno> {
    for list in [DEFAULT, ACCESS] {
        xattr::remove(made, list)?;
    }
    fchmod(made, closed)
}

/// Returns a mode for another group: members of the first group are among the other users then, and
/// the reverse, so that both get what both had.
fn without_group(mode: u32) -> u32 {
    let both = (mode >> 3) & mode & 0o007;
    (mode & 0o700) | both << 3 | both
}

/// Reads an access list; `None` if the file has only a mode.
fn list(file: &OwnedFd, name: &CStr) -> Result<Option<Vec<u8>>, Errno> {
    if name == DEFAULT && !is_kind(&fstat(file)?, libc::S_IFDIR) {
        return Ok(None);
    }
    let mut buffer = vec![0; MAX_LIST];
    Ok(xattr::get(file, name, &mut buffer)?.map(<[u8]>::to_vec))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    type Tested<T> = std::io::Result<T>;

    /// The list `user::rw-,user:4711:r--,group::---,mask::rw-,other::---` (`linux/posix_acl_xattr.h`).
    fn with_a_reader() -> Vec<u8> {
        let unnamed = u32::MAX;
        let entries: [(u16, u16, u32); 5] = [
            (0x01, 6, unnamed),
            (0x02, 4, 4711),
            (0x04, 0, unnamed),
            (0x10, 6, unnamed),
            (0x20, 0, unnamed),
        ];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(rights.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        list
    }

    struct Files(tempfile::TempDir);

    impl Files {
        /// Makes a file with a mode, and opens it.
        fn make(&self, name: &str, mode: u32) -> Tested<OwnedFd> {
            let path = self.0.path().join(name);
            fs::write(&path, "")?;
            fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
            Ok(OwnedFd::from(File::open(path)?))
        }

        fn directory(&self, name: &str, mode: u32) -> Tested<OwnedFd> {
            let path = self.0.path().join(name);
            fs::create_dir(&path)?;
            fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
            Ok(OwnedFd::from(File::open(path)?))
        }
    }

    fn mode(file: &OwnedFd) -> Tested<u32> {
        Ok(fstat(file)?.st_mode & 0o7777)
    }

    #[test]
    fn a_replaced_file_keeps_its_mode_and_its_access_list() -> Tested<()> {
        let files = Files(tempfile::tempdir()?);
        let old = files.make("old", 0o640)?;
        let new = files.make("new", 0o600)?;
        Rights::of_replaced(&old, &Seen::from(&fstat(&old)?))?.give(&new, Kind::Executable)?;
        assert_eq!(mode(&new)?, 0o750);
        xattr::set(&old, ACCESS, &with_a_reader())?;
        // The group's bits of the mode are the mask now, not rights of the group.
        assert_eq!(mode(&old)?, 0o660);
        let new = files.make("another", 0o600)?;
        Rights::of_replaced(&old, &Seen::from(&fstat(&old)?))?.give(&new, Kind::File)?;
        assert_eq!(list(&new, ACCESS)?, Some(with_a_reader()));
        Ok(())
    }

    #[test]
    fn a_new_file_is_never_open_for_writing_to_others() -> Tested<()> {
        let files = Files(tempfile::tempdir()?);
        let directory = files.directory("directory", 0o755)?;
        let rights = Rights::of_new(&directory, 0)?;
        let new = files.make("new", 0o600)?;
        rights.give(&new, Kind::File)?;
        assert_eq!(mode(&new)?, 0o644);
        let new = files.directory("below", 0o700)?;
        rights.give(&new, Kind::Directory)?;
        assert_eq!(mode(&new)?, 0o755);
        let closed = Rights::of_new(&directory, 0o077)?;
        let new = files.make("closed", 0o600)?;
        closed.give(&new, Kind::Executable)?;
        assert_eq!(mode(&new)?, 0o700);
        Ok(())
    }

    #[test]
    fn a_new_file_has_the_list_that_its_directory_gives() -> Tested<()> {
        let files = Files(tempfile::tempdir()?);
        let directory = files.directory("directory", 0o700)?;
        xattr::set(&directory, DEFAULT, &with_a_reader())?;
        let rights = Rights::of_new(&directory, 0)?;
        let new = files.make("new", 0o600)?;
        rights.give(&new, Kind::File)?;
        // As the kernel makes it: a control.
        fs::write(files.0.path().join("directory/control"), "")?;
        let control = OwnedFd::from(File::open(files.0.path().join("directory/control"))?);
        assert_eq!(list(&new, ACCESS)?, list(&control, ACCESS)?);
        assert_eq!(mode(&new)?, mode(&control)?);
        let below = files.directory("below", 0o700)?;
        rights.give(&below, Kind::Directory)?;
        assert_eq!(list(&below, DEFAULT)?, Some(with_a_reader()));
        Ok(())
    }

    #[test]
    fn a_file_of_another_group_is_closed_to_both_groups() {
        assert_eq!(without_group(0o660), 0o600);
        assert_eq!(without_group(0o604), 0o600);
        assert_eq!(without_group(0o754), 0o744);
        assert_eq!(without_group(0o644), 0o644);
    }
}
