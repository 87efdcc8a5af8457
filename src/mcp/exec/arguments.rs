//! Arguments of the tools that have a fresh cell for each call.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::arguments::{Arguments, Seconds};

/// Gives a type its fields, in the order of the schema.
macro_rules! arguments {
    ($($of:ident: [$($field:literal),*];)*) => {
        $(impl Arguments for $of {
            const FIELDS: &'static [&'static str] = &[$($field),*];
        })*
    };
}

arguments! {
    BashExecArguments: ["command", "working_dir", "timeout", "capture_stderr", "env", "shell", "profile"];
    BashExecStreamArguments: ["command", "working_dir", "timeout", "buffer_size"];
    GetWorkingDirArguments: [];
    SetWorkingDirArguments: ["directory"];
}

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

/// Arguments of `bash_exec_stream`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BashExecStreamArguments {
    pub command: String,
    pub working_dir: Option<String>,
    pub timeout: Option<Seconds>,
    /// Bytes of one notification, at most.
    pub buffer_size: Option<usize>,
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

/// Arguments of `get_working_dir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetWorkingDirArguments {}

/// Arguments of `set_working_dir`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetWorkingDirArguments {
    pub directory: String,
}
