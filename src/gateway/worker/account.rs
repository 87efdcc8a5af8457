//! The account of a cell's calls: what each connected to, what was refused, and the limits.
//!
//! In a session a connection belongs to the call in which it began: its bytes count there, and its call's limits hold it,
//! for as long as it is open. What connections of earlier calls move meanwhile is told as the session's.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use model::egress::frames::CallId;
use model::egress::{Denied, EgressLimits, SessionUse, TALLY_ROWS, Tally, TallyRow};

use super::judge::Refusal;

/// Time between two looks at a rate that is used up.
const RATE_TICK: Duration = Duration::from_millis(10);

/// Direction of bytes, as the cell sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Sent,
    Received,
}

/// Call, destination and rule under which bytes are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The call in which the connection began. It counts for that call until it closes, also in later ones.
    pub call: CallId,
    pub to: String,
    pub rule: String,
}

/// What may be moved now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowance {
    Bytes(usize),
    /// The rate is used up for this long.
    Wait(Duration),
    /// A limit of the call is reached.
    Over,
}

/// The tally of one call.
#[derive(Debug, Default)]
struct OfCall {
    tally: Tally,
    /// Its connections and flows that are open.
    open: u32,
}

/// Tallies and limits of the calls in the cell: of the one that runs, and of those before it in a session whose
/// connections are still open.
#[derive(Debug)]
pub(crate) struct Account {
    current: CallId,
    calls: HashMap<CallId, OfCall>,
    /// Sums over all calls of the cell.
    session: SessionUse,
    /// True once a second call has begun.
    is_session: bool,
    /// Connections that could not be told of since the last tally.
    unlisted: u64,
    limits: EgressLimits,
    /// Bytes that the rate allows at `filled`.
    bucket: u64,
    filled: Instant,
}

impl Account {
    pub(crate) fn new(limits: EgressLimits, call: CallId) -> Self {
        Self {
            current: call,
            calls: HashMap::from([(call, OfCall::default())]),
            session: SessionUse::default(),
            is_session: false,
            unlisted: 0,
            limits,
            bucket: limits.rate.unwrap_or_default(),
            filled: Instant::now(),
        }
    }

    /// Begins a call: connections that begin after it count for it.
    pub(crate) fn begin(&mut self, call: CallId) {
        self.calls.retain(|_, of| of.open > 0);
        self.calls.entry(call).or_default();
        self.current = call;
        self.is_session = true;
    }

    pub(crate) fn call(&self) -> CallId {
        self.current
    }

    /// Returns the tally of a call, with the sums of its session. One that is not known is incomplete.
    pub(crate) fn tally(&mut self, call: CallId) -> Tally {
        let Some(of) = self.calls.get(&call) else {
            return Tally { incomplete: true, ..Tally::default() };
        };
        let session = self.is_session.then_some(self.session);
        let tally = Tally { session, unlisted: self.unlisted, ..of.tally.clone() };
        // Told once.
        (self.session.earlier_sent, self.session.earlier_received, self.unlisted) = (0, 0, 0);
        tally
    }

    /// Counts connections of which the audit log gets no line.
    pub(crate) fn left_out(&mut self, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.unlisted = self.unlisted.saturating_add(count);
    }

    /// Checks that one more connection may be open, and that the call and its session have bytes left.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn room(&self, call: CallId) -> Result<(), Refusal> {
        self.bytes_left(call, Way::Sent, 1)?;
        self.bytes_left(call, Way::Received, 1)?;
        let open = self.calls.values().map(|of| of.open).fold(0, u32::saturating_add);
        if open >= self.limits.connections {
            return Err(limit("egress_limits.connections"));
        }
        Ok(())
    }

    /// Checks that a call and its session have so many bytes left. A call that is forgotten has no bytes: what it moved is
    /// not known any more.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn bytes_left(&self, call: CallId, way: Way, bytes: u64) -> Result<(), Refusal> {
        if !self.calls.contains_key(&call) {
            let why = "its call has ended, and another has begun".to_owned();
            return Err(Refusal { why, grant: None });
        }
        if self.left_of_call(call, way) < bytes {
            return Err(limit(match way {
                Way::Sent => "egress_limits.sent",
                Way::Received => "egress_limits.received",
            }));
        }
        if self.left_of_session(way) < bytes {
            return Err(limit(match way {
                Way::Sent => "egress_limits.session_sent",
                Way::Received => "egress_limits.session_received",
            }));
        }
        Ok(())
    }

    /// Takes one of the places of open connections, until [`Self::closes`].
    ///
    /// # Errors
    /// As [`Self::room`]; nothing is taken then.
    pub(crate) fn enters(&mut self, call: CallId) -> Result<(), Refusal> {
        self.room(call)?;
        let of = self.calls.entry(call).or_default();
        of.open = of.open.saturating_add(1);
        Ok(())
    }

    /// Counts a connection or flow to its destination.
    pub(crate) fn opened(&mut self, entry: &Entry) {
        self.session.connections = self.session.connections.saturating_add(1);
        let Some(of) = self.calls.get_mut(&entry.call) else { return };
        of.tally.connections = of.tally.connections.saturating_add(1);
        match of.row(entry) {
            Some(row) => row.connections = row.connections.saturating_add(1),
            None => of.tally.more = of.tally.more.saturating_add(1),
        }
    }

    pub(crate) fn closes(&mut self, call: CallId) {
        if let Some(of) = self.calls.get_mut(&call) {
            of.open = of.open.saturating_sub(1);
        }
    }

    /// Counts bytes that were moved.
    pub(crate) fn moved(&mut self, entry: &Entry, way: Way, bytes: usize) {
        self.moved_by(entry.call, way, bytes);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let row = self.calls.get_mut(&entry.call).and_then(|of| of.row(entry));
        if let Some(row) = row {
            let count = match way {
                Way::Sent => &mut row.sent,
                Way::Received => &mut row.received,
            };
            *count = count.saturating_add(bytes);
        }
    }

    /// Counts a question that is sent to a resolver of the host, and its bytes.
    pub(crate) fn questioned(&mut self, call: CallId, bytes: usize) {
        self.moved_by(call, Way::Sent, bytes);
        let Some(of) = self.calls.get_mut(&call) else { return };
        of.tally.questions = of.tally.questions.saturating_add(1);
    }

    /// Counts bytes in the sums of a call and of its session.
    pub(crate) fn moved_by(&mut self, call: CallId, way: Way, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.limits.rate.is_some() {
            self.bucket = self.bucket.saturating_sub(bytes);
        }
        let add = |count: &mut u64| *count = count.saturating_add(bytes);
        match way {
            Way::Sent => add(&mut self.session.sent),
            Way::Received => add(&mut self.session.received),
        }
        if call != self.current {
            match way {
                Way::Sent => add(&mut self.session.earlier_sent),
                Way::Received => add(&mut self.session.earlier_received),
            }
        }
        let Some(of) = self.calls.get_mut(&call) else { return };
        match way {
            Way::Sent => add(&mut of.tally.sent),
            Way::Received => add(&mut of.tally.received),
        }
    }

    /// Returns whether a call may move a packet now, which cannot be moved in part: never one that is longer than what is
    /// left of a limit. One that is longer than a second's worth of the rate waits for no more than that.
    pub(crate) fn allowance_of_packet(
        &mut self,
        call: CallId,
        way: Way,
        bytes: usize,
    ) -> Allowance {
        let wanted = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.left_of_call(call, way).min(self.left_of_session(way)) < wanted {
            return Allowance::Over;
        }
        match self.allowance(call, way) {
            Allowance::Bytes(now) if now < bytes && self.bucket < self.limits.rate.unwrap_or(0) => {
                Allowance::Wait(RATE_TICK)
            }
            allowance @ (Allowance::Bytes(_) | Allowance::Wait(_) | Allowance::Over) => allowance,
        }
    }

    /// Returns how many bytes a call may move now. Moving and counting them must follow without a wait in between: other
    /// connections of the call would get the same bytes.
    pub(crate) fn allowance(&mut self, call: CallId, way: Way) -> Allowance {
        let left = self.left_of_call(call, way).min(self.left_of_session(way));
        if left == 0 {
            return Allowance::Over;
        }
        let Some(rate) = self.limits.rate else { return Allowance::Bytes(bounded(left)) };
        let passed = u64::try_from(self.filled.elapsed().as_millis()).unwrap_or(u64::MAX);
        if passed > 0 {
            let more = rate.saturating_mul(passed) / 1_000;
            // A second's worth at most, so that a pause is no licence for a burst.
            self.bucket = self.bucket.saturating_add(more).min(rate);
            self.filled = Instant::now();
        }
        match self.bucket.min(left) {
            0 => Allowance::Wait(RATE_TICK),
            bytes => Allowance::Bytes(bounded(bytes)),
        }
    }

    fn left_of_call(&self, call: CallId, way: Way) -> u64 {
        let tally = self.calls.get(&call).map(|of| &of.tally);
        let (limit, used) = match way {
            Way::Sent => (self.limits.sent, tally.map_or(0, |tally| tally.sent)),
            Way::Received => (self.limits.received, tally.map_or(0, |tally| tally.received)),
        };
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }

    fn left_of_session(&self, way: Way) -> u64 {
        let (limit, used) = match way {
            Way::Sent => (self.limits.session_sent, self.session.sent),
            Way::Received => (self.limits.session_received, self.session.received),
        };
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }

    /// Counts a refusal of a call.
    pub(crate) fn denied(&mut self, call: CallId, to: String, refusal: Refusal) {
        self.session.denied = self.session.denied.saturating_add(1);
        let Some(OfCall { tally, .. }) = self.calls.get_mut(&call) else { return };
        let mut known = tally.denied.iter_mut();
        if let Some(known) = known.find(|known| known.to == to && known.why == refusal.why) {
            known.count = known.count.saturating_add(1);
        } else if tally.denied.len() < TALLY_ROWS {
            let Refusal { why, grant } = refusal;
            tally.denied.push(Denied { to, why, count: 1, grant });
        } else {
            tally.more = tally.more.saturating_add(1);
        }
    }
}

impl OfCall {
    /// Returns the row of a destination; nothing if there is no room for another.
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

fn limit(what: &str) -> Refusal {
    Refusal { why: format!("limit of the profile: {what}"), grant: None }
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

    fn refusal() -> Refusal {
        Refusal { why: "no rule".to_owned(), grant: None }
    }

    #[test]
    fn a_connection_counts_for_the_call_in_which_it_began_until_it_closes() {
        let mut account = Account::new(EgressLimits::default(), 1);
        account.enters(1).expect("room");
        account.opened(&entry(1));
        account.moved(&entry(1), Way::Sent, 10);
        let first = account.tally(1);
        assert_eq!((first.connections, first.sent, first.session), (1, 10, None));
        account.begin(2);
        account.moved(&entry(1), Way::Received, 500);
        let second = account.tally(2);
        assert_eq!((second.connections, second.sent, second.received), (0, 0, 0));
        let session = second.session.expect("a session");
        assert_eq!((session.connections, session.sent, session.received), (1, 10, 500));
        assert_eq!((session.earlier_sent, session.earlier_received), (0, 500));
        // Told once; the sums stay.
        let again = account.tally(2).session.expect("a session");
        assert_eq!((again.received, again.earlier_received), (500, 0));
        // The first call is known for as long as its connection is open.
        assert_eq!(account.tally(1).received, 500);
        account.closes(1);
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
        account.enters(1).expect("room");
        account.moved(&entry(1), Way::Sent, 100);
        assert_eq!(account.allowance(1, Way::Sent), Allowance::Over);
        account.begin(2);
        // A connection of the first call gets no more by the second.
        assert_eq!(account.allowance(1, Way::Sent), Allowance::Over);
        assert_eq!(account.allowance(2, Way::Sent), Allowance::Bytes(50));
        account.enters(2).expect("room");
        // Those of both calls are open.
        let full = account.enters(2).expect_err("no room");
        assert_eq!(full.why, "limit of the profile: egress_limits.connections");
        account.closes(1);
        account.moved(&entry(2), Way::Sent, 50);
        assert_eq!(account.allowance(2, Way::Sent), Allowance::Over);
        account.begin(3);
        let over = account.enters(3).expect_err("no bytes");
        assert_eq!(over.why, "limit of the profile: egress_limits.session_sent");
    }

    #[test]
    fn a_connection_that_comes_after_its_call_was_forgotten_gets_no_second_limit() {
        let limits = EgressLimits { sent: Some(100), ..EgressLimits::default() };
        let mut account = Account::new(limits, 1);
        account.enters(1).expect("room");
        account.moved(&entry(1), Way::Sent, 100);
        // A second connection of the call is on its way meanwhile.
        account.closes(1);
        account.begin(2);
        let refused = account.enters(1).expect_err("a call that is forgotten");
        assert_eq!(refused.why, "its call has ended, and another has begun");
        assert!(account.tally(1).incomplete);
        account.enters(2).expect("room");
    }

    #[test]
    fn a_packet_is_moved_whole_or_not_and_a_question_counts_as_sent() {
        let limits = EgressLimits { sent: Some(100), ..EgressLimits::default() };
        let mut account = Account::new(limits, 1);
        assert_eq!(account.allowance_of_packet(1, Way::Sent, 100), Allowance::Bytes(100));
        account.questioned(1, 40);
        assert_eq!(account.allowance_of_packet(1, Way::Sent, 61), Allowance::Over);
        assert_eq!(account.allowance_of_packet(1, Way::Sent, 60), Allowance::Bytes(60));
        account.moved_by(1, Way::Received, 70);
        let tally = account.tally(1);
        assert_eq!(
            (tally.questions, tally.connections, tally.sent, tally.received),
            (1, 0, 40, 70)
        );
        assert!(tally.rows.is_empty() && !tally.is_empty());
        // A packet waits for its bytes of the rate, for those of a second at most.
        let limits = EgressLimits { rate: Some(1_000), ..EgressLimits::default() };
        let mut account = Account::new(limits, 1);
        assert_eq!(account.allowance_of_packet(1, Way::Sent, 5_000), Allowance::Bytes(1_000));
        account.moved_by(1, Way::Sent, 900);
        assert_eq!(account.allowance_of_packet(1, Way::Sent, 500), Allowance::Wait(RATE_TICK));
        assert_eq!(account.allowance_of_packet(1, Way::Sent, 50), Allowance::Bytes(100));
    }

    #[test]
    fn a_refusal_that_comes_after_its_call_is_one_of_the_session() {
        let mut account = Account::new(EgressLimits::default(), 1);
        account.begin(2);
        account.denied(1, "a.org:25".to_owned(), refusal());
        account.denied(2, "b.org:25".to_owned(), refusal());
        let tally = account.tally(2);
        assert_eq!(tally.denied.len(), 1);
        assert_eq!(tally.session.map(|session| session.denied), Some(2));
    }
}
