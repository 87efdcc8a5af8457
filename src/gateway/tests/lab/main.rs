//! Tests of the gateway with real programs in a cell's network namespace and real servers in
//! another.
//!
//! The test first enters new namespaces, so that the machine's network is not touched.

mod claims;
mod world;

use libtest_mimic::{Arguments, Failed, Trial};

/// Programs that the lab needs.
const NEEDED_PROGRAMS: [&str; 11] = [
    "unshare",
    "nsenter",
    "ip",
    "ss",
    "python3",
    "openssl",
    "curl",
    "dig",
    "ping",
    "nmap",
    "traceroute",
];

fn main() {
    if std::env::var_os("GATEWAY_LAB").is_none() {
        let missing: Vec<_> =
            NEEDED_PROGRAMS.into_iter().filter(|name| !world::installed(name)).collect();
        if missing.is_empty() {
            std::process::exit(world::reenter());
        }
        not_run(&missing.join(", "));
    }
    let lab = std::sync::Arc::new(world::Lab::build());
    let trial = |(name, claim): &claims::Claim| {
        let lab = std::sync::Arc::clone(&lab);
        let claim = *claim;
        Trial::test(*name, move || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| claim(&lab)))
                .map_err(|_| Failed::without_message())
        })
    };
    let trials = claims::all().map(trial).collect();
    let mut arguments = Arguments::from_args();
    // One gateway serves all cells of the lab.
    arguments.test_threads = Some(1);
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(lab);
    conclusion.exit();
}

/// Reports every claim as ignored, or as failed if all must run.
fn not_run(missing: &str) -> ! {
    let must = std::env::var_os("COFFERDAM_MUST_RUN").is_some();
    let trial = |(name, _): &claims::Claim| {
        let reason = format!("{missing} missing");
        Trial::test(*name, move || Err(Failed::from(reason))).with_ignored_flag(!must)
    };
    let trials = claims::all().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}
