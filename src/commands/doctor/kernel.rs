//! Probes of what a cell needs from the kernel: Landlock, a filter with a listener, a network.

use std::path::Path;

use model::egress::ECHO_REMEDY;
use model::outcome::errno_text;
use nix::errno::Errno;

use super::layer::{ProbeResult, missing, ok, refusal, weak};
use super::platform::Platform;
use super::trials;

/// Describes one step of the trial of namespaces by its errno, 0 for a step that worked.
pub(super) fn step(errno: i32, how: &str, remedy: impl FnOnce() -> String) -> ProbeResult {
    match errno {
        0 => ok(how),
        _ => {
            let how = format!("refused: {}", errno_text(errno));
            missing(how).with_remedy(remedy())
        }
    }
}

/// Asks for Landlock's version; the cells show that it holds.
pub(super) fn landlock() -> ProbeResult {
    match cell::landlock::kernel_abi() {
        0 => missing("this kernel has none, or it is switched off")
            .with_remedy("boot Linux 5.19 or newer with `landlock` in lsm= (see /proc/cmdline)"),
        1 => {
            missing("ABI 1; the default profiles require 2").with_remedy("boot Linux 5.19 or newer")
        }
        abi @ 2..=5 => {
            ok(format!("ABI {abi}; signals and abstract sockets are held by namespaces alone"))
        }
        abi => ok(format!("ABI {abi}")),
    }
}

/// Describes why a filter cannot have a listener, by which refused calls are counted. `None` if it can.
pub(super) fn filter_listener(platform: Platform) -> Option<ProbeResult> {
    let errno = trials::filter_listener().err()?;
    let is_unknown = [Errno::EINVAL, Errno::ENOSYS, Errno::EOPNOTSUPP].contains(&errno);
    let (reason, remedy) = if errno == Errno::EBUSY {
        (
            "this process is under a filter that has a listener, and a process can have one only",
            "start cofferdam outside of that filter: in a container, with a seccomp profile without SCMP_ACT_NOTIFY",
        )
    } else if is_unknown && platform != Platform::Gvisor {
        (
            "this kernel does not report calls that a filter refuses (seccomp_unotify(2))",
            "boot Linux 5.19 or newer with CONFIG_SECCOMP_FILTER",
        )
    } else {
        ("a filter with a listener is refused", platform.remedy())
    };
    Some(missing(refusal(reason, errno)).with_remedy(remedy))
}

/// Tries the network of cells with egress, then what the gateway needs of the host. Only cells with egress lack it.
pub(super) fn network(platform: Platform) -> ProbeResult {
    let Err(errno) = trials::network() else { return gateway() };
    let (reason, remedy) = if errno == Errno::EOPNOTSUPP {
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
        ("no network can be made for a cell", platform.remedy())
    };
    weak(refusal(reason, errno)).with_remedy(remedy)
}

/// Looks for what the gateway needs of the host: resolvers, and the right to send echo requests.
fn gateway() -> ProbeResult {
    const MADE: &str = "a pair of links and a packet socket can be made";
    if gateway::host::resolvers(Path::new("/etc/resolv.conf")).is_empty() {
        return weak(format!("{MADE}; /etc/resolv.conf names no resolver"))
            .with_remedy("name one, `nameserver ADDRESS`; rules by address work without");
    }
    // A file that cannot be read is not reported: it says nothing about echo requests.
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ping_group_range").unwrap_or_default();
    let ends: Vec<u64> = range.split_whitespace().filter_map(|end| end.parse().ok()).collect();
    match ends.as_slice() {
        // The kernel's default, `1 0`, is an empty range of groups.
        [low, high] if low > high => weak(format!(
            "{MADE}; no program may send echo requests, so ping and traceroute -I go nowhere"
        ))
        .with_remedy(ECHO_REMEDY),
        _ => ok(MADE),
    }
}
