//! Command history of one client: recorded, searched, run again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use crate::report::{CommandReport, JobEnd, RunningReport};
use crate::request::ExecRequest;
use crate::session::{InputGiven, REPLAYED_BYTES};
use model::call::Cwd;
use model::clock;
use model::outcome::Outcome;

/// Bytes of a command that are kept. Of a longer one the beginning is kept, and it cannot be run
/// again.
const COMMAND_BYTES: usize = 16 << 10;
/// Bytes of all inputs that are kept. The oldest make room, and their commands cannot be run again.
const INPUTS_BYTES: usize = 1 << 20;

impl ExecRequest {
    /// Restores the directory in which the command began. A call can start only inside /workspace or
    /// /tmp; from there the command changes to any other directory itself.
    fn again(mut self, began: &str) -> Self {
        match Cwd::new("working_dir", began) {
            Ok(_) => self.args.cwd = Some(began.to_owned()),
            Err(_outside) => {
                let quoted = began.replace('\'', r"'\''");
                let command = format!("cd -- '{quoted}' || exit; {}", self.args.command);
                self.args.command = command;
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

impl EntryState {
    fn ended(outcome: &Outcome, took: Duration, printed: u64) -> Self {
        Self::Ended {
            exit_code: outcome.exit_code(),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            output_size_bytes: printed,
        }
    }
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
    Whole(Box<ExecRequest>),
    Part,
}

impl Replay {
    fn of(asked: ExecRequest) -> Self {
        let words = asked.args.words.iter().map(String::len).sum::<usize>();
        let whole = asked.args.command.len() + words <= COMMAND_BYTES
            && asked.args.stdin.len() <= REPLAYED_BYTES;
        if whole { Self::Whole(Box::new(asked)) } else { Self::Part }
    }

    /// Adds the input that the command was given while it ran.
    fn with_input(self, input: &InputGiven) -> Self {
        match (self, input) {
            (asked, InputGiven::Nothing) => asked,
            (Self::Whole(mut asked), InputGiven::Whole(bytes)) => {
                asked.args.stdin.clone_from(bytes);
                Self::Whole(asked)
            }
            (_, InputGiven::Whole(_) | InputGiven::Unkept) => Self::Part,
        }
    }

    fn input_bytes(&self) -> usize {
        match self {
            Self::Whole(asked) => asked.args.stdin.len(),
            Self::Part => 0,
        }
    }
}

/// Most recent commands of a client.
#[derive(Debug)]
pub struct History {
    max_records: usize,
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

impl Kept {
    /// Drops the oldest inputs, with their commands' replays, until the others are within
    /// [`INPUTS_BYTES`].
    fn bound_inputs(&mut self) {
        let mut bytes: usize = self.records.iter().map(|record| record.asked.input_bytes()).sum();
        for record in &mut self.records {
            if bytes <= INPUTS_BYTES {
                return;
            }
            let dropped = record.asked.input_bytes();
            if dropped > 0 {
                record.asked = Replay::Part;
                bytes -= dropped;
            }
        }
    }
}

impl History {
    pub(crate) fn new(max_records: usize) -> Self {
        Self { max_records, kept: Mutex::default(), changed: watch::Sender::new(()) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a command that has ended, in place of the oldest if the history is full.
    pub fn add(&self, report: &CommandReport, asked: ExecRequest) {
        let began = report.session.as_ref().map_or(&report.cwd, |session| &session.began);
        let printed = report.stdout.bytes + report.stderr.bytes;
        let ended = EntryState::ended(&report.ended.outcome, report.ended.usage.wall, printed);
        self.push(clock::ago(report.ended.usage.wall), began, ended, asked);
    }

    /// Records a command that continues as a job.
    pub fn begin(&self, job: &RunningReport, asked: ExecRequest) -> u64 {
        let running = EntryState::Running { job: job.session.output_id.clone() };
        self.push(clock::ago(job.elapsed), &job.session.began, running, asked)
    }

    fn push(&self, timestamp: String, began: &str, state: EntryState, asked: ExecRequest) -> u64 {
        let mut command = asked.args.command.clone();
        command.truncate(command.floor_char_boundary(COMMAND_BYTES));
        let ran = HistoryEntry { timestamp, command, working_dir: began.to_owned(), state };
        let mut kept = self.kept();
        kept.last += 1;
        let id = kept.last;
        kept.records.push_back(Record { id, ran, asked: Replay::of(asked) });
        while kept.records.len() > self.max_records {
            kept.records.pop_front();
        }
        kept.bound_inputs();
        drop(kept);
        self.changed.send_replace(());
        id
    }

    /// Records the end of a job, if the job is still in the history.
    pub fn end(&self, id: u64, end: &JobEnd) {
        let mut kept = self.kept();
        let Some(record) = kept.records.iter_mut().find(|record| record.id == id) else { return };
        record.ran.state = EntryState::ended(&end.outcome, end.took, end.printed);
        let asked = std::mem::replace(&mut record.asked, Replay::Part);
        record.asked = asked.with_input(&end.input);
        kept.bound_inputs();
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

    /// Returns commands with this text in them, each with its id, the newest first.
    pub fn search(&self, query: &str, limit: usize) -> Vec<(u64, HistoryEntry)> {
        let kept = self.kept();
        let found = kept.records.iter().rev().filter(|record| record.ran.command.contains(query));
        found.take(limit).map(|record| (record.id, record.ran.clone())).collect()
    }

    /// Returns the call that runs a command again: `Some(None)` where not all of it is kept.
    pub fn find(&self, id: u64) -> Option<Option<ExecRequest>> {
        let kept = self.kept();
        let record = kept.records.iter().find(|record| record.id == id)?;
        Some(match &record.asked {
            Replay::Whole(asked) => Some(asked.as_ref().clone().again(&record.ran.working_dir)),
            Replay::Part => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::ScriptArgs;

    #[test]
    fn the_oldest_inputs_make_room_for_new_ones() {
        let record = |id: u64, bytes: usize| {
            let args = ScriptArgs { stdin: vec![b'x'; bytes], ..ScriptArgs::default() };
            let state = EntryState::Running { job: String::new() };
            let [timestamp, command, working_dir] = [const { String::new() }; 3];
            let ran = HistoryEntry { timestamp, command, working_dir, state };
            Record { id, ran, asked: Replay::of(args.into()) }
        };
        let rooms = INPUTS_BYTES / REPLAYED_BYTES;
        let mut kept = Kept::default();
        kept.records.push_back(record(0, 0));
        for id in (1..).take(rooms + 2) {
            kept.records.push_back(record(id, REPLAYED_BYTES));
        }
        kept.bound_inputs();
        let is_whole = |record: &Record| matches!(record.asked, Replay::Whole(_));
        let whole: Vec<bool> = kept.records.iter().map(is_whole).collect();
        assert_eq!(whole.get(..4), Some(&[true, false, false, true][..]), "{whole:?}");
        assert!(whole.iter().skip(3).all(|whole| *whole), "{whole:?}");
    }
}
