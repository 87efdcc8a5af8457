//! File requests, carried out through `tools` in the cell that has the files.

use nix::errno::Errno;

use super::live::Live;
use super::sessions::why_new;
use crate::mcp::backend::{Refused, RefusedKind, Turn};
use crate::mcp::files::Filed;
use crate::mcp::files::arguments::Asked;
use crate::mcp::rules::WorkspaceView;
use crate::tools::files::{self, No, Unfiled};

impl Live {
    pub(super) async fn of_file(
        &self,
        tool: &'static str,
        asked: Asked,
        turn: Turn,
    ) -> Result<Filed, Refused> {
        let session = asked.session().to_owned();
        let Asked { path, request, .. } = asked;
        let done = self.workbench.file(tool, &path, request, session, &turn).await;
        let files::Filed { answer, denials, receipt, lost } = done?;
        let answer = answer.map_err(|no| {
            let hint = self.way_out(&no);
            let refused = Refused::failed(format!("{} {no}", path.as_str()));
            let refused = Refused { hint: hint.map(str::to_owned), ..refused };
            refused.protected_by(receipt.clone())
        })?;
        Ok(Filed {
            answer,
            denials: denials.iter().map(|denied| self.denial(denied)).collect(),
            receipt,
            renewed: lost.as_ref().map(why_new),
            unrecorded: self.audit.trouble(),
        })
    }

    fn way_out(&self, no: &No) -> Option<&'static str> {
        match no {
            No::Exists => Some("`overwrite` replaces it"),
            No::NoMatch => Some("`view` shows it as it is; spaces and ends of lines count"),
            No::Many { .. } => Some("give more of the text around it, so that it stands only once"),
            No::Large { .. } => Some("bash has tools for parts of a file: sed, dd, split"),
            No::Changed => Some("something else writes to it; try again"),
            No::Errno { errno, .. } => self.of_errno(Errno::from_raw(*errno)),
            No::Absent | No::Kind { .. } | No::Outside | No::Range { .. } => None,
        }
    }

    /// Explains an errno of the kernel for a request that is valid.
    fn of_errno(&self, errno: Errno) -> Option<&'static str> {
        let guarded = "a cell cannot make or change what the host obeys: .git/hooks, .git/config, \
                       .envrc, .vscode, .idea, .claude, .mcp.json and the like";
        let is_refusal = [Errno::EPERM, Errno::EROFS, Errno::EBUSY, Errno::EXDEV, Errno::EACCES]
            .contains(&errno);
        match self.view {
            WorkspaceView::GrantedReadOnly if errno == Errno::EROFS => {
                Some("the operator granted /workspace for reading only")
            }
            WorkspaceView::GrantedReadWrite if is_refusal && errno != Errno::EACCES => {
                Some(guarded)
            }
            WorkspaceView::GrantedUnguarded if errno == Errno::EROFS || errno == Errno::EBUSY => {
                Some(guarded)
            }
            WorkspaceView::Fresh
            | WorkspaceView::GrantedReadOnly
            | WorkspaceView::GrantedReadWrite
            | WorkspaceView::GrantedUnguarded => None,
        }
    }
}

impl From<Unfiled> for Refused {
    fn from(unfiled: Unfiled) -> Self {
        match unfiled {
            Unfiled::Invalid(invalid) => invalid.into(),
            Unfiled::Refused(refusal) => refusal.into(),
            Unfiled::Failed(failure) => failure.into(),
            Unfiled::Cancelled => Self::new(RefusedKind::Cancelled, unfiled.to_string()),
            Unfiled::Late => Self::failed(unfiled.to_string()),
            Unfiled::Garbled { .. } => Self::failed(unfiled.to_string())
                .with_hint("bash with `restart` gives the session a new shell"),
        }
    }
}
