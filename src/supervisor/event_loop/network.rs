//! The network of cells, as the loop has it: opened at the gateway, begun, tallied and closed.

use std::os::fd::AsFd;
use std::time::Instant;

use nix::errno::Errno;

use super::gateway::{GatewayLink, GatewayState, Readiness, no_gateway};
use super::supervisor::Supervisor;
use crate::cells::cell::NetworkEnds;
use crate::cells::key::KeyId;
use cell::slot::Slot;
use model::egress::Only;
use model::egress::frames::{CellKey, FromGateway, ToGateway};
use model::outcome::{Ended, Failure, Outcome};
use model::wire::{self, CallId, Event};
use sys::socket::{self, PacketWait};

/// Frames of the gateway that are read in a row.
const FRAMES: usize = 64;

impl Supervisor {
    /// Returns whether cells of a key can have a job. Cells with egress can only while the gateway serves.
    pub(super) fn readiness(&self, key: KeyId) -> Readiness {
        if self.keys.design(key).is_none_or(|design| design.network.is_none()) {
            return Readiness::Ready;
        }
        match self.gateway.as_ref().map(|gateway| &gateway.state) {
            Some(GatewayState::Up(_)) => Readiness::Ready,
            Some(GatewayState::Starting(..)) => Readiness::Starting,
            Some(GatewayState::Dead(why)) => Readiness::Dead(why.clone()),
            None => Readiness::Dead("it was not started".to_owned()),
        }
    }

    /// Refuses a job of a key whose gateway is dead.
    pub(super) fn check_gateway(&self, key: KeyId) -> Result<(), Failure> {
        match self.readiness(key) {
            Readiness::Ready | Readiness::Starting => Ok(()),
            Readiness::Dead(why) => Err(no_gateway(&why)),
        }
    }

    /// Gives the gateway the network of a cell.
    ///
    /// # Errors
    /// What sending said; the cell is of no use then.
    pub(super) fn open_network(
        &mut self,
        slot: Slot,
        key: KeyId,
        ends: &NetworkEnds,
    ) -> Result<(), Errno> {
        let name = self.keys.get(key).map(|key| key.profile.clone()).ok_or(Errno::ENOENT)?;
        let profile = self.profiles.iter().position(|profile| *profile == name);
        let profile = profile.and_then(|index| u16::try_from(index).ok()).ok_or(Errno::ENOENT)?;
        let gateway = self.gateway.as_mut().ok_or(Errno::EPIPE)?;
        let cell = CellKey { slot: u32::from(slot.number()), generation: gateway.next };
        gateway.next += 1;
        let fds = [ends.packets.as_fd(), ends.lifeline.as_fd()];
        gateway.send(&ToGateway::Open { cell, profile, seed: ends.seed }, &fds)?;
        gateway.cells.insert(slot.number(), cell);
        Ok(())
    }

    /// Reports to the gateway that a call begins in the cell of a slot, if there is a gateway.
    ///
    /// # Errors
    /// The reason for refusing the call.
    pub(super) fn begin_network(
        &mut self,
        slot: Slot,
        call: CallId,
        only: Option<Only>,
    ) -> Result<(), Failure> {
        match &mut self.gateway {
            Some(gateway) => gateway.begin(slot, call, only),
            None => Ok(()),
        }
    }

    /// Asks for the tally of a call that has ended. Returns the end if it can be reported at once.
    pub(super) fn ask_network(&mut self, call: CallId, ended: Ended) -> Option<Ended> {
        match &mut self.gateway {
            Some(gateway) => gateway.ask(call, ended),
            None => Some(ended),
        }
    }

    /// Reports to the gateway that the cell of a slot has ended.
    pub(super) fn close_network(&mut self, slot: Slot) {
        let Some(gateway) = &mut self.gateway else { return };
        if let Some(cell) = gateway.forget(slot) {
            // The gateway sees the end of the cell's lifeline as well.
            gateway.send(&ToGateway::Close { cell }, &[]).unwrap_or_default();
        }
    }

    /// Reads what the gateway has sent.
    pub(super) fn read_gateway(&mut self) {
        let mut buffer = self.room();
        // Bounded: a cell that is denied much, or a worker that was taken over, must not keep all others waiting.
        for _ in 0..FRAMES {
            buffer.clear();
            let Some(gateway) = &mut self.gateway else { break };
            let Some(link) = gateway.descriptor() else { break };
            match socket::receive_into(link, &mut buffer, PacketWait::No) {
                Err(Errno::EAGAIN) => break,
                Ok(received) if received.bytes > 0 => {}
                Ok(_) | Err(_) => gateway.die("its process has ended"),
            }
            let frame = wire::decode::<FromGateway>(&buffer);
            let over = frame.ok().and_then(|frame| gateway.hear(frame));
            for (cell, call, connection) in std::mem::take(&mut gateway.connections) {
                // A slow front end gets fewer lines, and the number of those left out.
                match self.outbox.has_room_for_records() {
                    true => self.tell(&Event::Connection { call, connection }, None),
                    false => self.leave_out(cell),
                }
            }
            if let Some((call, ended)) = over {
                self.tell_end(call, ended);
            }
        }
        self.buffer = buffer;
        self.end_lost();
        self.refuse_without_gateway();
    }

    fn leave_out(&mut self, cell: CellKey) {
        if let Some(gateway) = &mut self.gateway {
            gateway.left_out(cell);
        }
    }

    /// Ends the calls that have lost their network.
    fn end_lost(&mut self) {
        let lost = self.gateway.as_mut().map(GatewayLink::take_lost).unwrap_or_default();
        for (call, why) in lost {
            self.stop(call, Outcome::Failed(Failure::Network { why }));
        }
    }

    /// Answers for the calls whose tally did not come in time.
    pub(super) fn pass_gateway_deadlines(&mut self, now: Instant) {
        if let Some(gateway) = &mut self.gateway {
            gateway.send_waiting();
        }
        let over = self.gateway.as_mut().map(|gateway| gateway.overdue(now)).unwrap_or_default();
        let any = !over.is_empty();
        over.into_iter().for_each(|(call, ended)| self.tell_end(call, ended));
        self.end_lost();
        if any || self.gateway.as_ref().is_some_and(|gateway| gateway.descriptor().is_none()) {
            self.refuse_without_gateway();
        }
    }

    /// Refuses the jobs that wait for cells with egress, if the gateway is dead.
    fn refuse_without_gateway(&mut self) {
        let mut place = 0;
        while let Some(ready) = self.queue.get(place) {
            let call = ready.start.call;
            let key = ready.key;
            match self.check_gateway(key) {
                Ok(()) => place += 1,
                Err(failure) => {
                    drop(self.queue.remove(place));
                    self.end(call, Ended::failed(failure));
                }
            }
        }
    }
}
