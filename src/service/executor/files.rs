//! File requests, carried out through the workbench in the cell that has the files.

use nix::errno::Errno;

use super::Scope;
use crate::Caller;
use crate::files::{self, FileError};
use crate::refused::Refused;
use crate::report::FileReport;
use crate::request::FileRequest;
use model::job::Access;

impl Scope {
    /// Reads or writes a file of the workspace, as a call of `tool`.
    pub async fn file(
        &self,
        tool: &'static str,
        request: FileRequest,
        caller: Caller,
    ) -> Result<FileReport, Refused> {
        let FileRequest { path, request, session } = request;
        let done = self.workbench.file(tool, &path, request, session, &caller).await;
        let files::FileReply { answer, denials, receipt, renewed } = done?;
        let answer = answer.map_err(|no| {
            let hint = self.way_out(&no);
            let refused = Refused::failed(format!("{} {no}", path.as_str()));
            let refused = Refused { hint: hint.map(str::to_owned), ..refused };
            refused.protected_by(receipt.clone())
        })?;
        Ok(FileReport {
            answer,
            denials: denials.iter().map(|denied| self.denial(denied)).collect(),
            receipt,
            renewed,
            unrecorded: self.workbench.audit.trouble(),
        })
    }

    fn way_out(&self, no: &FileError) -> Option<&'static str> {
        match no {
            FileError::Exists => Some("`overwrite` replaces it"),
            FileError::NoMatch => Some("`view` shows it as it is; spaces and ends of lines count"),
            FileError::Many { .. } => {
                Some("give more of the text around it, so that it stands only once")
            }
            FileError::Large { .. } => Some("bash has tools for parts of a file: sed, dd, split"),
            FileError::Changed => Some("something else writes to it; try again"),
            FileError::Errno { errno, .. } => self.of_errno(Errno::from_raw(*errno)),
            FileError::Absent
            | FileError::Kind { .. }
            | FileError::Outside
            | FileError::Range { .. } => None,
        }
    }

    /// Explains an errno of the kernel for a request that is valid.
    fn of_errno(&self, errno: Errno) -> Option<&'static str> {
        let guarded = "a cell cannot make or change what the host obeys: .git/hooks, .git/config, \
                       .envrc, .vscode, .idea, .claude, .mcp.json and the like";
        let is_refusal = [Errno::EPERM, Errno::EROFS, Errno::EBUSY, Errno::EXDEV, Errno::EACCES]
            .contains(&errno);
        match self.workbench.shared.granted {
            Some(Access::ReadOnly) if errno == Errno::EROFS => {
                Some("the operator granted /workspace for reading only")
            }
            Some(Access::ReadWrite) if is_refusal && errno != Errno::EACCES => Some(guarded),
            Some(Access::Unguarded) if errno == Errno::EROFS || errno == Errno::EBUSY => {
                Some(guarded)
            }
            Some(Access::ReadOnly | Access::ReadWrite | Access::Unguarded | Access::Cache)
            | None => None,
        }
    }
}
