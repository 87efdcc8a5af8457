//! Layers in the protocol: an agent sees what `cofferdam review` lists, and no more than its cells can
//! read.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::layers::{REPOSITORY, project, review};
use crate::server::{Server, text};
use crate::support::{Caller, Check, Claim, Failed, For, Need, claim, equal, holds};

pub const CLAIMS: &[Claim] = &[
    claim("an_agent_has_the_list_of_the_review", listed).needs(&[Need::Git]),
    claim("an_agent_has_the_lines_of_the_review", lines),
    claim("long_lists_and_lines_come_in_parts", parts).needs(&[Need::Python]),
    claim("without_a_layer_nothing_of_it_is_listed", absent),
    claim("a_rule_can_keep_the_changes_from_a_client", denied),
    claim("a_hostile_layer_stops_no_server_and_shows_nothing_outside", hostile)
        .needs(&[Need::Python]),
    // Short: the unit tests of `changes` have a list of more than 200,000 names.
    claim("a_layer_with_too_many_changes_is_read_by_paths", full)
        .needs(&[Need::Python])
        .only(For::User)
        .thorough(),
    claim("no_diff_shows_what_cells_cannot_read", unreadable).only(For::Root),
];

const TOOLS: [&str; 2] = ["workspace_changes", "workspace_diff"];
const RESOURCE: &str = "cofferdam://workspace/changes";

/// Starts a server whose workspace is a project with this access.
fn serve(caller: &Caller, path: &str, access: &str) -> Result<Server, Failed> {
    Server::configured(caller, "", &[], &["--workspace", &format!("{path}{access}")])
}

fn changes(server: &mut Server, arguments: &Value) -> Result<Value, Failed> {
    server.tool("workspace_changes", arguments)
}

fn diff(server: &mut Server, arguments: &Value) -> Result<Value, Failed> {
    server.tool("workspace_diff", arguments)
}

fn fields(answer: &Value) -> &Value {
    answer.get("structuredContent").unwrap_or(&Value::Null)
}

/// Returns the names of the tools, and whether there is the resource.
fn offered(server: &mut Server) -> Result<(Vec<String>, bool), Failed> {
    let id = server.request("tools/list", &json!({}))?;
    let answer = server.answer(id)?;
    let all = answer.get("tools").and_then(Value::as_array).cloned().unwrap_or_default();
    let name = |tool: &Value| tool.get("name").and_then(Value::as_str).map(str::to_owned);
    let names: Vec<String> = all.iter().filter_map(name).collect();
    let tools = TOOLS.iter().filter(|tool| names.iter().any(|name| name == *tool));
    let tools = tools.map(|tool| (*tool).to_owned()).collect();
    let id = server.request("resources/list", &json!({}))?;
    let resources = server.answer(id)?.to_string();
    Ok((tools, resources.contains(RESOURCE)))
}

fn listed(caller: &Caller) -> Check {
    let path = project(caller, "project", REPOSITORY)?;
    let mut server = serve(caller, &path, ":cow")?;
    equal("offered", offered(&mut server)?, (TOOLS.map(str::to_owned).to_vec(), true))?;
    let none = changes(&mut server, &json!({}))?;
    equal("no changes", text(&none), "[no changes]")?;
    let script = "echo more >> src/a; chmod +x src/b; rm removed; rm -r old; mkdir new; echo x > new/x
        git init -q inner; echo evil > .envrc; mkfifo fifo; ln -s /etc out; ln -s src in
        printf x > \"$(printf 'esc\\033[2J')\"; printf x > \"$(printf 'bad\\377')\"; printf x > 'a  [note]'
        mkdir -p .github/workflows; echo on > .github/workflows/ci.yml; echo all: > Makefile";
    server.gives(script, 0, "")?;
    let shown = changes(&mut server, &json!({}))?;
    let reviewed = review(caller, &[&path])?;
    let whole = review(caller, &["--json", &path])?;
    let whole: Value = serde_json::from_str(&whole.stdout)?;
    let (rows, remark) = text(&shown).rsplit_once("\n[").ok_or("no remark")?;
    equal("the rows", rows, reviewed.trimmed())?;
    // A server uses its layer: contents may change without a sign.
    equal("a digest", whole.get("digest"), Some(&Value::Null))?;
    holds("the remark", remark, remark.ends_with("`cofferdam review`]"))?;
    let total = whole.get("changes").and_then(Value::as_array).map_or(0, Vec::len);
    equal("the number", fields(&shown).get("total"), Some(&json!(total)))?;
    // Characters that a terminal acts on are made visible in each text of a reply.
    let rows = whole.get("changes").map(Value::to_string).unwrap_or_default();
    let of_review: Value = serde_json::from_str(&rows.replace("\\u001b", "\u{241b}"))?;
    equal("the fields", fields(&shown).get("changes"), Some(&of_review))?;
    let id = server.request("resources/read", &json!({ "uri": RESOURCE }))?;
    let read = server.answer(id)?;
    equal(
        "the resource",
        read.pointer("/contents/0/text").and_then(Value::as_str),
        Some(text(&shown)),
    )?;
    let below = changes(&mut server, &json!({ "path": "/workspace/new" }))?;
    holds("below a path", &below, text(&below).starts_with("A new/\nA new/x\n["))?;
    // The longest question that the arguments allow: the process answers, and lives on.
    let longest = changes(&mut server, &json!({ "path": "\u{1}".repeat(4096) }))?;
    equal("the longest path", text(&longest), "the layer cannot be read: File name too long")?;
    for path in ["../x", "/etc"] {
        let refused = changes(&mut server, &json!({ "path": path }))?;
        holds("outside", &refused, text(&refused).contains("`path`: expected a path"))?;
    }
    equal("the host", std::fs::read_to_string(format!("{path}/src/a"))?, "a\n")
}

fn lines(caller: &Caller) -> Check {
    let path = project(
        caller,
        "project",
        "mkdir src; printf 'a\\n\\tb\\nc\\n' > src/a; echo b > gone; echo x > mode",
    )?;
    let mut server = serve(caller, &path, ":cow")?;
    server.gives(
        "sed -i 's/b/bee/' src/a; rm gone; echo new > new; ln -s src link; chmod +x mode; head -c 9 /dev/zero > zero",
        0,
        "",
    )?;
    let shown = diff(&mut server, &json!({}))?;
    let reviewed = review(caller, &["--diff", &path])?;
    equal("the lines", text(&shown), reviewed.stdout.as_str())?;
    holds("a tab", &shown, text(&shown).contains("-\tb\n+\tbee\n"))?;
    let of_one = diff(&mut server, &json!({ "path": "src/a" }))?;
    holds("one path", &of_one, text(&of_one).starts_with("diff --git a/src/a b/src/a\n"))?;
    equal("no other", text(&of_one).matches("diff --git").count(), 1)?;
    server.gives("printf 'x\\033[2J\\n' > new", 0, "")?;
    let escaped = diff(&mut server, &json!({ "path": "new" }))?;
    holds("escaped", &escaped, text(&escaped).contains("+x\\u{1b}[2J\n"))
}

fn parts(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo x > x")?;
    let mut server = serve(caller, &path, ":cow")?;
    let script = "python3 -c \"for n in range(2500): open(f'file{n:05}', 'w').write('x')\"; seq 20000 > long";
    server.gives(script, 0, "")?;
    let mut rows = String::new();
    let mut offset = Some(0);
    while let Some(from) = offset {
        let part = changes(&mut server, &json!({ "offset": from, "limit": 1000 }))?;
        let (shown, _) = text(&part).split_once('[').ok_or("no remark")?;
        rows.push_str(shown);
        offset = fields(&part).get("next_offset").and_then(Value::as_u64);
    }
    let reviewed = review(caller, &[&path])?;
    equal("all rows", rows, reviewed.stdout)?;
    let first = changes(&mut server, &json!({}))?;
    holds(
        "the rest is stated",
        &first,
        text(&first)
            .contains("[changes 1 to 200 of 2501 are shown; `offset`: 200 shows the next ones]"),
    )?;
    let mut lines = String::new();
    let mut offset = Some(0);
    let mut count = 0;
    while let Some(from) = offset {
        let part = diff(&mut server, &json!({ "path": "long", "offset": from }))?;
        let shown = fields(&part).get("diff").and_then(Value::as_str).unwrap_or_default();
        lines.push_str(shown);
        offset = fields(&part).get("next_offset").and_then(Value::as_u64);
        count += 1;
    }
    holds("parts", count.to_string(), count > 3)?;
    let reviewed = review(caller, &["--diff", &path])?;
    holds("all lines", lines.len().to_string(), reviewed.stdout.ends_with(&lines))
}

fn absent(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo x > x")?;
    for access in [":ro", ""] {
        let workspace = format!("{path}{access}");
        let mut server = Server::of(caller.cofferdam(&["serve", "--workspace", &workspace]))?;
        equal(access, offered(&mut server)?, (Vec::new(), false))?;
        for tool in TOOLS {
            let refused = server.tool(tool, &json!({}))?;
            let expected = "the workspace has no layer\nhint: the operator makes one: cofferdam serve --workspace DIR:cow";
            equal(tool, text(&refused), expected)?;
        }
    }
    Ok(())
}

fn denied(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo x > x")?;
    let policy = "schema = 1
[[rule]]
id = \"no-list\"
tools = [\"workspace_changes\"]
action = \"deny\"
why = \"the operator reads it\"
matches = [{ tool = \"workspace_changes\" }]
not_matches = [{ tool = \"bash\" }]
[[rule]]
id = \"shell\"
tools = [\"bash\"]
action = \"allow\"
profile = \"bash\"
why = \"for the control\"
matches = [{ tool = \"bash\" }]
not_matches = [{ tool = \"calculate\" }]
";
    let workspace = format!("{path}:cow");
    let mut server =
        Server::configured(caller, "", &[("policies", policy)], &["--workspace", &workspace])?;
    server.gives("echo y > x", 0, "")?;
    equal("offered", offered(&mut server)?, (vec![TOOLS[1].to_owned()], false))?;
    let refused = changes(&mut server, &json!({}))?;
    holds("denied", &refused, text(&refused).contains("no-list"))?;
    let shown = diff(&mut server, &json!({}))?;
    holds("the control", &shown, text(&shown).contains("-x\n+y\n"))
}

/// Puts a link to a directory outside in the place of a directory and back, while the layer is read.
const SWAPPER: &str = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir('d'); open('d/file', 'w').write('inside\\n'); os.symlink(os.environ['OUT'], 'e')
print('ready', flush=True)
while not os.path.exists('stop'):
    libc.renameat2(-100, b'd', -100, b'e', 2)
";

fn hostile(caller: &Caller) -> Check {
    let outside = caller.directory("outside")?;
    std::fs::set_permissions(&outside, PermissionsExt::from_mode(0o755))?;
    caller.file("outside/file", "outside-secret\n")?;
    let path = project(caller, "project", "echo x > x; mkdir kept; echo y > kept/y")?;
    let mut server = serve(caller, &path, ":cow")?;
    let made = format!(
        "mkfifo fifo; mkdir closed; touch closed/x; chmod 000 closed; echo x > dark; chmod 000 dark; ln -s / root
         mkdir -p \"$(printf 'esc\\033]0;x\\007')\"; ln -s /proc/self/root/etc/passwd passwd; ln -s loop loop
         chmod 000 kept; cat > swap.py <<'E'\n{SWAPPER}\nE\n"
    );
    server.gives(&made, 0, "")?;
    let out = outside.display().to_string();
    let swapping = server.with(&json!({
        "command": "python3 swap.py", "background": true, "env": { "OUT": out },
    }))?;
    holds("swapping", &swapping, fields(&swapping).get("error").is_none())?;
    server.gives("until [ -e d ] || [ -L d ]; do :; done", 0, "")?;
    for _ in 0..15 {
        for arguments in [json!({}), json!({ "path": "d" }), json!({ "path": "d/file" })] {
            let list = changes(&mut server, &arguments)?.to_string();
            let shown = diff(&mut server, &arguments)?.to_string();
            holds("nothing outside", &shown, !shown.contains("outside-secret"))?;
            let is_odd = |text: &str| text.contains('\u{1b}') || text.contains("\\u001b");
            holds("no escapes", &list, !is_odd(&list) && !is_odd(&shown))?;
            holds("no passwords", &shown, !shown.contains("root:x:0"))?;
        }
    }
    server.gives("touch stop", 0, "")?;
    // The swaps may end after the next list began.
    let list = changes(&mut server, &json!({ "path": "fifo" }))?;
    holds("a FIFO", &list, text(&list).starts_with("A fifo  [held back: only files"))?;
    let list = changes(&mut server, &json!({ "path": "closed" }))?;
    let line = "A closed/  [held back: it cannot be read]";
    holds("a closed directory", &list, text(&list).starts_with(line))?;
    server.gives("chmod 000 /workspace", 0, "")?;
    let refused = changes(&mut server, &json!({}))?;
    holds(
        "a closed workspace",
        &refused,
        text(&refused).contains("hint: a command may have closed it"),
    )?;
    server.gives("chmod 755 /workspace; rm -rf /workspace/d /workspace/e", 0, "")?;
    let list = changes(&mut server, &json!({}))?;
    holds("open again", &list, text(&list).contains("A fifo"))?;
    equal("the host", std::fs::read_to_string(format!("{path}/x"))?, "x\n")
}

fn full(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo x > x")?;
    let mut server = serve(caller, &path, ":cow")?;
    server.gives("echo y > x", 0, "")?;
    for directory in ["d0", "d1", "d2"] {
        let script = format!(
            "mkdir {directory}; cd {directory}; python3 -c 'import os
for n in range(70000): os.close(os.open(str(n), os.O_CREAT))'; cd .."
        );
        server.gives(&script, 0, "")?;
    }
    for tool in TOOLS {
        let refused = server.tool(tool, &json!({}))?;
        let expected =
            "the layer has more than 200000 changes\nhint: name a `path` to list what is below it";
        equal(tool, text(&refused), expected)?;
    }
    let list = changes(&mut server, &json!({ "path": "x" }))?;
    holds("one path", &list, text(&list).starts_with("M x\n"))?;
    let list = changes(&mut server, &json!({ "path": "d1", "limit": 1 }))?;
    equal("a directory", fields(&list).get("total"), Some(&json!(70_001)))?;
    server.gives("cat x", 0, "y\n")
}

fn unreadable(caller: &Caller) -> Check {
    const OWNER: u32 = 54_321;
    let made = format!(
        "echo mine > mine; echo closed-secret > dark; chmod 000 dark; chown -R {OWNER}:{OWNER} .; chmod 755 ."
    );
    let path = project(caller, "project", &made)?;
    let mut server = serve(caller, &path, ":cow")?;
    let read = server.bash("cat dark")?;
    holds("not in a cell", &read, !read.to_string().contains("closed-secret"))?;
    server.gives("rm -f dark; echo more >> mine; echo own > new; chmod 600 new", 0, "")?;
    // The control: the review of root may read it.
    let reviewed = review(caller, &["--diff", &path])?;
    holds("root's review", &reviewed, reviewed.stdout.contains("-closed-secret\n"))?;
    let shown = diff(&mut server, &json!({}))?;
    holds("what the owner has", &shown, text(&shown).contains(" mine\n+more\n"))?;
    holds("what cells have", &shown, text(&shown).contains("+own\n"))?;
    let line = "Binary files a/dark and /dev/null differ\n";
    holds("what no cell reads", &shown, text(&shown).contains(line))?;
    holds("no secret", &shown, !shown.to_string().contains("closed-secret"))?;
    // Nor does a list say whether a guess is right.
    server.gives("echo closed-secret > dark", 0, "")?;
    let list = changes(&mut server, &json!({}))?;
    holds("a guess", &list, text(&list).contains("M dark"))
}
