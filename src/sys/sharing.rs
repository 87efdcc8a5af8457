//! A child that shares its parent's memory until it execs, as with vfork(2).
//!
//! execve(2) of a copied process frees the copy before the new program runs, which is half of its cost. Shared
//! memory is freed later, when the parent ends.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::Result;
use super::process::exit_now;

/// Bytes of the child's stack; only touched pages take memory.
const SIZE: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(256 * 1024 - 1);
/// Bytes below the stack without access: a child that runs out of stack dies there.
const GUARD: usize = 16 * 1024;

/// A stack for the child, which cannot use its parent's while both have the memory.
#[derive(Debug)]
pub struct Stack {
    lowest: NonNull<libc::c_void>,
}

impl Stack {
    /// Maps a stack.
    ///
    /// # Errors
    /// The errno of mmap(2) or mprotect(2).
    pub fn new() -> Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_STACK | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping where the kernel likes it: nothing that exists is touched.
        let lowest = unsafe { mmap_anonymous(None, SIZE, access, flags) }?;
        let stack = Self { lowest };
        // SAFETY: the first pages of the mapping just made, which nobody uses.
        unsafe { mprotect(lowest, GUARD, ProtFlags::PROT_NONE) }?;
        Ok(stack)
    }

    /// Returns the first address above the stack. It is at a page, so it has the alignment of 16 bytes that the
    /// ABIs of x86-64 and aarch64 ask for.
    fn top(&self) -> *mut libc::c_void {
        self.lowest.as_ptr().wrapping_byte_add(SIZE.get())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and goes with it.
        let unmapped = unsafe { munmap(self.lowest, SIZE.get()) };
        // It cannot fail for a whole mapping of ours; if it did, only some memory would stay in use.
        unmapped.unwrap_or_default();
    }
}

/// Runs `body` in a child on `stack`, and waits until the child has exec'd or ended. The child is
/// one of this process's parent (CLONE_PARENT of clone(2)), which reaps it.
///
/// `ends` is a connected pair of sockets that no other process has open. The second closes here at once, and in
/// the child when it execs or ends, which hangs the first one up. CLONE_VFORK would wait in a state that counts
/// as load: a host would show a load of 1 for each child that waits for its job.
///
/// Only for a process of one thread. `body` changes the memory that this process goes on with.
///
/// # Errors
/// The errno of clone(2), before `body` runs; or of close(2) or poll(2).
pub fn run<F: FnOnce()>(
    stack: &mut Stack,
    ends: (BorrowedFd<'_>, BorrowedFd<'_>),
    body: F,
) -> Result<()> {
    let mut body = Some(body);
    let mut hangs_up = libc::pollfd { fd: ends.0.as_raw_fd(), events: 0, revents: 0 };
    let flags = libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: `stack` is writable memory that nobody else uses while it is borrowed, and `body` outlives the
    // child's use of it: this function returns when the child has left this memory. Until then this
    // process only closes a descriptor and polls, which touches nothing but this frame.
    let pid = unsafe { libc::clone(first::<F>, stack.top(), flags, (&raw mut body).cast()) };
    Errno::result(pid)?;
    // SAFETY: takes a number. This process uses its copy of the descriptor no more, it only ends.
    Errno::result(unsafe { libc::close(ends.1.as_raw_fd()) })?;
    // SAFETY: one pollfd, which outlives the call.
    Errno::result(unsafe { libc::poll(&raw mut hangs_up, 1, -1) }).map(drop)
}

/// Runs the child's body. A panic aborts here: it cannot unwind out of an `extern "C"` function.
extern "C" fn first<F: FnOnce()>(body: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `run` passes the address of its `Option<F>`, and stays away from it while this runs.
    let body = unsafe { &mut *body.cast::<Option<F>>() };
    if let Some(body) = body.take() {
        body();
    }
    exit_now(0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::process::{self, Side};

    /// In a child of its own, whose child the test then is the parent of.
    #[test]
    fn a_sharing_child_is_its_makers_sibling_and_its_writes_are_seen() -> Result<()> {
        let mut stack = Stack::new()?;
        let (reader, writer) = nix::unistd::pipe()?;
        match process::clone3(0, None)? {
            Side::Child => {
                let mut seen = [0_u8; 4];
                let parent = std::os::unix::process::parent_id();
                let (ours, theirs) =
                    std::os::unix::net::UnixStream::pair().map_err(|_| Errno::EMFILE)?;
                let ran = run(&mut stack, (ours.as_fd(), theirs.as_fd()), || {
                    seen = std::os::unix::process::parent_id().to_ne_bytes();
                });
                let same = seen == parent.to_ne_bytes();
                let answer = nix::unistd::write(&writer, &[u8::from(same && ran.is_ok())]);
                exit_now(i32::from(answer.is_err()))
            }
            Side::Parent(child) => {
                drop(writer);
                let mut answer = [0; 2];
                assert_eq!(nix::unistd::read(&reader, &mut answer)?, 1);
                assert_eq!(answer, [1, 0]);
                process::wait(&child.pidfd)
            }
        }
    }
}
