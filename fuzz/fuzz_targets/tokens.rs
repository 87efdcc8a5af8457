//! `cofferdam_fuzz::tokens` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cofferdam_fuzz::tokens(bytes));
