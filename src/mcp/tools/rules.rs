//! `sandbox_rules`: describes what commands may do here.

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::schema::{pure, tool};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::reply;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use service::rules::Rules;

/// Arguments of `sandbox_rules`, which has no fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxRulesArguments {}

impl BuiltIn for SandboxRulesArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Show what commands may do here: the profile in force, its limits, the \
            paths and programs in a cell, the network, and how the protections are held.";
        let title = "Show the sandbox rules";
        tool::<Self, Rules>(title, description).annotate(pure())
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        calls.client.settled().await;
        Ok(reply::rules(&calls.client.rules()))
    }
}
