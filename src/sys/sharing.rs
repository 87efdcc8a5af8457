//! A child that has its parent's memory until it execs: what vfork(2) is for.
//!
//! execve(2) of a copied process takes the copy down before the new program runs, which is half
//! of what it costs. Of shared memory nothing is taken down; the parent does that when it ends.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::Result;
use super::process::exit_now;

/// What the child's frames may take; it is touched as far as they go.
const SIZE: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(256 * 1024 - 1);
/// Below them: a child that runs out of stack dies by it.
const GUARD: usize = 16 * 1024;

/// A stack for the child, which cannot use its parent's while both have the memory.
#[derive(Debug)]
pub struct Stack {
    lowest: NonNull<libc::c_void>,
}

impl Stack {
    /// # Errors
    /// What mmap(2) or mprotect(2) say.
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

    /// The first byte above it; the x86-64 and aarch64 ABIs want 16 bytes of alignment, and it is
    /// at a page.
    fn top(&self) -> *mut libc::c_void {
        self.lowest.as_ptr().wrapping_byte_add(SIZE.get())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and goes with it.
        let unmapped = unsafe { munmap(self.lowest, SIZE.get()) };
        // Of a whole mapping of ours it cannot fail; if it did, some memory would stay in use.
        unmapped.unwrap_or_default();
    }
}

/// Runs `body` in a child on `stack`, and waits until the child has exec'd or ended. It is a child of
/// this process's parent (CLONE_PARENT of clone(2)): that one gets its end, as it gets ours.
///
/// `ends` is a connected pair of sockets. The second closes here, and in the child when it execs or ends:
/// that is how this process knows, if nobody else has it open. Not by CLONE_VFORK, which would wait
/// without counting as asleep: a host would show a load of 1 for each child that waits for its job.
///
/// Only for a process of one thread. `body` changes the memory that this process goes on with.
///
/// # Errors
/// What clone(2) says, `body` did not run then; or close(2) or poll(2).
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

/// Where the child begins. A panic aborts here: it cannot unwind out of an `extern "C"` function.
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
                let told = nix::unistd::write(&writer, &[u8::from(same && ran.is_ok())]);
                exit_now(i32::from(told.is_err()))
            }
            Side::Parent(child) => {
                drop(writer);
                let mut told = [0; 2];
                assert_eq!(nix::unistd::read(&reader, &mut told)?, 1);
                assert_eq!(told, [1, 0]);
                process::wait(&child.pidfd)
            }
        }
    }
}
