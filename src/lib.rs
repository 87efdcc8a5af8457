//! cofferdam runs every call in a cell of its own.

pub mod call;
pub mod capture;
pub mod cell;
pub mod cli;
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
pub mod supervisor;
pub mod sys;
pub mod tools;
pub mod units;
pub mod wire;
