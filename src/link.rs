//! The front end's end of the link: sends grants, hands out running calls.
//!
//! Only a [`Grant`] can be sent, and only what the supervisor tells comes back.

use std::os::fd::OwnedFd;

use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::outcome::{Ended, Failure};
use crate::policy::Grant;
use crate::receipt::Receipt;

/// A handle to the supervisor; clones share the one link.
#[derive(Debug, Clone)]
pub struct Link;

/// A call whose program has a cell. Dropping it cancels the call.
#[derive(Debug)]
pub struct Running {
    pub receipt: Receipt,
    /// Present when the job's stdin is a pipe; dropping it is end of file.
    pub stdin: Option<pipe::Sender>,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub control: Control,
    /// Resolves once, when the call has ended. An error means the supervisor is gone.
    pub ended: oneshot::Receiver<Ended>,
}

/// Ends a running call early. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Control;

impl Control {
    /// The caller takes the call back: TERM, a grace period, then the cell is killed.
    pub fn cancel(&self) {
        todo!()
    }

    /// The output limit is reached: the cell is killed at once.
    pub fn output_limit(&self) {
        todo!()
    }
}

impl Link {
    /// Takes the front end's end of the socket. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be registered with the runtime.
    pub fn attach(socket: OwnedFd) -> std::io::Result<Self> {
        let _socket = socket;
        todo!()
    }

    /// Starts a granted job. Resolves when its cell has measured up and the job is handed over.
    pub async fn start(&self, grant: Grant) -> Result<Running, Failure> {
        let _grant = grant;
        todo!()
    }
}
