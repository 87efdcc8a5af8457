//! Description of the memory limit, with the steps by which an ordinary user gets one that the kernel enforces.

use std::path::Path;
use std::time::Duration;

use super::layer::{ProbeResult, ok, weak};
use super::platform::Platform;
use config::server::ScopeRule;
use model::receipt::MemoryHold;
use model::wire::ScopeResult;

/// Remedy on a machine without a service manager for users.
const BY_HAND: &str = "start cofferdam as root, or in a systemd scope with delegation: systemd-run --user --scope \
    -p Delegate=yes cofferdam …";

/// Remedy for a user without a service manager.
const NO_MANAGER: &str = "start your service manager: log in by ssh or on a terminal, or once, as root: \
    loginctl enable-linger USER; else start cofferdam as root";

/// Time for which a server's first call waits for a scope.
const SLOW_SCOPE: Duration = Duration::from_millis(50);

/// Describes how a supervisor limits memory.
pub(super) fn limit(
    hold: MemoryHold,
    scope: &ScopeResult,
    rule: ScopeRule,
    platform: Platform,
) -> ProbeResult {
    let booted = Path::new("/run/systemd/system").exists();
    match (hold, scope) {
        (MemoryHold::CgroupV2, ScopeResult::Granted { took, .. }) => ok(in_scope(*took)),
        (MemoryHold::CgroupV2, _) => ok("cells are held by cgroup v2"),
        (MemoryHold::CgroupV1, _) => ok("cells are held by cgroup v1"),
        (MemoryHold::BestEffort, scope) => {
            // An engine's container has no service manager to ask for a scope.
            let remedy = platform.memory_remedy().unwrap_or(remedy(scope, rule, booted));
            weak(best_effort(scope)).with_remedy(remedy)
        }
    }
}

fn in_scope(took: Duration) -> String {
    let slow =
        if took > SLOW_SCOPE { ", which is more than a server's first call waits" } else { "" };
    format!(
        "cells are held by cgroup v2: in a scope of systemd, made in {} ms{slow}; `serve` asks for one, and `run` \
         with --memory",
        took.as_millis()
    )
}

fn best_effort(scope: &ScopeResult) -> String {
    let reason = match scope {
        ScopeResult::Refused { why } => format!(" ({why})"),
        ScopeResult::NotAsked | ScopeResult::Granted { .. } | ScopeResult::NoManager => {
            String::new()
        }
    };
    format!("best-effort: no memory cgroup can be had{reason}, a watchdog adds it up")
}

fn remedy(scope: &ScopeResult, rule: ScopeRule, booted: bool) -> &'static str {
    match (scope, rule) {
        (ScopeResult::NotAsked, ScopeRule::Off) => {
            "set `scope = \"auto\"` under [limits] in cofferdam.toml, or start cofferdam as root"
        }
        (ScopeResult::NoManager, _) if booted => NO_MANAGER,
        _ => BY_HAND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::layer::LayerState;

    fn described(
        hold: MemoryHold,
        scope: ScopeResult,
        rule: ScopeRule,
    ) -> (LayerState, String, Option<String>) {
        let result = limit(hold, &scope, rule, Platform::Host);
        (result.state, result.how, result.remedy)
    }

    #[test]
    fn a_scope_is_reported_with_its_time() {
        let had = |millis| ScopeResult::Granted {
            unit: "cofferdam-1.scope".to_owned(),
            took: Duration::from_millis(millis),
        };
        let end = "; `serve` asks for one, and `run` with --memory";
        let quick =
            format!("cells are held by cgroup v2: in a scope of systemd, made in 12 ms{end}");
        assert_eq!(
            described(MemoryHold::CgroupV2, had(12), ScopeRule::Auto),
            (LayerState::Ok, quick, None)
        );
        let slow = format!(
            "cells are held by cgroup v2: in a scope of systemd, made in 80 ms, which is more than a server's \
             first call waits{end}"
        );
        assert_eq!(
            described(MemoryHold::CgroupV2, had(80), ScopeRule::Auto),
            (LayerState::Ok, slow, None)
        );
        for (hold, how) in [(MemoryHold::CgroupV2, "v2"), (MemoryHold::CgroupV1, "v1")] {
            let how = format!("cells are held by cgroup {how}");
            assert_eq!(
                described(hold, ScopeResult::NotAsked, ScopeRule::Auto),
                (LayerState::Ok, how, None)
            );
        }
    }

    #[test]
    fn the_remedy_in_a_container_is_for_its_engine() {
        for platform in [Platform::Docker, Platform::Podman, Platform::Kubernetes] {
            let scope = ScopeResult::NoManager;
            let result = limit(MemoryHold::BestEffort, &scope, ScopeRule::Auto, platform);
            assert_eq!(result.remedy.as_deref(), platform.memory_remedy());
            assert!(result.remedy.is_some_and(|remedy| !remedy.contains("systemd")));
        }
    }

    #[test]
    fn a_missing_control_group_has_its_reason_and_its_remedy() {
        let unenforced = "best-effort: no memory cgroup can be had, a watchdog adds it up";
        let off = described(MemoryHold::BestEffort, ScopeResult::NotAsked, ScopeRule::Off);
        let remedy =
            "set `scope = \"auto\"` under [limits] in cofferdam.toml, or start cofferdam as root";
        assert_eq!(off, (LayerState::Weak, unenforced.to_owned(), Some(remedy.to_owned())));
        assert_eq!(super::remedy(&ScopeResult::NoManager, ScopeRule::Auto, true), NO_MANAGER);
        assert_eq!(super::remedy(&ScopeResult::NoManager, ScopeRule::Auto, false), BY_HAND);
        let refused =
            ScopeResult::Refused { why: "the service manager did not answer in time".to_owned() };
        let how = "best-effort: no memory cgroup can be had (the service manager did not answer in time), a \
                   watchdog adds it up";
        let described = described(MemoryHold::BestEffort, refused, ScopeRule::Auto);
        assert_eq!(described, (LayerState::Weak, how.to_owned(), Some(BY_HAND.to_owned())));
    }
}
