//! Puts one entry into the text of a client's file and leaves everything else as it stands.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table};

use super::clients::{ClientFacts, Entry, Language};

/// Name of the entry.
pub(super) const NAME: &str = "cofferdam";

/// Returns the text with the entry in it; where one is already, in its place.
///
/// # Errors
/// The reason for which the text cannot be edited: it is none of its language, or has something else where the
/// servers should be.
pub(super) fn edited(client: &ClientFacts, text: &str, entry: &Entry) -> Result<String, String> {
    match client.language {
        Language::Json => json(client.servers, text, entry),
        Language::Toml => toml(client.servers, text, entry),
    }
}

fn json(servers: &str, text: &str, entry: &Entry) -> Result<String, String> {
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let root = CstRootNode::parse(text, &ParseOptions::default())
        .map_err(|error| format!("is no JSON: {error}"))?;
    let top = root.object_value().ok_or("has no object at its top")?;
    let table = top
        .object_value_or_create(servers)
        .ok_or_else(|| format!("has no object at `{servers}`"))?;
    set(&table, entry);
    let edited = root.to_string();
    // Of two members with one name, clients take the last.
    let told = root.to_serde_value().ok_or("has no value")?;
    match told.get(servers).and_then(|table| table.get(NAME)) == Some(&object(entry)) {
        true => Ok(edited),
        false => Err(format!("has `{servers}` or `{NAME}` twice")),
    }
}

fn set(table: &CstObject, entry: &Entry) {
    let members = entry.iter().map(|(name, value)| ((*name).to_owned(), input(value)));
    let members = CstInputValue::Object(members.collect());
    match table.get(NAME) {
        // To write an entry anew that says the same would be a change.
        Some(found)
            if found.value().and_then(|value| value.to_serde_value()) == Some(object(entry)) => {}
        Some(found) => found.set_value(members),
        None => {
            table.append(NAME, members);
        }
    }
}

fn object(entry: &Entry) -> Value {
    entry.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(flag) => CstInputValue::Bool(*flag),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(all) => CstInputValue::Array(all.iter().map(input).collect()),
        Value::Object(all) => CstInputValue::Object(
            all.iter().map(|(name, value)| (name.clone(), input(value))).collect(),
        ),
    }
}

fn toml(servers: &str, text: &str, entry: &Entry) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("is no TOML: {error}"))?;
    let values = toml_edit::ser::to_document(&object(entry)).map_err(|error| error.to_string())?;
    let mut wanted = Table::new();
    for (name, _) in entry {
        wanted.insert(name, values.get(name).cloned().unwrap_or_default());
    }
    let mut implicit = Table::new();
    implicit.set_implicit(true);
    let table = document.entry(servers).or_insert(Item::Table(implicit));
    let table = table.as_table_like_mut().ok_or_else(|| format!("has no table at `{servers}`"))?;
    let same = |found: &Item| {
        let told = found.as_table_like()?;
        let equal = |(name, value): (&str, &Item)| {
            told.get(name).is_some_and(|own| plain(own) == plain(value))
        };
        Some(told.len() == wanted.len() && wanted.iter().all(equal))
    };
    if !table.get(NAME).and_then(same).unwrap_or(false) {
        table.insert(NAME, Item::Table(wanted));
    }
    Ok(document.to_string())
}

/// Returns a value without its spaces and comments.
fn plain(item: &Item) -> String {
    item.to_string().split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::super::clients::Client;
    use super::*;

    fn into(client: Client, text: &str) -> Result<String, String> {
        let client = client.facts();
        edited(client, text, &client.entry("/bin/cofferdam", "/p"))
    }

    #[test]
    fn what_else_is_in_a_json_file_stays_as_it_is_written() {
        let before = "// mine\n{\n    \"theme\": \"dark\", // keep\n    \"mcpServers\": {\n        \
            \"other\": { \"command\": \"x\" }\n    }\n}\n";
        let after = "// mine\n{\n    \"theme\": \"dark\", // keep\n    \"mcpServers\": {\n        \
            \"other\": { \"command\": \"x\" },\n        \"cofferdam\": {\n            \
            \"command\": \"/bin/cofferdam\",\n            \
            \"args\": [\"serve\", \"--workspace\", \"/p\"]\n        }\n    }\n}\n";
        assert_eq!(into(Client::ClaudeCode, before).as_deref(), Ok(after));
        assert_eq!(into(Client::ClaudeCode, after).as_deref(), Ok(after), "a second time");
    }

    #[test]
    fn what_else_is_in_a_toml_file_stays_as_it_is_written() {
        let before = "# mine\nmodel = \"x\"  # keep\n\n[mcp_servers.other]\ncommand = \"y\"\n";
        let after = "# mine\nmodel = \"x\"  # keep\n\n[mcp_servers.other]\ncommand = \"y\"\n\n\
            [mcp_servers.cofferdam]\ncommand = \"/bin/cofferdam\"\nargs = [\"serve\", \"--workspace\", \"/p\"]\n\
            tool_timeout_sec = 660\n";
        assert_eq!(into(Client::Codex, before).as_deref(), Ok(after));
        assert_eq!(into(Client::Codex, after).as_deref(), Ok(after), "a second time");
        assert_eq!(into(Client::Codex, "").map(|text| text.contains("[mcp_servers]\n")), Ok(false));
    }

    #[test]
    fn an_older_entry_is_replaced() {
        let old =
            "{\"mcpServers\": {\"cofferdam\": {\"command\": \"old\", \"args\": []}, \"b\": 1}}";
        let new = into(Client::ClaudeCode, old);
        let value: Option<Value> = new.ok().and_then(|text| serde_json::from_str(&text).ok());
        let expected = object(&Client::ClaudeCode.facts().entry("/bin/cofferdam", "/p"));
        let expected = serde_json::json!({ "mcpServers": { "cofferdam": expected, "b": 1 } });
        assert_eq!(value, Some(expected));
    }

    #[test]
    fn a_text_that_is_not_understood_is_left_alone() {
        for text in ["{", "[]", "{\"mcpServers\": 1}", "{\"mcpServers\": {}, \"mcpServers\": {}}"] {
            assert!(into(Client::ClaudeCode, text).is_err(), "{text}");
        }
        for text in ["[", "mcp_servers = 1"] {
            assert!(into(Client::Codex, text).is_err(), "{text}");
        }
    }
}
