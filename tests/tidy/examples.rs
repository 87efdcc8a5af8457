//! The examples of the code's documentation, which no run of the tests compiles.

use crate::form::{assert_no_faults, sources};

/// Languages of blocks that rustdoc shows and does not run.
const SHOWN: [&str; 5] = ["text", "toml", "json", "sh", "ignore"];

/// Returns the lines that open a block which rustdoc would run as Rust.
fn runnable(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    let mut is_open = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let Some(comment) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            continue;
        };
        let Some(language) = comment.trim().strip_prefix("```") else { continue };
        is_open = !is_open;
        if is_open && !SHOWN.contains(&language) {
            lines.push(number);
        }
    }
    lines
}

/// The libraries set `doctest = false`, so an example would never be tried.
#[test]
fn documentation_has_no_example_that_would_run() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("src")) {
        for number in runnable(&source.text) {
            let place = source.path.display();
            faults.push(format!("{place}:{number}: name the language of the block, or test it"));
        }
    }
    assert_no_faults(&faults);
    assert_eq!(runnable("/// ```\n/// f();\n/// ```\n/// ```text\n/// ```\n"), [1]);
}
