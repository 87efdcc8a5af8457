//! Layers: the changes that cells made to a directory of the host, kept apart from it.
//!
//! A start takes the layer of each directory that is granted with `--cow` ([`store`]); the
//! supervisor shows the directory through it (`supervisor::rootfs::layers`). A person reviews it
//! with `cofferdam review`: [`changes`] compares the layer with the directory, [`judge`] and
//! [`links`] say what is held back, [`repository`] knows what is one unit to git, and [`apply`]
//! writes the rest, by a journal that survives a crash ([`journal`]). If root applies changes, it
//! has the rights of the directory's owner meanwhile ([`owner`]).
//!
//! *Invariant:* a layer's files were written by cells. They are opened only beneath held directories
//! and without following links, and nothing in them names a path.

pub(crate) mod apply;
pub(crate) mod change;
pub(crate) mod changes;
pub(crate) mod copy;
pub(crate) mod files;
pub(crate) mod journal;
pub(crate) mod judge;
mod links;
pub(crate) mod owner;
mod repository;
mod rights;
pub(crate) mod store;
