//! The supervisor's end of the link to the gateway: which cells have a network by it, and what their calls did.
//!
//! The gateway reads what cells send, so nothing that it says is trusted: texts are bounded, and a frame of a cell
//! that is gone, or of a call that was not asked about, is ignored. Without a gateway no call with egress
//! starts, and no call falls back to another network.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;

use crate::cells::link_counters::LinkCounters;
use cell::report::raw;
use cell::slot::Slot;
use model::egress::frames::{CellKey, FromGateway, ToGateway};
use model::egress::{Connection, ConnectionEnd, Denied, Only, QUESTION, TALLY_ROWS, Tally};
use model::job::ProfileName;
use model::outcome::{Ended, Failure};
use model::wire::{self, CallId};
use sys::socket;

/// Maximum wait for the tally of a call that has ended; after it the reply says that the tally is incomplete.
const TALLY_TIME: Duration = Duration::from_millis(200);
/// Maximum wait for the gateway's first frame.
const START_TIME: Duration = Duration::from_secs(5);
/// Maximum frames that wait for room on the link. A gateway that leaves more unread is treated as dead.
const MAX_WAITING: usize = 4_096;
/// Maximum calls whose connections are reported one by one, and maximum connections of one call. The tally has
/// the sums of all.
const MAX_BEGUN: usize = 256;
const MAX_CONNECTIONS: u32 = 1_024;
/// Maximum denied connections and questions for names of one call that are reported.
const MAX_DENIED: u32 = 128;
/// Bytes of one text of a tally; a name of the DNS with its port has 260.
const TEXT_BYTES: usize = 512;

/// The state of the gateway.
#[derive(Debug)]
pub(super) enum GatewayState {
    /// It has not reported yet that it serves. It is given up after this instant.
    Starting(Arc<OwnedFd>, Instant),
    Up(Arc<OwnedFd>),
    /// It has ended or was not started, for this reason.
    Dead(String),
}

/// The supervisor's end of the link to the gateway.
#[derive(Debug)]
pub(crate) struct GatewayLink {
    pub(super) state: GatewayState,
    /// Names of all profiles, in the order in which the gateway has them too.
    pub(super) profiles: Vec<ProfileName>,
    /// Number of the next cell, never used twice.
    pub(super) next: u64,
    /// Cells that it serves, by the number of their slot.
    pub(super) cells: BTreeMap<u16, CellKey>,
    /// Counters of their links, by the number of their slot too.
    pub(super) links: BTreeMap<u16, LinkCounters>,
    /// The latest calls with their cells and the number of connections reported for each. A connection may close
    /// after its call has ended.
    begun: VecDeque<(CallId, CellKey, u32)>,
    /// Connections to report.
    pub(super) connections: Vec<(CellKey, CallId, Connection)>,
    /// Connections of which the audit log gets no line, by cell, since the last tally of each.
    unlisted: BTreeMap<CellKey, u64>,
    /// Calls that run in these cells.
    calls: BTreeMap<CallId, CellKey>,
    /// Cells whose network is gone, with the reason.
    pub(super) failed: BTreeMap<CellKey, String>,
    /// Calls that have ended and whose reports wait for the gateway's tally.
    awaited: BTreeMap<CallId, AwaitedTally>,
    /// Frames for which the link had no room, in their order.
    waiting: VecDeque<Vec<u8>>,
    /// Calls that run, whose network is gone, with the reason; they are to be ended.
    lost: Vec<(CallId, String)>,
}

/// The end of a call whose tally the gateway was asked for.
#[derive(Debug)]
struct AwaitedTally {
    cell: CellKey,
    ended: Ended,
    deadline: Instant,
}

/// Readiness of the gateway for the cells of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The gateway serves, or the cells need no gateway.
    Ready,
    Starting,
    Dead(String),
}

impl GatewayLink {
    /// Begins with the link to a gateway; without one, no cell has a network.
    pub(crate) fn new(link: Option<Arc<OwnedFd>>, profiles: Vec<ProfileName>) -> Self {
        let state = match link {
            Some(link) => GatewayState::Starting(link, Instant::now() + START_TIME),
            None => GatewayState::Dead("it was not started".to_owned()),
        };
        Self {
            state,
            profiles,
            next: 0,
            cells: BTreeMap::new(),
            links: BTreeMap::new(),
            begun: VecDeque::new(),
            connections: Vec::new(),
            unlisted: BTreeMap::new(),
            calls: BTreeMap::new(),
            failed: BTreeMap::new(),
            awaited: BTreeMap::new(),
            waiting: VecDeque::new(),
            lost: Vec::new(),
        }
    }

    /// Returns the link, while the gateway has the other end.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            GatewayState::Starting(link, _) | GatewayState::Up(link) => Some(link.as_fd()),
            GatewayState::Dead(_) => None,
        }
    }

    /// Sends a frame, at once or as soon as the link has room. A gateway that does not read any more is given up.
    ///
    /// # Errors
    /// EAGAIN: there is no room, and the frame has descriptors or narrows a call, whose packets would come before it:
    /// such frames are not kept. After any other error the gateway is dead.
    pub(super) fn send(&mut self, frame: &ToGateway, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let Some(link) = self.descriptor() else { return Err(Errno::EPIPE) };
        let bytes = wire::encode(frame).map_err(|_| Errno::E2BIG)?;
        let narrows = matches!(frame, ToGateway::Begin { only: Some(_), .. });
        let sent = match self.waiting.is_empty() {
            true => socket::send_now(link, &bytes, fds),
            false => Err(Errno::EAGAIN),
        };
        match sent {
            Err(Errno::EAGAIN) if !fds.is_empty() || narrows => sent,
            Err(Errno::EAGAIN) if self.waiting.len() < MAX_WAITING => {
                self.waiting.push_back(bytes);
                Ok(())
            }
            Err(errno) => {
                self.die_refusing(errno);
                sent
            }
            Ok(()) => sent,
        }
    }

    fn die_refusing(&mut self, errno: Errno) {
        self.die(&format!("it takes no frames ({})", model::outcome::errno_text(raw(errno))));
    }

    /// Returns the events of the link to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        match self.waiting.is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLIN | PollFlags::POLLOUT,
        }
    }

    /// Sends frames that wait, as far as the link has room.
    pub(super) fn send_waiting(&mut self) {
        while let (Some(link), Some(frame)) = (self.descriptor(), self.waiting.front()) {
            match socket::send_now(link, frame, &[]) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(Errno::EAGAIN) => return,
                Err(errno) => self.die_refusing(errno),
            }
        }
    }

    pub(super) fn die(&mut self, why: &str) {
        if !matches!(self.state, GatewayState::Dead(_)) {
            tracing::error!(why, "the gateway is gone: no call reaches a network");
            self.state = GatewayState::Dead(why.to_owned());
            let why = format!("the gateway has ended: {why}");
            self.lost.extend(self.calls.keys().map(|call| (*call, why.clone())));
        }
    }

    /// Takes out the calls that run and have lost their network, with the reason.
    pub(super) fn take_lost(&mut self) -> Vec<(CallId, String)> {
        std::mem::take(&mut self.lost)
    }

    /// Returns the soonest instant at which something is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let start = match &self.state {
            GatewayState::Starting(_, deadline) => Some(*deadline),
            GatewayState::Up(_) | GatewayState::Dead(_) => None,
        };
        let lost = (!self.lost.is_empty()).then(Instant::now);
        self.awaited.values().map(|awaited| awaited.deadline).chain(start).chain(lost).min()
    }

    /// Reports to the gateway that a call begins in the cell of a slot, narrowed to `only`.
    ///
    /// # Errors
    /// The reason for refusing the call: without the frame, its narrowing would not hold.
    pub(super) fn begin(
        &mut self,
        slot: Slot,
        call: CallId,
        only: Option<Only>,
    ) -> Result<(), Failure> {
        let Some(cell) = self.cells.get(&slot.number()).copied() else { return Ok(()) };
        match self.send(&ToGateway::Begin { cell, call, only }, &[]) {
            Ok(()) => {
                self.calls.insert(call, cell);
                self.begun.push_back((call, cell, 0));
                let is_over = |(one, ..): &(CallId, CellKey, u32)| !self.calls.contains_key(one);
                if self.begun.len() > MAX_BEGUN
                    && let Some(at) = self.begun.iter().position(is_over)
                {
                    self.begun.remove(at);
                }
                if let Some(why) = self.failed.get(&cell) {
                    self.lost.push((call, why.clone()));
                }
                Ok(())
            }
            Err(errno) => Err(no_gateway(&model::outcome::errno_text(raw(errno)))),
        }
    }

    /// Asks for the tally of a call that has ended. Returns the end if nothing is to be waited for.
    pub(super) fn ask(&mut self, call: CallId, mut ended: Ended) -> Option<Ended> {
        let Some(cell) = self.calls.remove(&call) else { return Some(ended) };
        if self.has_sent_nothing(cell) {
            return Some(ended);
        }
        if self.send(&ToGateway::Ask { cell, call }, &[]).is_err() {
            ended.network = Some(self.unknown(cell));
            return Some(ended);
        }
        let deadline = Instant::now() + TALLY_TIME;
        self.awaited.insert(call, AwaitedTally { cell, ended, deadline });
        None
    }

    /// Returns true if the cell has a network that works, and has sent nothing by it since it was made. Its processes have
    /// ended, or belong to the shell of a session: what they send counts for the next call.
    fn has_sent_nothing(&self, cell: CellKey) -> bool {
        let is_up = matches!(self.state, GatewayState::Up(_)) && !self.failed.contains_key(&cell);
        let of_cell = |(slot, _): &(&u16, &CellKey)| u32::from(**slot) == cell.slot;
        let open = self.cells.iter().find(of_cell).filter(|(_, open)| **open == cell);
        let links = open.and_then(|(slot, _)| self.links.get(slot));
        is_up && links.is_some_and(LinkCounters::is_silent)
    }

    /// Returns the tally of a call about which the gateway says nothing.
    fn unknown(&self, cell: CellKey) -> Tally {
        let why = match (&self.state, self.failed.get(&cell)) {
            (GatewayState::Dead(why), _) => Some(format!("the gateway has ended: {why}")),
            (_, Some(why)) => Some(format!("the network of this cell has ended: {why}")),
            (GatewayState::Starting(..) | GatewayState::Up(_), None) => None,
        };
        let denied =
            why.map(|why| Denied { to: "every host".to_owned(), why, count: 1, grant: None });
        Tally { denied: denied.into_iter().collect(), incomplete: true, ..Tally::default() }
    }

    /// Takes out the calls whose tally did not come in time: all that wait if the gateway is dead.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<(CallId, Ended)> {
        if matches!(&self.state, GatewayState::Starting(_, deadline) if *deadline <= now) {
            self.die("it did not start in time");
        }
        let is_dead = matches!(self.state, GatewayState::Dead(_));
        let over: Vec<CallId> = self
            .awaited
            .iter()
            .filter(|(_, awaited)| is_dead || awaited.deadline <= now)
            .map(|(call, _)| *call)
            .collect();
        let take = |call: CallId| {
            let AwaitedTally { cell, mut ended, .. } = self.awaited.remove(&call)?;
            ended.network = Some(self.unknown(cell));
            Some((call, ended))
        };
        over.into_iter().filter_map(take).collect()
    }

    /// Counts a connection of an open cell that gets no line in the audit log; the next tally reports the number.
    pub(super) fn left_out(&mut self, cell: CellKey) {
        if self.cells.values().any(|open| *open == cell) {
            let count = self.unlisted.entry(cell).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// Forgets the cell of a slot. Returns its key.
    pub(super) fn forget(&mut self, slot: Slot) -> Option<CellKey> {
        drop(self.links.remove(&slot.number()));
        let cell = self.cells.remove(&slot.number())?;
        self.failed.remove(&cell);
        self.unlisted.remove(&cell);
        Some(cell)
    }

    /// Takes a frame of the gateway. Returns the call that has its tally now.
    pub(super) fn take(&mut self, frame: FromGateway) -> Option<(CallId, Ended)> {
        match frame {
            FromGateway::Up => {
                if let GatewayState::Starting(link, _) = &self.state {
                    self.state = GatewayState::Up(Arc::clone(link));
                }
                None
            }
            FromGateway::Connection { cell, call, connection } => {
                // Denied ones and questions are counted in the tally; they must not use up the lines of the others.
                let request = connection.request.as_deref().unwrap_or_default();
                let is_lesser =
                    connection.end == ConnectionEnd::Denied || request.starts_with(QUESTION);
                let max_reported = if is_lesser { MAX_DENIED } else { MAX_CONNECTIONS };
                let of_call = |one: &&mut (CallId, CellKey, u32)| one.0 == call && one.1 == cell;
                match self.begun.iter_mut().find(of_call) {
                    Some((_, _, reported)) if *reported < max_reported => {
                        *reported += 1;
                        self.connections.push((cell, call, harmless_connection(connection)));
                    }
                    Some(_) | None => self.left_out(cell),
                }
                None
            }
            FromGateway::Last { .. } => None,
            FromGateway::Tally { cell, call, tally } => {
                let is_of = |awaited: &AwaitedTally| awaited.cell == cell;
                if !self.awaited.get(&call).is_some_and(is_of) {
                    return None;
                }
                let AwaitedTally { mut ended, .. } = self.awaited.remove(&call)?;
                // The gateway knows as little of a cell whose worker has died.
                let tally = match self.failed.contains_key(&cell) {
                    true => self.unknown(cell),
                    false => harmless(tally),
                };
                let unlisted = self.unlisted.remove(&cell).unwrap_or_default();
                let tally = Tally { unlisted: tally.unlisted.saturating_add(unlisted), ..tally };
                ended.network = Some(tally).filter(|tally| !tally.is_empty());
                Some((call, ended))
            }
            FromGateway::Failed { cell: None, why } => {
                self.die(&bounded(&why));
                None
            }
            FromGateway::Failed { cell: Some(cell), why } => {
                if self.cells.values().any(|open| *open == cell) {
                    let why = bounded(&why);
                    let running = self.calls.iter().filter(|(_, of)| **of == cell);
                    self.lost.extend(running.map(|(call, _)| (*call, why.clone())));
                    self.failed.insert(cell, why);
                }
                None
            }
        }
    }
}

/// Returns a text without control characters, and not longer than one of a tally may be.
fn bounded(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(TEXT_BYTES).collect()
}

/// Returns a connection with bounded texts.
fn harmless_connection(connection: Connection) -> Connection {
    let text = |text: Option<String>| text.as_deref().map(bounded);
    let Connection { name, rule, request, .. } = connection;
    Connection { name: text(name), rule: text(rule), request: text(request), ..connection }
}

/// Returns the tally with bounded texts and lists.
fn harmless(mut tally: Tally) -> Tally {
    tally.rows.truncate(TALLY_ROWS);
    tally.denied.truncate(TALLY_ROWS);
    for row in &mut tally.rows {
        (row.to, row.rule) = (bounded(&row.to), bounded(&row.rule));
    }
    for denied in &mut tally.denied {
        (denied.to, denied.why) = (bounded(&denied.to), bounded(&denied.why));
        denied.grant = denied.grant.as_deref().map(bounded);
    }
    tally
}

pub(super) fn no_gateway(why: &str) -> Failure {
    Failure::Refused {
        why: format!("the gateway, by which cells reach a network, has ended: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::cell::packets;
    use model::outcome::Outcome;
    use sys::socket::PacketWait;

    const CELL: CellKey = CellKey { slot: 1, generation: 4 };

    fn ended() -> Ended {
        Ended::new(Outcome::Exited { code: 0 })
    }

    /// A link that is up, with a call in a cell, and the gateway's end of it.
    fn link() -> (GatewayLink, OwnedFd) {
        let (ours, theirs) = packets().expect("a pair");
        let mut link = GatewayLink::new(Some(Arc::new(ours)), Vec::new());
        assert_eq!(link.take(FromGateway::Up).map(|(call, _)| call), None);
        link.cells.insert(1, CELL);
        link.calls.insert(9, CELL);
        (link, theirs)
    }

    fn tally(connections: u64) -> Tally {
        Tally { connections, ..Tally::default() }
    }

    #[test]
    fn a_call_is_reported_with_its_tally_and_a_frame_of_another_cell_is_ignored() {
        let (mut link, _theirs) = link();
        assert!(link.ask(9, ended()).is_none());
        let other = CellKey { generation: 3, ..CELL };
        let late = FromGateway::Tally { cell: other, call: 9, tally: tally(7) };
        assert!(link.take(late).is_none());
        let unasked = FromGateway::Tally { cell: CELL, call: 8, tally: tally(7) };
        assert!(link.take(unasked).is_none());
        let (call, ended) =
            link.take(FromGateway::Tally { cell: CELL, call: 9, tally: tally(2) }).expect("heard");
        assert_eq!((call, ended.network), (9, Some(tally(2))));
        let again = FromGateway::Tally { cell: CELL, call: 9, tally: tally(2) };
        assert!(link.take(again).is_none());
    }

    #[test]
    fn a_tally_that_does_not_come_is_incomplete() {
        let (mut link, _theirs) = link();
        assert!(link.ask(9, ended()).is_none());
        let due = link.next_deadline().expect("a deadline");
        assert!(link.overdue(due - Duration::from_millis(1)).is_empty());
        let reported = link.overdue(due);
        let expected = Tally { incomplete: true, ..Tally::default() };
        assert!(matches!(reported.as_slice(), [(9, ended)] if ended.network == Some(expected)));
    }

    #[test]
    fn running_calls_report_that_the_gateway_ended() {
        let (mut link, theirs) = link();
        drop(theirs);
        let ended = link.ask(9, ended()).expect("answered at once");
        let network = ended.network.expect("a tally");
        let [denied] = network.denied.as_slice() else { panic!("{network:?}") };
        assert!(network.incomplete && denied.why.starts_with("the gateway has ended"));
        assert!(link.descriptor().is_none());
    }

    #[test]
    fn a_call_whose_worker_dies_is_to_be_ended_and_others_are_not() {
        let (mut link, _theirs) = link();
        let other = CellKey { slot: 2, generation: 5 };
        link.cells.insert(2, other);
        link.calls.insert(10, other);
        let failed =
            |cell| FromGateway::Failed { cell: Some(cell), why: "it\u{7} died".to_owned() };
        assert!(link.take(failed(CellKey { generation: 3, ..CELL })).is_none());
        assert_eq!((link.take_lost(), link.next_deadline()), (Vec::new(), None));
        assert!(link.take(failed(CELL)).is_none());
        assert!(link.next_deadline().is_some());
        assert_eq!(link.take_lost(), [(9, "it died".to_owned())]);
        // Its end says so as well, though the gateway answers.
        assert!(link.ask(9, ended()).is_none());
        let answer = Tally { incomplete: true, ..Tally::default() };
        let (_, ended) =
            link.take(FromGateway::Tally { cell: CELL, call: 9, tally: answer }).expect("heard");
        let network = ended.network.expect("a tally");
        assert!(network.incomplete && network.denied.len() == 1, "{network:?}");
        // A call that begins in the cell meanwhile has no network.
        link.begin(Slot::new(1), 11, None).expect("its frame is sent");
        assert_eq!(link.take_lost(), [(11, "it died".to_owned())]);
        link.die("its process has ended");
        let lost: Vec<CallId> = link.take_lost().into_iter().map(|(call, _)| call).collect();
        assert_eq!(lost, [10, 11]);
    }

    #[test]
    fn a_gateway_that_is_slow_gets_its_frames_later_and_in_order() {
        let (mut link, theirs) = link();
        let far = Slot::new(1);
        let mut sent = 0;
        while link.interest() == PollFlags::POLLIN && sent < 100_000 {
            link.begin(far, sent, None).expect("kept");
            sent += 1;
        }
        // Without room the frame waits, and the gateway is not treated as dead.
        let open = ToGateway::Open { cell: CELL, profile: 0, seed: [0; 16] };
        assert_eq!(link.send(&open, &[theirs.as_fd()]), Err(Errno::EAGAIN));
        // Nor is a call begun whose narrowing would come after its packets.
        assert!(link.begin(far, sent, Some(Only::default())).is_err());
        link.begin(far, sent, None).expect("kept");
        sent += 1;
        let mut buffer = vec![0; 4_096];
        let mut read = Vec::new();
        while let Ok(received) = socket::receive(&theirs, &mut buffer, PacketWait::No) {
            let frame = wire::decode(buffer.get(..received.bytes).expect("read"));
            let Ok(ToGateway::Begin { call, .. }) = frame else { panic!("{frame:?}") };
            read.push(call);
            link.send_waiting();
        }
        assert_eq!(read, (0..sent).collect::<Vec<_>>());
        assert!(link.descriptor().is_some() && link.interest() == PollFlags::POLLIN);
        // One that reads nothing at all is given up.
        for call in 0..10_000 {
            link.begin(far, call, None).unwrap_or_default();
        }
        assert!(link.descriptor().is_none());
    }

    #[test]
    fn connections_beyond_the_bound_are_counted_in_the_tally() {
        let (mut link, _theirs) = link();
        link.begun.push_back((9, CELL, 0));
        let one = |end| FromGateway::Connection {
            cell: CELL,
            call: 9,
            connection: Connection {
                protocol: model::egress::Protocol::Tcp,
                name: None,
                address: ([203, 0, 113, 1], 80).into(),
                rule: None,
                sent: 0,
                received: 0,
                milliseconds: 0,
                end,
                request: None,
            },
        };
        for _ in 0..MAX_DENIED + 5 {
            assert!(link.take(one(ConnectionEnd::Denied)).is_none());
        }
        assert_eq!(u32::try_from(link.connections.len()), Ok(MAX_DENIED));
        // Those that a slow front end does not get are added.
        link.left_out(CELL);
        // Reports for unknown cells are ignored.
        link.left_out(CellKey { generation: 3, ..CELL });
        assert!(link.ask(9, ended()).is_none());
        let counted = Tally { unlisted: 2, ..tally(1) };
        let (_, ended) =
            link.take(FromGateway::Tally { cell: CELL, call: 9, tally: counted }).expect("heard");
        assert_eq!(ended.network.map(|tally| tally.unlisted), Some(8));
        assert!(link.unlisted.is_empty());
    }

    #[test]
    fn texts_of_the_gateway_are_bounded_and_harmless() {
        let (mut link, _theirs) = link();
        assert!(link.ask(9, ended()).is_none());
        let text = format!("a\u{1b}[2J{}", "b".repeat(2 * TEXT_BYTES));
        let denied = Denied { to: text.clone(), why: text.clone(), count: 1, grant: Some(text) };
        let tally = Tally { denied: vec![denied; 2 * TALLY_ROWS], ..Tally::default() };
        let (_, ended) =
            link.take(FromGateway::Tally { cell: CELL, call: 9, tally }).expect("heard");
        let denied = ended.network.expect("a tally").denied;
        assert_eq!(denied.len(), TALLY_ROWS);
        let fits = |text: &str| text.len() == TEXT_BYTES && text.starts_with("a[2Jb");
        assert!(denied.iter().all(|one| fits(&one.to) && fits(&one.why)));
        assert!(denied.iter().all(|one| one.grant.as_deref().is_some_and(fits)));
    }
}
