//! Files of `/workspace` as an agent reads and writes them: `edit`, `put_file`, `get_file`.

mod reply;

use rmcp::model::CallToolResult;

use super::context::Context;
use super::server::Server;
use service::refused::Refused;
use service::request::FileRequest;

impl Server {
    /// Reads or writes a file, as a call of `tool`.
    pub(crate) async fn file(
        &self,
        tool: &'static str,
        asked: FileRequest,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        if asked.request.writes() && self.0.client.rules().has_private_workspace() {
            self.lasts("write the file by the command that needs it")?;
        }
        let about = reply::RequestSummary::of(&asked);
        let run = |turn| self.0.client.file(tool, asked, turn);
        let filed = self.turn(context, run).await?;
        Ok(reply::filed(&about, &filed))
    }
}
