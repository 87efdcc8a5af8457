//! Counters of init, reported at the end of its cell and between the calls of a session.

use nix::errno::Errno;

use super::watch::Watch;
use super::{Cause, Init, NUMBERS};
use crate::report::{self, Counts, FromInit, PayloadEnd};
use sys::Result;
use sys::process::{End, Reaped};
use sys::socket;

impl Init<'_> {
    /// How often each call was refused, by its number, as a report has it.
    fn refused(&self) -> impl Iterator<Item = (&u32, u16)> {
        let denied = self.denied.iter().zip(0_u16..);
        let guarded = self.guarded.iter().zip(report::GUARDED..);
        denied.chain(guarded).filter(|(count, _)| **count > 0)
    }

    pub(super) fn counts(&self) -> Counts {
        let peak = self.watch.as_ref().map_or(0, Watch::peak);
        let denied = self.refused().count();
        Counts {
            user_us: self.user_us,
            system_us: self.system_us,
            max_rss: self.max_rss.max(peak),
            denied: u16::try_from(denied).unwrap_or(u16::MAX),
        }
    }

    /// Tells what was counted, and counts refused calls anew.
    pub(super) fn count(&mut self) -> Result<()> {
        self.tell(FromInit::Counted(self.counts()))?;
        self.denied = [0; NUMBERS];
        self.guarded = [0; NUMBERS];
        self.input = None;
        Ok(())
    }

    /// Tells the end, and lets the supervisor tell it on: for its own end this process takes longer.
    pub(super) fn report(&self, reaped: Reaped, cause: Cause) -> Result<()> {
        let status = match reaped.end {
            End::Exited(code) => u16::from(code),
            End::Signaled(signal) => 256 + u16::from(signal),
        };
        self.tell(self.ended(status, cause))?;
        std::thread::yield_now();
        Ok(())
    }

    /// Makes a report as if the program had ended: the pages that this takes are mapped now, each for some
    /// microseconds, and not while somebody waits for the end.
    pub(super) fn rehearse(&self) -> Result<()> {
        std::hint::black_box(self.packet(self.ended(0, Cause::Program))?);
        Ok(())
    }

    fn ended(&self, status: u16, cause: Cause) -> FromInit {
        let over_memory = cause == Cause::OverMemory;
        FromInit::Ended(PayloadEnd { status, over_memory, counts: self.counts() })
    }

    /// Sends a message with the denied calls behind it.
    pub(super) fn tell(&self, message: FromInit) -> Result<()> {
        socket::send(self.control, &self.packet(message)?, &[])
    }

    fn packet(&self, message: FromInit) -> Result<Vec<u8>> {
        // No longer than it is: room for the longest report on the stack is pages of every cell.
        let mut packet = postcard::to_stdvec(&message).map_err(|_| Errno::EMSGSIZE)?;
        for (count, number) in self.refused() {
            packet.extend(number.to_le_bytes());
            packet.extend(count.to_le_bytes());
        }
        Ok(packet)
    }
}
