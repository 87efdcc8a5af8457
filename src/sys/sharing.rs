//! A child that shares its parent's memory until it execs, as with vfork(2).
//!
//! execve(2) of a forked process frees the copied memory before the new program runs, which is half
//! of its cost. Shared memory is freed later, when the parent ends.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::Result;
use super::process::exit_now;

/// Size of the child's stack; only touched pages take memory.
const SIZE: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(256 * 1024 - 1);
/// Size of the inaccessible area below the stack: a child that overflows the stack dies there.
const GUARD: usize = 16 * 1024;

/// A stack for the child, which cannot use its parent's stack while both share the memory.
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
        // SAFETY: a new mapping at an address that the kernel chooses: no existing mapping is
        // touched.
        let lowest = unsafe { mmap_anonymous(None, SIZE, access, flags) }?;
        let stack = Self { lowest };
        // SAFETY: the first pages of the mapping just made, which are not in use yet.
        unsafe { mprotect(lowest, GUARD, ProtFlags::PROT_NONE) }?;
        Ok(stack)
    }

    /// Returns the first address above the stack. It is page-aligned, which satisfies the 16 bytes
    /// that the ABIs of x86-64 and aarch64 require.
    fn top(&self) -> *mut libc::c_void {
        self.lowest.as_ptr().wrapping_byte_add(SIZE.get())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: only this value refers to the mapping, and it is being dropped.
        let unmapped = unsafe { munmap(self.lowest, SIZE.get()) };
        // Unmapping a whole mapping cannot fail; if it did, only some memory would stay in use.
        unmapped.unwrap_or_default();
    }
}

/// Runs `body` in a child on `stack`, and waits until the child has exec'd or ended. The child
/// becomes a child of this process's parent (CLONE_PARENT of clone(2)), which reaps it.
///
/// `ends` is a connected pair of sockets that no other process has open. The second is closed here
/// at once, and in the child when it execs or ends, which hangs up the first. CLONE_VFORK would
/// wait in a state that counts towards the load: a host would show a load of 1 for each child that
/// waits for its job.
///
/// The process must be single-threaded. `body` changes the memory that this process continues to
/// use.
///
/// # Errors
/// The errno of clone(2), before `body` runs; or of close(2) or poll(2).
pub fn run<F: FnOnce()>(
    stack: &mut Stack,
    ends: (BorrowedFd<'_>, BorrowedFd<'_>),
    body: F,
) -> Result<()> {
    let (near, far) = ends;
    let mut body = Some(body);
    let mut hangs_up = libc::pollfd { fd: near.as_raw_fd(), events: 0, revents: 0 };
    let flags = libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: `stack` is writable memory that is borrowed exclusively, and `body` outlives the
    // child's use of it: this function returns when the child has left this memory. Until then this
    // process only closes a descriptor and polls, which touches nothing outside this frame.
    let pid = unsafe { libc::clone(first::<F>, stack.top(), flags, (&raw mut body).cast()) };
    Errno::result(pid)?;
    // SAFETY: takes a number. This process does not use the descriptor again.
    Errno::result(unsafe { libc::close(far.as_raw_fd()) })?;
    // SAFETY: one pollfd, which outlives the call.
    Errno::result(unsafe { libc::poll(&raw mut hangs_up, 1, -1) }).map(drop)
}

/// Runs the child's body. A panic aborts here: it cannot unwind out of an `extern "C"` function.
extern "C" fn first<F: FnOnce()>(body: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `run` passes the address of its `Option<F>`, and does not use it while this runs.
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

    /// Forks first: the child then calls `run`, so this test process becomes the parent of the
    /// sharing child.
    #[test]
    fn a_sharing_child_has_the_same_parent_and_writes_shared_memory() -> Result<()> {
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
