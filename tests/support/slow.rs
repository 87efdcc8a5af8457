//! A program that is slow to die: its processes have many mappings, which the kernel takes down one by one.

/// Makes itself of 50,000 mappings, then copies of itself for four seconds, none of which heeds TERM: a
/// faster machine makes more of them, and takes each down sooner. Its name is not text, as a program may have it.
pub const PROGRAM: &str = "
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
base = libc.mmap(None, 50000 * 4096, 0, 0x4022, -1, 0)
for page in range(0, 50000, 2):
    assert libc.mprotect(base + page * 4096, 4096, 1) == 0
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
libc.prctl(15, b'\\xff' + sys.argv[1].encode(), 0, 0, 0)
end = time.monotonic() + 4
while time.monotonic() < end:
    if os.fork() == 0:
        while True: time.sleep(9)
print('all', flush=True)
while True: time.sleep(9)";

/// A profile in which it has room. Each mapping is charged, and the shipped profile lets no call raise its limit so far.
pub const PROFILE: &str = "schema = 1\nname = \"own\"\nextends = \"bash\"\ndescription = \"of this test\"\n\n\
                           [limits]\nmemory = \"8G\"\n";

/// The longest name of a process, in bytes (prctl(2), PR_SET_NAME).
const LONGEST: usize = 15;

/// Counts the processes of the host that run it under a name.
pub fn named(name: &str) -> usize {
    let mut wanted = [b"\xff", name.as_bytes()].concat();
    wanted.truncate(LONGEST);
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let comm = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("comm"));
    all.filter_map(|entry| comm(entry).ok())
        .filter(|comm| comm.strip_suffix(b"\n") == Some(wanted.as_slice()))
        .count()
}
