//! Files of a cell that are made here: `/etc`, and the facts of `/proc` derived from its limits.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::detached::{directories, hidden_here, write_file};
use cell::ids::AGENT;
use cell::mounts::HIDDEN;
use cell::network::RESOLVERS;
use cell::slot::Slot;
use cell::{Clocks, c_path, size};
use model::defaults::processors;
use model::egress::NetworkClass;
use model::job::Limits;
use model::profile::{GitIdentity, SCRIPTS, TRUST};
use sys::mount::{Reach, attach, attribute, clone_tree, set_attributes};

/// The host name of every cell.
pub use model::profile::HOST_NAME;

/// Writes the synthetic `/etc` into `directory`.
///
/// # Errors
/// The error of mkdir(2), open(2) or write(2).
pub(crate) fn etc(directory: &Path, class: NetworkClass) -> std::io::Result<()> {
    let has_dns = class.has_egress();
    let sources = if class.has_loopback() { "files dns" } else { "files" };
    let files = [
        (
            "passwd",
            format!(
                "root:x:0:0:root:/nonexistent:/bin/false\n\
                 agent:x:{AGENT}:{AGENT}:agent:/tmp/home:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
            ),
        ),
        ("group", format!("root:x:0:\nagent:x:{AGENT}:\nnogroup:x:65534:\n")),
        // Without a loopback nothing answers `dns`: its failure would look temporary (EAI_AGAIN), and
        // installers would retry for a minute. With files only, a name is immediately unknown
        // (EAI_NONAME). In a cell that has only its loopback, init gives the same answer
        // (`init/unresolved.rs`).
        (
            "nsswitch.conf",
            format!("passwd: files\ngroup: files\nhosts: {sources}\nservices: files\n"),
        ),
        ("hosts", format!("127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n")),
        ("resolv.conf", resolvers(has_dns)),
        ("hostname", format!("{HOST_NAME}\n")),
    ];
    for (name, text) in files {
        write_file(&directory.join(name), &text)?;
    }
    Ok(())
}

/// Returns the text of resolv.conf: the gateway's addresses, in cells that have one.
fn resolvers(has_dns: bool) -> String {
    match has_dns {
        true => RESOLVERS.iter().map(|address| format!("nameserver {address}\n")).collect(),
        false => "# A cell has no network beyond itself.\n".to_owned(),
    }
}

/// Writes the certificates that cells of a profile trust, if the gateway reads its requests.
///
/// # Errors
/// The error of mkdir(2), open(2) or write(2).
pub(crate) fn trust(files: &[(&str, Arc<[u8]>)]) -> std::io::Result<()> {
    let directory = Path::new(TRUST.trim_start_matches('/'));
    files.iter().try_for_each(|(name, bytes)| {
        let file = directory.join(name);
        file.parent().map_or(Ok(()), directories)?;
        write_file(&file, bytes)
    })
}

/// Writes git's configuration into `directory`: the author of commits, and that resolutions of conflicts are not kept,
/// as no list of conflicts is made in cells. A repository's own configuration takes precedence.
///
/// # Errors
/// The error of open(2) or write(2).
pub(crate) fn git_identity(directory: &Path, identity: &GitIdentity) -> std::io::Result<()> {
    let GitIdentity { name, email } = identity;
    let lines = [("name", name), ("email", email)].into_iter().filter_map(|(key, value)| {
        let value: String = value.as_ref()?.chars().filter(|c| !c.is_control()).collect();
        // These two characters have a meaning inside quotes (git-config(1), Values).
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        Some(format!("\t{key} = \"{value}\"\n"))
    });
    let text = format!("[user]\n{}[rerere]\n\tenabled = false\n", lines.collect::<String>());
    write_file(&directory.join("gitconfig"), &text)
}

/// Writes the functions for the scripts of a project, below the current directory, the future root.
///
/// # Errors
/// The error of mkdir(2), open(2) or write(2).
pub(crate) fn script_sdk(files: &[(&str, &str)]) -> std::io::Result<()> {
    let directory = Path::new(SCRIPTS.trim_start_matches('/'));
    files.iter().try_for_each(|(name, text)| {
        let file = directory.join(name);
        file.parent().map_or(Ok(()), directories)?;
        write_file(&file, text)
    })
}

/// Writes the files that cover entries of `/proc` into the hidden store.
///
/// # Errors
/// The error of mkdir(2), open(2) or write(2).
pub(crate) fn store(
    hidden: &Path,
    limits: &Limits,
    cells: u16,
    clocks: Clocks,
) -> std::io::Result<()> {
    let booted = size::boot_time(clocks)?;
    for (name, text) in facts(processors(), &features(&first_processor()), booted) {
        write_file(&hidden.join(name), &text)?;
    }
    let sizes = hidden.join(size::DIRECTORY);
    directories(&sizes)?;
    let meminfo = size::meminfo(limits.memory);
    Slot::first(cells).try_for_each(|slot| write_file(&sizes.join(slot.to_string()), &meminfo))
}

/// Returns the beginning of the host's `/proc/cpuinfo`, which the kernel generates processor by
/// processor while it is read.
fn first_processor() -> String {
    let mut text = Vec::new();
    let read = std::fs::File::open("/proc/cpuinfo").and_then(|file| {
        std::io::Read::read_to_end(&mut std::io::Read::take(file, 8192), &mut text)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        // The line is left out.
        Err(_) => String::new(),
    }
}

/// Returns the line of `/proc/cpuinfo` with the processor's features, which programs can query from
/// the processor too.
fn features(cpuinfo: &str) -> String {
    let is_list = |line: &&str| line.starts_with("flags") || line.starts_with("Features");
    cpuinfo.lines().find(is_list).map(|line| format!("{line}\n")).unwrap_or_default()
}

/// Returns files of `/proc` for a machine of the cell's size, except for its memory and uptime.
///
/// `features` is a line that some scripts use to choose or refuse programs. `booted` is the time of
/// the machine's start in seconds since 1970.
fn facts(processors: usize, features: &str, booted: i64) -> [(&'static str, String); 4] {
    let cpuinfo: String = (0..processors)
        .map(|number| {
            format!(
                "processor\t: {number}\nvendor_id\t: cofferdam\nmodel name\t: a processor of this cell\n\
                 cpu cores\t: {processors}\nsiblings\t: {processors}\n{features}\n"
            )
        })
        .collect();
    let times = "0 0 0 0 0 0 0 0 0 0";
    let cpus: String = (0..processors).map(|number| format!("cpu{number} {times}\n")).collect();
    let stat = format!(
        "cpu  {times}\n{cpus}intr 0\nctxt 0\nbtime {booted}\nprocesses 1\nprocs_running 1\n\
         procs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n"
    );
    [
        ("cpuinfo", cpuinfo),
        ("stat", stat),
        ("loadavg", "0.00 0.00 0.00 1/1 1\n".to_owned()),
        ("version", "Linux version 6.0 (cofferdam)\n".to_owned()),
    ]
}

/// Name of the directory that covers `/proc/sys`.
pub(super) const SETTINGS: &str = "sys";

/// Names of the files that [`facts`] returns, and of the directory of settings.
const FACTS: [&str; 5] = ["cpuinfo", "stat", "loadavg", "version", SETTINGS];

/// Directory of the settings for random numbers, below that of settings.
const RANDOM: &str = "kernel/random";

/// Takes the file of the kernel that has a new random UUID each time it is read (random(4)).
/// Returns `None` in a container that does not show it.
pub(super) fn hold_uuids() -> Option<OwnedFd> {
    let file = clone_tree(c"/proc/sys/kernel/random/uuid").ok()?;
    let flags = attribute::RDONLY | attribute::NOSUID | attribute::NODEV | attribute::NOEXEC;
    set_attributes(&file, flags, Reach::One).ok()?;
    Some(file)
}

/// Makes the settings in the hidden store. They have no other entry than random numbers: `uuid` is
/// the kernel's, and `boot_id` is made later.
///
/// # Errors
/// The error of mkdir(2), open(2) or move_mount(2).
pub(super) fn settings(uuids: Option<OwnedFd>) -> std::io::Result<()> {
    let random = hidden_here().join(SETTINGS).join(RANDOM);
    directories(&random)?;
    let Some(uuids) = uuids else { return Ok(()) };
    let target = random.join("uuid");
    write_file(&target, "")?;
    Ok(attach(&uuids, &c_path(&target)?)?)
}

/// Returns the files that cover entries of `/proc`. `meminfo` and `uptime` depend on the job, and
/// each cell has its own.
///
/// # Errors
/// EINVAL: a path contains a NUL, which these names do not.
pub(crate) fn covers() -> nix::Result<Vec<(CString, CString)>> {
    let pair = |name: &str| {
        let cover = c_path(&Path::new(HIDDEN).join(name))?;
        Ok((cover, c_path(&Path::new("/proc").join(name))?))
    };
    FACTS.into_iter().map(pair).collect()
}
