//! Output of a script's cell while it runs: lines for the client, then the report of its end.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::output::ScriptMessage;

/// Bytes of the longest line; a longer one is left out.
const LINE_BYTES: usize = 64 << 10;
/// Maximum bytes of a report, which has files and an error in addition to the output.
const EXTRA_BYTES: usize = 1 << 20;
/// Questions and downloads that are passed on in each [`WINDOW`].
const MAX_IN_WINDOW: u32 = 100;
const WINDOW: Duration = Duration::from_secs(60);

/// Bounds of what is taken of a script's output, by the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Bytes of the longest output of a script, and of the longest standard error.
    pub output: usize,
    pub stderr: u64,
    /// Bytes of standard error in a result: its last ones.
    pub stderr_tail: usize,
    /// Progress and log messages that are passed on in a minute.
    pub progress: u32,
    pub messages: u32,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self { output: 10 << 20, stderr: 10 << 20, stderr_tail: 4096, progress: 100, messages: 100 }
    }
}

/// Something that a script says while it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptEvent {
    Progress {
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    },
    Log(ScriptMessage),
    /// A question for the user: the content of the request's file.
    Question(Map<String, Value>),
    /// A download that it waits for.
    Download(Map<String, Value>),
}

/// Reader of a call's output.
#[derive(Debug)]
pub struct ScriptStream {
    /// Beginning of the line before the report.
    mark: Vec<u8>,
    line: Vec<u8>,
    /// True until the end of a line that is too long.
    is_skipping: bool,
    report: Option<Vec<u8>>,
    is_too_long: bool,
    limits: StreamLimits,
    progress: Window,
    logs: Window,
    questions: Window,
    downloads: Window,
    /// Progress that was passed on last: the next must be greater (MCP).
    last: f64,
    /// Time of the last line that was not a log message.
    grown: Option<Instant>,
}

/// Count of the lines of one kind.
#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    count: u32,
}

impl Window {
    /// Counts one more line. Returns true if it may be passed on.
    fn has_room(&mut self, max: u32, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if self.since.is_none_or(is_over) {
            *self = Self { since: Some(now), count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count <= max
    }
}

impl ScriptStream {
    /// Makes the reader of a call whose report begins with `mark`.
    pub(crate) fn new(mark: &str, limits: StreamLimits) -> Self {
        Self {
            mark: format!("{mark} ").into_bytes(),
            line: Vec::new(),
            is_skipping: false,
            report: None,
            is_too_long: false,
            limits,
            progress: Window::default(),
            logs: Window::default(),
            questions: Window::default(),
            downloads: Window::default(),
            last: f64::NEG_INFINITY,
            grown: None,
        }
    }

    /// Takes a piece of output. Returns what the script says in it.
    pub fn push(&mut self, mut bytes: &[u8], now: Instant) -> Vec<ScriptEvent> {
        let mut events = Vec::new();
        while self.report.is_none() {
            let Some(at) = bytes.iter().position(|byte| *byte == b'\n') else { break };
            self.append(bytes.get(..at).unwrap_or_default());
            bytes = bytes.get(at + 1..).unwrap_or_default();
            let line = std::mem::take(&mut self.line);
            if std::mem::take(&mut self.is_skipping) {
                self.grown = Some(now);
            } else if line.starts_with(&self.mark) {
                self.report = Some([&line, &b"\n"[..]].concat());
            } else {
                events.extend(self.event(&line, now));
            }
        }
        match &mut self.report {
            None => self.append(bytes),
            Some(report) if report.len() + bytes.len() <= self.limits.output + EXTRA_BYTES => {
                report.extend_from_slice(bytes);
            }
            Some(_) => self.is_too_long = true,
        }
        events
    }

    /// Adds to a line, which is given up where it is too long.
    fn append(&mut self, bytes: &[u8]) {
        if self.is_skipping || self.line.len() + bytes.len() > LINE_BYTES {
            self.is_skipping = true;
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn event(&mut self, line: &[u8], now: Instant) -> Option<ScriptEvent> {
        let has = |word: &str| line.windows(word.len()).any(|part| part == word.as_bytes());
        // Nothing is parsed that is not passed on.
        if has("\"notifications/message\"") {
            return self.logs.has_room(self.limits.messages, now).then(|| log(line)).flatten();
        }
        self.grown = Some(now);
        if has("\"elicitation/create\"") {
            return self.questions.has_room(MAX_IN_WINDOW, now).then(|| question(line)).flatten();
        }
        if has("\"cofferdam/download\"") {
            let has_room = self.downloads.has_room(MAX_IN_WINDOW, now);
            return has_room.then(|| download(line)).flatten();
        }
        if line.is_empty() || !self.progress.has_room(self.limits.progress, now) {
            return None;
        }
        let event = progress(line)?;
        if let ScriptEvent::Progress { progress, .. } = &event {
            if *progress <= self.last {
                return None;
            }
            self.last = *progress;
        }
        Some(event)
    }

    /// Returns the time of the last progress; `None` before the script has begun.
    pub fn grown(&self) -> Option<Instant> {
        self.grown
    }

    /// Takes the report: `None` if it is longer than the maximum, empty if the script wrote nothing.
    pub fn take_report(&mut self) -> Option<Vec<u8>> {
        let report = self.report.take().unwrap_or_default();
        (!self.is_too_long).then_some(report)
    }
}

/// Reads the parameters of a notification or a request of this name.
fn parameters(line: &[u8], method: &str) -> Option<Map<String, Value>> {
    let mut line: Map<String, Value> = serde_json::from_slice(line).ok()?;
    if line.get("method")?.as_str()? != method {
        return None;
    }
    line.remove("params")?.as_object_mut().map(std::mem::take)
}

/// Reads a progress notification. The script's word for whose progress it is counts for nothing.
fn progress(line: &[u8]) -> Option<ScriptEvent> {
    let fields = parameters(line, "notifications/progress")?;
    let number = |key: &str| fields.get(key)?.as_f64();
    let message = fields.get("message").and_then(Value::as_str);
    let message = message.filter(|message| !message.is_empty()).map(str::to_owned);
    Some(ScriptEvent::Progress { progress: number("progress")?, total: number("total"), message })
}

fn log(line: &[u8]) -> Option<ScriptEvent> {
    let mut fields = parameters(line, "notifications/message")?;
    let logger = fields.get("logger").and_then(Value::as_str);
    let logger = logger.filter(|logger| !logger.is_empty()).map(str::to_owned);
    let level = fields.remove("level")?;
    let data = fields.remove("data")?;
    Some(ScriptEvent::Log(ScriptMessage { level, logger, data }))
}

fn question(line: &[u8]) -> Option<ScriptEvent> {
    parameters(line, "elicitation/create").map(ScriptEvent::Question)
}

fn download(line: &[u8]) -> Option<ScriptEvent> {
    parameters(line, "cofferdam/download").map(ScriptEvent::Download)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn progress(number: f64, message: &str) -> ScriptEvent {
        ScriptEvent::Progress { progress: number, total: None, message: Some(message.to_owned()) }
    }

    fn line(number: f64, message: &str) -> Vec<u8> {
        let params =
            json!({"progressToken": "x", "progress": number, "total": null, "message": message});
        let line = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        format!("{line}\n").into_bytes()
    }

    #[test]
    fn lines_are_read_however_they_are_cut_and_the_report_stands_behind_them() {
        let mut stream = ScriptStream::new("MARK", StreamLimits::default());
        let now = Instant::now();
        assert_eq!(stream.grown(), None);
        let all = [&line(1.0, "one")[..], b"MARKS no\nMARK 0 2\nnoMARK 1\n", &line(9.0, "late")];
        let all = all.concat();
        let mut events = Vec::new();
        for byte in &all {
            events.extend(stream.push(&[*byte], now));
        }
        assert_eq!(events, [progress(1.0, "one")]);
        assert_eq!(stream.grown(), Some(now));
        let report = [&b"MARK 0 2\nnoMARK 1\n"[..], &line(9.0, "late")].concat();
        assert_eq!(stream.take_report(), Some(report));
        let mut whole = ScriptStream::new("MARK", StreamLimits::default());
        assert_eq!(whole.push(&all, now), events);
    }

    #[test]
    fn a_flood_is_read_and_not_passed_on_and_progress_only_grows() {
        let mut stream = ScriptStream::new("MARK", StreamLimits::default());
        let now = Instant::now();
        assert_eq!(stream.push(&line(5.0, "a"), now), [progress(5.0, "a")]);
        assert_eq!(stream.push(&line(5.0, "again"), now), []);
        assert_eq!(stream.push(&line(4.0, "back"), now), []);
        let mut passed = 0;
        for number in 0..1000 {
            passed += stream.push(&line(f64::from(6 + number), "x"), now).len();
        }
        assert_eq!(passed, 97);
        let later = now + WINDOW;
        assert_eq!(stream.push(&line(5000.0, "later"), later), [progress(5000.0, "later")]);
        assert_eq!(stream.push(&vec![b'x'; 10 << 20], later), []);
        assert_eq!(stream.line.len(), 0);
        assert_eq!(stream.push(b"\n", later), []);
        assert_eq!(stream.push(&line(5001.0, "on"), later), [progress(5001.0, "on")]);
        stream.push(b"MARK 0 0\n", later);
        stream.push(&vec![b'x'; (10 << 20) + EXTRA_BYTES], later);
        assert_eq!(stream.take_report(), None);
    }

    #[test]
    fn logs_renew_no_time_limit_and_other_lines_are_nothing() {
        let mut stream = ScriptStream::new("MARK", StreamLimits::default());
        let now = Instant::now();
        let log =
            b"{\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n";
        let message = ScriptMessage { level: json!("info"), logger: None, data: json!(1) };
        assert_eq!(stream.push(log, now), [ScriptEvent::Log(message)]);
        assert_eq!(stream.grown(), None);
        let asked = b"{\"method\":\"elicitation/create\",\"params\":{\"message\":\"?\"}}\n";
        let question = json!({"message": "?"}).as_object().cloned().unwrap_or_default();
        assert_eq!(stream.push(asked, now), [ScriptEvent::Question(question)]);
        for other in
            [&b"\n"[..], b"text\n", b"{}\n", b"{\"method\":\"tools/call\",\"params\":{}}\n"]
        {
            assert_eq!(stream.push(other, now), []);
        }
    }
}
