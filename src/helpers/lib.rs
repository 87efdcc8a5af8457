//! The programs that run inside cells, embedded as bytes. They are built without the standard
//! library; apart from `sys`, only they contain `unsafe` code.
//!
//! Each file call starts the clerk, and a program with the standard library starts slower. Medians of 200 starts on
//! x86-64: 0.17 ms for the clerk, 0.48 ms for the clerk linked statically with the standard library, 0.77 ms linked
//! dynamically, and 2.5 ms for the whole program under another name, as `jq` is started (unoptimised build).

/// `cofferdam-probe`, which makes one attempt and prints the kernel's answer; built from `probe/`.
pub const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-probe"));

/// `cofferdam-clerk`, which reads and writes files in cells; built from `clerk/`.
pub const CLERK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-clerk"));

/// `cofferdam-runner`, which runs the scripts of a project in cells; built from `runner/`.
pub const RUNNER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-runner"));
