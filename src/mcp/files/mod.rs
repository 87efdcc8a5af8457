//! Files of `/workspace` as an agent reads and writes them: `edit`, `put_file`, `get_file`.

pub mod arguments;
mod reply;

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, JsonObject};
use rmcp::service::RequestContext;

use self::arguments::{Asked, EditArguments, GetArguments, PutArguments};
use super::arguments::{Arguments, parse};
use super::backend::{Backend, Refused, ToldDenial};
use super::server::Server;
use crate::tools::files::Answer;
use model::receipt::Receipt;
use policy::group::Group;

/// Whether a tool is one of these.
pub fn answers(tool: &str) -> bool {
    Group::of(tool) == Some(Group::Files)
}

/// What was done to a file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filed {
    pub answer: Answer,
    pub denials: Vec<ToldDenial>,
    pub receipt: Option<Receipt>,
    /// Why the session has a new shell, where it had another.
    pub renewed: Option<String>,
    /// Lines that the audit log lacks, and why, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

impl<B: Backend> Server<B> {
    /// One call of a tool that [`answers`] knows.
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
        let about = reply::About::of(&asked);
        let run = |turn| self.0.backend.file(tool, asked, turn);
        let filed = self.turn(context, run).await?;
        Ok(reply::filed(&about, &filed))
    }
}

impl Asked {
    /// The session whose shell is asked, where the workspace is a session's.
    pub fn session(&self) -> &str {
        self.session.as_deref().unwrap_or(crate::tools::session::DEFAULT)
    }
}
