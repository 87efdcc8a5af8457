//! Looks for paths in an index of git, a file that may be hostile.

/// Returns true if an index has a path that begins with `prefix` (gitformat-index(5)); `None` if it has another form.
pub(super) fn index_has(index: &[u8], prefix: &[u8]) -> Option<bool> {
    /// Bytes of an entry before its flags: times, ids, size and a SHA-1.
    const BEFORE_FLAGS: usize = 60;
    const EXTENDED: u16 = 0x4000;
    let mut rest = index.strip_prefix(b"DIRC")?;
    let mut number = || {
        let (four, more) = rest.split_first_chunk::<4>()?;
        rest = more;
        Some(u32::from_be_bytes(*four))
    };
    let version = number()?;
    let count = number()?;
    let mut path = Vec::new();
    for _ in 0..count {
        let entry = rest;
        let flags = rest.get(BEFORE_FLAGS..)?.split_first_chunk::<2>()?;
        rest = flags.1;
        if u16::from_be_bytes(*flags.0) & EXTENDED != 0 {
            rest = rest.get(2..)?;
        }
        if version == 4 {
            let kept = path.len().checked_sub(offset(&mut rest)?)?;
            path.truncate(kept);
        } else {
            path.clear();
        }
        let length = rest.iter().position(|byte| *byte == 0)?;
        path.extend_from_slice(rest.get(..length)?);
        rest = rest.get(length..)?;
        if path.starts_with(prefix) {
            return Some(true);
        }
        // Older versions fill each entry up to a multiple of eight with at least one NUL.
        let used = entry.len() - rest.len();
        let padding = if version == 4 { 1 } else { 8 - used % 8 };
        rest = rest.get(padding..)?;
    }
    matches!(version, 2..=4).then_some(false)
}

/// Reads a number in the encoding of offsets in packs.
fn offset(rest: &mut &[u8]) -> Option<usize> {
    let mut value = 0_usize;
    loop {
        let (byte, more) = rest.split_first()?;
        *rest = more;
        value = value.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
        value = value.checked_add(1)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes an index of these paths.
    fn index(version: u32, paths: &[&str]) -> Vec<u8> {
        let count = u32::try_from(paths.len()).unwrap_or(u32::MAX);
        let mut bytes = b"DIRC".to_vec();
        bytes.extend([version, count].map(u32::to_be_bytes).concat());
        let mut before = "";
        for path in paths {
            let start = bytes.len();
            bytes.extend([7; 60]);
            // The first entry has more flags.
            let is_extended = version == 3 && before.is_empty();
            bytes.extend(if is_extended { [0x40, 3, 0, 0].as_slice() } else { &[0, 3] });
            if version == 4 {
                let kept = path.bytes().zip(before.bytes()).take_while(|(a, b)| a == b).count();
                let cut = before.len() - kept;
                bytes.extend(match u8::try_from(cut) {
                    Ok(cut) if cut < 128 => vec![cut],
                    _ => vec![0x80, u8::try_from(cut - 128).unwrap_or(0)],
                });
                bytes.extend(path.as_bytes().get(kept..).unwrap_or_default());
                bytes.push(0);
            } else {
                bytes.extend(path.as_bytes());
                let used = bytes.len() - start;
                bytes.resize(bytes.len() + 8 - used % 8, 0);
            }
            before = path;
        }
        bytes.extend(b"TREE and a checksum");
        bytes
    }

    #[test]
    fn a_directory_has_files_if_the_index_has_a_path_below_it() {
        let long = format!("sub/{}", "x".repeat(200));
        let paths = ["sub-other/f", "sub.c", "sub/a/f", long.as_str(), "sub/b", "top/sub/f"];
        for version in [2, 3, 4] {
            let index = index(version, &paths);
            let has = |prefix: &str| index_has(&index, prefix.as_bytes());
            for prefix in ["sub/", "sub/a/", "sub-other/", "top/", "top/sub/"] {
                assert_eq!(has(prefix), Some(true), "{version} {prefix}");
            }
            for prefix in ["su/", "sub/b/", "a/", "sub/a/f/", "TREE"] {
                assert_eq!(has(prefix), Some(false), "{version} {prefix}");
            }
        }
    }

    #[test]
    fn an_index_of_another_form_has_no_files() {
        for version in [2, 4] {
            let index = index(version, &["sub-x/f", "sub-y/f"]);
            for length in 0..index.len() - 20 {
                let cut = index.get(..length).unwrap_or_default();
                assert_ne!(index_has(cut, b"sub-y/g"), Some(true), "{version} {length}");
            }
        }
        for version in [0, 1, 5] {
            assert_eq!(index_has(&index(version, &["f"]), b"g/"), None, "{version}");
        }
        assert_eq!(index_has(b"", b"f/"), None);
        assert_eq!(index_has(b"DIRC\0\0\0\x02\xff\xff\xff\xff", b"f/"), None);
    }
}
