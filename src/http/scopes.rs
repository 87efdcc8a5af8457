//! State that the routes share: the executor, and which of its tools are served.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::memory::OwnMemory;
use mcp::gate::RemoteSecret;
use mcp::serve::Offer;
use service::refused::{Refused, RefusedKind};
use service::{Executor, Scope};

/// Tool whose rule decides about the command, and the tool that is used where the first is not offered.
pub(crate) const EXEC_TOOL: &str = "bash_exec";
pub(crate) const BASH_TOOL: &str = "bash";

/// The executor, and which of its tools are served.
#[derive(Debug)]
pub struct Scopes {
    pub executor: Arc<Executor>,
    pub offer: Offer,
    /// Secret of the project that is served.
    pub secret: Option<Arc<RemoteSecret>>,
    /// Tripped to end every call in flight.
    pub kill: CancellationToken,
    /// Absent where `/proc/self/statm` cannot be read.
    pub memory: Option<OwnMemory>,
    /// Directory within a cell below which each command of `/run` gets a directory, if the operator named one.
    pub run_root: Option<String>,
}

impl Scopes {
    /// Returns the reason why a client has no `/run`. As a shell it is offered with the tools that are shells.
    pub(crate) fn withheld_run(&self, scope: &Scope) -> Option<Refused> {
        let denied = |reason: &str| Refused::new(RefusedKind::Denied, reason);
        if let Offer::Project(_) = self.offer {
            let hint = "the operator can show built-in tools beside a project's with --tools shell";
            return Some(denied("this server has the tools of its project only").with_hint(hint));
        }
        if self.executor.is_off(EXEC_TOOL) {
            let hint = "the operator did that, under `[tools] off` or since the start";
            return Some(denied(&format!("`{EXEC_TOOL}` is switched off")).with_hint(hint));
        }
        let shell = scope.withheld(BASH_TOOL);
        shell.filter(|_| scope.withheld(EXEC_TOOL).is_some())
    }
}
