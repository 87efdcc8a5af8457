//! Checks that names in rules, tools and settings are of things that exist. With a misspelt name, the operator would rely
//! on a protection that is not there.

use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::serve::listener;
use config::Loaded;
use config::clients::client_fault;
use config::policy::flags::DeclaredCommand;
use config::policy::hooks::HookPoint;
use config::policy::tools;
use config::policy::{Effect, Policy, Principal, Profiles};
use model::egress::{EgressRule, NetworkClass};
use model::nearest::nearest;

/// Checks that each rule of egress that the policy names exists: in the profile, or among the additions.
///
/// # Errors
/// The first rule that names an unknown one.
pub(crate) fn check_egress(loaded: &Loaded, added: &[EgressRule]) -> Result<(), CliError> {
    for rule in loaded.policy.rules() {
        let Effect::Allow { profile, choice, egress: Some(ids), .. } = &rule.effect else {
            continue;
        };
        let names = [profile].into_iter().chain(choice);
        let profiles = names.filter_map(|name| loaded.profiles.get(name));
        let rules = profiles.flat_map(|profile| &profile.egress.rules).chain(added);
        let known: Vec<&str> = rules.map(|rule| rule.id.as_str()).collect();
        let Some(unknown) = ids.iter().find(|id| !known.contains(&id.as_str())) else { continue };
        let message = format!(
            "{}:{}: rule `{}` leaves its calls the egress `{unknown}`, which profile `{profile}` does not have",
            plain(&rule.file),
            rule.line,
            rule.id
        );
        let hint = match nearest(unknown, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "add `[[egress]]` to the profile, or start with `--egress`".to_owned(),
        };
        return Err(CliError::new(message).with_hint(hint));
    }
    Ok(())
}

/// Checks that names in `[tools]` are of tools that exist, and that a declared tool does not take a
/// built-in's name: a spelling mistake must not leave a tool on.
pub(crate) fn check_tools(loaded: &Loaded) -> Result<(), CliError> {
    let policy = &loaded.policy;
    let mut given = policy.given_commands().iter().map(|command| command.name.as_str());
    if let Some(name) = given.find(|name| tools::NAMES.contains(name)) {
        return Err(CliError::new(format!("policies: `{name}` is a built-in tool"))
            .with_hint("give the `[[tool]]` another name, such as cli_wc"));
    }
    check_hooks(loaded)?;
    let config = &loaded.config;
    if config.tools_on.value.is_empty() && config.tools_off.value.is_empty() {
        return Ok(());
    }
    let declared = policy.commands().iter().map(|command| command.name.as_str());
    let names: Vec<&str> = tools::NAMES.iter().copied().chain(declared).collect();
    for (key, setting) in [("on", &config.tools_on), ("off", &config.tools_off)] {
        let unknown = setting.value.iter().find(|name| !names.contains(&name.as_str()));
        if let Some(name) = unknown {
            let source = &setting.source;
            let name_shown = name.escape_default();
            let error = CliError::new(format!("{source}: `tools.{key}`: no tool `{name_shown}`"));
            return Err(error.with_hint(match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the tools are {}", names.join(", ")),
            }));
        }
    }
    Ok(())
}

/// Checks that the hooks of enabled tools can run: a rule allows them, under a profile without a network. Hooks that look
/// for a target need a network.
fn check_hooks(loaded: &Loaded) -> Result<(), CliError> {
    let Loaded { policy, profiles, config, .. } = loaded;
    let is_on = |command: &&DeclaredCommand| config.tools_on.value.contains(&command.name);
    for command in policy.given_commands().iter().filter(is_on) {
        for policy in policy.per_client() {
            for hook in &command.hooks.scripts {
                check_hook(&command.name, hook.at, &policy, profiles)?;
            }
        }
    }
    Ok(())
}

fn check_hook(
    name: &str,
    at: HookPoint,
    policy: &Policy,
    profiles: &Profiles,
) -> Result<(), CliError> {
    let known = format!("{}{name}", at.prefix());
    let rule = tools::ruled_by(&known).to_owned();
    let terms = policy.terms(&known, profiles).map_err(|denial| {
        CliError::new(format!("policies: `{name}` has a hook that may not run: {denial}"))
            .with_hint(format!(
                "a rule with `tools = [\"{rule}\"]` names the profile of such scripts"
            ))
    })?;
    let profile = &terms.profile.name;
    let has_network = terms.profile.egress.class > NetworkClass::Loopback;
    match (at == HookPoint::Reach, has_network) {
        (true, true) | (false, false) => Ok(()),
        (false, true) => {
            let message = format!("policies: hooks run under `{profile}`, which has a network");
            Err(CliError::new(message)
                .with_hint("name a profile without one in the rule of `hook`"))
        }
        (true, false) => {
            let message = format!(
                "policies: `{name}` looks for its target under `{profile}`, which has no network"
            );
            Err(CliError::new(message).with_hint("name a profile with one in the rule of `reach`"))
        }
    }
}

/// Checks that the clients in rules exist: a rule with a misspelt name would apply to no client.
pub(crate) fn check_clients(loaded: &Loaded) -> Result<(), CliError> {
    for rule in loaded.policy.rules() {
        for client in &rule.clients {
            let context = format!("{}:{}: rule `{}`", rule.file, rule.line, rule.id);
            check_client(loaded, client, &context)?;
        }
    }
    Ok(())
}

/// Checks that there is a client of this name. Errors start with `context`.
pub(crate) fn check_client(loaded: &Loaded, client: &str, context: &str) -> Result<(), CliError> {
    let http = &loaded.config.http;
    let local = Principal::local();
    let known = [local.name(), listener::CLIENT, http::tcp::CLIENT];
    let known: Vec<&str> = known.into_iter().chain(http.clients()).collect();
    // A list of tokens may have other clients each time that it is read.
    let is_possible = http.token_list.value.is_some() && client_fault(client).is_none();
    if known.contains(&client) || is_possible {
        return Ok(());
    }
    let error =
        CliError::new(format!("{context}: there is no client `{}`", client.escape_default()));
    Err(error.with_hint(match nearest(client, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "a client is named under `[[http.tokens]]`, or it is http, tcp or local".to_owned(),
    }))
}
