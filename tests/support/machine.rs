//! Features of this machine, probed by using them.
//!
//! A claim whose needs are not met is ignored. With `COFFERDAM_MUST_RUN=1` it fails, except for the
//! needs in `COFFERDAM_LACKS` (separated by commas), which this kernel is known not to meet.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Directories of the host's programs: those that a cell would search too.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// Mount point of control groups, version 2.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// A requirement of a test other than cofferdam.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Bc,
    /// bubblewrap.
    Bwrap,
    /// A virtual machine of tests/kernels whose kernel hands crashes to a socket (Linux 6.16).
    CrashSocket,
    /// Version 2 with memory, pids and cpu, at the place where root makes its groups.
    CgroupV2,
    Fish,
    /// Filesystems whose server is a process of the test.
    Fuse,
    Gcc,
    Git,
    /// gpg and its agent.
    Gpg,
    Java,
    Nginx,
    Node,
    /// A memory cgroup that root finds.
    MemoryCgroup,
    /// A processor that is not emulated: hundreds of megabytes take their time there.
    FullSpeed,
    /// Signals held by Landlock: ABI 6 (Linux 6.12).
    LandlockScope,
    /// newuidmap(1), newgidmap(1) and the files that they read.
    NewUidMap,
    Nsenter,
    /// A virtual machine of tests/kernels, in which a test may change what is the whole machine's.
    OwnKernel,
    /// A database server, with initdb where Debian has it.
    Postgres,
    /// ps, free.
    Procps,
    /// Limits of a process that runs.
    Prlimit,
    Python,
    /// A test run by root: only root can inspect a process that is not dumpable.
    RootLooks,
    Script,
    Setpriv,
    Socat,
    /// ssh-agent, ssh-add and ssh-keygen.
    SshAgent,
    /// A fuzzer of system calls.
    StressNg,
    /// A program that makes a system call of another process fail.
    Strace,
    /// Time namespaces: CONFIG_TIME_NS.
    TimeNamespace,
    /// Attributes of users on tmpfs, on which a layer can be then: Linux 6.6.
    TmpfsAttributes,
    Tmux,
    Unshare,
    /// A service manager of the ordinary user's own, with its private socket.
    UserManager,
    /// A counter of instructions.
    Valgrind,
    /// An entry or a table of system calls that only this architecture has.
    X86_64,
    Zsh,
}

impl Need {
    /// Returns the name to print.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bc => "bc",
            Self::Bwrap => "bwrap",
            Self::CgroupV2 => "cgroup-v2",
            Self::Fish => "fish",
            Self::Fuse => "fuse",
            Self::Gcc => "gcc",
            Self::Git => "git",
            Self::Gpg => "gpg",
            Self::Java => "java",
            Self::Nginx => "nginx",
            Self::Node => "node",
            Self::MemoryCgroup => "a memory cgroup",
            Self::FullSpeed => "full-speed",
            Self::LandlockScope => "landlock-scope",
            Self::NewUidMap => "newuidmap",
            Self::CrashSocket => "crash-socket",
            Self::Nsenter => "nsenter",
            Self::OwnKernel => "own-kernel",
            Self::Postgres => "postgres",
            Self::Procps => "ps and free",
            Self::Prlimit => "prlimit",
            Self::Python => "/usr/bin/python3",
            Self::RootLooks => "root as the one who runs the tests",
            Self::Script => "script",
            Self::Setpriv => "setpriv",
            Self::Socat => "socat",
            Self::SshAgent => "ssh-agent",
            Self::StressNg => "stress-ng",
            Self::Strace => "strace",
            Self::TimeNamespace => "time namespaces",
            Self::TmpfsAttributes => "tmpfs-attributes",
            Self::Tmux => "tmux",
            Self::Unshare => "unshare",
            Self::UserManager => "user-manager",
            Self::Valgrind => "valgrind",
            Self::X86_64 => "x86-64",
            Self::Zsh => "zsh",
        }
    }

    /// Returns true if `COFFERDAM_LACKS` states that this machine is without it.
    pub fn is_excused(self) -> bool {
        let lacks = std::env::var("COFFERDAM_LACKS").unwrap_or_default();
        lacks.split(',').any(|name| name == self.name())
    }

    /// Returns true if it exists and starts.
    pub fn is_met(self) -> bool {
        match self {
            Self::Bc => starts(&["/usr/bin/bc", "--version"]),
            Self::Bwrap => starts(&["/usr/bin/bwrap", "--version"]),
            Self::CgroupV2 => has_cgroup_v2(),
            Self::Fish => starts(&["/usr/bin/fish", "--version"]),
            Self::Fuse => std::path::Path::new("/dev/fuse").exists(),
            Self::Gcc => starts(&["/usr/bin/gcc", "--version"]),
            Self::Git => starts(&["/usr/bin/git", "--version"]),
            Self::Gpg => starts(&["gpg-agent", "--version"]) && starts(&["gpg", "--version"]),
            Self::Java => starts(&["/usr/bin/java", "-version"]),
            Self::Nginx => starts(&["/usr/sbin/nginx", "-v"]),
            Self::Node => starts(&["/usr/bin/node", "--version"]),
            Self::MemoryCgroup => {
                let mounted = |path| std::path::Path::new("/sys/fs/cgroup").join(path).exists();
                mounted("memory/cgroup.procs") || mounted("cgroup.subtree_control")
            }
            Self::FullSpeed => !emulated(),
            Self::LandlockScope => cell::landlock::kernel_abi() >= 6,
            Self::NewUidMap => {
                let files =
                    ["/usr/bin/newuidmap", "/usr/bin/newgidmap", "/etc/subuid", "/etc/subgid"];
                files.iter().all(|file| std::path::Path::new(file).exists())
            }
            Self::CrashSocket => Self::OwnKernel.is_met() && linux_is_since(6, 16),
            Self::Nsenter => starts(&["nsenter", "--version"]),
            Self::OwnKernel => {
                let is_root = nix::unistd::geteuid().is_root();
                is_root && std::env::var_os("COFFERDAM_OWN_KERNEL").is_some() && is_first_ours()
            }
            Self::Postgres => {
                let versions = std::fs::read_dir("/usr/lib/postgresql");
                let has_program = |version: std::io::Result<std::fs::DirEntry>| {
                    version.is_ok_and(|version| version.path().join("bin/initdb").exists())
                };
                versions.is_ok_and(|mut versions| versions.any(has_program))
            }
            Self::Procps => starts(&["ps", "--version"]) && starts(&["free", "--version"]),
            Self::Prlimit => starts(&["prlimit", "--version"]),
            Self::Python => starts(&["/usr/bin/python3", "-c", "import ctypes"]),
            Self::RootLooks => nix::unistd::geteuid().is_root(),
            Self::Script => starts(&["script", "--version"]),
            Self::Setpriv => starts(&["setpriv", "--version"]),
            Self::Socat => starts(&["socat", "-V"]),
            Self::SshAgent => starts(&["ssh-agent", "true"]) && has_file("/usr/bin/ssh-keygen"),
            Self::StressNg => starts(&["stress-ng", "--version"]),
            Self::Strace => starts(&["strace", "--version"]),
            Self::TimeNamespace => std::path::Path::new("/proc/self/ns/time").exists(),
            Self::TmpfsAttributes => linux_is_since(6, 6),
            Self::Tmux => starts(&["/usr/bin/tmux", "-V"]),
            Self::Unshare => starts(&["unshare", "--user", "true"]),
            Self::UserManager => {
                let euid = nix::unistd::geteuid();
                let user = if euid.is_root() { super::USER } else { euid.as_raw() };
                std::path::Path::new(&format!("/run/user/{user}/systemd/private")).exists()
            }
            Self::Valgrind => starts(&["/usr/bin/valgrind", "--version"]),
            Self::X86_64 => cfg!(target_arch = "x86_64"),
            Self::Zsh => starts(&["/usr/bin/zsh", "--version"]),
        }
    }
}

fn has_file(path: &str) -> bool {
    std::path::Path::new(path).exists()
}

/// Makes a group and reads its controllers: no file lists that another hierarchy took a controller.
fn has_cgroup_v2() -> bool {
    let group = PathBuf::from(CGROUPS).join(format!("probe-{}", std::process::id()));
    if std::fs::create_dir(&group).is_err() {
        return false;
    }
    let files = ["memory.max", "pids.max", "cpu.max"];
    let all = files.iter().all(|file| group.join(file).exists());
    std::fs::remove_dir(&group).is_ok() && all
}

/// Returns whether the first process of this machine is tests/kernels/first: no variable alone makes a test change a setting
/// of the machine.
fn is_first_ours() -> bool {
    std::fs::read("/proc/1/cmdline")
        .is_ok_and(|words| words.split(|byte| *byte == 0).any(|word| word == b"/first"))
}

/// Returns true if the running kernel has at least this version.
fn linux_is_since(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Detects the processor that qemu emulates without the host's: by its name, or on aarch64 by implementer 0.
fn emulated() -> bool {
    let is_qemu = |line: &str| {
        line.contains("QEMU TCG") || (line.starts_with("CPU implementer") && line.ends_with("0x00"))
    };
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.lines().any(is_qemu))
}

fn starts(argv: &[&str]) -> bool {
    let Some((program, arguments)) = argv.split_first() else { return false };
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", PATH);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns the number of processors that a cell is shown: as many as there are, or as its starter's control group gives the time of.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
