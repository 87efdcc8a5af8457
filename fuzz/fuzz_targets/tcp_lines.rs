//! `cofferdam_fuzz::tcp_lines` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cofferdam_fuzz::tcp_lines(bytes));
