//! Children that share their parent's memory until they exec, as with vfork(2), or until they end.
//!
//! execve(2) of a forked process frees the copied memory before the new program runs, which is half
//! of its cost. Shared memory is freed later, when the parent ends.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use nix::sys::signal::Signal;

use super::Result;
use super::process::{Child, exit_now, set_death_signal, signal, wait};

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

/// Runs `body` in a child on `stack` with new user and network namespaces, and waits until it has ended. The child
/// shares the memory and the descriptors of this process, which is suspended meanwhile: descriptors that `body` opens
/// are open here afterwards.
///
/// The child has every capability in its namespaces, and those of this process nowhere. No id is mapped in its user
/// namespace, which has no process once the child has ended. The process must be single-threaded.
///
/// # Errors
/// The errno of clone(2), before `body` runs; or of waitid(2).
pub fn run_in_new_network<F: FnOnce()>(stack: &mut Stack, body: F) -> Result<()> {
    let mut body = Some(body);
    let mut pidfd: libc::c_int = -1;
    let shared = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNET;
    let flags = shared | namespaces | libc::CLONE_PIDFD | libc::SIGCHLD;
    let argument = (&raw mut body).cast();
    // SAFETY: `stack` is writable memory that is borrowed exclusively, and `body` outlives the child, which has ended
    // when the call returns (CLONE_VFORK): nothing of this process runs at the same time.
    let pid = unsafe { libc::clone(first::<F>, stack.top(), flags, argument, &raw mut pidfd) };
    Errno::result(pid)?;
    // SAFETY: the kernel stored a new descriptor there that has no other owner (CLONE_PIDFD).
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    wait(&pidfd)
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

/// A child in a new user namespace that does nothing. Dropping it kills the child and waits for its end.
#[derive(Debug)]
pub struct NamespaceHolder {
    child: Child,
    /// In use until the child has ended.
    _stack: Stack,
}

impl NamespaceHolder {
    /// Clones the child. If this process ends first, so does the child, which has copies of its descriptors.
    ///
    /// # Errors
    /// The errno of mmap(2), mprotect(2) or clone(2).
    pub fn start() -> Result<Self> {
        let stack = Stack::new()?;
        let parent = std::ptr::without_provenance_mut(nix::unistd::getpid().as_raw() as usize);
        let mut pidfd: libc::c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_NEWUSER | libc::CLONE_PIDFD | libc::SIGCHLD;
        // SAFETY: the stack is writable memory that only the child uses, and it outlives the child: dropping this value
        // waits for its end. The child makes system calls alone, by functions of the C library that write `errno` only
        // when a call fails: prctl(2) with a valid signal does not, and nothing but SIGKILL ends its wait.
        let pid = unsafe { libc::clone(pause, stack.top(), flags, parent, &raw mut pidfd) };
        let pid = Errno::result(pid)?;
        // SAFETY: the kernel stored a new descriptor there that has no other owner (CLONE_PIDFD).
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok(Self { child: Child { pid, pidfd }, _stack: stack })
    }

    /// Returns the child's pid.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.pid
    }

    /// Kills the child without waiting for its end.
    ///
    /// # Errors
    /// The errno of pidfd_send_signal(2).
    pub fn kill(&self) -> Result<()> {
        signal(&self.child.pidfd, Signal::SIGKILL)
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        // Both calls fail only if the child has ended already.
        self.kill().unwrap_or_default();
        wait(&self.child.pidfd).unwrap_or_default();
    }
}

/// Waits to be killed. The argument is the parent's pid.
extern "C" fn pause(parent: *mut libc::c_void) -> libc::c_int {
    let tied = set_death_signal(Signal::SIGKILL);
    if tied.is_err() || nix::unistd::getppid().as_raw() as usize != parent.addr() {
        exit_now(1);
    }
    // Not pause(3), which may be a point of cancellation and change this thread's data.
    loop {
        // SAFETY: no descriptors and no time limit: waits until a signal ends the process.
        unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                std::ptr::null_mut::<libc::pollfd>(),
                0,
                std::ptr::null::<libc::timespec>(),
                std::ptr::null::<libc::sigset_t>(),
                0,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::process::{self, Side};

    #[test]
    fn a_holder_has_another_user_namespace_until_it_is_dropped() -> Result<()> {
        let link = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user")).ok();
        // Some machines refuse namespaces to ordinary users.
        let holder = match NamespaceHolder::start() {
            Err(Errno::EPERM | Errno::ENOSPC) => return Ok(()),
            started => started?,
        };
        let pid = holder.pid().to_string();
        let inside = link(&pid);
        assert!(inside.is_some() && inside != link("self"));
        drop(holder);
        assert_eq!(link(&pid), None);
        Ok(())
    }

    #[test]
    fn a_network_is_left_by_its_maker_and_owned_by_a_namespace_without_a_process() -> Result<()> {
        use nix::fcntl::{OFlag, open};
        use nix::sys::stat::{Mode, fstat};

        let mut stack = Stack::new()?;
        let network =
            || open("/proc/self/ns/net", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
        let mut made = None;
        let result = run_in_new_network(&mut stack, || {
            made = Some(crate::net::loopback_up().and_then(|()| network()));
        });
        match result {
            // Some machines refuse namespaces to ordinary users.
            Err(Errno::EPERM | Errno::ENOSPC) => return Ok(()),
            result => result?,
        }
        let made = made.expect("the child has run")?;
        assert_ne!(fstat(&made)?.st_ino, fstat(&network()?)?.st_ino);
        Ok(())
    }

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
