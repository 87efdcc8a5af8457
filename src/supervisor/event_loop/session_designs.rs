//! Designs of the cells of a session: copies of the design that a key of boot has, with the session's mounts.
//!
//! A session has a mount namespace, a copy of its template's, in which its private `/workspace` and its
//! mailbox are mounted. So it gets a key in the table of keys, and the cells of its shell are built,
//! measured and offered like any others. They have one slot, and with it one host id: the files of the
//! workspace stay theirs.
//!
//! One-shot cells with the session's workspace each run one call. They may have another profile than the
//! shell, as those of declared commands do: their root, limits and rules are that profile's, and the
//! workspace is all that they have of the session. They have the host id of the session's slot, because
//! the files belong to that id. Their processes, network and everything else are separate.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;

use super::cell_supply::CellSupply;
use crate::cells::key::KeyId;
use crate::sessions::mailbox::{self, Mailbox};
use crate::sessions::session::Session;
use cell::landlock::{self, Use};
use cell::mounts;
use cell::report::raw;
use cell::slot::Slot;
use cell::{Design, Ground, Root, c_path, errno_of};
use model::job::Workspace;
use model::outcome::Failure;

impl CellSupply {
    /// Makes a session's mailbox, and the design of its cells: that of its template with the session's mounts.
    pub(super) fn design_session(
        &self,
        base: KeyId,
        slot: Slot,
    ) -> Result<(Mailbox, Design), Errno> {
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
        let terminals = mailbox.terminals();
        let mut shell = design_in(design, shell, None, terminals)?;
        shell.landlock.rules.push((c_path(Path::new(mounts::MAILBOX))?, Use::Device));
        shell.landlock.rules.push(landlock::terminals()?);
        Ok((mailbox, shell))
    }

    /// Returns the design of `base` with the workspace of a session; `None` if the host ids of the two differ.
    pub(super) fn design_one_shot(
        &self,
        session: &Session,
        base: KeyId,
    ) -> Result<Option<Design>, Failure> {
        let shell = self.keys.design(session.shell_key).ok_or(Failure::Lost)?;
        let design = self.keys.design(base).ok_or(Failure::Lost)?;
        if !design.profile.workspace {
            let why = format!("profile `{}` has no workspace", design.profile.name);
            return Err(Failure::Refused { why });
        }
        if design.ids != shell.ids {
            return Ok(None);
        }
        let made = (|| {
            let template = &design.root()?.template;
            let session_mounts = &shell.root()?.template;
            let namespace = mailbox::with_workspace(template, session_mounts, &self.shared.proc)?;
            design_in(design, namespace, Some(session.slot), None)
        })();
        let made = made.map_err(|errno| Failure::Setup {
            step: "showing a session's workspace".to_owned(),
            errno: raw(errno),
        })?;
        Ok(Some(Design { workspace: Workspace::Session(session.id), ..made }))
    }
}

/// Makes the design of cells that are cloned from a session's mounts. They have the host id of
/// `host_slot` if cells do not have separate ids, and make terminals in `terminals`.
fn design_in(
    design: &Design,
    template: OwnedFd,
    host_slot: Option<Slot>,
    terminals: Option<Rc<OwnedFd>>,
) -> Result<Design, Errno> {
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| errno_of(&error));
    let root = design.root()?;
    let mut mounts = root.mounts.clone();
    // Cells that share a layer have one host id in any case.
    mounts.host_slot = mounts.host_slot.or(host_slot);
    // The session has mounted one already.
    mounts.workspace.private = None;
    Ok(Design {
        profile: design.profile.clone(),
        workspace: design.workspace,
        ground: Ground::Root(Root {
            template,
            sizes: Rc::clone(&root.sizes),
            overlays: Rc::clone(&root.overlays),
            late: Rc::clone(&root.late),
            mounts,
            terminals,
        }),
        hidden: copy(&design.hidden)?,
        devices: copy(&design.devices)?,
        writable: design.writable.clone(),
        notes: design.notes.clone(),
        ids: design.ids,
        landlock: design.landlock.clone(),
        mediation: design.mediation.clone(),
        filter: design.filter.clone(),
        // A shell has a fresh network namespace, and its commands make sockets without a notification.
        reuse: design.reuse.clone().filter(|_| host_slot.is_some()),
        allowed: Vec::new(),
        loopback: design.loopback.clone(),
        network: design.network.clone(),
        recorded: design.recorded.clone(),
    })
}
