//! Judges attacks: observed effects outside of the sandbox take precedence over the program's
//! output.

use serde::Serialize;

use super::corpus::{Attack, ControlMode, Harm, When, Whom};
use super::run_result::Ran;
use super::served::ToolServer;
use super::stage;
use super::targets::Sandbox;

/// The sandbox that the corpus runs against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `cofferdam run`.
    Own,
    /// The same in the tier `landlock+seccomp`.
    Lower,
    Other(Box<Sandbox>),
    /// A server with a shell tool.
    Served(Box<ToolServer>),
}

/// Result of running an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub ran: Ran,
    /// Effects on targets outside of the sandbox, one sentence each.
    pub hits: Vec<String>,
}

/// Result of the positive control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlResult {
    /// The attack worked without a sandbox.
    Yes,
    /// The attack cannot be tried here, for this reason.
    NotHere(String),
    /// A filter around this process refuses it to everyone, with this output.
    FilteredHere { said: String },
    /// The attack should have worked and did not; describes the observation.
    Failed(String),
}

/// A verdict on one attack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum AttackVerdict {
    Held {
        /// Why the control proves nothing here; absent if it worked.
        #[serde(skip_serializing_if = "Option::is_none")]
        unshown: Option<String>,
    },
    Breach {
        seen: String,
    },
    /// Neither held nor a breach: an error, never a pass.
    NoVerdict {
        seen: String,
    },
    /// A breach that SECURITY.md documents; for cofferdam only.
    Known {
        seen: String,
        why: String,
    },
    NotApplicable {
        why: String,
    },
}

impl AttackVerdict {
    /// Returns the verdict as the JSON report names it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Held { .. } => "held",
            Self::Breach { .. } => "breach",
            Self::NoVerdict { .. } => "no_verdict",
            Self::Known { .. } => "known",
            Self::NotApplicable { .. } => "not_applicable",
        }
    }

    /// Returns true unless the attack was held or does not apply.
    pub(crate) fn needs_attention(&self) -> bool {
        match self {
            Self::Breach { .. } | Self::NoVerdict { .. } | Self::Known { .. } => true,
            Self::Held { .. } | Self::NotApplicable { .. } => false,
        }
    }
}

/// Mechanism that limits the memory of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    ControlGroup,
    BestEffort,
}

/// A system call filter that was already in force when this process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OuterFilter {
    None,
    Some,
}

/// Separation of a sandbox's mount and pid namespaces from the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Both are separate.
    Own,
    /// At least one is the host's, or this could not be determined.
    Shared,
}

/// Turns a breach into [`AttackVerdict::Known`] if it is a known one.
pub fn known(
    probe: &Attack,
    target: &Target,
    memory: Memory,
    verdict: AttackVerdict,
) -> AttackVerdict {
    let expected = probe.known.as_ref().filter(|known| match (known.when, memory) {
        (When::Always, _) | (When::BestEffortMemory, Memory::BestEffort) => true,
        (When::BestEffortMemory, Memory::ControlGroup) => false,
    });
    let reason = match target {
        Target::Own => expected.map(|known| &known.why),
        Target::Lower => probe.lower.breach.as_ref().or(expected.map(|known| &known.why)),
        Target::Other(_) | Target::Served(_) => None,
    };
    match (verdict, reason) {
        (AttackVerdict::Breach { seen }, Some(reason)) => {
            AttackVerdict::Known { seen, why: reason.clone() }
        }
        (verdict, _) => verdict,
    }
}

/// Returns the reason for not running an attack, if there is one.
pub fn not_applicable(
    probe: &Attack,
    target: &Target,
    isolation: Isolation,
    is_root: bool,
) -> Option<AttackVerdict> {
    let wrong_user = match probe.whom {
        Whom::Both => None,
        Whom::Root => (!is_root).then_some("for root only"),
        Whom::User => is_root.then_some("for ordinary users only"),
    };
    let reason = match (wrong_user, target, &probe.ours) {
        (Some(wrong_user), _, _) => wrong_user.to_owned(),
        (None, Target::Served(_), Some(why)) => why.clone(),
        (None, Target::Other(sandbox), Some(why)) if !sandbox.grants_for(probe) => why.clone(),
        (None, Target::Served(served), None) if served.leaves_out(probe).is_some() => {
            served.leaves_out(probe).unwrap_or_default()
        }
        (None, Target::Other(sandbox), _) if sandbox.leaves_out(probe).is_some() => {
            sandbox.leaves_out(probe).unwrap_or_default()
        }
        (None, _, _) if probe.missing_call().is_some() => {
            let call = probe.missing_call().unwrap_or_default();
            format!("processors of this kind have no call `{call}`")
        }
        (None, Target::Lower, _) if probe.lower.not.is_some() => {
            probe.lower.not.clone().unwrap_or_default()
        }
        (None, Target::Lower, _) if probe.options.iter().any(|option| option == "--rw") => {
            "there are no writable grants in this tier".to_owned()
        }
        (None, _, _) if probe.harm == Harm::WhereShared && isolation == Isolation::Shared => {
            "not run: it shares namespaces of the host, which this would harm".to_owned()
        }
        (None, _, _) => return None,
    };
    Some(AttackVerdict::NotApplicable { why: reason })
}

/// Beginning of the reason for an attack that needs something which is absent.
pub(crate) const NOT_TRIED: &str = "not tried: ";

/// Returns the verdict on an attack whose control needs a program that this machine lacks.
pub(crate) fn without_program(program: &str) -> AttackVerdict {
    let why = format!("{NOT_TRIED}its control needs `{program}`, which this machine lacks");
    AttackVerdict::NotApplicable { why }
}

/// Output of a line whose first program is absent.
const NEEDS: &str = "needs ";

/// Returns a line that first looks for the programs that the attack needs: a sandbox may lack them.
/// One that only leaves their directories out of its search path has them.
pub(crate) fn checked_line(probe: &Attack, line: &str) -> String {
    let check = |program: &String| {
        format!("command -v {program} >/dev/null || {{ echo {NEEDS}{program}; exit; }}; ")
    };
    // An empty path would stand for the current directory.
    let search = (!probe.needs.is_empty())
        .then(|| format!("export PATH={}${{PATH:+:$PATH}}; ", stage::PATH));
    search.into_iter().chain(probe.needs.iter().map(check)).chain([line.to_owned()]).collect()
}

/// Returns the verdict on an attack that needs a program which the sandbox lacks, if it is one.
fn without_program_inside(probe: &Attack, ran: &Ran) -> Option<AttackVerdict> {
    let said = ran.said().strip_prefix(NEEDS)?;
    let program = probe.needs.iter().find(|program| *program == said)?;
    let why = format!("{NOT_TRIED}it needs `{program}`, which the sandbox lacks");
    Some(AttackVerdict::NotApplicable { why })
}

/// Decides whether the control proved that the attack works without a sandbox.
pub fn shown(probe: &Attack, control: &Observed, outer: OuterFilter) -> ControlResult {
    let said = control.ran.said();
    let is_held_output =
        is_held(&probe.held, &control.ran) || is_held(&probe.elsewhere, &control.ran);
    if !control.hits.is_empty() || (!is_held_output && probe.breach.is_match(said)) {
        return ControlResult::Yes;
    }
    let is_refused = is_held(&probe.elsewhere, &control.ran);
    match &probe.unshown {
        Some(_) if outer == OuterFilter::Some && is_refused => {
            ControlResult::FilteredHere { said: said.to_owned() }
        }
        Some(unshown) if unshown.says.iter().any(|text| text == said) => {
            ControlResult::NotHere(format!("{}: {said}", unshown.why))
        }
        Some(_) | None => {
            ControlResult::Failed(format!("without a sandbox: {}", control.ran.summary()))
        }
    }
}

/// Returns the reason for running no control, if there is one. Under an outer filter a control
/// meant for root runs for other users too: it shows which filter's answer a call gets.
pub(crate) fn without_control(
    probe: &Attack,
    is_root: bool,
    outer: OuterFilter,
) -> Option<ControlResult> {
    match probe.control {
        ControlMode::None => {
            Some(ControlResult::NotHere(probe.no_control.clone().unwrap_or_default()))
        }
        ControlMode::Root if !is_root && outer == OuterFilter::None => Some(roots()),
        ControlMode::Outside | ControlMode::Namespaces | ControlMode::Root => None,
    }
}

fn roots() -> ControlResult {
    ControlResult::NotHere("only root can do it without a sandbox".to_owned())
}

/// Interprets the result of a control. A control meant for root proves nothing if it failed as an
/// ordinary user.
pub(crate) fn shown_to(is_root: bool, probe: &Attack, shown: ControlResult) -> ControlResult {
    match shown {
        ControlResult::NotHere(_) | ControlResult::Failed(_)
            if probe.control == ControlMode::Root && !is_root =>
        {
            roots()
        }
        ControlResult::Yes
        | ControlResult::FilteredHere { .. }
        | ControlResult::NotHere(_)
        | ControlResult::Failed(_) => shown,
    }
}

/// Returns the verdict on the result in the sandbox.
pub fn verdict(
    probe: &Attack,
    target: &Target,
    shown: ControlResult,
    seen: &Observed,
) -> AttackVerdict {
    if let [first, ..] = seen.hits.as_slice() {
        return AttackVerdict::Breach { seen: first.clone() };
    }
    if let Some(verdict) = without_program_inside(probe, &seen.ran) {
        return verdict;
    }
    let is_held_elsewhere = match target {
        Target::Own => is_answered_first(probe, &shown, seen),
        Target::Lower => {
            is_held(&probe.elsewhere, &seen.ran) || is_held(&probe.lower.held, &seen.ran)
        }
        Target::Other(_) | Target::Served(_) => is_held(&probe.elsewhere, &seen.ran),
    };
    if !is_held(&probe.held, &seen.ran) && !is_held_elsewhere {
        let story = seen.ran.summary();
        return match probe.breach.is_match(seen.ran.said()) {
            true => AttackVerdict::Breach { seen: story },
            false => AttackVerdict::NoVerdict { seen: story },
        };
    }
    match shown {
        ControlResult::Yes => AttackVerdict::Held { unshown: None },
        ControlResult::NotHere(why) => AttackVerdict::Held { unshown: Some(why) },
        ControlResult::FilteredHere { said } => AttackVerdict::Held {
            unshown: Some(format!(
                "a filter around this process refuses it to everybody here: {said}"
            )),
        },
        ControlResult::Failed(seen) => AttackVerdict::NoVerdict { seen },
    }
}

/// Returns true if a filter around this process, such as a container engine's, gives the same
/// answer without the sandbox. If two filters refuse a call, the kernel may use the outer one's
/// errno, so that the result says nothing about ours.
fn is_answered_first(probe: &Attack, shown: &ControlResult, seen: &Observed) -> bool {
    match shown {
        ControlResult::FilteredHere { said } => {
            said == seen.ran.said() && is_held(&probe.elsewhere, &seen.ran)
        }
        ControlResult::Yes | ControlResult::NotHere(_) | ControlResult::Failed(_) => false,
    }
}

/// Returns true if a filter around this process, such as a container engine's, may have given the answer: an attack
/// without a control cannot know which filter did.
pub(crate) fn may_be_outer(probe: &Attack, outer: OuterFilter, seen: &Observed) -> bool {
    outer == OuterFilter::Some && seen.hits.is_empty() && is_held(&probe.elsewhere, &seen.ran)
}

fn is_held(texts: &[String], ran: &Ran) -> bool {
    texts.iter().any(|text| match text.strip_prefix("exit ") {
        Some(code) => ran.code.is_some_and(|ended| ended.to_string() == code),
        None => text == ran.said(),
    })
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
