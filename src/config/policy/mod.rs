//! Policy of calls: decides by rules whether a call gets a [`Grant`] or a [`Denial`]. Pure: no I/O.

mod commands;
pub mod conduct;
mod decimal;
pub mod flags;
pub mod group;
pub mod hooks;
mod narrowing;
pub mod pattern;
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

use crate::document::{Document, KeyTable, Mistake};
use crate::policy::tools::ruled_by;
use model::call::{Asked, Call, Cwd};
use model::egress::Only;
use model::job::{Job, Limits, ListChanges, ProfileName, Workspace};
use model::profile::Profile;

pub use crate::profile::Profiles;
use flags::DeclaredCommand;
pub use rules::{Effect, Rule};

/// Client on whose behalf a call is made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal {
    name: String,
    /// Name in rules, where it differs from `name`.
    ruled_as: Option<String>,
}

impl Principal {
    /// Returns the single client of a server on standard input and output.
    #[must_use]
    pub fn local() -> Self {
        Self::named("local")
    }

    /// Returns a client with a name that the operator chose.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ruled_as: None }
    }

    /// Returns one of several subjects to which the rules for `client` apply. They share nothing else. A client's name
    /// has no slash, so `CLIENT/SUBJECT` names one subject only.
    #[must_use]
    pub fn subject(client: &str, subject: &str) -> Self {
        Self { name: format!("{client}/{subject}"), ruled_as: Some(client.to_owned()) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name by which rules are about this client.
    pub(crate) fn ruled_as(&self) -> &str {
        self.ruled_as.as_deref().unwrap_or(&self.name)
    }
}

/// Workspace and report of a job, which do not come from the rule that allows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobContext {
    pub workspace: Workspace,
    /// Profile of the session that the workspace belongs to, if it belongs to one.
    pub owner: Option<ProfileName>,
    /// Whether the reply lists changed files.
    pub changes: ListChanges,
}

impl From<Workspace> for JobContext {
    fn from(workspace: Workspace) -> Self {
        Self { workspace, owner: None, changes: ListChanges::No }
    }
}

/// Permission to run one job. Other crates can neither build nor change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    principal: Principal,
    job: Job,
    rule: String,
    clamped: bool,
}

impl Grant {
    /// Returns the client whose call was allowed.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the id of the rule that allowed the call.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns true if the caller asked for more time than the job gets.
    pub fn clamped(&self) -> bool {
        self.clamped
    }

    pub fn into_job(self) -> Job {
        self.job
    }
}

/// A refusal by policy: the rule, its reason, and advice for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("denied by rule `{rule}`: {why}")]
pub struct Denial {
    pub rule: String,
    pub why: String,
    pub hint: String,
}

/// Rule id in a denial if no rule matched.
pub(crate) const DEFAULT_DENY: &str = "default-deny";
/// Rule id in a grant if the operator asked at the command line.
pub(crate) const OPERATOR: &str = "operator";

/// Returns the compiled-in policy as a file.
#[must_use]
pub fn shipped() -> Vec<Document> {
    let text = include_str!("../policies/default.toml");
    vec![Document::shipped("policies/default.toml", text)]
}

/// The rules of the compiled-in policy. A test makes these bytes from the file again.
const PREPARED: &[u8] = include_bytes!("rules.postcard");

/// Returns the keys of a policy file.
#[must_use]
pub fn keys() -> KeyTable {
    rules::Written::whole()
}

/// Returns the compiled-in flag lists. They allow nothing by themselves: a rule must name the tool.
fn shipped_commands() -> Document {
    let text = include_str!("../policies/tools.toml");
    Document::shipped("policies/tools.toml", text)
}

/// Names of the compiled-in tools, known without parsing their file.
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

/// Returns the compiled-in tools. The tests parse their file, because a mistake in it would leave
/// out all of them here.
fn read_shipped_commands() -> Vec<DeclaredCommand> {
    let shipped = rules::parse(&[shipped_commands()], &Profiles::compiled_in());
    shipped.map(|(_, commands)| commands).unwrap_or_default()
}

/// Returns a compiled-in tool that another extends. Within the compiled-in file, a tool extends
/// only earlier ones.
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
    /// Tools that the operator declared.
    given: Vec<DeclaredCommand>,
    /// The same, followed by the compiled-in ones. These are parsed on first use, because most
    /// servers have none of them switched on.
    all: OnceLock<Vec<DeclaredCommand>>,
}

impl Policy {
    /// Parses policy files and tests each rule with its examples. Without a file or without a rule,
    /// every call is denied.
    ///
    /// A `[[tool]]` replaces the compiled-in tool of the same name as a whole. In a file that
    /// extends the compiled-in policy, a rule replaces the compiled-in one of the same id.
    ///
    /// # Errors
    /// The first mistake in any file.
    pub fn parse(documents: &[Document], profiles: &Profiles) -> Result<Self, Mistake> {
        let (rules, given) = rules::parse(documents, profiles)?;
        let commands = Commands { given, all: OnceLock::new() };
        Ok(Self { rules: rules.into(), commands: Arc::new(commands) })
    }

    /// Returns the compiled-in policy, for an operator without other policies and profiles. It is decoded, which takes a
    /// fifth of the time of reading its file.
    #[must_use]
    pub fn compiled_in() -> Self {
        // The tests compare these with the file. Without rules every call would be denied.
        let rules: Vec<Rule> = postcard::from_bytes(PREPARED).unwrap_or_default();
        let commands = Commands { given: Vec::new(), all: OnceLock::new() };
        Self { rules: rules.into(), commands: Arc::new(commands) }
    }

    /// Returns a policy without rules, which denies every call.
    pub fn none() -> Self {
        let commands = Commands { given: Vec::new(), all: OnceLock::from(Vec::new()) };
        Self { rules: Arc::default(), commands: Arc::new(commands) }
    }

    /// Returns the program and the flags of a declared tool.
    pub fn command(&self, tool: &str) -> Option<&DeclaredCommand> {
        self.commands().iter().find(|command| command.name == tool)
    }

    /// Returns every declared tool, those of the operator first.
    pub fn commands(&self) -> &[DeclaredCommand] {
        let given = &self.commands.given;
        self.commands.all.get_or_init(|| {
            let shipped = read_shipped_commands();
            let is_given = |name: &str| given.iter().any(|command| command.name == name);
            let unreplaced = shipped.into_iter().filter(|command| !is_given(&command.name));
            given.iter().cloned().chain(unreplaced).collect()
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

    /// Returns the rules in the order of the files. The order has no meaning.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the policy for one client: without the rules for other clients.
    #[must_use]
    pub fn for_client(&self, client: &Principal) -> Self {
        let rules = self.rules.iter().filter(|rule| rule.is_about(client.ruled_as()));
        Self { rules: rules.cloned().collect(), commands: Arc::clone(&self.commands) }
    }

    /// Returns the policy with the profile `to` in place of `from` in the rules that allow only some
    /// of these tools.
    #[must_use]
    pub fn with_profile(&self, tools: &[&str], from: &ProfileName, to: &ProfileName) -> Self {
        let is_about = |rule: &Rule| rule.tools.iter().all(|tool| tools.contains(&tool.as_str()));
        let mut rules = self.rules.to_vec();
        for rule in rules.iter_mut().filter(|rule| is_about(rule)) {
            if let Effect::Allow { profile, .. } = &mut rule.effect
                && profile == from
            {
                profile.clone_from(to);
            }
        }
        Self { rules: rules.into(), commands: Arc::clone(&self.commands) }
    }

    /// Returns the policies for each client that rules name, and for a client that no rule names.
    pub fn per_client(&self) -> Vec<Self> {
        let named = self.clients().into_iter().chain([""]);
        named.map(|name| self.for_client(&Principal::named(name))).collect()
    }

    /// Returns the clients that rules name.
    pub fn clients(&self) -> BTreeSet<&str> {
        self.rules.iter().flat_map(|rule| &rule.clients).map(String::as_str).collect()
    }

    /// Decides a call of a tool by `principal`. The strictest matching rule wins. Without a
    /// matching rule the call is denied.
    ///
    /// # Errors
    /// A [`Denial`] if the call may not run.
    pub fn decide(
        &self,
        principal: &Principal,
        mut call: Call,
        profiles: &Profiles,
        context: JobContext,
    ) -> Result<Grant, Denial> {
        if let Some(denial) = self.refused_command(principal, &call) {
            return Err(denial);
        }
        let tool = &call.tool;
        let chosen = call.profile.as_ref();
        let terms = self.terms_of(Some(principal), tool, chosen, profiles)?;
        let limits = terms.limits.lowered(&call.asked);
        let clamped = terms.limits.clamps(&call.asked);
        let rule = terms.rule.to_owned();
        call.only = terms.only(call.only.take());
        let principal = principal.clone();
        Ok(Grant { principal, job: job(call, terms.profile, context, limits), rule, clamped })
    }

    /// Returns the refusal of a call by the text of its command.
    fn refused_command(&self, principal: &Principal, call: &Call) -> Option<Denial> {
        let is_about = |rule: &&Rule| {
            !rule.commands.is_empty()
                && rule.is_about(principal.ruled_as())
                && (rule.matches(&call.tool) || rule.matches(ruled_by(&call.tool)))
        };
        let mut rules = self.rules.iter().filter(is_about).peekable();
        // Most policies have no such rule, and the texts need not be made.
        rules.peek()?;
        let words = call.argv.words().join(" ");
        let script = call.script.as_ref().map(|script| String::from_utf8_lossy(script.as_bytes()));
        let texts = [words.as_str(), script.as_deref().unwrap_or_default()];
        let rule = rules.find(|rule| texts.iter().any(|text| rule.refuses_command(text)))?;
        let hint = "only the operator can change this rule, which refuses commands of this form";
        Some(Denial { rule: rule.id.clone(), why: rule.why.clone(), hint: hint.to_owned() })
    }

    /// Returns the terms that apply to every call of a tool, the same that [`Policy::decide`]
    /// grants from. They apply to one client if the policy comes from [`Policy::for_client`].
    ///
    /// # Errors
    /// A [`Denial`] if no call of the tool may run.
    pub fn terms<'p>(&'p self, tool: &str, profiles: &'p Profiles) -> Result<Terms<'p>, Denial> {
        self.terms_under(tool, None, profiles)
    }

    /// Returns the terms as [`Policy::terms`] does, for a call that chooses a profile. Every
    /// matching rule must allow that choice.
    ///
    /// # Errors
    /// See [`Policy::terms`]. Also if the rules do not allow the profile.
    pub fn terms_under<'p>(
        &'p self,
        tool: &str,
        chosen: Option<&ProfileName>,
        profiles: &'p Profiles,
    ) -> Result<Terms<'p>, Denial> {
        self.terms_of(None, tool, chosen, profiles)
    }

    fn terms_of<'p>(
        &'p self,
        client: Option<&Principal>,
        tool: &str,
        chosen: Option<&ProfileName>,
        profiles: &'p Profiles,
    ) -> Result<Terms<'p>, Denial> {
        let allowed = self.allowed(client, tool)?;
        let name = chosen.unwrap_or(allowed.profile);
        if name != allowed.profile && !allowed.choice.contains(name) {
            let names = [allowed.profile].into_iter().chain(allowed.choice.iter().copied());
            let names = names.map(ProfileName::as_str).collect::<Vec<_>>().join(", ");
            return Err(Denial {
                rule: allowed.rule.to_owned(),
                why: format!("it leaves no call of `{tool}` the profile `{name}`"),
                hint: format!("there is {names}; the operator can add one to `choice` of the rule"),
            });
        }
        let Some(profile) = profiles.get(name) else {
            // `parse` checks that the profile exists, so the caller brought other profiles than
            // those of `parse`.
            return Err(Denial {
                rule: allowed.rule.to_owned(),
                why: format!("its profile `{name}` is not loaded"),
                hint: "the operator's profiles are the files under sandbox-profiles/".to_owned(),
            });
        };
        let limits = profile.limits.lowered(&allowed.limits);
        let Allowed { rule, choice, egress, .. } = allowed;
        Ok(Terms { rule, profile, choice, limits, egress })
    }

    /// Combines the rules of a tool in any order. A tool that belongs to another is allowed together
    /// with that one, but a rule that names it can still deny it.
    fn allowed(&self, client: Option<&Principal>, tool: &str) -> Result<Allowed<'_>, Denial> {
        let mut allowed: Option<Allowed<'_>> = None;
        let ruled_by = ruled_by(tool);
        let denies = |rule: &&Rule| rule.matches(tool) && rule.effect == Effect::Deny;
        // A rule that denies some commands says nothing about the tool: `refused_command` asks it.
        let is_about = |rule: &&Rule| {
            client.is_none_or(|client| rule.is_about(client.ruled_as()))
                && (rule.effect != Effect::Deny || rule.commands.is_empty())
        };
        let rules = || self.rules.iter().filter(is_about);
        let own_denials = rules().filter(|_| ruled_by != tool).filter(denies);
        for rule in own_denials.chain(rules().filter(|rule| rule.matches(ruled_by))) {
            let Effect::Allow { profile, choice, limits, egress } = &rule.effect else {
                return Err(Denial {
                    rule: rule.id.clone(),
                    why: rule.why.clone(),
                    hint: "only the operator can change this rule; no call can".to_owned(),
                });
            };
            let choice = choice.iter().collect();
            let egress = egress.as_ref().map(|ids| ids.iter().map(String::as_str).collect());
            let terms = Allowed { rule: &rule.id, profile, choice, limits: *limits, egress };
            allowed = Some(match allowed {
                None => terms,
                Some(previous) => previous.strictest(terms),
            });
        }
        allowed.ok_or_else(|| Denial {
            rule: DEFAULT_DENY.to_owned(),
            why: format!("no rule allows `{tool}`"),
            hint: "the operator can allow it with a rule under policies/".to_owned(),
        })
    }

    /// Grants a call that the operator asks for at the command line, under `profile`.
    ///
    /// The output is unbounded unless the operator sets a bound, because the operator's
    /// pipe takes it.
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

/// Terms of the calls of an allowed tool, before a call lowers its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms<'p> {
    /// Among the rules that allow the tool, the one with the lowest timeout.
    pub rule: &'p str,
    pub profile: &'p Profile,
    /// Other profiles that a call may name.
    pub choice: BTreeSet<&'p ProfileName>,
    /// The profile's limits, lowered by the rules.
    pub limits: Limits,
    /// Rules of the profile's network that the calls may use. If absent, they may use all of them,
    /// and the network class.
    pub egress: Option<BTreeSet<&'p str>>,
}

impl Terms<'_> {
    /// Narrows the network of a call: to the rules of these terms, and to the targets that the call
    /// names.
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

/// Terms on which all matching allow rules agree.
struct Allowed<'p> {
    /// Rule with the lowest timeout. If several have it, the first by name.
    rule: &'p str,
    profile: &'p ProfileName,
    /// Profiles that every rule lets a call choose from.
    choice: BTreeSet<&'p ProfileName>,
    limits: Asked,
    /// Network rules that every rule allows.
    egress: Option<BTreeSet<&'p str>>,
}

impl<'p> Allowed<'p> {
    /// Takes the lower of each limit, the profiles and network rules that both allow, and the rule
    /// with the lower timeout.
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

fn job(call: Call, profile: &Profile, context: JobContext, limits: Limits) -> Job {
    let JobContext { workspace, owner, changes } = context;
    let (start, workspace) = match profile.workspace {
        true => (Cwd::workspace(), workspace),
        // A cell without /workspace cannot show a granted directory.
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
