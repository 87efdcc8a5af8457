//! The system call filter: what is refused, with which errno, how it is reported; and what still works.

use crate::support::{
    CALLS, Caller, Check, Claim, Finished, Need, Who, claim, denials, equal, holds, patience, soon,
    text,
};
use serde_json::{Value, json};

const RAW: &[Need] = &[Need::Python];
const X86: &[Need] = &[Need::Python, Need::X86_64];

pub const CLAIMS: &[Claim] = &[
    claim("kernel_surface_is_refused_with_eperm_and_counted", surface).needs(RAW),
    claim("calls_whose_flags_no_filter_sees_are_absent", absent).needs(RAW),
    claim("known_probes_are_refused_and_not_reported", quiet).needs(RAW),
    claim("the_x32_table_is_absent", x32).needs(X86),
    claim("the_i386_entry_is_absent", i386).needs(&[Need::Gcc, Need::X86_64]),
    claim("sockets_are_of_the_granted_families_only", sockets).needs(RAW),
    claim("a_terminals_input_cannot_be_forged", terminal).needs(RAW),
    claim("arguments_are_compared_by_their_low_32_bits", low_bits).needs(RAW),
    claim("set_id_bits_are_refused_and_other_modes_work", set_id).needs(RAW),
    claim("a_descriptors_signals_reach_the_cells_processes_and_not_init", owners).needs(RAW),
    claim("calls_that_no_shell_needs_are_refused_and_their_neighbours_work", unneeded).needs(RAW),
    claim("files_in_memory_are_neither_shown_nor_dropped", page_cache).needs(RAW),
    claim("sync_returns_at_once_and_fsync_works", flushing).needs(RAW),
    claim("sockets_take_listed_options_only", options).needs(RAW),
    claim("memory_without_a_name_needs_a_memory_cgroup", memfd).needs(RAW),
    claim("every_number_can_be_called_and_the_cell_goes_on", sweep).needs(RAW),
    claim("ten_thousand_denials_are_counted_and_then_at_least", many).needs(RAW),
    claim("a_denial_names_the_grant_that_would_allow_it", grants).needs(RAW),
    claim("a_child_that_outlives_its_parents_filter_listener_is_answered", orphans).needs(RAW),
    claim("bc_runs_and_can_run_nothing_else", bc_only).needs(&[Need::Bc]),
];

/// The kernel surface of the threat list, by number on x86_64.
const SURFACE: [(&str, u32); 76] = [
    ("setns", 308),
    ("keyctl", 250),
    ("add_key", 248),
    ("request_key", 249),
    ("bpf", 321),
    ("perf_event_open", 298),
    ("userfaultfd", 323),
    ("io_uring_enter", 426),
    ("io_uring_register", 427),
    ("io_setup", 206),
    ("io_submit", 209),
    ("io_destroy", 207),
    ("io_cancel", 210),
    ("io_getevents", 208),
    ("io_pgetevents", 333),
    ("modify_ldt", 154),
    ("kexec_load", 246),
    ("kexec_file_load", 320),
    ("init_module", 175),
    ("finit_module", 313),
    ("delete_module", 176),
    ("swapon", 167),
    ("swapoff", 168),
    ("acct", 163),
    ("reboot", 169),
    ("syslog", 103),
    ("settimeofday", 164),
    ("clock_settime", 227),
    ("clock_adjtime", 305),
    ("adjtimex", 159),
    ("quotactl", 179),
    ("quotactl_fd", 443),
    ("fanotify_init", 300),
    ("fanotify_mark", 301),
    ("kcmp", 312),
    ("move_pages", 279),
    ("migrate_pages", 256),
    ("set_mempolicy_home_node", 450),
    ("process_madvise", 440),
    ("process_mrelease", 448),
    ("memfd_secret", 447),
    ("seccomp", 317),
    ("lsm_get_self_attr", 459),
    ("lsm_set_self_attr", 460),
    ("lsm_list_modules", 461),
    ("cachestat", 451),
    ("statmount", 457),
    ("listmount", 458),
    ("mount", 165),
    ("umount2", 166),
    ("pivot_root", 155),
    ("chroot", 161),
    ("fsopen", 430),
    ("fsconfig", 431),
    ("fsmount", 432),
    ("fspick", 433),
    ("open_tree", 428),
    ("move_mount", 429),
    ("mount_setattr", 442),
    ("open_by_handle_at", 304),
    ("ptrace", 101),
    ("process_vm_readv", 310),
    ("process_vm_writev", 311),
    ("pidfd_getfd", 438),
    ("sethostname", 170),
    ("setdomainname", 171),
    ("iopl", 172),
    ("ioperm", 173),
    ("vhangup", 153),
    ("uselib", 134),
    ("ustat", 136),
    ("sysfs", 139),
    ("lookup_dcookie", 212),
    ("remap_file_pages", 216),
    ("vmsplice", 278),
    ("landlock_create_ruleset", 444),
];

fn surface(caller: &Caller) -> Check {
    // Calls that this architecture has.
    let here = || SURFACE.iter().filter(|(name, _)| model::profile::calls::number(name).is_some());
    let numbers: Vec<u32> = here().map(|(_, number)| *number).collect();
    let script = format!(
        "{CALLS}\nfor n in {numbers:?}:\n    print(n, call(n, 0, 0, 0, 0, 0, 0))\nprint(os.getpid())"
    );
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let expected: String = numbers.iter().map(|number| format!("{number} EPERM\n")).collect();
    equal("each in a cell", text(&report, "stdout"), format!("{expected}3\n"))?;
    let mut counted: Vec<(String, u64)> = here().map(|(name, _)| ((*name).to_owned(), 1)).collect();
    counted.sort_unstable();
    equal("each is reported", denials(&report), counted)?;
    // The control: the kernel has another answer to some of them without the filter.
    let control = caller.python_outside(&format!(
        "{CALLS}\nprint(call(272, 0, 0), call(312, 0, 0, 0, 0, 0), call(278, 0, 0, 0, 0))"
    ))?;
    equal("unshare, kcmp, vmsplice outside", control.trimmed(), "0 ESRCH EBADF")
        .or_else(|_| equal("unshare, kcmp, vmsplice outside", control.trimmed(), "0 ESRCH 0"))
}

fn absent(caller: &Caller) -> Check {
    let script =
        format!("{CALLS}\nprint(call(435, bytes(88), 88), call(437, -100, b'/', bytes(24), 24))");
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    equal("clone3 and openat2", text(&report, "stdout"), "ENOSYS ENOSYS\n")?;
    equal("not reported: libc falls back", denials(&report), vec![])?;
    let control = caller.python_outside(&script)?;
    holds("outside openat2 works", &control, !control.trimmed().contains("ENOSYS"))
}

fn quiet(caller: &Caller) -> Check {
    let numbers = "425, 239, 238, 237, 303";
    let script = format!("{CALLS}\nprint([call(n, 0, 0, 0, 0, 0, 0) for n in ({numbers})])");
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let expected = "['EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM']\n";
    equal("io_uring_setup, mempolicy, handles", text(&report, "stdout"), expected)?;
    equal("not reported", denials(&report), vec![])
}

fn x32(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}\nprint([call(0x40000000 + n, 0, 0, 0) for n in (39, 272, 512, 520, 547)])"
    );
    let output = caller.python(&script)?;
    equal("x32", output.trimmed(), "['ENOSYS', 'ENOSYS', 'ENOSYS', 'ENOSYS', 'ENOSYS']")?;
    equal("getpid itself", caller.python(&format!("{CALLS}\nprint(call(39))"))?.trimmed(), "3")
}

/// The 32-bit entry of the kernel, from a program that the cell's own compiler makes.
fn i386(caller: &Caller) -> Check {
    const SOURCE: &str = "#include <stdio.h>
int main(void) { long got; __asm__ volatile (\"int $0x80\" : \"=a\"(got) : \"a\"(20L), \"b\"(0L) : \"memory\"); printf(\"%ld\\n\", got > 0 ? 1 : got); }";
    let line = format!("cd /tmp && printf '%s' '{SOURCE}' > a.c && gcc -o a a.c && ./a");
    // 20 is getpid there; a kernel without the entry ends the program by SIGSEGV.
    let here = caller.home.join("a.c");
    std::fs::write(&here, SOURCE)?;
    equal("it compiles outside", caller.bash_outside("gcc -o a a.c")?.code, 0)?;
    let outside = caller.bash_outside("./a")?;
    let has_entry = outside.trimmed() == "1";
    holds("outside: a process id, or no such entry", &outside, has_entry || outside.code == 139)?;
    let output = caller.bash(&line)?;
    match has_entry {
        true => equal("-ENOSYS", output.trimmed(), "-38"),
        false => equal("no such entry", output.code, 139),
    }
}

fn sockets(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
def make(*a): return tried(lambda: socket.socket(*a).close())
print([make(*a) for a in ((1, 1), (1, 2), (1, 5), (2, 1), (2, 2), (10, 1), (10, 2))])
print([make(f, t) for f in (3, 4, 5, 9, 15, 16, 17, 21, 29, 30, 31, 32, 38, 40, 41, 42, 43, 44) for t in (1, 2, 3, 5)])
print([make(*a) for a in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (2, 2, 1), (2, 1, 262), (2, 1, 132), (2, 2, 136), (2, 5, 132), (2, 6, 33), (2, 10), (1, 3))])
print([tried(lambda: socket.socketpair(1, t)) for t in (1, 2, 5)], call(53, 2, 1, 0, 0), call(53, 16, 1, 0, 0))"
    );
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let list =
        |word: &str, count: usize| format!("[{}]", vec![format!("'{word}'"); count].join(", "));
    // Route netlink, by either type: 5 families of 4 kinds before it.
    let families = [list("EPERM", 21), list("ok", 2), list("EPERM", 49)].join(", ");
    let families = families.replace("], [", ", ");
    let expected = format!(
        "{}\n{families}\n{}\n{} EPERM EPERM\n",
        list("ok", 7),
        list("EPERM", 11),
        list("ok", 3)
    );
    equal("granted, families, kinds, pairs", text(&report, "stdout"), expected)?;
    let counted = vec![("socket".to_owned(), 81), ("socketpair".to_owned(), 2)];
    equal("each is reported", denials(&report), counted)?;
    let control = caller.python_outside(&format!(
        "{CALLS}\nprint(tried(lambda: socket.socket(16, 3)), tried(lambda: socket.socket(40, 1)) != 'EPERM')"
    ))?;
    equal("netlink and vsock outside", control.trimmed(), "ok True")
}

fn terminal(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}\nprint([call(16, 0, r, b'x') for r in (0x5412, 0x541c, 0x541d, 0x5423)], call(16, 0, 0x541b, bytes(4)))"
    );
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let expected = "['EPERM', 'EPERM', 'EPERM', 'EPERM'] 0\n";
    let found = text(&report, "stdout").replace("ENOTTY\n", "0\n");
    equal("TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD; FIONREAD", found.as_str(), expected)?;
    equal("reported", denials(&report), vec![("ioctl".to_owned(), 4)])
}

fn low_bits(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
high = 1 << 32
print(call(16, 0, high | 0x5412, b'x'), call(72, 0, high | 8, 1), call(308, 0, high), call(272, high | 0x10000000), call(56, high | 0x10000011, 0, 0, 0, 0))
print(call(41, high | 16, high | 3, high) > 2, call(41, high | 16, 3, high | 9), call(41, high | 2, high | 3, high | 1))"
    );
    let output = caller.python(&script)?;
    equal("with a bit above", output.trimmed(), "EPERM EPERM EPERM EPERM EPERM\nTrue EPERM EPERM")
}

fn set_id(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
open('/tmp/f', 'w')
print([tried(lambda: os.chmod('/tmp/f', m)) for m in (0o4755, 0o2755, 0o6755, 0o755, 0o1777)])
print(call(2, b'/tmp/g', 0o101, 0o4755), call(85, b'/tmp/g', 0o2755), call(257, -100, b'/tmp/g', 0o101, 0o6777), call(268, -100, b'/tmp/f', 0o4755))
print(oct(os.stat('/tmp/f').st_mode), os.path.exists('/tmp/g'))"
    );
    let expected =
        "['EPERM', 'EPERM', 'EPERM', 'ok', 'ok']\nEPERM EPERM EPERM EPERM\n0o101777 False";
    equal("chmod, open, creat, openat, fchmodat", caller.python(&script)?.trimmed(), expected)
}

/// F_SETOWN (8) and what is left out beside it; F_GETFD, F_DUPFD_CLOEXEC, F_GETOWN_EX.
fn owners(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
r, w = os.pipe()
print([call(72, r, c, 1) for c in (8, 10, 15, 1024, 1026)], call(16, r, 0x8901, struct.pack('i', 1)), call(16, r, 0x8902, struct.pack('i', 1)))
print([call(72, r, 8, who) for who in (-1, 1 << 32 | 1, 0xffffffff)], call(72, 1 << 32 | r, 1 << 32 | 8, 1))
print([call(72, r, 8, who) for who in (999999, -999999, 0)], call(72, r, 1, 0), call(72, r, 1030, 0) > 0)
me = os.getpgrp(); owner = bytes(8)
for who in me, -me:
    seen = []; signal.signal(signal.SIGIO, lambda *_: seen.append('SIGIO'))
    print(call(72, r, 8, who), call(72, r, 16, owner), struct.unpack('2i', owner) == (1 if who > 0 else 2, me), end=' ')
    import fcntl; fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b'x'); print(seen)"
    );
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let expected = "['EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM'] EPERM EPERM\n\
        ['EPERM', 'EPERM', 'EPERM'] EPERM\n['ESRCH', 'ESRCH', 0] 1 True\n\
        0 0 True ['SIGIO']\n0 0 True ['SIGIO']\n";
    equal("F_SETOWN and its like", text(&report, "stdout"), expected)?;
    equal("reported", denials(&report), vec![("fcntl".to_owned(), 9), ("ioctl".to_owned(), 2)])?;
    // The control: outside, process 1 can be named.
    let outside = format!("{CALLS}\nr, w = os.pipe()\nprint(call(72, r, 8, 1))");
    equal("outside", caller.python_outside(&outside)?.trimmed(), "0")
}

/// Priority inheritance, data out of band, merging of pages, timers on processor time, `setxattrat`.
fn unneeded(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
import mmap
page = mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
word = bytes(8)
print([call(202, bytes(4), op | flags, 0, 0, 0, 0) for op in (6, 7, 8, 11, 12, 13) for flags in (0, 128)])
print([call(202, bytes(4), op, 1) for op in (1, 129)])
print([call(28, at, 1 << 16, advice) for advice in (12, 13, 25)], [call(28, at, 1 << 16, advice) for advice in (4, 8, 14, 15)])
print([call(222, clock, 0, bytes(8)) for clock in (2, 3, -6 & 0xffffffff)], [call(222, clock, 0, bytes(8)) for clock in (0, 1, 7)])
print([call(230, clock, 0, bytes(16), 0) for clock in (2, 3, -6 & 0xffffffff)], [call(230, clock, 0, bytes(16), 0) for clock in (0, 1, 7)])
one, other = socket.socketpair()
print(call(44, one.fileno(), b'x', 1, 1, 0, 0), call(44, one.fileno(), b'x', 1, (1 << 32) | 1, 0, 0), call(46, one.fileno(), 0, 1), call(307, one.fileno(), 0, 1, 1), call(44, one.fileno(), b'x', 1, 0x4000, 0, 0))
print([call(n, -100, b'/tmp', 0, b'user.a', 0, 0) for n in (463, 464, 465, 466)], call(191, b'/tmp', b'user.a', 0, 0))"
    );
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let absent = format!("[{}]", ["'ENOSYS'"; 12].join(", "));
    let expected = format!(
        "{absent}\n[0, 0]\n['EINVAL', 'EINVAL', 'EINVAL'] [0, 0, 0, 0]\n\
         ['EPERM', 'EPERM', 'EPERM'] [0, 0, 0]\n['EPERM', 'EPERM', 'EPERM'] [0, 0, 0]\n\
         EPERM EPERM EPERM EPERM 1\n['ENOSYS', 'ENOSYS', 'ENOSYS', 'ENOSYS'] "
    );
    let found = text(&report, "stdout");
    let known = ["ENODATA\n", "EOPNOTSUPP\n", "ENOTSUP\n"].map(|last| format!("{expected}{last}"));
    holds("each", found, known.iter().any(|known| found == known))?;
    let counted = [
        ("clock_nanosleep", 3),
        ("sendmmsg", 1),
        ("sendmsg", 1),
        ("sendto", 2),
        ("timer_create", 3),
    ];
    let counted = counted.map(|(name, count)| (name.to_owned(), count));
    equal("those that are reported", denials(&report), counted.to_vec())?;
    // The control: outside a timer on processor time is made, and a byte is sent out of band.
    let control = caller.python_outside(&format!(
        "{CALLS}\none, other = socket.socketpair()
print(call(222, 2, 0, bytes(8)), call(44, one.fileno(), b'x', 1, 1, 0, 0) in (1, 'EOPNOTSUPP'))"
    ))?;
    equal("outside", control.trimmed(), "0 True")
}

/// Ways to ask whether a file is in memory and to drop it from there. The script sets `name` first: a file of
/// Python's library that no program has mapped.
const FILE: &str = "
import mmap, sysconfig
held = os.open(sysconfig.get_path('stdlib') + name, os.O_RDONLY)
mapped = ctypes.c_char.from_buffer(mmap.mmap(held, 1, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
at = ctypes.c_void_p(ctypes.addressof(mapped))
size = ctypes.c_size_t(1)
def look(flags): return tried(lambda: os.preadv(held, [bytearray(1)], 0, flags))
def drop(): os.posix_fadvise(held, 0, 0, os.POSIX_FADV_DONTNEED)
def answer(got): return got if got == 0 else errno.errorcode[ctypes.get_errno()]
";

/// RWF_NOWAIT, RWF_DONTCACHE, POSIX_FADV_DONTNEED, MADV_COLD, MADV_PAGEOUT and `mincore`.
fn page_cache(caller: &Caller) -> Check {
    // The control drops the file, and the claim runs as root and as a user at once: each has its own.
    let name = match caller.who {
        Who::Root => "name = '/antigravity.py'",
        Who::User => "name = '/this.py'",
    };
    let script = format!(
        "{CALLS}{name}{FILE}
os.read(held, 1)
print(look(8), look(8 | 4), look(0x80), look(4))
print([tried(drop) for _ in range(20)].count('ok'), tried(lambda: os.posix_fadvise(held, 0, 0, os.POSIX_FADV_WILLNEED)))
print([answer(libc.madvise(at, size, advice)) for advice in (20, 21, 3)], answer(libc.mincore(at, size, bytes(1))))"
    );
    let object = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    // Python's name of EOPNOTSUPP.
    let expected = "ENOTSUP ENOTSUP ENOTSUP ok\n20 ok\n['EINVAL', 'EINVAL', 0] EPERM\n";
    equal("in the cell", text(&object, "stdout"), expected)?;
    equal("nothing is reported", denials(&object), Vec::new())?;
    // Outside it is seen that the file is still in memory; and, the control, that dropping it works.
    let control = caller.python_outside(&format!(
        "{CALLS}{name}{FILE}
print(look(8))
print(any(tried(drop) == 'ok' and look(8) == 'EAGAIN' for _ in range(1000)))"
    ))?;
    equal("outside", (control.trimmed(), control.stderr.as_str()), ("ok\nTrue", ""))
}

/// sync(2), syncfs(2) with any descriptor, the programs, and fsync(2) of a file.
fn flushing(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
import subprocess
print([call(162) for _ in range(1000)].count(0), call(306, 1), call(306, -1))
held = os.open('/tmp/f', os.O_CREAT | os.O_WRONLY); os.write(held, b'x')
print(tried(lambda: os.fsync(held)), tried(os.sync), subprocess.run('sync && sync -f /tmp && sync /tmp/f', shell=True).returncode)"
    );
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    equal("in the cell", text(&report, "stdout"), "1000 0 0\nok ok 0\n")?;
    equal("nothing is reported", denials(&report), Vec::new())?;
    // The control: outside the kernel looks at the descriptor.
    let outside = caller.python_outside(&format!("{CALLS}\nprint(call(306, -1))"))?;
    equal("outside", outside.trimmed(), "EBADF")
}

fn options(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
tcp, tcp6, udp = socket.socket(), socket.socket(socket.AF_INET6), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def set(s, level, option, value=1): return tried(lambda: s.setsockopt(level, option, value))
print([set(tcp, 1, o) for o in (2, 9, 15)], [set(tcp, 6, o) for o in (1, 3, 4, 5, 6, 9, 12, 18, 23, 25, 30)])
print([set(tcp, 0, o) for o in (1, 2, 15, 24)], [set(udp, 0, o, 0) for o in (8, 10, 11, 33, 34)], [set(tcp6, 41, o) for o in (26, 16, 67, 25, 49)])
print(set(udp, 0, 35, socket.inet_aton('224.0.0.251') + socket.inet_aton('127.0.0.1')))
print([set(tcp, 6, 13, b'reno'), set(tcp, 6, 31, b'tls'), set(tcp, 6, 14, bytes(216)), set(tcp, 6, 19), set(tcp, 6, 33, bytes(16))])
print([set(udp, 0, o, bytes(40)) for o in (4, 16, 41, 64)], [set(tcp6, 41, o, bytes(32)) for o in (1, 32, 54, 57, 59, 48)])
print(set(tcp, 1, 13, struct.pack('ii', 1, 5)), tcp.getsockopt(1, 13, 8) == bytes(8))"
    );
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let list =
        |word: &str, count: usize| format!("[{}]", vec![format!("'{word}'"); count].join(", "));
    let (ok, refused) = (|count| list("ok", count), |count| list("EPERM", count));
    let expected = format!(
        "{} {}\n{} {} {}\nok\n{}\n{} {}\nok True\n",
        ok(3),
        ok(11),
        ok(4),
        ok(5),
        ok(5),
        refused(5),
        refused(4),
        refused(6)
    );
    equal("listed and not listed", text(&report, "stdout"), expected)?;
    equal("reported", denials(&report), vec![("setsockopt".to_owned(), 15)])?;
    let control = caller.python_outside("import socket; s = socket.socket(); s.setsockopt(6, 13, b'reno'); s.setsockopt(0, 4, bytes(4)); s.setsockopt(1, 13, bytes([1] * 8)); print(any(s.getsockopt(1, 13, 8)))")?;
    equal("outside", control.trimmed(), "True")
}

fn memfd(caller: &Caller) -> Check {
    let script = format!("{CALLS}\nprint(call(319, b'x', 0), call(68, 0, 0o1600))");
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let memory = report.pointer("/receipt/configured/memory").and_then(Value::as_str);
    if memory == Some("best-effort") {
        equal("memfd_create, msgget", text(&report, "stdout"), "EPERM EPERM\n")?;
        let counted = vec![("memfd_create".to_owned(), 1), ("msgget".to_owned(), 1)];
        return equal("reported", denials(&report), counted);
    }
    holds("only root has a cgroup here", caller.who, caller.who == Who::Root || memory.is_some())?;
    holds("they work", &report, !text(&report, "stdout").contains('E'))
}

/// Every number with zeroes, each in a child that an alarm ends; init must still answer.
fn sweep(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
tried_ = 0
for n in range(0, 501):
    child = os.fork()
    if child == 0:
        signal.alarm(1)
        os.setpgid(0, 0)
        call(n, 0, 0, 0, 0, 0, 0)
        os._exit(0)
    os.waitpid(child, 0)
    tried_ += 1
print(tried_, call(272, 0x10000000), flush=True)"
    );
    // Five hundred processes of Python: a call that holds one up would take its second, one that holds up init all of it.
    let most = format!("{}s", soon(80).as_secs().min(600));
    let report = caller.json(&["--timeout", &most], &["/usr/bin/python3", "-c", &script])?;
    let ended = report.get("outcome").map(Value::to_string).unwrap_or_default();
    let found = (text(&report, "stdout"), ended.contains("timeout"));
    equal("all were tried and the filter holds", found, ("501 EPERM\n", false))?;
    equal("the end", report.get("exit_code"), Some(&json!(0)))?;
    let after = caller.bash("echo next")?;
    equal("the next call", after.trimmed(), "next")
}

fn many(caller: &Caller) -> Check {
    let script = format!("{CALLS}\nfor _ in range(10100): call(163)\nprint(call(163))");
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    equal("refused to the end", text(&report, "stdout"), "EPERM\n")?;
    equal("counted", denials(&report), vec![("acct".to_owned(), 10_000)])
}

fn grants(caller: &Caller) -> Check {
    let script = format!("{CALLS}\ncall(206, 0, 0), call(165, 0, 0, 0, 0, 0)");
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    // In the order of their numbers, which is another on each architecture.
    let mut found = report.get("denials").and_then(Value::as_array).cloned().unwrap_or_default();
    found.sort_by_key(|one| one.get("syscall").map(Value::to_string));
    let expected = [
        json!({"syscall": "io_setup", "count": 1, "grant": "[[syscalls]] names = [\"io_setup\"]"}),
        json!({"syscall": "mount", "count": 1}),
    ];
    equal("one that can be granted, one that cannot", found, expected.to_vec())
}

/// kernel-facts, "seccomp": a process that holds the listener itself waits for ever.
fn orphans(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
r, w = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(w, str(call(163)).encode()); os._exit(0)
    os._exit(0)
os.wait()
print(os.read(r, 9).decode())"
    );
    // One that is not answered waits until the call ends, and prints nothing.
    let command = caller.run_command(&["--timeout", "60s"], &["/usr/bin/python3", "-c", &script]);
    let output = Finished::run(command, patience())?;
    equal("an orphan of the cell", (output.code, output.trimmed()), (0, "EPERM"))
}

fn bc_only(caller: &Caller) -> Check {
    let input = caller.file("input", "2^64\n")?;
    let mut command = caller.run_command(&["--profile", "bc"], &["bc", "-q"]);
    command.stdin(std::fs::File::open(input)?);
    let output = Finished::run(command, patience())?;
    equal("bc", (output.code, output.trimmed()), (0, "18446744073709551616"))?;
    // The one program runs, with any arguments: these are arguments of bc, not programs.
    let report = caller.json(&["--profile", "bc"], &["/bin/bash", "-c", "id"])?;
    holds("bash", &report, !text(&report, "stdout").contains("uid="))?;
    holds("nothing of the host to read", &report, report.get("outcome").is_some())?;
    // A file named in its arguments is looked for in the cell: nothing of the host is there.
    let secret = caller.file("secret", "6*7\n")?;
    let secret = secret.display().to_string();
    let report = caller.json(&["--profile", "bc"], &["bc", &secret])?;
    let expected = format!("File {secret} is unavailable.\n");
    equal("no file", (text(&report, "stdout"), text(&report, "stderr")), ("", expected.as_str()))
}
