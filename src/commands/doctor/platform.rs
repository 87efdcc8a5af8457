//! The container engine or the virtual machine that this process runs in, and the remedies that can be applied there.

use std::path::Path;

/// First UTS namespace of a kernel (`PROC_UTS_INIT_INO` of linux/proc_ns.h): engines give a container another.
const FIRST_UTS: &str = "uts:[4026531838]";
/// Date of build in the `/proc/version` of every release of gVisor.
const GVISOR_BUILD: &str = "Sun Jan 10 15:06:54 PST 2016";

/// Engine or virtual machine in which this process runs, detected by files and variables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Platform {
    /// No sign of any other.
    #[default]
    Host,
    Docker,
    Podman,
    Kubernetes,
    /// A `container:` job of GitHub Actions.
    ActionsJob,
    /// A container that an editor made from a devcontainer.json.
    DevContainer,
    /// A container of an engine that is not recognised.
    Container,
    /// Linux calls on a kernel in user space.
    Gvisor,
    /// Linux calls on the kernel of Windows.
    Wsl1,
    /// A virtual machine of Windows.
    Wsl2,
}

/// Files and variables by which a platform is detected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Signs {
    /// `/proc/version`.
    kernel: String,
    /// True in the UTS namespace with which the kernel started.
    is_first: bool,
    docker_file: bool,
    podman_file: bool,
    kubernetes: bool,
    actions: bool,
    dev_container: bool,
    /// Variable `container`, by which an engine names itself.
    named: String,
}

impl Signs {
    fn read() -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let exists = |path: &str| Path::new(path).exists();
        let first = std::fs::read_link("/proc/self/ns/uts").ok();
        Self {
            kernel: std::fs::read_to_string("/proc/version").unwrap_or_default(),
            is_first: first.is_some_and(|link| link == Path::new(FIRST_UTS)),
            docker_file: exists("/.dockerenv"),
            podman_file: exists("/run/.containerenv"),
            kubernetes: set("KUBERNETES_SERVICE_HOST"),
            actions: set("GITHUB_ACTIONS"),
            dev_container: set("REMOTE_CONTAINERS") || set("CODESPACES") || set("DEVCONTAINER"),
            named: std::env::var("container").unwrap_or_default(),
        }
    }
}

impl Platform {
    /// Detects the platform of this process.
    #[must_use]
    pub fn detect() -> Self {
        Self::from_signs(&Signs::read())
    }

    fn from_signs(signs: &Signs) -> Self {
        if signs.kernel.contains(GVISOR_BUILD) || signs.kernel.contains("gvisor") {
            return Self::Gvisor;
        }
        // An image of a container that is booted as a virtual machine still has the file of its engine.
        let is_container = (signs.docker_file || signs.podman_file || !signs.named.is_empty())
            && (!signs.is_first || signs.podman_file);
        match signs {
            Signs { kubernetes: true, .. } => Self::Kubernetes,
            Signs { actions: true, .. } if is_container => Self::ActionsJob,
            Signs { dev_container: true, .. } if is_container => Self::DevContainer,
            Signs { podman_file: true, .. } => Self::Podman,
            // The file is hidden where something else is mounted at /run.
            Signs { named, .. } if is_container && named == "podman" => Self::Podman,
            Signs { docker_file: true, .. } if is_container => Self::Docker,
            _ if is_container => Self::Container,
            Signs { kernel, .. } if kernel.contains("WSL2") => Self::Wsl2,
            Signs { kernel, .. } if kernel.contains("Microsoft") => Self::Wsl1,
            _ => Self::Host,
        }
    }

    /// Returns the name for the report. A plain host has no line there.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Host => return None,
            Self::Docker => "a container of Docker",
            Self::Podman => "a container of Podman",
            Self::Kubernetes => "a container of Kubernetes",
            Self::ActionsJob => "a container job of GitHub Actions",
            Self::DevContainer => "a dev container",
            Self::Container => "a container",
            Self::Gvisor => "gVisor",
            Self::Wsl1 => "WSL 1",
            Self::Wsl2 => "WSL 2",
        })
    }

    /// Returns true for a container, whose engine decides what it may do.
    #[must_use]
    pub fn is_container(self) -> bool {
        !matches!(self, Self::Host | Self::Gvisor | Self::Wsl1 | Self::Wsl2)
    }

    /// Returns the settings of the engine that allow cells.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Docker => {
                "start the container with --user 1000:1000 --security-opt seccomp=cofferdam.json --security-opt \
                 systempaths=unconfined, and where AppArmor is in force --security-opt apparmor=unconfined; `cofferdam \
                 doctor --seccomp` prints that file, docs/containers.md has the whole command"
            }
            Self::Podman => {
                "start the container with --user 1000:1000 --security-opt seccomp=cofferdam.json --security-opt \
                 unmask=ALL; `cofferdam doctor --seccomp` prints that file, docs/containers.md has the whole command"
            }
            Self::Kubernetes => {
                "in the pod: hostUsers: false; in the container's securityContext: procMount: Unmasked, runAsUser: 1000, \
                 seccompProfile: {type: Localhost, localhostProfile: cofferdam.json}; `cofferdam doctor --seccomp` prints \
                 that file for the nodes, docs/containers.md has a whole pod"
            }
            Self::ActionsJob => {
                "in the job: container: {options: --user 1001 --security-opt seccomp=unconfined --security-opt \
                 apparmor=unconfined --security-opt systempaths=unconfined}, or run the job without `container:`; \
                 docs/github-actions.md"
            }
            Self::DevContainer => {
                "in devcontainer.json: \"securityOpt\": [\"seccomp=unconfined\", \"apparmor=unconfined\", \
                 \"systempaths=unconfined\"], then rebuild the container; docs/dev-containers.md has a smaller grant"
            }
            Self::Gvisor => {
                "gVisor has neither Landlock nor a listener for filters: no cell can be made in it; run cofferdam \
                 outside of gVisor, on a Linux kernel"
            }
            Self::Wsl1 => {
                "WSL 1 has no Linux kernel: convert the distribution, wsl --set-version NAME 2"
            }
            Self::Host | Self::Wsl2 | Self::Container => {
                "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt systempaths=unconfined; in Kubernetes: hostUsers: false, procMount: Unmasked and a \
                 seccomp profile that permits user namespaces"
            }
        }
    }

    /// Returns the settings of the engine that give cells a control group for memory. `None` outside of containers.
    #[must_use]
    pub fn memory_remedy(self) -> Option<&'static str> {
        self.is_container().then_some(
            "give the container a control group that it may write to (cgroup v2; docs/containers.md, \
             \"Memory\"), or bound the container as a whole: --memory for Docker and Podman, resources.limits.memory in \
             a pod",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> Signs {
        Signs { kernel: "Linux version 6.12.0".to_owned(), ..Signs::default() }
    }

    #[test]
    fn each_engine_is_detected_by_its_sign() {
        let detected = |signs: Signs| Platform::from_signs(&signs);
        assert_eq!(detected(container()), Platform::Host);
        assert_eq!(detected(Signs { docker_file: true, ..container() }), Platform::Docker);
        assert_eq!(detected(Signs { podman_file: true, ..container() }), Platform::Podman);
        let pod = Signs { kubernetes: true, docker_file: true, ..container() };
        assert_eq!(detected(pod), Platform::Kubernetes);
        let named = |name: &str| Signs { named: name.to_owned(), ..container() };
        assert_eq!(detected(named("lxc")), Platform::Container);
        assert_eq!(detected(named("podman")), Platform::Podman);
        let job = Signs { docker_file: true, actions: true, ..container() };
        assert_eq!(detected(job), Platform::ActionsJob);
        let editor = Signs { docker_file: true, dev_container: true, ..container() };
        assert_eq!(detected(editor), Platform::DevContainer);
    }

    #[test]
    fn a_virtual_machine_is_not_a_container() {
        let booted = Signs { docker_file: true, is_first: true, ..container() };
        assert_eq!(Platform::from_signs(&booted), Platform::Host);
        let runner = Signs { actions: true, is_first: true, ..container() };
        assert_eq!(Platform::from_signs(&runner), Platform::Host);
        let kernel = |kernel: &str| Signs { kernel: kernel.to_owned(), ..container() };
        let wsl2 = kernel("Linux version 6.6.87.2-microsoft-standard-WSL2 (root@x)");
        assert_eq!(Platform::from_signs(&wsl2), Platform::Wsl2);
        let wsl1 = kernel("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)");
        assert_eq!(Platform::from_signs(&wsl1), Platform::Wsl1);
        let docker_on_wsl = Signs { docker_file: true, ..wsl2 };
        assert_eq!(Platform::from_signs(&docker_on_wsl), Platform::Docker);
        let gvisor = kernel("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016");
        let gvisor = Signs { docker_file: true, ..gvisor };
        assert_eq!(Platform::from_signs(&gvisor), Platform::Gvisor);
    }

    #[test]
    fn every_container_has_a_remedy_that_its_engine_understands() {
        let remedy = |platform: Platform| platform.remedy();
        assert!(remedy(Platform::Docker).contains("systempaths=unconfined"));
        assert!(remedy(Platform::Podman).contains("unmask=ALL"));
        assert!(remedy(Platform::Kubernetes).contains("hostUsers: false"));
        assert!(Platform::Host.memory_remedy().is_none());
        assert!(Platform::Podman.memory_remedy().is_some_and(|text| text.contains("--memory")));
    }
}
