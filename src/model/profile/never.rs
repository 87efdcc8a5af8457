//! System calls that no profile grants, each group with its reason. Pure data.
//!
//! Together with the shipped profiles and [`ON_REQUEST`] this covers every call in the kernel's
//! table. A test checks that, so a call that a newer table adds is denied until it has been
//! reviewed.

/// Calls that share a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedGroup {
    pub why: &'static str,
    pub names: &'static [&'static str],
}

const fn group(why: &'static str, names: &'static [&'static str]) -> RefusedGroup {
    RefusedGroup { why, names }
}

/// Calls that no profile grants.
pub const NEVER: &[RefusedGroup] = &[
    group(
        "it changes or reads the mount tree, which is the wall of the cell",
        &[
            "mount",
            "umount2",
            "pivot_root",
            "chroot",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "open_tree",
            "open_tree_attr",
            "move_mount",
            "mount_setattr",
            "statmount",
            "listmount",
        ],
    ),
    group("it enters another namespace", &["setns"]),
    group(
        "it reads or drives another process",
        &[
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "kcmp",
            "pidfd_getfd",
            "process_madvise",
            "process_mrelease",
            "get_robust_list",
            "perf_event_open",
            "uprobe",
            "uretprobe",
        ],
    ),
    group(
        "it gives the kernel programs or queues to run past the filter",
        &["bpf", "seccomp", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"],
    ),
    group("kernel keyrings are not held by namespaces", &["add_key", "request_key", "keyctl"]),
    group(
        "it opens files by handle, past every path rule",
        &["open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark"],
    ),
    group(
        "it changes the machine and not the cell",
        &[
            "kexec_load",
            "kexec_file_load",
            "create_module",
            "init_module",
            "finit_module",
            "delete_module",
            "swapon",
            "swapoff",
            "acct",
            "reboot",
            "settimeofday",
            "clock_settime",
            "clock_adjtime",
            "adjtimex",
            "quotactl",
            "quotactl_fd",
            "vhangup",
            "iopl",
            "ioperm",
        ],
    ),
    group("the cell's host name is fixed", &["sethostname", "setdomainname"]),
    group(
        "it tells about the host's kernel and its memory",
        &["syslog", "sysfs", "ustat", "lookup_dcookie", "cachestat"],
    ),
    group(
        "it moves memory between nodes of the machine, of other processes as well",
        &["move_pages", "migrate_pages", "mbind", "set_mempolicy", "set_mempolicy_home_node"],
    ),
    group("its memory is hidden from every limit and from the kernel itself", &["memfd_secret"]),
    group(
        "it belongs to security modules",
        &["lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules"],
    ),
    group(
        "no present program needs it, and attackers do",
        &[
            "modify_ldt",
            "set_thread_area",
            "get_thread_area",
            "remap_file_pages",
            "uselib",
            "_sysctl",
            "nfsservctl",
            "get_kernel_syms",
            "query_module",
            "getpmsg",
            "putpmsg",
            "afs_syscall",
            "tuxcall",
            "security",
            "vserver",
            "epoll_ctl_old",
            "epoll_wait_old",
        ],
    ),
];

/// Calls answered with ENOSYS, as by a kernel without them: their arguments are behind a pointer,
/// which no filter can read, and callers fall back to a call that can be checked.
pub const ABSENT: &[RefusedGroup] = &[
    group("its flags are behind a pointer; programs fall back to clone", &["clone3"]),
    group("its flags and mode are behind a pointer; programs fall back to openat", &["openat2"]),
    group(
        "what it sets is behind a pointer; programs fall back to setxattr and its like",
        &["getxattrat", "listxattrat", "setxattrat", "removexattrat"],
    ),
];

/// Calls answered with 0 without effect in every profile: they would have the host write all that it
/// holds of its filesystems, and wait for it. fsync(2) of the program's own files works.
pub const WITHOUT_EFFECT: &[RefusedGroup] =
    &[group("it makes one process wait for the whole machine's disks", &["sync", "syncfs"])];

/// Calls that another key of a profile grants, with that key.
pub(crate) const KEYED: &[(&str, &[&str])] =
    &[("exec", &["execve", "execveat"]), ("sockets", &["socket", "socketpair"])];

/// Calls that the shipped profiles neither grant nor refuse by name, and that a profile may grant
/// with a `why`.
pub const ON_REQUEST: &[RefusedGroup] = &[
    group(
        "it only takes rights away, and is kernel surface that few programs use",
        &["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"],
    ),
    group(
        "asynchronous I/O of the older kind: databases use it, and its flags show what the host has in memory",
        &["io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents"],
    ),
    group("scheduling beyond nice: needs a reason", &["sched_setattr", "sched_rr_get_interval"]),
    group("it maps pages into a pipe; rarely used, often attacked", &["vmsplice"]),
    group("it changes file attributes beyond mode and times", &["file_getattr", "file_setattr"]),
    group("shadow stacks; libc does without", &["map_shadow_stack"]),
];

/// Calls that allocate memory which no watchdog sees; allowed only if a cgroup bounds the cell's
/// memory.
pub const NEEDS_MEMORY_CGROUP: &[&str] = &["memfd_create", "semget", "msgget"];

/// Calls by which a socket holds whole pages but accounts for a few bytes of each. If the cell has
/// sockets and no cgroup bounds its memory, they are answered as for descriptors that do not
/// support them, and programs read and write instead (sendfile(2), splice(2)).
pub(crate) const LENDS_PAGES: &[&str] = &["sendfile", "splice"];

/// Calls that start a process or a thread: denied to a cell that may execute one program.
pub const FORKS: &[&str] = &["fork", "vfork", "clone"];

/// Returns the reason if no profile may list this call.
pub fn reason(name: &str) -> Option<&'static str> {
    let named = |group: &&RefusedGroup| group.names.contains(&name);
    NEVER.iter().chain(ABSENT).find(named).map(|group| group.why)
}

/// Returns the key that grants this call instead of a list of calls, if there is one.
pub fn keyed(name: &str) -> Option<&'static str> {
    KEYED.iter().find(|(_, names)| names.contains(&name)).map(|(key, _)| *key)
}
