//! `/proc` of a cell: its own processes, its own size, and no information about the host.

use crate::support::{CALLS, Caller, Check, Claim, Failed, Need, claim, equal, holds, processors};

pub const CLAIMS: &[Claim] = &[
    claim("facts_of_the_machine_are_the_cells", facts),
    claim("programs_that_read_proc_work", programs).needs(&[Need::Procps, Need::Python]),
    claim("a_call_sees_its_lowered_memory", jobs_memory).needs(&[Need::Procps]),
    claim("sysinfo_describes_the_cell", sysinfo).needs(&[Need::Python]),
    claim("clocks_start_with_the_supervisor", clocks).needs(&[Need::Python, Need::TimeNamespace]),
    claim("processes_show_when_they_were_started", started).needs(&[
        Need::Procps,
        Need::Python,
        Need::TimeNamespace,
    ]),
    claim("sleeps_and_time_limits_are_exact", sleeps).needs(&[Need::Python, Need::TimeNamespace]),
    claim("every_other_entry_of_the_host_is_absent", hidden),
    claim("the_links_of_proc_stay", links),
    claim("init_cannot_be_read_or_traced_by_the_program", init_is_closed).needs(&[Need::Python]),
    claim("a_program_reads_its_entries_in_proc", own_entries).needs(&[Need::Python]),
    claim("settings_of_the_kernel_cannot_be_seen_or_written", settings),
    claim("what_hides_entries_of_proc_cannot_be_removed", stays_hidden),
];

fn facts(caller: &Caller) -> Check {
    let output = caller.bash("cd /proc; head -1 meminfo; cat loadavg version; head -1 stat")?;
    let expected = "MemTotal:        1048576 kB\n0.00 0.00 0.00 1/1 1\n\
        Linux version 6.0 (cofferdam)\ncpu  0 0 0 0 0 0 0 0 0 0\n";
    equal("meminfo, loadavg, version, stat", output.stdout.as_str(), expected)?;
    let output =
        caller.bash("grep -c ^processor /proc/cpuinfo; grep vendor /proc/cpuinfo | sort -u")?;
    let expected = format!("{}\nvendor_id\t: cofferdam", processors());
    equal("cpuinfo", output.trimmed(), expected.as_str())?;
    // Programs choose code by these, or refuse to start; the processor reveals them anyway.
    let features = "grep -m1 -E '^(flags|Features)' /proc/cpuinfo";
    let inside = caller.bash(features)?;
    let outside = caller.bash_outside(features)?;
    equal("features", inside.trimmed(), outside.trimmed())
}

fn programs(caller: &Caller) -> Check {
    let output = caller.bash("free -k | awk '/^Mem/ {print $2}'; nproc; uptime >&2")?;
    let runs_on = caller.bash_outside("nproc")?.trimmed().to_owned();
    equal("free and nproc", output.trimmed(), format!("1048576\n{runs_on}"))?;
    holds("uptime", &output.stderr, output.stderr.contains("load average: 0.00, 0.00, 0.00"))?;
    let output = caller
        .bash("while [ -e /proc/2 ]; do sleep 0.01; done; ps -eo pid,user,comm --no-headers; :")?;
    let rows: Vec<Vec<&str>> =
        output.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = [["1", "agent", "cofferdam"], ["3", "agent", "bash"]];
    equal("the first two of ps", rows.get(..2).unwrap_or_default(), expected)?;
    equal("and ps itself", (rows.len(), rows.last().and_then(|row| row.get(2))), (3, Some(&"ps")))?;
    let output = caller.python("import os; print(os.cpu_count(), os.getloadavg)")?;
    holds("python", &output, output.trimmed().starts_with(&format!("{} ", processors())))
}

/// Checks that the file has the profile's limit and is rewritten for a job that lowers it.
fn jobs_memory(caller: &Caller) -> Check {
    let report = caller.json(
        &["--memory", "200M", "--processes", "20"],
        &["bash", "-c", "free -b | awk '/^Mem/ {print $2}'; nproc; echo x > /proc/meminfo"],
    )?;
    let processors = caller.bash_outside("nproc")?.trimmed().to_owned();
    let expected = format!("{}\n{processors}\n", 200 << 20);
    equal("free and nproc", crate::support::text(&report, "stdout"), expected.as_str())?;
    let refused = "bash: line 1: /proc/meminfo: Read-only file system\n";
    equal("it cannot be written", crate::support::text(&report, "stderr"), refused)?;
    let configured = |field| report.pointer(&format!("/receipt/configured/{field}")).cloned();
    equal("the receipt's memory", configured("memory_bytes"), Some((200 << 20).into()))?;
    equal("and processes", configured("processes"), Some(20.into()))?;
    // The next call of the profile has the whole again.
    facts(caller)
}

/// sysinfo(2) is answered by init: nothing of the host, and no way to make init write elsewhere.
fn sysinfo(caller: &Caller) -> Check {
    let script = format!(
        "{CALLS}
def facts():
    room = ctypes.create_string_buffer(112)
    got = libc.sysinfo(room)
    uptime, *rest = struct.unpack('q3Q6QH6x2QI', room.raw[:108])
    return (got, ('up' if 0 < uptime < 60 else uptime, *rest))
print(facts())
print(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))
print(call(99, 8), call(99, -1), call(99, 0))
r, w = os.pipe()
if os.fork() == 0:
    # A request to be untraceable, which has no effect.
    libc.prctl(4, 0); os.write(w, str(call(99, bytes(112))).encode()); os._exit(0)
print(os.read(r, 9).decode())"
    );
    let options = ["--memory", "96M"];
    let report = caller.json(&options, &["/usr/bin/python3", "-c", &script])?;
    let memory = 96 << 20;
    let expected = format!(
        "(0, ('up', 0, 0, 0, {memory}, {memory}, 0, 0, 0, 0, 1, 0, 0, 1))\n{memory}\n\
         EFAULT EFAULT EFAULT\n0\n"
    );
    equal("the cell's own", crate::support::text(&report, "stdout"), expected.as_str())?;
    equal("it is no denial", crate::support::denials(&report), vec![])?;
    let control = caller.python_outside(
        "import os; print(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))",
    )?;
    holds("outside it is the host's", &control, control.trimmed() != memory.to_string())
}

/// ps(1) and Python's psutil add `btime` of `/proc/stat` to the start of a process by the boot clock.
fn started(caller: &Caller) -> Check {
    let script = "booted=$(sed -n 's/^btime //p' /proc/stat); up=$(cut -d. -f1 /proc/uptime)
echo $(($(date +%s) - booted - up)); sleep 2; now=$(date +%s)
for pid in $$ 1; do echo $((now - $(date +%s -d \"$(ps -o lstart= -p $pid)\"))); done";
    let output = caller.bash(script)?;
    let differences: Vec<i64> = output.stdout.lines().flat_map(str::parse).collect();
    // Seconds: rounded twice, and a busy machine is slow.
    let [boot, shell, init] = differences.as_slice() else {
        return holds("three numbers", &output, false);
    };
    holds("the boot", &output, (-1..=2).contains(boot))?;
    holds("the shell and init", &output, (1..60).contains(shell) && (1..60).contains(init))
}

/// Prints the machine's age in seconds by each clock: the kernel's three, the start of this process, `/proc/uptime`
/// and sysinfo(2).
const AGES: &str = "
import ctypes, struct, time
clocks = [time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC, time.CLOCK_MONOTONIC_RAW]
room = ctypes.create_string_buffer(112)
assert ctypes.CDLL(None).sysinfo(room) == 0
ages = [time.clock_gettime(clock) for clock in clocks]
ages.append(int(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19]) / 100)
ages.append(float(open('/proc/uptime').read().split()[0]))
ages.append(struct.unpack('q', room.raw[:8])[0])
print(*(f'{age:.2f}' for age in ages))";

fn parsed(line: &str) -> Result<Vec<f64>, Failed> {
    let ages = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    ages.map_err(|error| Failed::from(format!("{line}: {error}")))
}

/// All of them are small in the cell, and the same but for what the call took; outside they are not the
/// cell's.
fn clocks(caller: &Caller) -> Check {
    let began = std::time::Instant::now();
    let inside = parsed(caller.python(AGES)?.trimmed())?;
    let took = began.elapsed().as_secs_f64();
    let outside = parsed(caller.python_outside(AGES)?.trimmed())?;
    equal("how many clocks there are", (inside.len(), outside.len()), (6, 6))?;
    let least = inside.iter().copied().fold(f64::INFINITY, f64::min);
    let most = inside.iter().copied().fold(0.0, f64::max);
    // A supervisor's clocks begin at 1; sysinfo(2) has whole seconds. On a busy machine the time at which the process
    // began was seen at 0.79.
    holds("they begin with the supervisor", &inside, least >= 0.5 && most < took + 2.2)?;
    let boot = |ages: &[f64]| ages.first().copied().unwrap_or_default();
    holds("outside is the host's", &outside, boot(&outside) - boot(&inside) > 5.0)
}

fn sleeps(caller: &Caller) -> Check {
    let script = "
import select, signal, time
began = time.time(); ends = time.monotonic() + 0.4
time.sleep(0.3)
select.select([], [], [], 0.3)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.3); signal.pause()
import threading
threading.Event().wait(0.3)
print(1.2 <= time.time() - began < 6, time.monotonic() > ends)";
    equal("sleeps of 1.2 s", caller.python(script)?.trimmed(), "True True")?;
    let report = caller.json(&["--timeout", "1s"], &["sleep", "30"])?;
    equal("a limit of one second", crate::support::text(&report, "outcome"), "timeout")?;
    let took = report.get("duration_ms").and_then(serde_json::Value::as_u64).unwrap_or(0);
    holds("and it was that", took, (900..20_000).contains(&took))
}

const FACTS: [&str; 7] = ["cpuinfo", "loadavg", "meminfo", "stat", "sys", "uptime", "version"];
const OWN: [&str; 4] = ["self", "thread-self", "mounts", "net"];

/// Every entry that the host has and no namespace hides by itself is not there, by name nor in the list,
/// or is the cell's own.
fn hidden(caller: &Caller) -> Check {
    let mut host: Vec<String> = std::fs::read_dir("/proc")?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    host.sort();
    holds("the host has many entries", host.len(), host.len() > 20)?;
    let names = host.join(" ");
    let output =
        caller.bash(&format!("cd /proc; for e in {names}; do [ -e $e ] && echo $e; done; :"))?;
    let mut expected = [FACTS.as_slice(), &OWN].concat();
    expected.sort_unstable();
    equal("found by name", output.stdout.lines().collect::<Vec<_>>(), expected)?;
    let output = caller
        .bash("cd /proc; ls -A | grep -v '^[0-9]*$'; stat -c %n kcore kallsyms sysvipc 2>&1")?;
    let missing = |name| format!("stat: cannot statx '{name}': No such file or directory");
    let expected = ["self".to_owned(), "thread-self".to_owned()].into_iter();
    let expected: Vec<String> =
        expected.chain(["kcore", "kallsyms", "sysvipc"].map(missing)).collect();
    equal("listed", output.stdout.lines().collect::<Vec<_>>(), expected)
}

/// Checks that the two links work for as long as their cell lives, though a new lookup would not find them.
fn links(caller: &Caller) -> Check {
    let script = "for i in 1 2 3; do for d in /proc/[0-9]*; do ls -R $d/fd $d/ns $d/task; done
find / -xdev; sleep 0.1; done >/dev/null 2>&1
grep -c ' /proc proc .*subset=pid' /proc/mounts; tail -n +3 /proc/net/dev | cut -d: -f1";
    let output = caller.bash(script)?;
    equal("mounts and net", output.trimmed(), "1\n    lo")
}

/// kernel-facts, "pid 1 and its payload": a dumpable init in the same Landlock domain is open.
fn init_is_closed(caller: &Caller) -> Check {
    let script = format!(
        "{}
for name in ('mem', 'environ', 'maps', 'smaps', 'auxv', 'fd', 'fdinfo', 'map_files', 'ns', 'stack', 'syscall', 'io', 'pagemap'):
    path = '/proc/1/' + name
    print(name, tried(lambda: os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1)))
for name in ('root', 'cwd', 'exe', 'ns/net'):
    print(name, tried(lambda: os.readlink('/proc/1/' + name)))
print('write', tried(lambda: open('/proc/1/mem', 'r+b')), tried(lambda: open('/proc/1/oom_score_adj', 'w').write('0')))
fd = os.pidfd_open(1)
print('calls', call(101, 16, 1, 0, 0), call(310, 1, 0, 0, 0, 0, 0), call(311, 1, 0, 0, 0, 0, 0), call(438, fd, 0, 0))",
        crate::support::CALLS
    );
    let output = caller.python(&script)?;
    let denied = output.stdout.lines().filter(|line| line.ends_with(" EACCES")).count();
    let permitted: Vec<&str> = output.stdout.lines().filter(|line| line.contains(" ok")).collect();
    // fdinfo has no names in it that its reader may see; the kernel also returns EACCES.
    equal("nothing can be read", permitted, Vec::<&str>::new())?;
    holds("by permission", &output.stdout, denied >= 15)?;
    let last = output.stdout.lines().last();
    equal("ptrace, vm_readv, vm_writev, getfd", last, Some("calls EPERM EPERM EPERM EPERM"))?;
    // From outside: its environment was wiped before it existed.
    let mut command = caller.run_command(&[], &["bash", "-c", "echo ready; sleep 60"]);
    command.env("SECRET", "hunter2");
    let live = crate::support::Live::start(command)?;
    if caller.who == crate::support::Who::Root {
        let environ = crate::support::proc_file(live.init()?, "environ")?;
        holds("environ", &environ, environ.iter().all(|byte| *byte == 0))?;
    }
    Ok(())
}

fn own_entries(caller: &Caller) -> Check {
    let script = "import os
print(open('/proc/self/comm').read().strip(), len(open('/proc/self/maps').read()) > 99)
print(os.readlink('/proc/self/exe').startswith('/usr/bin/python3'), os.readlink('/proc/self/cwd'))
print(open('/proc/3/environ').read().count('HOME=/tmp/home'))";
    equal("python", caller.python(script)?.trimmed(), "python3 True\nTrue /workspace\n1")
}

fn settings(caller: &Caller) -> Check {
    let script = "cat /proc/sys/kernel/hostname /proc/sys/vm/overcommit_memory /proc/kallsyms /proc/cmdline | wc -c; echo x > /proc/sys/kernel/core_pattern; \
        echo x > /proc/sys/x; echo b > /proc/sysrq-trigger; echo x > /proc/self/uid_map; \
        echo 0 > /proc/self/oom_score_adj; :";
    let output = caller.bash(script)?;
    equal("nothing of /proc/sys", output.trimmed(), "0")?;
    let refusals = output.stderr.lines().filter(|line| line.starts_with("bash: ")).count();
    holds("each write is refused", &output.stderr, refusals >= 4)?;
    let outside = caller.bash_outside("cat /proc/sys/kernel/hostname | wc -c")?;
    holds("outside it is there", &outside, outside.trimmed() != "0")
}

fn stays_hidden(caller: &Caller) -> Check {
    let script = "umount /proc/stat; umount -l /proc; mount -t proc proc /tmp/home; \
        mount -o remount,subset= /proc; mv /proc/stat /tmp; wc -c < /proc/kallsyms; ls /tmp/home; \
        head -c 9 /proc/stat";
    let output = caller.bash(script)?;
    equal("still covered", output.trimmed(), "cpu  0 0")?;
    let refused = output.stderr.to_lowercase();
    let absent = refused.contains("/proc/kallsyms: no such file or directory");
    let mounts = refused.matches("umount").count() >= 2 && refused.matches("mount:").count() >= 4;
    holds("refused", &refused, absent && mounts)
}
