//! The table of built-in tools: a tool that is in it is listed and called, and no other is.

use mcp::arguments::{Arguments, Named};
use mcp::lines::{Ends, Lines};
use mcp::server::{Continuity, Server};
use mcp::tools::{BuiltIn, CallResult, Context, InForce, ToolEntry};
use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock, Tool};
use serde::Deserialize;
use serde_json::json;
use service::Backend;

use crate::fake::Fake;

/// A tool that only this test has.
#[derive(Debug, Deserialize)]
struct EchoArguments {
    text: String,
}

impl Named for EchoArguments {
    const TOOL: &'static str = "echo";
}

impl Arguments for EchoArguments {
    const FIELDS: &'static [&'static str] = &["text"];
}

impl BuiltIn for EchoArguments {
    fn describe(_: &InForce) -> Tool {
        let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
        Tool::new(Self::TOOL, "Returns its text.", rmcp::model::object(schema))
    }

    async fn call<B: Backend>(self, _: &Server<B>, _: &Context) -> CallResult {
        Ok(CallToolResult::success(vec![ContentBlock::text(self.text)]))
    }
}

#[tokio::test]
async fn exactly_the_tools_of_the_table_exist() {
    const TABLE: &[ToolEntry<Server<Fake>>] = &[ToolEntry::of::<EchoArguments>()];
    let (near, far) = tokio::io::duplex(1 << 16);
    let (reader, writer) = tokio::io::split(far);
    let ends = Ends::default();
    let kill = ends.kill.clone();
    let server = Server::with_tools(Fake::default(), kill, TABLE, None, Continuity::Connection);
    let running = tokio::spawn(async move {
        server.serve(Lines::new(reader, writer, ends)).await.unwrap().waiting().await
    });
    let client = ().serve(near).await.unwrap();
    let listed = client.list_all_tools().await.unwrap();
    assert_eq!(listed.iter().map(|tool| tool.name.as_ref()).collect::<Vec<_>>(), ["echo"]);

    let call = |tool: &'static str, arguments: serde_json::Value| {
        let arguments = arguments.as_object().unwrap().clone();
        client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments))
    };
    let output = call("echo", json!({ "text": "hello" })).await.unwrap();
    assert_eq!(output.content, vec![ContentBlock::text("hello")]);
    let refused = call("echo", json!({ "txt": "hello" })).await.unwrap();
    assert_eq!(refused.is_error, Some(true));
    let unknown = call("bash", json!({ "command": "hello" })).await.unwrap_err().to_string();
    assert!(unknown.contains("unknown tool `bash`"), "{unknown}");
    client.cancel().await.unwrap();
    assert!(running.await.unwrap().is_ok());
}
