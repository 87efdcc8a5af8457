//! Settings and records of one client, which outlive its calls: in memory, so the server's end is
//! their end.

use std::sync::{Arc, Mutex, PoisonError};

use calc::ledger::Ledger;
use model::call::Cwd;

use crate::history::History;
use crate::macros::Macros;
use crate::request::{ExecOptions, Precision};

/// Settings and history of one client.
#[derive(Debug)]
pub struct ClientState {
    /// Default precision of calculations.
    pub precision: ClientSetting<Precision>,
    /// Directory in which the next command starts.
    pub working_dir: ClientSetting<Cwd>,
    /// Shared with the tasks that wait for the end of a job.
    pub history: Arc<History>,
    pub macros: Macros,
    pub ledger: Mutex<Ledger>,
}

impl ClientState {
    /// Makes that of a client that has done nothing yet.
    pub fn new(options: &ExecOptions) -> Self {
        Self {
            precision: ClientSetting::new(Precision::DEFAULT),
            working_dir: ClientSetting::new(options.working_dir.clone()),
            history: Arc::new(History::new(options.history)),
            macros: Macros::default(),
            ledger: Mutex::default(),
        }
    }
}

/// A value for later calls, until it is set again.
#[derive(Debug)]
pub struct ClientSetting<T>(Mutex<T>);

impl<T: Clone> ClientSetting<T> {
    fn new(first: T) -> Self {
        Self(Mutex::new(first))
    }

    pub fn get(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, value: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}
