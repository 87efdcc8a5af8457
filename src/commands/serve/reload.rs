//! SIGHUP: the files of a listener are read again, and the credentials that they have take the place of the earlier
//! ones. If one of the files cannot be used, all earlier credentials stay.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::credentials::CredentialSettings;
use super::file_reader::{ASK, ListenerFile, MAX_BYTES, READ};
use crate::commands::error::CliError;
use http::access::CredentialStore;

/// Time for all files to be read.
const READ_TIME: Duration = Duration::from_secs(10);
/// Maximum length of one answer of the process that reads the files: a file, with its path in an error.
const MAX_ANSWER: u64 = 2 * MAX_BYTES;

/// Credentials of a listener, and the way to read their files again.
#[derive(Debug)]
pub struct Reload {
    pub(super) settings: CredentialSettings,
    pub(super) store: CredentialStore,
    /// Link to the process that reads the files; `None` if there are no files.
    pub(super) reader: Option<OwnedFd>,
}

/// Returns true if SIGHUP asks for the files. At a terminal it is the hangup that ends a server.
pub(super) fn is_reload() -> bool {
    !io::stdin().is_terminal()
}

/// Returns the set of SIGHUP alone.
pub(super) fn hangup() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGHUP);
    set
}

/// Reads the files again at each SIGHUP, which is blocked until then. Never returns.
pub(crate) async fn at_signal(reload: Reload) {
    let Reload { settings, store, reader } = reload;
    let Ok(mut signals) = signal(SignalKind::hangup()) else {
        return tracing::warn!("SIGHUP cannot be watched: files are not read again");
    };
    if let Err(errno) = hangup().thread_unblock() {
        return tracing::warn!("SIGHUP stays blocked, so files are not read again: {errno}");
    }
    let mut link = reader.and_then(|link| connected(link).ok());
    let files = settings.files();
    while signals.recv().await.is_some() {
        if files.is_empty() {
            report(0);
            continue;
        }
        let read = match link.as_mut() {
            Some(link) => timeout(READ_TIME, answers(link, &files)).await,
            None => Ok(Err(io::ErrorKind::NotConnected.into())),
        };
        let Ok(Ok(read)) = read else {
            // A late answer would be taken for that to the next question.
            link = None;
            tracing::error!(
                "SIGHUP: the process that reads files does not answer: start the server again"
            );
            continue;
        };
        match reloaded(&settings, &read) {
            Ok(credentials) => {
                store.replace(credentials);
                report(files.len());
            }
            Err(error) => {
                let error = error.text().replace('\n', "; ");
                tracing::error!("SIGHUP: earlier tokens, keys and certificates stay: {error}");
            }
        }
    }
}

/// Writes a line to standard error, as other signals do: it confirms the signal, whatever is logged.
fn report(files: usize) {
    let line = serde_json::json!({ "cofferdam_reload": { "files_read": files } });
    // A failure to write cannot be reported anywhere else.
    writeln!(io::stderr(), "{line}").unwrap_or_default();
}

fn connected(link: OwnedFd) -> io::Result<UnixStream> {
    let link = StdStream::from(link);
    link.set_nonblocking(true)?;
    UnixStream::from_std(link)
}

fn reloaded(
    settings: &CredentialSettings,
    read: &BTreeMap<ListenerFile, Result<String, String>>,
) -> Result<http::access::Credentials, CliError> {
    let absent = || Err("was not read again".to_owned());
    settings.load(&mut |file| read.get(file).cloned().unwrap_or_else(absent))
}

/// Asks for the files, and returns the text of each, or the reason why it cannot be read.
async fn answers(
    link: &mut UnixStream,
    files: &[ListenerFile],
) -> io::Result<BTreeMap<ListenerFile, Result<String, String>>> {
    link.write_all(&[ASK]).await?;
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
