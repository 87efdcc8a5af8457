//! Lays the tables of the schemas out as a page.

use super::source::{Form, Key, Table};

/// Line about the page's origin.
const ORIGIN: &str = "<!-- Made of comments in src/config, src/policy, src/profile and src/model/profile. \
                      The test `reference` writes it anew where UPDATE_SNAPSHOTS=1 is set. -->";

const HEAD: &str = "\
Each key of the three kinds of TOML files, with the values that it takes, its default and an example. \
[Configuration](configuration.md) says where the files are and how they go together; this page is made from the \
types that read them, and its examples and defaults are tested.

A *time* is text with a unit, such as `\"500ms\"`, `\"30s\"`, `\"1.5m\"` or `\"1h\"`; a bare number is seconds. A *size* is text \
with a unit, such as `\"512K\"`, `\"64M\"` or `\"1G\"`, each 1024 times the one before; a bare number is bytes. A table \
`[a]` can also be written `a = { … }`, and tables `[[a]]` as `a = [{ … }, { … }]`. Unknown keys are refused.
";

/// A kind of file.
pub struct Kind {
    /// Word in front of its headings.
    pub name: &'static str,
    pub file: &'static str,
    pub root: Table,
}

/// Returns the whole page.
pub fn page(kinds: &[Kind]) -> String {
    let mut text = format!("# Every key of the configuration\n\n{ORIGIN}\n\n{HEAD}");
    for kind in kinds {
        text.push_str(&format!("\n## {}: `{}`\n", kind.name, kind.file));
        table(kind.name, "", &kind.root, &mut text);
    }
    text
}

/// Adds a table and those in it. `path` is empty for the file itself, else ends with a dot.
fn table(kind: &str, path: &str, table: &Table, text: &mut String) {
    text.push_str(&format!(
        "\n{}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
        table.text
    ));
    for key in &table.keys {
        text.push_str(&row(kind, path, key));
    }
    for key in &table.keys {
        let name = format!("{path}{}", key.name);
        if let Some((inner, heading)) = inner(&key.value, &name) {
            text.push_str(&format!("\n### {kind}: `{heading}`\n"));
            self::table(kind, &format!("{name}."), inner, text);
        }
    }
}

/// Returns the table in a value, and how TOML heads it.
fn inner<'a>(value: &'a Form, name: &str) -> Option<(&'a Table, String)> {
    match value {
        Form::Table(table) => Some((table, format!("[{name}]"))),
        Form::Tables(table) => Some((table, format!("[[{name}]]"))),
        Form::Plain(_) | Form::Choice(_) | Form::List(_) | Form::Map(_) => None,
    }
}

fn row(kind: &str, path: &str, key: &Key) -> String {
    let name = format!("{path}{}", key.name);
    let mut meaning = key.text.clone();
    for (word, comment) in choices(&key.value) {
        meaning.push_str(&format!("<br>`\"{word}\"`: {comment}"));
    }
    let value = match inner(&key.value, &name) {
        Some((_, heading)) => {
            let plain = |c: &char| c.is_alphanumeric() || *c == '_';
            let anchor: String = heading.chars().filter(plain).collect();
            format!("[`{heading}`](#{}-{anchor})", kind.to_lowercase())
        }
        None => {
            let example = key.example.as_deref().unwrap_or_default();
            meaning.push_str(&format!("<br>Example: `{} = {example}`", key.name));
            words(&key.value)
        }
    };
    let default = match (key.is_required, &key.default) {
        (true, _) => "required",
        (false, Some(default)) => default,
        (false, None) => "none",
    };
    let cells = [format!("`{}`", key.name), value, default.to_owned(), meaning];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

fn words(value: &Form) -> String {
    match value {
        Form::Plain(words) => (*words).to_owned(),
        Form::Choice(choices) => {
            choices.iter().map(|(word, _)| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
        }
        Form::List(of) if matches!(**of, Form::Choice(_)) => format!("list of {}", words(of)),
        Form::List(of) => format!("list of {}s", words(of)),
        Form::Map(of) => format!("table of {}s by name", words(of)),
        Form::Table(_) | Form::Tables(_) => String::new(),
    }
}

/// Returns the words that a value, or each in its list, is one of.
pub fn choices(value: &Form) -> &[(String, String)] {
    match value {
        Form::Choice(choices) => choices,
        Form::List(of) => choices(of),
        Form::Plain(_) | Form::Map(_) | Form::Table(_) | Form::Tables(_) => &[],
    }
}
