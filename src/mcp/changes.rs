//! Changes that a client hears of: of lists, by files of the project and by the operator, and of resources that it asked
//! about. Each client is told of what is another than when it was told last.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{ServiceError, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, Peer, RoleServer};
use tokio::sync::watch;

use crate::projects::current::{CurrentProject, HeldFile, NotWatched, Versions};
use crate::resources::{self, Watching};
use crate::server::{Server, Shared};
use project::{WATCHED_FILES, WatchableResource};
use service::Backend;

/// Time between two tellings of one client at least: a client reads a list anew each time.
const APART: Duration = Duration::from_millis(500);
/// Time before the files of a stream are looked for in which the client may have been told that they are watched. A file
/// system's clock can be as much behind.
const EARLIER: Duration = Duration::from_millis(20);
/// Files of a project that one session hears of, or all streams of one client.
const FILES: usize = 64;
/// Files that all sessions of one client hear of: others have room too.
const CLIENT_FILES: usize = WATCHED_FILES / 4;

/// What one client asked about.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    /// Files by the addresses that were asked for.
    files: Mutex<BTreeMap<String, ToldFile>>,
    /// Number of its files, those of open streams with them.
    count: Arc<AtomicUsize>,
    /// Number of the files of all sessions of this client.
    of_client: Arc<AtomicUsize>,
    /// Task that tells of changes.
    telling: Watching,
}

/// A file, and the version of it that its client knows.
#[derive(Debug)]
struct ToldFile {
    held: HeldFile,
    told: u64,
    /// Among those of its session, and of its client.
    _places: (Place, Place),
}

/// A place among files that are counted.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Place {
    fn among(count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let more = |count: usize| (count < most).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(Arc::clone(count)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lists as a client was told of them last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    versions: Versions,
    own: OwnLists,
}

/// Names of what is the server's own, as it is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnLists {
    tools: Vec<String>,
    resources: Vec<String>,
}

/// A change that a client is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Tools,
    Resources,
    Prompts,
    Updated(String),
}

/// Ways to a client.
enum Ear {
    /// A session of the revisions that have some.
    Session(Peer<RoleServer>),
    /// A stream that it opened for this.
    Stream(SubscriptionSink),
}

impl Ear {
    /// Tells a client, and waits until it may be told again; false once it cannot be told anything more.
    async fn tell_all(&self, changes: Vec<Change>) -> bool {
        let is_any = !changes.is_empty();
        for change in changes {
            if !self.tell(change).await {
                return false;
            }
        }
        if is_any {
            tokio::time::sleep(APART).await;
        }
        true
    }

    /// Tells a client; false once it cannot be told anything more.
    async fn tell(&self, change: Change) -> bool {
        let told = match self {
            Self::Session(peer) => tell_session(peer, change).await.is_ok(),
            Self::Stream(sink) => tell_stream(sink, change).await,
        };
        if !told {
            tracing::debug!("a change was not told: the client is gone");
        }
        told
    }
}

async fn tell_session(peer: &Peer<RoleServer>, change: Change) -> Result<(), ServiceError> {
    match change {
        Change::Tools => peer.notify_tool_list_changed().await,
        Change::Resources => peer.notify_resource_list_changed().await,
        Change::Prompts => peer.notify_prompt_list_changed().await,
        Change::Updated(uri) => {
            peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
        }
    }
}

async fn tell_stream(sink: &SubscriptionSink, change: Change) -> bool {
    let wants = sink.accepted();
    match change {
        Change::Tools if wants.tools_list_changed == Some(true) => {
            sink.notify_tool_list_changed().await.is_ok()
        }
        Change::Resources if wants.resources_list_changed == Some(true) => {
            sink.notify_resource_list_changed().await.is_ok()
        }
        Change::Prompts if wants.prompts_list_changed == Some(true) => {
            sink.notify_prompt_list_changed().await.is_ok()
        }
        Change::Tools | Change::Resources | Change::Prompts => true,
        Change::Updated(uri) => sink.notify_resource_updated(uri).await.is_ok(),
    }
}

/// Receivers of everything that may be a change.
struct Signals {
    switches: watch::Receiver<u64>,
    project: Option<watch::Receiver<Versions>>,
}

impl Signals {
    /// Waits for the next signal; false once there can be none.
    async fn next(&mut self) -> bool {
        match &mut self.project {
            None => self.switches.changed().await.is_ok(),
            Some(project) => tokio::select! {
                switched = self.switches.changed() => switched.is_ok(),
                changed = project.changed() => changed.is_ok(),
            },
        }
    }
}

impl<B: Backend> Server<B> {
    fn signals(&self) -> Signals {
        let project = self.0.project.as_ref().map(|project| project.changes());
        Signals { switches: self.0.backend.switches(), project }
    }

    /// Returns the lists as they are now.
    fn told_now(&self, signals: &mut Signals) -> Told {
        signals.switches.mark_unchanged();
        let versions = signals.project.as_mut().map(|project| *project.borrow_and_update());
        Told { versions: versions.unwrap_or_default(), own: self.own_lists() }
    }

    fn own_lists(&self) -> OwnLists {
        let resources = resources::listed(&self.0.backend).into_iter().map(|one| one.uri.clone());
        let templates = resources::templates(&self.0.backend).into_iter();
        let templates = templates.map(|one| one.uri_template.clone());
        OwnLists {
            tools: self.own_names().map(str::to_owned).collect(),
            resources: resources.chain(templates).collect(),
        }
    }

    /// Begins to tell the client of a session of changes.
    pub(crate) fn begin_telling(&self, peer: Peer<RoleServer>) {
        let mut signals = self.signals();
        let mut told = self.told_now(&mut signals);
        // The task must not keep what it is a part of.
        let server = Arc::downgrade(&self.0);
        let ear = Ear::Session(peer);
        let task = tokio::spawn(async move {
            while signals.next().await {
                let Some(changes) = due(&server, &mut signals, &mut told) else { return };
                if !ear.tell_all(changes).await {
                    return;
                }
            }
        });
        self.0.subscriptions.telling.replace(Some(task));
    }

    /// Returns what of the lists is another than it was told.
    fn lists_due(&self, signals: &mut Signals, told: &mut Told) -> Vec<Change> {
        let before = std::mem::replace(told, self.told_now(signals));
        let (now, was) = (&told.versions, &before.versions);
        let tools = now.tools != was.tools || told.own.tools != before.own.tools;
        let resources =
            now.resources != was.resources || told.own.resources != before.own.resources;
        let prompts = now.prompts != was.prompts;
        [(tools, Change::Tools), (resources, Change::Resources), (prompts, Change::Prompts)]
            .into_iter()
            .filter_map(|(is_due, change)| is_due.then_some(change))
            .collect()
    }

    /// Has a client hear of a file of the project; `None` where the project has nothing of this name.
    pub(crate) async fn watch_file(&self, asked: &str) -> Option<Result<(), ErrorData>> {
        let project = self.0.project.as_ref()?;
        let watchable = match project.trusted() {
            Ok(trusted) => trusted.watchable(asked)?,
            Err(broken) => return Some(Err(broken)),
        };
        let path = match watchable {
            WatchableResource::Constant { .. } => return Some(Ok(())),
            WatchableResource::File { path, .. } => path,
            WatchableResource::Unknown { provider } => {
                let why = format!("resources of the provider `{provider}` are not watched");
                return Some(Err(ErrorData::invalid_params(why, None)));
            }
        };
        if project.last().settings.poll_seconds == 0 {
            return Some(Err(ErrorData::internal_error(NotWatched::Off.to_string(), None)));
        }
        let subscriptions = &self.0.subscriptions;
        if subscriptions.files().contains_key(asked) {
            return Some(Ok(()));
        }
        // The answer says from when on it is watched.
        let file = match subscriptions.told_file(project, &path, None).await {
            Ok(file) => file,
            Err(why) => return Some(Err(ErrorData::internal_error(why.to_string(), None))),
        };
        subscriptions.files().insert(asked.to_owned(), file);
        Some(Ok(()))
    }

    /// Ends what [`Server::watch_file`] began; `None` where the project has nothing of this name.
    pub(crate) fn unwatch_file(&self, asked: &str) -> Option<()> {
        let project = self.0.project.as_ref()?;
        let was_watched = self.0.subscriptions.files().remove(asked).is_some();
        (was_watched || project.last().watchable(asked).is_some()).then_some(())
    }

    /// Returns the addresses among these that a stream can be about: of files, as many as there is room for.
    pub(crate) fn watchable<'u>(&self, uris: impl Iterator<Item = &'u String>) -> Vec<String> {
        let Some(current) = &self.0.project else { return Vec::new() };
        let Ok(project) = current.trusted() else { return Vec::new() };
        let mut room = match project.settings.poll_seconds {
            0 => 0,
            _ => current.room().min(self.0.subscriptions.room()),
        };
        let is_watched = |uri: &&String| match project.watchable(uri) {
            Some(WatchableResource::Constant { .. }) => true,
            Some(WatchableResource::File { .. }) if room > 0 => {
                room -= 1;
                true
            }
            Some(WatchableResource::File { .. } | WatchableResource::Unknown { .. }) | None => {
                false
            }
        };
        uris.filter(is_watched).take(FILES).cloned().collect()
    }

    /// Tells a client of the revision without sessions of changes, until it closes its stream.
    pub(crate) async fn tell_stream(&self, context: &SubscriptionContext) {
        let mut signals = self.signals();
        let mut told = self.told_now(&mut signals);
        let mut files = self.stream_files(context.accepted()).await;
        let ear = Ear::Stream(context.sink().clone());
        loop {
            // What changed while files were looked for is told too.
            let mut changes = self.lists_due(&mut signals, &mut told);
            changes.extend(files_due(&mut files));
            if !ear.tell_all(changes).await {
                return;
            }
            if !signals.next().await {
                // No change can come any more; the stream lasts until its client closes it.
                return std::future::pending().await;
            }
        }
    }

    async fn stream_files(&self, accepted: &SubscriptionFilter) -> BTreeMap<String, ToldFile> {
        let mut files = BTreeMap::new();
        let Some(project) = &self.0.project else { return files };
        // Its client knows by now that it is told of changes.
        let since = SystemTime::now() - EARLIER;
        for uri in accepted.resource_subscriptions.iter().flatten() {
            let Some(WatchableResource::File { path, .. }) = project.last().watchable(uri) else {
                continue;
            };
            if files.contains_key(uri) {
                continue;
            }
            match self.0.subscriptions.told_file(project, &path, Some(since)).await {
                Ok(file) => drop(files.insert(uri.clone(), file)),
                // There was room when it was accepted.
                Err(why) => tracing::warn!(%why, "a resource is not watched"),
            }
        }
        files
    }
}

impl Subscriptions {
    /// Makes those of one of a client's sessions, which have this count of files together.
    pub(crate) fn of_client(of_client: Arc<AtomicUsize>) -> Self {
        Self { of_client, ..Self::default() }
    }

    /// Returns how many more files there can be.
    fn room(&self) -> usize {
        let left =
            |count: &AtomicUsize, most: usize| most.saturating_sub(count.load(Ordering::Relaxed));
        left(&self.count, FILES).min(left(&self.of_client, CLIENT_FILES))
    }

    /// Has a file watched for the client, which is told of changes after `since`, or from now on.
    async fn told_file(
        &self,
        project: &Arc<CurrentProject>,
        path: &str,
        since: Option<SystemTime>,
    ) -> Result<ToldFile, NotWatched> {
        let place = |count, most| Place::among(count, most).ok_or(NotWatched::TooMany);
        let places = (place(&self.count, FILES)?, place(&self.of_client, CLIENT_FILES)?);
        let (held, before) = project.hold(path, since).await?;
        let told = if since.is_some() { before } else { held.version() };
        Ok(ToldFile { told, held, _places: places })
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, ToldFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns all that a session is to be told of; `None` once it is gone.
fn due<B: Backend>(
    server: &Weak<Shared<B>>,
    signals: &mut Signals,
    told: &mut Told,
) -> Option<Vec<Change>> {
    let server = Server(server.upgrade()?);
    let mut changes = server.lists_due(signals, told);
    changes.extend(files_due(&mut server.0.subscriptions.files()));
    Some(changes)
}

/// Returns the files whose content is another than was told.
fn files_due(files: &mut BTreeMap<String, ToldFile>) -> Vec<Change> {
    let mut changes = Vec::new();
    for (uri, file) in files {
        let version = file.held.version();
        if version != file.told {
            file.told = version;
            changes.push(Change::Updated(uri.clone()));
        }
    }
    changes
}
