//! Rights of the two kinds of tokens: an agent's token runs calls, an operator's token controls the server and runs
//! nothing. So no session of an agent holds a token that can change the tools on offer.

use axum::http::{Method, StatusCode};

use crate::respond::Refusal;

/// Rights of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientRights {
    Agent,
    Operator,
}

/// Checks that a request is of a kind that its client may send.
pub(crate) fn check(rights: ClientRights, method: &Method, path: &str) -> Result<(), Refusal> {
    let refused = |message| Refusal::new(StatusCode::FORBIDDEN, "forbidden", message);
    match (is_control(path), rights) {
        (true, ClientRights::Agent) => {
            let message =
                "this needs a token of the operator: `operator = true` under `[[http.tokens]]`";
            Err(refused(message))
        }
        (false, ClientRights::Operator) if path == "/mcp" || method != Method::GET => {
            let message = "an operator's token runs nothing: use a token of a client";
            Err(refused(message))
        }
        _ => Ok(()),
    }
}

/// Returns true for a path that only an operator may use. The router compares the same path.
fn is_control(path: &str) -> bool {
    let of_a_tool =
        |rest: &str| matches!(rest.rsplit_once('/'), Some((_, "enable" | "disable" | "reset")));
    path == "/config" || path.strip_prefix("/tools/").is_some_and(of_a_tool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_controls_nothing_and_an_operator_runs_nothing() {
        let may = |rights, method: Method, path| check(rights, &method, path).is_ok();
        let agent = ClientRights::Agent;
        let operator = ClientRights::Operator;
        for path in ["/tools/bash/enable", "/tools/bash/disable", "/tools/bash/reset"] {
            assert!(!may(agent, Method::POST, path) && may(operator, Method::POST, path), "{path}");
        }
        assert!(!may(agent, Method::GET, "/config") && may(operator, Method::GET, "/config"));
        for path in ["/mcp", "/run", "/tools/bash/execute"] {
            assert!(may(agent, Method::POST, path) && !may(operator, Method::POST, path), "{path}");
        }
        assert!(!may(operator, Method::GET, "/mcp") && !may(operator, Method::DELETE, "/mcp"));
        for path in ["/", "/tools", "/health", "/metrics", "/events", "/openapi.json"] {
            assert!(may(agent, Method::GET, path) && may(operator, Method::GET, path), "{path}");
        }
    }
}
