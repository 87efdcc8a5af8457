//! Finds programs on the operator's PATH that cells lack, so that a reply can name where a missing one is.

use std::collections::BTreeMap;

use super::report::StreamReport;
use model::outcome::Outcome;

/// Exit code of a shell that did not find a command.
const NOT_FOUND: u8 = 127;
/// Lines of standard error that are looked at, from its end.
const LINES: usize = 20;
/// Ends of the lines in which shells name a command that they did not find.
const SAID: [&str; 2] = [": command not found", ": not found"];

/// Directories of such programs, by the programs' names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPrograms(BTreeMap<String, String>);

impl HostPrograms {
    /// Takes names with their directories, as they are to be shown.
    pub fn new(directories: BTreeMap<String, String>) -> Self {
        Self(directories)
    }

    /// Describes where the host has a program that a command did not find.
    pub fn remark(&self, outcome: &Outcome, stderr: &StreamReport) -> Option<String> {
        if *outcome != (Outcome::Exited { code: NOT_FOUND }) {
            return None;
        }
        let lines = stderr.text.lines().rev().take(LINES);
        let named = |line| SAID.iter().find_map(|said| str::strip_suffix(line, said));
        let mut names = lines.filter_map(named).filter_map(|line| line.rsplit(": ").next());
        names.find_map(|name| self.place(name))
    }

    /// Describes where the host has the program of this name.
    pub fn place(&self, name: &str) -> Option<String> {
        let directory = self.0.get(name)?;
        Some(format!(
            "the host has `{name}` in {directory}, which is not in this cell; the operator can grant the \
             directory with --ro, and name it in PATH with --env"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Cut;

    #[test]
    fn a_command_that_the_host_has_is_named_with_its_directory() {
        let all = [("cargo".to_owned(), "~/.cargo/bin".to_owned())];
        let programs = HostPrograms::new(all.into());
        let remark = |code, text: &str| {
            let stderr = StreamReport { text: text.to_owned(), bytes: 0, cut: Cut::Whole };
            programs.remark(&Outcome::Exited { code }, &stderr)
        };
        for said in [
            "bash: line 1: cargo: command not found\n",
            "/bin/sh: 1: cargo: not found\n",
            "make: x\n/bin/sh: 1: cargo: not found\nmake: *** [Makefile:2: all] Error 127\n",
            "/dev/session/cmd.1: line 1: cargo: command not found\n",
        ] {
            let place = remark(127, said).unwrap_or_default();
            assert!(place.contains("`cargo` in ~/.cargo/bin"), "{said}");
        }
        assert_eq!(remark(127, "bash: line 1: absent: command not found\n"), None);
        assert_eq!(remark(1, "bash: line 1: cargo: command not found\n"), None);
    }
}
