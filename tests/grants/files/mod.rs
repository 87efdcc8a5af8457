//! `edit`, `put_file` and `get_file` over the real server: exact bytes, what is refused, and that no
//! link, device or race leads out of the workspace.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

mod granted;

use crate::server::{Server, text};
use crate::support::{Caller, Check, Claim, Failed, claim, equal, holds};
use serde_json::{Value, json};

/// The groups that these claims need.
pub const CONFIG: &str = "[tools]\ngroups = [\"shell\", \"files\"]\n";

pub fn claims() -> Vec<Claim> {
    vec![
        claim("files_belong_to_the_session_and_bytes_are_exact", exact),
        claim("str_replace_requires_a_unique_text", replaced),
        claim("insert_keeps_line_endings", inserted),
        claim("view_numbers_lines_and_lists_two_levels", viewed),
        claim("no_symbolic_link_leads_out_of_the_workspace", links),
        claim("a_link_swapped_in_meanwhile_leads_nowhere", swapped),
        claim("special_files_are_refused_without_waiting", special),
        claim("files_over_8_mib_are_refused", large),
        claim("put_file_replaces_hard_links_and_keeps_the_mode", hard_link),
        claim("a_hostile_shell_gets_an_answer_or_a_clear_error", inside_out),
        claim("the_rule_of_bash_holds_for_files", ruled),
        claim("a_rule_can_deny_file_tools_but_allow_bash", denied),
        claim("guarded_names_in_a_grant_are_reported", granted::guarded),
        claim("a_read_only_grant_is_read_and_not_written", granted::read_only),
        claim("file_operations_are_recorded", granted::recorded),
    ]
}

/// Returns the fields of a call's result, or the text of its refusal.
pub fn asked(server: &mut Server, tool: &str, arguments: Value) -> Result<Value, Failed> {
    let answer = server.tool(tool, &arguments)?;
    match answer["isError"] == true {
        true => {
            let error = answer["structuredContent"]["error"].as_str().unwrap_or_default();
            let is_told = !error.is_empty() && text(&answer).contains(error);
            holds("the fields have the reason", &answer, is_told)?;
            Ok(json!(text(&answer)))
        }
        false => Ok(answer["structuredContent"].clone()),
    }
}

/// A server whose calls have a directory of the host as their workspace.
pub fn granted_server(caller: &Caller, path: &str) -> Result<Server, Failed> {
    Server::configured(caller, CONFIG, &[], &["--workspace", path])
}

pub fn edit(server: &mut Server, arguments: Value) -> Result<Value, Failed> {
    asked(server, "edit", arguments)
}

fn put(server: &mut Server, path: &str, content: &str) -> Result<Value, Failed> {
    asked(server, "put_file", json!({ "path": path, "content": content, "overwrite": true }))
}

fn get(server: &mut Server, path: &str) -> Result<Value, Failed> {
    asked(server, "get_file", json!({ "path": path }))
}

fn exact(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    server.gives("mkdir -p a; printf 'x\\n' > a/old", 0, "")?;
    let old = get(&mut server, "a/old")?;
    equal("what the shell wrote", &old["content"], &json!("x\n"))?;
    equal("its mode", &old["mode"], &json!("0644"))?;
    let made = asked(
        &mut server,
        "put_file",
        json!({ "path": "/workspace/new/dir/f", "content_base64": "AP8KDQ==", "mode": "755" }),
    )?;
    equal("made", (&made["done"], &made["size"]), (&json!("created"), &json!(4)))?;
    server.gives("od -An -tx1 new/dir/f; stat -c %a new/dir/f", 0, " 00 ff 0a 0d\n755\n")?;
    server.gives(
        "sha256sum < new/dir/f | cut -c-64",
        0,
        &format!("{}\n", made["sha256"].as_str().unwrap_or_default()),
    )?;
    let bytes = get(&mut server, "new/dir/f")?;
    equal("as base64", &bytes["content_base64"], &json!("AP8KDQ=="))?;
    equal("the same hash", &bytes["sha256"], &made["sha256"])?;
    let part =
        asked(&mut server, "get_file", json!({ "path": "new/dir/f", "offset": 2, "length": 1 }))?;
    equal("a part", (&part["content"], &part["next_offset"]), (&json!("\n"), &json!(3)))?;
    // Nothing is replaced without a word, and no shell state is needed or changed.
    let again = asked(&mut server, "put_file", json!({ "path": "a/old", "content": "y" }))?;
    let output = "/workspace/a/old is there already\nhint: `overwrite` replaces it";
    equal("there already", &again, &json!(output))?;
    equal(
        "another session has another workspace",
        &asked(&mut server, "get_file", json!({ "path": "a/old", "session": "other" }))?,
        &json!("/workspace/a/old is not there"),
    )?;
    server.gives("cat a/old; ls -A a new/dir", 0, "x\na:\nold\n\nnew/dir:\nf\n")
}

fn replaced(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let replace = |server: &mut Server, old: &str, new: &str| {
        edit(
            server,
            json!({ "command": "str_replace", "path": "f", "old_str": old, "new_str": new }),
        )
    };
    let file = "one\ntwo\nthree\ntwo\nlast without a newline";
    edit(&mut server, json!({ "command": "create", "path": "f", "file_text": file }))?;
    let twice = "/workspace/f has this text 2 times, on lines 2, 4\nhint: give more of the text \
                 around it, so that it stands only once";
    equal("twice", &replace(&mut server, "two", "2")?, &json!(twice))?;
    let none = "/workspace/f does not have this text\nhint: `view` shows it as it is; spaces and \
                ends of lines count";
    equal("not at all", &replace(&mut server, "four", "4")?, &json!(none))?;
    server.gives("cat f", 0, file)?;
    let once = replace(&mut server, "three\ntwo", "3\n$& \\1 'q'")?;
    let snippet =
        "     1\tone\n     2\ttwo\n     3\t3\n     4\t$& \\1 'q'\n     5\tlast without a newline\n";
    equal("once", (&once["line"], &once["snippet"]), (&json!(3), &json!(snippet)))?;
    server.gives("cat f", 0, "one\ntwo\n3\n$& \\1 'q'\nlast without a newline")?;
    equal("at the end", &replace(&mut server, " without a newline", "")?["lines"], &json!(5))?;
    server.gives("tail -c 4 f", 0, "last")?;
    // A text of a file whose lines end as in DOS is found as it is seen, and stays as it is.
    server.gives("printf 'a\\r\\nb\\r\\nc\\r\\n' > f", 0, "")?;
    equal("DOS", &replace(&mut server, "a\nb\n", "A\nB\n")?["line"], &json!(1))?;
    server.gives("od -An -c f | tr -d ' '", 0, "A\\r\\nB\\r\\nc\\r\\n\n")?;
    let overlaps = replace(&mut server, "", "x")?;
    equal("nothing", &overlaps, &json!("edit: `old_str` is empty"))
}

fn inserted(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let mut insert = |before: &str, line: u64, given: &str| {
        server.gives(&format!("printf '{before}' > f"), 0, "")?;
        let arguments =
            json!({ "command": "insert", "path": "f", "insert_line": line, "insert_text": given });
        let answer = edit(&mut server, arguments)?;
        let now = server.bash("od -An -v -c f | tr -d ' \\n'")?;
        Ok::<_, Failed>((answer, now["structuredContent"]["stdout"].clone()))
    };
    let cases = [
        ("", 0, "x", "x\\n"),
        ("a\\n", 0, "x\n", "x\\na\\n"),
        ("a\\n", 1, "x", "a\\nx\\n"),
        ("a\\nb", 1, "x\ny", "a\\nx\\ny\\nb"),
        ("a\\nb", 2, "x", "a\\nb\\nx"),
        ("a\\r\\nb\\r\\n", 1, "x\ny\n", "a\\r\\nx\\r\\ny\\r\\nb\\r\\n"),
    ];
    for (before, line, given, after) in cases {
        let (_, now) = insert(before, line, given)?;
        equal(&format!("{given:?} behind line {line} of {before:?}"), &now, &json!(after))?;
    }
    let (answer, now) = insert("a\\n", 2, "x")?;
    equal("behind the end", (&answer, &now), (&json!("/workspace/f has 1 lines"), &json!("a\\n")))
}

fn viewed(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    server.gives("printf 'a\\n\\tb\\n\\nd' > f; : > empty", 0, "")?;
    let mut view = |arguments: Value| {
        let mut all = json!({ "command": "view", "path": "f" });
        for (name, value) in arguments.as_object().cloned().unwrap_or_default() {
            all[name] = value;
        }
        edit(&mut server, all)
    };
    let whole = view(json!({}))?;
    equal("lines", &whole["text"], &json!("     1\ta\n     2\t\tb\n     3\t\n     4\td\n"))?;
    equal(
        "a range",
        &view(json!({ "view_range": [2, 3] }))?["text"],
        &json!("     2\t\tb\n     3\t\n"),
    )?;
    equal("to the end", &view(json!({ "view_range": [4, -1] }))?["text"], &json!("     4\td\n"))?;
    equal(
        "past the end",
        &view(json!({ "view_range": [5, 9] }))?,
        &json!("/workspace/f has 4 lines"),
    )?;
    equal("an empty file", &view(json!({ "path": "empty" }))?["lines"], &json!(0))?;
    let outside = "path must be a path inside /workspace, not ../etc/passwd";
    equal("outside", &view(json!({ "path": "../etc/passwd" }))?, &json!(outside))?;
    let names = "mkdir -p d/e/f .hidden; touch d/x d/e/deep .dot; ln -s x d/l; \
                 touch $'new\\nline' $'not \\xff text'";
    server.gives(names, 0, "")?;
    let listed = edit(&mut server, json!({ "command": "view", "path": "/workspace" }))?;
    equal(
        "a directory",
        &listed["entries"],
        &json!(["d/", "d/e/", "d/l@", "d/x", "empty", "f", "new\\nline", "not \\xff text"]),
    )?;
    server.gives("mkdir many; cd many; for ((i = 0; i < 1500; i++)); do : > $i; done", 0, "")?;
    let many = edit(&mut server, json!({ "command": "view", "path": "many" }))?;
    let count = many["entries"].as_array().map(Vec::len);
    equal("number reported", (count, &many["truncated"]), (Some(1000), &json!(true)))
}

fn links(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let made = "mkdir -p d/e; echo inside > d/f; ln -s /etc/passwd abs; ln -s ../etc/passwd up; \
                ln -s /etc dir; ln -s ../../workspace/../etc/passwd turn; ln -s /workspace/d/f in; \
                ln -s ../f d/e/back; ln -s loop loop; ln -s d/new dangling; ln -s abs second";
    server.gives(made, 0, "")?;
    for path in ["in", "d/e/back"] {
        equal(path, &get(&mut server, path)?["content"], &json!("inside\n"))?;
    }
    for path in ["abs", "up", "dir/passwd", "turn", "second"] {
        let out = json!(format!("/workspace/{path} leads out of /workspace by a symbolic link"));
        equal(path, &get(&mut server, path)?, &out)?;
        equal(path, &put(&mut server, path, "x")?, &out)?;
        let viewed = edit(&mut server, json!({ "command": "view", "path": path }))?;
        equal(path, &viewed, &out)?;
    }
    let loops = get(&mut server, "loop")?;
    let output =
        "/workspace/loop following symbolic links: too many symbolic links encountered (ELOOP)";
    equal("a loop", &loops, &json!(output))?;
    // Like open(2) through a link to a file that does not exist yet; the link stays a link.
    equal("through a link", &put(&mut server, "dangling", "new\n")?["done"], &json!("created"))?;
    equal("over a link", &put(&mut server, "in", "changed\n")?["done"], &json!("replaced"))?;
    server.gives("cat d/new d/f; readlink in dangling", 0, "new\nchanged\n/workspace/d/f\nd/new\n")
}

/// A directory is a link to `/etc` every other moment: what is read is ours or a refusal, and
/// nothing is written elsewhere.
fn swapped(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    let swap = "mkdir d; echo ours > d/passwd; ln -s /etc l; echo 77777 >/tmp/mark; \
                (while :; do mv -T d t; mv -T l d; mv -T d l; mv -T t d; done) & disown";
    server.gives(swap, 0, "")?;
    let mut ours = 0;
    let mut refused = 0;
    for round in 0..60 {
        let seen = match round % 2 {
            0 => get(&mut server, "d/passwd")?,
            _ => put(&mut server, "d/passwd", "ours\n")?,
        };
        match seen.as_str() {
            None => {
                holds("only ours", &seen, round % 2 == 1 || seen["content"] == "ours\n")?;
                ours += 1;
            }
            Some(_) => refused += 1,
        }
    }
    holds("both were met, or all were ours", (ours, refused), ours > 0)?;
    server.gives("grep -c root:x /etc/passwd; ls -d /etc/.cofferdam-* 2>&1 | wc -l", 0, "1\n1\n")
}

fn special(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    server.gives("mkfifo fifo; mkdir dir; ln -s /dev/null null; python3 -c 1; : > plain", 0, "")?;
    let cases = [
        ("fifo", "is a FIFO, not a regular file"),
        ("dir", "is a directory, not a regular file"),
        ("", "is a directory, not a regular file"),
        ("null", "leads out of /workspace by a symbolic link"),
        ("plain/x", "opening: not a directory (ENOTDIR)"),
        ("absent", "is not there"),
        ("dir/absent/x", "is not there"),
    ];
    for (path, output) in cases {
        let path = format!("/workspace/{path}");
        let path = path.trim_end_matches('/');
        equal(path, &get(&mut server, path)?, &json!(format!("{path} {output}")))?;
    }
    for path in ["fifo", "dir"] {
        let kind = if path == "fifo" { "FIFO" } else { "directory" };
        let output = format!("/workspace/{path} is a {kind}, not a regular file");
        equal(path, &put(&mut server, path, "x")?, &json!(output))?;
    }
    // Mode 0: reads and replacements fail with the kernel's error.
    server.gives("chmod 0 plain", 0, "")?;
    let denied = "/workspace/plain opening: permission denied (EACCES)";
    equal("read", &get(&mut server, "plain")?, &json!(denied))?;
    let denied = "/workspace/plain opening it for writing: permission denied (EACCES)";
    equal("replaced", &put(&mut server, "plain", "x")?, &json!(denied))
}

fn large(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    server.gives("head -c 8388608 /dev/urandom > f; head -c 8388609 /dev/zero > g", 0, "")?;
    let view = edit(&mut server, json!({ "command": "view", "path": "g" }))?;
    let output = "/workspace/g has 8388609 bytes; at most 8388608 are taken";
    holds("too large", &view, view.as_str().is_some_and(|view| view.starts_with(output)))?;
    let all = asked(&mut server, "get_file", json!({ "path": "f", "length": 8_388_608 }))?;
    let sum = server.bash("sha256sum f | cut -c-64")?;
    let sum = sum["structuredContent"]["stdout"].as_str().unwrap_or_default().trim().to_owned();
    equal("8 MiB out", &all["sha256"], &json!(sum))?;
    let coded = &all["content_base64"];
    let back = json!({ "path": "h", "content_base64": coded });
    equal("8 MiB in", &asked(&mut server, "put_file", back)?["sha256"], &json!(sum))?;
    server.gives("cmp f h", 0, "")?;
    let more = "x".repeat(8_388_609);
    let output = "content is 8388609 bytes; at most 8388608 are taken";
    equal("too much in", &put(&mut server, "i", &more)?, &json!(output))?;
    let length = asked(&mut server, "get_file", json!({ "path": "f", "length": 8_388_609 }))?;
    equal("too much out", &length, &json!("get_file: `length` must be 1 to 8388608 bytes"))?;
    let first = get(&mut server, "f")?;
    equal("1 MiB unless more is asked for", &first["next_offset"], &json!(1 << 20))?;
    server.gives(
        "ls i 2>&1; ls -A | tr '\\n' ' '",
        0,
        "ls: cannot access 'i': No such file or directory\nf g h ",
    )
}

fn hard_link(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    server.gives("echo before > f; chmod 750 f; ln f g", 0, "")?;
    let answer = server.tool(
        "edit",
        &json!({ "command": "str_replace", "path": "f",
        "old_str": "before", "new_str": "after" }),
    )?;
    let output = "it was a hard link: its other names keep what was in it before";
    holds("reported", text(&answer), text(&answer).contains(output))?;
    server.gives("cat f g; stat -c '%a %h' f g", 0, "after\nbefore\n750 1\n750 1\n")
}

/// Alters the shell in several ways: an answer is the clerk's or a clear error, and the server
/// continues.
fn inside_out(caller: &Caller) -> Check {
    let mut server = Server::start(caller, CONFIG)?;
    server.gives("true", 0, "")?;
    let kept = [
        "trap 'echo noise' DEBUG",
        "set -e; set -u; set -o pipefail; set -x",
        "alias exec=false; shopt -s expand_aliases; exec() { echo forged; }; cd /",
        "PATH=/nowhere; unset HOME; IFS=/.",
        "umask 777",
    ];
    for trick in kept {
        server.with(&json!({ "command": trick, "session": "s" }))?;
        let arguments = json!({ "path": "f", "content": "x\n", "session": "s", "overwrite": true });
        let answer = asked(&mut server, "put_file", arguments)?;
        equal(trick, &answer["size"], &json!(2))?;
        equal(
            "a new shell",
            &server.with(&json!({ "restart": true, "session": "s" }))?["isError"],
            &json!(false),
        )?;
    }
    // A process that writes into the answer spoils its own request, and gets that as an error.
    let noise = "echo mine > f; (while :; do for o in /dev/session/out.*; do echo noise > $o; done; \
                 done) 2>/dev/null & disown";
    server.with(&json!({ "command": noise, "session": "s" }))?;
    for _ in 0..10 {
        let answer = asked(&mut server, "get_file", json!({ "path": "f", "session": "s" }))?;
        let garbled = "the cell's answer was not understood: ";
        let refused = answer.as_str().is_some_and(|answer| answer.starts_with(garbled));
        holds("whole or refused", &answer, refused || answer["content"] == "mine\n")?;
    }
    equal(
        "another session is as it was",
        &get(&mut server, "f")?,
        &json!("/workspace/f is not there"),
    )
}

/// A policy with a rule for `bash`, and `more`.
fn policy(more: &str) -> String {
    format!(
        "schema = 1\n[[rule]]\nid = \"shell\"\ntools = [\"bash\"]\naction = \"allow\"\n\
         profile = \"bash\"\nwhy = \"work\"\nmatches = [{{ tool = \"bash\" }}]\n\
         not_matches = [{{ tool = \"calculate\" }}]\n{more}"
    )
}

fn ruled(caller: &Caller) -> Check {
    let mut server = Server::with_policy(caller, CONFIG, Some(&policy("")))?;
    equal("as bash", &put(&mut server, "f", "x")?["done"], &json!("created"))
}

fn denied(caller: &Caller) -> Check {
    let rule = "[[rule]]\nid = \"no-put\"\ntools = [\"put_file\"]\naction = \"deny\"\n\
                why = \"read only\"\nmatches = [{ tool = \"put_file\" }]\n\
                not_matches = [{ tool = \"get_file\" }]\n";
    let mut server = Server::with_policy(caller, CONFIG, Some(&policy(rule)))?;
    let denied = put(&mut server, "f", "x")?;
    let output = "[denied by rule `no-put`: read only]";
    holds("denied", &denied, denied.as_str().is_some_and(|denied| denied.starts_with(output)))?;
    equal("read", &get(&mut server, "f")?, &json!("/workspace/f is not there"))
}
