//! Serves a running script: passes its progress, messages and questions to the client, and answers and a cancellation
//! to the script.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{
    ClientResult, CustomRequest, ElicitResult, NumberOrString, ProgressNotificationParam,
    ProgressToken, ServerRequest,
};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::context::Context;
use crate::harmless;
use crate::server::Server;
use crate::tasks::{self, Lasting};
use projects::{ScriptEnd, ScriptEvent, ScriptLaunch, ScriptOutput, ScriptStream};
use service::capture::tap::{Reader, Source, Tap};
use service::refused::Refused;
use service::shell::ScriptArgs;
use service::{Caller, Feed, Report};

/// Method of a question to the user.
const QUESTION: &str = "elicitation/create";
/// Maximum events that wait to be sent: more than the stream's limits let through in a minute.
const WAITING: usize = 512;
/// Maximum waiting downloads of one script.
const DOWNLOADS: usize = 8;
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
            stderr: super::last(report),
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
            let sent = self.events().as_ref().map(|events| events.try_send(event));
            if sent.is_some_and(|sent| sent.is_err()) {
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

impl Server {
    /// Runs a prepared script in a cell, as a call of `project:NAME`. Returns when all of its events have been sent.
    ///
    /// # Errors
    /// The reason why it was not run.
    pub(crate) async fn run_launch(
        &self,
        name: &str,
        launch: ScriptLaunch,
        context: &Context,
    ) -> Result<(ScriptLaunch, ScriptOutput, Report), Refused> {
        let token = context.meta.get_progress_token();
        let launch = match &token {
            Some(token) => launch.with_progress(&token_text(token)),
            None => launch,
        };
        let asks = launch.may_ask && can_ask(context);
        let launch = if asks { launch.with_questions() } else { launch };
        let (sender, events) = mpsc::channel(WAITING);
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
            let done =
                self.stoppable(name, &launch, (&output_reader, &input), caller, context).await;
            *output_reader.events() = None;
            done
        };
        let event_context = EventContext { of: name, launch: &launch, token, asks, input: &input };
        let (done, ()) = tokio::join!(run, self.send_events(events, event_context, context));
        let (report, stop) = done?;
        let end = match (super::end(&report.ended.outcome), stop) {
            (ScriptEnd::Cancelled, Stop::Idle) => ScriptEnd::Idle,
            (end, _) => end,
        };
        let output = output_reader.output(end, &report);
        Ok((launch, output, report))
    }

    /// Runs a call until its end, its time without progress or its cancellation.
    async fn stoppable(
        &self,
        name: &str,
        launch: &ScriptLaunch,
        (output_reader, input): (&OutputReader, &mpsc::Sender<Vec<u8>>),
        caller: Caller,
        context: &Context,
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
                () = context.ct.cancelled() => {
                    send(input, b"cancel\n".to_vec());
                    tokio::time::sleep(CANCEL_GRACE).await;
                }
            }
        };
        let run = |caller| self.0.client.project_tool(name, args, caller);
        let report = self.stopped_turn(caller, stop, run).await?;
        Ok((report, stopped))
    }

    /// Sends a script's events until its call has ended.
    async fn send_events(
        &self,
        mut events: mpsc::Receiver<ScriptEvent>,
        event_context: EventContext<'_>,
        context: &Context,
    ) {
        let EventContext { of, launch, token, asks, input } = event_context;
        let mut asked: Option<Answer<'_>> = None;
        let mut downloads: VecDeque<Answer<'_>> = VecDeque::new();
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                answer = first(asked.as_mut()) => {
                    asked = None;
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
                    let project = self.0.project.as_ref().map(|project| project.last());
                    let usual = project.map_or("info", |project| project.settings.log_level);
                    self.0.logs.send_script(context, message, usual).await;
                }
                Some(ScriptEvent::Progress { progress, total, message }) => {
                    let Some(token) = token.clone() else { continue };
                    let mut note = ProgressNotificationParam::new(token, progress);
                    (note.total, note.message) = (total, message);
                    note.message.iter_mut().for_each(harmless::text);
                    context.notify_progress(note).await;
                }
                // One question at a time: the script waits for its answer.
                Some(ScriptEvent::Question(fields)) if asks && asked.is_none() => {
                    asked = Some(Box::pin(answer_line(context.clone(), fields)));
                }
                Some(ScriptEvent::Question(_)) => {}
                // Further ones wait for the first.
                Some(ScriptEvent::Download(fields)) => {
                    let download = self.download(of, launch, fields, input, context);
                    if downloads.len() < DOWNLOADS {
                        downloads.extend(download);
                    }
                }
            }
        }
    }
}

/// Context in which events of a running script are sent.
struct EventContext<'c> {
    /// Name of the call in rules.
    of: &'c str,
    launch: &'c ScriptLaunch,
    token: Option<ProgressToken>,
    /// True if the client can put a question to the user.
    asks: bool,
    /// Input of the script.
    input: &'c mpsc::Sender<Vec<u8>>,
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
    knows_questions && (!tasks::is_modern(context) || Lasting::of(context).is_some())
}

/// Puts a script's question to the user. Returns the content of the response file.
async fn ask(context: Context, fields: Map<String, Value>) -> Value {
    let declined = json!({ "action": "decline", "content": null });
    let cancelled = json!({ "action": "cancel", "content": null });
    let Some(mut params) = question(&context, fields) else { return declined };
    harmless::value(&mut params);
    if let Some(lasting) = Lasting::of(&context) {
        let question = json!({ "method": QUESTION, "params": params });
        // rmcp knows fewer schemas than clients do, so this one is sent as it is.
        let Ok(question) = serde_json::from_value(question) else { return declined };
        let answer = lasting.ask(question).await.map(serde_json::from_value::<ElicitResult>);
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
            let id = super::mark();
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
