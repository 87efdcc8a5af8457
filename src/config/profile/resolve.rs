//! Resolves profile files to a [`Profile`]: every path absolute, every name a number, every value
//! within its bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;

use super::layer::{Layer, names};
use super::schema::{Written, WrittenLimits, WrittenPath};
use super::{ahead, egress};
use crate::document::{Document, Mistake};
use model::call::{Env, MAX_TIMEOUT};
use model::defaults;
use model::job::{Limits, ProfileName};
use model::profile::{
    Exec, Family, HELD_DESCRIPTOR, HostPath, PathKind, Presence, ProcView, Profile, Requires,
    UnixSockets,
};
use model::units::Size;

/// Host paths that are never granted, including everything below: they contain sockets, devices and
/// facts of the host.
const NEVER_BENEATH: &[&str] = &["/proc", "/sys", "/dev", "/run", "/var/run"];
/// Host paths that contain too much to be granted as a whole.
const NEVER_WHOLE: &[&str] = &["/", "/etc", "/home", "/root", "/var", "/tmp"];
/// Paths in the cell that belong to the floor, including everything below.
const FLOOR_TREES: &[&str] = &["/proc", "/sys", "/dev", "/run", "/tmp", "/workspace"];
/// Paths in the cell of single files that belong to the floor.
const FLOOR_FILES: &[&str] = &[
    "/",
    "/etc",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/hostname",
];

/// Resolves a chain of profiles, the furthest ancestor first.
pub(super) fn resolve(name: &ProfileName, chain: &[&Layer<'_>]) -> Result<Profile, Mistake> {
    let last = |pick: fn(&Written) -> bool| chain.iter().rev().find(|layer| pick(&layer.written));
    let written = |pick| last(pick).map(|layer| &layer.written);
    let paths = paths(chain)?;
    let exec = match last(|written| written.exec.is_some()) {
        Some(layer) => exec(layer, &paths)?,
        None => Exec::Any,
    };
    let workspace = chain.iter().any(|layer| layer.written.workspace.is_some());
    let limits = limits(chain, workspace, &exec)?;
    let ahead = ahead::resolve(chain, &exec, workspace)?;
    let proc = written(|w| w.proc.is_some()).and_then(|w| w.proc.as_ref());
    let sockets = chain.iter().filter_map(|layer| layer.written.sockets.as_ref());
    let families: BTreeSet<Family> =
        sockets.flat_map(|sockets| sockets.families.iter().copied()).collect();
    let unix_sockets = unix_sockets(chain, &families)?;
    let (calls, quiet) = calls(chain)?;
    Ok(Profile {
        name: name.clone(),
        description: chain.last().map(|l| l.written.description.clone()).unwrap_or_default(),
        paths,
        exec,
        ahead,
        workspace,
        packaged_etc: chain.iter().any(|layer| layer.written.packaged_etc.is_some()),
        proc: proc.map_or(ProcView::None, |proc| proc.view),
        egress: egress::resolve(chain, &families)?,
        families,
        unix_sockets,
        granted_sockets: Vec::new(),
        calls,
        quiet,
        env: env(chain)?,
        limits,
        requires: requires(chain)?,
        tier: model::receipt::Tier::Full,
        terminal: None,
        makes_terminals: false,
        git_identity: None,
        script_sdk: &[],
        trust: Vec::new(),
    })
}

/// Makes a path absolute, without `.` and double slashes, and with the operator's home for `~/`.
/// Refuses `..`, whose meaning depends on links.
fn absolute(document: &Document, text: &Spanned<String>) -> Result<PathBuf, Mistake> {
    let mistake = |message| Err(document.mistake(text.span(), message));
    let path = match text.get_ref().strip_prefix("~/") {
        None => text.get_ref().clone(),
        Some(below) => match document.home.as_deref().and_then(Path::to_str) {
            Some(home) => format!("{home}/{below}"),
            None => return mistake("no home directory is known for `~`"),
        },
    };
    if !path.starts_with('/') {
        return mistake("a path must be absolute, or begin with `~/`");
    }
    if path.contains('\0') {
        return mistake("a path contains a NUL byte");
    }
    // Usually nothing has to be left out. The first part is the one before the root.
    if path.split('/').skip(1).all(|part| !matches!(part, "" | "." | "..")) {
        return Ok(PathBuf::from(path));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return mistake("a path must not contain `..`");
    }
    Ok(PathBuf::from(format!("/{}", parts.join("/"))))
}

fn paths(chain: &[&Layer<'_>]) -> Result<Vec<HostPath>, Mistake> {
    // By path in the cell: a later layer replaces the entry of an earlier one.
    let mut paths: BTreeMap<PathBuf, HostPath> = BTreeMap::new();
    for layer in chain {
        for written in &layer.written.paths {
            let path = path(layer.document, written)?;
            paths.insert(path.cell.clone(), path);
        }
    }
    Ok(paths.into_values().collect())
}

fn path(document: &Document, written: &WrittenPath) -> Result<HostPath, Mistake> {
    let host = absolute(document, &written.host)?;
    // Both are normalised. Comparing them component by component would take most of the time of
    // loading a profile.
    let beneath = |list: &[&str], path: &Path| list.iter().any(|entry| is_beneath(path, entry));
    let exactly =
        |list: &[&str], path: &Path| list.iter().any(|entry| path.as_os_str() == OsStr::new(entry));
    if beneath(NEVER_BENEATH, &host) {
        let message = format!("`{}` is never granted: it is the host's own", host.display());
        return Err(document.mistake(written.host.span(), message));
    }
    if exactly(NEVER_WHOLE, &host) || document.home.as_ref() == Some(&host) {
        let message = format!("`{}` is too wide to grant whole", host.display());
        let hint = "name what is needed beneath it";
        return Err(document.mistake(written.host.span(), message).with_hint(hint));
    }
    let written_cell = written.cell.as_ref().unwrap_or(&written.host);
    let cell = absolute(document, written_cell)?;
    if beneath(FLOOR_TREES, &cell) || exactly(FLOOR_FILES, &cell) {
        let message = format!("`{}` in the cell is made by cofferdam itself", cell.display());
        return Err(document.mistake(written_cell.span(), message));
    }
    Ok(HostPath {
        host,
        cell,
        kind: if written.program { PathKind::Program } else { PathKind::Tree },
        presence: if written.optional { Presence::Optional } else { Presence::Required },
    })
}

/// Returns true if a normalised absolute path equals `tree` or lies below it.
fn is_beneath(path: &Path, tree: &str) -> bool {
    let rest = path.as_os_str().as_encoded_bytes().strip_prefix(tree.as_bytes());
    matches!(rest, Some([] | [b'/', ..]))
}

fn exec(layer: &Layer<'_>, paths: &[HostPath]) -> Result<Exec, Mistake> {
    let Some(written) = &layer.written.exec else { return Ok(Exec::Any) };
    if written.program.get_ref() == "any" {
        return Ok(Exec::Any);
    }
    let program = absolute(layer.document, &written.program)?;
    let granted = paths.iter().any(|path| match path.kind {
        PathKind::Tree => program.starts_with(&path.cell),
        PathKind::Program => program == path.cell,
    });
    if granted {
        return Ok(Exec::Only(program));
    }
    let message = format!("`{}` is in no [[path]] of this profile", program.display());
    let hint = format!("add [[path]] host = \"{}\", program = true", program.display());
    Err(layer.document.mistake(written.program.span(), message).with_hint(hint))
}

/// Takes the setting of the last layer that has one. A cell can only connect if it can make such a
/// socket.
fn unix_sockets(chain: &[&Layer<'_>], families: &BTreeSet<Family>) -> Result<UnixSockets, Mistake> {
    let written =
        chain.iter().rev().find_map(|layer| Some((layer, layer.written.unix_sockets.as_ref()?)));
    let Some((layer, sockets)) = written else { return Ok(UnixSockets::None) };
    if sockets.class == UnixSockets::Private && !families.contains(&Family::Unix) {
        let message = "`unix_sockets` is of no use without the family `unix`";
        let hint = "add `unix` to `sockets = { families = […] }`";
        return Err(layer.document.mistake(sockets.why.span(), message).with_hint(hint));
    }
    Ok(sockets.class)
}

type Numbers = BTreeSet<u32>;

fn calls(chain: &[&Layer<'_>]) -> Result<(Numbers, Numbers), Mistake> {
    let mut calls = Numbers::new();
    let mut quiet = Numbers::new();
    for layer in chain {
        let listed = layer.calls()?;
        calls.extend(listed.syscalls.iter().flatten());
        for (name, number) in names(&layer.written.quiet).zip(&listed.quiet) {
            if number.is_some_and(|number| calls.contains(&number)) {
                let message = format!("`{}` is both allowed and quiet", name.get_ref());
                return Err(layer.document.mistake(name.span(), message));
            }
            quiet.extend(number);
        }
    }
    // A later layer that allows a call removes it from the quiet calls of an earlier one.
    quiet.retain(|number| !calls.contains(number));
    Ok((calls, quiet))
}

fn env(chain: &[&Layer<'_>]) -> Result<BTreeMap<String, String>, Mistake> {
    let mut env = BTreeMap::new();
    for layer in chain {
        for (name, value) in layer.written.env.iter().flat_map(|env| &env.set) {
            let one = BTreeMap::from([(name.clone(), value.get_ref().clone())]);
            // The rules for clients apply here too: no variable that changes what programs load.
            let checked = Env::new(one)
                .map_err(|error| layer.document.mistake(value.span(), error.to_string()))?;
            env.extend(checked.iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
    }
    Ok(env)
}

/// Returns the value in the last layer that sets it, with its position.
fn latest<'a, 'd, T: Copy>(
    chain: &'a [&Layer<'d>],
    pick: impl Fn(&WrittenLimits) -> Option<&Spanned<T>>,
) -> Option<(T, Range<usize>, &'a Layer<'d>)> {
    chain.iter().rev().find_map(|layer| {
        pick(&layer.written.limits).map(|value| (*value.get_ref(), value.span(), *layer))
    })
}

fn limits(chain: &[&Layer<'_>], workspace: bool, exec: &Exec) -> Result<Limits, Mistake> {
    let size = |pick: fn(&WrittenLimits) -> Option<&Spanned<Size>>, default: u64| {
        latest(chain, pick).map_or(default, |(size, ..)| size.0)
    };
    let count =
        |pick: fn(&WrittenLimits) -> Option<&Spanned<u32>>, default: u32| match latest(chain, pick)
        {
            Some((0, span, layer)) => Err(layer.document.mistake(span, "must be above zero")),
            Some((count, ..)) => Ok(count),
            None => Ok(default),
        };
    let limits = Limits {
        wall: time(chain, |limits| limits.timeout.as_ref(), defaults::TIMEOUT)?,
        cpu: time(chain, |limits| limits.cpu.as_ref(), MAX_TIMEOUT)?,
        processors: latest(chain, |limits| limits.processors.as_ref()).map(|(share, ..)| share.0),
        memory: size(|limits| limits.memory.as_ref(), defaults::MEMORY),
        processes: count(|limits| limits.processes.as_ref(), defaults::PROCESSES)?,
        open_files: count(|limits| limits.open_files.as_ref(), open_files(chain, exec)?)?,
        file_size: size(|limits| limits.file_size.as_ref(), defaults::FILE_SIZE),
        workspace_bytes: match workspace {
            true => size(|limits| limits.workspace.as_ref(), defaults::WORKSPACE_BYTES),
            false => 0,
        },
        tmp_bytes: size(|limits| limits.tmp.as_ref(), defaults::TMP_BYTES),
        shm_bytes: size(|limits| limits.shm.as_ref(), defaults::SHM_BYTES),
        inodes: count(|limits| limits.inodes.as_ref(), defaults::INODES)?,
        output: Some(size(|limits| limits.output.as_ref(), defaults::OUTPUT_BYTES)),
    };
    check_memory(chain)?;
    check_tmpfs(chain, &limits)?;
    Ok(limits)
}

/// Checks that a cell can start in its memory.
fn check_memory(chain: &[&Layer<'_>]) -> Result<(), Mistake> {
    match latest(chain, |limits| limits.memory.as_ref()) {
        Some((size, span, layer)) if size.0 < defaults::MIN_MEMORY => {
            let message = format!("`memory` of {size} is less than a cell can start with");
            let hint =
                format!("{} is the least; most programs need more", Size(defaults::MIN_MEMORY));
            Err(layer.document.mistake(span, message).with_hint(hint))
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns the default for open files. A single program is executed through a held descriptor,
/// which processes in the cell must not reach with dup2(2): the limit then stays below its number,
/// and a higher one is a mistake.
fn open_files(chain: &[&Layer<'_>], exec: &Exec) -> Result<u32, Mistake> {
    if *exec == Exec::Any {
        return Ok(defaults::OPEN_FILES);
    }
    match latest(chain, |limits| limits.open_files.as_ref()) {
        Some((files, span, layer)) if files > HELD_DESCRIPTOR => {
            let message = format!(
                "`open_files` is at most {HELD_DESCRIPTOR} where one program is executed: \
                 the descriptor it is held by must stay out of reach"
            );
            Err(layer.document.mistake(span, message))
        }
        _ => Ok(HELD_DESCRIPTOR),
    }
}

fn time(
    chain: &[&Layer<'_>],
    pick: fn(&WrittenLimits) -> Option<&Spanned<model::units::Time>>,
    default: Duration,
) -> Result<Duration, Mistake> {
    match latest(chain, pick) {
        Some((time, span, layer)) if time.0 > MAX_TIMEOUT => Err(layer
            .document
            .mistake(span, format!("`{time}` is above the most that any call gets, 3600s"))),
        Some((time, ..)) => Ok(time.0),
        None => Ok(default),
    }
}

/// Checks that `/workspace` and `/tmp` together have at most half of the memory, so that a program
/// that fills them gets ENOSPC instead of ending its cell. The default values are exactly half.
/// `/dev/shm` is memory shared by programs; all three together must leave a quarter of the memory.
fn check_tmpfs(chain: &[&Layer<'_>], limits: &Limits) -> Result<(), Mistake> {
    let Some(last) = chain.last() else { return Ok(()) };
    let files = limits.workspace_bytes.saturating_add(limits.tmp_bytes);
    let too_large = |bytes: u64, paths: &str, share: u64, fraction: &str| {
        let message = format!(
            "{paths} are {} together; at most {fraction} of the memory, {}, is left for them",
            Size(bytes),
            Size(share)
        );
        let span = latest(chain, |limits| limits.memory.as_ref())
            .filter(|(.., layer)| std::ptr::eq(*layer, *last))
            .map_or_else(|| last.written.name.span(), |(_, span, _)| span);
        let hint = "lower `tmp`, `shm` or `workspace` under [limits], or raise `memory`";
        Err(last.document.mistake(span, message).with_hint(hint))
    };
    let half = limits.memory / 2;
    if files > half {
        return too_large(files, "/workspace and /tmp", half, "half");
    }
    let all = files.saturating_add(limits.shm_bytes);
    let limit = half + limits.memory / 4;
    if all > limit {
        return too_large(all, "/workspace, /tmp and /dev/shm", limit, "three quarters");
    }
    Ok(())
}

fn requires(chain: &[&Layer<'_>]) -> Result<Requires, Mistake> {
    let mut requires = Requires { landlock_abi: defaults::LANDLOCK_ABI, memory_cgroup: false };
    for layer in chain {
        let written = &layer.written.requires;
        if let Some(abi) = &written.landlock_abi {
            if *abi.get_ref() < defaults::LANDLOCK_ABI {
                let message = format!("`landlock_abi` is {} at least", defaults::LANDLOCK_ABI);
                return Err(layer.document.mistake(abi.span(), message));
            }
            requires.landlock_abi = requires.landlock_abi.max(*abi.get_ref());
        }
        requires.memory_cgroup |= written.memory_cgroup.unwrap_or(false);
    }
    Ok(requires)
}
