//! The walls of a cell, a module for each layer.

mod caps;
mod containers;
mod crashes;
mod env;
mod fds;
mod ids;
mod landlock;
mod learn;
mod mounts;
mod namespaces;
mod privileges;
mod proc;
mod programs;
mod reach;
mod seccomp;
#[path = "../support/server.rs"]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    clippy::indexing_slicing,
    reason = "each test program uses its part of what they share; a missing field of an answer fails the test"
)]
mod server;
#[path = "../support/mod.rs"]
mod support;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::layers(&[
        ("namespaces", namespaces::CLAIMS),
        ("ids", ids::CLAIMS),
        ("caps", caps::CLAIMS),
        ("env", env::CLAIMS),
        ("fds", fds::CLAIMS),
        ("mounts", mounts::CLAIMS),
        ("proc", proc::CLAIMS),
        ("landlock", landlock::CLAIMS),
        ("seccomp", seccomp::CLAIMS),
        ("programs", programs::CLAIMS),
        ("reach", reach::CLAIMS),
        ("containers", containers::CLAIMS),
        ("privileges", privileges::CLAIMS),
        ("crashes", crashes::CLAIMS),
        ("learn", learn::CLAIMS),
        ("terminal", terminal::CLAIMS),
    ])
}
