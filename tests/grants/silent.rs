//! Filesystems of the host that do not answer, and paths of a workspace that lead to them.

use crate::support::{Caller, Check, Claim, Finished, For, Need, claim, equal, holds, patience};

pub const CLAIMS: &[Claim] = &[
    claim("no_path_that_a_workspace_names_holds_up_a_start", silent)
        .only(For::Root)
        .needs(&[Need::Git, Need::Python])
        .wants(&[Need::Fuse]),
    claim("no_file_that_a_configuration_includes_holds_up_a_start", half_silent)
        .only(For::Root)
        .needs(&[Need::Git, Need::Python])
        .wants(&[Need::Fuse]),
];

/// Mounts a filesystem that never answers at the first argument, checks that a lookup there hangs,
/// and runs the rest of the arguments.
const SILENT: &str = r#"
import ctypes, os, subprocess, sys
point, *command = sys.argv[1:]
link = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={link},rootmode=40000,user_id=0,group_id=0".encode()
if ctypes.CDLL(None).mount(b"silent", point.encode(), b"fuse", 0, options) != 0:
    sys.exit("not mounted")
try:
    subprocess.run(["stat", f"{point}/x"], timeout=0.5)
    sys.exit("the filesystem answers")
except subprocess.TimeoutExpired:
    sys.exit(subprocess.run(command).returncode)
"#;

fn silent(caller: &Caller) -> Check {
    let point = caller.directory("silent")?.display().to_string();
    let script = format!(
        "set -e; mkdir worktree file link hooks include; for at in *; do git init -q $at; done
        mkdir -p worktree/.git/worktrees/w; cd worktree/.git/worktrees/w
        echo ../.. >commondir; echo {point}/x/.git >gitdir; cp ../../HEAD .; cd - >/dev/null
        mkdir file/sub; echo gitdir: {point}/x >file/sub/.git
        ln -s {point}/x link/.vscode; git -C hooks config core.hooksPath {point}/x
        git -C include config include.path {point}/x"
    );
    for at in ["worktree", "file", "link", "hooks", "include"] {
        let workspace = caller.directory(&format!("by-{at}"))?;
        let made = caller.bash_outside(&format!("cd {}; {script}", workspace.display()))?;
        equal("made", (made.code, made.stderr.as_str()), (0, ""))?;
        let mut command = caller.outside("unshare");
        let own = ["--mount", "--propagation", "private", "/usr/bin/python3", "-c", SILENT];
        command.args(own).arg(&point).arg(caller.binary());
        command.args(["run", "--rw"]).arg(workspace.join(at)).args(["--", "ls", "-A"]);
        let output = Finished::run(command, patience())?;
        holds(at, &output, output.code == 0 && output.stdout.contains(".git\n"))?;
    }
    Ok(())
}

/// Mounts a filesystem with one file `config` at the first argument, which names the hooks of a
/// repository. It answers everything, or everything but reads. Runs the rest of the arguments.
const HALF_SILENT: &str = r#"
import ctypes, os, struct, subprocess, sys, threading
point, answers, *command = sys.argv[1:]
link = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={link},rootmode=40000,user_id=0,group_id=0".encode()
if ctypes.CDLL(None).mount(b"half", point.encode(), b"fuse", 0, options) != 0:
    sys.exit("not mounted")
text = b"[core]\n hooksPath = hooks\n"
asked = threading.Event()

def attributes(node):
    kind, size = (0o40755, 0) if node == 1 else (0o100644, len(text))
    return struct.pack("<6Q10I", node, size, 1, 0, 0, 0, 0, 0, 0, kind, 1, 0, 0, 0, 4096, 0)

def answer(code, node, body):
    if code == 26:
        return struct.pack("<4I2H2I2H8I", 7, 31, 4096, 0, 1, 1, 4096, 1, 1, 0, *[0] * 8)
    if code == 1:
        found = body.rstrip(b"\0") == b"config"
        return struct.pack("<4Q2I", 2, 0, 9, 9, 0, 0) + attributes(2) if found else -2
    if code == 3:
        return struct.pack("<QII", 9, 0, 0) + attributes(node)
    if code in (14, 27):
        return struct.pack("<QII", 1, 0, 0)
    if code == 15:
        asked.set()
        return text if answers == "reads" else None
    return {2: None, 36: None, 42: None, 18: b"", 25: b""}.get(code, -38)

def serve():
    while True:
        request = os.read(link, 1 << 20)
        _, code, unique, node = struct.unpack_from("<IIQQ", request)
        reply = answer(code, node, request[40:])
        if reply is not None:
            error, body = (reply, b"") if isinstance(reply, int) else (0, reply)
            os.write(link, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

threading.Thread(target=serve, daemon=True).start()
code = subprocess.run(command).returncode
sys.stdout.flush()
# Its end aborts the requests without an answer.
os._exit(code if asked.is_set() else 99)
"#;

fn half_silent(caller: &Caller) -> Check {
    let point = caller.directory("half")?.display().to_string();
    let workspace = caller.directory("including")?;
    let path = workspace.display();
    let script = format!(
        "cd {path} && git init -q && git config include.path {point}/config && mkdir hooks"
    );
    let made = caller.bash_outside(&script)?;
    equal("made", (made.code, made.stderr.as_str()), (0, ""))?;
    let run = |answers: &str| {
        let mut command = caller.outside("unshare");
        let own = ["--mount", "--propagation", "private", "/usr/bin/python3", "-c", HALF_SILENT];
        command.args(own).args([point.as_str(), answers]).arg(caller.binary());
        command.args(["run", "--rw"]).arg(&workspace);
        command.args(["--", "bash", "-c", "echo x >hooks/pre-commit; ls -A"]);
        Finished::run(command, patience())
    };
    let unread = "has a configuration that could not be read in time";
    // The control: what it names is guarded, and nothing is missing.
    let output = run("reads")?;
    let guarded = output.stderr.contains("hooks/pre-commit: Read-only file system");
    holds("read", &output, output.code == 0 && guarded && !output.stderr.contains(unread))?;
    let output = run("nothing")?;
    let noted = output.stderr.contains(unread);
    holds("not read", &output, output.code == 0 && output.stdout.contains(".git\n") && noted)
}
