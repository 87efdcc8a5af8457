//! The gateway's claims, each shown with real programs.

mod calls;
mod connections;
mod datagrams;
mod names;
mod processes;
mod requests;
mod rules;

use super::world::Lab;

/// A claim: its name, and the function that shows it.
pub(crate) type Claim = (&'static str, fn(&Lab));

/// Returns every claim, by topic.
pub(crate) fn all() -> impl Iterator<Item = &'static Claim> {
    [
        connections::ALL,
        datagrams::ALL,
        names::ALL,
        rules::ALL,
        requests::ALL,
        calls::ALL,
        processes::ALL,
    ]
    .into_iter()
    .flatten()
}
