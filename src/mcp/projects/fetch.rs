//! Downloads for a project: resources of the providers `https` and `git`, and requests of a running script.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ErrorData, ReadResourceResult};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::live::{Answer, OutputReader};
use super::{READS, contents, error};
use crate::context::Context;
use crate::server::Server;
use projects::{
    AskedResource, FetchError, FetchFault, FetchRequest, Project, ScriptError, ScriptLaunch,
};
use service::capture::tap::{Reader, Tap};
use service::refused::{Refused, RefusedKind};
use service::request::FetchPlace;
use service::shell::ScriptArgs;
use service::{Caller, Report};

/// Interval at which it is checked that a script has taken an answer.
const TAKEN: Duration = Duration::from_millis(20);

impl Server {
    /// Reads a resource from the network.
    ///
    /// # Errors
    /// The reason why it was not read.
    pub(super) async fn read_fetched(
        &self,
        project: &Project,
        asked: AskedResource,
        context: &Context,
    ) -> Result<ReadResourceResult, ErrorData> {
        let failed = |fault: FetchError| error(ScriptError::from(fault));
        let request = FetchRequest::of(&asked.uri, &project.settings.downloads).map_err(failed)?;
        let bytes = self.fetch(READS, &request, context).await.map_err(failed)?;
        let content = project.fetched_content(&asked, bytes).map_err(error)?;
        Ok(ReadResourceResult::new(vec![contents(content, asked)]))
    }

    /// Makes the answer to a script's request for a download; `None` if the request names no answer.
    pub(super) fn download<'c>(
        &'c self,
        of: &'c str,
        launch: &ScriptLaunch,
        fields: Map<String, Value>,
        input: &'c mpsc::Sender<Vec<u8>>,
        context: &'c Context,
    ) -> Option<Answer<'c>> {
        let bounds = launch.downloads.as_ref()?;
        let (id, request) = FetchRequest::of_script(&fields, bounds)?;
        Some(Box::pin(async move {
            // The download is held here until the script takes it, which it may never do.
            while input.capacity() < input.max_capacity() && !input.is_closed() {
                tokio::time::sleep(TAKEN).await;
            }
            let done = match request {
                Ok(request) => self.fetch(of, &request, context).await,
                Err(error) => Err(error),
            };
            let (kind, bytes) = match done {
                Ok(bytes) => ("body", bytes),
                Err(error) => ("error", error.to_value().to_string().into_bytes()),
            };
            let head = format!("download {id} {kind} {}\n", bytes.len());
            [head.as_bytes(), &bytes].concat()
        }))
    }

    /// Downloads something in a fresh cell.
    async fn fetch(
        &self,
        of: &str,
        request: &FetchRequest,
        context: &Context,
    ) -> Result<Vec<u8>, FetchError> {
        let launch = request.launch(super::mark());
        let output_reader = Arc::new(OutputReader::silent(launch.stream()));
        let reader: Arc<dyn Reader> = output_reader.clone();
        let args = ScriptArgs {
            command: FetchRequest::SCRIPT.to_owned(),
            env: Some(launch.env.clone()),
            timeout: Some(f64::from(u32::try_from(launch.seconds).unwrap_or(u32::MAX))),
            ..ScriptArgs::default()
        };
        let place = FetchPlace { host: request.host.clone(), port: request.port };
        let caller = Caller { tap: Tap::read_by(reader), ..Caller::default() };
        let run = |caller| self.0.client.project_fetch(of, place, args, caller);
        let report = self.stopped_turn(caller, context.ct.cancelled(), run).await;
        let report = report.map_err(refused)?;
        let denied = denied(&report);
        let output = output_reader.output(super::end(&report.ended.outcome), &report);
        request.fetched(&launch, &output, denied.as_deref())
    }
}

/// Returns the reason why the gateway refused a download.
fn denied(report: &Report) -> Option<String> {
    Some(report.ended.network.as_ref()?.denied.first()?.why.clone())
}

fn refused(refused: Refused) -> FetchError {
    let fault = match refused.kind {
        RefusedKind::Denied => FetchFault::HostBlocked,
        RefusedKind::Arguments
        | RefusedKind::Cancelled
        | RefusedKind::Absent
        | RefusedKind::Failed => FetchFault::Network,
    };
    let hint = refused.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    FetchError::new(fault, format!("{}{hint}", refused.message))
}
