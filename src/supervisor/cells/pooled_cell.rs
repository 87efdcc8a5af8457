//! A cell without a job: it confines itself, is measured, becomes untraceable, and is offered.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cell::CellSocket;
use super::cell::{Cell, Maker, MeasuredCell};
use super::exit::LINGER;
use super::key::KeyId;
use super::queued_job::PrestartFit;
use cell::Design;
use cell::report::{self, FromInit, FromPayload, raw};
use model::outcome::Failure;
use model::receipt::Receipt;
use sys::socket::{self, PacketWait};

/// Set-up that takes longer has hung: the cell is killed and the call told.
const SETUP_TIME: Duration = Duration::from_secs(10);

/// The stage of a cell without a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PooledStage {
    /// It confines itself; the payload reports when it is ready for a job.
    Building,
    /// Measured; init is becoming untraceable, if it is not yet.
    Sealing,
    /// Offered.
    Idle,
    /// Killed, and not collected yet.
    Dead,
}

/// The event in the life of a pooled cell.
#[derive(Debug)]
pub(crate) enum PoolEvent {
    None,
    /// It can be offered from now on.
    Ready,
    /// It is being destroyed, for this reason.
    Failed(Failure),
    /// It was offered and is being destroyed: no job lost anything by it.
    Died,
    /// It is collected: nothing of it is left.
    Gone,
}

/// A cell that has no job yet.
#[derive(Debug)]
pub(crate) struct PooledCell {
    pub key: KeyId,
    pub cell: Cell,
    stage: PooledStage,
    receipt: Option<Receipt>,
    deadline: Instant,
    pub born: Instant,
    pub measured: Option<Instant>,
    /// Its payload's pid, once it was measured.
    pub payload: Option<i32>,
}

impl PooledCell {
    pub(crate) fn new(key: KeyId, cell: Cell) -> Self {
        let born = Instant::now();
        let deadline = born + SETUP_TIME;
        let stage = PooledStage::Building;
        Self { key, cell, stage, receipt: None, deadline, born, measured: None, payload: None }
    }

    /// Returns whether it is, or will be, fit for a call.
    pub(crate) fn is_alive(&self) -> bool {
        self.stage != PooledStage::Dead
    }

    /// Returns whether a job of its key can have it.
    pub(crate) fn takes(&self, fits: PrestartFit) -> bool {
        self.cell.prestarted.is_none() || fits == PrestartFit::Yes
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stage == PooledStage::Idle
    }

    /// When something is due: set-up has hung, nobody wanted the cell, or it is still there although it
    /// was killed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Some(self.deadline)
    }

    /// Takes the cell out of the pool with what it was measured to have.
    pub(crate) fn offer(self) -> Option<(Cell, Receipt)> {
        Some((self.cell, self.receipt?))
    }

    /// Something from the payload-to-be.
    pub(crate) fn read_job(&mut self, design: &Design, maker: &Maker<'_>) -> PoolEvent {
        let mut buffer = [0; 512];
        let received = match socket::receive(&self.cell.job, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::EAGAIN) => return PoolEvent::None,
            // It ended before its time; if it could say why, that was read before this.
            Ok(_) | Err(_) => return self.closed(),
        };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match report::decode::<FromPayload>(bytes) {
            Ok(FromPayload::Ready(probes)) if self.stage == PooledStage::Building => {
                let Some(pid) = received.pid else {
                    return self.fail(Failure::Unmeasured { what: "its pid".to_owned() });
                };
                self.payload = Some(pid);
                // Init seals itself while its payload is measured.
                if let Err(errno) = self.cell.seal() {
                    let step = "talking to the cell".to_owned();
                    return self.fail(Failure::Setup { step, errno: raw(errno) });
                }
                match maker.measure(design, pid, probes) {
                    Ok(MeasuredCell { receipt, links }) => {
                        self.receipt = Some(self.cell.told_in(receipt));
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

    /// The payload's socket closed: at the exec that it was sent, or with the payload.
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

    /// Something from init. `keep` is how long an idle cell is kept.
    pub(crate) fn read_control(&mut self, keep: Duration) -> PoolEvent {
        // Enough for the head of a report: of an end, nobody asks what was refused.
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
            // The payload may have said before that it is ready: the two sockets are read in no order.
            Ok((FromInit::Network, _)) if self.cell.network.is_awaited() => {
                let [packets, ..] = &mut received.fds;
                self.cell.network.got(packets.take());
                PoolEvent::None
            }
            // A cell that has not said so has no network, and would look as if nobody answered.
            Ok((FromInit::Sealed, _)) if self.cell.network.is_awaited() => {
                self.fail(Failure::Unmeasured { what: "its network".to_owned() })
            }
            Ok((FromInit::Sealed, _)) if self.stage == PooledStage::Sealing => {
                self.stage = PooledStage::Idle;
                self.deadline = Instant::now() + keep;
                PoolEvent::Ready
            }
            // The payload's own words, if it has any, say more than that it ended.
            Ok((FromInit::Ended(_), _)) => {
                let failure = self.last_words().unwrap_or(Failure::Lost);
                self.fail(failure)
            }
            Ok((
                FromInit::Sealed
                | FromInit::Network
                | FromInit::Counted(_)
                | FromInit::Shown { .. }
                | FromInit::Confirmed { .. }
                | FromInit::JobEnded(_)
                | FromInit::Input { .. }
                | FromInit::Changed,
                _,
            ))
            | Err(_) => self.fail(Failure::Unmeasured { what: "its init's report".to_owned() }),
        }
    }

    /// The kernel ran out of this cell's memory: what is left of it is not offered, or a job would be
    /// told of a limit that it never met.
    pub(crate) fn out_of_memory(&mut self) -> PoolEvent {
        if !self.cell.took_out_of_memory() {
            return PoolEvent::None;
        }
        self.fail(Failure::Setup {
            step: "building the cell in its memory".to_owned(),
            errno: raw(Errno::ENOMEM),
        })
    }

    fn last_words(&self) -> Option<Failure> {
        let mut buffer = [0; 512];
        let received = socket::receive(&self.cell.job, &mut buffer, PacketWait::No).ok()?;
        match report::decode::<FromPayload>(buffer.get(..received.bytes)?) {
            Ok(FromPayload::Failed { step, errno }) => {
                Some(Failure::Setup { step: step.name().to_owned(), errno })
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// Its init may have ended.
    pub(crate) fn collect(&mut self) -> PoolEvent {
        match self.cell.collect() {
            Ok(None) => PoolEvent::None,
            // ECHILD cannot be: the child is ours and collected once. It is gone either way.
            Ok(Some(_)) | Err(_) => PoolEvent::Gone,
        }
    }

    /// Does what is due: a cell that hangs fails, one that nobody wanted ends.
    pub(crate) fn pass_deadline(&mut self, now: Instant) -> PoolEvent {
        if self.deadline().is_none_or(|deadline| deadline > now) {
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

    /// Ends a cell that is not wanted.
    pub(crate) fn end(&mut self) {
        self.stage = PooledStage::Dead;
        self.deadline = Instant::now() + LINGER;
        // Its sockets have nothing more to say; its pidfd has.
        self.cell.stop_listening(CellSocket::Job);
        self.cell.stop_listening(CellSocket::Control);
        self.cell.kill();
    }

    /// Destroys a cell that cannot be used. Told once: the cell is dead from here on.
    pub(crate) fn fail(&mut self, failure: Failure) -> PoolEvent {
        if self.stage == PooledStage::Dead {
            return PoolEvent::None;
        }
        let offered = self.is_idle();
        self.end();
        if offered { PoolEvent::Died } else { PoolEvent::Failed(failure) }
    }
}
