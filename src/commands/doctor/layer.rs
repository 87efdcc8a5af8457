//! The rows of `doctor`'s tables, and the line of its report that each of them makes.

use nix::errno::Errno;
use serde::Serialize;

use crate::commands::terminal::colour::Tone;
use model::outcome::errno_text;

/// Start of the name of a layer that is the trial of a profile.
pub(super) const PROFILE: &str = "profile ";

/// A row: the layer's name in the report, and the probe that tries it.
pub(super) struct LayerRow<Probe> {
    pub name: &'static str,
    /// Returns nothing for a layer that is only listed if it is refused, and was not.
    pub probe: Probe,
}

/// Result of a probe: a line of the report that has no name yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeResult {
    pub state: LayerState,
    pub how: String,
    pub remedy: Option<String>,
}

/// Reports a layer that holds.
pub(super) fn ok(how: impl Into<String>) -> ProbeResult {
    ProbeResult { state: LayerState::Ok, how: how.into(), remedy: None }
}

/// Reports a layer that holds less than it could.
pub(super) fn weak(how: impl Into<String>) -> ProbeResult {
    ProbeResult { state: LayerState::Weak, ..ok(how) }
}

/// Reports a layer that is not available.
pub(super) fn missing(how: impl Into<String>) -> ProbeResult {
    ProbeResult { state: LayerState::Missing, ..ok(how) }
}

impl ProbeResult {
    pub(super) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    pub(super) fn named(self, name: impl Into<String>) -> LayerCheck {
        LayerCheck { name: name.into(), state: self.state, how: self.how, remedy: self.remedy }
    }
}

/// One line of the report: a layer that was probed by using it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LayerCheck {
    pub name: String,
    pub state: LayerState,
    /// Evidence for the layer, or the refusal of it.
    pub how: String,
    /// Exact command or setting that restores the layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LayerState {
    /// The layer holds.
    Ok,
    /// The layer holds less than it could; calls run and their replies report that.
    Weak,
    /// The layer is not available; profiles that require it are refused.
    Missing,
}

impl LayerState {
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Weak => "weak",
            Self::Missing => "missing",
        }
    }

    pub(super) fn tone(self) -> Tone {
        match self {
            Self::Ok => Tone::Good,
            Self::Weak => Tone::Caution,
            Self::Missing => Tone::Bad,
        }
    }
}

/// Formats a refusal: what was refused, and the errno.
pub(super) fn refusal(what: &str, errno: Errno) -> String {
    format!("{what}: {}", errno_text(cell::report::raw(errno)))
}
