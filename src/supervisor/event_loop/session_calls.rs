//! From a job of a session to its shell, and from the end of either to what stays.
//!
//! A session has a mount namespace, a copy of its template's, in which its private `/workspace` and its
//! mailbox are mounted. So it gets a key in the table of keys, and its
//! cells are built, measured and offered like any others, one after the other. They have one slot,
//! and with it one host id: the files of the workspace stay theirs.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::supervisor::{Owner, Supervisor};
use crate::cells::key::KeyId;
use crate::cells::pooled_cell::PooledCell;
use crate::cells::queued_job::QueuedJob;
use crate::sessions::mailbox::{Mailbox, Undelivered, Waiting};
use crate::sessions::session::Session;
use crate::sessions::shell::{MAX_JOBS, Shell, ShellEvent};
use cell::landlock::Use;
use cell::mounts;
use cell::report::raw;
use cell::slot::Slot;
use cell::{Design, Ground, Root, c_path, errno_of};
use model::job::{JobMode, JobSignal, Limits, ProfileName, SessionId, Within, Workspace};
use model::outcome::{Ended, Failure, Outcome};
use model::receipt::Tier;
use model::wire::{CallId, Event, Start};

/// Makes the design of cells that are cloned from a session's mounts. They have the host id of
/// `host_slot` if cells do not have separate ids.
pub(super) fn design_in(
    design: &Design,
    template: OwnedFd,
    host_slot: Option<Slot>,
) -> Result<Design, Errno> {
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| errno_of(&error));
    let root = design.root()?;
    let mut mounts = mounts::MountPlan { host_slot, ..root.mounts.clone() };
    // The session has mounted its own.
    mounts.workspace.private = None;
    Ok(Design {
        profile: design.profile.clone(),
        workspace: design.workspace,
        ground: Ground::Root(Root {
            template,
            sizes: std::rc::Rc::clone(&root.sizes),
            overlays: std::rc::Rc::clone(&root.overlays),
            mounts,
            terminals: root.terminals.clone(),
        }),
        hidden: copy(&design.hidden)?,
        devices: copy(&design.devices)?,
        writable: design.writable.clone(),
        notes: design.notes.clone(),
        ids: design.ids,
        landlock: design.landlock.clone(),
        mediation: design.mediation.clone(),
        filter: design.filter.clone(),
        allowed: Vec::new(),
        network: design.network.clone(),
        recorded: design.recorded.clone(),
    })
}

impl Supervisor {
    /// Returns the key of the session that a job names; makes the session if it does not exist.
    pub(super) fn session_key(&mut self, start: &Start, within: Within) -> Result<KeyId, Failure> {
        let id = within.session;
        let refused = |why: &str| Err(Failure::Refused { why: why.to_owned() });
        if start.script.is_none() {
            return refused("a session takes a script");
        }
        let base = self.key(&start.profile, start.workspace)?;
        let Some(session) = self.sessions.get(id) else {
            return self.open_session(base, id);
        };
        let key = session.shell_key;
        if self.queue.iter().any(|ready| ready.key == key) {
            return refused("a command of this session waits already");
        }
        let same = self.keys.get(key).zip(self.keys.get(base)).is_some_and(|(own, base)| {
            own.profile == base.profile && own.workspace == base.workspace
        });
        if !same {
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

    pub(super) fn open_session(&mut self, base: KeyId, id: SessionId) -> Result<KeyId, Failure> {
        let busy = |what: &str| Failure::Busy { what: what.to_owned() };
        let design = self.keys.design(base).ok_or(Failure::Lost)?;
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
        let slot = self.spare_slot().ok_or_else(|| busy("cells"))?;
        let made = self.design_session(base, slot);
        let (mailbox, shell) = made.map_err(|errno| Failure::Setup {
            step: "making a session".to_owned(),
            errno: raw(errno),
        })?;
        let key = self.keys.add(shell.into());
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
        match self.sessions.count() + 2 > self.slots.len() {
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
        let design = self.key(profile, workspace).ok().and_then(|key| self.keys.design(key));
        let is_full = design.is_some_and(|one| self.room_for_session(&one.profile.limits).is_err());
        let mut unused = from.iter().copied().filter(|id| is_full && self.is_unused(*id));
        let ends = unused.next();
        // Before the end itself, which may be reported at once.
        self.tell(&Event::Room { number, ends }, None);
        if let Some(id) = ends {
            self.forget(id);
        }
    }

    /// Returns whether nothing runs in a session or next to its shell, and nothing waits for it.
    fn is_unused(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id).filter(|session| !session.leaving) else {
            return false;
        };
        let waits = self.queue.iter().any(|ready| ready.key == session.shell_key);
        let shell = session.shell.as_ref();
        let runs =
            shell.is_some_and(|shell| shell.is_used() || shell.has_children(&self.shared.proc));
        !waits && !runs && !self.is_used_beside(id)
    }

    /// Returns a slot for a session: a free one, or that of an idle cell, which is ended for it.
    fn spare_slot(&mut self) -> Option<Slot> {
        let mut slots = self.slots.iter().zip(Slot::all());
        if let Some((_, slot)) = slots.find(|(owner, _)| owner.is_none()) {
            return Some(slot);
        }
        let slot = self.pool.spare(|_| true)?;
        let mut pooled = self.pool.take(slot)?;
        pooled.end();
        self.pool.put(slot, pooled);
        Some(slot)
    }

    /// Makes a session's mailbox, and the design of its cells: that of its template with the session's mounts.
    fn design_session(&self, base: KeyId, slot: Slot) -> Result<(Mailbox, Design), Errno> {
        let design = self.keys.design(base).ok_or(Errno::EINVAL)?;
        let owner = design.ids.of_slot(slot)?;
        let root = design.root()?;
        let workspace = mounts::workspace(&design.profile, owner);
        let is_private = root.mounts.workspace.private.is_some();
        let (mailbox, shell) = Mailbox::set_up(
            &root.template,
            &self.shared.proc,
            is_private.then_some(&workspace),
            owner,
        )?;
        let mut shell = design_in(design, shell, None)?;
        shell.landlock.rules.push((c_path(Path::new(mounts::MAILBOX))?, Use::Device));
        Ok((mailbox, shell))
    }

    /// Hands a job to the shell of its session, where there is one; gives it back otherwise.
    pub(super) fn offer_to_shell(&mut self, ready: QueuedJob) -> Option<QueuedJob> {
        let session = self.sessions.of_key(ready.key).and_then(|id| self.sessions.get(id));
        let idle = |session: &&Session| session.shell.as_ref().is_some_and(Shell::is_idle);
        let Some(id) = session.filter(idle).map(|session| session.id) else { return Some(ready) };
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
        let Some((cell, mut receipt)) = pooled.offer() else {
            self.release(slot);
            return self.end(call, Ended::failed(Failure::Lost));
        };
        receipt.configured.memory_bytes = ready.limits.memory;
        receipt.configured.processes = ready.limits.processes;
        let (maker, _) = self.maker();
        let process = payload.ok_or(Errno::ESRCH).and_then(|pid| maker.procfs(pid, None));
        let first = self.sessions.get(id).map_or(1, |session| session.mailbox.next());
        let begun = match (process, self.keys.design(key)) {
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
                self.own(slot, Owner::Session(id));
                self.run(id, ready, built);
            }
            (Ok(shell), None) => self.give_up(key, slot, shell.cell, ready, Errno::EINVAL),
            (Err(refused), _) => {
                let (errno, cell) = *refused;
                self.give_up(key, slot, cell, ready, errno)
            }
        }
    }

    fn run(&mut self, id: SessionId, ready: QueuedJob, built: Duration) {
        let call = ready.start.call;
        let stdin = ready.start.stdin.kind();
        if let Some(slot) = self.sessions.get(id).map(|session| session.slot)
            && let Err(failure) = self.begin_network(slot, call, ready.start.only.clone())
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
                self.tell(&Event::Started { call, stdin, receipt, turn }, Some((call, ends)));
            }
            // The shell is free again only later, and reports that.
            Ok(None) => {}
            Err(Undelivered { errno, shell: waiting }) => {
                if waiting == Waiting::Nowhere {
                    shell.end(Instant::now());
                }
                let step = "laying the command before the shell".to_owned();
                self.end(call, Ended::failed(Failure::Setup { step, errno: raw(errno) }));
            }
        }
    }

    /// Handles an event of a session's cell.
    pub(super) fn shell_event(
        &mut self,
        id: SessionId,
        event: impl FnOnce(&mut Shell, &mut Mailbox) -> ShellEvent,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(shell) = session.shell.as_mut() else { return };
        let slot = session.slot;
        match event(shell, &mut session.mailbox) {
            ShellEvent::None => {}
            ShellEvent::Input(call, number, waits) => {
                self.tell(&Event::Input { call, number, waits }, None);
            }
            ShellEvent::Left { call, stdin, turn, ends } => {
                let receipt = shell.receipt.clone();
                self.tell(&Event::Started { call, stdin, receipt, turn }, Some((call, *ends)));
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

    /// Signals the processes of a session's call; another call is ended as by a cancel.
    pub(super) fn signal(&mut self, call: CallId, signal: JobSignal) {
        let session = self.sessions.runs(call);
        match session.and_then(|id| self.sessions.shell_mut(id)) {
            Some(shell) => shell.signal(call, signal, Instant::now()),
            None => self.stop(call, Outcome::Cancelled),
        }
    }

    /// Asks whether a call in a session waits for its input.
    pub(super) fn ask_input(&mut self, call: CallId, number: u32) {
        let session = self.sessions.runs(call);
        if let Some(shell) = session.and_then(|id| self.sessions.shell_mut(id)) {
            shell.ask_input(call, number);
        }
    }

    /// Ends the shell of a session. The session stays.
    pub(super) fn restart(&mut self, id: SessionId) {
        if let Some(shell) = self.sessions.shell_mut(id) {
            shell.end(Instant::now());
        }
    }

    /// Ends a session with its shell and its workspace.
    pub(super) fn forget(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else { return };
        let key = session.shell_key;
        while let Some(waiting) = self.queue.iter().position(|ready| ready.key == key) {
            if let Some(ready) = self.queue.remove(waiting) {
                let why = "the session has ended".to_owned();
                self.end(ready.start.call, Ended::failed(Failure::Refused { why }));
            }
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.leaving = true;
        let slot = session.slot;
        if let Some(shell) = session.shell.as_mut() {
            return shell.kill(Instant::now());
        }
        if let Some(mut pooled) = self.pool.take(slot) {
            // A cell that was being built for the session, which is closed when the cell is reaped.
            pooled.end();
            self.pool.put(slot, pooled);
            return;
        }
        self.close(id);
    }

    /// Frees a session's keys and slot; its mounts are removed with the last descriptor. Cells next to its
    /// shell have the host id of the slot, so the slot is freed after them.
    pub(super) fn close(&mut self, id: SessionId) {
        if !self.clear_beside(id) {
            return;
        }
        let Some(session) = self.sessions.take(id) else { return };
        self.keys.remove(session.shell_key);
        session.keys_beside().into_iter().for_each(|key| self.keys.remove(key));
        self.release(session.slot);
        self.tell(&Event::Forgotten { session: id }, None);
    }

    /// Frees the slot of a cell that was reaped. A slot that a session owns stays with the session.
    pub(super) fn release(&mut self, slot: Slot) {
        self.close_network(slot);
        let owner = self.sessions.of_slot(slot).map(Owner::Session);
        let in_pool = self.pool.has(slot);
        if let Some(place) = self.slots.get_mut(slot.index()) {
            *place = if in_pool { Some(Owner::Pool) } else { owner };
        }
    }

    /// Handles the end of a cell of the pool: closes a session that waited for it.
    pub(super) fn left(&mut self, slot: Slot) {
        let session = self.sessions.of_slot(slot).and_then(|id| self.sessions.get(id));
        let leaving = session.filter(|session| session.leaving && session.shell.is_none());
        if let Some(id) = leaving.map(|session| session.id) {
            self.close(id);
        }
    }

    pub(super) fn pass_session_deadlines(&mut self, now: Instant) {
        for id in self.sessions.ids() {
            let Some(session) = self.sessions.get(id) else { continue };
            let key = session.shell_key;
            if session.deadline().is_none_or(|deadline| deadline > now) {
                continue;
            }
            let is_used = self.is_used_beside(id);
            match self.sessions.shell_mut(id) {
                Some(shell) if shell.is_used() => shell.pass_deadline(now),
                Some(_) | None if is_used => self.sessions.used(id),
                // Its job waits for a cell.
                None if self.queue.iter().any(|ready| ready.key == key) => {}
                Some(_) | None => self.forget(id),
            }
        }
    }
}
