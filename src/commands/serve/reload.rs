//! SIGHUP: the files of a listener are read again, and the credentials that they have take the place of the earlier
//! ones. If one of the files cannot be used, all earlier credentials stay.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::Mode;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::credentials::{CredentialSettings, NOT_READ};
use super::file_frames::{self, MAX_FRAME};
use super::file_reader::ASK;
use super::listener_file::{FileResult, ListenerFile};
use crate::commands::error::CliError;
use cell::tied::ProcessEnds;
use http::access::{ClientChanges, CredentialStore};

/// Time for all files to be read.
const READ_TIME: Duration = Duration::from_secs(10);

/// The content of each file, or the reason why it cannot be used.
type FileResults = BTreeMap<ListenerFile, FileResult>;

/// Credentials of a listener, and the way to read their files again.
#[derive(Debug)]
pub struct Reload {
    pub(super) settings: CredentialSettings,
    pub(super) store: CredentialStore,
    /// Ends of the process that reads the files; `None` if it could not be made.
    pub(super) reader: Option<ProcessEnds>,
    /// Clients that rules of the policy name.
    pub(super) rule_clients: BTreeSet<String>,
}

/// Returns true if SIGHUP asks for the files. Without files, and at a terminal, it is the hangup that ends a server.
pub(super) fn is_reload(settings: &CredentialSettings) -> bool {
    let streams_are_terminals =
        || io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
    !settings.files().is_empty() && !streams_are_terminals() && !has_controlling_terminal()
}

/// Returns true if this process gets a SIGHUP when its terminal is closed, also with all of its streams elsewhere.
fn has_controlling_terminal() -> bool {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let opened = open("/dev/tty", flags, Mode::empty());
    !matches!(opened, Err(Errno::ENXIO | Errno::ENOENT))
}

/// Returns the set of SIGHUP alone.
pub(super) fn hangup() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGHUP);
    set
}

/// Reads the files again at each SIGHUP, which is blocked until then. Never returns.
pub(crate) async fn at_signal(reload: Reload) {
    let Reload { settings, store, reader, rule_clients } = reload;
    let Ok(mut signals) = signal(SignalKind::hangup()) else {
        return tracing::warn!("SIGHUP cannot be watched: files are not read again");
    };
    if let Err(errno) = hangup().thread_unblock() {
        return tracing::warn!("SIGHUP stays blocked, so files are not read again: {errno}");
    }
    let files = settings.files();
    let mut reader = reader.and_then(|ends| ReaderLink::new(ends, files.clone()).ok());
    while signals.recv().await.is_some() {
        let read = match reader.as_mut() {
            Some(reader) => timeout(READ_TIME, reader.results()).await,
            None => Ok(Err(io::ErrorKind::NotConnected.into())),
        };
        let read = match read {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => {
                tracing::error!(
                    "SIGHUP: the process that reads files has ended: start the server again"
                );
                continue;
            }
            Err(_) => {
                tracing::error!(
                    "SIGHUP: files were not read within {} s: earlier tokens, keys and certificates stay",
                    READ_TIME.as_secs()
                );
                continue;
            }
        };
        match reloaded(&settings, &read) {
            Ok(credentials) => {
                warn_of_unknown(&rule_clients, &settings, &credentials);
                report(files.len(), store.replace(credentials));
            }
            Err(error) => {
                let error = error.text().replace('\n', "; ");
                tracing::error!("SIGHUP: earlier tokens, keys and certificates stay: {error}");
            }
        }
    }
}

/// Writes a line to standard error, as other signals do: it confirms the signal, whatever is logged.
fn report(files: usize, clients: ClientChanges) {
    let ClientChanges { added, removed } = clients;
    let line = serde_json::json!({ "cofferdam_reload": {
        "files_read": files, "clients_added": added, "clients_removed": removed,
    } });
    // A failure to write cannot be reported anywhere else.
    writeln!(io::stderr(), "{line}").unwrap_or_default();
}

/// Warns about clients that rules name and that have no credential. A list of tokens may have them later.
pub(super) fn warn_of_unknown(
    rule_clients: &BTreeSet<String>,
    settings: &CredentialSettings,
    credentials: &http::access::Credentials,
) {
    let known = credentials.names();
    let is_unknown = |name: &&String| !known.contains(name.as_str()) && !settings.names(name);
    for client in rule_clients.iter().filter(is_unknown) {
        tracing::warn!(%client, "a rule of the policy names a client that has no credential");
    }
}

/// Link to the process that reads the files.
struct ReaderLink {
    questions: OwnedWriteHalf,
    answers: mpsc::Receiver<FileResults>,
    /// Number of questions without an answer so far. Answers come in the order of the questions.
    unanswered: usize,
    /// The process ends when this is closed.
    _life: OwnedFd,
}

impl ReaderLink {
    fn new(ends: ProcessEnds, files: Vec<ListenerFile>) -> io::Result<Self> {
        let ProcessEnds { link, life } = ends;
        let link = StdStream::from(link);
        link.set_nonblocking(true)?;
        let (mut from, questions) = UnixStream::from_std(link)?.into_split();
        let (sender, answers) = mpsc::channel(1);
        // A task of its own, so that no answer is left half read where a question waits for too long.
        tokio::spawn(async move {
            while let Ok(results) = answer(&mut from, &files).await {
                if sender.send(results).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { questions, answers, unanswered: 0, _life: life })
    }

    /// Asks for the files. An answer to an earlier question, which came too late, is discarded. The future may be
    /// dropped at any time.
    async fn results(&mut self) -> io::Result<FileResults> {
        loop {
            self.questions.writable().await?;
            match self.questions.try_write(&[ASK]) {
                Ok(1) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            }
        }
        self.unanswered += 1;
        loop {
            let results = self.answers.recv().await.ok_or(io::ErrorKind::NotConnected)?;
            self.unanswered = self.unanswered.saturating_sub(1);
            if self.unanswered == 0 {
                return Ok(results);
            }
        }
    }
}

fn reloaded(
    settings: &CredentialSettings,
    read: &FileResults,
) -> Result<http::access::Credentials, CliError> {
    let absent = |file: &ListenerFile| {
        Err(CliError::new(format!("http: {}: {NOT_READ}", file.path.display())))
    };
    settings.load(&mut |file| read.get(file).cloned().unwrap_or_else(|| absent(file)))
}

/// Reads the answer to one question.
async fn answer(link: &mut OwnedReadHalf, files: &[ListenerFile]) -> io::Result<FileResults> {
    let mut all = BTreeMap::new();
    for file in files {
        let length = u64::from(link.read_u32_le().await?);
        if length > MAX_FRAME {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut frame = Vec::new();
        let read = link.take(length).read_to_end(&mut frame).await?;
        if u64::try_from(read).ok() != Some(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        all.insert(file.clone(), file_frames::decode(&frame, &file.kind)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::commands::serve::listener_file::{FileContent, FileKind};

    #[tokio::test]
    async fn a_late_answer_is_not_taken_for_that_to_the_next_question() {
        let (ours, theirs) = StdStream::pair().expect("a link");
        theirs.set_nonblocking(true).expect("it does not block");
        let mut process = UnixStream::from_std(theirs).expect("a stream");
        let file = ListenerFile { path: "/f".into(), kind: FileKind::Trusted };
        let (_, life) = nix::unistd::pipe().expect("a pipe");
        let ends = ProcessEnds { link: ours.into(), life };
        let mut link = ReaderLink::new(ends, vec![file.clone()]).expect("a link");
        let framed = |text: &str| {
            let frame = file_frames::encode(Ok(FileContent::Text(text.to_owned())));
            let frame = frame.expect("a frame");
            let length = u32::try_from(frame.len()).expect("it is short");
            [&length.to_le_bytes(), frame.as_slice()].concat()
        };
        // Half of the answer comes in time.
        let earlier = framed("old");
        let (first, rest) = earlier.split_at(6);
        process.write_all(first).await.expect("sent");
        let wait = Duration::from_millis(100);
        assert!(timeout(wait, link.results()).await.is_err());
        let answers = [rest, &framed("new")].concat();
        process.write_all(&answers).await.expect("sent");
        let results = link.results().await.expect("an answer");
        let content = results.get(&file).cloned().expect("of the file").expect("read");
        assert_eq!(content.into_text().as_deref(), Some("new"));
        drop(process);
        assert!(link.results().await.is_err(), "the process has ended");
    }
}
