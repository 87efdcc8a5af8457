//! The time namespace of a supervisor and its cells: clocks that begin when it starts.
//!
//! The kernel's monotonic and boot clocks, and the start times of processes in proc(5), reveal the
//! uptime of the host. A time namespace shifts them by an offset (time_namespaces(7)). The
//! supervisor enters it too, so that it, its inits and their programs read the same clocks and can
//! exchange times. Main only gets durations.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::write;

use super::error::{DuringBoot, StepError};
use cell::{Clocks, errno_of};

/// CLONE_NEWTIME, which nix does not define.
const NEW_TIME: CloneFlags = CloneFlags::from_bits_retain(libc::CLONE_NEWTIME);
/// Seconds that the clocks show at first: a process that is slightly older must not start before
/// zero.
const FIRST: i64 = 1;
/// The file with the offsets of the time namespace for this process's children.
const OFFSETS: &str = "/proc/self/timens_offsets";

/// Moves this process and its future children to clocks that begin now. Keeps the host's clocks if
/// the kernel has no time namespaces (before 5.6, or without CONFIG_TIME_NS) or refuses one.
///
/// # Errors
/// The namespace exists, but its clocks could not be set.
pub(super) fn begin() -> Result<Clocks, StepError> {
    // The file is opened first: without write access no namespace must be made, as it would show
    // the host's times.
    let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let Ok(offsets) = open(OFFSETS, flags, Mode::empty()) else { return Ok(Clocks::Host) };
    if unshare(NEW_TIME).is_err() {
        return Ok(Clocks::Host);
    }
    let before = std::fs::read_to_string(OFFSETS)
        .map_err(|error| errno_of(&error))
        .during("reading the offsets of its clocks")?;
    let offsets_text = moved_offsets(&before).during("computing the offsets of its clocks")?;
    // One write: the kernel applies both lines or neither.
    let written = write(&offsets, offsets_text.as_bytes()).during("setting its clocks")?;
    if written != offsets_text.len() {
        return Err(StepError("setting its clocks".to_owned(), Errno::EIO));
    }
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let namespace = open("/proc/self/ns/time_for_children", flags, Mode::empty())
        .during("holding its time namespace")?;
    setns(namespace, NEW_TIME).during("entering its time namespace")?;
    Ok(Clocks::Own)
}

/// Computes the offsets with which both clocks show [`FIRST`] now. The kernel expects them relative
/// to its own clocks, while this process sees clocks that are already shifted by `before`.
fn moved_offsets(before: &str) -> Result<String, Errno> {
    let clock = |name: &str, id: ClockId| {
        let now = clock_gettime(id)?.tv_sec();
        let seconds = seconds(before, name).ok_or(Errno::EINVAL)?;
        // Whole seconds: the host's fraction of a second reveals nothing about its uptime.
        Ok::<_, Errno>(format!("{name} {} 0\n", seconds.saturating_sub(now).saturating_add(FIRST)))
    };
    let monotonic = clock("monotonic", ClockId::CLOCK_MONOTONIC)?;
    Ok(monotonic + &clock("boottime", ClockId::CLOCK_BOOTTIME)?)
}

/// Parses the seconds by which `offsets` shifts a clock.
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
    fn a_shifted_clock_is_shifted_relative_to_what_it_shows() {
        let shown = moved_offsets("monotonic 0 0\nboottime 500 0\n").unwrap_or_default();
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |now| now.tv_sec());
        let offset = seconds(&shown, "boottime").unwrap_or_default();
        assert!((0..2).contains(&(500 - boot + FIRST - offset)), "{shown}");
    }
}
