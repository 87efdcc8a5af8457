//! One cell and the call that it serves, from the clone to the last descriptor.
//!
//! `cell` clones and measures cells. `pooled_cell` and `pool` keep those without a job, and
//! `prestart` executes a program in one before its input arrives. `handover` sends a job, `cell_life`
//! follows a cell with a program to its end, and `running` the call of a one-shot cell. `crawl` finds
//! cells that thrash, and `link_counters` shows whether a cell has sent anything.

pub(crate) mod attachments;
pub(crate) mod bare;
pub(crate) mod caps;
pub(crate) mod cell;
pub(crate) mod cell_life;
mod crawl;
pub(crate) mod dying;
pub(crate) mod exit;
pub(crate) mod handover;
pub(crate) mod key;
pub(crate) mod link_counters;
pub(crate) mod networks;
mod phases;
pub(crate) mod pool;
pub(crate) mod pooled_cell;
pub(crate) mod prestart;
pub(crate) mod queued_job;
pub(crate) mod running;
pub(crate) mod streams;
