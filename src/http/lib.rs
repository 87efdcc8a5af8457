//! The server over HTTP: MCP at `/mcp`, and plain requests, on one listener of TCP or of a Unix socket.
//!
//! [`serve`] starts and ends the server, [`connections`] serves one connection. [`guard`] checks each request before
//! its content is looked at: [`access`] finds the client by its token, [`body`] reads the body within bounds. Then
//! the [`door`] of that client serves it: MCP by rmcp, with the handler that standard input and output use.
//!
//! *Architecture Invariant:* no client reaches what belongs to another: a door, with its sessions, belongs to one
//! client, and a request is served by the door of its client only.

#![deny(unreachable_pub)]

pub mod access;
pub mod body;
pub mod connections;
pub mod door;
mod doors;
mod events;
mod form;
pub mod guard;
mod health;
mod limits;
mod memory;
mod metrics;
mod openapi;
mod operator;
mod respond;
mod rest;
mod routes;
pub mod run;
mod scopes;
pub mod serve;
mod session_use;
pub mod tcp;
mod throttle;
mod tool_path;

pub use health::HealthWord;
pub use limits::{LastAccept, ListenerLimits};
pub use memory::OwnMemory;
pub use scopes::Scopes;
