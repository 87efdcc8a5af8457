//! The number of ancestors of processes that were forked and have not executed a program since
//! (PF_FORKNOEXEC).
//!
//! The kernel links each mapping of such a process that ever had a page with all of its ancestors
//! (`anon_vma_chain`, 64 bytes each), including ended ones. Splitting a mapping doubles its links. No file
//! shows them.

use std::collections::BTreeMap;

/// Maximum number of ancestors that a process is assumed to have.
const MAX_DEPTH: u64 = 4096;

/// Number of ancestors with which the mappings of a process are linked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Depth {
    /// Ancestors that looks have found.
    pub known: u64,
    /// The same plus ancestors that may have ended before any look found them; never less than `known`.
    pub possible: u64,
}

/// A process and its parent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relation {
    pub pid: i32,
    pub parent: i32,
}

/// The depth of every process at the last look.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    lines: BTreeMap<i32, Line>,
    /// Pid of the newest process at the last look.
    newest: i32,
    /// True once a process of the cell became the parent of orphans (PR_SET_CHILD_SUBREAPER).
    has_subreaper: bool,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    has_executed: bool,
    /// Depth that children made since the last look have, even if the process has executed a program since.
    inherited: Depth,
}

impl Line {
    fn depth(self) -> Depth {
        if self.has_executed { Depth::default() } else { self.inherited }
    }
}

impl Lineage {
    /// Records that from now on the parent of a process need not be the one that forked it.
    pub(super) fn expect_subreaper(&mut self) {
        self.has_subreaper = true;
    }

    /// Returns the depth of a process at the last look.
    pub(super) fn depth_of(&self, pid: i32) -> Depth {
        self.lines.get(&pid).map_or(Depth::default(), |line| line.depth())
    }

    /// Updates the depths with the processes of a look. Calls `has_executed` for a process only until it
    /// returns true.
    pub(super) fn update(
        &mut self,
        mut relations: Vec<Relation>,
        has_executed: impl Fn(i32) -> bool,
    ) {
        // A parent has the lower pid, unless pids have wrapped around.
        relations.sort_unstable_by_key(|relation| relation.pid);
        let before = std::mem::take(&mut self.lines);
        let deepest = before.values().map(|line| line.inherited.possible).max().unwrap_or(0);
        let lowest = relations.first().map_or(0, |relation| relation.pid);
        // At the first look all processes of the cell are new.
        let newest = if before.is_empty() { lowest } else { self.newest };
        for Relation { pid, parent } in relations {
            let line = match before.get(&pid) {
                Some(line) if line.has_executed => Line { inherited: Depth::default(), ..*line },
                Some(line) => Line { has_executed: has_executed(pid), ..*line },
                None => {
                    let above = self.lines.get(&parent).map(|line| line.inherited);
                    // Init, which has the lowest pid, is the parent of orphans. The parent of a process that
                    // earlier looks missed may have executed a program since.
                    let is_made_by_parent = parent != lowest && pid > newest && !self.has_subreaper;
                    let inherited = match above {
                        Some(above) if is_made_by_parent => above.next(),
                        _ => Depth {
                            known: above.unwrap_or_default().next().known,
                            possible: possible(deepest, newest, pid),
                        },
                    };
                    Line { has_executed: has_executed(pid), inherited }
                }
            };
            self.lines.insert(pid, line);
        }
        let made = self.lines.keys().filter(|pid| !before.contains_key(pid));
        // Pids below the newest are newer still: pids have wrapped around.
        let (lower, higher): (Vec<i32>, Vec<i32>) = made.copied().partition(|pid| *pid < newest);
        self.newest = lower.last().or(higher.last()).copied().unwrap_or(newest);
    }
}

impl Depth {
    fn next(self) -> Self {
        let next = |depth: u64| depth.saturating_add(1).min(MAX_DEPTH);
        Self { known: next(self.known), possible: next(self.possible) }
    }
}

/// Returns the maximum depth of an orphan: the pids of its ancestors since the last look are between the
/// newest pid of that look and its pid.
fn possible(deepest: u64, newest: i32, pid: i32) -> u64 {
    match u64::try_from(i64::from(pid) - i64::from(newest)) {
        Ok(made) => deepest.saturating_add(made).saturating_add(1).min(MAX_DEPTH),
        Err(_) => MAX_DEPTH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Updates with processes, of which those in `executed` have executed a program, and returns the depth of
    /// one.
    fn look(
        lineage: &mut Lineage,
        processes: &[(i32, i32)],
        executed: &[i32],
        process: i32,
    ) -> (u64, u64) {
        let relations =
            processes.iter().map(|(pid, parent)| Relation { pid: *pid, parent: *parent });
        lineage.update(relations.collect(), |pid| executed.contains(&pid));
        let Depth { known, possible } = lineage.depth_of(process);
        (known, possible)
    }

    const CHAIN: [(i32, i32); 5] = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)];

    /// Begins with a cell of init and a program.
    fn begun() -> Lineage {
        let mut lineage = Lineage::default();
        // Children that the first look does not show may have been forked before the program was executed.
        for _ in 0..2 {
            assert_eq!(look(&mut lineage, &[(1, 0), (2, 1)], &[2], 2), (0, 0));
        }
        lineage
    }

    #[test]
    fn a_fork_is_one_deeper_than_its_parent_until_it_executes_a_program() {
        let mut lineage = begun();
        assert_eq!(look(&mut lineage, &CHAIN, &[], 5), (3, 3));
        assert_eq!(look(&mut lineage, &CHAIN, &[4], 4), (0, 0));
        assert_eq!(lineage.depth_of(5), Depth { known: 3, possible: 3 });
        let with_child = [CHAIN.as_slice(), &[(6, 4)]].concat();
        assert_eq!(look(&mut lineage, &with_child, &[], 6), (1, 1));
        // The child may have been forked before.
        let mut lineage = begun();
        look(&mut lineage, &CHAIN, &[], 5);
        assert_eq!(look(&mut lineage, &with_child, &[4], 6), (3, 3));
    }

    #[test]
    fn a_process_stays_as_deep_when_its_ancestors_have_ended() {
        let mut lineage = begun();
        look(&mut lineage, &CHAIN, &[], 5);
        assert_eq!(look(&mut lineage, &[(1, 0), (2, 1), (5, 1)], &[], 5), (3, 3));
    }

    #[test]
    fn a_process_that_a_look_missed_may_be_as_deep_as_any() {
        let mut lineage = begun();
        look(&mut lineage, &CHAIN, &[], 5);
        look(&mut lineage, &[(1, 0), (2, 1), (5, 1)], &[], 5);
        let again = [(1, 0), (2, 1), (4, 2), (5, 1)];
        assert_eq!(look(&mut lineage, &again, &[], 4), (1, MAX_DEPTH));
    }

    #[test]
    fn an_orphan_may_descend_from_all_that_were_made_since_the_last_look() {
        let orphan = |pid| [(1, 0), (2, 1), (pid, 1)];
        let mut lineage = begun();
        assert_eq!(look(&mut lineage, &orphan(40), &[], 40), (2, 40));
        // And from the deepest before.
        assert_eq!(look(&mut lineage, &orphan(50), &[], 50), (2, 40 + 11));
        // Numbers have begun from the start again.
        assert_eq!(look(&mut lineage, &orphan(9), &[], 9), (2, MAX_DEPTH));
        // The control: one whose parent lives.
        let mut lineage = begun();
        assert_eq!(look(&mut lineage, &[(1, 0), (2, 1), (40, 2)], &[], 40), (1, 1));
    }

    #[test]
    fn with_a_subreaper_no_parent_is_taken_for_the_maker() {
        let mut lineage = begun();
        lineage.expect_subreaper();
        assert_eq!(look(&mut lineage, &[(1, 0), (2, 1), (40, 2)], &[], 40), (1, 40));
    }
}
