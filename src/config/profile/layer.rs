//! A file in a chain of profiles that extend each other, with its cached derived values.

use std::sync::{Arc, OnceLock};

use toml::Spanned;

use super::account::{self, Account, Reason};
use super::schema::{Written, WrittenCalls};
use crate::document::{Document, Mistake};
use model::profile::calls::{CallMeaning, lookup, nearest_name};
use model::profile::never::{keyed, reason};

/// A profile file. Each part is parsed on first use, once for all profiles that extend this one.
#[derive(Debug)]
pub(crate) struct Layer<'d> {
    pub document: &'d Document,
    pub written: Written,
    calls: OnceLock<Result<Listed, Mistake>>,
    reasons: OnceLock<Arc<[Reason]>>,
}

/// The numbers in a file's `[[syscalls]]` and `[[quiet]]`, in order; `None` for a call of another
/// architecture.
#[derive(Debug)]
pub(crate) struct Listed {
    pub syscalls: Vec<Option<u32>>,
    pub quiet: Vec<Option<u32>>,
}

impl<'d> Layer<'d> {
    pub(crate) fn new(document: &'d Document, written: Written) -> Self {
        Self { document, written, calls: OnceLock::new(), reasons: OnceLock::new() }
    }

    /// Returns the file's calls as numbers.
    pub(crate) fn calls(&self) -> Result<&Listed, Mistake> {
        self.calls.get_or_init(|| listed(self)).as_ref().map_err(Clone::clone)
    }

    /// Returns the reasons given in the file.
    pub(crate) fn reasons(&self) -> &Arc<[Reason]> {
        self.reasons.get_or_init(|| account::reasons(&self.written))
    }
}

/// Collects the account of a chain of profiles that extend each other, the furthest ancestor first.
pub(crate) fn account(chain: &[&Layer<'_>]) -> Account {
    let files = chain.iter().map(|layer| layer.document.file.clone()).collect();
    Account::new(files, chain.iter().map(|layer| Arc::clone(layer.reasons())).collect())
}

/// Returns the names in several lists of calls, in order.
pub(crate) fn names(lists: &[WrittenCalls]) -> impl Iterator<Item = &Spanned<String>> {
    lists.iter().flat_map(|list| &list.names)
}

fn listed(layer: &Layer<'_>) -> Result<Listed, Mistake> {
    let syscalls = numbers(layer.document, &layer.written.syscalls)?;
    names(&layer.written.syscalls).try_for_each(|name| check_grantable(layer.document, name))?;
    Ok(Listed { syscalls, quiet: numbers(layer.document, &layer.written.quiet)? })
}

fn numbers(document: &Document, lists: &[WrittenCalls]) -> Result<Vec<Option<u32>>, Mistake> {
    let number = |name: &Spanned<String>| match lookup(name.get_ref()) {
        Some(CallMeaning::Here(number)) => Ok(Some(number)),
        Some(CallMeaning::Elsewhere) => Ok(None),
        None => {
            let shown = name.get_ref().escape_default();
            let error = document.mistake(name.span(), format!("`{shown}` is no system call"));
            Err(match nearest_name(name.get_ref()) {
                Some(near) => error.with_hint(format!("did you mean `{near}`?")),
                None => error,
            })
        }
    };
    names(lists).map(number).collect()
}

fn check_grantable(document: &Document, name: &Spanned<String>) -> Result<(), Mistake> {
    let call = name.get_ref();
    if let Some(why) = reason(call) {
        let message = format!("no profile can grant `{call}`: {why}");
        return Err(document.mistake(name.span(), message));
    }
    match keyed(call) {
        Some(key) => {
            let message = format!("`{call}` is granted by the key `{key}`");
            Err(document.mistake(name.span(), message))
        }
        None => Ok(()),
    }
}
