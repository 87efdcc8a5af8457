//! Measures a cell of the tier `landlock+seccomp` from outside, and checks the payload against what
//! the tier demands.

use std::os::fd::AsFd;

use nix::fcntl::readlinkat;

use crate::Design;
use crate::measure::{NAMESPACES, Operator, UnfitCell, demand, groups, hard_limits};
use crate::proc_files::Fields;
use model::receipt::Measured;

/// Measures the process whose procfs directory is `process`.
///
/// # Errors
/// The first value that differs from what this tier demands.
pub fn payload(
    process: impl AsFd,
    design: &Design,
    operator: &Operator,
) -> Result<Measured, UnfitCell> {
    let status = Fields::read(&process, "status")?;
    let is_empty = |set: &&str| {
        let shown = status.get(set);
        !shown.is_empty() && shown.chars().all(|digit| digit == '0')
    };
    let all_empty = ["CapInh", "CapPrm", "CapEff", "CapAmb"].iter().all(is_empty);
    demand(all_empty, || "a capability set is not empty".to_owned())?;
    let no_new_privs = status.get("NoNewPrivs") == "1";
    demand(no_new_privs, || "no_new_privs is not set".to_owned())?;
    demand(status.get("Seccomp") == "2", || "no system call filter is loaded".to_owned())?;
    let seccomp_filters: u32 = status.get("Seccomp_filters").parse().unwrap_or(0);
    demand(seccomp_filters >= 2, || format!("{seccomp_filters} filters where 2 belong"))?;
    let euid = nix::unistd::geteuid().as_raw().to_string();
    let same = |line: &str| line.split_ascii_whitespace().all(|id| id == euid);
    demand(same(status.get("Uid")), || "the payload has another uid".to_owned())?;
    let unknown = || UnfitCell("an id that is not the operator's".to_owned());
    let first = |line: &str| line.split_ascii_whitespace().next()?.parse::<u32>().ok();
    let host_uid = first(status.get("Uid")).and_then(|id| operator.uids.host_id(id));
    let host_gid = first(status.get("Gid")).and_then(|id| operator.gids.host_id(id));
    let (host_uid, host_gid) = host_uid.zip(host_gid).ok_or_else(unknown)?;
    demand(host_uid != 0, || "the payload has host id 0".to_owned())?;
    let (processes, open_files, file_size) = hard_limits(&process, design)?;
    Ok(Measured {
        seccomp_filters,
        no_new_privs,
        capabilities_empty: is_empty(&"CapBnd"),
        host_uid,
        supplementary_groups: groups(status.get("Groups"), host_gid, operator)?,
        namespaces: namespaces(&process, operator)?,
        network_namespace: None,
        mounts: 0,
        processes,
        open_files,
        file_size,
        interfaces: None,
    })
}

/// Returns the namespaces that differ from the operator's. The list is empty unless an outer
/// sandbox made some.
fn namespaces(process: impl AsFd, operator: &Operator) -> Result<Vec<String>, UnfitCell> {
    let mut differing = Vec::new();
    for (name, theirs) in NAMESPACES.iter().zip(&operator.namespaces) {
        let inode = readlinkat(&process, format!("ns/{name}").as_str())?;
        if inode.to_str() != Some(theirs) {
            differing.push((*name).to_owned());
        }
    }
    Ok(differing)
}
