//! Missing paths: names that a command looked for and its cell does not have. Finds those that
//! exist on the host, and among them those that a profile could grant.
//!
//! The process that runs the command is confined and sees no path of the host. So another process
//! examines them: a child of the main process, made before confinement. When the command has ended,
//! it reads the record, examines each path on the host without opening it, reports and exits.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use cell::record::{self, PathAccess};
use config::document::Document;
use config::profile::{Profiles, shipped};
use model::profile::{PathKind, Profile};
use sys::{memory, process};

/// Number of files in one directory from which the directory is offered in their place.
const FILES_FOR_DIRECTORY: usize = 4;
/// Maximum number of paths in the report; further ones are reported as left out.
const MAX_PATHS: usize = 256;
/// Names of files and directories with secrets: paths with such a part are not offered.
const SECRETS: [&str; 14] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".password-store",
    "gcloud",
    "shadow",
];

/// Files that the C library looks for in every program and does not need.
const UNNEEDED: [&str; 4] =
    ["/etc/locale.alias", "/etc/ld.so.preload", "/etc/host.conf", "/etc/gai.conf"];

/// File that exists on the host at a missing path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MissingPath {
    path: PathBuf,
    what: PathType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum PathType {
    File,
    /// A directory that was opened, and so listed.
    Listed,
    /// A directory that was only examined.
    Directory,
    /// A socket, a device: no profile grants one.
    Other,
}

/// Report of the child process.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostPaths {
    found: Vec<MissingPath>,
    /// True if paths were left out.
    cut: bool,
}

/// Child process that is not confined and still sees the host.
#[derive(Debug)]
pub(crate) struct HostExaminer {
    record: Arc<OwnedFd>,
    socket: UnixStream,
}

impl HostExaminer {
    /// Starts the process. Must be called while there is one thread, and before the supervisor is
    /// started.
    ///
    /// # Errors
    /// An error of memfd_create(2), socketpair(2) or clone3(2).
    pub(crate) fn start(profile: &Profile) -> std::io::Result<Self> {
        let record = Arc::new(memory::writable(c"paths")?);
        let (socket, theirs) = UnixStream::pair()?;
        match process::clone3(0, None)? {
            process::Side::Parent(_) => Ok(Self { record, socket }),
            process::Side::Child => {
                drop(socket);
                let reported = report(theirs, &record, profile);
                process::exit_now(i32::from(reported.is_err()));
            }
        }
    }

    /// Returns the record to which the cell's init writes.
    pub(crate) fn record(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.record)
    }

    /// Asks which recorded paths exist on the host. Must be called when the command has ended.
    ///
    /// # Errors
    /// The child has ended.
    pub(crate) fn ask(mut self) -> std::io::Result<HostPaths> {
        // Closing the socket would not do: the supervisor has a copy of this end.
        self.socket.shutdown(Shutdown::Write)?;
        let mut bytes = Vec::new();
        self.socket.read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}

/// Runs the child: waits for the end of the command, examines the paths, reports.
fn report(mut socket: UnixStream, record: &OwnedFd, profile: &Profile) -> std::io::Result<()> {
    let mut nothing = Vec::new();
    socket.read_to_end(&mut nothing)?;
    let mut bytes = vec![0; 2 * record::MAX_RECORD_BYTES];
    let read = File::from(record.try_clone()?).read_at(&mut bytes, 0)?;
    let answer = examine_all(record::read(bytes.get(..read).unwrap_or_default()), profile);
    socket.write_all(&serde_json::to_vec(&answer)?)
}

/// Examines each recorded path on the host.
fn examine_all(recorded: record::Recorded, profile: &Profile) -> HostPaths {
    let mut answer = HostPaths { found: Vec::new(), cut: recorded.cut };
    for (path, how) in recorded.paths {
        // Profiles are text: other paths cannot be granted.
        let path = String::from_utf8(path).ok();
        let Some(missing) = path.and_then(|path| examine(&path, how, profile)) else { continue };
        if answer.found.len() == MAX_PATHS {
            answer.cut = true;
            break;
        }
        if !answer.found.contains(&missing) {
            answer.found.push(missing);
        }
    }
    answer
}

/// Examines a path on the host; `None` if it does not exist.
fn examine(path: &str, how: PathAccess, profile: &Profile) -> Option<MissingPath> {
    let recorded = Path::new(path);
    let resolved = recorded.canonicalize().ok()?;
    let file_type = resolved.metadata().ok()?.file_type();
    let what = match (file_type.is_file(), file_type.is_dir(), how) {
        (true, ..) => PathType::File,
        (_, true, PathAccess::Open) => PathType::Listed,
        (_, true, PathAccess::Look | PathAccess::Execute) => PathType::Directory,
        (false, false, _) => PathType::Other,
    };
    // A path in a granted tree is missing because of a link to a path that is not granted: report that path.
    let is_granted = |granted: &Path| recorded.starts_with(granted);
    let linked =
        profile.paths.iter().any(|path| path.kind == PathKind::Tree && is_granted(&path.cell));
    let plain = !recorded.components().any(|part| part == Component::ParentDir);
    let path = if linked || !plain { resolved } else { recorded.components().collect() };
    if UNNEEDED.iter().any(|unneeded| path == Path::new(unneeded)) {
        return None;
    }
    Some(MissingPath { path, what })
}

/// Paths that are worth writing into a profile, and others, each with the reason against it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingPaths {
    pub offered: Vec<PathBuf>,
    pub refused: Vec<(PathBuf, String)>,
    pub cut: bool,
}

impl MissingPaths {
    /// Sorts the paths: offers whole directories if they were listed, or many of their files
    /// were looked for.
    pub(crate) fn sort(answer: HostPaths) -> Self {
        let mut missing = Self { cut: answer.cut, ..Self::default() };
        let mut trees = Vec::new();
        let mut files = Vec::new();
        let mut seen = Vec::new();
        for MissingPath { path, what } in answer.found {
            match (refusal(&path), what) {
                // Programs that resolve links examine each step on the way to a file.
                (_, PathType::Directory) => seen.push(path),
                (Some(reason), _) => missing.refused.push((path, reason)),
                (None, PathType::Other) => {
                    missing.refused.push((path, "it is neither a file nor a directory".to_owned()));
                }
                (None, PathType::Listed) => trees.push(path),
                (None, PathType::File) => files.push(path),
            }
        }
        for file in &files {
            let Some(parent) = file.parent() else { continue };
            let siblings = files.iter().filter(|other| other.parent() == Some(parent)).count();
            let is_new = !trees.iter().any(|tree| tree == parent);
            if siblings >= FILES_FOR_DIRECTORY && refusal(parent).is_none() && is_new {
                trees.push(parent.to_owned());
            }
        }
        // The program examined the directory and no path below it, so it needs the directory itself.
        let below = |path: &PathBuf| {
            let mut all = files.iter().chain(&trees).chain(&seen);
            all.any(|other| other != path && other.starts_with(path))
        };
        let alone: Vec<PathBuf> = seen.iter().filter(|path| !below(path)).cloned().collect();
        for path in alone {
            match refusal(&path) {
                None => trees.push(path),
                Some(reason) => missing.refused.push((path, reason)),
            }
        }
        let all: Vec<PathBuf> = trees.into_iter().chain(files).collect();
        let inside = |path: &PathBuf| all.iter().any(|t| t != path && path.starts_with(t));
        missing.offered = all.iter().filter(|path| !inside(path)).cloned().collect();
        missing.offered.sort();
        missing.refused.sort();
        missing
    }

    /// Formats the offered paths as tables of a profile, with blank reasons.
    pub(crate) fn tables(&self) -> String {
        let table = |path: &PathBuf| {
            format!(
                "\n# it was looked for: the host has it and the cell has not\n\
                 [[path]]\nhost = {}\nwhy = \"\"\n",
                quoted(path)
            )
        };
        self.offered.iter().map(table).collect()
    }

    /// Formats the paths that are not offered, as comments.
    pub(crate) fn comments(&self) -> String {
        let mut text = String::new();
        if !self.refused.is_empty() {
            text.push_str("\n# Looked for, there on the host, and not offered:\n");
        }
        for (path, reason) in &self.refused {
            let shown: String =
                path.to_string_lossy().chars().flat_map(char::escape_debug).collect();
            text.push_str(&format!("# {shown}: {reason}\n"));
        }
        if self.cut {
            text.push_str(
                "\n# It looked for more paths than are kept. Grant these, and learn again.\n",
            );
        }
        text
    }
}

/// Quotes a path for TOML: every string of JSON is a string of TOML.
pub(crate) fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.display().to_string()).to_string()
}

/// Returns the reason why a path is not offered: a rule of this file, or the loader's error.
fn refusal(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    if text.chars().any(char::is_control) {
        return Some("its name has a control character in it".to_owned());
    }
    let secret =
        |part: Component<'_>| part.as_os_str().to_str().is_some_and(|part| SECRETS.contains(&part));
    if path.components().any(secret) {
        return Some("secrets are kept there; grant it by hand, if it must be".to_owned());
    }
    let home = |parent: &Path| matches!(parent.to_str(), Some("/home" | "/"));
    if path.parent().is_none_or(home) && path.is_absolute() {
        return Some("it is too wide to offer; name what is needed beneath it".to_owned());
    }
    let profile = format!(
        "schema = 1\nname = \"tried\"\ndescription = \"\"\nextends = \"bash\"\n\
         [[path]]\nhost = {}\nwhy = \"tried\"\n",
        quoted(path)
    );
    let tried = Profiles::parse(&shipped(), &[Document::new("tried.toml", &profile)]);
    tried.err().map(|mistake| mistake.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(found: &[(&str, PathType)]) -> MissingPaths {
        let found = found
            .iter()
            .map(|(path, what)| MissingPath { path: PathBuf::from(path), what: *what })
            .collect();
        MissingPaths::sort(HostPaths { found, cut: false })
    }

    fn offered(found: &[(&str, PathType)]) -> Vec<String> {
        let missing = missing(found);
        missing.offered.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn many_files_of_a_directory_are_offered_as_the_directory() {
        let few = [
            ("/opt", PathType::Directory),
            ("/opt/t", PathType::Directory),
            ("/opt/t/a", PathType::File),
            ("/opt/t/b", PathType::File),
        ];
        assert_eq!(offered(&few), ["/opt/t/a", "/opt/t/b"]);
        let many =
            ["/opt/t/a", "/opt/t/b", "/opt/t/c", "/opt/t/d"].map(|path| (path, PathType::File));
        assert_eq!(offered(&many), ["/opt/t"]);
        assert_eq!(
            offered(&[("/opt/t", PathType::Listed), ("/opt/t/a", PathType::File)]),
            ["/opt/t"]
        );
        assert_eq!(offered(&[("/opt/t/d", PathType::Directory)]), ["/opt/t/d"]);
    }

    #[test]
    fn paths_that_are_not_offered_are_comments_with_the_reason() {
        let found = [
            ("/run/docker.sock", PathType::Other),
            ("/home/me/.ssh/id_ed25519", PathType::File),
            ("/home/me", PathType::Listed),
            ("/etc/shadow", PathType::File),
            ("/opt/a\n[[path]]", PathType::File),
            ("/opt/socket", PathType::Other),
        ];
        let text = missing(&found).comments();
        let expected = "\n# Looked for, there on the host, and not offered:\n\
            # /etc/shadow: secrets are kept there; grant it by hand, if it must be\n\
            # /home/me: it is too wide to offer; name what is needed beneath it\n\
            # /home/me/.ssh/id_ed25519: secrets are kept there; grant it by hand, if it must be\n\
            # /opt/a\\n[[path]]: its name has a control character in it\n\
            # /opt/socket: it is neither a file nor a directory\n\
            # /run/docker.sock: `/run/docker.sock` is never granted: it is the host's own\n";
        assert_eq!(text, expected);
        assert_eq!(missing(&found).tables(), "");
    }
}
