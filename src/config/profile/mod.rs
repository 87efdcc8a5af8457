//! Profiles: their TOML schema, and their resolution to values.
//!
//! `schema` defines the TOML, a `layer` is one file, and `resolve` makes a
//! [`model::profile::Profile`] of a chain of files that extend each other. `set` has all profiles,
//! and `shipped` those that are compiled in; each is parsed on first use, or decoded if every start
//! needs it. `toolchains` is the table of tool chains outside of `/usr`.
//!
//! *Invariant:* this module does no I/O. `directory` reads the files.

pub mod account;
mod ahead;
pub mod egress;
mod layer;
mod requests;
mod resolve;
mod schema;
mod set;
mod shipped;
pub mod toolchains;

pub use set::Profiles;
pub use shipped::shipped;

/// Returns the keys of a profile's file.
#[must_use]
pub fn keys() -> crate::document::KeyTable {
    schema::Written::whole()
}

#[cfg(test)]
mod floor_tests;
#[cfg(test)]
mod tier_tests;
