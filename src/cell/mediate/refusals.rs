//! Counts refused calls by their number, and connections without a route by their destination.

use std::net::SocketAddr;

use crate::report::{self, MAX_HOSTS};
use model::outcome::DENIALS_COUNTED;

/// Numbers that are counted separately; all higher numbers count as the last.
const NUMBERS: usize = 512;

/// Refusals since the last report, by the number of the call.
#[derive(Debug)]
pub(crate) struct Refusals {
    by_filter: [u32; NUMBERS],
    by_name_guard: [u32; NUMBERS],
    /// Calls of programs whose memory init cannot read: a call of the table and its count. Mostly
    /// empty, as few programs are unreadable.
    unreadable: Vec<(u16, u32)>,
    unreachable: Vec<(SocketAddr, u32)>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            by_filter: [0; NUMBERS],
            by_name_guard: [0; NUMBERS],
            unreadable: Vec::new(),
            unreachable: Vec::new(),
        }
    }
}

impl Refusals {
    /// Counts a call that the filter refused.
    pub(crate) fn count(&mut self, number: u32) {
        add(&mut self.by_filter, number);
    }

    /// Counts a call that the name guard refused.
    pub(crate) fn count_guarded(&mut self, number: u32) {
        add(&mut self.by_name_guard, number);
    }

    /// Counts a call of a program whose memory init cannot read.
    pub(crate) fn count_unreadable(&mut self, number: u32) {
        let Ok(number) = u16::try_from(number) else { return };
        match self.unreadable.iter_mut().find(|(counted, _)| *counted == number) {
            Some((_, count)) => *count = count.saturating_add(1).min(DENIALS_COUNTED),
            // As many entries as the table of mediated calls has, at most.
            None => self.unreadable.push((number, 1)),
        }
    }

    /// Counts a connection to a destination without a route. At most [`MAX_HOSTS`] destinations are
    /// remembered.
    pub(crate) fn count_unreachable(&mut self, to: SocketAddr) {
        if let Some((_, count)) = self.unreachable.iter_mut().find(|(known, _)| *known == to) {
            *count = count.saturating_add(1).min(DENIALS_COUNTED);
        } else if self.unreachable.len() < MAX_HOSTS {
            self.unreachable.push((to, 1));
        }
    }

    /// Returns the destinations without a route, each with the number of attempts.
    pub(crate) fn unreachable(&self) -> &[(SocketAddr, u32)] {
        &self.unreachable
    }

    /// Iterates over the counts above zero, each with the call number as in a report.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u32, u16)> {
        let by_filter = self.by_filter.iter().zip(0_u16..);
        let by_name_guard = self.by_name_guard.iter().zip(report::GUARDED..);
        let unreadable =
            self.unreadable.iter().map(|(number, count)| (count, number | report::UNREADABLE));
        by_filter.chain(by_name_guard).chain(unreadable).filter(|(count, _)| **count > 0)
    }
}

/// Adds one to a call's count. Each count has a separate limit, so that a flood of one call cannot
/// hide another.
fn add(counts: &mut [u32; NUMBERS], number: u32) {
    let number = usize::try_from(number).unwrap_or(NUMBERS);
    if let Some(count) = counts.get_mut(number.min(NUMBERS - 1)) {
        *count = count.saturating_add(1).min(DENIALS_COUNTED);
    }
}
