//! Rules of policy files, and the checks that a file passes before its rules take effect.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::commands;
use super::flags::{DeclaredCommand, Offered};
use super::pattern::LazyRegex;
use super::schema::WrittenCommand;
use crate::document::{Document, Mistake, Reason};
use crate::profile::Profiles;
use model::call::Asked;
use model::defaults::MIN_MEMORY;
use model::egress::Only;
use model::job::{Limits, ProfileName};
use model::units::{Size, Time};

/// Profile of a tool in short form that names no profile.
const SHORT_FORM_PROFILE: &str = "bash";

table! {
    /// A policy: which calls are allowed. A tool without a rule is denied.
    pub(super) struct Written {
        /// Version of the file format. Example: `1`.
        _schema "schema": i64,
        /// Policy that this one extends. A rule replaces the shipped rule with the same id.
        ///
        /// Default: the shipped rules do not apply if there is another policy. Example:
        /// `"shipped"`.
        extends: Option<Base>,
        /// Rules in any order. If several match, the strictest wins.
        rules "rule": Vec<WrittenRule> = Vec::new(),
        /// Programs that are offered as tools, each with the flags that callers may use.
        commands "tool": Vec<Spanned<WrittenCommand>> = Vec::new(),
    }
}

words! {
    /// Policy that another adds to.
    enum Base {
        /// The compiled-in policy, `policies/default.toml`.
        Shipped = "shipped",
    }
}

table! {
    /// Rule that allows or denies the calls of some tools.
    struct WrittenRule {
        /// Unique name of the rule in denials and in the audit log: lower-case letters, digits and
        /// dashes. Example: `"shell"`.
        id: Spanned<String>,
        /// Tools whose calls the rule matches. Example: `["bash", "bash_exec"]`.
        tools: Spanned<Vec<String>>,
        /// Clients whose calls the rule matches: names of `[[http.tokens]]`, `http` for HTTP
        /// clients without a token, `tcp` for clients of `--tcp`, and `local` for standard input
        /// and the owner of a socket.
        ///
        /// Default: `[]`, every client. Example: `["ci"]`.
        clients: Option<Spanned<BTreeSet<String>>>,
        /// Decision for these calls. Example: `"allow"`.
        action: Spanned<Action>,
        /// Profile of the calls; required by `allow`, refused with `deny`.
        ///
        /// Default: none. Example: `"bash"`.
        profile: Option<Spanned<String>>,
        /// Further profiles that a call of `bash_exec` or `history_replay` may choose, if every
        /// matching rule lists them.
        ///
        /// Default: `[]`. Example: `["bc"]`.
        choice: Option<Spanned<Vec<Spanned<String>>>>,
        /// Egress rules that the calls may use: ids of the profile's `[[egress]]`, ids of a preset,
        /// or words of `--egress` as typed. A policy cannot add rules. With `[]` the calls have no
        /// network.
        ///
        /// Default: all rules, and everything that the network class reaches. Example: `["pypi"]`.
        egress: Option<Spanned<Vec<String>>>,
        /// Commands that the rule refuses: with `deny` these alone, and with `allow` as exceptions.
        /// A note for agents, and no boundary: a program can have the effect of a command without
        /// its words.
        commands: WrittenCommands = WrittenCommands::default(),
        /// Limits below those of the profile.
        limits: WrittenLimits = WrittenLimits::default(),
        /// Reason for the rule; a denial shows it to the caller. Example: `"contained, not
        /// filtered"`.
        why: Reason,
        /// Calls that the rule must match, at least one. They are tested when the file is read.
        ///
        /// Default: an empty list, which is refused.
        matches: Vec<Spanned<Example>> = Vec::new(),
        /// Calls that the rule must not match. They are tested when the file is read.
        not_matches: Vec<Spanned<Example>> = Vec::new(),
    }
}

words! {
    /// Decision of a rule.
    enum Action {
        /// The calls run under `profile`.
        Allow = "allow",
        /// The calls are refused, even if another rule allows them.
        Deny = "deny",
    }
}

table! {
    /// Limits of a call. A rule can only lower those of the profile.
    #[derive(Default)]
    struct WrittenLimits {
        /// Wall time of a call.
        ///
        /// Default: the value of the profile. Example: `"60s"`.
        timeout: Option<Spanned<Time>>,
        /// Memory of the cell; at least 8M.
        ///
        /// Default: the value of the profile. Example: `"512M"`.
        memory: Option<Spanned<Size>>,
        /// Processes and threads of the cell.
        ///
        /// Default: the value of the profile. Example: `64`.
        processes: Option<Spanned<u32>>,
        /// Total output of both streams at which a call is ended.
        ///
        /// Default: the value of the profile. Example: `"1M"`.
        output: Option<Spanned<Size>>,
    }
}

table! {
    /// Commands that a rule refuses.
    #[derive(Default)]
    struct WrittenCommands {
        /// Regular expressions. The rule refuses a call if one of them matches somewhere in its
        /// words, separated by spaces, or in its script.
        ///
        /// Default: `[]`, every call. Example: `["git +push"]`.
        deny: Vec<Spanned<String>> = Vec::new(),
    }
}

table! {
    /// Example of a call.
    struct Example {
        /// Name of the tool. Example: `"bash"`.
        tool: String,
        /// Name of the client.
        ///
        /// Default: any client that the rule matches. Example: `"ci"`.
        client: Option<String>,
        /// Text of a command that the rule refuses; required in `matches` of a rule that denies by
        /// `commands`.
        ///
        /// Default: no text. Example: `"git push"`.
        command: Option<String>,
    }
}

/// A rule in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub id: String,
    pub tools: BTreeSet<String>,
    /// Clients that the rule applies to. Empty for every client.
    pub clients: BTreeSet<String>,
    pub effect: Effect,
    /// Expressions of the commands that are refused, whatever the effect. If there are some, a rule
    /// that denies has no effect on other commands.
    pub commands: Vec<LazyRegex>,
    pub why: String,
    /// Tools in the examples `matches` and `not_matches` of the file, which were tested when the
    /// file was parsed.
    pub matches: Vec<String>,
    pub not_matches: Vec<String>,
    /// File of the rule, and the line of its id.
    pub file: String,
    pub line: usize,
}

/// Effect of a rule on the calls it matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// The call runs under this profile, or under one of `choice` if the call names it. These
    /// limits lower those of the profile, and `egress` keeps only the named rules of its network.
    Allow {
        profile: ProfileName,
        choice: BTreeSet<ProfileName>,
        limits: Asked,
        egress: Option<BTreeSet<String>>,
    },
    Deny,
}

impl Rule {
    /// Returns true if the rule applies to calls of this tool.
    #[must_use]
    pub fn matches(&self, tool: &str) -> bool {
        self.tools.contains(tool)
    }

    /// Returns true if the rule applies to calls of this client.
    pub(super) fn is_about(&self, client: &str) -> bool {
        self.clients.is_empty() || self.clients.contains(client)
    }

    fn matches_example(&self, example: &Example) -> bool {
        let client = example.client.as_deref();
        let is_about_command = match example.command.as_deref() {
            Some(command) => self.refuses_command(command),
            None => self.effect != Effect::Deny || self.commands.is_empty(),
        };
        self.matches(&example.tool)
            && client.is_none_or(|client| self.is_about(client))
            && is_about_command
    }

    /// Returns true if the rule refuses calls by their command, and this is such a command.
    pub(super) fn refuses_command(&self, text: &str) -> bool {
        // They were compiled when the operator's file was read.
        self.commands.iter().any(|it| it.regex().is_none_or(|regex| regex.is_match(text)))
    }

    /// Returns true if the two rules apply to no client in common.
    fn has_other_clients(&self, other: &Self) -> bool {
        !self.clients.is_empty()
            && !other.clients.is_empty()
            && self.clients.is_disjoint(&other.clients)
    }
}

/// Parses and checks every rule and every tool of every file. If a file extends the compiled-in
/// policy, the compiled-in rules come first, except for those that a file replaces.
pub(super) fn parse(
    documents: &[Document],
    profiles: &Profiles,
) -> Result<(Vec<Rule>, Vec<DeclaredCommand>), Mistake> {
    fn read(document: &Document) -> Result<(&Document, Written), Mistake> {
        Ok((document, document.read()?))
    }

    let given = documents.iter().map(read).collect::<Result<Vec<_>, Mistake>>()?;
    let ids: BTreeSet<&String> =
        given.iter().flat_map(|(_, file)| &file.rules).map(|rule| rule.id.get_ref()).collect();
    let shipped = super::shipped();
    let mut base = Vec::new();
    if given.iter().any(|(_, file)| file.extends == Some(Base::Shipped)) {
        base = shipped.iter().map(read).collect::<Result<Vec<_>, Mistake>>()?;
        base.iter_mut()
            .for_each(|(_, file)| file.rules.retain(|rule| !ids.contains(rule.id.get_ref())));
    }
    let compiled_in: usize = base.iter().map(|(_, file)| file.rules.len()).sum();
    let mut rules: Vec<Rule> = Vec::new();
    let mut commands: Vec<DeclaredCommand> = Vec::new();
    let mut added = Vec::new();
    for (document, written) in base.iter().chain(&given) {
        for written in &written.commands {
            let command = commands::command(document, written, &commands)?;
            if command.offered == Offered::ByItself {
                let shipped = rules.get(..compiled_in).unwrap_or(&rules);
                check_reach(document, written, &command, shipped, profiles)?;
                added.push(rule_of_command(document, written, &command, profiles)?);
            }
            commands.push(command);
        }
        for written in &written.rules {
            let rule = rule(document, written, profiles)?;
            check_against_others(document, written, &rule, &rules)?;
            rules.push(rule);
        }
    }
    // A rule of a file says more about a tool than its short form: for whom, and under what limits.
    let is_allowed = |rule: &Rule| {
        rules.iter().any(|other| {
            !other.tools.is_disjoint(&rule.tools) && matches!(other.effect, Effect::Allow { .. })
        })
    };
    added.retain(|(_, rule)| !is_allowed(rule));
    for (mistake, rule) in added {
        if rules.iter().any(|other| other.id == rule.id) {
            return Err(mistake);
        }
        rules.push(rule);
    }
    Ok((rules, commands))
}

/// Checks that no compiled-in rule gives a tool in short form a profile with a network: the rule of a shipped tool with its
/// name does, and holds only that tool to a target.
fn check_reach(
    document: &Document,
    written: &Spanned<WrittenCommand>,
    command: &DeclaredCommand,
    rules: &[Rule],
    profiles: &Profiles,
) -> Result<(), Mistake> {
    let reaches = |rule: &Rule| match &rule.effect {
        Effect::Allow { profile, .. } => {
            profiles.get(profile).is_none_or(|profile| profile.egress.class.has_egress())
        }
        Effect::Deny => false,
    };
    if rules.iter().any(|rule| rule.tools.contains(&command.name) && reaches(rule)) {
        let message = format!("a shipped tool is named `{}`", command.name);
        let hint = "give this one a `name`, or write its long form with a rule";
        return Err(document.mistake(written.span(), message).with_hint(hint));
    }
    Ok(())
}

/// Makes the rule that allows a tool in short form, and the mistake if a file has another rule with
/// its id.
fn rule_of_command(
    document: &Document,
    written: &Spanned<WrittenCommand>,
    command: &DeclaredCommand,
    profiles: &Profiles,
) -> Result<(Mistake, Rule), Mistake> {
    let written_profile = written.get_ref().profile.as_ref();
    let usual = Spanned::new(written.span(), SHORT_FORM_PROFILE.to_owned());
    let rule = Rule {
        id: command.name.replace('_', "-"),
        tools: BTreeSet::from([command.name.clone()]),
        clients: BTreeSet::new(),
        effect: Effect::Allow {
            profile: known(document, written_profile.unwrap_or(&usual), profiles)?,
            choice: BTreeSet::new(),
            limits: Asked::default(),
            egress: None,
        },
        commands: Vec::new(),
        why: command.why.clone(),
        matches: vec![command.name.clone()],
        not_matches: Vec::new(),
        file: document.file.clone(),
        line: document.line(written.span().start),
    };
    let message = format!("rule `{}` does not allow the tool that has its name", rule.id);
    let hint = "give that rule another id";
    Ok((document.mistake(written.span(), message).with_hint(hint), rule))
}

fn rule(document: &Document, written: &WrittenRule, profiles: &Profiles) -> Result<Rule, Mistake> {
    let id = written.id.get_ref();
    if ProfileName::new(id).is_none() {
        let message = "an id is lower-case letters, digits and dashes";
        return Err(document.mistake(written.id.span(), message));
    }
    let tools: BTreeSet<String> = written.tools.get_ref().iter().cloned().collect();
    if tools.is_empty() {
        let message = format!("rule `{id}` names no tool");
        return Err(document.mistake(written.tools.span(), message));
    }
    let clients = written.clients.as_ref().map(|names| names.get_ref().clone());
    if let Some(empty) = written.clients.as_ref().filter(|names| names.get_ref().is_empty()) {
        let message = format!("rule `{id}` names no client");
        let error = document.mistake(empty.span(), message);
        return Err(error.with_hint("leave `clients` out for every client"));
    }
    let effect = effect(document, written, profiles)?;
    let named = |examples: &[Spanned<Example>]| {
        examples.iter().map(|example| example.get_ref().tool.clone()).collect()
    };
    let rule = Rule {
        id: id.clone(),
        tools,
        clients: clients.unwrap_or_default(),
        effect,
        commands: refused_commands(document, written)?,
        why: written.why.as_str().to_owned(),
        matches: named(&written.matches),
        not_matches: named(&written.not_matches),
        file: document.file.clone(),
        line: document.line(written.id.span().start),
    };
    check_examples(document, written, &rule)?;
    Ok(rule)
}

fn effect(
    document: &Document,
    written: &WrittenRule,
    profiles: &Profiles,
) -> Result<Effect, Mistake> {
    let id = written.id.get_ref();
    let limits = &written.limits;
    let profile = match (*written.action.get_ref(), &written.profile) {
        (Action::Allow, Some(profile)) => profile,
        (Action::Allow, None) => {
            let message = format!("rule `{id}` allows and names no `profile`");
            return Err(document.mistake(written.action.span(), message));
        }
        (Action::Deny, Some(profile)) => {
            let message = format!("rule `{id}` denies; a `profile` means nothing there");
            return Err(document.mistake(profile.span(), message));
        }
        (Action::Deny, None) => {
            let choice = written.choice.as_ref().map(|choice| ("a `choice`", choice.span()));
            let egress = written.egress.as_ref().map(|egress| ("`egress`", egress.span()));
            return match choice.or(egress) {
                None => Ok(Effect::Deny),
                Some((key, span)) => {
                    let message = format!("rule `{id}` denies; {key} means nothing there");
                    Err(document.mistake(span, message))
                }
            };
        }
    };
    let named = |profile: &Spanned<String>| known(document, profile, profiles);
    let name = named(profile)?;
    let lowered = limits.asked();
    if lowered != Asked::default()
        && let Some(profile) = profiles.get(&name)
    {
        limits.check(document, &profile.limits)?;
    }
    let others = written.choice.as_ref().map(Spanned::get_ref).into_iter().flatten();
    let choice = others.map(named).collect::<Result<_, _>>()?;
    Ok(Effect::Allow { profile: name, choice, limits: lowered, egress: egress(document, written)? })
}

/// Reads the expressions of the commands that a rule refuses.
fn refused_commands(document: &Document, written: &WrittenRule) -> Result<Vec<LazyRegex>, Mistake> {
    let pattern = |text: &Spanned<String>| {
        LazyRegex::new(document, text.get_ref()).ok_or_else(|| {
            let message = format!("`{}` is no regular expression", text.get_ref().escape_default());
            document.mistake(text.span(), message)
        })
    };
    written.commands.deny.iter().map(pattern).collect()
}

/// Reads the network rules that a rule allows. The profile may get network rules at start, so their
/// existence is not checked here.
fn egress(document: &Document, written: &WrittenRule) -> Result<Option<BTreeSet<String>>, Mistake> {
    let Some(egress) = &written.egress else { return Ok(None) };
    let ids: BTreeSet<String> = egress.get_ref().iter().cloned().collect();
    let rules: Option<Vec<String>> = Some(ids.iter().cloned().collect());
    if !(Only { rules, ..Only::default() }).is_bounded() {
        let message = format!("`egress` names more than {} rules", Only::MAX_ENTRIES);
        return Err(document.mistake(egress.span(), message));
    }
    match ids.contains("") {
        true => Err(document.mistake(egress.span(), "`egress` names a rule without a name")),
        false => Ok(Some(ids)),
    }
}

/// Returns the name of an existing profile. The mistake names the most similar profile.
fn known(
    document: &Document,
    profile: &Spanned<String>,
    profiles: &Profiles,
) -> Result<ProfileName, Mistake> {
    let name = profile.get_ref();
    let known = ProfileName::new(name).filter(|name| profiles.has(name));
    known.ok_or_else(|| {
        let message = format!("there is no profile `{}` to run under", name.escape_default());
        let error = document.mistake(profile.span(), message);
        match profiles.nearest(name) {
            Some(near) => error.with_hint(format!("did you mean `{near}`?")),
            None => error,
        }
    })
}

impl WrittenLimits {
    fn asked(&self) -> Asked {
        Asked {
            wall: self.timeout.as_ref().map(|time| time.get_ref().0),
            memory: self.memory.as_ref().map(|size| size.get_ref().0),
            processes: self.processes.as_ref().map(|count| *count.get_ref()),
            output: self.output.as_ref().map(|size| size.get_ref().0),
        }
    }

    /// Checks that a rule only lowers the limits of its profile. A higher limit is a mistake and
    /// not clamped, because the file would not mean what it says.
    fn check(&self, document: &Document, profile: &Limits) -> Result<(), Mistake> {
        let raised = |span, limit: &str| {
            let message = format!("`{limit}` is above the profile's; a rule can only lower it");
            Err(document.mistake(span, message))
        };
        if let Some(time) = self.timeout.as_ref().filter(|time| time.get_ref().0 > profile.wall) {
            return raised(time.span(), "timeout");
        }
        if let Some(size) = self.memory.as_ref().filter(|size| size.get_ref().0 > profile.memory) {
            return raised(size.span(), "memory");
        }
        let too_small = |size: &&Spanned<Size>| size.get_ref().0 < MIN_MEMORY;
        if let Some(size) = self.memory.as_ref().filter(too_small) {
            let message =
                format!("`memory` of {} is less than a cell can start with", size.get_ref());
            let hint = format!("{} is the least; most programs need more", Size(MIN_MEMORY));
            return Err(document.mistake(size.span(), message).with_hint(hint));
        }
        if let Some(count) = &self.processes {
            if *count.get_ref() > profile.processes {
                return raised(count.span(), "processes");
            }
            if *count.get_ref() == 0 {
                return Err(document.mistake(count.span(), "must be above zero"));
            }
        }
        let above =
            |size: &&Spanned<Size>| profile.output.is_some_and(|limit| size.get_ref().0 > limit);
        match self.output.as_ref().filter(above) {
            Some(size) => raised(size.span(), "output"),
            None => Ok(()),
        }
    }
}

fn check_examples(document: &Document, written: &WrittenRule, rule: &Rule) -> Result<(), Mistake> {
    if written.matches.is_empty() {
        let message = format!("rule `{}` has no `matches` example", rule.id);
        let hint = "every rule shows a call it is about: matches = [{ tool = \"…\" }]";
        return Err(document.mistake(written.id.span(), message).with_hint(hint));
    }
    let wrong = |example: &Spanned<Example>, what: &str| {
        let tool = example.get_ref().tool.escape_default();
        Err(document.mistake(example.span(), format!("rule `{}` {what} `{tool}`", rule.id)))
    };
    if let Some(example) = written.matches.iter().find(|e| !rule.matches_example(e.get_ref())) {
        return wrong(example, "should match and does not:");
    }
    match written.not_matches.iter().find(|e| rule.matches_example(e.get_ref())) {
        Some(example) => wrong(example, "should not match and does:"),
        None => Ok(()),
    }
}

/// Checks that a rule does not depend on its place among the others: ids are unique, and two rules
/// that allow the same tool name the same profile, because neither of two profiles is the stricter
/// one.
fn check_against_others(
    document: &Document,
    written: &WrittenRule,
    rule: &Rule,
    others: &[Rule],
) -> Result<(), Mistake> {
    if others.iter().any(|other| other.id == rule.id) {
        let message = format!("there are two rules `{}`", rule.id);
        return Err(document.mistake(written.id.span(), message));
    }
    let Effect::Allow { profile, .. } = &rule.effect else { return Ok(()) };
    for other in others {
        let Effect::Allow { profile: theirs, .. } = &other.effect else { continue };
        if rule.has_other_clients(other) {
            continue;
        }
        let shared = rule.tools.intersection(&other.tools).next();
        if let Some(tool) = shared.filter(|_| theirs != profile) {
            let message = format!(
                "rules `{}` and `{}` allow `{tool}` under different profiles, `{theirs}` and `{profile}`",
                other.id, rule.id
            );
            let hint = format!("a rule with the id `{}` replaces it", other.id);
            let mistake = document.mistake(written.id.span(), message);
            return Err(if document.file == other.file {
                mistake
            } else {
                mistake.with_hint(hint)
            });
        }
    }
    Ok(())
}
