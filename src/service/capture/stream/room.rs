//! The buffer that a piece of output is read into.

use std::sync::LazyLock;

use nix::unistd::{SysconfVar, sysconf};

/// Size of the buffer on the stack, small enough for a flood thread.
const FEW_BYTES: usize = libc::PIPE_BUF;
/// Capacity of a pipe (pipe(7)).
const PIPE_BYTES: usize = 64 << 10;

/// Page size: 4 KiB on x86_64, up to 64 KiB elsewhere. If the kernel does not report it, the
/// largest.
static PAGE_BYTES: LazyLock<usize> = LazyLock::new(|| {
    let reported = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    reported.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(PIPE_BYTES)
});

/// Small at first, as typical output is short: a buffer as large as a pipe would be zeroed, or
/// faulted in page by page, for each read. Grows to the capacity of a pipe once the small one was
/// filled.
pub(crate) struct Room {
    few: [u8; FEW_BYTES],
    many: Vec<u8>,
    was_filled: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self::for_pages_of(*PAGE_BYTES)
    }
}

impl Room {
    /// Makes a buffer of at least one page: that is the largest packet of a pipe in packet mode,
    /// and the excess of a packet is lost (pipe(7), O_DIRECT).
    fn for_pages_of(bytes: usize) -> Self {
        Self { few: [0; FEW_BYTES], many: Vec::new(), was_filled: bytes > FEW_BYTES }
    }

    /// Returns the bytes that `read` has stored.
    pub(crate) fn read<E>(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<&[u8], E> {
        if self.was_filled {
            self.many.resize(PIPE_BYTES, 0);
        }
        let room = if self.many.is_empty() { self.few.as_mut_slice() } else { &mut self.many };
        let length = read(room)?;
        self.was_filled = length == room.len();
        Ok(room.get(..length).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW_BYTES, PIPE_BYTES, Room};

    /// Unoptimized builds have several copies of the buffer on the stack at once.
    #[test]
    fn the_stack_of_a_flood_thread_holds_many_copies_of_the_buffer() {
        assert!(size_of::<Room>() * 16 <= crate::capture::stream::flood::STACK_BYTES);
    }

    #[test]
    fn a_packet_of_a_large_page_fits() {
        let mut room = Room::for_pages_of(PIPE_BYTES);
        assert_eq!(room.read(|buffer| Ok::<_, ()>(buffer.len())).map(<[u8]>::len), Ok(PIPE_BYTES));
    }

    #[test]
    fn room_grows_once_it_was_filled_and_stays() {
        let mut room = Room::for_pages_of(FEW_BYTES);
        let mut offered = Vec::new();
        for filled in [1, FEW_BYTES, PIPE_BYTES, 0, 7] {
            let read = |buffer: &mut [u8]| {
                offered.push(buffer.len());
                buffer.get_mut(..filled).expect("no more than there is").fill(b'x');
                Ok::<_, ()>(filled)
            };
            assert_eq!(room.read(read), Ok(vec![b'x'; filled].as_slice()));
        }
        assert_eq!(offered, [FEW_BYTES, FEW_BYTES, PIPE_BYTES, PIPE_BYTES, PIPE_BYTES]);
    }

    #[test]
    fn an_error_is_returned_and_changes_nothing() {
        let mut room = Room::for_pages_of(FEW_BYTES);
        assert_eq!(room.read(|_| Err("none")), Err("none"));
        assert_eq!(room.read(|buffer| Ok::<_, ()>(buffer.len())).map(<[u8]>::len), Ok(FEW_BYTES));
    }
}
