//! The self-test: runs the escape corpus on this machine, against cofferdam or another sandbox.
//!
//! [`corpus`] has the attacks as data, compiled in from `tests/escape/*.toml`. For each attack
//! [`stage`] prepares possible targets (a sentinel process, listeners, files with a secret),
//! [`launch`] runs it without a sandbox and inside one, and [`judge`] first checks the targets from
//! outside and then the program's output. [`remains`] removes its leftovers. [`resources`] checks
//! that the host can bear it. [`lab`] is the network for attacks on egress. [`conduct`] runs all
//! attacks, [`report`] prints the verdicts, and [`baseline`] compares them with an earlier run's.
//! [`targets`] has other sandboxes as data; [`served`] is a server with a shell tool, which [`mcp_client`] calls. [`fuzz`] makes random system calls in a sandbox instead.
//!
//! *Architecture Invariant:* nothing here makes a cell. Cells are made by `cofferdam run`, as users
//! make them. Only harmless attacks run without a sandbox, in a directory that is made for them and
//! removed afterwards.

#![deny(unreachable_pub)]

pub mod baseline;
pub mod conduct;
pub mod corpus;
pub mod fuzz;
pub mod judge;
pub mod lab;
pub mod launch;
pub mod mcp_client;
pub mod remains;
pub mod report;
pub mod resources;
mod run_result;
pub mod served;
pub mod stage;
pub mod targets;
pub(crate) mod traces;

/// The helper that makes attempts.
pub use helpers::PROBE;

/// Name of cofferdam's own cells in reports.
pub const OWN: &str = "cofferdam run";
