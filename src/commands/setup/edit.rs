//! Puts one entry into the text of a client's file and leaves everything else as it stands.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table};

use super::clients::{ClientFacts, Entry, Language};

/// Mark at the beginning of a file that editors on other systems write (U+FEFF).
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Name of the entry.
pub(super) const NAME: &str = "cofferdam";

/// Returns the text with the entry in it; where one is already, in its place.
///
/// # Errors
/// The reason for which the text cannot be edited: it is not in its language, or has something else where the
/// servers should be.
pub(super) fn edited(client: &ClientFacts, text: &str, entry: &Entry) -> Result<String, String> {
    // A mark of the coding is no part of the language.
    let (mark, text) = match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => (BYTE_ORDER_MARK, rest),
        None => ("", text),
    };
    let edited = match client.language {
        Language::Json => json(client.servers, text, entry)?,
        Language::Toml => {
            let edited = toml(client.servers, text, entry)?;
            let all = text.matches('\n').count();
            match all > 0 && text.matches("\r\n").count() == all {
                true => edited.replace("\r\n", "\n").replace('\n', "\r\n"),
                false => edited,
            }
        }
    };
    Ok(format!("{mark}{edited}"))
}

/// Returns the members of the entry in a text that are none of `entry`, each with its value as JSON.
pub(super) fn others(client: &ClientFacts, text: &str, entry: &Entry) -> Vec<(String, String)> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let all: Option<Value> = match client.language {
        Language::Json => CstRootNode::parse(text, &ParseOptions::default())
            .ok()
            .and_then(|root| root.to_serde_value()),
        Language::Toml => toml_edit::de::from_str(text).ok(),
    };
    let own = all.as_ref().and_then(|all| all.get(client.servers)?.get(NAME)?.as_object());
    let is_ours = |name: &str| entry.iter().any(|(ours, _)| *ours == name);
    let others = own.into_iter().flatten().filter(|(name, _)| !is_ours(name));
    others.map(|(name, value)| (name.clone(), value.to_string())).collect()
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
    let value = root.to_serde_value().ok_or("has no value")?;
    let own = value.get(servers).and_then(|table| table.get(NAME));
    match entry.iter().all(|(name, value)| own.and_then(|own| own.get(*name)) == Some(value)) {
        true => Ok(edited),
        false => Err(format!("has `{servers}` or `{NAME}` twice")),
    }
}

/// Sets the members of the entry. What else is in one that is there, such as `env`, is the user's and stays.
fn set(table: &CstObject, entry: &Entry) {
    let own = table.get(NAME).and_then(|found| found.object_value());
    let Some(own) = own else {
        let members = entry.iter().map(|(name, value)| ((*name).to_owned(), input(value)));
        let members = CstInputValue::Object(members.collect());
        match table.get(NAME) {
            Some(found) => found.set_value(members),
            None => {
                table.append(NAME, members);
            }
        }
        return;
    };
    for (name, value) in entry {
        match own.get(name) {
            // An equal value that is spelt in another way stays.
            Some(found)
                if found.value().and_then(|found| found.to_serde_value()).as_ref()
                    == Some(value) => {}
            Some(found) => found.set_value(input(value)),
            None => {
                own.append(name, input(value));
            }
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
    let mut implicit = Table::new();
    implicit.set_implicit(true);
    let table = document.entry(servers).or_insert(Item::Table(implicit));
    let table = table.as_table_like_mut().ok_or_else(|| format!("has no table at `{servers}`"))?;
    let own = table.entry(NAME).or_insert(Item::Table(Table::new()));
    let own = own.as_table_like_mut().ok_or_else(|| format!("has no table at `{NAME}`"))?;
    // Keep other members of an entry that is there, such as `env`: they are the user's.
    for (name, _) in entry {
        let Some(wanted) = values.get(name).and_then(Item::as_value) else { continue };
        match own.get_mut(name).and_then(Item::as_value_mut) {
            Some(found) if meaning(found) == meaning(wanted) => {}
            Some(found) => {
                let spaces = found.decor().clone();
                *found = wanted.clone();
                *found.decor_mut() = spaces;
            }
            None => {
                own.insert(name, Item::Value(wanted.clone()));
            }
        }
    }
    Ok(document.to_string())
}

/// Returns a value without its spelling and comments.
fn meaning(value: &toml_edit::Value) -> Option<Value> {
    Value::deserialize(value.clone().into_deserializer()).ok()
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
    fn members_that_setup_did_not_write_are_named() {
        for (client, text) in [
            (Client::ClaudeCode, r#"{"mcpServers":{"cofferdam":{"command":"x","env":{"A":"b"}}}}"#),
            (Client::Codex, "[mcp_servers.cofferdam]\ncommand = \"x\"\nenv = { A = \"b\" }\n"),
        ] {
            let facts = client.facts();
            let entry = facts.entry("/bin/cofferdam", "/p");
            let expected = vec![("env".to_owned(), r#"{"A":"b"}"#.to_owned())];
            assert_eq!(others(facts, text, &entry), expected);
            let own = edited(facts, "", &entry).unwrap_or_default();
            assert!(own.contains(NAME));
            assert_eq!(others(facts, &own, &entry), Vec::new());
        }
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
    fn what_the_user_has_in_the_entry_stays() {
        let before = "# top\n[mcp_servers.cofferdam] # mine\n# before\ncommand = \"/old\" # behind\nenv = { A = \"x\" }\n\n\
            [mcp_servers.cofferdam.tools]\nx = 1\n";
        let after = "# top\n[mcp_servers.cofferdam] # mine\n# before\ncommand = \"/bin/cofferdam\" # behind\n\
            env = { A = \"x\" }\nargs = [\"serve\", \"--workspace\", \"/p\"]\ntool_timeout_sec = 660\n\n\
            [mcp_servers.cofferdam.tools]\nx = 1\n";
        assert_eq!(into(Client::Codex, before).as_deref(), Ok(after));
        assert_eq!(into(Client::Codex, after).as_deref(), Ok(after), "a second time");
        let dos = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
        assert_eq!(into(Client::Codex, &dos(before)), Ok(dos(after)));
        // A blank in a path is a part of it.
        let other = after.replace("\"/p\"", "\"/ p\"");
        assert_eq!(into(Client::Codex, &other).as_deref(), Ok(after));
        let json = "\u{feff}{\"mcpServers\": {\"cofferdam\": {\"env\": {\"A\": \"x\"}, \"command\": \"/old\"}}}";
        let edited = into(Client::ClaudeCode, json).unwrap_or_default();
        assert!(
            edited.starts_with('\u{feff}') && edited.contains("\"env\": {\"A\": \"x\"}"),
            "{edited}"
        );
        assert!(edited.contains("\"command\": \"/bin/cofferdam\""), "{edited}");
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
