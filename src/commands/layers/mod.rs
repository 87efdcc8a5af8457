//! Layers: the changes that cells made to a directory of the host, kept apart from it.
//!
//! A start takes the [`layer`] of each directory that is granted with `--cow` from the user's
//! [`store`], if its [`size`] is not above the limit, and holds its [`lock`]; the supervisor shows the directory through it
//! (`supervisor::rootfs::layers`). A person reviews it with `cofferdam review`: [`changes`] compares
//! the layer with the directory ([`entries`], [`spelling`]), [`judge`] and [`links`] say what is held
//! back, [`together`] what belongs to that, [`repository`] knows what is one unit to git, and [`apply`]
//! writes the rest in a [`staging_directory`], by a [`journal`] of each [`step`] that survives a
//! crash; [`applied`] says what the layer knows of that later. If root applies changes, it has the
//! rights of the directory's owner meanwhile ([`owner`]).
//!
//! *Invariant:* a layer's files were written by cells. They are opened only beneath held directories
//! and without following links, and nothing in them names a path.

pub(crate) mod applied;
pub(crate) mod apply;
pub(crate) mod change;
pub(crate) mod changes;
pub(crate) mod copy;
mod entries;
pub(crate) mod files;
pub(crate) mod journal;
pub(crate) mod judge;
pub(crate) mod layer;
mod links;
mod lock;
pub(crate) mod owner;
pub(crate) mod records;
mod repository;
pub(crate) mod rights;
pub(crate) mod size;
mod spelling;
pub(crate) mod staging_directory;
pub(crate) mod step;
pub(crate) mod store;
mod together;
