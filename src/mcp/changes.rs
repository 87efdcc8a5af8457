//! Notifies each client of lists and files that changed since its last notification.
//!
//! Lists change with the files of a project and with the operator's switches. Files are those that the client
//! subscribed to.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{ServiceError, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, Peer, RoleServer};
use tokio::sync::watch;

use crate::projects::current::{NotWatched, Versions};
use crate::resources;
use crate::server::{Server, Shared};
use crate::subscriptions::{FILES, WatchedFile};
use projects::WatchableResource;

/// Minimum time between two notifications of one client, which reads the list again after each.
const APART: Duration = Duration::from_millis(500);
/// Time by which a client may learn that a file is watched before the watch exists. Changes within it count. A file
/// system's clock can be as much behind.
const EARLIER: Duration = Duration::from_millis(20);

/// Versions of the lists at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OfferedLists {
    versions: Versions,
    built_in: BuiltInLists,
}

/// Names of the built-in entries that are offered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BuiltInLists {
    tools: Vec<String>,
    resources: Vec<String>,
}

/// A change to notify a client of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Tools,
    Resources,
    Prompts,
    Updated(String),
}

/// How notifications reach a client.
enum NotificationSink {
    /// Through a session, in the revisions that have sessions.
    Session(Peer<RoleServer>),
    /// Through a stream that the client opened for this.
    Stream(SubscriptionSink),
}

impl NotificationSink {
    /// Notifies the client, and waits until the next notification may follow; false once the client is gone.
    async fn notify_all(&self, changes: Vec<Change>) -> bool {
        let is_any = !changes.is_empty();
        for change in changes {
            if !self.notify(change).await {
                return false;
            }
        }
        if is_any {
            tokio::time::sleep(APART).await;
        }
        true
    }

    /// Notifies the client; false once the client is gone.
    async fn notify(&self, change: Change) -> bool {
        let is_sent = match self {
            Self::Session(peer) => notify_session(peer, change).await.is_ok(),
            Self::Stream(sink) => notify_stream(sink, change).await,
        };
        if !is_sent {
            tracing::debug!("a notification was not sent: the client is gone");
        }
        is_sent
    }
}

async fn notify_session(peer: &Peer<RoleServer>, change: Change) -> Result<(), ServiceError> {
    match change {
        Change::Tools => peer.notify_tool_list_changed().await,
        Change::Resources => peer.notify_resource_list_changed().await,
        Change::Prompts => peer.notify_prompt_list_changed().await,
        Change::Updated(uri) => {
            peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
        }
    }
}

async fn notify_stream(sink: &SubscriptionSink, change: Change) -> bool {
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

/// Signals of everything that can change.
struct Signals {
    switches: watch::Receiver<u64>,
    project: Option<watch::Receiver<Versions>>,
}

impl Signals {
    /// Waits for the next signal; false once no further signal can come.
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

impl Server {
    fn signals(&self) -> Signals {
        let project = self.0.project.as_ref().map(|project| project.changes());
        Signals { switches: self.0.client.switches(), project }
    }

    /// Returns the lists as they are now.
    fn current_lists(&self, signals: &mut Signals) -> OfferedLists {
        signals.switches.mark_unchanged();
        let versions = signals.project.as_mut().map(|project| *project.borrow_and_update());
        OfferedLists { versions: versions.unwrap_or_default(), built_in: self.built_in_lists() }
    }

    fn built_in_lists(&self) -> BuiltInLists {
        let resources = resources::listed(&self.0.client).into_iter().map(|one| one.uri.clone());
        let templates = resources::templates(&self.0.client).into_iter();
        let templates = templates.map(|one| one.uri_template.clone());
        BuiltInLists {
            tools: self.own_names().map(str::to_owned).collect(),
            resources: resources.chain(templates).collect(),
        }
    }

    /// Starts the task that notifies the client of a session.
    pub(crate) fn begin_notifying(&self, peer: Peer<RoleServer>) {
        let mut signals = self.signals();
        let mut notified = self.current_lists(&mut signals);
        // A weak reference: the task must not keep the server alive.
        let server = Arc::downgrade(&self.0);
        let sink = NotificationSink::Session(peer);
        let task = tokio::spawn(async move {
            while signals.next().await {
                let Some(changes) = due(&server, &mut signals, &mut notified) else { return };
                if !sink.notify_all(changes).await {
                    return;
                }
            }
        });
        self.0.subscriptions.task.replace(Some(task));
    }

    /// Returns the lists that changed since the last notification.
    fn lists_due(&self, signals: &mut Signals, notified: &mut OfferedLists) -> Vec<Change> {
        let before = std::mem::replace(notified, self.current_lists(signals));
        let now = &notified.versions;
        let was = &before.versions;
        let tools = now.tools != was.tools || notified.built_in.tools != before.built_in.tools;
        let resources = now.resources != was.resources
            || notified.built_in.resources != before.built_in.resources;
        let prompts = now.prompts != was.prompts;
        [(tools, Change::Tools), (resources, Change::Resources), (prompts, Change::Prompts)]
            .into_iter()
            .filter_map(|(is_due, change)| is_due.then_some(change))
            .collect()
    }

    /// Subscribes a client to a file of the project; `None` if the project has no such file.
    pub(crate) async fn watch_file(&self, uri: &str) -> Option<Result<(), ErrorData>> {
        let project = self.0.project.as_ref()?;
        let watchable = match project.trusted() {
            Ok(trusted) => trusted.watchable(uri)?,
            Err(broken) => return Some(Err(broken)),
        };
        let path = match watchable {
            WatchableResource::Constant { .. } => return Some(Ok(())),
            WatchableResource::File { path, .. } => path,
            WatchableResource::Unknown { provider } => {
                let message = format!("resources of the provider `{provider}` are not watched");
                return Some(Err(ErrorData::invalid_params(message, None)));
            }
        };
        if project.last().settings.poll_seconds == 0 {
            return Some(Err(ErrorData::internal_error(NotWatched::Off.to_string(), None)));
        }
        let subscriptions = &self.0.subscriptions;
        if subscriptions.files().contains_key(uri) {
            return Some(Ok(()));
        }
        // The answer promises that later changes are noticed.
        let file = match subscriptions.watch_one(project, &path, None).await {
            Ok(file) => file,
            Err(error) => return Some(Err(ErrorData::internal_error(error.to_string(), None))),
        };
        subscriptions.files().insert(uri.to_owned(), file);
        Some(Ok(()))
    }

    /// Ends a subscription of [`Server::watch_file`]; `None` if the project has no such file.
    pub(crate) fn unwatch_file(&self, uri: &str) -> Option<()> {
        let project = self.0.project.as_ref()?;
        let was_watched = self.0.subscriptions.files().remove(uri).is_some();
        (was_watched || project.last().watchable(uri).is_some()).then_some(())
    }

    /// Returns the addresses among these that a stream can serve: as many files as there is room for.
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

    /// Notifies a client of the revision without sessions of changes, until it closes its stream.
    pub(crate) async fn notify_stream(&self, context: &SubscriptionContext) {
        let mut signals = self.signals();
        let mut notified = self.current_lists(&mut signals);
        let mut files = self.stream_files(context.accepted()).await;
        let sink = NotificationSink::Stream(context.sink().clone());
        loop {
            // Includes what changed while the watch was set up.
            let mut changes = self.lists_due(&mut signals, &mut notified);
            changes.extend(files_due(&mut files));
            if !sink.notify_all(changes).await {
                return;
            }
            if !signals.next().await {
                // No further change can come; the stream stays open until its client closes it.
                return std::future::pending().await;
            }
        }
    }

    async fn stream_files(&self, accepted: &SubscriptionFilter) -> BTreeMap<String, WatchedFile> {
        let mut files = BTreeMap::new();
        let Some(project) = &self.0.project else { return files };
        // By now the client knows that its subscription is accepted.
        let since = SystemTime::now() - EARLIER;
        for uri in accepted.resource_subscriptions.iter().flatten() {
            let Some(WatchableResource::File { path, .. }) = project.last().watchable(uri) else {
                continue;
            };
            if files.contains_key(uri) {
                continue;
            }
            match self.0.subscriptions.watch_one(project, &path, Some(since)).await {
                Ok(file) => drop(files.insert(uri.clone(), file)),
                // Room was reserved when the subscription was accepted.
                Err(error) => tracing::warn!(%error, "a resource is not watched"),
            }
        }
        files
    }
}

/// Returns the changes to notify a session of; `None` once it is gone.
fn due(
    server: &Weak<Shared>,
    signals: &mut Signals,
    notified: &mut OfferedLists,
) -> Option<Vec<Change>> {
    let server = Server(server.upgrade()?);
    let mut changes = server.lists_due(signals, notified);
    changes.extend(files_due(&mut server.0.subscriptions.files()));
    Some(changes)
}

/// Returns the files whose content changed since the last notification.
fn files_due(files: &mut BTreeMap<String, WatchedFile>) -> Vec<Change> {
    let mut changes = Vec::new();
    for (uri, file) in files {
        if file.has_changed() {
            changes.push(Change::Updated(uri.clone()));
        }
    }
    changes
}
