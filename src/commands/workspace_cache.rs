//! The cache that the cells of one workspace share across calls and starts: a directory of cofferdam's own, which no
//! program of the host reads.
//!
//! Cells write to it as they like. It is made, measured and emptied from held directories, following no link.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, open, openat};
use nix::sys::stat::{Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use sha2::{Digest, Sha256};

use super::run_arguments::MountRequest;
use cell::mediate::names::CACHES;
use cell::removal::{opened_up, put_aside, remove_all};
use cell::{c_path, errno_of};
use config::server::Config;
use model::accounts;
use model::job::Access;
use model::receipt::Tier;
use profile::toolchains::ToolchainChoice;

/// Its path in a cell.
const PLACE: &str = "/cache";
/// Beginning of names that are to be removed.
const GONE: &str = ".gone-";
/// Files that are counted: with more it is emptied.
const MOST_FILES: u32 = 1_000_000;
/// Levels of directories that are measured: with more it is emptied.
const DEEPEST: u8 = 100;
/// Time after which it is measured again.
const MEASURED: Duration = Duration::from_secs(3600);
/// Directory of Gradle in the cache, and in that the one that the host's distributions are shown at.
const GRADLE: [&str; 2] = ["gradle", "wrapper"];
const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// A cache, kept from being emptied until this process ends.
#[derive(Debug)]
pub(super) struct WorkspaceCache {
    pub mounts: Vec<MountRequest>,
    pub env: BTreeMap<String, String>,
    /// Never unlocked by a call, which main may not make any more.
    _lock: ManuallyDrop<Flock<File>>,
}

impl WorkspaceCache {
    /// Makes the cache of the workspace among `mounts`, where cells may write to that and have tool chains, by the choice
    /// that was typed or else by the configuration.
    pub(super) fn of(
        typed: Option<&ToolchainChoice>,
        config: &Config,
        mounts: &[MountRequest],
        tier: Option<Tier>,
    ) -> Option<Self> {
        let choice = typed.unwrap_or(&config.toolchains.value);
        let most = config.cache.value;
        let is_workspace = |mount: &&MountRequest| {
            mount.cell == Path::new("/workspace") && mount.access != Access::ReadOnly
        };
        let workspace = mounts.iter().find(is_workspace)?;
        let is_taken = mounts.iter().any(|mount| mount.cell.starts_with(PLACE));
        let is_bare = tier == Some(Tier::Bare);
        if is_bare || most == 0 || is_taken || *choice == ToolchainChoice::None {
            return None;
        }
        match Self::made(&user_caches()?, &workspace.host.canonicalize().ok()?, most, mounts) {
            Ok(cache) => Some(cache),
            Err(Errno::EXDEV) => {
                tracing::info!("this workspace has no cache: a grant for writing has the caches in it");
                None
            }
            Err(errno) => {
                tracing::info!(%errno, "this workspace has no cache");
                None
            }
        }
    }

    fn made(
        caches: &Path,
        workspace: &Path,
        most: u64,
        mounts: &[MountRequest],
    ) -> Result<Self, Errno> {
        let wrapper = mounts.iter().find(|mount| mount.host.ends_with(".gradle/wrapper"));
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(caches).map_err(|error| errno_of(&error))?;
        let mut place = caches.canonicalize().map_err(|error| errno_of(&error))?;
        let held = owned(open(&place, DIRECTORY, Mode::empty())?)?;
        let held = directory(&held, CACHES)?;
        place.push(CACHES);
        if mounts.iter().any(|mount| is_shared(mount, &place)) {
            return Err(Errno::EXDEV);
        }
        let name = name(workspace);
        place.push(&name);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let lock =
            openat(&held, format!("{name}.lock").as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let lock = match Flock::lock(File::from(lock), FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                limit(&held, &name, most, &lock)?;
                lock.relock(FlockArg::LockShared)?;
                lock
            }
            // Cells of another start have it, or a cell that was granted the user's caches keeps it from all.
            Err((file, _)) => {
                Flock::lock(file, FlockArg::LockSharedNonblock).map_err(|(_, errno)| errno)?
            }
        };
        let cache = for_cells(&held, &name)?;
        let mut mounts =
            vec![MountRequest { host: place, cell: PathBuf::from(PLACE), access: Access::Cache }];
        let [gradle, shown] = GRADLE;
        // Of these, CARGO_HOME and GOMODCACHE hold downloads where cells do not have the operator's.
        let variables = [
            ("XDG_CACHE_HOME", ""),
            ("npm_config_cache", "/npm"),
            ("GRADLE_USER_HOME", "/gradle"),
            ("CARGO_HOME", "/cargo"),
            ("GOMODCACHE", "/go-mod"),
        ];
        let env: BTreeMap<String, String> = variables
            .map(|(name, below)| (name.to_owned(), format!("{PLACE}{below}")))
            .into_iter()
            .collect();
        if let Some(wrapper) = wrapper {
            in_cache(&in_cache(&cache, gradle)?, shown)?;
            let cell = Path::new(PLACE).join(gradle).join(shown);
            mounts.push(MountRequest { cell, ..wrapper.clone() });
        }
        Ok(Self { mounts, env, _lock: ManuallyDrop::new(lock) })
    }
}

/// Returns whether a grant in which names are guarded has the caches in it, or is one of them: in the cache no name is.
fn is_shared(mount: &MountRequest, caches: &Path) -> bool {
    let host = mount.host.canonicalize();
    mount.access == Access::ReadWrite
        && host.is_ok_and(|host| caches.starts_with(&host) || host.starts_with(caches))
}

/// Returns the directory of the user's caches (XDG Base Directory Specification).
fn user_caches() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    named.or_else(|| Some(accounts::home()?.join(".cache")))
}

/// Returns the name of a workspace's cache: its own, as far as it has usual letters, and a part that no other has.
fn name(workspace: &Path) -> String {
    let own = workspace.file_name().unwrap_or(OsStr::new("root"));
    let usual = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-' || *byte == b'_';
    let own = own.as_bytes().iter().take(40);
    let own: String = own.map(|byte| if usual(byte) { char::from(*byte) } else { '_' }).collect();
    let digest = Sha256::digest(workspace.as_os_str().as_bytes());
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{own}-{digest}")
}

/// Makes and holds a directory. A cell may have made something else there, where its user granted the user's caches.
fn directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    owned(openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Makes and holds a directory that cells write to: their user's alone, whatever mode they gave it.
fn for_cells(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    owned(opened_up(parent, &c_path(Path::new(name))?)?)
}

/// The same within the cache, in place of a file or link that a cell has made there.
fn in_cache(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::EISDIR) => for_cells(parent, name),
        Err(errno) => Err(errno),
    }
}

/// Refuses a directory that others can change.
fn owned(held: OwnedFd) -> Result<OwnedFd, Errno> {
    let found = fstat(&held)?;
    let is_own = found.st_uid == nix::unistd::geteuid().as_raw() && found.st_mode & 0o022 == 0;
    if is_own { Ok(held) } else { Err(Errno::EPERM) }
}

/// Empties the cache if a cell has made it unusable, or if it is larger than it may be, which is looked at once in a while.
/// `lock` tells when it was measured.
fn limit(held: &OwnedFd, name: &str, most: u64, lock: &File) -> Result<(), Errno> {
    let measured = lock.metadata().and_then(|found| found.modified());
    let age = measured.ok().and_then(|time| time.elapsed().ok());
    let is_new = lock.metadata().is_ok_and(|found| found.len() == 0);
    let is_due = is_new || age.is_none_or(|age| age >= MEASURED);
    let is_usable = for_cells(held, name).is_ok();
    if is_usable && !is_due {
        return Ok(());
    }
    if !is_usable || is_larger(held, name, most) {
        put_aside((held, &c_path(Path::new(name))?), (held, GONE), &mut 0)?;
        let why = if is_usable { "too large" } else { "not usable" };
        eprintln!("cofferdam: the cache of this workspace is emptied: it is {why}");
    }
    // Of an earlier start too, that was ended meanwhile.
    remove_all(held, GONE)?;
    lock.set_len(1)
        .and_then(|()| lock.set_modified(SystemTime::now()))
        .map_err(|error| errno_of(&error))
}

/// Returns whether a directory has more bytes, files or levels than it may, or cannot be measured.
fn is_larger(parent: &OwnedFd, name: &str, most: u64) -> bool {
    let mut left = Left { bytes: most, files: MOST_FILES };
    let opened = Dir::openat(parent, name, DIRECTORY, Mode::empty());
    opened.and_then(|directory| left.take(directory, DEEPEST)).is_err()
}

/// Part of the allowance that has not been counted yet.
struct Left {
    bytes: u64,
    files: u32,
}

impl Left {
    /// Counts all in a directory. It holds one directory for each level and no path, so that a cell cannot make it large.
    fn take(&mut self, mut directory: Dir, levels: u8) -> Result<(), Errno> {
        let levels = levels.checked_sub(1).ok_or(Errno::EFBIG)?;
        let held = directory.as_fd().try_clone_to_owned().map_err(|error| errno_of(&error))?;
        for entry in directory.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = fstatat(&held, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            let bytes = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
            self.bytes = self.bytes.checked_sub(bytes).ok_or(Errno::EFBIG)?;
            self.files = self.files.checked_sub(1).ok_or(Errno::EFBIG)?;
            if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
                self.take(Dir::openat(&held, name, DIRECTORY, Mode::empty())?, levels)?;
            }
        }
        Ok(())
    }
}
