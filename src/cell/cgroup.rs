//! Control groups: the kernel limits the memory and the number of processes of a whole cell.
//!
//! Version 2 if a subtree is delegated to us, version 1 if root finds its controllers mounted (cgroups(7)).
//! Without either, memory is best-effort and every reply says so.
//!
//! `main` prepares one directory for the supervisor, which makes one below it for each cell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::uio::pread;
use nix::unistd::{UnlinkatFlags, unlinkat, write};

use super::limits::process_room;
use model::job::Limits;
use model::receipt::MemoryHold;
use sys::Result;

/// Weight of a cell when processes compete for the CPU; other groups have 100.
const CPU_WEIGHT: &str = "50";

/// Where a supervisor makes the group of each cell.
#[derive(Debug)]
pub enum Parent {
    V2 {
        directory: OwnedFd,
        processors: ProcessorShares,
    },
    V1 {
        memory: OwnedFd,
        pids: OwnedFd,
    },
    /// No controller can be used.
    None,
}

/// Control of the `cpu` controller: if it is ours, a cell can get a share of the processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessorShares {
    Shared,
    NotOurs,
}

impl Parent {
    /// Returns true if a cell can be limited to a share of the processors.
    pub fn shares_processors(&self) -> bool {
        matches!(self, Self::V2 { processors: ProcessorShares::Shared, .. })
    }

    /// Returns the mechanism that bounds the memory of cells below this parent.
    pub fn hold(&self) -> MemoryHold {
        match self {
            Self::V2 { .. } => MemoryHold::CgroupV2,
            Self::V1 { .. } => MemoryHold::CgroupV1,
            Self::None => MemoryHold::BestEffort,
        }
    }

    /// Makes the control group of one cell, with its limits set and no process in it.
    pub fn make(&self, name: u64, limits: &Limits) -> Result<Option<ControlGroup>> {
        let name = format!("cell-{name}");
        let (memory, pids, version) = match self {
            Self::None => return Ok(None),
            Self::V2 { directory, processors } => {
                let memory = Directory::make(directory.as_fd(), &name)?;
                (memory, None, Version::Two(*processors))
            }
            Self::V1 { memory, pids } => {
                let pids = Directory::make(pids.as_fd(), &name)?;
                (Directory::make(memory.as_fd(), &name)?, Some(pids), Version::One)
            }
        };
        let (events, peak) = match version {
            Version::Two(_) => ("memory.events", "memory.peak"),
            Version::One => ("memory.oom_control", "memory.max_usage_in_bytes"),
        };
        let events = memory.open(events, OFlag::O_RDONLY)?;
        let peak = memory.open(peak, OFlag::O_RDONLY).ok();
        let group = ControlGroup { memory, pids, version, events, peak };
        group.limit(limits)?;
        Ok(Some(group))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two(ProcessorShares),
}

/// Microseconds over which a share of the processors is counted, the kernel's directory_fd default.
const PERIOD: u64 = 100_000;

/// The control group of one cell; removed on drop, when its processes are gone.
#[derive(Debug)]
pub struct ControlGroup {
    memory: Directory,
    /// Version 1 has a tree for each controller.
    pids: Option<Directory>,
    version: Version,
    /// Opened early, as it is read while a client waits for the end of a call.
    events: OwnedFd,
    /// Absent if this kernel does not count it.
    peak: Option<OwnedFd>,
}

impl ControlGroup {
    /// Sets limits; they may be lowered later.
    pub fn limit(&self, limits: &Limits) -> Result<()> {
        let memory = limits.memory.to_string();
        let processes = process_room(limits).to_string();
        match self.version {
            Version::Two(shares) => {
                self.memory.write("memory.max", &memory)?;
                optional(self.memory.write("memory.swap.max", "0"))?;
                // One process over the limit ends the cell, init included.
                self.memory.write("memory.oom.group", "1")?;
                self.memory.write("pids.max", &processes)?;
                self.share_processors(shares, limits)
            }
            Version::One => {
                self.memory.write("memory.limit_in_bytes", &memory)?;
                // TCP memory has a separate account, which only counts processes that join after
                // its limit is set. The file is absent if the kernel counts no sockets
                // (`cgroup.memory=nosocket`).
                optional(self.memory.write("memory.kmem.tcp.limit_in_bytes", &memory))?;
                // Memory and swap together; the file is absent where swap is not accounted.
                optional(self.memory.write("memory.memsw.limit_in_bytes", &memory))?;
                match &self.pids {
                    Some(pids) => pids.write("pids.max", &processes),
                    None => Err(Errno::ENODEV),
                }
            }
        }
    }

    fn share_processors(&self, shares: ProcessorShares, limits: &Limits) -> Result<()> {
        match (shares, limits.processors) {
            // The controller is not delegated: nice(2) is the only means left.
            (ProcessorShares::NotOurs, None) => Ok(()),
            // Profiles that ask for a share are refused earlier on such a machine.
            (ProcessorShares::NotOurs, Some(_)) => Err(Errno::ENODEV),
            (ProcessorShares::Shared, share) => {
                self.memory.write("cpu.weight", CPU_WEIGHT)?;
                let quota =
                    share.map(|hundredths| (u64::from(hundredths) * PERIOD / 100).to_string());
                let quota = quota.as_deref().unwrap_or("max");
                self.memory.write("cpu.max", &format!("{quota} {PERIOD}"))
            }
        }
    }

    /// Kills every process of the group at once, including forks in progress, if the kernel can
    /// (5.14, version 2). Otherwise does nothing: killing the cell's init kills them one after
    /// another.
    pub fn kill(&self) -> Result<()> {
        match self.version {
            Version::One => Ok(()),
            Version::Two(_) => optional(self.memory.write("cgroup.kill", "1")),
        }
    }

    /// Returns the group that a cell of version 2 is cloned into. Moving a process there afterwards
    /// would block every fork on the machine for a moment.
    pub fn clone_into(&self) -> Option<BorrowedFd<'_>> {
        match self.version {
            Version::Two(_) => Some(self.memory.directory_fd.as_fd()),
            Version::One => None,
        }
    }

    /// Moves the calling thread into the group, where version 1 cannot clone into one. The thread
    /// moves itself (`tasks`, 0): that needs no lock over all processes, which would cost 10 ms.
    pub fn join(&self) -> Result<()> {
        match &self.pids {
            None => Ok(()),
            Some(pids) => {
                self.memory.write("tasks", "0")?;
                pids.write("tasks", "0")
            }
        }
    }

    /// Returns a descriptor that becomes readable when the cell runs out of memory. Version 2 needs
    /// no such event: there the kernel kills the whole cell.
    pub fn out_of_memory_event(&self) -> Result<Option<EventFd>> {
        if matches!(self.version, Version::Two(_)) {
            return Ok(None);
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_value_and_flags(0, flags)?;
        let control = self.memory.open("memory.oom_control", OFlag::O_RDONLY)?;
        let registration = format!("{} {}", raw(event.as_fd()), raw(control.as_fd()));
        self.memory.write("cgroup.event_control", &registration)?;
        Ok(Some(event))
    }

    /// Returns true if the kernel has killed a process of the cell for exceeding its memory limit.
    pub fn ran_out_of_memory(&self) -> bool {
        read(&self.events).is_ok_and(|text| {
            text.lines()
                .filter_map(|line| line.strip_prefix("oom_kill "))
                .any(|count| count.trim() != "0")
        })
    }

    /// Returns how much file cache the kernel reclaims from the cell; `None` if it does not count
    /// that.
    pub fn reclaim(&self) -> Option<Reclaim> {
        let stat = self.memory_file("memory.stat")?;
        let used = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two(_) => "memory.current",
        };
        let used = self.memory_file(used)?.trim().parse().ok()?;
        Some(Reclaim { used, ..Reclaim::parse(&stat)? })
    }

    fn memory_file(&self, name: &str) -> Option<String> {
        read(&self.memory.open(name, OFlag::O_RDONLY).ok()?).ok()
    }

    /// Returns the peak memory of the cell in bytes; `None` if this kernel does not count it.
    pub fn peak(&self) -> Option<u64> {
        read(self.peak.as_ref()?).ok()?.trim().parse().ok()
    }
}

/// Maximum bytes read of a control file; `memory.stat` of version 2 has some 2,000.
const FILE_BYTES: usize = 8192;

/// Memory and page cache counters of a group since it was made (memory.stat and others).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaim {
    /// Bytes that the group uses in total.
    pub used: u64,
    /// Bytes of page cache that the group has now.
    pub file_bytes: u64,
    /// Pages that were reclaimed and read again shortly after.
    pub read_again: u64,
    /// How often a process waited for a mapped page to be read.
    pub waits: u64,
}

impl Reclaim {
    fn parse(text: &str) -> Option<Self> {
        let count = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name)?.1.parse::<u64>().ok()
        };
        // Version 1 and older kernels have one count for all pages that are read again.
        let read_again =
            count("workingset_refault_file").or_else(|| count("workingset_refault"))?;
        let file_bytes = count("active_file")?.saturating_add(count("inactive_file")?);
        Some(Self { file_bytes, read_again, waits: count("pgmajfault")?, ..Self::default() })
    }

    /// Returns the size of the page cache in pages of 4 KiB.
    pub fn file_pages(&self) -> u64 {
        self.file_bytes / 4096
    }
}

/// Reads the current contents of a control file.
fn read(file: &OwnedFd) -> Result<String> {
    let mut buffer = [0; FILE_BYTES];
    let length = pread(file, &mut buffer, 0)?;
    // pread(2) returns no more than the buffer's length.
    let bytes = buffer.get(..length).unwrap_or_default();
    String::from_utf8(bytes.to_vec()).map_err(|_| Errno::EILSEQ)
}

/// Treats the absence of a file that some kernels lack as success.
fn optional(result: Result<()>) -> Result<()> {
    match result {
        Err(Errno::ENOENT) => Ok(()),
        result => result,
    }
}

fn raw(fd: BorrowedFd<'_>) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}

/// One directory of a cgroup filesystem, made by us and removed on drop.
#[derive(Debug)]
struct Directory {
    parent: OwnedFd,
    name: String,
    directory_fd: OwnedFd,
}

impl Directory {
    fn make(parent: BorrowedFd<'_>, name: &str) -> Result<Self> {
        match mkdirat(parent, name, Mode::from_bits_truncate(0o755)) {
            // Left by an instance that was killed: its processes have ended, so the group can be
            // reused.
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let directory_fd = openat(parent, name, flags, Mode::empty())?;
        let parent = parent.try_clone_to_owned().map_err(|error| super::errno_of(&error))?;
        Ok(Self { parent, name: name.to_owned(), directory_fd })
    }

    fn open(&self, file: &str, flags: OFlag) -> Result<OwnedFd> {
        openat(&self.directory_fd, file, flags | OFlag::O_CLOEXEC, Mode::empty())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let fd = self.open(file, OFlag::O_WRONLY)?;
        write(fd, text.as_bytes()).map(drop)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // EBUSY: a process is still ending. The next instance reuses the group, and an empty group
        // costs nothing.
        if let Err(errno) = unlinkat(&self.parent, self.name.as_str(), UnlinkatFlags::RemoveDir) {
            tracing::debug!(%errno, name = self.name, "a control group could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_pages_are_read_from_both_versions() {
        let expected =
            Some(Reclaim { file_bytes: 12288, read_again: 5, waits: 7, ..Reclaim::default() });
        let two = "anon 1\nfile 2\ninactive_file 4096\nactive_file 8192\nworkingset_refault_anon 9\n\
            workingset_refault_file 5\npgmajfault 7\n";
        let one = "cache 1\nworkingset_refault 5\npgmajfault 7\ninactive_file 4096\nactive_file 8192\n\
            total_pgmajfault 70\n";
        assert_eq!(Reclaim::parse(two), expected);
        assert_eq!(Reclaim::parse(one), expected);
        assert_eq!(Reclaim::parse("pgmajfault 7\n"), None);
    }
}
