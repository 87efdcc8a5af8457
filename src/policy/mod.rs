//! Who may call what: rules in, a [`Grant`] or a [`Denial`] out. Pure; no I/O.

use crate::call::Call;
use crate::job::{Job, ProfileName, Workspace};
use crate::profile::Profile;

/// Permission to run one job. It cannot be built outside this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    job: Job,
    rule: String,
    clamped: bool,
}

impl Grant {
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The id of the rule that allowed it.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Whether the caller asked for more time than it gets.
    pub fn clamped(&self) -> bool {
        self.clamped
    }

    pub fn into_job(self) -> Job {
        self.job
    }
}

/// A refusal by policy: what, by which rule, and the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("denied by rule `{rule}`: {why}")]
pub struct Denial {
    pub rule: String,
    pub why: String,
    pub hint: String,
}

/// Every profile that was loaded, by name.
#[derive(Debug, Clone)]
pub struct Profiles;

impl Profiles {
    pub fn get(&self, name: &ProfileName) -> Option<&Profile> {
        let _name = name;
        todo!()
    }
}

/// The rules in force.
#[derive(Debug, Clone)]
pub struct Policy;

impl Policy {
    /// Decides a call from a tool. The strictest matching rule wins; no match is a denial.
    pub fn decide(
        &self,
        call: Call,
        profiles: &Profiles,
        workspace: Workspace,
    ) -> Result<Grant, Denial> {
        let _unused = (call, profiles, workspace);
        todo!()
    }

    /// Grants what the operator asks for at the command line, under `profile`.
    pub fn operator(call: Call, profile: &Profile, workspace: Workspace) -> Grant {
        let limits = profile.limits.lowered(&call.asked);
        let cwd = call.cwd.unwrap_or_else(|| if profile.workspace { crate::call::Cwd::workspace() } else { crate::call::Cwd::tmp() });
        Grant { job: Job { profile: profile.name.clone(), workspace, session: None, argv: call.argv, script: call.script, stdin: call.stdin, env: call.env, cwd, limits }, rule: String::new(), clamped: false }
    }
}
