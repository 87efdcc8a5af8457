//! Tests of which indexes and lists of conflicts are copied.

use super::*;

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn count(ids: IdBytes) -> usize {
    usize::try_from(ids.count()).unwrap_or_default()
}

/// Returns the result of copying these bytes, and the copy.
fn copied(bytes: &[u8], record: (Record, IdBytes)) -> (Result<()>, Vec<u8>) {
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
            assert_eq!(result, Ok(()), "{version} {ids:?}");
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
fn an_index_without_its_end_is_refused() {
    for (version, ids) in each_form() {
        let bytes = encoded(version, ids, &["a", "b/c"], TREE);
        for cut in 0..bytes.len() - TREE.len() - count(ids) {
            assert!(refuses(bytes.get(..cut).unwrap_or_default(), ids), "{version} {cut}");
        }
        // It has grown since it was opened.
        let (mut from, mut copy) = (&bytes[..], Vec::new());
        let mut copying = Copying::new(&mut from, &mut copy, length(&bytes) - 1);
        let result = index(&mut copying, ids).and_then(|()| copying.rest());
        assert_eq!(result, Err(Errno::EBADMSG), "{version} {ids:?}");
    }
}

#[test]
fn a_conflict_outside_of_the_work_tree_is_refused() {
    let id = "0123456789abcdef0123456789abcdef01234567";
    let check = |text: &str| copied(text.as_bytes(), (Record::Conflicts, IdBytes::Sha1)).0;
    for good in ["", &format!("{id}\ta/b\0"), &format!("{id}.12\ta\tb\0{id}\tc\nd\0")] {
        assert_eq!(check(good), Ok(()), "{good:?}");
    }
    for bad in [
        format!("{id}\t../secret\0"),
        format!("{id}\ta\0{id}\t/etc/passwd\0"),
        format!("{id}.\t5\t../secret\0"),
        format!("{id}.\t../secret\0"),
        format!("{id}. 5\ta\0"),
        format!("{id}..5\ta\0"),
        format!("{id}\ta"),
        format!("{id}\0"),
        "../x\ta\0".to_owned(),
        "\ta\0".to_owned(),
    ] {
        assert_eq!(check(&bad), Err(Errno::EBADMSG), "{bad:?}");
    }
}

#[test]
fn the_configuration_has_the_length_of_ids() {
    for (config, expected) in [
        ("", IdBytes::Sha1),
        ("[extensions]\n\tobjectFormat = sha256\n", IdBytes::Sha256),
        ("[extensions]\n objectformat=SHA256 \n", IdBytes::Sha256),
        ("[extensions] objectFormat = \"sha256\" ; it is", IdBytes::Sha256),
        ("[extensions]\n\tobjectFormat = sha1\n[remote \"x\"]\n\turl = /sha256\n", IdBytes::Sha1),
    ] {
        assert_eq!(ids_in(config.as_bytes()), expected, "{config}");
    }
}
