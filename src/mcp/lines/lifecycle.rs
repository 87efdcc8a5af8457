//! The order of requests that servers of a project keep: nothing before a session is open, nothing after `shutdown`.

use rmcp::model::{ClientNotification, ClientRequest};

use crate::message::{Fault, opens};

/// Code of a request before the session is open.
const NOT_INITIALIZED: i32 = -32000;
/// Code of a request after `shutdown`.
const SHUTTING_DOWN: i32 = -32003;
/// Code of `exit` before `shutdown`.
const SHUTDOWN_NOT_REQUESTED: i32 = -32005;

/// Treatment of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Pass,
    Refuse(Fault),
    /// Answer with an empty result, and end the server after a time.
    Shut,
    /// Answer a request with an empty result, and end the server.
    Exit,
    Ignore,
}

/// State of one connection.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    /// True for servers of a project; others answer what comes.
    is_enforced: bool,
    is_open: bool,
    is_shut: bool,
}

impl Lifecycle {
    pub(super) fn new(is_enforced: bool) -> Self {
        Self { is_enforced, ..Self::default() }
    }

    /// Decides about a request.
    pub(super) fn request(&mut self, request: &ClientRequest) -> Step {
        if !self.is_enforced {
            return Step::Pass;
        }
        let refuse = |code, why: &str| Step::Refuse(Fault::request(why).with_code(code));
        let mut method = "";
        if let ClientRequest::CustomRequest(custom) = request {
            method = &custom.method;
        }
        match method {
            "exit" if self.is_shut => return Step::Exit,
            "exit" => return refuse(SHUTDOWN_NOT_REQUESTED, "Shutdown not requested"),
            _ if self.is_shut => return refuse(SHUTTING_DOWN, "Server shutting down"),
            _ => {}
        }
        let is_early = matches!(
            request,
            ClientRequest::InitializeRequest(_)
                | ClientRequest::PingRequest(_)
                | ClientRequest::DiscoverRequest(_)
        );
        // From MCP 2026-07-28 on a request stands alone, and says all that a session is opened for.
        let may_pass = self.is_open || is_early || opens(request);
        match (method, may_pass) {
            ("shutdown", true) => {
                self.is_shut = true;
                Step::Shut
            }
            (_, true) => Step::Pass,
            (_, false) => refuse(NOT_INITIALIZED, "Server not initialized"),
        }
    }

    /// Decides about a notification.
    pub(super) fn notification(&mut self, notification: &ClientNotification) -> Step {
        if let ClientNotification::InitializedNotification(_) = notification {
            self.is_open = true;
        }
        if let ClientNotification::CustomNotification(custom) = notification
            && self.is_enforced
            && custom.method == "exit"
        {
            return if self.is_shut { Step::Exit } else { Step::Ignore };
        }
        Step::Pass
    }
}
