//! Resource limits of a call, the report of each way to end it, and the absence of remains.

mod cgroups;
mod ends;
mod kernel_memory;
mod limits;
mod own_ids;
mod scope;
#[path = "../sessions/server.rs"]
#[allow(
    dead_code,
    clippy::indexing_slicing,
    reason = "each test program uses its part of what they share; a missing field of an answer fails the test"
)]
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use support::Claim;

fn main() -> ExitCode {
    support::run(support::Mostly::Compute, |tests| {
        let layers: &[(&str, &[Claim])] = &[
            ("limits", limits::CLAIMS),
            ("kernel_memory", kernel_memory::CLAIMS),
            ("cgroups", cgroups::CLAIMS),
            ("scope", scope::CLAIMS),
            ("ends", ends::CLAIMS),
            ("own_ids", own_ids::CLAIMS),
        ];
        for (layer, claims) in layers {
            tests.claims(layer, claims);
        }
    })
}
