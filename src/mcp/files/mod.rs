//! Files of `/workspace` as an agent reads and writes them: `edit`, `put_file`, `get_file`.

pub mod arguments;
mod reply;

use rmcp::model::CallToolResult;

use self::arguments::FileRequest;
use super::backend::{Backend, DenialReport, Refused};
use super::server::Server;
use super::tools::Context;
use model::receipt::Receipt;
use service::files::FileAnswer;

/// Result of a request for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    pub answer: FileAnswer,
    pub denials: Vec<DenialReport>,
    pub receipt: Option<Receipt>,
    /// Reason why the session has a new shell, where it had another.
    pub renewed: Option<String>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

impl<B: Backend> Server<B> {
    /// Reads or writes a file, as a call of `tool`.
    pub(crate) async fn file(
        &self,
        tool: &'static str,
        asked: FileRequest,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        let about = reply::RequestSummary::of(&asked);
        let run = |turn| self.0.backend.file(tool, asked, turn);
        let filed = self.turn(context, run).await?;
        Ok(reply::filed(&about, &filed))
    }
}

impl FileRequest {
    /// Returns the session whose shell is asked, if the workspace is a session's.
    pub fn session(&self) -> &str {
        self.session.as_deref().unwrap_or(service::session::DEFAULT)
    }
}
