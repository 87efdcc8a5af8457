//! Settings of `bash_exec` as typed: flags of `serve`, and variables of the environment.

use std::ffi::OsString;

use clap::Args;

use crate::commands::error::CliError;
use config::exec::{ExecOverrides, ExecSettings, GivenText};

/// Flags as typed.
#[derive(Debug, Clone, Default, Args)]
pub struct ExecFlags {
    /// Time limit of a bash_exec without a timeout [default: $BASH_MCP_DEFAULT_TIMEOUT, else 30]
    #[arg(long, value_name = "SECONDS")]
    pub default_timeout: Option<String>,
    /// Maximum timeout of a bash_exec [default: $BASH_MCP_MAX_TIMEOUT, else 300]
    #[arg(long, value_name = "SECONDS")]
    pub max_timeout: Option<String>,
    /// Directory in the cell in which bash_exec starts [default: $BASH_MCP_WORKING_DIR, else /workspace]
    #[arg(long, value_name = "DIR")]
    pub working_dir: Option<String>,
    /// Commands that the history keeps [default: $BASH_MCP_MAX_HISTORY, else 100]
    #[arg(long, value_name = "N")]
    pub history_size: Option<String>,
}

/// Returns the settings in force: a flag, else the environment, else the file, else the default.
///
/// # Errors
/// An invalid value, with the name under which it was typed.
pub(crate) fn in_force(
    exec: ExecSettings,
    flags: &ExecFlags,
    variable: impl Fn(&'static str) -> Option<OsString>,
) -> Result<ExecSettings, CliError> {
    let said = |flag: &'static str, value: &Option<String>, name: &'static str| match value {
        Some(text) => Ok(Some(GivenText { by: flag, text: text.clone() })),
        None => match variable(name).map(OsString::into_string).transpose() {
            Ok(text) => Ok(text.map(|text| GivenText { by: name, text })),
            Err(_) => Err(CliError::new(format!("{name}: the value is not UTF-8"))
                .with_hint("unset it, or write a value that is")),
        },
    };
    let ExecFlags { default_timeout, max_timeout, working_dir, history_size } = flags;
    let said = ExecOverrides {
        default_timeout: said("--default-timeout", default_timeout, "BASH_MCP_DEFAULT_TIMEOUT")?,
        max_timeout: said("--max-timeout", max_timeout, "BASH_MCP_MAX_TIMEOUT")?,
        working_dir: said("--working-dir", working_dir, "BASH_MCP_WORKING_DIR")?,
        history: said("--history-size", history_size, "BASH_MCP_MAX_HISTORY")?,
    };
    exec.overridden(&said).map_err(|unfit| CliError::new(unfit.to_string()).with_hint(unfit.hint))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use config::{Config, ValueSource};

    #[test]
    fn flags_override_the_environment_and_each_value_has_its_source() {
        let Ok(Config { exec, .. }) = Config::parse(None, 2) else { panic!("the defaults") };
        let flags = ExecFlags { default_timeout: Some("5".to_owned()), ..ExecFlags::default() };
        let variable = |name| match name {
            "BASH_MCP_DEFAULT_TIMEOUT" => Some("7".into()),
            "BASH_MCP_MAX_HISTORY" => Some("9".into()),
            _ => None,
        };
        let values = in_force(exec.clone(), &flags, variable).map(|exec| {
            let ExecSettings { default_timeout, history, max_timeout, .. } = exec;
            (default_timeout.value.as_secs(), default_timeout.source, history, max_timeout.source)
        });
        let history =
            config::Setting { value: 9, source: ValueSource::Given("BASH_MCP_MAX_HISTORY") };
        assert_eq!(
            values,
            Ok((5, ValueSource::Given("--default-timeout"), history, ValueSource::Default))
        );
        let not_utf8 = |_| Some(OsString::from_vec(vec![0xff]));
        let refused = in_force(exec, &ExecFlags::default(), not_utf8).map_err(|error| error.text());
        assert_eq!(
            refused,
            Err("cofferdam: BASH_MCP_DEFAULT_TIMEOUT: the value is not UTF-8\n\
                 hint: unset it, or write a value that is"
                .to_owned())
        );
    }
}
