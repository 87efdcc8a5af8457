//! A cell without a job: it sets itself up, is measured, becomes untraceable, and can then be used.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cell::CellSocket;
use super::cell::{Cell, Maker, MeasuredCell};
use super::exit::LINGER;
use super::key::KeyId;
use super::queued_job::PrestartFit;
use cell::Design;
use cell::report::{self, FromInit, FromPayload, raw};
use model::job::Limits;
use model::outcome::Failure;
use model::receipt::Receipt;
use sys::socket::{self, PacketWait};

/// Maximum time of the set-up. A cell that takes longer hangs: it is killed, and the call fails.
const MAX_SETUP_TIME: Duration = Duration::from_secs(10);

/// How long an idle cell is kept.
pub(super) const KEEP_TIME: Duration = Duration::from_secs(60);

/// The stage of a cell without a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PooledStage {
    /// The cell sets itself up; the payload reports when it is ready for a job.
    Building,
    /// Measured; init may still be making itself untraceable.
    Sealing,
    /// Ready for a job.
    Idle,
    /// Killed but not reaped.
    Dead,
}

/// An event in the life of a pooled cell.
#[derive(Debug)]
pub(crate) enum PoolEvent {
    None,
    /// The cell is ready for a job.
    Ready,
    /// The set-up failed for this reason, and the cell was killed.
    Failed(Failure),
    /// A ready cell was killed; no job is affected.
    Died,
    /// The cell is reaped and gone.
    Gone,
}

/// A cell without a job.
#[derive(Debug)]
pub(crate) struct PooledCell {
    pub key: KeyId,
    pub cell: Cell,
    stage: PooledStage,
    receipt: Option<Receipt>,
    /// When the cell must be handled: its set-up hangs, no job wanted it, or it outlived its kill.
    pub deadline: Instant,
    pub born: Instant,
    pub measured: Option<Instant>,
    /// The payload's pid, once it is measured.
    pub payload: Option<i32>,
}

impl PooledCell {
    pub(crate) fn new(key: KeyId, cell: Cell) -> Self {
        let born = Instant::now();
        let deadline = born + MAX_SETUP_TIME;
        let stage = PooledStage::Building;
        Self { key, cell, stage, receipt: None, deadline, born, measured: None, payload: None }
    }

    /// Returns true if the cell is, or will be, ready for a job.
    pub(crate) fn is_alive(&self) -> bool {
        self.stage != PooledStage::Dead
    }

    /// Returns true if a job of the cell's key can use it.
    pub(crate) fn takes(&self, fits: PrestartFit) -> bool {
        self.cell.prestarted.is_none() || fits == PrestartFit::Yes
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stage == PooledStage::Idle
    }

    /// Takes the cell out of the pool, with its receipt for a job that has these limits.
    pub(crate) fn offer(self, limits: &Limits) -> Option<(Cell, Receipt)> {
        let mut receipt = self.receipt?;
        receipt.configured.memory_bytes = limits.memory;
        receipt.configured.processes = limits.processes;
        Some((self.cell, receipt))
    }

    /// Reads a message of the payload.
    pub(crate) fn read_job(&mut self, design: &Design, maker: &mut Maker<'_>) -> PoolEvent {
        let mut buffer = [0; 512];
        let received = match socket::receive(&self.cell.job, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::EAGAIN) => return PoolEvent::None,
            // The payload ended too early; a message with the reason would have been read before
            // this.
            Ok(_) | Err(_) => return self.closed(),
        };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match report::decode::<FromPayload>(bytes) {
            Ok(FromPayload::Ready(probes)) if self.stage == PooledStage::Building => {
                let Some(pid) = received.pid else {
                    return self.fail(Failure::Unmeasured { what: "its pid".to_owned() });
                };
                self.payload = Some(pid);
                // Init makes itself untraceable while the payload is measured.
                if let Err(errno) = self.cell.seal() {
                    let step = "talking to the cell".to_owned();
                    return self.fail(Failure::Setup { step, errno: raw(errno) });
                }
                match maker.measure(design, pid, probes, &self.cell) {
                    Ok(MeasuredCell { receipt, links }) => {
                        self.receipt = Some(self.cell.with_workspace(receipt));
                        self.cell.network.links = links;
                        self.measured = Some(Instant::now());
                        self.stage = PooledStage::Sealing;
                        PoolEvent::None
                    }
                    Err(unfit) => self.fail(Failure::Unmeasured { what: unfit.0 }),
                }
            }
            Ok(FromPayload::Failed { step, errno }) => {
                self.fail(Failure::Setup { step: step.name().to_owned(), errno })
            }
            Ok(FromPayload::Ready(_) | FromPayload::Cwd { .. } | FromPayload::Exec { .. })
            | Err(_) => self.fail(Failure::Unmeasured { what: "its payload's report".to_owned() }),
        }
    }

    /// Handles the closing of the payload's socket: at its exec, or at its end.
    fn closed(&mut self) -> PoolEvent {
        match &mut self.cell.prestarted {
            Some(executed) => {
                executed.execed = true;
                self.cell.stop_listening(CellSocket::Job);
                PoolEvent::None
            }
            None => self.fail(Failure::Lost),
        }
    }

    /// Reads a message of init.
    pub(crate) fn read_control(&mut self) -> PoolEvent {
        // Large enough for the head of a report: the denied calls are not needed here.
        let mut buffer = [0; 512];
        let mut received = match socket::receive(&self.cell.control, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::EAGAIN) => return PoolEvent::None,
            Ok(_) | Err(_) => return self.fail(Failure::Lost),
        };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match postcard::take_from_bytes::<FromInit>(bytes) {
            Ok((FromInit::Failed { step, errno }, _)) => {
                self.fail(Failure::Setup { step: step.name().to_owned(), errno })
            }
            // May arrive after the payload's ready message, as the two sockets are read in any
            // order.
            Ok((FromInit::Network, _)) if self.cell.network.is_awaited() => {
                let [packets, ..] = &mut received.fds;
                self.cell.network.set_packets(packets.take());
                PoolEvent::None
            }
            // Without the packet socket the cell has no network, which would look like an
            // unresponsive one.
            Ok((FromInit::Sealed, _)) if self.cell.network.is_awaited() => {
                self.fail(Failure::Unmeasured { what: "its network".to_owned() })
            }
            Ok((FromInit::Sealed, _)) if self.stage == PooledStage::Sealing => {
                self.stage = PooledStage::Idle;
                self.deadline = Instant::now() + KEEP_TIME;
                PoolEvent::Ready
            }
            // A message of the payload, if there is one, says more than its end.
            Ok((FromInit::Ended(_), _)) => {
                let failure = self.read_failure().unwrap_or(Failure::Lost);
                self.fail(failure)
            }
            Ok((
                FromInit::Sealed
                | FromInit::Network
                | FromInit::Counted(_)
                | FromInit::Shown { .. }
                | FromInit::Confirmed { .. }
                | FromInit::JobEnded(_)
                | FromInit::Input { .. },
                _,
            ))
            | Err(_) => self.fail(Failure::Unmeasured { what: "its init's report".to_owned() }),
        }
    }

    /// Handles that the kernel ran out of this cell's memory. The cell is not used, as its job
    /// would be blamed for a limit that it never reached.
    pub(crate) fn out_of_memory(&mut self) -> PoolEvent {
        if !self.cell.took_out_of_memory() {
            return PoolEvent::None;
        }
        self.fail(Failure::Setup {
            step: "building the cell in its memory".to_owned(),
            errno: raw(Errno::ENOMEM),
        })
    }

    fn read_failure(&self) -> Option<Failure> {
        let mut buffer = [0; 512];
        let received = socket::receive(&self.cell.job, &mut buffer, PacketWait::No).ok()?;
        match report::decode::<FromPayload>(buffer.get(..received.bytes)?) {
            Ok(FromPayload::Failed { step, errno }) => {
                Some(Failure::Setup { step: step.name().to_owned(), errno })
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// Reaps init if it has ended.
    pub(crate) fn collect(&mut self) -> PoolEvent {
        self.cell.collect().map_or(PoolEvent::None, |_| PoolEvent::Gone)
    }

    /// Handles a due deadline: fails a cell whose set-up hangs, and ends one that no job wanted.
    pub(crate) fn pass_deadline(&mut self, now: Instant) -> PoolEvent {
        if self.deadline > now {
            return PoolEvent::None;
        }
        if self.is_idle() || !self.is_alive() {
            self.end();
            return PoolEvent::None;
        }
        self.fail(Failure::Setup {
            step: "building the cell in time".to_owned(),
            errno: raw(Errno::ETIMEDOUT),
        })
    }

    /// Ends a cell that is not needed.
    pub(crate) fn end(&mut self) {
        self.stage = PooledStage::Dead;
        self.deadline = Instant::now() + LINGER;
        // No more messages are expected on its sockets, only the end of its pidfd.
        self.cell.stop_listening(CellSocket::Job);
        self.cell.stop_listening(CellSocket::Control);
        self.cell.kill();
    }

    /// Ends a cell that cannot be used. Reported once, as the cell is dead afterwards.
    pub(crate) fn fail(&mut self, failure: Failure) -> PoolEvent {
        if self.stage == PooledStage::Dead {
            return PoolEvent::None;
        }
        let offered = self.is_idle();
        self.end();
        if offered { PoolEvent::Died } else { PoolEvent::Failed(failure) }
    }
}
