//! Tests of ranges in subuid(5).

use super::*;

const TABLE: &str = "# a comment\nother:100000:65536\nme:300000:4096\n1000:500000:8192\nme:600000:10\n\
                     me:x:1\nme\n10001:700000:65536\n";

#[test]
fn the_longest_range_is_taken_by_name_or_by_number() {
    let parse = |uid, name| Range::parse(TABLE, uid, name);
    let range = |first, count| Some(Range { first, count });
    assert_eq!(parse(1000, Some("me")), range(500_000, 8192));
    assert_eq!(parse(999, Some("me")), range(300_000, 4096));
    assert_eq!(parse(1000, None), range(500_000, 8192));
    assert_eq!(parse(999, None), None);
    assert_eq!(parse(1, Some("othe")), None);
}

#[test]
fn a_range_that_is_too_short_or_contains_root_is_refused() {
    assert_eq!(Range::parse("me:100000:1023", 5, Some("me")), None);
    assert_eq!(Range::parse("me:0:65536", 5, Some("me")), None);
    assert!(Range::parse("me:100000:1024", 5, Some("me")).is_some());
}

#[test]
fn blocks_are_adjacent_and_counted_from_the_end_of_the_range() {
    let range = Range { first: 100_000, count: 3000 };
    assert_eq!(range.block(0), Some(101_976));
    assert_eq!(range.block(1), Some(100_952));
    assert_eq!(range.block(2), None);
    assert_eq!(Range { first: u32::MAX - 5, count: 4096 }.block(0), None, "beyond the last id");
}

#[test]
fn a_locked_block_is_unavailable_until_it_is_released() -> std::io::Result<()> {
    let directory = tempfile::tempdir()?;
    let first = lock(directory.path(), 7)?;
    assert!(first.is_some());
    assert!(lock(directory.path(), 7)?.is_none());
    assert!(lock(directory.path(), 8)?.is_some());
    drop(first);
    assert!(lock(directory.path(), 7)?.is_some());
    Ok(())
}
