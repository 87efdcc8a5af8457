//! Pages of a project for clients that show them, and the variables that describe such a client to scripts.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::hooks::{called_in, project};
use crate::server::patience::patience;
use crate::server::{PROGRAM, Server};

const TOOL: &str = "#!/usr/bin/env bash\n# mcp: {\"name\": \"shown\"}\nsource \"$MCP_SDK/tool-sdk.sh\"\n\
    mcp_result_with_ui '' 'as text' \"$(mcp_json_obj supports \"$MCPBASH_CLIENT_SUPPORTS_UI\")\"\n";

const FORM: &str = "#!/usr/bin/env bash\n# mcp: {\"name\": \"form\"}\nsource \"$MCP_SDK/tool-sdk.sh\"\n\
    mcp_ui_form --title '<b>Log</b>' --field 'kind:select:a,b' --field note_text:textarea --submit-tool shown\n";

fn files() -> tempfile::TempDir {
    project(&[
        ("server.d/server.meta.json", "{\"name\": \"pages\"}"),
        ("tools/shown/tool.sh", TOOL),
        ("tools/shown/ui/index.html", "<p>own</p>"),
        (
            "tools/shown/ui/ui.meta.json",
            "{\"description\": \"Own\", \"meta\": {\"prefersBorder\": false}}",
        ),
        ("tools/form/tool.sh", FORM),
        (
            "ui/board/ui.meta.json",
            "{\"template\": \"kanban\", \"config\": {\"title\": \"</script>\"}}",
        ),
        ("ui/bad/ui.meta.json", "{\"template\": \"none\"}"),
    ])
}

fn served(directory: &tempfile::TempDir) -> Server {
    let mut command = Command::new(PROGRAM);
    Server::of({
        command.args(["serve", "--project"]).arg(directory.path()).stderr(Stdio::null());
        command
    })
}

fn answer(server: &mut Server, method: &str, params: Value) -> Value {
    let id = server.request(method, params);
    server.answer(id)["result"].clone()
}

#[test]
fn pages_are_resources_named_by_their_tools() {
    let directory = files();
    let mut server = served(&directory);
    let tools = answer(&mut server, "tools/list", json!({}));
    let shown =
        tools["tools"].as_array().into_iter().flatten().find(|tool| tool["name"] == "shown");
    let linked = json!({"resourceUri": "ui://pages/shown", "visibility": ["model", "app"]});
    assert_eq!(shown.map(|tool| tool["_meta"]["ui"].clone()), Some(linked));
    let list = answer(&mut server, "resources/list", json!({}));
    let uris: Vec<&Value> =
        list["resources"].as_array().into_iter().flatten().map(|one| &one["uri"]).collect();
    assert_eq!(uris, ["ui://pages/shown", "ui://pages/board"]);
    assert_eq!(list["resources"][0]["mimeType"], "text/html;profile=mcp-app");
    let read = answer(&mut server, "resources/read", json!({"uri": "ui://pages/shown"}));
    let meta = json!({"ui": {"csp": {}, "permissions": {}, "prefersBorder": false}});
    let expected = json!({"uri": "ui://pages/shown", "mimeType": "text/html;profile=mcp-app", "text": "<p>own</p>", "_meta": meta});
    assert_eq!(read["contents"], json!([expected]));
    // The page is read at each request, and a link is not followed.
    fs::remove_file(directory.path().join("tools/shown/ui/index.html")).expect("removed");
    std::os::unix::fs::symlink("/etc/passwd", directory.path().join("tools/shown/ui/index.html"))
        .expect("a link");
    // A cell of an ordinary user's server can see the page that was there for a second more (`cell::sealed`).
    let end = Instant::now() + patience();
    loop {
        let id = server.request("resources/read", json!({"uri": "ui://pages/shown"}));
        let answer = server.answer(id);
        // It cannot be read, or is found to have gone: the lists may be read again before the request.
        if [-32603, -32002].iter().any(|code| answer["error"]["code"] == *code) {
            break;
        }
        assert_eq!(answer["result"]["contents"][0]["text"], "<p>own</p>", "{answer}");
        assert!(Instant::now() < end, "{answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let board = answer(&mut server, "resources/read", json!({"uri": "ui://pages/board"}));
    let html = board["contents"][0]["text"].as_str().unwrap_or_default();
    assert!(html.contains("\"template\":\"kanban\"") && html.matches("</script>").count() == 1);
}

#[test]
fn the_server_agrees_on_pages_with_a_client_that_shows_them() {
    let directory = files();
    let pages = json!({"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}});
    let serve = |project: bool, capabilities: Value| {
        let mut command = Command::new(PROGRAM);
        command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        if project {
            command.arg("--project").arg(directory.path());
        }
        let mut child = command.spawn().expect("it starts");
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"}
        });
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let mut stdin = child.stdin.take().expect("a pipe");
        writeln!(stdin, "{hello}").expect("written");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let answer: Value =
            serde_json::from_str(text.lines().next().unwrap_or_default()).expect("an answer");
        answer["result"]["capabilities"].get("extensions").cloned()
    };
    assert_eq!(serve(true, json!({"extensions": pages})), Some(pages.clone()));
    assert_eq!(serve(true, json!({})), None);
    // No page is served without a project.
    assert_eq!(serve(false, json!({"extensions": pages})), None);
}

#[test]
fn scripts_know_which_pages_the_client_shows() {
    let directory = files();
    let mut server = served(&directory);
    let text = server.result("form", json!({}))["content"][0]["text"].clone();
    let html = text.as_str().unwrap_or_default();
    let (_, rest) = html.split_once("const settings = ").expect("settings");
    let line = rest.lines().next().unwrap_or_default().trim_end_matches(';');
    let settings: Value = serde_json::from_str(line).expect("JSON");
    let fields = json!([
        {"name": "kind", "type": "select", "label": "Kind", "options": ["a", "b"]},
        {"name": "note_text", "type": "textarea", "label": "Note Text", "options": null},
    ]);
    let config = json!({"title": "<b>Log</b>", "submitTool": "shown", "fields": fields});
    assert_eq!(settings, json!({"template": "form", "config": config}));
    assert!(!line.contains('<'));
    let plain = server.result("shown", json!({}));
    assert_eq!(plain["structuredContent"], json!({"success": true, "result": "as text"}));
    let pages = json!({"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}});
    let shown = called_in(&directory, "shown", pages);
    assert_eq!(shown["result"]["structuredContent"], json!({"supports": "1"}));
}
