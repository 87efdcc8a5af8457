//! A tokio task that is ended with its owner.

use std::mem;
use std::sync::{Mutex, PoisonError};

use tokio::task::JoinHandle;

/// A tokio task that runs until this is dropped or the task is replaced.
#[derive(Debug, Default)]
pub(crate) struct BackgroundTask(Mutex<Option<JoinHandle<()>>>);

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.replace(None);
    }
}

impl BackgroundTask {
    /// Ends the task, and keeps another in its place.
    pub(crate) fn replace(&self, task: Option<JoinHandle<()>>) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = mem::replace(&mut *current, task) {
            before.abort();
        }
    }
}
