//! The policy of calls: rules in, a [`Grant`] or a [`Denial`] out. Pure; no I/O.

#![deny(unreachable_pub)]

mod commands;
pub mod conduct;
mod decimal;
pub mod flags;
pub mod group;
pub mod hooks;
mod narrowing;
mod pattern;
pub mod reach;
#[cfg(test)]
#[path = "reach_tests.rs"]
mod reach_tests;
mod rules;
mod schema;
pub mod summary;
pub mod tools;
pub mod values;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use crate::tools::ruled_by;
use model::call::{Asked, Call, Cwd};
use model::egress::Only;
use model::job::{Job, Limits, ListChanges, ProfileName, Workspace};
use model::profile::Profile;
use profile::document::{Document, Mistake};

use flags::DeclaredCommand;
pub use profile::Profiles;
pub use rules::{Effect, Rule};

/// Client on whose behalf a call is made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(String);

impl Principal {
    /// Returns the only client of a server on standard input and output.
    #[must_use]
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    /// Returns a client that the operator gave a name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

/// What a job gets besides what its rule says, if it is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    pub workspace: Workspace,
    /// Profile of the session whose workspace it is, if it is a session's.
    pub owner: Option<ProfileName>,
    /// Report of changed files.
    pub changes: ListChanges,
}

impl From<Workspace> for Surroundings {
    fn from(workspace: Workspace) -> Self {
        Self { workspace, owner: None, changes: ListChanges::No }
    }
}

/// Permission to run one job. It cannot be built outside this crate, nor changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    principal: Principal,
    job: Job,
    rule: String,
    clamped: bool,
}

impl Grant {
    /// Returns the client that it was given to.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the id of the rule that allowed it.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns true if the caller asked for more time than it gets.
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

/// The id a denial names when no rule matched.
pub(crate) const DEFAULT_DENY: &str = "default-deny";
/// The id a grant names when the operator asked at the command line.
pub(crate) const OPERATOR: &str = "operator";

/// Returns the policy that is compiled in, as a file.
#[must_use]
pub fn shipped() -> Vec<Document> {
    let text = include_str!("../../policies/default.toml");
    vec![Document::shipped("policies/default.toml", text)]
}

/// Returns the flag lists that are compiled in. They allow nothing by themselves: a rule must name the tool.
fn shipped_commands() -> Document {
    let text = include_str!("../../policies/tools.toml");
    Document::shipped("policies/tools.toml", text)
}

/// The tools that they are of: known before anybody reads them.
const SHIPPED_COMMANDS: [&str; 8] = [
    "cli_curl",
    "cli_dig",
    "cli_file",
    "cli_jq",
    "cli_nmap",
    "cli_nmap_intrusive",
    "cli_ping",
    "cli_traceroute",
];

/// Returns the shipped tools. The tests read their file: a mistake there would leave them out.
fn read_shipped_commands() -> Vec<DeclaredCommand> {
    let shipped = rules::parse(&[shipped_commands()], &Profiles::compiled_in());
    shipped.map(|(_, commands)| commands).unwrap_or_default()
}

/// Returns a shipped tool, which another may extend. The shipped file itself extends tools above in it only.
fn shipped_command(name: &str) -> Option<DeclaredCommand> {
    if !SHIPPED_COMMANDS.contains(&name) {
        return None;
    }
    read_shipped_commands().into_iter().find(|command| command.name == name)
}

/// The rules in force. Clones share them.
#[derive(Debug, Clone)]
pub struct Policy {
    rules: Arc<[Rule]>,
    commands: Arc<Commands>,
}

/// Declared tools.
#[derive(Debug)]
struct Commands {
    /// The operator's.
    given: Vec<DeclaredCommand>,
    /// These, and behind them the shipped ones, which are read when somebody asks for them: most
    /// servers have none of those switched on.
    all: OnceLock<Vec<DeclaredCommand>>,
}

impl Policy {
    /// Reads policy files, each rule with its examples tested. No file, or a file without rules, denies everything.
    ///
    /// A `[[tool]]` replaces the shipped one of the same name, whole; so does a rule where a file extends the
    /// shipped policy.
    ///
    /// # Errors
    /// On the first mistake in any file.
    pub fn parse(documents: &[Document], profiles: &Profiles) -> Result<Self, Mistake> {
        let (rules, given) = rules::parse(documents, profiles)?;
        let commands = Commands { given, all: OnceLock::new() };
        Ok(Self { rules: rules.into(), commands: Arc::new(commands) })
    }

    /// Makes a policy without rules: every call is denied.
    pub fn none() -> Self {
        let commands = Commands { given: Vec::new(), all: OnceLock::from(Vec::new()) };
        Self { rules: Arc::default(), commands: Arc::new(commands) }
    }

    /// Returns the program and the flags of a declared tool.
    pub fn command(&self, tool: &str) -> Option<&DeclaredCommand> {
        self.commands().iter().find(|command| command.name == tool)
    }

    /// Returns every declared tool, the operator's first.
    pub fn commands(&self) -> &[DeclaredCommand] {
        let given = &self.commands.given;
        self.commands.all.get_or_init(|| {
            let shipped = read_shipped_commands();
            let is_given = |name: &str| given.iter().any(|command| command.name == name);
            let kept = shipped.into_iter().filter(|command| !is_given(&command.name));
            given.iter().cloned().chain(kept).collect()
        })
    }

    /// Returns true if a tool is declared.
    pub fn declares(&self, tool: &str) -> bool {
        match self.commands.all.get() {
            Some(_) => self.command(tool).is_some(),
            None => {
                self.given_commands().iter().any(|command| command.name == tool)
                    || SHIPPED_COMMANDS.contains(&tool)
            }
        }
    }

    /// Returns the tools that the operator declared.
    pub fn given_commands(&self) -> &[DeclaredCommand] {
        &self.commands.given
    }

    /// Returns the rules, in the order of the files, which means nothing.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the policy as it is for one client: without rules that are about others.
    #[must_use]
    pub fn of(&self, client: &Principal) -> Self {
        let rules = self.rules.iter().filter(|rule| rule.is_about(client.name()));
        Self { rules: rules.cloned().collect(), commands: Arc::clone(&self.commands) }
    }

    /// Returns the policy as it is for each client that rules name, and for one that none names.
    pub fn of_each(&self) -> Vec<Self> {
        let named = self.clients().into_iter().chain([""]);
        named.map(|name| self.of(&Principal::named(name))).collect()
    }

    /// Returns the clients that rules name.
    pub fn clients(&self) -> BTreeSet<&str> {
        self.rules.iter().flat_map(|rule| &rule.clients).map(String::as_str).collect()
    }

    /// Decides a call of `principal` from a tool. The strictest matching rule wins; no match is a denial.
    ///
    /// # Errors
    /// A [`Denial`], when the call may not run.
    pub fn decide(
        &self,
        principal: &Principal,
        mut call: Call,
        profiles: &Profiles,
        surroundings: Surroundings,
    ) -> Result<Grant, Denial> {
        let tool = &call.tool;
        let asked = call.profile.as_ref();
        let terms = self.terms_of(Some(principal), tool, asked, profiles)?;
        let limits = terms.limits.lowered(&call.asked);
        let clamped = terms.limits.clamps(&call.asked);
        let rule = terms.rule.to_owned();
        call.only = terms.only(call.only.take());
        let principal = principal.clone();
        Ok(Grant { principal, job: job(call, terms.profile, surroundings, limits), rule, clamped })
    }

    /// Returns the terms that hold for any call of a tool, the same that [`Policy::decide`] grants from. They are those
    /// of one client where this is its policy ([`Policy::of`]).
    ///
    /// # Errors
    /// A [`Denial`], when no call of the tool may run.
    pub fn terms<'p>(&'p self, tool: &str, profiles: &'p Profiles) -> Result<Terms<'p>, Denial> {
        self.terms_under(tool, None, profiles)
    }

    /// Returns the terms as [`Policy::terms`] does, for calls that name a profile: one of those that every rule
    /// leaves them.
    ///
    /// # Errors
    /// As [`Policy::terms`], or when the profile is none of those.
    pub fn terms_under<'p>(
        &'p self,
        tool: &str,
        asked: Option<&ProfileName>,
        profiles: &'p Profiles,
    ) -> Result<Terms<'p>, Denial> {
        self.terms_of(None, tool, asked, profiles)
    }

    fn terms_of<'p>(
        &'p self,
        client: Option<&Principal>,
        tool: &str,
        asked: Option<&ProfileName>,
        profiles: &'p Profiles,
    ) -> Result<Terms<'p>, Denial> {
        let allowed = self.allowed(client, tool)?;
        let named = asked.unwrap_or(allowed.profile);
        if named != allowed.profile && !allowed.choice.contains(named) {
            let names = [allowed.profile].into_iter().chain(allowed.choice.iter().copied());
            let names = names.map(ProfileName::as_str).collect::<Vec<_>>().join(", ");
            return Err(Denial {
                rule: allowed.rule.to_owned(),
                why: format!("it leaves no call of `{tool}` the profile `{named}`"),
                hint: format!("there is {names}; the operator can add one to `choice` of the rule"),
            });
        }
        let Some(profile) = profiles.get(named) else {
            // `parse` has looked; this is a caller that brought other profiles.
            return Err(Denial {
                rule: allowed.rule.to_owned(),
                why: format!("its profile `{named}` is not loaded"),
                hint: "the operator's profiles are the files under sandbox-profiles/".to_owned(),
            });
        };
        let limits = profile.limits.lowered(&allowed.limits);
        let Allowed { rule, choice, egress, .. } = allowed;
        Ok(Terms { rule, profile, choice, limits, egress })
    }

    /// Combines the rules of a tool, independent of their order. A tool that goes with another is allowed
    /// as that is, and a rule of its own can still deny it.
    fn allowed(&self, client: Option<&Principal>, tool: &str) -> Result<Allowed<'_>, Denial> {
        let mut allowed: Option<Allowed<'_>> = None;
        let ruled_by = ruled_by(tool);
        let denies = |rule: &&Rule| rule.matches(tool) && rule.effect == Effect::Deny;
        let is_about = |rule: &&Rule| client.is_none_or(|client| rule.is_about(client.name()));
        let rules = || self.rules.iter().filter(is_about);
        let of_its_own = rules().filter(|_| ruled_by != tool).filter(denies);
        for rule in of_its_own.chain(rules().filter(|rule| rule.matches(ruled_by))) {
            let Effect::Allow { profile, choice, limits, egress } = &rule.effect else {
                return Err(Denial {
                    rule: rule.id.clone(),
                    why: rule.why.clone(),
                    hint: "only the operator can change this rule; no call can".to_owned(),
                });
            };
            let choice = choice.iter().collect();
            let egress = egress.as_ref().map(|ids| ids.iter().map(String::as_str).collect());
            let this = Allowed { rule: &rule.id, profile, choice, limits: *limits, egress };
            allowed = Some(match allowed {
                None => this,
                Some(before) => before.strictest(this),
            });
        }
        allowed.ok_or_else(|| Denial {
            rule: DEFAULT_DENY.to_owned(),
            why: format!("no rule allows `{tool}`"),
            hint: "the operator can allow it with a rule under policies/".to_owned(),
        })
    }

    /// Grants what the operator asks for at the command line, under `profile`.
    ///
    /// Output is bounded only when the operator says so: it goes to a pipe of theirs.
    #[must_use]
    pub fn operator(call: Call, profile: &Profile, workspace: Workspace) -> Grant {
        let output = call.asked.output;
        let limits = Limits { output, ..profile.limits.lowered(&call.asked) };
        let clamped = profile.limits.clamps(&call.asked);
        let job = job(call, profile, workspace.into(), limits);
        Grant { principal: Principal::local(), job, rule: OPERATOR.to_owned(), clamped }
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules && self.commands() == other.commands()
    }
}

impl Eq for Policy {}

/// Terms of an allowed tool's calls, before a call asks for less.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms<'p> {
    /// The rule with the lowest time of those that allow the tool.
    pub rule: &'p str,
    pub profile: &'p Profile,
    /// Other profiles that a call may name.
    pub choice: BTreeSet<&'p ProfileName>,
    /// The profile's limits, lowered by the rules.
    pub limits: Limits,
    /// Rules of the profile's network that its calls may use; all, and the class, if absent.
    pub egress: Option<BTreeSet<&'p str>>,
}

impl Terms<'_> {
    /// Returns the narrowing of a call's network: by the rules, and to what the call itself names.
    fn only(&self, call: Option<Only>) -> Option<Only> {
        let Some(allowed) = &self.egress else { return call };
        let only = call.unwrap_or_default();
        let rules = match only.rules {
            None => allowed.iter().map(|id| (*id).to_owned()).collect(),
            Some(rules) => rules.into_iter().filter(|id| allowed.contains(id.as_str())).collect(),
        };
        Some(Only { rules: Some(rules), ..only })
    }
}

/// Terms that all matching allow rules agree on.
struct Allowed<'p> {
    /// The rule with the lowest time; of equals, the first by name.
    rule: &'p str,
    profile: &'p ProfileName,
    /// Profiles that a call may choose from by every rule.
    choice: BTreeSet<&'p ProfileName>,
    limits: Asked,
    /// Rules of egress that every rule leaves it.
    egress: Option<BTreeSet<&'p str>>,
}

impl<'p> Allowed<'p> {
    /// Takes the lowest of each limit, what both leave, and the rule that gave the lowest time.
    fn strictest(self, other: Self) -> Self {
        let rank = |allowed: &Self| (allowed.limits.wall.is_none(), allowed.limits.wall);
        let ours = (rank(&self), self.rule) <= (rank(&other), other.rule);
        Self {
            rule: if ours { self.rule } else { other.rule },
            profile: self.profile,
            choice: self.choice.intersection(&other.choice).copied().collect(),
            egress: match (self.egress, other.egress) {
                (Some(ours), Some(theirs)) => Some(ours.intersection(&theirs).copied().collect()),
                (ours, theirs) => ours.or(theirs),
            },
            limits: Asked {
                wall: lowest(self.limits.wall, other.limits.wall),
                memory: lowest(self.limits.memory, other.limits.memory),
                processes: lowest(self.limits.processes, other.limits.processes),
                output: lowest(self.limits.output, other.limits.output),
            },
        }
    }
}

fn lowest<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn job(call: Call, profile: &Profile, surroundings: Surroundings, limits: Limits) -> Job {
    let Surroundings { workspace, owner, changes } = surroundings;
    let (start, workspace) = match profile.workspace {
        true => (Cwd::workspace(), workspace),
        // A cell without /workspace has nowhere to show a granted directory.
        false => (Cwd::tmp(), Workspace::Fresh),
    };
    let is_a_sessions = matches!(workspace, Workspace::Session(_));
    Job {
        profile: profile.name.clone(),
        workspace,
        only: call.only,
        session_profile: owner.filter(|owner| is_a_sessions && *owner != profile.name),
        session: None,
        changes,
        argv: call.argv,
        script: call.script,
        stdin: call.stdin,
        env: call.env,
        cwd: call.cwd.unwrap_or(start),
        limits,
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
