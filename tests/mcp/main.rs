//! Transcripts against the MCP server in memory, with a scripted tool: both protocol eras, hostile input, ends. Files
//! with a `Server` run the program.
#![expect(clippy::unwrap_used, reason = "a missing part of a transcript is a failed test")]
#![expect(clippy::indexing_slicing, reason = "a missing field compares as null")]

mod audit;
mod calls;
mod cli;
mod client;
mod ends;
mod hostile;
mod inherited;
mod packages;
mod program;
mod reasons;
mod serve;
#[path = "../support/server.rs"]
mod server;
mod sessions;
mod setup;
mod streams;
mod table;
mod tasks;
