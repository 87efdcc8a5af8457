//! Every layer of `doctor`'s report, in its order: the name, and the probe that tries it. To add a layer, add a row.
//!
//! Between the two tables the report has the trials of [`cells`](super::cells). Longer remedies are in
//! [`remedies`](super::remedies), those of a container engine in [`platform`](super::platform).

use super::layer::{LayerCheck, LayerRow, ProbeResult, ok, weak};
use super::machine::Machine;
use super::own_ids::OwnIdFacts;
use super::platform::Platform;
use super::{directories, host_sockets, kernel, listener, memory, privileges, remedies};
use config::server::ScopeRule;
use kernel::step;
use model::receipt::Receipt;
use model::wire::Ready;

type HostProbe = fn(&Machine<'_>) -> Option<ProbeResult>;
type CellProbe = fn(&CellFacts<'_>) -> Option<ProbeResult>;

/// Layers that the kernel and this process give to every cell, tried before there is one. Needs a single-threaded caller.
#[rustfmt::skip]
const HOST: &[LayerRow<HostProbe>] = &[
    LayerRow { name: "user namespaces", probe: |machine| Some(step(
        machine.namespaces.clone,
        "clone3 with all seven namespaces worked",
        || remedies::user_namespaces(machine),
    )) },
    LayerRow { name: "id maps", probe: |machine| Some(step(
        machine.namespaces.maps,
        "the maps could be written",
        remedies::id_maps,
    )) },
    LayerRow { name: "mounts", probe: |machine| Some(step(
        machine.namespaces.mount,
        "a tmpfs could be mounted in them",
        || remedies::mounts(machine),
    )) },
    LayerRow { name: "own /proc", probe: |machine| Some(step(
        machine.namespaces.proc,
        "a new procfs could be mounted",
        || remedies::procfs(machine),
    )) },
    LayerRow { name: "root", probe: |machine| (machine.namespaces.pivot != 0).then(|| step(
        machine.namespaces.pivot,
        "",
        || remedies::INITRAMFS_ROOT.to_owned(),
    )) },
    LayerRow { name: "Landlock", probe: |_| Some(kernel::landlock()) },
    LayerRow { name: "listener of filters", probe: |machine| kernel::filter_listener(machine.platform) },
    LayerRow { name: "listener of --http", probe: |machine| listener::loopback(machine.platform) },
    LayerRow { name: "network by the gateway", probe: |machine| Some(kernel::network(machine.platform)) },
    LayerRow { name: "supplementary groups", probe: |_| Some(privileges::supplementary_groups()) },
    LayerRow { name: "open files", probe: |_| privileges::open_files() },
    LayerRow { name: "core dumps", probe: |_| Some(privileges::core_dumps()) },
    LayerRow { name: "granted sockets", probe: |machine| host_sockets::granted(machine.settings) },
    LayerRow { name: "sockets of the host", probe: |machine| Some(host_sockets::visible(machine.settings)) },
    LayerRow { name: "this directory", probe: |_| directories::current() },
    LayerRow { name: "repository elsewhere", probe: |machine| directories::repository(machine.settings) },
    LayerRow { name: "changes kept apart", probe: |_| directories::layers() },
    LayerRow { name: "tool chains", probe: |machine| Some(directories::toolchains(machine.settings)) },
    LayerRow { name: "surroundings", probe: |machine| machine.platform.name().map(ok) },
];

/// Facts about the first cell that was built, and about its supervisor.
pub(super) struct CellFacts<'a> {
    pub receipt: &'a Receipt,
    /// Greeting of the supervisor, if it has come.
    pub ready: Option<&'a Ready>,
    pub own_ids: &'a OwnIdFacts,
    pub scope_rule: ScopeRule,
    pub platform: Platform,
}

/// Layers that were measured in a cell. Without capabilities and `no_new_privs` as they should be, there is no receipt.
#[rustfmt::skip]
const CELL: &[LayerRow<CellProbe>] = &[
    LayerRow { name: "capabilities", probe: |_| Some(ok("measured: all five sets of a payload were empty")) },
    LayerRow { name: "no_new_privs", probe: |_| Some(ok("measured: set")) },
    LayerRow { name: "system call filter", probe: |cell| Some(ok(format!(
        "measured: {} filters; probed: a namespace met {}, a packet socket {}",
        cell.receipt.measured.seccomp_filters,
        cell.receipt.probed.new_namespace,
        cell.receipt.probed.packet_socket,
    ))) },
    LayerRow { name: "Landlock in a cell", probe: |cell| Some(ok(format!(
        "probed: the canary met {}", cell.receipt.probed.landlock_path,
    ))) },
    LayerRow { name: "host uid", probe: |cell| Some(ok(format!(
        "measured: cells run as host uid {}", cell.receipt.measured.host_uid,
    ))) },
    LayerRow { name: "mounts of a cell", probe: |cell| Some(ok(format!(
        "measured: {} checked one by one", cell.receipt.measured.mounts,
    ))) },
    LayerRow { name: "clocks of a cell", probe: |cell| Some(clocks(cell.receipt)) },
    LayerRow { name: "counts of a user", probe: |cell| Some(cell.own_ids.probe(cell.receipt.measured.host_uid)) },
    LayerRow { name: "memory limit", probe: |cell| {
        let ready = cell.ready?;
        Some(memory::limit(ready.memory, &ready.scope, cell.scope_rule, cell.platform))
    } },
];

/// Reports which monotonic and boot clocks cells read.
fn clocks(receipt: &Receipt) -> ProbeResult {
    match receipt.measured.namespaces.iter().any(|name| name == "time") {
        true => ok("measured: a time namespace, clocks begin with the supervisor"),
        false => weak("this kernel makes no time namespace: cells can read how long the host runs")
            .with_remedy("a kernel with CONFIG_TIME_NS (5.6 or later)"),
    }
}

/// Probes the layers of the host.
pub(super) fn host(machine: &Machine<'_>) -> Vec<LayerCheck> {
    let probe = |row: &LayerRow<HostProbe>| Some((row.probe)(machine)?.named(row.name));
    HOST.iter().filter_map(probe).collect()
}

/// Describes the layers of a cell.
pub(super) fn cell(facts: &CellFacts<'_>) -> Vec<LayerCheck> {
    let probe = |row: &LayerRow<CellProbe>| Some((row.probe)(facts)?.named(row.name));
    CELL.iter().filter_map(probe).collect()
}
