//! One cell and the one call that it serves: from the clone to the last descriptor.
//!
//! `cell` clones and measures, `pooled_cell` and `pool` keep those that wait for a job, `prestart` has a
//! program wait there for its input, `handover` sends a job, `running` follows it to its end.

pub mod attachments;
pub mod bare;
pub mod caps;
pub mod cell;
pub mod dying;
pub mod exit;
pub mod handover;
pub mod key;
mod phases;
pub mod pool;
pub mod pooled_cell;
pub mod prestart;
pub mod queued_job;
pub mod running;
pub mod streams;
