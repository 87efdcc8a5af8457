//! The privilege table of DESIGN.md, read from outside for each process of a call.

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{
    Caller, Check, Claim, Failed, For, Live, Need, Who, children, claim, equal, holds, patience,
    proc_file, status,
};

pub const CLAIMS: &[Claim] = &[
    claim("the_front_end_is_unprivileged_and_filtered", front_end),
    claim("the_supervisor_has_few_capabilities", supervisor).needs(&[Need::RootLooks]),
    claim("init_has_no_capability_and_a_filter", init),
    claim("the_program_has_another_landlock_layer", payload),
    claim("only_the_operator_can_read_supervisor_and_init", untraceable).only(For::Root),
    claim("another_process_of_the_same_user_cannot_read_them", unreadable).only(For::User),
    claim("supervisor_and_init_hold_no_caller_data", wiped),
    claim("each_holds_only_the_descriptors_it_needs", descriptors).needs(&[Need::RootLooks]),
    claim("no_socket_of_init_is_of_the_hosts_network", sockets).needs(&[Need::RootLooks]),
    claim("no_process_has_another_limit_of_core_files_than_1", core_limits),
    claim("gateway_worker_and_clerk_hold_no_caller_data", core_limits_of_a_server),
    claim("the_core_file_limit_stays_1", core_limit_stays).needs(&[Need::Python]),
    claim("only_the_program_of_a_cell_has_been_executed", nothing_else_executed)
        .needs(&[Need::RootLooks]),
];

fn cell(caller: &Caller) -> Result<Live, crate::support::Failed> {
    caller.live(&[], "sleep 60")
}

const NONE: &str = "0000000000000000";

/// `CapInh`, `CapPrm`, `CapEff`, `CapBnd`, `CapAmb`, `NoNewPrivs`, `Seccomp` of a process or thread.
fn walls(path: &str) -> Result<[String; 7], crate::support::Failed> {
    let text = std::fs::read_to_string(path)?;
    let fields = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];
    Ok(fields.map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_default().trim().to_owned()
    }))
}

fn front_end(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", live.pid()))?;
    let mut threads = 0;
    for task in tasks.flatten() {
        let found = walls(&task.path().join("status").display().to_string())?;
        // Only CAP_SETPCAP can empty the bounding set; with no_new_privs set the bounding set
        // limits nothing.
        let bounding = match (caller.who, found.get(3)) {
            (Who::User, Some(bounding)) => bounding.clone(),
            (Who::User | Who::Root, _) => NONE.to_owned(),
        };
        let expected = [NONE, NONE, NONE, &bounding, NONE, "1", "2"].map(str::to_owned);
        equal("a thread", found, expected)?;
        threads += 1;
    }
    holds("threads", threads, threads >= 1)?;
    equal("its own uid", status(live.pid())?.ids("Uid"), [caller.uid(); 4])
}

/// SETGID, SETUID, KILL, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, SETFCAP: within its namespace.
const KEPT: u64 = 1 << 5 | 1 << 6 | 1 << 7 | 1 << 18 | 1 << 19 | 1 << 21 | 1 << 31;

fn supervisor(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let pid = live.supervisor()?;
    let kept = format!("{KEPT:016x}");
    let expected = [NONE, &kept, &kept, &kept, NONE, "1", "2"].map(str::to_owned);
    equal("walls", walls(&format!("/proc/{pid}/status"))?, expected)?;
    let output = status(pid)?;
    holds("never the host's uid 0", output.ids("Uid"), !output.ids("Uid").contains(&0))?;
    equal("one thread", output.get("Threads"), "1")?;
    // Not of cgroups: it places cells next to its own group.
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts"] {
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}"));
        holds(&format!("its own namespace: {kind}"), pid, of(&pid.to_string())? != of("self")?)?;
    }
    equal("pid 1 of its pid namespace", output.get("NSpid").split_whitespace().last(), Some("1"))
}

/// Any other, 0 included, lets the kernel start a program of the host for a crash where `core_pattern` is a pipe.
fn core_limits(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let all = [
        ("front end", live.pid()),
        ("supervisor", live.supervisor()?),
        ("init", live.init()?),
        ("program", live.payload()?),
    ];
    for (role, pid) in all {
        equal(role, core_limit(pid).as_deref(), Some("1 1 bytes"))?;
    }
    Ok(())
}

/// Returns the soft and the hard limit of core files of a process, if it has not ended.
fn core_limit(pid: u32) -> Option<String> {
    let limits = proc_file(pid, "limits").ok()?;
    let limits = String::from_utf8_lossy(&limits);
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max core file size"))?;
    Some(limit.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns a process and all that come from it.
fn family(pid: u32) -> Vec<u32> {
    let mut all = children(pid).into_iter().flat_map(family).collect::<Vec<_>>();
    all.push(pid);
    all
}

fn core_limits_of_a_server(caller: &Caller) -> Check {
    let words = ["serve", "--tools", "shell,files", "--egress", "192.0.2.1:9"];
    let mut server = Server::of(caller.cofferdam(&words));
    // The packet makes the gateway fork a worker for the cell.
    server.result("bash", json!({ "command": "echo x >/dev/udp/192.0.2.1/9; echo x >file" }));
    let named = |pid: u32| {
        let words = proc_file(pid, "cmdline").unwrap_or_default();
        String::from_utf8_lossy(words.split(|byte| *byte == 0).next().unwrap_or_default())
            .into_owned()
    };
    // Itself, eight that close sockets, and a worker.
    let gateways = |all: &[u32]| {
        all.iter()
            .filter(|pid| named(**pid) == "cofferdam-gateway")
            .map(|pid| core_limit(*pid))
            .collect()
    };
    let expected = vec![Some("1 1 bytes".to_owned()); 10];
    let end = std::time::Instant::now() + patience();
    let all = loop {
        let all = family(server.child.id());
        let limits: Vec<Option<String>> = gateways(&all);
        if limits == expected {
            break all;
        }
        if std::time::Instant::now() > end {
            return equal("core limits of the gateway's processes", limits, expected);
        }
    };
    for pid in all.iter().copied() {
        if let Some(limit) = core_limit(pid) {
            equal(&named(pid), limit, "1 1 bytes")?;
        }
    }

    // The program runs for a millisecond as a child of the shell, so its parents are found beforehand.
    let parents: Vec<u32> = all.into_iter().filter(|pid| named(*pid).contains("bash")).collect();
    let clerk = || {
        parents.iter().find_map(|shell| {
            let children = proc_file(*shell, &format!("task/{shell}/children")).ok()?;
            let child = String::from_utf8_lossy(&children).trim().parse().ok()?;
            // Read before its name: if the name matches afterwards, it was the same process.
            core_limit(child).filter(|_| named(child) == "/.cofferdam/clerk")
        })
    };
    let end = std::time::Instant::now() + patience();
    while std::time::Instant::now() < end {
        let request = server.call("get_file", json!({ "path": "file" }));
        let is_answered = |line: Value| line.get("id") == Some(&json!(request));
        while !server.lines.try_recv().is_ok_and(is_answered) && std::time::Instant::now() < end {
            if let Some(limit) = clerk() {
                return equal("clerk", limit, "1 1 bytes");
            }
        }
    }
    Err(Failed::from(format!("no clerk was seen below {parents:?}")))
}

fn core_limit_stays(caller: &Caller) -> Check {
    let script = format!(
        "{}
import resource, os
new = (ctypes.c_uint64 * 2)(0, 0); old = (ctypes.c_uint64 * 2)(7, 7)
n, o = ctypes.addressof(new), ctypes.addressof(old)
print(call(302, 0, 4, n, 0), call(160, 4, n), call(302, 0, 4, n, o), list(old), call(302, 1, 4, n, 0))
print(call(302, 0, 4, 0, o), list(old), call(302, 0, 4, 0, 0))
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
print(resource.getrlimit(resource.RLIMIT_CORE), os.system('ulimit -c 0 && ulimit -c unlimited'))",
        crate::support::CALLS
    );
    let expected = "0 0 EPERM [7, 7] EPERM\n0 [1, 1] 0\n(1, 1) 0";
    equal("prlimit64, setrlimit, a shell", caller.python(&script)?.trimmed(), expected)
}

fn init(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let pid = live.init()?;
    let expected = [NONE, NONE, NONE, NONE, NONE, "1", "2"].map(str::to_owned);
    equal("walls", walls(&format!("/proc/{pid}/status"))?, expected)?;
    equal("pid 1", status(pid)?.get("NSpid").split_whitespace().last(), Some("1"))
}

fn payload(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let pid = live.payload()?;
    let expected = [NONE, NONE, NONE, NONE, NONE, "1", "2"].map(str::to_owned);
    equal("walls", walls(&format!("/proc/{pid}/status"))?, expected)?;
    // The supervisor's, which it inherits, and the profile's.
    equal("filters", status(pid)?.get("Seccomp_filters"), "2")?;
    equal("pid 3", status(pid)?.get("NSpid").split_whitespace().last(), Some("3"))?;
    let report = caller.json(&[], &["true"])?;
    let measured = report.pointer("/receipt/measured/seccomp_filters");
    equal("the receipt says the same", measured, Some(&serde_json::json!(2)))
}

/// The owner of a process's files is root where it is not dumpable (proc(5)).
fn untraceable(caller: &Caller) -> Check {
    use std::os::unix::fs::MetadataExt;
    let live = cell(caller)?;
    let owner = |pid: u32| std::fs::metadata(format!("/proc/{pid}/environ")).map(|of| of.uid());
    for (role, pid) in [("supervisor", live.supervisor()?), ("init", live.init()?)] {
        equal(role, owner(pid)?, 0)?;
        // With the same uid as the process.
        let uid = status(pid)?.ids("Uid").first().copied().unwrap_or_default().to_string();
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "cat"]);
        command.arg(format!("/proc/{pid}/environ"));
        let output = crate::support::Finished::run(command, crate::support::patience())?;
        holds(role, &output, output.code == 1 && output.stderr.contains("Permission denied"))?;
    }
    holds(
        "the program is dumpable to itself",
        owner(live.payload()?)?,
        owner(live.payload()?)? != 0,
    )
}

fn unreadable(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let supervisor = live.supervisor()?;
    let init = live.init()?;
    let read = |pid: u32, file: &str| caller.bash_outside(&format!("head -c1 /proc/{pid}/{file}"));
    for file in ["environ", "mem", "auxv", "maps"] {
        let output = read(supervisor, file)?;
        holds(
            "supervisor",
            &output,
            output.code == 1 && output.stderr.contains("Permission denied"),
        )?;
    }
    // The user owns the cell's namespace, and still cannot open the memory of its init.
    let output = read(init, "mem")?;
    let nothing = output.stdout.is_empty() && output.code == 1;
    holds("init", &output, nothing)?;
    // The control: an ordinary process of the user.
    let output = caller.bash_outside("head -c1 /proc/self/environ | wc -c")?;
    equal("their own", output.trimmed(), "1")
}

fn wiped(caller: &Caller) -> Check {
    let mut command = caller.run_command(
        &["--env", "SHOWN=1"],
        &["bash", "-c", "echo ready; sleep 60 # word-of-the-call"],
    );
    command.env("SECRET", "hunter2-of-the-caller");
    let live = Live::start(command)?;
    if nix::unistd::geteuid().is_root() {
        // The control: it was there, in the operator's own process.
        let front = proc_file(live.pid(), "environ")?;
        holds("the front end", front.len(), contains(&front, b"hunter2"))?;
    }
    for (role, pid) in [("supervisor", live.supervisor()?), ("init", live.init()?)] {
        let line = String::from_utf8_lossy(&proc_file(pid, "cmdline")?).into_owned();
        equal(role, line.trim_end_matches('\0'), "cofferdam")?;
        if nix::unistd::geteuid().is_root() {
            let environ = proc_file(pid, "environ")?;
            holds(role, environ.len(), environ.iter().all(|byte| *byte == 0))?;
            holds(role, "stack and heap", !memory_has(pid, b"hunter2-of-the-caller")?)?;
        }
    }
    Ok(())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Returns true if a writable mapping of a process has these bytes. Only root may look.
fn memory_has(pid: u32, needle: &[u8]) -> Result<bool, crate::support::Failed> {
    use std::os::unix::fs::FileExt;
    let maps = String::from_utf8(proc_file(pid, "maps")?)?;
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let Some((from, to)) = line.split(' ').next().and_then(|range| range.split_once('-'))
        else {
            continue;
        };
        let from = u64::from_str_radix(from, 16)?;
        let to = u64::from_str_radix(to, 16)?;
        let mut bytes = vec![0; usize::try_from(to - from)?];
        // Some mappings cannot be read at all: there is nothing of ours in them.
        if memory.read_exact_at(&mut bytes, from).is_ok() && contains(&bytes, needle) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the targets of a process's descriptors.
fn descriptor_targets(pid: u32) -> Result<Vec<String>, crate::support::Failed> {
    let list = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let targets = list.flat_map(|fd| std::fs::read_link(fd.path()));
    Ok(targets.map(|path| path.display().to_string()).collect())
}

/// Checks unix sockets, which reveal the network they were made in wherever they are used: ioctl(2) on one names
/// the interfaces there (netdevice(7)).
fn sockets(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let of_the_host = std::fs::read_to_string("/proc/net/unix")?;
    let inodes: Vec<&str> =
        of_the_host.lines().filter_map(|line| line.split_whitespace().nth(6)).collect();
    let of_the_host = |targets: &[String]| {
        let sockets = targets.iter().filter_map(|target| target.strip_prefix("socket:["));
        sockets.filter(|inode| inodes.contains(&inode.trim_end_matches(']'))).count()
    };
    let front_end = of_the_host(&descriptor_targets(live.pid())?);
    holds("the front end's link is made by it", front_end, front_end > 0)?;
    equal("of init", of_the_host(&descriptor_targets(live.init()?)?), 0)
}

fn descriptors(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let init = descriptor_targets(live.init()?)?;
    // The links of `/proc`, found while it holds them.
    let links = ["/proc/mounts", "/proc/net"];
    let of_init = ["/null", "/dev/null", "/tmp/.template", "socket:", "anon_inode:"];
    // For a user there is also a procfs of the cell that is mounted nowhere, for the memory watch: "/".
    let known = |target: &String| {
        target == "/"
            || links.contains(&target.as_str())
            || of_init.iter().any(|of| target.starts_with(of))
    };
    holds("init", &init, init.iter().all(known))?;
    let program = descriptor_targets(live.payload()?)?;
    let pipes = program.iter().filter(|target| target.starts_with("pipe:")).count();
    equal("the program: three pipes of the supervisor's", (program.len(), pipes), (3, 3))
}

/// Checks from outside that front end, supervisor and init are the program that was started. The
/// calls that the front end's filter refuses are tested in `filters/processes.rs`.
fn nothing_else_executed(caller: &Caller) -> Check {
    let live = cell(caller)?;
    let exe = std::fs::read_link(format!("/proc/{}/exe", live.pid()))?;
    equal("the front end", exe.as_path(), caller.binary().as_path())?;
    for pid in [live.supervisor()?, live.init()?] {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe"))?;
        holds("never executed anything", &exe, exe.ends_with("cofferdam"))?;
    }
    equal("no child but the supervisor", crate::support::children(live.pid()).len(), 1)
}
