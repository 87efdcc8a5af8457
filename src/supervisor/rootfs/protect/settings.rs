//! The settings of git's configuration that name a path or a command (git-config(1)).

/// How the value of a setting is interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// An included configuration, relative to the including file.
    Include,
    /// The directory of hooks, relative to where they are run.
    Hooks,
    /// A work tree, relative to the repository's directory.
    WorkTree,
    /// A file or directory that git obeys.
    Path,
    /// A command for a shell or for exec.
    Command,
    /// A command after a `!`; otherwise words for git, some of which may name programs.
    Alias,
    /// A URL, which contains a command after `ext::` (git-remote-ext(1)).
    Url,
}

/// Settings by section and key; `*` means any key. Subsections are ignored: a conditional include
/// counts as included.
const SETTINGS: [(&str, &str, Meaning); 59] = [
    ("include", "path", Meaning::Include),
    ("includeif", "path", Meaning::Include),
    ("core", "hookspath", Meaning::Hooks),
    ("core", "worktree", Meaning::WorkTree),
    ("core", "attributesfile", Meaning::Path),
    ("init", "templatedir", Meaning::Path),
    ("commit", "template", Meaning::Path),
    ("core", "fsmonitor", Meaning::Command),
    ("core", "editor", Meaning::Command),
    ("core", "pager", Meaning::Command),
    ("core", "sshcommand", Meaning::Command),
    ("core", "askpass", Meaning::Command),
    ("core", "gitproxy", Meaning::Command),
    ("core", "alternaterefscommand", Meaning::Command),
    ("sequence", "editor", Meaning::Command),
    ("gpg", "program", Meaning::Command),
    ("gpg", "defaultkeycommand", Meaning::Command),
    ("diff", "external", Meaning::Command),
    ("diff", "command", Meaning::Command),
    ("diff", "textconv", Meaning::Command),
    ("merge", "driver", Meaning::Command),
    ("filter", "clean", Meaning::Command),
    ("filter", "smudge", Meaning::Command),
    ("filter", "process", Meaning::Command),
    ("alias", "*", Meaning::Alias),
    ("credential", "helper", Meaning::Command),
    ("difftool", "cmd", Meaning::Command),
    ("difftool", "path", Meaning::Command),
    ("mergetool", "cmd", Meaning::Command),
    ("mergetool", "path", Meaning::Command),
    ("guitool", "cmd", Meaning::Command),
    ("browser", "cmd", Meaning::Command),
    ("browser", "path", Meaning::Command),
    ("man", "cmd", Meaning::Command),
    ("man", "path", Meaning::Command),
    ("interactive", "difffilter", Meaning::Command),
    ("pager", "*", Meaning::Command),
    ("uploadpack", "packobjectshook", Meaning::Command),
    ("remote", "uploadpack", Meaning::Command),
    ("remote", "receivepack", Meaning::Command),
    ("remote", "url", Meaning::Url),
    ("remote", "pushurl", Meaning::Url),
    ("trailer", "cmd", Meaning::Command),
    ("trailer", "command", Meaning::Command),
    ("hook", "command", Meaning::Command),
    ("submodule", "update", Meaning::Alias),
    ("gc", "recentobjectshook", Meaning::Command),
    ("tar", "command", Meaning::Command),
    ("lfs", "path", Meaning::Command),
    ("lfs", "clean", Meaning::Command),
    ("lfs", "smudge", Meaning::Command),
    ("sendemail", "smtpserver", Meaning::Command),
    ("sendemail", "tocmd", Meaning::Command),
    ("sendemail", "sendmailcmd", Meaning::Command),
    ("sendemail", "cccmd", Meaning::Command),
    ("sendemail", "headercmd", Meaning::Command),
    ("imap", "tunnel", Meaning::Command),
    ("instaweb", "httpd", Meaning::Command),
    ("svn", "authorsprog", Meaning::Command),
];

/// Returns true if a setting names a path. Does not allocate, as the reader must not.
pub(super) fn matters(section: &[u8], key: &[u8]) -> bool {
    named_by(section, key).is_some()
}

/// Returns the meaning of a setting's value; `None` if git does not obey it.
pub(super) fn named_by(section: &[u8], key: &[u8]) -> Option<Meaning> {
    let setting = SETTINGS.iter().find(|(one, other, _)| {
        section == one.as_bytes() && (*other == "*" || key == other.as_bytes())
    });
    setting.map(|(_, _, meaning)| *meaning)
}
