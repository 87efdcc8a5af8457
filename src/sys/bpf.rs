//! Loads seccomp programs (seccomp(2)): through seccompiler, except for a filter with a listener.

use std::os::fd::{FromRawFd, OwnedFd};

use nix::errno::Errno;

use super::{Result, check};

/// One instruction of classic BPF, as the kernel has it.
pub use seccompiler::sock_filter as Instruction;

/// Adds a filter to the calling thread, and sets its no_new_privs.
pub fn load(program: &[Instruction]) -> Result<()> {
    length(program)?;
    use seccompiler::Error;
    seccompiler::apply_filter(program).map_err(|error| match error {
        Error::Prctl(error) | Error::Seccomp(error) => {
            error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
        }
        Error::Backend(_) | Error::EmptyFilter | Error::ThreadSync(_) => Errno::EINVAL,
    })
}

/// Returns the number of instructions in the width that the kernel takes.
fn length(program: &[Instruction]) -> Result<u16> {
    u16::try_from(program.len()).map_err(|_| Errno::E2BIG)
}

/// A program in the kernel's layout (sock_fprog); its instructions outlive it.
#[repr(C)]
pub(super) struct Program<'p> {
    length: u16,
    instructions: *const Instruction,
    borrowed: std::marker::PhantomData<&'p [Instruction]>,
}

impl<'p> Program<'p> {
    pub(super) fn new(program: &'p [Instruction]) -> Result<Self> {
        let borrowed = std::marker::PhantomData;
        Ok(Self { length: length(program)?, instructions: program.as_ptr(), borrowed })
    }
}

/// Adds a filter and returns the listener for its SECCOMP_RET_USER_NOTIF verdicts, which
/// seccompiler cannot do. Requires no_new_privs. A caller that waits for its answer stays killable
/// (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19).
pub fn load_with_listener(program: &[Instruction]) -> Result<OwnedFd> {
    const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV;
    let program = Program::new(program)?;
    // SAFETY: `program` is laid out as sock_fprog and points at `length` instructions laid out as
    // sock_filter; both outlive the call.
    let raw = check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as libc::c_int) })
}
