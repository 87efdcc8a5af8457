//! Memory that the kernel keeps for a cell where no control group counts it: sockets, connections, mappings, pipes.
//!
//! Each attack says from inside how much it has made, a letter for each piece. Three times the limit is the
//! most that it may come to before the cell ends.

use crate::support::{CALLS, Caller, Check, Claim, For, Need, claim, denials, equal, holds, text};
use serde_json::json;

const PYTHON: &[Need] = &[Need::Python];
const GCC: &[Need] = &[Need::Gcc];

pub const CLAIMS: &[Claim] = &[
    claim("full_unix_sockets_end_the_call", unix).needs(PYTHON).only(For::User),
    claim("full_connections_end_the_call", connections).needs(PYTHON).only(For::User),
    claim("mappings_end_the_call", mappings).needs(GCC).only(For::User),
    claim("mappings_of_a_chain_of_forks_end_the_call", forks).needs(GCC).only(For::User),
    claim("mappings_split_behind_forks_that_have_ended_end_the_call", split)
        .needs(GCC)
        .only(For::User),
    claim("forks_that_share_their_mappings_are_nothing_unusual", workers).needs(PYTHON),
    claim("full_pipes_end_the_call", pipes).needs(PYTHON).only(For::User),
    claim("a_process_whose_first_thread_ended_is_seen", first_thread).needs(GCC).only(For::User),
    claim("short_threads_without_a_main_thread_are_charged", short_threads)
        .needs(GCC)
        .only(For::User),
    claim("programs_that_end_are_not_over_their_memory", ending).needs(PYTHON).only(For::User),
    claim("names_of_files_end_the_call", names).needs(PYTHON).only(For::User),
    claim("attributes_of_files_end_the_call", attributes).needs(PYTHON).only(For::User),
    claim("the_buffer_of_a_socket_cannot_be_raised", sizes).needs(PYTHON).only(For::User),
    claim("no_pages_are_lent_to_sockets_and_files_are_copied", lent).needs(PYTHON).only(For::User),
    claim("shared_memory_counts_until_its_last_user_ends", shared).needs(PYTHON).only(For::User),
    claim("shared_memory_is_granted_again_once_it_is_gone", shared_again)
        .needs(PYTHON)
        .only(For::User),
    claim("segments_of_system_v_stay_within_the_limit", segments).needs(PYTHON).only(For::User),
    claim("a_segment_that_is_removed_makes_room", segments_again).needs(PYTHON).only(For::User),
    claim("a_page_of_shared_memory_that_is_kept_costs_a_page", shared_page)
        .needs(PYTHON)
        .only(For::User),
    claim("a_process_is_seen_by_any_name", any_name).needs(PYTHON).only(For::User),
    claim("shared_memory_of_a_chain_of_short_threads_counts", chain).needs(GCC).only(For::User),
    claim("huge_pages_look_unavailable", huge).needs(PYTHON).only(For::User),
    claim("requests_that_nothing_helps_hold_up_no_other_call", flood).needs(GCC).only(For::User),
    claim("the_device_for_zeroes_makes_no_shared_memory", device).needs(PYTHON).only(For::User),
    claim("options_of_sockets_end_at_the_newest_that_is_known", options)
        .needs(PYTHON)
        .only(For::User),
    claim("a_server_of_node_sets_the_options_it_needs", node).needs(&[Need::Node]),
    claim("two_hundred_concurrent_connections_are_allowed", ordinary).needs(PYTHON),
    claim("root_s_control_group_counts_connections", counted)
        .needs(&[Need::Python, Need::MemoryCgroup])
        .only(For::Root),
];

const LIMIT: &str = "64M";
const MIB: usize = 1 << 20;
/// Three times the limit.
const MAX_HELD: usize = 192 * MIB;

/// Runs a program that writes a letter for each `piece` bytes, and is ended in time.
fn ends(caller: &Caller, argv: &[&str], more: &[&str], piece: usize) -> Check {
    let options = [&["--memory", LIMIT, "--timeout", "100s"], more].concat();
    let report = caller.json(&options, argv)?;
    let memory = report.pointer("/receipt/configured/memory");
    equal("nothing holds it", memory, Some(&json!("best-effort")))?;
    let pieces = text(&report, "stdout").bytes().filter(|byte| *byte == b'x').count();
    let held = pieces * piece;
    holds("three times the limit at most", held / MIB, held <= MAX_HELD)?;
    holds("it began", &report, pieces > 0)?;
    let end = (text(&report, "outcome"), text(&report, "limit"));
    equal(&format!("the end, after {} KiB", held >> 10), end, ("limit", "memory"))
}

fn python(caller: &Caller, script: &str, piece: usize) -> Check {
    ends(caller, &["/usr/bin/python3", "-c", script], &[], piece)
}

/// Both ends of pairs, in processes that have a thousand descriptors each.
fn unix(caller: &Caller) -> Check {
    let script = "
import os, socket, signal, time
kept, block = [], bytes(1 << 16)
while True:
    time.sleep(.002)
    if len(kept) > 450 and os.fork(): signal.pause()
    if len(kept) > 450: kept = []
    pair = socket.socketpair(); kept.append(pair); held = 0
    for end in pair:
        end.setblocking(False)
        end.setsockopt(1, 7, 1 << 24)
        try:
            while True: held += end.send(block)
        except BlockingIOError: pass
    os.write(1, b'x' * round(held / 65536))";
    python(caller, script, 65536)
}

fn connections(caller: &Caller) -> Check {
    let script = "
import os, socket, time
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(500)
kept, block, told, held = [], bytes(1 << 16), 0, 0
while len(kept) < 500:
    near = socket.create_connection(listener.getsockname()); far = listener.accept()[0]
    kept += [near, far]
    for end in near, far:
        end.setblocking(False)
        for option in 7, 8: end.setsockopt(1, option, 1 << 24)
    for _ in range(4):
        for end in near, far:
            try:
                while True: held += end.send(block)
            except BlockingIOError: time.sleep(0.0005)
    os.write(1, b'x' * (held // 65536 - told)); told = held // 65536
time.sleep(60)";
    python(caller, script, 65536)
}

/// Compiles a program without libraries into a directory that the cell has.
fn built(caller: &Caller, name: &str, source: &str) -> Result<String, crate::support::Failed> {
    let source = caller.file(&format!("{name}.c"), source)?;
    let program = source.with_extension("");
    let source = source.display();
    let place = program.display();
    let built = caller.bash_outside(&format!("gcc -O1 -w -pthread -o {place} {source}"))?;
    equal("gcc", (built.code, built.stderr.as_str()), (0, ""))?;
    Ok(format!("{place}:/mnt/{name}"))
}

/// Mappings of one page, no two neighbours alike, in sixty processes.
fn mappings(caller: &Caller) -> Check {
    let source = "
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    for (int i = 0; i < 59; i++) if (fork() == 0) break;
    for (;;) {
        char *place = mmap(0, 8192 * 2048, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (place == MAP_FAILED) pause();
        for (int i = 0; i < 2048; i++) if (mprotect(place + 8192 * i, 4096, PROT_READ)) pause();
        write(1, \"x\", 1);
    }
}";
    let path = built(caller, "mappings", source)?;
    // A mapping takes some 192 bytes in the kernel.
    ends(caller, &["/mnt/mappings"], &["--ro", &path], 4096 * 216)
}

/// Mappings that had a page once, in forks of forks: the kernel links each with all ancestors.
fn forks(caller: &Caller) -> Check {
    let source = "
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    for (int i = 0; i < 1500; i++) {
        char *place = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (place == MAP_FAILED) return 1;
        *place = 1;
        madvise(place, 4096, MADV_DONTNEED);
        munmap(place + 4096, 4096);
    }
    for (int links = 0, depth = 1; depth < 150 && fork() == 0; depth++)
        for (links += 1500 * depth; links >= 1024; links -= 1024) write(1, \"x\", 1);
    sleep(60);
}";
    let place = built(caller, "forks", source)?;
    ends(caller, &["/mnt/forks"], &["--ro", &place], 1024 * 64)
}

/// One mapping, which the last of a chain of forks splits once all others have ended. The first asks for orphans or leaves
/// them to init. Eighty processes at once would reach the limit by themselves.
fn split(caller: &Caller) -> Check {
    let source = "
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    char *place = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), byte;
    int end[2];
    if (place == MAP_FAILED || pipe(end)) return 1;
    *place = 1;
    if (count > 1) prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int depth = 0; depth < 60; depth++) if (fork() > 0) {
        close(end[1]);
        if (depth == 0) { while (wait(0) > 0); sleep(60); }
        read(end[0], &byte, 1);
        _exit(0);
    }
    pid_t parent = getppid();
    close(end[1]);
    while (getppid() == parent) usleep(1000);
    mprotect(place, 8192, PROT_READ);
    place = mremap(place, 8192, (size_t)8192 * 30000, MREMAP_MAYMOVE);
    if (place == MAP_FAILED) return 1;
    for (int links = 0, i = 0; i < 30000; i++) {
        if (mprotect(place + (size_t)8192 * i, 4096, PROT_NONE)) break;
        for (links += 120; links >= 1024; links -= 1024) write(1, \"x\", 1);
    }
    sleep(60);
}";
    let place = built(caller, "split", source)?;
    for argv in [&["/mnt/split"][..], &["/mnt/split", "subreaper"]] {
        ends(caller, argv, &["--ro", &place], 1024 * 64)?;
    }
    Ok(())
}

/// Ordinary forks: workers of a pool, their workers, and an orphan of a process that is a subreaper.
fn workers(caller: &Caller) -> Check {
    let script = "
import multiprocessing, os, time
def square(number): time.sleep(.01); return number * number
def squares(numbers):
    with multiprocessing.get_context('fork').Pool(4) as pool: return sum(pool.map(square, numbers))
if __name__ == '__main__':
    import concurrent.futures as futures, ctypes
    print(ctypes.CDLL(None).prctl(36, 1, 0, 0, 0), flush=True)
    context = multiprocessing.get_context('fork')
    with futures.ProcessPoolExecutor(4, mp_context=context) as pool:
        print(sum(pool.map(squares, [range(50)] * 4)), flush=True)
    if os.fork() == 0:
        if os.fork() == 0: time.sleep(.3); print('alone', flush=True)
        os._exit(0)
    os.wait(); time.sleep(1)";
    let told = caller.json(&["--memory", "256M"], &["/usr/bin/python3", "-c", script])?;
    let found = (text(&told, "outcome"), text(&told, "stdout"), denials(&told));
    equal("done", found, ("exited", "0\n161700\nalone\n", vec![]))
}

/// A pipe whose writer has ended keeps what it was given, by one descriptor.
fn pipes(caller: &Caller) -> Check {
    let script = "
import os, signal, time
block = bytes(1 << 16)
while True:
    kept, total = [], 0
    for _ in range(900):
        time.sleep(.0002)
        near, far = os.pipe(); kept.append(near); os.set_blocking(far, False)
        try:
            while True: total += os.write(far, block)
        except BlockingIOError: pass
        os.close(far)
        if total > 1 << 20: os.write(1, b'x' * (total >> 16)); total &= 65535
    if os.fork(): signal.pause()
    os.closerange(3, 1024)";
    python(caller, script, 65536)
}

/// Ends the first thread, after which `/proc/PID/status` shows no memory.
fn first_thread(caller: &Caller) -> Check {
    let source = "
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *touch(void *none) {
    for (int i = 0; i < 40; i++) {
        char *place = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) break;
        for (int at = 0; at < 1 << 20; at += 4096) place[at] = 1;
        write(1, \"x\", 1);
        usleep(20000);
    }
    pause();
}
int main(void) {
    for (int i = 0; i < 12; i++) if (fork() == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, touch, 0);
        syscall(SYS_exit, 0);
    }
    sleep(20);
}";
    let path = built(caller, "first", source)?;
    ends(caller, &["/mnt/first"], &["--ro", &path], MIB)
}

/// The first thread has ended, and each of the others ends as soon as it has touched a little and made the next.
fn short_threads(caller: &Caller) -> Check {
    let source = "
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static int made;
static void *touch(void *none) {
    char *place = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int at = 0; place != MAP_FAILED && at < 1 << 16; at += 4096) place[at] = 1;
    if (place != MAP_FAILED && __atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST) % 16 == 0) write(1, \"x\", 1);
    pthread_attr_t small; pthread_t next;
    pthread_attr_init(&small); pthread_attr_setstacksize(&small, 16384); pthread_attr_setdetachstate(&small, 1);
    while (pthread_create(&next, &small, touch, 0)) sched_yield();
    return 0;
}
int main(void) {
    pthread_t thread;
    for (int chain = 0; chain < 3; chain++) { pthread_create(&thread, 0, touch, 0); pthread_detach(thread); }
    syscall(SYS_exit, 0);
}";
    let program = built(caller, "short", source)?;
    // RLIMIT_DATA holds each process at the limit, and the watch is to find that three are over it together. A process that
    // can have no more keeps what it has, by threads that are as short.
    let argv = ["bash", "-c", "/mnt/short & /mnt/short & /mnt/short & wait"];
    ends(caller, &argv, &["--ro", &program], MIB)
}

/// Checks an end that takes a while: the last thread of a process frees its memory after /proc shows 0 for it.
fn ending(caller: &Caller) -> Check {
    let script = "
import os, sys, threading
for _ in range(30):
    child = os.fork()
    if child == 0:
        held = bytearray(150 << 20)
        for page in range(0, len(held), 4096): held[page] = 1
        for _ in range(int(sys.argv[1])): threading.Thread(target=threading.Event().wait).start()
        os._exit(0)
    print(os.waitpid(child, 0)[1], end='')";
    for threads in ["0", "1", "40"] {
        let argv = ["/usr/bin/python3", "-c", script, threads];
        let report = caller.json(&["--memory", "512M", "--timeout", "100s"], &argv)?;
        let found = (text(&report, "outcome"), text(&report, "stdout"));
        equal(threads, found, ("exited", "0".repeat(30).as_str()))?;
    }
    Ok(())
}

/// Links with long names, which take no block of a tmpfs.
fn names(caller: &Caller) -> Check {
    let script = "
import os, time
for place in '/tmp', '/dev/shm', '/workspace':
    try:
        for number in range(99000):
            os.symlink('t' * 120, f'{place}/{number:0>250}')
            if number % 64 == 63: os.write(1, b'x')
    except OSError: pass
time.sleep(60)";
    // For each link the kernel keeps an inode, a name and the name it leads to.
    python(caller, script, 64 * 960)
}

/// Attributes, each of which the kernel keeps in a piece of 64 KiB.
fn attributes(caller: &Caller) -> Check {
    let script = "
import os, time
for place in '/tmp', '/dev/shm', '/workspace':
    try:
        for number in range(1000):
            open(f'{place}/{number}', 'w').close()
            for name in range(16):
                os.setxattr(f'{place}/{number}', f'user.{name}', bytes(33000)); os.write(1, b'x')
    except OSError: pass
time.sleep(60)";
    let report = caller.json(
        &["--memory", LIMIT],
        &[
            "/usr/bin/python3",
            "-c",
            "import os
open('/tmp/a', 'w').close(); os.setxattr('/tmp/a', 'user.a', b'x')",
        ],
    )?;
    if text(&report, "stderr").contains("Operation not supported") {
        return Ok(());
    }
    python(caller, script, 1 << 16)
}

fn sizes(caller: &Caller) -> Check {
    let script = "
import socket
one, other = socket.socketpair()
def sizes(): return [one.getsockopt(1, option) for option in (7, 8)]
before = sizes()
for option in (7, 8) + FORCED: one.setsockopt(1, option, 1 << 20)
print(sizes() == before)
one.setsockopt(1, 20, b'\\1' + bytes(15)); print(one.getsockopt(1, 20, 16)[0])";
    let forced = script.replace("FORCED", "(32, 33)");
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &forced])?;
    equal("answered, and nothing changed", text(&report, "stdout"), "True\n1\n")?;
    equal("not reported", denials(&report), vec![])?;
    // The control: outside of a cell a socket gets what it asks for.
    let outside = caller.python_outside(&script.replace("FORCED", "()"))?;
    equal("outside", outside.trimmed(), "False\n1")
}

/// Options that have pages lent, devices spun for, and those that no kernel has yet; and those that programs set.
fn options(caller: &Caller) -> Check {
    let script = "
import errno, socket
def tried(end, option):
    try: end.setsockopt(1, option, 1)
    except OSError as error: return errno.errorcode[error.errno]
    return 'set'
end = socket.socket()
print({tried(end, option) for option in (46, 60, 61, 69, 70, 73, 78, 79, 80, 85, 100, 0x7fffffff)})
print({tried(end, option) for option in (2, 7, 8, 9, 10, 15, 29, 35, 40, 62, 63, 64)})
try: print(end.sendto(b'x', 0x4000000, ('127.0.0.1', 1)))
except OSError as error: print(errno.errorcode[error.errno])";
    let report = caller.json(&[], &["/usr/bin/python3", "-c", script])?;
    equal("in a cell", text(&report, "stdout"), "{'EPERM'}\n{'set'}\nEPERM\n")?;
    equal(
        "counted",
        denials(&report),
        vec![("sendto".to_owned(), 1), ("setsockopt".to_owned(), 12)],
    )?;
    let outside = caller.python_outside(script)?;
    holds(
        "the kernel's answers differ",
        outside.trimmed(),
        outside.trimmed().contains("ENOPROTOOPT"),
    )
}

/// Runs a server of node, whose libuv sets socket options.
fn node(caller: &Caller) -> Check {
    let script = "
const net = require('net'), dgram = require('dgram');
const server = net.createServer(end => { end.setNoDelay(true); end.setKeepAlive(true, 1000); end.pipe(end); });
server.listen(0, '127.0.0.1', () => {
    const end = net.connect(server.address().port, '127.0.0.1', () => end.end('told\\n'));
    end.on('data', bytes => process.stdout.write(bytes));
    end.on('close', () => {
        const other = dgram.createSocket({ type: 'udp4', reuseAddr: true });
        other.bind(0, () => { other.setBroadcast(true); other.setTTL(9); other.close(); server.close(); });
    });
});";
    let report = caller.json(&[], &["node", "-e", script])?;
    equal("as anywhere", (text(&report, "stdout"), denials(&report)), ("told\n", vec![]))
}

/// A page that a socket holds by one byte would count as one byte.
fn lent(caller: &Caller) -> Check {
    let script = "
import errno, os, shutil, socket
open('/tmp/a', 'wb').write(bytes(1 << 20))
one, other = socket.socketpair()
source = os.open('/tmp/a', os.O_RDONLY)
near, far = os.pipe(); os.write(far, b'x')
def tried(call):
    try: return call()
    except OSError as error: return errno.errorcode[error.errno]
print(tried(lambda: os.sendfile(one.fileno(), source, 0, 1)), tried(lambda: os.splice(near, one.fileno(), 1)) if hasattr(os, 'splice') else 'EINVAL')
shutil.copyfile('/tmp/a', '/tmp/b'); print(os.path.getsize('/tmp/b'))
with open('/tmp/a', 'rb') as file: print(one.sendfile(file, 0, 1000))";
    let report = caller.json(&[], &["/usr/bin/python3", "-c", script])?;
    let expected = "EINVAL EINVAL\n1048576\n1000\n";
    equal("answered as by a kernel that cannot", text(&report, "stdout"), expected)?;
    equal("not reported", denials(&report), vec![])?;
    let outside = caller.python_outside(&script.replace("/tmp/", "./"))?;
    holds("the control", outside.trimmed(), outside.trimmed().starts_with("1 "))
}

/// Ways to have shared memory without a file that no process's account shows: let go of, but for a page, in children
/// that end, by threads at once. Each says how many pieces of 8 MiB it could have.
const SHARED: &str = "
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
PIECE, GONE = 8 << 20, ctypes.c_void_p(-1).value
def piece(how):
    at = libc.mmap(None, PIECE, 3, 0x21, -1, 0)
    if at == GONE: return ctypes.get_errno()
    ctypes.memset(at, 1, PIECE)
    if how == 'named': libc.prctl(0x53564d41, 0, at, PIECE, ctypes.cast(ctypes.c_char_p(b'mine'), ctypes.c_void_p).value)
    if how == 'rest': libc.munmap(at + 4096, PIECE - 4096)
    else: libc.madvise(at, PIECE, 4)
    return 0
def pieces(how):
    for count in range(24):
        errno = piece(how)
        if errno: return count, errno
    return 24, 0
how = sys.argv[1]
if how == 'threads':
    found = []
    threads = [threading.Thread(target=lambda: found.append(pieces(''))) for _ in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(min(24, sum([count for count, _ in found])), found[0][1])
elif how == 'children':
    total = 0
    for _ in range(12):
        near, far = os.pipe()
        if os.fork() == 0:
            count, errno = pieces('')
            os.write(far, bytes([count, errno])); os.read(os.pipe()[0], 1)
        count, errno = os.read(near, 2); total += count
    print(min(24, total), errno); os.kill(0, 9)
else: print(*pieces(how))";

fn shared(caller: &Caller) -> Check {
    for how in ["let go", "rest", "named", "threads", "children"] {
        let options = ["--memory", LIMIT];
        let report = caller.json(&options, &["/usr/bin/python3", "-uc", SHARED, how])?;
        // No more than the limit, and ENOMEM for what is beyond it.
        equal(how, text(&report, "stdout"), "8 12\n")?;
        equal("not reported", denials(&report), vec![])?;
    }
    // The control: outside of a cell nothing counts it.
    let outside = caller.python_outside(&SHARED.replace("sys.argv[1]", "'rest'"))?;
    equal("outside", outside.trimmed(), "24 0")
}

/// Segments of 8 MiB, which no process keeps attached. Each way says how many it could have, and the errno.
const SEGMENTS: &str = "
import sys, threading
libc.shmat.restype = ctypes.c_void_p; libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
PIECE = 8 << 20
made = []
def segment(how):
    one = call(29, 0, PIECE, 0o1600)
    if isinstance(one, str): return one
    made.append(one)
    if how != 'made':
        at = libc.shmat(one, None, 0); ctypes.memset(at, 1, PIECE)
        if how == 'removed': call(31, one, 0, None)
        libc.shmdt(at)
def segments(how):
    for count in range(24):
        error = segment(how)
        if error: return count, error
    return 24, 'all'
def all_at_once(how):
    found = []
    threads = [threading.Thread(target=lambda: found.append(segments(how))) for _ in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return sum(count for count, _ in found), found[0][1]
def in_children(how):
    total = 0
    for _ in range(12):
        near, far = os.pipe()
        if os.fork() == 0: os.write(far, repr(segments(how)).encode()); os._exit(0)
        count, error = eval(os.read(near, 99)); total += count; os.wait()
    return total, error
";

fn segments(caller: &Caller) -> Check {
    let run = |line: &str| -> Result<String, crate::support::Failed> {
        let script = format!("{CALLS}{SEGMENTS}\n{line}");
        let options = ["--memory", LIMIT, "--timeout", "60s"];
        let report = caller.json(&options, &["/usr/bin/python3", "-c", &script])?;
        equal("not reported", denials(&report), vec![])?;
        Ok(format!("{}{}", text(&report, "stdout"), text(&report, "stderr")))
    };
    for way in [
        "segments('made')",
        "segments('touched')",
        "all_at_once('touched')",
        "in_children('touched')",
    ] {
        equal(way, run(&format!("print(*{way})"))?.as_str(), "8 ENOSPC\n")?;
    }
    // A segment that was removed is gone with its last user.
    equal("removed", run("print(*segments('removed'))")?.as_str(), "24 all\n")?;
    // Together with shared memory without a file, whichever is first.
    let mapped = "
import mmap
def mapped():
    kept = []
    for _ in range(24):
        try: kept.append(mmap.mmap(-1, PIECE))
        except OSError as error: return len(kept), errno.errorcode[error.errno], kept
";
    let first = format!("{mapped}segment('made'); segment('made'); print(*mapped()[:2])");
    equal("segments first", run(&first)?.as_str(), "6 ENOMEM\n")?;
    let second = format!(
        "{mapped}kept = [mmap.mmap(-1, PIECE) for _ in range(3)]; print(*segments('made'))"
    );
    equal("mappings first", run(&second)?.as_str(), "5 ENOSPC\n")?;
    // The size of an existing segment is 0. Huge pages, no size, more than all, and beyond every number.
    let odd = "
one = call(29, 77, PIECE, 0o1600); print(call(29, 77, 0, 0) == one, call(29, 77, PIECE, 0) == one, call(29, 78, 0, 0), end=' ')
print(call(29, 0, 0, 0o1600), call(29, 0, PIECE, 0o5600), call(29, 0, 64 << 20, 0o1600), call(29, 0, -1, 0o1600))
print(len([1 for _ in range(4000) if not isinstance(call(29, 0, 1, 0o1600), str)]))";
    let expected = "True True ENOENT EINVAL ENOSPC ENOSPC ENOSPC\n4000\n";
    equal("odd ones", run(odd)?.as_str(), expected)?;
    // The control: outside nothing counts them.
    let outside = format!(
        "{CALLS}{SEGMENTS}\nprint(*segments('made'))\nfor one in made: call(31, one, 0, None)"
    );
    equal("outside", caller.python_outside(&outside)?.trimmed(), "24 all")
}

fn segments_again(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}{SEGMENTS}
for _ in range(200):
    one = call(29, 0, 40 << 20, 0o1600); call(31, one, 0, None)
PIECE = 40 << 20
print([segment('removed') for _ in range(20)].count(None))"
    );
    let report = caller.json(&["--memory", LIMIT], &["/usr/bin/python3", "-c", &script])?;
    equal("made each time", (text(&report, "stdout"), text(&report, "stderr")), ("20\n", ""))
}

fn shared_page(caller: &Caller) -> Check {
    let script = "
import mmap
kept = []
for _ in range(20):
    mmap.mmap(-1, 30 << 20).close()
    kept.append(mmap.mmap(-1, 4096))
print(len(kept))";
    let report = caller.json(&["--memory", LIMIT], &["/usr/bin/python3", "-c", script])?;
    equal("granted each time", (text(&report, "stdout"), text(&report, "stderr")), ("20\n", ""))
}

/// A name of a process need not be text: one given by prctl(2), and that of a file that is executed.
fn any_name(caller: &Caller) -> Check {
    let script = "
import ctypes, os, sys, time
def grow():
    page = bytearray(30 << 20)
    for at in range(0, len(page), 4096): page[at] = 1
    os.write(1, b'x'); open('/tmp/made%d' % os.getppid(), 'a').write('x'); time.sleep(60)
if sys.argv[1] == 'again': grow()
named = b'/tmp/a\\xff'
if sys.argv[1] == 'file':
    with open(named, 'wb') as file: file.write(open('/usr/bin/python3', 'rb').read())
    os.chmod(named, 0o755)
for number in range(10):
    if os.fork() == 0:
        if sys.argv[1] == 'file': os.execv(named, [named, '-c', sys.orig_argv[-2], 'again'])
        if sys.argv[1] == 'prctl': ctypes.CDLL(None).prctl(15, b'a\\xff\\xfe', 0, 0, 0)
        grow()
    time.sleep(.1); made = '/tmp/made%d' % os.getpid()
    while not os.path.exists(made) or os.path.getsize(made) <= number: time.sleep(.01)
time.sleep(60)";
    for how in ["text", "prctl", "file"] {
        ends(caller, &["/usr/bin/python3", "-c", script, how], &[], 30 * MIB)
            .map_err(|failed| format!("{how}: {failed:?}"))?;
    }
    Ok(())
}

/// The first thread has ended, and those that a look lists have ended before it reads what they have.
fn chain(caller: &Caller) -> Check {
    let source = "
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static size_t length = 30 << 20;
static int to, chained;
static void *link_of(void *none) {
    pthread_attr_t small; pthread_t next;
    pthread_attr_init(&small); pthread_attr_setstacksize(&small, 16384); pthread_attr_setdetachstate(&small, 1);
    while (pthread_create(&next, &small, link_of, 0)) sched_yield();
    return 0;
}
static void *first(void *none) {
    char *place = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) _exit(0);
    for (size_t at = 0; at < length; at += 4096) place[at] = 1;
    madvise(place, length, MADV_DONTNEED);
    if (chained) { link_of(0); link_of(0); }
    write(to, \"x\", 1);
    if (!chained) pause();
    return 0;
}
int main(int count, char **words) {
    chained = words[1][0] == 'c';
    for (int try = 0; try < 60; try++) {
        int ends[2]; char made; pthread_t thread;
        pipe(ends);
        if (!fork()) {
            close(ends[0]); to = ends[1];
            pthread_create(&thread, 0, first, 0); pthread_detach(thread);
            syscall(SYS_exit, 0);
        }
        close(ends[1]);
        if (read(ends[0], &made, 1) == 1) write(1, \"x\", 1);
        close(ends[0]);
    }
    return 0;
}";
    let program = built(caller, "chain", source)?;
    let argv = |how| ["/mnt/chain", how];
    let options = ["--memory", LIMIT, "--ro", &program];
    let report = caller.json(&options, &argv("stays"))?;
    equal("the control: a thread that stays is seen", text(&report, "stdout"), "xx")?;
    // Two grants, or an end because the memory of a process can no longer be read.
    let report = caller.json(&options, &argv("chain"))?;
    let made = text(&report, "stdout").len() * 30 * MIB;
    holds("no more than the limit", &report, made <= 64 * MIB && made > 0)
}

fn huge(caller: &Caller) -> Check {
    let script = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
# Of the host's usual size, and of one that no processor has: the kernel would answer EINVAL.
for kind in (1, 2, 1 | 5 << 26, 2 | 5 << 26):
    found = libc.mmap(None, 1 << 21, 3, kind | 0x20 | 0x40000, -1, 0)
    print(found == ctypes.c_void_p(-1).value, ctypes.get_errno(), end=' ')
print(libc.mmap(None, 1 << 21, 3, 0x22, -1, 0) != ctypes.c_void_p(-1).value)";
    let report = caller.json(&["--memory", LIMIT], &["/usr/bin/python3", "-c", script])?;
    let outside = caller.python_outside(script)?;
    holds(
        "the control: the kernel answers itself",
        &outside,
        outside.trimmed().contains("True 22 True 22 True"),
    )?;
    equal("ENOMEM", text(&report, "stdout"), "True 12 True 12 True 12 True 12 True\n")
}

/// Two hundred threads ask for what is beyond the limit; another call that init answers is timed.
fn flood(caller: &Caller) -> Check {
    let source = "
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>
static size_t length = (size_t)1 << 40;
static void *ask(void *none) { for (;;) mmap(0, length, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0); }
int main(void) {
    // Mappings that a look at the cell would have to read.
    for (int child = 0; child < 40; child++) if (!fork()) {
        char *place = mmap(0, 4000 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        for (int page = 0; page < 4000; page += 2) mprotect(place + 4096L * page, 4096, PROT_READ);
        pause();
    }
    pthread_attr_t small; pthread_t thread;
    pthread_attr_init(&small); pthread_attr_setstacksize(&small, 16384);
    for (int made = 0; made < 200; made++) if (pthread_create(&thread, &small, ask, 0)) return 1;
    sleep(1);
    struct timespec before, after; struct sysinfo told;
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (int time = 0; time < 5; time++) sysinfo(&told);
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf(\"%ld\\n\", (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000);
    return 0;
}";
    let program = built(caller, "flood", source)?;
    let options = ["--memory", "256M", "--processes", "256", "--ro", &program];
    let report = caller.json(&options, &["/mnt/flood"])?;
    let milliseconds: u64 = text(&report, "stdout").trim().parse().unwrap_or(u64::MAX);
    // Five answers, each behind two hundred others: far from the 70 seconds that a look for each would take.
    holds("answered meanwhile", &report, milliseconds < 20_000)
}

/// More than the limit one after the other, in one process and in many.
fn shared_again(caller: &Caller) -> Check {
    let script = "
import mmap, os, threading
def again(count):
    for _ in range(count):
        page = mmap.mmap(-1, 40 << 20); page[0] = 1; page.close()
again(500)
for _ in range(40):
    if os.fork() == 0: again(3); os._exit(0)
    print(os.wait()[1], end=' ')
thread = threading.Thread(target=again, args=(50,)); thread.start(); thread.join()
kept = [mmap.mmap(-1, 4096) for _ in range(2000)]
print(len(kept))";
    let report = caller.json(&["--memory", LIMIT], &["/usr/bin/python3", "-c", script])?;
    let found = (text(&report, "stdout"), text(&report, "stderr"));
    equal("granted each time", found, (format!("{}2000\n", "0 ".repeat(40)).as_str(), ""))
}

fn device(caller: &Caller) -> Check {
    let script = "
import errno, mmap, os
for flags in os.O_RDWR, os.O_RDONLY:
    try: file = os.open('/dev/zero', flags); print(len(os.read(file, 9)))
    except OSError as error: print(errno.errorcode[error.errno])
page = mmap.mmap(os.open('/dev/zero', 0), 40 << 20, mmap.MAP_SHARED, mmap.PROT_READ)
sizes = [line.split()[1] for line in open('/proc/self/maps') if line.endswith('/dev/zero (deleted)\\n')]
print(page[1], sizes)";
    let report = caller.json(&[], &["/usr/bin/python3", "-c", script])?;
    equal("read, and mapped as nothing shared", text(&report, "stdout"), "EACCES\n9\n0 []\n")?;
    let outside = caller.python_outside(
        &script.replace("mmap(os.open('/dev/zero', 0)", "mmap(os.open('/dev/zero', 2)"),
    )?;
    equal("the control", outside.trimmed(), "9\n9\n0 ['r--s']")
}

/// A server and its clients, with the default limit.
fn ordinary(caller: &Caller) -> Check {
    let script = "
import asyncio
async def main():
    async def serve(reader, writer):
        writer.write(await reader.readline()); await writer.drain(); await reader.read(); writer.close()
    server = await asyncio.start_server(serve, '127.0.0.1', 0, backlog=500)
    place = server.sockets[0].getsockname()
    ends = await asyncio.gather(*[asyncio.open_connection(*place) for _ in range(200)])
    for reader, writer in ends: writer.write(b'x' * 60000 + b'\\n')
    print(sum([len(await reader.readline()) for reader, writer in ends]))
    await asyncio.sleep(0.3)
    for reader, writer in ends: writer.close()
asyncio.run(main())";
    let report = caller.json(&[], &["/usr/bin/python3", "-c", script])?;
    let found = (text(&report, "outcome"), text(&report, "stdout"), denials(&report));
    equal("two hundred answers", found, ("exited", "12000200\n", vec![]))
}

/// Checks version 1 of control groups, which counts TCP separately, and only if that has a limit.
fn counted(caller: &Caller) -> Check {
    let script = "
import os, socket, time
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(500)
kept, block, held = [], bytes(1 << 16), 0
end = time.monotonic() + 8
while len(kept) < 400 and held < 600 << 20 and time.monotonic() < end:
    near = socket.create_connection(listener.getsockname(), 2)
    far = listener.accept()[0]
    kept += [near, far]
    for end_ in near, far:
        end_.setblocking(False)
        for option in 7, 8: end_.setsockopt(1, option, 1 << 24)
        try:
            while True: held += end_.send(block)
        except BlockingIOError: pass
print(held >> 20)";
    let report = caller
        .json(&["--memory", LIMIT, "--timeout", "60s"], &["/usr/bin/python3", "-c", script])?;
    let held: Option<usize> = text(&report, "stdout").trim().parse().ok();
    // Ending the cell instead is as good.
    let limit = (text(&report, "outcome"), text(&report, "limit")) == ("limit", "memory");
    holds(
        "twice the limit at most",
        &report,
        limit || held.is_some_and(|mebibytes| mebibytes <= 128),
    )
}
