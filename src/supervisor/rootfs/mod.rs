//! The root that the cells of one key share: what of the host it shows, and what is made for it.
//!
//! `template` puts it together from `detached` mounts, in the places that `placement` gives them;
//! `protect` finds and covers what the host obeys in a granted directory.

pub(crate) mod detached;
pub(crate) mod error;
pub(crate) mod granted;
pub(crate) mod grants;
pub(crate) mod idmapped;
mod own_programs;
mod placement;
pub(crate) mod program;
pub mod protect;
pub(crate) mod sockets;
pub(crate) mod synthetic;
pub(crate) mod template;
pub(crate) mod terminals;
