//! Configuration in the form of other servers, which becomes ours.

pub mod json;
pub mod mcp_server;
