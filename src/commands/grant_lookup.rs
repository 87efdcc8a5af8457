//! The lookup of what the operator grants. Cells may have made links on the way, and may change the way meanwhile: each
//! path is followed once, by held descriptors.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{AccessFlags, faccessat};

use super::error::CliError;
use super::format::plain;
use super::run_arguments::MountRequest;
use cell::c_path;
use cell::mediate::names;
use cell::report::raw;
use model::accounts;
use model::job::Access;
use model::outcome::errno_text;
use supervisor::FileId;
use sys::lookup::{self, Follow};
use sys::mount::open_resolved;

/// Links that one path may lead through (path_resolution(7)).
const MOST_LINKS: usize = 40;
/// Longest text of a link, with the byte that shows that it is whole (PATH_MAX).
const LINK_TEXT: usize = 4097;

/// The flag of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag {
    Workspace,
    Ro,
    Rw,
    /// No flag: a place of cofferdam's own.
    Cache,
}

/// A grant that the operator asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'m> {
    pub flag: Flag,
    pub request: &'m MountRequest,
}

impl<'m> Asked<'m> {
    /// Returns the request of a `--ro` or `--rw`.
    pub(super) fn beside(request: &'m MountRequest) -> Self {
        let flag = match request.access {
            Access::ReadOnly => Flag::Ro,
            Access::ReadWrite | Access::Unguarded => Flag::Rw,
            Access::Cache => Flag::Cache,
        };
        Self { flag, request }
    }
}

/// Shows the flag with its path.
impl fmt::Display for Asked<'_> {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let flag = match self.flag {
            Flag::Workspace => "--workspace",
            Flag::Ro => "--ro",
            Flag::Rw => "--rw",
            Flag::Cache => "the cache",
        };
        write!(to, "{flag}: `{}`", shown(&self.request.host))
    }
}

/// A grant that was looked up.
#[derive(Debug)]
pub(super) struct Found<'m> {
    pub asked: Asked<'m>,
    /// Path without links.
    pub host: PathBuf,
    pub file: FileId,
    pub is_directory: bool,
    links: Vec<Link>,
}

/// A link on the way.
#[derive(Debug)]
struct Link {
    path: PathBuf,
    owner: u32,
    /// The directories above it.
    above: Vec<FileId>,
}

/// Looks up each grant and checks the links on its way. One in a directory that cells can write to is refused: the cell
/// of an earlier start may have made it. Any other of the user's own is told, as a grant of an earlier start may have
/// had it.
///
/// # Errors
/// The grant, and why it cannot be had: the link and what it leads to, what is never granted, or what is missing.
pub(super) fn all<'m>(asked: &[Asked<'m>]) -> Result<Vec<Found<'m>>, CliError> {
    let all =
        asked.iter().map(|asked| look_up(*asked)).collect::<Result<Vec<Found>, CliError>>()?;
    let writable = all.iter().filter(|found| found.asked.request.access != Access::ReadOnly);
    let writable: Vec<FileId> = writable.map(|found| found.file).collect();
    for found in &all {
        found.check_links(&writable)?;
        if found.asked.flag == Flag::Cache && !found.links.is_empty() {
            return Err(CliError::new(format!("{} leads through a link", found.asked))
                .with_hint("remove the link"));
        }
    }
    for found in all.iter().filter(|found| found.links.iter().any(Link::is_the_users)) {
        eprintln!(
            "cofferdam: `{}` leads through a link to `{}`, which is granted",
            shown(&found.asked.request.host),
            shown(&found.host)
        );
    }
    Ok(all)
}

fn look_up(asked: Asked) -> Result<Found, CliError> {
    let failed = |errno| {
        let why = match errno == Errno::ESTALE {
            true => "it was replaced while it was looked up".to_owned(),
            false => errno_text(raw(errno)),
        };
        CliError::new(format!("{asked} cannot be granted: {why}"))
    };
    let Way { held, status, host, links } = Way::follow(&asked.request.host).map_err(failed)?;
    never_whole(asked, &host)?;
    // The file is still held, so that no other can have its inode.
    let again = open_resolved(&c_path(&host).map_err(failed)?).map_err(failed)?;
    let file = FileId::of(&held).map_err(failed)?;
    if FileId::of(&again).map_err(failed)? != file {
        return Err(failed(Errno::ESTALE));
    }
    let is_directory = is(&status, libc::S_IFDIR);
    if is_directory {
        check_mode(asked, &host, &held, &status)?;
    }
    Ok(Found { asked, host, file, is_directory, links })
}

/// Refuses a directory that cells cannot use, since its mode keeps the user out that they run as. A cell may have changed
/// it, as it may change the workspace.
fn check_mode(
    asked: Asked,
    host: &Path,
    held: &OwnedFd,
    status: &FileStat,
) -> Result<(), CliError> {
    let user = nix::unistd::geteuid();
    let is_let = |flag: AccessFlags, owner: libc::mode_t| match user.is_root() {
        // Root may enter all; cells have what the directory's owner has.
        true => status.st_mode & owner != 0,
        false => {
            let path = format!("/proc/self/fd/{}", held.as_raw_fd());
            faccessat(AT_FDCWD, path.as_str(), flag, AtFlags::AT_EACCESS) != Err(Errno::EACCES)
        }
    };
    let lists = is_let(AccessFlags::R_OK, libc::S_IRUSR);
    let enters = is_let(AccessFlags::X_OK, libc::S_IXUSR);
    let is_usable = match asked.request.access {
        Access::ReadWrite | Access::Unguarded => lists && enters,
        // One of the two is of some use: names alone, or files whose names are known.
        Access::ReadOnly => lists || enters,
        // Its mode is mended where it is made.
        Access::Cache => true,
    };
    if is_usable {
        return Ok(());
    }
    let what = match asked.request.cell == Path::new("/workspace") {
        true => "the workspace's mode".to_owned(),
        false => format!("{asked}: its mode"),
    };
    let remedy = match user.is_root() || status.st_uid == user.as_raw() {
        true => format!("chmod u+rwx {}", shown(host)),
        false => "it belongs to another user".to_owned(),
    };
    Err(CliError::new(format!("{what} is {:04o}: {remedy}", status.st_mode & 0o7777)))
}

/// Refuses what shows the processes of the host, and the whole machine or a whole home, or what it lies in.
fn never_whole(asked: Asked, host: &Path) -> Result<(), CliError> {
    if ["/proc", "/sys"].iter().any(|kernels| host.starts_with(kernels)) {
        return Err(CliError::new(format!("{asked} shows the processes of the host"))
            .with_hint("a cell has a /proc of its own; copy what else is needed to a file"));
    }
    let home = accounts::home().and_then(|home| home.canonicalize().ok());
    if home.is_some_and(|home| home.starts_with(host)) || host == Path::new("/") {
        return Err(CliError::new(format!("{asked} is never granted as a whole"))
            .with_hint("grant the one directory that is needed"));
    }
    Ok(())
}

impl Found<'_> {
    /// Refuses links that cells can have made. `writable` are the directories that they can write to.
    fn check_links(&self, writable: &[FileId]) -> Result<(), CliError> {
        let MountRequest { host, access, .. } = self.asked.request;
        let is_written = |link: &&Link| link.above.iter().any(|one| writable.contains(one));
        if let Some(link) = self.links.iter().find(is_written) {
            let message = format!(
                "`{}` cannot be granted: it leads through the link `{}`, which cells can make",
                shown(host),
                shown(&link.path)
            );
            let hint = format!("grant `{}`, if that is meant", shown(&self.host));
            return Err(CliError::new(message).with_hint(hint));
        }
        let is_guarded = |path: &Path| path.components().any(|part| obeyed(part.as_os_str()));
        if *access != Access::ReadOnly
            && !self.links.is_empty()
            && !is_guarded(host)
            && is_guarded(&self.host)
        {
            let message = format!(
                "`{}` cannot be granted for writing: a link leads it to `{}`, which the host obeys",
                shown(host),
                shown(&self.host)
            );
            let hint = "grant it by its own path, if that is meant";
            return Err(CliError::new(message).with_hint(hint));
        }
        Ok(())
    }
}

fn shown(path: &Path) -> String {
    plain(&path.display().to_string())
}

/// Returns whether a name is guarded in a workspace.
fn obeyed(name: &OsStr) -> bool {
    let name = name.as_bytes();
    names::is_obeyed(name) || names::may_be(name, names::GIT)
}

impl Link {
    /// Returns whether a cell of this user's can have made it: not one of the system's, nor one beside the system's
    /// own directories.
    fn is_the_users(&self) -> bool {
        let by_root = nix::unistd::geteuid().is_root();
        self.path.parent() != Some(Path::new("/")) && (by_root || self.owner != 0)
    }
}

/// A path that was followed to its end.
struct Way {
    held: OwnedFd,
    status: FileStat,
    /// Path without links.
    host: PathBuf,
    links: Vec<Link>,
}

impl Way {
    /// Follows an absolute path, name by name, each from the directory that is held.
    fn follow(path: &Path) -> Result<Self, Errno> {
        let mut left: VecDeque<OsString> = names(path).collect();
        let mut host = PathBuf::from("/");
        let mut held = open_resolved(c"/")?;
        let mut above = vec![FileId::of(&held)?];
        let mut links = Vec::new();
        while let Some(name) = left.pop_front() {
            let next = open_name(&held, &name)?;
            let status = fstat(&next)?;
            if is(&status, libc::S_IFLNK) {
                let mut buffer = [0; LINK_TEXT];
                let text = lookup::read_link(&next, c"", &mut buffer)?;
                let text = Path::new(OsStr::from_bytes(text));
                let (path, owner) = (host.join(&name), status.st_uid);
                links.push(Link { path, owner, above: above.clone() });
                if links.len() > MOST_LINKS {
                    return Err(Errno::ELOOP);
                }
                if text.is_absolute() {
                    host = PathBuf::from("/");
                    held = open_resolved(c"/")?;
                    above.truncate(1);
                }
                names(text).rev().for_each(|name| left.push_front(name));
                continue;
            }
            held = next;
            if name == ".." {
                host.pop();
                above.truncate(above.len().saturating_sub(1).max(1));
            } else {
                host.push(&name);
                above.push(FileId::from(&status));
            }
        }
        let status = fstat(&held)?;
        Ok(Self { held, status, host, links })
    }
}

/// Holds what has this name in a directory: a link itself, where it is one.
fn open_name(directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    lookup::open(directory, &c_path(Path::new(name))?, flags, 0, Follow::Nothing)
}

fn is(status: &FileStat, kind: libc::mode_t) -> bool {
    status.st_mode & libc::S_IFMT == kind
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn on_the_way(path: &Path) -> std::io::Result<Vec<PathBuf>> {
        let way = Way::follow(path)?;
        assert_eq!(way.host, path.canonicalize()?);
        Ok(way.links.into_iter().map(|link| link.path).collect())
    }

    #[test]
    fn every_link_on_the_way_is_found_where_it_lies() -> std::io::Result<()> {
        let held = tempfile::tempdir()?;
        let root = held.path().canonicalize()?;
        std::fs::create_dir_all(root.join("a/b"))?;
        symlink("a", root.join("one"))?;
        symlink("../one/b", root.join("a/two"))?;
        symlink("loop", root.join("loop"))?;
        let found = |path: &str| on_the_way(&root.join(path));
        assert_eq!(found("a/b")?, Vec::<PathBuf>::new());
        assert_eq!(found("one/b")?, [root.join("one")]);
        assert_eq!(found("one/two")?, ["one", "a/two", "one"].map(|name| root.join(name)));
        assert_eq!(found("a/b/../two/.")?, ["a/two", "one"].map(|name| root.join(name)));
        assert!(found("loop").is_err());
        assert!(found("none").is_err());
        Ok(())
    }
}
