//! Notifies each client of lists and files that changed since its last notification.
//!
//! Lists change with the files of a project and with the operator's switches. Files are those that the client
//! subscribed to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{ServiceError, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, Peer, RoleServer};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::calls::Continuity;
use crate::projects::current::{CurrentProject, NotWatched, Versions};
use crate::resources::{self, HISTORY};
use crate::subscriptions::{MAX_FILES, SubscribedFile, Subscriptions};
use crate::tool_table::ToolTable;
use projects::WatchableResource;
use service::Scope;

/// Minimum time between two notifications of one client, which reads the list again after each.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Time by which a client may learn that a file is watched before the watch exists. Changes within it count. A file
/// system's clock can be as much behind.
const CLOCK_LAG: Duration = Duration::from_millis(20);

/// The lists at one moment: the versions of those of the project, and the names of other entries.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OfferedLists {
    versions: Versions,
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
            tokio::time::sleep(MIN_INTERVAL).await;
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

/// A tokio task that runs until this is dropped or the task is replaced.
#[derive(Debug, Default)]
struct BackgroundTask(Mutex<Option<JoinHandle<()>>>);

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.replace(None);
    }
}

impl BackgroundTask {
    /// Ends the task, and keeps another in its place.
    fn replace(&self, task: Option<JoinHandle<()>>) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *current, task) {
            before.abort();
        }
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

/// Notifies one client of changes.
#[derive(Debug)]
pub(crate) struct ChangeNotifier {
    tools: Arc<ToolTable>,
    project: Option<Arc<CurrentProject>>,
    subscriptions: Subscriptions,
    /// Notifies the client of a session of lists, and of files that it subscribed to.
    session: BackgroundTask,
    /// Notifies the client of a session of new commands in the history, while it is subscribed to that.
    history: BackgroundTask,
}

impl ChangeNotifier {
    pub(crate) fn new(tools: Arc<ToolTable>, project: Option<Arc<CurrentProject>>) -> Self {
        let calls = &tools.calls;
        let subscriptions = match &project {
            Some(project) if calls.continuity != Continuity::Connection => {
                Subscriptions::counted_by(project.count_of(calls.client.principal().name()))
            }
            Some(_) | None => Subscriptions::default(),
        };
        let session = BackgroundTask::default();
        Self { tools, project, subscriptions, session, history: BackgroundTask::default() }
    }

    fn client(&self) -> &Scope {
        &self.tools.calls.client
    }

    fn signals(&self) -> Signals {
        let project = self.project.as_ref().map(|project| project.changes());
        Signals { switches: self.client().switches(), project }
    }

    /// Returns the lists as they are now.
    fn current_lists(&self, signals: &mut Signals) -> OfferedLists {
        signals.switches.mark_unchanged();
        let versions = signals.project.as_mut().map(|project| *project.borrow_and_update());
        let resources = resources::listed(self.client()).into_iter().map(|one| one.uri);
        let templates = resources::templates(self.client()).into_iter().map(|one| one.uri_template);
        OfferedLists {
            versions: versions.unwrap_or_default(),
            tools: self.tools.names().map(str::to_owned).collect(),
            resources: resources.chain(templates).collect(),
        }
    }

    /// Starts the task that notifies the client of a session.
    pub(crate) fn start(self: &Arc<Self>, peer: Peer<RoleServer>) {
        let mut signals = self.signals();
        let mut notified = self.current_lists(&mut signals);
        // A weak reference: the task must not keep the server alive.
        let notifier = Arc::downgrade(self);
        let sink = NotificationSink::Session(peer);
        let task = tokio::spawn(async move {
            while signals.next().await {
                let Some(changes) = due(&notifier, &mut signals, &mut notified) else { return };
                if !sink.notify_all(changes).await {
                    return;
                }
            }
        });
        self.session.replace(Some(task));
    }

    /// Returns the lists that changed since the last notification.
    fn lists_due(&self, signals: &mut Signals, notified: &mut OfferedLists) -> Vec<Change> {
        let before = std::mem::replace(notified, self.current_lists(signals));
        let now = &notified.versions;
        let was = &before.versions;
        let tools = now.tools != was.tools || notified.tools != before.tools;
        let resources = now.resources != was.resources || notified.resources != before.resources;
        let prompts = now.prompts != was.prompts;
        [(tools, Change::Tools), (resources, Change::Resources), (prompts, Change::Prompts)]
            .into_iter()
            .filter_map(|(is_due, change)| is_due.then_some(change))
            .collect()
    }

    /// Subscribes the client of a session to a resource.
    ///
    /// # Errors
    /// An unknown address, or a file that cannot be watched.
    pub(crate) async fn subscribe(
        &self,
        uri: &str,
        peer: Peer<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !resources::is_taken(self.client(), uri)
            && let Some(done) = self.watch_file(uri).await
        {
            return done;
        }
        self.check_listed(uri)?;
        // The system and the variables of a cell stay the same until the server ends.
        if uri == HISTORY {
            let changes = self.client().state().history.changes();
            let task = notify_history(changes, NotificationSink::Session(peer));
            self.history.replace(Some(tokio::spawn(task)));
        }
        Ok(())
    }

    /// Ends a subscription of [`ChangeNotifier::subscribe`].
    ///
    /// # Errors
    /// An unknown address.
    pub(crate) fn unsubscribe(&self, uri: &str) -> Result<(), ErrorData> {
        if !resources::is_taken(self.client(), uri) && self.unwatch_file(uri) {
            return Ok(());
        }
        self.check_listed(uri)?;
        if uri == HISTORY {
            self.history.replace(None);
        }
        Ok(())
    }

    fn check_listed(&self, uri: &str) -> Result<(), ErrorData> {
        match resources::is_listed(self.client(), uri) {
            true if resources::is_followed(self.client(), uri) => Ok(()),
            true => Err(ErrorData::invalid_params(
                "the resource has no notifications: read it again",
                None,
            )),
            false => Err(resources::unknown(uri)),
        }
    }

    /// Subscribes the client to a file of the project; `None` if the project has no such file.
    async fn watch_file(&self, uri: &str) -> Option<Result<(), ErrorData>> {
        let project = self.project.as_ref()?;
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
        let subscriptions = &self.subscriptions;
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

    /// Ends the subscription to a file; false if the project has no such file.
    fn unwatch_file(&self, uri: &str) -> bool {
        let Some(project) = &self.project else { return false };
        let was_watched = self.subscriptions.files().remove(uri).is_some();
        was_watched || project.last().watchable(uri).is_some()
    }

    /// Returns the part of a subscription that can be served to a stream.
    pub(crate) fn accepted(&self, requested: &SubscriptionFilter) -> SubscriptionFilter {
        let client = self.client();
        let uris = || requested.resource_subscriptions.iter().flatten();
        let listed = uris().filter(|uri| resources::is_followed(client, uri));
        let mut served: Vec<String> = listed.cloned().collect();
        served.extend(self.watchable(uris().filter(|uri| !resources::is_taken(client, uri))));
        let mut accepted = SubscriptionFilter::default();
        accepted.resource_subscriptions = (!served.is_empty()).then_some(served);
        accepted.tools_list_changed = Some(true);
        accepted.prompts_list_changed = Some(true);
        accepted.resources_list_changed = Some(true);
        accepted
    }

    /// Returns the addresses among these that a stream can serve: as many files as there is room for.
    fn watchable<'u>(&self, uris: impl Iterator<Item = &'u String>) -> Vec<String> {
        let Some(current) = &self.project else { return Vec::new() };
        let Ok(project) = current.trusted() else { return Vec::new() };
        let mut room = match project.settings.poll_seconds {
            0 => 0,
            _ => current.room().min(self.subscriptions.room()),
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
        uris.filter(is_watched).take(MAX_FILES).cloned().collect()
    }

    /// Notifies a client of the revision without sessions of changes, until it closes its stream.
    pub(crate) async fn serve_stream(&self, context: &SubscriptionContext) {
        let mut accepted = context.accepted().resource_subscriptions.iter().flatten();
        let wants_history = accepted.any(|uri| uri == HISTORY);
        let changes = self.client().state().history.changes();
        let history = async {
            if wants_history {
                notify_history(changes, NotificationSink::Stream(context.sink().clone())).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = context.cancelled() => {}
            () = history => {}
            () = self.notify_stream(context) => {}
        }
    }

    /// Notifies a stream of lists and files. Does not end before the stream.
    async fn notify_stream(&self, context: &SubscriptionContext) {
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

    async fn stream_files(
        &self,
        accepted: &SubscriptionFilter,
    ) -> BTreeMap<String, SubscribedFile> {
        let mut files = BTreeMap::new();
        let Some(project) = &self.project else { return files };
        // By now the client knows that its subscription is accepted.
        let since = SystemTime::now() - CLOCK_LAG;
        for uri in accepted.resource_subscriptions.iter().flatten() {
            let Some(WatchableResource::File { path, .. }) = project.last().watchable(uri) else {
                continue;
            };
            if files.contains_key(uri) {
                continue;
            }
            match self.subscriptions.watch_one(project, &path, Some(since)).await {
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
    notifier: &Weak<ChangeNotifier>,
    signals: &mut Signals,
    notified: &mut OfferedLists,
) -> Option<Vec<Change>> {
    let notifier = notifier.upgrade()?;
    let mut changes = notifier.lists_due(signals, notified);
    changes.extend(files_due(&mut notifier.subscriptions.files()));
    Some(changes)
}

/// Notifies a client of new commands in the history, until the client is gone.
async fn notify_history(mut changes: watch::Receiver<()>, sink: NotificationSink) {
    while changes.changed().await.is_ok() {
        if !sink.notify(Change::Updated(HISTORY.to_owned())).await {
            return;
        }
    }
}

/// Returns the files whose content changed since the last notification.
fn files_due(files: &mut BTreeMap<String, SubscribedFile>) -> Vec<Change> {
    let changed = files
        .iter_mut()
        .filter_map(|(uri, file)| file.has_changed().then(|| Change::Updated(uri.clone())));
    changed.collect()
}
