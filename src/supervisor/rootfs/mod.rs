//! The root that the cells of one key share: what of the host it shows, and what is made for it.
//!
//! `template` puts it together from `detached` mounts, in the places that `placement` gives them;
//! `protect` finds and covers what the host obeys in a granted directory.

mod clerk;
pub mod detached;
pub mod error;
pub mod granted;
pub mod grants;
pub mod idmapped;
mod placement;
pub mod program;
pub mod protect;
pub mod sockets;
pub mod synthetic;
pub mod template;
