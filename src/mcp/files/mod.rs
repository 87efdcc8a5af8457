//! Files of `/workspace` as an agent reads and writes them: `edit`, `put_file`, `get_file`.

pub mod arguments;
mod reply;

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, JsonObject};
use rmcp::service::RequestContext;

use self::arguments::{EditArguments, FileRequest, GetArguments, PutArguments};
use super::arguments::{Arguments, parse};
use super::backend::{Backend, DenialReport, Refused};
use super::server::Server;
use model::receipt::Receipt;
use policy::group::Group;
use service::files::FileAnswer;

/// Returns true if a tool is one of these.
pub fn answers(tool: &str) -> bool {
    Group::of(tool) == Some(Group::Files)
}

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
    /// Runs one call of a tool that [`answers`] knows.
    pub(super) async fn file(
        &self,
        tool: &str,
        given: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let (tool, asked) = match tool {
            EditArguments::TOOL => (EditArguments::TOOL, parse::<EditArguments>(given)?.asked()?),
            PutArguments::TOOL => (PutArguments::TOOL, parse::<PutArguments>(given)?.asked()?),
            _ => (GetArguments::TOOL, parse::<GetArguments>(given)?.asked()?),
        };
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
