//! The root that the cells of one key share: which parts of the host it shows, and which files are
//! made for it.
//!
//! `template` builds it from `detached` mounts, which `placement` attaches. `protect` finds and
//! covers files that the host obeys in a granted directory. `late` has the files that are made with
//! the first cell: a machine's, and those of `packages`.

mod bounded;
pub(crate) mod detached;
pub(crate) mod error;
pub(crate) mod granted;
pub(crate) mod grants;
mod host_mounts;
pub(crate) mod idmapped;
pub(crate) mod late;
pub(crate) mod layers;
mod machine;
mod own_programs;
pub(crate) mod packages;
mod placement;
pub(crate) mod program;
pub mod protect;
pub(crate) mod slot_mounts;
pub(crate) mod sockets;
pub(crate) mod synthetic;
pub(crate) mod template;
pub(crate) mod terminals;
