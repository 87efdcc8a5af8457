//! How the kernel handles a process that crashes (core(5)), and the limit that keeps it from
//! starting a program.
//!
//! If `kernel.core_pattern` is a pipe, the kernel starts the program behind it as root, outside all
//! namespaces, and feeds it the memory of the process. Of all values of RLIMIT_CORE only 1 prevents
//! that; 0 does not.

use serde::{Deserialize, Serialize};

use crate::profile::condition::{All, Op, Probe, Test, Verdict};

/// Soft and hard RLIMIT_CORE of this program's processes and of cells. No core file is written
/// either, as a core file is longer than 1 byte.
pub const LIMIT: u64 = 1;

/// The kernel's number of RLIMIT_CORE.
const CORE: u32 = 4;

/// Returns alternatives that allow prlimit64(2) except for setting RLIMIT_CORE; `resource` is an
/// `unsigned int`.
#[must_use]
pub fn prlimit64_but_cores() -> Vec<All> {
    vec![vec![Test::low(1, Op::Ne, CORE)], vec![Test::full(2, Op::Eq, 0)]]
}

/// Returns alternatives that allow setrlimit(2) except for setting RLIMIT_CORE.
#[must_use]
pub fn setrlimit_but_cores() -> Vec<All> {
    vec![vec![Test::low(0, Op::Ne, CORE)]]
}

/// Allows prlimit64(2) for the caller's own limits. Setting RLIMIT_CORE returns 0 without effect,
/// so that programs which do so continue. If the old limit is requested at the same time, the call
/// is refused, as an answer would have to be written.
pub(crate) fn prlimit64() -> Verdict {
    let caller = Test::low(0, Op::Eq, 0);
    let allowed = prlimit64_but_cores().into_iter().map(|mut all| {
        all.push(caller);
        all
    });
    let set = vec![
        caller,
        Test::low(1, Op::Eq, CORE),
        Test::full(2, Op::Ne, 0),
        Test::full(3, Op::Eq, 0),
    ];
    Verdict::AllowOrProbe(allowed.collect(), Probe { when: vec![set], errno: 0 })
}

/// Allows setrlimit(2); setting RLIMIT_CORE returns 0 without effect.
pub(crate) fn setrlimit() -> Verdict {
    let set = vec![Test::low(0, Op::Eq, CORE)];
    Verdict::AllowOrProbe(setrlimit_but_cores(), Probe { when: vec![set], errno: 0 })
}

/// Receiver of a crashed process's memory, by `kernel.core_pattern`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoreHandler {
    /// A file, which is not written with a limit of 0 or 1.
    File,
    /// A program that the kernel starts, unless the limit is 1.
    Pipe,
    /// A socket that the kernel connects to, whatever the limit is (Linux 6.16 and later).
    Socket,
    /// The pattern could not be read.
    Unknown,
}

/// Why the limit does not help against a [`CoreHandler::Socket`], as shown in receipts, with the
/// remedy.
pub(crate) const SOCKET_NOTE: &str = "a crash in a cell is handed to the host's core handler: kernel.core_pattern is a socket, which heeds \
     no limit (as root: sysctl -w kernel.core_pattern=core, or a pattern that begins with `|`)";

/// Remedy for a [`CoreHandler::Socket`].
pub const SOCKET_REMEDY: &str = "as root: sysctl -w kernel.core_pattern=core, or a pattern that begins with `|`, which heeds the limit";

/// Remedy if the hard limit is 0, which an unprivileged process cannot raise.
pub const HARD_LIMIT_REMEDY: &str = "start cofferdam with a hard limit of core files of 1 or more: LimitCORE=1 in a systemd unit, \
     `USER hard core 1` in /etc/security/limits.conf, --ulimit core=1 for a container, or as root \
     sysctl -w kernel.core_pattern=core";

impl CoreHandler {
    /// Reads the text of `kernel.core_pattern`.
    #[must_use]
    pub fn of_pattern(pattern: &[u8]) -> Self {
        match pattern.first() {
            Some(b'|') => Self::Pipe,
            // Before Linux 6.16 this would be a file name, which is not used in practice.
            Some(b'@') => Self::Socket,
            Some(_) | None => Self::File,
        }
    }

    /// Returns true if a process with this soft and hard limit may crash without the kernel
    /// starting a program.
    ///
    /// Against a [`CoreHandler::Socket`] no limit helps; 1 is right as soon as the pattern changes.
    #[must_use]
    pub fn may_have(self, soft: u64, hard: u64) -> bool {
        (soft, hard) == (LIMIT, LIMIT) || ((soft, hard) == (0, 0) && self == Self::File)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_character_of_a_pattern_decides_the_handler() {
        let of = CoreHandler::of_pattern;
        assert_eq!(of(b"core\n"), CoreHandler::File);
        assert_eq!(of(b"\n"), CoreHandler::File);
        assert_eq!(of(b""), CoreHandler::File);
        assert_eq!(of(b"/var/crash/%e|\n"), CoreHandler::File);
        assert_eq!(of(b"|/usr/lib/systemd/systemd-coredump %P\n"), CoreHandler::Pipe);
        assert_eq!(of(b"@/run/systemd/coredump\n"), CoreHandler::Socket);
        assert_eq!(of(b"@@/run/systemd/coredump\n"), CoreHandler::Socket);
    }

    #[test]
    fn the_limit_is_1_or_where_a_file_would_be_written_0() {
        let all = [CoreHandler::File, CoreHandler::Pipe, CoreHandler::Socket, CoreHandler::Unknown];
        for handler in all {
            assert!(handler.may_have(1, 1), "{handler:?}");
            assert_eq!(handler.may_have(0, 0), handler == CoreHandler::File, "{handler:?}");
            for (soft, hard) in [(0, 1), (0, 2), (1, 2), (2, 2), (u64::MAX, u64::MAX)] {
                assert!(!handler.may_have(soft, hard), "{handler:?} {soft} {hard}");
            }
        }
    }

    #[test]
    fn a_new_limit_of_core_files_is_answered_without_effect() {
        let high = 0xdead_0000_0000_0000;
        for core in [4, high | 4] {
            let call = |new, old| [high, core, new, old, 0, 0];
            let answer =
                |arguments| (prlimit64().allows(&arguments), prlimit64().quiet(&arguments));
            assert_eq!(answer(call(0, 0)), (true, None));
            assert_eq!(answer(call(0, 8)), (true, None), "a look");
            assert_eq!(answer(call(8, 0)), (false, Some(0)));
            assert_eq!(answer(call(high, 0)), (false, Some(0)), "a pointer has all 64 bits");
            assert_eq!(answer(call(8, 8)), (false, None), "denied and counted");
            assert_eq!(answer(call(8, high)), (false, None));
            assert_eq!(answer([1, core, 8, 0, 0, 0]), (false, None), "of another process");
            let arguments = [core, 8, 0, 0, 0, 0];
            assert_eq!(
                (setrlimit().allows(&arguments), setrlimit().quiet(&arguments)),
                (false, Some(0))
            );
        }
        for other in [3, 5, 7, 1 << 32] {
            assert!(prlimit64().allows(&[0, other, 8, 8, 0, 0]), "{other}");
            assert!(setrlimit().allows(&[other, 8, 0, 0, 0, 0]), "{other}");
        }
    }
}
