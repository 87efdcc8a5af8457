//! Changed files in replies: each kind of change, within bounds, however a program treats the
//! workspace.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

use std::time::Instant;

use crate::server::{Server, text};
use crate::support::{Caller, Check, Claim, Failed, Need, claim, equal, holds, soon};
use serde_json::{Value, json};

const CONFIG: &str = "[tools]\ngroups = [\"shell\", \"exec\", \"files\"]\n";

pub const CLAIMS: &[Claim] = &[
    claim("created_modified_and_deleted_files_are_listed_once", reported),
    claim("a_workflow_is_made_and_flagged_in_fields_and_text", workflows),
    claim("a_fresh_cell_reports_its_changes_to_a_grant", granted),
    claim("changes_before_the_end_of_a_shell_are_reported", ended),
    claim("a_stopped_watcher_is_reported_as_not_checked", killed),
    claim("no_link_and_no_mount_is_crossed", crossed),
    claim("a_look_has_an_end_whatever_is_there", bounded).needs(&[Need::Python]),
    claim("changes_are_seen_up_to_the_longest_path", nested).needs(&[Need::Python]),
    claim("a_race_spoils_no_look", raced),
    claim("what_git_keeps_is_counted_and_not_listed", git),
    claim("nothing_is_reported_when_switched_off", off),
];

/// Returns the changes by one command of a tool.
fn changed(server: &mut Server, tool: &str, command: &str) -> Result<Value, Failed> {
    let answer = server.tool(tool, &json!({ "command": command, "timeout": 60 }))?;
    let fields = &answer["structuredContent"];
    equal(command, &fields["exit_code"], &json!(0))?;
    Ok(fields["files_changed"].clone())
}

fn git(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let commit =
        "git init -q; echo a > a; git add a; git -c user.name=n -c user.email=e commit -qm m";
    let answer = server.tool("bash", &json!({ "command": commit, "timeout": 60 }))?;
    let fields = &answer["structuredContent"]["files_changed"];
    let created = fields["created"].as_array().into_iter().flatten();
    let paths: Vec<&str> = created.filter_map(|one| one["path"].as_str()).collect();
    equal("what is listed", paths, [".git/", "a"])?;
    let below = fields["below_git"].as_u64().unwrap_or_default();
    holds("the rest is counted", fields, below > 10)?;
    let line = format!("[files changed: created .git/, a, {below} below .git]");
    let text = answer["content"].to_string();
    holds("in the text", &text, text.contains(&line))?;
    let hook = "echo exit > .git/hooks/pre-commit; git branch other";
    let changes = changed(&mut server, "bash", hook)?;
    equal("a hook", &changes["created"][0]["path"], &json!(".git/hooks/pre-commit"))?;
    holds("and what git did", &changes, changes["below_git"].as_u64() > Some(0))?;
    let only = changed(&mut server, "bash", "git tag t")?;
    equal("nothing else", only.as_object().map(serde_json::Map::len), Some(1))
}

fn workflows(caller: &Caller) -> Check {
    let one = caller.directory("one")?.display().to_string();
    let mut server = Server::of(caller.cofferdam(&["serve", "--workspace", &one]))?;
    let made =
        "mkdir -p .github/workflows; echo on: push > .github/workflows/ci.yml; echo x > README";
    let answer = server.tool("bash", &json!({ "command": made }))?;
    let files = &answer["structuredContent"]["files_changed"]["created"];
    let flagged: Vec<&str> = files
        .as_array()
        .into_iter()
        .flatten()
        .filter(|file| file["runs_in_ci"] == true)
        .filter_map(|file| file["path"].as_str())
        .collect();
    equal("in the fields", flagged, [".github/workflows/ci.yml"])?;
    let printed = text(&answer);
    holds("in the text", printed, printed.contains(".github/workflows/ci.yml (runs in CI)"))
}

fn reported(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    equal("nothing", &changed(&mut server, "bash", "true")?, &Value::Null)?;
    let made = "mkdir d; echo one > d/f; printf '#!/bin/sh\\n' > run; chmod 755 run; ln -s d l";
    equal(
        "created",
        &changed(&mut server, "bash", made)?,
        &json!({ "created": [
            { "path": "d/", "size": 60, "mode": "0755" },
            { "path": "d/f", "size": 4, "mode": "0644" },
            { "path": "l@", "size": 1, "mode": "0777" },
            { "path": "run", "size": 10, "mode": "0755", "executable": true },
        ] }),
    )?;
    equal("reported once", &changed(&mut server, "bash", "cat d/f")?, &Value::Null)?;
    let odd = "echo two >> d/f; rm run; chmod 600 l/f; touch $'a\\nb' $'\\xff'";
    let answer = server.bash(odd)?;
    equal(
        "all three",
        &answer["structuredContent"]["files_changed"],
        &json!({
            "created": [
                { "path": "a\\nb", "size": 0, "mode": "0644" },
                { "path": "\\xff", "size": 0, "mode": "0644" },
            ],
            "modified": [{ "path": "d/f", "size": 8, "mode": "0600" }],
            "deleted": ["run"],
        }),
    )?;
    let line = "[files changed: created a\\nb, modified d/f, deleted run, created \\xff]";
    holds("in words", text(&answer), text(&answer).ends_with(line))?;
    // Same size and mtime as before: only the kernel's ctime shows the change.
    let back = "touch -r d/f /tmp/t; printf 'ONE\\nTWO\\n' > d/f; touch -r /tmp/t d/f";
    let same = changed(&mut server, "bash", back)?;
    equal("set back", &same["modified"][0]["path"], &json!("d/f"))?;
    let other = "echo x > /tmp/elsewhere; cd /workspace/d; mv f g";
    let moved = changed(&mut server, "bash", other)?;
    equal(
        "moved",
        (&moved["created"][0]["path"], &moved["deleted"]),
        (&json!("d/g"), &json!(["d/f"])),
    )?;
    let many = changed(&mut server, "bash", "cd ..; touch {000..299}")?;
    let listed = many["created"].as_array().map(Vec::len);
    equal("a hundred are listed", (listed, &many["more"]), (Some(100), &json!(200)))?;
    let fresh = changed(&mut server, "bash_exec", "touch here")?;
    equal("a separate cell", &fresh["created"][0]["path"], &json!("here"))?;
    equal("and nothing", &changed(&mut server, "bash_exec", "true")?, &Value::Null)
}

fn granted(caller: &Caller) -> Check {
    let directory = caller.directory("granted")?;
    caller.file("granted/there", "x\n")?;
    caller.file("granted/gone", "x\n")?;
    let path = directory.display().to_string();
    let mut server = Server::configured(caller, CONFIG, &[], &["--workspace", &path])?;
    for tool in ["bash", "bash_exec"] {
        equal(tool, &changed(&mut server, tool, "cat there")?, &Value::Null)?;
    }
    let all =
        changed(&mut server, "bash_exec", "echo y >> there; rm gone; echo z > new; sleep 1000 &")?;
    equal(
        "all three",
        &all,
        &json!({
            "created": [{ "path": "new", "size": 2, "mode": "0644" }],
            "modified": [{ "path": "there", "size": 4, "mode": "0644" }],
            "deleted": ["gone"],
        }),
    )?;
    // Changes since the session's last reply are listed, without their author.
    let seen = changed(&mut server, "bash", "true")?;
    equal("reported in the session as well", &seen, &all)
}

fn ended(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    server.gives("true", 0, "")?;
    let last = server.bash("touch a; exit 7")?;
    let fields = &last["structuredContent"];
    equal("its end", &fields["exit_code"], &json!(7))?;
    equal("reported", &fields["files_changed"]["created"][0]["path"], &json!("a"))?;
    equal("not again by the next shell", &changed(&mut server, "bash", "true")?, &Value::Null)?;
    equal("but what is new", &changed(&mut server, "bash", "rm a")?, &json!({ "deleted": ["a"] }))
}

fn killed(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let stubborn = "touch a; trap '' INT; while :; do sleep 0.1; done";
    let answer = server.with(&json!({ "command": stubborn, "timeout": 1 }))?;
    let fields = &answer["structuredContent"];
    equal("killed", &fields["session"]["shell"], &json!("ended"))?;
    equal("not known", &fields["files_changed"], &json!({ "incomplete": true }))?;
    // A command that stops on the interrupt is reported as usual.
    let answer = server.with(&json!({ "command": "touch b; sleep 1000", "timeout": 1 }))?;
    let fields = &answer["structuredContent"];
    equal("timed out", &fields["outcome"], &json!("timeout"))?;
    equal("known", &fields["files_changed"]["created"][0]["path"], &json!("b"))
}

fn crossed(caller: &Caller) -> Check {
    let directory = caller.directory("granted")?;
    caller.directory("granted/.vscode")?;
    caller.file("granted/.vscode/tasks.json", "{}")?;
    let path = directory.display().to_string();
    let mut server = Server::configured(caller, CONFIG, &[], &["--workspace", &path])?;
    let links = "ln -s / root; ln -s . self; ln -s ../.. up; ln -s /usr usr; mkdir d";
    let seen = changed(&mut server, "bash", links)?;
    let paths: Vec<&str> = seen["created"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|one| one["path"].as_str())
        .collect();
    equal("links are links", paths, vec!["d/", "root@", "self@", "up@", "usr@"])?;
    equal("and whole", &seen["incomplete"], &Value::Null)?;
    // A guarded directory is a read-only mount: files that the host writes there are the host's.
    caller.file("granted/.vscode/new", "{}")?;
    equal("a mount is not crossed", &changed(&mut server, "bash", "true")?, &Value::Null)
}

fn bounded(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let many = "python3 -c 'for i in range(60000): open(f\"{i % 97}.{i}\", \"w\").close()'";
    let seen = changed(&mut server, "bash", many)?;
    equal("not all", &seen["incomplete"], &json!(true))?;
    let listed = seen["created"].as_array().map(Vec::len);
    equal("listed", listed, Some(100))?;
    let counted = seen["more"].as_u64().unwrap_or_default() + 100;
    holds("at most 50,000 were looked at", counted, counted <= 50_000 && counted > 100)?;
    let before = Instant::now();
    for _ in 0..3 {
        let next = changed(&mut server, "bash", "true")?;
        equal("nothing that is not sure", &next, &json!({ "incomplete": true }))?;
    }
    // Each look has 200 ms; the rest is a loaded machine's.
    holds("in time", before.elapsed(), before.elapsed() < soon(5))?;
    // This file comes first, so that it is listed.
    let touched = changed(&mut server, "bash", "rm -f *; touch ' first'")?;
    let paths: Vec<&Value> =
        touched["modified"].as_array().into_iter().flatten().map(|one| &one["path"]).collect();
    equal("what was touched is sure", paths, vec![&json!(" first")])?;
    equal("what is gone is gone", touched["deleted"].as_array().map(Vec::len), Some(99))?;
    let whole = changed(&mut server, "bash", "touch more")?;
    equal(
        "all again",
        &whole,
        &json!({ "created": [{ "path": "more", "size": 0, "mode": "0644" }] }),
    )
}

fn nested(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let deep = "python3 -c 'import os\nfor i in range(4000): os.mkdir(\"d\"); os.chdir(\"d\")'";
    let seen = changed(&mut server, "bash", deep)?;
    equal("not all", &seen["incomplete"], &json!(true))?;
    holds("up to the longest path", &seen["more"], seen["more"].as_u64() > Some(1))?;
    // The session is as usable as before.
    server.gives("echo on", 0, "on\n")
}

fn raced(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let race = "for n in 1 2 3; do (while :; do mkdir -p $n/a/b; : > $n/a/b/c; mv $n/a $n/z; \
                ln -s /usr $n/a; rm -rf $n; done) 2>/dev/null & done; sleep 0.3";
    server.gives(race, 0, "")?;
    for _ in 0..20 {
        let answer = server.bash("echo on")?;
        equal("it continues", &answer["structuredContent"]["stdout"], &json!("on\n"))?;
        let seen = answer["structuredContent"]["files_changed"].to_string();
        holds("nothing of /usr", &seen, !seen.contains("/bin") && !seen.contains("lib"))?;
    }
    server.gives("kill %1 %2 %3; wait; sleep 0.5; rm -rf 1 2 3; :", 0, "")?;
    equal("quiet again", &changed(&mut server, "bash", "true")?, &Value::Null)
}

fn off(caller: &Caller) -> Check {
    let mut server = Server::start(caller, &format!("{CONFIG}files_changed = false\n"))?;
    for tool in ["bash", "bash_exec"] {
        equal(tool, &changed(&mut server, tool, "touch a")?, &Value::Null)?;
    }
    Ok(())
}
