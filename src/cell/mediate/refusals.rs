//! Counts refused calls by their number and connections without a route by their destination, and
//! records what guarded names would have made.

use std::os::fd::OwnedFd;

use std::net::SocketAddr;

use crate::report::{self, MAX_HOSTS};
use model::outcome::DENIALS_COUNTED;

/// Numbers that are counted separately; all higher numbers count as the last.
const NUMBERS: usize = 512;

/// What a guarded name would have made or changed.
#[derive(Debug)]
pub enum GuardedName {
    /// A part of a repository that is not there yet, in this directory.
    Repository {
        parent: OwnedFd,
    },
    /// The configuration of a repository.
    Configuration,
    Other,
}

/// Refusals since the last report, by the number of the call.
#[derive(Debug)]
pub(crate) struct Refusals {
    by_filter: [u32; NUMBERS],
    by_name_guard: [u32; NUMBERS],
    /// Calls of programs whose memory init cannot read: a call of the table and its count. Mostly
    /// empty, as few programs are unreadable.
    unreadable: Vec<(u16, u32)>,
    unreachable: Vec<(SocketAddr, u32)>,
    repositories: NumberSet,
    configurations: NumberSet,
    others: NumberSet,
    /// Directory of the first repository that was refused.
    parent: Option<OwnedFd>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            by_filter: [0; NUMBERS],
            by_name_guard: [0; NUMBERS],
            unreadable: Vec::new(),
            unreachable: Vec::new(),
            repositories: NumberSet::default(),
            configurations: NumberSet::default(),
            others: NumberSet::default(),
            parent: None,
        }
    }
}

impl Refusals {
    /// Counts a call that the filter refused.
    pub(crate) fn count(&mut self, number: u32) {
        add(&mut self.by_filter, number);
    }

    /// Counts a call that the name guard refused.
    pub(crate) fn count_guarded(&mut self, number: u32, name: GuardedName) {
        add(&mut self.by_name_guard, number);
        match name {
            GuardedName::Repository { parent } => {
                self.repositories.insert(number);
                self.parent.get_or_insert(parent);
            }
            GuardedName::Configuration => self.configurations.insert(number),
            GuardedName::Other => self.others.insert(number),
        }
    }

    /// Returns the directory of the first repository that was refused.
    pub(crate) fn parent(&self) -> Option<&OwnedFd> {
        self.parent.as_ref()
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
        let guarded = (0_u16..).map(|number| number | report::GUARDED | self.reason(number));
        let by_name_guard = self.by_name_guard.iter().zip(guarded);
        let unreadable =
            self.unreadable.iter().map(|(number, count)| (count, number | report::UNREADABLE));
        by_filter.chain(by_name_guard).chain(unreadable).filter(|(count, _)| **count > 0)
    }

    /// Returns the flag of the reason, if all names that this call was refused have the same.
    fn reason(&self, number: u16) -> u16 {
        let has = |set: &NumberSet| set.contains(number);
        match (has(&self.repositories), has(&self.configurations), has(&self.others)) {
            (true, false, false) => report::REPOSITORY,
            (false, true, false) => report::CONFIGURATION,
            _ => 0,
        }
    }
}

/// A set of call numbers below [`NUMBERS`], in bits.
#[derive(Debug, Default)]
struct NumberSet([u64; NUMBERS / 64]);

impl NumberSet {
    fn insert(&mut self, number: u32) {
        let number = index(number);
        if let Some(bits) = self.0.get_mut(number / 64) {
            *bits |= 1 << (number % 64);
        }
    }

    fn contains(&self, number: u16) -> bool {
        let number = index(u32::from(number));
        self.0.get(number / 64).is_some_and(|bits| bits & (1 << (number % 64)) != 0)
    }
}

/// Adds one to a call's count. Each count has a separate limit, so that a flood of one call cannot
/// hide another.
fn add(counts: &mut [u32; NUMBERS], number: u32) {
    if let Some(count) = counts.get_mut(index(number)) {
        *count = count.saturating_add(1).min(DENIALS_COUNTED);
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(NUMBERS).min(NUMBERS - 1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_reason_is_reported_if_it_is_the_only_one_of_its_call() -> std::io::Result<()> {
        let repository = |path: &str| -> std::io::Result<GuardedName> {
            Ok(GuardedName::Repository { parent: File::open(path)?.into() })
        };
        let mut refusals = Refusals::default();
        refusals.count(7);
        refusals.count_guarded(1, repository("/")?);
        refusals.count_guarded(1, repository("/proc")?);
        refusals.count_guarded(2, GuardedName::Configuration);
        refusals.count_guarded(3, GuardedName::Configuration);
        refusals.count_guarded(3, GuardedName::Other);
        refusals.count_guarded(900, repository("/")?);
        let counted: Vec<(u32, u16)> =
            refusals.iter().map(|(count, number)| (*count, number)).collect();
        let guarded = report::GUARDED;
        let expected = [
            (1, 7),
            (2, 1 | guarded | report::REPOSITORY),
            (1, 2 | guarded | report::CONFIGURATION),
            (2, 3 | guarded),
            (1, 511 | guarded | report::REPOSITORY),
        ];
        assert_eq!(counted, expected);
        let parent = refusals.parent().map(|parent| File::from(parent.try_clone()?).metadata());
        use std::os::unix::fs::MetadataExt;
        let inode = parent.transpose()?.map(|metadata| metadata.ino());
        assert_eq!(inode, Some(std::fs::metadata("/")?.ino()), "the first one");
        Ok(())
    }
}
