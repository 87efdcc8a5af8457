//! Namespaces: what a cell sees and reaches of processes, network, IPC and host name.

use crate::support::{CALLS, Caller, Check, Claim, Need, claim, equal, holds};

pub const CLAIMS: &[Claim] = &[
    claim("each_of_seven_namespaces_is_new", all_differ),
    claim("a_cell_sees_only_its_processes", own_processes),
    claim("the_host_name_is_cofferdam_and_cannot_be_set", host_name).needs(&[Need::Python]),
    claim("a_cell_has_no_controlling_terminal", no_terminal).needs(&[Need::Script]),
    claim("a_cell_is_a_new_terminal_session", own_session),
    claim("nested_namespaces_are_refused", nested_refused).needs(&[Need::Python, Need::Unshare]),
    claim("user_namespaces_are_refused_without_a_filter_too", nested_count)
        .needs(&[Need::Nsenter, Need::Unshare]),
    claim("the_loopback_of_the_host_is_not_the_cells", host_loopback).needs(&[Need::Python]),
    claim("a_listener_in_a_cell_is_unreachable_from_the_host", cell_listener)
        .needs(&[Need::Python]),
    claim("there_is_no_way_out_of_the_network_namespace", no_route).needs(&[Need::Python]),
    claim("abstract_sockets_of_the_host_are_not_there", abstract_socket).needs(&[Need::Python]),
    claim("shared_memory_of_the_host_is_not_there", shared_memory).needs(&[Need::Python]),
];

const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

fn all_differ(caller: &Caller) -> Check {
    let live = caller.live(&[], "sleep 60")?;
    let payload = live.payload()?;
    let control = caller.bash_outside("readlink /proc/self/ns/net")?;
    let mine = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}"));
    equal(
        "a program outside has the operator's",
        control.trimmed(),
        mine("net")?.to_string_lossy(),
    )?;
    for name in NAMESPACES {
        let cell = std::fs::read_link(format!("/proc/{payload}/ns/{name}"))?;
        holds(&format!("the cell's own {name} namespace"), &cell, cell != mine(name)?)?;
    }
    match mine("time") {
        // The time namespace of the supervisor: one for all cells.
        Ok(mine) => {
            let cell = std::fs::read_link(format!("/proc/{payload}/ns/time"))?;
            holds("a time namespace that is not the operator's", &cell, cell != mine)
        }
        // This kernel has no such namespace.
        Err(_) => Ok(()),
    }
}

fn own_processes(caller: &Caller) -> Check {
    let list = "echo $$ /proc/[0-9]*";
    // Pid 2 lent its memory until exec, and takes a moment to end.
    let settled = format!("while [ -e /proc/2 ]; do sleep 0.01; done; {list}");
    equal("processes in a cell", caller.bash(&settled)?.trimmed(), "3 /proc/1 /proc/3")?;
    let outside = caller.bash_outside(list)?;
    let mine = format!("/proc/{}", std::process::id());
    holds(
        "outside the test is seen",
        &mine,
        outside.trimmed().split(' ').any(|word| word == mine),
    )?;
    // The test's own pid names no process, or another one, in the cell.
    let kill = format!("kill -0 {}", std::process::id());
    let output = caller.bash(&kill)?;
    holds("no such process", &output, output.code == 1 && output.stderr.contains("No such process"))
}

fn host_name(caller: &Caller) -> Check {
    let output = caller.python(&format!(
        "{CALLS}\nprint(os.uname().nodename, call(170, b'x', 1), call(171, b'x', 1))"
    ))?;
    equal("name, sethostname, setdomainname", output.trimmed(), "cofferdam EPERM EPERM")?;
    let outside = caller.bash_outside("uname -n")?;
    holds("the host has another", &outside, outside.trimmed() != "cofferdam")
}

fn no_terminal(caller: &Caller) -> Check {
    let look = "read -r _ _ _ _ _ _ tty _ </proc/self/stat; echo tty=$tty; : </dev/tty";
    let binary = caller.binary();
    let line = format!(
        "bash -c ': </dev/tty' && echo control; {} run --no-tty -- bash -c '{look}'; echo code=$?",
        binary.display()
    );
    let mut command = caller.outside("script");
    command.args(["--quiet", "--command", &line, "/dev/null"]);
    let output = crate::support::Finished::run(command, crate::support::patience())?;
    let lines: Vec<&str> = output.stdout.lines().map(str::trim_end).collect();
    let has = |wanted: &str| lines.contains(&wanted);
    holds("the terminal opens outside", &lines, has("control"))?;
    holds("no terminal in the cell", &lines, has("tty=0") && has("code=1"))?;
    holds("as its device says", &lines, output.stdout.contains("No such device or address"))
}

fn own_session(caller: &Caller) -> Check {
    let live = caller.live(&[], "sleep 60")?;
    let session = |pid: u32| -> Result<String, crate::support::Failed> {
        let stat = String::from_utf8(crate::support::proc_file(pid, "stat")?)?;
        let rest = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        Ok(rest.split(' ').nth(3).unwrap_or_default().to_owned())
    };
    let front = session(live.pid())?;
    let payload = session(live.payload()?)?;
    let supervisor = session(live.supervisor()?)?;
    let init = session(live.init()?)?;
    equal("the front end stays in the caller's", front.clone(), session(std::process::id())?)?;
    let mut all = vec![front, supervisor, init, payload];
    all.sort_unstable();
    all.dedup();
    equal("four processes, four sessions", all.len(), 4)
}

fn nested_refused(caller: &Caller) -> Check {
    const FLAGS: [(&str, u32); 8] = [
        ("time", 0x80),
        ("mount", 0x2_0000),
        ("cgroup", 0x200_0000),
        ("uts", 0x400_0000),
        ("ipc", 0x800_0000),
        ("user", 0x1000_0000),
        ("pid", 0x2000_0000),
        ("net", 0x4000_0000),
    ];
    for (name, flag) in FLAGS {
        let unshare = format!("call(272, {flag})");
        let setns = format!("call(308, 0, {flag})");
        // The low byte of clone's flags is a signal: CLONE_NEWTIME cannot be asked of it.
        let clone = if flag > 0xff {
            format!("call(56, {flag} | 17, 0, 0, 0, 0)")
        } else {
            "'EPERM'".into()
        };
        let output = caller.python(&format!("{CALLS}\nprint({unshare}, {clone}, {setns})"))?;
        equal(&format!("unshare, clone, setns of {name}"), output.trimmed(), "EPERM EPERM EPERM")?;
    }
    let output =
        caller.python(&format!("{CALLS}\nprint(call(435, 0, 0), call(435, bytes(88), 88))"))?;
    equal("clone3", output.trimmed(), "ENOSYS ENOSYS")?;
    let output = caller.bash("unshare --user true")?;
    equal(
        "unshare(1) in a cell",
        (output.code, output.stderr.as_str()),
        (
            1,
            "unshare: unshare failed: Operation not permitted\n\
             cofferdam: denied: system call unshare, once; nothing grants it\n",
        ),
    )?;
    equal("unshare(1) outside", caller.bash_outside("unshare --user true")?.code, 0)
}

/// Enters the cell's user namespace from outside, where no filter of the cell holds.
fn nested_count(caller: &Caller) -> Check {
    let live = caller.live(&[], "sleep 60")?;
    let payload = live.payload()?;
    let line = format!("nsenter -t {payload} -U --preserve-credentials");
    let read = caller.bash_outside(&format!("{line} cat /proc/sys/user/max_user_namespaces"))?;
    equal("max_user_namespaces", (read.code, read.trimmed()), (0, "0"))?;
    let output = caller.bash_outside(&format!("{line} unshare --user true"))?;
    let expected = "unshare: unshare failed: No space left on device\n";
    equal("a namespace in it", (output.code, output.stderr.as_str()), (1, expected))
}

const CONNECT: &str = "
import errno, socket, sys
def connect(family, address):
    try:
        socket.socket(family, socket.SOCK_STREAM).connect(address)
        return 'connected'
    except OSError as error:
        return errno.errorcode[error.errno]
";

fn host_loopback(caller: &Caller) -> Check {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let script = format!("{CONNECT}\nprint(connect(socket.AF_INET, ('127.0.0.1', {port})))");
    equal("outside", caller.python_outside(&script)?.trimmed(), "connected")?;
    listener.accept()?;
    equal("in a cell", caller.python(&script)?.trimmed(), "ECONNREFUSED")?;
    let bash = caller.bash(&format!("echo > /dev/tcp/127.0.0.1/{port}"))?;
    holds("bash in a cell", &bash, bash.code == 1 && bash.stderr.contains("Connection refused"))?;
    // The listener itself must have seen no connection.
    listener.set_nonblocking(true)?;
    let came = listener.accept().map(|_| ()).map_err(|error| error.kind());
    equal("who came", came, Err(std::io::ErrorKind::WouldBlock))
}

fn cell_listener(caller: &Caller) -> Check {
    let script = "python3 -c \"
import socket, time
s = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(s.getsockname())
c.send(b'x'); print(s.accept()[0].recv(1).decode(), s.getsockname()[1], flush=True)
time.sleep(60)\"";
    let mut live = caller.live(&[], script)?;
    let line = live.line()?;
    let (inside, port) = line.split_once(' ').ok_or("no port")?;
    equal("a client in the cell", inside, "x")?;
    let outside = std::net::TcpStream::connect(("127.0.0.1", port.parse::<u16>()?));
    equal(
        "a client on the host",
        outside.map(drop).map_err(|error| error.kind()),
        Err(std::io::ErrorKind::ConnectionRefused),
    )
}

fn no_route(caller: &Caller) -> Check {
    let script = format!(
        "{CONNECT}
print([line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])
print(connect(socket.AF_INET, ('169.254.169.254', 80)), connect(socket.AF_INET, ('192.0.2.1', 80)))
print(connect(socket.AF_INET6, ('2001:db8::1', 80)))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try: u.sendto(b'x', ('192.0.2.1', 53))
except OSError as error: print(errno.errorcode[error.errno])
s = socket.create_server(('127.0.0.1', 0))
print(connect(socket.AF_INET, s.getsockname()))"
    );
    let output = caller.python(&script)?;
    let expected = "['lo']\nENETUNREACH ENETUNREACH\nENETUNREACH\nENETUNREACH\nconnected";
    equal("interfaces and ways out", output.trimmed(), expected)
}

fn abstract_socket(caller: &Caller) -> Check {
    let name = format!("cofferdam-test-{}-{}", std::process::id(), caller.uid());
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let script = format!("{CONNECT}\nprint(connect(socket.AF_UNIX, '\\0{name}'))");
    equal("outside", caller.python_outside(&script)?.trimmed(), "connected")?;
    listener.accept()?;
    equal("in a cell", caller.python(&script)?.trimmed(), "ECONNREFUSED")
}

fn shared_memory(caller: &Caller) -> Check {
    let key = 0x0c0f_0000 + caller.uid() % 0xffff;
    let get = |flags: u32| format!("{CALLS}\nprint(call(29, {key}, 4096, {flags}))");
    let made = caller.python_outside(&get(0o1600))?;
    let id: u32 = made.trimmed().parse().map_err(|_| format!("not made: {made:?}"))?;
    let found = caller.python_outside(&get(0))?;
    let inside = caller.json(&[], &["/usr/bin/python3", "-c", &get(0)])?;
    let removed = caller.python_outside(&format!("{CALLS}\nprint(call(31, {id}, 0, None))"))?;
    equal("removed", removed.trimmed(), "0")?;
    equal("outside it is found", found.trimmed(), made.trimmed())?;
    equal("in a cell", inside.get("stdout"), Some(&"ENOENT\n".into()))
}
