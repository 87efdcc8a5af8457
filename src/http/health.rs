//! `GET /health`: checks by priority, and one word for all of them. Without a token the answer is that word.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::respond::json_response;
use crate::scopes::Scopes;
use service::cli::state::ToolHealth;
use service::executor::{ServerFigures, SupervisorState};

/// Share of the queue at which it is reported as nearly full: four of five places.
const NEARLY_FULL: (usize, usize) = (4, 5);

/// State of the server, or of one part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthWord {
    Healthy,
    /// Calls are taken, and an operator should look at a check.
    Degraded,
    /// No call can be taken.
    Unhealthy,
}

impl HealthWord {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unhealthy => "unhealthy",
        }
    }

    /// Returns the status that a load balancer reads: 207 still means that calls are taken.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Healthy => StatusCode::OK,
            Self::Degraded => StatusCode::MULTI_STATUS,
            Self::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Weight of a check: how far its failure lowers the state of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Priority {
    /// The server's state is that of this check.
    Critical,
    /// The server is degraded at worst.
    Important,
    /// The same, for one tool.
    Informational,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct HealthCheck {
    status: HealthWord,
    priority: Priority,
    message: String,
}

/// Results of all checks, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) status: HealthWord,
    pub(crate) checks: BTreeMap<String, HealthCheck>,
}

/// The answer. Without a token it has the status only.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HealthAnswer {
    status: HealthWord,
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<BTreeMap<String, HealthCheck>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<Summary>,
    /// Time of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
}

/// Numbers of checks by their status.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Summary {
    total_checks: usize,
    healthy: usize,
    degraded: usize,
    unhealthy: usize,
}

impl Health {
    /// Judges figures.
    pub(crate) fn from_figures(figures: &ServerFigures) -> Self {
        let mut checks = BTreeMap::from([
            ("supervisor".to_owned(), supervisor(figures.supervisor)),
            ("queue".to_owned(), queue(figures.pending, figures.places)),
            ("audit_log".to_owned(), audit_log(figures.unrecorded)),
        ]);
        for (name, tool) in &figures.tools {
            let check = of_tool(tool.health, tool.reason.as_deref());
            checks.insert(format!("tool_{name}"), check);
        }
        Self { status: whole(checks.values()), checks }
    }

    fn count(&self, word: HealthWord) -> usize {
        self.checks.values().filter(|check| check.status == word).count()
    }

    /// Makes the answer for a client that is known.
    fn answer(self) -> HealthAnswer {
        let summary = Summary {
            total_checks: self.checks.len(),
            healthy: self.count(HealthWord::Healthy),
            degraded: self.count(HealthWord::Degraded),
            unhealthy: self.count(HealthWord::Unhealthy),
        };
        HealthAnswer {
            status: self.status,
            checks: Some(self.checks),
            summary: Some(summary),
            timestamp: Some(model::clock::now()),
            transport: Some("http"),
        }
    }
}

/// Returns the state that follows from these checks.
fn whole<'a>(checks: impl Iterator<Item = &'a HealthCheck>) -> HealthWord {
    let effect = |check: &HealthCheck| match check.priority {
        Priority::Critical => check.status,
        Priority::Important | Priority::Informational => check.status.min(HealthWord::Degraded),
    };
    checks.map(effect).max().unwrap_or(HealthWord::Healthy)
}

fn check(priority: Priority, status: HealthWord, message: impl Into<String>) -> HealthCheck {
    HealthCheck { status, priority, message: message.into() }
}

fn supervisor(state: SupervisorState) -> HealthCheck {
    let (status, message) = match state {
        SupervisorState::Up => (HealthWord::Healthy, "cells can be made"),
        SupervisorState::Starting => (HealthWord::Healthy, "it is starting: calls wait for it"),
        SupervisorState::Gone => (HealthWord::Unhealthy, "no cell can be made"),
    };
    check(Priority::Critical, status, message)
}

fn queue(pending: usize, places: usize) -> HealthCheck {
    let (part, whole) = NEARLY_FULL;
    let status = match pending {
        full if full >= places => HealthWord::Unhealthy,
        much if much.saturating_mul(whole) >= places.saturating_mul(part) => HealthWord::Degraded,
        _ => HealthWord::Healthy,
    };
    check(Priority::Important, status, format!("{pending} of {places} places are taken"))
}

fn audit_log(lost: u64) -> HealthCheck {
    match lost {
        0 => check(Priority::Important, HealthWord::Healthy, "no line is lost"),
        lost => {
            let message = format!("{lost} lines could not be written");
            check(Priority::Important, HealthWord::Unhealthy, message)
        }
    }
}

/// Judges a tool. `reason` is that of a reader of its output, if the reader decides its health.
fn of_tool(health: ToolHealth, reason: Option<&str>) -> HealthCheck {
    let (status, message) = match health {
        ToolHealth::Healthy => (HealthWord::Healthy, "it can be called"),
        ToolHealth::Degraded => (HealthWord::Degraded, "its circuit breaker is open"),
        ToolHealth::Unhealthy => (HealthWord::Unhealthy, "its program is not there"),
    };
    check(Priority::Informational, status, reason.unwrap_or(message))
}

/// Answers a client that is known, with every check.
pub(crate) async fn health(State(scopes): State<Arc<Scopes>>) -> Response {
    let health = Health::from_figures(&scopes.executor.figures());
    json_response(health.status.status(), &json!(health.answer()))
}

/// Answers any client, with the status only.
pub(crate) fn word(health: HealthWord) -> Response {
    json_response(health.status(), &json!({ "status": health.name() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_all(checks: &[HealthCheck]) -> HealthWord {
        whole(checks.iter())
    }

    #[test]
    fn only_a_critical_check_makes_the_server_unhealthy() {
        assert_eq!(of_all(&[of_tool(ToolHealth::Unhealthy, None)]), HealthWord::Degraded);
        assert_eq!(of_all(&[supervisor(SupervisorState::Gone)]), HealthWord::Unhealthy);
        assert_eq!(of_all(&[queue(260, 260), audit_log(0)]), HealthWord::Degraded);
        assert_eq!(of_all(&[queue(0, 260), supervisor(SupervisorState::Up)]), HealthWord::Healthy);
    }

    #[test]
    fn a_queue_is_reported_before_it_is_full() {
        let words = [0, 207, 208, 260].map(|pending| queue(pending, 260).status);
        let [none, some, many, all] = words;
        assert_eq!((none, some), (HealthWord::Healthy, HealthWord::Healthy));
        assert_eq!((many, all), (HealthWord::Degraded, HealthWord::Unhealthy));
    }

    #[test]
    fn statuses_are_those_of_the_reference() {
        let words = [HealthWord::Healthy, HealthWord::Degraded, HealthWord::Unhealthy];
        assert_eq!(words.map(|word| word.status().as_u16()), [200, 207, 503]);
    }
}
