//! Arguments of `bash_exec`, which those of other tools become.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::arguments::{Arguments, Seconds};
use service::request::{ExecRequest, StderrIs};
use service::shell::{ScriptArgs, Shell};

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

impl From<BashExecArguments> for ExecRequest {
    fn from(given: BashExecArguments) -> Self {
        let BashExecArguments { command, working_dir, timeout, env, shell, profile, .. } = given;
        let timeout = timeout.map(|Seconds(value)| value);
        let stderr = match given.capture_stderr {
            Some(false) => StderrIs::LeftOut,
            Some(true) | None => StderrIs::Shown,
        };
        let args = ScriptArgs {
            command,
            cwd: working_dir,
            env,
            timeout,
            profile,
            ..ScriptArgs::default()
        };
        Self { args, shell, stderr }
    }
}
