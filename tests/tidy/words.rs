//! The words of comments, and the names of limits: those that readers of other projects know.

use std::collections::BTreeMap;

use crate::form::{Source, assert_no_faults, sources};

/// Words that comments rarely need, each with the number of uses that is allowed in 1,000,000 words of comments.
///
/// A sentence with one of them often becomes plainer without it. In the comments of Firecracker, ripgrep and jj
/// the first two have up to 70 and 270 uses in a million words, the others up to 170. Lower a number here after
/// you have rewritten comments.
const RARE: [(&str, &[&str], usize); 8] = [
    ("told", &["told", "tell", "tells", "telling"], 35),
    ("none", &["none"], 260),
    ("nobody", &["nobody", "somebody"], 20),
    ("of its own", &["of its own", "of their own"], 15),
    ("goes", &["goes", "goes on", "go on"], 85),
    ("beside", &["beside", "besides"], 35),
    ("whoever", &["whoever"], 10),
    ("anew", &["anew"], 5),
];

/// Returns the words of the comments in a text, in lower case, without what stands in backticks.
fn words_of_comments(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for line in text.lines() {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let prose = comment.split('`').step_by(2).collect::<Vec<_>>().join(" ` ");
        let parts = prose.split(|c: char| !c.is_alphabetic() && c != '\'' && c != '`');
        words.extend(parts.filter(|word| !word.is_empty()).map(str::to_lowercase));
    }
    words
}

/// Returns how often a word, or a row of words, stands in a text.
fn uses(words: &[String], phrase: &str) -> usize {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    let is_here = |window: &[String]| window.iter().zip(&phrase).all(|(word, part)| word == part);
    words.windows(phrase.len()).filter(|window| is_here(window)).count()
}

#[test]
fn comments_are_in_plain_words() {
    let mut total = 0;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for Source { path, text } in &sources() {
        let words = words_of_comments(text);
        total += words.len();
        for (name, phrases, _) in RARE {
            let count: usize = phrases.iter().map(|phrase| uses(&words, phrase)).sum();
            *counts.entry(name).or_default() += count;
            if count > 0 {
                files.entry(name).or_default().push(format!("{}: {count}", path.display()));
            }
        }
    }
    assert!(total > 100_000, "only {total} words of comments were found");
    let mut faults = Vec::new();
    for (name, _, allowed) in RARE {
        let count = counts.get(name).copied().unwrap_or_default();
        let max_count = total * allowed / 1_000_000;
        println!("{name}: {count} uses in {total} words, {max_count} are allowed");
        if count > max_count {
            let files = files.remove(name).unwrap_or_default().join("\n  ");
            faults.push(format!("`{name}`: {count} uses, {max_count} are allowed\n  {files}"));
        }
    }
    assert_no_faults(&faults);
}

#[test]
fn the_reader_of_words_finds_them_in_comments_alone() {
    let text = "//! Nobody `told` it.\n/// It is of its own.\nlet told = none;\n    // goes on\n";
    let words = words_of_comments(text);
    assert_eq!(uses(&words, "nobody"), 1);
    assert_eq!(uses(&words, "told"), 0);
    assert_eq!(uses(&words, "of its own"), 1);
    assert_eq!(uses(&words, "goes on"), 1);
    assert_eq!(uses(&words, "none"), 0);
}

#[test]
fn limits_are_named_max_and_min() {
    let mut faults = Vec::new();
    // This file names what it looks for.
    let others = |source: &&Source| !source.path.ends_with("tidy/words.rs");
    for source in sources().iter().filter(others) {
        for (number, line) in source.code() {
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let is_odd = |word: &str| word.starts_with("MOST_") || word.starts_with("LEAST_");
            if let Some(word) = words.find(|word| is_odd(word)) {
                faults.push(format!("{}:{number}: `{word}`", source.path.display()));
            }
        }
    }
    assert_no_faults(&faults);
}

/// Returns true for `let (a, b) = (x, y);`, which binds several values on a line.
fn binds_a_tuple(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("let (") && line.contains(") = (") && line.ends_with(");")
}

#[test]
fn a_line_binds_one_value() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.is_product()) {
        let found = source.code().filter(|(_, line)| binds_a_tuple(line));
        faults.extend(found.map(|(number, _)| format!("{}:{number}", source.path.display())));
    }
    assert_no_faults(&faults);
    assert!(binds_a_tuple("    let (a, b) = (1, 2);"), "one would be found");
}
