//! Network namespaces that cells use one after the other.
//!
//! A network namespace costs more than the rest of a cell's namespaces. One in which no program ever
//! made a socket has nothing of the cell that used it, because a process without a socket and without
//! a capability over the namespace cannot change it. So such a namespace is used again:
//!
//! - A child of the supervisor makes it ([`make`]), in a user namespace that has no process
//!   afterwards, and no id. So no process of a cell has authority over it, nor owns its files in
//!   `/proc/PID/net`, whose modes would outlive the process that changes them.
//! - The payload's filter asks init about each call that makes a socket ([`Reuse`]). Init sets
//!   a note, in memory that the supervisor reads, before it lets the kernel execute the first one.
//!   The decision depends on integers alone.
//! - The supervisor does not believe the note alone: the kernel must count no socket in the namespace
//!   ([`SocketCounts`]).
//!
//! There is no other way to a first socket: accept(2) needs one that listens, a message brings
//! one that another process of the cell has, and neither io_uring nor pidfd_getfd(2) can be allowed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::uio::pread;

use super::{At, Design, Shared, Step, StepFailed, buffers, seccomp};
use model::egress::NetworkClass;
use model::profile::calls::number;
use model::profile::condition::Verdict;
use model::profile::{Family, Profile};
use model::receipt::MemoryHold;
use sys::bpf::Instruction;
use sys::note::Note;
use sys::notify::Notification;
use sys::sharing::{Stack, run_in_new_network};
use sys::{Result, net};

/// The calls that make a socket where there was none.
const MAKING: [&str; 2] = ["socket", "socketpair"];

/// Cells whose last [`SPENT_IN_ROW`] namespaces were all spent get fresh ones for [`SKIPPED`] cells.
const SPENT_IN_ROW: u8 = 4;
const SKIPPED: u8 = 8;

/// How the cells of a design use namespaces again.
#[derive(Debug, Clone)]
pub struct Reuse {
    pub kind: NetworkKind,
    /// Calls that make a socket and that the profile allows with some arguments.
    noted: Vec<NotedCall>,
    /// The payload's filter, which notifies init of each of these calls; `None` without such calls.
    filter: Option<Vec<Instruction>>,
    pub habit: Rc<Habit>,
}

/// Properties of a namespace that all its cells must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkKind {
    class: NetworkClass,
    has_internet: bool,
    /// True if the memory of its sockets is bounded.
    is_bounded: bool,
}

/// A call that makes a socket, and the profile's conditions on its arguments.
#[derive(Debug, Clone)]
struct NotedCall {
    number: u32,
    verdict: Verdict,
}

/// Answer to a call that can make a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketAnswer {
    /// The profile allows it.
    Allowed,
    /// The profile answers it with this errno, without counting it.
    Quiet(Errno),
    /// Another table decides, or the call is refused.
    Others,
}

/// Whether programs of a design make sockets, as far as its last cells show.
#[derive(Debug, Default)]
pub struct Habit {
    spent_in_row: Cell<u8>,
    skipped: Cell<u8>,
}

/// The namespace of a cell that is being cloned into it.
#[derive(Debug, Clone, Copy)]
pub struct LentNetwork<'a> {
    /// Set by init before a program makes a socket.
    pub note: &'a Note,
    /// Socket for questions for names, in cells where no name resolves.
    pub questions: Option<BorrowedFd<'a>>,
}

impl Reuse {
    /// Plans the reuse for cells of `profile`, which have these verdicts and this filter without it. `None` for cells with
    /// egress, each of which makes its link.
    #[must_use]
    pub fn new(
        profile: &Profile,
        memory: MemoryHold,
        verdicts: &BTreeMap<u32, Verdict>,
        filter: &[Instruction],
    ) -> Option<Self> {
        let class = profile.egress.class;
        let has_internet = profile.families.iter().any(|family| *family != Family::Unix);
        let is_bounded = buffers::are_unheld(profile, memory);
        let noted = noted(verdicts);
        let numbers: Vec<u32> = noted.iter().map(|call| call.number).collect();
        (!class.has_egress()).then(|| Self {
            kind: NetworkKind { class, has_internet, is_bounded },
            filter: (!noted.is_empty()).then(|| seccomp::notifying(&numbers, filter)),
            noted,
            habit: Rc::default(),
        })
    }

    /// Returns the filter of payloads, given that of cells without reuse.
    #[must_use]
    pub fn filter<'f>(&'f self, plain: &'f [Instruction]) -> &'f [Instruction] {
        self.filter.as_deref().unwrap_or(plain)
    }

    /// Answers a call by the verdict that the filter would have applied.
    pub(crate) fn answer(&self, call: &Notification) -> SocketAnswer {
        let noted = self.noted.iter().find(|noted| noted.number == call.number);
        let Some(NotedCall { verdict, .. }) = noted else { return SocketAnswer::Others };
        match verdict.quiet(&call.arguments) {
            _ if verdict.allows(&call.arguments) => SocketAnswer::Allowed,
            Some(errno) => SocketAnswer::Quiet(Errno::from_raw(errno)),
            None => SocketAnswer::Others,
        }
    }
}

/// Returns true if a call can make a socket, whatever its arguments are.
pub(crate) fn can_make_socket(call: u32) -> bool {
    MAKING.iter().any(|name| number(name) == Some(call))
}

/// Returns the calls that make a socket and have a verdict that allows some of them.
fn noted(verdicts: &BTreeMap<u32, Verdict>) -> Vec<NotedCall> {
    let calls = MAKING.iter().filter_map(|name| {
        let number = number(name)?;
        Some(NotedCall { number, verdict: verdicts.get(&number)?.clone() })
    });
    let allows = |call: &NotedCall| match &call.verdict {
        Verdict::Allow => true,
        Verdict::AllowIf(any) | Verdict::AllowOrProbe(any, _) => !any.is_empty(),
        Verdict::Errno(_) | Verdict::Answered => false,
    };
    calls.filter(allows).collect()
}

impl Habit {
    /// Returns true if the next cell should have a namespace that can be used again.
    pub fn take_turn(&self) -> bool {
        let skipped = self.skipped.get();
        self.skipped.set(skipped.saturating_sub(1));
        skipped == 0
    }

    /// Gives the next cells fresh namespaces.
    pub fn skip(&self) {
        self.skipped.set(SKIPPED);
    }

    /// Records whether a cell has made sockets.
    pub fn record(&self, is_spent: bool) {
        let in_row = if is_spent { self.spent_in_row.get().saturating_add(1) } else { 0 };
        self.spent_in_row.set(in_row);
        self.skipped.set(if in_row < SPENT_IN_ROW { 0 } else { SKIPPED });
    }
}

/// A namespace that was made for cells.
#[derive(Debug)]
pub struct MadeNetwork {
    pub namespace: OwnedFd,
    pub counts: SocketCounts,
}

/// Files in which the kernel counts the sockets of a network namespace (proc_pid_net(5)).
#[derive(Debug)]
pub struct SocketCounts {
    by_protocol: OwnedFd,
    /// A line for each socket of unix.
    unix: OwnedFd,
}

/// Makes a namespace for cells of `design`: its loopback is up, and the memory of its sockets bounded.
///
/// # Errors
/// The errno of the step that failed: ENOSPC if no more namespaces may be made.
pub fn make(design: &Design, shared: &Shared, stack: &mut Stack) -> Result<MadeNetwork> {
    let mut made = Err(Errno::ECHILD);
    run_in_new_network(stack, || made = prepare_and_open(design, shared))?;
    made
}

/// Prepares the caller's network namespace, and opens it.
fn prepare_and_open(design: &Design, shared: &Shared) -> Result<MadeNetwork> {
    prepare(design, shared, &shared.proc).map_err(|failed| failed.errno)?;
    let open =
        |path: &str| openat(&shared.proc, path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
    let by_protocol = open("self/net/sockstat")?;
    let counts = SocketCounts { by_protocol, unix: open("self/net/unix")? };
    Ok(MadeNetwork { namespace: open("self/ns/net")?, counts })
}

/// Brings up the loopback of the caller's network namespace, and bounds its connections unless a control group counts
/// their memory. Needs CAP_NET_ADMIN there.
pub(crate) fn prepare(
    design: &Design,
    shared: &Shared,
    proc: impl AsFd,
) -> std::result::Result<(), StepFailed> {
    match &design.loopback {
        Some(loopback) => loopback.make().at(Step::Loopback)?,
        None if design.profile.egress.class.has_loopback() => {
            net::loopback_up().at(Step::Loopback)?;
        }
        None => {}
    }
    if buffers::are_unheld(&design.profile, shared.memory) {
        buffers::bound(proc, shared.proc_kind).at(Step::Buffers)?;
    }
    Ok(())
}

impl SocketCounts {
    /// Returns true if the kernel counts no socket.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn are_zero(&self) -> Result<bool> {
        let mut room = [0; 2048];
        if !are_zero(start_of(&self.by_protocol, &mut room)?) {
            return Ok(false);
        }
        // Only the header: the kernel ends a read early where the file ends.
        Ok(start_of(&self.unix, &mut room)?.lines().count() == 1)
    }
}

/// Reads the start of a file.
fn start_of<'r>(file: &OwnedFd, room: &'r mut [u8]) -> Result<&'r str> {
    let length = pread(file, room, 0)?;
    let text = room.get(..length).ok_or(Errno::EPROTO)?;
    std::str::from_utf8(text).map_err(|_| Errno::EILSEQ)
}

/// Returns true if the counts of a namespace are zero. Those of TCP's orphans and memory are the machine's. A file of
/// another form counts as not zero.
fn are_zero(sockstat: &str) -> bool {
    const OF_THE_MACHINE: [&str; 3] = ["orphan", "alloc", "mem"];
    let mut counts_all = false;
    for line in sockstat.lines() {
        let Some((protocol, counts)) = line.split_once(": ") else { return false };
        let words: Vec<&str> = counts.split_ascii_whitespace().collect();
        let (pairs, rest) = words.as_chunks::<2>();
        let is_zero = |[name, count]: &[&str; 2]| *count == "0" || OF_THE_MACHINE.contains(name);
        if !rest.is_empty() || !pairs.iter().all(is_zero) {
            return false;
        }
        counts_all |= protocol == "sockets" && pairs.iter().any(|[name, _]| *name == "used");
    }
    counts_all
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::profile::condition::{Op, Probe, Test};

    const UNUSED: &str = "sockets: used 0\nTCP: inuse 0 orphan 3 tw 0 alloc 7 mem 153\n\
        UDP: inuse 0 mem 11\nUDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n";

    #[test]
    fn a_namespace_is_unused_only_if_each_of_its_counts_is_zero() {
        assert!(are_zero(UNUSED));
        for (before, after) in [
            ("used 0", "used 1"),
            ("TCP: inuse 0", "TCP: inuse 1"),
            ("tw 0", "tw 1"),
            ("UDP: inuse 0", "UDP: inuse 2"),
            ("RAW: inuse 0", "RAW: inuse 1"),
            ("memory 0", "memory 4096"),
            ("used 0", "used"),
            ("sockets: used 0\n", ""),
            ("sockets: used 0", "sockets used 0"),
        ] {
            assert!(!are_zero(&UNUSED.replace(before, after)), "{after}");
        }
        assert!(!are_zero(""));
    }

    #[test]
    fn a_call_is_answered_as_its_verdict_reads() {
        let [socket, pair] = MAKING.map(|name| number(name).unwrap_or_default());
        let family = |family| vec![vec![Test::low(0, Op::Eq, family)]];
        let probe = Probe { when: family(16), errno: libc::EAFNOSUPPORT };
        let verdicts = BTreeMap::from([
            (socket, Verdict::AllowOrProbe(family(1), probe)),
            (pair, Verdict::AllowIf(family(1))),
            (0, Verdict::Allow),
        ]);
        let noted = noted(&verdicts);
        assert_eq!(noted.iter().map(|call| call.number).collect::<Vec<_>>(), [socket, pair]);
        for call in [Verdict::Errno(1), Verdict::Answered, Verdict::AllowIf(Vec::new())] {
            assert!(super::noted(&BTreeMap::from([(pair, call)])).is_empty());
        }
    }

    #[test]
    fn a_design_whose_programs_make_sockets_tries_again_now_and_then() {
        let habit = Habit::default();
        for _ in 0..SPENT_IN_ROW {
            assert!(habit.take_turn());
            habit.record(true);
        }
        let turns: Vec<bool> = (0..=SKIPPED).map(|_| habit.take_turn()).collect();
        assert_eq!(turns.iter().filter(|turn| **turn).count(), 1);
        assert_eq!(turns.last(), Some(&true));
        habit.record(true);
        assert!(!habit.take_turn());
        habit.record(false);
        assert!(habit.take_turn());
    }
}
