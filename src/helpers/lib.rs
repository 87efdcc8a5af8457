//! Programs that run inside cells, without the standard library: what they are made of is the only
//! `unsafe` beside `sys`.

/// `cofferdam-probe`, which makes one attempt and prints the kernel's answer; made from `probe/`.
pub const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-probe"));

/// `cofferdam-clerk`, which reads and writes files in cells; made from `clerk/`.
pub const CLERK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-clerk"));

/// `cofferdam-runner`, which stands around the scripts of a project in cells; made from `runner/`.
pub const RUNNER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-runner"));
