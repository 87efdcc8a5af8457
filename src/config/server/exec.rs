//! Settings of `bash_exec`: by a flag, else the environment, else `[exec]`, else the default.

use std::time::Duration;

use super::settings::{File, Kind, PeriodValue, Setting, ValueSource, settings};
use crate::document::{Item, Read, ReadError, text};
use model::call::{Cwd, MAX_TIMEOUT};
use model::defaults::{EXEC_MAX_TIMEOUT, EXEC_TIMEOUT, HISTORY, HISTORY_MAX};
use model::units::Time;

settings! {
/// Values of `[exec]`, each with where it came from.
pub struct ExecSettings {
    /// Settings of `bash_exec`. A flag of `serve` or a variable of its environment overrides them.
    exec {
        /// Timeout of a command that sets none itself.
        ///
        /// Default: `"30s"`. Example: `"1m"`.
        default_timeout: PeriodValue<0, 3600> = EXEC_TIMEOUT,
        /// Longest timeout that a command may set; at most one hour.
        ///
        /// Default: `"300s"`. Example: `"10m"`.
        max_timeout: PeriodValue<0, 3600> = EXEC_MAX_TIMEOUT,
        /// Directory of the cell in which commands start until `set_working_dir` is called:
        /// `/workspace`, `/tmp`, or a directory below them.
        ///
        /// Default: `"/workspace"`. Example: `"/tmp"`.
        working_dir: CellDirectory = Cwd::workspace(),
        /// Commands that the history tools remember; at most 1000.
        ///
        /// Default: `100`. Example: `0`.
        history: HistoryLength = HISTORY,
    }
}
}

/// Text of a flag or a variable, and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenText {
    pub by: &'static str,
    pub text: String,
}

/// Flags and variables that were given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOverrides {
    pub default_timeout: Option<GivenText>,
    pub max_timeout: Option<GivenText>,
    pub working_dir: Option<GivenText>,
    pub history: Option<GivenText>,
}

/// A value that cannot be right, and what can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{by}: {what}")]
pub struct UnfitValue {
    pub by: String,
    pub what: String,
    pub hint: &'static str,
}

const TIME_HINT: &str = "write seconds above 0, as 30, or a time as 5m; 1h at most";
const DIRECTORY_HINT: &str =
    "it is a directory of the cell: /workspace, /tmp, or one inside of them";
const ORDER_HINT: &str = "a command that asks for no time must have one that it may ask for";

impl ExecSettings {
    /// Checks the order of the two times of a file.
    pub(super) fn in_order_of(self, file: File<'_>) -> Result<Self, ReadError> {
        let place = file.value("exec", "default_timeout").unwrap_or(file.root);
        self.in_order().map_err(|bad| place.error(bad.what).with_hint(bad.hint))
    }

    /// Replaces these settings by the flags that were given.
    ///
    /// # Errors
    /// When a value cannot be right.
    pub fn overridden(self, by: &ExecOverrides) -> Result<Self, UnfitValue> {
        let exec = Self {
            default_timeout: typed(self.default_timeout, by.default_timeout.as_ref(), time)?,
            max_timeout: typed(self.max_timeout, by.max_timeout.as_ref(), time)?,
            working_dir: typed(self.working_dir, by.working_dir.as_ref(), directory)?,
            history: typed(self.history, by.history.as_ref(), history)?,
        };
        exec.in_order()
    }

    /// Lowers the built-in default to a lower maximum; a default that was chosen is not changed.
    fn in_order(mut self) -> Result<Self, UnfitValue> {
        let max = self.max_timeout.value;
        let default = self.default_timeout.value;
        if default <= max {
            return Ok(self);
        }
        if self.default_timeout.source == ValueSource::Default {
            self.default_timeout.value = max;
            return Ok(self);
        }
        let what = format!(
            "the default time is {} and the most is {}, by {}",
            Time(default),
            Time(max),
            self.max_timeout.source
        );
        Err(UnfitValue { by: self.default_timeout.source.to_string(), what, hint: ORDER_HINT })
    }
}

/// Directory of the cell.
pub struct CellDirectory;

impl Kind for CellDirectory {
    type Value = Cwd;
    type Written = String;

    fn read(item: Item<'_>) -> Result<Cwd, ReadError> {
        Cwd::new("working_dir", text(item)?)
            .map_err(|bad| item.error(bad.to_string()).with_hint(DIRECTORY_HINT))
    }

    fn show(path: &Cwd) -> String {
        path.as_str().to_owned()
    }
}

/// Number of commands.
pub struct HistoryLength;

impl Kind for HistoryLength {
    type Value = usize;
    type Written = usize;

    fn read(item: Item<'_>) -> Result<usize, ReadError> {
        match usize::read(item)? {
            many if many > HISTORY_MAX => Err(item.error(format!("must be {HISTORY_MAX} at most"))),
            size => Ok(size),
        }
    }

    fn show(size: &usize) -> String {
        size.to_string()
    }
}

/// Returns the flag's value, else the one from before.
fn typed<T>(
    before: Setting<T>,
    given: Option<&GivenText>,
    read: impl Fn(&str) -> Result<T, (String, &'static str)>,
) -> Result<Setting<T>, UnfitValue> {
    let Some(GivenText { by, text }) = given else { return Ok(before) };
    match read(text) {
        Ok(value) => Ok(Setting { value, source: ValueSource::Given(by) }),
        Err((what, hint)) => Err(UnfitValue { by: (*by).to_owned(), what, hint }),
    }
}

fn time(text: &str) -> Result<Duration, (String, &'static str)> {
    let bad = |what: String| (what, TIME_HINT);
    let Time(time) =
        text.parse().map_err(|error: model::units::InvalidUnit| bad(error.to_string()))?;
    if time > MAX_TIMEOUT {
        return Err(bad(format!("{} is more than any call may have", Time(time))));
    }
    Ok(time)
}

fn directory(text: &str) -> Result<Cwd, (String, &'static str)> {
    Cwd::new("the directory", text).map_err(|bad| (bad.to_string(), DIRECTORY_HINT))
}

fn history(text: &str) -> Result<usize, (String, &'static str)> {
    const HINT: &str = "write how many commands are remembered; 0 for none";
    let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
    let bad = || (format!("`{shown}` is no number from 0 to {HISTORY_MAX}"), HINT);
    text.parse().ok().filter(|size| *size <= HISTORY_MAX).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::document::Document;

    fn of(text: &str) -> Result<ExecSettings, String> {
        let document = Document::new("c.toml", &format!("schema = 1\n{text}"));
        let config = Config::parse(Some(&document), 2).map_err(|bad| bad.to_string())?;
        Ok(config.exec)
    }

    fn settings_of(
        exec: Result<ExecSettings, impl ToString>,
    ) -> Result<(u64, u64, String, usize), String> {
        exec.map_err(|bad| bad.to_string()).map(|exec| {
            let seconds = |time: &Setting<Duration>| time.value.as_secs();
            let directory = exec.working_dir.value.as_str().to_owned();
            (
                seconds(&exec.default_timeout),
                seconds(&exec.max_timeout),
                directory,
                exec.history.value,
            )
        })
    }

    fn by(by: &'static str, text: &str) -> Option<GivenText> {
        Some(GivenText { by, text: text.to_owned() })
    }

    #[test]
    fn flags_override_the_file_and_the_file_overrides_the_defaults() -> Result<(), String> {
        let nothing = || "/workspace".to_owned();
        assert_eq!(settings_of(of("")), Ok((30, 300, nothing(), 100)));
        let file = "[exec]\ndefault_timeout = \"7s\"\nmax_timeout = 20\nworking_dir = \"src\"\nhistory = 3\n";
        assert_eq!(settings_of(of(file)), Ok((7, 20, "/workspace/src".to_owned(), 3)));
        let said = ExecOverrides {
            default_timeout: by("--default-timeout", "2m"),
            max_timeout: by("BASH_MCP_MAX_TIMEOUT", "3600"),
            working_dir: by("BASH_MCP_WORKING_DIR", "/tmp"),
            history: by("--history-size", "0"),
        };
        assert_eq!(settings_of(of(file)?.overridden(&said)), Ok((120, 3600, "/tmp".to_owned(), 0)));
        // A default that no source set follows the lower limit.
        let said =
            ExecOverrides { max_timeout: by("--max-timeout", "10"), ..ExecOverrides::default() };
        assert_eq!(settings_of(of("")?.overridden(&said)), Ok((10, 10, nothing(), 100)));
        Ok(())
    }

    #[test]
    fn a_value_that_cannot_be_right_is_refused_by_its_name() -> Result<(), String> {
        let refused =
            |said: ExecOverrides| of("").and_then(|exec| settings_of(exec.overridden(&said)));
        let time = |text| {
            refused(ExecOverrides {
                max_timeout: by("--max-timeout", text),
                ..ExecOverrides::default()
            })
        };
        let cases = [
            ("0", "`0` must be above zero"),
            ("x", "`x` is not a time; write 500ms, 30s, 10m, 1h or bare seconds"),
            ("-1", "`-1` is not a time; write 500ms, 30s, 10m, 1h or bare seconds"),
            ("61m", "3660s is more than any call may have"),
        ];
        for (text, what) in cases {
            assert_eq!(time(text), Err(format!("--max-timeout: {what}")));
        }
        let said = ExecOverrides {
            default_timeout: by("--default-timeout", "301"),
            ..ExecOverrides::default()
        };
        assert_eq!(
            refused(said),
            Err("--default-timeout: the default time is 301s and the most is 300s, by default"
                .to_owned())
        );
        let said = ExecOverrides {
            working_dir: by("BASH_MCP_WORKING_DIR", "/etc"),
            ..ExecOverrides::default()
        };
        assert_eq!(
            refused(said),
            Err("BASH_MCP_WORKING_DIR: the directory `/etc` is not inside /workspace or /tmp"
                .to_owned())
        );
        let said =
            ExecOverrides { history: by("--history-size", "1001"), ..ExecOverrides::default() };
        assert_eq!(
            refused(said),
            Err("--history-size: `1001` is no number from 0 to 1000".to_owned())
        );
        Ok(())
    }

    #[test]
    fn a_mistake_in_the_file_is_reported_with_its_place() {
        let at = |text: &str| of(text).err().unwrap_or_default();
        let cases = [
            ("[exec]\nmax_timeout = \"2h\"\n", "c.toml:3:15: must be 1h at most"),
            ("[exec]\nhistory = 1001\n", "c.toml:3:11: must be 1000 at most"),
            ("[exec]\nworking_dir = \"/etc\"\n", "c.toml:3:15: working_dir `/etc` is not inside"),
            ("[exec]\ndefault_timeout = \"301s\"\n", "c.toml:3:19: the default time is 301s"),
        ];
        for (text, start) in cases {
            assert!(at(text).starts_with(start), "{}", at(text));
        }
    }
}
