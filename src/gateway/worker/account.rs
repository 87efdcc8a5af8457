//! Counts the network use of a cell's calls: connections, refusals, bytes, and the limits on them.
//!
//! In a session a connection belongs to the call in which it began: for as long as it is open, its
//! bytes count for that call and the limits of that call apply. Bytes of earlier calls' connections
//! are reported in the session's sums.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::refusal::NetworkRefusal;
use model::egress::frames::CallId;
use model::egress::{Denied, EgressLimits, SessionUse, TALLY_ROWS, Tally, TallyRow};

/// Time between two checks of an exhausted rate.
const RATE_TICK: Duration = Duration::from_millis(10);

/// Direction of bytes, as seen from the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Sent,
    Received,
}

/// Call, destination and rule under which bytes are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The call in which the connection began. It counts for that call until it release_slot, even if
    /// later calls begin.
    pub call: CallId,
    pub to: String,
    pub rule: String,
}

/// How much may be moved now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowance {
    Bytes(usize),
    /// The rate is exhausted for this long.
    Wait(Duration),
    /// A limit of the call is reached.
    Over,
}

/// The tally of one call.
#[derive(Debug, Default)]
struct CallAccount {
    tally: Tally,
    /// Open connections and flows of the call.
    open: u32,
}

/// Tallies and limits of the cell's calls: the current one, and earlier ones of the session with
/// open connections.
#[derive(Debug)]
pub(crate) struct Account {
    current: CallId,
    calls: HashMap<CallId, CallAccount>,
    /// Sums over all calls of the cell.
    session: SessionUse,
    /// True once a second call has begun.
    is_session: bool,
    /// Connections missing from the audit log since the last tally.
    unlisted: u64,
    limits: EgressLimits,
    /// Bytes that the rate allowed at time `filled`.
    bucket: u64,
    filled: Instant,
}

impl Account {
    pub(crate) fn new(limits: EgressLimits, call: CallId) -> Self {
        Self {
            current: call,
            calls: HashMap::from([(call, CallAccount::default())]),
            session: SessionUse::default(),
            is_session: false,
            unlisted: 0,
            limits,
            bucket: limits.rate.unwrap_or_default(),
            filled: Instant::now(),
        }
    }

    /// Begins a call; connections that begin from now on count for it.
    pub(crate) fn begin(&mut self, call: CallId) {
        self.calls.retain(|_, account| account.open > 0);
        self.calls.entry(call).or_default();
        self.current = call;
        self.is_session = true;
    }

    pub(crate) fn call(&self) -> CallId {
        self.current
    }

    /// Returns the tally of a call, with the sums of its session. The tally of an unknown call is
    /// marked incomplete.
    pub(crate) fn tally(&mut self, call: CallId) -> Tally {
        let Some(account) = self.calls.get(&call) else {
            return Tally { incomplete: true, ..Tally::default() };
        };
        let session = self.is_session.then_some(self.session);
        let tally = Tally { session, unlisted: self.unlisted, ..account.tally.clone() };
        // Each of these is reported once.
        self.session.earlier_sent = 0;
        self.session.earlier_received = 0;
        self.unlisted = 0;
        tally
    }

    /// Counts connections that get no line in the audit log.
    pub(crate) fn count_unlisted(&mut self, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.unlisted = self.unlisted.saturating_add(count);
    }

    /// Checks that one more connection may open, and that the call and its session have bytes left.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn check_room(&self, call: CallId) -> Result<(), NetworkRefusal> {
        self.check_bytes_left(call, Direction::Sent, 1)?;
        self.check_bytes_left(call, Direction::Received, 1)?;
        let open = self.calls.values().map(|account| account.open).fold(0, u32::saturating_add);
        if open >= self.limits.connections {
            return Err(limit("egress_limits.connections"));
        }
        Ok(())
    }

    /// Checks that a call and its session have this many bytes left. A forgotten call has no bytes
    /// left, as its use is no longer known.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn check_bytes_left(
        &self,
        call: CallId,
        direction: Direction,
        bytes: u64,
    ) -> Result<(), NetworkRefusal> {
        if !self.calls.contains_key(&call) {
            let reason = "its call has ended, and another has begun".to_owned();
            return Err(NetworkRefusal::new(reason));
        }
        if self.left_of_call(call, direction) < bytes {
            return Err(limit(match direction {
                Direction::Sent => "egress_limits.sent",
                Direction::Received => "egress_limits.received",
            }));
        }
        if self.left_of_session(direction) < bytes {
            return Err(limit(match direction {
                Direction::Sent => "egress_limits.session_sent",
                Direction::Received => "egress_limits.session_received",
            }));
        }
        Ok(())
    }

    /// Takes one of the slots for open connections, until [`Self::release_slot`].
    ///
    /// # Errors
    /// Same as [`Self::check_room`]; no slot is taken then.
    pub(crate) fn take_slot(&mut self, call: CallId) -> Result<(), NetworkRefusal> {
        self.check_room(call)?;
        let account = self.calls.entry(call).or_default();
        account.open = account.open.saturating_add(1);
        Ok(())
    }

    /// Counts a connection or flow for its destination.
    pub(crate) fn count_opened(&mut self, entry: &Entry) {
        self.session.connections = self.session.connections.saturating_add(1);
        let Some(account) = self.calls.get_mut(&entry.call) else { return };
        account.tally.connections = account.tally.connections.saturating_add(1);
        match account.row(entry) {
            Some(row) => row.connections = row.connections.saturating_add(1),
            None => account.tally.more = account.tally.more.saturating_add(1),
        }
    }

    pub(crate) fn release_slot(&mut self, call: CallId) {
        if let Some(account) = self.calls.get_mut(&call) {
            account.open = account.open.saturating_sub(1);
        }
    }

    /// Counts moved bytes for a connection.
    pub(crate) fn count_moved(&mut self, entry: &Entry, direction: Direction, bytes: usize) {
        self.count_bytes(entry.call, direction, bytes);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let row = self.calls.get_mut(&entry.call).and_then(|account| account.row(entry));
        if let Some(row) = row {
            let count = match direction {
                Direction::Sent => &mut row.sent,
                Direction::Received => &mut row.received,
            };
            *count = count.saturating_add(bytes);
        }
    }

    /// Counts a question that is sent to a resolver of the host, and its bytes.
    pub(crate) fn count_question(&mut self, call: CallId, bytes: usize) {
        self.count_bytes(call, Direction::Sent, bytes);
        let Some(account) = self.calls.get_mut(&call) else { return };
        account.tally.questions = account.tally.questions.saturating_add(1);
    }

    /// Counts bytes in the sums of a call and of its session.
    pub(crate) fn count_bytes(&mut self, call: CallId, direction: Direction, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.limits.rate.is_some() {
            self.bucket = self.bucket.saturating_sub(bytes);
        }
        let add = |count: &mut u64| *count = count.saturating_add(bytes);
        match direction {
            Direction::Sent => add(&mut self.session.sent),
            Direction::Received => add(&mut self.session.received),
        }
        if call != self.current {
            match direction {
                Direction::Sent => add(&mut self.session.earlier_sent),
                Direction::Received => add(&mut self.session.earlier_received),
            }
        }
        let Some(account) = self.calls.get_mut(&call) else { return };
        match direction {
            Direction::Sent => add(&mut account.tally.sent),
            Direction::Received => add(&mut account.tally.received),
        }
    }

    /// Returns whether a call may move a packet now. A packet cannot be split, so it must fit what
    /// is left of each limit. A packet longer than a second's worth of the rate waits for a
    /// second's worth only.
    pub(crate) fn allowance_of_packet(
        &mut self,
        call: CallId,
        direction: Direction,
        bytes: usize,
    ) -> Allowance {
        let wanted = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.left_of_call(call, direction).min(self.left_of_session(direction)) < wanted {
            return Allowance::Over;
        }
        match self.allowance(call, direction) {
            Allowance::Bytes(now) if now < bytes && self.bucket < self.limits.rate.unwrap_or(0) => {
                Allowance::Wait(RATE_TICK)
            }
            allowance @ (Allowance::Bytes(_) | Allowance::Wait(_) | Allowance::Over) => allowance,
        }
    }

    /// Returns how many bytes a call may move now. The caller must move and count them without
    /// awaiting in between: otherwise other connections of the call would get the same bytes.
    pub(crate) fn allowance(&mut self, call: CallId, direction: Direction) -> Allowance {
        let left = self.left_of_call(call, direction).min(self.left_of_session(direction));
        if left == 0 {
            return Allowance::Over;
        }
        let Some(rate) = self.limits.rate else { return Allowance::Bytes(bounded(left)) };
        let passed = u64::try_from(self.filled.elapsed().as_millis()).unwrap_or(u64::MAX);
        if passed > 0 {
            let more = rate.saturating_mul(passed) / 1_000;
            // At most a second's worth, so that a pause permits no burst.
            self.bucket = self.bucket.saturating_add(more).min(rate);
            self.filled = Instant::now();
        }
        match self.bucket.min(left) {
            0 => Allowance::Wait(RATE_TICK),
            bytes => Allowance::Bytes(bounded(bytes)),
        }
    }

    fn left_of_call(&self, call: CallId, direction: Direction) -> u64 {
        let tally = self.calls.get(&call).map(|account| &account.tally);
        let (limit, used) = match direction {
            Direction::Sent => (self.limits.sent, tally.map_or(0, |tally| tally.sent)),
            Direction::Received => (self.limits.received, tally.map_or(0, |tally| tally.received)),
        };
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }

    fn left_of_session(&self, direction: Direction) -> u64 {
        let (limit, used) = match direction {
            Direction::Sent => (self.limits.session_sent, self.session.sent),
            Direction::Received => (self.limits.session_received, self.session.received),
        };
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }

    /// Counts a refusal for a call.
    pub(crate) fn count_denied(&mut self, call: CallId, to: String, refusal: NetworkRefusal) {
        self.session.denied = self.session.denied.saturating_add(1);
        let Some(CallAccount { tally, .. }) = self.calls.get_mut(&call) else { return };
        let mut known = tally.denied.iter_mut();
        if let Some(known) = known.find(|known| known.to == to && known.why == refusal.reason) {
            known.count = known.count.saturating_add(1);
        } else if tally.denied.len() < TALLY_ROWS {
            let NetworkRefusal { reason, grant } = refusal;
            tally.denied.push(Denied { to, why: reason, count: 1, grant });
        } else {
            tally.more = tally.more.saturating_add(1);
        }
    }
}

impl CallAccount {
    /// Returns the row of a destination; `None` if the tally has no room for another.
    fn row(&mut self, entry: &Entry) -> Option<&mut TallyRow> {
        let is = |row: &TallyRow| row.to == entry.to && row.rule == entry.rule;
        let rows = &mut self.tally.rows;
        let index = match rows.iter().position(is) {
            Some(index) => index,
            None if rows.len() < TALLY_ROWS => {
                let Entry { to, rule, .. } = entry.clone();
                rows.push(TallyRow { to, rule, connections: 0, sent: 0, received: 0 });
                rows.len().saturating_sub(1)
            }
            None => return None,
        };
        rows.get_mut(index)
    }
}

fn limit(key: &str) -> NetworkRefusal {
    NetworkRefusal::new(format!("limit of the profile: {key}"))
}

fn bounded(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(call: CallId) -> Entry {
        Entry { call, to: "a.org:443".to_owned(), rule: "web".to_owned() }
    }

    fn refusal() -> NetworkRefusal {
        NetworkRefusal::new("no rule")
    }

    #[test]
    fn a_connection_counts_for_the_call_in_which_it_began_until_it_closes() {
        let mut account = Account::new(EgressLimits::default(), 1);
        account.take_slot(1).expect("check_room");
        account.count_opened(&entry(1));
        account.count_moved(&entry(1), Direction::Sent, 10);
        let first = account.tally(1);
        assert_eq!((first.connections, first.sent, first.session), (1, 10, None));
        account.begin(2);
        account.count_moved(&entry(1), Direction::Received, 500);
        let second = account.tally(2);
        assert_eq!((second.connections, second.sent, second.received), (0, 0, 0));
        let session = second.session.expect("a session");
        assert_eq!((session.connections, session.sent, session.received), (1, 10, 500));
        assert_eq!((session.earlier_sent, session.earlier_received), (0, 500));
        // Reported once; the sums stay.
        let again = account.tally(2).session.expect("a session");
        assert_eq!((again.received, again.earlier_received), (500, 0));
        // The first call is known for as long as its connection is open.
        assert_eq!(account.tally(1).received, 500);
        account.release_slot(1);
        account.begin(3);
        assert!(account.tally(1).incomplete);
    }

    #[test]
    fn limits_are_those_of_the_call_of_the_connection_and_of_the_session() {
        let limits = EgressLimits {
            sent: Some(100),
            session_sent: Some(150),
            connections: 2,
            ..EgressLimits::default()
        };
        let mut account = Account::new(limits, 1);
        account.take_slot(1).expect("check_room");
        account.count_moved(&entry(1), Direction::Sent, 100);
        assert_eq!(account.allowance(1, Direction::Sent), Allowance::Over);
        account.begin(2);
        // A connection of the first call gets no more by the second.
        assert_eq!(account.allowance(1, Direction::Sent), Allowance::Over);
        assert_eq!(account.allowance(2, Direction::Sent), Allowance::Bytes(50));
        account.take_slot(2).expect("check_room");
        // Both calls have an open connection.
        let full = account.take_slot(2).expect_err("no check_room");
        assert_eq!(full.reason, "limit of the profile: egress_limits.connections");
        account.release_slot(1);
        account.count_moved(&entry(2), Direction::Sent, 50);
        assert_eq!(account.allowance(2, Direction::Sent), Allowance::Over);
        account.begin(3);
        let over = account.take_slot(3).expect_err("no bytes");
        assert_eq!(over.reason, "limit of the profile: egress_limits.session_sent");
    }

    #[test]
    fn a_connection_that_comes_after_its_call_was_forgotten_gets_no_second_limit() {
        let limits = EgressLimits { sent: Some(100), ..EgressLimits::default() };
        let mut account = Account::new(limits, 1);
        account.take_slot(1).expect("check_room");
        account.count_moved(&entry(1), Direction::Sent, 100);
        // A second connection of the call is pending meanwhile.
        account.release_slot(1);
        account.begin(2);
        let refused = account.take_slot(1).expect_err("a call that is forgotten");
        assert_eq!(refused.reason, "its call has ended, and another has begun");
        assert!(account.tally(1).incomplete);
        account.take_slot(2).expect("check_room");
    }

    #[test]
    fn a_packet_is_moved_whole_or_not_and_a_question_counts_as_sent() {
        let limits = EgressLimits { sent: Some(100), ..EgressLimits::default() };
        let mut account = Account::new(limits, 1);
        assert_eq!(account.allowance_of_packet(1, Direction::Sent, 100), Allowance::Bytes(100));
        account.count_question(1, 40);
        assert_eq!(account.allowance_of_packet(1, Direction::Sent, 61), Allowance::Over);
        assert_eq!(account.allowance_of_packet(1, Direction::Sent, 60), Allowance::Bytes(60));
        account.count_bytes(1, Direction::Received, 70);
        let tally = account.tally(1);
        assert_eq!(
            (tally.questions, tally.connections, tally.sent, tally.received),
            (1, 0, 40, 70)
        );
        assert!(tally.rows.is_empty() && !tally.is_empty());
        // A packet waits for its bytes of the rate, for those of a second at most.
        let limits = EgressLimits { rate: Some(1_000), ..EgressLimits::default() };
        let mut account = Account::new(limits, 1);
        assert_eq!(account.allowance_of_packet(1, Direction::Sent, 5_000), Allowance::Bytes(1_000));
        account.count_bytes(1, Direction::Sent, 900);
        assert_eq!(
            account.allowance_of_packet(1, Direction::Sent, 500),
            Allowance::Wait(RATE_TICK)
        );
        assert_eq!(account.allowance_of_packet(1, Direction::Sent, 50), Allowance::Bytes(100));
    }

    #[test]
    fn a_refusal_that_comes_after_its_call_is_one_of_the_session() {
        let mut account = Account::new(EgressLimits::default(), 1);
        account.begin(2);
        account.count_denied(1, "a.org:25".to_owned(), refusal());
        account.count_denied(2, "b.org:25".to_owned(), refusal());
        let tally = account.tally(2);
        assert_eq!(tally.denied.len(), 1);
        assert_eq!(tally.session.map(|session| session.denied), Some(2));
    }
}
