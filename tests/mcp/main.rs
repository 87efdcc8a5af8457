//! Transcripts against the MCP server in memory: both protocol eras, hostile input, ends. The calls
//! themselves are made by a backend that runs nothing.
#![expect(clippy::unwrap_used, reason = "a missing part of a transcript is a failed test")]
#![expect(clippy::indexing_slicing, reason = "a missing field compares as null")]

mod calls;
mod ends;
mod fake;
mod hostile;
mod sessions;
mod table;
mod tasks;
