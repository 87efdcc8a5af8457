//! Counters of init, reported at the end of its cell and between the calls of a session.

use nix::errno::Errno;

use super::watch::Watch;
use super::{Cause, Init};
use crate::report::{FromInit, InitCounters, PayloadEnd};
use sys::Result;
use sys::process::{End, Reaped};
use sys::socket;

impl Init<'_> {
    pub(super) fn counts(&self) -> InitCounters {
        let peak = self.watch.as_ref().map_or(0, Watch::peak);
        let denied = self.mediator.refusals().iter().count();
        InitCounters {
            user_us: self.user_us,
            system_us: self.system_us,
            max_rss: self.max_rss.max(peak),
            denied: u16::try_from(denied).unwrap_or(u16::MAX),
        }
    }

    /// Reports the counters with those of the shell, and counts refused calls from zero again.
    pub(super) fn count(&mut self) -> Result<()> {
        let counts = self.counts();
        let (user, system) = self.shell_time();
        let user_us = counts.user_us.saturating_add(user);
        let system_us = counts.system_us.saturating_add(system);
        self.tell(FromInit::Counted(InitCounters { user_us, system_us, ..counts }))?;
        self.mediator.forget_refusals();
        Ok(())
    }

    /// Reports the end, and yields to the supervisor, which passes it on: the end of this process itself takes longer.
    pub(super) fn report(&self, reaped: Reaped, cause: Cause) -> Result<()> {
        self.tell(self.ended(status(reaped.end), cause))?;
        std::thread::yield_now();
        Ok(())
    }

    /// Makes a report as if the program had ended, so that the pages it touches are mapped now, each in some
    /// microseconds, and not while a client waits for the end.
    pub(super) fn rehearse(&self) -> Result<()> {
        std::hint::black_box(self.packet(self.ended(0, Cause::Program))?);
        Ok(())
    }

    fn ended(&self, status: u16, cause: Cause) -> FromInit {
        let over_limit = match cause {
            Cause::Program => None,
            Cause::OverLimit(why) => Some(why),
        };
        FromInit::Ended(PayloadEnd { status, over_limit, counts: self.counts() })
    }

    /// Sends a message with the denied calls behind it.
    pub(super) fn tell(&self, message: FromInit) -> Result<()> {
        socket::send(self.control, &self.packet(message)?, &[])
    }

    fn packet(&self, message: FromInit) -> Result<Vec<u8>> {
        // Allocated at its length: room for the longest report on the stack would be pages of every cell.
        let mut packet = postcard::to_stdvec(&message).map_err(|_| Errno::EMSGSIZE)?;
        for (count, number) in self.mediator.refusals().iter() {
            packet.extend(number.to_le_bytes());
            packet.extend(count.to_le_bytes());
        }
        Ok(packet)
    }
}

/// Encodes an end as it is reported.
pub(super) fn status(end: End) -> u16 {
    match end {
        End::Exited(code) => u16::from(code),
        End::Signaled(signal) => 256 + u16::from(signal),
    }
}
