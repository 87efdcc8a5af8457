//! Sessions and jobs in results for an agent.

use rmcp::model::CallToolResult;

use super::reply;
use model::outcome::{Outcome, Waits};
use service::report::{RunningReport, restarted_fields, time_text};

/// Makes the result of a command that continues.
pub fn running(job: &RunningReport) -> CallToolResult {
    let id = &job.session.output_id;
    let mut text = String::new();
    reply::push_streams(&mut text, &job.stdout, &job.stderr);
    text.push_str(&format!(
        "[still running after {} as job {id}; time limit {}]",
        time_text(job.elapsed),
        time_text(job.timeout)
    ));
    if job.input == Waits::Yes {
        text.push_str("\n[it waits for input]");
    }
    text.push_str(&format!(
        "\n[the session `{}` is busy until it ends; `restart` ends it; another session is free]",
        job.session.name
    ));
    if !job.tools.is_empty() {
        text.push_str(&format!("\n[with job {id}: {}]", job.tools.join(", ")));
    }
    text.push_str(&job.session.notes(&Outcome::Timeout));
    let mut result = reply::result(text, false);
    result.structured_content = Some(job.fields());
    result.meta = Some(reply::meta(job.receipt.as_ref(), None));
    result
}

/// Makes the result of a call that only restarts.
pub fn restarted(session: &str) -> CallToolResult {
    let text = format!(
        "[session `{session}`: the shell and all that ran in it has ended; the next call starts a \
         new one, in the same /workspace]"
    );
    let mut result = reply::result(text, false);
    result.structured_content = Some(restarted_fields(session));
    result
}
