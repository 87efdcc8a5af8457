//! Follows one running call to its end: drains its output, ends it on cancel or at a limit, and
//! never waits without a bound.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::sync::oneshot::Receiver;
use tokio::time::{Instant, timeout};

use crate::capture::stream::{Follower, Stream};
use crate::capture::tap::{Source, Tap};
use crate::capture::{KEPT_BYTES, Meter};
use crate::link::{Control, Running};
use crate::{Caller, Report};
use model::job::Limits;
use model::outcome::{Ended, Failure};

/// Time in which output is still read after the report of the end. All of it is in the pipes by
/// then, and they close with the cell. If closing is slow, a pause without output is the end as
/// well.
const DRAIN_GRACE: Duration = Duration::from_secs(2);
const DRAIN_PAUSE: Duration = Duration::from_millis(250);

/// Time after the wall limit at which a call is given up. The supervisor ends calls in time, TERM or
/// INT and grace included; this bound is for a stopped supervisor.
const SUPERVISOR_GRACE: Duration = Duration::from_secs(15);

/// Ends a running call early; tests replace the link's control.
pub(crate) trait End: Send + Sync + 'static {
    fn cancel(&self);
    fn output_limit(&self);
}

impl End for Control {
    fn cancel(&self) {
        Control::cancel(self);
    }

    fn output_limit(&self) {
        Control::output_limit(self);
    }
}

/// Passes on the output of one call while it is read.
struct Following<E> {
    tap: Tap,
    end: E,
}

impl<E: End> Follower for Following<E> {
    fn received(&self, source: Source, bytes: &[u8]) {
        self.tap.pass(source, bytes);
    }

    fn over(&self) {
        self.end.output_limit();
    }
}

/// Waits for the report of a call's end; gives up if a stopped supervisor sends no report.
pub(crate) async fn reported(ended: Receiver<Ended>, limits: &Limits, end: &impl End) -> Ended {
    let reported = timeout(limits.wall + SUPERVISOR_GRACE, ended).await;
    if reported.is_err() {
        end.cancel();
    }
    reported.ok().and_then(Result::ok).unwrap_or_else(|| Ended::failed(Failure::Supervisor))
}

/// Follows `running` until its end is reported and its output read, and completes its report.
pub(super) async fn to_the_end(
    running: Running,
    report: Report,
    keep: usize,
    caller: &Caller,
) -> Report {
    // Dropping the rest of `running` cancels the call if this function returns early.
    let Running { receipt, stdin, stdout, stderr, control, ended, .. } = running;
    // Where nothing comes, the end of the input comes at once: a pipe would only keep the program waiting.
    let feeding = stdin.zip(caller.feed.take()).map(|(stdin, pieces)| {
        // It ends with the pieces, or with the cell.
        tokio::spawn(feed(stdin, pieces))
    });
    let (mut report, drained_in) =
        follow(report, (stdout, stderr), keep, ended, control.clone(), caller).await;
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    control.drained(drained_in);
    report.ended.timings.drain = drained_in;
    report.receipt = Some(receipt);
    report
}

/// Passes pieces of input on, as long as the program takes them.
async fn feed(mut stdin: pipe::Sender, mut pieces: mpsc::Receiver<Vec<u8>>) {
    while let Some(piece) = pieces.recv().await {
        if let Err(error) = stdin.write_all(&piece).await {
            tracing::debug!(%error, "a program takes no more input");
            return;
        }
    }
}

/// Returns the report with end and output, and the time that output was read after the report of the end.
async fn follow(
    report: Report,
    (stdout, stderr): (pipe::Receiver, pipe::Receiver),
    keep: usize,
    ended: Receiver<Ended>,
    end: impl End,
    caller: &Caller,
) -> (Report, Duration) {
    let limits = report.limits;
    let meter = Arc::new(Meter::counting(limits.output, caller.produced.clone()));
    let out = Stream::new(stdout, keep, Source::Stdout, &meter);
    let err = Stream::new(stderr, KEPT_BYTES, Source::Stderr, &meter);
    let following = Arc::new(Following { tap: caller.tap.clone(), end });
    let mut reported = pin!(reported(ended, &limits, &following.end));
    let mut draining =
        Box::pin(async { tokio::join!(out.to_the_end(&following), err.to_the_end(&following)) });
    let mut drained = false;
    let mut cancelled = false;
    let ended = loop {
        tokio::select! {
            end = &mut reported => break end,
            _ = &mut draining, if !drained => drained = true,
            () = caller.cancel.cancelled(), if !cancelled => {
                cancelled = true;
                following.end.cancel();
            }
        }
    };
    let reported = Instant::now();
    while !drained {
        let before = caller.produced.bytes();
        let closed = timeout(DRAIN_PAUSE, &mut draining).await.is_ok();
        drained = closed || before == caller.produced.bytes() || reported.elapsed() >= DRAIN_GRACE;
        if drained && !closed {
            tracing::debug!("a call's output was still open after its end");
        }
    }
    drop(draining);
    let stdout = out.into_captured();
    let stderr = err.into_captured();
    (Report { ended, stdout, stderr, ..report }, reported.elapsed())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::oneshot;

    use super::*;
    use crate::capture::Captured;
    use crate::report::Clamped;
    use model::outcome::{LimitKind, Outcome};

    /// A supervisor of one call: reports the end when it is asked to end the call.
    #[derive(Clone)]
    struct Fake(Arc<Mutex<Option<oneshot::Sender<Ended>>>>);

    impl Fake {
        fn tell(&self, outcome: Outcome) {
            let sender = self.0.lock().ok().and_then(|mut slot| slot.take());
            let sent = sender.map(|sender| sender.send(with(outcome)).is_ok());
            assert!(sent != Some(false));
        }
    }

    impl End for Fake {
        fn cancel(&self) {
            self.tell(Outcome::Cancelled);
        }

        fn output_limit(&self) {
            self.tell(Outcome::Limit(LimitKind::Output));
        }
    }

    fn with(outcome: Outcome) -> Ended {
        Ended { outcome, ..Ended::failed(Failure::Supervisor) }
    }

    fn limits(output: Option<u64>) -> Limits {
        Limits {
            wall: Duration::from_secs(5),
            cpu: Duration::from_secs(5),
            processors: None,
            memory: 0,
            processes: 0,
            open_files: 0,
            file_size: 0,
            workspace_bytes: 0,
            tmp_bytes: 0,
            shm_bytes: 0,
            inodes: 0,
            output,
        }
    }

    struct Call {
        out: pipe::Sender,
        stdout: pipe::Receiver,
        err: pipe::Sender,
        stderr: pipe::Receiver,
        fake: Fake,
        ended: Receiver<Ended>,
    }

    fn call() -> std::io::Result<Call> {
        let ((out, stdout), (err, stderr)) = (pipe::pipe()?, pipe::pipe()?);
        let (sender, ended) = oneshot::channel();
        let fake = Fake(Arc::new(Mutex::new(Some(sender))));
        Ok(Call { out, stdout, err, stderr, fake, ended })
    }

    fn seen(outcome: Outcome, stdout: &[u8], stderr: &[u8]) -> Report {
        let stdout = Captured::of(stdout);
        let stderr = Captured::of(stderr);
        Report { ended: with(outcome), stdout, stderr, ..blank(None) }
    }

    fn blank(output: Option<u64>) -> Report {
        Report {
            ended: with(Outcome::Cancelled),
            receipt: None,
            stdout: Captured::of(b""),
            stderr: Captured::of(b""),
            cwd: "/workspace".to_owned(),
            limits: limits(output),
            clamped: Clamped::No,
            took: Duration::ZERO,
        }
    }

    #[tokio::test]
    async fn both_streams_and_the_end_are_seen() -> std::io::Result<()> {
        let Call { mut out, stdout, mut err, stderr, fake, ended } = call()?;
        out.write_all(b"to stdout").await?;
        err.write_all(b"to stderr").await?;
        drop((out, err));
        fake.tell(Outcome::Exited { code: 3 });
        let never = Caller::default();
        let (observed, _) =
            follow(blank(None), (stdout, stderr), KEPT_BYTES, ended, fake, &never).await;
        assert_eq!(observed, seen(Outcome::Exited { code: 3 }, b"to stdout", b"to stderr"));
        Ok(())
    }

    #[tokio::test]
    async fn cancelling_keeps_partial_output() -> std::io::Result<()> {
        let Call { mut out, stdout, err, stderr, fake, ended } = call()?;
        out.write_all(b"partial").await?;
        let caller = Caller::default();
        caller.cancel.cancel();
        drop((out, err));
        let (observed, _) =
            follow(blank(None), (stdout, stderr), KEPT_BYTES, ended, fake, &caller).await;
        assert_eq!(observed, seen(Outcome::Cancelled, b"partial", b""));
        Ok(())
    }

    #[tokio::test]
    async fn output_past_the_limit_ends_the_call() -> std::io::Result<()> {
        let Call { mut out, stdout, mut err, stderr, fake, ended } = call()?;
        out.write_all(b"12345").await?;
        err.write_all(b"67890").await?;
        drop((out, err));
        let never = Caller::default();
        let (observed, _) =
            follow(blank(Some(9)), (stdout, stderr), KEPT_BYTES, ended, fake, &never).await;
        let expected = seen(Outcome::Limit(LimitKind::Output), b"12345", b"67890");
        assert_eq!(observed, Report { limits: limits(Some(9)), ..expected });
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipe_held_open_after_the_end_does_not_hold_the_call() -> std::io::Result<()> {
        let Call { mut out, stdout, err, stderr, fake, ended } = call()?;
        out.write_all(b"before").await?;
        fake.tell(Outcome::Exited { code: 0 });
        let start = Instant::now();
        let never = Caller::default();
        let (observed, _) =
            follow(blank(None), (stdout, stderr), KEPT_BYTES, ended, fake, &never).await;
        assert_eq!(observed, seen(Outcome::Exited { code: 0 }, b"before", b""));
        assert!(start.elapsed() <= 2 * DRAIN_PAUSE);
        drop((out, err));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_supervisor_that_is_gone_or_silent_is_a_supervisor_failure() -> std::io::Result<()> {
        let failed = || seen(Outcome::Failed(Failure::Supervisor), b"", b"");
        let never = Caller::default();
        let Call { out, stdout, err, stderr, fake, ended } = call()?;
        drop((out, err, fake.0.lock().ok().and_then(|mut slot| slot.take())));
        assert_eq!(
            follow(blank(None), (stdout, stderr), KEPT_BYTES, ended, fake, &never).await.0,
            failed()
        );

        let Call { out, stdout, err, stderr, fake: _silent, ended } = call()?;
        let other = Fake(Arc::new(Mutex::new(None)));
        drop((out, err));
        assert_eq!(
            follow(blank(None), (stdout, stderr), KEPT_BYTES, ended, other, &never).await.0,
            failed()
        );
        Ok(())
    }
}
