//! Entry point of a program without a C library, and the few functions that compiled code expects.

use core::arch::global_asm;
use core::ffi::CStr;

use crate::sys;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym begin,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, xzr",
    "mov x0, sp",
    "bl {begin}",
    "brk #1",
    begin = sym begin,
);

/// The most arguments an attempt has.
const MOST: usize = 64;

/// Begins with the stack as the kernel made it: the number of arguments, then a pointer to each.
extern "C" fn begin(stack: usize) -> ! {
    let mut words: [&CStr; MOST] = [c""; MOST];
    let count = sys::word_at(stack).saturating_sub(1).min(MOST);
    for (at, word) in words.iter_mut().enumerate().take(count) {
        *word = sys::text_at(sys::word_at(stack + (at + 2) * size_of::<usize>()));
    }
    sys::exit(crate::answered(words.get(..count).unwrap_or_default()))
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(3)
}
