//! Entry point of a freestanding program.

use core::arch::global_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

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

/// Maximum number of arguments of an attempt.
const MAX_WORDS: usize = 64;

/// Address of the initial stack.
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Starts with the initial stack, which holds the number of arguments, a pointer to each, a zero,
/// then a pointer to each environment variable and another zero.
extern "C" fn begin(stack: usize) -> ! {
    STACK.store(stack, Ordering::Relaxed);
    let mut words: [&CStr; MAX_WORDS] = [c""; MAX_WORDS];
    let count = sys::word_at(stack).saturating_sub(1).min(MAX_WORDS);
    for (at, word) in words.iter_mut().enumerate().take(count) {
        *word = sys::text_at(sys::word_at(stack + (at + 2) * size_of::<usize>()));
    }
    sys::exit(crate::answered(words.get(..count).unwrap_or_default()))
}

/// Returns the environment variables as `NAME=VALUE`.
#[allow(dead_code, reason = "only one of the programs has some for others")]
pub fn environment() -> impl Iterator<Item = &'static CStr> {
    let stack = STACK.load(Ordering::Relaxed);
    let first = stack + (sys::word_at(stack) + 2) * size_of::<usize>();
    let addresses = (0_usize..).map(move |at| sys::word_at(first + at * size_of::<usize>()));
    addresses.take_while(|address| *address != 0).map(sys::text_at)
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(3)
}
