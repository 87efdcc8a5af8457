//! The table of built-in tools: a tool that is in it is listed and called, and no other is.

use mcp::lines::{Ends, Lines};
use mcp::server::{Continuity, Server};
use mcp::tools::{SetPrecisionArguments, ToolEntry};
use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::client::Tools;

#[tokio::test]
async fn exactly_the_tools_of_the_table_exist() {
    const TABLE: &[ToolEntry] = &[ToolEntry::of::<SetPrecisionArguments>()];
    let (near, far) = tokio::io::duplex(1 << 16);
    let (reader, writer) = tokio::io::split(far);
    let ends = Ends::default();
    let kill = ends.kill.clone();
    let Tools { client, .. } = Tools::all();
    let server = Server::with_tools(client, kill, TABLE, None, Continuity::Connection);
    let running = tokio::spawn(async move {
        server.serve(Lines::new(reader, writer, ends)).await.unwrap().waiting().await
    });
    let client = ().serve(near).await.unwrap();
    let listed = client.list_all_tools().await.unwrap();
    assert_eq!(
        listed.iter().map(|tool| tool.name.as_ref()).collect::<Vec<_>>(),
        ["set_precision", "cli_file"]
    );

    let call = |tool: &'static str, arguments: serde_json::Value| {
        let arguments = arguments.as_object().unwrap().clone();
        client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments))
    };
    let output = call("set_precision", json!({ "precision": 5 })).await.unwrap();
    assert_eq!(output.is_error, Some(false));
    let refused = call("set_precision", json!({ "precisoin": 5 })).await.unwrap();
    assert_eq!(refused.is_error, Some(true));
    let unknown = call("bash", json!({ "command": "hello" })).await.unwrap_err().to_string();
    assert!(unknown.contains("unknown tool `bash`"), "{unknown}");
    client.cancel().await.unwrap();
    assert!(running.await.unwrap().is_ok());
}
