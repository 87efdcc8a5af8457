//! What the operator grants to cells: paths, tool chains, a cache, sockets and an identity for commits.

pub(crate) mod cache;
pub(crate) mod cache_upkeep;
pub(crate) mod config_paths;
pub(crate) mod git_identity;
pub(crate) mod host_programs;
pub(crate) mod lookup;
pub(crate) mod sockets;
pub(crate) mod tier;
pub(crate) mod toolchains;
