//! Probes of `doctor` for what a kernel may lack: each namespace by itself, and a listener for filters.
//!
//! Each is tried in a process that ends with the trial, which answers by its exit code.

use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::doctor::{LayerCheck, LayerState};
use super::surroundings::Surroundings;
use cell::network::NetworkPlan;
use sys::bpf::{self, Instruction};
use sys::fork::fork;
use sys::process::{self, Side};

/// One kind of namespace, and the option of the kernel's configuration that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceKind {
    flag: CloneFlags,
    pub name: &'static str,
    pub option: &'static str,
}

const fn kind(flag: CloneFlags, name: &'static str, option: &'static str) -> NamespaceKind {
    NamespaceKind { flag, name, option }
}

/// The namespaces of a cell. That of users comes first: the others take its rights.
const KINDS: [NamespaceKind; 7] = [
    kind(CloneFlags::CLONE_NEWUSER, "user", "CONFIG_USER_NS"),
    kind(CloneFlags::CLONE_NEWNS, "mount", "CONFIG_NAMESPACES"),
    kind(CloneFlags::CLONE_NEWPID, "pid", "CONFIG_PID_NS"),
    kind(CloneFlags::CLONE_NEWNET, "network", "CONFIG_NET_NS"),
    kind(CloneFlags::CLONE_NEWIPC, "IPC", "CONFIG_IPC_NS"),
    kind(CloneFlags::CLONE_NEWUTS, "UTS", "CONFIG_UTS_NS"),
    kind(CloneFlags::CLONE_NEWCGROUP, "cgroup", "CONFIG_CGROUPS"),
];

/// Exit code of a trial that worked.
const WORKED: i32 = 0;

/// Runs `trial` in a process of its own; it returns an exit code.
fn apart(trial: impl FnOnce() -> i32) -> Result<i32, Errno> {
    match fork()? {
        Side::Child => process::exit_now(trial()),
        Side::Parent(child) => {
            let ended = waitpid(Pid::from_raw(child.pid), None)?;
            // Else a filter has killed it.
            if let WaitStatus::Exited(_, code) = ended { Ok(code) } else { Err(Errno::EPERM) }
        }
    }
}

/// Returns the first kind of namespace that this kernel does not have, each tried by itself; none if it has them all, or
/// refuses them for another reason. Needs a single-threaded caller.
pub fn missing_namespace() -> Option<NamespaceKind> {
    let lacks = |kind: &NamespaceKind| unshare(kind.flag) == Err(Errno::EINVAL);
    let trial = || {
        let found = KINDS.iter().zip(1..).find(|(kind, _)| lacks(kind));
        found.map_or(WORKED, |(_, number)| number)
    };
    let number = usize::try_from(apart(trial).ok()?).ok()?;
    KINDS.get(number.checked_sub(1)?).copied()
}

/// Describes the listener by which refused calls are counted, if none can be had. Needs a single-threaded caller.
pub fn listener_layer(surroundings: Surroundings) -> Option<LayerCheck> {
    const ALLOW: Instruction = Instruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
    let trial = || {
        let loaded = process::set_no_new_privs().and_then(|()| bpf::load_with_listener(&[ALLOW]));
        loaded.err().map_or(WORKED, cell::report::raw)
    };
    let errno = match apart(trial) {
        Ok(WORKED) => return None,
        Ok(raw) => Errno::from_raw(raw),
        Err(errno) => errno,
    };
    let lacks = [Errno::EINVAL, Errno::ENOSYS, Errno::EOPNOTSUPP].contains(&errno);
    let (why, remedy) = if errno == Errno::EBUSY {
        (
            "this process is under a filter that has a listener, and a process can have one only",
            "start cofferdam outside of that filter: in a container, with a seccomp profile without SCMP_ACT_NOTIFY",
        )
    } else if lacks && surroundings != Surroundings::Gvisor {
        (
            "this kernel tells nobody of a call that a filter refuses (seccomp_unotify(2))",
            "boot Linux 5.19 or newer with CONFIG_SECCOMP_FILTER",
        )
    } else {
        ("a filter with a listener is refused", surroundings.remedy())
    };
    Some(LayerCheck {
        name: "listener of filters".to_owned(),
        state: LayerState::Missing,
        how: format!("{why}: {}", model::outcome::errno_text(cell::report::raw(errno))),
        remedy: Some(remedy.to_owned()),
    })
}

/// Describes the network of cells with egress, by making one in a namespace of its own, and what the gateway needs of the
/// host. Needs a single-threaded caller.
pub fn network_layer(surroundings: Surroundings) -> LayerCheck {
    let errno = match apart(network_trial) {
        Ok(WORKED) => return gateway_layer(),
        Ok(raw) => Errno::from_raw(raw),
        Err(errno) => errno,
    };
    let (why, remedy) = if errno == Errno::EOPNOTSUPP {
        (
            "this kernel has no veth",
            "modprobe veth, or a kernel with CONFIG_VETH; only profiles with egress need it",
        )
    } else if errno == Errno::EAFNOSUPPORT {
        (
            "this kernel has no packet sockets",
            "modprobe af_packet, or a kernel with CONFIG_PACKET; only profiles with egress need it",
        )
    } else {
        ("no network of its own can be made", surroundings.remedy())
    };
    LayerCheck {
        name: NETWORK.to_owned(),
        // Only cells with egress lack it.
        state: LayerState::Weak,
        how: format!("{why}: {}", model::outcome::errno_text(cell::report::raw(errno))),
        remedy: Some(remedy.to_owned()),
    }
}

/// Returns true if cells can have a network. Needs a single-threaded caller.
pub fn can_have_a_network() -> bool {
    apart(network_trial) == Ok(WORKED)
}

/// Makes the network of a cell in a namespace that ends with the trial.
fn network_trial() -> i32 {
    let namespaces = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET;
    let made = unshare(namespaces).and_then(|()| NetworkPlan::new().attempt());
    made.err().map_or(WORKED, cell::report::raw)
}

/// Name of the layer of cells with egress.
const NETWORK: &str = "network by the gateway";

/// Describes what the gateway needs of the host: resolvers, and leave to send echo requests.
fn gateway_layer() -> LayerCheck {
    let layer = |state, how: &str, remedy: Option<&str>| LayerCheck {
        name: NETWORK.to_owned(),
        state,
        how: how.to_owned(),
        remedy: remedy.map(str::to_owned),
    };
    if gateway::host::resolvers(Path::new("/etc/resolv.conf")).is_empty() {
        let how =
            "a pair of links and a packet socket can be made; /etc/resolv.conf names no resolver";
        let remedy = "name one, `nameserver ADDRESS`; rules by address work without";
        return layer(LayerState::Weak, how, Some(remedy));
    }
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ping_group_range").unwrap_or_default();
    let ends: Vec<u64> = range.split_whitespace().filter_map(|end| end.parse().ok()).collect();
    // As it is unless somebody sets it: nobody may.
    match ends.as_slice() {
        [low, high] if low > high => layer(
            LayerState::Weak,
            "a pair of links and a packet socket can be made; no program may send echo requests, so ping and traceroute -I go nowhere",
            Some("sysctl -w net.ipv4.ping_group_range='0 2147483647'"),
        ),
        _ => layer(LayerState::Ok, "a pair of links and a packet socket can be made", None),
    }
}

/// Returns true if a release, such as `5.2.0-arch1`, is older than `least`.
pub fn is_older(release: &str, least: (u32, u32)) -> bool {
    let mut numbers = release.split(['.', '-', '+']).map_while(|word| word.parse::<u32>().ok());
    let (Some(major), minor) = (numbers.next(), numbers.next().unwrap_or(0)) else { return false };
    (major, minor) < least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for old in ["4.19.0-27-amd64", "5.2", "3.10.0-1160.el7.x86_64", "5.18.19"] {
            assert!(is_older(old, (5, 19)), "{old}");
        }
        for new in ["5.19.0", "6.1.0-18-cloud-amd64", "10.0", "unknown"] {
            assert!(!is_older(new, (5, 19)), "{new}");
        }
    }

    #[test]
    fn this_machine_lacks_nothing_that_a_cell_takes() {
        // In a thread of the test program: the child has but one, and touches no lock.
        assert_eq!(missing_namespace(), None);
        assert_eq!(listener_layer(Surroundings::Host), None);
        let network = network_layer(Surroundings::Host);
        assert!(network.how.starts_with("a pair of links and a packet socket"), "{network:?}");
    }
}
