//! What the configuration leaves one client: its policy, and what follows from that.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cli::{CommandTerms, Declared};
use crate::refused::{Refused, RefusedKind};
use crate::request::ExecOptions;
use config::Loaded;
use config::policy::group::ToolGroup;
use config::policy::tools::{NAMES, ruled_by};
use config::policy::{Policy, Principal, Terms};
use model::profile::Profile;

/// Configuration with the rules of one client, and what follows from them.
#[derive(Debug)]
pub(crate) struct ClientTerms {
    pub(crate) loaded: Loaded,
    /// Time limit of a `bash` call that names no time limit, if less than its rule leaves it.
    pub(crate) default_timeout: Option<Duration>,
    /// Profile of `bash`, with the limits that its rule leaves it.
    pub(crate) shell: Option<Profile>,
    pub(crate) calculator: Duration,
    /// Declared commands that the operator switched on and the policy allows.
    pub(crate) commands: Vec<Declared>,
    pub(crate) exec: ExecOptions,
}

impl ClientTerms {
    /// Makes the terms of a client, whose rules `policy` has among others. `command_timeout` is the time limit of a
    /// `bash` call that names no time limit, if the operator set one.
    pub(crate) fn new(
        loaded: Loaded,
        policy: &Policy,
        client: &Principal,
        command_timeout: Option<Duration>,
    ) -> Self {
        let loaded = Loaded { policy: policy.for_client(client), ..loaded };
        let effective = |tool| effective(&loaded, tool);
        let shell = effective("bash");
        let default_timeout = command_timeout
            .map(|time| shell.as_ref().map_or(time, |shell| time.min(shell.limits.wall)));
        let calculator =
            effective("calculate").map_or(Duration::ZERO, |profile| profile.limits.wall);
        let commands = offered(&loaded);
        let exec = exec_options(&loaded);
        Self { loaded, default_timeout, shell, calculator, commands, exec }
    }
}

/// Returns the declared commands that some client is offered.
pub(crate) fn offered_to_any(loaded: &Loaded) -> Vec<Declared> {
    let mut all: BTreeMap<String, Declared> = BTreeMap::new();
    for policy in loaded.policy.per_client() {
        for declared in offered(&Loaded { policy, ..loaded.clone() }) {
            all.entry(declared.command.name.clone()).or_insert(declared);
        }
    }
    all.into_values().collect()
}

/// Returns the settings of `bash_exec` within the limits of its rule, so that its description is
/// exact.
fn exec_options(loaded: &Loaded) -> ExecOptions {
    let exec = &loaded.config.exec;
    let rule = loaded.policy.terms("bash_exec", &loaded.profiles);
    let bound = rule.as_ref().map_or(Duration::MAX, |terms| terms.limits.wall);
    let max_timeout = bound.min(exec.max_timeout.value);
    let own = |terms: &Terms<'_>| {
        let names = [&terms.profile.name].into_iter().chain(terms.choice.iter().copied());
        names.map(ToString::to_string).collect()
    };
    let profiles = rule.as_ref().map_or(Vec::new(), own);
    ExecOptions {
        default_timeout: exec.default_timeout.value.min(max_timeout),
        max_timeout,
        working_dir: exec.working_dir.value.clone(),
        history: exec.history.value,
        profiles,
    }
}

/// Returns the declared commands that `[tools] on` names, `[tools] off` does not name, and a rule
/// allows.
fn offered(loaded: &Loaded) -> Vec<Declared> {
    let Loaded { policy, config, .. } = loaded;
    if config.tools_on.value.is_empty() {
        return Vec::new();
    }
    let commands = policy.commands().iter();
    let on = commands.filter(|command| withheld(loaded, &command.name).is_none());
    on.filter_map(|command| {
        let profile = effective(loaded, &command.name)?;
        let terms = CommandTerms::of(&command.conduct, &config.commands, &profile);
        Some(Declared { command: command.clone(), profile, terms })
    })
    .collect()
}

/// Returns the reason why an existing tool is not offered.
pub(crate) fn withheld(loaded: &Loaded, tool: &str) -> Option<Refused> {
    let Loaded { config, policy, profiles, .. } = loaded;
    let declared = policy.declares(tool);
    if !declared && !NAMES.contains(&tool) {
        return None;
    }
    let off = || Refused::new(RefusedKind::Denied, format!("`{tool}` is switched off"));
    let names = [tool, ruled_by(tool)];
    if names.iter().any(|name| config.tools_off.value.contains(*name)) {
        return Some(off().with_hint("it is under `[tools] off` in the operator's cofferdam.toml"));
    }
    if let Some(group) =
        ToolGroup::of_tool(tool).filter(|group| !config.tools_groups.value.contains(group))
    {
        let hint = group.remedy(&config.tools_groups.value);
        return Some(off().with_hint(hint));
    }
    if declared && !config.tools_on.value.contains(tool) {
        let hint = "the operator can switch it on with `[tools] on` in cofferdam.toml";
        return Some(off().with_hint(hint));
    }
    // A call of a built-in tool that no rule allows is decided like any other, and recorded.
    let denied = declared.then(|| policy.terms(tool, profiles).err()).flatten();
    denied.map(Refused::from)
}

/// Returns the profile of a tool with the limits that its rule leaves, as a call of it would get.
fn effective(loaded: &Loaded, tool: &str) -> Option<Profile> {
    let terms = loaded.policy.terms(tool, &loaded.profiles).ok()?;
    let mut profile = Profile { limits: terms.limits, ..terms.profile.clone() };
    if let Some(rules) = terms.egress {
        let rules: Vec<String> = rules.into_iter().map(str::to_owned).collect();
        profile.egress = profile.egress.narrowed(&rules);
    }
    Some(profile)
}
