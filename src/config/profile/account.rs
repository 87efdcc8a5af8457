//! Where a profile comes from: its files, and the reason for each grant in them.

use std::path::PathBuf;
use std::sync::Arc;

use super::schema::{Written, WrittenCalls};

/// Origin of a profile, and the reasons for its grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Files of the profile: those that it extends, the furthest ancestor first, and its own last.
    pub files: Vec<String>,
    /// Reasons per file, in the same order.
    reasons: Vec<Arc<[Reason]>>,
}

/// Why a file grants something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    pub about: About,
    pub why: String,
}

/// Subject of a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// A key such as `exec`.
    Key(&'static str),
    /// A path inside the cell, as the file writes it.
    Path(PathBuf),
    /// Allowed system calls.
    Calls(Vec<String>),
    /// System calls that are refused without being counted.
    Quiet(Vec<String>),
}

impl Account {
    pub(super) fn new(files: Vec<String>, reasons: Vec<Arc<[Reason]>>) -> Self {
        Self { files, reasons }
    }

    /// Returns the reason for the value of a key: that of the last file with this key.
    #[must_use]
    pub fn key(&self, key: &str) -> Option<&str> {
        self.last(|about| matches!(about, About::Key(name) if *name == key))
    }

    /// Returns why a path is in the cell.
    #[must_use]
    pub fn path(&self, cell: &std::path::Path) -> Option<&str> {
        self.last(|about| matches!(about, About::Path(path) if path == cell))
    }

    /// Returns why a system call is allowed, or refused without being counted.
    #[must_use]
    pub fn call(&self, call: &str) -> Option<&str> {
        self.last(|about| match about {
            About::Calls(names) | About::Quiet(names) => names.iter().any(|name| name == call),
            About::Key(_) | About::Path(_) => false,
        })
    }

    /// Iterates over the reasons in the order of the files. A later reason for the same key or path
    /// replaces an earlier one.
    pub fn reasons(&self) -> impl DoubleEndedIterator<Item = &Reason> {
        self.reasons.iter().flat_map(|file| file.iter())
    }

    fn last(&self, is: impl Fn(&About) -> bool) -> Option<&str> {
        let reason = self
            .reasons
            .iter()
            .rev()
            .flat_map(|file| file.iter().rev())
            .find(|reason| is(&reason.about));
        reason.map(|reason| reason.why.as_str())
    }
}

/// Returns the reasons given in one file.
pub(super) fn reasons(written: &Written) -> Arc<[Reason]> {
    let keys = [
        ("exec", written.exec.as_ref().map(|exec| &exec.why)),
        ("ahead", written.ahead.as_ref().map(|ahead| &ahead.why)),
        ("workspace", written.workspace.as_ref().map(|workspace| &workspace.why)),
        ("packaged_etc", written.packaged_etc.as_ref().map(|packaged| &packaged.why)),
        ("proc", written.proc.as_ref().map(|proc| &proc.why)),
        ("network", written.network.as_ref().map(|network| &network.why)),
        ("sockets", written.sockets.as_ref().map(|sockets| &sockets.why)),
        ("unix_sockets", written.unix_sockets.as_ref().map(|sockets| sockets.why.get_ref())),
        ("env", written.env.as_ref().map(|env| &env.why)),
    ];
    let keys = keys.into_iter().filter_map(|(key, why)| Some((About::Key(key), why?)));
    let paths = written.paths.iter().map(|path| {
        let cell = path.cell.as_ref().unwrap_or(&path.host);
        (About::Path(PathBuf::from(cell.get_ref())), &path.why)
    });
    let names = |calls: &WrittenCalls| calls.names.iter().map(|n| n.get_ref().clone()).collect();
    let calls = written.syscalls.iter().map(|calls| (About::Calls(names(calls)), &calls.why));
    let quiet = written.quiet.iter().map(|calls| (About::Quiet(names(calls)), &calls.why));
    let all = keys.chain(paths).chain(calls).chain(quiet);
    all.map(|(about, why)| Reason { about, why: why.as_str().to_owned() }).collect()
}
