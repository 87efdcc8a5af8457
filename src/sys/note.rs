//! A note in memory that a process shares with one of its children.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use super::Result;

/// Size of the mapping: the kernel rounds it up to a page.
const SIZE: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN;

/// A flag that a child can set and this process can read, whatever happens to the child afterwards. It
/// cannot be cleared. Children have it only if they are cloned within [`Note::share`].
#[derive(Debug)]
pub struct Note {
    flag: NonNull<AtomicBool>,
}

impl Note {
    /// Maps a note that is not set.
    ///
    /// # Errors
    /// The errno of mmap(2) or madvise(2).
    pub fn new() -> Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses: no existing mapping is touched.
        let page = unsafe { mmap_anonymous(None, SIZE, access, MapFlags::MAP_SHARED) }?;
        let note = Self { flag: page.cast() };
        note.advise(MmapAdvise::MADV_DONTFORK)?;
        Ok(note)
    }

    /// Runs `clone`, whose children share the note.
    ///
    /// # Errors
    /// The errno of madvise(2). If it comes after `clone`, later children have the note too.
    pub fn share<T>(&self, clone: impl FnOnce() -> T) -> Result<T> {
        self.advise(MmapAdvise::MADV_DOFORK)?;
        let cloned = clone();
        self.advise(MmapAdvise::MADV_DONTFORK)?;
        Ok(cloned)
    }

    /// Sets the note. Other processes see it before anything that this process does afterwards.
    pub fn set(&self) {
        self.flag().store(true, Ordering::SeqCst);
    }

    /// Returns true if a process has set the note.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.flag().load(Ordering::SeqCst)
    }

    fn flag(&self) -> &AtomicBool {
        // SAFETY: the mapping lives as long as this value, and is zeroed and aligned as a page is. Any byte in it was
        // written as an AtomicBool.
        unsafe { self.flag.as_ref() }
    }

    fn advise(&self, advice: MmapAdvise) -> Result<()> {
        // SAFETY: the advice changes what children inherit, and not the mapping of this process.
        unsafe { madvise(self.flag.cast(), SIZE.get(), advice) }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // SAFETY: only this value refers to the mapping, and it is being dropped.
        let unmapped = unsafe { munmap(self.flag.cast(), SIZE.get()) };
        // Unmapping a whole mapping cannot fail; if it did, only some memory would stay in use.
        unmapped.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::process::{Side, clone3, exit_now, wait};

    /// Clones a child that sets `note`, and returns once it has ended.
    fn set_in_child(note: &Note) -> Result<()> {
        match clone3(0, None)? {
            Side::Child => {
                note.set();
                exit_now(0)
            }
            Side::Parent(child) => wait(&child.pidfd),
        }
    }

    #[test]
    fn a_child_that_shares_a_note_sets_it_here_and_nowhere_else() -> Result<()> {
        let shared = Note::new()?;
        let other = Note::new()?;
        assert!(!shared.is_set() && !other.is_set());
        shared.share(|| set_in_child(&shared))??;
        assert!(shared.is_set() && !other.is_set());
        Ok(())
    }

    #[test]
    fn a_child_that_was_cloned_outside_has_no_note() -> Result<()> {
        let note = Note::new()?;
        note.share(|| ())?;
        match clone3(0, None)? {
            Side::Child => {
                // SAFETY: queries the mapping of an address, without access to it.
                let advised = unsafe { madvise(note.flag.cast(), 1, MmapAdvise::MADV_NORMAL) };
                exit_now(i32::from(advised != Err(Errno::ENOMEM)))
            }
            Side::Parent(child) => {
                let ended = loop {
                    if let Some(ended) = crate::process::collect(&child.pidfd)? {
                        break ended;
                    }
                };
                assert!(ended.is_success, "the note is not mapped in such a child");
                Ok(())
            }
        }
    }
}
