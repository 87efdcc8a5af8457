//! `cofferdam_fuzz::first_flight` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cofferdam_fuzz::first_flight(bytes));
