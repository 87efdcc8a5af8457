//! Loading seccomp programs (seccomp(2)).

use std::os::fd::{FromRawFd, OwnedFd};

use super::{Result, check};

/// One instruction of classic BPF, as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

fn seccomp(program: &[Instruction], flags: libc::c_ulong) -> Result<libc::c_long> {
    let program = Program {
        length: u16::try_from(program.len()).map_err(|_| nix::errno::Errno::E2BIG)?,
        instructions: program.as_ptr(),
    };
    // SAFETY: `program` is laid out as sock_fprog and points at `length` instructions laid out as
    // sock_filter; both outlive the call.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })
}

/// Adds a filter to the calling thread; needs no_new_privs.
pub fn load(program: &[Instruction]) -> Result<()> {
    seccomp(program, 0).map(drop)
}

/// Adds a filter and returns the listener for its SECCOMP_RET_USER_NOTIF verdicts.
/// Waits of a notified call are killable (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19).
pub fn load_with_listener(program: &[Instruction]) -> Result<OwnedFd> {
    const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
    let raw = seccomp(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as libc::c_int) })
}
