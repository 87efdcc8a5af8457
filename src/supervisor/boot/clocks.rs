//! The time namespace of a supervisor and its cells: clocks that begin when it starts.
//!
//! The kernel's monotonic and boot clocks, and the starts of processes in proc(5), tell how long the host
//! runs. In a time namespace they are moved by an offset (time_namespaces(7)). The supervisor enters
//! it itself, so that it, its inits and their programs read the same clocks, and a time that one of them
//! tells another means the same to both; main is told durations alone.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::write;

use super::error::{DuringBoot, StepError};
use cell::{Clocks, errno_of};

/// CLONE_NEWTIME, which nix has no name for.
const NEW_TIME: CloneFlags = CloneFlags::from_bits_retain(libc::CLONE_NEWTIME);
/// Seconds that the clocks show at first: a process that is a little older has no start before zero.
const FIRST: i64 = 1;
/// The file with the offsets of the namespace that children of this process will have.
const OFFSETS: &str = "/proc/self/timens_offsets";

/// Moves this process, and all that it will clone, to clocks that begin now. If the kernel has no such
/// namespaces (before 5.6, or without CONFIG_TIME_NS), or makes none here, they stay the host's.
///
/// # Errors
/// What happened when there was a namespace and its clocks could not be set.
pub(super) fn begin() -> Result<Clocks, StepError> {
    // The file first: whoever may not write it must not be left with a namespace that tells the truth.
    let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let Ok(offsets) = open(OFFSETS, flags, Mode::empty()) else { return Ok(Clocks::Host) };
    if unshare(NEW_TIME).is_err() {
        return Ok(Clocks::Host);
    }
    let before = std::fs::read_to_string(OFFSETS)
        .map_err(|error| errno_of(&error))
        .during("reading the offsets of its clocks")?;
    let moved = moved(&before).during("computing the offsets of its clocks")?;
    // One write: the kernel takes both lines or none.
    let written = write(&offsets, moved.as_bytes()).during("setting its clocks")?;
    if written != moved.len() {
        return Err(StepError("setting its clocks".to_owned(), Errno::EIO));
    }
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let namespace = open("/proc/self/ns/time_for_children", flags, Mode::empty())
        .during("holding its time namespace")?;
    setns(namespace, NEW_TIME).during("entering its time namespace")?;
    Ok(Clocks::Own)
}

/// The offsets with which both clocks would show [`FIRST`] now. The kernel takes them relative to its own
/// clocks, of which this process sees those that `before` moves.
fn moved(before: &str) -> Result<String, Errno> {
    let clock = |name: &str, id: ClockId| {
        let now = clock_gettime(id)?.tv_sec();
        let seconds = seconds(before, name).ok_or(Errno::EINVAL)?;
        // Whole seconds: a fraction that is the host's tells nothing of its age.
        Ok::<_, Errno>(format!("{name} {} 0\n", seconds.saturating_sub(now).saturating_add(FIRST)))
    };
    let monotonic = clock("monotonic", ClockId::CLOCK_MONOTONIC)?;
    Ok(monotonic + &clock("boottime", ClockId::CLOCK_BOOTTIME)?)
}

/// The seconds by which `offsets` moves a clock.
fn seconds(offsets: &str, name: &str) -> Option<i64> {
    let mut words = offsets.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let offsets = "monotonic           -864         0\nboottime         1728000         0\n";
        assert_eq!(seconds(offsets, "monotonic"), Some(-864));
        assert_eq!(seconds(offsets, "boottime"), Some(1_728_000));
        assert_eq!(seconds("", "boottime"), None);
    }

    #[test]
    fn a_clock_that_was_moved_before_is_moved_from_where_it_is() {
        let shown = moved("monotonic 0 0\nboottime 500 0\n").unwrap_or_default();
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |now| now.tv_sec());
        let offset = seconds(&shown, "boottime").unwrap_or_default();
        assert!((0..2).contains(&(500 - boot + FIRST - offset)), "{shown}");
    }
}
