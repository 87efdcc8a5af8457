//! The cache that the cells of one workspace share across calls and starts: a directory of cofferdam's own, which no
//! program of the host reads.
//!
//! Cells write to it as they like. It is made and put aside from held directories, following no link; `cache_upkeep`
//! measures it and removes what was put aside.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::mem::ManuallyDrop;
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
use super::run_arguments::MountRequest;
use cell::mediate::names::CACHES;
use cell::removal::opened_up;
use cell::{c_path, errno_of};
use config::server::Config;
use model::accounts;
use model::job::Access;
use model::receipt::Tier;
use profile::toolchains::ToolchainChoice;

/// Its path in a cell.
const PLACE: &str = "/cache";
/// Time after which it is measured again.
const MEASURED: Duration = Duration::from_secs(3600);
/// Variables that lead package managers and compilers to the cache, each with a path below it. Without them what they
/// download is in the cell's home or `/tmp`, which are memory and end with the cell. Those that heed `XDG_CACHE_HOME`
/// need no other: pip, uv, sccache, Composer, Playwright, Cypress, Hugging Face.
const VARIABLES: &[(&str, &str)] = &[
    ("XDG_CACHE_HOME", ""),
    ("BUN_INSTALL_CACHE_DIR", "/bun"),
    // This one and GOMODCACHE hold downloads where cells do not have the operator's.
    ("CARGO_HOME", "/cargo"),
    ("CCACHE_DIR", "/ccache"),
    ("DENO_DIR", "/deno"),
    ("GOMODCACHE", "/go-mod"),
    ("GRADLE_USER_HOME", "/gradle"),
    ("NUGET_PACKAGES", "/nuget"),
    // pnpm's store is below it, up to version 10. The name `npm_config_store_dir` would have npm warn at each call.
    ("PNPM_HOME", "/pnpm"),
    ("POETRY_CACHE_DIR", "/poetry"),
    ("PRE_COMMIT_HOME", "/pre-commit"),
    ("PUB_CACHE", "/pub"),
    ("YARN_CACHE_FOLDER", "/yarn"),
    // Of Yarn 2 and later, whose cache is below it.
    ("YARN_GLOBAL_FOLDER", "/yarn-global"),
    ("npm_config_cache", "/npm"),
    // Of pnpm 11 and later.
    ("pnpm_config_store_dir", "/pnpm/store"),
];
/// End of the path of the operator's Maven repository.
const MAVEN_REPOSITORY: &str = ".m2/repository";
/// Directory of Gradle in the cache, and in that the one that the host's distributions are shown at.
const GRADLE: [&str; 2] = ["gradle", "wrapper"];

/// A cache, kept from being emptied until this process ends.
#[derive(Debug)]
pub(super) struct WorkspaceCache {
    pub mounts: Vec<MountRequest>,
    pub env: BTreeMap<String, String>,
    /// Measuring and removing that is due.
    pub upkeep: Option<CacheUpkeep>,
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
        let workspace = workspace.host.canonicalize().ok()?;
        match Self::made(&user_caches()?, &workspace, most, mounts) {
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

    fn made(
        caches: &Path,
        workspace: &Path,
        most: u64,
        granted: &[MountRequest],
    ) -> Result<Self, Errno> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(caches).map_err(|error| errno_of(&error))?;
        let mut place = caches.canonicalize().map_err(|error| errno_of(&error))?;
        let held = owned(open(&place, DIRECTORY, Mode::empty())?)?;
        let held = directory(&held, CACHES)?;
        place.push(CACHES);
        if granted.iter().any(|mount| is_shared(mount, &place)) {
            return Err(Errno::EXDEV);
        }
        let name = name(workspace);
        let caches = place.clone();
        place.push(&name);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let lock = openat(&held, lock_name(&name).as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let mut unmeasured = None;
        let lock = match Flock::lock(File::from(lock), FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                if limit(&held, &name, &lock)? {
                    unmeasured = Some(Unmeasured { name: name.clone(), most });
                }
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
        let env = variables(granted);
        let wrapper = granted.iter().find(|mount| mount.host.ends_with(".gradle/wrapper"));
        if let Some(wrapper) = wrapper {
            in_cache(&in_cache(&cache, gradle)?, shown)?;
            let cell = Path::new(PLACE).join(gradle).join(shown);
            mounts.push(MountRequest { cell, ..wrapper.clone() });
        }
        let upkeep = CacheUpkeep::due(&held, caches, unmeasured);
        Ok(Self { mounts, env, upkeep, _lock: ManuallyDrop::new(lock) })
    }
}

/// Returns whether a grant in which names are guarded has the caches in it, or is one of them: in the cache no name is.
fn is_shared(mount: &MountRequest, caches: &Path) -> bool {
    let host = mount.host.canonicalize();
    mount.access == Access::ReadWrite
        && host.is_ok_and(|host| caches.starts_with(&host) || host.starts_with(caches))
}

/// Returns the variables of cells that have the cache.
fn variables(mounts: &[MountRequest]) -> BTreeMap<String, String> {
    let below = |(name, path): &(&str, &str)| ((*name).to_owned(), format!("{PLACE}{path}"));
    let mut env: BTreeMap<String, String> = VARIABLES.iter().map(below).collect();
    let repository = mounts.iter().find(|mount| mount.cell.ends_with(MAVEN_REPOSITORY));
    let options = maven_options(repository.map(|mount| mount.cell.as_path()));
    env.extend(options.map(|options| ("MAVEN_ARGS".to_owned(), options)));
    env
}

/// Returns the options of Maven 3.9 and later, which has no variable for its repository: `granted` is searched too. A shell
/// splits them at spaces, so a path with one leaves the repository where it is.
fn maven_options(granted: Option<&Path>) -> Option<String> {
    let own = format!("-Dmaven.repo.local={PLACE}/maven");
    let Some(granted) = granted else { return Some(own) };
    let granted = granted.to_str()?;
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    granted.bytes().all(usual).then(|| format!("{own} -Dmaven.repo.local.tail={granted}"))
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

/// Empties the cache if a cell has made it unusable, or if it was too large when it was measured. Returns whether it is
/// to be measured, which is done once in a while. `lock` says when it was.
fn limit(held: &OwnedFd, name: &str, lock: &File) -> Result<bool, Errno> {
    let found = lock.metadata().map_err(|error| errno_of(&error))?;
    let measured = Measured::of(found.len());
    let is_usable = for_cells(held, name).is_ok();
    if is_usable && measured != Measured::TooLarge {
        let age = found.modified().ok().and_then(|time| time.elapsed().ok());
        return Ok(measured == Measured::Never || age.is_none_or(|age| age >= MEASURED));
    }
    put_away(held, name)?;
    let why = if is_usable { "too large" } else { "not usable" };
    eprintln!("cofferdam: the cache of this workspace is emptied: it is {why}");
    Measured::Fits.note(lock)?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maven_searches_a_granted_repository_behind_the_cache() {
        let options = |path: &str| maven_options(Some(Path::new(path)));
        let own = "-Dmaven.repo.local=/cache/maven";
        assert_eq!(maven_options(None).as_deref(), Some(own));
        let tail = " -Dmaven.repo.local.tail=/home/me/.m2/repository";
        assert_eq!(options("/home/me/.m2/repository"), Some(format!("{own}{tail}")));
        assert_eq!(options("/home/my self/.m2/repository"), None);
        assert_eq!(options("/home/$(x)/.m2/repository"), None);
    }
}
