//! Bytes of a hostile front end: a frame decodes or is refused, and what decodes encodes again.
#![no_main]

use cofferdam::wire::{self, Event, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = wire::decode::<Request>(bytes)
        && let Ok(again) = wire::encode(&request)
    {
        assert_eq!(wire::decode::<Request>(&again).ok(), Some(request));
    }
    drop(wire::decode::<Event>(bytes));
});
