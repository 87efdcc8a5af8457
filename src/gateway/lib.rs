//! The network of a cell: names, ports and requests that its profile grants.

#![deny(unreachable_pub)]

pub mod intercept;
