//! The cache of a workspace: it persists, only its owner can read it, and no cell can break a later start with it.

use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::toolchains::Home;
use crate::support::{Caller, Check, Claim, Failed, Finished, Need, claim, equal, holds};

pub const CLAIMS: &[Claim] = &[
    claim("a_cache_stays_and_is_of_one_workspace_alone", kept),
    claim("stores_of_package_managers_are_in_the_cache", stores),
    claim("a_cache_is_emptied_when_it_is_too_large", limited),
    claim("caches_are_not_cleaned_before_a_server_answers", later).needs(&[Need::RootLooks]),
    claim("files_left_in_the_cache_break_no_later_start", spoiled),
    claim("no_link_leads_the_cache_elsewhere", linked),
    claim("any_name_is_allowed_in_the_cache_only", named).needs(&[Need::Git, Need::Python]),
    claim("workspace_links_cannot_lead_the_host_into_a_cache", led).needs(&[Need::Python]),
];

/// Makes a file in the cache, and shows what was there before.
const USE: &str = "cat $XDG_CACHE_HOME/file 2> /dev/null; echo kept > /cache/file";

fn workspace(caller: &Caller, name: &str) -> Result<String, Failed> {
    Ok(caller.directory(name)?.display().to_string())
}

fn run(caller: &Caller, options: &[&str], script: &str) -> Result<Finished, Failed> {
    caller.run(options, &["bash", "-c", script])
}

/// The directories of all caches.
fn caches(caller: &Caller) -> PathBuf {
    Path::new(&caller.home).join(".cache/cofferdam-caches")
}

/// The cache that there is, and its lock.
fn only(caller: &Caller) -> Result<[PathBuf; 2], Failed> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(caches(caller))? {
        let entry = entry?;
        // Caches that upkeep removes.
        if entry.file_name() != ".gone" {
            found.push(entry.path());
        }
    }
    found.sort();
    match <[PathBuf; 2]>::try_from(found) {
        Ok(both) => Ok(both),
        Err(found) => Err(format!("not one cache: {found:?}").into()),
    }
}

fn kept(caller: &Caller) -> Check {
    let one = workspace(caller, "one")?;
    let other = workspace(caller, "other")?;
    caller.bash_outside("mkdir -m 700 .cache && echo host > .cache/file")?;
    equal("first", run(caller, &["--rw", &one], USE)?.trimmed(), "")?;
    equal("again", run(caller, &["--rw", &one], USE)?.trimmed(), "kept")?;
    equal("of another", run(caller, &["--rw", &other], USE)?.trimmed(), "")?;
    let mut server = crate::server::Server::of(caller.cofferdam(&["serve", "--workspace", &one]))?;
    server.gives("cat /cache/file; echo $npm_config_cache", 0, "kept\n/cache/npm\n")?;
    equal(
        "the host's own",
        std::fs::read_to_string(format!("{}/.cache/file", caller.home.display()))?.as_str(),
        "host\n",
    )?;
    // No cache for a read-only workspace, or where the caller declined it.
    let none = "ls -d /cache; echo \"[$XDG_CACHE_HOME]\"";
    for options in [
        vec!["--ro", one.as_str()],
        vec!["--rw", &one, "--toolchains", "none"],
        vec!["--rw", &one, "--ro", "/usr/share:/cache/share"],
    ] {
        let output = run(caller, &options, none)?;
        equal(&options.join(" "), output.trimmed().lines().last(), Some("[]"))?;
    }
    Ok(())
}

/// Variables and their values, as a cell with a cache has them.
const STORES: &str = "BUN_INSTALL_CACHE_DIR=/cache/bun
CARGO_HOME=/cache/cargo
CCACHE_DIR=/cache/ccache
DENO_DIR=/cache/deno
GOMODCACHE=/cache/go-mod
GRADLE_USER_HOME=/cache/gradle
MAVEN_ARGS=-Dmaven.repo.local=/cache/maven
NUGET_PACKAGES=/cache/nuget
PNPM_HOME=/cache/pnpm
POETRY_CACHE_DIR=/cache/poetry
PRE_COMMIT_HOME=/cache/pre-commit
PUB_CACHE=/cache/pub
XDG_CACHE_HOME=/cache
YARN_CACHE_FOLDER=/cache/yarn
YARN_GLOBAL_FOLDER=/cache/yarn-global
npm_config_cache=/cache/npm
pnpm_config_store_dir=/cache/pnpm/store";

fn stores(caller: &Caller) -> Check {
    let one = workspace(caller, "one")?;
    let list = "env | grep =.*/cache | LC_ALL=C sort";
    equal("each", run(caller, &["--rw", &one], list)?.trimmed(), STORES)?;
    // Only where there is a cache.
    equal("without one", run(caller, &[], list)?.trimmed(), "")?;
    let options = ["--rw", &one, "--env", "DENO_DIR=/tmp/d"];
    equal("what is asked for stays", run(caller, &options, "echo $DENO_DIR")?.trimmed(), "/tmp/d")?;
    // A repository that is granted is read where it is.
    let home = Home::new(caller)?;
    home.file(caller, ".m2/repository/a/one.pom", "", 0o644)?;
    let output = home.run(caller, &[], "ls ${MAVEN_ARGS##*=}; echo ${MAVEN_ARGS%% *}")?;
    equal("Maven's", output.trimmed(), "a\njar\n-Dmaven.repo.local=/cache/maven")
}

/// A configuration with a cache of this size.
fn configured(caller: &Caller, size: &str) -> Result<String, Failed> {
    let directory = caller.directory(&format!("config-{size}"))?;
    let text = format!("schema = 1\n[toolchains]\ncache = \"{size}\"\n");
    std::fs::write(directory.join("cofferdam.toml"), text)?;
    Ok(directory.display().to_string())
}

/// Has the next start measure the cache: not within the hour of the last time, nor while another process has the cache.
/// What a start leaves behind may have it for a moment after its end.
fn unmeasured(lock: &Path) -> Check {
    std::fs::write(lock, "")?;
    let guard = Flock::lock(std::fs::File::open(lock)?, FlockArg::LockExclusive);
    guard.map(drop).map_err(|(_, errno)| errno.to_string().into())
}

/// Has a server measure the cache, which the next start then empties if it is too large.
fn measured(caller: &Caller, options: &[&str], lock: &Path) -> Check {
    unmeasured(lock)?;
    let server = serving(caller, options)?;
    until("it is measured", || Ok(std::fs::metadata(lock)?.len() > 0))?;
    until("nothing is left", || Ok(!caches(caller).join(".gone").exists()))?;
    // The end of the cell releases the cache.
    drop(server);
    let guard = Flock::lock(std::fs::File::open(lock)?, FlockArg::LockExclusive);
    guard.map(drop).map_err(|(_, errno)| errno.to_string().into())
}

/// Starts a server, up to its answer to `initialize`.
fn serving(caller: &Caller, options: &[&str]) -> Result<crate::server::Server, Failed> {
    crate::server::Server::of(caller.cofferdam(&[&["serve"], options].concat()))
}

fn until(what: &str, is_done: impl Fn() -> Result<bool, Failed>) -> Check {
    let end = std::time::Instant::now() + crate::support::patience();
    while !is_done()? {
        holds(what, "never", std::time::Instant::now() < end)?;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}

/// Directories that a cell leaves.
const LEFT: &str = "mkdir -p /cache/{1..20}/{1..20}";

fn later(caller: &Caller) -> Check {
    let one = workspace(caller, "one")?;
    let other = workspace(caller, "other")?;
    run(caller, &["--rw", &one], LEFT)?;
    let [cache, lock] = only(caller)?;
    unmeasured(&lock)?;
    // A cell can have made it unusable, or an earlier start can have left it.
    let gone = caches(caller).join(".gone");
    let from = cache.display();
    let to = gone.display();
    caller.bash_outside(&format!(
        "mkdir {to} && cp -r {from} {to}/1 && mkdir -p {to}/2/deep/deeper"
    ))?;
    // All that takes time waits for the other processes that do the same.
    let guard = Flock::lock(std::fs::File::open(caches(caller))?, FlockArg::LockExclusive);
    let guard = guard.map_err(|(_, errno)| errno.to_string())?;
    for workspace in [&one, &other] {
        let mut server = serving(caller, &["--rw", workspace])?;
        server.gives("ls /cache | wc -l", 0, if *workspace == one { "20\n" } else { "0\n" })?;
        equal("not removed", std::fs::read_dir(&gone)?.count(), 2)?;
        equal("nor measured", std::fs::metadata(&lock)?.len(), 0)?;
        until("the process waits, confined", || confined(&caches(caller)))?;
        // It ends with its server, whatever it waits for.
        drop(server);
        until("it has ended", || Ok(holder(&caches(caller))?.is_none()))?;
    }
    let server = serving(caller, &["--rw", &one])?;
    drop(guard);
    until("it is measured", || Ok(std::fs::metadata(&lock)?.len() == 1))?;
    until("all is removed", || Ok(!gone.exists()))?;
    drop(server);
    equal("the cache stays", run(caller, &["--rw", &one], "ls /cache | wc -l")?.trimmed(), "20")
}

fn limited(caller: &Caller) -> Check {
    let one = workspace(caller, "one")?;
    let config = configured(caller, "1M")?;
    let options = ["--config", &config, "--rw", &one];
    let fill = "head -c 2M /dev/zero > /cache/large; d=/cache; for i in $(seq 300); do d=$d/d; done; mkdir -p $d";
    // The first start measures. It would find what this script leaves, or not.
    run(caller, &options, "true")?;
    let [cache, lock] = only(caller)?;
    measured(caller, &options, &lock)?;
    run(caller, &options, fill)?;
    equal("there", run(caller, &options, "ls /cache")?.trimmed(), "d\nlarge")?;
    measured(caller, &options, &lock)?;
    let output = run(caller, &options, "ls -A /cache; echo ok > /cache/file")?;
    equal("emptied", output.trimmed(), "")?;
    holds("and reported", &output.stderr, output.stderr.contains("emptied: it is too large"))?;
    equal("nothing is left", only(caller)?, [cache, lock.clone()])?;
    // The positive control: what fits stays.
    let levels = "d=/cache; for i in $(seq 90); do d=$d/d; done; mkdir -p $d";
    run(caller, &options, levels)?;
    measured(caller, &options, &lock)?;
    equal("kept", run(caller, &options, "cat /cache/file")?.trimmed(), "ok")?;
    // Levels without end hold no descriptors.
    run(caller, &options, &levels.replace("90", "200"))?;
    measured(caller, &options, &lock)?;
    equal("too deep", run(caller, &options, "ls -A /cache")?.trimmed(), "")?;
    let none = configured(caller, "none")?;
    let output = run(caller, &["--config", &none, "--rw", &one], "ls -d /cache; echo started")?;
    equal("no such directory", output.trimmed(), "started")
}

fn spoiled(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    home.file(caller, ".gradle/wrapper/dists/one", "host\n", 0o644)?;
    let gradle = "cat $GRADLE_USER_HOME/wrapper/dists/one && echo mine > $GRADLE_USER_HOME/own; \
        echo x > $GRADLE_USER_HOME/wrapper/dists/one";
    let output = home.run(caller, &[], gradle)?;
    equal("the host's distributions", output.trimmed(), "host")?;
    holds("read-only", &output.stderr, output.stderr.contains("Read-only file system"))?;
    for spoil in [
        "mv /cache/gradle /cache/other; ln -s /usr /cache/gradle",
        "mv /cache/gradle /cache/third; echo file > /cache/gradle",
        "mv /cache/gradle /cache/fourth; mkdir /cache/gradle; ln -s . /cache/gradle/wrapper",
        "chmod 000 /cache",
        "chmod 777 /cache",
        "chmod 000 /cache/gradle",
    ] {
        home.run(caller, &[], spoil)?;
        let script = "cat $GRADLE_USER_HOME/wrapper/dists/one; echo a > /cache/a && echo started";
        let output = home.run(caller, &[], script)?;
        equal(spoil, output.trimmed(), "host\nstarted")?;
    }
    Ok(())
}

fn linked(caller: &Caller) -> Check {
    let one = workspace(caller, "one")?;
    let secret = caller.directory("secret")?;
    std::fs::write(secret.join("file"), "secret")?;
    run(caller, &["--rw", &one], USE)?;
    let [cache, _] = only(caller)?;
    let swap = |path: &Path| {
        let path = path.display();
        let to = secret.display();
        caller.bash_outside(&format!("mv {path} {path}.old && ln -s {to} {path}"))
    };
    swap(&cache)?;
    let output = run(caller, &["--rw", &one], "cat /cache/file; echo x > /cache/own")?;
    equal("not followed", output.trimmed(), "")?;
    equal("nor written", std::fs::read_dir(&secret)?.count(), 1)?;
    equal("nor removed", std::fs::read_to_string(secret.join("file"))?.as_str(), "secret")?;
    // No cache either if a directory above it is not safe.
    swap(&caches(caller))?;
    let output = run(caller, &["--rw", &one], "ls -d /cache; echo started")?;
    equal("no cache", output.trimmed(), "started")?;
    equal("nothing is made", std::fs::read_dir(&secret)?.count(), 1)
}

/// Makes guarded names in the cache, and then by every way from there to the workspace.
const NAMES: &str = r#"
import errno, os, socket, subprocess, threading
def tried(what, action):
    try: action()
    except OSError as error: print(what, errno.errorcode[error.errno])
    else: print(what, "done")
print("one filesystem", os.stat("/cache").st_dev == os.stat("/workspace").st_dev)
tried("clone", lambda: subprocess.run(["git", "init", "-q", "/cache/uv/repo"], check=True))
tried("hook", lambda: open("/cache/uv/repo/.git/hooks/post-commit", "w").close())
tried("settings", lambda: os.mkdir("/cache/.vscode"))
tried("renamed", lambda: os.rename("/cache/uv/repo/.git", "/cache/uv/.git"))
tried("linked", lambda: os.link("/cache/uv/.git/config", "/cache/.envrc"))
tried("again", lambda: os.truncate("/cache/.envrc", 0))
held = os.open("/cache/uv", os.O_PATH)
tried("held", lambda: os.mkdir(".husky", dir_fd=held))
# The control, and the ways out.
tried("workspace", lambda: os.mkdir("/workspace/.git"))
tried("rename", lambda: os.rename("/cache/uv/.git", "/workspace/.git"))
tried("rename of one above", lambda: os.rename("/cache/uv", "/workspace/uv"))
tried("link", lambda: os.link("/cache/.envrc", "/workspace/.envrc"))
tried("link of a plain name", lambda: os.link("/cache/.envrc", "/workspace/plain"))
tried("symlink", lambda: os.symlink("/cache/uv/.git", "/workspace/.git"))
os.symlink("/workspace", "/cache/back")
tried("by a link", lambda: os.mkdir("/cache/back/.git"))
tried("by a way up", lambda: os.mkdir("/cache/../workspace/.git"))
out = os.open("/cache/back", os.O_PATH | os.O_DIRECTORY)
tried("by a held directory", lambda: os.mkdir(".git", dir_fd=out))
os.chdir("/cache"); os.chdir("back")
tried("from where it leads", lambda: os.mkdir(".git"))
os.chdir("/cache")
listener = socket.socket(socket.AF_UNIX)
listener.bind("/cache/socket"); listener.listen(1)
tried("connect", lambda: socket.socket(socket.AF_UNIX).connect("/cache/socket"))
# A link that leads to the cache in one moment and to the workspace in the next.
os.mkdir("/cache/race"); os.mkdir("/workspace/race")
os.symlink("/cache/race", "/tmp/a"); os.symlink("/workspace/race", "/tmp/b")
stop = threading.Event()
def swap():
    while not stop.is_set():
        for to in "ab":
            os.symlink(os.readlink("/tmp/" + to), "/tmp/new"); os.rename("/tmp/new", "/tmp/led")
os.symlink("/cache/race", "/tmp/led")
thread = threading.Thread(target=swap); thread.start()
made = refused = 0
while made < 200 or refused < 200:
    try: os.mkdir("/tmp/led/.git")
    except FileExistsError: pass
    except PermissionError: refused += 1
    else: made += 1
    try: os.rmdir("/cache/race/.git")
    except FileNotFoundError: pass
stop.set(); thread.join()
print("raced", os.listdir("/workspace/race"))
print(sorted(os.listdir("/workspace")))
"#;

const NAMED: &str = "one filesystem True
clone done
hook done
settings done
renamed done
linked done
again done
held done
workspace EPERM
rename EPERM
rename of one above EXDEV
link EPERM
link of a plain name EXDEV
symlink EPERM
by a link EPERM
by a way up EPERM
by a held directory EPERM
from where it leads EPERM
connect EPERM
raced []
['race']
";

fn named(caller: &Caller) -> Check {
    let one = workspace(caller, "one")?;
    let output = caller.run(&["--rw", &one], &["python3", "-c", NAMES])?;
    equal("names", output.stdout.as_str(), NAMED)
}

/// Makes links that lead to the cache on the host, whose path the list of mounts shows, straight and in steps.
const LINKS: &str = r#"
import errno, os
os.makedirs("/cache/project/.git")
def root(point):
    return next(line.split()[3] for line in open("/proc/self/mountinfo") if line.split()[4] == point)
cache, home = root("/cache"), os.path.dirname(root("/workspace"))
relative = os.path.relpath(cache, home)
first, rest = relative.split("/", 1)
for name, text in [("straight", f"../{relative}/project"), ("first", f"../{first}"), ("rest", f"first/{rest}/project"),
                   ("case", f"../{relative}/project".replace("cofferdam", "Cofferdam")), ("plain", "../else")]:
    try: os.symlink(text, f"/workspace/{name}")
    except OSError as error: print(name, errno.errorcode[error.errno])
    else: print(name, "made")
os.symlink(f"{cache}/project", "/cache/inside")
"#;

fn led(caller: &Caller) -> Check {
    let python = ["python3", "-c", LINKS];
    // The positive control: a program of the host that follows such a link finds the repository.
    let open = workspace(caller, "open")?;
    let output = caller.run(&["--rw", &open, "--unguarded"], &python)?;
    equal(
        "unguarded",
        output.trimmed(),
        "straight made\nfirst made\nrest made\ncase made\nplain made",
    )?;
    let output = caller.bash_outside(&format!("cd {open} && ls -A straight rest"))?;
    equal("obeyed", output.trimmed(), "rest:\n.git\n\nstraight:\n.git")?;
    let one = workspace(caller, "one")?;
    let output = caller.run(&["--rw", &one], &python)?;
    equal(
        "guarded",
        output.trimmed(),
        "straight EPERM\nfirst made\nrest EPERM\ncase EPERM\nplain made",
    )?;
    // No cache inside a guarded grant: a cell could move its directory out of it.
    let config = caller.home.join(".cache").display().to_string();
    let none = "ls -d /cache; echo started";
    let output = run(caller, &["--rw", &one, "--rw", &format!("{config}:/mnt/caches")], none)?;
    equal("within a grant", output.trimmed(), "started")
}

/// Returns whether the process that holds the directory of the caches has dropped the privileges it does not need.
fn confined(caches: &Path) -> Result<bool, Failed> {
    let Some(process) = holder(caches)? else { return Ok(false) };
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let has = |line: &str| status.lines().any(|one| one.split_whitespace().eq(line.split(' ')));
    let lines = ["Seccomp: 2", "NoNewPrivs: 1", "CapEff: 0000000000000000", "Threads: 1"];
    Ok(lines.into_iter().all(has))
}

/// Returns a process that holds the directory of the caches, in /proc. A server and its cells hold no descriptor of it.
fn holder(caches: &Path) -> Result<Option<PathBuf>, Failed> {
    for process in std::fs::read_dir("/proc")?.flatten() {
        let process = process.path();
        let Ok(held) = std::fs::read_dir(process.join("fd")) else { continue };
        let is_held = |fd: std::fs::DirEntry| fd.path().read_link().is_ok_and(|to| to == caches);
        // This process has it too, by its number and as `self`.
        let number = process.file_name().and_then(|name| name.to_str()?.parse().ok());
        let is_other = number.is_some_and(|number: u32| number != std::process::id());
        if is_other && held.flatten().any(is_held) {
            return Ok(Some(process));
        }
    }
    Ok(None)
}
