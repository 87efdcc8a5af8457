//! A socket of the host in a granted directory cannot be connected to; sockets of the cell's own work.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Finished, Need, claim, denials, equal, holds, mode, text,
};
use serde_json::Value;

pub const CLAIMS: &[Claim] = &[
    claim("no_way_to_a_socket_of_a_grant_leads_there", no_way).needs(&[Need::Python]),
    claim("a_pair_of_datagram_sockets_keeps_messages_and_drops_addresses", pairs)
        .needs(&[Need::Python]),
    claim("a_program_runs_behind_socat", socat).needs(&[Need::Socat]),
    claim("a_socket_that_the_host_makes_later_is_refused_too", later).needs(&[Need::Python]),
    claim("an_address_or_a_link_that_changes_leads_nowhere", no_race).needs(&[Need::Python]),
    claim("sockets_of_the_cell_work_as_without_a_grant", sockets_in_cell).needs(&[Need::Python]),
    claim("a_socket_or_a_fifo_is_never_granted_by_its_path", by_itself).needs(&[Need::Python]),
    claim("a_waiting_connect_delays_no_other_process", waiting).needs(&[Need::Python]),
    claim("init_never_blocks_on_changed_socket_flags", turned).needs(&[Need::Python]),
    claim("a_refused_connection_is_reported", reported).needs(&[Need::Python]),
];

/// A directory of the caller's with a listener of the host in it, to which everybody may connect.
struct Host {
    directory: PathBuf,
    listener: UnixListener,
}

impl Host {
    fn new(caller: &Caller) -> Result<Self, Failed> {
        let directory = caller.directory("grant")?;
        mode(&directory, 0o777)?;
        let listener = listening(&directory.join("socket"))?;
        Ok(Self { directory, listener })
    }

    /// How many have come.
    fn met(&self) -> usize {
        std::iter::from_fn(|| self.listener.accept().ok()).count()
    }

    fn path(&self) -> String {
        self.directory.display().to_string()
    }

    /// The ways to grant it: each with what it is called in the cell.
    fn grants(&self) -> [(Vec<String>, &'static str); 3] {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let path = self.path();
        [
            (words(&["--ro", &format!("{path}:/mnt/g")]), "/mnt/g"),
            (words(&["--rw", &path]), "/workspace"),
            (words(&["--rw", &path, "--unguarded"]), "/workspace"),
        ]
    }
}

fn listening(path: &Path) -> Result<UnixListener, Failed> {
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    mode(path, 0o777)?;
    Ok(listener)
}

/// Python that defines `connect(path)` and `stream()`, and `base` for where the grant is.
fn script(base: &str, lines: &str) -> String {
    let words = "def stream(): return socket.socket(socket.AF_UNIX)\n\
        def connect(path): return tried(lambda: stream().connect(path))\n";
    format!("{CALLS}\n{words}base = {base:?}\n{lines}")
}

fn python(caller: &Caller, options: &[String], script: &str) -> Result<Finished, Failed> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    caller.run(&options, &["/usr/bin/python3", "-c", script])
}

const WAYS: &str = r#"
path = base + "/socket"
print(connect(path))
os.symlink(path, "/tmp/link"); print(connect("/tmp/link"))
os.symlink(base, "/tmp/dir"); print(connect("/tmp/dir/./socket"))
print(connect("/proc/self/root" + path))
os.chdir(base); print(connect("socket"))
print(connect("/proc/self/cwd/socket"))
held = os.open(path, os.O_PATH); print(connect(f"/proc/self/fd/{held}"), connect(f"/dev/fd/{held}"))
directory = os.open(base, os.O_PATH); print(connect(f"/proc/self/fd/{directory}/socket"))
print(tried(lambda: os.link(path, "/tmp/hard")), tried(lambda: os.rename(path, "/tmp/moved")))
print(tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(path)))
for kind in socket.SOCK_DGRAM, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC:
    print(call(41, 1, kind, 0), call(53, 1, kind, 0, bytes(8)))
"#;

fn no_way(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    let control = format!("{}\nprint(connect(base + '/socket'))", script(&host.path(), ""));
    equal("outside", caller.python_outside(&control)?.stdout.as_str(), "ok\n")?;
    equal("met by the control", host.met(), 1)?;
    for (options, base) in host.grants() {
        let output = python(caller, &options, &script(base, WAYS))?;
        let lines: Vec<&str> = output.stdout.lines().collect();
        // A link of procfs on the way is not followed.
        let by_proc = ["ELOOP", "EPERM", "ELOOP", "EACCES EACCES", "ELOOP"];
        // A pair is one of sequenced packets (`pairs`).
        let others = ["EXDEV EXDEV", "EPERM", "EPERM 0", "EPERM 0"];
        let expected = [&["EPERM"; 3][..], &by_proc, &others].concat();
        equal(&format!("{options:?}: {}", output.stderr), lines, expected)?;
        equal("met", host.met(), 0)?;
    }
    // Without a grant there is no reason to refuse them.
    let kinds = "print(tried(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)))";
    equal("no grant", python(caller, &[], &script("", kinds))?.stdout.as_str(), "ok\n")
}

/// A pair of datagram sockets keeps messages apart and drops addresses: no message reaches the host's
/// socket at `base`. The last lines are about its descriptors.
const PAIRS: &str = r#"
import asyncio, fcntl, resource
path = base + "/datagrams"
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.send(b"a"); one.send(b""); one.send(b"bc"); print(other.recv(9), other.recv(9), other.recv(9))
print(tried(lambda: one.sendto(b"to", path)), other.recv(9), tried(lambda: one.sendmsg([b"msg"], [], 0, path)), other.recv(9))
print(tried(lambda: one.connect(path)), tried(lambda: one.send(b"still")), other.recv(9))
one.sendmsg([b"fd"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))])
print(len(other.recvmsg(9, 64)[1]))
class Protocol(asyncio.DatagramProtocol):
    def datagram_received(self, data, address): print(data); done.set_result(None)
async def main():
    global done
    loop = asyncio.get_running_loop(); done = loop.create_future(); other.setblocking(False)
    await loop.create_datagram_endpoint(Protocol, sock=other); one.send(b"asyncio"); await done
asyncio.run(main())
ends = bytes(8)
def opened(kind):
    got = call(53, 1, kind, 0, ends)
    return got if got else [(fcntl.fcntl(end, fcntl.F_GETFD), fcntl.fcntl(end, fcntl.F_GETFL) & os.O_NONBLOCK) for end in struct.unpack("2i", ends)]
print(opened(2), opened(2 | 0o2000000), opened(2 | 0o4000), opened(1 << 32 | 2 | 0o2004000))
print(call(53, 1, 2, 0, 0), call(53, 1, 2, 0, 1), call(53, 1, 2, 1, ends), call(53, 1, 3, 0, ends))
count = lambda: len(os.listdir("/proc/self/fd"))
before = count(); soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for room in 0, 1, 2:
    resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + room, hard)); print(call(53, 1, 2, 0, ends), end=" ")
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)); print(count() - before)
print(call(41, 1, 2, 0), call(41, 1, 2 | 0o2000000, 0))
"#;

fn pairs(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    let path = host.directory.join("datagrams");
    let receiver = std::os::unix::net::UnixDatagram::bind(&path)?;
    receiver.set_nonblocking(true)?;
    mode(&path, 0o777)?;
    let met = || receiver.recv(&mut [0; 9]).ok();
    let control = "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
        print(a.sendto(b'x', base + '/datagrams'))";
    equal("outside", caller.python_outside(&script(&host.path(), control))?.trimmed(), "1")?;
    equal("met by the control", met(), Some(1))?;
    for (options, base) in host.grants() {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let argv = ["/usr/bin/python3", "-c", &script(base, PAIRS)];
        let report = caller.json(&options, &argv)?;
        let expected = "b'a' b'' b'bc'\nok b'to' ok b'msg'\nEPERM ok b'still'\n1\nb'asyncio'\n\
            [(0, 0), (0, 0)] [(1, 0), (1, 0)] [(0, 2048), (0, 2048)] [(1, 2048), (1, 2048)]\n\
            EFAULT EFAULT EPERM EPERM\nEMFILE EMFILE 0 2\nEPERM EPERM\n";
        let said = (text(&report, "stdout"), text(&report, "stderr"));
        equal(&format!("{options:?}"), said, (expected, ""))?;
        equal("met", met(), None)?;
        let notes = report.get("notes").map(ToString::to_string).unwrap_or_default();
        let reason = "socket was denied: a datagram socket of unix could send to sockets";
        holds("the reason", &notes, notes.contains(reason))?;
    }
    Ok(())
}

fn socat(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    for (options, _) in host.grants() {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let script = "echo a line | socat - EXEC:'tr a-z A-Z'";
        let report = caller.json(&options, &["bash", "-c", script])?;
        equal("socat", (text(&report, "stdout"), text(&report, "stderr")), ("A LINE\n", ""))?;
    }
    Ok(())
}

fn later(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    let lines = "print('ready', flush=True)\n\
        import time\nwhile not os.path.exists(base + '/later'): time.sleep(0.01)\n\
        print(connect(base + '/later'))";
    for (options, base) in host.grants() {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let code = script(base, lines);
        let live = crate::support::Live::start(
            caller.run_command(&options, &["/usr/bin/python3", "-c", &code]),
        )?;
        let path = host.directory.join("later");
        let listener = listening(&path)?;
        let output = live.finish(crate::support::patience())?;
        std::fs::remove_file(&path)?;
        let met = listener.accept().is_ok();
        equal("later", (output.stdout.as_str(), met), ("EPERM\n", false))?;
    }
    Ok(())
}

/// One thread connects by a path that another one changes: in memory, and as a link.
const RACE: &str = r#"
import ctypes, threading, time
own = stream(); own.bind("/tmp/own"); own.listen(64)
os.symlink("/tmp/own", "/tmp/flip")
address = ctypes.create_string_buffer(110)
def written(path): return struct.pack("H", 1) + path.encode() + b"\0"
mine, theirs = written("/tmp/own"), written(base + "/socket")
end = time.monotonic() + 3
def change():
    while time.monotonic() < end:
        ctypes.memmove(address, theirs, len(theirs)); ctypes.memmove(address, mine, len(mine))
def swap():
    while time.monotonic() < end:
        for target in (base + "/socket", "/tmp/own"):
            os.symlink(target, "/tmp/next"); os.rename("/tmp/next", "/tmp/flip")
def empty():
    while True: own.accept()[0].close()
for work in change, swap, empty: threading.Thread(target=work, daemon=True).start()
seen = set()
while time.monotonic() < end:
    one = stream(); one.settimeout(5)
    one.setblocking(True)
    got = libc.connect(one.fileno(), address, len(theirs))
    seen.add("ok" if got == 0 else errno.errorcode[ctypes.get_errno()]); one.close()
    seen.add(connect("/tmp/flip"))
print("ok" in seen, "EPERM" in seen)
"#;

fn no_race(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    for (options, base) in host.grants() {
        let output = python(caller, &options, &script(base, RACE))?;
        // Both the cell's own socket and the host's were asked for.
        equal(&output.stderr, output.stdout.as_str(), "True True\n")?;
        equal("met", host.met(), 0)?;
    }
    Ok(())
}

const OWN: &str = r#"
import threading
def listener(family, address):
    one = socket.socket(family); one.bind(address); one.listen(8); return one
def spoken(one, address, family):
    other = socket.socket(family); other.connect(address); other.sendall(b"x")
    return one.accept()[0].recv(1), other.getblocking()
unix = listener(socket.AF_UNIX, "/tmp/own"); print(spoken(unix, "/tmp/own", socket.AF_UNIX))
os.chdir("/tmp"); print(spoken(unix, "own", socket.AF_UNIX))
os.symlink("/tmp/own", "/tmp/link"); print(spoken(unix, "/tmp/link", socket.AF_UNIX))
shm = listener(socket.AF_UNIX, "/dev/shm/s"); print(spoken(shm, "/dev/shm/s", socket.AF_UNIX))
hidden = listener(socket.AF_UNIX, "\0hidden"); print(spoken(hidden, "\0hidden", socket.AF_UNIX))
tcp = listener(socket.AF_INET, ("127.0.0.1", 0)); print(spoken(tcp, tcp.getsockname(), socket.AF_INET))
def other(kind, address, family=socket.AF_INET, wait=True):
    one = socket.socket(family, kind); one.setblocking(wait)
    return tried(lambda: one.connect(address))
print(other(socket.SOCK_STREAM, ("127.0.0.1", 1)), other(socket.SOCK_DGRAM, ("127.0.0.1", 1)))
print(other(socket.SOCK_STREAM, tcp.getsockname(), wait=False), connect("/tmp/none"), connect("/tmp"))
print(other(socket.SOCK_SEQPACKET, "/tmp/own", socket.AF_UNIX))
number = stream().detach()
print(call(42, 99, bytes(16), 16), call(42, -1, bytes(16), 16), call(42, 0, bytes(16), 16))
print(call(42, number, 0, 16), call(42, number, bytes(200), 200), call(42, number, bytes(16), -1))
print(call(42, number, bytes(16), 0), call(42, number, b"\1\0", 2), call(42, number, b"\2\0" + bytes(14), 16))
print(call(42, number, b"\1\0/tmp/own" + b"\0" * 8, 10), call(42, number, b"\1\0/tmp/own", 10))
def child():
    one = stream(); one.connect("/tmp/own"); one.close()
threads = [threading.Thread(target=child) for _ in range(8)]
[thread.start() for thread in threads]; [unix.accept() for _ in threads]; [thread.join() for thread in threads]
sys.stdout.flush()
if os.fork() == 0:
    print(connect("/tmp/own"), flush=True); os._exit(0)
os.wait()
"#;

fn sockets_in_cell(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    let without = python(caller, &[], &script("", OWN))?;
    holds("without a grant", &without, without.code == 0 && without.stdout.lines().count() == 14)?;
    for (options, base) in host.grants() {
        let within = python(caller, &options, &script(base, OWN))?;
        let text = |output: &Finished| (output.code, output.stdout.clone(), output.stderr.clone());
        equal(&format!("{options:?}"), text(&within), text(&without))?;
    }
    Ok(())
}

fn by_itself(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    let fifo = host.directory.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o666))?;
    // A cell of an earlier start may have left this.
    std::os::unix::fs::symlink(host.directory.join("socket"), host.directory.join("data.json"))?;
    for name in ["socket", "data.json", "fifo"] {
        let granted = ["--ro".to_owned(), format!("{}/{name}:/mnt/granted", host.path())];
        let output =
            python(caller, &granted, &script("/mnt", "print(connect(base + '/granted'))"))?;
        equal(name, (output.code, output.stdout.as_str(), host.met()), (125, "", 0))?;
        let reason = "is neither a directory nor a regular file";
        holds(
            name,
            &output.stderr,
            output.stderr.contains(reason) && output.stderr.contains("--socket"),
        )?;
    }
    // The positive control: a file.
    std::fs::write(host.directory.join("file"), "read\n")?;
    let file = format!("{}/file:/mnt/granted", host.path());
    equal("a file", caller.run(&["--ro", &file], &["cat", "/mnt/granted"])?.trimmed(), "read")
}

/// While 40 wait for one that does not accept, files are made and others connect.
const WAITING: &str = r#"
import threading, time
full = stream(); full.bind("/tmp/full"); full.listen(0)
free = stream(); free.bind("/tmp/free"); free.listen(64)
done = []
def wait():
    one = stream(); one.connect("/tmp/full"); done.append(one)
threads = [threading.Thread(target=wait, daemon=True) for _ in range(40)]
[thread.start() for thread in threads]; time.sleep(0.5)
early = len(done)
began = time.monotonic()
for at in range(50):
    open(f"/tmp/f{at}", "w").close(); one = stream(); one.connect("/tmp/free"); one.close()
print(early < 5, time.monotonic() - began < 5)
quick = stream(); quick.setblocking(False); print(tried(lambda: quick.connect("/tmp/full")))
for _ in threads: full.accept()
[thread.join(20) for thread in threads]; print(len(done))
"#;

fn waiting(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    for (options, base) in host.grants() {
        let output = python(caller, &options, &script(base, WAITING))?;
        equal(&output.stderr, output.stdout.as_str(), "True True\nEAGAIN\n40\n")?;
    }
    Ok(())
}

/// One process asks init for a non-blocking connect to a socket whose queue is full, another clears O_NONBLOCK
/// meanwhile: where init would have to wait it answers EINTR, and serves the next request.
const TURNED: &str = r#"
import fcntl, select, time
full = stream(); full.bind("/tmp/full"); full.listen(0)
first = stream(); first.connect("/tmp/full")
shared = stream(); number = shared.fileno()
address = struct.pack("H10s", socket.AF_UNIX, b"/tmp/full")
met, meets = os.pipe()
def clears():
    while True: fcntl.fcntl(number, fcntl.F_SETFL, os.O_RDWR)
def connects():
    while True:
        fcntl.fcntl(number, fcntl.F_SETFL, os.O_RDWR | os.O_NONBLOCK)
        # Not by Python, which would go on waiting after EINTR.
        libc.connect(number, address, len(address))
        if ctypes.get_errno() == errno.EINTR: os.write(meets, b"."); os._exit(0)
# One that clears for each processor that init may run on, and more: it must not wait for its turn with init.
for does in [clears, clears, clears, clears, connects]:
    if os.fork() == 0: does()
print(select.select([met], [], [], 90)[0] == [met])
began = time.monotonic()
print(tried(lambda: socket.socket(socket.AF_PACKET)), time.monotonic() - began < 5)
"#;

fn turned(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    let [_, (options, base), _] = host.grants();
    let output = python(caller, &options, &script(base, TURNED))?;
    equal(&output.stderr, output.stdout.as_str(), "True\nEPERM True\n")
}

fn reported(caller: &Caller) -> Check {
    let host = Host::new(caller)?;
    for (options, base) in host.grants() {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let text = script(base, "connect(base + '/socket'); connect(base + '/socket')");
        let report = caller.json(&options, &["/usr/bin/python3", "-c", &text])?;
        equal("denials", denials(&report), vec![("connect".to_owned(), 2)])?;
        let grant = report.pointer("/denials/0/grant");
        holds("no grant", &report, grant.is_none_or(Value::is_null))?;
    }
    Ok(())
}
