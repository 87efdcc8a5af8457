//! The report of `doctor`, and its text for people.

use std::fmt::Write;

use serde::Serialize;

use super::layer::{LayerCheck, LayerState, PROFILE};
use crate::commands::terminal::colour::{Colour, Tone};

/// Protections that this machine can hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// Tier in which calls would run, or `none`.
    pub tier: String,
    /// Verdict on the profiles that were tried, the default ones and the operator's: the exit code.
    pub verdict: Finding,
    pub layers: Vec<LayerCheck>,
}

/// Verdict on the profiles that were tried on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Finding {
    CanRun,
    CannotRun,
}

impl Report {
    /// Formats the report for people: a line a layer, its remedy beneath it.
    pub(super) fn text(&self, colour: Colour) -> String {
        let widest = self.layers.iter().map(|layer| layer.name.chars().count()).max();
        let width = widest.unwrap_or(0);
        let mut text = String::new();
        for layer in &self.layers {
            let label = colour.paint(Tone::Advice, "remedy:");
            let remedy = layer.remedy.as_ref().map(|remedy| format!("\n         {label} {remedy}"));
            let mark = format!("{:<7}", layer.state.mark());
            let written = writeln!(
                text,
                "{}  {:<width$}  {}{}",
                colour.paint(layer.state.tone(), &mark),
                layer.name,
                layer.how,
                remedy.unwrap_or_default()
            );
            debug_assert!(written.is_ok(), "a String takes everything");
        }
        let verdict = match self.verdict {
            Finding::CanRun => colour.paint(Tone::Good, "the default profiles can run"),
            Finding::CannotRun => colour.paint(Tone::Bad, &self.cannot()),
        };
        text + &format!("\ntier: {}\n{verdict}\n", self.tier)
    }

    /// Says which profiles cannot run, and which can.
    fn cannot(&self) -> String {
        let names = |works: bool| {
            let tried = self.layers.iter().filter_map(|layer| {
                let name = layer.name.strip_prefix(PROFILE)?;
                ((layer.state != LayerState::Missing) == works).then_some(name)
            });
            tried.collect::<Vec<_>>().join(", ")
        };
        match (names(true).as_str(), names(false).as_str()) {
            ("", _) => "the default profiles cannot run".to_owned(),
            (can, "") => format!("cells cannot be had in full; these profiles can run: {can}"),
            (can, cannot) => format!("cannot run: {cannot}; can run: {can}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_each_layer_with_its_remedy_and_ends_with_the_verdict() {
        let layer = |name: &str, state, how: &str, remedy: Option<&str>| LayerCheck {
            name: name.to_owned(),
            state,
            how: how.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let report = Report {
            tier: "none".to_owned(),
            verdict: Finding::CannotRun,
            layers: vec![
                layer("landlock", LayerState::Ok, "ABI 7", None),
                layer("proc", LayerState::Missing, "masked", Some("procMount: Unmasked")),
            ],
        };
        assert_eq!(
            report.text(Colour::Off),
            "ok       landlock  ABI 7\n\
             missing  proc      masked\n         remedy: procMount: Unmasked\n\
             \ntier: none\nthe default profiles cannot run\n"
        );
        let painted = report.text(Colour::On);
        assert!(
            painted.starts_with("\u{1b}[1m\u{1b}[32mok     \u{1b}[0m  landlock"),
            "{painted:?}"
        );
        assert!(painted.contains("\u{1b}[36mremedy:\u{1b}[0m procMount"), "{painted:?}");
        let json = serde_json::to_value(&report).ok();
        assert_eq!(
            json,
            Some(serde_json::json!({
                "tier": "none", "verdict": "cannot_run",
                "layers": [
                    { "name": "landlock", "state": "ok", "how": "ABI 7" },
                    { "name": "proc", "state": "missing", "how": "masked",
                      "remedy": "procMount: Unmasked" }
                ]
            }))
        );
    }
}
