//! Starts the supervisor of the tier `landlock+seccomp`: an unprivileged process in the host's
//! namespaces.
//!
//! Supervisor and cells share one uid and have no capabilities. The uid is the operator's; if root
//! starts it, one that no other process has. Landlock confines the cells: see `cell::bare`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, umask};
use syscalls::Sysno;

use super::error::{DuringBoot, StepError};
use super::filter;
use super::inherited::{Inherited, Prepared};
use super::requirements::{can_hold, unusable, usable};
use super::streams::silence;
use crate::cells::key::{Key, Unusable};
use crate::rootfs::detached::DEVICES;
use crate::rootfs::error::{GrantError, TemplateError};
use crate::rootfs::granted::Granted;
use crate::rootfs::grants::{KeyGrant, PathGrant};
use crate::rootfs::program;
use cell::bare::store::{self, Store};
use cell::bare::{BareGround, Domain};
use cell::ids::CellIds;
use cell::landlock::Use;
use cell::seccomp::{self, Recording};
use cell::{Clocks, Design, ProcKind, Shared, c_path, caps, fds, ids, landlock};
use model::job::Access;
use model::profile::tier::LANDLOCK_ABI;
use model::profile::{HostPath, PathKind, Presence, Profile};
use model::receipt::MemoryHold;
use sys::fork::fork;
use sys::lookup::Follow;
use sys::process::{self, Dumpable, Side};
use sys::socket;

/// Confines this process and prepares the keys, after main has admitted it.
pub(super) fn boot(
    inherited: &Inherited,
    prepared: &Prepared,
) -> Result<(Vec<Key>, Shared), StepError> {
    nix::unistd::setsid().map(drop).during("starting a session")?;
    if let Some(id) = prepared.id {
        // Before the ids, which give up the right to do this.
        caps::drop_bounding(&[]).during("dropping capabilities")?;
        ids::become_id(id, inherited.supplementary).during("changing ids")?;
    }
    caps::clear_current().during("dropping capabilities")?;
    process::set_dumpable(Dumpable::No).during("becoming untraceable")?;
    // No signal on main's death: the end of the link shows it, and this process must end its cells
    // first.
    if !process::is_open(&inherited.link).during("looking at the link")? {
        return Err(StepError("looking at the link".to_owned(), Errno::EPIPE));
    }
    process::set_no_new_privs().during("setting no_new_privs")?;
    silence().during("closing the operator's streams")?;
    nix::unistd::chdir("/").during("leaving the directory it was started in")?;
    let (sweeper, released) = sweeper(&prepared.store).during("making the sweeper")?;
    nix::sys::prctl::set_child_subreaper(true).during("adopting orphans")?;
    umask(Mode::from_bits_truncate(0o077));
    let store = Store::new(prepared.store.clone(), released).map(Rc::new);
    let store = store.during("making the store of private directories")?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let proc = open("/proc", flags, Mode::empty()).during("opening /proc")?;
    let landlock_abi = landlock::kernel_abi();
    let keys = keys(inherited, &store, landlock_abi);
    let domain = match landlock_abi >= LANDLOCK_ABI {
        true => Some(Domain::enter(landlock_abi, sweeper).during("holding signals")?),
        // Without this no key is usable, so that no cell is made.
        false => None,
    };
    let shared = Shared {
        init_filter: seccomp::init_filter(Recording::Off, &[])
            .during("compiling the filter of inits")?,
        landlock_abi,
        memory: MemoryHold::BestEffort,
        socket_bytes: socket::default_buffer_bytes(&inherited.link)
            .during("asking what a socket holds")?,
        open_files: super::open_files::share(inherited.caps.cells),
        proc,
        proc_kind: ProcKind::Own,
        clocks: Clocks::Host,
        cores: inherited.cores,
        domain,
        record: None,
    };
    filter::load(&keys, Recording::Off).during("confining the supervisor")?;
    Ok((keys, shared))
}

/// Starts the process that removes released directories. It is outside the signal domain, and
/// outlives this process until it is done.
fn sweeper(path: &str) -> Result<(i32, OwnedFd), Errno> {
    let (released, announce) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    match fork()? {
        Side::Parent(child) => Ok((child.pid, announce)),
        Side::Child => {
            // Closes the link too: its end must show when main ends.
            let swept = fds::keep_only(std::iter::once(released.as_fd()))
                .and_then(|()| store::sweep(path, &released));
            process::exit_now(i32::from(swept.is_err()));
        }
    }
}

fn keys(inherited: &Inherited, store: &Rc<Store>, landlock_abi: u32) -> Vec<Key> {
    let mut keys = Vec::new();
    for (profile, grants) in inherited.profiles.iter().zip(&inherited.grants) {
        for grant in grants {
            let design = usable(profile, landlock_abi, false, inherited.cores)
                .and_then(|()| can_hold(profile, &inherited.cgroups))
                .and_then(|()| design(profile, grant, store, landlock_abi));
            let profile = profile.name.clone();
            let workspace = grant.workspace;
            keys.push(Key { profile, workspace, design });
        }
    }
    keys
}

fn design(
    profile: &Profile,
    grant: &KeyGrant,
    store: &Rc<Store>,
    landlock_abi: u32,
) -> Result<Design, Unusable> {
    let system = |errno: Errno| Unusable { why: errno.to_string(), missing_program: None };
    if !grant.sockets.is_empty() {
        let reason = "a socket of the host takes a mount, and the tier landlock+seccomp has none";
        return Err(Unusable { why: reason.to_owned(), missing_program: None });
    }
    let rules = rules(profile, &grant.directories).map_err(|error| unusable(profile, &error))?;
    let verdicts = seccomp::payload_verdicts(profile, MemoryHold::BestEffort);
    let directory = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let hidden = store.directory().try_clone();
    Ok(Design {
        profile: profile.clone(),
        workspace: grant.workspace,
        ground: cell::Ground::Bare(BareGround { store: Rc::clone(store) }),
        hidden: hidden.map_err(|error| system(cell::errno_of(&error)))?,
        devices: open("/dev", directory, Mode::empty()).map_err(system)?,
        mediation: None,
        writable: Vec::new(),
        notes: Vec::new(),
        // The ids of the whole supervisor, which has taken them on: there are no maps.
        ids: CellIds::Operator,
        landlock: landlock::LandlockPlan {
            abi: landlock_abi,
            rules,
            // These paths have no links. A cell of another server may have put one into a grant
            // since.
            links: Follow::Nothing,
            network: profile.egress.class,
        },
        filter: seccomp::payload_filter(&verdicts, &[]).map_err(system)?,
        recorded: Vec::new(),
        loopback: None,
        network: None,
        // renameat is the supervisor's: it renames private directories to release them.
        reuse: None,
        allowed: seccomp::allowed(&verdicts).chain([seccomp::number(Sysno::renameat)]).collect(),
    })
}

type Rules = Vec<(CString, Use)>;

/// Returns the files of the host that a cell may open: paths of the profile, devices, and
/// directories that the operator granted for reading.
fn rules(profile: &Profile, grants: &[PathGrant]) -> Result<Rules, TemplateError> {
    let mut readable: BTreeMap<PathBuf, Use> = BTreeMap::new();
    for path in &profile.paths {
        for path in resolved(path)? {
            readable.insert(path, Use::Read);
        }
    }
    for PathGrant { granted, .. } in grants {
        let Granted { host, cell, access, .. } = granted;
        if *access != Access::ReadOnly || cell != host {
            return Err(TemplateError::Path { path: cell.clone(), errno: Errno::EOPNOTSUPP });
        }
        granted.hold().map_err(|errno| GrantError::held(host, errno))?;
        readable.insert(host.clone(), Use::Read);
    }
    for name in DEVICES {
        let path = Path::new("/dev").join(name);
        let access = landlock::device(&path, MemoryHold::BestEffort);
        readable.insert(path, access);
    }
    let named = |entry: (PathBuf, Use)| {
        let (path, access) = entry;
        c_path(&path)
            .map(|name| (name, access))
            .map_err(|errno| TemplateError::Path { path, errno })
    };
    readable.into_iter().map(named).collect()
}

/// Resolves the links in a path of a profile. For a program, adds the files that it loads at its
/// start.
fn resolved(path: &HostPath) -> Result<Vec<PathBuf>, TemplateError> {
    let here = |errno| TemplateError::Path { path: path.host.clone(), errno };
    if path.host != path.cell {
        // The tier shows files at their own paths alone.
        return match path.presence {
            Presence::Optional => Ok(Vec::new()),
            Presence::Required => Err(here(Errno::EOPNOTSUPP)),
        };
    }
    let target = match path.host.canonicalize() {
        Ok(target) => target,
        Err(_) if path.presence == Presence::Optional => return Ok(Vec::new()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(TemplateError::Missing { path: path.host.clone() });
        }
        Err(error) => return Err(here(cell::errno_of(&error))),
    };
    let mut all = vec![target];
    if path.kind == PathKind::Program {
        let failed = |error: std::io::Error| here(cell::errno_of(&error));
        for library in program::libraries(&path.host).map_err(failed)? {
            all.push(library.canonicalize().map_err(failed)?);
        }
    }
    Ok(all)
}
