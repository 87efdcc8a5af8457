//! A profile's account of itself: the files it is made of, and the reason of each grant in them.

use std::path::PathBuf;
use std::sync::Arc;

use super::layer::Layer;
use super::schema::{Written, WrittenCalls};

/// Origin of a profile, and the reasons of its grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its own file last; before it what it extends, the furthest first.
    pub files: Vec<String>,
    /// Of each file, in that order.
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
    /// A key of its own, such as `exec`.
    Key(&'static str),
    /// A path, as the cell sees it and as the file writes it.
    Path(PathBuf),
    /// System calls that it allows.
    Calls(Vec<String>),
    /// System calls that it refuses and does not count.
    Quiet(Vec<String>),
}

impl Account {
    /// Collects the account of a chain of profiles that extend each other, the furthest ancestor first.
    pub(super) fn of(chain: &[&Layer<'_>]) -> Self {
        Self {
            files: chain.iter().map(|layer| layer.document.file.clone()).collect(),
            reasons: chain.iter().map(|layer| Arc::clone(layer.reasons())).collect(),
        }
    }

    /// Returns why a key is as it is: the last file that writes it decides.
    #[must_use]
    pub fn key(&self, key: &str) -> Option<&str> {
        self.last(|about| matches!(about, About::Key(name) if *name == key))
    }

    /// Returns why a path is in the cell.
    #[must_use]
    pub fn path(&self, cell: &std::path::Path) -> Option<&str> {
        self.last(|about| matches!(about, About::Path(path) if path == cell))
    }

    /// Returns why a system call is allowed, or refused quietly.
    #[must_use]
    pub fn call(&self, call: &str) -> Option<&str> {
        self.last(|about| match about {
            About::Calls(names) | About::Quiet(names) => names.iter().any(|name| name == call),
            About::Key(_) | About::Path(_) => false,
        })
    }

    /// Iterates over the reasons in the order of the files. A later reason for the same key or path replaces an
    /// earlier one.
    pub fn reasons(&self) -> impl DoubleEndedIterator<Item = &Reason> {
        self.reasons.iter().flat_map(|file| file.iter())
    }

    fn last(&self, is: impl Fn(&About) -> bool) -> Option<&str> {
        let found = self
            .reasons
            .iter()
            .rev()
            .flat_map(|file| file.iter().rev())
            .find(|reason| is(&reason.about));
        found.map(|reason| reason.why.as_str())
    }
}

/// Returns the reasons that one file gives.
pub(super) fn reasons(written: &Written) -> Arc<[Reason]> {
    let keys = [
        ("exec", written.exec.as_ref().map(|exec| &exec.why)),
        ("ahead", written.ahead.as_ref().map(|ahead| &ahead.why)),
        ("workspace", written.workspace.as_ref().map(|workspace| &workspace.why)),
        ("proc", written.proc.as_ref().map(|proc| &proc.why)),
        ("network", written.network.as_ref().map(|network| &network.why)),
        ("sockets", written.sockets.as_ref().map(|sockets| &sockets.why)),
        ("unix_sockets", written.unix_sockets.as_ref().map(|sockets| &sockets.why)),
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
    all.map(|(about, why)| Reason { about, why: why.get_ref().clone() }).collect()
}
