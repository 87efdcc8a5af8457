//! Table of the tasks of one client, bounded in number, bytes and time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResult, DetailedTask, ElicitResult, InputRequest, InputRequests, InputResponses,
    JsonObject, Task, TaskPayload, TaskStatus,
};
use rmcp::task_manager::current_timestamp;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::context::Context;
use crate::lines::{SharedBounds, UntilAnswered};
use model::call::MAX_TIMEOUT;
use service::capture::Produced;

/// Maximum calls of a client that are tasks or may become one.
const MAX_TASKS: usize = 64;
/// Maximum bytes of kept results of a client: beyond it no call becomes a task, and a result that would exceed it is
/// dropped. A result has at most 10 MiB, that of a shell 0.3 MiB.
const MAX_RESULT_BYTES: usize = 16 << 20;
/// Time that a result is kept: after the end, and again after the first answer, which may be lost.
const UNREAD_RESULT_TIME: Duration = Duration::from_secs(600);
const READ_RESULT_TIME: Duration = Duration::from_secs(300);
/// Maximum lifetime of a call: the longest time limit, and some time for the queue.
const MAX_LIFETIME: Duration = MAX_TIMEOUT.saturating_add(UNREAD_RESULT_TIME);
/// Time for a cancelled call to end.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Poll interval that clients are asked to keep.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Describes a call that runs.
pub(crate) fn running(elapsed: Duration, bytes: u64) -> String {
    format!("running for {} s, {bytes} bytes of output so far", elapsed.as_secs())
}

/// Outcome of a call.
pub(super) type Done = Result<CallToolResult, ErrorData>;

/// A call that runs in a separate tokio task.
type Work = JoinHandle<Done>;

/// Returns the outcome of a call; a panic becomes an error.
pub(super) fn ended(done: Result<Done, JoinError>) -> Done {
    done.unwrap_or_else(|_panicked| {
        tracing::error!("the call ended by a fault in cofferdam");
        Err(fault())
    })
}

pub(super) fn fault() -> ErrorData {
    ErrorData::internal_error("the call ended by a fault in cofferdam", None)
}

/// Tasks by their ids.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Mutex<HashMap<String, Entry>>,
    /// Counts its connection as in use, where connections compete for places.
    connection: OnceLock<SharedBounds>,
}

impl Drop for Table {
    /// Cancels every call: no client can ask for its result any more, as after the credential of a client over HTTP was
    /// withdrawn.
    fn drop(&mut self) {
        self.end();
    }
}

/// A call that can become a task. Clones share the call.
#[derive(Debug, Clone)]
pub struct TaskCandidate {
    table: Weak<Table>,
    id: String,
    started: Instant,
    /// Tripped to end the call.
    pub(super) cancel: CancellationToken,
    /// Tripped by its first question, which only a task can put to the client.
    has_question: CancellationToken,
    /// Tripped when its request has been answered: nothing may be sent for that request afterwards.
    pub(super) answered: CancellationToken,
    pub(crate) produced: Produced,
}

impl TaskCandidate {
    /// Returns the call that a request began, if it can become a task.
    pub fn from_context(context: &Context) -> Option<&Self> {
        context.extensions.get()
    }

    /// Asks the client; returns its answer, or `None` if the task was ended meanwhile. Dropping the future does not
    /// withdraw the question: the client may have seen it.
    pub async fn ask(&self, question: InputRequest) -> Option<Value> {
        let answer = self.table.upgrade()?.ask(&self.id, question)?;
        self.has_question.cancel();
        answer.await.ok()
    }

    pub(super) async fn question_asked(&self) {
        self.has_question.cancelled().await;
    }
}

/// A call that is a task, or may become one.
#[derive(Debug)]
struct Entry {
    candidate: TaskCandidate,
    created: String,
    updated: String,
    /// When it is removed; the call is ended then, if it still runs.
    until: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Runs(Running),
    Ended(End),
}

#[derive(Debug, Default)]
struct Running {
    is_cancelled: bool,
    open: BTreeMap<String, Question>,
    /// Number of questions so far, so that each has another key.
    asked: u32,
}

#[derive(Debug)]
struct Question {
    request: InputRequest,
    answer: oneshot::Sender<Value>,
}

/// How a call ended. The result is kept as text, as a tree of values takes many times the memory.
#[derive(Debug)]
enum End {
    Completed(Arc<str>),
    Failed(ErrorData),
    Cancelled,
}

/// Slot of a call in the table. Dropping it ends the call and frees the slot.
#[derive(Debug)]
pub(super) struct TaskSlot {
    pub(super) candidate: TaskCandidate,
    is_kept: bool,
}

impl Table {
    /// Has the connection count as serving while a task runs.
    pub(super) fn serve_by(&self, connection: SharedBounds) {
        if self.connection.set(connection).is_err() {
            tracing::debug!("the tasks have their connection already");
        }
    }

    fn serving(&self) -> Option<UntilAnswered> {
        self.connection.get().map(SharedBounds::serve)
    }

    /// Returns the tasks that have not expired.
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // No code panics while it holds the lock, and the table would be whole even then.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // A running call is ended first, by the task that follows it.
        entries.retain(|_, entry| matches!(entry.state, State::Runs(_)) || entry.until > now);
        entries
    }

    /// Takes a slot for a call that begins; `None` if the client has the maximum number of tasks.
    pub(super) fn take_slot(self: &Arc<Self>) -> Option<TaskSlot> {
        let id = random()?;
        let mut entries = self.entries();
        let bytes: usize = entries.values().map(Entry::bytes).sum();
        if entries.len() >= MAX_TASKS || bytes >= MAX_RESULT_BYTES {
            tracing::debug!("a client has as many tasks as it may");
            return None;
        }
        let started = Instant::now();
        let candidate = TaskCandidate {
            table: Arc::downgrade(self),
            id: id.clone(),
            started,
            cancel: Default::default(),
            has_question: Default::default(),
            answered: Default::default(),
            produced: Produced::default(),
        };
        let now = current_timestamp();
        let entry = Entry {
            candidate: candidate.clone(),
            created: now.clone(),
            updated: now,
            until: started + MAX_LIFETIME,
            state: State::Runs(Running::default()),
        };
        entries.insert(id, entry);
        Some(TaskSlot { candidate, is_kept: false })
    }

    /// Returns the state of a task. A result that was returned is kept for a while longer, in case the answer was lost.
    pub(super) fn get(&self, id: &str) -> Option<DetailedTask> {
        let mut entries = self.entries();
        let entry = entries.get_mut(id)?;
        if let State::Ended(_) = entry.state {
            entry.until = entry.until.min(Instant::now() + READ_RESULT_TIME);
        }
        let task = entry.task();
        let state = entry.payload();
        drop(entries);
        // Parse a long result without holding the lock.
        Some(DetailedTask::new(task, state.unwrap_or_else(|text| completed(&text))))
    }

    pub(super) fn update(
        &self,
        id: &str,
        answers: InputResponses,
    ) -> Option<Result<(), ErrorData>> {
        let mut entries = self.entries();
        let entry = entries.get_mut(id)?;
        let State::Runs(running) = &mut entry.state else { return Some(Ok(())) };
        let is_other = |(key, answer): (&String, &Value)| {
            running.open.get(key).is_some_and(|question| !is_answer_to(&question.request, answer))
        };
        if answers.iter().any(is_other) {
            let message = "inputResponses: not the form of an answer to what was asked";
            return Some(Err(ErrorData::invalid_params(message, None)));
        }
        for (key, answer) in answers {
            let Some(question) = running.open.remove(&key) else { continue };
            if question.answer.send(answer).is_err() {
                tracing::debug!("a call does not wait for its answer any more");
            }
        }
        entry.updated = current_timestamp();
        Some(Ok(()))
    }

    pub(super) fn cancel(&self, id: &str) -> Option<()> {
        let mut entries = self.entries();
        let entry = entries.get_mut(id)?;
        if let State::Runs(running) = &mut entry.state {
            running.is_cancelled = true;
            running.open.clear();
            entry.candidate.cancel.cancel();
            entry.updated = current_timestamp();
        }
        Some(())
    }

    /// Cancels every call.
    pub(super) fn end(&self) {
        self.entries().values().for_each(|entry| entry.candidate.cancel.cancel());
    }

    /// Asks the client of a call; the answer comes out of the receiver.
    pub(super) fn ask(&self, id: &str, request: InputRequest) -> Option<oneshot::Receiver<Value>> {
        let mut entries = self.entries();
        let entry = entries.get_mut(id)?;
        let State::Runs(running) = &mut entry.state else { return None };
        if running.is_cancelled {
            return None;
        }
        running.asked += 1;
        let key = format!("question-{}", running.asked);
        let (answer, receiver) = oneshot::channel();
        running.open.insert(key, Question { request, answer });
        entry.updated = current_timestamp();
        Some(receiver)
    }

    fn set_outcome(&self, id: &str, done: Done) {
        // Outside of the lock.
        let done = done.map(|result| {
            (result.is_error == Some(true), serde_json::to_string(&result).map(Arc::from))
        });
        let mut entries = self.entries();
        let kept: usize = entries.values().map(Entry::bytes).sum();
        let Some(entry) = entries.get_mut(id) else { return };
        let State::Runs(running) = &entry.state else { return };
        let end = match done {
            // A call that ended before it was cancelled keeps its result.
            Ok((true, _)) | Err(_) if running.is_cancelled => End::Cancelled,
            Ok((_, Ok(text))) => kept_within(kept, text),
            Ok((_, Err(error))) => End::Failed(ErrorData::internal_error(error.to_string(), None)),
            Err(error) => End::Failed(error),
        };
        entry.state = State::Ended(end);
        entry.until = Instant::now() + UNREAD_RESULT_TIME;
        entry.updated = current_timestamp();
    }

    fn until(&self, id: &str) -> Option<Instant> {
        self.entries().get(id).map(|entry| entry.until)
    }

    fn forget(&self, id: &str) {
        drop(self.entries().remove(id));
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        match &self.state {
            State::Ended(End::Completed(text)) => text.len(),
            State::Ended(End::Failed(_) | End::Cancelled) | State::Runs(_) => 0,
        }
    }

    fn task(&self) -> Task {
        let TaskCandidate { id, started, .. } = &self.candidate;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut task =
            Task::new(id.clone(), TaskStatus::Working, self.created.clone(), self.updated.clone())
                .with_ttl_ms(millis(self.until.saturating_duration_since(*started)))
                .with_poll_interval_ms(millis(POLL_INTERVAL));
        task.status_message = self.message();
        task
    }

    /// Describes the state for people and models.
    fn message(&self) -> Option<String> {
        let TaskCandidate { started, produced, .. } = &self.candidate;
        match &self.state {
            State::Runs(running) if !running.open.is_empty() => None,
            State::Runs(_) => Some(running(started.elapsed(), produced.bytes())),
            State::Ended(End::Completed(_)) => None,
            State::Ended(End::Failed(error)) => Some(error.message.to_string()),
            State::Ended(End::Cancelled) => Some("it was cancelled and has ended".to_owned()),
        }
    }

    /// Returns the state, or the text of a result, which takes time to parse.
    fn payload(&self) -> Result<TaskPayload, Arc<str>> {
        Ok(match &self.state {
            State::Runs(Running { open, .. }) if open.is_empty() => TaskPayload::Working,
            State::Runs(Running { open, .. }) => {
                let open = open.iter().map(|(key, it)| (key.clone(), it.request.clone()));
                let input_requests: InputRequests = open.collect();
                TaskPayload::InputRequired { input_requests }
            }
            State::Ended(End::Completed(text)) => return Err(Arc::clone(text)),
            State::Ended(End::Failed(error)) => TaskPayload::Failed { error: fields(error) },
            State::Ended(End::Cancelled) => TaskPayload::Cancelled,
        })
    }
}

/// Keeps a result, if its client has room for it.
fn kept_within(kept: usize, text: Arc<str>) -> End {
    if kept.saturating_add(text.len()) <= MAX_RESULT_BYTES {
        return End::Completed(text);
    }
    let message = "the call has ended, and there is no room for its result: ask for those of other tasks sooner";
    End::Failed(ErrorData::internal_error(message, None))
}

fn completed(text: &str) -> TaskPayload {
    TaskPayload::Completed { result: serde_json::from_str(text).unwrap_or_default() }
}

fn fields(error: &ErrorData) -> JsonObject {
    let error = serde_json::to_value(error).unwrap_or_default();
    error.as_object().cloned().unwrap_or_default()
}

/// Returns true if an answer has the form that the question asks for.
fn is_answer_to(question: &InputRequest, answer: &Value) -> bool {
    // cofferdam asks no other kinds of questions.
    if !matches!(question, InputRequest::Elicitation(_)) {
        return answer.is_object();
    }
    serde_json::from_value::<ElicitResult>(answer.clone()).is_ok()
}

/// Makes an id; `None` without random bytes. The library's generator reads a file in a static program, and a confined
/// process cannot open files.
fn random() -> Option<String> {
    let mut bytes = [0_u8; 16];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if drawn != Ok(bytes.len()) {
        tracing::warn!("no random bytes, and so no tasks");
        return None;
    }
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl TaskSlot {
    /// Turns the call into a task; `None` if the table is gone.
    pub(super) fn hand_over(mut self, work: Work) -> Option<Task> {
        let table = self.candidate.table.upgrade()?;
        let task = table.entries().get(&self.candidate.id)?.task();
        let serving = table.serving();
        self.is_kept = true;
        self.candidate.answered.cancel();
        let id = self.candidate.id.clone();
        tokio::spawn(follow_task(Arc::downgrade(&table), id, work, serving).in_current_span());
        Some(task)
    }
}

impl Drop for TaskSlot {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.candidate.cancel.cancel();
        if let Some(table) = self.candidate.table.upgrade() {
            table.forget(&self.candidate.id);
        }
    }
}

/// Follows a task to the end of its call, and removes it when it expires. Holds no reference to the table.
async fn follow_task(
    table: Weak<Table>,
    id: String,
    mut work: Work,
    serving: Option<UntilAnswered>,
) {
    let Some(until) = table.upgrade().and_then(|table| table.until(&id)) else { return };
    let done = tokio::select! {
        done = &mut work => ended(done),
        () = sleep_until(until) => {
            if let Some(table) = table.upgrade() {
                table.cancel(&id);
            }
            let Ok(done) = timeout(CANCEL_GRACE, &mut work).await else {
                // A cancelled call ends by itself, so that its own code releases what it holds.
                return table.upgrade().map(|table| table.forget(&id)).unwrap_or_default();
            };
            ended(done)
        }
    };
    if let Some(table) = table.upgrade() {
        table.set_outcome(&id, done);
    }
    drop(serving);
    // Its time can be shortened meanwhile; then the next look at the table removes it.
    while let Some(until) = table.upgrade().and_then(|table| table.until(&id)) {
        sleep_until(until.min(Instant::now() + READ_RESULT_TIME)).await;
    }
}

#[cfg(test)]
#[expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a task that is not there is a failed test"
)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use config::policy::Principal;
    use rmcp::model::ContentBlock;

    use super::*;

    fn result(bytes: usize) -> Done {
        Ok(CallToolResult::success(vec![ContentBlock::text("x".repeat(bytes))]))
    }

    /// Starts a task that ends at once, with a result of `bytes` bytes.
    async fn ended_with(table: &Arc<Table>, bytes: usize) -> String {
        let slot = table.take_slot().expect("a slot");
        let task = slot.hand_over(tokio::spawn(async move { result(bytes) })).unwrap();
        for _ in 0..1000 {
            if matches!(table.entries().get(&task.task_id).unwrap().state, State::Ended(_)) {
                return task.task_id;
            }
            tokio::task::yield_now().await;
        }
        panic!("it does not end");
    }

    fn state(table: &Table, id: &str) -> Value {
        serde_json::to_value(table.get(id).unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn results_have_their_bytes_together_though_all_calls_began_before() {
        let table = Arc::new(Table::default());
        let slots: Vec<_> = (0..4).map(|_| table.take_slot().unwrap()).collect();
        for slot in &slots {
            table.set_outcome(&slot.candidate.id, result(6 << 20));
        }
        let states: Vec<_> = slots.iter().map(|it| state(&table, &it.candidate.id)).collect();
        let statuses: Vec<_> = states.iter().map(|it| it["status"].as_str().unwrap()).collect();
        assert_eq!(statuses, ["completed", "completed", "failed", "failed"]);
        let why = states[3]["error"]["message"].as_str().unwrap();
        assert!(why.contains("no room for its result"), "{why}");
        let kept: usize = table.entries().values().map(Entry::bytes).sum();
        assert!((12 << 20..=MAX_RESULT_BYTES).contains(&kept), "{kept}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_result_is_kept_for_a_time_from_its_end() {
        let table = Arc::new(Table::default());
        let id = ended_with(&table, 5).await;
        tokio::time::advance(UNREAD_RESULT_TIME.saturating_sub(POLL_INTERVAL)).await;
        assert!(table.entries().contains_key(&id));
        tokio::time::advance(POLL_INTERVAL).await;
        assert!(table.get(&id).is_none());
    }

    /// Records the number of kept values.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_serves_while_its_task_runs() {
        let table = Arc::new(Table::default());
        let count = Arc::new(AtomicUsize::new(0));
        let room = SharedBounds::room(1 << 20);
        let noted = Arc::clone(&count);
        table.serve_by(SharedBounds::new(room, Principal::named("a"), move || {
            noted.fetch_add(1, Ordering::Relaxed);
            Box::new(Counted(Arc::clone(&noted)))
        }));
        let (end, ends) = oneshot::channel::<()>();
        let work = tokio::spawn(async move {
            ends.await.unwrap();
            result(1)
        });
        let slot = table.take_slot().unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 0, "its request has that still");
        let task = slot.hand_over(work).unwrap();
        tokio::time::sleep(POLL_INTERVAL).await;
        assert_eq!(count.load(Ordering::Relaxed), 1);
        end.send(()).unwrap();
        tokio::time::sleep(POLL_INTERVAL).await;
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert_eq!(state(&table, &task.task_id)["status"], "completed");
    }

    #[tokio::test]
    async fn the_calls_of_a_table_are_cancelled_with_it() {
        let table = Arc::new(Table::default());
        let slot = table.take_slot().unwrap();
        let cancel = slot.candidate.cancel.clone();
        let waits = cancel.clone();
        let work = tokio::spawn(async move {
            waits.cancelled().await;
            result(1)
        });
        slot.hand_over(work).unwrap();
        tokio::task::yield_now().await;
        assert!(!cancel.is_cancelled(), "its client can ask for it");
        drop(table);
        assert!(cancel.is_cancelled());
    }
}
