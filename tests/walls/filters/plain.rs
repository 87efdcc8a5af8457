//! A profile read plainly: its own TOML, and the floor's conditions as sentences of Rust. Nothing here
//! shares a line with the compiler or the tables that it compiles.

use std::collections::BTreeSet;

use model::profile::Family;
use toml::Value;

/// Answer of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Allow,
    Errno(i32),
    /// Refused and counted by the listener, or answered by it.
    Listener,
}

impl Answer {
    pub fn value(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Listener => 0x7fc0_0000,
            Self::Errno(errno) => 0x0005_0000 | errno.unsigned_abs(),
        }
    }
}

/// A profile as its files have it.
#[derive(Debug, Clone)]
pub struct Plain {
    calls: BTreeSet<String>,
    quiet: BTreeSet<String>,
    one_program: bool,
    pub families: BTreeSet<Family>,
    pub memory_is_held: bool,
    has_egress: bool,
}

/// A shipped profile's text.
fn text(name: &str) -> String {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sandbox-profiles");
    std::fs::read_to_string(directory.join(format!("{name}.toml"))).expect("a shipped profile")
}

fn words(table: &Value, key: &str) -> Vec<String> {
    let list = table.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Plain {
    /// Reads a profile after those that it extends.
    pub fn read(name: &str) -> Self {
        let written: Value = toml::from_str(&text(name)).expect("TOML");
        let mut plain = match written.get("extends").and_then(Value::as_str) {
            Some(parent) => Self::read(parent),
            None => Self {
                calls: BTreeSet::new(),
                quiet: BTreeSet::new(),
                one_program: false,
                families: BTreeSet::new(),
                memory_is_held: false,
                has_egress: false,
            },
        };
        let tables = |key: &str| {
            let tables = written.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
            tables.iter().flat_map(|table| words(table, "names")).collect::<Vec<_>>()
        };
        plain.calls.extend(tables("syscalls"));
        plain.quiet.extend(tables("quiet"));
        if let Some(program) = written.get("exec").and_then(|exec| exec.get("program")) {
            plain.one_program = program.as_str() != Some("any");
        }
        if let Some(sockets) = written.get("sockets") {
            let families = words(sockets, "families");
            let known = [("unix", Family::Unix), ("inet", Family::Inet), ("inet6", Family::Inet6)];
            let named = known.into_iter().filter(|(name, _)| families.iter().any(|f| f == name));
            plain.families = named.map(|(_, family)| family).collect();
        }
        if let Some(class) = written.get("network").and_then(|network| network.get("class")) {
            let reaching = ["allow-list", "private", "any"];
            plain.has_egress = class.as_str().is_some_and(|class| reaching.contains(&class));
        }
        plain
    }

    /// Returns the answer that the call `name` with these arguments must get.
    pub fn answer(&self, name: &str, arguments: &[u64; 6]) -> Answer {
        let allowed = |holds: bool| if holds { Answer::Allow } else { Answer::Listener };
        match name {
            // Flags behind a pointer: as a kernel without them.
            "clone3" | "openat2" | "getxattrat" | "listxattrat" | "setxattrat"
            | "removexattrat" => {
                return Answer::Errno(libc::ENOSYS);
            }
            // The host's disks are not written to for a cell.
            "sync" | "syncfs" => return Answer::Errno(0),
            "execve" => return allowed(!self.one_program),
            "execveat" if self.one_program => {
                return allowed(low(arguments, 0) == 1000 && low(arguments, 4) == 0x1000);
            }
            "execveat" => return Answer::Allow,
            "socketpair" => return allowed(self.unix_pair(arguments)),
            "socket" => return self.socket(arguments),
            _ => {}
        }
        if self.calls.contains(name) && !self.withheld(name) {
            // Room past the limit of a file, which its size does not show.
            if name == "fallocate" && !matches!(low(arguments, 1), 0 | 3 | 8 | 0x10) {
                return Answer::Errno(libc::EOPNOTSUPP);
            }
            // The cell's init answers it, without information about the host's memory.
            return match self.excused(name, arguments) {
                _ if name == "sysinfo" => Answer::Listener,
                Some(errno) => Answer::Errno(errno),
                None => allowed(conditions(name, arguments) && !self.uncounted(name, arguments)),
            };
        }
        if self.quiet.contains(name) && !self.calls.contains(name) {
            return Answer::Errno(libc::EPERM);
        }
        // Calls that the process needs between its filter and its program.
        let handover = [
            "recvmsg",
            "sendmsg",
            "dup2",
            "dup3",
            "fcntl",
            "close",
            "close_range",
            "lseek",
            "pread64",
            "prlimit64",
            "chdir",
            "rt_sigprocmask",
            "rt_sigaction",
            "exit_group",
        ];
        let is_one = handover.contains(&name) && !self.uncounted(name, arguments);
        allowed(is_one && conditions(name, arguments))
    }

    /// Makes memory that is in no account where no group counts it: shared pages without a file, huge pages, pages
    /// that a socket borrows. A subreaper hides which process made which, by which the others are counted.
    fn uncounted(&self, name: &str, arguments: &[u64; 6]) -> bool {
        let word = |index| low(arguments, index);
        let makes = match name {
            "mmap" => word(3) & 0x21 == 0x21 || word(3) & 0x4_0000 != 0,
            // Of an existing segment the size is 0.
            "shmget" => arguments[1] != 0,
            "sendto" | "sendmmsg" => word(3) & 0x400_0000 != 0,
            "sendmsg" => word(2) & 0x400_0000 != 0,
            "prctl" => word(0) == 36,
            _ => false,
        };
        makes && !self.memory_is_held
    }

    /// Returns the errno of a call that is answered as by a kernel without the feature, and not reported.
    fn excused(&self, name: &str, arguments: &[u64; 6]) -> Option<i32> {
        let word = |index| low(arguments, index);
        let operation = word(1) & !(128 | 256);
        match name {
            // Without a cgroup, which would count them, buffers of a socket cannot be resized, nor
            // pages lent to one.
            // A close never waits for the other end.
            "setsockopt" if word(1) == 1 && word(2) == 13 => Some(0),
            "setsockopt" if !self.memory_is_held => {
                (word(1) == 1 && matches!(word(2), 7 | 8 | 32 | 33)).then_some(0)
            }
            "sendfile" | "splice" if !self.memory_is_held && !self.families.is_empty() => {
                Some(libc::EINVAL)
            }
            // The limit of core files stays 1, and setting it succeeds.
            "setrlimit" => (word(0) == 4).then_some(0),
            "prlimit64" => {
                let sets = arguments[2] != 0 && arguments[3] == 0;
                (word(0) == 0 && word(1) == 4 && sets).then_some(0)
            }
            "futex" => matches!(operation, 6 | 7 | 8 | 11 | 12 | 13).then_some(libc::ENOSYS),
            // Init could not count it in time: memory that grows down, and that is paged in at once.
            "mmap" if !self.memory_is_held && word(3) & 0x100 != 0 => Some(libc::EINVAL),
            "madvise" if !self.memory_is_held && matches!(word(2), 22 | 23) => Some(libc::EINVAL),
            "madvise" => (!conditions(name, arguments)).then_some(libc::EINVAL),
            "preadv2" | "pwritev2" => (!conditions(name, arguments)).then_some(libc::EOPNOTSUPP),
            "fadvise64" => (!conditions(name, arguments)).then_some(0),
            // Processes stay traceable, and the one that asks is content with the answer.
            "prctl" => (word(0) == 4 && arguments[1] == 0).then_some(0),
            _ => (!owns(name, arguments)).then_some(libc::EPERM),
        }
    }

    /// Listed, and refused by the floor all the same.
    fn withheld(&self, name: &str) -> bool {
        let forks = ["fork", "vfork", "clone"].contains(&name);
        let hides = ["memfd_create", "semget", "msgget"].contains(&name);
        (forks && self.one_program) || (hides && !self.memory_is_held)
    }

    fn unix_pair(&self, arguments: &[u64; 6]) -> bool {
        self.families.contains(&Family::Unix) && is_unix(arguments)
    }

    fn socket(&self, arguments: &[u64; 6]) -> Answer {
        // ICMP of the family: what ping(8) sends reaches the gateway, if there is one.
        let inet = |family: Family, number: u32, echo: u32| {
            let kind = kind(arguments);
            let protocol = low(arguments, 2);
            self.families.contains(&family)
                && low(arguments, 0) == number
                && (matches!((kind, protocol), (1, 0 | 6) | (2, 0 | 17))
                    || self.has_egress && (kind, protocol) == (2, echo))
        };
        if self.unix_pair(arguments) || inet(Family::Inet, 2, 1) || inet(Family::Inet6, 10, 58) {
            return Answer::Allow;
        }
        // getaddrinfo's question for the machine's addresses, where there are sockets and no init
        // answers it.
        match is_route(arguments) && kind(arguments) == 3 && !self.families.is_empty() {
            true => Answer::Errno(libc::EAFNOSUPPORT),
            false => Answer::Listener,
        }
    }

    /// True for a socket that the cell's init makes, if it is there: one of route netlink.
    pub fn is_made_by_init(&self, arguments: &[u64; 6]) -> bool {
        let is_internet = |family: &Family| *family != Family::Unix;
        is_route(arguments)
            && matches!(kind(arguments), 2 | 3)
            && self.families.iter().any(is_internet)
    }
}

/// Returns the bits that the kernel reads of an `int`.
pub fn low(arguments: &[u64; 6], index: usize) -> u32 {
    let value = arguments.get(index).copied().unwrap_or_default();
    u32::try_from(value & 0xffff_ffff).unwrap_or_default()
}

/// A socket's type without SOCK_CLOEXEC and SOCK_NONBLOCK.
fn kind(arguments: &[u64; 6]) -> u32 {
    low(arguments, 1) & !0o2_004_000
}

fn is_route(arguments: &[u64; 6]) -> bool {
    low(arguments, 0) == 16 && low(arguments, 2) == 0
}

fn is_unix(arguments: &[u64; 6]) -> bool {
    low(arguments, 0) == 1 && matches!(kind(arguments), 1 | 2 | 5) && low(arguments, 2) == 0
}

/// The floor's conditions, which hold in every profile.
fn conditions(name: &str, arguments: &[u64; 6]) -> bool {
    let word = |index| low(arguments, index);
    let no_set_id = |index| word(index) & 0o6000 == 0;
    let opened = |flags, mode| word(flags) & 0o20_000_100 == 0 || no_set_id(mode);
    let node = |mode| {
        no_set_id(mode) && matches!(word(mode) & 0o170_000, 0 | 0o100_000 | 0o010_000 | 0o140_000)
    };
    match name {
        // NEWTIME is an exit signal's bit here; NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
        "clone" => word(0) & (0x2_0000 | 0x7e00_0000 | 0x8000) == 0,
        "unshare" => {
            arguments.first().is_some_and(|flags| flags & !(0x200 | 0x400 | 0x4_0000) == 0)
        }
        "ioctl" => requests().any(|range| range.contains(&word(1))),
        // The owner of a descriptor's signals is neither init nor its group.
        "fcntl" if word(1) == 8 => !matches!(word(2), 1 | u32::MAX),
        "fcntl" => matches!(word(1), 0..=7 | 9 | 11 | 16 | 36..=38 | 1025 | 1030..=1038),
        "prctl" => prctl(word(0)),
        "arch_prctl" => matches!(word(0), 0x1001..=0x1004 | 0x1011 | 0x1021..=0x1023),
        "personality" => matches!(word(0), 0 | u32::MAX),
        // Not to set the limit of core files.
        "prlimit64" => word(0) == 0 && (word(1) != 4 || arguments[2] == 0),
        "setrlimit" => word(0) != 4,
        "setpriority" => word(0) < 2,
        "ioprio_set" => matches!(word(0), 1 | 2),
        "sched_setscheduler" => matches!(word(1) & !0x4000_0000, 0 | 3),
        "setsockopt" => option(word(1), word(2)),
        "sendto" | "sendmmsg" => word(3) & 1 == 0,
        "sendmsg" => word(2) & 1 == 0,
        "futex" => matches!(word(1) & !(128 | 256), 0 | 1 | 3 | 4 | 5 | 9 | 10),
        "madvise" => matches!(word(2), 0..=4 | 8..=11 | 14..=19 | 22..=24 | 102 | 103),
        // NOWAIT, DONTCACHE and what came after them.
        "preadv2" | "pwritev2" => word(5) & (8 | !0x7f) == 0,
        "fadvise64" => word(3) != 4,
        "timer_create" | "clock_nanosleep" => matches!(word(0), 0 | 1 | 7 | 11),
        "chmod" | "fchmod" | "creat" => no_set_id(1),
        "fchmodat" | "fchmodat2" => no_set_id(2),
        "open" => opened(1, 2),
        "openat" => opened(2, 3),
        "mknod" => node(1),
        "mknodat" => node(2),
        _ => true,
    }
}

/// Ids that the call sets are the cell's own, or kept.
fn owns(name: &str, arguments: &[u64; 6]) -> bool {
    let ids: &[usize] = match name {
        "setuid" | "setgid" => return low(arguments, 0) == 1000,
        "setreuid" | "setregid" => &[0, 1],
        "setresuid" | "setresgid" => &[0, 1, 2],
        "chown" | "fchown" | "lchown" => &[1, 2],
        "fchownat" => &[2, 3],
        _ => return true,
    };
    ids.iter().all(|place| matches!(low(arguments, *place), 1000 | u32::MAX))
}

fn prctl(option: u32) -> bool {
    matches!(option,
        1..=4 | 7 | 8 | 15 | 16 | 21 | 23 | 27 | 29 | 30 | 36..=39 | 41 | 42 | 47 | 50..=52 | 54..=56 | 61
            | 65 | 66 | 0x5356_4d41)
}

/// Socket options that no filter program, no protocol module and no header of one's own hangs on.
fn option(level: u32, option: u32) -> bool {
    match level {
        // Not programs, busy polling, borrowed pages, times to send at, memory set aside.
        1 => {
            matches!(option, 0..=12 | 14..=25 | 27..=45 | 47..=49 | 53..=59 | 62..=68 | 71 | 72 | 74..=77 | 81..=84)
        }
        6 => matches!(option, 1..=10 | 12 | 18 | 23 | 25 | 30 | 36),
        0 => matches!(option,
            1 | 2 | 8 | 10..=13 | 15 | 21 | 24 | 32..=36 | 39 | 40 | 42 | 45..=47 | 49),
        41 => {
            matches!(option, 16..=21 | 23 | 25 | 26 | 29 | 42 | 45..=47 | 49 | 51 | 62 | 66 | 67 | 78)
        }
        17 => matches!(option, 103 | 104),
        270 => matches!(option, 1 | 2 | 10..=12),
        _ => false,
    }
}

/// Requests to terminals, to sockets about themselves, and to files about themselves.
fn requests() -> impl Iterator<Item = std::ops::RangeInclusive<u32>> {
    let terminals = [
        0x5401..=0x5411,
        0x5413..=0x541b,
        0x5420..=0x5422,
        0x5424..=0x5429,
        0x5450..=0x5452,
        0x5460..=0x5460,
        0x802c_542a..=0x802c_542a,
        0x402c_542b..=0x402c_542d,
        0x8004_5430..=0x8004_5430,
        0x4004_5431..=0x4004_5431,
        0x5441..=0x5441,
    ];
    let sockets = [
        0x8903..=0x8907,
        0x8910..=0x8913,
        0x8915..=0x8915,
        0x8917..=0x8917,
        0x8919..=0x8919,
        0x891b..=0x891b,
        0x8921..=0x8921,
        0x8927..=0x8927,
        0x8933..=0x8933,
        0x8942..=0x8942,
    ];
    let files = [
        0x4004_9409..=0x4004_9409,
        0x4020_940d..=0x4020_940d,
        0xc020_660b..=0xc020_660b,
        0x8008_6601..=0x8008_6601,
        0x801c_581f..=0x801c_581f,
        0x8004_5200..=0x8004_5200,
    ];
    terminals.into_iter().chain(sockets).chain(files)
}
