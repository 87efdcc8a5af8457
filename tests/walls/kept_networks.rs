//! Network namespaces that cells use one after the other: only those in which no program made a socket,
//! and with the same walls as a fresh one.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{
    Caller, Check, Claim, Failed, For, Need, children, claim, equal, holds, patience,
};

const PYTHON: &[Need] = &[Need::Python];

pub const CLAIMS: &[Claim] = &[
    claim("one_that_no_program_touched_is_used_again", used_again),
    claim("every_socket_that_a_profile_allows_spends_it", every_socket).needs(PYTHON),
    claim("a_socket_that_was_accepted_or_passed_on_spends_it", passed_on).needs(PYTHON),
    claim("a_socket_of_a_program_that_is_killed_spends_it", killed).needs(PYTHON),
    claim("no_other_call_makes_a_socket", random_calls).needs(PYTHON),
    claim("one_that_is_used_again_has_the_walls_of_a_fresh_one", walls).needs(PYTHON),
    claim("one_that_is_used_again_looks_like_a_fresh_one", same).needs(PYTHON),
    claim("cells_that_live_at_once_have_one_each", at_once),
    claim("sessions_have_fresh_ones_and_make_sockets_unasked", sessions).needs(PYTHON),
    claim("cells_with_egress_have_fresh_ones", egress),
    claim("the_operator_can_have_fresh_ones_only", fresh_only),
    claim("a_user_who_may_have_few_has_calls_in_fresh_ones", few)
        .only(For::User)
        .needs(&[Need::RootLooks, Need::Unshare]),
    claim("many_calls_leave_no_namespace_and_no_descriptor", many).only(For::Root),
    claim("thousands_of_calls_leave_no_namespace_and_no_descriptor", thousands)
        .only(For::Root)
        .thorough(),
];

/// Calls that are made to see whether namespaces come back: more than are ready in advance.
const LOOKS: usize = 24;

/// A server, and what is known of the namespaces of its cells.
struct Kept {
    server: Server,
    /// Whether a program made a socket in a namespace, by inode, where this is known. The last cell with a number counts:
    /// the kernel gives the number of a namespace that is gone to another one.
    spent: BTreeMap<String, Option<bool>>,
}

/// A call in a fresh cell.
struct Seen {
    stdout: String,
    namespace: String,
    is_untouched: bool,
}

impl Kept {
    fn start(caller: &Caller, options: &[&str]) -> Self {
        let words = [&["serve", "--tools", "shell,exec"], options].concat();
        Self { server: Server::of(caller.cofferdam(&words)), spent: BTreeMap::new() }
    }

    /// Runs a script; `sockets` is true if it makes one.
    fn bash(&mut self, script: &str, sockets: bool) -> Result<Seen, Failed> {
        self.run(script, |_| Some(sockets))
    }

    /// Runs a script whose output shows whether it made a socket. Checks that no program made one in the namespace
    /// before, if that was used.
    fn run(
        &mut self,
        script: &str,
        sockets: impl Fn(&str) -> Option<bool>,
    ) -> Result<Seen, Failed> {
        let command = format!("readlink /proc/self/ns/net; {script}");
        let result = self.server.result("bash_exec", json!({ "command": command }));
        let field = |path: &str| result.pointer(path).and_then(Value::as_str);
        let stdout = field("/structuredContent/stdout").unwrap_or_default();
        let origin = field("/_meta/cofferdam~1receipt/measured/network_namespace");
        let (namespace, stdout) =
            stdout.split_once('\n').ok_or_else(|| format!("no output: {result}"))?;
        let is_untouched = match origin {
            Some("fresh") => false,
            Some("untouched") => true,
            other => return Err(format!("the receipt says {other:?}").into()),
        };
        if is_untouched {
            let before = self.spent.get(namespace);
            let last_use = format!("the last use of {namespace}");
            holds(&last_use, before, matches!(before, Some(Some(false) | None)))?;
        }
        self.spent.insert(namespace.to_owned(), sockets(stdout));
        Ok(Seen { stdout: stdout.to_owned(), namespace: namespace.to_owned(), is_untouched })
    }

    /// Makes calls without a socket. Returns how many had a namespace that was used before.
    fn look(&mut self) -> Result<usize, Failed> {
        let mut untouched = 0;
        for _ in 0..LOOKS {
            untouched += usize::from(self.bash("", false)?.is_untouched);
        }
        Ok(untouched)
    }

    /// Runs a script, without a socket, in a namespace that was used before.
    fn untouched(&mut self, script: &str) -> Result<Seen, Failed> {
        for _ in 0..LOOKS {
            let seen = self.bash(script, false)?;
            if seen.is_untouched {
                return Ok(seen);
            }
        }
        Err("no namespace was used again".into())
    }
}

/// Quotes a script for `python3 -c`.
fn python(script: &str) -> String {
    format!("/usr/bin/python3 -c '{}'", script.replace('\'', "'\\''"))
}

fn used_again(caller: &Caller) -> Check {
    let mut kept = Kept::start(caller, &[]);
    let untouched = kept.look()?;
    holds("most calls use one again", untouched, untouched >= LOOKS / 3)?;
    // So do programs that are refused a socket.
    let refused = "import socket
try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
except PermissionError: print(\"refused\")";
    for _ in 0..LOOKS {
        equal("refused", kept.bash(&python(refused), false)?.stdout.as_str(), "refused\n")?;
    }
    let mut other = Server::of(caller.cofferdam(&["serve", "--tools", "calc"]));
    let mut origins = BTreeSet::new();
    for number in 0..LOOKS {
        let expression = format!("{number} * 7");
        let result = other.result("calculate", json!({ "expression": expression }));
        let origin = result.pointer("/_meta/cofferdam~1receipt/measured/network_namespace");
        origins.extend(origin.and_then(Value::as_str).map(str::to_owned));
    }
    holds("cells without sockets too", &origins, origins.contains("untouched"))
}

/// Tries every family, type and protocol, and prints those of which a socket or a pair was made.
const TRIES: &str = "
import socket
def tries(make, families, protocols):
    for family in families:
        for kind in range(11):
            for protocol in protocols:
                try: made = make(family, kind, protocol)
                except (OSError, ValueError): continue
                for one in made if isinstance(made, tuple) else (made,): one.close()
                print(make.__name__, family, kind, protocol)
tries(socket.socket, range(48), [*range(24), 132, 136, 255, 262])
tries(socket.socketpair, range(48), [0, 1, 6, 17])
";

fn every_socket(caller: &Caller) -> Check {
    let mut kept = Kept::start(caller, &[]);
    let tried = kept.bash(&python(TRIES), true)?.stdout;
    let made: Vec<&str> = tried.lines().collect();
    let expected = [
        "socket 1 1 0",
        "socket 1 2 0",
        "socket 1 5 0",
        "socket 2 1 0",
        "socket 2 1 6",
        "socket 2 2 0",
        "socket 2 2 17",
        "socket 10 1 0",
        "socket 10 1 6",
        "socket 10 2 0",
        "socket 10 2 17",
        "socket 16 2 0",
        "socket 16 3 0",
        "socketpair 1 1 0",
        "socketpair 1 2 0",
        "socketpair 1 5 0",
    ];
    equal("what a cell can make", made.clone(), expected)?;
    for line in made {
        let words: Vec<&str> = line.split(' ').collect();
        let [call, family, kind, protocol] = words.as_slice() else { return Err(line.into()) };
        let script = format!("import socket; socket.{call}({family}, {kind}, {protocol})");
        // Flags of the type do not hide it, nor the upper half of a register.
        let raw = format!(
            "import ctypes; pair = (ctypes.c_int * 2)()
ctypes.CDLL(None).syscall({}, ctypes.c_long({family} | 1 << 40), ctypes.c_long({kind} | 0o2004000), {protocol}, pair)",
            if *call == "socket" { nix::libc::SYS_socket } else { nix::libc::SYS_socketpair }
        );
        for script in [script, raw] {
            kept.bash(&python(&script), true)?;
            kept.bash("", false)?;
        }
    }
    let untouched = kept.look()?;
    holds("others are used again", untouched, untouched >= LOOKS / 3)
}

fn passed_on(caller: &Caller) -> Check {
    let mut kept = Kept::start(caller, &[]);
    let scripts = [
        // Accepted.
        "import socket; s = socket.create_server((\"127.0.0.1\", 0)); c = socket.create_connection(s.getsockname()); s.accept()",
        // Received from another process.
        "import os, socket
a, b = socket.socketpair()
if os.fork(): print(socket.recv_fds(b, 9, 1)[1] != [])
else: s = socket.socket(socket.AF_INET); socket.send_fds(a, [b\"x\"], [s.fileno()])",
        // Inherited by a program.
        "import os, socket
s = socket.socket(); s.set_inheritable(True); os.execl(\"/bin/ls\", \"ls\", \"-l\", \"/proc/self/fd\")",
        // Of a thread, and of a process whose parent has ended. The cell lasts until it has made one.
        "import socket, threading; t = threading.Thread(target=socket.socketpair); t.start(); t.join()",
        "import os, socket
r, w = os.pipe()
if os.fork() == 0:
    if os.fork() == 0: os.setsid(); s = socket.socket(socket.AF_UNIX); os.write(w, b\"x\")
    os._exit(0)
os.read(r, 1)",
        // In flight to itself, with no process that has it.
        "import socket
a, b = socket.socketpair(); socket.send_fds(a, [b\"x\"], [a.fileno(), b.fileno()])",
    ];
    for script in scripts {
        kept.bash(&python(script), true)?;
        kept.bash("", false)?;
    }
    let untouched = kept.look()?;
    holds("others are used again", untouched, untouched >= LOOKS / 3)
}

fn killed(caller: &Caller) -> Check {
    let mut kept = Kept::start(caller, &[]);
    let script = python("import os, socket; s = socket.socket(); os.kill(-1, 9)");
    for _ in 0..4 {
        kept.bash(&script, true)?;
        kept.bash("", false)?;
    }
    let command = "readlink /proc/self/ns/net; exec /usr/bin/python3 -c 'import socket, time; s = socket.socket(); time.sleep(60)'";
    let result = kept
        .server
        .result("bash_exec", json!({ "command": command, "timeout": 1, "timeout_ms": 1500 }));
    let stdout = result.pointer("/structuredContent/stdout").and_then(Value::as_str);
    if let Some(namespace) = stdout.and_then(|stdout| stdout.lines().next()) {
        kept.spent.insert(namespace.to_owned(), Some(true));
    }
    let untouched = kept.look()?;
    holds("others are used again", untouched, untouched >= LOOKS / 3)
}

/// Makes random system calls, each in a separate process, and prints the numbers of those after which that process has a
/// socket. Every third call is a likely socket.
const RANDOM: &str = "
import ctypes, os, random, signal
random.seed(SEED)
libc = ctypes.CDLL(None)
room = ctypes.create_string_buffer(4096)
address = ctypes.addressof(room)
values = [0, 1, 2, 3, 5, 10, 16, 17, 41, 0x80001, 0x80002, 0x801, 1 << 31, 2 ** 64 - 1, 2 ** 64 - 100, address, address + 8]
found = set()
def one(number, arguments):
    pid = os.fork()
    if pid == 0:
        # kill(0) ends this process alone.
        os.setsid()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        libc.syscall(number, *[ctypes.c_ulong(a) for a in arguments])
        kinds = []
        for fd in range(16):
            try: kinds.append(os.readlink(f\"/proc/self/fd/{fd}\"))
            except OSError: pass
        os._exit(77 if any(kind.startswith(\"socket:\") for kind in kinds) else 0)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == 77: found.add(number)
def socket():
    number, families, kinds = random.choice(MAKING), [1, 2, 10, 16, 17, 1 << 40 | 1], [1, 2, 3, 5, 0x80001, 0x80802]
    return number, [random.choice(families), random.choice(kinds), random.choice([0, 0, 6, 17]), address]
for turn in range(200):
    number = random.choice([random.randrange(0, 470), random.randrange(40, 60), random.randrange(280, 300)])
    arguments = [random.choice(values) for _ in range(6)]
    if SOCKETS and turn % 3 == 0: number, arguments = socket()
    if SOCKETS or number not in MAKING: one(number, arguments)
print(sorted(found))
";

/// Returns whether the calls made a socket. A program that a random call ended, by kill(-1) for example, leaves no list.
fn made_sockets(stdout: &str) -> Option<bool> {
    stdout.ends_with("]\n").then(|| !stdout.ends_with("[]\n"))
}

fn random_calls(caller: &Caller) -> Check {
    let mut kept = Kept::start(caller, &[]);
    let first = std::process::id();
    let making = [nix::libc::SYS_socket, nix::libc::SYS_socketpair];
    let mut made = BTreeSet::new();
    let mut listed = 0;
    for seed in first..first + 12 {
        // Every second program makes no call of which sockets are known to come.
        let sockets = if seed % 2 == 0 { "False" } else { "True" };
        let script = RANDOM.replace("SEED", &seed.to_string()).replace("SOCKETS", sockets);
        let script = python(&script.replace("MAKING", &format!("{making:?}")));
        let script = format!("timeout 25 {script} 2>/dev/null");
        let seen = kept.run(&script, made_sockets)?;
        let numbers = seen.stdout.lines().last().unwrap_or_default().trim_matches(['[', ']']);
        if seed % 2 == 0 {
            equal(&format!("sockets of seed {seed}"), numbers, "")?;
        }
        listed += usize::from(made_sockets(&seen.stdout).is_some());
        made.extend(numbers.split(", ").map(str::to_owned));
        kept.bash("", false)?;
    }
    holds("programs that ended with a list", listed, listed >= 6)?;
    made.remove("");
    let making = making.map(|number| number.to_string());
    equal("calls that made one", made, BTreeSet::from(making))
}

/// Tries to change the namespace by what needs no socket, and prints what is refused.
const UNTOUCHING: &str = "
import errno, os
names, modes, owners = 0, set(), set()
def attempt(act, *arguments):
    try: act(*arguments); return \"done\"
    except OSError as error: return errno.errorcode[error.errno]
for directory, below, files in os.walk(\"/proc/self/net\"):
    for name in below + files:
        path = os.path.join(directory, name)
        try: status = os.lstat(path)
        except FileNotFoundError: continue
        names += 1
        owners.add((status.st_uid, status.st_gid))
        modes.add(attempt(os.chmod, path, 0))
        modes.add(attempt(os.chown, path, 1000, 1000))
        modes.add(attempt(os.utime, path, (0, 0)))
print(names > 20, modes, owners)
print(attempt(os.open, \"/proc/sys/net/ipv4/ip_forward\", os.O_RDWR), attempt(os.listdir, \"/sys/class/net\"))
";

/// Tries the listeners of the host.
const OF_THE_HOST: &str = "
import errno, socket, struct
def attempt(act, *arguments):
    try: act(*arguments); return \"done\"
    except OSError as error: return errno.errorcode[error.errno]
def connect(family, address): return attempt(lambda: socket.socket(family).connect(address))
print(connect(socket.AF_INET, (\"127.0.0.1\", PORT)), connect(socket.AF_UNIX, \"\\0NAME\"))
";

/// Tries other ways out of the namespace, and to change it by sockets.
const WAYS_OUT: &str = "
print(connect(socket.AF_INET, (\"169.254.169.254\", 80)), connect(socket.AF_INET6, (\"2001:db8::1\", 80)))
print(attempt(socket.create_server, (\"127.0.0.1\", 80)), attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW))
route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
down = struct.pack(\"BxHiII\", 0, 0, 1, 0, 1)
route.send(struct.pack(\"IHHII\", 32, 19, 5, 1, 0) + down)
print(errno.errorcode[-struct.unpack_from(\"i\", route.recv(4096), 16)[0]], socket.if_nameindex())
s = socket.create_server((\"127.0.0.1\", 0))
print(connect(socket.AF_INET, s.getsockname()))
";

fn walls(caller: &Caller) -> Check {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let name = format!("cofferdam-kept-{}-{}", std::process::id(), caller.uid());
    let _unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let mut kept = Kept::start(caller, &[]);
    kept.look()?;
    let seen = kept.untouched(&python(UNTOUCHING))?;
    let nothing = "True {'EPERM'} {(65534, 65534)}\nENOENT ENOENT\n";
    equal("nothing can be changed without a socket", seen.stdout.as_str(), nothing)?;
    let control = OF_THE_HOST.replace("PORT", &port.to_string()).replace("NAME", &name);
    let outside = caller.python_outside(&control)?;
    equal("the host's listeners outside", outside.trimmed(), "done done")?;
    let script = format!("{control}{WAYS_OUT}");
    let refused = "ECONNREFUSED ECONNREFUSED\nENETUNREACH ENETUNREACH\nEACCES EPERM\nEPERM [(1, 'lo')]\ndone\n";
    for _ in 0..LOOKS {
        let seen = kept.bash(&python(&script), true)?;
        equal("ways out", seen.stdout.as_str(), refused)?;
        if seen.is_untouched {
            return Ok(());
        }
        kept.bash("", false)?;
    }
    Err("no namespace was used again".into())
}

fn same(caller: &Caller) -> Check {
    const LOOK: &str = "
import socket
print(open(\"/proc/self/net/dev\").read())
print(open(\"/proc/self/net/if_inet6\").read(), open(\"/proc/self/net/route\").read())
print(open(\"/proc/self/net/unix\").read(), open(\"/proc/self/net/snmp\").read())
";
    const SOCKETS: &str = "
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    s = socket.socket(socket.AF_INET, kind)
    print(s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF), s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
try: socket.gethostbyname(\"example.org\")
except OSError as error: print(error)
print(socket.gethostbyname(\"localhost\"))
";
    let mut kept = Kept::start(caller, &[]);
    let script = python(&format!("{LOOK}{SOCKETS}"));
    let fresh = kept.bash(&script, true)?;
    holds("the first is fresh", &fresh.namespace, !fresh.is_untouched)?;
    for _ in 0..LOOKS {
        kept.bash("", false)?;
        let seen = kept.bash(&script, true)?;
        equal("a cell in another namespace", seen.stdout.as_str(), fresh.stdout.as_str())?;
        if seen.is_untouched {
            return Ok(());
        }
    }
    Err("no namespace was used again".into())
}

fn at_once(caller: &Caller) -> Check {
    let mut kept = Kept::start(caller, &[]);
    kept.look()?;
    let command = json!({ "command": "readlink /proc/self/ns/net; sleep 1" });
    for _ in 0..3 {
        let calls: Vec<u64> =
            (0..4).map(|_| kept.server.call("bash_exec", command.clone())).collect();
        let mut living = BTreeSet::new();
        let mut answers = BTreeMap::new();
        while answers.len() < calls.len() {
            let line = kept.server.message(std::time::Instant::now() + crate::support::patience());
            if let Some(id) = line.get("id").and_then(Value::as_u64).filter(|id| calls.contains(id))
            {
                answers.insert(id, line);
            }
        }
        for answer in answers.values() {
            let path = "/result/structuredContent/stdout";
            let stdout = answer.pointer(path).and_then(Value::as_str).unwrap_or_default();
            living.insert(stdout.to_owned());
        }
        equal("different namespaces", living.len(), calls.len())?;
        holds("each has one", &living, living.iter().all(|one| one.starts_with("net:[")))?;
    }
    Ok(())
}

fn origin_of(result: &Value) -> Option<&str> {
    result.pointer("/_meta/cofferdam~1receipt/measured/network_namespace").and_then(Value::as_str)
}

fn sessions(caller: &Caller) -> Check {
    let mut kept = Kept::start(caller, &[]);
    kept.look()?;
    let make = python(
        "import socket, time
began = time.monotonic()
for _ in range(2000): socket.socket(socket.AF_UNIX).close()
print(time.monotonic() - began)",
    );
    let result = kept.server.result("bash", json!({ "command": make }));
    equal("of a session", origin_of(&result), Some("fresh"))?;
    kept.look()?;
    let result = kept.server.result("bash", json!({ "command": "true", "session": "other" }));
    equal("of another session", origin_of(&result), Some("fresh"))
}

fn egress(caller: &Caller) -> Check {
    let words = ["serve", "--tools", "exec", "--egress", "192.0.2.7:443"];
    let mut server = Server::of(caller.cofferdam(&words));
    for _ in 0..6 {
        let result = server.result("bash_exec", json!({ "command": "true" }));
        equal("with egress", origin_of(&result), Some("fresh"))?;
    }
    Ok(())
}

fn fresh_only(caller: &Caller) -> Check {
    let directory = caller.directory("configuration")?;
    let file = "configuration/cofferdam.toml";
    let file = caller.file(file, "schema = 1\n[cells]\nnet = \"fresh\"\n")?;
    crate::support::mode(&directory, 0o700)?;
    crate::support::mode(&file, 0o600)?;
    let path = directory.display().to_string();
    let mut kept = Kept::start(caller, &["--config", &path]);
    equal("namespaces that are used again", kept.look()?, 0)
}

/// Starts a server in a user namespace in which this user may have `most` network namespaces. The supervisor has one.
fn limited(caller: &Caller, most: u32) -> Command {
    let binary = caller.binary().display().to_string();
    let limit = "/proc/sys/user/max_net_namespaces";
    let drop = "setpriv --inh-caps=-all --ambient-caps=-all";
    let line = format!("echo {most} > {limit} && exec {drop} {binary} serve --tools shell,exec");
    let mut command = caller.outside("unshare");
    command.args(["--user", "--map-current-user", "--keep-caps", "bash", "-c", &line]);
    command
}

fn few(caller: &Caller) -> Check {
    // Fewer than the pool and the kept ones would take: calls run as far as cells can be made.
    let mut kept = Kept { server: Server::of(limited(caller, 5)), spent: BTreeMap::new() };
    let end = Instant::now() + patience();
    for number in 0..LOOKS {
        let seen = loop {
            match kept.bash(&format!("echo {number}"), false) {
                // The kernel frees a namespace some time after its last process has ended.
                Err(failed) if is_full(&failed) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                seen => break seen?,
            }
        };
        equal("output", seen.stdout, format!("{number}\n"))?;
    }
    let (_, networks) = held(&kept.server)?;
    holds("namespaces that the supervisor holds", networks, networks <= 5)?;
    // With the supervisor's alone no cell can be made, and the call says so.
    let mut server = Server::of(limited(caller, 1));
    let result = server.result("bash_exec", json!({ "command": "echo" }));
    let text = result.pointer("/content/0/text").and_then(Value::as_str).unwrap_or_default();
    holds("the reason", text, text.contains("cloning the cell") && text.contains("ENOSPC"))
}

/// Returns true if no further namespace could be made for a call.
fn is_full(failed: &Failed) -> bool {
    failed.message().is_some_and(|message| message.contains("ENOSPC"))
}

/// Counts the descriptors of the supervisor, and those of network namespaces among them.
fn held(server: &Server) -> Result<(usize, usize), Failed> {
    let children = children(server.child.id());
    let [supervisor] = children.as_slice() else { return Err("no supervisor".into()) };
    let entries = std::fs::read_dir(format!("/proc/{supervisor}/fd"))?;
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let links: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    let networks = links.iter().filter(|link| link.starts_with("net:[")).count();
    Ok((links.len(), networks))
}

fn leave_nothing(caller: &Caller, calls: usize) -> Check {
    let mut kept = Kept::start(caller, &[]);
    for _ in 0..3 {
        kept.look()?;
    }
    let (before, _) = held(&kept.server)?;
    let spender = python("import socket; socket.socketpair()");
    for number in 0..calls {
        let spends = number % 10 == 9;
        kept.bash(if spends { &spender } else { "" }, spends)?;
    }
    kept.look()?;
    let (after, networks) = held(&kept.server)?;
    holds("descriptors of the supervisor", (before, after), after <= before + 3 * 32)?;
    holds("namespaces, and the supervisor's", networks, (1..=33).contains(&networks))
}

fn many(caller: &Caller) -> Check {
    leave_nothing(caller, 150)
}

fn thousands(caller: &Caller) -> Check {
    leave_nothing(caller, 2000)
}
