//! Control groups, version 2: memory, processes and processors of a whole cell, held by the kernel.
//!
//! Root creates its groups; an ordinary user is given one, as by a systemd scope with delegation.
//! The claims are checked in the files of the group, from outside.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    CGROUPS, Caller, Check, Claim, Failed, Finished, For, Live, Need, Who, claim, equal, gone,
    holds, patience,
};
use serde_json::{Value, json};

const HERE: &[Need] = &[Need::CgroupV2, Need::RootLooks, Need::Setpriv];
const PYTHON: &[Need] = &[Need::CgroupV2, Need::RootLooks, Need::Setpriv, Need::Python];
const CONTAINER: &[Need] = &[Need::CgroupV2, Need::RootLooks, Need::Setpriv, Need::Unshare];

pub const CLAIMS: &[Claim] = &[
    claim("receipt_and_doctor_show_the_memory_limit", reported).needs(HERE),
    claim("the_group_of_a_cell_has_its_limits", files).needs(HERE),
    claim("a_cell_that_outgrows_its_memory_ends_whole", memory).needs(PYTHON),
    claim("memory_that_no_process_maps_is_held", unmapped).needs(PYTHON),
    claim("the_group_counts_every_process_of_the_cell", processes).needs(PYTHON),
    claim("a_share_of_the_processors_is_held", processors).needs(PYTHON),
    claim("the_group_is_killed_whole", killed).needs(HERE),
    claim("a_cell_sees_its_group_as_the_root", separate_root).needs(HERE),
    claim("groups_of_ended_calls_are_cleared_away", cleared).only(For::Root).needs(HERE),
    claim("a_profile_that_requires_the_cgroup_runs", required).needs(HERE),
    claim("a_containers_processes_are_moved_to_a_leaf", container).needs(CONTAINER),
    claim("an_undelegated_container_is_left_unchanged", undivided).needs(CONTAINER),
    claim("foreign_processes_in_the_leaf_stay_there", others).needs(CONTAINER),
    claim("without_delegation_such_profiles_are_refused", refused).only(For::User),
];

/// The groups below which cofferdam makes its own: for a user, groups that root has given away.
struct TestGroups<'a> {
    caller: &'a Caller,
    /// One for each start: a group that gives its controllers on takes no process in.
    given: RefCell<Vec<PathBuf>>,
}

impl<'a> TestGroups<'a> {
    fn new(caller: &'a Caller) -> Self {
        Self { caller, given: RefCell::default() }
    }

    /// Makes a group and gives it away.
    fn give(&self) -> Result<PathBuf, Failed> {
        let name = self.caller.home.file_name().ok_or("no name")?.to_string_lossy().into_owned();
        let number = self.given.borrow().len();
        let group = Path::new(CGROUPS).join(format!("{name}-{number}"));
        std::fs::create_dir(&group)?;
        self.given.borrow_mut().push(group.clone());
        self.caller.own(&group)?;
        // Files that cgroups(7) assigns to a delegatee.
        for file in ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            self.caller.own(&group.join(file))?;
        }
        Ok(group)
    }

    /// cofferdam in its place.
    fn cofferdam(&self, arguments: &[&str]) -> Result<Command, Failed> {
        if self.caller.who == Who::Root {
            return Ok(self.caller.cofferdam(arguments));
        }
        let group = self.give()?;
        let group = group.display();
        let uid = self.caller.uid();
        let enter = format!(
            "echo $$ >{group}/cgroup.procs && exec setpriv --reuid {uid} --regid {uid} --clear-groups -- \"$@\""
        );
        let mut command = Command::new("/bin/bash");
        command.env_clear().env("HOME", &self.caller.home).env("PATH", crate::support::PATH);
        command.current_dir(&self.caller.home).stdin(Stdio::null());
        command.args(["-c", &enter, "bash"]).arg(self.caller.binary()).args(arguments);
        Ok(command)
    }

    fn json(&self, options: &[&str], argv: &[&str]) -> Result<Value, Failed> {
        let output =
            Finished::run(self.cofferdam(&command(&["--json"], options, argv))?, patience())?;
        serde_json::from_str(&output.stdout).map_err(|_| format!("no JSON: {output:?}").into())
    }

    fn live(&self, options: &[&str], script: &str) -> Result<Live, Failed> {
        let script = format!("echo ready; {script}");
        Live::start(self.cofferdam(&command(&[], options, &["bash", "-c", &script]))?)
    }
}

impl Drop for TestGroups<'_> {
    fn drop(&mut self) {
        // The groups below are empty, as every process has ended. If one were not, it would hinder
        // no other test.
        for group in self.given.borrow().iter() {
            for child in std::fs::read_dir(group).into_iter().flatten().flatten() {
                std::fs::remove_dir(child.path()).unwrap_or_default();
            }
            std::fs::remove_dir(group).unwrap_or_default();
        }
    }
}

/// `run BEFORE OPTIONS -- ARGV`; options that stand before the command are taken there.
fn command<'a>(before: &[&'a str], options: &[&'a str], argv: &[&'a str]) -> Vec<&'a str> {
    let split = if options.first() == Some(&"--config") { 2 } else { 0 };
    let (global, own) = options.split_at(split);
    [global, &["run"], before, own, &["--"], argv].concat()
}

/// Returns the control group of a live call's cell.
fn group_of(live: &Live) -> Result<PathBuf, Failed> {
    let table = String::from_utf8(crate::support::proc_file(live.payload()?, "cgroup")?)?;
    let own = table.lines().find_map(|line| line.strip_prefix("0::/"));
    own.map(|path| Path::new(CGROUPS).join(path)).ok_or_else(|| table.clone().into())
}

fn read(group: &Path, file: &str) -> Result<String, Failed> {
    let path = group.join(file);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn text<'a>(report: &'a Value, field: &str) -> &'a str {
    report.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn ended(report: &Value) -> (&str, &str) {
    (text(report, "outcome"), text(report, "limit"))
}

/// Writes a profile of the operator's, and returns its options for `run`.
fn profile(caller: &Caller, keys: &str) -> Result<[String; 4], Failed> {
    let directory = caller.home.join("config");
    if !directory.exists() {
        caller.directory("config")?;
        caller.directory("config/sandbox-profiles")?;
    }
    let head = "schema = 1\nname = \"own\"\nextends = \"bash\"\ndescription = \"of this test\"\n\n";
    caller.file("config/sandbox-profiles/own.toml", &format!("{head}{keys}\n"))?;
    let directory = directory.display().to_string();
    Ok(["--config", &directory, "--profile", "own"].map(str::to_owned))
}

fn reported(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let report = cgroup.json(&[], &["true"])?;
    let held = json!("cgroup v2");
    equal("receipt", report.pointer("/receipt/configured/memory"), Some(&held))?;
    let doctor = Finished::run(cgroup.cofferdam(&["doctor"])?, patience())?;
    let line = doctor.stdout.lines().find(|line| line.contains("memory limit"));
    let words = line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    equal("doctor", words.as_deref(), Some("ok memory limit cells are held by cgroup v2"))?;
    if caller.who == Who::User {
        let report = caller.json(&[], &["true"])?;
        let weak = json!("best-effort");
        equal("without a group", report.pointer("/receipt/configured/memory"), Some(&weak))?;
    }
    Ok(())
}

fn files(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let live = cgroup.live(&["--memory", "128M", "--processes", "20"], "sleep 60")?;
    let group = group_of(&live)?;
    let names =
        ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max", "cpu.weight"];
    let found = names.iter().map(|name| read(&group, name)).collect::<Result<Vec<_>, _>>()?;
    // The program's own processes, and init.
    equal("limits", found, ["134217728", "0", "1", "21", "max 100000", "50"])?;
    let members = read(&group, "cgroup.procs")?;
    let mut members: Vec<u32> = members.lines().filter_map(|pid| pid.parse().ok()).collect();
    members.sort_unstable();
    let init = live.init()?;
    let payload = live.payload()?;
    let own = members.contains(&init) && members.contains(&payload);
    holds("init and the program are in it", (members.clone(), init, payload), own)?;
    holds("the supervisor is not", &members, !members.contains(&live.supervisor()?))
}

/// Children that each hold a moderate amount of memory, and a parent that would continue.
const FAMILY: &str = "import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(40 << 20); time.sleep(60); os._exit(0)
time.sleep(60); print('after')";

fn memory(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let options = ["--memory", "128M", "--timeout", "60s"];
    let fits = "x = bytearray(60 << 20); print(len(x) >> 20)";
    let report = cgroup.json(&options, &["/usr/bin/python3", "-c", fits])?;
    equal("what fits", (text(&report, "outcome"), text(&report, "stdout")), ("exited", "60\n"))?;
    let report = cgroup.json(&options, &["/usr/bin/python3", "-c", FAMILY])?;
    equal("the whole cell", (ended(&report), text(&report, "stdout")), (("limit", "memory"), ""))?;
    let peak = report.pointer("/usage/peak_memory_bytes").and_then(Value::as_u64);
    let within = peak.is_some_and(|peak| peak > 100 << 20 && peak <= 128 << 20);
    holds("near the limit and not above it", peak, within)
}

/// Writes a memfd and does not map it: no sum over processes finds it. Without a cgroup for memory
/// the call is refused for that reason.
fn unmapped(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let script = "import os, sys
fd = os.memfd_create('m')
for _ in range(int(sys.argv[1])): os.write(fd, bytes(1 << 20))
print('written')";
    let options = ["--memory", "128M", "--timeout", "60s"];
    let write =
        |mebibytes: &str| cgroup.json(&options, &["/usr/bin/python3", "-c", script, mebibytes]);
    equal("what fits", text(&write("60")?, "stdout"), "written\n")?;
    let output = write("200")?;
    equal("what does not", (ended(&output), text(&output, "stdout")), (("limit", "memory"), ""))?;
    if caller.who == Who::User {
        let output = caller.run(&[], &["/usr/bin/python3", "-c", script, "1"])?;
        holds("refused without", &output, output.stderr.contains("PermissionError"))?;
    }
    Ok(())
}

/// The group's own count, apart from RLIMIT_NPROC: lowered from outside, it holds at once.
fn processes(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let script = "import os, errno, time
while True:
    try: pid = os.fork()
    except OSError as error: print(errno.errorcode[error.errno], flush=True); break
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0); print('forked', flush=True); time.sleep(0.05)
time.sleep(60)";
    let mut live = cgroup.live(&[], &format!("exec /usr/bin/python3 -c \"{script}\""))?;
    equal("at first", live.line()?.as_str(), "forked")?;
    let group = group_of(&live)?;
    std::fs::write(group.join("pids.max"), "2")?;
    let end = Instant::now() + patience();
    let met = loop {
        let line = live.line()?;
        if line != "forked" || Instant::now() > end {
            break line;
        }
    };
    equal("with no room but for init and the program", met.as_str(), "EAGAIN")?;
    equal("as the group counts it", read(&group, "pids.events")?.as_str(), "max 1")
}

fn processors(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let spin = "import time
end = time.monotonic() + 4
while time.monotonic() < end: pass";
    let argv = ["/usr/bin/python3", "-c", spin];
    // Hundredths of a processor, over the whole call.
    let used = |report: &Value| -> u64 {
        let of = |key: &str| report.pointer(key).and_then(Value::as_u64).unwrap_or_default();
        (of("/usage/user_ms") + of("/usage/system_ms")) * 100 / of("/duration_ms").max(1)
    };
    let free = used(&cgroup.json(&[], &argv)?);
    holds("a program alone has far more than a fifth", free, free > 50)?;
    let options = profile(caller, "[limits]\nprocessors = 0.2")?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let held = used(&cgroup.json(&options, &argv)?);
    holds("a fifth", held, held > 5 && held < 30)?;
    let live = cgroup.live(&options, "sleep 60")?;
    equal("the file", read(&group_of(&live)?, "cpu.max")?.as_str(), "20000 100000")
}

/// A process of the host is put into the cell's group, where only the group's own kill reaches it:
/// its pid namespace is another.
fn killed(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let live = cgroup.live(&["--timeout", "15s"], "trap '' TERM; while :; do sleep 0.1; done")?;
    let group = group_of(&live)?;
    let seconds = format!("{}{}.9", 7_100_000 + std::process::id(), caller.uid());
    let mut stranger = Command::new("sleep").arg(&seconds).spawn()?;
    std::fs::write(group.join("cgroup.procs"), stranger.id().to_string())?;
    let output = live.finish(patience())?;
    equal("the call", output.code, 124)?;
    let end = Instant::now() + patience();
    while stranger.try_wait()?.is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = stranger.try_wait()?;
    stranger.kill()?;
    stranger.wait()?;
    use std::os::unix::process::ExitStatusExt;
    equal("by the kill of its group", status.and_then(|status| status.signal()), Some(9))?;
    equal("nothing is left", gone(&seconds, patience()), Vec::<u32>::new())
}

fn separate_root(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let look = "cat /proc/self/cgroup; ls -d /sys /sys/fs/cgroup 2>/dev/null; awk '$3 ~ /^cgroup/ {n++} END {print n+0}' /proc/self/mounts";
    let report = cgroup.json(&[], &["bash", "-c", look])?;
    equal("in the cell", text(&report, "stdout"), "0::/\n0\n")?;
    let live = cgroup.live(&[], "sleep 60")?;
    let outside = String::from_utf8(crate::support::proc_file(live.payload()?, "cgroup")?)?;
    holds("from outside", &outside, outside.trim_end().contains("/cell-"))
}

fn cleared(caller: &Caller) -> Check {
    let above = |live: &Live| -> Result<PathBuf, Failed> {
        group_of(live)?.parent().map(Path::to_owned).ok_or_else(|| "no parent".into())
    };
    let live = caller.live(&[], "sleep 60")?;
    let first = above(&live)?;
    // Killed, so that it cannot clean up.
    crate::support::kill(live.pid(), nix::sys::signal::Signal::SIGKILL)?;
    drop(live);
    let left = first.join("cell-77");
    std::fs::create_dir(&left)?;
    // The next cell takes the first free place, which may be another test's: once it has had this
    // one as well, the group is gone.
    let end = Instant::now() + patience();
    while left.exists() && Instant::now() < end {
        let live = caller.live(&[], "sleep 60")?;
        if above(&live)? == first {
            break;
        }
    }
    holds("a group of the place's last owner", &left, !left.exists())
}

/// A process of another pid namespace in the container's group.
#[derive(Debug, Clone, Copy)]
enum Outsider {
    None,
    Inside,
}

/// Runs a line in a container's namespaces as the user of the test, in the container's group at its usual path,
/// which the user may write to and which holds other processes.
fn contained(
    cgroup: &TestGroups<'_>,
    outsider: Outsider,
    prepare: &str,
    line: &str,
) -> Result<Command, Failed> {
    let group = cgroup.give()?;
    let uid = cgroup.caller.uid();
    let become_user = match cgroup.caller.who {
        Who::Root => "exec".to_owned(),
        Who::User => format!("exec setpriv --reuid {uid} --regid {uid} --clear-groups --"),
    };
    let inside = format!(
        "mount -t cgroup2 none /mnt && mount --move /mnt /sys/fs/cgroup && {prepare} && \
         {{ sleep 300 & }}; {become_user} /bin/bash -c \"$0\""
    );
    let group = group.display();
    // unshare itself stays outside of the pid namespace.
    let [before, after] = match outsider {
        Outsider::None => ["true".to_owned(), format!("echo 0 >{group}/cgroup.procs")],
        Outsider::Inside => [format!("echo $$ >{group}/cgroup.procs"), "true".to_owned()],
    };
    let enter = format!(
        "{before} && exec unshare --mount --pid --fork --kill-child --mount-proc \
         /bin/bash -c '{after} && exec unshare --cgroup /bin/bash -c \"$0\" \"$1\"' \"$0\" \"$1\""
    );
    let mut command = Command::new("/bin/bash");
    command.env_clear().env("HOME", &cgroup.caller.home).env("PATH", crate::support::PATH);
    command.current_dir(&cgroup.caller.home).stdin(Stdio::null());
    command.args(["-c", &enter, &inside, line]);
    Ok(command)
}

/// Two instances after one another, as a container runs them: the second is in the leaf by then.
fn container(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let binary = caller.binary().display().to_string();
    let look = "cat /sys/fs/cgroup/cgroup.procs | wc -l; cat /sys/fs/cgroup/cofferdam-container/cgroup.procs | wc -l";
    let run = format!("{binary} run --json --memory 64M -- true");
    let line =
        format!("{look} 2>/dev/null; {run}; {run}; {look}; {binary} doctor | grep 'memory limit'");
    let command = contained(&cgroup, Outsider::None, "true", &line)?;
    let output = Finished::run(command, patience())?;
    let mut lines = output.stdout.lines();
    let before: u32 =
        lines.next().unwrap_or_default().parse().map_err(|_| format!("{output:?}"))?;
    holds("processes are in the container's group", before, before >= 3)?;
    equal("and no leaf", lines.next(), Some("0"))?;
    for run in ["first", "second"] {
        let report: Value = serde_json::from_str(lines.next().unwrap_or_default())
            .map_err(|_| format!("{run}: {output:?}"))?;
        let memory = report.pointer("/receipt/configured/memory").and_then(Value::as_str);
        equal(run, memory, Some("cgroup v2"))?;
    }
    equal("the group is empty", lines.next(), Some("0"))?;
    let inside: u32 =
        lines.next().unwrap_or_default().parse().map_err(|_| format!("{output:?}"))?;
    holds("they are in the leaf", inside, inside >= 3)?;
    let doctor = lines.next().unwrap_or_default();
    holds("doctor", doctor, doctor.ends_with("cells are held by cgroup v2"))
}

/// Simulates an engine that mounts the groups read-only, and a process from outside in the group.
fn undivided(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let line = format!(
        "{} run --json -- true; ls -d /sys/fs/cgroup/*/ 2>/dev/null | wc -l; grep -c . /sys/fs/cgroup/cgroup.procs",
        caller.binary().display()
    );
    let fixed = "mount -o remount,bind,ro /sys/fs/cgroup";
    for (outsider, prepare) in [(Outsider::None, fixed), (Outsider::Inside, "true")] {
        let output = Finished::run(contained(&cgroup, outsider, prepare, &line)?, patience())?;
        let lines: Vec<&str> = output.stdout.lines().collect();
        let [report, groups, members] = lines.as_slice() else {
            return Err(format!("{output:?}").into());
        };
        let report: Value = serde_json::from_str(report).map_err(|_| format!("{output:?}"))?;
        let memory = report.pointer("/receipt/configured/memory").and_then(Value::as_str);
        equal("memory", memory, Some("best-effort"))?;
        equal("no group is left", *groups, "0")?;
        let members: u32 = members.parse().map_err(|_| format!("{output:?}"))?;
        holds("all are where they were", members, members >= 2)?;
    }
    Ok(())
}

/// Simulates another instance, or a manager of the container, that has put a process into the leaf.
fn others(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let leaf = "/sys/fs/cgroup/cofferdam-container";
    let prepare = format!("mkdir {leaf} && {{ sleep 300 & }} && echo $! | tee {leaf}/cgroup.procs");
    let line = format!(
        "{} run --json -- true; cat {leaf}/cgroup.procs; grep -c . /sys/fs/cgroup/cgroup.procs",
        caller.binary().display()
    );
    let output = Finished::run(contained(&cgroup, Outsider::Inside, &prepare, &line)?, patience())?;
    let lines: Vec<&str> = output.stdout.lines().collect();
    let [put, report, there, members] = lines.as_slice() else {
        return Err(format!("{output:?}").into());
    };
    let report: Value = serde_json::from_str(report).map_err(|_| format!("{output:?}"))?;
    let memory = report.pointer("/receipt/configured/memory").and_then(Value::as_str);
    equal("memory", memory, Some("best-effort"))?;
    equal("it is where it was put", there, put)?;
    let members: u32 = members.parse().map_err(|_| format!("{output:?}"))?;
    holds("all others are where they were", members, members >= 2)
}

const REQUIRES: &str = "[requires]\nmemory_cgroup = true";

fn required(caller: &Caller) -> Check {
    let cgroup = TestGroups::new(caller);
    let options = profile(caller, REQUIRES)?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let report = cgroup.json(&options, &["echo", "ran"])?;
    equal("it ran", (text(&report, "outcome"), text(&report, "stdout")), ("exited", "ran\n"))
}

fn refused(caller: &Caller) -> Check {
    let reasons = [
        (REQUIRES, "a memory cgroup is required and none can be had"),
        ("[limits]\nprocessors = 0.5", "a share of the processors is a limit that needs cgroup v2"),
    ];
    for (keys, reason) in reasons {
        let options = profile(caller, keys)?;
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let output =
            Finished::run(caller.cofferdam(&command(&[], &options, &["echo", "ran"])), patience())?;
        equal(keys, (output.code, output.stdout.as_str()), (125, ""))?;
        holds("why", &output.stderr, output.stderr.contains(reason))?;
    }
    Ok(())
}
