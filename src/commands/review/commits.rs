//! Commits of a layer: git bundles them in a cell, and the operator's own git fetches the bundle.
//!
//! The `.git` of a layer is what cells made of it. Git would obey it, so that only a git in a cell
//! works in it. What comes out is one file, which the operator's git reads like one from a stranger
//! ([`super::operators_git`]). No branch moves, and no file of the work tree changes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fsync, unlinkat};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::commit_files::remarks;
use super::operators_git::{Header, OperatorsGit};
use super::{failed, in_use, repository_owners};
use crate::commands::error::{CliError, print_out};
use crate::commands::format::{acts_in_name, plain, plain_name, shell_word};
use crate::commands::layers::copy::{Space, copy};
use crate::commands::layers::files::{c_name, look, open_directory};
use crate::commands::layers::judge::Judge;
use crate::commands::layers::layer::Layer;
use model::outcome::in_words;
use sys::identity;

/// Exit code if some commits did not come out.
const LEFT: u8 = 1;
/// Largest bundle of one repository.
const MAX_BUNDLE: u64 = 512 << 20;
/// Maximum number of repositories, and of commits that git in the cell is given as known.
const MAX_REPOSITORIES: usize = 64;
const MAX_KNOWN: usize = 100_000;
/// Maximum number of references of a repository that are described.
const MAX_DESCRIBED: usize = 64;
/// Time after which no cell works any more, and nothing further is fetched or described.
const MAX_TIME: Duration = Duration::from_secs(300);
/// Longest name of a bundle without its end.
const MAX_NAME: usize = 200;
/// Longest error text of a cell.
const MAX_ERROR: u64 = 16 << 10;
/// Exit codes of [`BUNDLE`].
const NO_REPOSITORY: i32 = 71;
const NO_COMMITS: i32 = 72;
const DAMAGED: i32 = 73;
const WRITABLE: i32 = 74;
/// Makes a bundle in a cell: of the branches, the tags, and a `HEAD` that is on no branch, without
/// the commits on standard input, of which the layer may lack some. The branches are arguments, as git
/// before 2.42 reads only revisions from standard input. The repository may have any configuration:
/// missing objects are fetched from nowhere.
const BUNDLE: &str = r#"exec 2>/dev/null
[ -w /workspace ] && exit 74
cd -- "$1" || exit 71
export GIT_OPTIONAL_LOCKS=0 GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0
export GIT_NO_LAZY_FETCH=1 GIT_ALLOW_PROTOCOL=none
git() { command git --no-replace-objects -c safe.directory='*' -c core.fsmonitor=false "$@"; }
git rev-parse --git-dir >/dev/null || exit 71
new=(--branches --tags)
git symbolic-ref -q HEAD >/dev/null || new+=(HEAD)
git rev-list -n 1 "${new[@]}" >/dev/null || exit 73
known=$(cat)
first=$(git rev-list -n 1 --ignore-missing "${new[@]}" --stdin <<< "$known") || exit 73
[ -n "$first" ] || exit 72
git bundle create -q - --ignore-missing "${new[@]}" --stdin <<< "$known"
"#;

/// A repository of the layer.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Path of the work tree below the directory, or of a repository without one.
    top: String,
    /// True if the host has its `.git`.
    is_of_host: bool,
}

/// The result for the commits of one repository.
enum Outcome {
    /// Lines for standard output.
    Out(Vec<String>),
    NoCommits,
    /// Reason why they stay in the layer.
    Left(String),
}

/// Brings the commits of all repositories of a layer to the host. `rows` are those of
/// `review --json`, which was confined while it read the layer.
pub(super) fn bring_out(
    layer: &mut Layer,
    judge: &Judge,
    rows: &Value,
    config: Option<&Path>,
) -> Result<u8, CliError> {
    // Waits for cells that are ending. Each cell with the layer takes the lock itself.
    layer.lock().map_err(|errno| in_use(layer, errno))?;
    layer.lock = None;
    let layer = &*layer;
    let host = layer.host().map_err(|errno| failed("the directory cannot be read", errno))?;
    let end = Instant::now() + MAX_TIME;
    let source = Source { layer, judge, config, host, path: layer.base.path(), end };
    let mut code = 0;
    let mut count: usize = 0;
    let found = repositories(rows);
    for found in found.iter().take(MAX_REPOSITORIES) {
        let shown = if found.top.is_empty() { "." } else { &found.top };
        // What one repository is does not keep the commits of the others in the layer.
        let outcome = source.bring(found).unwrap_or_else(|error| Outcome::Left(error.to_string()));
        match outcome {
            Outcome::Out(lines) => {
                count += 1;
                let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
                print_out(&lines)?;
            }
            Outcome::NoCommits => {}
            Outcome::Left(reason) => {
                code = LEFT;
                eprintln!(
                    "cofferdam: {}: the commits stay in the layer: {reason}",
                    plain_name(shown)
                );
            }
        }
    }
    if found.len() > MAX_REPOSITORIES {
        code = LEFT;
        eprintln!("cofferdam: only {MAX_REPOSITORIES} repositories were looked at");
    }
    match count {
        0 => eprintln!("cofferdam: no new commits came out of the layer {}", layer.id),
        _ => eprintln!(
            "cofferdam: no branch has moved; look at the commits before you merge: what they contain is not judged \
             as the files of the list are"
        ),
    }
    Ok(code)
}

/// Finds the repositories among the rows of `review --json`.
fn repositories(rows: &Value) -> Vec<Found> {
    let all = rows.pointer("/changes").and_then(Value::as_array);
    let row = |row: &Value| {
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        if text("kind") != Some("directory") || text("act") == Some("deleted") {
            return None;
        }
        let path = text("path")?;
        let is_of_host = text("act") == Some("changed");
        match path.strip_suffix(".git") {
            Some(top) if top.is_empty() || top.ends_with('/') => {
                Some(Found { top: top.trim_end_matches('/').to_owned(), is_of_host })
            }
            // Without a work tree: git of the host works in a `.git` only, as the rest may be a
            // fixture that a stranger wrote.
            _ if row.get("repository") == Some(&Value::Bool(true)) && !is_of_host => {
                Some(Found { top: path.to_owned(), is_of_host: false })
            }
            _ => None,
        }
    };
    let mut found: Vec<Found> = all.into_iter().flatten().filter_map(row).collect();
    // Cells choose how many others there are, and their names.
    found.sort_by_key(|found| !found.is_of_host);
    found
}

/// The layer, and what its commits come to.
struct Source<'a> {
    layer: &'a Layer,
    judge: &'a Judge,
    config: Option<&'a Path>,
    host: OwnedFd,
    path: PathBuf,
    /// When no further repository is begun.
    end: Instant,
}

impl Source<'_> {
    fn bring(&self, found: &Found) -> Result<Outcome, CliError> {
        // The name is an argument in the cell, and a part of the commands that are shown.
        let is_plain =
            |character: char| !acts_in_name(character) && character != char::REPLACEMENT_CHARACTER;
        if !found.top.chars().all(is_plain) {
            return Ok(Outcome::Left("its path has characters that are not shown".to_owned()));
        }
        if Instant::now() >= self.end {
            return Ok(Outcome::Left("the time for this command is over".to_owned()));
        }
        match found.is_of_host {
            true => self.fetch(found),
            false => self.keep_bundle(found),
        }
    }

    /// Fetches into the host's repository.
    fn fetch(&self, found: &Found) -> Result<Outcome, CliError> {
        let directory = joined(&found.top, ".git");
        let held = open_directory(&self.host, directory.as_bytes())
            .map_err(|errno| failed("the repository", errno))?;
        let status = fstat(&held).map_err(|errno| failed("the repository", errno))?;
        let top = match found.top.is_empty() {
            // Joining an empty path would add a slash.
            true => self.path.clone(),
            false => self.path.join(&found.top),
        };
        let directory = top.join(".git");
        if let Err(reason) = repository_owners::check(&directory, &held) {
            return Ok(Outcome::Left(reason));
        }
        let owner = self.layer.base.owner;
        if !owner.has(&status) {
            return Ok(Outcome::Left(
                "its .git belongs to another user than the directory".to_owned(),
            ));
        }
        let ids = owner.ids();
        let room = Space::of(&held);
        let Some(git) = OperatorsGit::find(&self.path, held, ids) else {
            return Ok(Outcome::Left("there is no git in your PATH".to_owned()));
        };
        if let Err(reason) = git.check_hooks() {
            return Ok(Outcome::Left(reason));
        }
        let known = match git.lines(&["for-each-ref", "--format=^%(objectname)"]) {
            Ok(known) => known,
            Err(reason) => return Ok(Outcome::Left(reason)),
        };
        let head = git.lines(&["rev-parse", "--verify", "--quiet", "HEAD"]).unwrap_or_default();
        let known = known.into_iter().chain(head.iter().map(|head| format!("^{head}")));
        let known: Vec<String> = known.take(MAX_KNOWN).collect();
        let bundle = match self.bundle(found, &known)? {
            Ok(bundle) => bundle,
            Err(outcome) => return Ok(outcome),
        };
        let size = fstat(&bundle).map_err(|errno| failed("the bundle", errno))?.st_size;
        let room = room.and_then(|mut space| space.take(size.unsigned_abs()));
        if let Err(errno) = room {
            return Ok(Outcome::Left(errno.desc().to_owned()));
        }
        if let Some((uid, gid)) = ids {
            fchown(&bundle, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(|errno| failed("the bundle", errno))?;
        }
        let space = format!("refs/cofferdam/{}", self.layer.id);
        let space = match git.free_space(&bundle, &space) {
            Ok(space) => space,
            Err(reason) => return Ok(Outcome::Left(reason)),
        };
        let before = git.references(&space);
        if let Err(reason) = git.fetch(&bundle, &space) {
            return Ok(Outcome::Left(reason));
        }
        let mut new = git.references(&space);
        new.retain(|name, commit| before.get(name) != Some(commit));
        let mut lines = Vec::new();
        let mut described = 0;
        for name in new.keys().take(MAX_DESCRIBED) {
            if Instant::now() >= self.end {
                break;
            }
            described += 1;
            lines.extend(self.described(&git, &top, found, name));
        }
        let more = new.len() - described;
        if more > 0 {
            lines.push(format!(
                "  and {more} more references: git for-each-ref {}",
                shell_word(&space)
            ));
        }
        Ok(if lines.is_empty() { Outcome::NoCommits } else { Outcome::Out(lines) })
    }

    /// Describes a reference that was fetched: its commits, what the host would obey of them, and how
    /// to merge it.
    fn described(&self, git: &OperatorsGit, top: &Path, found: &Found, name: &str) -> Vec<String> {
        let count = git.count(name);
        let commits = if count == 1 { "commit" } else { "commits" };
        let mut lines = vec![format!("{}  {count} new {commits}", plain_name(name))];
        match git.changed_files(name) {
            Ok(files) => lines.extend(remarks(&found.top, files, self.judge)),
            Err(reason) => lines.push(format!("  the files cannot be listed: {reason}")),
        }
        let top = shell_word(&top.display().to_string());
        lines.push(format!("  git -C {top} log -p ..{}", shell_word(name)));
        lines.push(format!("  git -C {top} merge {}", shell_word(name)));
        lines
    }

    /// Stores the bundle of a repository that the host does not have, next to its place.
    fn keep_bundle(&self, found: &Found) -> Result<Outcome, CliError> {
        let bundle = match self.bundle(found, &[])? {
            Ok(bundle) => bundle,
            Err(outcome) => return Ok(outcome),
        };
        if let Err(reason) = Header::read(&bundle) {
            return Ok(Outcome::Left(reason));
        }
        let (directory, name) = self.place(found)?;
        let path = joined(&directory, &name);
        if let Some(held) = self.judge.all().or_else(|| self.judge.whole_way(0, path.as_bytes())) {
            return Ok(Outcome::Left(format!("{}: {}", plain_name(&path), held.reason())));
        }
        let held = open_directory(&self.host, directory.as_bytes())
            .map_err(|errno| failed("the directory of the bundle", errno))?;
        // Root writes with the rights of the directory's owner, as an apply does.
        match self.layer.base.owner.during(|| store(&held, &name, &bundle)) {
            Ok(()) => {}
            Err(Errno::EEXIST) => {
                return Ok(Outcome::Left(format!("`{}` is there already", plain_name(&path))));
            }
            Err(errno) => {
                return Ok(Outcome::Left(format!("`{}`: {}", plain_name(&path), errno.desc())));
            }
        }
        let top = if found.top.is_empty() { "." } else { &found.top };
        let at = shell_word(&self.path.join(&path).display().to_string());
        Ok(Outcome::Out(vec![
            format!("{}  commits of the new repository {}", plain_name(&path), plain_name(top)),
            format!("  git clone -c transfer.fsckObjects=true {at} DIRECTORY"),
        ]))
    }

    /// Returns the nearest directory of the host around a new repository, and the name of its bundle
    /// there.
    fn place(&self, found: &Found) -> Result<(String, String), CliError> {
        let of_directory = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        if found.top.is_empty() {
            let name = of_directory.unwrap_or_else(|| "repository".to_owned());
            return Ok((String::new(), format!("{name}.bundle")));
        }
        let mut directory = found.top.as_str();
        let mut name = String::new();
        loop {
            let (above, last) = directory.rsplit_once('/').unwrap_or(("", directory));
            name = if name.is_empty() { last.to_owned() } else { format!("{last}-{name}") };
            match open_directory(&self.host, above.as_bytes()) {
                Ok(_) => return Ok((above.to_owned(), format!("{}.bundle", shortened(name)))),
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) if !above.is_empty() => {
                    directory = above;
                }
                Err(errno) => return Err(failed("the directory of the bundle", errno)),
            }
        }
    }

    /// Makes a bundle in a cell with the layer, which cannot change there: programs of its repositories
    /// may run, after a person has looked at the changes. The bundle has no name, and lies next to the
    /// layer.
    fn bundle(&self, found: &Found, known: &[String]) -> Result<Result<File, Outcome>, CliError> {
        let failed = |error: std::io::Error| {
            CliError::new(format!("review: the bundle cannot be made: {}", in_words(&error)))
        };
        let mut input = self.unnamed()?;
        let known: String = known.iter().map(|line| format!("{line}\n")).collect();
        input.write_all(known.as_bytes()).map_err(failed)?;
        input.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        if let Some(config) = self.config {
            command.arg("--config").arg(config);
        }
        command.args(["run", "--layer", &self.layer.id, "--frozen", "--toolchains", "none"]);
        let left = self.end.saturating_duration_since(Instant::now());
        let timeout = format!("{}s", left.as_secs().max(1));
        command.args(["--no-tty", "--timeout", &timeout, "--cow"]).arg(&self.path);
        let top = Path::new("/workspace").join(&found.top);
        command.args(["--", "bash", "-c", BUNDLE, "bash"]).arg(top);
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let errors = child.stderr.take();
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let read = errors.map(|errors| errors.take(MAX_ERROR).read_to_end(&mut text));
            read.transpose().map(|_| text)
        });
        let mut bundle = self.unnamed()?;
        let output = child.stdout.take().map(|output| output.take(MAX_BUNDLE + 1));
        let copied = output.map_or(Ok(0), |mut output| std::io::copy(&mut output, &mut bundle));
        if !matches!(copied, Ok(length) if length <= MAX_BUNDLE) {
            child.kill().map_err(failed)?;
        }
        let status = child.wait().map_err(failed)?;
        let errors = errors.join().ok().and_then(Result::ok).unwrap_or_default();
        let length = copied.map_err(failed)?;
        if length > MAX_BUNDLE {
            let limit = MAX_BUNDLE >> 20;
            return Ok(Err(Outcome::Left(format!("they are more than {limit} MiB"))));
        }
        bundle.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok(match ended(status, &errors) {
            Some(outcome) => Err(outcome),
            None => Ok(bundle),
        })
    }

    /// Makes a file without a name next to the layer.
    fn unnamed(&self) -> Result<File, CliError> {
        let flags = OFlag::O_RDWR | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = openat(&self.layer.directory, ".", flags, mode);
        file.map(File::from).map_err(|errno| failed("the bundle cannot be made", errno))
    }
}

/// Writes a bundle to a new file of a directory.
fn store(directory: &OwnedFd, name: &str, bundle: &File) -> Result<(), Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
    let flags = flags | OFlag::O_CLOEXEC;
    let name = c_name(name.as_bytes())?;
    if look(directory, &name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    let mut space = Space::of(directory)?;
    // Under another name first, so that the bundle appears whole.
    let new = c_name(format!(".cofferdam-bundle-{}", identity::random_name()?).as_bytes())?;
    let file = File::from(openat(directory, new.as_c_str(), flags, Mode::S_IRUSR)?);
    let stored = fstat(bundle)
        .and_then(|status| copy(bundle, &file, status.st_size, &mut space))
        .and_then(|()| fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR))
        .and_then(|()| fsync(&file))
        .and_then(|()| {
            let flags = RenameFlags::RENAME_NOREPLACE;
            renameat2(directory, new.as_c_str(), directory, name.as_c_str(), flags)
        });
    if stored.is_err() && look(directory, &new)?.is_some() {
        unlinkat(directory, new.as_c_str(), UnlinkatFlags::NoRemoveDir)?;
    }
    stored
}

/// Returns a name that a filesystem takes: a cell may have made repositories at any depth.
fn shortened(mut name: String) -> String {
    if name.len() <= MAX_NAME {
        return name;
    }
    let digest = Sha256::digest(name.as_bytes());
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let end = (0..=MAX_NAME).rev().find(|end| name.is_char_boundary(*end)).unwrap_or_default();
    name.truncate(end);
    format!("{name}-{digest}")
}

/// Returns what the end of the cell says, unless it made a bundle.
fn ended(status: ExitStatus, errors: &[u8]) -> Option<Outcome> {
    match status.code() {
        Some(0) => None,
        Some(NO_COMMITS) => Some(Outcome::NoCommits),
        Some(NO_REPOSITORY) => {
            Some(Outcome::Left("git takes it for no repository in a cell".to_owned()))
        }
        Some(WRITABLE) => Some(Outcome::Left("the cell could write to the layer".to_owned())),
        Some(DAMAGED) => Some(Outcome::Left("git in a cell cannot read all of them".to_owned())),
        _ => {
            let errors = String::from_utf8_lossy(errors);
            let first = errors.lines().next().unwrap_or("git failed in the cell");
            let first = first.strip_prefix("cofferdam: ").unwrap_or(first);
            Some(Outcome::Left(plain(first)))
        }
    }
}

fn joined(directory: &str, name: &str) -> String {
    match directory.is_empty() {
        true => name.to_owned(),
        false => format!("{directory}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn repositories_are_those_of_the_rows() {
        let row = |path: &str, act: &str, kind: &str, repository: bool| json!({ "path": path, "act": act, "kind": kind, "repository": repository });
        let rows = json!({ "changes": [
            row(".git", "changed", "directory", true),
            row("a/.git", "added", "directory", true),
            row("b/bare", "added", "directory", true),
            row("c/bare", "changed", "directory", true),
            row("d/.git", "deleted", "directory", true),
            row("e/.git", "added", "file", false),
            row("f.git", "added", "directory", false),
            row("g", "added", "directory", false),
        ] });
        let found = |top: &str, is_of_host: bool| Found { top: top.to_owned(), is_of_host };
        assert_eq!(
            repositories(&rows),
            [found("", true), found("a", false), found("b/bare", false)]
        );
    }

    #[test]
    fn a_name_is_shortened_between_characters() {
        assert_eq!(shortened("a-b".to_owned()), "a-b");
        for letter in ["n", "\u{e4}", "\u{20ac}"] {
            let long = letter.repeat(300);
            let other = format!("{long}x");
            assert!(shortened(long.clone()).len() + ".bundle".len() <= 255);
            assert_ne!(shortened(long), shortened(other));
        }
    }

    #[test]
    fn repositories_of_the_host_come_first() {
        let row = |path: &str, act: &str| json!({ "path": path, "act": act, "kind": "directory", "repository": true });
        let rows = json!({ "changes": [row("!a/.git", "added"), row("z/.git", "changed")] });
        let tops = repositories(&rows).into_iter().map(|found| found.top);
        assert_eq!(tops.collect::<Vec<_>>(), ["z", "!a"]);
    }
}
