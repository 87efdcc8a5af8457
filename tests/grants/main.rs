//! Grants of the host to a cell: their extent, and the files in them that stay protected.

mod caches;
mod changes;
mod closed;
mod files;
mod git_identity;
mod granted_sockets;
mod layers;
mod layers_commits;
mod layers_ends;
mod layers_hostile;
mod layers_judged;
mod layers_kept;
mod layers_rights;
mod layers_served;
mod left_behind;
mod locks;
mod mediated;
mod modes;
mod names;
mod nested;
mod parts;
mod raced;
mod records;
mod recreated_names;
mod repositories;
#[path = "../sessions/server.rs"]
#[allow(
    dead_code,
    clippy::indexing_slicing,
    reason = "each test program uses its part of what they share; a missing field of an answer fails the test"
)]
mod server;
mod silent;
#[path = "../support/mod.rs"]
mod support;
mod toolchains;
mod workspace;

use std::process::ExitCode;

use support::Claim;

fn main() -> ExitCode {
    support::run(support::Mostly::Compute, |tests| {
        let layers: &[(&str, &[Claim])] = &[
            ("workspace", workspace::CLAIMS),
            ("caches", caches::CLAIMS),
            ("names", names::CLAIMS),
            ("recreated_names", recreated_names::CLAIMS),
            ("repositories", repositories::CLAIMS),
            ("silent", silent::CLAIMS),
            ("closed", closed::CLAIMS),
            ("parts", parts::CLAIMS),
            ("raced", raced::CLAIMS),
            ("records", records::CLAIMS),
            ("left_behind", left_behind::CLAIMS),
            ("granted_sockets", granted_sockets::CLAIMS),
            ("layers", layers::CLAIMS),
            ("layers_commits", layers_commits::CLAIMS),
            ("layers_ends", layers_ends::CLAIMS),
            ("layers_hostile", layers_hostile::CLAIMS),
            ("layers_judged", layers_judged::CLAIMS),
            ("layers_kept", layers_kept::CLAIMS),
            ("layers_rights", layers_rights::CLAIMS),
            ("layers_served", layers_served::CLAIMS),
            ("locks", locks::CLAIMS),
            ("mediated", mediated::CLAIMS),
            ("modes", modes::CLAIMS),
            ("changes", changes::CLAIMS),
            ("toolchains", toolchains::CLAIMS),
            ("git_identity", git_identity::CLAIMS),
        ];
        for (layer, claims) in layers {
            tests.claims(layer, claims);
        }
        tests.claims("files", &files::claims());
        tests.claims("nested", &nested::claims());
    })
}
