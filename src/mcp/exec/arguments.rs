//! Arguments of `bash_exec`, which those of other tools become.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::arguments::{Arguments, Seconds};

/// Arguments of `bash_exec`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BashExecArguments {
    pub command: String,
    pub working_dir: Option<String>,
    pub timeout: Option<Seconds>,
    pub capture_stderr: Option<bool>,
    pub env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub shell: Shell,
    /// Name of a profile, if policy leaves the choice.
    pub profile: Option<String>,
}

impl Arguments for BashExecArguments {
    const FIELDS: &'static [&'static str] =
        &["command", "working_dir", "timeout", "capture_stderr", "env", "shell", "profile"];
}

/// Shell that interprets a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shell {
    #[default]
    Bash,
    Sh,
    Zsh,
    Fish,
}

impl Shell {
    pub const ALL: [Self; 4] = [Self::Bash, Self::Sh, Self::Zsh, Self::Fish];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Sh => "sh",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }
}
