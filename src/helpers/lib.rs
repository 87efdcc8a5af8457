//! The programs that run inside cells, embedded as bytes. They are built without the standard
//! library; apart from `sys`, only they contain `unsafe` code.

/// `cofferdam-probe`, which makes one attempt and prints the kernel's answer; built from `probe/`.
pub const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-probe"));

/// `cofferdam-clerk`, which reads and writes files in cells; built from `clerk/`.
pub const CLERK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-clerk"));

/// `cofferdam-runner`, which runs the scripts of a project in cells; built from `runner/`.
pub const RUNNER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-runner"));
