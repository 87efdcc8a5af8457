//! System calls by number, and memory by address: the only `unsafe` code of the probe.
//!
//! An attempt may make any call with any arguments: that is the purpose of the probe. It is sound
//! because the probe has one thread, holds no trusted data, and lets the kernel write only into
//! buffers that [`crate::words`] made. The workers of [`crate::random`] are the exception: the
//! kernel may write anywhere in them. Each is a process that is discarded, and its parent reads
//! only a number that it has counted.
#![allow(unsafe_code, reason = "raw system calls are the helper's purpose; this module holds them")]

#[cfg(freestanding)]
use core::ffi::CStr;

use crate::errno::Errno;

/// The kernel's answer to a call.
pub type Result<T> = core::result::Result<T, Errno>;

/// Defines constants: each has a name, its value on x86-64, and its value on arm64.
#[macro_export]
macro_rules! by_architecture {
    ($($name:ident $x86_64:literal $aarch64:literal,)*) => {
        $(pub const $name: usize =
            if cfg!(target_arch = "x86_64") { $x86_64 } else { $aarch64 };)*
    };
}

/// Numbers of the calls that the program makes by name (syscalls(2)).
pub mod number {
    crate::by_architecture! {
        CLONE 56 220,
        CLOSE 3 57,
        CONNECT 42 203,
        BIND 49 200,
        LISTEN 50 201,
        GETSOCKNAME 51 204,
        DUP 32 23,
        EXIT_GROUP 231 94,
        FCNTL 72 25,
        GETDENTS64 217 61,
        KILL 62 129,
        MADVISE 28 233,
        MEMFD_CREATE 319 279,
        MKDIRAT 258 34,
        CHDIR 80 49,
        MLOCK 149 228,
        MMAP 9 222,
        MUNMAP 11 215,
        MPROTECT 10 226,
        NANOSLEEP 35 101,
        OPENAT 257 56,
        PIPE2 293 59,
        PPOLL 271 73,
        PRLIMIT64 302 261,
        READ 0 63,
        SENDTO 44 206,
        SETITIMER 38 103,
        SETSID 112 157,
        SETSOCKOPT 54 208,
        SHMAT 30 196,
        SHMCTL 31 195,
        SHMGET 29 194,
        SOCKET 41 198,
        SOCKETPAIR 53 199,
        UNLINKAT 263 35,
        WAIT4 61 260,
        WRITE 1 64,
        CLONE3 435 435,
    }
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

/// Adds one to a number in memory that [`counted`] reads.
pub fn count(address: usize) {
    let number = core::ptr::with_exposed_provenance_mut::<usize>(address);
    // SAFETY: the address is that of a page from mmap(2); a worker whose calls have unmapped it
    // ends with a signal.
    let made = unsafe { number.read_volatile() };
    // SAFETY: same as above.
    unsafe { number.write_volatile(made.wrapping_add(1)) }
}

/// Returns the number at an address.
pub fn counted(address: usize) -> usize {
    // SAFETY: the address is that of a page from mmap(2), which this process keeps.
    unsafe { core::ptr::with_exposed_provenance::<usize>(address).read_volatile() }
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
