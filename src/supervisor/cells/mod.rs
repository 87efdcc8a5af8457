//! One cell and the one call that it serves: from the clone to the last descriptor.
//!
//! `cell` clones and measures, `pooled_cell` and `pool` keep those that wait for a job, `prestart` has a
//! program wait there for its input, `handover` sends a job, `running` follows it to its end, `crawl` ends it where its
//! memory no longer holds its programs, `link_counters` tell if it has sent anything.

pub(crate) mod attachments;
pub(crate) mod bare;
pub(crate) mod caps;
pub(crate) mod cell;
mod crawl;
pub(crate) mod dying;
pub(crate) mod exit;
pub(crate) mod handover;
pub(crate) mod key;
pub(crate) mod link_counters;
mod phases;
pub(crate) mod pool;
pub(crate) mod pooled_cell;
pub(crate) mod prestart;
pub(crate) mod queued_job;
pub(crate) mod running;
pub(crate) mod streams;
