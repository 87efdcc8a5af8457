//! The self-test: the escape corpus, run on this machine, against cofferdam or another sandbox.
//!
//! [`corpus`] has the attacks as data, `tests/escape/*.toml` compiled in. For each, [`stage`] puts up
//! what it may hit (a sentinel process, listeners, files with a secret), [`launch`] runs it without a
//! sandbox and within one, and [`judge`] looks at what it hit, from outside, before it looks at what
//! the program said. [`remains`] takes away what it left. [`resources`] decides whether
//! the host could bear it. [`lab`] is the network of attacks on egress. [`conduct`] runs them all, [`report`] prints
//! the verdicts.
//!
//! *Architecture Invariant:* nothing here makes a cell. Cells are made by `cofferdam run`, as users
//! make them; what runs without one is an attack that does no harm by itself, in a directory that is
//! made for it and taken away after it.

#![deny(unreachable_pub)]

pub mod conduct;
pub mod corpus;
pub mod judge;
pub mod lab;
pub mod launch;
pub mod remains;
pub mod report;
pub mod resources;
pub mod stage;
pub(crate) mod traces;
