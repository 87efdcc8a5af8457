//! Sessions in the loop: from a job of a session to its shell, and from the end of either to what stays.
//!
//! The one-shot cells of a session have the slot's host id, as its shell has. *Invariant:* the slot is freed
//! when the last of them is gone, so that no other cell ever has an id under which something else still runs.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cell_supply::Owner;
use super::poll::Source;
use super::supervisor::Supervisor;
use crate::cells::key::KeyId;
use crate::cells::pooled_cell::PooledCell;
use crate::cells::queued_job::QueuedJob;
use crate::rootfs::terminals::MAX_TERMINALS;
use crate::sessions::mailbox::{Lacks, ShellWait, Undelivered};
use crate::sessions::session::Session;
use crate::sessions::shell::{MAX_JOBS, Shell, ShellEvent};
use cell::Design;
use cell::report::raw;
use cell::slot::Slot;
use model::job::{JobMode, Limits, ProfileName, SessionId, Within, Workspace};
use model::outcome::{Ended, Failure, Outcome};
use model::receipt::Tier;
use model::wire::{Event, Start};

impl Supervisor {
    /// Returns the key of the session that a job names; makes the session if it does not exist.
    pub(super) fn session_key(&mut self, start: &Start, within: Within) -> Result<KeyId, Failure> {
        let id = within.session;
        let refused = |why: &str| Err(Failure::Refused { why: why.to_owned() });
        if start.script.is_none() {
            return refused("a session takes a script");
        }
        let base = self.supply.keys.usable(&start.profile, start.workspace)?;
        let Some(session) = self.sessions.get(id) else {
            return self.open_session(base, id);
        };
        let key = session.shell_key;
        if self.queue.waits_for(&[key]) {
            return refused("a command of this session waits already");
        }
        let keys = &self.supply.keys;
        let is_same = keys.get(key).zip(keys.get(base)).is_some_and(|(shell, base)| {
            shell.profile == base.profile && shell.workspace == base.workspace
        });
        if !is_same {
            return refused("the session has another profile or workspace");
        }
        if session.leaving {
            return refused("the session has ended");
        }
        match &session.shell {
            Some(shell) if !shell.is_idle() && !shell.is_ending() => {
                refused("the session runs another command")
            }
            Some(shell) if shell.is_full() && within.mode == JobMode::Background => refused(
                &format!("the session has {MAX_JOBS} background jobs: end one with bash_kill"),
            ),
            _ => {
                self.sessions.used(id);
                Ok(key)
            }
        }
    }

    /// Makes a session, still without a shell. Returns the key of its shell's cells.
    fn open_session(&mut self, base: KeyId, id: SessionId) -> Result<KeyId, Failure> {
        let busy = |what: &str| Failure::Busy { what: what.to_owned() };
        let design = self.supply.keys.design(base).ok_or(Failure::Lost)?;
        if !design.profile.can_hold_a_shell() {
            let why = match design.profile.tier {
                Tier::Full => format!("profile `{}` cannot hold a shell", design.profile.name),
                Tier::Bare => {
                    "a session needs mounts of its own, which the tier landlock+seccomp has \
                    not: bash_exec runs commands one by one"
                        .to_owned()
                }
            };
            return Err(Failure::Refused { why });
        }
        self.room_for_session(&design.profile.limits).map_err(busy)?;
        let slot = self.supply.slot_for_session().ok_or_else(|| busy("cells"))?;
        let made = self.supply.design_session(base, slot);
        let (mailbox, shell) = made.map_err(|errno| Failure::Setup {
            step: "making a session".to_owned(),
            errno: raw(errno),
        })?;
        let key = self.supply.keys.add(shell.into());
        self.sessions.put(Session::new(id, slot, mailbox, key));
        self.release(slot);
        Ok(key)
    }

    /// Returns what there is too little of for one more session.
    fn room_for_session(&self, limits: &Limits) -> Result<(), &'static str> {
        if self.sessions.is_full() {
            return Err("sessions");
        }
        // Idle shells hold their memory for long, so room for one more call must be left.
        if !self.has_room(&[*limits, *limits]) {
            return Err("memory or private filesystems of sessions");
        }
        // Nor may sessions have every cell.
        match self.sessions.count() + 2 > self.supply.slot_count() {
            true => Err("cells"),
            false => Ok(()),
        }
    }

    /// Ends the first of these sessions in which nothing runs, where one more session would have no room.
    pub(super) fn make_room(
        &mut self,
        number: u32,
        profile: &ProfileName,
        workspace: Workspace,
        from: &[SessionId],
    ) {
        let keys = &self.supply.keys;
        let design = keys.usable(profile, workspace).ok().and_then(|key| keys.design(key));
        let is_full = design.is_some_and(|one| self.room_for_session(&one.profile.limits).is_err());
        let mut unused = from.iter().copied().filter(|id| is_full && self.is_unused(*id));
        let ends = unused.next();
        // Before the end itself, which may be reported at once.
        self.send(&Event::Room { number, ends }, None);
        if let Some(id) = ends {
            self.forget(id);
        }
    }

    /// Returns whether nothing runs in a session or next to its shell, and nothing waits for it.
    fn is_unused(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id).filter(|session| !session.leaving) else {
            return false;
        };
        let waits = self.queue.waits_for(&[session.shell_key]);
        let shell = session.shell.as_ref();
        let runs = shell
            .is_some_and(|shell| shell.is_used() || shell.has_children(&self.supply.shared.proc));
        !waits && !runs && !self.has_one_shot_calls(id)
    }

    /// Hands a job to the shell of its session, where there is one; gives it back otherwise.
    pub(super) fn offer_to_shell(&mut self, ready: QueuedJob) -> Option<QueuedJob> {
        let session = self.sessions.of_key(ready.key);
        let is_idle = |session: &&Session| session.shell.as_ref().is_some_and(Shell::is_idle);
        let Some(id) = session.filter(is_idle).map(|session| session.id) else {
            return Some(ready);
        };
        self.run(id, ready, Duration::ZERO);
        None
    }

    /// Starts the shell of a session in a cell that is ready, and gives it the job that it was built for.
    pub(super) fn open_shell(&mut self, id: SessionId, pooled: PooledCell, ready: QueuedJob) {
        let call = ready.start.call;
        let key = ready.key;
        let slot = pooled.cell.slot;
        let built = pooled.measured.unwrap_or(pooled.born).saturating_duration_since(ready.arrived);
        let payload = pooled.payload;
        let Some((cell, receipt)) = pooled.offer(&ready.limits) else {
            self.release(slot);
            return self.end(call, Ended::failed(Failure::Lost));
        };
        let (maker, keys) = self.supply.maker();
        let process = payload.ok_or(Errno::ESRCH).and_then(|pid| maker.procfs(pid, None));
        let first = self.sessions.get(id).map_or(1, |session| session.mailbox.next());
        let begun = match (process, keys.design(key)) {
            (Ok(process), Some(design)) => {
                Shell::begin(cell, design, &ready, receipt, process, first)
            }
            (Ok(_), None) => Err(Box::new((Errno::EINVAL, cell))),
            // Its payload has just been killed.
            (Err(errno), _) => Err(Box::new((errno, cell))),
        };
        match (begun, self.sessions.get_mut(id)) {
            (Ok(shell), Some(session)) => {
                session.shell = Some(shell);
                self.supply.set_owner(slot, Some(Owner::Session(id)));
                self.run(id, ready, built);
            }
            (Ok(shell), None) => self.give_up(key, shell.life.cell, ready, Errno::EINVAL),
            (Err(refused), _) => {
                let (errno, cell) = *refused;
                self.give_up(key, cell, ready, errno)
            }
        }
    }

    /// Gives a job to the shell of its session, which is idle.
    fn run(&mut self, id: SessionId, ready: QueuedJob, built: Duration) {
        let call = ready.start.call;
        let stdin = ready.start.stdin.kind();
        if let Some(slot) = self.sessions.get(id).map(|session| session.slot)
            && let Err(failure) = self.gateway.begin(slot, call, ready.start.only.clone())
        {
            return self.end(call, Ended::failed(failure));
        }
        let session = self.sessions.get_mut(id);
        let Some((shell, mailbox)) =
            session.and_then(|session| Some((session.shell.as_mut()?, &mut session.mailbox)))
        else {
            return self.end(call, Ended::failed(Failure::Lost));
        };
        match shell.take(&ready, mailbox, built) {
            Ok(Some((turn, ends))) => {
                let receipt = shell.receipt.clone();
                self.send(&Event::Started { call, stdin, receipt, turn }, Some((call, ends)));
            }
            // A background call is reported once it has left the shell.
            Ok(None) => {}
            Err(undelivered) => {
                if undelivered.shell == ShellWait::Forever {
                    shell.end(Instant::now());
                }
                self.end(call, Ended::failed(reason(undelivered)));
            }
        }
    }

    /// Handles an event of a session's cell.
    pub(super) fn shell_event(&mut self, id: SessionId, source: Source) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(shell) = session.shell.as_mut() else { return };
        let slot = session.slot;
        let mailbox = &mut session.mailbox;
        let event = match source {
            Source::Control => shell.read_control(&mut self.buffer, mailbox),
            Source::Job => shell.read_job(),
            Source::Pidfd => shell.collect(mailbox),
            Source::Report => shell.read_report(Instant::now()),
            Source::OutOfMemory => shell.out_of_memory(),
        };
        match event {
            ShellEvent::None => {}
            ShellEvent::Input(call, number, waits) => {
                self.send(&Event::Input { call, number, waits }, None);
            }
            ShellEvent::Left { call, stdin, turn, ends } => {
                let receipt = shell.receipt.clone();
                self.send(&Event::Started { call, stdin, receipt, turn }, Some((call, *ends)));
            }
            ShellEvent::Ended(call, ended) => {
                self.sessions.used(id);
                self.end(call, *ended);
                if let Some(session) = self.sessions.get_mut(id) {
                    session.mailbox.tidy();
                }
            }
            ShellEvent::Gone(ends) => {
                drop(session.shell.take());
                // The kernel may give its number to the next namespace at once.
                self.supply.networks.forget(slot);
                if session.leaving {
                    self.close(id);
                } else {
                    self.release(slot);
                    self.sessions.used(id);
                }
                ends.into_iter().for_each(|(call, ended)| self.end(call, *ended));
                if let Some(session) = self.sessions.get_mut(id) {
                    session.mailbox.tidy();
                }
            }
        }
    }

    /// Ends a session with its shell and its workspace.
    pub(super) fn forget(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else { return };
        let key = session.shell_key;
        self.refuse_waiting(&[key]);
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.leaving = true;
        let slot = session.slot;
        if let Some(shell) = session.shell.as_mut() {
            return shell.kill(Instant::now());
        }
        // A cell that was being built for the session is ended; the session is closed when it is reaped.
        if !self.supply.pool.end(slot) {
            self.close(id);
        }
    }

    /// Frees a session's keys and slot; its mounts are removed with the last descriptor. Its one-shot
    /// cells have the host id of the slot, so the slot is freed after them.
    fn close(&mut self, id: SessionId) {
        if !self.end_one_shot_cells(id) {
            return;
        }
        let Some(session) = self.sessions.take(id) else { return };
        let keys = &mut self.supply.keys;
        keys.remove(session.shell_key);
        session.one_shot_keys().into_iter().for_each(|key| keys.remove(key));
        self.release(session.slot);
        self.send(&Event::Forgotten { session: id }, None);
    }

    /// Frees the slot of a cell that was reaped. A slot that a session owns stays with the session.
    pub(super) fn release(&mut self, slot: Slot) {
        self.gateway.close(slot);
        self.supply.networks.forget(slot);
        let session = self.sessions.of_slot(slot).map(|session| Owner::Session(session.id));
        let is_in_pool = self.supply.pool.has(slot);
        self.supply.set_owner(slot, if is_in_pool { Some(Owner::Pool) } else { session });
    }

    /// Ends what is due in sessions: a call, or a session that is unused for too long.
    pub(super) fn pass_session_deadlines(&mut self, now: Instant) {
        for id in self.sessions.ids() {
            let Some(session) = self.sessions.get(id) else { continue };
            let key = session.shell_key;
            if session.deadline().is_none_or(|deadline| deadline > now) {
                continue;
            }
            let is_used = self.has_one_shot_calls(id);
            match self.sessions.shell_mut(id) {
                Some(shell) if shell.is_used() => shell.pass_deadline(now),
                Some(_) | None if is_used => self.sessions.used(id),
                // Its job waits for a cell.
                None if self.queue.waits_for(&[key]) => {}
                Some(_) | None => self.forget(id),
            }
        }
    }

    /// Returns the key of a one-shot job with a session's workspace; makes the session, still without a shell, if
    /// it does not exist. The job may have another profile than the session: then only `/workspace` is the
    /// session's. If the two need different host ids, the job has an empty one, which is noted in `start`.
    pub(super) fn one_shot_key(
        &mut self,
        start: &mut Start,
        id: SessionId,
    ) -> Result<KeyId, Failure> {
        let refused = |why: &str| Err(Failure::Refused { why: why.to_owned() });
        if start.session.is_some() {
            return refused("a job is in a session or beside it");
        }
        let owner = start.session_profile.as_ref().unwrap_or(&start.profile);
        if self.sessions.get(id).is_none() {
            let base = self.supply.keys.usable(owner, Workspace::Fresh)?;
            self.open_session(base, id)?;
        }
        let session = self.sessions.get(id).ok_or(Failure::Lost)?;
        if session.leaving {
            return refused("the session has ended");
        }
        let keys = &self.supply.keys;
        let shell = keys.get(session.shell_key);
        if !shell.is_some_and(|key| key.profile == *owner && key.workspace == Workspace::Fresh) {
            return refused("the session has another profile, or no workspace of its own");
        }
        let base = keys.usable(&start.profile, Workspace::Fresh)?;
        let key = match session.one_shot_keys.get(&base) {
            Some(key) => *key,
            None => match self.supply.design_one_shot(session, base)? {
                Some(design) => self.add_one_shot_key(id, base, design),
                None => {
                    start.workspace = Workspace::Fresh;
                    return Ok(base);
                }
            },
        };
        self.sessions.used(id);
        Ok(key)
    }

    /// Adds the key of cells as those of `base` with the workspace of a session.
    fn add_one_shot_key(&mut self, id: SessionId, base: KeyId, design: Design) -> KeyId {
        let key = self.supply.keys.add(design.into());
        if let Some(session) = self.sessions.get_mut(id) {
            session.one_shot_keys.insert(base, key);
        }
        key
    }

    /// Returns whether a one-shot call has, or waits for, a cell with the workspace of a session.
    fn has_one_shot_calls(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        let workspace = Workspace::Session(id);
        self.calls.values().any(|running| running.life.workspace == workspace)
            || self.queue.waits_for(&session.one_shot_keys())
    }

    /// Stops all one-shot cells of a closing session. Returns true once all have ended.
    fn end_one_shot_cells(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return true };
        session.leaving = true;
        let workspace = Workspace::Session(id);
        let keys = session.one_shot_keys();
        self.refuse_waiting(&keys);
        keys.iter().for_each(|key| self.supply.pool.give_up(*key));
        let mut have_ended = true;
        for pooled in self.supply.pool.of_keys(&keys) {
            pooled.end();
            have_ended = false;
        }
        let calls = self.calls.values_mut();
        for running in calls.filter(|running| running.life.workspace == workspace) {
            running.stop(Outcome::Cancelled, Instant::now());
            have_ended = false;
        }
        have_ended
    }

    /// Refuses the jobs that wait for cells of these keys, whose session has ended.
    fn refuse_waiting(&mut self, keys: &[KeyId]) {
        while let Some(ready) = self.queue.remove_first(|ready| keys.contains(&ready.key)) {
            let why = "the session has ended".to_owned();
            self.end(ready.start.call, Ended::failed(Failure::Refused { why }));
        }
    }

    /// Closes sessions that waited for their last cell, after a cell was reaped.
    pub(super) fn close_leaving_sessions(&mut self) {
        for id in self.sessions.ids() {
            let is_over = self.sessions.get(id).is_some_and(|session| {
                session.leaving && session.shell.is_none() && !self.supply.pool.has(session.slot)
            });
            if is_over {
                self.close(id);
            }
        }
    }
}

/// Returns the reason for which a call did not get to its shell.
fn reason(undelivered: Undelivered) -> Failure {
    let Undelivered { errno, lacks, .. } = undelivered;
    let step = match (lacks, errno) {
        (Lacks::Terminal, Errno::ENOSPC) => {
            let why = format!(
                "programs of this session hold all of its {MAX_TERMINALS} terminals; end some of them"
            );
            return Failure::Refused { why };
        }
        (Lacks::Terminal, _) => "opening a terminal for the command",
        (Lacks::File, _) => "laying the command before the shell",
    };
    Failure::Setup { step: step.to_owned(), errno: raw(errno) }
}
