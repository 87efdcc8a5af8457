//! Route netlink, by which programs ask for the network interfaces of their cell: every language gets
//! an answer, and no program changes anything, learns of another namespace, or takes memory without
//! an account.

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Finished, Need, claim, denials, equal, holds, patience,
    text,
};

const PYTHON: &[Need] = &[Need::Python];

pub const CLAIMS: &[Claim] = &[
    claim("python_and_ip_list_the_interfaces", python_lists).needs(PYTHON),
    claim("node_lists_the_interfaces", node_lists).wants(&[Need::Node]),
    claim("java_lists_the_interfaces", java_lists).wants(&[Need::Java]),
    claim("a_program_of_the_c_library_lists_the_interfaces", c_lists).needs(&[Need::Gcc]),
    claim("a_cell_with_egress_has_its_own_link_as_well", link).needs(PYTHON),
    claim("sessions_and_fresh_cells_of_a_server_list_theirs", served).needs(PYTHON),
    claim("sockets_have_different_ports_and_answers_name_them", ports).needs(PYTHON),
    claim("localhost_is_resolved_as_without_a_network", resolved).needs(PYTHON),
    claim("nothing_is_changed", changes).needs(PYTHON),
    claim("answers_are_about_the_cell_only", answers).needs(PYTHON),
    claim("other_namespaces_are_not_named", namespaces).needs(PYTHON),
    claim("no_message_reaches_another_socket", others).needs(PYTHON),
    claim("the_filter_of_answers_stays", filter).needs(PYTHON),
    claim("sockets_are_limited_to_64_per_cell", limited).needs(PYTHON),
    claim("buffers_keep_their_sizes_and_those_of_other_sockets_do_not", sizes).needs(PYTHON),
    claim("a_request_in_a_loop_harms_no_other_cell", looped).needs(PYTHON),
    claim("no_other_netlink_is_there", protocols).needs(PYTHON),
    claim("a_cell_works_where_the_host_leaves_netlink_out", left_out).needs(PYTHON),
    claim("the_lower_tier_has_none", lower).needs(&[Need::Python, Need::LandlockScope]),
];

/// Messages of route netlink in Python. `ask` returns the answers to one message: the kind and the
/// bytes of each, or the errno of an error.
const NETLINK: &str = r#"
REQUEST, ACK, DUMP, CREATE = 1, 4, 0x300, 0x400
NEWLINK, DELLINK, GETLINK, SETLINK, NEWADDR, DELADDR, GETADDR = range(16, 23)
def attribute(kind, value): return struct.pack('HH', 4 + len(value), kind) + value + bytes(-len(value) % 4)
def message(kind, flags, body, number=7): return struct.pack('IHHII', 16 + len(body), kind, flags, number, 0) + body
def link(index=0): return struct.pack('BxHiII', 0, 0, index, 0, 0)
def ask(kind, flags, body, s=None):
    s = s or socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.settimeout(10)
    s.send(message(kind, REQUEST | flags, body))
    answers = []
    while True:
        data = s.recv(65536)
        if len(data) == 16: return [(struct.unpack_from('H', data, 4)[0], 'cut')]
        while data:
            size, answer, more = struct.unpack_from('IHH', data)
            if answer == 2:
                error = -struct.unpack_from('i', data, 16)[0]
                return errno.errorcode[error] if error else 'done'
            if answer == 3: return answers
            answers.append((answer, data[16:size]))
            if not more & 2: return answers
            data = data[size + -size % 4:]
"#;

fn python(caller: &Caller, options: &[&str], script: &str) -> Result<Value, Failed> {
    caller.json(options, &["/usr/bin/python3", "-c", &format!("{CALLS}{NETLINK}{script}")])
}

/// Checks what a script prints in a cell without options, and that nothing is denied.
fn prints(caller: &Caller, what: &str, script: &str, expected: &str) -> Check {
    let report = python(caller, &[], script)?;
    let seen = (text(&report, "stdout"), text(&report, "stderr"), denials(&report));
    equal(what, seen, (expected, "", vec![]))
}

fn python_lists(caller: &Caller) -> Check {
    let script = "
print(socket.if_nameindex())
print([kind for kind, _ in ask(GETLINK, DUMP, link())], [a[:8].hex() for _, a in ask(GETADDR, DUMP, bytes(8))])
# The older ways: an ioctl, and a file.
import fcntl
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(socket.inet_ntoa(fcntl.ioctl(s, 0x8915, struct.pack('16s24x', b'lo'))[20:24]), open('/proc/self/net/dev').read().count(':'))";
    // lo with 127.0.0.1/8, 127.0.1.1/8 (secondary) and ::1/128, and nothing else.
    let addresses = "['020880fe01000000', '020881fe01000000', '0a8080fe01000000']";
    let expected = format!("[(1, 'lo')]\n[16] {addresses}\n127.0.0.1 1\n");
    prints(caller, "lo alone", script, &expected)?;
    let report = caller.json(
        &[],
        &["bash", "-c", "for t in ip hostname; do type -P $t; done; PATH=$PATH:/usr/sbin; ip -o addr; ip route; hostname -I"],
    )?;
    let stdout = text(&report, "stdout");
    if stdout.contains("/ip\n") {
        holds("ip lists lo", stdout, stdout.contains("inet 127.0.0.1/8 scope host lo"))?;
        equal("without a denial", denials(&report), vec![])?;
    }
    Ok(())
}

fn node_lists(caller: &Caller) -> Check {
    // As vite --host and next dev do.
    let script = "const all = require('os').networkInterfaces();
console.log(Object.entries(all).map(([name, list]) => name + ' ' + list.map(one => one.cidr)).join());
require('http').createServer((_, reply) => reply.end('served')).listen(0, '0.0.0.0', function () {
  const port = this.address().port;
  require('http').get({ host: Object.values(all).flat()[0].address, port }, reply =>
    reply.on('data', data => { console.log(String(data)); process.exit(); }));
});";
    let workspace = caller.directory("listed")?;
    let granted = workspace.display().to_string();
    for options in [vec![], vec!["--rw", granted.as_str()]] {
        let report = caller.json(&options, &["node", "-e", script])?;
        let seen = (text(&report, "stdout"), denials(&report));
        equal("node", seen, ("lo 127.0.0.1/8,127.0.1.1/8,::1/128\nserved\n", vec![]))?;
    }
    Ok(())
}

fn java_lists(caller: &Caller) -> Check {
    let source = "import java.net.*; import java.util.*;
class Main { public static void main(String[] a) throws Exception {
    for (NetworkInterface one : Collections.list(NetworkInterface.getNetworkInterfaces()))
        System.out.println(one.getName() + one.isLoopback() + one.isUp() + one.getInterfaceAddresses().size()); } }";
    let file = caller.file("Main.java", source)?;
    let granted = format!("{}:/mnt/Main.java", file.display());
    let report = caller.json(&["--ro", &granted], &["java", "/mnt/Main.java"])?;
    equal("java", (text(&report, "stdout"), denials(&report)), ("lotruetrue3\n", vec![]))
}

/// getifaddrs(3), which psutil, libuv, Ruby and PHP call, and the way of Go's net.Interfaces, which
/// compares the port of each answer with its own.
fn c_lists(caller: &Caller) -> Check {
    const SOURCE: &str = r#"
#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    struct ifaddrs *all = 0, *one;
    if (getifaddrs(&all)) return perror("getifaddrs"), 1;
    for (one = all; one; one = one->ifa_next) printf("%s %d\n", one->ifa_name, one->ifa_addr->sa_family);
    struct if_nameindex *names = if_nameindex();
    printf("%s\n", names && names[0].if_index == 1 && !names[1].if_index ? names[0].if_name : "?");
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    struct sockaddr_nl own = {.nl_family = AF_NETLINK};
    socklen_t length = sizeof own;
    struct { struct nlmsghdr head; struct rtgenmsg any; } ask = {{17, RTM_GETLINK, NLM_F_DUMP | NLM_F_REQUEST, 1}, {0}};
    char answer[4096];
    if (bind(s, (void *)&own, sizeof own) || sendto(s, &ask, 17, 0, 0, 0) != 17) return perror("go"), 1;
    if (recv(s, answer, sizeof answer, 0) < 17 || getsockname(s, (void *)&own, &length)) return perror("go"), 1;
    struct nlmsghdr *head = (void *)answer;
    puts(head->nlmsg_pid == own.nl_pid && own.nl_pid && head->nlmsg_seq == 1 ? "same port" : "another port");
}"#;
    let file = caller.file("list.c", SOURCE)?;
    let granted = format!("{}:/mnt/list.c", file.display());
    let line = "gcc -o /tmp/list /mnt/list.c && /tmp/list";
    let report = caller.json(&["--ro", &granted], &["bash", "-c", line])?;
    let expected = "lo 17\nlo 2\nlo 2\nlo 10\nlo\nsame port\n";
    equal("getifaddrs, Go", (text(&report, "stdout"), denials(&report)), (expected, vec![]))
}

fn link(caller: &Caller) -> Check {
    let script = "
print(socket.if_nameindex())
for _, a in ask(GETADDR, DUMP, bytes(8)): print(a[0], a[1], struct.unpack_from('i', a, 4)[0], a[12:28].hex() if a[0] == 10 else a[12:16].hex())
print(['02000000000f' in a.hex() for _, a in ask(GETLINK, DUMP, link())])
print(ask(NEWLINK, ACK, link(2)), ask(SETLINK, ACK, link(3)), ask(DELADDR, ACK, struct.pack('BBBBi', 2, 24, 0, 0, 2) + attribute(2, bytes([10, 0, 2, 15]))))";
    let report = python(caller, &["--egress", "192.0.2.7:443"], script)?;
    // Both ends of the link belong to the cell; only eth0 has addresses.
    let expected = "[(1, 'lo'), (2, 'eth0'), (3, 'out')]
2 8 1 7f000001
2 24 2 0a00020f
10 128 1 00000000000000000000000000000001
10 64 2 fd000000000000000000000000000015
[False, True, False]
EPERM EPERM EPERM
";
    equal("lo and the link", (text(&report, "stdout"), denials(&report)), (expected, vec![]))
}

fn served(caller: &Caller) -> Check {
    let line = "/usr/bin/python3 -c 'import socket; print(socket.if_nameindex())'";
    let lo = "[(1, 'lo')]\n";
    let link = "[(1, 'lo'), (2, 'eth0'), (3, 'out')]\n";
    let servers: [(&[&str], &str); 2] = [(&[], lo), (&["--egress", "192.0.2.7:443"], link)];
    for (options, expected) in servers {
        let words = [&["serve", "--tools", "shell,exec"], options].concat();
        let mut server = Server::of(caller.cofferdam(&words));
        // The first command of a session, the second, and a cell for one call.
        for tool in ["bash", "bash", "bash_exec"] {
            let result = server.result(tool, json!({ "command": line }));
            let seen = result.pointer("/structuredContent/stdout").and_then(Value::as_str);
            equal(tool, seen, Some(expected))?;
            let denied = result.pointer("/structuredContent/denials").and_then(Value::as_array);
            holds("nothing is denied", &result, denied.is_none_or(Vec::is_empty))?;
        }
        equal("code", server.close(), Some(0))?;
    }
    Ok(())
}

fn ports(caller: &Caller) -> Check {
    let script = "
import time
def bound(port=0):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); s.bind((port, 0)); return s
def answered(s):
    s.send(message(GETLINK, REQUEST | DUMP, link())); return struct.unpack_from('I', s.recv(65536), 12)[0]
r, w = os.pipe()
children = []
for _ in range(8):
    if child := os.fork(): children.append(child)
    else:
        mine = [bound() for _ in range(3)]
        silent = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 0); silent.send(message(GETLINK, REQUEST, link(1)))
        mine.append(silent)
        names = [s.getsockname() for s in mine]
        same = all(answered(s) == s.getsockname()[0] for s in mine[:3])
        os.write(w, repr((names, same)).encode() + b'\\n'); time.sleep(60); os._exit(0)
lines = b''
while lines.count(b'\\n') < 8: lines += os.read(r, 65536)
seen = [eval(line) for line in lines.splitlines()]
ports = [name[0] for names, _ in seen for name in names]
print(len(ports), len(set(ports)), 0 in ports, all(same for _, same in seen), {name[1] for names, _ in seen for name in names})
chosen = bound(4321); print(chosen.getsockname(), tried(lambda: bound(4321)), tried(lambda: bound(ports[0])))
for child in children: os.kill(child, 9)";
    let workspace = caller.directory("ports")?;
    let granted = workspace.display().to_string();
    // With a granted directory init answers bind.
    for options in [vec![], vec!["--rw", granted.as_str()]] {
        let report = python(caller, &options, script)?;
        let expected = "32 32 False True {0}\n(4321, 0) EADDRINUSE EADDRINUSE\n";
        equal("ports", (text(&report, "stdout"), denials(&report)), (expected, vec![]))?;
    }
    Ok(())
}

/// The C library resolves to IPv4 only where it finds an address besides 127.0.0.1, if a program asks
/// it to look (AI_ADDRCONFIG), as getent, wget and Boost.Asio do.
fn resolved(caller: &Caller) -> Check {
    let script = "
def names(name, flags):
    return sorted({one[4][0] for one in socket.getaddrinfo(name, 80, socket.AF_INET, 0, 0, flags)})
print([names(name, flags) for name in ('localhost', '127.0.0.1') for flags in (0, socket.AI_ADDRCONFIG)])
s = socket.create_server(('127.0.1.1', 0)); c = socket.create_connection(s.getsockname(), 10); print(c.getpeername()[0])";
    let found = "['127.0.0.1']";
    let expected = format!("[{found}, {found}, {found}, {found}]\n127.0.1.1\n");
    prints(caller, "resolved", script, &expected)?;
    let report = python(caller, &["--egress", "192.0.2.7:443"], script)?;
    equal("with a link", text(&report, "stdout"), expected.as_str())?;
    // The control: a loopback with one address.
    let control = format!(
        "{CALLS}
assert call(272, 0x50000000) == 0
import fcntl
s = socket.socket(); fcntl.ioctl(s, 0x8914, struct.pack('16sh22x', b'lo', 0x41))
try: socket.getaddrinfo('127.0.0.1', 80, socket.AF_INET, 0, 0, socket.AI_ADDRCONFIG)
except socket.gaierror as error: print(error.errno == socket.EAI_NONAME)
else: print('resolved')"
    );
    let control = caller.python_outside(&control)?;
    // musl does not look at interfaces.
    holds("outside", &control, matches!(control.trimmed(), "True" | "resolved"))
}

fn changes(caller: &Caller) -> Check {
    // Every kind that is no question, with the shortest body of its group.
    let script = "
kinds = [kind for kind in range(16, 124) if kind % 4 != 2]
print({ask(kind, ACK | CREATE, bytes(64)) for kind in kinds})
name = attribute(3, b'x\\0') + attribute(18, attribute(1, b'bridge\\0'))
made = [ask(NEWLINK, ACK | CREATE, link() + name),
    ask(NEWLINK, ACK, link(1)), ask(SETLINK, ACK, link(1) + attribute(4, struct.pack('I', 1500))), ask(DELLINK, ACK, link(1)),
    ask(NEWADDR, ACK | CREATE, struct.pack('BBBBi', 2, 24, 0, 0, 1) + attribute(2, bytes([10, 9, 9, 9]))),
    ask(DELADDR, ACK, struct.pack('BBBBi', 2, 8, 0, 0, 1) + attribute(2, bytes([127, 0, 0, 1]))),
    ask(24, ACK | CREATE, bytes([2, 0, 0, 0, 254, 3, 0, 1]) + bytes(4) + attribute(4, struct.pack('I', 1)))]
print(made, socket.if_nameindex())";
    let report = python(caller, &[], script)?;
    let expected =
        "{'EPERM'}\n['EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM'] [(1, 'lo')]\n";
    equal("changes", (text(&report, "stdout"), denials(&report)), (expected, vec![]))?;
    // The control: with capabilities in a namespace, the same messages change it.
    let script = format!("{CALLS}{NETLINK}
assert call(272, 0x50000000) == 0
name = attribute(3, b'x\\0') + attribute(18, attribute(1, b'veth\\0'))
print(ask(NEWLINK, ACK | CREATE, link() + name), ask(NEWLINK, ACK, link(1)), ask(SETLINK, ACK, link(1) + attribute(4, struct.pack('I', 1500))))");
    let control = caller.python_outside(&script)?;
    equal("in a namespace outside", control.trimmed(), "done done done")
}

fn answers(caller: &Caller) -> Check {
    let script = "
kept = {GETLINK: link(), GETADDR: bytes(8), 26: bytes(12), 30: bytes(12), 34: bytes(12)}
print([ask(kind, DUMP, body) == [] or {one[0] for one in ask(kind, DUMP, body)} for kind, body in kept.items()])
# Neighbour tables of the whole machine, settings that a namespace has of the host's.
print(ask(66, DUMP, bytes(4)), ask(82, DUMP, bytes(4)))
print(sorted({one for kind in range(18, 124, 4) if kind not in kept for one in [ask(kind, DUMP, bytes(64))] if isinstance(one, list) and any(two[1] != 'cut' for two in one)}, key=str))
addresses = [struct.unpack_from('BBBBi', body) for _, body in ask(GETADDR, DUMP, bytes(8))]
routes = [body for _, body in ask(26, DUMP, bytes(12))]
print({one[4] for one in addresses}, {struct.unpack_from('i', body, at + 4)[0] for body in routes for at in range(12, len(body) - 4, 4) if body[at:at + 4] == b'\\x08\\0\\x04\\0'} <= {1})
print([ask(30, DUMP, bytes(12))])";
    let report = python(caller, &[], script)?;
    let expected =
        "[{16}, {20}, {24}, True, {32}]\n[(64, 'cut')] [(80, 'cut')]\n[]\n{1} True\n[[]]\n";
    equal("answers", (text(&report, "stdout"), text(&report, "stderr")), (expected, ""))?;
    let outside = format!(
        "{CALLS}{NETLINK}\nprint(len(ask(66, DUMP, bytes(4))[0][1]) > 100, len(ask(82, DUMP, bytes(4))) > 0)"
    );
    equal("outside", caller.python_outside(&outside)?.trimmed(), "True True")
}

fn namespaces(caller: &Caller) -> Check {
    let script = "
target = lambda number: ask(GETLINK, 0, link(1) + attribute(46, struct.pack('i', number)))
print(target(0), target(1), target(-1), ask(GETLINK, DUMP, link() + attribute(46, struct.pack('i', 0))))
own = os.open('/proc/self/ns/net', os.O_RDONLY) if tried(lambda: os.open('/proc/self/ns/net', os.O_RDONLY)) == 'ok' else 0
print([ask(GETLINK, 0, link(1) + attribute(kind, struct.pack('I', value))) for kind, value in ((19, 1), (28, own))])
print([ask(90, 0, bytes(4) + attribute(kind, struct.pack('i', value))) for kind, value in ((1, 0), (2, 1), (2, os.getpid()), (3, own))])
print(ask(90, DUMP, bytes(4)))
print(any(attribute(37, bytes(4))[:4] == body[at:at + 4] for _, body in ask(GETLINK, DUMP, link()) for at in range(16, len(body), 4)))";
    let report = python(caller, &[], script)?;
    let stdout = text(&report, "stdout");
    let lines: Vec<&str> = stdout.lines().collect();
    let first = lines.first().copied().unwrap_or_default();
    equal("a namespace by its number", first, "EINVAL EINVAL EINVAL []")
        .or_else(|_| equal("older kernels", first, "EINVAL EINVAL EINVAL EINVAL"))?;
    equal("by process and file", lines.get(1).copied(), Some("['ENOTSUP', 'ENOTSUP']"))?;
    let numbers = lines.get(2).copied().unwrap_or_default();
    let is_cut = numbers.split("), ").all(|one| !one.contains("88") || one.contains("'cut'"));
    holds("numbers of namespaces are cut off", numbers, is_cut)?;
    equal("no number is listed", lines.get(3..), Some(&["[]", "False"][..]))?;
    let control = format!(
        "{CALLS}{NETLINK}\nprint(len(ask(90, 0, bytes(4) + attribute(2, struct.pack('i', os.getpid())))[0][1]))"
    );
    equal("outside a number is not cut off", caller.python_outside(&control)?.trimmed(), "12")
}

fn others(caller: &Caller) -> Check {
    let script = "
s, other = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) for _ in range(2)]
other.bind((0, 0)); s.bind((0, 0x1fffffff))
port = other.getsockname()[0]
hello = message(GETLINK, REQUEST, link(1))
print(tried(lambda: s.sendto(hello, (port, 0))), tried(lambda: s.sendto(hello, (0, 1))), tried(lambda: s.connect((port, 0))))
print(tried(lambda: s.connect((0, 0))), s.getsockname()[1] == 0x1fffffff, tried(lambda: s.setsockopt(270, 1, 5)), tried(lambda: s.setsockopt(270, 2, 5)))
for one in (s, other): one.setblocking(False)
print(tried(lambda: s.recv(100)), tried(lambda: other.recv(100)))
# Listening to all namespaces.
print(tried(lambda: s.setsockopt(270, 8, 1)), tried(lambda: s.setsockopt(270, 12, 1)), tried(lambda: s.setsockopt(270, 11, 1)))";
    let report = python(caller, &[], script)?;
    let expected = "EPERM EPERM EPERM\nok True ok ok\nEAGAIN EAGAIN\nEPERM ok ok\n";
    equal("others", text(&report, "stdout"), expected)?;
    equal("reported", denials(&report), vec![("setsockopt".to_owned(), 1)])
}

fn filter(caller: &Caller) -> Check {
    let script = "
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
pass_all = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xffffffff))
program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(pass_all))
print(tried(lambda: s.setsockopt(1, 26, program)), tried(lambda: s.setsockopt(1, 27, 0)), tried(lambda: s.setsockopt(1, 44, 0)))
print(ask(66, DUMP, bytes(4), socket.socket(fileno=os.dup(s.fileno()))))";
    let report = python(caller, &[], script)?;
    let expected = "EPERM EPERM EPERM\n[(64, 'cut')]\n";
    equal("it stays", text(&report, "stdout"), expected)?;
    let control = format!(
        "{CALLS}\ns = socket.socket(16, 3, 0)\nprint(tried(lambda: s.setsockopt(1, 27, 0)), tried(lambda: s.setsockopt(1, 44, 0)))"
    );
    equal("outside there is none", caller.python_outside(&control)?.trimmed(), "ENOENT ok")
}

fn limited(caller: &Caller) -> Check {
    // Each way to keep a socket other than in a descriptor of the process that asked for it.
    let script = "
import array, time
def one():
    try: return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 0)
    except OSError as error: return errno.errorcode[error.errno]
def some(count): return [made for made in (one() for _ in range(count)) if not isinstance(made, str)]
have = some(70); print(len(have), one())
kept = os.dup(have[0].fileno()); have.clear(); print(len(some(70))); os.close(kept)
a, b = socket.socketpair()
for made in some(4): a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [made.fileno()]))])
del made; print(len(some(70))); a.close(); b.close()
r, w = os.pipe()
if not (child := os.fork()):
    mine = some(60); os.write(w, b'x'); time.sleep(60)
os.read(r, 1); print(len(some(70))); os.kill(child, 9); os.waitpid(child, 0)
for _ in range(500): one().close()
print(len(some(70)))
import fcntl
plain = call(41, 16, 3, 0); closing = call(41, 16, 3 | 0o2004000, 0)
print([fcntl.fcntl(s, command) for s in (plain, closing) for command in (fcntl.F_GETFD, fcntl.F_GETFL)], [socket.socket(fileno=s).type for s in (plain, closing)])";
    prints(
        caller,
        "sockets",
        script,
        "64 ENOBUFS\n63\n60\n4\n64\n[0, 2, 1, 2050] [<SocketKind.SOCK_RAW: 3>, <SocketKind.SOCK_RAW: 3>]\n",
    )
}

/// A control group counts neither answers that are not read nor requests: buffers stay small, whichever way
/// memory is held.
fn sizes(caller: &Caller) -> Check {
    let script = "
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
before = [s.getsockopt(1, option) for option in (7, 8)]
print(before[0] < 8192, [tried(lambda: s.setsockopt(1, option, 1 << 22)) for option in (7, 8)])
call(54, s.fileno(), 1, 8, struct.pack('i', 1 << 22), 4); call(54, s.fileno() | 1 << 32, 1 | 1 << 32, 7 | 1 << 32, struct.pack('i', 1 << 22), 4)
print([s.getsockopt(1, option) for option in (7, 8)] == before, tried(lambda: s.send(bytes(before[0]))))
forced = [tried(lambda: s.setsockopt(1, option, 1 << 22)) for option in (32, 33)]
print(set(forced) <= {'EPERM', 'ok'}, [s.getsockopt(1, option) for option in (7, 8)] == before)
# Answers that are not read stay within the buffer and one message.
s.setblocking(False)
for _ in range(2000):
    try: s.send(message(GETLINK, REQUEST | DUMP, link()))
    except OSError: pass
lines = [line.split() for line in open('/proc/self/net/netlink') if line.split()[1] == '0' and line.split()[2] != '0']
print(len(lines), int(lines[0][4]) <= before[1] + 65536)
t = socket.socket()
t.setsockopt(1, 8, 20000); print(t.getsockopt(1, 8))
print(tried(lambda: t.setsockopt(1, 8, b'abc')), call(54, t.fileno(), 1, 8, 8, 4), call(54, 999, 1, 8, bytes(4), 4), call(54, t.fileno(), 1, 8, bytes(4), -1), call(54, 0, 1, 7, bytes(4), 4))
call(157, 4, 0)
t.setsockopt(1, 8, 30000); s.setsockopt(1, 8, 30000)
print(t.getsockopt(1, 8), s.getsockopt(1, 8) == before[1])";
    let report = python(caller, &[], script)?;
    let stdout = text(&report, "stdout");
    let common = "True ['ok', 'ok']\nTrue EMSGSIZE\nTrue True\n1 True\n";
    let rest = stdout.strip_prefix(common);
    holds("route netlink keeps its sizes", stdout, rest.is_some())?;
    let memory = report.pointer("/receipt/configured/memory").and_then(Value::as_str);
    match memory {
        // Setting a size has no effect on any socket.
        Some("best-effort") => Ok(()),
        // A program that asked to be untraceable is looked into as any other.
        _ => {
            let expected = "40000\nEINVAL EFAULT EBADF EINVAL ENOTSOCK\n60000 True\n";
            equal("sizes of other sockets", rest, Some(expected))
        }
    }
}

/// Requests take a lock that is the machine's (rtnl_lock). Another cell, whose network is made under
/// it, starts meanwhile.
fn looped(caller: &Caller) -> Check {
    let script = "
import time
end = time.monotonic() + 4
for _ in range(8):
    if not os.fork():
        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); count = 0
        batch = message(GETLINK, REQUEST, link(1)) * 140
        while time.monotonic() < end:
            s.send(batch); count += 140
            try:
                while True: s.recv(65536, socket.MSG_DONTWAIT)
            except OSError: pass
        os._exit(count > 1000)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(8)])";
    let asking = std::thread::scope(|scope| {
        let asking = scope.spawn(|| python(caller, &[], script));
        std::thread::sleep(std::time::Duration::from_millis(500));
        let report = caller.json(&["--egress", "192.0.2.7:443"], &["true"]);
        (asking.join(), report)
    });
    let (asking, other) = asking;
    equal("another cell", other?.get("exit_code"), Some(&0.into()))?;
    let asking = asking.map_err(|_| Failed::from("the asking cell".to_owned()))??;
    equal("requests", text(&asking, "stdout"), "[1, 1, 1, 1, 1, 1, 1, 1]\n")
}

fn protocols(caller: &Caller) -> Check {
    let script = "
print({call(41, 16, kind, protocol) for kind in (2, 3) for protocol in range(1, 33)}, {call(41, 16, kind, 0) for kind in (1, 4, 5, 6, 10)})
print(call(53, 16, 3, 0, bytes(8)))";
    let report = python(caller, &[], script)?;
    equal("refused", text(&report, "stdout"), "{'EPERM'} {'EPERM'}\nEPERM\n")?;
    let counted = vec![("socket".to_owned(), 69), ("socketpair".to_owned(), 1)];
    equal("reported", denials(&report), counted)?;
    let control = caller.python_outside(&format!("{CALLS}\nprint(call(41, 16, 3, 15) > 2)"))?;
    equal("outside there is another", control.trimmed(), "True")
}

/// A filter around cofferdam (RestrictAddressFamilies of systemd, a container's) may refuse netlink:
/// the loopback is made in another way.
fn left_out(caller: &Caller) -> Check {
    let inside = format!(
        "{CALLS}
s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname(), 10)
print(call(41, 16, 3, 0), call(41, 16, 2, 0), socket.getaddrinfo('localhost', 80, socket.AF_INET, 0, 0, socket.AI_ADDRCONFIG)[0][4][0])"
    );
    let outside = format!(
        "{CALLS}
steps = [(0x20, 0, 0, 0), (0x15, 0, 3, native(41)), (0x20, 0, 0, 16), (0x15, 0, 1, 16), (6, 0, 0, 0x50000 | 97), (6, 0, 0, 0x7fff0000)]
text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(steps), ctypes.addressof(text)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], [sys.argv[1], 'run', '--', '/usr/bin/python3', '-c', sys.argv[2]])"
    );
    let mut command = caller.outside("/usr/bin/python3");
    command.arg("-c").arg(&outside).arg(caller.binary()).arg(&inside);
    let output = Finished::run(command, patience())?;
    let expected = ("EAFNOSUPPORT EAFNOSUPPORT 127.0.0.1", "");
    equal("without netlink", (output.trimmed(), output.stderr.as_str()), expected)
}

/// Without a network namespace the answer would be about the host.
fn lower(caller: &Caller) -> Check {
    let script = format!("{CALLS}\nprint(call(41, 16, 3, 0), call(41, 16, 2, 0))");
    let argv = ["/usr/bin/python3", "-c", script.as_str()];
    let report = caller.json(&["--tier", "landlock+seccomp"], &argv)?;
    equal("refused", text(&report, "stdout"), "EPERM EPERM\n")
}
