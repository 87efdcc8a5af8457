//! Methods of one struct: they must not be spread over many files.
//!
//! A struct whose methods are in many files holds more than one idea, and its receiver says nothing
//! about what a method can touch. Cut its fields into structs that have their methods with them.

use std::collections::{BTreeMap, BTreeSet};

use crate::form::{Source, assert_no_faults, sources};

/// Files that may have methods of one struct.
const MAX_FILES: usize = 4;

/// Returns the crate of a source file of the product, or its folder in `src`.
fn crate_of(source: &Source) -> Option<&str> {
    let mut parts = source.path.iter().map(|part| part.to_str().unwrap_or_default());
    let is_elsewhere = |part: &str| ["tests", "benches"].contains(&part);
    if !source.is_product() || parts.clone().any(is_elsewhere) {
        return None;
    }
    parts.nth(1)
}

/// Returns the rest of a text that begins with `<`, after the `>` that closes it.
fn after_generics(text: &str) -> &str {
    let mut depth = 0_i32;
    let mut before = ' ';
    for (place, c) in text.char_indices() {
        // An arrow of a function's type closes nothing.
        depth += i32::from(c == '<') - i32::from(c == '>' && before != '-');
        before = c;
        if depth == 0 {
            return text.get(place + 1..).unwrap_or_default();
        }
    }
    ""
}

/// Returns the type of an `impl` block without a trait, given the first line of the block.
fn inherent(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { after_generics(rest) } else { rest };
    let name = rest.strip_prefix(' ')?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let (path, rest) = name.split_at(end.unwrap_or(name.len()));
    let rest = if rest.starts_with('<') { after_generics(rest) } else { rest };
    (!rest.starts_with(" for ")).then(|| path.rsplit("::").next().unwrap_or(path))
}

/// Returns the struct, enum or union that a line declares.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_kind = |word: &&str| ["struct", "enum", "union"].contains(word);
    let is_item = line.starts_with("pub") || is_kind(&line.split(' ').next().unwrap_or_default());
    words.find(is_kind).filter(|_| is_item)?;
    words.next()
}

/// Returns the files that have methods of each type, by the type's crate and name.
///
/// Types of one name in several files of a crate count as one with the methods of all files that do
/// not declare it.
fn files_of_types(sources: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let Some(name) = crate_of(source) else { continue };
        let types: BTreeSet<&str> = source.code().filter_map(|(_, line)| declared(line)).collect();
        for (_, line) in source.code() {
            let Some(of) = inherent(line) else { continue };
            let file = source.path.display().to_string();
            let file = if types.contains(of) { "its declaration".to_owned() } else { file };
            files.entry(format!("{name}::{of}")).or_default().insert(file);
        }
    }
    files
}

#[test]
fn no_struct_has_methods_in_more_than_four_files() {
    let files = files_of_types(&sources());
    assert!(files.len() > 300, "only {} types with methods were found", files.len());
    let mut faults = Vec::new();
    for (name, files) in files.into_iter().filter(|(_, files)| files.len() > MAX_FILES) {
        let count = files.len();
        let list = files.into_iter().collect::<Vec<_>>().join("\n  ");
        faults.push(format!("`{name}`: methods in {count} files\n  {list}"));
    }
    assert_no_faults(&faults);
}

#[test]
fn methods_are_counted_by_the_type_they_belong_to() {
    for (line, name) in [
        ("impl Server {", Some("Server")),
        ("impl Maker<'_> {", Some("Maker")),
        ("impl<'a, F: Fn() -> u8> super::Reader<'a, F> {", Some("Reader")),
        ("impl<T> Keys<T>", Some("Keys")),
        ("impl Drop for Cell {", None),
        ("impl<T> From<Vec<T>> for Keys<T> {", None),
        ("    impl Nested {", None),
    ] {
        assert_eq!(inherent(line), name, "{line}");
    }
    assert_eq!(declared("pub(crate) struct Cell<'a> {"), Some("Cell"));
    assert_eq!(declared("fn structure() {"), None);
    let file = |path: &str, text: &str| Source { path: path.into(), text: text.to_owned() };
    let files = files_of_types(&[
        file("src/x/a.rs", "struct A;\nimpl A {\n}\n"),
        file("src/x/b.rs", "impl A {\n}\nimpl A {\n}\n#[cfg(test)]\nmod tests {\nimpl A {\n}\n}\n"),
        file("src/x/c.rs", "struct A;\nimpl A {\n}\nimpl Clone for A {\n}\n"),
        file("src/y/a.rs", "impl A {\n}\n"),
    ]);
    let counts: Vec<usize> = files.values().map(BTreeSet::len).collect();
    assert_eq!(counts, [2, 1], "{files:?}");
}
