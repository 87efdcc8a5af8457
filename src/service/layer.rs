//! The layer of the workspace: what an agent asks about it, and the link to the process that answers.
//!
//! The front end opens no file, so that another process compares the layer with the directory
//! (`commands::layer_reader`). It reads files of cells: what it sends is bounded and parsed here as
//! that of a stranger.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::refused::Refused;
use crate::shell;
use model::call::{Asked, Call, Env, InvalidCall, Stdin};
use model::defaults::INLINE_CHARACTERS;

/// First byte of an answer, and that of a refusal with its reason.
pub const ANSWERED: u8 = 1;
pub const FAILED: u8 = 0;
/// Longest question and longest answer in bytes. JSON has six bytes for a control character of a path.
pub const MAX_QUERY_BYTES: usize = 64 << 10;
pub const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Characters of rows or lines in one answer, apart from the last one.
pub const MAX_SHOWN: usize = INLINE_CHARACTERS;
/// Maximum and default number of changes in one answer.
pub const MAX_CHANGES: usize = 1000;
pub const DEFAULT_CHANGES: usize = 200;

/// A question about the layer. A path is below the workspace; without one it is about all changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerQuery {
    Changes {
        path: Option<String>,
        /// Number of changes to leave out.
        offset: usize,
        limit: usize,
    },
    Diff {
        path: Option<String>,
        /// Number of lines to leave out.
        offset: usize,
    },
}

impl LayerQuery {
    /// Builds the call that policy decides and the log records; nothing runs it.
    ///
    /// # Errors
    /// A path out of its bounds.
    pub(crate) fn call(&self, tool: &'static str) -> Result<Call, InvalidCall> {
        let (Self::Changes { path, .. } | Self::Diff { path, .. }) = self;
        let words = [tool.to_owned()].into_iter().chain(path.clone()).collect();
        let call = shell::run(words, Env::default(), Asked::default())?;
        Ok(Call { tool: tool.into(), stdin: Stdin::Empty, ..call })
    }
}

/// An answer of the process that reads the layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerAnswer {
    Changes {
        /// The changes as `cofferdam review` prints them, a line for each.
        lines: String,
        list: LayerChanges,
    },
    Diff(LayerDiff),
    Refused {
        message: String,
        hint: Option<String>,
    },
}

/// A part of the list of changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerChanges {
    /// Number of all changes, or of those at the path.
    pub total: usize,
    /// How many of them the operator can apply: the others are held back or in conflict.
    pub applicable: usize,
    pub changes: Vec<LayerRow>,
    /// Where the rest begins; absent at the end of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<usize>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerRow {
    /// Below /workspace.
    pub path: String,
    /// The path with other bytes than plain characters as %XX, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_encoded: Option<String>,
    #[schemars(extend("enum" = ["added", "changed", "deleted"]))]
    pub act: String,
    #[schemars(extend("enum" = ["file", "directory", "link", "other"]))]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Text of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why it is not applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// True if the host's file changed too: it is not applied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conflict: bool,
    /// True for a repository, whose commits come out by `cofferdam review --commits`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repository: bool,
    /// True for a file that becomes executable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs_in_ci: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub build_file: bool,
}

/// A part of the lines that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerDiff {
    /// A unified diff. Characters that a terminal would act on are escaped.
    pub diff: String,
    /// Number of its lines here.
    pub lines: usize,
    /// Line at which the rest begins; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<usize>,
}

/// Time for an answer. The process itself ends one that takes longer than a minute, unless a file system hangs.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(75);

/// The link to the process that reads the layer. Clones are the same link.
#[derive(Debug, Clone)]
pub struct LayerLink {
    /// Missing once the process has ended or did not answer in time.
    stream: Arc<Mutex<Option<UnixStream>>>,
    /// The process ends when this is closed.
    _life: Arc<OwnedFd>,
}

impl LayerLink {
    /// Makes the link of an end of the socket. Must be called in the runtime.
    ///
    /// # Errors
    /// A descriptor that is no socket.
    pub fn open(socket: OwnedFd, life: OwnedFd) -> io::Result<Self> {
        let stream = StdUnixStream::from(socket);
        stream.set_nonblocking(true)?;
        let stream = Arc::new(Mutex::new(Some(UnixStream::from_std(stream)?)));
        Ok(Self { stream, _life: Arc::new(life) })
    }

    /// Asks one question, after those that were asked before. A cancelled one that waits for these is never asked.
    ///
    /// # Errors
    /// A path that is too long, a layer that cannot be read, or the end of the process.
    pub(crate) async fn ask(&self, query: &LayerQuery) -> Result<LayerAnswer, Refused> {
        let bytes = serde_json::to_vec(query).unwrap_or_default();
        // The process ends at a longer one.
        if bytes.len() > MAX_QUERY_BYTES {
            return Err(Refused::failed("`path` is too long"));
        }
        let mut link = Arc::clone(&self.stream).lock_owned().await;
        // A separate task, so that a call that is cancelled from here on leaves no part of its answer on the link.
        let exchange = async move {
            let stream = link.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            let answer = tokio::time::timeout(MAX_ANSWER_TIME, exchange(stream, &bytes));
            let done = answer.await.unwrap_or_else(|late| Err(late.into()));
            if done.is_err() {
                *link = None;
            }
            done
        };
        let gone = |_| {
            Refused::failed("the process that reads the layer has ended, or did not answer")
                .with_hint("`cofferdam review` shows the layer to the operator")
        };
        let done =
            tokio::spawn(exchange).await.unwrap_or_else(|fault| Err(io::Error::other(fault)));
        let (first, bytes) = done.map_err(gone)?;
        if first != ANSWERED {
            return Err(Refused::failed(String::from_utf8_lossy(&bytes)));
        }
        serde_json::from_slice(&bytes)
            .map_err(|_| Refused::failed("the layer could not be read: no whole answer came"))
    }
}

/// Sends a question and receives its answer: its first byte, and the bytes.
async fn exchange(stream: &mut UnixStream, query: &[u8]) -> io::Result<(u8, Vec<u8>)> {
    let length = u32::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_le_bytes()).await?;
    stream.write_all(query).await?;
    let first = stream.read_u8().await?;
    let length = usize::try_from(stream.read_u32_le().await?).unwrap_or(usize::MAX);
    if length > MAX_ANSWER_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok((first, bytes))
}
