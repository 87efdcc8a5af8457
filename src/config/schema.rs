//! JSON Schema of the three kinds of files, for editors: made of the tables of keys from which the files are read.

use crate::document::{Content, Document, FileKey, Form, Item, KeyTable, one_line};

use super::server;

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigFile {
    /// `cofferdam.toml`
    Server,
    /// A file of `policies/`
    Policy,
    /// A file of `sandbox-profiles/`
    Profile,
}

impl ConfigFile {
    pub const ALL: [Self; 3] = [Self::Server, Self::Profile, Self::Policy];

    /// Returns the name of the files.
    pub fn files(self) -> &'static str {
        match self {
            Self::Server => "cofferdam.toml",
            Self::Policy => "policies/*.toml",
            Self::Profile => "sandbox-profiles/*.toml",
        }
    }

    /// Returns the keys of such a file.
    #[must_use]
    pub fn keys(self) -> KeyTable {
        match self {
            Self::Server => server::keys(),
            Self::Policy => crate::policy::keys(),
            Self::Profile => crate::profile::keys(),
        }
    }

    /// Returns the JSON Schema of such a file (draft 7, which editors of TOML read).
    #[must_use]
    pub fn json_schema(self) -> String {
        let keys = self.keys();
        let mut members = vec![
            member("$schema", &quoted("http://json-schema.org/draft-07/schema#")),
            member("title", &quoted(&format!("cofferdam: {}", self.files()))),
            member("description", &quoted(&one_line(keys.comment))),
        ];
        members.extend(table(&keys));
        format!("{}\n", object(&members))
    }
}

/// Returns the members of the schema of a form.
fn members(form: &Form) -> Vec<String> {
    let list = |of: &Form, more: &str| {
        let mut items = members(of);
        if let Form::Table(keys) = of {
            items.insert(0, member("description", &quoted(&one_line(keys.comment))));
        }
        vec![format!(r#""type": "array"{more}"#), member("items", &object(&items))]
    };
    match form {
        Form::Plain(_, rule) => vec![rule.clone().into_owned()],
        Form::Words(words) => {
            let words: Vec<String> = words.iter().map(|(word, _)| quoted(word)).collect();
            vec![member("enum", &format!("[{}]", words.join(", ")))]
        }
        Form::List(of) => list(of, ""),
        Form::Pair(of) => list(of, r#", "minItems": 2, "maxItems": 2"#),
        Form::Map(of) => vec![
            member("type", &quoted("object")),
            member("additionalProperties", &object(&members(of))),
        ],
        Form::Table(keys) => table(keys),
    }
}

fn table(keys: &KeyTable) -> Vec<String> {
    let required = keys.keys.iter().filter(|key| key.is_required);
    let required: Vec<String> = required.map(|key| quoted(key.name)).collect();
    let properties = keys.keys.iter().map(|key| member(key.name, &object(&described(key))));
    let mut members =
        vec![member("type", &quoted("object")), member("additionalProperties", "false")];
    if !required.is_empty() {
        members.push(member("required", &format!("[{}]", required.join(", "))));
    }
    members.push(member("properties", &object(&properties.collect::<Vec<_>>())));
    members
}

/// Returns the schema of a key: its description, form, default and example.
fn described(key: &FileKey) -> Vec<String> {
    let mut description = key.text();
    for (word, comment) in key.form.words() {
        description.push_str(&format!("\n`\"{word}\"`: {}", one_line(comment)));
    }
    let default = key.default();
    // A default in words, or in code and words, is part of the description.
    let code = default.as_deref().and_then(|default| default.strip_prefix('`')?.split_once('`'));
    let value = code.filter(|(_, words)| words.is_empty() || words.starts_with(", "));
    let value = value.and_then(|(code, _)| json(code));
    if let Some(words) = default
        && (value.is_none() || !words.ends_with('`'))
    {
        description.push_str(&format!("\nDefault: {words}."));
    }
    let mut all = vec![member("description", &quoted(&description))];
    all.extend(members(&key.form));
    all.extend(value.map(|value| member("default", &value)));
    let example = key.example().and_then(|example| json(&example));
    all.extend(example.map(|example| member("examples", &format!("[{example}]"))));
    all
}

/// Returns a value of TOML as JSON.
fn json(toml: &str) -> Option<String> {
    fn value(item: Item<'_>) -> Option<String> {
        Some(match item.content().ok()? {
            Content::Text(text) => quoted(text),
            Content::Whole(number) => number.to_string(),
            Content::Fraction(number) => number.to_string(),
            Content::Flag(flag) => flag.to_string(),
            Content::Date => return None,
            Content::List(_) => {
                let items = item.items().ok()?.map(value).collect::<Option<Vec<_>>>()?;
                format!("[{}]", items.join(", "))
            }
            Content::Table(table) => {
                let one = |(name, item): (&str, _)| Some(member(name, &value(item)?));
                let all = table.named().map(one).collect::<Option<Vec<_>>>()?;
                format!("{{{}}}", all.join(", "))
            }
        })
    }
    let document = Document::new("", &format!("value = {toml}"));
    let read = document.open(|root| Ok(root.table()?.get("value").and_then(value)));
    read.ok().flatten()
}

fn member(name: &str, value: &str) -> String {
    format!("{}: {value}", quoted(name))
}

/// Returns an object, each member on a line.
fn object(members: &[String]) -> String {
    format!("{{\n  {}\n}}", members.join(",\n").replace('\n', "\n  "))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
