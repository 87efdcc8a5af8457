//! Files that a client subscribed to, within bounds for each session and each client.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::projects::current::{CurrentProject, FileWatch, NotWatched};
use projects::WATCHED_FILES;

/// Maximum watched files of one session, or of all streams of one client.
pub(crate) const MAX_FILES: usize = 64;
/// Maximum watched files of all sessions of one client, so that others have room too.
const MAX_CLIENT_FILES: usize = WATCHED_FILES / 4;

/// Subscriptions of one client.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    /// Files, by the addresses that the client asked for.
    files: Mutex<BTreeMap<String, SubscribedFile>>,
    /// Number of its files, including those of open streams.
    count: Arc<AtomicUsize>,
    /// Number of the files of all sessions of this client.
    of_client: Arc<AtomicUsize>,
}

/// A file, and the version of it that its client knows.
#[derive(Debug)]
pub(crate) struct SubscribedFile {
    held: FileWatch,
    notified: u64,
    /// Counts the file for its session and for its client.
    _counted: [CountedFile; 2],
}

impl SubscribedFile {
    /// Returns true if the content changed since this was asked last.
    pub(crate) fn has_changed(&mut self) -> bool {
        let before = std::mem::replace(&mut self.notified, self.held.version());
        before != self.notified
    }
}

/// A file in a count, until this is dropped.
#[derive(Debug)]
struct CountedFile(Arc<AtomicUsize>);

impl CountedFile {
    fn new(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let more = |count: usize| (count < max).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(Arc::clone(count)))
    }
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Subscriptions {
    /// Makes the subscriptions of a session; all sessions of the client share this count of files.
    pub(crate) fn counted_by(of_client: Arc<AtomicUsize>) -> Self {
        Self { of_client, ..Self::default() }
    }

    /// Returns how many more files can be watched.
    pub(crate) fn room(&self) -> usize {
        let left =
            |count: &AtomicUsize, max: usize| max.saturating_sub(count.load(Ordering::Relaxed));
        left(&self.count, MAX_FILES).min(left(&self.of_client, MAX_CLIENT_FILES))
    }

    /// Watches a file for the client, which is notified of changes after `since`, or from now on.
    pub(crate) async fn watch_one(
        &self,
        project: &Arc<CurrentProject>,
        path: &str,
        since: Option<SystemTime>,
    ) -> Result<SubscribedFile, NotWatched> {
        let counted = |count, max| CountedFile::new(count, max).ok_or(NotWatched::TooMany);
        let counted =
            [counted(&self.count, MAX_FILES)?, counted(&self.of_client, MAX_CLIENT_FILES)?];
        let (held, before) = project.watch_file(path, since).await?;
        let notified = if since.is_some() { before } else { held.version() };
        Ok(SubscribedFile { notified, held, _counted: counted })
    }

    /// Returns the files that the session of the client watches.
    pub(crate) fn files(&self) -> MutexGuard<'_, BTreeMap<String, SubscribedFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
