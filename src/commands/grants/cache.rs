//! The cache that the cells of one workspace share across calls and starts: a directory that no program of the host
//! reads.
//!
//! Cells write to it without restriction. So it is created and moved away by directory descriptors, without following
//! links. [`cache_upkeep`](super::cache_upkeep) measures it, and removes caches that were moved away.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, open, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use sha2::{Digest, Sha256};

use super::cache_upkeep::{
    CacheUpkeep, DIRECTORY, Measured, Unmeasured, lock_name, owned, put_away,
};
use super::request::{MountRequest, WORKSPACE};
use cell::mediate::names::CACHES;
use cell::removal::open_with_access;
use cell::{c_path, errno_of};
use model::accounts;
use model::job::Access;

/// Path of the cache in a cell.
const CELL_PATH: &str = "/cache";
/// Time after which a cache is measured again.
const MEASURE_INTERVAL: Duration = Duration::from_secs(3600);
/// Variables that lead package managers and compilers to the cache, each with a path below it. Without them downloads are
/// in the cell's home or `/tmp`, which are memory and end with the cell. Programs that use `XDG_CACHE_HOME` need no other
/// variable: pip, uv, sccache, Composer, Playwright, Cypress, Hugging Face.
const VARIABLES: &[(&str, &str)] = &[
    ("XDG_CACHE_HOME", ""),
    ("BUN_INSTALL_CACHE_DIR", "/bun"),
    // CARGO_HOME and GOMODCACHE contain downloads where cells do not have the operator's directories of that name.
    ("CARGO_HOME", "/cargo"),
    ("CCACHE_DIR", "/ccache"),
    ("DENO_DIR", "/deno"),
    ("GOMODCACHE", "/go-mod"),
    ("GRADLE_USER_HOME", "/gradle"),
    ("NUGET_PACKAGES", "/nuget"),
    // Up to version 10, pnpm's store is below it. With the variable `npm_config_store_dir`, npm would warn at each call.
    ("PNPM_HOME", "/pnpm"),
    ("POETRY_CACHE_DIR", "/poetry"),
    ("PRE_COMMIT_HOME", "/pre-commit"),
    ("PUB_CACHE", "/pub"),
    ("YARN_CACHE_FOLDER", "/yarn"),
    // For Yarn 2 and later, whose cache is below it.
    ("YARN_GLOBAL_FOLDER", "/yarn-global"),
    ("npm_config_cache", "/npm"),
    // For pnpm 11 and later.
    ("pnpm_config_store_dir", "/pnpm/store"),
];
/// End of the path of the operator's Maven repository.
const MAVEN_REPOSITORY: &str = ".m2/repository";
/// Directory of Gradle in the cache, and the directory in it where cells see the host's distributions.
const GRADLE: [&str; 2] = ["gradle", "wrapper"];

/// A cache that is locked, so that it is not emptied before this process ends.
#[derive(Debug)]
pub(crate) struct WorkspaceCache {
    pub mounts: Vec<MountRequest>,
    pub env: BTreeMap<String, String>,
    /// Measuring and removing that is due.
    pub upkeep: Option<CacheUpkeep>,
}

impl WorkspaceCache {
    /// Makes the cache of the workspace among `mounts`, if cells may write to it.
    pub(crate) fn prepare(max_bytes: u64, mounts: &[MountRequest]) -> Option<Self> {
        let is_workspace = |mount: &&MountRequest| {
            mount.cell == Path::new(WORKSPACE) && mount.access != Access::ReadOnly
        };
        let workspace = mounts.iter().find(is_workspace)?;
        let is_taken = mounts.iter().any(|mount| mount.cell.starts_with(CELL_PATH));
        if max_bytes == 0 || is_taken {
            return None;
        }
        let workspace = workspace.host.canonicalize().ok()?;
        match Self::create(&user_caches()?, &workspace, max_bytes, mounts) {
            Ok(cache) => Some(cache),
            Err(Errno::EXDEV) => {
                tracing::info!(
                    "this workspace has no cache: a grant for writing has the caches in it"
                );
                None
            }
            Err(errno) => {
                tracing::info!(%errno, "this workspace has no cache");
                None
            }
        }
    }

    fn create(
        user_caches: &Path,
        workspace: &Path,
        max_bytes: u64,
        granted: &[MountRequest],
    ) -> Result<Self, Errno> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(user_caches).map_err(|error| errno_of(&error))?;
        let user_caches = user_caches.canonicalize().map_err(|error| errno_of(&error))?;
        let directory = owned(open(&user_caches, DIRECTORY, Mode::empty())?)?;
        let directory = subdirectory(&directory, CACHES)?;
        let caches = user_caches.join(CACHES);
        if granted.iter().any(|mount| is_shared(mount, &caches)) {
            return Err(Errno::EXDEV);
        }
        let name = name(workspace);
        let host = caches.join(&name);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let lock = openat(&directory, lock_name(&name).as_str(), flags, mode)?;
        let mut unmeasured = None;
        let lock = match Flock::lock(File::from(lock), FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                if empty_if_unfit(&directory, &name, &lock)? {
                    unmeasured = Some(Unmeasured { name: name.clone(), max_bytes });
                }
                lock.relock(FlockArg::LockShared)?;
                lock
            }
            // Cells of another start use the cache, or a cell with a grant of the user's caches holds the lock.
            Err((file, _)) => {
                Flock::lock(file, FlockArg::LockSharedNonblock).map_err(|(_, errno)| errno)?
            }
        };
        let cache = for_cells(&directory, &name)?;
        let cell = PathBuf::from(CELL_PATH);
        let mut mounts = vec![MountRequest { host, cell, access: Access::Cache }];
        let [gradle, distributions] = GRADLE;
        let env = variables(granted);
        let wrapper = granted.iter().find(|mount| mount.host.ends_with(".gradle/wrapper"));
        if let Some(wrapper) = wrapper {
            in_cache(&in_cache(&cache, gradle)?, distributions)?;
            let cell = Path::new(CELL_PATH).join(gradle).join(distributions);
            mounts.push(MountRequest { cell, ..wrapper.clone() });
        }
        let upkeep = CacheUpkeep::due(&directory, caches, unmeasured);
        // Never dropped: the filter of the confined process refuses flock(2), by which a drop unlocks.
        std::mem::forget(lock);
        Ok(Self { mounts, env, upkeep })
    }
}

/// Returns true if a grant with guarded names contains the caches, or lies in them: names in the cache are not guarded.
fn is_shared(mount: &MountRequest, caches: &Path) -> bool {
    // First: resolving a path takes a system call for each part of it, and tool chains have many.
    let is_guarded = matches!(mount.access, Access::ReadWrite | Access::Repository);
    let touches = |host: PathBuf| caches.starts_with(&host) || host.starts_with(caches);
    is_guarded && mount.host.canonicalize().is_ok_and(touches)
}

/// Returns the variables of cells that have the cache.
fn variables(mounts: &[MountRequest]) -> BTreeMap<String, String> {
    let below = |(name, path): &(&str, &str)| ((*name).to_owned(), format!("{CELL_PATH}{path}"));
    let mut env: BTreeMap<String, String> = VARIABLES.iter().map(below).collect();
    let repository = mounts.iter().find(|mount| mount.cell.ends_with(MAVEN_REPOSITORY));
    let options = maven_options(repository.map(|mount| mount.cell.as_path()));
    env.extend(options.map(|options| ("MAVEN_ARGS".to_owned(), options)));
    env
}

/// Returns the options of Maven 3.9 and later, which has no variable for its repository. Maven searches the `granted`
/// repository too. A shell splits the options at spaces, so a path with a space leaves the repository where it is.
fn maven_options(granted: Option<&Path>) -> Option<String> {
    let local = format!("-Dmaven.repo.local={CELL_PATH}/maven");
    let Some(granted) = granted else { return Some(local) };
    let granted = granted.to_str()?;
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    granted.bytes().all(usual).then(|| format!("{local} -Dmaven.repo.local.tail={granted}"))
}

/// Returns the directory of the user's caches (XDG Base Directory Specification).
fn user_caches() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    named.or_else(|| Some(accounts::home()?.join(".cache")))
}

/// Returns the name of a workspace's cache: the workspace's name in plain characters, and a hash of the whole path.
fn name(workspace: &Path) -> String {
    let file_name = workspace.file_name().unwrap_or(OsStr::new("root"));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let bytes = file_name.as_bytes().iter().copied().take(40);
    let label: String =
        bytes.map(|byte| if is_plain(byte) { char::from(byte) } else { '_' }).collect();
    let digest = Sha256::digest(workspace.as_os_str().as_bytes());
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{label}-{digest}")
}

/// Creates and opens a directory. Refuses anything else of this name: a cell with a grant of the user's caches may have
/// made it.
fn subdirectory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    owned(openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Creates and opens a directory that cells write to. They may have changed its mode, which is set to 0700 again.
fn for_cells(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    owned(open_with_access(parent, &c_path(Path::new(name))?)?)
}

/// Creates and opens a directory in the cache, in place of a file or link that a cell has made there.
fn in_cache(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::EISDIR) => for_cells(parent, name),
        Err(errno) => Err(errno),
    }
}

/// Empties the cache if a cell has made it unusable, or if it was too large when it was measured. Returns true if it is
/// to be measured again. The last result and its time are those of the file `lock`.
fn empty_if_unfit(caches: &OwnedFd, name: &str, lock: &File) -> Result<bool, Errno> {
    let status = lock.metadata().map_err(|error| errno_of(&error))?;
    let measured = Measured::from_length(status.len());
    let is_usable = for_cells(caches, name).is_ok();
    if is_usable && measured != Measured::TooLarge {
        let age = status.modified().ok().and_then(|time| time.elapsed().ok());
        return Ok(measured == Measured::Never || age.is_none_or(|age| age >= MEASURE_INTERVAL));
    }
    put_away(caches, name)?;
    let reason = if is_usable { "too large" } else { "not usable" };
    eprintln!("cofferdam: the cache of this workspace is emptied: it is {reason}");
    Measured::Fits.store(lock)?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maven_searches_a_granted_repository_after_the_cache() {
        let options = |path: &str| maven_options(Some(Path::new(path)));
        let local = "-Dmaven.repo.local=/cache/maven";
        assert_eq!(maven_options(None).as_deref(), Some(local));
        let tail = " -Dmaven.repo.local.tail=/home/me/.m2/repository";
        assert_eq!(options("/home/me/.m2/repository"), Some(format!("{local}{tail}")));
        assert_eq!(options("/home/my self/.m2/repository"), None);
        assert_eq!(options("/home/$(x)/.m2/repository"), None);
    }
}
