//! The room that a piece of output is read into.

use std::sync::LazyLock;

use nix::unistd::{SysconfVar, sysconf};

/// Bytes that are on the stack: few enough for the thread of a flood, which has a small one.
const FEW_BYTES: usize = libc::PIPE_BUF;
/// Bytes that a pipe holds (pipe(7)).
const PIPE_BYTES: usize = 64 << 10;

/// Bytes of a page: 4 KiB on x86_64, up to 64 KiB elsewhere. Where the kernel does not say, the most.
static PAGE_BYTES: LazyLock<usize> = LazyLock::new(|| {
    let told = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    told.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(PIPE_BYTES)
});

/// Little at first, as most of what is printed is little: as much as a pipe holds would be zeroed, or
/// taken from the kernel page by page, for each look at it. Once it was filled, that much.
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
    /// Makes room for at least one page: that is the largest packet of a pipe in packet mode, and what does not fit of
    /// a packet is lost (pipe(7), O_DIRECT).
    fn for_pages_of(bytes: usize) -> Self {
        Self { few: [0; FEW_BYTES], many: Vec::new(), was_filled: bytes > FEW_BYTES }
    }

    /// Returns the bytes that `read` has put there.
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

    /// Builds of any kind have a few copies of the room on the stack at once.
    #[test]
    fn a_flood_has_room_on_its_stack_many_times_over() {
        assert!(size_of::<Room>() * 16 <= crate::stream::flood::STACK_BYTES);
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
    fn an_error_is_told_and_changes_nothing() {
        let mut room = Room::for_pages_of(FEW_BYTES);
        assert_eq!(room.read(|_| Err("none")), Err("none"));
        assert_eq!(room.read(|buffer| Ok::<_, ()>(buffer.len())).map(<[u8]>::len), Ok(FEW_BYTES));
    }
}
