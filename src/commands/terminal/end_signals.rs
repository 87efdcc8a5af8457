//! Signals that end a call at the command line. A terminal must be restored before this process ends, so every signal
//! that would end it at once is handled there.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use libc::{
    SIGABRT, SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGPWR, SIGQUIT, SIGSTKFLT, SIGSYS, SIGTERM,
    SIGTRAP, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::exit::Cancellation;

/// Signals by which a user or a manager of processes ends a command.
const COMMON_SIGNALS: [i32; 2] = [SIGINT, SIGTERM];
/// Others that end a program which does not expect them (signal(7)). They may be ignored on purpose where no terminal
/// is at stake, as by nohup(1).
const OTHER_SIGNALS: [i32; 14] = [
    SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU, SIGIO, SIGPWR,
    SIGSTKFLT, SIGABRT, SIGTRAP, SIGSYS,
];

/// A receiver of these signals.
pub(crate) struct EndSignals(Vec<(Signal, Cancellation)>);

impl EndSignals {
    /// Starts to receive signals. The others are received only if a terminal is in use.
    ///
    /// # Errors
    /// A signal that cannot be received.
    pub(crate) fn watch(has_terminal: bool) -> io::Result<Self> {
        let others = if has_terminal { OTHER_SIGNALS.as_slice() } else { &[] };
        let watched = |number: &i32| {
            let cancellation = match *number {
                SIGINT | SIGQUIT => Cancellation::Interrupt,
                _ => Cancellation::Terminate,
            };
            Ok((signal(SignalKind::from_raw(*number))?, cancellation))
        };
        let realtime = has_terminal.then(|| libc::SIGRTMIN()..=libc::SIGRTMAX());
        let all = COMMON_SIGNALS
            .into_iter()
            .chain(others.iter().copied())
            .chain(realtime.into_iter().flatten());
        all.map(|number| watched(&number)).collect::<io::Result<_>>().map(Self)
    }

    /// Waits for a signal.
    pub(crate) async fn next(&mut self) -> Cancellation {
        poll_fn(|context| {
            for (signal, cancellation) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*cancellation);
                }
            }
            Poll::Pending
        })
        .await
    }
}
