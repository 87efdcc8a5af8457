//! Figures of a server since its start, for its health and its metrics: of all clients together, without their texts.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Executor;
use crate::audit::CallCounts;
use crate::cli::state::ToolFigures;
use crate::link::Metrics;

/// Figures of a server since its start.
#[derive(Debug, Clone, Serialize)]
pub struct ServerFigures {
    /// Calls by tool.
    pub calls: BTreeMap<String, CallCounts>,
    /// Declared command-line tools that are offered.
    pub tools: BTreeMap<String, ToolFigures>,
    pub supervisor: SupervisorState,
    /// Its counts of cells, and the time that calls spent in each phase.
    pub cells: Metrics,
    /// Calls that run or wait, and as many as there may be.
    pub pending: usize,
    pub places: usize,
    /// Lines of the audit log that could not be written lately.
    pub unrecorded: u64,
}

/// State of the supervisor, without which no call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SupervisorState {
    Starting,
    Up,
    /// It ended, or could make no cell from the start.
    Gone,
}

impl Executor {
    /// Returns the figures as they are now.
    pub fn figures(&self) -> ServerFigures {
        let shared = &self.shared;
        let supervisor =
            match (shared.link.is_closed() || shared.link.is_unable(), shared.link.greeted()) {
                (true, _) => SupervisorState::Gone,
                (false, Some(_)) => SupervisorState::Up,
                (false, None) => SupervisorState::Starting,
            };
        ServerFigures {
            calls: shared.audit.figures(),
            tools: self.tool_figures(),
            supervisor,
            cells: shared.link.metrics(),
            pending: shared.queue.pending(),
            places: shared.queue.places(),
            unrecorded: shared.audit.trouble().map_or(0, |(lost, _)| lost),
        }
    }
}
