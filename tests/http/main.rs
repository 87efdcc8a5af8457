//! The real server over its listener, as clients, strangers and web pages meet it.

#![expect(clippy::indexing_slicing, reason = "a missing field compares as null")]

mod access;
mod client;
mod figures;
mod limits;
mod rest;
mod sessions;
