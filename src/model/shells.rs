//! The shells that a cell may have.

use serde::{Deserialize, Serialize};

/// A shell that interprets commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShellKind {
    #[default]
    Bash,
    Sh,
    Zsh,
    Fish,
}

impl ShellKind {
    pub const ALL: [Self; 4] = [Self::Bash, Self::Sh, Self::Zsh, Self::Fish];

    /// Returns its name, which is that of its program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Sh => "sh",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    /// Returns true for a variable that the shell of a session reserves: setting it fails, changes
    /// the shell's identity, or is undone by the shell (bash(1), dash(1), zshparam(1), fish's
    /// `set`).
    #[must_use]
    pub fn keeps(self, name: &str) -> bool {
        let reserved: &[&str] = match self {
            Self::Bash => &["BASH_VERSINFO", "EUID", "PPID", "UID"],
            Self::Sh => &["LINENO", "OPTIND", "PPID"],
            Self::Zsh => &[
                "ARGC",
                "EGID",
                "ERRNO",
                "EUID",
                "GID",
                "HISTCMD",
                "LINENO",
                "PPID",
                "TTYIDLE",
                "UID",
                "USERNAME",
                "ZSH_EVAL_CONTEXT",
                "ZSH_SUBSHELL",
                "argv",
                "cdpath",
                "fignore",
                "fpath",
                "mailpath",
                "manpath",
                "module_path",
                "path",
                "pipestatus",
                "psvar",
                "signals",
                "status",
                "watch",
                "zsh_eval_context",
            ],
            Self::Fish => &[
                "FISH_VERSION",
                "PWD",
                "SHLVL",
                "_",
                "argv",
                "fish_kill_signal",
                "fish_killring",
                "fish_pid",
                "history",
                "hostname",
                "pipestatus",
                "status",
                "status_generation",
                "umask",
                "version",
            ],
        };
        name.starts_with("COFFERDAM_") || reserved.contains(&name)
    }

    /// Quotes a word for this shell, whatever is in it.
    #[must_use]
    pub fn quoted(self, word: &str) -> String {
        let word = match self {
            // In fish, a backslash within single quotes escapes itself and the quote.
            Self::Fish => word.replace('\\', r"\\"),
            Self::Bash | Self::Sh | Self::Zsh => word.to_owned(),
        };
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_keeps_its_own_variables_and_no_others() {
        assert!(ShellKind::Zsh.keeps("UID") && ShellKind::Fish.keeps("status"));
        assert!(!ShellKind::Fish.keeps("UID") && !ShellKind::Bash.keeps("status"));
        for shell in ShellKind::ALL {
            assert!(shell.keeps("COFFERDAM_CALL") && !shell.keeps("HOME") && !shell.keeps("PATH"));
        }
    }

    #[test]
    fn any_text_is_one_word() {
        assert_eq!(ShellKind::Bash.quoted("a b"), "'a b'");
        assert_eq!(ShellKind::Zsh.quoted("it's; $(x)"), r"'it'\''s; $(x)'");
        assert_eq!(ShellKind::Sh.quoted(r"\\x\"), r"'\\x\'");
        assert_eq!(ShellKind::Fish.quoted(r"\'\x"), r"'\\'\''\\x'");
    }
}
