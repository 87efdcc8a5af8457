//! Tests of the filter: sequences that pass, that do not, and that are put back.

use super::*;

fn filter() -> EscapeFilter {
    EscapeFilter::new(Queries::Pass, Coding::Utf8)
}

/// Filters in one piece and byte by byte: the result is the same.
fn filtered(bytes: &[u8]) -> Vec<u8> {
    let whole = filter().push(bytes);
    let mut filter = filter();
    let single: Vec<u8> = bytes.iter().flat_map(|byte| filter.push(&[*byte])).collect();
    assert_eq!(whole, single);
    whole
}

#[test]
fn what_programs_draw_with_passes_unchanged() {
    let usual: &[&[u8]] = &[
        b"plain text\r\n\ttab\x07\x08",
        "\u{e9}\u{2713}\u{1f600}\u{a0}".as_bytes(),
        b"\x1b[1;31mred\x1b[0m\x1b[38;2;1;2;3m",
        b"\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[1;24r",
        b"\x1b(B\x1b)0\x1b7\x1b8\x1b=\x1b>\x1bM\x1b#8",
        b"\x1b]8;;https://example.org\x07link\x1b]8;;\x07",
        b"\x1b[6n\x1b[c\x1b[>c",
        b"\x1bPq#0;2;0;0;0~~@@\x1b\\",
        b"\x1b[ q\x1b[2 q\x1b[!p\x1b[4:3;58:2::1:2:3m\x1b[>4;2m\x1b[>1u\x1b[?u\x1b[?2026$p",
    ];
    for bytes in usual {
        let shown = String::from_utf8_lossy(bytes);
        assert_eq!(without_fences(&filtered(bytes)), *bytes, "{shown:?}");
    }
}

/// Output of the filter but for its own questions.
fn without_fences(bytes: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(bytes).replace("\x1b[5n", "").into_bytes()
}

#[test]
fn queries_that_are_answered_with_a_chosen_text_and_acts_outside_of_the_window_do_not_pass() {
    let hostile: &[&[u8]] = &[
        b"\x1b[21t",
        b"\x1b[20t",
        b"\x1b[8;1;1t",
        b"\x1bP$qm\x1b\\",
        b"\x1bP$q\"p\x07",
        b"\x1bP+q544e\x1b\\",
        b"\x1b]52;c;?\x07",
        b"\x1b]52;c;Y3VybCBldmlsfHNoCg==\x1b\\",
        b"\x1b]50;?\x07",
        b"\x1b]4;1;?\x07",
        b"\x1b]11;?\x1b\\",
        b"\x1b]1337;File=inline=1:AAAA\x07",
        b"\x1b[>q",
        b"\x1b[1;1;1;1;1;1*y",
        b"\x1b[1$w",
        b"\x1b[5i",
        b"\x1b_Gi=1,a=q\x1b\\",
        b"\x1b^private\x1b\\",
        b"\x1bX\x1b\\",
        b"\x1bZ",
        b"\x05",
        b"\x9b21t",
        b"\x9d52;c;?\x07",
        b"\xc2\x9b",
        b"\xc2\x90",
        b"\xff\xfe\xc0\xc1",
        // Out of UTF-8, and forms of controls that a lax reader of UTF-8 takes.
        b"\x1b%@",
        b"\xe0\x82\x9b",
        b"\xf0\x80\x82\x9b",
        // Modes that cannot be put back, or change more than the window shows.
        b"\x1b[?2l",
        b"\x1b[?3h\x1b[?40h\x1b[?38h\x1b[?8h",
        b"\x1b[?1000s\x1b[?1000r",
        b"\x1b[?1003:1h\x1b[?4294968296h",
        b"\x1b[12h\x1b[2h",
        b"\x1b[1'z\x1b[1;3'{\x1b G\x1b[61\"p\x1b[1$}\x1b[>2;3m",
        b"\x1b[12;3]",
        b"\x1b[?4m\x1b[?4g\x1b[#R\x1b[=c\x1b[x",
        b"\x1b]7;file:///evil\x07",
        // A query once the characters are gone that are dropped.
        b"\x1b]11;?\xc3\x9b\x07",
        b"\x1b]4;1;?\xc3\x80\x07",
        b"\x1b]10;\xc2\x80?\x1b\\",
        b"\x1b]133;A;click_events=1\x07",
        b"\x1b[3g",
        b"\x18\x1a\x00\x7f",
    ];
    for bytes in hostile {
        let shown = String::from_utf8_lossy(bytes);
        let left = filtered(&[b"a", *bytes, b"b"].concat());
        let text = String::from_utf8_lossy(&left).into_owned();
        assert!(!left.contains(&ESCAPE) && !left.contains(&0x05), "{shown:?}: {text:?}");
        assert!(!left.iter().any(|byte| *byte >= 0x80), "{shown:?}: {text:?}");
        assert!(text.starts_with('a') && text.ends_with('b'), "{shown:?}: {text:?}");
    }
}

#[test]
fn a_query_cannot_hide_behind_a_sequence_that_breaks_off() {
    for bytes in [
        &b"\x1b[\x1b[21t"[..],
        b"\x1b]0;x\x1b[21t",
        b"\x1bP\x1bP$qm\x1b\\",
        b"\x1b\x1b]52;c;?\x07",
        b"\x1b]0;\x1b]52;c;?\x07",
        b"\x1b[?\x1bP$qm\x1b\\",
        b"\x1b \x1b]52;c;?\x07",
        b"\xe2\x1b]52;c;?\x07",
        b"\xc2\x1b[21t",
    ] {
        let left = filtered(bytes);
        let has = |part: &[u8]| left.windows(part.len()).any(|window| window == part);
        assert!(!has(b"21t") || !has(b"\x1b[21t"), "{left:?}");
        assert!(!has(b"52;c") && !has(b"$q"), "{left:?}");
    }
}

#[test]
fn any_bytes_leave_no_query() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let parts: [&[u8]; 16] = [
        b"\x1b", b"[", b"]", b"P", b"$", b"q", b"52", b";", b"11;", b"?", b"\x07", b"\\", b"21",
        b"t", b"\x9b", b"\xc2",
    ];
    let mut strict = EscapeFilter::new(Queries::Drop, Coding::Utf8);
    for _ in 0..20_000 {
        let mut bytes = Vec::new();
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = usize::try_from(seed >> 60).unwrap_or(0);
            bytes.extend(parts.get(index).copied().unwrap_or_default());
        }
        // Filter the output once more: nothing becomes a sequence by what was left out of it.
        let passed = [strict.push(&bytes), strict.push(b"\x1b\\\x07")].concat();
        let again = EscapeFilter::new(Queries::Drop, Coding::Utf8).push(&passed);
        assert_eq!(again, passed, "{bytes:?}");
        let left = filtered(&bytes);
        for query in [&b"\x1b[21t"[..], b"\x1b]52", b"\x1bP$q", b"\x9b", b"\xc2\x9b"] {
            let found = left.windows(query.len()).any(|window| window == query);
            assert!(!found, "{bytes:?} leaves {left:?}");
        }
    }
}

#[test]
fn modes_that_were_switched_are_switched_back() {
    let mut filter = filter();
    filter.push(b"only text\r\n");
    assert_eq!(filter.reset(), b"");
    filter.push(b"\x1b[?1049h\x1b[?1000;1006h\x1b[?25l\x1b[?2004h\x1b[?2004l");
    let reset = String::from_utf8_lossy(&filter.reset()).into_owned();
    for mode in ["?1049l", "?1000l", "?1006l", "?25h"] {
        assert!(reset.contains(mode), "{mode}: {reset:?}");
    }
    assert!(!reset.contains("2004"), "{reset:?}");
    assert!(!reset.contains("\u{1b}[<99u"), "{reset:?}");
    filter.push(b"\x1b[>1u");
    // Flags of the other screen are taken back there, where a reset would come too late.
    assert_eq!(filter.push(b"\x1b[?1049l"), b"\x1b[<99u\x1b[>4m\x1b[?1049l");
    assert!(filter.reset().windows(5).any(|part| part == b"[<99u"));
    assert!(!filter.fences().is_open());
    assert_eq!(filter.push(b"\x1b[6n"), b"\x1b[6n\x1b[5n");
    assert!(filter.fences().is_open());
}

#[test]
fn a_link_colours_and_the_shape_of_the_cursor_are_put_back() {
    let mut filter = filter();
    filter.push(b"\x1b]8;;https://example.org\x07\x1b]11;#000000\x07\x1b[5 q");
    let reset = String::from_utf8_lossy(&filter.reset()).into_owned();
    for part in ["\x1b]8;;\x1b\\", "\x1b]111\x1b\\", "\x1b[0 q"] {
        assert!(reset.contains(part), "{part:?}: {reset:?}");
    }
}

#[test]
fn many_modes_are_put_back_or_do_not_pass() {
    let mut filter = filter();
    for mode in 3000..3300 {
        assert_eq!(filter.push(format!("\x1b[?{mode}h").as_bytes()), b"");
    }
    assert_eq!(filter.push(b"\x1b[?1003;3000;1006h"), b"\x1b[?1003h\x1b[?1006h");
    let reset = String::from_utf8_lossy(&filter.reset()).into_owned();
    assert!(reset.contains("?1003l") && reset.contains("?1006l"), "{reset:?}");
}

#[test]
fn a_title_is_kept_before_the_first_and_taken_back() {
    let mut filter = EscapeFilter::new(Queries::Pass, Coding::Utf8);
    assert_eq!(filter.push(b"\x1b]0;a\x07\x1b]2;b\x07"), b"\x1b[22;0t\x1b]0;a\x07\x1b]2;b\x07");
    let back = filter.reset();
    assert!(back.windows(RESTORE_TITLE.len()).any(|one| one == RESTORE_TITLE), "{back:?}");
}

#[test]
fn a_terminal_that_takes_bytes_for_characters_sees_no_control() {
    let mut filter = EscapeFilter::new(Queries::Pass, Coding::Bytes);
    let text = "\u{e9} \u{db}21t \u{2713}";
    assert_eq!(filter.push(text.as_bytes()), "\u{e9} ?21t ?".as_bytes());
    // In a title it could be one in any coding.
    assert_eq!(filtered("\x1b]0;a\u{db}6n\x07".as_bytes()), b"\x1b[22;0t\x1b]0;a6n\x07");
}

#[test]
fn no_query_passes_where_no_program_reads_the_answer() {
    let mut filter = EscapeFilter::new(Queries::Drop, Coding::Utf8);
    assert_eq!(filter.push(b"\x1b[6n\x1b[c\x1b[?u\x1b[?1$p\x1b[1m"), b"\x1b[1m");
    assert!(!filter.fences().is_open());
}

#[test]
fn a_question_waits_until_the_terminal_is_nearly_as_far() {
    let mut filter = filter();
    let long = vec![b'x'; 20_000];
    assert_eq!(filter.push(&long), long);
    assert_eq!(filter.push(b"a\x1b[cb\x1b[6nc"), b"a\x1b[5n");
    assert!(filter.is_waiting());
    assert_eq!(filter.push(b"d"), b"");
    assert_eq!(filter.answered(1), b"\x1b[c\x1b[5nb\x1b[6n\x1b[5ncd");
    assert!(!filter.is_waiting());
    // One that answers nothing is asked nothing more.
    filter.push(&long);
    assert_eq!(filter.push(b"e\x1b[cf"), b"e");
    assert_eq!(filter.drop_queries(), b"f");
    assert_eq!(filter.push(b"\x1b[cg"), b"g");
}
