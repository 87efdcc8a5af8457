//! Types that all processes share: calls, jobs, profiles, outcomes, receipts, and the frames
//! between front end and supervisor.
//!
//! *Architecture Invariant:* nothing here reads JSON or TOML, and no runtime is needed.

#![deny(unreachable_pub)]

pub mod accounts;
pub mod call;
pub mod clock;
pub mod core_dumps;
pub mod defaults;
pub mod egress;
pub mod job;
pub mod log;
pub mod nearest;
pub mod outcome;
pub mod profile;
pub mod receipt;
pub mod shells;
pub mod units;
pub mod wire;
