//! Looks up what files and links of the host name, within the budget of a scan.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::rights::Rights;
use super::scan::Scan;
use super::tree::{Content, Found, GrantPath, Kind, Named, Resolution, Target};

/// Cost of reading a file, in entries.
const FILE_COST: usize = 50;

impl Scan {
    /// Guards the target of a path on behalf of `origin`.
    pub(crate) fn guard_path(&mut self, origin: &GrantPath, named: Named<'_>) -> Resolution {
        if !self.budget.spend(1) {
            self.note_unseen(origin, "names more than could be looked at in time");
            return Resolution::unresolved(named.rights);
        }
        let mut resolution = self.follow(named);
        for link in resolution.links.drain(..) {
            self.guard_name(link);
        }
        match &resolution.end {
            Target::InGrant(path, _) if self.is_whole(path, origin) => {}
            Target::InGrant(path, kind) => {
                self.guard_name(path.clone());
                match kind {
                    Kind::Directory if self.is_new(path) => self.directory(path),
                    Kind::Directory | Kind::File | Kind::Link | Kind::Other => self.cover(path),
                }
            }
            Target::Missing(path) => self.guard_name(path.clone()),
            Target::Outside(_) | Target::Unresolved => {}
        }
        resolution
    }

    /// Follows a path, within the budget.
    pub(crate) fn follow(&mut self, named: Named<'_>) -> Resolution {
        if self.is_spent() {
            return Resolution::unresolved(named.rights);
        }
        let resolution = self.trees.follow(named);
        self.budget.spend(resolution.components);
        self.note_refused(|scan| scan.nearest(named.from));
        if self.trees.take_unanswered() {
            let origin = self.nearest(named.from);
            let reason =
                "names a path on a filesystem that did not answer: what it leads to is not guarded";
            self.note_unseen(&origin, reason);
        }
        resolution
    }

    /// Records that root did not follow a path of another user, who may not do so.
    fn note_refused(&mut self, origin: impl FnOnce(&Self) -> GrantPath) {
        if self.trees.take_refused() {
            let origin = origin(self);
            let reason = "names a path that its owner may not read: root did not follow it";
            self.note_unseen(&origin, reason);
        }
    }

    /// Returns the place to report for a path: one that is outside of the grants counts for the first
    /// of them.
    pub(crate) fn nearest(&self, host: &Path) -> GrantPath {
        self.trees.locate(host).unwrap_or(GrantPath { tree: 0, path: PathBuf::new() })
    }

    /// Returns the resolved target of a path, if it exists.
    pub(crate) fn resolved(&mut self, named: Named<'_>) -> Option<Found> {
        let Resolution { end, rights, .. } = self.follow(named);
        let path = match end {
            Target::InGrant(path, _) => self.trees.host(&path),
            Target::Outside(path) => path,
            Target::Missing(_) | Target::Unresolved => return None,
        };
        Some(Found { path, rights })
    }

    /// Reads a file of the host that was found with these rights, within the budget, on behalf of
    /// `origin`.
    pub(crate) fn read(
        &mut self,
        host: &Path,
        limit: usize,
        rights: Rights,
        origin: &GrantPath,
    ) -> Result<Content, Errno> {
        if !self.budget.spend(1) {
            return Err(Errno::ETIME);
        }
        let content = self.trees.rights_at(host, rights).and_then(|rights| {
            if !self.budget.spend(FILE_COST) {
                return Err(Errno::ETIME);
            }
            let bytes = self.trees.read(host, limit, rights)?;
            Ok(Content { bytes, rights })
        });
        self.note_refused(|_| origin.clone());
        content
    }
}
