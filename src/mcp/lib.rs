//! The MCP server: parses requests, has [`service`] run calls, and makes the replies. All of its input is hostile, and
//! it runs nothing itself.
//!
//! A message arrives as a line ([`lines`]); rmcp dispatches it to [`server`], and the row of its tool
//! ([`tools`]) parses its arguments ([`arguments`]); a [`service::Scope`] runs it when its turn has
//! come; [`reply`] makes the result. [`serve`] decides when all of that ends.

#![deny(unreachable_pub)]

pub mod arguments;
mod calls;
mod changes;
pub mod charge;
pub mod commands;
mod context;
pub mod exec;
pub mod gate;
mod harmless;
pub mod lines;
pub mod logs;
pub mod message;
pub(crate) mod notifier;
mod pages;
pub mod projects;
pub mod reply;
pub mod resources;
pub mod serve;
pub mod server;
mod subscriptions;
pub mod tasks;
mod tool_entry;
mod tool_table;
pub mod tools;
pub mod values;
