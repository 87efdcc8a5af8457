//! `bash_exec` and related tools, carried out: each script in a cell of its own.

use super::sessions::shown;
use super::{Scope, clamped};
use crate::denied::DenialReport;
use crate::refused::Refused;
use crate::report::{CommandReport, are_cut};
use crate::request::Shown;
use crate::shell::{self, ScriptArgs};
use crate::{Backend, Caller};
use capture::lines::Wanted;
use model::defaults::INLINE_CHARACTERS;
use model::outcome::DeniedCall;
use policy::tools::{Runs, ToolSpec};

impl Scope {
    pub(super) async fn in_fresh_cell(
        &self,
        tool: &'static str,
        args: ScriptArgs,
        caller: Caller,
    ) -> Result<CommandReport, Refused> {
        let call = shell::script(tool, args)?;
        let named =
            call.profile.as_ref().and_then(|name| self.workbench.shared.loaded.profiles.get(name));
        let denial = |denied: &DeniedCall| match named {
            Some(profile) => DenialReport::of(denied, profile),
            None => self.denial(denied),
        };
        let report = match ToolSpec::named(tool).map(|tool| tool.runs) {
            Some(Runs::FreshCell(_)) => self.workbench.call_beside(call, &caller).await?,
            Some(Runs::EmptyCell | Runs::Server | Runs::Calculator | Runs::Session) | None => {
                self.workbench.call(call, &caller).await?
            }
        };
        let show =
            Shown { characters: INLINE_CHARACTERS, lines: Wanted { head: None, tail: None } };
        let (stdout, stderr) = shown(&report.stdout, &report.stderr, show);
        let readable = are_cut(&stdout, &stderr) && self.lists("bash_output");
        let output_id = readable.then(|| self.workbench.keep(&report)).flatten();
        let absent_program = self.executor.host_programs.remark(&report.outcome, &stderr);
        Ok(CommandReport {
            absent_program,
            outcome: report.outcome,
            stdout,
            stderr,
            usage: report.usage,
            timings: report.timings,
            denials: report.denials.iter().map(denial).collect(),
            cwd: report.cwd.as_str().to_owned(),
            timeout: report.limits.wall,
            clamped: clamped(report.clamped),
            receipt: report.receipt,
            unrecorded: self.workbench.audit.trouble(),
            output_id,
            session: None,
            files_changed: report.files_changed,
            network: report.network,
        })
    }
}
