//! Text of a profile or a policy: read, or refused with a place; never a panic.
#![no_main]

use cofferdam::document::Document;
use cofferdam::policy::Policy;
use cofferdam::profile::{self, Profiles};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let written = Document::new("fuzz.toml", text);
    if let Ok(profiles) = Profiles::parse(&profile::shipped(), &[written.clone()]) {
        drop(Policy::parse(&[written], &profiles));
    }
});
