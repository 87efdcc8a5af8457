//! Downloads for a project: resources of the providers `https` and `git`, and requests of a running script.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::script_run::{Answer, OutputReader, ScriptRun, random_mark, script_end};
use projects::{FetchError, FetchFault, FetchRequest, ScriptLaunch};
use service::capture::tap::{Reader, Tap};
use service::refused::{Refused, RefusedKind};
use service::request::FetchPlace;
use service::shell::ScriptArgs;
use service::{Caller, Report};

/// Interval at which it is checked that a script has taken an answer.
const INPUT_POLL_INTERVAL: Duration = Duration::from_millis(20);

impl ScriptRun<'_> {
    /// Makes the answer to a script's request for a download; `None` if the request names no answer.
    pub(super) fn download<'a>(
        &'a self,
        launch: &ScriptLaunch,
        fields: Map<String, Value>,
        input: &'a mpsc::Sender<Vec<u8>>,
    ) -> Option<Answer<'a>> {
        let bounds = launch.downloads.as_ref()?;
        let (id, request) = FetchRequest::of_script(&fields, bounds)?;
        Some(Box::pin(async move {
            // The download is held here until the script takes it, which it may never do.
            while input.capacity() < input.max_capacity() && !input.is_closed() {
                tokio::time::sleep(INPUT_POLL_INTERVAL).await;
            }
            let done = match request {
                Ok(request) => self.fetch(&request).await,
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
    pub(super) async fn fetch(&self, request: &FetchRequest) -> Result<Vec<u8>, FetchError> {
        let launch = request.launch(random_mark());
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
        let run =
            |caller| service::projects::fetch(&self.calls.client, self.name, place, args, caller);
        let report = self.calls.stopped_turn(caller, self.context.ct.cancelled(), run).await;
        let report = report.map_err(refused)?;
        let denied = denied(&report);
        let output = output_reader.output(script_end(&report.ended.outcome), &report);
        request.fetched(&launch, &output, denied.as_deref())
    }
}

/// Returns the reason why the gateway refused a download.
fn denied(report: &Report) -> Option<String> {
    Some(report.ended.network.as_ref()?.denied.first()?.why.clone())
}

fn refused(refused: Refused) -> FetchError {
    let is_denied = refused.kind == RefusedKind::Denied;
    let fault = if is_denied { FetchFault::HostBlocked } else { FetchFault::Network };
    let hint = refused.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    FetchError::new(fault, format!("{}{hint}", refused.message))
}
