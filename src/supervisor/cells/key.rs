//! The table of keys: a key is a profile with a workspace, and has the design of its cells.
//!
//! Keys made at boot stay; those of a session are added and removed with it.

use std::collections::BTreeMap;

use cell::Design;
use cell::ids::CellIds;
use model::job::{ProfileName, Workspace};
use model::outcome::Failure;

/// Number of a key in the table; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyId(pub(super) u64);

/// A key of the cell pool, and its design or the reason why it is unusable.
#[derive(Debug)]
pub struct Key {
    pub profile: ProfileName,
    pub workspace: Workspace,
    pub design: Result<Design, Unusable>,
}

impl Key {
    pub(crate) fn has_the_operators_ids(&self) -> bool {
        self.design.as_ref().is_ok_and(|design| design.ids == CellIds::Operator)
    }
}

impl From<Design> for Key {
    fn from(design: Design) -> Self {
        let profile = design.profile.name.clone();
        let workspace = design.workspace;
        Self { profile, workspace, design: Ok(design) }
    }
}

/// Why no cell of a key can be made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    pub why: String,
    /// The profile's only program, if it is the missing one.
    pub missing_program: Option<String>,
}

/// All keys for which cells can be requested.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    keys: BTreeMap<KeyId, Key>,
    next: u64,
}

impl Keys {
    /// Adds a key, at boot or later. Its cells are built when a job first uses it.
    pub(crate) fn add(&mut self, key: Key) -> KeyId {
        let id = KeyId(self.next);
        self.next += 1;
        self.keys.insert(id, key);
        id
    }

    /// Removes a key with the mounts that its cells would be cloned from.
    pub(crate) fn remove(&mut self, id: KeyId) {
        self.keys.remove(&id);
    }

    pub(crate) fn get(&self, id: KeyId) -> Option<&Key> {
        self.keys.get(&id)
    }

    /// Returns the design of a key if it is usable.
    pub(crate) fn design(&self, id: KeyId) -> Option<&Design> {
        self.get(id)?.design.as_ref().ok()
    }

    /// Returns the key that a frame names.
    ///
    /// # Errors
    /// There is no such key, or no cell of it can be made here.
    pub(crate) fn usable(
        &self,
        profile: &ProfileName,
        workspace: Workspace,
    ) -> Result<KeyId, Failure> {
        let Some(id) = self.find(profile, workspace) else {
            let why = format!("no profile `{profile}` with that workspace");
            return Err(Failure::Refused { why });
        };
        match self.get(id).and_then(|key| key.design.as_ref().err()) {
            None => Ok(id),
            Some(Unusable { missing_program: Some(program), .. }) => {
                Err(Failure::NotFound { program: program.clone() })
            }
            Some(Unusable { why, .. }) => {
                let why = format!("profile `{profile}` cannot be used here: {why}");
                Err(Failure::Refused { why })
            }
        }
    }

    /// Returns the first key with this profile and workspace.
    pub(crate) fn find(&self, profile: &ProfileName, workspace: Workspace) -> Option<KeyId> {
        let matches = |key: &Key| key.profile == *profile && key.workspace == workspace;
        self.keys.iter().find(|(_, key)| matches(key)).map(|(id, _)| *id)
    }
}

impl FromIterator<Key> for Keys {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        let mut all = Self::default();
        for key in keys {
            all.add(key);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::{GrantId, SessionId};

    fn key(workspace: Workspace) -> Key {
        let design = Err(Unusable { why: "a test".to_owned(), missing_program: None });
        Key { profile: ProfileName::none(), workspace, design }
    }

    #[test]
    fn a_later_key_is_found_until_it_is_removed_and_its_number_is_never_reused() {
        let mut keys: Keys =
            [Workspace::Fresh, Workspace::Granted(GrantId(0))].map(key).into_iter().collect();
        let profile = ProfileName::none();
        let session = Workspace::Session(SessionId(7));
        assert_eq!(keys.find(&profile, session), None);
        let first = keys.add(key(session));
        assert_eq!(keys.find(&profile, session), Some(first));
        keys.remove(first);
        assert_eq!(keys.find(&profile, session), None);
        assert!(keys.get(first).is_none());
        assert_ne!(keys.add(key(session)), first);
    }

    #[test]
    fn a_key_of_boot_is_found_before_a_sessions_key_of_the_same_name() {
        let mut keys: Keys = std::iter::once(key(Workspace::Fresh)).collect();
        let boot = keys.find(&ProfileName::none(), Workspace::Fresh);
        keys.add(key(Workspace::Fresh));
        assert_eq!(keys.find(&ProfileName::none(), Workspace::Fresh), boot);
    }
}
