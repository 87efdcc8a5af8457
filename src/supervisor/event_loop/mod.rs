//! The loop: one thread that reads requests, gives jobs their cells and reports what becomes of them.
//!
//! `supervisor` is its state, `serve` one turn of the loop, `poll` what it waits for, `dispatch` the way of a
//! job to its cell, `demand` the cells that are missing, `gateway` the link to the
//! gateway and `network` its use by cells; `session_calls` and `one_shot` are calls of
//! sessions, `reports` and `outbox` the frames to the front end.

mod demand;
mod dispatch;
pub(crate) mod gateway;
mod network;
mod one_shot;
mod outbox;
pub(crate) mod poll;
mod reports;
pub(crate) mod serve;
mod session_calls;
pub(crate) mod supervisor;
