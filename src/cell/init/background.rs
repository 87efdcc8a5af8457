//! Background jobs of a session's shell. Each job is a copy of the shell that leads its process
//! group and whose parent is init.

use std::collections::{BTreeSet, VecDeque};

use super::Init;
use super::job::{self, Process};
use super::tally::status;
use crate::report::{FromInit, InitCounters, InputFile, ReapedJob};
use model::job::JobSignal;
use sys::Result;
use sys::process::Reaped;

/// Maximum number of remembered ends: a job may end before the supervisor asks to follow it.
const MAX_REMEMBERED: usize = 64;

/// The followed jobs, and the processes that init reaped last.
#[derive(Debug, Default)]
pub(super) struct BackgroundJobs {
    followed: Vec<FollowedJob>,
    reaped: VecDeque<Reaped>,
}

#[derive(Debug)]
struct FollowedJob {
    pid: u32,
    input: Option<InputFile>,
    /// Processes that were sent a signal. A job counts as ended only once all of them have ended
    /// too.
    signalled: BTreeSet<u32>,
    /// The end of the job's leader.
    reaped: Option<Reaped>,
}

impl Init<'_> {
    /// Follows a job until its end, or reports the end at once if it has ended already.
    pub(super) fn follow(&mut self, pid: u32, input: Option<InputFile>) -> Result<()> {
        let ended = self.jobs.reaped.iter().rposition(|reaped| is(reaped, pid));
        if let Some(reaped) = ended.and_then(|index| self.jobs.reaped.remove(index)) {
            return self.report_end(pid, Some(&reaped));
        }
        // A process that has ended but is not reaped yet counts as running.
        if !job::runs(pid) {
            return self.report_end(pid, None);
        }
        self.jobs.followed.push(FollowedJob {
            pid,
            input,
            signalled: BTreeSet::new(),
            reaped: None,
        });
        Ok(())
    }

    /// Records a reaped process.
    pub(super) fn record_reaped(&mut self, reaped: Reaped) {
        match self.jobs.followed.iter_mut().find(|job| is(&reaped, job.pid)) {
            Some(job) => job.reaped = Some(reaped),
            None => {
                if self.jobs.reaped.len() >= MAX_REMEMBERED {
                    self.jobs.reaped.pop_front();
                }
                self.jobs.reaped.push_back(reaped);
            }
        }
    }

    /// Reports the jobs that have ended. Reads all processes only if a job was sent a signal.
    pub(super) fn report_ended_jobs(&mut self) -> Result<()> {
        let shell = self.shell();
        let is_over = |job: &mut FollowedJob| {
            job.reaped.is_some()
                && (job.signalled.is_empty()
                    || job::none_remain(|all| led_by(all, &job.signalled, shell)))
        };
        for job in self.jobs.followed.extract_if(.., is_over).collect::<Vec<_>>() {
            self.drop_input(job.input);
            self.report_end(job.pid, job.reaped.as_ref())?;
        }
        Ok(())
    }

    fn report_end(&self, pid: u32, reaped: Option<&Reaped>) -> Result<()> {
        let used = reaped.map(|reaped| reaped.used).unwrap_or_default();
        let counts = InitCounters {
            user_us: used.user_us,
            system_us: used.system_us,
            max_rss: used.max_rss,
            denied: self.counts().denied,
        };
        let status = reaped.map(|reaped| status(reaped.end));
        self.send(FromInit::JobEnded(ReapedJob { pid, status, counts }))
    }

    /// Sends a signal to the processes of a job.
    pub(super) fn signal_background_job(&mut self, signal: JobSignal, pid: u32) -> Result<()> {
        let shell = self.shell();
        let Some(job) = self.jobs.followed.iter_mut().find(|job| job.pid == pid) else {
            return Ok(());
        };
        job.signalled.insert(pid);
        let sent = job::signal_all(signal, |all| led_by(all, &job.signalled, shell))?;
        job.signalled.extend(sent);
        Ok(())
    }

    /// Returns the pid of the session's shell.
    pub(super) fn shell(&self) -> u32 {
        u32::try_from(self.payload.as_raw()).unwrap_or(u32::MAX)
    }
}

fn is(reaped: &Reaped, pid: u32) -> bool {
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
