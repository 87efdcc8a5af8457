//! cofferdam runs every call in a cell of its own.

pub mod call;
pub mod config;
pub mod defaults;
pub mod document;
pub mod job;
pub mod link;
pub mod mcp;
pub mod outcome;
pub mod policy;
pub mod profile;
pub mod receipt;
pub mod units;
