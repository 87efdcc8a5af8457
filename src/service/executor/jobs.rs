//! Job requests, carried out through the workbench: inspected and ended.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::Scope;
use super::shell::shown;
use crate::Caller;
use crate::capture::grep::Pattern;
use crate::capture::lines::{Wanted, only};
use crate::capture::text::render;
use crate::capture::{Captured, KEPT_BYTES};
use crate::refused::{Refused, RefusedKind};
use crate::report::{
    Cut, InputTaken, JobAnswer, JobEnd, JobOutput, JobSummary, Renewed, StreamReport,
};
use crate::request::{InputRequest, JobRequest, OutputRequest, Shown};
use crate::session::{Command, Eof, InputEnd, Offsets, Rest, Stop, WriteResult};
use model::call::STDIN_BYTES;
use model::defaults::INLINE_CHARACTERS;
use model::outcome::{Ended, Force, ShellAfter};

/// Characters in the reply: more than the kept part of both streams can have.
const ALL: usize = 8 * KEPT_BYTES;

/// Time to wait for a program that was given input, by default.
const ANSWER: Duration = Duration::from_secs(1);

/// Lines of each stream shown of an ended job: the rest may have been read before.
const LAST: usize = 20;

/// Both streams as a reply shows them, with the offsets at which to read on.
struct ShownStreams {
    stdout: StreamReport,
    stderr: StreamReport,
    next: Offsets,
}

impl Scope {
    /// Inspects jobs, or ends one.
    pub async fn job(&self, request: JobRequest, caller: Caller) -> Result<JobAnswer, Refused> {
        match request {
            JobRequest::Output(request) => self.output(request, caller).await,
            JobRequest::Input(request) => self.input(request, caller).await,
            JobRequest::List => {
                let jobs = self.workbench.jobs()?;
                Ok(JobAnswer::List(jobs.iter().map(|job| listed(job)).collect()))
            }
            JobRequest::Stop { job, stop } => {
                let (command, was_over) = self.workbench.stop(&job, stop).await?;
                let note = match was_over {
                    true => "it had ended before; nothing was done",
                    false => what_ended(stop, command.finished().as_deref()),
                };
                let note = Some(note.to_owned());
                let last = Wanted { head: None, tail: Some(LAST) };
                let seen = at_its_ends(&command, INLINE_CHARACTERS, last);
                Ok(self.job_answer(&command, seen, note, None))
            }
        }
    }

    /// Returns a future that resolves at the end of a job, or `None` where there is no such job.
    pub fn end_of(&self, job: &str) -> Option<Pin<Box<dyn Future<Output = JobEnd> + Send>>> {
        let command = self.workbench.command(job)?;
        Some(Box::pin(end_of(command)))
    }

    async fn output(&self, request: OutputRequest, caller: Caller) -> Result<JobAnswer, Refused> {
        let OutputRequest { id, since, tail, pattern, wait, characters } = request;
        let wait = wait.min(self.yield_after());
        let command = self.workbench.look(&id, since, wait, &caller).await?;
        let seen = match (since, pattern, tail) {
            (None, None, None) => at_its_ends(&command, characters, Wanted::default()),
            (Some(since), None, None) => piece(&command, since, characters),
            (since, pattern, tail) => {
                let lines = Wanted { head: None, tail };
                chosen(&command, since.unwrap_or_default(), pattern.as_ref(), lines, characters)
                    .map_err(|error| {
                        let why = format!("bash_output: {error}");
                        Refused::new(RefusedKind::Arguments, why)
                    })?
            }
        };
        Ok(self.job_answer(&command, seen, None, None))
    }

    async fn input(&self, request: InputRequest, caller: Caller) -> Result<JobAnswer, Refused> {
        let InputRequest { job, text, eof, wait } = request;
        let wait = wait.map_or(ANSWER, |wait| wait.min(self.yield_after()));
        let (command, fed, before) = self.workbench.feed(&job, &text, eof, wait, &caller).await?;
        let seen = piece(&command, before, INLINE_CHARACTERS);
        let (note, taken) = input_note(text.len(), fed, eof);
        Ok(self.job_answer(&command, seen, Some(note), Some(taken)))
    }

    fn job_answer(
        &self,
        command: &Command,
        seen: ShownStreams,
        note: Option<String>,
        taken: Option<InputTaken>,
    ) -> JobAnswer {
        let ShownStreams { stdout, stderr, next } = seen;
        let state = self.state_of(command, Renewed::default(), (stdout, stderr));
        JobAnswer::One(Box::new(JobOutput { id: command.id.clone(), state, next, note, taken }))
    }
}

/// Waits for the end of a command; it holds nothing of the server that runs it.
async fn end_of(command: Arc<Command>) -> JobEnd {
    let ended = command.end().await;
    let (stdout, stderr) = command.output();
    JobEnd {
        outcome: ended.outcome.clone(),
        took: ended.usage.wall,
        printed: stdout.total() + stderr.total(),
        input: command.input.given(),
    }
}

/// Describes how much of a text of so many bytes was written, for people and for programs.
fn input_note(bytes: usize, fed: WriteResult, eof: Eof) -> (String, InputTaken) {
    let WriteResult { taken, rest } = fed;
    let of = format!("{taken} of {bytes} bytes were taken");
    let note = match (rest, eof) {
        (None, Eof::Yes) => format!("{taken} bytes were taken, and the input has its end"),
        (None, Eof::No) => format!("{taken} bytes were taken"),
        (Some(Rest::Full), _) => {
            format!("{of}: the pipe is full, as the program does not read; send the rest later")
        }
        (Some(Rest::Limit), _) => format!("{of}: a command takes {STDIN_BYTES} bytes in all"),
        (Some(Rest::Shut(shut)), _) => format!("{of}: {}", why_shut(shut)),
    };
    match rest {
        Some(Rest::Shut(_)) if taken == 0 => (note, InputTaken::Nothing),
        Some(_) | None => (note, InputTaken::Bytes(taken)),
    }
}

/// Describes the means by which a job was ended.
fn what_ended(stop: Stop, ended: Option<&Ended>) -> &'static str {
    let Some(ended) = ended else { return "it has not ended yet" };
    match (stop, ended.force, &ended.shell) {
        (Stop::Interrupt, Force::Killed, ShellAfter::Beside) => {
            "it did not end within 1 s of INT; its processes were killed, the shell is kept"
        }
        (Stop::Interrupt, _, ShellAfter::Kept { .. } | ShellAfter::Beside) => {
            "INT ended it; the shell is kept"
        }
        (Stop::Terminate, Force::Killed, ShellAfter::Beside) => {
            "it did not end within 1 s of TERM; its processes were killed, but for any that had detached themselves, \
             and the shell is kept"
        }
        (Stop::Kill, _, ShellAfter::Beside) => {
            "its processes were killed, but for any that had detached themselves; the shell is kept"
        }
        (Stop::Terminate, Force::None, ShellAfter::Kept { .. } | ShellAfter::Beside) => {
            "TERM ended it; the shell is kept"
        }
        (Stop::Terminate, Force::Killed, ShellAfter::Kept { .. }) => {
            "it did not end within 1 s of TERM; its processes were killed, the shell is kept"
        }
        (Stop::Kill, _, ShellAfter::Kept { .. }) => "its processes were killed; the shell is kept",
        (
            Stop::Interrupt | Stop::Terminate | Stop::Kill,
            _,
            ShellAfter::Ended | ShellAfter::None,
        ) => "the shell did not come back in time and was killed with it",
    }
}

fn why_shut(shut: InputEnd) -> &'static str {
    match shut {
        InputEnd::Never => "the command was started without `input`",
        InputEnd::Eof => "its input has had its end",
        InputEnd::Over => "the command has closed its input or ended",
    }
}

fn listed(command: &Command) -> JobSummary {
    let took = command.took().unwrap_or_else(|| command.started.elapsed());
    let printed = command.printed();
    // A command is the client's own text; control characters stay out of a list.
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    JobSummary {
        id: command.id.clone(),
        session: command.session.clone().unwrap_or_default(),
        command: command.text.chars().map(plain).collect(),
        outcome: command.finished().map(|ended| ended.outcome.clone()),
        took,
        printed,
    }
}

/// Returns head and tail, or the lines that are wanted.
fn at_its_ends(command: &Command, room: usize, lines: Wanted) -> ShownStreams {
    let out = command.stdout.all();
    let err = command.stderr.all();
    let show = Shown { characters: room, lines };
    let (stdout, stderr) = shown(&out, &err, show);
    ShownStreams { stdout, stderr, next: Offsets { stdout: out.total(), stderr: err.total() } }
}

/// Returns output from an offset on, with nothing omitted that is kept.
fn piece(command: &Command, since: Offsets, room: usize) -> ShownStreams {
    let out = command.stdout.all();
    let err = command.stderr.all();
    let half = room / 2;
    let new = |all: &Captured, since: u64| {
        usize::try_from(all.total().saturating_sub(since)).unwrap_or(usize::MAX)
    };
    let out_new = new(&out, since.stdout);
    let err_new = new(&err, since.stderr);
    let (out_room, err_room) =
        (room - err_new.min(half), room - out_new.min(room - err_new.min(half)));
    let (out_piece, err_piece) =
        (out.piece(since.stdout, out_room), err.piece(since.stderr, err_room));
    let rendered = render(&Captured::of(&out_piece.bytes), &Captured::of(&err_piece.bytes), ALL);
    let stream = |text: String, skipped: u64, next: u64, all: &Captured| {
        let gap = match skipped {
            0 => String::new(),
            bytes => format!("[\u{2026} {bytes} bytes are not kept \u{2026}]\n"),
        };
        let cut = if skipped > 0 || next < all.total() { Cut::Part } else { Cut::Whole };
        StreamReport { text: gap + &text, bytes: all.total(), cut }
    };
    ShownStreams {
        stdout: stream(rendered.stdout, out_piece.skipped, out_piece.next, &out),
        stderr: stream(rendered.stderr, err_piece.skipped, err_piece.next, &err),
        next: Offsets { stdout: out_piece.next, stderr: err_piece.next },
    }
}

/// Returns the requested lines of all that is kept.
fn chosen(
    command: &Command,
    since: Offsets,
    pattern: Option<&Pattern>,
    lines: Wanted,
    room: usize,
) -> Result<ShownStreams, crate::capture::grep::NoMatch> {
    let out = command.stdout.all();
    let err = command.stderr.all();
    let all = render(&out.since(since.stdout), &err.since(since.stderr), ALL);
    let choose = |text: String| {
        let text = match pattern {
            Some(pattern) => pattern.lines(&text)?,
            None => text,
        };
        Ok(Captured::of(only(text, lines).0.as_bytes()))
    };
    let show = Shown { characters: room, lines: Wanted::default() };
    let (stdout, stderr) = shown(&choose(all.stdout)?, &choose(all.stderr)?, show);
    Ok(ShownStreams {
        stdout: StreamReport { bytes: out.total(), ..stdout },
        stderr: StreamReport { bytes: err.total(), ..stderr },
        next: Offsets { stdout: out.total(), stderr: err.total() },
    })
}
