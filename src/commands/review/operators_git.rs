//! The operator's own git, which reads a bundle that cells made.
//!
//! The bundle is like one from a stranger. Git checks each object, and works with the repository's
//! own configuration only: those of the user and of the system are not needed to read a file, and
//! could name another place for it. No hook runs, no other protocol than `file` is allowed, nothing
//! is fetched for a submodule or for a missing object, and nothing is written but objects and
//! references in one directory. Git runs apart from the operator's session, and finds the repository
//! by an open descriptor, so that no other one can be put in its place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rlimit::Resource;

use super::commit_files::FileOfCommit;
use crate::commands::format::plain;
use model::outcome::in_words;
use sys::apart::start_apart;

/// Limits of git while it reads what cells made: processor time in seconds, memory and longest file
/// in bytes.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::CPU, 600), (Resource::DATA, 4 << 30), (Resource::FSIZE, 2 << 30)];
/// Lower limits of processor time and memory for git when it lists what was fetched.
const LIST_LIMITS: [(Resource, u64); 3] =
    [(Resource::CPU, 20), (Resource::DATA, 256 << 20), (Resource::FSIZE, 0)];
/// Maximum number of references of one bundle.
const MAX_REFERENCES: usize = 1000;
/// Maximum number of spaces of names for the references of one layer.
const MAX_SPACES: usize = 100;
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
    // Git before 2.45 fetches missing objects whatever the next setting says.
    ("GIT_ALLOW_PROTOCOL", "none"),
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
    directory: OwnedFd,
    /// Ids with which git runs if root started this process, those of the repository's owner: its
    /// configuration is the owner's.
    ids: Option<(u32, u32)>,
}

impl OperatorsGit {
    /// Finds git in the operator's PATH, apart from the directory that has the layer.
    pub(super) fn find(
        without: &Path,
        directory: OwnedFd,
        ids: Option<(u32, u32)>,
    ) -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let directories = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
        let is_program = |path: &PathBuf| {
            let metadata = std::fs::metadata(path);
            metadata.is_ok_and(|one| one.is_file() && one.permissions().mode() & 0o111 != 0)
        };
        let programs = directories.map(|directory| directory.join("git")).filter(is_program);
        let mut programs = programs.filter_map(|program| program.canonicalize().ok());
        let program = programs.find(|program| !program.starts_with(without))?;
        Some(Self { program, directory, ids })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(ENVIRONMENT).current_dir("/").stdin(Stdio::null());
        let directory = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        command.args(["--git-dir", &directory, "--no-replace-objects"]);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        if let Some((uid, gid)) = self.ids {
            command.uid(uid).gid(gid);
        }
        command.args(arguments);
        command
    }

    fn run(&self, mut command: Command, limits: &[(Resource, u64)]) -> Result<Vec<u8>, String> {
        let failed = |error: std::io::Error| in_words(&error).to_string();
        let limits = Lowered::lower(limits)
            .map_err(|error| format!("its limits cannot be set: {}", in_words(&error)))?;
        start_apart(&mut command, self.directory.as_fd());
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
        let output = self.run(self.command(arguments), &LIST_LIMITS)?;
        let text = String::from_utf8_lossy(&output).into_owned();
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Checks that the repository's configuration names no program as a hook: git 2.54 and later run
    /// those whatever `core.hooksPath` is.
    pub(super) fn check_hooks(&self) -> Result<(), String> {
        let output =
            self.run(self.command(&["config", "--list", "--name-only", "-z"]), &LIST_LIMITS)?;
        let is_hook = |name: &&[u8]| {
            name.starts_with(b"hook.") && (name.ends_with(b".command") || name.ends_with(b".event"))
        };
        match output.split(|byte| *byte == 0).find(is_hook) {
            None => Ok(()),
            Some(name) => Err(format!(
                "your repository's configuration has `{}`, by which your git may run a program while it fetches; \
                 remove it, or set it in your own configuration (git config --global)",
                plain(&String::from_utf8_lossy(name))
            )),
        }
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
        let end = Header::read(bundle)?.length;
        let input = from(bundle, end).map_err(|error| in_words(&error).to_string())?;
        let mut command = self.command(&["index-pack", "--stdin", "--fix-thin", "--strict"]);
        command.stdin(input);
        self.run(command, &LIMITS).map(|_| ())
    }

    /// Returns the names below which the references of a bundle are stored: `space`, or if names in it
    /// are in the way, such as that of a branch that was renamed to `NAME/…`, a numbered one in it.
    pub(super) fn free_space(&self, bundle: &File, space: &str) -> Result<String, String> {
        let header = Header::read(bundle)?;
        if header.references.len() > MAX_REFERENCES {
            return Err(format!("they have more than {MAX_REFERENCES} new references"));
        }
        let known = self.references(space);
        let numbered = (2..=MAX_SPACES).map(|number| format!("{space}/{number}"));
        let mut spaces = std::iter::once(space.to_owned()).chain(numbered);
        spaces.find(|space| !header.collides(space, &known)).ok_or_else(|| {
            format!("names below {space} are in the way: remove them by `git update-ref -d`")
        })
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
        command.env("GIT_ALLOW_PROTOCOL", "file");
        self.run(command, &LIMITS)
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
        let output = self.run(self.command(&arguments), &LIST_LIMITS)?;
        let mut parts = output.split(|byte| *byte == 0);
        let mut rows = Vec::new();
        while let (Some(fields), Some(path)) = (parts.next(), parts.next()) {
            rows.push(FileOfCommit::parse(fields, path));
        }
        Ok(rows)
    }
}

/// The header of a bundle (gitformat-bundle(5)).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Names of the references in it.
    references: Vec<Vec<u8>>,
    /// Where the pack begins.
    length: u64,
}

impl Header {
    /// Reads the header of a bundle that cells made.
    ///
    /// # Errors
    /// A header that is too long, or that has more than names and objects: a bundle with a filter
    /// would make the repository one that fetches missing objects from elsewhere.
    pub(super) fn read(bundle: &File) -> Result<Self, String> {
        let mut start = Vec::new();
        let read = from(bundle, 0).and_then(|file| file.take(MAX_HEADER).read_to_end(&mut start));
        read.map_err(|error| in_words(&error).to_string())?;
        Self::parse(&start)
            .ok_or_else(|| "the bundle has a header that is not supported".to_owned())
    }

    fn parse(start: &[u8]) -> Option<Self> {
        // The first empty line ends the header; a pack follows.
        let end = start.windows(2).position(|pair| pair == b"\n\n")?;
        let mut lines = start.get(..end)?.split(|byte| *byte == b'\n');
        if !matches!(lines.next()?, b"# v2 git bundle" | b"# v3 git bundle") {
            return None;
        }
        let mut references = Vec::new();
        for line in lines {
            match line.first()? {
                b'@' if matches!(line, b"@object-format=sha1" | b"@object-format=sha256") => {}
                b'@' => return None,
                // A commit that the repository must have.
                b'-' => {}
                _ => {
                    let space = line.iter().position(|byte| *byte == b' ')?;
                    references.push(line.get(space + 1..)?.to_vec());
                }
            }
        }
        Some(Self { references, length: u64::try_from(end + 2).ok()? })
    }

    /// Returns true if git cannot store one of the references below a space because one that is there
    /// has the name of a directory of the other's.
    fn collides(&self, space: &str, known: &BTreeMap<String, String>) -> bool {
        self.references.iter().filter_map(|name| name.strip_prefix(b"refs/")).any(|name| {
            let new = [space.as_bytes(), b"/", name, b"/"].concat();
            known.keys().any(|known| {
                let known = [known.as_bytes(), b"/"].concat();
                known != new && (known.starts_with(&new) || new.starts_with(&known))
            })
        })
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
    fn lower(limits: &[(Resource, u64)]) -> std::io::Result<Self> {
        let mut lowered = Self(Vec::new());
        for (resource, limit) in limits {
            let (soft, hard) = resource.get()?;
            resource.set(soft.min(*limit), hard)?;
            lowered.0.push((*resource, soft, hard));
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
        for (script, expected) in [
            ("echo a; echo b", Ok(vec!["a".to_owned(), "b".to_owned()])),
            ("yes", Err("your git prints too much of them".to_owned())),
            ("echo first >&2; echo last >&2; false", Err("your git refuses them: last".to_owned())),
        ] {
            assert_eq!(ran(script, None)?, expected, "{script}");
        }
        Ok(())
    }

    /// Runs a script in place of git.
    fn ran(script: &str, ids: Option<(u32, u32)>) -> std::io::Result<Result<Vec<String>, String>> {
        let directory = OwnedFd::from(File::open("/")?);
        let git = OperatorsGit { program: PathBuf::from("/bin/sh"), directory, ids };
        let mut command = Command::new(&git.program);
        command.args(["-c", script, "sh"]).arg(git.directory.as_raw_fd().to_string());
        command.stdin(Stdio::null());
        if let Some((uid, gid)) = ids {
            command.uid(uid).gid(gid);
        }
        let output = git.run(command, &LIMITS);
        Ok(output
            .map(|output| String::from_utf8_lossy(&output).lines().map(str::to_owned).collect()))
    }

    #[test]
    fn git_shares_no_session_terminal_or_open_file_with_the_operator() -> std::io::Result<()> {
        // Session, terminal and whether privileges can be gained; then the open files.
        let script = "read -r pid name state parent group session terminal rest < /proc/$$/stat
            [ $pid = $session ] && echo apart || echo shared
            (exec 9</dev/tty) 2>/dev/null && echo terminal
            grep NoNewPrivs: /proc/$$/status | tr -dc 01
            echo; cd /proc/$$/fd; echo *; [ -d $1/proc ] && echo kept";
        let open = File::open("/")?;
        sys::process::duplicate_inheritable(&open, 700)?;
        let own = Command::new("/bin/sh").args(["-c", script, "sh", "700"]).output()?;
        let own = String::from_utf8_lossy(&own.stdout).into_owned();
        // The control: such a file is inherited, and so is the session.
        assert!(own.starts_with("shared\n") && own.contains(" 700\nkept"), "{own}");
        let is_root = nix::unistd::geteuid().is_root();
        for ids in [None, Some((4711, 4711))].into_iter().take(if is_root { 2 } else { 1 }) {
            let lines = ran(script, ids)?.unwrap_or_default();
            assert_eq!(lines.first().map(String::as_str), Some("apart"), "{lines:?}");
            assert_eq!(lines.get(1).map(String::as_str), Some("1"), "{lines:?}");
            assert_eq!(lines.last().map(String::as_str), Some("kept"), "{lines:?}");
            let is_closed = lines.get(2).is_some_and(|files| !files.contains("700"));
            assert!(is_closed && lines.len() == 4, "{lines:?}");
        }
        Ok(())
    }

    #[test]
    fn a_header_has_names_and_objects_only() {
        let text = b"# v3 git bundle\n@object-format=sha1\n-0a second\n0b refs/heads/a\n0c HEAD\n\nPACK\n\n";
        let header = Header::parse(text);
        let references = vec![b"refs/heads/a".to_vec(), b"HEAD".to_vec()];
        assert_eq!(header, Some(Header { references, length: 72 }));
        for text in [
            "# v3 git bundle\n@object-format=sha1\n@filter=blob:none\n0b refs/heads/a\n\nPACK",
            "# v3 git bundle\n@filter=blob:none\n\n",
            "# v4 git bundle\n0b refs/heads/a\n\n",
            "# v2 git bundle\n0b refs/heads/a\n",
            "PACK\n\n",
            "",
        ] {
            assert_eq!(Header::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn names_that_are_directories_of_others_collide() {
        let header = |name: &str| Header { references: vec![name.as_bytes().to_vec()], length: 0 };
        let known = [("refs/cofferdam/p-1/heads/feature".to_owned(), String::new())].into();
        let space = "refs/cofferdam/p-1";
        for (name, collides) in [
            ("refs/heads/feature", false),
            ("refs/heads/features", false),
            ("refs/heads/feature/x", true),
            ("refs/heads", true),
            ("refs/tags/feature/x", false),
            ("HEAD", false),
        ] {
            assert_eq!(header(name).collides(space, &known), collides, "{name}");
        }
        assert!(!header("refs/heads/feature/x").collides("refs/cofferdam/p-1/2", &known));
    }
}
