//! The key of a pool: a profile with a workspace, and the design of the cells that have both.

use cell::Design;
use cell::ids::CellIds;
use model::job::{ProfileName, Workspace};

/// A pool key that can be used here, or why it cannot.
#[derive(Debug)]
pub struct Key {
    pub profile: ProfileName,
    pub workspace: Workspace,
    pub design: Result<Design, Unusable>,
}

impl Key {
    pub fn has_the_operators_ids(&self) -> bool {
        self.design.as_ref().is_ok_and(|design| design.ids == CellIds::Operator)
    }
}

/// Why no cell of a key can be made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    pub why: String,
    /// The one program of the profile, where it is this that is missing.
    pub missing_program: Option<String>,
}
