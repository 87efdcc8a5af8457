//! The memory layer of `doctor`, with the steps by which an ordinary user gets enforcement by the
//! kernel.

use std::path::Path;
use std::time::Duration;

use super::doctor::{LayerCheck, LayerState};
use super::surroundings::Surroundings;
use config::server::ScopeRule;
use model::receipt::MemoryHold;
use model::wire::ScopeResult;

const BY_HAND: &str = "start cofferdam as root, or in a systemd scope with delegation: systemd-run --user --scope \
    -p Delegate=yes cofferdam …";

const NO_MANAGER: &str = "have a service manager of your own: log in by ssh or on a terminal, or once, as root: \
    loginctl enable-linger USER; else start cofferdam as root";

/// Time beyond which asking for a scope counts as slow: longer than a server's first call waits for
/// one.
const SLOW: Duration = Duration::from_millis(50);

/// Describes the layer of the memory limit, as a real supervisor has it.
pub(crate) fn layer(
    hold: MemoryHold,
    scope: &ScopeResult,
    rule: ScopeRule,
    surroundings: Surroundings,
) -> LayerCheck {
    let booted = Path::new("/run/systemd/system").exists();
    let (how, remedy) = match (hold, scope) {
        (MemoryHold::CgroupV2, ScopeResult::Had { took, .. }) => (had(*took), None),
        (MemoryHold::CgroupV2, _) => ("cells are held by cgroup v2".to_owned(), None),
        (MemoryHold::CgroupV1, _) => ("cells are held by cgroup v1".to_owned(), None),
        (MemoryHold::BestEffort, scope) => {
            let remedy = remedy(scope, rule, booted);
            // An engine's container has no service manager; nothing asks it for a scope.
            (best_effort(scope), Some(surroundings.memory_remedy().unwrap_or(remedy)))
        }
    };
    let state = if remedy.is_some() { LayerState::Weak } else { LayerState::Ok };
    LayerCheck { name: "memory limit".to_owned(), state, how, remedy: remedy.map(str::to_owned) }
}

fn had(took: Duration) -> String {
    let slow = if took > SLOW { ", which is more than a server's first call waits" } else { "" };
    format!(
        "cells are held by cgroup v2: in a scope of systemd's, had in {} ms{slow}; `serve` asks for one, and `run` \
         with --memory",
        took.as_millis()
    )
}

fn best_effort(scope: &ScopeResult) -> String {
    let why = match scope {
        ScopeResult::Refused { why } => format!(" ({why})"),
        ScopeResult::NotAsked | ScopeResult::Had { .. } | ScopeResult::NoManager => String::new(),
    };
    format!("best-effort: no memory cgroup can be had{why}, a watchdog adds it up")
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

    fn described(
        hold: MemoryHold,
        scope: ScopeResult,
        rule: ScopeRule,
    ) -> (LayerState, String, Option<String>) {
        let layer = layer(hold, &scope, rule, Surroundings::Host);
        (layer.state, layer.how, layer.remedy)
    }

    #[test]
    fn a_hold_is_told_with_how_it_was_had() {
        let had = |millis| ScopeResult::Had {
            unit: "cofferdam-1.scope".to_owned(),
            took: Duration::from_millis(millis),
        };
        let end = "; `serve` asks for one, and `run` with --memory";
        let quick =
            format!("cells are held by cgroup v2: in a scope of systemd's, had in 12 ms{end}");
        assert_eq!(
            described(MemoryHold::CgroupV2, had(12), ScopeRule::Auto),
            (LayerState::Ok, quick, None)
        );
        let slow = format!(
            "cells are held by cgroup v2: in a scope of systemd's, had in 80 ms, which is more than a server's \
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
    fn a_container_is_told_of_its_engine_and_not_of_systemd() {
        for surroundings in [Surroundings::Docker, Surroundings::Podman, Surroundings::Kubernetes] {
            let scope = ScopeResult::NoManager;
            let layer = super::layer(MemoryHold::BestEffort, &scope, ScopeRule::Auto, surroundings);
            assert_eq!(layer.remedy.as_deref(), surroundings.memory_remedy());
            assert!(layer.remedy.is_some_and(|remedy| !remedy.contains("systemd")));
        }
    }

    #[test]
    fn what_is_not_held_has_its_reason_and_its_remedy() {
        let none = "best-effort: no memory cgroup can be had, a watchdog adds it up";
        let off = described(MemoryHold::BestEffort, ScopeResult::NotAsked, ScopeRule::Off);
        let remedy =
            "set `scope = \"auto\"` under [limits] in cofferdam.toml, or start cofferdam as root";
        assert_eq!(off, (LayerState::Weak, none.to_owned(), Some(remedy.to_owned())));
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
