//! Starts the supervisor: every step from the clone to the first frame on the link.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use caps::Capability;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};

use super::bare;
use super::clocks;
use super::error::{DuringBoot, StepError};
use super::filter;
use super::inherited::Inherited;
use super::requirements::{can_hold, unusable, usable};
use super::scope;
use super::streams::silence;
use super::subordinate::{Ids, SUPERVISOR};
use crate::cells::key::{Key, Unusable};
use crate::event_loop::serve;
use crate::event_loop::supervisor::{Parts, Supervisor};
use crate::rootfs::error::TemplateError;
use crate::rootfs::grants::{self, KeyGrant};
use crate::rootfs::late::EarlyReader;
use crate::rootfs::layers;
use crate::rootfs::packages::PackageFiles;
use crate::rootfs::slot_mounts;
use crate::rootfs::synthetic::HOST_NAME;
use crate::rootfs::template::{Namespace, Template, TemplateBuilder};
use cell::ids::CellIds;
use cell::kept_network::Reuse;
use cell::mediate::calls::{self, CallGroup};
use cell::mediate::{Belongings, GuardedNames, Mediation, sockets};
use cell::network::{LoopbackPlan, NetworkPlan};
use cell::seccomp::Recording;
use cell::slot::Slot;
use cell::{
    Design, Ground, ProcKind, Root, Shared, ids, landlock, limits, mounts, record, seccomp,
};
use model::job::Workspace;
use model::profile::condition::Verdict;
use model::profile::{Family, ProcView, Profile};
use model::receipt::MemoryHold;
use model::wire::{self, Event, Ready, Unable};
use sys::lookup::Follow;
use sys::mount::{attribute, new_filesystem};
use sys::process::{self, Dumpable};
use sys::signals;
use sys::socket::{self, PacketWait};

/// The socket with the message from main that lets the supervisor begin, and then with the mounts of grants.
#[derive(Debug)]
pub(crate) struct GoSignal {
    pub wait: OwnedFd,
}

/// Messages of main once the maps are written: with the operator's ids only, or with extra ids for
/// the cells of an ordinary user.
pub(crate) const OPERATOR_IDS: &[u8] = b"go";
pub(crate) const CELL_IDS: &[u8] = b"own";

/// Capabilities that the supervisor keeps in its namespace, to clone, map, measure and kill cells
/// and to enter templates (capabilities(7)).
const KEPT: [Capability; 7] = [
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SETUID,
    Capability::CAP_SETGID,
    // Maps the operator's id, which is 0 in this namespace, into a cell.
    Capability::CAP_SETFCAP,
    // Enters a mount namespace with setns(2).
    Capability::CAP_SYS_CHROOT,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_KILL,
];

/// Runs the supervisor. Never returns.
pub(crate) fn run(inherited: Inherited, go_signal: GoSignal) -> ! {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let link = inherited.link.try_clone();
        match boot(inherited, &go_signal) {
            Ok(mut supervisor) => serve::run(&mut supervisor),
            Err(StepError(step, errno)) => {
                let unable = Event::Unable(Unable { step, errno: cell::report::raw(errno) });
                // Only the front end reads this, and it sees the end of the link in any case.
                if let (Ok(link), Ok(frame)) = (link, wire::encode(&unable)) {
                    // If this fails, the front end sees the link close without a frame, and says so.
                    socket::send(link, &frame, &[]).unwrap_or_default();
                }
            }
        }
    }));
    process::exit_now(i32::from(outcome.is_err()));
}

fn boot(mut inherited: Inherited, go_signal: &GoSignal) -> Result<Supervisor, StepError> {
    if inherited.bare.is_none() {
        // Before any time is taken, and while this process still owns its files in /proc.
        inherited.clocks = clocks::begin()?;
    }
    let mut go = [0; 8];
    let received =
        socket::receive(&go_signal.wait, &mut go, PacketWait::Yes).during("waiting for main")?;
    if received.bytes == 0 {
        return Err(StepError("waiting for main".to_owned(), Errno::EPIPE));
    }
    if go.get(..received.bytes) == Some(CELL_IDS) {
        inherited.add_cell_ids();
    }
    inherited.pages.clear("cofferdam");
    // Set once for the programs of all cells.
    signals::default_signals().during("giving signals their default effect")?;
    let (keys, shared) = match inherited.bare.clone() {
        None => boot_with_namespaces(&mut inherited, go_signal)?,
        Some(prepared) => bare::boot(&inherited, &prepared)?,
    };
    greet(inherited, keys, shared)
}

/// Takes the steps of the tier with namespaces.
fn boot_with_namespaces(
    inherited: &mut Inherited,
    go_signal: &GoSignal,
) -> Result<(Vec<Key>, Shared), StepError> {
    // A new session: no signal from the operator's terminal reaches the supervisor or a cell.
    nix::unistd::setsid().map(drop).during("starting a session")?;
    match inherited.ids {
        Ids::All(_) => ids::become_id(0, inherited.supplementary),
        Ids::ByGrant => ids::become_real(SUPERVISOR),
    }
    .during("changing ids")?;
    // After the last change of ids, which resets both.
    process::set_death_signal(Signal::SIGKILL).during("tying its life to main")?;
    process::set_dumpable(Dumpable::No).during("becoming untraceable")?;
    if !process::is_open(&inherited.link).during("looking at the link")? {
        return Err(StepError("looking at the link".to_owned(), Errno::EPIPE));
    }
    process::set_no_new_privs().during("setting no_new_privs")?;
    nix::unistd::sethostname(HOST_NAME).during("naming the host")?;
    limits::all_cells(inherited.caps.processes).during("capping processes")?;
    silence().during("closing the operator's streams")?;
    private_mounts().during("making mounts private")?;
    let packages = HeldPackages::start(inherited);
    // In the supervisor, because main would have to wait for it, and after the reader has begun. Before a cell's socket
    // exists: a socket made earlier would belong to the host's network.
    unshare(CloneFlags::CLONE_NEWNET).during("making a network namespace")?;
    let (proc, proc_kind) = procfs().during("opening /proc")?;
    let landlock_abi = landlock::kernel_abi();
    // Templates are made for cells with other uids, which must be able to read them whatever the
    // operator's umask is.
    let operator_umask = umask(Mode::from_bits_truncate(0o022));
    slot_mounts::receive(grants::slot_mounts_mut(&mut inherited.grants), &go_signal.wait)
        .during("mounting the grants for each cell")?;
    let layers = std::mem::take(&mut inherited.layers);
    layers::mount(layers, inherited.grants.iter_mut().flatten()).map_err(|(path, errno)| {
        StepError(format!("showing `{}` through a layer", path.display()), errno)
    })?;
    let keys = keys(inherited, packages, &proc, proc_kind, landlock_abi)?;
    let memory = inherited.cgroups.hold();
    if inherited.ids == Ids::ByGrant && !keys.iter().any(Key::has_the_operators_ids) {
        nix::unistd::setgroups(&[]).during("dropping supplementary groups")?;
    }
    // Files that cells make in a granted directory are as private as the operator's own. The
    // owner's bits are cleared from the mask, as a cell must keep its access.
    umask(operator_umask & Mode::from_bits_truncate(0o077));
    let recording = recording(inherited);
    let shared = Shared {
        init_filter: seccomp::init_filter(recording, &[])
            .during("compiling the filter of inits")?,
        landlock_abi,
        memory,
        socket_bytes: socket::default_buffer_bytes(&inherited.link)
            .during("asking what a socket holds")?,
        open_files: super::open_files::share(inherited.caps.cells),
        proc,
        proc_kind,
        clocks: inherited.clocks,
        cores: inherited.cores,
        record: inherited.record.clone(),
        domain: None,
    };
    confine(&keys, recording).during("confining the supervisor")?;
    Ok((keys, shared))
}

/// Reports to the front end that the supervisor is up. If a call is known to follow at once, its
/// cell is built meanwhile.
fn greet(
    mut inherited: Inherited,
    keys: Vec<Key>,
    shared: Shared,
) -> Result<Supervisor, StepError> {
    let Shared { landlock_abi, memory, .. } = shared;
    let unusable = keys.iter().filter_map(|key| {
        let reason = key.design.as_ref().err()?.why.clone();
        Some((key.profile.clone(), reason))
    });
    let scope = inherited.scope.result.clone();
    let ready = Event::Ready(Ready { landlock_abi, memory, scope, unusable: unusable.collect() });
    let first = inherited.first.take();
    let profiles = inherited.profiles.iter().map(|profile| profile.name.clone()).collect();
    let Inherited { link, caps, cgroups, operator, gateway, .. } = inherited;
    let parts = Parts { link, caps, cgroups, operator, keys, profiles, gateway, shared };
    let mut supervisor = Supervisor::new(parts).during("preparing the loop")?;
    if let Some((profile, workspace)) = first {
        supervisor.build_first(&profile, workspace);
    }
    supervisor.send(&ready, None);
    Ok(supervisor)
}

/// Stops mounts from propagating between this namespace and the host's.
fn private_mounts() -> Result<(), Errno> {
    const NONE: Option<&str> = None;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)
}

/// Opens a procfs of this pid namespace that is mounted nowhere. In a container that masks parts of
/// /proc the kernel refuses a new one, and the outer /proc is used.
fn procfs() -> Result<(OwnedFd, ProcKind), Errno> {
    let flags = attribute::NOSUID | attribute::NODEV | attribute::NOEXEC;
    match new_filesystem(c"proc", flags) {
        Ok(proc) => Ok((proc, ProcKind::Own)),
        Err(Errno::EPERM) => {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            Ok((open("/proc", flags, Mode::empty())?, ProcKind::Outer))
        }
        Err(errno) => Err(errno),
    }
}

/// Designs the cells of every key. Waits for the scope only after everything else is done.
fn keys(
    inherited: &mut Inherited,
    packages: HeldPackages,
    proc: &OwnedFd,
    proc_kind: ProcKind,
    landlock_abi: u32,
) -> Result<Vec<Key>, StepError> {
    // Before the first template, which hides the host's files.
    let of_profile = |entry: (&Profile, &Vec<KeyGrant>)| {
        let (profile, grants) = entry;
        grants.iter().map(|grant| inherited.ids.of_key(profile, grant)).collect::<Vec<_>>()
    };
    let ids: Vec<_> = inherited.profiles.iter().zip(&inherited.grants).map(of_profile).collect();
    let templates = templates(inherited, packages, &ids, proc, proc_kind, landlock_abi)?;
    let mut templates = templates.into_iter();
    scope::settle(&mut inherited.scope, &inherited.link, &mut inherited.cgroups);
    let memory = inherited.cgroups.hold();
    let recording = recording(inherited);
    let mut keys = Vec::new();
    for ((profile, grants), ids) in inherited.profiles.iter().zip(&inherited.grants).zip(ids) {
        for ((grant, ids), template) in grants.iter().zip(ids).zip(templates.by_ref()) {
            let workspace = grant.workspace;
            let support = HostSupport {
                memory,
                proc_kind,
                landlock_abi,
                recording,
                ids,
                keeps_networks: inherited.caps.networks > 0,
            };
            let design = template.and_then(|template| {
                can_hold(profile, &inherited.cgroups)?;
                design(profile, workspace, template, support)
            });
            keys.push(Key { profile: profile.name.clone(), workspace, design });
        }
    }
    Ok(keys)
}

/// The files of packages for all templates.
struct HeldPackages {
    files: Option<Rc<PackageFiles>>,
    /// A process that reads them for the cell that is made first.
    early: Option<EarlyReader>,
}

impl HeldPackages {
    /// Opens the files, and starts to read them for the cell that is made first: the call of `run` waits for them, and
    /// they take longer than its template.
    fn start(inherited: &Inherited) -> Self {
        let Inherited { profiles, first, .. } = inherited;
        let is_shown = profiles.iter().any(|profile| profile.packaged_etc);
        let files = if is_shown { PackageFiles::hold().map(Rc::new) } else { None };
        let first = first
            .as_ref()
            .and_then(|(name, _)| profiles.iter().find(|profile| profile.name == *name));
        let early = first.and_then(|profile| EarlyReader::start(profile, files.as_ref()));
        Self { files, early }
    }
}

/// Builds the template of every key, then leaves the host's mounts.
fn templates(
    inherited: &Inherited,
    packages: HeldPackages,
    ids: &[Vec<CellIds>],
    proc: &OwnedFd,
    proc_kind: ProcKind,
    landlock_abi: u32,
) -> Result<Vec<Result<Template, Unusable>>, StepError> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let base = openat(proc.as_fd(), "self/ns/mnt", flags, Mode::empty())
        .during("holding the first namespace")?;
    let Inherited { clocks, caps, .. } = inherited;
    let HeldPackages { files, mut early } = packages;
    let builder = TemplateBuilder {
        base,
        proc,
        proc_kind,
        clocks: *clocks,
        cells: caps.cells,
        packages: files,
    };
    let gateway = inherited.gateway.is_some();
    let mut templates = Vec::new();
    let all: usize = inherited.grants.iter().map(Vec::len).sum();
    for ((profile, grants), ids) in inherited.profiles.iter().zip(&inherited.grants).zip(ids) {
        for (grant, ids) in grants.iter().zip(ids) {
            let last = templates.len() + 1 == all;
            let namespace = if last { Namespace::First } else { Namespace::New };
            let is_first = inherited.first.as_ref().is_some_and(|(name, workspace)| {
                (name, workspace) == (&profile.name, &grant.workspace)
            });
            templates.push(usable(profile, landlock_abi, gateway, inherited.cores).and_then(
                |()| {
                    let early = early.take_if(|_| is_first);
                    let built = builder.build(profile, grant, *ids, namespace, early);
                    built.map_err(|error| unusable(profile, &error))
                },
            ));
            if let (Some(Ok(template)), true) = (templates.last(), is_first) {
                // Where no process has begun with them.
                template.late.begin(Instant::now());
            }
        }
    }
    let usable = templates.iter().find_map(|template| Some(&template.as_ref().ok()?.namespace));
    builder.close(usable).map_err(|error| match error {
        TemplateError::System { what, errno } => StepError(what.to_owned(), errno),
        TemplateError::Missing { .. }
        | TemplateError::Path { .. }
        | TemplateError::Special { .. }
        | TemplateError::Grant(_) => StepError("leaving the host's mounts".to_owned(), Errno::EIO),
    })?;
    Ok(templates)
}

/// Features of this machine that the cells of a key rely on.
#[derive(Debug, Clone, Copy)]
struct HostSupport {
    memory: MemoryHold,
    proc_kind: ProcKind,
    landlock_abi: u32,
    recording: Recording,
    ids: CellIds,
    /// True if network namespaces are kept for further cells.
    keeps_networks: bool,
}

fn recording(inherited: &Inherited) -> Recording {
    if inherited.record.is_some() { Recording::On } else { Recording::Off }
}

/// Decides which calls init mediates for a template's cells, and makes their verdicts notify it.
fn mediation(
    profile: &Profile,
    template: &Template,
    private: &[CString],
    support: HostSupport,
    verdicts: &mut BTreeMap<u32, Verdict>,
) -> Result<Option<Mediation>, Unusable> {
    let names = template.guarded.first();
    let names = names.map(|directory| GuardedNames {
        directory,
        named: &template.named,
        shared: &template.shared,
        also: &template.also,
        repositories: &template.repositories,
    });
    let system = |errno: Errno| Unusable { why: errno.to_string(), missing_program: None };
    let mut mediated = Vec::new();
    match (support.proc_kind, names) {
        (_, None) if !template.shows_sockets() => {}
        (ProcKind::Own, _) => {
            if names.is_some() {
                mediated.extend(calls::take(verdicts, CallGroup::Names).map_err(system)?);
            }
            mediated.extend(sockets::take(verdicts, names.is_some()).map_err(system)?);
        }
        (ProcKind::Outer, None) => sockets::close(verdicts),
        (ProcKind::Outer, Some(_)) => {
            let reason =
                "names cannot be guarded in a writable grant where parts of /proc are masked";
            return Err(Unusable { why: reason.to_owned(), missing_program: None });
        }
    }
    let in_every_cell =
        [CallGroup::Epoll, CallGroup::Inotify, CallGroup::Interfaces, CallGroup::BufferSizes];
    for group in in_every_cell {
        match (support.proc_kind, profile.proc) {
            (ProcKind::Outer, ProcView::None) => calls::refuse(verdicts, group),
            (ProcKind::Own, _) | (ProcKind::Outer, ProcView::Own) => {
                mediated.extend(calls::take(verdicts, group).map_err(system)?);
            }
        }
    }
    match (support.proc_kind, profile.proc) {
        // Stay refused where init cannot look.
        (ProcKind::Outer, ProcView::None) => {}
        (ProcKind::Own, _) | (ProcKind::Outer, ProcView::Own) => {
            mediated.extend(calls::with_set_group(verdicts));
        }
    }
    if mediated.is_empty() {
        return Ok(None);
    }
    let layers = template.layers.iter().map(|path| cell::c_path(path));
    let layers = layers.collect::<Result<Vec<CString>, Errno>>().map_err(system)?;
    let belongings = Belongings {
        // Files of a layer are the cells' own, and so are its sockets.
        private: private.iter().cloned().chain(layers).collect(),
        cache: template.cache.as_deref(),
        sockets: template.sockets.mount_point().map(CStr::to_owned),
        granted: &template.granted,
    };
    Mediation::new(mediated, names, belongings, support.recording).map(Some).map_err(system)
}

/// Returns the calls whose paths are recorded. A mediated call must not be executed by the kernel:
/// if names are guarded, calls that open files are not recorded.
fn recorded(
    recording: Recording,
    verdicts: &BTreeMap<u32, Verdict>,
    mediation: Option<&Mediation>,
) -> Vec<record::PathCall> {
    let mut recorded = match recording {
        Recording::On => record::path_calls(verdicts),
        Recording::Off => Vec::new(),
    };
    let mediated = mediation.map_or(&[][..], |mediation| &mediation.calls);
    recorded.retain(|path| mediated.iter().all(|call| call.number != path.number));
    recorded
}

fn design(
    profile: &Profile,
    workspace: Workspace,
    mut template: Template,
    support: HostSupport,
) -> Result<Design, Unusable> {
    let HostSupport { memory, landlock_abi, recording, ids, .. } = support;
    let system = |errno: Errno| Unusable { why: errno.to_string(), missing_program: None };
    let by_slot = std::mem::take(&mut template.by_slot);
    let is_at_workspace = |path: &PathBuf| path.as_path() == Path::new("/workspace");
    let has_workspace = template.has_link || template.granted.iter().any(is_at_workspace);
    let plan = mounts::MountPlan {
        proc: profile.proc,
        facts: std::mem::take(&mut template.facts),
        tmpfs: mounts::tmpfs(profile),
        workspace: mounts::WorkspaceMounts::new(profile, has_workspace, by_slot),
        // One mount of each grant, made for the one id.
        host_slot: matches!(ids, CellIds::One(_)).then(|| Slot::new(0)),
        sockets: template.sockets,
    };
    let mut verdicts = seccomp::payload_verdicts(profile, memory);
    let mut allowed: Vec<u32> = seccomp::allowed(&verdicts).collect();
    let mediation = mediation(profile, &template, &plan.private(), support, &mut verdicts)?;
    if let Some(mediation) = &mediation {
        // The supervisor's filter applies to init too, which makes these calls.
        allowed.extend(mediation.own_calls.iter().copied().map(seccomp::number));
    }
    let recorded = recorded(recording, &verdicts, mediation.as_ref());
    let numbers: Vec<u32> = recorded.iter().map(|call| call.number).collect();
    let inside = landlock::Inside {
        readable: &template.readable,
        granted: &template.granted,
        writable: &template.writable,
        private: &plan.private(),
    };
    let mut rules = landlock::rules(profile, memory, &inside).map_err(system)?;
    if template.terminals.is_some() {
        rules.push(landlock::terminals().map_err(system)?);
    }
    let network = network(profile, &mut allowed);
    let loopback = loopback(profile);
    let abi = landlock_abi;
    let links = Follow::Texts;
    let class = profile.egress.class;
    let filter = seccomp::payload_filter(&verdicts, &numbers).map_err(system)?;
    let reuse =
        if support.keeps_networks { Reuse::new(profile, memory, &verdicts, &filter) } else { None };
    Ok(Design {
        profile: profile.clone(),
        workspace,
        ground: Ground::Root(Root {
            template: template.namespace,
            sizes: std::rc::Rc::new(template.sizes),
            overlays: std::rc::Rc::new(template.overlays),
            late: std::rc::Rc::new(template.late),
            mounts: plan,
            terminals: template.terminals,
        }),
        hidden: template.hidden,
        devices: template.devices,
        writable: template.writable,
        notes: template.notes,
        ids,
        landlock: landlock::LandlockPlan { abi, rules, links, network: class },
        filter,
        reuse,
        recorded,
        allowed,
        loopback,
        network,
        mediation,
    })
}

/// Plans the loopback of a cell without egress and with sockets of the internet.
fn loopback(profile: &Profile) -> Option<LoopbackPlan> {
    let class = profile.egress.class;
    let has_internet = profile.families.iter().any(|family| *family != Family::Unix);
    (class.has_loopback() && !class.has_egress() && has_internet).then(LoopbackPlan::new)
}

/// Plans the network of a cell with egress, and allows the additional call that init needs for it.
fn network(profile: &Profile, allowed: &mut Vec<u32>) -> Option<NetworkPlan> {
    if !profile.egress.class.has_egress() {
        return None;
    }
    // Binds the packet socket.
    allowed.push(seccomp::number(syscalls::Sysno::bind));
    Some(NetworkPlan::new())
}

/// Confines the supervisor as its last step: capabilities, then the filter.
fn confine(keys: &[Key], recording: Recording) -> Result<(), Errno> {
    cell::caps::keep_only(&KEPT)?;
    filter::load(keys, recording)
}
