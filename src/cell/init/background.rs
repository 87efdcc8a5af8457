//! Background jobs of a session's shell. Each job is a copy of the shell that leads its process
//! group and whose parent is init.

use std::collections::{BTreeSet, VecDeque};

use super::job::{self, Process};
use super::tally::status;
use crate::report::{InitCounters, InputFile, ReapedJob};
use model::job::JobSignal;
use sys::Result;
use sys::process::{Reaped, Used};

/// Maximum number of remembered ends: a job may end before the supervisor asks to follow it.
const MAX_REMEMBERED: usize = 64;

/// The followed jobs, and the processes that init reaped last.
#[derive(Debug, Default)]
pub(super) struct BackgroundJobs {
    followed: Vec<Job>,
    reaped: VecDeque<Reaped>,
}

/// A job, followed until its end.
#[derive(Debug)]
pub(super) struct Job {
    pid: u32,
    pub input: Option<InputFile>,
    /// Processes that were sent a signal. A job counts as ended only once all of them have ended
    /// too.
    signalled: BTreeSet<u32>,
    /// The end of the job's leader, if init has seen it.
    reaped: Option<Reaped>,
}

impl Job {
    /// Reports the end to the supervisor, with the cell's number of denied calls.
    pub(super) fn report(&self, denied: u16) -> ReapedJob {
        let Used { user_us, system_us, max_rss } =
            self.reaped.map(|reaped| reaped.used).unwrap_or_default();
        let counts =
            InitCounters { user_us, system_us, max_rss, denied, ..InitCounters::default() };
        let status = self.reaped.map(|reaped| status(reaped.end));
        ReapedJob { pid: self.pid, status, counts }
    }
}

impl BackgroundJobs {
    /// Follows a job until its end; returns the job if it has ended already.
    pub(super) fn follow(&mut self, pid: u32, input: Option<InputFile>) -> Option<Job> {
        let ended = self.reaped.iter().rposition(|reaped| has_pid(reaped, pid));
        let reaped = ended.and_then(|index| self.reaped.remove(index));
        // A process that has ended but is not reaped yet counts as running.
        let is_over = reaped.is_some() || !job::runs(pid);
        let job = Job { pid, input, signalled: BTreeSet::new(), reaped };
        if is_over {
            return Some(job);
        }
        self.followed.push(job);
        None
    }

    /// Records a reaped process.
    pub(super) fn record_reaped(&mut self, reaped: Reaped) {
        match self.followed.iter_mut().find(|job| has_pid(&reaped, job.pid)) {
            Some(job) => job.reaped = Some(reaped),
            None => {
                if self.reaped.len() >= MAX_REMEMBERED {
                    self.reaped.pop_front();
                }
                self.reaped.push_back(reaped);
            }
        }
    }

    /// Removes and returns the jobs that have ended. Reads all processes only if a job was sent a
    /// signal.
    pub(super) fn take_ended(&mut self, shell: u32) -> Vec<Job> {
        let is_over = |job: &mut Job| {
            job.reaped.is_some()
                && (job.signalled.is_empty()
                    || job::none_remain(|all| led_by(all, &job.signalled, shell)))
        };
        self.followed.extract_if(.., is_over).collect()
    }

    /// Sends a signal to the processes of a job.
    pub(super) fn signal(&mut self, signal: JobSignal, pid: u32, shell: u32) -> Result<()> {
        let Some(job) = self.followed.iter_mut().find(|job| job.pid == pid) else {
            return Ok(());
        };
        job.signalled.insert(pid);
        let sent = job::signal_all(signal, |all| led_by(all, &job.signalled, shell))?;
        job.signalled.extend(sent);
        Ok(())
    }
}

fn has_pid(reaped: &Reaped, pid: u32) -> bool {
    u32::try_from(reaped.pid) == Ok(pid)
}

/// Returns the processes of `all` that belong to a job with the members `some`: these members, the
/// process groups and sessions that they lead, and the descendants of all of these.
fn led_by(all: &[Process], some: &BTreeSet<u32>, shell: u32) -> BTreeSet<u32> {
    let excluded = [1, shell];
    let mut members = BTreeSet::new();
    loop {
        let more = all.iter().filter(|process| {
            let Process { pid, parent, group, session, .. } = process;
            !excluded.contains(pid)
                && (some.contains(pid)
                    || some.contains(group)
                    || [parent, session].iter().any(|one| members.contains(*one)))
        });
        let more: BTreeSet<u32> = more.map(|process| process.pid).collect();
        if more == members {
            return members;
        }
        members = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_its_group_with_their_children_and_the_sessions_that_these_lead() {
        let process =
            |pid, parent, group, session| Process { pid, parent, group, session, began: 1 };
        let all = [
            process(1, 0, 1, 1),
            // The shell, and a command in it.
            process(2, 1, 2, 2),
            process(3, 2, 2, 2),
            // The leader, its child, a child of that in another group, and one whose parent has ended.
            process(10, 1, 10, 2),
            process(11, 10, 10, 2),
            process(12, 11, 12, 2),
            process(13, 1, 10, 2),
            // A session that a process of the job leads, and an orphan in it.
            process(14, 11, 14, 14),
            process(15, 1, 15, 14),
            // Another job.
            process(20, 1, 20, 2),
        ];
        let led = |some: &[u32]| led_by(&all, &some.iter().copied().collect(), 2);
        assert_eq!(led(&[10]), BTreeSet::from([10, 11, 12, 13, 14, 15]));
        assert_eq!(led(&[2]), BTreeSet::from([3]), "never the shell itself");
        assert_eq!(led(&[4]), BTreeSet::new(), "an ended process");
    }
}
