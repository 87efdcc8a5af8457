//! Drops capabilities from all five sets, and prevents a process from regaining any.

use ::caps::{CapSet, Capability};
use nix::errno::Errno;

use sys::{Result, process};

/// Every capability the kernel knows (capabilities(7)), without allocating a set of them.
const ALL: [Capability; 41] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_FSETID,
    Capability::CAP_KILL,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
    Capability::CAP_SETPCAP,
    Capability::CAP_LINUX_IMMUTABLE,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_NET_BROADCAST,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_IPC_LOCK,
    Capability::CAP_IPC_OWNER,
    Capability::CAP_SYS_MODULE,
    Capability::CAP_SYS_RAWIO,
    Capability::CAP_SYS_CHROOT,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_SYS_PACCT,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_BOOT,
    Capability::CAP_SYS_NICE,
    Capability::CAP_SYS_RESOURCE,
    Capability::CAP_SYS_TIME,
    Capability::CAP_SYS_TTY_CONFIG,
    Capability::CAP_MKNOD,
    Capability::CAP_LEASE,
    Capability::CAP_AUDIT_WRITE,
    Capability::CAP_AUDIT_CONTROL,
    Capability::CAP_SETFCAP,
    Capability::CAP_MAC_OVERRIDE,
    Capability::CAP_MAC_ADMIN,
    Capability::CAP_SYSLOG,
    Capability::CAP_WAKE_ALARM,
    Capability::CAP_BLOCK_SUSPEND,
    Capability::CAP_AUDIT_READ,
    Capability::CAP_PERFMON,
    Capability::CAP_BPF,
    Capability::CAP_CHECKPOINT_RESTORE,
];

/// Empties all five sets of the calling process and locks the securebits.
///
/// Bounding and securebits first: both need CAP_SETPCAP.
pub(crate) fn drop_all() -> Result<()> {
    drop_bounding(&[])?;
    process::lock_securebits()?;
    clear_current()
}

/// Empties the bounding set of all but `kept`.
pub fn drop_bounding(kept: &[Capability]) -> Result<()> {
    for capability in ALL.into_iter().filter(|capability| !kept.contains(capability)) {
        match ::caps::drop(None, CapSet::Bounding, capability) {
            Ok(()) => {}
            // EINVAL: this kernel does not have the capability. Measuring the cell finds any that
            // remains.
            Err(_) if Errno::last() == Errno::EINVAL => {}
            Err(_) => return Err(Errno::last()),
        }
    }
    Ok(())
}

/// Empties the ambient, inheritable, permitted and effective sets.
pub fn clear_current() -> Result<()> {
    let sets = [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted];
    for set in sets {
        ::caps::clear(None, set).map_err(|_| Errno::last())?;
    }
    Ok(())
}

/// Keeps the capabilities of a process of root that reads files of any user, and whose children take the ids of one: it
/// ends them by their descriptors.
pub fn keep_readers() -> Result<()> {
    keep_only(&[
        Capability::CAP_DAC_READ_SEARCH,
        Capability::CAP_SETUID,
        Capability::CAP_SETGID,
        Capability::CAP_KILL,
    ])
}

/// Keeps `kept` in the permitted and effective sets, and empties the other three.
pub fn keep_only(kept: &[Capability]) -> Result<()> {
    drop_bounding(kept)?;
    let kept: ::caps::CapsHashSet = kept.iter().copied().collect();
    ::caps::clear(None, CapSet::Ambient).map_err(|_| Errno::last())?;
    ::caps::clear(None, CapSet::Inheritable).map_err(|_| Errno::last())?;
    ::caps::set(None, CapSet::Effective, &kept).map_err(|_| Errno::last())?;
    ::caps::set(None, CapSet::Permitted, &kept).map_err(|_| Errno::last())
}
