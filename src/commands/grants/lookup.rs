//! Resolves the paths that the operator grants. Cells may have made links in them, and may change them meanwhile: each
//! path is followed once, from one open directory to the next.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{AccessFlags, faccessat};

use super::config_paths::{self, Exposure, ForbiddenPath, HostMounts, HostTree};
use super::request::{MountRequest, WORKSPACE};
use super::tier;
use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::layers::store;
use crate::commands::settings::Settings;
use cell::c_path;
use cell::mediate::names;
use cell::report::raw;
use config::HostContext;
use model::accounts;
use model::job::Access;
use model::outcome::{errno_text, in_words};
use supervisor::{FileId, Granted};
use sys::lookup::{self, Follow};
use sys::mount::open_resolved;

/// Maximum number of links in one path (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Longest text of a link (PATH_MAX), and one byte more, so that a text that was cut is noticed.
const LINK_BUFFER: usize = 4097;

/// The flag of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    Workspace,
    Ro,
    Rw,
    Cow,
    /// No flag: the cache, a directory that cofferdam made.
    Cache,
    /// No flag: the directory of the workspace's repository.
    Repository,
}

/// A grant that the operator asks for.
#[derive(Debug, Clone, Copy)]
struct PathRequest<'m> {
    pub flag: Flag,
    pub mount: &'m MountRequest,
}

impl<'m> PathRequest<'m> {
    /// Returns the request of a path other than the workspace of a server.
    fn by_access(mount: &'m MountRequest) -> Self {
        let flag = match mount.access {
            Access::ReadOnly => Flag::Ro,
            Access::ReadWrite | Access::Unguarded => Flag::Rw,
            Access::Cache => Flag::Cache,
            Access::Repository => Flag::Repository,
            Access::Layer => Flag::Cow,
        };
        Self { flag, mount }
    }
}

/// Shows the flag with its path.
impl fmt::Display for PathRequest<'_> {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let flag = match self.flag {
            Flag::Workspace => "--workspace",
            Flag::Ro => "--ro",
            Flag::Rw => "--rw",
            Flag::Cow => "--cow",
            Flag::Cache => "the cache",
            Flag::Repository => "the repository of the workspace",
        };
        write!(to, "{flag}: `{}`", shown(&self.mount.host))
    }
}

/// A grant whose path was resolved.
#[derive(Debug)]
struct ResolvedGrant<'m> {
    pub request: PathRequest<'m>,
    /// Path without links.
    pub host: PathBuf,
    pub file: FileId,
    pub is_directory: bool,
    links: Vec<Link>,
}

/// A symbolic link in a path.
#[derive(Debug)]
struct Link {
    path: PathBuf,
    owner: u32,
    /// The directories above it.
    above: Vec<FileId>,
}

/// Resolves and checks the paths that cells are to have. The first of a server is its workspace, if it grants one.
///
/// # Errors
/// A path that does not exist, or one that is never granted.
pub(crate) fn grant_all(
    settings: &Settings,
    mounts: &[MountRequest],
    is_server: bool,
) -> Result<Vec<Granted>, CliError> {
    let mut requests: Vec<PathRequest> = mounts.iter().map(PathRequest::by_access).collect();
    let is_workspace = |first: &&mut PathRequest| first.mount.cell == Path::new(WORKSPACE);
    if let Some(first) = requests.first_mut().filter(is_workspace).filter(|_| is_server) {
        first.flag = Flag::Workspace;
    }
    let names = &settings.loaded.config.guard_names.value;
    let also: Rc<[Vec<u8>]> = names.iter().map(|name| name.clone().into_bytes()).collect();
    let mut all = Vec::new();
    let mut host = None;
    for grant in resolve_all(&requests)? {
        let PathRequest { flag, mount } = grant.request;
        if flag == Flag::Ro {
            check_apart_from_layers(settings, &grant, &mut host)?;
        }
        if flag != Flag::Ro {
            check_writable(settings, &grant, &mut host)?;
        }
        let MountRequest { cell, access, .. } = mount.clone();
        let also = Rc::clone(&also);
        let is_linked = false;
        let ResolvedGrant { host, file, .. } = grant;
        // A layer is taken once all grants have been checked.
        let granted = Granted { host, file, cell, access, also, is_linked, layer: None };
        all.push(match flag {
            Flag::Workspace => tier::workspace(settings.tier, granted)?,
            Flag::Ro | Flag::Rw | Flag::Cow | Flag::Cache | Flag::Repository => {
                tier::granted(settings.tier, granted)?
            }
        });
    }
    Ok(all)
}

/// Refuses to show the layers to cells: files of other projects, set-id files, and a layer that cells
/// of another start change at the same time.
fn check_apart_from_layers(
    settings: &Settings,
    grant: &ResolvedGrant<'_>,
    host: &mut Option<Host>,
) -> Result<(), CliError> {
    let failed =
        |error: std::io::Error| CliError::new(format!("{} {}", grant.request, in_words(&error)));
    let Host { mounts, layers, .. } = Host::known(settings, host).map_err(failed)?;
    let tree = HostTree::examine(&grant.host, mounts).map_err(failed)?;
    let is_in_layers = layers.iter().any(|layers| layers.contains(&grant.host));
    if is_in_layers || tree.reaches(layers).is_some() {
        return Err(CliError::new(format!("{} would show cofferdam's layers", grant.request))
            .with_hint("grant a smaller directory; `cofferdam review --diff` shows a layer"));
    }
    Ok(())
}

/// Parts of the host that a directory is compared with before cells may write to it.
struct Host {
    mounts: HostMounts,
    configuration: Vec<ForbiddenPath>,
    /// The user's directory of layers, whether it is there or not.
    layers: Vec<ForbiddenPath>,
}

impl Host {
    /// Returns the host's parts, which are read for the first grant that asks.
    fn known<'h>(settings: &Settings, host: &'h mut Option<Self>) -> std::io::Result<&'h mut Self> {
        Ok(match host {
            Some(known) => known,
            None => {
                let mounts = HostMounts::read()?;
                let configuration = ForbiddenPath::follow(configuration_paths(settings), &mounts);
                let layers = store::directory().into_iter().collect();
                let layers = ForbiddenPath::follow(layers, &mounts);
                host.insert(Self { mounts, configuration, layers })
            }
        })
    }
}

/// Checks a directory that cells may write to: it must not contain the configuration of cofferdam itself. `host` is
/// filled for the first one.
fn check_writable(
    settings: &Settings,
    grant: &ResolvedGrant<'_>,
    host: &mut Option<Host>,
) -> Result<(), CliError> {
    let bad = |fault: &str| CliError::new(format!("{} {fault}", grant.request));
    if !grant.is_directory {
        return Err(bad("is not a directory").with_hint("grant the directory it is in"));
    }
    let failed = |error: std::io::Error| bad(&in_words(&error).to_string());
    let Host { mounts, configuration, .. } = Host::known(settings, host).map_err(failed)?;
    let tree = HostTree::examine(&grant.host, mounts).map_err(failed)?;
    match tree.reaches(configuration) {
        None => Ok(()),
        Some((path, Exposure::Through)) => {
            let path = path.display();
            Err(bad("holds cofferdam's own configuration").with_hint(format!(
                "an agent must not be able to change its own limits, and `{path}` leads there"
            )))
        }
        Some((path, Exposure::Linked)) => {
            let path = path.display();
            Err(bad("may hold cofferdam's own configuration").with_hint(format!(
                "`{path}` has another name as well (a hard link): put a copy in its place"
            )))
        }
    }
}

/// Returns every path that configures cofferdam now, or would if it were created.
fn configuration_paths(settings: &Settings) -> Vec<PathBuf> {
    let Settings { loaded, named_configuration, .. } = settings;
    let in_force = loaded.origin.directory().map(Path::to_owned);
    let log = loaded.config.audit_file.value.clone();
    // A layer in the hands of a cell could apply itself to any directory.
    let layers = store::directory();
    let named =
        named_configuration.iter().cloned().chain(in_force).chain(log).chain(layers).collect();
    config_paths::all(named, &HostContext::of_this_process())
}

/// Resolves each grant and checks the links in its path. A link in a directory that cells can write to is refused: a cell
/// of an earlier start may have made it. Other links of the user are reported, since an earlier start may have granted
/// their directory.
///
/// # Errors
/// The grant, and the reason: the link and its target, a path that is never granted, or a path that is missing.
fn resolve_all<'m>(requests: &[PathRequest<'m>]) -> Result<Vec<ResolvedGrant<'m>>, CliError> {
    let home = accounts::home().and_then(|home| home.canonicalize().ok());
    let mut walked = Walked::begin().map_err(|errno| {
        CliError::new(format!("nothing can be granted: {}", errno_text(raw(errno))))
    })?;
    let grants = requests.iter().map(|request| resolve(*request, home.as_deref(), &mut walked));
    let grants = grants.collect::<Result<Vec<ResolvedGrant>, CliError>>()?;
    let writable = grants.iter().filter(|grant| grant.request.mount.access != Access::ReadOnly);
    let writable: Vec<FileId> = writable.map(|grant| grant.file).collect();
    for grant in &grants {
        grant.check_links(&writable)?;
        let is_found = matches!(grant.request.flag, Flag::Cache | Flag::Repository);
        if is_found && !grant.links.is_empty() {
            return Err(CliError::new(format!("{} leads through a link", grant.request))
                .with_hint("remove the link"));
        }
    }
    for grant in grants.iter().filter(|grant| grant.links.iter().any(Link::is_the_users)) {
        eprintln!(
            "cofferdam: `{}` leads through a link to `{}`, which is granted",
            shown(&grant.request.mount.host),
            shown(&grant.host)
        );
    }
    Ok(grants)
}

fn resolve<'m>(
    request: PathRequest<'m>,
    home: Option<&Path>,
    walked: &mut Walked,
) -> Result<ResolvedGrant<'m>, CliError> {
    let failed = |errno| {
        let reason = match errno == Errno::ESTALE {
            true => "it was replaced while it was looked up".to_owned(),
            false => errno_text(raw(errno)),
        };
        CliError::new(format!("{request} cannot be granted: {reason}"))
    };
    let FollowedPath { end, status, host, links } =
        walked.follow(&request.mount.host).map_err(failed)?;
    never_whole(request, &host, home)?;
    // The file is still open, so that no other can have its inode.
    let again = open_resolved(&c_path(&host).map_err(failed)?).map_err(failed)?;
    let file = FileId::from(&status);
    if FileId::of_file(&again).map_err(failed)? != file {
        return Err(failed(Errno::ESTALE));
    }
    let is_directory = is(&status, libc::S_IFDIR);
    if is_directory {
        check_mode(request, &host, &end, &status)?;
    }
    Ok(ResolvedGrant { request, host, file, is_directory, links })
}

/// Refuses a directory that cells cannot use, since its mode excludes the user that they run as. A cell may have changed
/// the mode of its workspace.
fn check_mode(
    request: PathRequest,
    host: &Path,
    directory: &OwnedFd,
    status: &FileStat,
) -> Result<(), CliError> {
    let user = nix::unistd::geteuid();
    let is_permitted = |flag: AccessFlags, owner: libc::mode_t| match user.is_root() {
        // Root may enter every directory; its cells have the rights of the directory's owner.
        true => status.st_mode & owner != 0,
        false => {
            let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
            faccessat(AT_FDCWD, path.as_str(), flag, AtFlags::AT_EACCESS) != Err(Errno::EACCES)
        }
    };
    let can_list = is_permitted(AccessFlags::R_OK, libc::S_IRUSR);
    let can_enter = is_permitted(AccessFlags::X_OK, libc::S_IXUSR);
    let is_usable = match request.mount.access {
        Access::ReadWrite | Access::Unguarded | Access::Repository | Access::Layer => {
            can_list && can_enter
        }
        // One right is enough: to list names, or to open files whose names are known.
        Access::ReadOnly => can_list || can_enter,
        // The mode of a cache is repaired when it is opened.
        Access::Cache => true,
    };
    if is_usable {
        return Ok(());
    }
    let what = match request.mount.cell == Path::new(WORKSPACE) {
        true => "the workspace's mode".to_owned(),
        false => format!("{request}: its mode"),
    };
    let remedy = match user.is_root() || status.st_uid == user.as_raw() {
        true => format!("chmod u+rwx {}", shown(host)),
        false => "it belongs to another user".to_owned(),
    };
    Err(CliError::new(format!("{what} is {:04o}: {remedy}", status.st_mode & 0o7777)))
}

/// Refuses /proc and /sys, which show the processes of the host, and directories that contain the whole home.
fn never_whole(request: PathRequest, host: &Path, home: Option<&Path>) -> Result<(), CliError> {
    if ["/proc", "/sys"].iter().any(|directory| host.starts_with(directory)) {
        return Err(CliError::new(format!("{request} shows the processes of the host"))
            .with_hint("each cell has its own /proc; copy what else is needed to a file"));
    }
    if home.is_some_and(|home| home.starts_with(host)) || host == Path::new("/") {
        return Err(CliError::new(format!("{request} is never granted as a whole"))
            .with_hint("grant the one directory that is needed"));
    }
    Ok(())
}

impl ResolvedGrant<'_> {
    /// Refuses links that cells can have made. `writable` are the directories that they can write to.
    fn check_links(&self, writable: &[FileId]) -> Result<(), CliError> {
        let MountRequest { host, access, .. } = self.request.mount;
        let is_written =
            |link: &&Link| link.above.iter().any(|directory| writable.contains(directory));
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

/// Returns true if a name is guarded in a workspace.
fn obeyed(name: &OsStr) -> bool {
    let name = name.as_bytes();
    names::is_obeyed(name) || names::may_be(name, names::GIT)
}

impl Link {
    /// Returns true if a cell of this user can have made the link: it is neither root's nor in the root directory.
    fn is_the_users(&self) -> bool {
        let by_root = nix::unistd::geteuid().is_root();
        self.path.parent() != Some(Path::new("/")) && (by_root || self.owner != 0)
    }
}

/// A path that was followed to its end.
struct FollowedPath {
    /// The file at the end.
    end: Rc<OwnedFd>,
    status: FileStat,
    /// Path without links.
    host: PathBuf,
    links: Vec<Link>,
}

/// The root directory, and the directories on the way of paths that were followed, by their paths without links. Grants
/// of tool chains have most of their directories in common.
struct Walked {
    root: Rc<OwnedFd>,
    root_status: FileStat,
    directories: BTreeMap<OsString, (Rc<OwnedFd>, FileStat)>,
}

impl Walked {
    fn begin() -> Result<Self, Errno> {
        let root = open_resolved(c"/")?;
        let root_status = fstat(&root)?;
        Ok(Self { root: Rc::new(root), root_status, directories: BTreeMap::new() })
    }

    /// Opens the name `name` in a directory, whose path with the name is `path`, unless that was done before.
    fn open(
        &mut self,
        directory: &OwnedFd,
        name: &OsStr,
        path: &Path,
    ) -> Result<(Rc<OwnedFd>, FileStat), Errno> {
        if let Some((held, status)) = self.directories.get(path.as_os_str()) {
            return Ok((Rc::clone(held), *status));
        }
        let held = Rc::new(open_name(directory, name)?);
        let status = fstat(&held)?;
        if is(&status, libc::S_IFDIR) && name != ".." {
            self.directories.insert(path.as_os_str().to_owned(), (Rc::clone(&held), status));
        }
        Ok((held, status))
    }

    /// Follows an absolute path, name by name, each from an open directory.
    fn follow(&mut self, path: &Path) -> Result<FollowedPath, Errno> {
        let mut remaining: VecDeque<OsString> = names(path).collect();
        let mut host = PathBuf::from("/");
        let mut end = Rc::clone(&self.root);
        let mut above = vec![FileId::from(&self.root_status)];
        let mut last = self.root_status;
        let mut links = Vec::new();
        while let Some(name) = remaining.pop_front() {
            let path = host.join(&name);
            let (next, status) = self.open(&end, &name, &path)?;
            if is(&status, libc::S_IFLNK) {
                let mut buffer = [0; LINK_BUFFER];
                let text = lookup::read_link(&next, c"", &mut buffer)?;
                let text = Path::new(OsStr::from_bytes(text));
                links.push(Link { path, owner: status.st_uid, above: above.clone() });
                if links.len() > MAX_LINKS {
                    return Err(Errno::ELOOP);
                }
                if text.is_absolute() {
                    host = PathBuf::from("/");
                    end = Rc::clone(&self.root);
                    last = self.root_status;
                    above.truncate(1);
                }
                names(text).rev().for_each(|name| remaining.push_front(name));
                continue;
            }
            end = next;
            last = status;
            if name == ".." {
                host.pop();
                above.truncate(above.len().saturating_sub(1).max(1));
                // A directory that was moved meanwhile has another parent, which cells may be able to write to.
                if above.last() != Some(&FileId::from(&status)) {
                    return Err(Errno::ESTALE);
                }
            } else {
                host = path;
                above.push(FileId::from(&status));
            }
        }
        Ok(FollowedPath { end, status: last, host, links })
    }
}

/// Opens a name in a directory. Symbolic links are opened themselves, not followed.
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

    fn links_of(path: &Path) -> std::io::Result<Vec<PathBuf>> {
        let followed = Walked::begin()?.follow(path)?;
        assert_eq!(followed.host, path.canonicalize()?);
        Ok(followed.links.into_iter().map(|link| link.path).collect())
    }

    #[test]
    fn every_link_in_a_path_is_reported_with_its_location() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let root = directory.path().canonicalize()?;
        std::fs::create_dir_all(root.join("a/b"))?;
        symlink("a", root.join("one"))?;
        symlink("../one/b", root.join("a/two"))?;
        symlink("loop", root.join("loop"))?;
        let links = |path: &str| links_of(&root.join(path));
        assert_eq!(links("a/b")?, Vec::<PathBuf>::new());
        assert_eq!(links("one/b")?, [root.join("one")]);
        assert_eq!(links("one/two")?, ["one", "a/two", "one"].map(|name| root.join(name)));
        assert_eq!(links("a/b/../two/.")?, ["a/two", "one"].map(|name| root.join(name)));
        assert!(links("loop").is_err());
        assert!(links("missing").is_err());
        Ok(())
    }

    #[test]
    fn a_directory_that_was_moved_meanwhile_is_not_left_upwards() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let root = directory.path().canonicalize()?;
        std::fs::create_dir_all(root.join("a/b"))?;
        std::fs::create_dir_all(root.join("other"))?;
        let mut walked = Walked::begin()?;
        assert_eq!(walked.follow(&root.join("a/b/.."))?.host, root.join("a"));
        std::fs::rename(root.join("a/b"), root.join("other/b"))?;
        assert_eq!(walked.follow(&root.join("a/b/..")).map(|_| ()), Err(Errno::ESTALE));
        Ok(())
    }
}
