//! The network of cells: which can be used, and what of it the gateway serves.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::PollFlags;

use super::gateway::{GatewayLink, GatewayState, Readiness, no_gateway};
use super::outbox::Outbox;
use crate::cells::cell::{Cell, NetworkEnds};
use cell::Design;
use cell::slot::Slot;
use model::egress::Only;
use model::egress::frames::{CellKey, FromGateway, ToGateway};
use model::job::ProfileName;
use model::outcome::{Ended, Failure};
use model::wire::{self, CallId, Event};
use sys::socket::{self, PacketWait};

/// The gateway, if one was started, and the profiles by which it knows the rules of cells.
#[derive(Debug)]
pub(crate) struct Network {
    gateway: Option<GatewayLink>,
    /// Names of all profiles, in the order in which the gateway has them too.
    profiles: Vec<ProfileName>,
}

impl Network {
    pub(super) fn new(gateway: Option<Arc<OwnedFd>>, profiles: Vec<ProfileName>) -> Self {
        Self { gateway: gateway.map(GatewayLink::new), profiles }
    }

    /// Returns the link to a gateway that is alive, and the events to wait for.
    pub(super) fn link(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let gateway = self.gateway.as_ref()?;
        Some((gateway.descriptor()?, gateway.interest()))
    }

    /// Returns the soonest instant at which something is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.gateway.as_ref().and_then(GatewayLink::next_deadline)
    }

    /// Returns whether cells of a design can have a job. Cells with egress can only while the gateway serves.
    pub(super) fn readiness(&self, design: Option<&Design>) -> Readiness {
        if design.is_none_or(|design| design.network.is_none()) {
            return Readiness::Ready;
        }
        match self.gateway.as_ref().map(|gateway| &gateway.state) {
            Some(GatewayState::Up(_)) => Readiness::Ready,
            Some(GatewayState::Starting(..)) => Readiness::Starting,
            Some(GatewayState::Dead(why)) => Readiness::Dead(why.clone()),
            None => Readiness::Dead("it was not started".to_owned()),
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
    pub(super) fn take_from(
        &mut self,
        cell: &mut Cell,
        profile: Option<&ProfileName>,
    ) -> Result<(), Errno> {
        if let (Some(links), Some(gateway)) = (cell.network.links.take(), &mut self.gateway) {
            gateway.links.insert(cell.slot.number(), links);
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
    pub(super) fn begin(
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
    pub(super) fn ask(&mut self, call: CallId, ended: Ended) -> Option<Ended> {
        match &mut self.gateway {
            Some(gateway) => gateway.ask(call, ended),
            None => Some(ended),
        }
    }

    /// Reports to the gateway that the cell of a slot has ended.
    pub(super) fn close(&mut self, slot: Slot) {
        let Some(gateway) = &mut self.gateway else { return };
        if let Some(cell) = gateway.forget(slot) {
            // The gateway sees the end of the cell's lifeline as well.
            gateway.send(&ToGateway::Close { cell }, &[]).unwrap_or_default();
        }
    }

    /// Reads one frame of the gateway into `buffer`, and passes on the connections that it reports. Continues with
    /// the call that has its tally now, and breaks if there is no frame.
    pub(super) fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        outbox: &mut Outbox,
    ) -> ControlFlow<(), Option<(CallId, Ended)>> {
        let Some(gateway) = &mut self.gateway else { return ControlFlow::Break(()) };
        let Some(link) = gateway.descriptor() else { return ControlFlow::Break(()) };
        match socket::receive_into(link, buffer, PacketWait::No) {
            Err(Errno::EAGAIN) => return ControlFlow::Break(()),
            Ok(received) if received.bytes > 0 => {}
            Ok(_) | Err(_) => {
                gateway.die("its process has ended");
                return ControlFlow::Break(());
            }
        }
        let frame = wire::decode::<FromGateway>(buffer);
        let over = frame.ok().and_then(|frame| gateway.take(frame));
        for (cell, call, connection) in std::mem::take(&mut gateway.connections) {
            // A slow front end gets fewer lines, and the number of those left out.
            match outbox.has_room_for_records() {
                true => outbox.send(&Event::Connection { call, connection }, None),
                false => gateway.left_out(cell),
            }
        }
        ControlFlow::Continue(over)
    }

    /// Takes out the calls that run and have lost their network, with the reason.
    pub(super) fn take_lost(&mut self) -> Vec<(CallId, String)> {
        self.gateway.as_mut().map(GatewayLink::take_lost).unwrap_or_default()
    }

    /// Sends frames that wait, and takes out the calls whose tally did not come in time.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<(CallId, Ended)> {
        let Some(gateway) = &mut self.gateway else { return Vec::new() };
        gateway.send_waiting();
        gateway.overdue(now)
    }

    /// Returns whether a gateway was started and has ended.
    pub(super) fn is_dead(&self) -> bool {
        self.gateway.as_ref().is_some_and(|gateway| gateway.descriptor().is_none())
    }
}
