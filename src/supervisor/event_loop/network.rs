//! The use that cells make of the gateway: which of them have a network, from their set-up to their end.

use std::ops::ControlFlow;
use std::os::fd::AsFd;

use nix::errno::Errno;

use super::gateway::{GatewayLink, GatewayState, Readiness, no_gateway};
use super::outbox::Outbox;
use crate::cells::cell::{Cell, NetworkEnds};
use cell::Design;
use cell::slot::Slot;
use model::egress::frames::{CellKey, FromGateway, ToGateway};
use model::job::ProfileName;
use model::outcome::{Ended, Failure};
use model::wire::{self, CallId, Event};
use sys::socket::{self, PacketWait};

impl GatewayLink {
    /// Returns whether cells of a design can have a job. Cells with egress can only while the gateway serves.
    pub(super) fn readiness(&self, design: Option<&Design>) -> Readiness {
        if design.is_none_or(|design| design.network.is_none()) {
            return Readiness::Ready;
        }
        match &self.state {
            GatewayState::Up(_) => Readiness::Ready,
            GatewayState::Starting(..) => Readiness::Starting,
            GatewayState::Dead(why) => Readiness::Dead(why.clone()),
        }
    }

    /// Refuses a job whose cells need a gateway that is dead.
    pub(super) fn check(&self, design: Option<&Design>) -> Result<(), Failure> {
        match self.readiness(design) {
            Readiness::Ready | Readiness::Starting => Ok(()),
            Readiness::Dead(why) => Err(no_gateway(&why)),
        }
    }

    /// Takes what a new cell has reported of its network, and gives it to the gateway.
    ///
    /// # Errors
    /// The errno of sending; the cell cannot be used then.
    pub(super) fn take_network(
        &mut self,
        cell: &mut Cell,
        profile: Option<&ProfileName>,
    ) -> Result<(), Errno> {
        if let Some(links) = cell.network.links.take() {
            self.links.insert(cell.slot.number(), links);
        }
        match cell.network.take_whole() {
            Some(ends) => self.open(cell.slot, profile.ok_or(Errno::ENOENT)?, &ends),
            None => Ok(()),
        }
    }

    /// Gives the gateway the network of a cell.
    fn open(&mut self, slot: Slot, name: &ProfileName, ends: &NetworkEnds) -> Result<(), Errno> {
        let profile = self.profiles.iter().position(|profile| profile == name);
        let profile = profile.and_then(|index| u16::try_from(index).ok()).ok_or(Errno::ENOENT)?;
        let cell = CellKey { slot: u32::from(slot.number()), generation: self.next };
        self.next += 1;
        let fds = [ends.packets.as_fd(), ends.lifeline.as_fd()];
        self.send(&ToGateway::Open { cell, profile, seed: ends.seed }, &fds)?;
        self.cells.insert(slot.number(), cell);
        Ok(())
    }

    /// Reports to the gateway that the cell of a slot has ended.
    pub(super) fn close(&mut self, slot: Slot) {
        if let Some(cell) = self.forget(slot) {
            // The gateway sees the end of the cell's lifeline as well.
            self.send(&ToGateway::Close { cell }, &[]).unwrap_or_default();
        }
    }

    /// Reads one frame of the gateway into `buffer`, and passes on the connections that it reports. Continues with
    /// the call that has its tally now, and breaks if there is no frame.
    pub(super) fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        outbox: &mut Outbox,
    ) -> ControlFlow<(), Option<(CallId, Ended)>> {
        let Some(link) = self.descriptor() else { return ControlFlow::Break(()) };
        match socket::receive_into(link, buffer, PacketWait::No) {
            Err(Errno::EAGAIN) => return ControlFlow::Break(()),
            Ok(received) if received.bytes > 0 => {}
            Ok(_) | Err(_) => {
                self.die("its process has ended");
                return ControlFlow::Break(());
            }
        }
        let frame = wire::decode::<FromGateway>(buffer);
        let over = frame.ok().and_then(|frame| self.take(frame));
        for (cell, call, connection) in std::mem::take(&mut self.connections) {
            // A slow front end gets fewer lines, and the number of those left out.
            match outbox.has_room_for_records() {
                true => outbox.send(&Event::Connection { call, connection }, None),
                false => self.left_out(cell),
            }
        }
        ControlFlow::Continue(over)
    }
}
