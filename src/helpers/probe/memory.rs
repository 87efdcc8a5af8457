//! Attempts on memory: touching pages, filling pipes and sockets, writing files.

use core::ffi::CStr;

use crate::answer::{Answer, answer_or_refusal};
use crate::errno::Errno;
use crate::sys::{self, Result, number};

const MIB: usize = 1 << 20;
/// Size of each allocation.
const PIECE: usize = 8 * MIB;
const PAGE: usize = 4096;

const MAP_SHARED: usize = 1;
const MAP_PRIVATE: usize = 2;
const MAP_ANONYMOUS: usize = 0x20;

/// Takes memory and writes to each page. Kinds: `private`, `shared` (then unmapped from the page
/// tables), `rest` (like `shared`, but its first page stays mapped), `zero` (/dev/zero), `memfd`,
/// `shm` (System V) and `locked`.
pub fn touch(kind: &CStr, mib: usize) -> Option<Answer> {
    let piece = match kind.to_bytes() {
        b"private" => || mapped(MAP_PRIVATE),
        b"shared" => hidden,
        b"rest" => first_page,
        b"zero" => zero_device,
        b"memfd" => return Some(memfd(mib)),
        b"shm" => shm,
        b"locked" => locked,
        _ => return None,
    };
    for _ in 0..(mib * MIB).div_ceil(PIECE) {
        if let Err(errno) = piece() {
            return Some(Answer::Refused(errno));
        }
    }
    Some(Answer::Counted("touched", mib))
}

fn map(how: usize) -> Result<usize> {
    const READ_WRITE: usize = 3;
    let no_file = usize::MAX;
    sys::call(number::MMAP, &[0, PIECE, READ_WRITE, how | MAP_ANONYMOUS, no_file, 0])
}

fn write_to(address: usize) {
    (address..address + PIECE).step_by(PAGE).for_each(sys::touch);
}

fn mapped(how: usize) -> Result<()> {
    map(how).map(write_to)
}

/// Takes shared memory, then drops its pages from this process's accounting.
fn hidden() -> Result<()> {
    const MADV_DONTNEED: usize = 4;
    let address = map(MAP_SHARED)?;
    write_to(address);
    sys::call(number::MADVISE, &[address, PIECE, MADV_DONTNEED]).map(drop)
}

/// Takes shared memory and unmaps all but one page, which keeps all of it allocated.
fn first_page() -> Result<()> {
    let address = map(MAP_SHARED)?;
    write_to(address);
    sys::call(number::MUNMAP, &[address + PAGE, PIECE - PAGE]).map(drop)
}

/// Takes shared memory through /dev/zero, a file that is not charged as memory.
fn zero_device() -> Result<()> {
    const READ_WRITE: usize = 3;
    const O_RDWR: usize = 2;
    const MADV_DONTNEED: usize = 4;
    const AT_FDCWD: usize = usize::MAX - 99;
    let path = sys::address(c"/dev/zero".to_bytes_with_nul());
    let file = sys::call(number::OPENAT, &[AT_FDCWD, path, O_RDWR])?;
    let address = sys::call(number::MMAP, &[0, PIECE, READ_WRITE, MAP_SHARED, file, 0]);
    sys::call(number::CLOSE, &[file])?;
    let address = address?;
    write_to(address);
    sys::call(number::MADVISE, &[address, PIECE, MADV_DONTNEED]).map(drop)
}

fn locked() -> Result<()> {
    let address = map(MAP_PRIVATE)?;
    sys::call(number::MLOCK, &[address, PIECE]).map(drop)
}

/// Takes System V shared memory, marked to be removed when the process ends.
fn shm() -> Result<()> {
    const IPC_CREAT: usize = 0o1000;
    const IPC_RMID: usize = 0;
    let id = sys::call(number::SHMGET, &[0, PIECE, IPC_CREAT | 0o600])?;
    let address = sys::call(number::SHMAT, &[id]);
    sys::call(number::SHMCTL, &[id, IPC_RMID])?;
    address.map(write_to)
}

fn memfd(mib: usize) -> Answer {
    let name = c"m".to_bytes_with_nul();
    answer_or_refusal(
        sys::call(number::MEMFD_CREATE, &[sys::address(name)])
            .and_then(|file| write_mib(file, mib))
            .map(|()| Answer::Counted("touched", mib)),
    )
}

fn write_mib(file: usize, mib: usize) -> Result<()> {
    let block = [b'x'; 65536];
    for _ in 0..mib * 16 {
        let mut rest: &[u8] = &block;
        while !rest.is_empty() {
            rest = rest.get(sys::write(file, rest)?..).unwrap_or_default();
        }
    }
    Ok(())
}

/// Writes `mib` MiB to a descriptor.
pub fn flood(descriptor: usize, mib: usize) -> Answer {
    answer_or_refusal(write_mib(descriptor, mib).map(|()| Answer::Done("")))
}

/// Fills pipes, each as large as it may be.
pub fn pipes(mib: usize) -> Answer {
    const F_SETPIPE_SZ: usize = 1031;
    const O_NONBLOCK: usize = 0o4000;
    fill(mib, || {
        let mut ends = [0_i32; 2];
        sys::call(number::PIPE2, &[sys::address_mut(&mut ends), O_NONBLOCK])?;
        let [_, end] = ends;
        let end = usize::try_from(end).map_err(|_| Errno::NOSYS)?;
        // If this fails the pipe keeps its default size, and more pipes are made.
        sys::call(number::FCNTL, &[end, F_SETPIPE_SZ, MIB]).map(drop).unwrap_or_default();
        Ok(end)
    })
}

/// Fills the buffers of sockets that are never read.
pub fn buffers(mib: usize) -> Answer {
    const AF_UNIX: usize = 1;
    const STREAM_NONBLOCK: usize = 1 | 0o4000;
    const SOL_SOCKET: usize = 1;
    const SO_SNDBUF: usize = 7;
    fill(mib, || {
        let mut ends = [0_i32; 2];
        sys::call(number::SOCKETPAIR, &[AF_UNIX, STREAM_NONBLOCK, 0, sys::address_mut(&mut ends)])?;
        let [end, _] = ends;
        let end = usize::try_from(end).map_err(|_| Errno::NOSYS)?;
        let size = [1_i32 << 24];
        let size = sys::address(&size);
        // If this fails the buffer keeps its default size, and more sockets are made.
        sys::call(number::SETSOCKOPT, &[end, SOL_SOCKET, SO_SNDBUF, size, 4])
            .map(drop)
            .unwrap_or_default();
        Ok(end)
    })
}

/// Fills connections over loopback that are never accepted.
pub fn connections(mib: usize) -> Answer {
    const AF_INET: usize = 2;
    const STREAM: usize = 1;
    const STREAM_NONBLOCK: usize = 1 | 0o4000;
    const LENGTH: usize = 16;
    // sockaddr_in: the family, any port, 127.0.0.1.
    let mut address =
        [2_u16, 0, u16::from_ne_bytes([127, 0]), u16::from_ne_bytes([0, 1]), 0, 0, 0, 0];
    let mut length = [16_u32];
    let listener = sys::call(number::SOCKET, &[AF_INET, STREAM, 0]).and_then(|listener| {
        sys::call(number::BIND, &[listener, sys::address(&address), LENGTH])?;
        sys::call(number::LISTEN, &[listener, 4096])?;
        sys::call(
            number::GETSOCKNAME,
            &[listener, sys::address_mut(&mut address), sys::address_mut(&mut length)],
        )
    });
    if let Err(errno) = listener {
        return Answer::Refused(errno);
    }
    fill(mib, || {
        let end = sys::call(number::SOCKET, &[AF_INET, STREAM_NONBLOCK, 0])?;
        // EINPROGRESS if the connection is slow: then it holds less.
        sys::call(number::CONNECT, &[end, sys::address(&address), LENGTH])
            .map(drop)
            .unwrap_or_default();
        Ok(end)
    })
}

/// Makes `count` one-page mappings, no two neighbours alike, and keeps them for `seconds`.
pub fn mappings(count: usize, seconds: usize) -> Answer {
    const PRIVATE_NORESERVE: usize = 0x4002;
    const NONE: usize = 0;
    const READ: usize = 1;
    let length = count * PAGE;
    let how = PRIVATE_NORESERVE | MAP_ANONYMOUS;
    let no_file = usize::MAX;
    let mapped = sys::call(number::MMAP, &[0, length, NONE, how, no_file, 0]);
    let made = mapped.and_then(|address| {
        (address..address + length)
            .step_by(2 * PAGE)
            .try_for_each(|page| sys::call(number::MPROTECT, &[page, PAGE, READ]).map(drop))
    });
    answer_or_refusal(made.map(|()| {
        let time = [seconds, 0];
        // An interrupted sleep is shorter, which does not change the answer.
        sys::call(number::NANOSLEEP, &[sys::address(&time)]).map(drop).unwrap_or_default();
        Answer::Counted("mapped", count)
    }))
}

/// Fills what `next` makes until the kernel holds `mib` MiB.
fn fill(mib: usize, next: impl Fn() -> Result<usize>) -> Answer {
    let block = [b'x'; 65536];
    let mut total = 0;
    while total < mib * MIB {
        let end = match next() {
            Ok(end) => end,
            Err(errno) => return Answer::Refused(errno),
        };
        loop {
            match sys::write(end, &block) {
                Ok(count) => total += count,
                Err(Errno::AGAIN) => break,
                Err(errno) => return Answer::Refused(errno),
            }
        }
    }
    Answer::Counted("kept", mib)
}
