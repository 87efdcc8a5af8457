//! The walls of a cell, a module for each layer.

mod absent_programs;
mod caps;
mod containers;
mod crashes;
mod env;
mod escape;
mod fds;
mod filters;
mod ids;
mod interfaces;
mod kept_networks;
mod landlock;
mod learn;
mod mounts;
mod namespaces;
mod other_sandboxes;
mod packages;
mod privileges;
mod proc;
mod programs;
mod reach;
mod seccomp;
#[path = "../support/server.rs"]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "each test program uses its part of what they share"
)]
mod server;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod tiers;

use std::process::ExitCode;

use support::Claim;

fn main() -> ExitCode {
    support::run(support::Mostly::Compute, |tests| {
        // Tests that run alone would wait for the corpus.
        tests.claims("absent_programs", absent_programs::CLAIMS);
        tests.claims("containers", containers::CLAIMS);
        tests.each("escape", &escape::names(), escape::check);
        let layers: &[(&str, &[Claim])] = &[
            ("namespaces", namespaces::CLAIMS),
            ("ids", ids::CLAIMS),
            ("interfaces", interfaces::CLAIMS),
            ("kept_networks", kept_networks::CLAIMS),
            ("caps", caps::CLAIMS),
            ("env", env::CLAIMS),
            ("fds", fds::CLAIMS),
            ("mounts", mounts::CLAIMS),
            ("packages", packages::CLAIMS),
            ("proc", proc::CLAIMS),
            ("landlock", landlock::CLAIMS),
            ("seccomp", seccomp::CLAIMS),
            ("programs", programs::CLAIMS),
            ("reach", reach::CLAIMS),
            ("privileges", privileges::CLAIMS),
            ("crashes", crashes::CLAIMS),
            ("learn", learn::CLAIMS),
            ("terminal", terminal::CLAIMS),
        ];
        for (layer, claims) in layers {
            tests.claims(layer, claims);
        }
        tests.plain("filters", filters::TESTS, None);
        tests.claims("other_sandboxes", &other_sandboxes::claims());
        tests.claims("tiers", &tiers::claims());
    })
}
