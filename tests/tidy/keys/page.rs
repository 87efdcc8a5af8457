//! Lays the table of keys out as a page.

use config::document::{FileKey, Form, KeyTable, one_line};
use config::schema::ConfigFile;

/// Line about the page's origin.
const ORIGIN: &str = "<!-- Made from the table of keys in src/config, like the schemas: \
                      `UPDATE_SNAPSHOTS=1 cargo test --test tidy keys::` writes it. -->";

const HEAD: &str = "\
Each key of the three kinds of TOML files, with the values that it takes, its default and an example. \
[Configuration](configuration.md) says where the files are and how they go together; this page and the \
[JSON Schemas](../schemas) are made from the table by which the files are read, and its examples and defaults are \
tested.

A *time* is text with a unit, such as `\"500ms\"`, `\"30s\"`, `\"1.5m\"` or `\"1h\"`; a bare number is seconds. A *size* is text \
with a unit, such as `\"512K\"`, `\"64M\"` or `\"1G\"`, each 1024 times the one before; a bare number is bytes. A table \
`[a]` can also be written `a = { … }`, and tables `[[a]]` as `a = [{ … }, { … }]`. Unknown keys are refused.
";

/// Returns the word in front of the headings of a kind of file.
pub fn heading(kind: ConfigFile) -> String {
    format!("{kind:?}")
}

/// Returns the whole page.
pub fn page() -> String {
    let mut text = format!("# Every key of the configuration\n\n{ORIGIN}\n\n{HEAD}");
    for kind in ConfigFile::ALL {
        text.push_str(&format!("\n## {}: `{}`\n", heading(kind), kind.files()));
        table(&heading(kind), "", &kind.keys(), &mut text);
    }
    text
}

/// Adds a table and those in it. `path` is empty for the file itself, else ends with a dot.
fn table(kind: &str, path: &str, table: &KeyTable, text: &mut String) {
    text.push_str(&format!(
        "\n{}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
        one_line(table.comment)
    ));
    for key in &table.keys {
        text.push_str(&row(kind, path, key));
    }
    for key in &table.keys {
        let name = format!("{path}{}", key.name);
        if let Some((inner, heading)) = inner(&key.form, &name) {
            text.push_str(&format!("\n### {kind}: `{heading}`\n"));
            self::table(kind, &format!("{name}."), inner, text);
        }
    }
}

/// Returns the table in a value, and how TOML heads it.
fn inner<'a>(form: &'a Form, name: &str) -> Option<(&'a KeyTable, String)> {
    let heading = match form {
        Form::List(_) => format!("[[{name}]]"),
        Form::Table(_) | Form::Plain(..) | Form::Words(_) | Form::Pair(_) | Form::Map(_) => {
            format!("[{name}]")
        }
    };
    form.table().map(|table| (table, heading))
}

fn row(kind: &str, path: &str, key: &FileKey) -> String {
    let name = format!("{path}{}", key.name);
    let mut meaning = key.text();
    for (word, comment) in key.form.words() {
        meaning.push_str(&format!("<br>`\"{word}\"`: {}", one_line(comment)));
    }
    let value = match inner(&key.form, &name) {
        Some((_, heading)) => {
            let plain = |c: &char| c.is_alphanumeric() || *c == '_';
            let anchor: String = heading.chars().filter(plain).collect();
            format!("[`{heading}`](#{}-{anchor})", kind.to_lowercase())
        }
        None => {
            let example = key.example().unwrap_or_default();
            meaning.push_str(&format!("<br>Example: `{} = {example}`", key.name));
            words(&key.form)
        }
    };
    let default = match key.is_required {
        true => "required".to_owned(),
        false => key.default().unwrap_or_else(|| "none".to_owned()),
    };
    let cells = [format!("`{}`", key.name), value, default, meaning];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

fn words(form: &Form) -> String {
    match form {
        Form::Plain(words, _) => (*words).to_owned(),
        Form::Words(choices) => {
            choices.iter().map(|(word, _)| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
        }
        Form::List(of) if matches!(**of, Form::Words(_)) => format!("list of {}", words(of)),
        Form::List(of) => format!("list of {}s", words(of)),
        Form::Pair(of) => format!("list of two {}s", words(of)),
        Form::Map(of) => format!("table of {}s by name", words(of)),
        Form::Table(_) => String::new(),
    }
}
