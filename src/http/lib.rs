//! The front door over HTTP: MCP at `/mcp`, and plain requests beside it, on one listener of TCP or of a Unix socket.
//!
//! [`serve`] has the life of the server, [`connections`] that of one connection. Each request passes [`guard`]
//! before anything looks at what it asks for: [`access`] says whose it is, [`body`] reads it within bounds. Then the
//! [`door`] of that client serves it: MCP by rmcp, with the handler that standard input and output have.
//!
//! *Architecture Invariant:* no client finds anything of another's: a door, with its sessions, belongs to one client,
//! and a request reaches no door but its own client's.

#![deny(unreachable_pub)]

pub mod access;
pub mod body;
pub mod connections;
pub mod door;
mod events;
mod form;
pub mod guard;
mod health;
mod limits;
mod metrics;
mod openapi;
mod operator;
mod respond;
mod rest;
pub mod run;
mod scopes;
pub mod serve;
mod session_use;
pub mod tcp;
mod throttle;

pub use health::HealthWord;
pub use limits::ListenerLimits;
pub use metrics::OwnMemory;
pub use scopes::Scopes;
