//! System calls by number, and memory by address: the only `unsafe` code of the probe.
//!
//! An attempt may make any call with any arguments: that is the purpose of the probe. It is sound
//! because the probe has one thread, holds no trusted data, and lets the kernel write only into
//! buffers that [`crate::words`] made.
#![allow(unsafe_code, reason = "raw system calls are the helper's purpose; this module holds them")]

#[cfg(freestanding)]
use core::ffi::CStr;

use crate::errno::Errno;

/// The kernel's answer to a call.
pub type Result<T> = core::result::Result<T, Errno>;

/// Numbers of the calls that the program makes by name (syscalls(2)).
#[cfg(target_arch = "x86_64")]
pub mod number {
    pub const CLONE: usize = 56;
    pub const CLOSE: usize = 3;
    pub const CONNECT: usize = 42;
    pub const BIND: usize = 49;
    pub const LISTEN: usize = 50;
    pub const GETSOCKNAME: usize = 51;
    pub const DUP: usize = 32;
    pub const EXIT_GROUP: usize = 231;
    pub const FCNTL: usize = 72;
    pub const GETDENTS64: usize = 217;
    pub const KILL: usize = 62;
    pub const MADVISE: usize = 28;
    pub const MEMFD_CREATE: usize = 319;
    pub const MKDIRAT: usize = 258;
    pub const CHDIR: usize = 80;
    pub const MLOCK: usize = 149;
    pub const MMAP: usize = 9;
    pub const MUNMAP: usize = 11;
    pub const MPROTECT: usize = 10;
    pub const NANOSLEEP: usize = 35;
    pub const OPENAT: usize = 257;
    pub const PIPE2: usize = 293;
    pub const PPOLL: usize = 271;
    pub const PRLIMIT64: usize = 302;
    pub const READ: usize = 0;
    pub const SENDTO: usize = 44;
    pub const SETITIMER: usize = 38;
    pub const SETSOCKOPT: usize = 54;
    pub const SHMAT: usize = 30;
    pub const SHMCTL: usize = 31;
    pub const SHMGET: usize = 29;
    pub const SOCKET: usize = 41;
    pub const SOCKETPAIR: usize = 53;
    pub const UNLINKAT: usize = 263;
    pub const WAIT4: usize = 61;
    pub const WRITE: usize = 1;
    pub const CLONE3: usize = 435;
}

#[cfg(target_arch = "aarch64")]
pub mod number {
    pub const CLONE: usize = 220;
    pub const CLOSE: usize = 57;
    pub const CONNECT: usize = 203;
    pub const BIND: usize = 200;
    pub const LISTEN: usize = 201;
    pub const GETSOCKNAME: usize = 204;
    pub const DUP: usize = 23;
    pub const EXIT_GROUP: usize = 94;
    pub const FCNTL: usize = 25;
    pub const GETDENTS64: usize = 61;
    pub const KILL: usize = 129;
    pub const MADVISE: usize = 233;
    pub const MEMFD_CREATE: usize = 279;
    pub const MKDIRAT: usize = 34;
    pub const CHDIR: usize = 49;
    pub const MLOCK: usize = 228;
    pub const MUNMAP: usize = 215;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const NANOSLEEP: usize = 101;
    pub const OPENAT: usize = 56;
    pub const PIPE2: usize = 59;
    pub const PPOLL: usize = 73;
    pub const PRLIMIT64: usize = 261;
    pub const READ: usize = 63;
    pub const SENDTO: usize = 206;
    pub const SETITIMER: usize = 103;
    pub const SETSOCKOPT: usize = 208;
    pub const SHMAT: usize = 196;
    pub const SHMCTL: usize = 195;
    pub const SHMGET: usize = 194;
    pub const SOCKET: usize = 198;
    pub const SOCKETPAIR: usize = 199;
    pub const UNLINKAT: usize = 35;
    pub const WAIT4: usize = 260;
    pub const WRITE: usize = 64;
    pub const CLONE3: usize = 435;
}

/// Makes one system call. Missing arguments are zero.
pub fn call(number: usize, given: &[usize]) -> Result<usize> {
    let mut all = [0; 6];
    for (slot, argument) in all.iter_mut().zip(given) {
        *slot = *argument;
    }
    let raw = enter(number, all);
    // The last page of addresses holds negated errors (syscall(2)).
    if raw > usize::MAX - 4096 { Err(Errno(raw.wrapping_neg())) } else { Ok(raw) }
}

#[cfg(target_arch = "x86_64")]
fn enter(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let answer;
    // SAFETY: the registers are those of syscall(2), rcx and r11 are declared clobbered, and memory
    // is assumed to be written; the effect of the call itself is the attempt (see the top of this
    // file).
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number => answer, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _);
    }
    answer
}

#[cfg(target_arch = "aarch64")]
fn enter(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let answer;
    // SAFETY: the registers are those of syscall(2), and memory is assumed to be written; the
    // effect of the call itself is the attempt (see the top of this file).
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a => answer, in("x1") b,
            in("x2") c, in("x3") d, in("x4") e, in("x5") f);
    }
    answer
}

/// Calls the 32-bit entry, `int 0x80`, without arguments.
#[cfg(target_arch = "x86_64")]
pub fn call_32(number: usize) -> Result<usize> {
    let raw: usize;
    // SAFETY: the entry preserves every register but rax and, on some kernels, r8 to r11, which are
    // declared clobbered; the arguments are the current register contents, as the attempt intends.
    unsafe {
        core::arch::asm!("int 0x80", inlateout("rax") number => raw, lateout("r8") _,
            lateout("r9") _, lateout("r10") _, lateout("r11") _);
    }
    if raw > usize::MAX - 4096 { Err(Errno(raw.wrapping_neg())) } else { Ok(raw) }
}

/// Fails: this processor has no such entry.
#[cfg(not(target_arch = "x86_64"))]
pub fn call_32(_: usize) -> Result<usize> {
    Err(Errno::NOSYS)
}

/// Ends the process (exit_group(2)).
pub fn exit(code: u8) -> ! {
    loop {
        // exit_group does not return.
        call(number::EXIT_GROUP, &[usize::from(code)]).map(drop).unwrap_or_default();
    }
}

/// Writes to a descriptor (write(2)).
pub fn write(descriptor: usize, bytes: &[u8]) -> Result<usize> {
    call(number::WRITE, &[descriptor, address(bytes), bytes.len()])
}

/// Reads from a descriptor (read(2)).
pub fn read(descriptor: usize, bytes: &mut [u8]) -> Result<usize> {
    call(number::READ, &[descriptor, address_mut(bytes), bytes.len()])
}

/// Returns the address of a value that the kernel reads.
pub fn address<T>(of: &[T]) -> usize {
    of.as_ptr().expose_provenance()
}

/// Returns the address of a value that the kernel may write to.
pub fn address_mut<T>(of: &mut [T]) -> usize {
    of.as_mut_ptr().expose_provenance()
}

/// Writes one byte into memory from mmap(2) or shmat(2).
pub fn touch(address: usize) {
    let byte = core::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: callers pass addresses inside a writable mapping that they have just made and keep.
    unsafe { byte.write_volatile(1) }
}

/// Returns a word of the initial stack.
#[cfg(freestanding)]
pub fn word_at(address: usize) -> usize {
    // SAFETY: only called for the argument count and the two vectors, which execve(2) put there.
    unsafe { core::ptr::with_exposed_provenance::<usize>(address).read() }
}

/// Returns an argument or an environment variable of the program.
#[cfg(freestanding)]
pub fn text_at(address: usize) -> &'static CStr {
    // SAFETY: execve(2) NUL-terminates each of them, and they live as long as the program.
    unsafe { CStr::from_ptr(core::ptr::with_exposed_provenance(address)) }
}

/// Functions that compiled code expects from a C library.
#[cfg(freestanding)]
mod memory {
    /// Copies bytes (memcpy(3)).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
        for at in 0..count {
            // SAFETY: both are valid for `count` bytes by the contract of memcpy(3).
            let byte = unsafe { from.add(at).read_volatile() };
            // SAFETY: same as above.
            unsafe { to.add(at).write_volatile(byte) }
        }
        to
    }

    /// Moves bytes (memmove(3)).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
        let upwards = to.addr() < from.addr();
        for step in 0..count {
            let at = if upwards { step } else { count - 1 - step };
            // SAFETY: both are valid for `count` bytes by the contract of memmove(3).
            let byte = unsafe { from.add(at).read_volatile() };
            // SAFETY: same as above; the direction preserves overlapping bytes.
            unsafe { to.add(at).write_volatile(byte) }
        }
        to
    }

    /// Sets bytes (memset(3)).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
        let [byte, ..] = value.to_le_bytes();
        for at in 0..count {
            // SAFETY: valid for `count` bytes by the contract of memset(3).
            unsafe { to.add(at).write_volatile(byte) }
        }
        to
    }

    /// Compares bytes (memcmp(3)).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
        for at in 0..count {
            // SAFETY: both are valid for `count` bytes by the contract of memcmp(3).
            let one = unsafe { left.add(at).read_volatile() };
            // SAFETY: same as above.
            let other = unsafe { right.add(at).read_volatile() };
            if one != other {
                return i32::from(one) - i32::from(other);
            }
        }
        0
    }

    /// Compares bytes (bcmp(3)).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
        // SAFETY: the contracts are the same.
        unsafe { memcmp(left, right, count) }
    }

    /// Counts the bytes of a text (strlen(3)).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn strlen(text: *const u8) -> usize {
        let mut length = 0;
        // SAFETY: the text ends with NUL by the contract of strlen(3).
        while unsafe { text.add(length).read_volatile() } != 0 {
            length += 1;
        }
        length
    }
}
