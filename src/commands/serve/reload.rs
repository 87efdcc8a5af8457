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

use super::credentials::CredentialSettings;
use super::file_reader::{ASK, ListenerFile, MAX_BYTES, READ};
use crate::commands::error::CliError;
use http::access::{ClientChanges, CredentialStore};

/// Time for all files to be read.
const READ_TIME: Duration = Duration::from_secs(10);
/// Maximum length of one answer of the process that reads the files: a file, with its path in an error.
const MAX_ANSWER: u64 = 2 * MAX_BYTES;

/// The text of each file, or the reason why it cannot be read.
type FileTexts = BTreeMap<ListenerFile, Result<String, String>>;

/// Credentials of a listener, and the way to read their files again.
#[derive(Debug)]
pub struct Reload {
    pub(super) settings: CredentialSettings,
    pub(super) store: CredentialStore,
    /// Link to the process that reads the files; `None` if it could not be made.
    pub(super) reader: Option<OwnedFd>,
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
    let mut reader = reader.and_then(|link| ReaderLink::new(link, files.clone()).ok());
    while signals.recv().await.is_some() {
        let read = match reader.as_mut() {
            Some(reader) => timeout(READ_TIME, reader.texts()).await,
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
    answers: mpsc::Receiver<FileTexts>,
    /// Number of questions without an answer so far. Answers come in the order of the questions.
    unanswered: usize,
}

impl ReaderLink {
    fn new(link: OwnedFd, files: Vec<ListenerFile>) -> io::Result<Self> {
        let link = StdStream::from(link);
        link.set_nonblocking(true)?;
        let (mut from, questions) = UnixStream::from_std(link)?.into_split();
        let (sender, answers) = mpsc::channel(1);
        // A task of its own, so that no answer is left half read where a question waits for too long.
        tokio::spawn(async move {
            while let Ok(texts) = answer(&mut from, &files).await {
                if sender.send(texts).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { questions, answers, unanswered: 0 })
    }

    /// Asks for the files. An answer to an earlier question, which came too late, is discarded. The future may be
    /// dropped at any time.
    async fn texts(&mut self) -> io::Result<FileTexts> {
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
            let texts = self.answers.recv().await.ok_or(io::ErrorKind::NotConnected)?;
            self.unanswered = self.unanswered.saturating_sub(1);
            if self.unanswered == 0 {
                return Ok(texts);
            }
        }
    }
}

fn reloaded(
    settings: &CredentialSettings,
    read: &FileTexts,
) -> Result<http::access::Credentials, CliError> {
    let absent = || Err("was not read again".to_owned());
    settings.load(&mut |file| read.get(file).cloned().unwrap_or_else(absent))
}

/// Reads the answer to one question.
async fn answer(link: &mut OwnedReadHalf, files: &[ListenerFile]) -> io::Result<FileTexts> {
    let mut all = BTreeMap::new();
    for file in files {
        let is_read = link.read_u8().await? == READ;
        let length = u64::from(link.read_u32_le().await?);
        if length > MAX_ANSWER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut text = String::new();
        let read = link.take(length).read_to_string(&mut text).await?;
        if u64::try_from(read).ok() != Some(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        all.insert(file.clone(), if is_read { Ok(text) } else { Err(text) });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::commands::serve::file_reader::FileKind;

    #[tokio::test]
    async fn a_late_answer_is_not_taken_for_that_to_the_next_question() {
        let (ours, theirs) = StdStream::pair().expect("a link");
        theirs.set_nonblocking(true).expect("it does not block");
        let mut process = UnixStream::from_std(theirs).expect("a stream");
        let file = ListenerFile { path: "/f".into(), kind: FileKind::Trusted };
        let mut link = ReaderLink::new(ours.into(), vec![file.clone()]).expect("a link");
        // Half of the answer comes in time.
        let framed = |text: &[u8]| [&[READ, 3, 0, 0, 0][..], text].concat();
        process.write_all(&framed(b"o")).await.expect("sent");
        let wait = Duration::from_millis(100);
        assert!(timeout(wait, link.texts()).await.is_err());
        let answers = [&b"ld"[..], &framed(b"new")].concat();
        process.write_all(&answers).await.expect("sent");
        let texts = link.texts().await.expect("an answer");
        assert_eq!(texts.get(&file), Some(&Ok("new".to_owned())));
        drop(process);
        assert!(link.texts().await.is_err(), "the process has ended");
    }
}
