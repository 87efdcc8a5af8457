//! A job that waits for a cell.

use std::time::Instant;

use super::attachments::Attachments;
use super::key::KeyId;
use model::job::Limits;
use model::wire::{Block, Start};

/// A checked job that is ready for a cell.
#[derive(Debug)]
pub(crate) struct QueuedJob {
    pub start: Start,
    pub key: KeyId,
    pub block: Block,
    pub attachments: Attachments,
    /// Requested limits, clamped to the profile's.
    pub limits: Limits,
    /// Fitness for a cell with its program already running.
    pub fits: PrestartFit,
    pub arrived: Instant,
    /// Number of cells that died before they got the job.
    pub lost: u8,
}

/// Fitness of a job for a cell in which its program is already running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrestartFit {
    Yes,
    No,
}
