//! Calls that init answers in every cell: instances of epoll are counted, watches of inotify stay in the cell.

use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Finished, Need, claim, denials, equal, holds, patience,
    text,
};
use serde_json::{Value, json};

const PYTHON: &[Need] = &[Need::Python];

pub const CLAIMS: &[Claim] = &[
    claim("epoll_instances_are_limited_to_64_per_cell", most).needs(PYTHON),
    claim("an_instance_lives_until_its_last_descriptor", living).needs(PYTHON),
    claim("an_instance_works_as_one_that_init_did_not_make", works).needs(PYTHON),
    claim("programs_that_wait_for_much_work", programs).needs(PYTHON),
    claim("node_waits_and_watches", node).wants(&[Need::Node]),
    claim("inotify_works_on_cell_files_and_grants", own_files).needs(PYTHON),
    claim("no_watch_shows_what_the_host_or_another_cell_does", of_the_host).needs(PYTHON),
    claim("a_path_that_changes_in_memory_is_not_watched", raced).needs(PYTHON),
    claim("a_refused_watch_is_reported", reported),
    claim("inotify_watches_are_limited_per_user", watches).needs(PYTHON),
    claim("a_request_to_be_untraceable_has_no_effect", stays_traceable).needs(PYTHON),
    claim("a_program_that_is_unreadable_by_its_mode_is_refused", unreadable).needs(PYTHON),
    claim("a_file_follows_its_end_in_a_granted_directory", follows),
    claim("no_call_that_watches_a_whole_mount_is_there", fanotify).needs(&[Need::Python]),
];

fn python(caller: &Caller, options: &[&str], script: &str) -> Result<Finished, Failed> {
    caller.run(options, &["/usr/bin/python3", "-c", &format!("{CALLS}\n{script}")])
}

const EPOLL: &str = r#"
import select
def instance(): return call(291, 0x80000)
def some(count): return [one for one in (instance() for _ in range(count)) if isinstance(one, int)]
"#;

fn most(caller: &Caller) -> Check {
    // The older call, where the architecture has one (epoll_create(2)).
    let (older, sizes, refused) = if cfg!(target_arch = "x86_64") {
        ("call(213, 1), ", "call(213, 0), call(213, -1), ", "EINVAL EINVAL ")
    } else {
        ("instance(), ", "", "")
    };
    let script = format!(
        "{EPOLL}
have = some(64); print(len(have), instance(), {older}tried(select.epoll))
os.close(have.pop()); os.close(have.pop()); print(len(some(3)))
for one in have: os.close(one)
print({sizes}call(291, 1), call(291, 1 << 32))
# As many as one likes, one after the other.
for _ in range(2000): select.epoll().close()
print('many')"
    );
    let output = python(caller, &[], &script)?;
    let expected = format!("64 EMFILE EMFILE EMFILE\n2\n{refused}EINVAL 3\nmany");
    equal("counted", (output.trimmed(), output.stderr.as_str()), (expected.as_str(), ""))?;
    // The control: outside there is no such figure.
    let more = format!("{CALLS}\n{EPOLL}\nprint(len(some(100)))");
    equal("outside", caller.python_outside(&more)?.trimmed(), "100")
}

fn living(caller: &Caller) -> Check {
    // Each way to keep an instance other than in a descriptor of its creator.
    let script = format!(
        "{EPOLL}
import array, time
first = some(64)
kept = os.dup(first[0])
for one in first: os.close(one)
more = some(64); print('a copy', len(more)); os.close(kept)
for one in more: os.close(one)
a, b = socket.socketpair()
for one in some(4):
    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [one]))]); os.close(one)
rest = some(64); print('on the way', len(rest))
b.close(); a.close()
print('and gone', len(some(64)))
for one in range(3, 200):
    try: os.close(one)
    except OSError: pass
r, w = os.pipe()
children = []
for _ in range(3):
    if not (child := os.fork()):
        os.write(w, bytes([len(some(30))])); time.sleep(60); os._exit(0)
    children.append(child)
print('children', sum(os.read(r, 1)[0] for _ in children), instance())
for child in children: os.kill(child, 9); os.waitpid(child, 0)
print('ended', len(some(80)))"
    );
    let output = python(caller, &[], &script)?;
    let expected = "a copy 63\non the way 60\nand gone 4\nchildren 64 EMFILE\nended 64";
    equal("counted", (output.trimmed(), output.stderr.as_str()), (expected, ""))
}

fn works(caller: &Caller) -> Check {
    let script = format!(
        "{EPOLL}
import fcntl, resource
plain, closing = call(291, 0), call(291, 0x80000)
print(fcntl.fcntl(plain, fcntl.F_GETFD), fcntl.fcntl(closing, fcntl.F_GETFD), os.readlink(f'/proc/self/fd/{{plain}}'))
# One in another, three deep, and an event that comes through all.
r, w = os.pipe(); chain = [select.epoll() for _ in range(3)]
chain[0].register(r, select.EPOLLIN)
for inner, outer in zip(chain, chain[1:]): outer.register(inner.fileno(), select.EPOLLIN)
print([one.poll(0) for one in chain]); os.write(w, b'x')
print([len(one.poll(1)) for one in chain]); os.read(r, 1); print([one.poll(0) for one in chain])
print(tried(lambda: chain[0].register(chain[2].fileno())))
chain.append(select.epoll()); chain[3].register(chain[2].fileno(), select.EPOLLIN); os.write(w, b'x')
print([len(one.poll(1)) for one in chain]); os.read(r, 1)
for one in chain: one.close()
chain = [select.epoll()]; chain[0].register(r, select.EPOLLIN)
many = [os.dup(r) for _ in range(200)]
for one in many: chain[0].register(one, select.EPOLLIN)
os.write(w, b'x'); print(len(chain[0].poll(1, 500)))
# Its own limit of descriptors comes first, and an instance that was not handed over is not counted.
for one in many: os.close(one)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
while tried(lambda: os.dup(0)) == 'ok': pass
print({{instance() for _ in range(100)}}); resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(len(some(80)))"
    );
    let output = python(caller, &[], &script)?;
    let expected = "0 1 anon_inode:[eventpoll]\n[[], [], []]\n[1, 1, 1]\n[[], [], []]\nELOOP\n\
        [1, 1, 1, 1]\n201\n{'EMFILE'}\n61";
    equal("as ever", (output.trimmed(), output.stderr.as_str()), (expected, ""))
}

fn programs(caller: &Caller) -> Check {
    let script = "
import asyncio, multiprocessing, selectors, subprocess, sys
async def main():
    async def serve(reader, writer):
        writer.write(await reader.readline()); await writer.drain(); writer.close()
    server = await asyncio.start_unix_server(serve, '/tmp/socket')
    async def one(n):
        reader, writer = await asyncio.open_unix_connection('/tmp/socket')
        writer.write(b'%d\\n' % n); return int(await reader.readline())
    print(sum(await asyncio.gather(*(one(n) for n in range(50)))))
    child = await asyncio.create_subprocess_exec('sort', '-n', stdin=-1, stdout=-1)
    print((await child.communicate(b'3\\n1\\n2\\n'))[0].split())
asyncio.run(main())
loops = [subprocess.Popen([sys.executable, '-c', 'import asyncio; asyncio.run(asyncio.sleep(0.5))']) for _ in range(10)]
print(sum(one.wait() for one in loops), flush=True)";
    let object = caller.json(&[], &["/usr/bin/python3", "-c", script])?;
    let expected = "1225\n[b'1', b'2', b'3']\n0\n";
    equal("asyncio", text(&object, "stdout"), expected)?;
    equal("reported as denied", denials(&object), vec![])
}

fn node(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let script = "const fs = require('fs');
        fs.watch('/workspace', (kind, name) => { console.log(kind, name); process.exit(0); });
        setTimeout(() => fs.writeFileSync('/workspace/new', 'x'), 100);";
    let ask = path.display().to_string();
    let report = caller.json(&["--rw", &ask], &["node", "-e", script])?;
    equal("node", (text(&report, "stdout"), denials(&report)), ("rename new\n", vec![]))?;
    // Each has four instances: a test runner and its workers.
    let many =
        "for i in $(seq 10); do node -e 'setTimeout(() => console.log(1), 4000)' & done; wait";
    let report = caller.json(&[], &["bash", "-c", many])?;
    let all = "1\n".repeat(10);
    equal("many", (text(&report, "stdout"), denials(&report)), (all.as_str(), vec![]))
}

const INOTIFY: &str = r#"
import struct, time
notify = libc.inotify_init1(0o4000)
ALL = 0xfff
def watch(path, mask=ALL, on=None): return call(254, notify if on is None else on, path.encode() if isinstance(path, str) else path, mask)
def events():
    try: read = os.read(notify, 65536)
    except BlockingIOError: return []
    found = []
    while read:
        wd, mask, _, length = struct.unpack_from("iIII", read)
        found.append((wd, mask & ~0x40000000, read[16:16 + length].rstrip(b"\0").decode())); read = read[16 + length:]
    return found
"#;

fn own_files(caller: &Caller) -> Check {
    let fresh = &["/workspace", "/tmp", "/dev/shm"][..];
    let granted = &["/workspace", "/mnt/g"][..];
    let own = &["/tmp", "/dev/shm"][..];
    let rw = caller.directory("rw")?;
    let ro = caller.directory("ro")?;
    std::fs::write(ro.join("file"), "text")?;
    let rw = rw.display().to_string();
    let ro = format!("{}:/mnt/g", ro.display());
    let writable = &["--rw", &rw, "--ro", &ro][..];
    for (options, places) in [(&[][..], fresh), (writable, granted), (writable, own)] {
        let script = format!(
            "{INOTIFY}
for place in {places:?}:
    os.chdir(place)
    if place != '/mnt/g':
        os.makedirs('d', exist_ok=True); os.symlink('d', 'link')
        first = watch('.'); print(first > 0, watch(place) == first, watch('./d/..') == first, end=' ')
        open('new', 'w').close(); print((first, 0x100, 'new') in events(), end=' ')
        print(watch('new') > 0, watch(place + '/d/', 0x1000fff) > 0, watch('link') == watch('d'), watch('link', 0x2000fff) != watch('d'), end=' ')
        held = os.open('new', os.O_RDONLY); print(watch(f'/proc/self/fd/{{held}}') == watch('new'), end=' ')
        print(watch('new', 0x1000fff), watch('none'), watch('new/x'), watch(''))
        os.unlink('link'); os.unlink('new'); events()
    else:
        first = watch('/mnt/g/file'); open('/mnt/g/file').close(); print(first > 0, (first, 0x20, '') in events())
print(watch('/tmp', 0), watch('/tmp', 0x10000001), watch('/tmp', ALL, 99), watch('/tmp', ALL, 0), call(254, notify, 1, ALL), watch('/' * 5000))"
        );
        let output = python(caller, options, &script)?;
        let whole = "True True True True True True True True True ENOTDIR ENOENT ENOTDIR ENOENT";
        let readable = "True True";
        let places = places.iter().map(|path| if *path == "/mnt/g" { readable } else { whole });
        let expected: Vec<&str> =
            places.chain(["EINVAL 2 EBADF EINVAL EFAULT ENAMETOOLONG"]).collect();
        let lines: Vec<&str> = output.stdout.lines().collect();
        let last = lines.last().copied().unwrap_or_default();
        let firsts = lines.len().saturating_sub(1);
        equal(&output.stderr, lines.get(..firsts), expected.get(..firsts))?;
        // A mask beyond the known bits is the kernel's to judge.
        holds(
            "refused",
            last,
            last.starts_with("EINVAL ") && last.ends_with("EBADF EINVAL EFAULT ENAMETOOLONG"),
        )?;
    }
    Ok(())
}

/// Every way to a file of the host, or one that cells share.
const OTHERS: &str = r#"
os.symlink("/usr", "/tmp/usr"); os.symlink("/dev/null", "/tmp/null")
held = os.open("/usr/bin", os.O_RDONLY); null = os.open("/dev/null", os.O_RDONLY)
os.chdir("/usr")
for path in ["/usr/bin", "/usr", "/bin/sh", "/dev/null", "/dev/urandom", "/dev", "/etc", "/etc/passwd", "/", "/tmp/..", "/proc", "/tmp/usr/bin", "/tmp/usr/", "/tmp/null", ".", "bin/..", "bin"]:
    print(watch(path), end=" ")
print()
for path in [f"/proc/self/fd/{held}", f"/dev/fd/{null}", f"/proc/self/fd/{held}/sh", "/proc/self/root/usr/bin", "/proc/self/cwd", "/proc/self/exe", "/proc/1/root", "/proc/1/exe", "/proc/self/status"]:
    print(watch(path), end=" ")
print()
"#;

fn of_the_host(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    for options in [&[][..], &["--rw", &path], &["--ro", &path]] {
        let output = python(caller, options, &format!("{INOTIFY}\n{OTHERS}\nprint(events())"))?;
        let mut lines = output.stdout.lines();
        let mut met = || lines.next().unwrap_or_default().trim_end().to_owned();
        equal(&format!("{options:?}: {}", output.stderr), met(), ["EPERM"; 17].join(" "))?;
        let by_proc = met();
        let words: Vec<&str> = by_proc.split(' ').collect();
        let refused = |word: &&str| ["EPERM", "EACCES", "ELOOP"].contains(word);
        holds("by /proc", &by_proc, words.len() == 9 && words.iter().all(refused))?;
        equal("nothing was seen", met(), "[]")?;
    }
    // The control: outside each of these can be watched.
    let script =
        format!("{CALLS}\n{INOTIFY}\nprint(watch('/usr/bin') > 0, watch('/dev/null') > 0)");
    equal("outside", caller.python_outside(&script)?.trimmed(), "True True")
}

fn raced(caller: &Caller) -> Check {
    let script = format!(
        "{INOTIFY}
import threading
path = ctypes.create_string_buffer(b'/tmp/ab/cd', 64)
os.makedirs('/tmp/ab/cd'); end = time.monotonic() + 3; seen = set()
def turn():
    while time.monotonic() < end:
        ctypes.memmove(path, b'/tmp/ab/cd', 10); ctypes.memmove(path, b'/usr//bin/', 10)
threading.Thread(target=turn).start()
libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint]
while time.monotonic() < end:
    wd = libc.inotify_add_watch(notify, ctypes.addressof(path), 0x20)
    if wd > 0:
        seen.add('watched'); os.listdir('/usr/bin')
        if events(): seen.add('SEEN')
        libc.inotify_rm_watch(notify, wd); events()
    else: seen.add('refused')
print(*sorted(seen))"
    );
    let output = python(caller, &[], &script)?;
    equal("raced", (output.trimmed(), output.stderr.as_str()), ("refused watched", ""))
}

fn reported(caller: &Caller) -> Check {
    let script = format!("{CALLS}\n{INOTIFY}\nwatch('/usr/bin'); watch('/etc'); watch('/tmp')");
    let object = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    let denials = object.get("denials").unwrap_or(&Value::Null);
    equal("reported", denials, &json!([{ "syscall": "inotify_add_watch", "count": 2 }]))
}

fn watches(caller: &Caller) -> Check {
    let script = format!(
        "{INOTIFY}
met = {{}}
for n in range(8300):
    os.mkdir(f'/tmp/{{n}}'); wd = watch(f'/tmp/{{n}}'); met[wd if isinstance(wd, str) else 'ok'] = met.get(wd if isinstance(wd, str) else 'ok', 0) + 1
print(met)"
    );
    let output = python(caller, &[], &script)?;
    let expected = "{'ok': 8192, 'ENOSPC': 108}";
    equal("as many as there may be", (output.trimmed(), output.stderr.as_str()), (expected, ""))
}

fn follows(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let script = "cd /workspace; echo one > log; tail -n +1 -F log 2>/tmp/err > seen & sleep 0.3
        echo two >> log; mv log old; echo three > log; until [ $(wc -l < seen) = 3 ]; do sleep 0.05; done
        kill %1; cat seen; grep -v 'has \\|become\\|following\\|replaced' /tmp/err; echo end";
    for options in [&[][..], &["--rw", &path]] {
        let mut command = caller.run_command(options, &["bash", "-c", script]);
        command.env("LC_ALL", "C");
        let output = Finished::run(command, patience())?;
        equal(
            &format!("{options:?}: {}", output.stderr),
            output.trimmed(),
            "one\ntwo\nthree\nend",
        )?;
    }
    Ok(())
}

fn fanotify(caller: &Caller) -> Check {
    // fanotify_init, fanotify_mark; F_NOTIFY and a lease of fcntl(2).
    let script = "print(call(300, 0, 0), call(301, 0, 1, 1, -100, b'/usr'), end=' ')
held = os.open('/usr/bin', os.O_RDONLY); print(call(72, held, 1026, 1), call(72, held, 1024, 0))";
    let output = python(caller, &[], script)?;
    equal("all refused", output.trimmed(), "EPERM EPERM EPERM EPERM")
}

/// Calls that init answers after reading the caller's memory or descriptors, each with its result.
const ASKED: &str = "
plain, path = socket.socket(), socket.socket(socket.AF_UNIX)
def answers():
    acts = [lambda: plain.bind(('127.0.0.1', 0)), lambda: path.bind('/tmp/socket'), lambda: os.truncate('/workspace/f', 1), lambda: os.mkdir('/tmp/d')]
    print(type(instance()).__name__, type(watch('/tmp')).__name__, *(tried(act) for act in acts))
";

/// PR_SET_DUMPABLE (4) with 0, as key agents and password tools call it, and PR_GET_DUMPABLE (3).
fn stays_traceable(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let script = format!(
        "{EPOLL}{INOTIFY}{ASKED}
open('/workspace/f', 'w').close()
print(call(157, 3), call(157, 4, 0), call(157, (1 << 32) | 4, 0), call(157, 3), call(157, 4, 2), call(157, 4, 1))
answers()
print(os.path.getsize('/workspace/f'), os.sysconf('SC_PHYS_PAGES') > 0)"
    );
    let output = python(caller, &["--rw", &path], &script)?;
    let expected = "1 0 0 1 EINVAL 0\nint int ok ok ok ok\n1 True";
    equal("answered", (output.trimmed(), output.stderr.as_str()), (expected, ""))?;
    // The control: outside the request has an effect.
    let outside = format!("{CALLS}\nprint(libc.prctl(4, 0), libc.prctl(3))");
    equal("outside", caller.python_outside(&outside)?.trimmed(), "0 0")
}

/// Init can read neither memory nor descriptors of such a program, as with kernel.yama.ptrace_scope
/// above 1 of any program.
fn unreadable(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let script = format!("{CALLS}\n{EPOLL}{INOTIFY}{ASKED}\nanswers()");
    let shell = "cp /usr/bin/python3 /tmp/py; touch /workspace/f; export PYTHONHOME=/usr
        /tmp/py -c \"$0\"; rm -r /tmp/d /tmp/socket; chmod 0111 /tmp/py; /tmp/py -c \"$0\"
        ls -A /tmp /workspace | grep -c '^d$\\|^socket$'; stat -c %s /workspace/f";
    let output = caller.run(&["--rw", &path], &["bash", "-c", shell, &script])?;
    let expected = "int int ok ok ok ok\nint str EPERM EPERM EPERM EPERM\n0\n1";
    equal("refused", output.trimmed(), expected)?;
    // Each is reported with the reason, by a program that has no other.
    let shell = "cp /usr/bin/touch /tmp/t; chmod 0111 /tmp/t; ls /workspace; /tmp/t /workspace/new";
    let report = caller.json(&["--rw", &path], &["bash", "-c", shell])?;
    equal("no file", text(&report, "stdout"), "f\n")?;
    equal("its end", report.get("exit_code"), Some(&json!(1)))?;
    let counted = denials(&report);
    holds("openat", &counted, matches!(counted.as_slice(), [(call, 1..)] if call == "openat"))?;
    let notes = report.get("notes").map(Value::to_string).unwrap_or_default();
    let reason = "openat was denied: the program's file is unreadable by its mode";
    holds("the reason", &notes, notes.contains(reason))?;
    let output = caller.run(&["--rw", &path], &["bash", "-c", shell])?;
    let line = "; nothing grants it: the program's file is unreadable by its mode, so";
    holds("the line", &output.stderr, output.stderr.contains(line))
}
