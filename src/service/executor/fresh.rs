//! Runs the scripts of `bash_exec` and related tools, each in a fresh cell.

use super::Scope;
use super::sessions::shown;
use crate::apart::{ApartRun, FileOut};
use crate::capture::lines::Wanted;
use crate::denied::DenialReport;
use crate::refused::Refused;
use crate::report::{CommandReport, are_cut};
use crate::request::Shown;
use crate::shell::{self, ScriptArgs};
use crate::workbench::RunOptions;
use crate::{Caller, Report};
use config::policy::tools::{Runs, ToolSpec};
use model::defaults::INLINE_CHARACTERS;
use model::job::{ProfileName, Workspace};
use model::outcome::DeniedCall;

impl Scope {
    /// Runs a script in a fresh cell, as a call of `tool`.
    pub async fn script(
        &self,
        tool: &'static str,
        args: ScriptArgs,
        caller: Caller,
    ) -> Result<CommandReport, Refused> {
        let call = shell::script(tool, args)?;
        let named = call.profile.clone();
        let surroundings = match ToolSpec::named(tool).map(|tool| tool.runs) {
            Some(Runs::FreshCell(_)) => self.workbench.beside_the_default(&call),
            Some(Runs::EmptyCell | Runs::Server | Runs::Calculator | Runs::Session) | None => {
                self.workbench.surroundings(&call.tool)
            }
        };
        let options = self.workbench.options(surroundings);
        let report = self.workbench.run(call, options, &caller).await?;
        Ok(self.of_fresh_cell(report, named.as_ref()))
    }

    /// Runs a command in a new directory, and returns the files of it that were asked for.
    ///
    /// # Errors
    /// A refusal: nothing ran.
    pub async fn apart(
        &self,
        tool: &'static str,
        asked: ApartRun,
        caller: Caller,
    ) -> Result<(CommandReport, Vec<FileOut>), Refused> {
        let id = fresh_id().ok_or_else(|| Refused::failed("no random bytes"))?;
        let asked = asked.wrapped(&id, self.workbench.shared.workspace == Workspace::Fresh);
        let call = shell::script(tool, asked.args.clone())?;
        let named = call.profile.clone();
        let options = self.workbench.options(self.workbench.surroundings(&call.tool));
        let options = RunOptions { keep: asked.kept(), ..options };
        let report = self.workbench.run(call, options, &caller).await?;
        let (stdout, files) = asked.parted(&report.stdout);
        let report = Report { stdout, ..report };
        Ok((self.of_fresh_cell(report, named.as_ref()), files))
    }

    /// Makes the report of a call that ended, under the profile that it named.
    fn of_fresh_cell(&self, report: Report, named: Option<&ProfileName>) -> CommandReport {
        let named = named.and_then(|name| self.workbench.terms.loaded.profiles.get(name));
        let denial = |denied: &DeniedCall| match named {
            Some(profile) => DenialReport::of(denied, profile),
            None => self.denial(denied),
        };
        let show =
            Shown { characters: INLINE_CHARACTERS, lines: Wanted { head: None, tail: None } };
        let (stdout, stderr) = shown(&report.stdout, &report.stderr, show);
        let readable = are_cut(&stdout, &stderr) && self.lists("bash_output");
        let output_id = readable.then(|| self.workbench.keep(&report)).flatten();
        let absent_program =
            self.workbench.shared.host_programs.remark(&report.ended.outcome, &stderr);
        CommandReport {
            absent_program,
            stdout,
            stderr,
            denials: report.ended.denials.iter().map(denial).collect(),
            cwd: report.cwd,
            timeout: report.limits.wall,
            clamped: report.clamped,
            receipt: report.receipt,
            unrecorded: self.workbench.audit.trouble(),
            output_id,
            session: None,
            ended: report.ended,
        }
    }
}

/// Returns a random word.
fn fresh_id() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
