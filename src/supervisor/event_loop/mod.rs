//! The loop: one thread that reads requests, gives jobs their cells and reports what becomes of them.
//!
//! `supervisor` is its state, in parts that each have their own methods: `front_end` is the link to the front
//! end with the `outbox` of frames, `gateway` that to the gateway with the use that cells make of it in
//! `network`, `job_queue` the jobs that wait, and `cell_supply` the cells for them with the
//! `session_designs` of those that sessions have.
//!
//! `serve` is one turn of the loop and `poll` what it waits for. `dispatch` is the way of a job to its cell, and
//! `session_calls` the way of a call to a session.

mod cell_supply;
mod dispatch;
mod front_end;
pub(crate) mod gateway;
mod job_queue;
mod network;
mod outbox;
mod poll;
pub(crate) mod serve;
mod session_calls;
mod session_designs;
pub(crate) mod supervisor;
