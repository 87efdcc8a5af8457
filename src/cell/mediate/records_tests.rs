//! Tests of which indexes and lists of conflicts are copied.

use super::*;

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn count(ids: IdBytes) -> usize {
    usize::try_from(ids.count()).unwrap_or_default()
}

/// Returns the result of copying these bytes, and the copy.
fn copied(bytes: &[u8], record: (Record, IdBytes)) -> (Result<Copied>, Vec<u8>) {
    let file = tempfile::tempfile().unwrap_or_else(|error| panic!("{error}"));
    file.set_len(length(bytes)).unwrap_or_else(|error| panic!("{error}"));
    let status = nix::sys::stat::fstat(&file).unwrap_or_else(|errno| panic!("{errno}"));
    let mut copy = Vec::new();
    let mut from = bytes;
    let result = copy_checked(&mut from, &mut copy, &status, record);
    (result, copy)
}

fn refuses(bytes: &[u8], ids: IdBytes) -> bool {
    copied(bytes, (Record::Index, ids)).0 == Err(Errno::EBADMSG)
}

/// Encodes a number as git does in packs.
fn offset_of(mut value: usize) -> Vec<u8> {
    let seven = |value: usize| u8::try_from(value % 128).unwrap_or_default();
    let mut bytes = vec![seven(value)];
    while value >= 128 {
        value = value / 128 - 1;
        bytes.insert(0, 0x80 | seven(value));
    }
    bytes
}

/// Encodes an index of these paths, with more after its entries.
fn encoded(version: u32, ids: IdBytes, paths: &[&str], more: &[u8]) -> Vec<u8> {
    let mut bytes = b"DIRC".to_vec();
    let number = u32::try_from(paths.len()).unwrap_or(u32::MAX);
    bytes.extend([version, number].map(u32::to_be_bytes).concat());
    let mut before = "";
    for path in paths {
        let start = bytes.len();
        bytes.resize(start + 40 + count(ids), 7);
        // The first entry has more flags.
        let is_extended = version > 2 && before.is_empty();
        let length = u16::try_from(path.len()).unwrap_or(0xfff).min(0xfff);
        let flags = if is_extended { length | 0x4000 } else { length };
        bytes.extend(flags.to_be_bytes());
        bytes.extend(if is_extended { &[0; 2][..] } else { &[] });
        if version == 4 {
            let kept = path.bytes().zip(before.bytes()).take_while(|(a, b)| a == b).count();
            bytes.extend(offset_of(before.len() - kept));
            bytes.extend(path.as_bytes().get(kept..).unwrap_or_default());
            bytes.push(0);
        } else {
            bytes.extend(path.as_bytes());
            let used = bytes.len() - start;
            bytes.resize(bytes.len() + 8 - used % 8, 0);
        }
        before = path;
    }
    bytes.extend(more);
    bytes.resize(bytes.len() + count(ids), 9);
    bytes
}

const TREE: &[u8] = b"TREE\0\0\0\x05abcdeREUC\0\0\0\0";

fn each_form() -> impl Iterator<Item = (u32, IdBytes)> {
    let ids = [IdBytes::Sha1, IdBytes::Sha256];
    [2, 3, 4].into_iter().flat_map(move |version| ids.map(|ids| (version, ids)))
}

#[test]
fn an_index_with_paths_of_the_work_tree_is_copied_as_it_is() {
    let long = "x/".repeat(2047) + "y";
    let paths = ["a", "a/b", "a/bc", ".gitignore", "a/...", "sparse/", &long, "z"];
    for (version, ids) in each_form() {
        for more in [TREE, b""] {
            let bytes = encoded(version, ids, &paths, more);
            let (result, copy) = copied(&bytes, (Record::Index, ids));
            assert_eq!(result, Ok(Copied::All), "{version} {ids:?}");
            assert!(copy == bytes, "{version} {ids:?}");
        }
    }
}

#[test]
fn a_path_outside_of_the_work_tree_is_refused() {
    let bad = [
        "",
        "/etc/x",
        "../x",
        "a/../../x",
        "a/..",
        ".",
        "./a",
        "a//b",
        "a//",
        ".git",
        ".git/hooks/x",
        "a/.GIT/config",
        "a/git~1/x",
        "l/cofferdam-caches/x/y",
    ];
    for (version, ids) in each_form() {
        for path in bad {
            for paths in [&[path][..], &["a", path], &[path, "z"]] {
                let bytes = encoded(version, ids, paths, TREE);
                assert!(refuses(&bytes, ids), "{version} {ids:?} {paths:?}");
            }
        }
    }
}

#[test]
fn an_index_that_git_reads_in_another_order_is_refused() {
    for (version, ids) in each_form() {
        for name in ["link", "EOIE", "IEOT"] {
            let more = [name.as_bytes(), b"\0\0\0\x02xy"].concat();
            assert!(refuses(&encoded(version, ids, &["a"], &more), ids), "{name}");
            let more = [TREE, &more].concat();
            assert!(refuses(&encoded(version, ids, &["a"], &more), ids), "{name}");
        }
        // In the bytes of another extension, where git looks for it from the end.
        let size = 12 + count(ids);
        let header = [b"TREE".as_slice(), &u32::try_from(size).unwrap_or(0).to_be_bytes()].concat();
        let mut more = [&header[..], b"EOIE"].concat();
        more.resize(header.len() + size, 0);
        assert!(refuses(&encoded(version, ids, &["a"], &more), ids));
        more = header;
        more.resize(more.len() + size, 0);
        assert!(!refuses(&encoded(version, ids, &["a"], &more), ids), "the control");
        // A length that ends the path sooner than its NUL does.
        let mut bytes = encoded(version, ids, &["a/b/c/d/e"], TREE);
        assert!(!refuses(&bytes, ids), "the control");
        let low_byte_of_flags = 12 + 40 + count(ids) + 1;
        *bytes.get_mut(low_byte_of_flags).unwrap_or(&mut 0) = 3;
        assert!(refuses(&bytes, ids));
        let other = if ids == IdBytes::Sha1 { IdBytes::Sha256 } else { IdBytes::Sha1 };
        assert!(refuses(&encoded(version, ids, &["a", "b"], TREE), other), "{version} {ids:?}");
    }
    for version in [0, 1, 5] {
        assert!(refuses(&encoded(version, IdBytes::Sha1, &["a"], TREE), IdBytes::Sha1));
    }
}

#[test]
fn names_of_files_without_an_entry_are_left_out() {
    let untracked = |size: usize| {
        let length = u32::try_from(size).unwrap_or(0).to_be_bytes();
        [b"UNTR".as_slice(), &length, &vec![b'x'; size]].concat()
    };
    for (version, ids) in each_form() {
        for size in [0, 9, 20_000] {
            for (before, after) in [(TREE, &b""[..]), (b"", TREE), (TREE, b"FSMN\0\0\0\x02xy")] {
                let more = [before, &untracked(size), after].concat();
                let bytes = encoded(version, ids, &["a", "b/c"], &more);
                let (result, copy) = copied(&bytes, (Record::Index, ids));
                assert_eq!(result, Ok(Copied::Less), "{version} {ids:?} {size}");
                let mut expected = encoded(version, ids, &["a", "b/c"], &[before, after].concat());
                let end = expected.len() - count(ids);
                expected.truncate(end);
                expected.resize(end + count(ids), 0);
                assert!(copy == expected, "{version} {ids:?} {size}");
            }
        }
        // What comes to the place where git looks for a table is no table.
        let size = 12 + count(ids);
        let mut before =
            [b"TREE".as_slice(), &u32::try_from(size).unwrap_or(0).to_be_bytes()].concat();
        let start = before.len();
        before.extend(b"EOIE");
        before.resize(start + size, 0);
        let more = [before, untracked(9)].concat();
        assert!(refuses(&encoded(version, ids, &["a"], &more), ids), "{version} {ids:?}");
    }
}

#[test]
fn a_list_of_tables_has_names_of_its_directory_only() {
    let check = |text: &str| copied(text.as_bytes(), (Record::Tables, IdBytes::Sha1));
    for good in ["", "0x000000000001-0x000000000002-6ce0d0d7.ref\n0x03.ref\n"] {
        assert_eq!(check(good), (Ok(Copied::All), good.as_bytes().to_vec()), "{good}");
    }
    for bad in ["../x.ref\n", "a.ref\n/x.ref", "a\n..\n", "x/y", "a\0b", ".x"] {
        assert_eq!(check(bad).0, Err(Errno::EBADMSG), "{bad}");
    }
}

#[test]
fn an_index_without_its_end_is_refused() {
    for (version, ids) in each_form() {
        let bytes = encoded(version, ids, &["a", "b/c"], TREE);
        for cut in 0..bytes.len() - TREE.len() - count(ids) {
            assert!(refuses(bytes.get(..cut).unwrap_or_default(), ids), "{version} {cut}");
        }
        // It has grown since it was opened.
        let mut from = &bytes[..];
        let mut copy = Vec::new();
        let mut copying = Copying::new(&mut from, &mut copy, length(&bytes) - 1);
        let result = index(&mut copying, ids).and_then(|_| copying.rest());
        assert_eq!(result, Err(Errno::EBADMSG), "{version} {ids:?}");
    }
}

#[test]
fn only_an_empty_list_of_conflicts_is_copied() {
    let check = |text: &str| copied(text.as_bytes(), (Record::Conflicts, IdBytes::Sha1)).0;
    assert_eq!(check(""), Ok(Copied::All));
    assert_eq!(check("0123456789abcdef0123456789abcdef01234567\tf\0"), Err(Errno::EBADMSG));
}

#[test]
fn the_configuration_has_the_length_of_ids() {
    for (config, expected) in [
        ("", IdBytes::Sha1),
        ("[extensions]\n\tobjectFormat = sha256\n", IdBytes::Sha256),
        ("[extensions]\n objectformat=SHA256 \n", IdBytes::Sha256),
        ("[extensions] objectFormat = \"sha256\" ; it is", IdBytes::Sha256),
        ("[core]\n x = 1\n[EXTENSIONS]\n y = 2\n objectformat = sha256", IdBytes::Sha256),
        (
            "[extensions]\n y = 2\n[branch \"objectformat=sha256\"]\n objectformat = sha256\n",
            IdBytes::Sha1,
        ),
        ("[submodule \"objectformat=sha256\"]\n\tactive = true\n", IdBytes::Sha1),
        ("[extensions \"x\"]\n\tobjectformat = sha256\n", IdBytes::Sha1),
        ("[x \"]\"]\n[extensions]\nobjectformat = sha256\nobjectformat = sha1\n", IdBytes::Sha1),
        ("[extensions]\n\tobjectFormat = sha1\n[remote \"x\"]\n\turl = /sha256\n", IdBytes::Sha1),
    ] {
        assert_eq!(ids_in(config.as_bytes()), expected, "{config}");
    }
}

/// Returns the paths that git finds in an index: it takes their lengths from the flags, and where the next entry is from
/// these (read-cache.c: create_from_disk).
fn as_git_reads(bytes: &[u8], ids: IdBytes) -> Option<Vec<Vec<u8>>> {
    let number = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let to_nul = |at: usize| bytes.get(at..)?.iter().position(|byte| *byte == 0);
    let version = number(4)?;
    let entries = number(8)?;
    let mut paths: Vec<Vec<u8>> = Vec::new();
    let mut at = 12;
    for _ in 0..entries {
        let flags = at + 40 + count(ids);
        let set = u16::from_be_bytes(*bytes.get(flags..)?.first_chunk()?);
        let name = flags + if set & 0x4000 == 0 { 2 } else { 4 };
        let listed = Some(usize::from(set & 0xfff)).filter(|length| *length < 0xfff);
        let (path, next) = if version == 4 {
            let mut rest = bytes.get(name..)?.iter();
            let mut byte = *rest.next()?;
            let mut cut = usize::from(byte & 127);
            while byte & 128 != 0 {
                byte = *rest.next()?;
                cut = (cut + 1).checked_mul(128)? + usize::from(byte & 127);
            }
            let name = bytes.len() - rest.len();
            let before = paths.last().map_or(&[][..], Vec::as_slice);
            let kept = before.get(..before.len().checked_sub(cut)?)?;
            let length = match listed {
                Some(length) => length.checked_sub(kept.len())?,
                None => to_nul(name)?,
            };
            ([kept, bytes.get(name..name + length)?].concat(), name + length + 1)
        } else {
            let length = listed.or_else(|| to_nul(name))?;
            (bytes.get(name..name + length)?.to_vec(), at + (name - at + length + 8) / 8 * 8)
        };
        paths.push(path);
        at = next;
    }
    Some(paths)
}

/// Numbers that look random and are the same each time (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let end = u64::try_from(end.max(1)).unwrap_or(1);
        usize::try_from(self.0 % end).unwrap_or_default()
    }
}

#[test]
fn git_finds_no_other_paths_in_a_changed_index() {
    const CHANGES: [u8; 12] = [0, 1, 2, 3, 4, 7, 8, 0x40, 0x80, 0xff, b'/', b'.'];
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for (version, ids) in each_form() {
        let paths = ["a", "a.b/c", "a/b/...d", "e/.g/f", "e/.g/f/h", "x"];
        let whole = encoded(version, ids, &paths, TREE);
        for _ in 0..8_000 {
            let mut bytes = whole.clone();
            for _ in 0..=numbers.below(3) {
                let at = numbers.below(bytes.len());
                let byte = CHANGES.get(numbers.below(CHANGES.len())).copied();
                *bytes.get_mut(at).unwrap_or(&mut 0) = byte.unwrap_or_default();
            }
            if refuses(&bytes, ids) {
                continue;
            }
            accepted += 1;
            let found = as_git_reads(&bytes, ids).unwrap_or_else(|| panic!("{bytes:?}"));
            let is_good = |part: &[u8]| !matches!(part, b"" | b"." | b".." | b".git");
            for path in found {
                let path = path.strip_suffix(b"/").unwrap_or(&path);
                assert!(path.split(|byte| *byte == b'/').all(is_good), "{path:?} in {bytes:?}");
            }
        }
    }
    assert!(accepted > 1_000, "the control: {accepted}");
}
