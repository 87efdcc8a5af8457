//! Tests of rendered output: exact texts, and properties of any output.

use proptest::prelude::*;

use super::*;
use crate::capture::deceptive::{always_deceives, plain};
use model::defaults::INLINE_CHARACTERS;

fn one(bytes: &[u8], budget: usize) -> String {
    render(&Captured::of(bytes), &Captured::of(b""), budget).stdout
}

#[test]
fn plain_text_is_shown_as_it_is() {
    let text = "tab\there\n\n  \u{e9}\u{2713}\u{1f600} last without newline";
    assert_eq!(one(text.as_bytes(), 1000), text);
}

#[test]
fn invalid_utf8_is_repaired_and_controls_are_pictures() {
    assert_eq!(
        one(b"a\xffb\xe2\x82c\xed\xa0\x80", 100),
        "a\u{fffd}b\u{fffd}c\u{fffd}\u{fffd}\u{fffd}"
    );
    assert_eq!(one(b"a\0b\x07\x7f\xc2\x9b31m", 100), "a\u{2400}b\u{2407}\u{2421}\u{fffd}31m");
}

#[test]
fn escape_sequences_are_taken_out_whole() {
    let cases: [(&[u8], &str); 10] = [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bP1$q\x1b\\dcs", "dcs"),
        (b"\x1b(Bcharset\x1b=", "charset"),
        (b"\x1b[2J\x1b[Hclear", "clear"),
        (b"end\x1b", "end"),
        (b"cut\x1b[12;", "cut"),
        (b"\x1b[31\x01odd", "\u{2401}odd"),
        (b"\x1b]0;never ended\nnext line", "\nnext line"),
    ];
    for (bytes, text) in cases {
        assert_eq!(one(bytes, 100), text, "{}", bytes.escape_ascii());
    }
}

#[test]
fn deceptive_characters_are_escaped_and_erased_as_one() {
    assert_eq!(one("a\u{202e}b\u{e0041}\n".as_bytes(), 100), "a<U+202E>b<U+E0041>\n");
    assert_eq!(one("a\u{202e}\u{8}b\u{2066}\u{8}\u{8}\n".as_bytes(), 100), "a\n");
    let family = "\u{1f468}\u{200d}\u{1f469} \u{645}\u{6cc}\u{200c}\u{62e}";
    assert_eq!(one(family.as_bytes(), 100), family);
    // An invisible sequence stands between the two pictures.
    assert_eq!(one("\u{1f468}\u{200d}\x1b[0m\n".as_bytes(), 100), "\u{1f468}<U+200D>\n");
}

#[test]
fn a_redrawn_line_is_shown_as_it_last_stood() {
    assert_eq!(one(b"  1%\r 50%\r100%\ndone\r\n", 100), "100%\ndone\n");
    assert_eq!(one(b"working\r\x1b[Kok\n", 100), "ok\n");
    assert_eq!(one(b"N\x08NA\x08A\n\x08x", 100), "NA\nx");
}

#[test]
fn left_out_output_is_stated_in_bytes() {
    let text: String = (0..1000).map(|n| format!("line {n:03}\n")).collect();
    let shown = one(text.as_bytes(), 64 + 36);
    assert_eq!(
        shown,
        "line 000\nline 001\n[\u{2026} 8964 bytes left out \u{2026}]\nline 998\nline 999\n"
    );
}

#[test]
fn bytes_that_were_not_kept_are_counted_too() {
    let mut captured = Captured::new(40);
    (0..1000).for_each(|n| captured.push(format!("line {n:03}\n").as_bytes()));
    let rendered = render(&captured, &Captured::of(b""), 1000);
    // 20 bytes of head; the cut line at the start of the tail is left out too.
    let expected =
        "line 000\nline 001\nli\n[\u{2026} 8962 bytes left out \u{2026}]\nline 998\nline 999\n";
    assert_eq!((rendered.stdout.as_str(), rendered.truncated), (expected, true));
}

#[test]
fn no_character_or_sequence_is_cut_at_the_seam() {
    let mut captured = Captured::new(20);
    captured.push("123456789\u{20ac}".as_bytes());
    captured.push(&[b'.'; 100]);
    captured.push("\u{20ac}56789 ab".as_bytes());
    let shown = |captured: &Captured| render(captured, &Captured::of(b""), 1000).stdout;
    assert_eq!(shown(&captured), "123456789\n[\u{2026} 111 bytes left out \u{2026}]\n ab");
    captured.push(b"[38;5;196mred text\x1b[0m");
    captured.push(b"1mred \x1b[0mx");
    assert_eq!(shown(&captured), "123456789\n[\u{2026} 141 bytes left out \u{2026}]\n x");
}

#[test]
fn a_small_stream_is_shown_whole_next_to_a_flood() {
    let big = Captured::of("x".repeat(100_000).as_bytes());
    let small = Captured::of(b"error: no such file\n");
    for (out, err) in [(&big, &small), (&small, &big)] {
        let rendered = render(out, err, INLINE_CHARACTERS);
        let (small, big) = if out.total() < 100 {
            (rendered.stdout, rendered.stderr)
        } else {
            (rendered.stderr, rendered.stdout)
        };
        assert_eq!(small, "error: no such file\n");
        assert!(rendered.truncated);
        assert!(big.len() > 29_800, "the flood gets the rest: {}", big.len());
    }
}

#[test]
fn two_floods_share_equally() {
    let big = Captured::of("x".repeat(100_000).as_bytes());
    let rendered = render(&big, &big, INLINE_CHARACTERS);
    assert_eq!(rendered.stdout, rendered.stderr);
    assert!((14_900..=15_000).contains(&rendered.stdout.chars().count()));
}

proptest! {
    #[test]
    fn any_output_is_harmless_and_within_the_budget(
        out in prop::collection::vec(any::<u8>(), 0..600),
        err in prop::collection::vec(prop::sample::select(&b"ab \x1b[]0;m\x07\x08\r\n\xe2\x82\xac"[..]), 0..600),
        keep in 0usize..400,
        budget in 200usize..500,
    ) {
        let capture = |bytes: &[u8]| {
            let mut captured = Captured::new(keep);
            captured.push(bytes);
            captured
        };
        let rendered = render(&capture(&out), &capture(&err), budget);
        let both = format!("{}{}", rendered.stdout, rendered.stderr);
        prop_assert!(both.chars().count() <= budget);
        prop_assert!(both.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'));
    }

    #[test]
    fn nothing_that_deceives_gets_through(
        text in prop::collection::vec(
            prop_oneof![
                any::<char>(),
                prop::sample::select("a1#\u{8}\r\n\u{1b}[0m\u{ad}\u{61c}\u{200b}\u{200c}\u{200d}\u{200e}\
                    \u{202a}\u{202e}\u{2066}\u{fe0f}\u{1f600}\u{20e3}\u{645}\u{180b}\u{1820}\u{e0041}\u{e0100}\
                    \u{feff}\u{fff9}\u{2028}\u{115f}".chars().collect::<Vec<_>>()),
                prop::char::range('\u{e0000}', '\u{e0fff}'),
            ],
            0..200,
        ),
        keep in 0usize..400,
        budget in 200usize..3000,
    ) {
        let text: String = text.into_iter().collect();
        let mut captured = Captured::new(keep);
        captured.push(text.as_bytes());
        let rendered = render(&captured, &Captured::of(b""), budget);
        prop_assert!(!rendered.stdout.chars().any(always_deceives));
        prop_assert!(rendered.stdout.chars().count() <= budget);
        if !text.contains('\u{8}') {
            // Escaping is stable: ordinary text after some characters stays so in the reply.
            let whole = one(text.as_bytes(), 10_000);
            prop_assert_eq!(plain(&whole), whole);
        }
    }

    #[test]
    fn text_without_controls_survives(text in "[ -~\n\u{a0}-\u{ac}\u{ae}-\u{2ff}]{0,300}") {
        prop_assert_eq!(one(text.as_bytes(), 300), text);
    }
}
