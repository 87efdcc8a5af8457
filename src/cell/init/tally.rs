//! Counters of init: reported at the end of its cell and between the calls of a session.

use std::ffi::CStr;

use nix::errno::Errno;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::watch::Watch;
use super::{Cause, Init};
use crate::report::{FromInit, InitCounters, PayloadEnd, UnreachedHost};
use model::outcome::{FilesChanged, FullFilesystems};
use sys::Result;
use sys::process::{End, Reaped, Used};
use sys::socket;

impl Init<'_> {
    /// Returns the counters of the processes that init has reaped.
    pub(super) fn counts(&self) -> InitCounters {
        let peak = self.watch.as_ref().map_or(0, Watch::peak);
        let denied = self.mediator.refusals().iter().count();
        let Used { user_us, system_us, max_rss } = self.children.used;
        let denied = u16::try_from(denied).unwrap_or(u16::MAX);
        let full = FullFilesystems::default();
        InitCounters { user_us, system_us, max_rss: max_rss.max(peak), denied, full }
    }

    /// Reports the counters including those of the shell, and the changes in the workspace if it was
    /// scanned. Resets the counts of refused calls and forgets the names.
    pub(super) fn report_counts(&mut self, changed: Option<&FilesChanged>) -> Result<()> {
        let counts = self.counts();
        let (user, system) = self.payload.processor_time();
        let user_us = counts.user_us.saturating_add(user);
        let system_us = counts.system_us.saturating_add(system);
        let full = full_filesystems(self.has_failed);
        let counted = FromInit::Counted(InitCounters { user_us, system_us, full, ..counts });
        self.send_with(counted, changed)?;
        self.mediator.forget_refusals();
        self.unresolved.forget();
        Ok(())
    }

    /// Reports the end, then yields, so that the supervisor can pass the report on before this
    /// process exits.
    pub(super) fn report(
        &self,
        reaped: Reaped,
        cause: Cause,
        changed: Option<&FilesChanged>,
    ) -> Result<()> {
        self.send_with(self.ended(status(reaped.end), cause), changed)?;
        std::thread::yield_now();
        Ok(())
    }

    /// Encodes a report as if the program had ended. Its pages are mapped by this, some
    /// microseconds each, and not while a client waits for the end.
    pub(super) fn rehearse(&self) -> Result<()> {
        std::hint::black_box(self.packet(self.ended(0, Cause::Program))?);
        Ok(())
    }

    fn ended(&self, status: u16, cause: Cause) -> FromInit {
        let over_limit = match cause {
            Cause::Program => None,
            Cause::OverLimit(limit) => Some(limit),
        };
        let full = full_filesystems(status != 0);
        let counts = InitCounters { full, ..self.counts() };
        FromInit::Ended(PayloadEnd { status, over_limit, counts })
    }

    /// Sends a message followed by the denied calls, the half-made repository and the hosts that were not
    /// reached.
    pub(super) fn send(&self, message: FromInit) -> Result<()> {
        self.send_with(message, None)
    }

    /// Sends a message followed by the denied calls, the half-made repository, the hosts that were not
    /// reached, and the changes in the workspace. One packet wakes the supervisor once.
    fn send_with(&self, message: FromInit, changed: Option<&FilesChanged>) -> Result<()> {
        let mut packet = self.packet(message)?;
        if let Some(changed) = changed {
            packet = postcard::to_extend(changed, packet).map_err(|_| Errno::EMSGSIZE)?;
        }
        socket::send(self.control, &packet, &[])
    }

    /// Returns the hosts that were not reached, in a cell that has only its loopback. In others the
    /// gateway counts them.
    fn unreached(&self) -> Vec<UnreachedHost> {
        if self.unresolved.socket().is_none() {
            return Vec::new();
        }
        let addresses = self.mediator.refusals().unreachable().iter();
        let addresses =
            addresses.map(|(to, count)| UnreachedHost { to: to.to_string(), count: *count });
        self.unresolved.asked().into_iter().chain(addresses).collect()
    }

    fn packet(&self, message: FromInit) -> Result<Vec<u8>> {
        // Allocated at its actual length: a stack buffer for the longest report would cost pages in
        // every cell.
        let mut packet = postcard::to_stdvec(&message).map_err(|_| Errno::EMSGSIZE)?;
        for (count, number) in self.mediator.refusals().iter() {
            packet.extend(number.to_le_bytes());
            packet.extend(count.to_le_bytes());
        }
        let half_made = self.mediator.half_made();
        packet.extend(u16::try_from(half_made.len()).map_err(|_| Errno::EMSGSIZE)?.to_le_bytes());
        packet.extend(half_made);
        postcard::to_extend(&self.unreached(), packet).map_err(|_| Errno::EMSGSIZE)
    }
}

/// Looks for private filesystems that are full, if the program has failed: its errors may be due to
/// that.
fn full_filesystems(has_failed: bool) -> FullFilesystems {
    if !has_failed {
        return FullFilesystems::default();
    }
    // A filesystem that the cell does not have, or that is the host's, is not full by a limit.
    let is_full = |path: &CStr| {
        statfs(path).is_ok_and(|stat| {
            let is_private = stat.filesystem_type() == TMPFS_MAGIC;
            is_private && (stat.blocks_free() == 0 || stat.files_free() == 0)
        })
    };
    FullFilesystems {
        workspace: is_full(c"/workspace"),
        tmp: is_full(c"/tmp"),
        shm: is_full(c"/dev/shm"),
    }
}

/// Encodes an exit code, or 256 plus the signal.
pub(super) fn status(end: End) -> u16 {
    match end {
        End::Exited(code) => u16::from(code),
        End::Signaled(signal) => 256 + u16::from(signal),
    }
}
