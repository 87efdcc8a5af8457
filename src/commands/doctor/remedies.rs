//! Remedies of `doctor` that are longer than a line, or that depend on the machine. Those of a platform are in `platform`.

use nix::errno::Errno;

use super::machine::Machine;

/// First kernel with clone3(2).
const CLONE3: (u32, u32) = (5, 3);

pub(super) const INITRAMFS_ROOT: &str = "the root is the initramfs, which cannot be left by pivot_root(2): start \
    from a root of its own, such as a tmpfs with a copy of it: mount -t tmpfs none /mnt && \
    cp -ax / /mnt && exec switch_root /mnt /sbin/init";

/// For a process that may have too few open files.
pub(crate) const OPEN_FILES: &str = "raise the hard limit, as root: `ulimit -Hn 4096` in the shell \
    that starts cofferdam, LimitNOFILE=4096 in its systemd unit, --ulimit nofile=4096 for its \
    container";

/// For root without the right to change ids, as in a container without capabilities.
pub(crate) const ROOT_WITHOUT_IDS: &str = "root needs CAP_SETUID, CAP_SETGID and CAP_SETFCAP to give cells other ids, and does \
    not have them in this container; an ordinary user needs no capability: start cofferdam as one (docker and podman: \
    --user 1000:1000; a pod: runAsUser: 1000)";

/// For a kernel or a system that makes no user namespaces.
pub(super) fn user_namespaces(machine: &Machine<'_>) -> String {
    let errno = machine.namespaces.clone;
    if let Some(missing) = machine.missing_namespace {
        let name = missing.name;
        let option = missing.option;
        format!("this kernel has no {name} namespaces: boot one that was built with {option}")
    } else if errno == cell::report::raw(Errno::ENOSYS) && is_older(&machine.release, CLONE3) {
        format!("this kernel is {}: boot Linux 5.19 or newer", machine.release)
    } else if machine.max_user_namespaces == Some(0) || errno == cell::report::raw(Errno::ENOSPC) {
        "as root: sysctl -w user.max_user_namespaces=15000".to_owned()
    } else if machine.debian_switch == Some(0) {
        "as root: sysctl -w kernel.unprivileged_userns_clone=1".to_owned()
    } else {
        machine.platform.remedy().to_owned()
    }
}

/// For an id that cannot be mapped.
pub(super) fn id_maps() -> String {
    let remedy = match nix::unistd::geteuid().is_root() {
        true => ROOT_WITHOUT_IDS,
        false => "run as a user whose id this user namespace maps",
    };
    remedy.to_owned()
}

/// For a /proc of which parts are masked.
pub(super) fn procfs(machine: &Machine<'_>) -> String {
    match machine.namespaces.mount {
        0 => format!("parts of /proc are masked here: {}", machine.platform.remedy()),
        _ => "mounts first".to_owned(),
    }
}

/// For namespaces in which nothing can be mounted.
pub(super) fn mounts(machine: &Machine<'_>) -> String {
    if machine.apparmor {
        format!(
            "as root, put this into /etc/apparmor.d/cofferdam and run `apparmor_parser -r \
             /etc/apparmor.d/cofferdam`: abi <abi/4.0>, include <tunables/global> profile \
             cofferdam {} flags=(unconfined) {{ userns, }}",
            machine.program
        )
    } else {
        machine.platform.remedy().to_owned()
    }
}

/// Returns true if a release, such as `5.2.0-arch1`, is older than `oldest`.
fn is_older(release: &str, oldest: (u32, u32)) -> bool {
    let mut numbers = release.split(['.', '-', '+']).map_while(|word| word.parse::<u32>().ok());
    let Some(major) = numbers.next() else { return false };
    let minor = numbers.next().unwrap_or(0);
    (major, minor) < oldest
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
}
