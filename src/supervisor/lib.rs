//! The supervisor: the one process that makes cells, and all that is decided before it starts.
//!
//! `main` calls [`start`] while it is single-threaded and small. Five folders, each of which names only
//! those after it:
//!
//! | folder | idea |
//! |---|---|
//! | `boot` | main's side (ids, grants, control groups, the clone) and the supervisor's way into its namespaces |
//! | `event_loop` | one thread: requests in, cells to jobs, events out; the one place that has all state |
//! | `sessions` | the cells that live across calls, and how a bash in them gets its calls |
//! | `cells` | one cell and the job it serves; the pool of cells that wait for one |
//! | `rootfs` | the root that the cells of one key share, and what of the host it shows |
//!
//! The gateway, where a profile has egress, answers it with tallies: `TALLY_ROWS` rows at most, and as many of them as
//! `encode_tally` fits in a frame.
//!
//! *Invariant:* it trusts nothing that comes over the link, and opens no path after boot.

#![deny(unreachable_pub)]

mod boot;
mod cells;
mod event_loop;
#[cfg(test)]
#[path = "../../tests/support/patience.rs"]
mod patience;
mod rootfs;
mod sessions;

pub use boot::error::StartError;
pub use boot::filter;
pub use boot::host::first_id;
pub use boot::idmap::IdRange;
pub use boot::outer::calls as outer_calls;
pub use boot::requirements::{OPEN_FILES_HELD, core_handler};
pub use boot::scope::Wish as ScopeWish;
pub use boot::spec::{PrivateCells, Spec};
pub use boot::start::{Started, start, start_with_gateway};
pub use boot::subordinate::{NoOwnIds, OwnIds, check as check_own_ids};
pub use cells::caps::Caps;
pub use rootfs::granted::{FileId, Granted, LayerDirectory};
pub use rootfs::idmapped::shown_as;
pub use rootfs::protect;
pub use rootfs::sockets::Socket;
pub use rootfs::synthetic::HOST_NAME;
