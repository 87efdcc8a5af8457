//! Places that configure cofferdam, and a check for a cell that could write to one through a
//! granted directory.
//!
//! A directory is compared by its location on its filesystem, so that a bind mount or another
//! spelling of its path makes no difference. A path is followed name by name: the right to replace
//! a link on the way, or to create a missing name at its end, decides where the path leads.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use cell::c_path;
use config::HostContext;
use model::accounts;
use sys::mount::mount_id;

/// Maximum number of links in one path (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Returns every file and directory that configures cofferdam now, or would once it is created.
/// `named` are the paths on the command line and in the configuration itself.
pub(crate) fn all(named: Vec<PathBuf>, host: &HostContext) -> Vec<PathBuf> {
    let home = accounts::home();
    let of_user =
        [host.xdg_config_home.clone().map(PathBuf::from), home.map(|home| home.join(".config"))];
    let of_user = of_user.into_iter().flatten().map(|base| base.join("cofferdam"));
    let by_environment = host.cofferdam_config.clone().map(PathBuf::from);
    let system = host.system.clone();
    let absolute = |path: PathBuf| std::path::absolute(path).ok();
    let all = named.into_iter().chain(by_environment).chain(of_user).chain([system]);
    all.filter_map(absolute).flat_map(|path| with_parts(&path)).collect()
}

/// Returns a path and, for a directory, the files in it that are read as configuration.
fn with_parts(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    if !path.is_dir() {
        return all;
    }
    all.extend(["cofferdam.toml", "config.json"].map(|name| path.join(name)));
    for part in ["policies", "sandbox-profiles"].map(|name| path.join(name)) {
        all.push(part.clone());
        let files = std::fs::read_dir(&part).into_iter().flatten().flatten();
        let files = files.map(|entry| entry.path());
        all.extend(files.filter(|path| path.extension().is_some_and(|kind| kind == "toml")));
    }
    all
}

/// Way in which a writer to a directory reaches a file of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// The file is in the directory, or its path leads through it.
    Through,
    /// The file has another name, which may be in the directory.
    Linked,
}

/// A mount, by its line in mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    device: String,
    /// Directory of the filesystem that is mounted (field `root` of the line).
    root: PathBuf,
    point: PathBuf,
}

/// The mounts of this process by their ids, read once for all directories that are examined.
#[derive(Debug)]
pub(crate) struct HostMounts(BTreeMap<u64, Mount>);

impl HostMounts {
    /// # Errors
    /// The list cannot be read.
    pub(crate) fn read() -> std::io::Result<Self> {
        Ok(Self(mounts(&std::fs::read("/proc/self/mountinfo")?)))
    }

    /// Returns the location of a file whose path has no links.
    fn location(&self, path: &Path) -> Option<Location> {
        let mount = self.0.get(&mount_id(&c_path(path).ok()?).ok()?)?;
        let below = path.strip_prefix(&mount.point).ok()?;
        let in_filesystem = match below.as_os_str().is_empty() {
            true => mount.root.clone(),
            false => mount.root.join(below),
        };
        Some((mount.device.clone(), in_filesystem))
    }
}

/// Location of a file: its filesystem, and the path in it.
type Location = (String, PathBuf);

/// A path that no grant may reach, followed once for all grants.
#[derive(Debug)]
pub(crate) struct ForbiddenPath {
    path: PathBuf,
    /// The directories in which a name of the path is looked up, and the file at its end, each without links and
    /// with its location. The list ends where a name is missing.
    visited: Vec<(PathBuf, Option<Location>)>,
    /// The last of these files, if it can be looked at.
    last: Option<Metadata>,
    is_missing: bool,
}

impl ForbiddenPath {
    /// Follows these paths.
    pub(crate) fn follow(paths: Vec<PathBuf>, mounts: &HostMounts) -> Vec<Self> {
        let mut known: BTreeMap<PathBuf, Option<Location>> = BTreeMap::new();
        let mut located = |path: PathBuf| {
            let location = known.entry(path.clone()).or_insert_with(|| mounts.location(&path));
            (path, location.clone())
        };
        let follow = |path: PathBuf| {
            let Visited { files, is_missing } = visited(&path);
            let visited: Vec<_> = files.into_iter().map(&mut located).collect();
            let last = visited.last().and_then(|(last, _)| last.symlink_metadata().ok());
            Self { path, visited, last, is_missing }
        };
        paths.into_iter().map(follow).collect()
    }

    /// Returns true if a path without links is this file, or below it.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        let last = self.visited.last().filter(|_| !self.is_missing);
        last.is_some_and(|(last, _)| path.starts_with(last))
    }
}

/// A directory that is to be granted for writing, with all mounts below it.
#[derive(Debug)]
pub(crate) struct HostTree {
    path: PathBuf,
    owner: u32,
    /// Parts of filesystems that are in it.
    trees: Vec<Location>,
}

impl HostTree {
    /// Examines a directory and the mounts below it.
    ///
    /// # Errors
    /// A directory that cannot be examined.
    pub(crate) fn examine(path: &Path, mounts: &HostMounts) -> std::io::Result<Self> {
        let owner = std::fs::metadata(path)?.uid();
        let below = mounts.0.values().filter(|mount| mount.point.starts_with(path));
        let below = below.map(|mount| (mount.device.clone(), mount.root.clone()));
        let trees = mounts.location(path).into_iter().chain(below).collect();
        Ok(Self { path: path.to_owned(), owner, trees })
    }

    /// Returns the first of these paths that a writer to this directory reaches.
    pub(crate) fn reaches<'p>(&self, paths: &'p [ForbiddenPath]) -> Option<(&'p Path, Exposure)> {
        paths.iter().find_map(|forbidden| {
            let path = forbidden.path.as_path();
            if forbidden.visited.iter().any(|visited| self.has(visited)) {
                return Some((path, Exposure::Through));
            }
            self.may_link(forbidden).then_some((path, Exposure::Linked))
        })
    }

    /// Returns true if a path without links is in the directory.
    fn has(&self, (path, location): &(PathBuf, Option<Location>)) -> bool {
        let within = |(device, path): &Location| {
            self.trees.iter().any(|(other, root)| device == other && path.starts_with(root))
        };
        path.starts_with(&self.path) || location.as_ref().is_some_and(within)
    }

    /// Returns true if the file at the end of a path has more than one name and a cell could write to it by one of them:
    /// its owner is the user who starts cofferdam, or for root the owner of the directory.
    fn may_link(&self, forbidden: &ForbiddenPath) -> bool {
        let Some(file) = &forbidden.last else { return false };
        let Some((_, Some((device, _)))) = forbidden.visited.last() else { return false };
        let euid = nix::unistd::geteuid().as_raw();
        let owner = if euid == 0 { self.owner } else { euid };
        let linked = file.is_file() && file.nlink() > 1 && file.uid() == owner;
        linked && self.trees.iter().any(|(other, _)| device == other)
    }
}

/// The files on the way of a path.
struct Visited {
    files: Vec<PathBuf>,
    /// True if a name of the path is missing.
    is_missing: bool,
}

/// Returns the directories in which a name of the path is looked up, and the file at its end, each
/// without links. The list ends where a name is missing.
fn visited(path: &Path) -> Visited {
    let names = |path: &Path| path.iter().map(OsStr::to_owned).collect::<VecDeque<OsString>>();
    let mut rest = names(path);
    let mut visited = Visited { files: Vec::new(), is_missing: true };
    let mut here = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        visited.files.push(here.clone());
        match Path::new(&name).components().next() {
            Some(Component::RootDir) => here = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                here.pop();
            }
            Some(Component::Normal(name)) => {
                let next = here.join(name);
                let Ok(metadata) = next.symlink_metadata() else { return visited };
                if !metadata.is_symlink() {
                    here = next;
                    continue;
                }
                links += 1;
                let Ok(text) = next.read_link() else { return visited };
                if links > MAX_LINKS {
                    return visited;
                }
                let mut followed = names(&text);
                followed.append(&mut rest);
                rest = followed;
            }
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
    visited.files.push(here);
    visited.is_missing = false;
    visited
}

/// Parses mounts by their ids.
fn mounts(table: &[u8]) -> BTreeMap<u64, Mount> {
    let lines = table.split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| {
            let mut words = line.split(|byte| *byte == b' ');
            let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
            let device = String::from_utf8_lossy(words.nth(1)?).into_owned();
            let root = unescaped(words.next()?);
            let point = unescaped(words.next()?);
            Some((id, Mount { device, root, point }))
        })
        .collect()
}

/// Decodes a path in which blanks and backslashes are written in octal.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((byte, more)) = rest.split_first() {
        let code = more.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (byte, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = more.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(*byte);
                rest = more;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn mounts_are_read_with_their_blanks() {
        let table = b"36 35 98:0 /a\\040b /mnt/c\\134d rw - ext4 /dev/x rw\n";
        let expected = Mount {
            device: "98:0".to_owned(),
            root: PathBuf::from("/a b"),
            point: PathBuf::from("/mnt/c\\d"),
        };
        assert_eq!(mounts(table), BTreeMap::from([(36, expected)]));
    }

    /// A home with a configuration, and a directory that is granted.
    struct Host {
        directory: tempfile::TempDir,
    }

    impl Host {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
            let host = Self { directory };
            host.directory("home/.config/cofferdam/policies");
            host.file("home/.config/cofferdam/cofferdam.toml");
            host.file("home/.config/cofferdam/policies/own.toml");
            host.directory("grant/sub");
            host
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().canonicalize().unwrap_or_default().join(name)
        }

        fn directory(&self, name: &str) {
            std::fs::create_dir_all(self.path(name)).unwrap_or_else(|error| panic!("{error}"));
        }

        fn file(&self, name: &str) {
            std::fs::write(self.path(name), "").unwrap_or_else(|error| panic!("{error}"));
        }

        fn link(&self, target: &str, name: &str) {
            let path = self.path(name);
            std::fs::remove_file(&path).unwrap_or_default();
            symlink(self.path(target), path).unwrap_or_else(|error| panic!("{error}"));
        }

        /// Returns the part of the configuration that a writer to `grant` reaches, and how.
        fn reached(&self, grant: &str, config: &str) -> Option<(PathBuf, Exposure)> {
            let mounts = HostMounts::read().unwrap_or_else(|error| panic!("{error}"));
            let tree = HostTree::examine(&self.path(grant), &mounts)
                .unwrap_or_else(|error| panic!("{error}"));
            let paths = ForbiddenPath::follow(with_parts(&self.path(config)), &mounts);
            let (path, exposure) = tree.reaches(&paths)?;
            let path = path.strip_prefix(self.path("")).unwrap_or(path);
            Some((path.to_owned(), exposure))
        }
    }

    const CONFIG: &str = "home/.config/cofferdam";

    fn through(path: &str) -> Option<(PathBuf, Exposure)> {
        Some((PathBuf::from(path), Exposure::Through))
    }

    #[test]
    fn a_directory_next_to_the_configuration_reaches_nothing() {
        let host = Host::new();
        host.directory("home/project");
        for grant in ["grant", "grant/sub", "home/project"] {
            assert_eq!(host.reached(grant, CONFIG), None, "{grant}");
        }
    }

    #[test]
    fn a_directory_that_contains_the_configuration_or_a_part_of_it_reaches_it() {
        let host = Host::new();
        for grant in ["home", "home/.config", CONFIG] {
            assert_eq!(host.reached(grant, CONFIG), through(CONFIG), "{grant}");
        }
        let policies = format!("{CONFIG}/policies");
        assert_eq!(host.reached(&policies, CONFIG), through(&policies));
    }

    #[test]
    fn a_grant_to_which_a_part_is_linked_reaches_it() {
        for (part, target) in [
            ("cofferdam.toml", "grant/sub/server.toml"),
            ("config.json", "grant/sub/config.json"),
            ("policies/own.toml", "grant/policy.toml"),
            ("sandbox-profiles", "grant/sub"),
        ] {
            let host = Host::new();
            host.file("grant/sub/server.toml");
            let path = format!("{CONFIG}/{part}");
            host.link(target, &path);
            assert_eq!(host.reached("grant", CONFIG), through(&path), "{part}");
            // The same holds for a target that does not exist yet.
            host.link("grant/missing/deep", &path);
            assert_eq!(host.reached("grant", CONFIG), through(&path), "{part}");
        }
    }

    #[test]
    fn a_grant_that_contains_a_link_reaches_the_configuration_behind_it() {
        let host = Host::new();
        host.link(CONFIG, "grant/sub/config");
        assert_eq!(host.reached("grant", "grant/sub/config"), through("grant/sub/config"));
        host.link("grant/sub/config", "home/config");
        assert_eq!(host.reached("grant/sub", "home/config"), through("home/config"));
    }

    #[test]
    fn a_home_reached_through_a_link_reaches_a_configuration_that_may_not_exist_yet() {
        let host = Host::new();
        host.link("home", "alias");
        host.directory("home/project");
        for config in ["alias/.config/cofferdam", "alias/.config/missing/cofferdam"] {
            assert_eq!(host.reached("home/.config", config), through(config));
            assert_eq!(host.reached("home/project", config), None);
        }
        host.link("grant", "home/.dots");
        let missing = "home/.dots/cofferdam";
        assert_eq!(host.reached("grant", missing), through(missing));
    }

    #[test]
    fn a_file_with_another_name_may_have_it_in_a_grant() {
        let host = Host::new();
        let file = format!("{CONFIG}/cofferdam.toml");
        let linked = std::fs::hard_link(host.path(&file), host.path("grant/other"));
        linked.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(host.reached("grant", CONFIG), Some((PathBuf::from(file), Exposure::Linked)));
    }

    #[test]
    fn links_that_lead_in_a_circle_end() {
        let host = Host::new();
        host.link("two", "one");
        host.link("one", "two");
        assert_eq!(host.reached("grant", "one/cofferdam"), None);
    }
}
