//! Verdicts: what was hit, seen from outside, counts before what the program said.

use serde::Serialize;

use super::corpus::{Attack, ControlMode, Harm, When, Whom};
use super::launch::Ran;

/// Against whom the corpus runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `cofferdam run`.
    Own,
    /// The same in the tier `landlock+seccomp`.
    Lower,
    /// Another sandbox: the words before the command.
    Other(Vec<String>),
}

/// Result of a run of an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub ran: Ran,
    /// Targets that it hit outside, one sentence each.
    pub hits: Vec<String>,
}

/// How the positive control went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlResult {
    /// The attack worked without a sandbox.
    Yes,
    /// It cannot be shown here, and why.
    NotHere(String),
    /// A filter around this process refuses it to everybody here, with these words.
    FilteredHere { said: String },
    /// It should have worked and did not: what was seen instead.
    Failed(String),
}

/// A verdict on one attack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum AttackVerdict {
    Held {
        /// Why the control shows nothing here; absent where it did.
        #[serde(skip_serializing_if = "Option::is_none")]
        unshown: Option<String>,
    },
    Breach {
        seen: String,
    },
    /// Neither: an error, never a pass.
    NoVerdict {
        seen: String,
    },
    /// A breach that SECURITY.md tells of: of cofferdam alone.
    Known {
        seen: String,
        why: String,
    },
    NotApplicable {
        why: String,
    },
}

/// Mechanism that bounds the memory of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    ControlGroup,
    BestEffort,
}

/// A system call filter that this process had from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OuterFilter {
    None,
    Some,
}

/// Whose mount and pid namespaces a sandbox has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Its own.
    Own,
    /// One of them, or both, is the host's; or it could not be seen.
    Shared,
}

/// Turns a breach that is known into that verdict, and only that.
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
    let why = match target {
        Target::Own => expected.map(|known| &known.why),
        Target::Lower => probe.lower.breach.as_ref().or(expected.map(|known| &known.why)),
        Target::Other(_) => None,
    };
    match (verdict, why) {
        (AttackVerdict::Breach { seen }, Some(why)) => {
            AttackVerdict::Known { seen, why: why.clone() }
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
    let wrong = match probe.whom {
        Whom::Both => None,
        Whom::Root => (!is_root).then_some("for root only"),
        Whom::User => is_root.then_some("for ordinary users only"),
    };
    let why = match (wrong, target, &probe.ours) {
        (Some(wrong), _, _) => wrong.to_owned(),
        (None, Target::Other(_), Some(why)) => why.clone(),
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
    Some(AttackVerdict::NotApplicable { why })
}

/// Decides if the control showed that the attack works without a sandbox.
pub fn shown(probe: &Attack, control: &Seen, outer: OuterFilter) -> ControlResult {
    let said = control.ran.said();
    let held = is_held(&probe.held, &control.ran) || is_held(&probe.elsewhere, &control.ran);
    if !control.hits.is_empty() || (!held && probe.breach.is_match(said)) {
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
            ControlResult::Failed(format!("without a sandbox: {}", control.ran.story()))
        }
    }
}

/// Returns the reason for running no control, if there is one. Under an outer filter one that is root's runs for others
/// too: it shows whose answer a call gets.
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

/// Returns what a control has shown. That one of root's failed as an ordinary user means nothing.
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

/// Returns the verdict on what was seen in the sandbox.
pub fn verdict(
    probe: &Attack,
    target: &Target,
    shown: ControlResult,
    seen: &Seen,
) -> AttackVerdict {
    if let [first, ..] = seen.hits.as_slice() {
        return AttackVerdict::Breach { seen: first.clone() };
    }
    let elsewhere = match target {
        Target::Own => is_answered_first(probe, &shown, seen),
        Target::Lower => {
            is_held(&probe.elsewhere, &seen.ran) || is_held(&probe.lower.held, &seen.ran)
        }
        Target::Other(_) => is_held(&probe.elsewhere, &seen.ran),
    };
    if !is_held(&probe.held, &seen.ran) && !elsewhere {
        let story = seen.ran.story();
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

/// Returns true if a filter around this process, a container engine's, gives the same answer without the sandbox: of two
/// filters that refuse, the kernel takes that one's word, and nothing can be told about ours.
fn is_answered_first(probe: &Attack, shown: &ControlResult, seen: &Seen) -> bool {
    match shown {
        ControlResult::FilteredHere { said } => {
            said == seen.ran.said() && is_held(&probe.elsewhere, &seen.ran)
        }
        ControlResult::Yes | ControlResult::NotHere(_) | ControlResult::Failed(_) => false,
    }
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
