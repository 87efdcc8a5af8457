//! Network namespaces that cells use one after the other.
//!
//! A network namespace costs more than the rest of a cell's namespaces. One in which no program ever
//! made a socket has nothing of the cell that used it, because a process without a socket and without
//! a capability over the namespace cannot change it. So such a namespace is used again:
//!
//! - A child of the supervisor makes it ([`make`]), in a user namespace that has no process
//!   afterwards, and no id. So no process of a cell has authority over it, nor owns its files in
//!   `/proc/PID/net`, whose modes would outlive the process that changes them.
//! - The payload's filter asks init about each call that makes a socket ([`note_sockets`]). Init sets
//!   a note, in memory that the supervisor reads, before it lets the kernel execute the first one.
//!   The decision depends on integers alone.
//! - The supervisor does not believe the note alone: the kernel must count no socket in the namespace
//!   ([`has_no_socket`]).
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

use super::proc_files::read_all;
use super::{At, Design, Shared, Step, StepFailed, buffers};
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
    /// Calls that make a socket and that the profile allows. The filter notifies init of each.
    noted: Vec<NotedCall>,
    /// The payload's filter without these notifications, for shells of sessions.
    pub plain_filter: Vec<Instruction>,
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
    /// Plans the reuse for cells of `profile`, and changes its verdicts; `None` for cells with egress, whose links are
    /// made by each cell.
    #[must_use]
    pub fn new(
        profile: &Profile,
        memory: MemoryHold,
        verdicts: &mut BTreeMap<u32, Verdict>,
        plain_filter: Vec<Instruction>,
    ) -> Option<Self> {
        let class = profile.egress.class;
        let has_internet = profile.families.iter().any(|family| *family != Family::Unix);
        let is_bounded = buffers::are_unheld(profile, memory);
        (!class.has_egress()).then(|| Self {
            kind: NetworkKind { class, has_internet, is_bounded },
            noted: note_sockets(verdicts),
            plain_filter,
            habit: Rc::default(),
        })
    }

    /// Returns true if the profile allows this call, and it makes a socket.
    pub(crate) fn notes(&self, call: &Notification) -> bool {
        let is_call = |noted: &&NotedCall| noted.number == call.number;
        self.noted.iter().find(is_call).is_some_and(|noted| noted.verdict.allows(&call.arguments))
    }
}

/// Returns true if a call can make a socket, whatever its arguments are.
pub(crate) fn can_make_socket(call: u32) -> bool {
    MAKING.iter().any(|name| number(name) == Some(call))
}

/// Changes `verdicts` so that the filter notifies the listener of each call that makes a socket. Returns the calls
/// that were allowed.
fn note_sockets(verdicts: &mut BTreeMap<u32, Verdict>) -> Vec<NotedCall> {
    let mut noted = Vec::new();
    for number in MAKING.iter().filter_map(|name| number(name)) {
        match verdicts.remove(&number) {
            // The listener is notified of a call without a verdict.
            Some(verdict @ (Verdict::Allow | Verdict::AllowIf(_))) => {
                noted.push(NotedCall { number, verdict });
            }
            Some(Verdict::AllowOrProbe(any, probe)) => {
                verdicts.insert(number, Verdict::AllowOrProbe(Vec::new(), probe));
                noted.push(NotedCall { number, verdict: Verdict::AllowIf(any) });
            }
            Some(verdict @ (Verdict::Errno(_) | Verdict::Answered)) => {
                verdicts.insert(number, verdict);
            }
            None => {}
        }
    }
    noted
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

/// Makes a namespace for cells of `design`: its loopback is up, and the memory of its sockets bounded.
///
/// # Errors
/// The errno of the step that failed: ENOSPC if no more namespaces may be made.
pub fn make(design: &Design, shared: &Shared, stack: &mut Stack) -> Result<OwnedFd> {
    let mut made = Err(Errno::ECHILD);
    run_in_new_network(stack, || {
        made =
            prepare(design, shared, &shared.proc).map_err(|failed| failed.errno).and_then(|()| {
                let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
                openat(&shared.proc, "self/ns/net", flags, Mode::empty())
            });
    })?;
    made
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

/// Returns true if the kernel counts no socket in the network namespace of this process, which reads its own files in
/// the procfs `proc`.
///
/// # Errors
/// The files cannot be read.
pub fn has_no_socket(proc: impl AsFd) -> Result<bool> {
    let counts = read_all(&proc, "self/net/sockstat")?;
    let unix = read_all(&proc, "self/net/unix")?;
    Ok(are_zero(&counts) && unix.lines().count() == 1)
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
    fn every_socket_that_a_profile_allows_is_noted_and_no_other() {
        let [socket, pair] = MAKING.map(|name| number(name).unwrap_or_default());
        let family = |family| vec![vec![Test::low(0, Op::Eq, family)]];
        let probe = || Probe { when: family(16), errno: libc::EAFNOSUPPORT };
        let mut verdicts = BTreeMap::from([
            (socket, Verdict::AllowOrProbe(family(1), probe())),
            (pair, Verdict::AllowIf(family(1))),
            (0, Verdict::Allow),
        ]);
        let noted = note_sockets(&mut verdicts);
        let allowed = |call: u32, family: u64| {
            let verdict = noted.iter().find(|noted| noted.number == call);
            verdict.is_some_and(|noted| noted.verdict.allows(&[family, 1, 0, 0, 0, 0]))
        };
        assert!(allowed(socket, 1) && allowed(pair, 1));
        assert!(!allowed(socket, 2) && !allowed(pair, 2) && !allowed(0, 1));
        // The filter allows neither, and gives the same quiet answer.
        let left = verdicts.get(&socket).expect("a verdict");
        assert!(!left.allows(&[1, 1, 0, 0, 0, 0]));
        assert_eq!(left.quiet(&[16, 3, 0, 0, 0, 0]), Some(libc::EAFNOSUPPORT));
        assert!(!verdicts.contains_key(&pair) && verdicts.contains_key(&0));
    }

    #[test]
    fn a_refused_call_stays_refused() {
        let pair = number("socketpair").unwrap_or_default();
        let mut verdicts = BTreeMap::from([(pair, Verdict::Errno(1))]);
        assert!(note_sockets(&mut verdicts).is_empty());
        assert_eq!(verdicts.get(&pair), Some(&Verdict::Errno(1)));
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
