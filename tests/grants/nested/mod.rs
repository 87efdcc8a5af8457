//! Sockets of the host that were granted: a cell can speak to these servers, to no other, and change
//! nothing about them.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

mod peer;

use crate::server::{Server, story, text};
use crate::support::{
    self, Caller, Check, Claim, Finished, Need, Who, children, claim, equal, holds, patience,
};
use nix::sys::stat::Mode;
use peer::Peer;
use serde_json::json;

pub fn claims() -> Vec<Claim> {
    vec![
        claim("a_granted_server_answers_and_sees_its_peer", answers).needs(&[Need::Python]),
        claim("without_the_grant_nothing_of_it_is_there", nothing).needs(&[Need::Python]),
        claim("the_socket_directory_holds_only_granted_sockets", modes),
        claim("no_watch_reveals_uses_of_a_granted_socket", unwatched).needs(&[Need::Python]),
        claim("the_cell_cannot_change_the_socket_directory", unchanged).needs(&[Need::Python]),
        claim("a_socket_works_with_a_writable_workspace", guarded).needs(&[Need::Python]),
        claim("only_sockets_of_the_operator_can_be_granted", refused),
        claim("sessions_have_sockets_of_policy_and_config", sessions).needs(&[Need::Python]),
        claim("nested_grants_a_socket_without_a_policy_file", without_a_policy)
            .needs(&[Need::Python]),
        claim("doctor_checks_the_named_sockets", diagnosed),
        claim("no_process_of_the_server_holds_the_hosts_file", unheld).needs(&[Need::RootLooks]),
        claim("a_recreated_socket_is_not_the_granted_one", recreated).needs(&[Need::Python]),
    ]
}

/// Asks the server at the path `$1`: what it says, or the errno of connecting.
const ASK: &str = r#"/usr/bin/python3 -c '
import errno, socket, sys
try:
    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b"who?"); print(s.recv(64).decode())
except OSError as error:
    print(errno.errorcode[error.errno])
' "$1""#;
const SKILLS: &str = "/tmp/mcp-sockets/skills.sock";

/// Returns the errno for `$1` as a path of a socket in a cell.
fn connect_errno(caller: &Caller, options: &[&str], path: &str) -> Result<String, support::Failed> {
    let output = caller.run(options, &["bash", "-c", ASK, "ask", path])?;
    Ok(format!("{}{}", output.trimmed(), output.stderr))
}

/// The first host id of cells that root starts, and all after it.
fn is_a_cells(caller: &Caller, answer: &str) -> bool {
    let uid: Option<u32> = answer.strip_prefix("hello to ").and_then(|uid| uid.parse().ok());
    match caller.who {
        Who::Root => uid.is_some_and(|uid| uid > 2_000_000_000),
        Who::User => uid == Some(caller.uid()),
    }
}

fn answers(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let granted = ["--profile", "nested", "--socket", &peer.flag("skills")];
    let answer = connect_errno(caller, &granted, SKILLS)?;
    holds("the peer answers, and sees the cell's id", &answer, is_a_cells(caller, &answer))?;
    let script = "env | grep ^MCP_ | sort";
    let output = caller.run(&granted, &["bash", "-c", script])?;
    let expected =
        format!("MCP_NESTED=1\nMCP_SKILLS_SOCKET={SKILLS}\nMCP_SOCKET_DIR=/tmp/mcp-sockets");
    equal("the variables", output.trimmed(), expected)?;
    let other = caller
        .run(&["--profile", "nested", "--socket", &peer.flag("notes")], &["bash", "-c", script])?;
    equal("without skills", other.trimmed(), "MCP_NESTED=1\nMCP_SOCKET_DIR=/tmp/mcp-sockets")?;
    let output = caller.json(&granted, &["true"])?;
    equal("the receipt", &output["receipt"]["configured"]["unix_sockets"], &json!("skills"))
}

fn nothing(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let path = peer.path.display().to_string();
    let control = caller.bash_outside(&format!("set -- {path}; {ASK}"))?;
    equal("outside it answers", control.trimmed(), format!("hello to {}", caller.uid()))?;
    for options in [&[][..], &["--profile", "nested"]] {
        let script = "env | grep MCP_; stat -c %F /tmp/mcp-sockets";
        let output = caller.run(options, &["bash", "-c", script])?;
        let missing = "stat: cannot statx '/tmp/mcp-sockets': No such file or directory\n";
        equal("no directory", (output.stdout.as_str(), output.stderr.as_str()), ("", missing))?;
        for path in [SKILLS, &path] {
            equal(path, connect_errno(caller, options, path)?, "ENOENT")?;
        }
    }
    // With the grant, the rest of the host's directory stays out of reach.
    let granted = ["--profile", "nested", "--socket", &peer.flag("skills")];
    equal("the host's own path", connect_errno(caller, &granted, &path)?, "ENOENT")?;
    let output = caller.run(&["--socket", &peer.flag("skills")], &["true"])?;
    let refused = format!(
        "cofferdam: --socket: `{}`: no profile in use has `unix_sockets`\n\
         hint: let a rule of the policy, or --profile, name `nested` or one like it\n",
        peer.flag("skills")
    );
    equal("refused", (output.code, output.stderr), (125, refused))
}

fn modes(caller: &Caller) -> Check {
    let one = Peer::listen(caller, "servers", "a")?;
    let other = Peer::listen(caller, "servers", "b")?;
    Peer::listen(caller, "servers", "c")?;
    let one = one.flag("skills");
    let other = other.flag("notes");
    let granted = ["--profile", "nested", "--socket", &one, "--socket", &other];
    let script = "cd /tmp/mcp-sockets; stat -c '%a %U %G %F %n' . $(ls -A)";
    let output = caller.run(&granted, &["bash", "-c", script])?;
    let expected = "700 agent agent directory .\n600 agent agent socket notes.sock\n\
                    600 agent agent socket skills.sock";
    equal("in the cell", (output.trimmed(), output.stderr.as_str()), (expected, ""))
}

/// Cells of one template may share the directory, and the socket is the host's.
fn unwatched(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let granted = ["--profile", "nested", "--socket", &peer.flag("skills")];
    let script = format!(
        "{}
notify = libc.inotify_init1(0)
def watch(path): return call(254, notify, path, 0xfff)
print(watch(b'/tmp/mcp-sockets'), watch(b'{SKILLS}'), watch(b'/etc'), watch(b'/'), watch(b'/tmp'))",
        support::CALLS
    );
    let output = caller.run(&granted, &["/usr/bin/python3", "-c", &script])?;
    let expected = "EPERM EPERM EPERM EPERM 1";
    equal("watches", (output.trimmed(), output.stderr.as_str()), (expected, ""))
}

/// Attempts of a program to change the directory `$1`, each printed with its errno.
const CHANGE: &str = r#"/usr/bin/python3 -c '
import errno, os, socket, sys
os.chdir(sys.argv[1])
def bind(): socket.socket(socket.AF_UNIX).bind("new.sock")
def replace(): open("/tmp/own", "w").close(); os.rename("/tmp/own", "skills.sock")
for name, action in [
    ("chmod", lambda: os.chmod("skills.sock", 0o666)),
    ("utime", lambda: os.utime("skills.sock")),
    ("bind", bind),
    ("mknod", lambda: os.mknod("fifo", 0o10600)),
    ("symlink", lambda: os.symlink("/", "link")),
    ("replace", replace),
    ("rename", lambda: os.rename("skills.sock", "other.sock")),
    ("unlink", lambda: os.unlink("other.sock" if os.path.exists("other.sock") else "skills.sock")),
    ("directory", lambda: os.rename(sys.argv[1], sys.argv[1] + ".away")),
]:
    try: action(); print(name, "worked")
    except OSError as error: print(name, errno.errorcode[error.errno])
' "$1""#;

fn unchanged(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "skills.sock")?;
    let granted = ["--profile", "nested", "--socket", &peer.flag("skills")];
    let output = caller.run(&granted, &["bash", "-c", CHANGE, "change", "/tmp/mcp-sockets"])?;
    let expected = "chmod EROFS\nutime EROFS\nbind EROFS\nmknod EROFS\nsymlink EROFS\nreplace EXDEV\n\
                    rename EROFS\nunlink EROFS\ndirectory EBUSY";
    equal("in the cell", (output.trimmed(), output.stderr.as_str()), (expected, ""))?;
    equal("still there", peer.is_a_socket(), true)?;
    let names: Vec<_> = std::fs::read_dir(caller.home.join("servers"))?.flatten().collect();
    equal("nothing next to it", names.len(), 1)?;
    // The positive control, on the same directory outside: but for a rename over filesystems, all works.
    let control = caller.bash_outside(&format!(
        "set -- {}; {}",
        caller.home.join("servers").display(),
        CHANGE.replace("/tmp/own", "own")
    ))?;
    let worked: Vec<&str> =
        control.trimmed().lines().filter(|line| line.ends_with(" worked")).collect();
    equal("outside it works", worked.len(), 9)
}

fn guarded(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let work = caller.directory("work")?.display().to_string();
    let flag = peer.flag("skills");
    let granted = ["--profile", "nested", "--socket", &flag, "--rw", &work];
    let answer = connect_errno(caller, &granted, SKILLS)?;
    holds("the peer answers", &answer, is_a_cells(caller, &answer))?;
    let output =
        caller.run(&granted, &["bash", "-c", "rm /tmp/mcp-sockets/skills.sock; touch ok"])?;
    let refusal = "rm: cannot remove '/tmp/mcp-sockets/skills.sock': Read-only file system\n";
    equal("where names are guarded", (output.code, output.stderr.as_str()), (0, refusal))?;
    // The same socket by its path in a granted directory, with a fresh workspace.
    let servers = caller.home.join("servers").display().to_string();
    let granted = ["--profile", "nested", "--socket", &flag, "--ro", &servers];
    equal("by its directory", connect_errno(caller, &granted, "/mnt/servers/s")?, "EPERM")?;
    let answer = connect_errno(caller, &granted, SKILLS)?;
    holds("as a socket", &answer, is_a_cells(caller, &answer))?;
    let granted = ["--profile", "nested", "--socket", &flag, "--rw", &servers];
    let output = caller.run(&granted, &["true"])?;
    let refusal = "cofferdam: the socket `skills` lies in a directory that is granted for writing\n\
                   hint: have its server listen in a separate directory, mode 0700\n";
    equal("where a cell could replace it", (output.code, output.stderr.as_str()), (125, refusal))
}

fn refused(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let home = caller.home.display();
    caller.file("servers/file", "")?;
    nix::unistd::mkfifo(&caller.home.join("servers/fifo"), Mode::S_IRWXU)?;
    std::os::unix::fs::symlink("s", caller.home.join("servers/link"))?;
    Peer::listen(caller, "servers", "open")?;
    support::mode(&caller.home.join("servers/open"), 0o666)?;
    let cases = [
        ("file", "is a regular file", "name the file of a Unix socket".to_owned()),
        ("fifo", "is a FIFO", "name the file of a Unix socket".to_owned()),
        (".", "is a directory", "name the file of a Unix socket".to_owned()),
        ("link", "is a symbolic link", "name the socket that it leads to".to_owned()),
        (
            "none",
            "cannot be granted: no such file or directory (ENOENT)",
            "start the server that listens there first".to_owned(),
        ),
        (
            "open",
            "has mode 0666, and a granted socket is its owner's alone (0600)",
            format!("chmod 600 {home}/servers/open"),
        ),
    ];
    for (name, reason, hint) in cases {
        let path = format!("{home}/servers/{name}").replace("/servers/.", "/servers");
        let flag = format!("skills={path}");
        let output = caller.run(&["--profile", "nested", "--socket", &flag], &["true"])?;
        let expected = format!("cofferdam: --socket: `{path}` {reason}\nhint: {hint}\n");
        equal(name, (output.code, output.stderr), (125, expected))?;
    }
    let output =
        caller.run(&["--profile", "nested", "--socket", &peer.flag("skills")], &["true"])?;
    equal(
        "a socket of the caller's alone is granted",
        (output.code, output.stderr.as_str()),
        (0, ""),
    )
}

const POLICY: &str = r#"schema = 1

[[rule]]
id = "shell"
tools = ["bash"]
action = "allow"
profile = "nested"
why = "contained, with the servers that are named"
matches = [{ tool = "bash" }]
not_matches = [{ tool = "bash_exec" }]

[[rule]]
id = "exec"
tools = ["bash_exec"]
action = "allow"
profile = "bash"
why = "contained, without them"
matches = [{ tool = "bash_exec" }]
not_matches = [{ tool = "bash" }]
"#;

/// A server whose `bash` has the socket, and whose `bash_exec` has not.
fn serving(caller: &Caller, peer: &Peer) -> Result<Server, support::Failed> {
    let groups = "[tools]\ngroups = [\"shell\", \"exec\"]\n";
    let config =
        format!("{groups}[nested]\nsockets = {{ skills = \"{}\" }}\n", peer.path.display());
    Server::with_policy(caller, &config, Some(POLICY))
}

fn sessions(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let mut server = serving(caller, &peer)?;
    let ask = ASK.replace("\"$1\"", "\"${MCP_SKILLS_SOCKET:-/tmp/mcp-sockets/skills.sock}\"");
    for session in ["one", "two"] {
        let answer = server.with(&json!({ "command": ask, "session": session }))?;
        let (code, printed) = story(&answer);
        holds("it answers", &printed, code == Some(0) && is_a_cells(caller, printed.trim_end()))?;
    }
    let answer = server.tool("bash_exec", &json!({ "command": ask }))?;
    equal("another profile", &answer["structuredContent"]["stdout"], &json!("ENOENT\n"))?;
    let rules = server.tool("sandbox_rules", &json!({}))?;
    let line = format!("- sockets outside the cell: {SKILLS}\n");
    holds("an agent can read it", text(&rules), text(&rules).contains(&line))
}

/// The variables of the design, which a client in the cell looks at to find its socket.
const NESTED: &str = "echo $MCP_NESTED $MCP_SOCKET_DIR $MCP_SKILLS_SOCKET";

fn without_a_policy(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let flag = peer.flag("skills");
    let groups = "[tools]\ngroups = [\"shell\", \"exec\", \"info\"]\n";
    let mut server = Server::configured(caller, groups, &[], &["--nested", &flag])?;
    let variables = format!("1 /tmp/mcp-sockets {SKILLS}\n");
    let ask = ASK.replace("\"$1\"", "\"$MCP_SKILLS_SOCKET\"");
    for tool in ["bash", "bash_exec"] {
        let answer = server.tool(tool, &json!({ "command": NESTED }))?;
        equal(tool, &answer["structuredContent"]["stdout"], &json!(variables))?;
        let answer = server.tool(tool, &json!({ "command": ask }))?;
        let printed = answer["structuredContent"]["stdout"].as_str().unwrap_or_default();
        holds(tool, printed, is_a_cells(caller, printed.trim_end()))?;
        let profile = &answer["_meta"]["cofferdam/receipt"]["profile"];
        equal(tool, profile, &json!("nested"))?;
    }
    // Other tools keep their profile.
    let answer = server.tool("get_env", &json!({ "all": true }))?;
    holds("no variable", text(&answer), !text(&answer).contains("MCP_"))?;
    drop(server);
    // Nor does the flag change the policy of an operator.
    let refused = |policy: Option<&str>, flag: &str, expected: &str| {
        let path = caller.home.join("configuration").display().to_string();
        let directory = caller.home.join("configuration/policies");
        if let Some(policy) = policy {
            std::fs::create_dir_all(&directory)?;
            std::fs::write(directory.join("own.toml"), policy)?;
        }
        let arguments = ["--config", &path, "serve", "--nested", flag];
        let output = Finished::run(caller.cofferdam(&arguments), patience())?;
        if policy.is_some() {
            std::fs::remove_dir_all(&directory)?;
        }
        equal(flag, (output.code, output.stderr.as_str()), (125, expected))
    };
    let form = "cofferdam: --nested: `skills` has no `=`\n\
                hint: write NAME=PATH, such as skills=/run/user/1000/skills.sock\n";
    refused(None, "skills", form)?;
    let absent = "cofferdam: --nested: `/no/s` cannot be granted: no such file or directory (ENOENT)\n\
                  hint: start the server that listens there first\n";
    refused(None, "skills=/no/s", absent)?;
    let other = POLICY.replace("profile = \"nested\"", "profile = \"bc\"");
    let expected = "cofferdam: --nested: rule `shell` gives `bash` another profile\n\
                    hint: let the rule of `bash` name `nested` or one like it, and use --socket\n";
    refused(Some(&other), &flag, expected)?;
    // A rule that is about another tool too would give that one the socket.
    let shared = POLICY
        .replace("tools = [\"bash\"]", "tools = [\"bash\", \"get_env\"]")
        .replace("profile = \"nested\"", "profile = \"bash\"");
    refused(Some(&shared), &flag, expected)
}

fn diagnosed(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    // Makes the configuration.
    drop(serving(caller, &peer)?);
    let output = || {
        let path = caller.home.join("configuration").display().to_string();
        let output = Finished::run(caller.cofferdam(&["--config", &path, "doctor"]), patience())?;
        let lines = output.stdout.lines().skip_while(|line| !line.contains("granted sockets"));
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok::<_, support::Failed>(lines.take(2).map(words).collect::<Vec<_>>())
    };
    let well = output()?;
    let expected = "ok granted sockets skills: of their owner alone";
    equal("there", well.first().map(String::as_str), Some(expected))?;
    support::mode(&peer.path, 0o660)?;
    let path = peer.path.display();
    let expected = [
        format!(
            "missing granted sockets {}/configuration/cofferdam.toml:5: `{path}` has mode 0660, and a \
             granted socket is its owner's alone (0600)",
            caller.home.display()
        ),
        format!("remedy: chmod 600 {path}"),
    ];
    equal("open to others", output()?, expected)
}

fn unheld(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let mut server = serving(caller, &peer)?;
    server.bash("true")?;
    let front = server.child.id();
    let mut held = Vec::new();
    for pid in std::iter::once(front).chain(children(front)) {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
        held.extend(entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()));
    }
    // Only the supervisor has those: it was looked at.
    let template = |to: &std::path::PathBuf| to.to_string_lossy().starts_with("mnt:[");
    holds("the supervisor's are seen", &held, held.iter().any(template))?;
    let of_the_peer: Vec<_> = held.iter().filter(|to| **to == peer.path).collect();
    equal("held", of_the_peer.len(), 0)
}

fn recreated(caller: &Caller) -> Check {
    let peer = Peer::listen(caller, "servers", "s")?;
    let mut server = serving(caller, &peer)?;
    let ask = ASK.replace("\"$1\"", "$MCP_SKILLS_SOCKET");
    let (_, printed) = story(&server.bash(&ask)?);
    holds("at first it answers", &printed, is_a_cells(caller, printed.trim_end()))?;
    std::fs::remove_file(&peer.path)?;
    let again = Peer::saying(caller, "servers", "s", "intruder")?;
    let path = again.path.display();
    let control = caller.bash_outside(&format!("set -- {path}; {ASK}"))?;
    equal(
        "outside the new one answers",
        control.trimmed(),
        format!("intruder to {}", caller.uid()),
    )?;
    // Not in a shell that is there, nor in a new cell.
    for restart in [false, true] {
        let answer = server.with(&json!({ "command": ask, "restart": restart }))?;
        let (_, printed) = story(&answer);
        holds("the one that was granted", text(&answer), is_a_cells(caller, printed.trim_end()))?;
    }
    peer.close()?;
    let (_, printed) = story(&server.bash(&ask)?);
    equal("which is gone", printed, "ECONNREFUSED\n".to_owned())
}
