//! The real server over HTTP and TCP, as clients, unauthenticated callers and web pages use it.

#![expect(clippy::indexing_slicing, reason = "a missing field compares as null")]

mod abuse;
mod access;
mod changes;
mod client;
#[path = "../support/deceptive.rs"]
mod deceptive;
mod figures;
mod form;
mod handover;
mod isolation;
mod jwt;
mod limits;
mod load;
mod mtls;
mod operator;
#[path = "../support/patience.rs"]
mod patience;
mod proxied;
mod reach;
mod reload;
mod rest;
mod sessions;
mod tasks;
mod tcp;
mod tls;
