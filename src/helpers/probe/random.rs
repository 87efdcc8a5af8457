//! Random system calls with random arguments, the same for the same seed.
//!
//! Workers run one after another, each in a new process: most break themselves soon. A sandbox is
//! judged by what they have touched outside of it, never by what they print.

use core::ffi::CStr;

use crate::answer::Answer;
use crate::sys::{self, number};
use crate::words::number as parsed;

/// Calls of one worker.
const CALLS: u32 = 300;
/// Looks at a worker, and the time between them in nanoseconds: 0.3 s altogether.
const MAX_LOOKS: u32 = 100;
const PAUSE: usize = 3_000_000;
/// Bytes that arguments point to.
const ROOM: usize = 64 * 1024;
/// Bytes of all paths, and their number.
const PATH_BYTES: usize = 4096;
const PATHS: usize = 24;
/// Open descriptors of a worker.
const DESCRIPTORS: usize = 24;
const SIGCHLD: usize = 17;
const SIGKILL: usize = 9;

crate::by_architecture! {
    // Numbers with most of the calls that programs make; the rest are of old or other interfaces.
    USED 336 300,
    RT_SIGRETURN 15 139,
    EXIT 60 93,
}
const LATEST: [usize; 2] = [424, 472];
/// Calls of the third part have any number below this.
const ANY: usize = 1024;

/// Paths that exist in most sandboxes, or whose kind the kernel treats in its own way.
const COMMON: [&CStr; 17] = [
    c"",
    c".",
    c"/",
    c"/tmp/x",
    c"/tmp/d/y",
    c"/workspace/f",
    c"/usr/bin/true",
    c"/etc/passwd",
    c"/dev/null",
    c"/proc/self/mem",
    c"/proc/1/mem",
    c"/proc/1/root",
    c"/proc/self/fd/0",
    c"/dev/shm/s",
    c"../../..",
    c"/sys/kernel",
    c"/proc/sys/kernel/hostname",
];

/// Reproducible numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn word(&mut self) -> usize {
        usize::try_from(self.next()).unwrap_or_default()
    }

    fn below(&mut self, end: usize) -> usize {
        self.word() % end.max(1)
    }

    fn pick(&mut self, of: &[usize]) -> usize {
        of.get(self.below(of.len())).copied().unwrap_or_default()
    }
}

/// Things outside of the sandbox, which calls may name.
struct Outside<'w> {
    pid: usize,
    port: u16,
    /// Name of an abstract socket.
    name: &'w [u8],
    /// A directory with the files `secret` and `socket`.
    directory: &'w [u8],
}

/// Runs workers: `random SEED WORKERS PID PORT NAME DIRECTORY`. Prints the number of calls that
/// were made after each of them.
pub fn random(words: &[&CStr]) -> Option<Answer> {
    const READ_WRITE: usize = 3;
    const SHARED_ANONYMOUS: usize = 0x21;
    let [seed, workers, pid, port, name, directory] = words else { return None };
    let outside = Outside {
        pid: parsed(pid.to_bytes())?,
        port: u16::try_from(parsed(port.to_bytes())?).ok()?,
        name: name.to_bytes(),
        directory: directory.to_bytes(),
    };
    let seed = u64::try_from(parsed(seed.to_bytes())?).ok()?;
    let workers = parsed(workers.to_bytes())?;
    let count = sys::call(number::MMAP, &[0, 4096, READ_WRITE, SHARED_ANONYMOUS, usize::MAX, 0]);
    let count = match count {
        Ok(address) => address,
        Err(errno) => return Some(Answer::Refused(errno)),
    };
    for worker in 0..workers {
        match sys::call(number::CLONE, &[SIGCHLD]) {
            Ok(0) => {
                let mut dice = Dice(seed);
                let own = dice.next() ^ u64::try_from(worker).unwrap_or_default();
                Worker::new(Dice(own), &outside).work(count);
                sys::exit(0)
            }
            Ok(pid) => await_worker(pid),
            // Copies that earlier workers have left may be as many as are allowed.
            Err(_) => (0..10).for_each(|_| pause()),
        }
        crate::print(format_args!("made {}\n", sys::counted(count)));
    }
    Some(Answer::Counted("made", sys::counted(count)))
}

fn pause() {
    let time = [0, PAUSE];
    sys::call(number::NANOSLEEP, &[sys::address(&time)]).map(drop).unwrap_or_default();
}

/// Waits until a worker has ended, and kills it if that takes long: many calls wait for something.
fn await_worker(pid: usize) {
    const NO_HANG: usize = 1;
    for _ in 0..MAX_LOOKS {
        match sys::call(number::WAIT4, &[pid, 0, NO_HANG]) {
            Ok(0) => pause(),
            Ok(_) | Err(_) => return,
        }
    }
    // Both fail if it has ended meanwhile.
    sys::call(number::KILL, &[pid, SIGKILL]).map(drop).unwrap_or_default();
    sys::call(number::WAIT4, &[pid]).map(drop).unwrap_or_default();
}

/// Memory with the alignment of everything that the kernel reads from it.
#[repr(align(16))]
struct Aligned([u8; ROOM]);

struct Worker<'w> {
    dice: Dice,
    outside: &'w Outside<'w>,
    room: Aligned,
    path_bytes: [u8; PATH_BYTES],
    /// Where each path starts, and their number.
    paths: [usize; PATHS],
    path_count: usize,
    descriptors: [usize; DESCRIPTORS],
    descriptor_count: usize,
}

impl<'w> Worker<'w> {
    fn new(dice: Dice, outside: &'w Outside<'w>) -> Self {
        let mut worker = Self {
            dice,
            outside,
            room: Aligned([0; ROOM]),
            path_bytes: [0; PATH_BYTES],
            paths: [0; PATHS],
            path_count: 0,
            descriptors: [0; DESCRIPTORS],
            descriptor_count: 3,
        };
        for (at, slot) in worker.descriptors.iter_mut().take(3).enumerate() {
            *slot = at;
        }
        worker.add_paths();
        worker.open_descriptors();
        for at in (0..ROOM).step_by(8) {
            let word = worker.dice.next();
            worker.put(at, &word.to_ne_bytes());
        }
        worker
    }

    fn add_paths(&mut self) {
        let mut used = 0;
        COMMON.iter().for_each(|path| self.add_path(&mut used, &[path.to_bytes()]));
        let directory = self.outside.directory;
        self.add_path(&mut used, &[directory]);
        self.add_path(&mut used, &[directory, b"/secret"]);
        self.add_path(&mut used, &[directory, b"/socket"]);
        self.add_path(&mut used, &[&[b'a'; 255]]);
        self.add_path(&mut used, &[b"/tmp/", &[b'b'; 1024]]);
    }

    /// Adds a path of several parts after `used` bytes of others.
    fn add_path(&mut self, used: &mut usize, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let Some(slot) = self.paths.get_mut(self.path_count) else { return };
        // Its end is a byte that is still zero.
        let Some(to) = self.path_bytes.get_mut(*used..*used + length + 1) else { return };
        let bytes = parts.iter().flat_map(|part| part.iter());
        to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        *slot = *used;
        self.path_count += 1;
        *used += length + 1;
    }

    fn path(&mut self) -> usize {
        let at = self.dice.below(self.path_count);
        sys::address(&self.path_bytes) + self.paths.get(at).copied().unwrap_or_default()
    }

    fn keep(&mut self, descriptor: sys::Result<usize>) {
        // Refused in some sandboxes.
        let Ok(descriptor) = descriptor else { return };
        if let Some(slot) = self.descriptors.get_mut(self.descriptor_count) {
            *slot = descriptor;
            self.descriptor_count += 1;
        }
    }

    fn open_descriptors(&mut self) {
        const HERE: usize = usize::MAX - 99;
        const O_PATH: usize = 0o10_000_000;
        const O_RDWR_CREAT: usize = 0o102;
        let files = [
            (c"/", O_PATH),
            (c".", O_PATH),
            (c"/tmp", 0),
            (c"/usr", 0),
            (c"/proc/self", 0),
            (c"/dev/null", 2),
            (c"/tmp/own", O_RDWR_CREAT),
        ];
        for (path, flags) in files {
            let path = sys::address(path.to_bytes_with_nul());
            self.keep(sys::call(number::OPENAT, &[HERE, path, flags, 0o600]));
        }
        // Families and types: local, IPv4, IPv6, netlink, packet.
        for [family, kind] in [[1, 1], [1, 2], [2, 1], [2, 2], [10, 1], [16, 3], [17, 3]] {
            self.keep(sys::call(number::SOCKET, &[family, kind, 0]));
        }
        let mut pair = [0_u32; 2];
        let made = [
            sys::call(number::PIPE2, &[sys::address_mut(&mut pair), 0]),
            sys::call(number::MEMFD_CREATE, &[sys::address(b"m\0"), 0]),
        ];
        let [pipe, memory] = made;
        for end in pair {
            self.keep(pipe.and_then(|_| usize::try_from(end).map_err(|_| crate::errno::Errno(22))));
        }
        self.keep(memory);
    }

    fn descriptor(&mut self) -> usize {
        let at = self.dice.below(self.descriptor_count);
        self.descriptors.get(at).copied().unwrap_or_default()
    }

    fn base(&mut self) -> usize {
        sys::address_mut(&mut self.room.0)
    }

    /// Writes bytes into the room.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let to = self.room.0.iter_mut().skip(at);
        to.zip(bytes).for_each(|(to, byte)| *to = *byte);
    }

    fn put_words(&mut self, at: usize, words: &[usize]) {
        for (index, word) in words.iter().enumerate() {
            self.put(at + index * size_of::<usize>(), &word.to_ne_bytes());
        }
    }

    /// Writes a structure that the kernel reads to the beginning of the room.
    fn write_structure(&mut self) {
        const LOCAL: [u8; 2] = 1_u16.to_ne_bytes();
        const INTERNET: [u8; 2] = 2_u16.to_ne_bytes();
        let at = self.dice.pick(&[0, 0, 64, 128]);
        let base = self.base();
        match self.dice.below(10) {
            // Addresses of sockets: abstract, by path, on the host's loopback.
            0 => {
                self.put(at, &LOCAL);
                self.put(at + 2, &[0]);
                self.put(at + 3, self.outside.name);
            }
            1 => {
                self.put(at, &LOCAL);
                self.put(at + 2, self.outside.directory);
                self.put(at + 2 + self.outside.directory.len(), b"/socket\0");
            }
            2 => {
                self.put(at, &INTERNET);
                self.put(at + 2, &self.outside.port.to_be_bytes());
                self.put(at + 4, &[127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
            // iovec, timespec, msghdr, clone_args, open_how.
            3 => {
                let length = self.dice.pick(&[0, 1, 4096, 1 << 40]);
                self.put_words(at, &[base + 4096, length, base, 16]);
            }
            4 => {
                let nanoseconds = self.dice.pick(&[0, 1_000, 1_000_000_000, usize::MAX]);
                self.put_words(at, &[0, nanoseconds, 0, 1_000]);
            }
            5 => {
                let length = self.dice.pick(&[16, 110, 3]);
                self.put_words(at, &[base + 64, length, base + 128, 1, base + 256, 64, 0]);
            }
            6 => {
                let flags = 1 << self.dice.below(40);
                let signal = self.dice.pick(&[0, SIGCHLD]);
                self.put_words(at, &[flags, 0, 0, 0, signal, 0, 0, 0, 0, 0, 0]);
            }
            7 => {
                let flags = self.dice.below(1 << 22);
                let resolve = self.dice.below(64);
                self.put_words(at, &[flags, 0o644, resolve]);
            }
            8 => self.write_netlink(at),
            _ => {
                let length = self.dice.below(32);
                for word in 0..length {
                    let bytes = self.dice.next().to_ne_bytes();
                    self.put(at + word * 8, &bytes);
                }
            }
        }
    }

    /// Writes a message of route netlink with an attribute (rtnetlink(7)).
    fn write_netlink(&mut self, at: usize) {
        let kind = 16 + self.dice.below(108);
        let flags = self.dice.below(1 << 12);
        let family = self.dice.pick(&[0, 2, 10, 1 << 24]);
        let index = self.dice.below(4);
        let attribute = 8 | self.dice.below(70) << 16;
        let value = self.dice.pick(&[0, 1, self.outside.pid, 1 << 31]);
        let words = [40, kind | flags << 16, 1, 0, family, index, 0, 0, attribute, value];
        for (index, word) in words.iter().enumerate() {
            let [one, two, three, four, ..] = word.to_le_bytes();
            self.put(at + index * 4, &[one, two, three, four]);
        }
    }

    fn argument(&mut self) -> usize {
        match self.dice.below(12) {
            0 => 0,
            1 | 2 => self.dice.below(32),
            3 | 4 => self.descriptor(),
            5 => self.base(),
            6 => self.base() + self.dice.below(ROOM),
            7 | 8 => self.path(),
            9 => {
                let pid = self.outside.pid;
                let others = [usize::MAX, usize::MAX - 99, 1, 2, 4096, 1 << 30];
                match self.dice.below(4) {
                    0 => pid,
                    1 => pid.wrapping_neg(),
                    _ => self.dice.pick(&others),
                }
            }
            10 => 1 << self.dice.below(63),
            _ => self.dice.word(),
        }
    }

    /// Makes the calls of one worker, and counts them at an address that all workers share.
    fn work(&mut self, count: usize) {
        for _ in 0..CALLS {
            let [first_latest, end_latest] = LATEST;
            let call = match self.dice.below(12) {
                0..7 => self.dice.below(USED),
                7 => first_latest + self.dice.below(end_latest - first_latest),
                _ => self.dice.below(ANY),
            };
            self.write_structure();
            let mut arguments = [0; 6];
            for slot in &mut arguments {
                *slot = self.argument();
            }
            // Ends of the worker.
            let is_end = [RT_SIGRETURN, EXIT, number::EXIT_GROUP].contains(&call);
            if is_end && self.dice.below(50) > 0 {
                continue;
            }
            sys::count(count);
            // Any answer is as good as another.
            sys::call(call, &arguments).map(drop).unwrap_or_default();
        }
    }
}
