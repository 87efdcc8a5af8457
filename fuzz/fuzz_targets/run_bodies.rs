//! `cofferdam_fuzz::run_bodies` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cofferdam_fuzz::run_bodies(bytes));
