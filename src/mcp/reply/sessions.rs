//! Sessions and jobs in results for an agent.

use rmcp::model::CallToolResult;

use crate::reply;
use service::report::{Detail, RunningReport, SessionAction, session_fields, time_text};

/// Makes the result of a command that continues.
pub(crate) fn running(job: &RunningReport, detail: Detail) -> CallToolResult {
    let id = &job.session.output_id;
    let mut text = String::new();
    reply::push_streams(&mut text, &job.stdout, &job.stderr);
    text.push_str(&format!(
        "[still running after {} as job {id}; time limit {}]",
        time_text(job.elapsed),
        time_text(job.timeout)
    ));
    job.notes().iter().for_each(|note| reply::push_note(&mut text, note));
    let mut result = reply::with_fields(text, job.fields(detail));
    result.meta = Some(reply::meta(job.receipt.as_ref(), None));
    result
}

/// Makes the result of a call that has no command.
pub(crate) fn done(session: &str, what: SessionAction) -> CallToolResult {
    reply::with_fields(format!("[{}]", what.note(session)), session_fields(session, what))
}
