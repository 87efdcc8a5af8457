//! The parts that a new cell is made from, and the results of the steps that init and payload share.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;

use super::bare::{self, store};
use super::kept_network::LentNetwork;
use super::report::{self, ToInit};
use super::slot::Slot;
use super::{At, Design, Shared, Step, StepFailed};
use super::{cgroup, landlock, proc};
use sys::socket::{self, PacketWait};

/// Everything that a new cell is made from, prepared before the clone.
#[derive(Debug, Clone, Copy)]
pub struct CellSpec<'a> {
    pub design: &'a Design,
    pub shared: &'a Shared,
    pub slot: Slot,
    /// Descriptors that give other cells' programs their input, which ends when all copies are closed.
    pub inputs: &'a [BorrowedFd<'a>],
    /// The cell's private directory on the host, in the tier without mounts.
    pub private: Option<&'a store::Private>,
    /// Processes that RLIMIT_NPROC counts together with the cell's.
    pub others: u64,
    /// The cell's control group, if it has one.
    pub group: Option<&'a cgroup::ControlGroup>,
    /// Init's end of its socket to the supervisor.
    pub control: BorrowedFd<'a>,
    /// The payload's end of its socket to the supervisor.
    pub job: BorrowedFd<'a>,
    /// The end of a pipe by which the gateway sees that init has ended, in cells with egress.
    pub lifeline: Option<BorrowedFd<'a>>,
    /// A socket pair between init and payload, for the listener.
    pub handoff: (BorrowedFd<'a>, BorrowedFd<'a>),
    /// The network namespace that the cell is cloned into; `None` if it gets a fresh one.
    pub network: Option<LentNetwork<'a>>,
}

impl CellSpec<'_> {
    /// Waits until the supervisor has written the id maps, or in the tier without namespaces, until it has
    /// finished the steps that only it can do.
    ///
    /// # Errors
    /// EPROTO: another message came first.
    pub(super) fn await_maps(&self) -> Result<(), StepFailed> {
        let mut buffer = [0; 16];
        let received =
            socket::receive(self.control, &mut buffer, PacketWait::Yes).at(Step::Link)?;
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match report::decode::<ToInit>(bytes).at(Step::Link)? == ToInit::Mapped {
            true => Ok(()),
            false => Err(StepFailed { step: Step::Link, errno: Errno::EPROTO }),
        }
    }
}

/// Results of the shared steps, for init and payload.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The payload's Landlock layer.
    pub ruleset: landlock::PreparedRules,
    /// A procfs of this cell, if init watches memory or mediates calls.
    pub procfs: Option<OwnedFd>,
    /// Links in `/proc` that programs can resolve only while init holds them.
    pub links: Option<proc::SelfLinks>,
    /// The Landlock domain that identifies the cell's processes, in the tier without pid namespaces.
    pub domain: Option<bare::Domain>,
    /// Init's socket for questions for names, in cells where no name resolves.
    pub questions: Option<OwnedFd>,
}
