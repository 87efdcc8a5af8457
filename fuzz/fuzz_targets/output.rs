//! Output of a hostile program: the text stays within its budget and carries no control characters.
#![no_main]

use cofferdam::capture::Captured;
use cofferdam::capture::text::{REPLY_CHARACTERS, render};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|streams: (&[u8], &[u8])| {
    let rendered = render(&Captured::of(streams.0), &Captured::of(streams.1), REPLY_CHARACTERS);
    let text = [rendered.stdout, rendered.stderr].concat();
    assert!(text.chars().count() <= REPLY_CHARACTERS);
    assert!(text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t')));
});
