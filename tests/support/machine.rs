//! What this machine has, probed by using it.

use std::process::{Command, Stdio};

/// Where programs of the host are looked for: the ones a cell would find too.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// Something a claim needs beside cofferdam.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Bc,
    Gcc,
    Git,
    Java,
    Node,
    /// A memory cgroup that root finds.
    MemoryCgroup,
    Nsenter,
    /// ps, free.
    Procps,
    /// Limits of a process that runs.
    Prlimit,
    Python,
    /// A test that is run by root: what is not dumpable shows itself to nobody else.
    RootLooks,
    Script,
    Setpriv,
    /// A fuzzer of system calls.
    StressNg,
    Unshare,
    /// System calls by their numbers.
    X86_64,
}

impl Need {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bc => "bc",
            Self::Gcc => "gcc",
            Self::Git => "git",
            Self::Java => "java",
            Self::Node => "node",
            Self::MemoryCgroup => "a memory cgroup",
            Self::Nsenter => "nsenter",
            Self::Procps => "ps and free",
            Self::Prlimit => "prlimit",
            Self::Python => "/usr/bin/python3",
            Self::RootLooks => "root as the one who runs the tests",
            Self::Script => "script",
            Self::Setpriv => "setpriv",
            Self::StressNg => "stress-ng",
            Self::Unshare => "unshare",
            Self::X86_64 => "an x86_64 processor",
        }
    }

    /// Whether it is there and starts.
    pub fn is_met(self) -> bool {
        match self {
            Self::Bc => starts(&["/usr/bin/bc", "--version"]),
            Self::Gcc => starts(&["/usr/bin/gcc", "--version"]),
            Self::Git => starts(&["/usr/bin/git", "--version"]),
            Self::Java => starts(&["/usr/bin/java", "-version"]),
            Self::Node => starts(&["/usr/bin/node", "--version"]),
            Self::MemoryCgroup => {
                let mounted = |path| std::path::Path::new("/sys/fs/cgroup").join(path).exists();
                mounted("memory/cgroup.procs") || mounted("cgroup.subtree_control")
            }
            Self::Nsenter => starts(&["nsenter", "--version"]),
            Self::Procps => starts(&["ps", "--version"]) && starts(&["free", "--version"]),
            Self::Prlimit => starts(&["prlimit", "--version"]),
            Self::Python => starts(&["/usr/bin/python3", "-c", "import ctypes"]),
            Self::RootLooks => nix::unistd::geteuid().is_root(),
            Self::Script => starts(&["script", "--version"]),
            Self::Setpriv => starts(&["setpriv", "--version"]),
            Self::StressNg => starts(&["stress-ng", "--version"]),
            Self::Unshare => starts(&["unshare", "--user", "true"]),
            Self::X86_64 => cfg!(target_arch = "x86_64"),
        }
    }
}

fn starts(argv: &[&str]) -> bool {
    let Some((program, arguments)) = argv.split_first() else { return false };
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", PATH);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
