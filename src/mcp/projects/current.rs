//! Keeps the lists of a project current, and notices changes of files that clients subscribed to. A process next to the
//! front end watches the files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rmcp::ErrorData;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

use projects::{
    FRAME_BYTES, ListedChanges, Project, ProjectMistake, WATCHED_FILES, WatchOrder, WatchReport,
    framed,
};

/// Time in which the watching process has to confirm an order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum new mistakes of a project that are logged each time it is read; the rest is counted.
const MAX_LOGGED_MISTAKES: usize = 20;

/// A project that is served, and its changes.
#[derive(Debug)]
pub struct CurrentProject {
    state: RwLock<State>,
    versions: watch::Sender<Versions>,
    files: Mutex<Files>,
    /// Numbers of the files that are watched for each client, by the client's name.
    counts: Mutex<BTreeMap<String, Weak<AtomicUsize>>>,
    /// Files to watch.
    orders: watch::Sender<WatchOrder>,
    /// Number of the last confirmed order; `None` while no process watches the project.
    confirmed: watch::Sender<Option<u64>>,
}

#[derive(Debug)]
struct State {
    project: Arc<Project>,
    /// Reason why the lists cannot be trusted.
    broken: Option<String>,
}

/// Versions of the lists and files, which change with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) tools: u64,
    pub(crate) resources: u64,
    pub(crate) prompts: u64,
    /// Of any watched file.
    files: u64,
}

/// Watched files, by their paths.
#[derive(Debug, Default)]
struct Files {
    all: BTreeMap<String, WatchedFile>,
    number: u64,
}

#[derive(Debug)]
struct WatchedFile {
    holders: usize,
    version: u64,
    /// Time in nanoseconds since the epoch after which changes count.
    since: u64,
}

impl WatchedFile {
    /// The file has no subscriber any more.
    const NONE: Self = Self { holders: 0, version: 0, since: u64::MAX };
}

/// Reason why a file is not watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotWatched {
    #[error("this server does not see changes of the project's files")]
    Off,
    #[error("too many files are watched already")]
    TooMany,
}

/// A file that is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct FileWatch {
    project: Arc<CurrentProject>,
    path: String,
}

impl CurrentProject {
    /// Serves a project as it was read.
    pub fn new(project: Project) -> Self {
        Self {
            state: RwLock::new(State { project: Arc::new(project), broken: None }),
            versions: watch::Sender::default(),
            files: Mutex::default(),
            counts: Mutex::default(),
            orders: watch::Sender::default(),
            confirmed: watch::Sender::default(),
        }
    }

    /// Returns the project as last read.
    pub fn last(&self) -> Arc<Project> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&state.project)
    }

    /// Returns the project, if its lists can be trusted.
    ///
    /// # Errors
    /// A mistake in its `register.json`.
    pub(crate) fn trusted(&self) -> Result<Arc<Project>, ErrorData> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        match &state.broken {
            None => Ok(Arc::clone(&state.project)),
            Some(why) => Err(ErrorData::internal_error(why.clone(), None)),
        }
    }

    /// Returns a receiver that changes with every change that a client may hear of.
    pub(crate) fn changes(&self) -> watch::Receiver<Versions> {
        self.versions.subscribe()
    }

    /// Receives reports of the watching process, and sends it orders, until it ends.
    pub async fn follow(self: Arc<Self>, stream: std::os::unix::net::UnixStream) {
        self.confirmed.send_replace(Some(0));
        if let Err(error) = self.followed(stream).await {
            tracing::warn!("project: changes are no longer seen: {error}");
        }
        self.confirmed.send_replace(None);
    }

    async fn followed(self: &Arc<Self>, stream: std::os::unix::net::UnixStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let (mut reports, mut sink) = UnixStream::from_std(stream)?.into_split();
        let mut orders = self.orders.subscribe();
        let ordering = async {
            while orders.changed().await.is_ok() {
                let order = orders.borrow_and_update().clone();
                let frame = framed(&order).ok_or(io::ErrorKind::InvalidData)?;
                sink.write_all(&frame).await?;
            }
            Ok(())
        };
        let taking = async {
            loop {
                let length = usize::try_from(reports.read_u32_le().await?).unwrap_or(usize::MAX);
                if length > FRAME_BYTES {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                let mut text = Vec::new();
                (&mut reports)
                    .take(u64::try_from(length).unwrap_or(0))
                    .read_to_end(&mut text)
                    .await?;
                if text.len() < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                // Parsed on another thread, so that messages of clients do not wait.
                let own = Arc::clone(self);
                let taken = tokio::task::spawn_blocking(move || own.take(&text)).await;
                taken.unwrap_or_else(|fault| Err(io::Error::other(fault)))?;
            }
        };
        tokio::select! {
            ended = ordering => ended,
            ended = taking => ended,
        }
    }

    /// Takes one report.
    fn take(&self, text: &[u8]) -> io::Result<()> {
        // Frames end with a newline, so later ones are understood after a broken one.
        let report = WatchReport::read(text).unwrap_or_else(|error| {
            WatchReport::Unread(format!("a report is not understood: {error}"))
        });
        match report {
            WatchReport::Lists(project) => self.renew(*project),
            WatchReport::Broken(why) => {
                tracing::warn!(
                    "project: every list is refused until this is right: {}",
                    plain(&why)
                );
                let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
                state.broken = Some(why);
            }
            WatchReport::Unread(why) => {
                tracing::warn!("project: it stays as it was read last: {}", plain(&why));
            }
            WatchReport::Updated(paths) => self.update(&paths),
            WatchReport::Ordered(number) => drop(self.confirmed.send_replace(Some(number))),
            WatchReport::Polled(why) => {
                tracing::warn!("project: changes are looked for every 2 seconds: {}", plain(&why));
            }
            WatchReport::Unwatched(why) => return Err(io::Error::other(plain(&why))),
        }
        Ok(())
    }

    /// Replaces the project by the new reading.
    fn renew(&self, project: Project) {
        let before = self.last();
        let project = project.following(&before);
        let changes = ListedChanges::between(&before, &project);
        let (new, more) = new_mistakes(&before.mistakes, &project.mistakes);
        for mistake in new {
            tracing::warn!("project: {}", plain(&mistake.to_string()));
        }
        if more > 0 {
            tracing::warn!("project: and {more} more mistakes (cofferdam project validate)");
        }
        tracing::info!(tools = project.tools.len(), ?changes, "project.read");
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        *state = State { project: Arc::new(project), broken: None };
        drop(state);
        let ListedChanges { tools, resources, prompts } = changes;
        self.versions.send_if_modified(|versions| {
            versions.tools += u64::from(tools);
            versions.resources += u64::from(resources);
            versions.prompts += u64::from(prompts);
            tools || resources || prompts
        });
    }

    fn update(&self, paths: &[String]) {
        let mut files = self.files();
        for path in paths {
            if let Some(file) = files.all.get_mut(path) {
                file.version += 1;
            }
        }
        drop(files);
        self.versions.send_modify(|versions| versions.files += 1);
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many more files can be watched for clients: 0 while no process watches the project.
    pub(crate) fn room(&self) -> usize {
        match *self.confirmed.borrow() {
            Some(_) => WATCHED_FILES.saturating_sub(self.files().all.len()),
            None => 0,
        }
    }

    /// Returns the count of files that the sessions of a client of this name share.
    pub(crate) fn count_of(&self, client: &str) -> Arc<AtomicUsize> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        // Remove the counts of clients that have left.
        counts.retain(|_, count| count.strong_count() > 0);
        let known = counts.get(client).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let count = Arc::default();
            counts.insert(client.to_owned(), Arc::downgrade(&count));
            count
        })
    }

    /// Watches a file. Returns once the watch is in place, with the file's version before. A change between `since`, if
    /// given, and the beginning of the watch counts.
    ///
    /// # Errors
    /// No process watches the project, or too many files are watched.
    pub(crate) async fn watch_file(
        self: &Arc<Self>,
        path: &str,
        since: Option<SystemTime>,
    ) -> Result<(FileWatch, u64), NotWatched> {
        let mut confirmed = self.confirmed.subscribe();
        if confirmed.borrow_and_update().is_none() {
            return Err(NotWatched::Off);
        }
        let (held, version, number) = {
            let mut files = self.files();
            if files.all.len() >= WATCHED_FILES && !files.all.contains_key(path) {
                return Err(NotWatched::TooMany);
            }
            let file = files.all.entry(path.to_owned()).or_insert(WatchedFile::NONE);
            file.holders += 1;
            file.since = file.since.min(since.map_or(u64::MAX, nanoseconds));
            let version = file.version;
            let held = FileWatch { project: Arc::clone(self), path: path.to_owned() };
            (held, version, self.order(&mut files))
        };
        let is_confirmed = |last: &Option<u64>| last.is_none_or(|last| last >= number);
        let last = tokio::time::timeout(ORDER_TIMEOUT, confirmed.wait_for(is_confirmed)).await;
        match last {
            Ok(Ok(last)) if last.is_some() => Ok((held, version)),
            Ok(_) | Err(_) => Err(NotWatched::Off),
        }
    }

    /// Orders the process to watch the files; returns the number of the order.
    fn order(&self, files: &mut Files) -> u64 {
        files.number += 1;
        let all = files.all.iter().map(|(path, file)| (path.clone(), file.since)).collect();
        self.orders.send_replace(WatchOrder { number: files.number, files: all });
        files.number
    }
}

impl FileWatch {
    /// Returns a number that changes with the file's content.
    pub(crate) fn version(&self) -> u64 {
        self.project.files().all.get(&self.path).map_or(0, |file| file.version)
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        let mut files = self.project.files();
        let Some(file) = files.all.get_mut(&self.path) else { return };
        file.holders -= 1;
        if file.holders == 0 {
            files.all.remove(&self.path);
            self.project.order(&mut files);
        }
    }
}

/// Returns a time in nanoseconds since the epoch.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the first new mistakes, and the number of the others. A script that writes to `resources` can make as many
/// as a project has entries, each time it is read.
fn new_mistakes<'m>(
    before: &[ProjectMistake],
    now: &'m [ProjectMistake],
) -> (Vec<&'m ProjectMistake>, usize) {
    let key = |one: &'m ProjectMistake| (&one.file, &one.message);
    let known: BTreeSet<(&String, &String)> =
        before.iter().map(|one| (&one.file, &one.message)).collect();
    let mut new: Vec<&ProjectMistake> =
        now.iter().filter(|one| !known.contains(&key(one))).collect();
    let more = new.len().saturating_sub(MAX_LOGGED_MISTAKES);
    new.truncate(MAX_LOGGED_MISTAKES);
    (new, more)
}

/// Escapes a text for the operator's terminal.
fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_mistakes_are_reported_once_and_the_first_of_many() {
        let mistakes = |from: usize, to: usize| -> Vec<ProjectMistake> {
            let one = |number: usize| ProjectMistake {
                file: format!("resources/r{number}"),
                message: "is a symbolic link, and none is followed".to_owned(),
            };
            (from..to).map(one).collect()
        };
        let count = |before: &[ProjectMistake], now: &[ProjectMistake]| {
            let (new, more) = new_mistakes(before, now);
            (new.len(), more)
        };
        assert_eq!(count(&mistakes(0, 5), &mistakes(0, 5)), (0, 0));
        assert_eq!(count(&mistakes(0, 5), &mistakes(2, 7)), (2, 0));
        // With as many as a project has entries, comparing all pairs would be 400 million comparisons.
        assert_eq!(
            count(&mistakes(0, 20_000), &mistakes(20_000, 40_000)),
            (MAX_LOGGED_MISTAKES, 20_000 - MAX_LOGGED_MISTAKES)
        );
    }
}
