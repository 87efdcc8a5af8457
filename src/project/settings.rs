//! What the operator says about a project in variables of the server, as the framework names them.

use std::collections::BTreeMap;

use crate::token::RemoteToken;

/// Beginning of the variables' names.
const PREFIX: &str = "MCPBASH_";
/// Words that mean yes.
const YES: [&str; 4] = ["true", "1", "yes", "on"];
/// Time limit in seconds of a tool that states none.
const DEFAULT_SECONDS: u64 = 30;
/// Longest time limit in seconds of a tool whose progress renews it.
const MAX_SECONDS: u64 = 600;
/// Longest text of a result in bytes; scripts shorten others.
const TEXT_BYTES: u64 = 100 << 10;

/// Settings of a server of one project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectSettings {
    /// True if the project's hooks are run.
    pub has_hooks: bool,
    /// True if batches are taken in each revision.
    pub has_batches: bool,
    /// Instructions for the model in place of ours.
    pub instructions: Option<String>,
    /// Which tools are called.
    pub tools: ToolFilter,
    pub default_seconds: u64,
    pub max_seconds: u64,
    pub text_bytes: u64,
    /// Variables of the server's environment that scripts are given by name.
    pub env: BTreeMap<String, String>,
    /// Secret that each request shows.
    pub token: Option<RemoteToken>,
}

/// Tools that are called, by the variables for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolFilter {
    All,
    None,
    /// These, by their names.
    Listed(Vec<String>),
}

/// A variable whose value is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {message}")]
pub struct SettingError {
    pub name: &'static str,
    pub message: String,
}

impl Default for ProjectSettings {
    fn default() -> Self {
        Self {
            has_hooks: false,
            has_batches: false,
            instructions: None,
            tools: ToolFilter::All,
            default_seconds: DEFAULT_SECONDS,
            max_seconds: MAX_SECONDS,
            text_bytes: TEXT_BYTES,
            env: BTreeMap::new(),
            token: None,
        }
    }
}

impl ProjectSettings {
    /// Reads the settings from variables.
    ///
    /// # Errors
    /// A value that is not understood, or one that would give scripts the whole environment.
    pub fn of(get: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let text = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let number = |name: &'static str, default: u64, (least, most): (u64, u64)| {
            let Some(value) = text(name) else { return Ok(default) };
            let read = value.trim().parse().ok().filter(|number| (least..=most).contains(number));
            let message = format!("expected a whole number from {least} to {most}");
            read.ok_or(SettingError { name, message })
        };
        let has =
            |name: &str| text(name).is_some_and(|it| YES.contains(&it.to_lowercase().as_str()));
        let max_seconds = number("MCPBASH_MAX_TIMEOUT_SECS", MAX_SECONDS, (1, 86_400))?;
        let token = RemoteToken::of(&get)?;
        Ok(Self {
            token,
            has_hooks: has("MCPBASH_ALLOW_PROJECT_HOOKS"),
            has_batches: has("MCPBASH_COMPAT_BATCHES"),
            instructions: text("MCPBASH_SERVER_INSTRUCTIONS"),
            tools: filter(text("MCPBASH_TOOL_ALLOWLIST"), text("MCPBASH_TOOL_ALLOW_DEFAULT"))?,
            default_seconds: number(
                "MCPBASH_DEFAULT_TOOL_TIMEOUT",
                DEFAULT_SECONDS.min(max_seconds),
                (1, max_seconds),
            )?,
            max_seconds,
            text_bytes: number("MCPBASH_MAX_TEXT_BYTES", TEXT_BYTES, (1024, 1 << 20))?,
            env: environment(
                &get,
                text("MCPBASH_TOOL_ENV_MODE"),
                text("MCPBASH_TOOL_ENV_ALLOWLIST"),
            )?,
        })
    }
}

impl ToolFilter {
    /// Returns true if a tool of this name is called.
    pub fn admits(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Listed(names) => names.iter().any(|one| one == name),
        }
    }
}

/// Splits a list at spaces and commas.
fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
}

fn filter(list: Option<String>, default: Option<String>) -> Result<ToolFilter, SettingError> {
    let Some(list) = list else {
        return match default.as_deref().map(str::trim) {
            None | Some("allow") => Ok(ToolFilter::All),
            Some("deny") => Ok(ToolFilter::None),
            Some(_) => Err(SettingError {
                name: "MCPBASH_TOOL_ALLOW_DEFAULT",
                message: "expected allow or deny".to_owned(),
            }),
        };
    };
    match words(&list).any(|word| word == "*" || word == "all") {
        true => Ok(ToolFilter::All),
        false => Ok(ToolFilter::Listed(words(&list).map(str::to_owned).collect())),
    }
}

/// Takes the variables that are named. The framework's own are settings and not a script's.
fn environment(
    get: &impl Fn(&str) -> Option<String>,
    mode: Option<String>,
    names: Option<String>,
) -> Result<BTreeMap<String, String>, SettingError> {
    let bad = |name, message: &str| SettingError { name, message: message.to_owned() };
    match mode.as_deref().map(str::trim) {
        None | Some("minimal") => return Ok(BTreeMap::new()),
        Some("allowlist") => {}
        Some("inherit") => {
            let why = "no cell has the whole environment of the server: name variables in MCPBASH_TOOL_ENV_ALLOWLIST, \
                       with allowlist here";
            return Err(bad("MCPBASH_TOOL_ENV_MODE", why));
        }
        Some(_) => return Err(bad("MCPBASH_TOOL_ENV_MODE", "expected minimal or allowlist")),
    }
    let list = names.unwrap_or_default();
    let mut env = BTreeMap::new();
    for name in words(&list) {
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !is_name || is_own(name) {
            let why = format!("`{}` is no variable for scripts", name.escape_default());
            return Err(bad("MCPBASH_TOOL_ENV_ALLOWLIST", &why));
        }
        if let Some(value) = get(name) {
            env.insert(name.to_owned(), value);
        }
    }
    Ok(env)
}

/// Returns true for the variables of the contract, which nobody else sets.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with(PREFIX) || name.starts_with("MCP_") || name.starts_with("COFFERDAM_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<ProjectSettings, SettingError> {
        ProjectSettings::of(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_set_without_a_variable() {
        assert_eq!(of(&[]), Ok(ProjectSettings::default()));
        let set = of(&[("MCPBASH_ALLOW_PROJECT_HOOKS", "false"), ("MCPBASH_TOOL_ALLOWLIST", " ")]);
        assert_eq!(set, Ok(ProjectSettings::default()));
    }

    #[test]
    fn tools_are_admitted_by_list_or_by_default() {
        let admits = |set: &[(&str, &str)], name| of(set).expect("settings").tools.admits(name);
        let list = [("MCPBASH_TOOL_ALLOWLIST", "a, b c")];
        assert_eq!(["a", "b", "c", "d"].map(|name| admits(&list, name)), [true, true, true, false]);
        assert!(admits(
            &[("MCPBASH_TOOL_ALLOWLIST", "*"), ("MCPBASH_TOOL_ALLOW_DEFAULT", "deny")],
            "x"
        ));
        assert!(!admits(&[("MCPBASH_TOOL_ALLOW_DEFAULT", "deny")], "x"));
        assert!(of(&[("MCPBASH_TOOL_ALLOW_DEFAULT", "no")]).is_err());
    }

    #[test]
    fn scripts_get_variables_by_name_and_never_the_token() {
        let named = [("MCPBASH_TOOL_ENV_MODE", "allowlist"), ("KEY", "v"), ("OTHER", "w")];
        let with = |list| of(&[&named[..], &[("MCPBASH_TOOL_ENV_ALLOWLIST", list)]].concat());
        let env = with("KEY,ABSENT").expect("settings").env;
        assert_eq!(env, BTreeMap::from([("KEY".to_owned(), "v".to_owned())]));
        for bad in ["MCPBASH_REMOTE_TOKEN", "MCP_SDK", "A-B", "1A"] {
            assert!(with(bad).is_err(), "{bad}");
        }
        assert!(
            of(&[("MCPBASH_TOOL_ENV_MODE", "inherit"), ("MCPBASH_TOOL_ENV_INHERIT_ALLOW", "true")])
                .is_err()
        );
    }

    #[test]
    fn numbers_have_bounds() {
        let seconds =
            |value| of(&[("MCPBASH_DEFAULT_TOOL_TIMEOUT", value)]).map(|it| it.default_seconds);
        assert_eq!(seconds("5"), Ok(5));
        assert!(seconds("0").is_err() && seconds("601").is_err() && seconds("x").is_err());
        let lower = of(&[("MCPBASH_MAX_TIMEOUT_SECS", "10")]).expect("settings");
        assert_eq!((lower.default_seconds, lower.max_seconds), (10, 10));
    }
}
