//! What has run on one connection: remembered, searched, run again. In memory, and gone with the server.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::RoleServer;
use rmcp::model::CallToolResult;
use rmcp::service::RequestContext;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::arguments::{Arguments, BadArguments};
use super::backend::{Backend, Refused, RefusedKind, Told};
use super::exec::Ask;
use super::exec::reply::exit_code;
use super::reply;
use super::server::Server;
use model::clock;

/// Most commands that one search tells.
pub const MOST_FOUND: usize = 100;
/// What a search tells when nobody says.
const FOUND: usize = 20;
/// Bytes of a command that are kept; a longer one is kept by its beginning, and not run again.
const COMMAND_BYTES: usize = 16 << 10;

/// Arguments of `history_search`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchArguments {
    #[serde(default)]
    query: String,
    limit: Option<usize>,
}

impl Arguments for SearchArguments {
    const TOOL: &'static str = "history_search";
    const FIELDS: &'static [&'static str] = &["query", "limit"];
}

/// Arguments of `history_replay`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayArguments {
    id: u64,
    /// As `bash_exec` takes it: a replay is that call, and is decided as that.
    profile: Option<String>,
}

impl Arguments for ReplayArguments {
    const TOOL: &'static str = "history_replay";
    const FIELDS: &'static [&'static str] = &["id", "profile"];
}

impl Ask {
    /// The same, in the directory in which it started; where a session's shell was is not known here.
    fn again(mut self, told: &Told) -> Self {
        if told.session.is_none() {
            self.arguments.working_dir = Some(told.cwd.clone());
        }
        self
    }
}

/// A command that has run: the seed's fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ran {
    timestamp: String,
    command: String,
    working_dir: String,
    exit_code: u8,
    duration_ms: u64,
    output_size_bytes: u64,
}

#[derive(Debug, Clone)]
struct Record {
    id: u64,
    ran: Ran,
    /// `None` where not all of it is kept.
    again: Option<Ask>,
}

/// The last commands of a connection.
#[derive(Debug)]
pub struct History {
    most: usize,
    records: Mutex<VecDeque<Record>>,
    /// The last id: who waits for a command waits for this.
    last: watch::Sender<u64>,
}

impl History {
    pub fn new(most: usize) -> Self {
        Self { most, records: Mutex::default(), last: watch::Sender::new(0) }
    }

    fn records(&self) -> MutexGuard<'_, VecDeque<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a command that has ended; the oldest is forgotten for it.
    pub fn add(&self, told: &Told, asked: Ask) {
        let words = asked.words.iter().map(String::len).sum::<usize>();
        let whole =
            asked.arguments.command.len() + words <= COMMAND_BYTES && asked.stdin.is_empty();
        let mut command = asked.arguments.command.clone();
        let kept = (0..=COMMAND_BYTES).rev().find(|end| command.is_char_boundary(*end));
        command.truncate(kept.unwrap_or_default());
        let ran = Ran {
            timestamp: clock::ago(told.usage.wall),
            command,
            working_dir: told.cwd.clone(),
            exit_code: exit_code(&told.outcome),
            duration_ms: reply::millis(told.usage.wall),
            output_size_bytes: told.stdout.bytes + told.stderr.bytes,
        };
        let mut records = self.records();
        let id = *self.last.borrow() + 1;
        records.push_back(Record { id, ran, again: whole.then(|| asked.again(told)) });
        while records.len() > self.most {
            records.pop_front();
        }
        drop(records);
        self.last.send_replace(id);
    }

    /// Changes with every command.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Every command that is remembered, the oldest first.
    pub fn recent(&self) -> Vec<Ran> {
        self.records().iter().map(|record| record.ran.clone()).collect()
    }

    fn search(&self, query: &str, limit: usize) -> Vec<Value> {
        let records = self.records();
        let found = records.iter().rev().filter(|record| record.ran.command.contains(query));
        let told = |record: &Record| {
            let mut fields = reply::to_value(&record.ran);
            if let Some(map) = fields.as_object_mut() {
                map.insert("id".to_owned(), Value::from(record.id));
            }
            fields
        };
        found.take(limit).map(told).collect()
    }

    fn find(&self, id: u64) -> Option<Option<Ask>> {
        self.records().iter().find(|record| record.id == id).map(|record| record.again.clone())
    }
}

impl<B: Backend> Server<B> {
    pub(super) fn search(&self, arguments: SearchArguments) -> Result<CallToolResult, Refused> {
        let limit = arguments.limit.unwrap_or(FOUND);
        if !(1..=MOST_FOUND).contains(&limit) {
            let message = format!("history_search: `limit`: expected 1 to {MOST_FOUND}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let fields = json!({ "matches": self.0.history.search(&arguments.query, limit) });
        let mut result = reply::result(reply::pretty(&fields), false);
        result.structured_content = Some(fields);
        Ok(result)
    }

    pub(super) async fn replay(
        &self,
        arguments: ReplayArguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let refused = |message: String| Refused::new(RefusedKind::Arguments, message);
        match self.0.history.find(arguments.id) {
            Some(Some(mut again)) => {
                let named = arguments.profile.or(again.arguments.profile.take());
                again.arguments.profile = named;
                self.bash_exec(again, context).await
            }
            Some(None) => {
                Err(refused("history_replay: not all of this command is kept".to_owned()))
            }
            None => Err(refused(format!("history_replay: no command {} is kept", arguments.id))
                .with_hint("history_search tells the ids")),
        }
    }
}
