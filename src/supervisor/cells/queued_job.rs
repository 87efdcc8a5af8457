//! A job that waits for a cell.

use std::time::Instant;

use super::attachments::Attachments;
use super::key::KeyId;
use model::job::Limits;
use model::wire::{Block, Start};

/// A job that is ready for a cell, checked.
#[derive(Debug)]
pub(crate) struct QueuedJob {
    pub start: Start,
    pub key: KeyId,
    pub block: Block,
    pub attachments: Attachments,
    /// Limits that it asked for, clamped to its profile's.
    pub limits: Limits,
    /// Fitness for a cell in which its program was executed before it came.
    pub fits: PrestartFit,
    pub arrived: Instant,
    /// Cells that died before they could be handed the job.
    pub lost: u8,
}

/// The fitness of a job for a cell in which its program is already executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrestartFit {
    Yes,
    No,
}
