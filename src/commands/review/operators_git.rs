//! The operator's own git, which reads a bundle that cells made.
//!
//! The bundle is like one from a stranger. Git checks each object, and works with the repository's
//! own configuration only: those of the user and of the system are not needed to read a file, and
//! could name another place for it. No hook runs, no other protocol than `file` is allowed, nothing
//! is fetched for a submodule or for a missing object, and nothing is written but objects and
//! references in one directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rlimit::Resource;

use super::commit_files::FileOfCommit;
use crate::commands::format::plain;
use model::outcome::in_words;

/// Limits of git while it reads what cells made: processor time in seconds, memory and longest file
/// in bytes.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::CPU, 600), (Resource::DATA, 4 << 30), (Resource::FSIZE, 2 << 30)];
/// Memory of git while it compares two commits: it holds all changes before it prints one, and a commit
/// of few bytes can have more files than any memory holds.
const MAX_COMPARED: u64 = 512 << 20;
/// Longest header of a bundle: a line for each reference and for each commit that it needs.
const MAX_HEADER: u64 = 32 << 20;
/// Longest output of git that is read, and longest error text.
const MAX_OUTPUT: u64 = 64 << 20;
const MAX_ERRORS: u64 = 64 << 10;
/// The environment of git; nothing of the operator's is kept.
const ENVIRONMENT: [(&str, &str); 9] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/nonexistent"),
    ("LC_ALL", "C"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_ALLOW_PROTOCOL", "file"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
];
/// Settings of git that hold over those of the repository.
const SETTINGS: [&str; 9] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.alternateRefsCommand=true",
    "fetch.fsckObjects=true",
    "transfer.fsckObjects=true",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.ext.allow=never",
];

/// The operator's git in one repository.
#[derive(Debug)]
pub(super) struct OperatorsGit {
    program: PathBuf,
    directory: PathBuf,
    /// Ids with which git runs if root started this process, those of the repository's owner: its
    /// configuration is the owner's.
    ids: Option<(u32, u32)>,
}

impl OperatorsGit {
    /// Finds git in the operator's PATH, apart from the directory that has the layer.
    pub(super) fn find(without: &Path, directory: &Path, ids: Option<(u32, u32)>) -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let directories = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
        let is_program = |path: &PathBuf| {
            let metadata = std::fs::metadata(path);
            metadata.is_ok_and(|one| one.is_file() && one.permissions().mode() & 0o111 != 0)
        };
        let programs = directories.map(|directory| directory.join("git")).filter(is_program);
        let mut programs = programs.filter_map(|program| program.canonicalize().ok());
        let program = programs.find(|program| !program.starts_with(without))?;
        Some(Self { program, directory: directory.to_owned(), ids })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(ENVIRONMENT).current_dir("/").stdin(Stdio::null());
        command.arg("--git-dir").arg(&self.directory).arg("--no-replace-objects");
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        if let Some((uid, gid)) = self.ids {
            command.uid(uid).gid(gid);
        }
        command.args(arguments);
        command
    }

    fn run(&self, command: Command) -> Result<Vec<u8>, String> {
        self.run_within(u64::MAX, command)
    }

    /// Runs git with the limits, and with less memory if they allow more than `memory`.
    fn run_within(&self, memory: u64, mut command: Command) -> Result<Vec<u8>, String> {
        let failed = |error: std::io::Error| in_words(&error).to_string();
        let limits = Lowered::lower(memory)
            .map_err(|error| format!("its limits cannot be set: {}", in_words(&error)))?;
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        drop(limits);
        let mut child = child.map_err(failed)?;
        let errors = child.stderr.take();
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let read = errors.map(|errors| errors.take(MAX_ERRORS).read_to_end(&mut text));
            read.transpose().map(|_| text)
        });
        let mut output = Vec::new();
        let read =
            child.stdout.take().map(|from| from.take(MAX_OUTPUT + 1).read_to_end(&mut output));
        let is_whole =
            |length: usize| u64::try_from(length).is_ok_and(|length| length <= MAX_OUTPUT);
        let is_read = read.is_some_and(|read| read.is_ok_and(is_whole));
        if !is_read {
            child.kill().map_err(failed)?;
        }
        let status = child.wait().map_err(failed)?;
        let errors = errors.join().ok().and_then(Result::ok).unwrap_or_default();
        if !is_read {
            return Err("your git prints too much of them".to_owned());
        }
        if status.success() {
            return Ok(output);
        }
        let errors = String::from_utf8_lossy(&errors).into_owned();
        let last = errors.lines().rfind(|line| !line.trim().is_empty());
        let last = last.unwrap_or("it failed without a reason");
        Err(format!("your git refuses them: {}", plain(last)))
    }

    /// Returns the lines that git prints.
    pub(super) fn lines(&self, arguments: &[&str]) -> Result<Vec<String>, String> {
        let output = self.run(self.command(arguments))?;
        let text = String::from_utf8_lossy(&output).into_owned();
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns the references below a name, each with its object.
    pub(super) fn references(&self, below: &str) -> BTreeMap<String, String> {
        let format = "--format=%(objectname) %(refname)";
        let lines = self.lines(&["for-each-ref", format, below]).unwrap_or_default();
        let pair = |line: &String| {
            let (object, name) = line.split_once(' ')?;
            Some((name.to_owned(), object.to_owned()))
        };
        lines.iter().filter_map(pair).collect()
    }

    /// Checks each object of a bundle, and stores them. Git before 2.46 does not check the objects of a
    /// bundle that it fetches.
    fn check(&self, bundle: &File) -> Result<(), String> {
        let mut start = Vec::new();
        let read = from(bundle, 0).and_then(|file| file.take(MAX_HEADER).read_to_end(&mut start));
        read.map_err(|error| in_words(&error).to_string())?;
        // The first empty line ends the header; a pack follows.
        let end = start.windows(2).position(|pair| pair == b"\n\n").unwrap_or(start.len());
        let end = u64::try_from(end + 2).unwrap_or(u64::MAX);
        let input = from(bundle, end).map_err(|error| in_words(&error).to_string())?;
        let mut command = self.command(&["index-pack", "--stdin", "--fix-thin", "--strict"]);
        command.stdin(input);
        self.run(command).map(|_| ())
    }

    /// Fetches branches, tags and a `HEAD` of a bundle into references below `space`.
    pub(super) fn fetch(&self, bundle: &File, space: &str) -> Result<(), String> {
        self.check(bundle)?;
        let heads = self.with_bundle(bundle, &["bundle", "list-heads", STANDARD_INPUT, "HEAD"])?;
        let mut arguments = vec![
            "fetch",
            "--quiet",
            "--atomic",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-auto-maintenance",
            "--no-write-fetch-head",
            "--no-write-commit-graph",
            "--no-show-forced-updates",
            "--refmap=",
            STANDARD_INPUT,
        ];
        let branches = format!("+refs/heads/*:{space}/heads/*");
        let tags = format!("+refs/tags/*:{space}/tags/*");
        let detached = format!("+HEAD:{space}/detached");
        arguments.extend([branches.as_str(), tags.as_str()]);
        if !heads.is_empty() {
            arguments.push(&detached);
        }
        self.with_bundle(bundle, &arguments).map(|_| ())
    }

    fn with_bundle(&self, bundle: &File, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let input = from(bundle, 0).map_err(|error| in_words(&error).to_string())?;
        let mut command = self.command(arguments);
        command.stdin(input);
        self.run(command)
    }

    /// Returns the number of commits that no branch, tag or remote has.
    pub(super) fn count(&self, name: &str) -> u64 {
        let arguments =
            ["rev-list", "--count", name, "--not", "--branches", "--tags", "--remotes", "--"];
        let lines = self.lines(&arguments).unwrap_or_default();
        lines.first().and_then(|line| line.parse().ok()).unwrap_or_default()
    }

    /// Returns the files that a merge into the current branch would change.
    pub(super) fn changed_files(&self, name: &str) -> Result<Vec<FileOfCommit>, String> {
        let base = self.lines(&["merge-base", "HEAD", name]).unwrap_or_default();
        let base = match base.first() {
            Some(base) => base.clone(),
            // Without a common commit all files count.
            None => {
                let empty = self.lines(&["hash-object", "-t", "tree", "/dev/null"])?;
                empty.first().cloned().unwrap_or_default()
            }
        };
        let tree = format!("{name}^{{tree}}");
        let arguments =
            ["diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-ext-diff", &base, &tree];
        let output = self.run_within(MAX_COMPARED, self.command(&arguments))?;
        let mut parts = output.split(|byte| *byte == 0);
        let mut rows = Vec::new();
        while let (Some(fields), Some(path)) = (parts.next(), parts.next()) {
            rows.push(FileOfCommit::parse(fields, path));
        }
        Ok(rows)
    }
}

/// Returns a file that is read from this place on.
fn from(file: &File, start: u64) -> std::io::Result<File> {
    let mut file = file.try_clone()?;
    file.seek(SeekFrom::Start(start))?;
    Ok(file)
}

/// Path of the file that is a process's standard input. It may have no other path.
const STANDARD_INPUT: &str = "/proc/self/fd/0";

/// Limits of this process that are lowered while a child starts, and the soft limits before.
struct Lowered(Vec<(Resource, u64, u64)>);

impl Lowered {
    fn lower(memory: u64) -> std::io::Result<Self> {
        let mut lowered = Self(Vec::new());
        for (resource, limit) in LIMITS {
            let limit = if resource == Resource::DATA { limit.min(memory) } else { limit };
            let (soft, hard) = resource.get()?;
            resource.set(soft.min(limit), hard)?;
            lowered.0.push((resource, soft, hard));
        }
        Ok(lowered)
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        for (resource, soft, hard) in &self.0 {
            if let Err(error) = resource.set(*soft, *hard) {
                eprintln!("cofferdam: a limit cannot be raised again: {}", in_words(&error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_git_has_a_bound() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let program = directory.path().join("git");
        for (script, expected) in [
            ("echo a; echo b", Ok(vec!["a".to_owned(), "b".to_owned()])),
            ("yes", Err("your git prints too much of them".to_owned())),
            ("echo first >&2; echo last >&2; false", Err("your git refuses them: last".to_owned())),
        ] {
            std::fs::write(&program, script)?;
            let directory = program.clone();
            let git = OperatorsGit { program: PathBuf::from("/bin/sh"), directory, ids: None };
            // The shell runs the script in place of git with its arguments.
            let mut command = Command::new(&git.program);
            command.arg(&git.directory).stdin(Stdio::null());
            let lines = git.run(command).map(|output| {
                String::from_utf8_lossy(&output).lines().map(str::to_owned).collect::<Vec<_>>()
            });
            assert_eq!(lines, expected, "{script}");
        }
        Ok(())
    }
}
