//! Resource limits of one process (getrlimit(2)).

use nix::errno::Errno;
use rlimit::{Resource, setrlimit};

use super::errno_of;
use model::core_dumps;
use model::job::Limits;
use model::profile::Exec;
use model::receipt::MemoryHold;
use sys::Result;

/// Descriptor of the only program of [`Exec::Only`]. RLIMIT_NOFILE is lower, so that no other file
/// can get this number.
pub(crate) const PROGRAM_FD: u32 = model::profile::HELD_DESCRIPTOR;
/// Maximum number of open files of a cell with [`Exec::Only`], below [`PROGRAM_FD`].
const OPEN_FILES_ONLY: u32 = 512;
/// Nice value of programs, so that the supervisor, init and the rest of the machine have priority:
/// programs get a third of their CPU time under contention.
pub(crate) const NICE: i32 = 5;
/// Bytes that a process may lock in memory.
const LOCKED_BYTES: u64 = 64 << 10;
/// Bytes of POSIX message queues.
const QUEUE_BYTES: u64 = 0;
/// Maximum number of pending signals.
const PENDING_SIGNALS: u64 = 1024;

/// Sets both limits to `value`, or to the inherited hard limit if that is lower: raising it is not
/// possible, and a lower limit does not weaken the cell.
fn set(resource: Resource, value: u64) -> Result<()> {
    set_both(resource, value, value)
}

fn set_both(resource: Resource, soft: u64, hard: u64) -> Result<()> {
    let (_, max) = rlimit::getrlimit(resource).map_err(|error| errno_of(&error))?;
    setrlimit(resource, soft.min(max), hard.min(max)).map_err(|error| errno_of(&error))
}

/// Returns the number of open files that a process of the cell may have.
pub fn open_files(limits: &Limits, exec: &Exec) -> u32 {
    match exec {
        Exec::Any => limits.open_files,
        Exec::Only(_) => limits.open_files.min(OPEN_FILES_ONLY),
    }
}

/// Returns the number of processes as RLIMIT_NPROC counts them: the program's, and init.
pub(crate) fn process_count(limits: &Limits) -> u64 {
    u64::from(limits.processes) + 1
}

/// Processes during set-up: init, the shelter, the payload. After the exec there are two.
const SETUP_PROCESSES: u64 = 3;

/// Returns the number of processes that a cell's group and init allow, including those of the
/// set-up.
pub(crate) fn process_room(limits: &Limits) -> u64 {
    process_count(limits).max(SETUP_PROCESSES)
}

/// Sets the limits that init and payload share. In the cell's user namespace RLIMIT_NPROC counts
/// only this cell, even if other cells have the same host uid. It does not limit host uid 0, which
/// no cell has.
///
/// `others` is the number of processes outside the cell that count too: 0 if the cell has a user
/// namespace.
pub fn shared(limits: &Limits, others: u64) -> Result<()> {
    set(Resource::NPROC, process_room(limits).saturating_add(others))?;
    no_core_dumps()?;
    set(Resource::MEMLOCK, LOCKED_BYTES)?;
    set(Resource::MSGQUEUE, QUEUE_BYTES)?;
    set(Resource::SIGPENDING, PENDING_SIGNALS)?;
    set(Resource::RTPRIO, 0)?;
    // 20 minus the limit is the lowest nice value: 0 forbids lowering it at all.
    set(Resource::NICE, 0)
}

/// Sets the limits of the payload only: init must keep working when they are reached.
pub fn payload(limits: &Limits, exec: &Exec) -> Result<()> {
    set(Resource::NOFILE, u64::from(open_files(limits, exec)))
}

/// Lowers the limits to those of a job when it is handed over.
pub fn lowered(limits: &Limits, memory: MemoryHold, others: u64) -> Result<()> {
    set(Resource::NPROC, process_count(limits).saturating_add(others))?;
    set(Resource::FSIZE, limits.file_size)?;
    let seconds = limits.cpu.as_secs().max(1);
    // SIGXCPU at the soft limit names the reason; a program that ignores it gets SIGKILL one second
    // later.
    set_both(Resource::CPU, seconds, seconds + 1)?;
    match memory {
        // The control group limits the whole cell; a limit on address space would only break
        // programs.
        MemoryHold::CgroupV2 | MemoryHold::CgroupV1 => Ok(()),
        MemoryHold::BestEffort => set(Resource::DATA, limits.memory),
    }
}

/// Sets the core file limit to the only value that keeps the kernel from starting a core dump
/// handler. Each of our processes does this before it loads its filter, which forbids changing the
/// limit.
///
/// Raising a hard limit of 0 needs CAP_SYS_RESOURCE in the initial user namespace. Without it the
/// limit stays 0:
/// `supervisor::boot::requirements` refuses cells then, unless crashes are written to files.
///
/// # Errors
/// The errno of a call that failed for another reason.
pub fn no_core_dumps() -> Result<()> {
    let (soft, hard) = core_limits()?;
    let wanted = core_dumps::LIMIT;
    if (soft, hard) == (wanted, wanted) {
        return Ok(());
    }
    match setrlimit(Resource::CORE, wanted, wanted) {
        Err(error) if hard > 0 => Err(errno_of(&error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the soft and the hard core file limit of this process.
///
/// # Errors
/// The errno of getrlimit(2).
pub fn core_limits() -> Result<(u64, u64)> {
    rlimit::getrlimit(Resource::CORE).map_err(|error| errno_of(&error))
}

/// Lowers the number of processes that all cells of this supervisor may have together, and never
/// raises it. User namespaces made afterwards count against it (user_namespaces(7), ucounts).
pub fn all_cells(processes: u64) -> Result<()> {
    let (_, hard) = rlimit::getrlimit(Resource::NPROC).map_err(|error| errno_of(&error))?;
    let bound = processes.min(hard);
    if bound == 0 {
        return Err(Errno::EINVAL);
    }
    setrlimit(Resource::NPROC, bound, hard).map_err(|error| errno_of(&error))
}
