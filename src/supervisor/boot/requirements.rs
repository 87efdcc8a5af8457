//! Checks what profiles require from the host, and says why one cannot be used.

use crate::cells::key::Unusable;
use crate::rootfs::error::TemplateError;
use cell::cgroup::Parent;
use model::core_dumps::CoreHandler;
use model::profile::tier::LANDLOCK_ABI;
use model::profile::{Exec, Profile};
use model::receipt::{MemoryHold, Tier};

/// Minimum hard limit on open files for a profile with a single program, which its cells hold at
/// descriptor 1000.
pub const OPEN_FILES_HELD: u64 = 1024;

/// Reads the core dump handler of this machine.
#[must_use]
pub fn core_handler() -> CoreHandler {
    match std::fs::read("/proc/sys/kernel/core_pattern") {
        Ok(pattern) => CoreHandler::of_pattern(&pattern),
        Err(_) => CoreHandler::Unknown,
    }
}

/// Explains why a key of `profile` is unusable whose template could not be built.
pub(crate) fn unusable(profile: &Profile, error: &TemplateError) -> Unusable {
    let missing_program = match (&profile.exec, error) {
        (Exec::Only(program), TemplateError::Missing { path }) if program == path => {
            path.file_name().map(|name| name.to_string_lossy().into_owned())
        }
        _ => None,
    };
    Unusable { why: error.to_string(), missing_program }
}

fn refuse(why: String) -> Result<(), Unusable> {
    Err(Unusable { why, missing_program: None })
}

/// Checks that this host meets the requirements of the profile, except for control groups.
pub(crate) fn usable(
    profile: &Profile,
    landlock_abi: u32,
    gateway: bool,
    cores: CoreHandler,
) -> Result<(), Unusable> {
    // At least ABI 2, whatever the profile says: ABI 1 cannot control renames and links across
    // directories (landlock(7)).
    let (minimum, required_by) = match profile.tier {
        Tier::Full => (2, ""),
        Tier::Bare => (LANDLOCK_ABI, " by the tier landlock+seccomp"),
    };
    let needed = profile.requires.landlock_abi.max(minimum);
    if landlock_abi < needed {
        return refuse(format!(
            "Landlock ABI {needed} is required{required_by}, this kernel has {landlock_abi}; \
             `cofferdam doctor` has the remedy"
        ));
    }
    if profile.egress.class.has_egress() && !(gateway && profile.tier == Tier::Full) {
        let class = profile.egress.class.name();
        return refuse(match profile.tier {
            Tier::Full => format!("the network class `{class}` needs a gateway, and none runs"),
            Tier::Bare => {
                format!("the network class `{class}` needs namespaces, which this tier has not")
            }
        });
    }
    let (soft, hard) = cell::limits::core_limits().unwrap_or_default();
    if !cores.may_have(soft, hard) {
        return refuse(format!(
            "a crash would start the host's core handler: the limit of core files is {soft} {hard} here, and only 1 \
             prevents that; `cofferdam doctor` has the remedy"
        ));
    }
    let (_, max) = rlimit::getrlimit(rlimit::Resource::NOFILE).unwrap_or_default();
    if matches!(profile.exec, Exec::Only(_)) && max < OPEN_FILES_HELD {
        return refuse(format!(
            "{max} open files are allowed here, and {OPEN_FILES_HELD} are needed; `cofferdam doctor` \
             has the remedy"
        ));
    }
    Ok(())
}

/// Checks that the available control groups can enforce what the profile requires.
pub(crate) fn can_hold(profile: &Profile, cgroups: &Parent) -> Result<(), Unusable> {
    let mechanism = cgroups.hold();
    if profile.requires.memory_cgroup && mechanism == MemoryHold::BestEffort {
        return refuse("a memory cgroup is required and none can be had".to_owned());
    }
    if profile.limits.processors.is_some() && !cgroups.shares_processors() {
        return refuse(
            "a share of the processors is a limit that needs cgroup v2 with `cpu`, and it cannot be had"
                .to_owned(),
        );
    }
    Ok(())
}
