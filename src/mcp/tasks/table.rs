//! The tasks of one client: bounded in number, bytes and time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    DetailedTask, ElicitResult, InputRequest, InputRequests, InputResponses, JsonObject, Task,
    TaskPayload, TaskStatus,
};
use rmcp::task_manager::current_timestamp;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Instrument;

use super::lasting::Lasting;
use super::{Done, Work, ended};
use capture::Produced;
use model::call::MAX_TIMEOUT;

/// Calls of a client that are tasks or may become one.
const MOST: usize = 64;
/// Bytes of results beyond which no more calls become tasks. A result has 10 MiB at most, and that of a shell 0.3 MiB.
const MOST_BYTES: usize = 16 << 20;
/// Time for a client to ask for a result: after the end, and once more after the first answer, which may be lost.
const UNREAD: Duration = Duration::from_secs(600);
const READ: Duration = Duration::from_secs(300);
/// Time from its beginning in which a call ends: the longest time limit that one can have, and some for the queue.
const RUNS: Duration = MAX_TIMEOUT.saturating_add(UNREAD);
/// Time for a call to end that was told to.
const GRACE: Duration = Duration::from_secs(5);
/// Time between two questions of a client.
const POLL: Duration = Duration::from_secs(1);

/// Tasks by their ids.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<HashMap<String, Entry>>);

/// A call that is a task, or may become one.
#[derive(Debug)]
struct Entry {
    lasting: Lasting,
    created: String,
    updated: String,
    /// Time at which it is forgotten; the call is ended then, if it still runs.
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
    /// Number of questions so far: no two have the same key.
    asked: u32,
}

#[derive(Debug)]
struct Question {
    request: InputRequest,
    answer: oneshot::Sender<Value>,
}

/// How a call ended, with its result as text: a tree of values takes many times as much.
#[derive(Debug)]
enum End {
    Completed(String),
    Failed(ErrorData),
    Cancelled,
}

/// The place of a call in the table. Dropping it ends the call and frees the place.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) lasting: Lasting,
    is_kept: bool,
}

impl Table {
    /// Returns the tasks whose time is not over.
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // No code panics while it holds the lock; if one did, the table is still whole.
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // The call of one that runs is ended first, by what follows it.
        entries.retain(|_, entry| matches!(entry.state, State::Runs(_)) || entry.until > now);
        entries
    }

    /// Takes a place for a call that begins; `None` if the client has as many tasks as it may.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        let id = random()?;
        let mut entries = self.entries();
        let bytes: usize = entries.values().map(Entry::bytes).sum();
        if entries.len() >= MOST || bytes >= MOST_BYTES {
            tracing::debug!("a client has as many tasks as it may");
            return None;
        }
        let started = Instant::now();
        let lasting = Lasting {
            table: Arc::downgrade(self),
            id: id.clone(),
            started,
            cancel: Default::default(),
            asks: Default::default(),
            answered: Default::default(),
            produced: Produced::default(),
        };
        let now = current_timestamp();
        let entry = Entry {
            lasting: lasting.clone(),
            created: now.clone(),
            updated: now,
            until: started + RUNS,
            state: State::Runs(Running::default()),
        };
        entries.insert(id, entry);
        Some(Place { lasting, is_kept: false })
    }

    /// Returns the state of a task. Once a result was given, it is kept for as long as an answer that was lost is asked
    /// for again.
    pub(super) fn get(&self, id: &str) -> Option<DetailedTask> {
        let mut entries = self.entries();
        let entry = entries.get_mut(id)?;
        if let State::Ended(_) = entry.state {
            entry.until = entry.until.min(Instant::now() + READ);
        }
        Some(DetailedTask::new(entry.task(), entry.payload()))
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
            running.open.get(key).is_some_and(|question| !fits(&question.request, answer))
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
            entry.lasting.cancel.cancel();
            entry.updated = current_timestamp();
        }
        Some(())
    }

    /// Ends every call.
    pub(super) fn end(&self) {
        self.entries().values().for_each(|entry| entry.lasting.cancel.cancel());
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

    fn settle(&self, id: &str, done: Done) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(id) else { return };
        let State::Runs(running) = &entry.state else { return };
        let end = match done {
            // What ended by itself before it was told to has ended so.
            Ok(result) if running.is_cancelled && result.is_error == Some(true) => End::Cancelled,
            Err(_) if running.is_cancelled => End::Cancelled,
            Ok(result) => match serde_json::to_string(&result) {
                Ok(text) => End::Completed(text),
                Err(error) => End::Failed(ErrorData::internal_error(error.to_string(), None)),
            },
            Err(error) => End::Failed(error),
        };
        entry.state = State::Ended(end);
        entry.until = entry.until.max(Instant::now() + UNREAD);
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
        let Lasting { id, started, .. } = &self.lasting;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut task =
            Task::new(id.clone(), TaskStatus::Working, self.created.clone(), self.updated.clone())
                .with_ttl_ms(millis(self.until.saturating_duration_since(*started)))
                .with_poll_interval_ms(millis(POLL));
        task.status_message = self.message();
        task
    }

    /// Describes the state for people and models.
    fn message(&self) -> Option<String> {
        let Lasting { started, produced, .. } = &self.lasting;
        match &self.state {
            State::Runs(running) if !running.open.is_empty() => None,
            State::Runs(_) => Some(crate::progress::running(started.elapsed(), produced.bytes())),
            State::Ended(End::Completed(_)) => None,
            State::Ended(End::Failed(error)) => Some(error.message.to_string()),
            State::Ended(End::Cancelled) => Some("it was cancelled and has ended".to_owned()),
        }
    }

    fn payload(&self) -> TaskPayload {
        match &self.state {
            State::Runs(Running { open, .. }) if open.is_empty() => TaskPayload::Working,
            State::Runs(Running { open, .. }) => {
                let open = open.iter().map(|(key, it)| (key.clone(), it.request.clone()));
                let input_requests: InputRequests = open.collect();
                TaskPayload::InputRequired { input_requests }
            }
            State::Ended(End::Completed(text)) => {
                TaskPayload::Completed { result: serde_json::from_str(text).unwrap_or_default() }
            }
            State::Ended(End::Failed(error)) => TaskPayload::Failed { error: fields(error) },
            State::Ended(End::Cancelled) => TaskPayload::Cancelled,
        }
    }
}

fn fields(error: &ErrorData) -> JsonObject {
    let error = serde_json::to_value(error).unwrap_or_default();
    error.as_object().cloned().unwrap_or_default()
}

/// Returns true if an answer has the form of one to such a question.
fn fits(question: &InputRequest, answer: &Value) -> bool {
    // Nothing of cofferdam's asks for more.
    if !matches!(question, InputRequest::Elicitation(_)) {
        return answer.is_object();
    }
    serde_json::from_value::<ElicitResult>(answer.clone()).is_ok()
}

/// Makes an id; `None` where there are no random bytes. Not by the library: in a static program its source of random
/// numbers is a file, and a confined process can open none.
fn random() -> Option<String> {
    let mut bytes = [0_u8; 16];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if drawn != Ok(bytes.len()) {
        tracing::warn!("no random bytes, and so no tasks");
        return None;
    }
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Place {
    /// Makes a task of the call; `None` if the table is gone.
    pub(super) fn hand_over(mut self, work: Work) -> Option<Task> {
        let table = self.lasting.table.upgrade()?;
        let task = table.entries().get(&self.lasting.id)?.task();
        self.is_kept = true;
        self.lasting.answered.cancel();
        let id = self.lasting.id.clone();
        tokio::spawn(live(Arc::downgrade(&table), id, work).in_current_span());
        Some(task)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.lasting.cancel.cancel();
        if let Some(table) = self.lasting.table.upgrade() {
            table.forget(&self.lasting.id);
        }
    }
}

/// Follows a task to the end of its call, and forgets it when its time is over. It does not keep the table.
async fn live(table: Weak<Table>, id: String, mut work: Work) {
    let Some(until) = table.upgrade().and_then(|table| table.until(&id)) else { return };
    let done = tokio::select! {
        done = &mut work => ended(done),
        () = sleep_until(until) => {
            if let Some(table) = table.upgrade() {
                table.cancel(&id);
            }
            let Ok(done) = timeout(GRACE, &mut work).await else {
                work.abort();
                return table.upgrade().map(|table| table.forget(&id)).unwrap_or_default();
            };
            ended(done)
        }
    };
    if let Some(table) = table.upgrade() {
        table.settle(&id, done);
    }
    // Its time can become shorter meanwhile, and then it is gone at the next look of anybody.
    while let Some(until) = table.upgrade().and_then(|table| table.until(&id)) {
        sleep_until(until.min(Instant::now() + READ)).await;
    }
}
