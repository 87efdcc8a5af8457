//! The account of a call: what it connected to, what was refused, and its limits.

use std::time::{Duration, Instant};

use model::egress::frames::CallId;
use model::egress::{Denied, EgressLimits, TALLY_ROWS, Tally, TallyRow};

use super::judge::Refusal;

/// Direction of bytes, as the cell sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Sent,
    Received,
}

/// Destination and rule under which bytes are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
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

/// Tally and limits of the call that runs in the cell.
#[derive(Debug)]
pub(crate) struct Account {
    pub call: CallId,
    tally: Tally,
    limits: EgressLimits,
    /// Connections and flows that are open.
    open: u32,
    /// Bytes that the rate allows at `filled`.
    bucket: u64,
    filled: Instant,
}

impl Account {
    pub(crate) fn new(limits: EgressLimits) -> Self {
        let bucket = limits.rate.unwrap_or_default();
        Self { call: 0, tally: Tally::default(), limits, open: 0, bucket, filled: Instant::now() }
    }

    /// Begins a call: what follows counts for it.
    pub(crate) fn begin(&mut self, call: CallId) {
        self.call = call;
        self.tally = Tally::default();
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally.clone()
    }

    /// Checks that one more connection may be open, and that the call has bytes left.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn room(&self) -> Result<(), Refusal> {
        let limit =
            |what: &str| Refusal { why: format!("limit of the profile: {what}"), grant: None };
        if self.open >= self.limits.connections {
            return Err(limit("egress_limits.connections"));
        }
        if self.left(Way::Sent) == 0 {
            return Err(limit("egress_limits.sent"));
        }
        if self.left(Way::Received) == 0 {
            return Err(limit("egress_limits.received"));
        }
        Ok(())
    }

    /// Takes one of the places of open connections, until [`Self::closes`].
    ///
    /// # Errors
    /// As [`Self::room`]; nothing is taken then.
    pub(crate) fn enters(&mut self) -> Result<(), Refusal> {
        self.room()?;
        self.open = self.open.saturating_add(1);
        Ok(())
    }

    /// Counts a connection or flow to its destination.
    pub(crate) fn opened(&mut self, entry: &Entry) {
        self.tally.connections = self.tally.connections.saturating_add(1);
        match self.row(entry) {
            Some(row) => row.connections = row.connections.saturating_add(1),
            None => self.tally.more = self.tally.more.saturating_add(1),
        }
    }

    pub(crate) fn closes(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Counts bytes that were moved.
    pub(crate) fn moved(&mut self, entry: &Entry, way: Way, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.limits.rate.is_some() {
            self.bucket = self.bucket.saturating_sub(bytes);
        }
        let add = |count: &mut u64| *count = count.saturating_add(bytes);
        match way {
            Way::Sent => add(&mut self.tally.sent),
            Way::Received => add(&mut self.tally.received),
        }
        if let Some(row) = self.row(entry) {
            match way {
                Way::Sent => add(&mut row.sent),
                Way::Received => add(&mut row.received),
            }
        }
    }

    /// Returns how many bytes may be moved now.
    pub(crate) fn allowance(&mut self, way: Way) -> Allowance {
        let left = self.left(way);
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
            0 => Allowance::Wait(Duration::from_millis(10)),
            bytes => Allowance::Bytes(bounded(bytes)),
        }
    }

    fn left(&self, way: Way) -> u64 {
        let (limit, used) = match way {
            Way::Sent => (self.limits.sent, self.tally.sent),
            Way::Received => (self.limits.received, self.tally.received),
        };
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }

    /// Counts a refusal.
    pub(crate) fn denied(&mut self, to: String, refusal: Refusal) {
        let known = self.tally.denied.iter_mut();
        let mut known = known.filter(|known| known.to == to && known.why == refusal.why);
        if let Some(known) = known.next() {
            known.count = known.count.saturating_add(1);
        } else if self.tally.denied.len() < TALLY_ROWS {
            let Refusal { why, grant } = refusal;
            self.tally.denied.push(Denied { to, why, count: 1, grant });
        } else {
            self.tally.more = self.tally.more.saturating_add(1);
        }
    }

    /// Returns the row of a destination; nothing if there is no room for another.
    fn row(&mut self, entry: &Entry) -> Option<&mut TallyRow> {
        let is = |row: &TallyRow| row.to == entry.to && row.rule == entry.rule;
        let rows = &mut self.tally.rows;
        let index = match rows.iter().position(is) {
            Some(index) => index,
            None if rows.len() < TALLY_ROWS => {
                let Entry { to, rule } = entry.clone();
                rows.push(TallyRow { to, rule, connections: 0, sent: 0, received: 0 });
                rows.len().saturating_sub(1)
            }
            None => return None,
        };
        rows.get_mut(index)
    }
}

fn bounded(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
