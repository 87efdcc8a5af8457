//! Both protocol eras, and tools/list against its snapshot.

use std::path::Path;

use config::policy::group::ToolGroup;
use config::policy::tools::NAMES;
use serde_json::{Value, json};

use crate::client::{Client, initialize, modern, script, text};

#[tokio::test(start_paused = true)]
async fn older_revisions_initialize_and_call_a_tool() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut client = Client::opened(version).await;
        let answer = client.ask(script(1, "hello")).await;
        assert_eq!(text(&answer), "hello");
        assert_eq!(answer["result"]["isError"], json!(false));
        assert_eq!(answer["result"]["resultType"], Value::Null, "{version} has no resultType");
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_initialize_does_not_change_the_session() {
    let mut client = Client::opened("2025-11-25").await;
    let refused = client.ask(initialize("2026-07-28")).await;
    assert_eq!(refused["error"]["code"], json!(-32600), "{refused}");
    let answer = client.ask(script(1, "hello")).await;
    assert_eq!(answer["result"]["resultType"], Value::Null, "no answer of 2026-07-28: {answer}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_revision_gets_the_newest_with_sessions() {
    let mut client = Client::start();
    let answer = client.ask(initialize("2099-01-01")).await;
    assert_eq!(answer["result"]["protocolVersion"], json!("2025-11-25"));
    assert_eq!(answer["result"]["serverInfo"]["name"], json!("cofferdam"));
}

#[tokio::test(start_paused = true)]
async fn the_stateless_revision_needs_no_initialize() {
    let mut client = Client::start();
    let discover = json!({ "jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {} });
    let answer = client.ask(modern(discover)).await;
    let versions = answer["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")), "{answer}");

    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {} });
    let answer = client.ask(modern(list)).await;
    assert_eq!(
        (&answer["result"]["resultType"], &answer["result"]["cacheScope"]),
        (&json!("complete"), &json!("private"))
    );

    let answer = client.ask(modern(script(3, "hello"))).await;
    assert_eq!(answer["result"]["structuredContent"]["stdout"], json!("hello"));
    assert_eq!(answer["result"]["resultType"], json!("complete"));
    let info = &answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(info["name"], json!("cofferdam"));
}

#[test]
fn only_tools_about_other_tools_are_in_no_group() {
    let alone: Vec<&str> =
        NAMES.iter().copied().filter(|name| ToolGroup::of_tool(name).is_none()).collect();
    assert_eq!(alone, ["sandbox_rules", "get_tool_info"]);
    let grouped = ToolGroup::ALL.iter().flat_map(|group| group.tools());
    assert_eq!(grouped.filter(|name| !NAMES.contains(name)).count(), 0, "a tool that is not there");
}

#[tokio::test(start_paused = true)]
async fn the_tools_are_those_of_the_snapshot() {
    let mut client = Client::built_in("2025-11-25").await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let mut answer = client.ask(list).await;
    let tools = answer["result"]["tools"].as_array_mut().unwrap();
    tools.retain(|tool| NAMES.contains(&tool["name"].as_str().unwrap()));
    let listed = serde_json::to_string_pretty(&answer["result"]).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/tools_list.json");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &listed).unwrap();
    }
    assert_eq!(listed, std::fs::read_to_string(path).unwrap(), "UPDATE_SNAPSHOTS=1 rewrites it");
}

#[tokio::test(start_paused = true)]
async fn schemas_are_closed_and_name_one_type_each() {
    fn walk(value: &Value, path: &str) {
        if let Some(kind) = value.get("type")
            && !path.ends_with("/properties")
        {
            assert!(kind.is_string(), "{path}: {kind}");
            if kind == "object" {
                assert!(value.get("additionalProperties").is_some(), "{path} is open");
            }
        }
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, inner)| walk(inner, &format!("{path}/{name}")));
            }
            Value::Array(items) => items.iter().for_each(|inner| walk(inner, path)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut client = Client::built_in("2025-11-25").await;
    let answer = client.ask(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })).await;
    let tools = answer["result"]["tools"].as_array().unwrap().iter();
    for tool in tools.filter(|tool| NAMES.contains(&tool["name"].as_str().unwrap())) {
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], json!("object"), "{tool}");
            walk(&tool[schema], &format!("{}/{schema}", tool["name"]));
        }
    }
}

#[tokio::test]
async fn every_built_in_tool_is_listed() {
    let mut client = Client::built_in("2025-11-25").await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let answer = client.ask(list).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    // Those of a layer are there for a workspace that has one (grants `layers_served`).
    let of_layer = ["workspace_changes", "workspace_diff"];
    let built_in: Vec<&str> =
        NAMES.iter().copied().filter(|name| !of_layer.contains(name)).collect();
    assert_eq!(names, [&*built_in, &["cli_file"]].concat());
}
