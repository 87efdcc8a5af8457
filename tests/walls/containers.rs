//! Conditions of containers and distributions, simulated here: doctor names each, and no run is weaker for it.

use std::path::PathBuf;
use std::process::Command;

use crate::support::{
    CALLS, Caller, Check, Claim, Finished, Need, Who, claim, equal, holds, patience,
};
use cofferdam::commands::doctor::platform::Platform;
use model::profile::calls;
use serde_json::Value;

const TOOLS: &[Need] = &[Need::Unshare, Need::Bc];
const MAPPED: &[Need] = &[Need::Unshare, Need::Setpriv, Need::Python];
const PLACES: &[Need] = &[Need::Unshare, Need::Setpriv, Need::RootLooks];
const FILTERS: &[Need] = &[Need::Unshare, Need::Bc, Need::Python];

pub const CLAIMS: &[Claim] = &[
    claim("here_doctor_finds_everything", healthy).needs(TOOLS),
    claim("a_masked_proc_is_reported_with_a_remedy", masked_doctor).needs(TOOLS),
    claim("under_a_masked_proc_bash_is_refused_and_bc_runs", masked_runs).needs(TOOLS),
    claim("missing_user_namespaces_are_reported", none_doctor).needs(TOOLS),
    claim("without_user_namespaces_everything_is_refused", none_runs).needs(TOOLS),
    claim("a_containers_filter_is_reported_and_nothing_runs", filtered).needs(FILTERS),
    claim("apparmors_restriction_is_reported_with_a_profile", apparmor).needs(FILTERS),
    claim("a_kernel_without_landlock_is_reported", no_landlock).needs(FILTERS),
    claim("landlock_abi_1_is_reported_with_a_remedy", old_landlock).needs(FILTERS),
    claim("a_root_that_cannot_be_left_is_reported", initramfs).needs(FILTERS),
    claim("a_missing_bc_is_reported_with_its_package", no_bc).needs(TOOLS),
    claim("too_few_open_files_are_reported_with_a_hint", open_files),
    claim("root_of_a_user_namespace_is_not_the_hosts_root", inner_root).needs(TOOLS),
    claim("the_overflow_uid_is_not_the_hosts_root", overflow_uid).needs(MAPPED),
    claim("root_of_a_user_namespace_grants_as_its_user", inner_grant).needs(MAPPED),
    claim("inits_descriptors_are_unreadable_in_a_container", inits_files).needs(MAPPED),
    claim("root_without_capabilities_is_refused_with_a_hint", bare_root).needs(MAPPED),
    claim("a_read_only_run_is_reported_to_root", fixed_run).needs(TOOLS),
    claim("a_missing_kind_of_namespace_is_named", no_cgroup_namespace).needs(FILTERS),
    claim("a_kernel_without_seccomp_listeners_is_reported", no_listener).needs(FILTERS),
    claim("an_existing_seccomp_listener_is_reported", second_listener).needs(FILTERS),
    claim("an_outer_filter_is_not_a_breach", selftest_under_a_filter).needs(FILTERS),
    claim("our_container_profile_suffices_for_cells", our_profile).needs(&[Need::Python]),
    claim("selftest_finds_a_place_where_programs_may_run", selftest_without_exec)
        .needs(PLACES)
        .alone(),
];

/// A line of a shell in a container that masks a part of `/proc`, as container engines do.
fn masked(caller: &Caller, line: &str) -> Command {
    prepared(caller, "mount --bind /dev/null /proc/keys", line)
}

/// A line of a shell whose mount namespace was prepared by another line.
fn prepared(caller: &Caller, mask: &str, line: &str) -> Command {
    let mut command = caller.outside("unshare");
    let namespaces = ["--mount", "--pid", "--fork", "--mount-proc"];
    match caller.who {
        Who::Root => command.args(namespaces).args(["bash", "-c", &format!("{mask}; {line}")]),
        Who::User => {
            let own = as_the_user(caller, line);
            command.args(["--user", "--map-root-user"]).args(namespaces);
            command.args(["bash", "-c", &format!("{mask}; {own}")])
        }
    };
    command
}

/// A line where no user namespace can be made: in one that allows no further one. The host's own
/// setting stays as it is.
fn without_namespaces(caller: &Caller, line: &str) -> Command {
    let set = |most: u8| format!("echo {most} > /proc/sys/user/max_user_namespaces");
    let mut command = caller.outside("unshare");
    command.args(["--user", "--map-root-user", "bash", "-c"]);
    match caller.who {
        Who::Root => command.arg(format!("{}; {line}", set(0))),
        // The one that is left makes the caller an ordinary user again.
        Who::User => command.arg(format!("{}; {}", set(1), as_the_user(caller, line))),
    };
    command
}

fn as_the_user(caller: &Caller, line: &str) -> String {
    let uid = caller.uid();
    let gid = caller.gid();
    format!("exec unshare --user --map-user={uid} --map-group={gid} bash -c '{line}'")
}

fn doctor(caller: &Caller) -> String {
    format!("{} doctor --json", caller.binary().display())
}

/// The verdict, and the layers that are missing with their remedies.
type Report = (i32, String, Vec<(String, String)>);

fn report(command: Command) -> Result<Report, crate::support::Failed> {
    let output = Finished::run(command, patience())?;
    let report: Value = serde_json::from_str(&output.stdout).map_err(|_| format!("{output:?}"))?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let layers = report.get("layers").and_then(Value::as_array).cloned().unwrap_or_default();
    let missing = layers.iter().filter(|layer| text(layer.get("state")) == "missing");
    let named = missing.map(|layer| (text(layer.get("name")), text(layer.get("remedy"))));
    Ok((output.code, text(report.get("verdict")), named.collect()))
}

fn healthy(caller: &Caller) -> Check {
    let mut command = caller.outside("/bin/bash");
    command.args(["-c", &doctor(caller)]);
    equal("doctor", report(command)?, (0, "can_run".to_owned(), Vec::new()))
}

/// The remedy that the engine around the tests has, usually empty.
fn container() -> &'static str {
    Platform::detect().remedy()
}

fn masked_doctor(caller: &Caller) -> Check {
    let (code, verdict, missing) = report(masked(caller, &doctor(caller)))?;
    equal("doctor", (code, verdict.as_str()), (1, "cannot_run"))?;
    let remedy = format!("parts of /proc are masked here: {}", container());
    equal("the layer", missing.first(), Some(&("own /proc".to_owned(), remedy)))?;
    let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
    equal("and what follows from it", names, ["own /proc", "profile bash"])
}

fn masked_runs(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    let output = Finished::run(masked(caller, &format!("{binary} calc 2^70")), patience())?;
    equal("calc", (output.code, output.trimmed()), (0, "1180591620717411303424"))?;
    let output = Finished::run(masked(caller, &format!("{binary} run -- touch ran")), patience())?;
    equal("bash's profile", (output.code, output.stdout.as_str()), (125, ""))?;
    let expected = "cofferdam: the supervisor refused the job: profile `bash` cannot be used here: \
        mounting /proc (parts of the outer /proc are masked; `cofferdam doctor` has the remedy): \
        EPERM: Operation not permitted\n";
    equal("why, and where the remedy is", output.stderr.as_str(), expected)
}

fn none_doctor(caller: &Caller) -> Check {
    let (code, verdict, missing) = report(without_namespaces(caller, &doctor(caller)))?;
    equal("doctor", (code, verdict.as_str()), (1, "cannot_run"))?;
    let remedy = "as root: sysctl -w user.max_user_namespaces=15000";
    let expected = ("user namespaces".to_owned(), remedy.to_owned());
    equal("the layer", missing.first(), Some(&expected))
}

fn none_runs(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    for words in ["calc 1+1", "run -- touch ran"] {
        let output =
            Finished::run(without_namespaces(caller, &format!("{binary} {words}")), patience())?;
        equal(words, (output.code, output.stdout.as_str()), (125, ""))?;
        let reason = &output.stderr;
        holds(
            "why, and the way out",
            reason,
            reason.starts_with("cofferdam: ") && reason.contains("\nhint: "),
        )?;
    }
    Ok(())
}

/// Simulates a rootless container: uid 0, one id in the map, and no more rights than its user.
fn inner_root(caller: &Caller) -> Check {
    let line = format!("id -u; exec {} run -- id -u", caller.binary().display());
    let mut command = caller.outside("unshare");
    command.args(["--user", "--map-root-user", "bash", "-c", &line]);
    let output = Finished::run(command, patience())?;
    match caller.who {
        Who::User => equal("a cell runs", (output.code, output.trimmed()), (0, "0\n1000")),
        // The host's root under another id: a cell would have host uid 0, which is refused.
        Who::Root => {
            equal("refused", (output.code, output.trimmed()), (125, "0"))?;
            let reason = "the payload has host id 0";
            crate::support::holds("with the reason", &output.stderr, output.stderr.contains(reason))
        }
    }
}

/// Runs a program as ID of a user namespace with the ids of a container, which the host has as 100000 and the next. Root of
/// the host starts it: ID, then the program.
const AS_IN_A_CONTAINER: &str = r#"
import ctypes, os, sys
made, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
    os.write(made[1], b"x")
    os.read(go[0], 1)
    id = int(sys.argv[1])
    os.setgroups([]); os.setresgid(id, id, id); os.setresuid(id, id, id)
    os.execv(sys.argv[2], sys.argv[2:])
os.read(made[0], 1)
for file in ["gid_map", "uid_map"]:
    open(f"/proc/{child}/{file}", "w").write("0 100000 65536")
os.write(go[1], b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

/// Builds a command as `id` of a container's user namespace: of root's with 65,536 ids, of an ordinary user's with one.
/// Root's has a separate `/run`.
fn contained(caller: &Caller, id: u32, words: &str) -> Result<Command, crate::support::Failed> {
    let mut command = caller.outside("unshare");
    match caller.who {
        Who::Root => {
            let script = caller.file("contained.py", AS_IN_A_CONTAINER)?;
            let line = format!(
                "mount -t tmpfs -o mode=777 none /run && exec /usr/bin/python3 {} {id} /bin/bash -c '{words}'",
                script.display()
            );
            command.args(["--mount", "bash", "-c", &line]);
        }
        Who::User => {
            let [user, group] = [format!("--map-user={id}"), format!("--map-group={id}")];
            command.args(["--user", &user, &group, "bash", "-c", words]);
        }
    }
    Ok(command)
}

/// `--user 65534` of a container whose ids are not the host's: the id that stands for every other there.
fn overflow_uid(caller: &Caller) -> Check {
    let line = format!("id -u; exec {} run -- id -u", caller.binary().display());
    let output = Finished::run(contained(caller, 65_534, &line)?, patience())?;
    equal("a cell runs", (output.code, output.trimmed()), (0, "65534\n1000"))
}

/// Returns a directory of a container's root, and that root's id on the host.
fn of_inner_root(caller: &Caller) -> Result<(PathBuf, u32), crate::support::Failed> {
    let directory = caller.directory("granted")?;
    let owner = if caller.who == Who::Root { 100_000 } else { caller.uid() };
    if caller.who == Who::Root {
        std::os::unix::fs::chown(&directory, Some(owner), Some(owner))?;
    }
    Ok((directory, owner))
}

/// Grants as root of a rootless container: the grant needs an id-mapped mount, which the host must allow.
fn inner_grant(caller: &Caller) -> Check {
    use std::os::unix::fs::MetadataExt;
    let (directory, owner) = of_inner_root(caller)?;
    let binary = caller.binary();
    let place = directory.display();
    let line = format!("id -u; exec {} run --rw {place} -- touch made", binary.display());
    let output = Finished::run(contained(caller, 0, &line)?, patience())?;
    equal("the cell writes", (output.code, output.trimmed()), (0, "0"))?;
    let made = std::fs::metadata(directory.join("made"))?;
    equal("as the one who granted it", made.uid(), owner)
}

/// The entries of a non-dumpable process in /proc belong to the root of the namespace in which its program was started. A
/// cell with that root's id passes their modes, and what the kernel asks for tracing stays refused.
fn inits_files(caller: &Caller) -> Check {
    const LOOK: &str = "ls /proc/1/fd >/dev/null && echo listed; readlink /proc/$$/fd/0 >/dev/null && echo own; \
        for d in /proc/1/fd/* /proc/1/cwd /proc/1/root /proc/1/exe /proc/1/ns/*; do readlink $d; done 2>/dev/null; \
        for d in /proc/1/fd/* /proc/1/{environ,maps,mem,auxv,pagemap}; do { exec 3<$d; } 2>/dev/null && echo open $d; done; \
        for f in syscall stack personality; do head -c 1 /proc/1/$f 2>/dev/null && echo read $f; done; \
        for f in mem clear_refs oom_score_adj coredump_filter sched autogroup timerslack_ns; do \
        { exec 3>/proc/1/$f; } 2>/dev/null && echo written $f; done; :";
    let (directory, _) = of_inner_root(caller)?;
    let script = directory.join("look");
    std::fs::write(&script, LOOK)?;
    let binary = caller.binary();
    let place = directory.display();
    let line = format!("exec {} run --rw {place} -- bash look", binary.display());
    let output = Finished::run(contained(caller, 0, &line)?, patience())?;
    equal("init's descriptors are counted", (output.code, output.trimmed()), (0, "listed\nown"))?;
    // Elsewhere they are not.
    let output = caller.bash("ls /proc/1/fd >/dev/null && echo listed")?;
    holds("another's", &output, output.code != 0 && output.stderr.contains("Permission denied"))
}

/// Simulates `--cap-drop=ALL` without `--user`.
fn bare_root(caller: &Caller) -> Check {
    let binary = caller.binary();
    let bare = format!("setpriv --bounding-set=-all --inh-caps=-all {}", binary.display());
    let line = |words: &str| match caller.who {
        Who::Root => {
            let mut command = caller.outside("/bin/bash");
            command.args(["-c", &format!("{bare} {words}")]);
            command
        }
        Who::User => {
            let mut command = caller.outside("unshare");
            command.args(["--user", "--map-root-user", "bash", "-c", &format!("{bare} {words}")]);
            command
        }
    };
    let (code, verdict, missing) = report(line("doctor --json"))?;
    equal("doctor", (code, verdict.as_str()), (1, "cannot_run"))?;
    let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
    equal("the layers", names, ["id maps", "supervisor"])?;
    let helps = |(_, remedy): &(String, String)| remedy.contains("--user 1000:1000");
    holds("each with the way out", &missing, missing.iter().all(helps))?;
    let output = Finished::run(line("run -- true"), patience())?;
    let is_told =
        output.stderr.contains("\nhint: root needs CAP_SETUID, CAP_SETGID and CAP_SETFCAP");
    holds("and a run", &output, output.code == 125 && is_told)
}

/// Simulates `--read-only`. Only root has locks in `/run`.
fn fixed_run(caller: &Caller) -> Check {
    let line = format!("exec {} run -- echo ran", caller.binary().display());
    let output =
        Finished::run(prepared(caller, "mount -t tmpfs -o ro none /run", &line), patience())?;
    match caller.who {
        Who::User => equal("no lock is wanted", (output.code, output.trimmed()), (0, "ran")),
        Who::Root => {
            let expected = "cofferdam: the instance lock cannot be taken: read-only file system (EROFS)\nhint: root's \
                instances share out host ids by locks in /run/cofferdam: make /run writable (docker and podman: \
                --tmpfs /run; a pod: an emptyDir at /run), or start cofferdam as an ordinary user\n";
            equal("the way out", (output.code, output.stderr.as_str()), (125, expected))
        }
    }
}

/// Runs a program as if the kernel answered some calls differently: a system call filter with a
/// listener that is asked about each of them. ANSWERS: number, argument 2 or (argument, bits) if it counts, answer.
const KERNEL: &str = r#"
import array, ctypes, fcntl, os, select, socket, struct, sys
answers, argv = eval(sys.argv[1]), sys.argv[2:]
answers = [(native(number), third, answer) for number, third, answer in answers]
code = [(0x20, 0, 0, 0)]
for number, third, _ in answers:
    # The word of the third argument, or (I, BITS) for any of BITS in argument I.
    at, bits = third if isinstance(third, tuple) else (2, None)
    is_it = (0x15, 0, 1, third) if bits is None else (0x45, 0, 1, bits)
    test = [(0x20, 0, 0, 16 + 8 * at), is_it, (0x06, 0, 0, 0x7fc00000), (0x20, 0, 0, 0)]
    test = test if third is not None else [(0x06, 0, 0, 0x7fc00000)]
    code += [(0x15, 0, len(test), number)] + test
code += [(0x06, 0, 0, 0x7fff0000)]
program = b"".join(struct.pack("HBBI", *step) for step in code)
ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    held = ctypes.create_string_buffer(program)
    filter = struct.pack("HxxxxxxP", len(code), ctypes.addressof(held))
    libc.prctl(38, 1, 0, 0, 0)
    listener = libc.syscall(native(317), 1, 8, filter)
    assert listener >= 0, os.strerror(ctypes.get_errno())
    socket.send_fds(theirs, [b"l"], [listener])
    os.close(listener)
    os.execv(argv[0], argv)
theirs.close()
[listener] = socket.recv_fds(ours, 1, 1)[1]
if os.fork() == 0:
    # Before Linux 6.10 a process that waits to receive sleeps on when no process is left under the filter; poll reports it.
    ready = select.poll()
    ready.register(listener, select.POLLIN)
    while True:
        if not ready.poll()[0][1] & select.POLLIN:
            os._exit(0)
        asked = bytearray(80)
        try:
            fcntl.ioctl(listener, 0xc0502100, asked, True)
        except OSError:
            os._exit(0)
        ident, _, _, number = struct.unpack_from("QIIi", asked)
        [value] = [value for wanted, _, value in answers if wanted == number]
        answer = struct.pack("QqiI", ident, max(value, 0), min(value, 0), 0)
        try:
            fcntl.ioctl(listener, 0xc0182101, bytearray(answer), True)
        except OSError:
            pass
os.close(listener)
os.close(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

/// Runs a program under a filter without a listener, as container engines have it: CALLS, which are answered ENOSYS.
const FILTERED: &str = r#"
import ctypes, os, struct, sys
calls, argv = [native(number) for number in eval(sys.argv[1])], sys.argv[2:]
code = [(0x20, 0, 0, 0)]
for number in calls:
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 38)]
code += [(0x06, 0, 0, 0x7fff0000)]
held = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
libc.prctl(38, 1, 0, 0, 0)
assert libc.syscall(native(317), 1, 0, struct.pack("HxxxxxxP", len(code), ctypes.addressof(held))) == 0
os.execv(argv[0], argv)
"#;

/// A line that starts cofferdam on such a kernel.
fn answering(caller: &Caller, answers: &str) -> Result<String, crate::support::Failed> {
    let kernel = caller.file("kernel.py", &format!("{CALLS}{KERNEL}"))?;
    let kernel = kernel.display();
    let binary = caller.binary();
    Ok(format!("/usr/bin/python3 {kernel} \"{answers}\" {} doctor --json", binary.display()))
}

fn reported_first(command: Command, name: &str, remedy: &str) -> Check {
    let (code, verdict, missing) = report(command)?;
    let circular = missing.iter().find(|(_, remedy)| remedy.contains("`cofferdam doctor`"));
    equal("doctor names no other report", circular, None)?;
    equal("doctor", (code, verdict.as_str()), (1, "cannot_run"))?;
    equal("the layer", missing.first(), Some(&(name.to_owned(), remedy.to_owned())))
}

fn plainly(caller: &Caller, line: &str) -> Command {
    let mut command = caller.outside("/bin/bash");
    command.args(["-c", line]);
    command
}

/// Ubuntu 24.04 lets the clone pass and refuses mount(2) with EACCES; its switch says why.
fn apparmor(caller: &Caller) -> Check {
    let switch = "mount -t tmpfs none /proc/sys/kernel && \
        echo 1 > /proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    let line = answering(caller, "[(165, None, -13)]")?;
    let remedy = format!(
        "as root, put this into /etc/apparmor.d/cofferdam and run `apparmor_parser -r \
         /etc/apparmor.d/cofferdam`: abi <abi/4.0>, include <tunables/global> profile \
         cofferdam {} flags=(unconfined) {{ userns, }}",
        caller.binary().display()
    );
    reported_first(prepared(caller, switch, &line), "mounts", &remedy)?;
    // Without the switch it is a container's doing.
    reported_first(plainly(caller, &line), "mounts", container())
}

/// Simulates the filters of container engines: clone3 does not exist, and unshare may create no namespace.
fn filtered(caller: &Caller) -> Check {
    const ANSWERS: &str = "[(435, None, -38), (272, None, -1)]";
    let line = answering(caller, ANSWERS)?;
    reported_first(plainly(caller, &line), "user namespaces", container())?;
    let run = line.replace("doctor --json", "run -- echo ran");
    let output = Finished::run(plainly(caller, &run), patience())?;
    equal("a run", (output.code, output.stdout.as_str()), (125, ""))?;
    let reason = "cofferdam: this kernel or container refuses user namespaces: ENOSYS: Function not \
        implemented\nhint: `cofferdam doctor` has the remedy; without one, `--tier \
        landlock+seccomp` runs in a weaker tier, which SECURITY.md describes\n";
    equal("why, and where the remedy is", output.stderr.as_str(), reason)
}

fn no_landlock(caller: &Caller) -> Check {
    let line = answering(caller, "[(n, None, -38) for n in (444, 445, 446)]")?;
    let remedy = "boot Linux 5.19 or newer with `landlock` in lsm= (see /proc/cmdline)";
    reported_first(plainly(caller, &line), "Landlock", remedy)
}

/// The version is asked for by a flag; everything else about Landlock is as it is here.
fn old_landlock(caller: &Caller) -> Check {
    let line = answering(caller, "[(444, 1, 1)]")?;
    reported_first(plainly(caller, &line), "Landlock", "boot Linux 5.19 or newer")
}

/// clone3 has its flags behind a pointer; the trial that names the namespace has them in a register.
fn no_cgroup_namespace(caller: &Caller) -> Check {
    let line = answering(caller, "[(435, None, -22), (272, (0, 0x02000000), -22)]")?;
    let remedy =
        "this kernel has no cgroup namespaces: boot one that was built with CONFIG_CGROUPS";
    reported_first(plainly(caller, &line), "user namespaces", remedy)
}

/// Before Linux 5.0, and in gVisor: the flag for a listener is an invalid one.
fn no_listener(caller: &Caller) -> Check {
    let line = answering(caller, "[(317, (1, 8), -22)]")?;
    let remedy = "boot Linux 5.19 or newer with CONFIG_SECCOMP_FILTER";
    reported_first(plainly(caller, &line), "listener of filters", remedy)
}

/// An engine's own listener is the only one that its processes can have.
fn second_listener(caller: &Caller) -> Check {
    let line = answering(caller, "[(317, (1, 8), -16)]")?;
    let remedy = "start cofferdam outside of that filter: in a container, with a seccomp profile without \
        SCMP_ACT_NOTIFY";
    reported_first(plainly(caller, &line), "listener of filters", remedy)
}

/// Simulates engines whose profile does not list these calls: lsm_get_self_attr, lsm_list_modules, statmount, listmount,
/// and reboot and vhangup, of which a control is root's. They run programs with no_new_privs (F38).
fn selftest_under_a_filter(caller: &Caller) -> Check {
    let script = caller.file("filtered.py", &format!("{CALLS}{FILTERED}"))?;
    let script = script.display();
    let binary = caller.binary();
    let line = format!(
        "/usr/bin/python3 {script} 153,169,457,458,459,461 {} selftest --json F38 K30 K31 K33 K34 K35 K54 K80",
        binary.display()
    );
    let output = Finished::run(plainly(caller, &line), patience())?;
    let report: Value = serde_json::from_str(&output.stdout).map_err(|_| format!("{output:?}"))?;
    let results = report.get("probes").and_then(Value::as_array);
    let verdict = |result: &Value| {
        let text = |key| result.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        format!("{} {}", text("id"), text("verdict"))
    };
    let verdicts: Vec<String> = results.into_iter().flatten().map(verdict).collect();
    let all =
        ["F38", "K30", "K31", "K33", "K34", "K35", "K54", "K80"].map(|id| format!("{id} held"));
    equal("each", verdicts, all.to_vec())?;
    equal("in all", output.code, 0)
}

/// Runs a program under a filter that allows CALLS and answers ENOSYS to all others, as an engine makes of our profile.
const ALLOWED: &str = r#"
import ctypes, os, struct, sys
calls, argv = eval(sys.argv[1]), sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
code = [(0x20, 0, 0, 0)]
for number in calls:
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x7fff0000)]
code += [(0x06, 0, 0, 0x00050000 | 38)]
held = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", len(code), ctypes.addressof(held))) == 0
os.execv(argv[0], argv)
"#;

/// Runs everything cofferdam calls outside of cells: the gateway of egress, and the listener of `serve --http`.
fn our_profile(caller: &Caller) -> Check {
    let printed = Finished::run(caller.cofferdam(&["doctor", "--seccomp"]), patience())?;
    let profile: Value =
        serde_json::from_str(&printed.stdout).map_err(|_| format!("{printed:?}"))?;
    let names = profile.pointer("/syscalls/0/names").and_then(Value::as_array).cloned();
    let names: Vec<String> =
        names.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    let script = caller.file("allowed.py", ALLOWED)?;
    let under = |without: &str| {
        let listed = names.iter().filter(|name| *name != without);
        let numbers: Vec<u32> = listed.filter_map(|name| calls::number(name)).collect();
        format!(
            "exec /usr/bin/python3 {} {numbers:?} {}",
            script.display(),
            caller.binary().display()
        )
        .replace(", ", ",")
    };
    let output = Finished::run(
        plainly(caller, &format!("{} run -- echo ran", under("clone3"))),
        patience(),
    )?;
    equal("the filter is in force", (output.code, output.stdout.as_str()), (125, ""))?;
    let ours = under("");
    let (code, verdict, missing) = report(plainly(caller, &format!("{ours} doctor --json")))?;
    equal("doctor", (code, verdict.as_str(), missing), (0, "can_run", Vec::new()))?;
    // A destination that no rule names: the gateway's worker answers like a router. Without it there is no answer.
    let run =
        format!("{ours} run --egress 192.0.2.7:443 -- bash -c 'exec 3<>/dev/tcp/192.0.2.8/80'");
    let output = Finished::run(plainly(caller, &run), patience())?;
    holds("refused by the gateway", &output, output.stderr.contains("No route to host"))?;
    listens(plainly(caller, &format!("{ours} serve --http 127.0.0.1:0")))
}

/// Queries a server's health, once it has printed its address.
fn listens(mut command: Command) -> Check {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::Stdio;
    let mut server = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let text = BufReader::new(server.stderr.take().ok_or("no pipe")?);
    let at = text.lines().map_while(Result::ok).find_map(|line| {
        let (_, address) = line.split_once("MCP at http://")?;
        Some(address.split('/').next()?.to_owned())
    });
    let question = at.ok_or("it printed no address").and_then(|at| {
        let mut stream = std::net::TcpStream::connect(&at).map_err(|_| "it does not listen")?;
        let request = format!("GET /health HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|_| "it takes no request")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|_| "it does not answer")?;
        Ok(answer)
    });
    server.kill()?;
    server.wait()?;
    let answer = question?;
    holds(
        "an answer",
        &answer,
        answer.starts_with("HTTP/1.1 2") || answer.starts_with("HTTP/1.1 4"),
    )
}

/// Mounts /tmp as `docker run --tmpfs /tmp` does.
fn selftest_without_exec(caller: &Caller) -> Check {
    let binary = caller.binary();
    let uid = caller.uid();
    let gid = caller.gid();
    let line = format!(
        "mount -t tmpfs -o noexec,mode=1777 none /run && TMPDIR=/run exec setpriv --reuid={uid} --regid={gid} \
         --clear-groups {} selftest K35",
        binary.display()
    );
    // Root hides the directory, for each caller of the attack.
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &line]).env_clear();
    command.env("PATH", crate::support::PATH).env("HOME", &caller.home);
    command.current_dir(&caller.home).stdin(std::process::Stdio::null());
    let output = Finished::run(command, patience())?;
    equal("another place is found", (output.code, output.stderr.as_str()), (0, ""))
}

fn initramfs(caller: &Caller) -> Check {
    let line = answering(caller, "[(155, None, -22)]")?;
    let remedy = "the root is the initramfs, which cannot be left by pivot_root(2): start from a root \
        of its own, such as a tmpfs with a copy of it: mount -t tmpfs none /mnt && cp -ax / /mnt \
        && exec switch_root /mnt /sbin/init";
    reported_first(plainly(caller, &line), "root", remedy)
}

fn no_bc(caller: &Caller) -> Check {
    let programs = caller.directory("programs")?;
    std::fs::copy("/usr/bin/bash", programs.join("bash"))?;
    std::fs::copy("/usr/bin/unshare", programs.join("unshare"))?;
    let hide = format!("mount --bind {} /usr/bin", programs.display());
    let (code, verdict, missing) = report(prepared(caller, &hide, &doctor(caller)))?;
    equal("doctor", (code, verdict.as_str()), (1, "cannot_run"))?;
    let remedy = "install bc (Debian: apt-get install bc)";
    equal("bc, and only bc", missing, vec![("profile bc".to_owned(), remedy.to_owned())])
}

fn open_files(caller: &Caller) -> Check {
    let hint = "raise the hard limit, as root: `ulimit -Hn 4096` in the shell that starts cofferdam, \
        LimitNOFILE=4096 in its systemd unit, --ulimit nofile=4096 for its container";
    let binary = caller.binary().display().to_string();
    let under = |limit: &str, words: &str| {
        let line = format!("ulimit -n {limit}; exec {binary} {words}");
        Finished::run(plainly(caller, &line), patience())
    };
    let output = under("20", "run -- true")?;
    let expected =
        format!("cofferdam: 20 open files are allowed here, and 256 are needed\nhint: {hint}\n");
    equal("none at all", (output.code, output.stderr.as_str()), (125, expected.as_str()))?;
    // A cell of one program holds it at a high number; a shell does not need that many.
    let output = under("900", "run --profile bc -- bc")?;
    let expected = "cofferdam: the supervisor refused the job: profile `bc` cannot be used here: 900 open \
        files are allowed here, and 1024 are needed; `cofferdam doctor` has the remedy\n";
    equal("not for bc", (output.code, output.stderr.as_str()), (125, expected))?;
    let output = under("900", "calc 1+1")?;
    holds(
        "and calc",
        &output,
        output.code == 125 && output.stderr.contains("900 open files are allowed"),
    )?;
    let output = under("256", "run -- echo ok")?;
    equal("enough for bash", (output.code, output.trimmed()), (0, "ok"))?;
    reported_first(
        plainly(caller, &format!("ulimit -n 900; {}", doctor(caller))),
        "open files",
        hint,
    )?;
    // A low soft limit is raised, and is no reason to refuse.
    let output = Finished::run(
        plainly(caller, &format!("ulimit -Sn 20; exec {binary} calc 1+1")),
        patience(),
    )?;
    equal("the soft limit", (output.code, output.trimmed()), (0, "2"))
}
