//! Guarded names cannot be created in a writable grant by any call or trick; all other names can.

use std::path::Path;

use crate::support::{CALLS, Caller, Check, Claim, Finished, For, Need, claim, equal, holds};
use serde_json::Value;

pub const CLAIMS: &[Claim] = &[
    claim("no_call_makes_a_name_that_the_host_obeys", no_call).needs(&[Need::Python]),
    claim("no_spelling_and_no_link_makes_one_either", no_spelling).needs(&[Need::Python]),
    claim("a_path_changed_in_memory_creates_no_guarded_name", no_race)
        .needs(&[Need::Gcc])
        .thorough_as_root(),
    claim("no_repository_can_be_made_or_put_together", no_repository).needs(&[Need::Git]),
    claim("missing_parts_of_a_repository_cannot_be_created", parts).needs(&[Need::Git]),
    claim("files_named_by_git_config_are_guarded", named).needs(&[Need::Git]),
    // A user who cannot look into it is refused: `closed`.
    claim("files_named_by_git_config_stay_guarded_in_a_closed_directory", closed)
        .only(For::Root)
        .needs(&[Need::Git]),
    claim("a_socket_is_bound_at_the_checked_path", sockets).needs(&[Need::Python]),
    claim("two_cells_cannot_create_a_guarded_socket", two_cells).needs(&[Need::Python]),
    claim("truncate_obeys_the_callers_file_size_limit", truncated).needs(&[Need::Python]),
    claim("aliases_of_guarded_names_are_guarded", twins).needs(&[Need::Git]),
    claim("hooks_in_a_granted_directory_of_hooks_are_guarded", granted_holders),
    claim("the_operators_names_are_guarded", operators),
    claim("names_recreated_by_the_host_are_guarded", recreated).needs(&[Need::Git]),
    claim("git_and_tools_work_as_without_the_guard", work).needs(&[Need::Git, Need::Python]),
    claim("every_odd_call_is_answered_as_without_the_guard", odd).needs(&[Need::Python]),
    claim("init_has_no_more_access_than_the_caller", deputy).needs(&[Need::Python]),
    claim("a_waiting_fifo_open_delays_no_other_process", fifo),
    claim("a_refused_name_is_reported_with_a_hint", reported),
    claim("an_operator_can_lift_the_guard", lifted).needs(&[Need::Git]),
    claim("a_cell_without_a_writable_grant_has_no_guard", without),
];

/// Runs Python in a cell with `path` for writing.
fn python(
    caller: &Caller,
    options: &[&str],
    path: &Path,
    script: &str,
) -> Result<Finished, crate::support::Failed> {
    let path = path.display().to_string();
    let options: Vec<&str> = options.iter().copied().chain(["--rw", &path]).collect();
    let script = format!("{CALLS}\n{script}");
    caller.run(&options, &["/usr/bin/python3", "-c", &script])
}

/// Runs a script of bash in a cell with `path` for writing.
fn bash(caller: &Caller, path: &Path, script: &str) -> Result<Finished, crate::support::Failed> {
    caller.run(&["--rw", &path.display().to_string()], &["bash", "-c", script])
}

/// A part of what a run said in JSON; null where it said nothing of it.
fn at<'v>(object: &'v Value, path: &str) -> &'v Value {
    object.pointer(path).unwrap_or(&Value::Null)
}

/// Tries each call for a name in a directory, and says what it met.
const EVERY_CALL: &str = r#"
import itertools
def every(directory, name):
    old, new = directory + "/old", directory + "/" + name
    def fresh(): open(old, "w").close()
    at = os.open(directory, os.O_RDONLY)
    calls = {
        "open": lambda: os.close(libc_open(new, os.O_CREAT | os.O_WRONLY)),
        "exclusive": lambda: os.close(libc_open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR)),
        "openat": lambda: os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=at)),
        "mkdir": lambda: os.mkdir(new),
        "mkdirat": lambda: os.mkdir(name, dir_fd=at),
        "symlink": lambda: os.symlink("/tmp", new),
        "symlinkat": lambda: os.symlink("/tmp", name, dir_fd=at),
        "link": lambda: os.link(old, new),
        "linkat": lambda: os.link("old", name, src_dir_fd=at, dst_dir_fd=at),
        "rename": lambda: os.rename(old, new),
        "renameat": lambda: os.rename("old", name, src_dir_fd=at, dst_dir_fd=at),
        "fifo": lambda: os.mkfifo(new),
        "node": lambda: os.mknod(new, 0o644 | 0o100000),
        "bind": lambda: socket.socket(socket.AF_UNIX).bind(new),
    }
    for what, action in calls.items():
        fresh()
        met = tried(action)
        there = os.path.lexists(new)
        if there:
            os.rmdir(new) if os.path.isdir(new) and not os.path.islink(new) else os.unlink(new)
        yield what, met, there
def libc_open(path, flags):
    return os.open(path, flags, 0o644)
NAMES = [".git", ".envrc", ".vscode", ".idea", ".claude", ".mcp.json", ".cursor", ".gemini", ".codex", "opencode.json", "opencode.jsonc", ".opencode", ".devcontainer", ".devcontainer.json", ".zed", ".helix", ".run", ".exrc", ".nvim.lua", ".roo", ".kiro", ".qwen", ".amazonq", ".continue", ".windsurf", ".trae", "crush.json", ".crush.json", ".aider.conf.yml", ".hg", ".sl", ".jj", ".husky", "HEAD"]
def look(directory):
    return sorted({(met, there) for name in NAMES for _, met, there in every(directory, name)})
"#;

fn no_call(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let script = format!(
        "{EVERY_CALL}
os.makedirs('/tmp/t'); os.makedirs('/workspace/deep/er')
print(look('/tmp/t')); print(look('/workspace')); print(look('/workspace/deep/er'))
print(sorted({{met for _, met, _ in every('/workspace', 'plain')}}))"
    );
    let refused = "[('EPERM', False)]";
    let output = python(caller, &[], &path, &script)?;
    // In /tmp and for other names each call works: the positive control.
    let expected = format!("[('ok', True)]\n{refused}\n{refused}\n['ok']");
    equal("in the grant", (output.trimmed(), output.stderr.as_str()), (expected.as_str(), ""))?;
    let outside = caller.bash_outside(&format!("ls -A {} | tr '\\n' ' '", path.display()))?;
    equal("on the host", outside.trimmed(), "deep old")
}

fn no_spelling(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let script = r#"
os.chdir("/workspace")
for name in [".GIT", ".Envrc", ".vscode.", ".git ", ".git::$INDEX_ALLOCATION", ".g\u200cit", "a/../.git", ".//.idea//", ".git:x"]:
    os.makedirs("a", exist_ok=True)
    print(tried(lambda: os.mkdir(name)), end=" ")
# A link that leads to the name, one to its directory, and a rename of a directory in two steps.
os.symlink(".envrc", "to"); os.symlink("a", "dir"); os.symlink("to", "twice")
for name in ["to", "twice"]:
    print(tried(lambda: os.open(name, os.O_CREAT | os.O_WRONLY)), end=" ")
print(tried(lambda: os.mkdir("dir/.vscode")), tried(lambda: os.rename("a", ".claude")), end=" ")
open("f", "w").close()
print(call(316, -100, b"f", -100, b".mcp.json", 1), call(316, -100, b"a", -100, b".idea", 4), end=" ")
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR)
print(call(265, -100, b"/proc/self/fd/%d" % unnamed, -100, b".envrc", 0x400), end=" ")
print(call(265, unnamed, b"", -100, b".envrc", 0x1000), end=" ")
os.fchdir(os.open("a", os.O_PATH)); print(tried(lambda: os.mkdir(".git")), tried(lambda: os.mkdir("../.git")))
print(sorted(os.listdir("/workspace")), os.listdir("/workspace/a"))
"#;
    let output = python(caller, &[], &path, script)?;
    let refused = ["EPERM"; 19].join(" ");
    let expected = format!("{refused}\n['a', 'dir', 'f', 'to', 'twice'] []");
    equal("all refused", (output.trimmed(), output.stderr.as_str()), (expected.as_str(), ""))
}

/// One thread makes names, the other changes the name's bytes from a harmless to a guarded one.
const RACE: &str = include_str!("../support/race.c");

fn no_race(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let source = path.join("race.c");
    std::fs::write(&source, RACE)?;
    caller.own(&source)?;
    let script = "cd /workspace && gcc -O1 -w -pthread -o race race.c && ./race /workspace && ./race /tmp until";
    let output = bash(caller, &path, script)?;
    // In /tmp the same program makes both names: the positive control.
    equal("raced", (output.trimmed(), output.stderr.as_str()), ("made clean\nmade GUARDED", ""))
}

fn no_repository(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let script = "cd /workspace
        git init -q sub 2>/dev/null || echo init
        git init -q --bare bare 2>/dev/null || echo bare
        git init -q --separate-git-dir=apart work 2>/dev/null || echo apart
        mkdir -p o/objects o/refs && git init -q --bare /tmp/r && git -C /tmp/r config core.fsmonitor /tmp/evil
        cp -r /tmp/r/* o 2>/dev/null || echo copied but for one
        mv /tmp/r/HEAD o/HEAD 2>/dev/null || echo HEAD
        ln -s /tmp/r/HEAD o/HEAD 2>/dev/null || echo link
        git clone -q /tmp/r clone 2>/dev/null || echo clone
        git init -q /tmp/fine && git clone -q /tmp/fine /tmp/also 2>/dev/null && echo fine in /tmp
        git -C o rev-parse --git-dir 2>/dev/null || echo none";
    let output = bash(caller, &path, script)?;
    let lines = "init\nbare\napart\ncopied but for one\nHEAD\nlink\nclone\nfine in /tmp\nnone";
    equal("in the cell", output.trimmed(), lines)?;
    let found = caller.bash_outside(&format!(
        "cd {}; find . -name .git -o -name HEAD -o -name commondir; \
         for d in . sub bare apart work o clone; do git -C $d rev-parse --git-dir 2>/dev/null; done; echo looked",
        path.display()
    ))?;
    equal("on the host", found.trimmed(), "looked")
}

/// A repository of the caller's with one commit.
fn repository(
    caller: &Caller,
    name: &str,
    more: &str,
) -> Result<std::path::PathBuf, crate::support::Failed> {
    let path = caller.directory(name)?;
    let script = format!(
        "cd {} && git init -q -b main && git config user.email a@b && git config user.name n && \
         git commit -q --allow-empty -m first && {more} echo made",
        path.display()
    );
    equal("a repository", caller.bash_outside(&script)?.trimmed(), "made")?;
    Ok(path)
}

fn parts(caller: &Caller) -> Check {
    let path = repository(
        caller,
        "repository",
        "rm -r .git/hooks && mkdir -p .git/modules/lib && cp -r .git/HEAD .git/objects .git/refs .git/modules/lib && \
         mkdir -p .git/refs/remotes/origin && cp .git/HEAD .git/refs/remotes/origin && \
         git init -q --bare bare.git && rm -r bare.git/hooks bare.git/config &&",
    )?;
    let script = "cd /workspace
        for d in .git .git/modules/lib bare.git; do
            for n in hooks commondir config.worktree Hooks; do mkdir $d/$n 2>/dev/null && echo MADE $d/$n; done
        done
        for d in .git/modules/lib bare.git; do echo x 2>/dev/null > $d/config && echo MADE $d/config; done
        mkdir .git/x && for n in HEAD config hooks; do echo x 2>/dev/null > .git/x/$n && echo MADE .git/x/$n; done
        # A branch may have such a name; a directory of branches becomes nothing else by it.
        git branch config && git branch fix/hooks && git branch x/config && echo branches
        git branch y/HEAD 2>/dev/null || git branch y/objects 2>/dev/null || echo neither HEAD nor objects
        echo evil 2>/dev/null > .git/refs/remotes/origin/config && echo MADE config; echo x > .git/refs/remotes/origin/conf && echo a remote has a HEAD and a branch
        mkdir .git/refs/remotes/origin/objects 2>/dev/null && echo MADE objects
        for to in .git/y .git/modules/lib/y evil; do mv -T .git/refs/remotes/origin $to 2>/dev/null && echo MOVED $to; done
        perl -e 'rename(\".git/refs\", \".git/z\") and print \"RENAMED\\n\"; print $!{EXDEV} ? \"EXDEV\\n\" : \"$!\\n\"'
        git status --short | head -3; ls -d .git/hooks .git/z 2>/dev/null; echo end";
    let output = bash(caller, &path, script)?;
    let lines: Vec<&str> = output.stdout.lines().filter(|line| !line.starts_with("??")).collect();
    let expected =
        "branches\nneither HEAD nor objects\na remote has a HEAD and a branch\nEXDEV\nend";
    equal("only what is harmless", lines.join("\n"), expected)
}

fn named(caller: &Caller) -> Check {
    let path = repository(
        caller,
        "repository",
        "git config core.hooksPath .husky/_ && mkdir -p .husky/_ && echo true > .husky/pre-commit && \
         git config --add include.path ../shared.gitconfig && git config --add include.path ../later.gitconfig && \
         echo > shared.gitconfig && git init -q sub && git -C sub config core.hooksPath githooks &&",
    )?;
    let script = "cd /workspace
        echo x > .husky/_/pre-commit; echo x > .husky/pre-commit; echo x > shared.gitconfig
        echo x > later.gitconfig; mkdir sub/githooks; mv sub other; mkdir githooks && echo another";
    let output = bash(caller, &path, script)?;
    equal("the rest works", output.trimmed(), "another")?;
    let count = |what: &str| output.stderr.matches(what).count();
    equal("what is there", count("Read-only file system"), 3)?;
    equal("what is not", count("Operation not permitted"), 2)?;
    equal("what is on the way", count("Device or resource busy"), 1)
}

/// A cell closes the directory of what is named, and a later cell opens it again.
fn closed(caller: &Caller) -> Check {
    let made = "git config core.hooksPath deep/hooks && mkdir -p deep/hooks && ln -s deep/env .envrc && touch deep/env &&";
    let path = repository(caller, "repository", made)?;
    let closing = bash(caller, &path, "cd /workspace; chmod 000 deep && echo closed")?;
    equal("the control", closing.trimmed(), "closed")?;
    let script = "cd /workspace; chmod 755 deep; echo x > deep/hooks/pre-commit; echo x > deep/env
        mv deep other; mkdir new && echo the rest works";
    let output = bash(caller, &path, script)?;
    equal("the rest", output.trimmed(), "the rest works")?;
    let path = path.display();
    caller.bash_outside(&format!("chmod 755 {path}/deep"))?;
    let look = format!("cd {path}; find deep/hooks -type f | wc -l; wc -c < deep/env; ls -d other");
    equal("on the host", caller.bash_outside(&look)?.stdout.as_str(), "0\n0\n")
}

/// `bound(path)`: the name of a socket that is bound there, or the errno.
pub const BIND: &str = r#"
def stream(): return socket.socket(socket.AF_UNIX)
def bound(path, kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_UNIX, kind)
    try: one.bind(path)
    except OSError as error: return errno.errorcode.get(error.errno, str(error))
    return one.getsockname()
"#;

fn sockets(caller: &Caller) -> Check {
    let script = format!(
        "{BIND}
import stat
os.umask(0o027); os.makedirs('/tmp/d/e'); os.symlink('d', '/tmp/link'); os.makedirs('/workspace/d', exist_ok=True)
print(bound('/tmp/a'), bound('/tmp/d/e/b'), bound('/tmp/a'), bound('/tmp/none/a'), bound('/tmp/a/'), bound('/tmp/d/'), bound('/tmp/c/'), bound('/'), bound('.'))
print(oct(os.lstat('/tmp/a').st_mode))
os.chdir('/tmp/d'); print(bound('f'), bound('e/g'), bound('./h'), oct(os.stat('f').st_mode), sorted(os.listdir('/tmp/d')), os.listdir('e'))
print(bound('\\0' + 'abstract')[:4], len(bound('')), bound('x' * 108)[:3], len(os.listdir('/tmp/d')))
print(bound('/tmp/link/i')[-1:], os.path.exists('/tmp/d/i'), bound('/tmp/seq', socket.SOCK_SEQPACKET))
tcp = socket.socket(); tcp.bind(('127.0.0.1', 0)); print(tcp.getsockname()[0], tried(lambda: socket.socket().bind(tcp.getsockname())))
print(call(49, 0, bytes(16), 16), call(49, 99, bytes(16), 16), call(49, tcp.fileno(), 8, 16), call(49, tcp.fileno(), bytes(200), 200), call(49, tcp.fileno(), bytes(16), -1), call(49, stream().fileno(), b'\\x01\\x00', 2))
one = stream(); one.bind('/tmp/one'); print(tried(lambda: one.bind('/tmp/two')), os.path.exists('/tmp/two'))
one.listen(); two = stream(); two.connect('/tmp/one'); print(two.getpeername(), one.accept()[0].getsockname())"
    );
    let path = caller.directory("grant")?;
    let guarded = python(caller, &[], &path, &script)?;
    let bare = python(caller, &["--unguarded"], &caller.directory("bare")?, &script)?;
    equal("no error", (guarded.stderr.as_str(), bare.stderr.as_str()), ("", ""))?;
    holds("much was tried", &bare, bare.stdout.lines().count() == 9)?;
    for (guarded, bare) in guarded.stdout.lines().zip(bare.stdout.lines()) {
        equal("as bare", guarded, bare)?;
    }
    let script = format!(
        "{BIND}
os.chdir('/workspace'); os.makedirs('d/.vscode-not'); os.symlink('d', 'link'); os.symlink('.vscode', 'to')
print([bound(name) for name in ['.git', '/workspace/.envrc', 'd/.vscode', 'link/.idea', '/workspace/link/HEAD', 'd/../.GIT', '/tmp/../workspace/.mcp.json']])
print(bound('plain'), bound('/workspace/d/x'), bound('link/y'), bound('to'), bound('plain'), bound('/proc/self/cwd/z'))
os.chdir('/proc/self/cwd'); print(bound('w'))
print(sorted(os.listdir('/workspace')), sorted(os.listdir('d')), stream().connect_ex('/workspace/plain'))"
    );
    let path = caller.directory("other")?;
    let output = python(caller, &[], &path, &script)?;
    let refused = ["'EPERM'"; 7].join(", ");
    let expected = format!(
        "[{refused}]\nplain x y EADDRINUSE EADDRINUSE ELOOP\nw\n\
         ['d', 'link', 'plain', 'to', 'w'] ['.vscode-not', 'x', 'y'] 1"
    );
    equal("in a grant", (output.trimmed(), output.stderr.as_str()), (expected.as_str(), ""))
}

/// One cell binds, by turns to a harmless name and to one of a repository, through a directory that the
/// other cell keeps turning.
fn two_cells(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let turn = "
import time
os.chdir('/workspace'); os.makedirs('a', exist_ok=True); os.makedirs('tree', exist_ok=True)
try: os.symlink('a', 'way')
except FileExistsError: pass
print('ready', flush=True)
end = time.monotonic() + 4; n = 0
while time.monotonic() < end:
    for to in ('tree', 'a'):
        os.symlink(to, 'new'); os.rename('new', 'way')
";
    let bind = format!(
        "{BIND}
import time
os.chdir('/workspace'); os.makedirs('a', exist_ok=True)
while not os.path.lexists('way'): time.sleep(0.01)
end = time.monotonic() + 3; made = set()
while time.monotonic() < end:
    for name in ('way/HEAD', 'way/.git', '/workspace/way/plain'):
        met = bound(name); made.add((name, met))
        for place in ('a', 'tree'):
            try: os.unlink(place + '/plain')
            except FileNotFoundError: pass
print(sorted(made))"
    );
    let text = path.display().to_string();
    let turning = format!("{CALLS}\n{turn}");
    let command = caller.run_command(&["--rw", &text], &["/usr/bin/python3", "-c", &turning]);
    let turning = crate::support::Live::start(command)?;
    let output = python(caller, &[], &path, &bind)?;
    let found = caller.bash_outside(&format!(
        "cd {text}; find . -name HEAD -o -name .git -o -name config; echo looked"
    ))?;
    equal("on the host", found.trimmed(), "looked")?;
    holds(
        "plain names are made",
        &output,
        output.stdout.contains("('/workspace/way/plain', 'plain')"),
    )?;
    holds(
        "others are not",
        &output,
        !output.stdout.contains("'HEAD'") && !output.stdout.contains("'.git'"),
    )?;
    turning.finish(crate::support::patience()).map(drop)
}

fn truncated(caller: &Caller) -> Check {
    let script = r#"
import resource, subprocess
G = 1 << 30
seen = []
signal.signal(signal.SIGXFSZ, lambda number, frame: seen.append(number))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
def show(*met): print(*met, len(seen), os.path.getsize("f")); seen.clear()
open("f", "wb").write(b"12345")
big = min(hard, 8 * G) + 1 if hard != -1 else 10 * G
show(call(76, b"f", big)); show(call(76, b"f", 10 * G))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
show(call(76, b"f", 4096), call(76, b"f", 4097)); show(call(76, b"f", 100)); show(tried(lambda: os.ftruncate(os.open("f", os.O_RDWR), 4097)))
os.truncate("f", 4096); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
# What is larger already may shrink, though not below the limit.
show(call(76, b"f", 2000), call(76, b"f", -1)); show(call(76, b"f", 2001)); show(call(76, b"f", 0))
fd = os.open("f", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
show(tried(lambda: os.posix_fallocate(fd, 0, 1001)), call(285, fd, 0, 0, 900)); os.ftruncate(fd, 0)
print([call(285, fd, mode, 0, 4096) for mode in (1, 0x11, 0x20)], os.fstat(fd).st_blocks); show(tried(lambda: os.pwrite(fd, b"x", 1000)))
one = os.open("src", os.O_RDWR | os.O_CREAT); resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard)); os.write(one, b"x" * 5000)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard)); os.lseek(fd, 1000, 0)
show(tried(lambda: os.copy_file_range(one, fd, 100, 0)))
code = 'import os, signal; signal.signal(signal.SIGXFSZ, signal.%s); os.truncate("f", 5000)'
ends = [subprocess.run([sys.executable, "-c", code % how], capture_output=True, text=True) for how in ("SIG_DFL", "SIG_IGN")]
print([one.returncode for one in ends], ends[1].stderr[-28:], os.path.getsize("f"))
"#;
    let mut lines = Vec::new();
    for (options, place) in [(&[][..], "/workspace"), (&[], "/tmp"), (&["--unguarded"], "/tmp")] {
        let path = caller.directory(&format!("grant{}", lines.len()))?;
        let output = python(caller, options, &path, &format!("os.chdir({place:?})\n{script}"))?;
        equal(place, (output.stdout.lines().count(), output.stderr.as_str()), (14, ""))?;
        lines.push(output.stdout);
    }
    let [grant, private, bare] = lines.as_slice() else { return Err("three runs".into()) };
    equal("as without the guard", private, bare)?;
    equal("in the grant", grant, bare)?;
    holds("refused", bare, bare.starts_with("EFBIG 1 5\nEFBIG 1 5\n0 EFBIG 1 4096\n"))?;
    holds("no room past it", bare, bare.contains("['ENOTSUP', 'ENOTSUP', 'ENOTSUP'] 0"))?;
    holds("killed, or reported", bare, bare.contains("[-25, 1] "))
}

/// Tries every way to write to an existing file that the host has created again.
const REWRITE: &str = "cd /workspace; until [ -e go ]; do sleep 0.02; done; exec 2>/tmp/err
    echo evil >> .envrc && echo WROTE envrc; echo evil >> .git/config && echo WROTE config
    echo x > .vscode/tasks.json && echo WROTE task; echo x > .vscode/new && echo WROTE new
    echo x > .git/hooks/pre-commit && echo WROTE hook; echo x > .husky/_/pre-commit && echo WROTE husky
    echo x >> later/.git/config && echo WROTE later
    ln .git/config c 2>>/tmp/err && echo evil >> c && echo WROTE link; exec 5< .git/config && echo evil >> /dev/fd/5 && echo WROTE descriptor
    ln -s .git/config s && echo evil >> s && echo WROTE by symlink; dd if=/dev/zero of=.git/config conv=notrunc count=1 && echo WROTE dd
    mv .git g && echo x >> g/config && echo WROTE moved; [ -e g ] && mv g .git && echo BACK
    echo fine >> plain && echo fine; true";

fn recreated(caller: &Caller) -> Check {
    let mut lines = Vec::new();
    for options in [&["--unguarded"][..], &[]] {
        let name = format!("grant{}", options.len());
        let more = "git config core.hooksPath .husky/_ && mkdir -p .husky/_ .vscode && \
                    echo '{}' > .vscode/tasks.json && echo trusted > .envrc &&";
        let path = repository(caller, &name, more)?;
        let text = path.display().to_string();
        let options: Vec<&str> = options.iter().copied().chain(["--rw", &text]).collect();
        let live = caller.live(&options, REWRITE)?;
        // Editors and git save by a rename over the old file, which removes its mounts.
        let host = "git config a.b c && cp .envrc e && mv e .envrc && mv .vscode v && cp -r v .vscode && rm -r v && \
            mv .git/hooks h && cp -r h .git/hooks && rm -r h && mv .husky h && cp -r h .husky && rm -r h && \
            git init -q later && touch go && echo done";
        let output = caller.bash_outside(&format!("cd {text} && {host}"))?;
        equal("the host", output.trimmed(), "done")?;
        lines.push(live.finish(crate::support::patience())?.stdout);
    }
    let [unguarded, guarded] = lines.as_slice() else { return Err("two runs".into()) };
    // The positive control: without the guard of names each of these is open to the cell.
    for what in ["envrc", "config", "task", "new", "hook", "husky", "later", "descriptor", "dd"] {
        let line = format!("WROTE {what}");
        holds("the attack works unguarded", unguarded, unguarded.contains(&line))?;
    }
    equal("guarded", guarded.trim(), "fine")
}

fn work(caller: &Caller) -> Check {
    let path = repository(caller, "repository", "")?;
    let script = "set -e; cd /workspace
        echo a > a; git add a; git commit -qm a; git checkout -q -b topic; echo b >> a; git stash -q; git stash pop -q
        git commit -qam b; git tag v1; git checkout -q main; git merge -q --no-edit topic; git rebase -q topic
        git rm -q a; git reset -q --hard; git gc -q; git log --oneline | wc -l
        mkdir src; printf 'all: out\\nout: src/in\\n\\tcp src/in out\\n' > Makefile; echo in > src/in; make -s; cat out
        tar cf t.tar src; mkdir x; tar xf t.tar -C x; cat x/src/in; cp -a src y; mv y z; sed -i s/in/IN/ src/in; cat src/in
        python3 -c 'import os
for n in range(300): os.makedirs(f\"node_modules/.bin/p{n}/lib\"); open(f\"node_modules/.bin/p{n}/lib/i.js\", \"w\").close()
open(\"f~\", \"w\").write(\"new\"); os.replace(\"f~\", \"f\"); print(open(\"f\").read())'
        python3 -m venv --without-pip v; v/bin/python -c 'print(1)'
        umask 077; echo s > s; stat -c %a s; umask 002; mkdir m; stat -c %a m
        echo err > /dev/stderr; echo out > /dev/null; cat <(echo sub); echo t | tee >(cat > p) > /dev/null; ln -s a l; ln a h; : > l";
    let path = path.display().to_string();
    // Streams by their names: the tests' pipes belong to another user, as they do in a call.
    let script = format!("({script}) 2> /tmp/err | cat; cat /tmp/err");
    let guarded = caller.run(&["--rw", &path], &["bash", "-c", &script])?;
    let lines = "3\nin\nin\nIN\nnew\n1\n600\n775\nsub\nerr";
    equal("in the cell", (guarded.trimmed(), guarded.stderr.as_str()), (lines, ""))
}

/// Odd calls, one a line with what each met and made; the same in a guarded grant as in another.
const ODD: &str = include_str!("../support/odd_calls.py");

fn odd(caller: &Caller) -> Check {
    for place in ["/workspace/odd", "/tmp/odd"] {
        let script = format!("BASE = {place:?}\n{ODD}");
        let guarded =
            python(caller, &[], &caller.directory(&format!("g{}", place.len()))?, &script)?;
        let fresh = caller.directory(&format!("u{}", place.len()))?;
        let bare = python(caller, &["--unguarded"], &fresh, &script)?;
        holds("calls were made", &bare, bare.stdout.lines().count() > 100)?;
        equal("no error", (bare.stderr.as_str(), guarded.stderr.as_str()), ("", ""))?;
        for (guarded, bare) in guarded.stdout.lines().zip(bare.stdout.lines()) {
            equal(place, guarded, bare)?;
        }
        equal("all of them", guarded.stdout.lines().count(), bare.stdout.lines().count())?;
    }
    Ok(())
}

fn deputy(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    // Init would reach its own memory, descriptors and directories by these names.
    let script = r#"
C, RW = os.O_CREAT, os.O_RDWR
names = ["/proc/1/mem", "/proc/1/environ", "/proc/self/mem", "/proc/1/fd/0", "/proc/1/fd/3", "/proc/1/cwd/x", "/proc/1/root/tmp/x", "/proc/1/task/1/mem"]
os.symlink("/proc/1/mem", "/workspace/mem"); os.symlink("/proc/self", "/tmp/me")
for name in names + ["/workspace/mem", "/tmp/me/mem", "/tmp/me/fd/3"]:
    for flags in (os.O_RDONLY, RW):
        for more in (0, os.O_NOFOLLOW, os.O_EXCL):
            met = tried(lambda: os.open(name, C | flags | more))
            if met == "ok": print("OPENED", name, flags, more)
os.chdir("/proc/1"); print(tried(lambda: os.open("mem", C | os.O_RDONLY)), tried(lambda: os.open("environ", C)))
os.chdir("/proc/self"); print(tried(lambda: os.open("mem", C | RW)), tried(lambda: os.open("fd/3", C | RW)))
print(tried(lambda: os.link("/proc/1/fd/3", "/workspace/x")), call(265, -100, b"/proc/1/exe", -100, b"/workspace/x", 0x400))
mine = os.open("/tmp/mine", C | RW, 0o600); os.write(mine, b"mine")
for name in ["/proc/self/fd/%d", "/dev/fd/%d", "/proc/thread-self/fd/%d", f"/proc/{os.getpid()}/fd/%d"]:
    print(os.read(os.open(name % mine, C | RW), 9))
"#;
    let output = python(caller, &[], &path, script)?;
    let own = ["b'mine'"; 4].join("\n");
    let expected = format!("EACCES EACCES\nEACCES EACCES\nEXDEV EACCES\n{own}");
    equal("nothing of init's", (output.trimmed(), output.stderr.as_str()), (expected.as_str(), ""))
}

fn fifo(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let script = "cd /workspace; mkfifo f; for i in 1 2 3 4 5; do (echo $i > f) & done
        (echo killed > f) & kill -KILL $!
        until [ $(cat /proc/[0-9]*/stat | grep -c '(bash) S') -gt 5 ]; do sleep 0.1; done; sleep 0.5
        echo free > other; cat other
        sort f | tr -d '\\n'; echo; wait; (timeout 0.2 bash -c 'echo never > f'; echo $?)";
    let output = bash(caller, &path, script)?;
    equal("all were served", output.trimmed(), "free\n12345\n124")?;
    // More writers than init serves in one round; a writer that waited when the reader came does not need a second reader.
    let many = "cd /workspace; mkfifo g; for i in $(seq 100); do (echo $i > g) 2>/dev/null & done
        until [ $(cat /proc/[0-9]*/stat | grep -c '(bash) S') -gt 100 ]; do sleep 0.1; done; sleep 1";
    let script = format!("{many}; sort -n g | tr '\\n' ' '; wait");
    let numbers: Vec<_> = (1..=100).map(|number| number.to_string()).collect();
    equal("to the last", bash(caller, &path, &script)?.trimmed(), numbers.join(" "))?;
    let script = format!("rm g; {many}; read -r line < g; wait; echo gone");
    equal("none stays behind", bash(caller, &path, &script)?.trimmed(), "gone")?;
    equal(
        "nor where the reader leaves at once",
        python(caller, &[], &path, SHORT_READER)?.trimmed(),
        "50",
    )
}

/// A reader that takes the line of a writer that did not wait and leaves, each time before init looks again: the
/// writer that waited is released too.
const SHORT_READER: &str = r#"
import signal, time
os.mkfifo("/workspace/h")
signal.alarm(30)
served = 0
while served < 50:
    waiting = os.fork()
    if waiting == 0:
        os.close(os.open("/workspace/h", os.O_WRONLY))
        os._exit(0)
    # It sleeps once it has asked to open.
    while open(f"/proc/{waiting}/stat").read().split()[2] != "S":
        time.sleep(0.01)
    reader = os.open("/workspace/h", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open("/workspace/h", os.O_WRONLY)
    os.write(writer, b"x")
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    served += os.waitpid(waiting, 0)[1] == 0
print(served)
"#;

fn reported(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let script = "mkdir .vscode /workspace/.git; mkdir plain; unshare -U true";
    let object = caller.json(&["--rw", &path], &["bash", "-c", script])?;
    let grant = "--unguarded, since the host obeys what has such a name, \
        or copy-on-write (DIR:cow, --cow); in /tmp it can be made \
        (git: config --global lasts as long as the session; clone to /tmp and push back)";
    // The C library calls what the architecture has.
    let call = if cfg!(target_arch = "x86_64") { "mkdir" } else { "mkdirat" };
    equal(
        "denials",
        at(&object, "/denials"),
        &serde_json::json!([
            { "syscall": "unshare", "count": 1 },
            { "syscall": call, "count": 2, "grant": grant },
        ]),
    )?;
    // `run` prints a possible reason only for a command that failed.
    let failed = caller.run(&["--rw", &path], &["mkdir", "/workspace/.idea"])?;
    let line = format!(
        "cofferdam: denied: system call {call}, once; the operator can grant it: {grant}\n"
    );
    holds("reported", &failed.stderr, failed.stderr.ends_with(&line))?;
    let went_on =
        caller.run(&["--rw", &path], &["bash", "-c", "mkdir .vscode 2>/dev/null; true"])?;
    equal("not reported", (went_on.code, went_on.stderr.as_str()), (0, ""))?;
    let receipt = at(&object, "/receipt");
    equal("probed", at(receipt, "/probed/guarded_name"), "EPERM")?;
    let workspace = at(receipt, "/configured/workspace");
    equal("configured", workspace, "granted, read-write, names guarded")
}

fn lifted(caller: &Caller) -> Check {
    let path = repository(caller, "repository", "echo trusted > .envrc &&")?.display().to_string();
    let script = "cd /workspace; git init -q sub && git -C sub rev-parse --git-dir; mkdir .vscode && echo made
        echo x > .envrc; echo x >> .git/config";
    let object = caller.json(&["--rw", &path, "--unguarded"], &["bash", "-c", script])?;
    equal("made", at(&object, "/stdout"), ".git\nmade\n")?;
    let stderr = at(&object, "/stderr").as_str().unwrap_or_default();
    // Existing files stay unchanged.
    equal("read-only", stderr.matches("Read-only file system").count(), 2)?;
    equal("probed", at(&object, "/receipt/probed/guarded_name"), "not guarded")?;
    let workspace = at(&object, "/receipt/configured/workspace");
    equal("configured", workspace, "granted, read-write, names unguarded")
}

fn without(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    for options in [&[][..], &["--ro", &path]] {
        let script = "mkdir /workspace/.git /tmp/.vscode && echo made";
        let object = caller.json(options, &["bash", "-c", script])?;
        equal("every name", at(&object, "/stdout"), "made\n")?;
        equal("probed", at(&object, "/receipt/probed/guarded_name"), "not guarded")?;
    }
    Ok(())
}

/// Creates files that editors, agents and git of the host would run or read by another name, prints which succeeded,
/// and then does ordinary work in the same directory.
const TWINS: &str = r#"cd /workspace; exec 2> /tmp/err
    for name in .vimrc .gvimrc .nvimrc .lazygit.yml .git/lazygit.yml .git/objects/info/alternates; do
        echo x > $name && echo PLANTED $name
    done
    for name in .vim .kilocode .factory .openhands .repo .pi .github/hooks .clinerules/hooks; do
        mkdir -p $name && echo PLANTED $name
    done
    mkdir -p a/hooks b; echo x > a/hooks/x
    mv -T a/hooks .github/hooks && echo PLANTED renamed
    python3 -c 'import os; os.rename("a", "sub.github"); os.mkdir("d"); os.rename("sub.github", "d/.github")' && echo PLANTED directory
    ln -s ../a d/.github && echo PLANTED link
    ln -s a link; python3 -c 'import os; os.rename("link", "d/.clinerules")' && echo PLANTED moved link
    python3 -c 'import os; os.link("link", "d/.clinerules", follow_symlinks=False)' && echo PLANTED second name
    echo x > old/.github/hooks/one && echo PLANTED old
    mkdir -p .github/workflows d/.github && echo on: push > .github/workflows/ci.yml && echo rules > d/rules &&
        mv d/rules d/.clinerules && mv .github/workflows/ci.yml .github/workflows/build.yml && mkdir src && mkdir src/hooks &&
        mv .github b/ && git add b/.github && git commit -qm workflows && echo works"#;

fn twins(caller: &Caller) -> Check {
    let mut lines = Vec::new();
    for options in [&["--unguarded"][..], &[]] {
        let path = caller.directory(&format!("twins{}", options.len()))?;
        let text = path.display().to_string();
        let made = "git init -q . && git config user.email a@b && git config user.name n && mkdir -p old/.github && echo made";
        let output = caller.bash_outside(&format!("cd {text} && {made}"))?;
        equal("a repository", output.trimmed(), "made")?;
        let options: Vec<&str> = options.iter().copied().chain(["--rw", &text]).collect();
        let script = TWINS.replace("echo x > old/", "mkdir old/.github/hooks; echo x > old/");
        lines.push(caller.run(&options, &["bash", "-c", &script])?.stdout);
    }
    let [unguarded, guarded] = lines.as_slice() else { return Err("two runs".into()) };
    // The positive control: without the guard each of them is open to the cell.
    let plain = ".vimrc .gvimrc .nvimrc .lazygit.yml .git/lazygit.yml .git/objects/info/alternates .vim .kilocode .factory \
        .openhands .repo .pi .github/hooks .clinerules/hooks directory old";
    for what in plain.split_whitespace() {
        let line = format!("PLANTED {what}\n");
        holds("it works unguarded", (what, unguarded), unguarded.contains(&line))?;
    }
    equal("guarded", guarded.trim(), "works")?;
    // Existing names are read-only, and so are those that the host makes while a cell runs.
    let path = caller.directory("there")?;
    let text = path.display().to_string();
    let made = "mkdir -p .github/hooks p/.clinerules/hooks .git/objects/info && echo 1 > .github/hooks/one && \
        echo 2 > .git/objects/info/alternates && touch .git/HEAD && ln -s p/.clinerules .clinerules && echo made";
    equal("made", caller.bash_outside(&format!("cd {text} && {made}"))?.trimmed(), "made")?;
    let script = "exec 2>&1; cd /workspace; echo x > .github/hooks/one; echo x > p/.clinerules/hooks/two; \
        for from in .github/hooks .github; do python3 -c 'import os, sys; os.rename(sys.argv[1], \"gone\")' $from; done; \
        echo x > .git/objects/info/alternates; echo x > .github/fine && echo fine";
    let output = bash(caller, &path, script)?;
    let read_only = output.stdout.matches("Read-only file system").count();
    // A mount stays where it is, and what lies beneath another mount than its new place.
    let stays = ["Device or resource busy: '.github'", "cross-device link: '.github/hooks'"];
    let stays = stays.iter().all(|reason| output.stdout.contains(reason));
    holds(
        "read-only",
        &output.stdout,
        read_only == 3 && stays && output.stdout.ends_with("fine\n"),
    )?;
    let seen = caller.bash_outside(&format!(
        "cd {text} && cat .github/hooks/one && ls -A . p/.clinerules/hooks"
    ))?;
    equal(
        "as before",
        seen.trimmed(),
        "1\n.:\n.clinerules\n.git\n.github\np\n\np/.clinerules/hooks:",
    )
}

fn granted_holders(caller: &Caller) -> Check {
    let script = "exec 2>/dev/null; cd /workspace; for name in hooks Hooks HOOKS. hooks:x; do
            mkdir $name && echo PLANTED $name; rmdir $name; done
        echo x > hooks/one && echo PLANTED file; mkdir a && mv -T a hooks && echo PLANTED renamed
        ln -s /tmp hooks && echo PLANTED link; mv -T hooks gone && echo PLANTED moved
        mkdir -p sub/hooks workflows && echo on > workflows/ci.yml && echo fine";
    let cases = [
        ("new/.github", "true", "PLANTED"),
        ("odd/.CLINERULES", "true", "PLANTED"),
        // An existing directory stays read-only without the guard.
        ("there/.github", "mkdir hooks && echo 1 > hooks/one", "PLANTED Hooks"),
    ];
    for (name, made, planted) in cases {
        caller.directory(name.split('/').next().unwrap_or_default())?;
        let path = caller.directory(name)?.display().to_string();
        let look = format!("cd {path} && find . | LC_ALL=C sort");
        let before = caller.bash_outside(&format!("cd {path} && {made} && {look}"))?.stdout;
        let guarded = caller.run(&["--rw", &path], &["bash", "-c", script])?;
        equal(name, guarded.stdout.as_str(), "fine\n")?;
        let after = caller.bash_outside(&look)?.stdout;
        let work = ["./a", "./sub", "./sub/hooks", "./workflows", "./workflows/ci.yml"];
        let left: Vec<&str> = after.lines().filter(|line| !work.contains(line)).collect();
        equal(name, left, before.lines().collect::<Vec<&str>>())?;
        // The positive control.
        let open = caller.run(&["--unguarded", "--rw", &path], &["bash", "-c", script])?;
        holds(name, &open.stdout, open.stdout.contains(planted))?;
    }
    Ok(())
}

fn operators(caller: &Caller) -> Check {
    let config = caller.directory("config")?;
    let path = caller.directory("grant")?;
    let text = path.display().to_string();
    let made = "mkdir -p there/.mytool && echo host > there/.mytool/run && echo host > there/lefthook.yml && echo made";
    equal("made", caller.bash_outside(&format!("cd {text} && {made}"))?.trimmed(), "made")?;
    let script = "exec 2>&1; cd /workspace; echo x > there/lefthook.yml; echo x > there/.mytool/run; mkdir -p d/.mytool; \
        echo x > d/LeftHook.yml; mv there/.mytool there/x; mkdir other && mv other .mytool; ls -A d; echo x > lefthook.yaml && echo fine";
    let options = ["--config", &config.display().to_string(), "--rw", &text];
    let run = |options: &[&str]| caller.run(options, &["bash", "-c", script]);
    let write = |names: &str| {
        std::fs::write(
            config.join("cofferdam.toml"),
            format!("schema = 1\n[guard]\nnames = {names}\n"),
        )
    };
    write(r#"["lefthook.yml", ".mytool"]"#)?;
    let output = run(&options)?;
    let count = |what: &str| output.stdout.matches(what).count();
    let counted =
        (count("Read-only file system"), count("Operation not permitted"), count("\nfine\n"));
    holds("guarded", &output.stdout, counted.0 >= 2 && counted.1 == 3 && counted.2 == 1)?;
    let seen = caller.bash_outside(&format!(
        "cd {text} && cat there/.mytool/run there/lefthook.yml && ls -A . d"
    ))?;
    equal("as before", seen.trimmed(), "host\nhost\n.:\nd\nlefthook.yaml\nother\nthere\n\nd:")?;
    // The positive control, and what is no name.
    write("[]")?;
    caller.bash_outside(&format!("rm -r {text}/d {text}/other"))?;
    let output = run(&options)?;
    holds("unguarded", &output.stdout, output.stdout.starts_with(".mytool\nLeftHook.yml\nfine"))?;
    write(r#"["a/b"]"#)?;
    let output = run(&options)?;
    let reason = "`a/b` is not one name: a path is guarded by one of its parts";
    holds("refused", &output.stderr, output.code == 125 && output.stderr.contains(reason))
}
