//! Resource limits of one process (getrlimit(2)).

use nix::errno::Errno;
use rlimit::{Resource, setrlimit};

use super::errno_of;
use model::core_dumps;
use model::job::Limits;
use model::profile::Exec;
use model::receipt::MemoryHold;
use sys::Result;

/// Number of the descriptor of the one program of [`Exec::Only`]. RLIMIT_NOFILE is lower, so that nothing can
/// take its place.
pub(crate) const PROGRAM_FD: u32 = model::profile::HELD_DESCRIPTOR;
/// The most open files a cell with [`Exec::Only`] gets, below [`PROGRAM_FD`].
const OPEN_FILES_ONLY: u32 = 512;
/// Steps by which programs give way to supervisor, init and the rest of the machine: a third of the
/// time that these get where all want it.
pub(crate) const NICE: i32 = 5;
/// Bytes a process may lock in memory.
const LOCKED_BYTES: u64 = 64 << 10;
/// Bytes of POSIX message queues: what the default of `mqueue` files needs, no more.
const QUEUE_BYTES: u64 = 0;
/// Signals that may wait.
const PENDING_SIGNALS: u64 = 1024;

/// Sets both limits to `value`, or to the hard limit that the operator started with where that
/// is lower: nobody may raise it, and a cell with less is no weaker.
fn set(resource: Resource, value: u64) -> Result<()> {
    set_both(resource, value, value)
}

fn set_both(resource: Resource, soft: u64, hard: u64) -> Result<()> {
    let (_, most) = rlimit::getrlimit(resource).map_err(|error| errno_of(&error))?;
    setrlimit(resource, soft.min(most), hard.min(most)).map_err(|error| errno_of(&error))
}

/// Returns the number of open files that a process of the cell may have.
pub fn open_files(limits: &Limits, exec: &Exec) -> u32 {
    match exec {
        Exec::Any => limits.open_files,
        Exec::Only(_) => limits.open_files.min(OPEN_FILES_ONLY),
    }
}

/// Processes as RLIMIT_NPROC counts them: the program's own, and init beside them.
pub(crate) fn process_count(limits: &Limits) -> u64 {
    u64::from(limits.processes) + 1
}

/// Processes of a cell that is built: init, the shelter, the payload. After exec there are two.
const BUILT: u64 = 3;

/// Returns the processes that a cell's group and its init have room for, those that build the cell included.
pub(crate) fn process_room(limits: &Limits) -> u64 {
    process_count(limits).max(BUILT)
}

/// Sets the limits that init and payload share. In the cell's own user namespace RLIMIT_NPROC counts the cell
/// alone, even if other cells have its host uid; it would not bind host uid 0, which no cell has.
///
/// `others` are the processes that count beside it: none where it has a user namespace.
pub fn shared(limits: &Limits, others: u64) -> Result<()> {
    set(Resource::NPROC, process_room(limits).saturating_add(others))?;
    no_core_dumps()?;
    set(Resource::MEMLOCK, LOCKED_BYTES)?;
    set(Resource::MSGQUEUE, QUEUE_BYTES)?;
    set(Resource::SIGPENDING, PENDING_SIGNALS)?;
    set(Resource::RTPRIO, 0)?;
    // 20 minus the limit is the lowest nice value: 0 here means never below what it has.
    set(Resource::NICE, 0)
}

/// Sets the limits of the payload alone: init must continue when they are reached.
pub fn payload(limits: &Limits, exec: &Exec) -> Result<()> {
    set(Resource::NOFILE, u64::from(open_files(limits, exec)))
}

/// Lowers the limits that a job may still lower, when it is handed over.
pub fn lowered(limits: &Limits, memory: MemoryHold, others: u64) -> Result<()> {
    set(Resource::NPROC, process_count(limits).saturating_add(others))?;
    set(Resource::FSIZE, limits.file_size)?;
    let seconds = limits.cpu.as_secs().max(1);
    // SIGXCPU at the soft limit names the reason; SIGKILL one second later ends who ignores it.
    set_both(Resource::CPU, seconds, seconds + 1)?;
    match memory {
        // The cgroup holds the whole cell; a limit on addresses would only get in the way.
        MemoryHold::CgroupV2 | MemoryHold::CgroupV1 => Ok(()),
        MemoryHold::BestEffort => set(Resource::DATA, limits.memory),
    }
}

/// Sets the limit of core files to the one value that keeps the kernel from starting a program for a crash, where it is
/// another. Each process of ours does this before its filter, which lets nobody set it.
///
/// A process whose hard limit is 0 needs CAP_SYS_RESOURCE in the first user namespace to raise it. Without, it keeps 0:
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

/// Returns the soft and the hard limit of core files of this process.
///
/// # Errors
/// That of getrlimit(2).
pub fn core_limits() -> Result<(u64, u64)> {
    rlimit::getrlimit(Resource::CORE).map_err(|error| errno_of(&error))
}

/// Raises nothing, lowers the number of processes that all cells of this supervisor may have:
/// user namespaces made after this count against it (user_namespaces(7), ucounts).
pub fn all_cells(processes: u64) -> Result<()> {
    let (_, hard) = rlimit::getrlimit(Resource::NPROC).map_err(|error| errno_of(&error))?;
    let bound = processes.min(hard);
    if bound == 0 {
        return Err(Errno::EINVAL);
    }
    setrlimit(Resource::NPROC, bound, hard).map_err(|error| errno_of(&error))
}
