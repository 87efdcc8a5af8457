//! Parses the shipped configuration at build time.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Parses the shipped files, which links in this directory lead to, and writes their content as a Rust value.
fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = Vec::new();
    for directory in ["policies", "sandbox-profiles", "sandbox-profiles/egress"] {
        println!("cargo::rerun-if-changed={directory}");
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            paths.extend(path.is_file().then_some(path));
        }
    }
    paths.sort();
    let mut parsed = Parsed::default();
    let mut files = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path)?;
        let table =
            DeTable::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let value = parsed.table(table.get_ref())?;
        let name = parsed.text(&path.to_string_lossy());
        files.push(format!("({name}, {})", node(&table.span(), &value)));
    }
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo has set no OUT_DIR")?);
    let Parsed { text, nodes, entries } = parsed;
    let nodes = nodes.join(",\n");
    let entries = entries.join(",\n");
    let files = files.join(",\n");
    let all = format!(
        "Shipped {{ text: {text:?}, nodes: &[{nodes}], entries: &[{entries}], files: &[{files}] }}"
    );
    Ok(fs::write(directory.join("shipped.rs"), all)?)
}

/// Tables of `document::parsed` for all files. They use indices instead of pointers, because every
/// pointer would have to be relocated at each start.
#[derive(Default)]
struct Parsed {
    /// Every text and key; texts may overlap.
    text: String,
    /// The values of all lists, one after the other.
    nodes: Vec<String>,
    /// The entries of all tables, one after the other.
    entries: Vec<String>,
}

impl Parsed {
    fn text(&mut self, text: &str) -> String {
        let at = self.text.find(text).unwrap_or_else(|| {
            self.text.push_str(text);
            self.text.len() - text.len()
        });
        format!("Text {{ at: {at}, long: {} }}", text.len())
    }

    fn table(&mut self, table: &DeTable<'_>) -> Result<String, Box<dyn Error>> {
        let mut entries = Vec::new();
        for (key, value) in table {
            let key = self.text(key.get_ref());
            let value = self.value(value)?;
            entries.push(format!("({key}, {value})"));
        }
        Ok(format!("Value::Table({})", append(&mut self.entries, entries)))
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>) -> Result<String, Box<dyn Error>> {
        let value_text = match value.get_ref() {
            DeValue::String(text) => format!("Value::Text({})", self.text(text)),
            DeValue::Integer(number) => {
                format!("Value::Whole({})", i64::from_str_radix(number.as_str(), number.radix())?)
            }
            DeValue::Float(number) => {
                format!("Value::Fraction({})", self.text(number.as_str()))
            }
            DeValue::Boolean(flag) => format!("Value::Flag({flag})"),
            DeValue::Array(values) => {
                let nodes =
                    values.iter().map(|value| self.value(value)).collect::<Result<Vec<_>, _>>()?;
                format!("Value::List({})", append(&mut self.nodes, nodes))
            }
            DeValue::Table(table) => self.table(table)?,
            other @ DeValue::Datetime(_) => {
                return Err(format!("{other:?} is in no schema").into());
            }
        };
        Ok(node(&value.span(), &value_text))
    }
}

/// Appends `these` to `all` and returns their position.
fn append(all: &mut Vec<String>, these: Vec<String>) -> String {
    let first = all.len();
    let count = these.len();
    all.extend(these);
    format!("Part {{ first: {first}, count: {count} }}")
}

fn node(span: &std::ops::Range<usize>, value: &str) -> String {
    format!("Node {{ from: {}, to: {}, value: {value} }}", span.start, span.end)
}
