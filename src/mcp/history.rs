//! Command history of one connection: recorded, searched, run again. In memory, so the server's end
//! is its end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use super::exec::CommandRequest;
use super::exec::reply::exit_code;
use super::server::Server;
use model::call::Cwd;
use model::clock;
use service::Backend;
use service::report::{CommandReport, JobEnd, Running, millis, to_value};

/// Bytes of a command that are kept. Of a longer one the beginning is kept, and it cannot be run
/// again.
const COMMAND_BYTES: usize = 16 << 10;

impl CommandRequest {
    /// Restores the directory in which the command began. A call can start only inside /workspace or
    /// /tmp; from there the command changes to any other directory itself.
    fn again(mut self, began: &str) -> Self {
        match Cwd::new("working_dir", began) {
            Ok(_) => self.arguments.working_dir = Some(began.to_owned()),
            Err(_outside) => {
                let quoted = began.replace('\'', r"'\''");
                let command = format!("cd -- '{quoted}' || exit; {}", self.arguments.command);
                self.arguments.command = command;
            }
        }
        self
    }
}

/// A command that has run, with the reference implementation's fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HistoryEntry {
    timestamp: String,
    command: String,
    /// The directory in which it began.
    working_dir: String,
    #[serde(flatten)]
    state: EntryState,
}

/// A command that runs has its job, and one that has ended its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum EntryState {
    Running { job: String },
    Ended { exit_code: u8, duration_ms: u64, output_size_bytes: u64 },
}

#[derive(Debug, Clone)]
struct Record {
    id: u64,
    ran: HistoryEntry,
    asked: Replay,
}

/// Arguments of a call, kept to run it again.
#[derive(Debug, Clone)]
enum Replay {
    Whole(Box<CommandRequest>),
    Part,
}

impl Replay {
    fn of(asked: CommandRequest) -> Self {
        let words = asked.words.iter().map(String::len).sum::<usize>();
        let whole =
            asked.arguments.command.len() + words <= COMMAND_BYTES && asked.stdin.is_empty();
        if whole { Self::Whole(Box::new(asked)) } else { Self::Part }
    }
}

/// Most recent commands of a connection.
#[derive(Debug)]
pub struct History {
    most: usize,
    kept: Mutex<Kept>,
    /// Changes with each command that is added and with each end of a job.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Id of the newest record.
    last: u64,
    records: VecDeque<Record>,
}

impl History {
    pub fn new(most: usize) -> Self {
        Self { most, kept: Mutex::default(), changed: watch::Sender::new(()) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a command that has ended, in place of the oldest if the history is full.
    pub fn add(&self, told: &CommandReport, asked: CommandRequest) {
        let began = told.session.as_ref().map_or(&told.cwd, |session| &session.began);
        let ended = EntryState::Ended {
            exit_code: exit_code(&told.outcome),
            duration_ms: millis(told.usage.wall),
            output_size_bytes: told.stdout.bytes + told.stderr.bytes,
        };
        self.push(clock::ago(told.usage.wall), began, ended, asked);
    }

    /// Records a command that continues as a job.
    fn begin(&self, job: &Running, asked: CommandRequest) -> u64 {
        let running = EntryState::Running { job: job.session.output_id.clone() };
        self.push(clock::ago(job.elapsed), &job.session.began, running, asked)
    }

    fn push(
        &self,
        timestamp: String,
        began: &str,
        state: EntryState,
        asked: CommandRequest,
    ) -> u64 {
        let mut command = asked.arguments.command.clone();
        let whole = (0..=COMMAND_BYTES).rev().find(|end| command.is_char_boundary(*end));
        command.truncate(whole.unwrap_or_default());
        let ran = HistoryEntry { timestamp, command, working_dir: began.to_owned(), state };
        let mut kept = self.kept();
        kept.last += 1;
        let id = kept.last;
        kept.records.push_back(Record { id, ran, asked: Replay::of(asked) });
        while kept.records.len() > self.most {
            kept.records.pop_front();
        }
        drop(kept);
        self.changed.send_replace(());
        id
    }

    /// Records the end of a job, if the job is still in the history.
    fn end(&self, id: u64, end: &JobEnd) {
        let mut kept = self.kept();
        let Some(record) = kept.records.iter_mut().find(|record| record.id == id) else { return };
        record.ran.state = EntryState::Ended {
            exit_code: exit_code(&end.outcome),
            duration_ms: millis(end.took),
            output_size_bytes: end.printed,
        };
        if end.fed > 0 {
            record.asked = Replay::Part;
        }
        drop(kept);
        self.changed.send_replace(());
    }

    /// Returns a receiver that changes with every command, and with the end of a job.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns all recorded commands, the oldest first.
    pub fn recent(&self) -> Vec<HistoryEntry> {
        self.kept().records.iter().map(|record| record.ran.clone()).collect()
    }

    pub(crate) fn search(&self, query: &str, limit: usize) -> Vec<Value> {
        let kept = self.kept();
        let found = kept.records.iter().rev().filter(|record| record.ran.command.contains(query));
        let told = |record: &Record| {
            let mut fields = to_value(&record.ran);
            if let Some(map) = fields.as_object_mut() {
                map.insert("id".to_owned(), Value::from(record.id));
            }
            fields
        };
        found.take(limit).map(told).collect()
    }

    /// Returns the call that runs a command again: `Some(None)` where not all of it is kept.
    pub(crate) fn find(&self, id: u64) -> Option<Option<CommandRequest>> {
        let kept = self.kept();
        let record = kept.records.iter().find(|record| record.id == id)?;
        Some(match &record.asked {
            Replay::Whole(asked) => Some(asked.as_ref().clone().again(&record.ran.working_dir)),
            Replay::Part => None,
        })
    }
}

impl<B: Backend> Server<B> {
    /// Remembers a job, and its end when that comes.
    pub(super) fn remember(&self, job: &Running, asked: CommandRequest) {
        let id = self.0.history.begin(job, asked);
        if let Some(end) = self.0.backend.end_of(&job.session.output_id) {
            // It outlives the connection by nothing: every command ends with the supervisor.
            let history = Arc::clone(&self.0.history);
            tokio::spawn(async move { history.end(id, &end.await) });
        }
    }
}
