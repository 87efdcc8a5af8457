//! Runs a script in a cell. While it runs, its progress, messages and questions are passed to the client, and answers
//! and a cancellation to the script.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::ErrorData;
use rmcp::model::{
    ClientResult, CustomRequest, ElicitResult, ErrorCode, NumberOrString,
    ProgressNotificationParam, ProgressToken, ServerRequest,
};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::calls::ClientCalls;
use crate::context::Context;
use crate::harmless;
use crate::tasks::{self, TaskCandidate};
use model::outcome::Outcome;
use projects::{ScriptEnd, ScriptError, ScriptEvent, ScriptLaunch, ScriptOutput, ScriptStream};
use service::capture::tap::{Reader, Source, Tap};
use service::refused::Refused;
use service::shell::ScriptArgs;
use service::{Caller, Feed, Report};

/// Method of a question to the user.
const QUESTION: &str = "elicitation/create";
/// Maximum events that wait to be sent: more than the stream's limits let through in a minute.
const MAX_WAITING_EVENTS: usize = 512;
/// Maximum waiting downloads of one script.
const MAX_DOWNLOADS: usize = 8;
/// Time that a script has to see its cancel file, before it is sent TERM.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// Reads a script's output, in the thread that reads the pipe.
#[derive(Debug)]
pub(super) struct OutputReader {
    stream: Mutex<ScriptStream>,
    /// `None` once the call has ended.
    events: Mutex<Option<mpsc::Sender<ScriptEvent>>>,
}

impl OutputReader {
    /// Makes the reader of a call that sends no events while it runs.
    pub(super) fn silent(stream: ScriptStream) -> Self {
        Self { stream: Mutex::new(stream), events: Mutex::new(None) }
    }

    fn stream(&self) -> MutexGuard<'_, ScriptStream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> MutexGuard<'_, Option<mpsc::Sender<ScriptEvent>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the output of a call, once it has ended.
    pub(super) fn output(&self, end: ScriptEnd, report: &Report) -> ScriptOutput {
        ScriptOutput {
            end,
            report: self.stream().take_report(),
            stderr: report.stderr.whole().unwrap_or_else(|| report.stderr.tail().to_vec()),
            stderr_bytes: report.stderr.total(),
        }
    }

    /// Waits until the script has made no progress for a time.
    async fn idle(&self, limit: Duration) {
        loop {
            let grown = self.stream().grown();
            let now = Instant::now();
            let end = grown.unwrap_or(now) + limit;
            if end <= now {
                return;
            }
            tokio::time::sleep_until(end.into()).await;
        }
    }
}

impl Reader for OutputReader {
    fn read(&self, source: Source, bytes: &[u8]) {
        if source == Source::Stderr {
            return;
        }
        for event in self.stream().push(bytes, Instant::now()) {
            let is_sent = self.events().as_ref().map(|events| events.try_send(event).is_ok());
            if is_sent == Some(false) {
                tracing::debug!("the client is too slow: a message of a script is left out");
            }
        }
    }
}

/// Reason for which a call was ended before its cell's own time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    None,
    Idle,
}

/// A call by which scripts of a project run.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScriptRun<'c> {
    pub(super) calls: &'c ClientCalls,
    pub(super) context: &'c Context,
    /// Name of the call in rules, after `project:`.
    pub(super) name: &'c str,
    /// Log level of a client that set none.
    pub(super) log_level: &'static str,
}

impl ScriptRun<'_> {
    /// Runs a prepared script in a cell. Returns when all of its events have been sent.
    ///
    /// # Errors
    /// The reason why it was not run.
    pub(super) async fn run(
        &self,
        launch: ScriptLaunch,
    ) -> Result<(ScriptLaunch, ScriptOutput, Report), Refused> {
        let launch = match self.context.meta.get_progress_token() {
            Some(token) => launch.with_progress(&token_text(&token)),
            None => launch,
        };
        let may_ask = launch.may_ask && can_ask(self.context);
        let launch = if may_ask { launch.with_questions() } else { launch };
        let (sender, events) = mpsc::channel(MAX_WAITING_EVENTS);
        let (input, pieces) = mpsc::channel(8);
        send(&input, launch.stdin.clone());
        let output_reader = Arc::new(OutputReader {
            stream: Mutex::new(launch.stream()),
            events: Mutex::new(Some(sender)),
        });
        let reader: Arc<dyn Reader> = output_reader.clone();
        let caller =
            Caller { tap: Tap::read_by(reader), feed: Feed::new(pieces), ..Caller::default() };
        let run = async {
            let done = self.run_until_stopped(&launch, &output_reader, &input, caller).await;
            *output_reader.events() = None;
            done
        };
        let (done, ()) = tokio::join!(run, self.send_events(events, &launch, may_ask, &input));
        let (report, stop) = done?;
        let end = match (script_end(&report.ended.outcome), stop) {
            (ScriptEnd::Cancelled, Stop::Idle) => ScriptEnd::Idle,
            (end, _) => end,
        };
        let output = output_reader.output(end, &report);
        Ok((launch, output, report))
    }

    /// Runs a script until its end, its time without progress or its cancellation.
    async fn run_until_stopped(
        &self,
        launch: &ScriptLaunch,
        output_reader: &OutputReader,
        input: &mpsc::Sender<Vec<u8>>,
        caller: Caller,
    ) -> Result<(Report, Stop), Refused> {
        let args = ScriptArgs {
            words: launch.words.clone(),
            stdin: launch.stdin.clone(),
            env: Some(launch.env.clone()),
            profile: launch.profile.clone(),
            egress: launch.egress.clone(),
            is_read_only: launch.is_read_only,
            timeout: Some(f64::from(u32::try_from(launch.seconds).unwrap_or(u32::MAX))),
            ..ScriptArgs::default()
        };
        let idle = async {
            match launch.idle {
                Some(seconds) => output_reader.idle(Duration::from_secs(seconds)).await,
                None => std::future::pending().await,
            }
        };
        let mut stopped = Stop::None;
        let stop = async {
            tokio::select! {
                () = idle => stopped = Stop::Idle,
                () = self.context.ct.cancelled() => {
                    send(input, b"cancel\n".to_vec());
                    tokio::time::sleep(CANCEL_GRACE).await;
                }
            }
        };
        let run =
            |caller| service::projects::run_script(&self.calls.client, self.name, args, caller);
        let report = self.calls.stopped_turn(caller, stop, run).await?;
        Ok((report, stopped))
    }

    /// Sends a script's events to the client, and answers to its `input`, until its call has ended. Puts questions to
    /// the user if `may_ask`.
    async fn send_events<'a>(
        &'a self,
        mut events: mpsc::Receiver<ScriptEvent>,
        launch: &ScriptLaunch,
        may_ask: bool,
        input: &'a mpsc::Sender<Vec<u8>>,
    ) {
        let context = self.context;
        let mut question: Option<Answer<'a>> = None;
        let mut downloads: VecDeque<Answer<'a>> = VecDeque::new();
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                answer = first(question.as_mut()) => {
                    question = None;
                    send(input, answer);
                    continue;
                }
                answer = first(downloads.front_mut()) => {
                    downloads.pop_front();
                    send(input, answer);
                    continue;
                }
            };
            match event {
                None => return,
                Some(ScriptEvent::Log(_) | ScriptEvent::Progress { .. })
                    if tasks::is_answered(context) => {}
                Some(ScriptEvent::Log(message)) => {
                    self.calls.logs.send_script(context, message, self.log_level).await;
                }
                Some(ScriptEvent::Progress { progress, total, message }) => {
                    let Some(token) = context.meta.get_progress_token() else { continue };
                    let mut note = ProgressNotificationParam::new(token, progress);
                    (note.total, note.message) = (total, message);
                    note.message.iter_mut().for_each(harmless::text);
                    context.notify_progress(note).await;
                }
                // One question at a time: the script waits for its answer.
                Some(ScriptEvent::Question(fields)) if may_ask && question.is_none() => {
                    question = Some(Box::pin(answer_line(context.clone(), fields)));
                }
                Some(ScriptEvent::Question(_)) => {}
                // Further ones wait for the first.
                Some(ScriptEvent::Download(fields)) => {
                    let download = self.download(launch, fields, input);
                    if downloads.len() < MAX_DOWNLOADS {
                        downloads.extend(download);
                    }
                }
            }
        }
    }
}

/// An answer to a script that is being made.
pub(super) type Answer<'c> = Pin<Box<dyn Future<Output = Vec<u8>> + Send + 'c>>;

/// Waits for an answer, if one is being made.
async fn first(answer: Option<&mut Answer<'_>>) -> Vec<u8> {
    match answer {
        Some(answer) => answer.await,
        None => std::future::pending().await,
    }
}

async fn answer_line(context: Context, fields: Map<String, Value>) -> Vec<u8> {
    format!("answer {}\n", ask(context, fields).await).into_bytes()
}

/// Passes a line to the script, if it still takes any.
fn send(input: &mpsc::Sender<Vec<u8>>, bytes: Vec<u8>) {
    if input.try_send(bytes).is_err() {
        tracing::debug!("a script takes no more input");
    }
}

fn token_text(token: &ProgressToken) -> String {
    match &token.0 {
        NumberOrString::Number(number) => number.to_string(),
        NumberOrString::String(text) => text.to_string(),
    }
}

/// Returns true if the client can be asked while a call runs: by a request of the server in older revisions, through
/// a task from 2026-07-28 on. A running script cannot be called again with the answer.
fn can_ask(context: &Context) -> bool {
    let knows_questions = context.client_capabilities().is_some_and(|it| it.elicitation.is_some());
    knows_questions
        && (!tasks::is_modern(context) || TaskCandidate::from_context(context).is_some())
}

/// Puts a script's question to the user. Returns the content of the response file.
async fn ask(context: Context, fields: Map<String, Value>) -> Value {
    let declined = json!({ "action": "decline", "content": null });
    let cancelled = json!({ "action": "cancel", "content": null });
    let Some(mut params) = question(&context, fields) else { return declined };
    harmless::value(&mut params);
    if let Some(candidate) = TaskCandidate::from_context(&context) {
        let question = json!({ "method": QUESTION, "params": params });
        // rmcp knows fewer schemas than clients do, so this one is sent as it is.
        let Ok(question) = serde_json::from_value(question) else { return declined };
        let answer = candidate.ask(question).await.map(serde_json::from_value::<ElicitResult>);
        return answer.and_then(Result::ok).map_or(cancelled, |answer| answered(&answer));
    }
    // Sent as the script wrote it, for the same reason.
    let request = ServerRequest::CustomRequest(CustomRequest::new(QUESTION, Some(params)));
    let Some(peer) = &context.peer else { return declined };
    match peer.send_request(request).await {
        Ok(ClientResult::ElicitResult(result)) => answered(&result),
        Ok(_) => declined,
        Err(error) => {
            tracing::debug!(%error, "a question was not answered");
            cancelled
        }
    }
}

fn answered(result: &ElicitResult) -> Value {
    json!({ "action": result.action, "content": result.content })
}

/// Makes a question of a script's request; `None` if the client knows no such question.
fn question(context: &Context, mut fields: Map<String, Value>) -> Option<Value> {
    let known = context.client_capabilities()?.elicitation.as_ref()?;
    let mode = fields.get("mode").and_then(Value::as_str).unwrap_or("form").to_owned();
    let message = fields.remove("message").filter(Value::is_string)?;
    match mode.as_str() {
        "form" if known.form.is_some() || known.url.is_none() => {
            let schema = fields.remove("schema").filter(Value::is_object)?;
            Some(json!({ "mode": mode, "message": message, "requestedSchema": schema }))
        }
        "url" if known.url.is_some() => {
            let url =
                fields.remove("url").filter(|url| url.as_str().is_some_and(is_web_address))?;
            let id = random_mark();
            Some(json!({ "mode": mode, "message": message, "url": url, "elicitationId": id }))
        }
        _ => None,
    }
}

/// Returns true for an address that a browser opens as a page of a host. Other schemes could start programs on the
/// user's machine, or read files there.
fn is_web_address(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let is_web = ["https", "http"].iter().any(|web| scheme.eq_ignore_ascii_case(web));
    is_web && !rest.is_empty() && rest.chars().all(|c| c.is_ascii_graphic())
}

/// Makes a random word that separates a script's output from the report of its end.
pub(super) fn random_mark() -> String {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

/// Returns how a script ended.
pub(super) fn script_end(outcome: &Outcome) -> ScriptEnd {
    match outcome {
        Outcome::Exited { code: 0 } => ScriptEnd::Exited,
        // Only the runner's exit code: that of the script is in the report.
        Outcome::Exited { code } => ScriptEnd::Stopped(format!(
            "Tool has ended, and its output was not sent whole (code {code})"
        )),
        Outcome::Timeout => ScriptEnd::TimedOut,
        Outcome::Cancelled => ScriptEnd::Cancelled,
        Outcome::Signaled { signal } => {
            ScriptEnd::Stopped(format!("Tool was ended by signal {signal}"))
        }
        Outcome::Limit(kind) => {
            ScriptEnd::Stopped(format!("Tool reached its {} limit", kind.name()))
        }
        Outcome::Failed(failure) => ScriptEnd::Stopped(failure.to_string()),
    }
}

/// Converts the error of a script to one of the protocol.
pub(super) fn error_data(error: ScriptError) -> ErrorData {
    let code = i32::try_from(error.code).unwrap_or(ErrorCode::INTERNAL_ERROR.0);
    ErrorData::new(ErrorCode(code), error.message, error.data)
}
