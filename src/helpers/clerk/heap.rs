//! The allocator of freestanding programs: one mapping, used from its beginning.
//!
//! The program handles one request and exits. Freed memory is not reused, except for the newest
//! allocation, which can grow in place.
#![allow(unsafe_code, reason = "an allocator is one by an unsafe trait; this module holds it")]

use alloc::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::sys::{self, number};

/// Room for two files of the maximum size, and more. Untouched pages cost nothing.
const HEAP_BYTES: usize = 64 << 20;
const READ_WRITE: usize = 3;
const PRIVATE_ANONYMOUS: usize = 0x22;

/// The start of the mapping, 0 until it is made, and the number of bytes used. There is only one
/// thread.
struct Heap {
    base: AtomicUsize,
    used: AtomicUsize,
}

#[global_allocator]
static HEAP: Heap = Heap { base: AtomicUsize::new(0), used: AtomicUsize::new(0) };

impl Heap {
    fn base(&self) -> Option<usize> {
        let base = self.base.load(Ordering::Relaxed);
        if base != 0 {
            return Some(base);
        }
        let no_file = usize::MAX;
        let given = [0, HEAP_BYTES, READ_WRITE, PRIVATE_ANONYMOUS, no_file, 0];
        let base = sys::call(number::MMAP, &given).ok()?;
        self.base.store(base, Ordering::Relaxed);
        Some(base)
    }

    fn take(&self, layout: Layout) -> Option<usize> {
        let base = self.base()?;
        let free = base.checked_add(self.used.load(Ordering::Relaxed))?;
        let start = free.checked_next_multiple_of(layout.align())?;
        let end = start.checked_add(layout.size())?;
        let used = end.checked_sub(base).filter(|used| *used <= HEAP_BYTES)?;
        self.used.store(used, Ordering::Relaxed);
        Some(start)
    }

    /// Returns true if an allocation is the newest, so that no other follows it.
    fn is_newest(&self, address: usize, bytes: usize) -> bool {
        let end = self.base.load(Ordering::Relaxed) + self.used.load(Ordering::Relaxed);
        address.checked_add(bytes) == Some(end)
    }
}

// SAFETY: allocations lie within one writable mapping that is never unmapped and do not overlap, as
// `used` falls below an allocation only when that allocation is freed; and there is only one
// thread.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout).map_or(null_mut(), core::ptr::with_exposed_provenance_mut)
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if self.is_newest(piece.expose_provenance(), layout.size()) {
            // There is only one thread. `fetch_sub` would call a C library function on aarch64.
            self.used.store(self.used.load(Ordering::Relaxed) - layout.size(), Ordering::Relaxed);
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let more = bytes.saturating_sub(layout.size());
        let used = self.used.load(Ordering::Relaxed);
        if self.is_newest(piece.expose_provenance(), layout.size()) && used + more <= HEAP_BYTES {
            self.used.store(used - layout.size() + bytes, Ordering::Relaxed);
            return piece;
        }
        let moved = Layout::from_size_align(bytes, layout.align()).ok();
        let Some(to) = moved.and_then(|layout| self.take(layout)) else { return null_mut() };
        let to: *mut u8 = core::ptr::with_exposed_provenance_mut(to);
        // SAFETY: the new allocation lies after the old one, and both have this many bytes.
        unsafe { to.copy_from_nonoverlapping(piece, layout.size().min(bytes)) };
        to
    }
}

/// Satisfies `alloc`, which was compiled to unwind and refers to this symbol. Nothing unwinds here:
/// a panic exits.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Satisfies `alloc`, same as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    sys::exit(3)
}
