//! Compiles system call filters: from verdicts by number to a BPF program of the kernel
//! (seccomp(2)).
//!
//! Compiled here for two reasons. A balanced tree of comparisons loads in a third of the time of a
//! linear list and decides in a tenth of the steps (`shorten` halves it again). And no crate
//! supports user notification, which is needed to count denials. Programs without a listener are
//! loaded by seccompiler.

mod shorten;

use std::collections::BTreeMap;

use nix::errno::Errno;
use syscalls::Sysno;

use model::profile::Profile;
use model::profile::condition::{Op, Probe, Test, Verdict, Width};
use model::profile::floor;
use model::receipt::MemoryHold;
use sys::bpf::Instruction;

/// Calls that the hand-over needs between loading the filter and the exec: receiving the job,
/// placing its streams, lowering limits. All are harmless in the program, which has no descriptors
/// except those it was given.
const HANDOVER: [Sysno; 13] = [
    Sysno::recvmsg,
    Sysno::sendmsg,
    Sysno::dup3,
    Sysno::fcntl,
    Sysno::close,
    Sysno::close_range,
    Sysno::lseek,
    Sysno::pread64,
    Sysno::prlimit64,
    Sysno::chdir,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigaction,
    Sysno::exit_group,
];

/// The same calls under older names.
#[cfg(target_arch = "x86_64")]
const HANDOVER_OLDER: [Sysno; 1] = [Sysno::dup2];
#[cfg(not(target_arch = "x86_64"))]
const HANDOVER_OLDER: [Sysno; 0] = [];

/// newfstatat, which has the C library's name in the table of aarch64.
#[cfg(target_arch = "x86_64")]
pub const FSTATAT: Sysno = Sysno::newfstatat;
#[cfg(target_arch = "aarch64")]
pub const FSTATAT: Sysno = Sysno::fstatat;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;
/// Numbers from here on belong to the x32 ABI, which has a separate call table.
const X32: u32 = 0x4000_0000;
/// Actions for calls of another architecture, and of the x32 table.
const FOREIGN: (Action, Action) = (Action::Errno(libc::ENOSYS), Action::Errno(libc::ENOSYS));

// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

// Opcodes of classic BPF that seccomp allows (linux/bpf_common.h).
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Actions of a filter: SECCOMP_RET_*.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allow,
    Errno(i32),
    /// Notify the listener; without one the kernel returns ENOSYS.
    Notify,
    /// End the process.
    Kill,
}

impl Action {
    /// Returns the action's value in a BPF return instruction.
    pub fn value(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Notify => 0x7fc0_0000,
            Self::Kill => 0x8000_0000,
            Self::Errno(errno) => 0x0005_0000 | (errno.unsigned_abs() & 0xffff),
        }
    }
}

/// Compiles the filter of a payload. Calls without a verdict are denied and counted.
///
/// A call in `recorded` notifies the listener if its verdict allows it. Otherwise it is refused
/// without being counted. So the listener may let the kernel execute every such call that it is
/// notified of.
pub fn payload_filter(
    verdicts: &BTreeMap<u32, Verdict>,
    recorded: &[u32],
) -> Result<Vec<Instruction>, Errno> {
    assemble(&ranges(verdicts, recorded, Action::Notify), Action::Notify, FOREIGN)
}

/// Puts a few instructions before a filter, by which it notifies the listener of these calls whatever their arguments are.
/// Numbers of other architectures and of the x32 table are left to the filter.
pub(crate) fn notifying(calls: &[u32], filter: &[Instruction]) -> Vec<Instruction> {
    let count = u8::try_from(calls.len()).unwrap_or(u8::MAX);
    let mut program = vec![
        step(LOAD, ARCHITECTURE),
        // Over the load, the comparisons and the return.
        branch(IF_EQUAL, ARCH, 0, count.saturating_add(2)),
        step(LOAD, NUMBER),
    ];
    for (call, after) in calls.iter().zip((0..count).rev()) {
        let skipped = u8::from(after == 0);
        program.push(branch(IF_EQUAL, *call, after, skipped));
    }
    program.push(returning(Action::Notify));
    program.extend_from_slice(filter);
    program
}

/// Returns the verdicts of a payload's filter by number: those of the profile within the floor, and
/// those of the hand-over.
pub fn payload_verdicts(profile: &Profile, memory: MemoryHold) -> BTreeMap<u32, Verdict> {
    let mut verdicts = floor::verdicts(profile, memory);
    for call in HANDOVER.into_iter().chain(HANDOVER_OLDER) {
        // The floor's condition applies to listed and unlisted calls.
        let verdict = || floor::conditioned(call.name(), memory);
        verdicts.entry(number(call)).or_insert_with(verdict);
    }
    verdicts
}

/// Returns the numbers that a filter allows, with or without conditions.
pub fn allowed(verdicts: &BTreeMap<u32, Verdict>) -> impl Iterator<Item = u32> {
    verdicts.iter().filter_map(|(number, verdict)| match verdict {
        Verdict::Allow | Verdict::AllowIf(_) | Verdict::AllowOrProbe(..) => Some(*number),
        Verdict::Errno(_) | Verdict::Answered => None,
    })
}

/// Returns the number of a call on this architecture.
pub fn number(call: Sysno) -> u32 {
    u32::try_from(call.id()).unwrap_or(u32::MAX)
}

/// Calls that init needs after its set-up: to wait, answer, reap, and watch memory.
const INIT: [Sysno; 33] = [
    Sysno::ppoll,
    Sysno::recvmsg,
    Sysno::sendmsg,
    Sysno::close_range,
    Sysno::close,
    Sysno::ioctl,
    Sysno::signalfd4,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigreturn,
    Sysno::rt_sigaction,
    Sysno::sigaltstack,
    Sysno::read,
    Sysno::wait4,
    Sysno::kill,
    Sysno::prctl,
    Sysno::clock_gettime,
    Sysno::openat,
    // Opens directories of the workspace, across neither links nor mounts.
    Sysno::openat2,
    Sysno::getdents64,
    Sysno::fstat,
    FSTATAT,
    Sysno::statfs,
    Sysno::fcntl,
    Sysno::brk,
    Sysno::mmap,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::exit_group,
    Sysno::sched_yield,
    Sysno::restart_syscall,
    // Writes answers to sysinfo(2) into the memory of the caller, a process of this cell.
    Sysno::process_vm_writev,
    // Counts the pages of System V segments.
    Sysno::shmctl,
    // Checks whether two processes share their memory, as between vfork(2) and exec.
    Sysno::kcmp,
];

/// Returns the calls of cells' inits, including those for recording.
pub fn init_calls() -> impl Iterator<Item = Sysno> {
    INIT.into_iter().chain(RECORDING)
}

/// Additional system calls for recording the paths of a command (`record`).
pub const RECORDING: [Sysno; 2] = [Sysno::process_vm_readv, Sysno::write];

/// Recording of the paths that commands name: enabled only for `profile learn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    Off,
    On,
}

/// Compiles the filter of cell inits, which allows the calls in `more` too. No rule notifies, because
/// init is the process that answers notifications.
pub fn init_filter(recording: Recording, more: &[Sysno]) -> Result<Vec<Instruction>, Errno> {
    let mut calls: Vec<Sysno> = INIT.iter().chain(more).copied().collect();
    match recording {
        Recording::On => calls.extend(RECORDING),
        Recording::Off => {}
    }
    // The older name of the same call, on architectures that have it.
    #[cfg(target_arch = "x86_64")]
    calls.push(Sysno::poll);
    let verdicts = calls.into_iter().map(|call| (number(call), init_verdict(call))).collect();
    compile(&verdicts, Action::Errno(libc::EPERM))
}

/// Returns the verdict on a call of an init. The only sockets that an init makes are those of route
/// netlink, with a filter that stays, and it sets the sizes of sockets (`mediate::interfaces`).
fn init_verdict(call: Sysno) -> Verdict {
    let is = |argument, value: i32| Test::low(argument, Op::Eq, value.cast_unsigned());
    if call == Sysno::socket {
        let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).cast_unsigned();
        let kinds = [libc::SOCK_RAW, libc::SOCK_DGRAM].map(|kind| {
            let kind = Test::besides(1, flags, kind.cast_unsigned());
            vec![is(0, libc::AF_NETLINK), kind, is(2, libc::NETLINK_ROUTE)]
        });
        return Verdict::AllowIf(kinds.into());
    }
    if call == Sysno::setsockopt {
        let options =
            [libc::SO_ATTACH_FILTER, libc::SO_LOCK_FILTER, libc::SO_SNDBUF, libc::SO_RCVBUF];
        let any = options.map(|option| vec![is(1, libc::SOL_SOCKET), is(2, option)]);
        return Verdict::AllowIf(any.into());
    }
    Verdict::Allow
}

/// Compiles verdicts; numbers without a verdict get `otherwise`.
///
/// # Errors
/// E2BIG: the program exceeds the kernel's maximum length.
pub fn compile(
    verdicts: &BTreeMap<u32, Verdict>,
    otherwise: Action,
) -> Result<Vec<Instruction>, Errno> {
    assemble(&ranges(verdicts, &[], otherwise), otherwise, FOREIGN)
}

/// Compiles a filter like [`compile`], for a process that runs only our code: code of another
/// architecture kills it. Calls of the x32 table get `otherwise`.
///
/// # Errors
/// The errors of [`compile`].
pub fn compile_for_ours(
    verdicts: &BTreeMap<u32, Verdict>,
    otherwise: Action,
) -> Result<Vec<Instruction>, Errno> {
    assemble(&ranges(verdicts, &[], otherwise), otherwise, (Action::Kill, otherwise))
}

fn assemble(
    ranges: &[Range<'_>],
    otherwise: Action,
    foreign: (Action, Action),
) -> Result<Vec<Instruction>, Errno> {
    const MAX_INSTRUCTIONS: usize = 4096;
    let (foreign, x32) = foreign;
    let mut program = vec![
        step(LOAD, ARCHITECTURE),
        branch(IF_EQUAL, ARCH, 1, 0),
        returning(foreign),
        step(LOAD, NUMBER),
        branch(IF_GREATER_OR_EQUAL, X32, 0, 1),
        returning(x32),
    ];
    program.extend(tree(ranges, otherwise));
    let program = shorten::shorten(&program).ok_or(Errno::EINVAL)?;
    if program.len() > MAX_INSTRUCTIONS { Err(Errno::E2BIG) } else { Ok(program) }
}

/// Consecutive numbers with the same verdict, from `first` to the start of the next range.
struct Range<'a> {
    first: u32,
    leaf: Leaf<'a>,
}

#[derive(Clone, Copy, PartialEq)]
enum Leaf<'a> {
    Give(Action),
    /// Allow if one of the alternatives holds; otherwise the probe's errno, if its condition holds.
    When(&'a [Vec<Test>], Option<&'a Probe>),
    /// Notify the listener if one of the alternatives holds.
    Ask(&'a [Vec<Test>]),
}

fn ranges<'v>(
    verdicts: &'v BTreeMap<u32, Verdict>,
    recorded: &[u32],
    otherwise: Action,
) -> Vec<Range<'v>> {
    let mut ranges: Vec<Range<'_>> = Vec::new();
    let mut next = 0;
    for (number, verdict) in verdicts {
        let leaf = match verdict {
            Verdict::Allow if recorded.contains(number) => Leaf::Give(Action::Notify),
            Verdict::AllowIf(alternatives) if recorded.contains(number) => Leaf::Ask(alternatives),
            Verdict::Allow => Leaf::Give(Action::Allow),
            Verdict::Errno(errno) => Leaf::Give(Action::Errno(*errno)),
            Verdict::Answered => Leaf::Give(Action::Notify),
            Verdict::AllowIf(alternatives) => Leaf::When(alternatives, None),
            Verdict::AllowOrProbe(alternatives, probe) => Leaf::When(alternatives, Some(probe)),
        };
        if *number > next {
            push(&mut ranges, next, Leaf::Give(otherwise));
        }
        push(&mut ranges, *number, leaf);
        next = number.saturating_add(1);
    }
    push(&mut ranges, next, Leaf::Give(otherwise));
    ranges
}

/// Adds a range, unless it continues the previous one.
fn push<'a>(ranges: &mut Vec<Range<'a>>, first: u32, leaf: Leaf<'a>) {
    if ranges.last().is_none_or(|last| last.leaf != leaf) {
        ranges.push(Range { first, leaf });
    }
}

/// Builds a balanced tree of comparisons over `ranges`; the accumulator holds the number.
fn tree(ranges: &[Range<'_>], otherwise: Action) -> Vec<Instruction> {
    match ranges {
        [] => vec![returning(otherwise)],
        [one] => match one.leaf {
            Leaf::Give(action) => vec![returning(action)],
            Leaf::When(alternatives, probe) => {
                let quiet = probe.iter().flat_map(|probe| {
                    probe.when.iter().map(|tests| (tests, Action::Errno(probe.errno)))
                });
                conditions(with_action(alternatives, Action::Allow).chain(quiet), otherwise)
            }
            Leaf::Ask(alternatives) => {
                conditions(with_action(alternatives, Action::Notify), Action::Errno(libc::EPERM))
            }
        },
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let middle = high.first().map_or(0, |range| range.first);
            let low = tree(low, otherwise);
            // A subtree may be longer than an 8-bit jump reaches: skip it by an absolute jump.
            let mut program =
                vec![branch(IF_GREATER_OR_EQUAL, middle, 0, 1), step(JUMP, length(&low))];
            program.extend(low);
            program.extend(tree(high, otherwise));
            program
        }
    }
}

/// Pairs each alternative with the same action.
fn with_action(
    alternatives: &[Vec<Test>],
    action: Action,
) -> impl Iterator<Item = (&Vec<Test>, Action)> {
    alternatives.iter().map(move |tests| (tests, action))
}

/// Compiles lists of tests with their actions. The first list whose tests all hold decides;
/// `otherwise` if no list does.
fn conditions<'t>(
    cases: impl Iterator<Item = (&'t Vec<Test>, Action)>,
    otherwise: Action,
) -> Vec<Instruction> {
    let mut program = Vec::new();
    for (tests, action) in cases {
        // Built backwards: a failed test jumps over the rest of its list.
        let mut rest = vec![returning(action)];
        for test in tests.iter().rev() {
            let mut block = compare(test);
            block.push(step(JUMP, length(&rest)));
            block.extend(rest);
            rest = block;
        }
        program.extend(rest);
    }
    program.push(returning(otherwise));
    program
}

/// Compares one argument. If the test holds, the next instruction is skipped, which jumps out of
/// the list.
fn compare(test: &Test) -> Vec<Instruction> {
    let (low, high) = halves(test.value);
    let at = |offset: u32| step(LOAD, ARGUMENTS + 8 * u32::from(test.argument) + offset);
    let load_low = at(0);
    let load_high = at(4);
    match (test.width, test.op) {
        (Width::Low32, Op::Eq) => vec![load_low, branch(IF_EQUAL, low, 1, 0)],
        (Width::Low32, Op::Ne) => vec![load_low, branch(IF_EQUAL, low, 0, 1)],
        (Width::Low32, Op::Ge) => vec![load_low, branch(IF_GREATER_OR_EQUAL, low, 1, 0)],
        (Width::Low32, Op::Le) => vec![load_low, branch(IF_GREATER, low, 0, 1)],
        (Width::Low32, Op::MaskedEq(mask)) => {
            vec![load_low, step(AND, halves(mask).0), branch(IF_EQUAL, low, 1, 0)]
        }
        (Width::Full64, Op::Eq) => {
            vec![load_high, branch(IF_EQUAL, high, 0, 2), load_low, branch(IF_EQUAL, low, 1, 0)]
        }
        (Width::Full64, Op::Ne) => {
            vec![load_high, branch(IF_EQUAL, high, 0, 3), load_low, branch(IF_EQUAL, low, 0, 1)]
        }
        (Width::Full64, Op::Ge) => vec![
            load_high,
            branch(IF_GREATER, high, 4, 0),
            branch(IF_EQUAL, high, 0, 2),
            load_low,
            branch(IF_GREATER_OR_EQUAL, low, 1, 0),
        ],
        (Width::Full64, Op::Le) => vec![
            load_high,
            branch(IF_GREATER_OR_EQUAL, high, 0, 4),
            branch(IF_EQUAL, high, 0, 2),
            load_low,
            branch(IF_GREATER, low, 0, 1),
        ],
        (Width::Full64, Op::MaskedEq(mask)) => vec![
            load_high,
            step(AND, halves(mask).1),
            branch(IF_EQUAL, high, 0, 3),
            load_low,
            step(AND, halves(mask).0),
            branch(IF_EQUAL, low, 1, 0),
        ],
    }
}

/// Splits a value into its low and high word, as they are loaded from an argument.
fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

fn length(program: &[Instruction]) -> u32 {
    u32::try_from(program.len()).unwrap_or(u32::MAX)
}

fn step(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn returning(action: Action) -> Instruction {
    step(RETURN, action.value())
}

#[cfg(test)]
#[path = "seccomp_tests.rs"]
#[expect(clippy::indexing_slicing, reason = "a test's interpreter: out of bounds is a failure")]
mod tests;
