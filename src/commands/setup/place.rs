//! The place of a client's file, held from the look at it until the new text is written: a directory that is swapped for a
//! link meanwhile leads nowhere else.

use std::ffi::{CString, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat};
use sys::lookup::{self, Follow};

/// Longest file that is read, in bytes (1 MiB).
const MAX_BYTES: u64 = 1 << 20;

/// A file that may not be there yet.
pub(super) struct HeldPlace {
    /// The nearest directory that is there.
    directory: OwnedFd,
    /// Directories below it that are to be made.
    missing: Vec<OsString>,
    name: OsString,
}

/// A text, and the file that it was read from.
pub(super) struct HeldText {
    pub text: String,
    metadata: Metadata,
}

impl HeldPlace {
    /// Holds the place of a path without links.
    ///
    /// # Errors
    /// ELOOP where a link came to be on the way, or another errno of openat2(2).
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(Errno::EISDIR)?.to_owned();
        let mut directory = path.parent().ok_or(Errno::EISDIR)?;
        let mut missing = Vec::new();
        loop {
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
            let found = CString::new(directory.as_os_str().as_bytes())?;
            match lookup::open(nix::fcntl::AT_FDCWD, &found, flags, 0, Follow::Nothing) {
                Ok(directory) => return Ok(Self { directory, missing, name }),
                Err(Errno::ENOENT) => {
                    missing.insert(0, directory.file_name().ok_or(Errno::ENOENT)?.to_owned());
                    directory = directory.parent().ok_or(Errno::ENOENT)?;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// An error of reading, and a file that is no regular one, too long, or no UTF-8.
    pub(super) fn read(&self) -> io::Result<Option<HeldText>> {
        if !self.missing.is_empty() {
            return Ok(None);
        }
        let name = CString::new(self.name.as_bytes())?;
        // Opening a FIFO for reading would wait for a writer.
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = match lookup::open(&self.directory, &name, flags, 0, Follow::Beneath) {
            Err(Errno::ENOENT) => return Ok(None),
            opened => File::from(opened?),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() > MAX_BYTES {
            return Err(io::Error::other("it is no regular file of at most 1M"));
        }
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(Some(HeldText { text, metadata }))
    }

    /// Writes a text in place of the old one, whole or not at all. It has the owner and the mode of the old file; a new
    /// one belongs to whom its directory belongs to.
    ///
    /// # Errors
    /// An error of writing; then the old file is as it was.
    pub(super) fn write(self, text: &str, old: Option<&HeldText>) -> io::Result<()> {
        let Self { mut directory, missing, name } = self;
        let above = File::from(directory.try_clone()?).metadata()?;
        for below in &missing {
            let below = CString::new(below.as_bytes())?;
            mkdirat(&directory, below.as_c_str(), Mode::from_bits_truncate(0o777))?;
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
            directory = lookup::open(&directory, &below, flags, 0, Follow::Beneath)?;
            if is_root() {
                give(directory.as_fd(), &above)?;
            }
        }
        // The magic link leads to the directory that is held, wherever its name leads now.
        let held = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let mut builder = tempfile::Builder::new();
        if old.is_none() {
            builder.permissions(Permissions::from_mode(0o666));
        }
        let mut file = builder.tempfile_in(&held)?;
        file.write_all(text.as_bytes())?;
        match old {
            None if is_root() => give(file.as_file(), &above)?,
            None => {}
            Some(HeldText { metadata, .. }) => {
                // Give the group nothing where the old one cannot be kept.
                let kept = give(file.as_file(), metadata).is_ok();
                let mode = metadata.mode() & if kept { 0o777 } else { 0o707 };
                file.as_file().set_permissions(Permissions::from_mode(mode))?;
            }
        }
        file.as_file().sync_all()?;
        file.persist(held.join(name)).map_err(|error| error.error)?;
        Ok(())
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Gives a file to the owner and group of another.
fn give(file: impl AsFd, like: &Metadata) -> io::Result<()> {
    let own = File::from(file.as_fd().try_clone_to_owned()?).metadata()?;
    let uid = (own.uid() != like.uid()).then_some(like.uid());
    let gid = (own.gid() != like.gid()).then_some(like.gid());
    match (uid, gid) {
        (None, None) => Ok(()),
        (uid, gid) => fchown(file, uid, gid),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_that_is_swapped_for_a_link_is_still_the_one_that_was_seen() -> io::Result<()> {
        let all = tempfile::tempdir()?;
        let [own, victim, away] = ["own", "victim", "away"].map(|name| all.path().join(name));
        std::fs::create_dir(&own)?;
        std::fs::create_dir(&victim)?;
        let place = HeldPlace::new(&own.join("below/file"))?;
        std::fs::rename(&own, &away)?;
        symlink(&victim, &own)?;
        place.write("text", None)?;
        assert_eq!(std::fs::read_dir(&victim)?.count(), 0);
        assert_eq!(std::fs::read_to_string(away.join("below/file"))?, "text");
        // The positive control: what is a link from the start is seen as one.
        let errno = HeldPlace::new(&own.join("below/file")).err().map(|error| error.raw_os_error());
        assert_eq!(errno, Some(Some(libc::ELOOP)));
        Ok(())
    }

    #[test]
    fn a_file_that_is_there_keeps_its_mode_and_no_fifo_is_waited_for() -> io::Result<()> {
        let all = tempfile::tempdir()?;
        let file = all.path().join("file");
        std::fs::write(&file, "old")?;
        std::fs::set_permissions(&file, Permissions::from_mode(0o640))?;
        let place = HeldPlace::new(&file)?;
        let old = place.read()?;
        place.write("new", old.as_ref())?;
        assert_eq!(std::fs::read_to_string(&file)?, "new");
        assert_eq!(file.metadata()?.permissions().mode() & 0o777, 0o640);
        let fifo = all.path().join("fifo");
        nix::unistd::mkfifo(&fifo, Mode::from_bits_truncate(0o600))?;
        let refused = HeldPlace::new(&fifo)?.read().err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("it is no regular file of at most 1M"));
        Ok(())
    }
}
