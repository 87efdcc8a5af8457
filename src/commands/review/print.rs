//! The lists of a review, for people and as JSON.

use std::io::IsTerminal;

use serde_json::{Value, json};

use crate::commands::error::{CliError, print_out};
use crate::commands::format::{plain, pretty};
use crate::commands::layers::changes::{Act, Change, Kind};
use crate::commands::layers::journal::{Finished, Left};
use crate::commands::layers::store::Layer;
use crate::commands::terminal::colour::{Colour, Tone};
use service::report::runs_in_ci;

/// How results are printed, decided before the process is confined.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    json: bool,
    pub colour: Colour,
    pub is_terminal: bool,
}

impl Output {
    pub(super) fn detect(json: bool) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { json, colour: Colour::of_output(), is_terminal }
    }

    /// Prints the changes of a layer.
    pub(super) fn list(&self, layer: &Layer, changes: &[Change]) -> Result<(), CliError> {
        if self.json {
            return print_out(&pretty(&json!({
                "layer": layer.id,
                "directory": layer.base.path().to_string_lossy(),
                "in_use": layer.is_in_use(),
                "changes": changes.iter().map(row_json).collect::<Vec<Value>>(),
            }))?);
        }
        let directory = plain(&layer.base.path().display().to_string());
        let used = if layer.is_in_use() { " (in use)" } else { "" };
        if changes.is_empty() {
            eprintln!("cofferdam: the layer {}{used} has no changes to {directory}", layer.id);
            return Ok(());
        }
        eprintln!("cofferdam: changes to {directory} in the layer {}{used}", layer.id);
        print_out(&self.rows(changes))?;
        let count = changes.iter().filter(|change| change.is_applicable()).count();
        eprintln!(
            "cofferdam: the host has not changed; --apply writes {count} of {} changes, --diff shows them, --discard \
             removes them",
            changes.len()
        );
        Ok(())
    }

    /// Prints what was applied and what is left.
    pub(super) fn applied(
        &self,
        layer: &Layer,
        finished: &Finished,
        left: &[Change],
    ) -> Result<(), CliError> {
        let failed = finished.left.iter();
        if self.json {
            let failed =
                failed.map(|(path, why)| json!({ "path": text(path), "reason": reason(*why) }));
            return print_out(&pretty(&json!({
                "layer": layer.id,
                "directory": layer.base.path().to_string_lossy(),
                "applied": finished.done,
                "failed": failed.collect::<Vec<Value>>(),
                "left": left.iter().map(row_json).collect::<Vec<Value>>(),
            }))?);
        }
        for (path, why) in failed {
            eprintln!("cofferdam: {} was not applied: {}", plain(&text(path)), reason(*why));
        }
        print_out(&self.rows(left))?;
        let directory = plain(&layer.base.path().display().to_string());
        let count = left.len();
        eprintln!("cofferdam: applied {} changes to {directory}; {count} are left", finished.done);
        Ok(())
    }

    /// Prints all layers, each with whether it has changes.
    pub(super) fn layers(&self, layers: &[(Layer, bool)]) -> Result<(), CliError> {
        if self.json {
            let row = |(layer, has_changes): &(Layer, bool)| {
                json!({
                    "layer": layer.id,
                    "directory": layer.base.path().to_string_lossy(),
                    "has_changes": has_changes,
                    "in_use": layer.is_in_use(),
                })
            };
            let rows: Vec<Value> = layers.iter().map(row).collect();
            return print_out(&pretty(&json!({ "layers": rows }))?);
        }
        let mut lines = String::new();
        for (layer, has_changes) in layers {
            let directory = plain(&layer.base.path().display().to_string());
            let state = if *has_changes { "changes" } else { "no changes" };
            let used = if layer.is_in_use() { ", in use" } else { "" };
            lines.push_str(&format!("{}  {directory}  {state}{used}\n", layer.id));
        }
        print_out(&lines)
    }

    fn rows(&self, changes: &[Change]) -> String {
        changes.iter().map(|change| self.row(change)).collect()
    }

    fn row(&self, change: &Change) -> String {
        let (mark, tone) = match change.act {
            Act::Add => ("A", Tone::Good),
            Act::Change => ("M", Tone::Caution),
            Act::Delete => ("D", Tone::Bad),
        };
        let slash = if change.kind == Kind::Directory { "/" } else { "" };
        let mut notes: Vec<String> = Vec::new();
        if change.is_conflict {
            notes.push("conflict: the host changed it too".to_owned());
        }
        notes.extend(change.held.map(|held| format!("held back: {}", held.reason())));
        notes.extend(flags(change).iter().map(|flag| (*flag).to_owned()));
        let path = plain(&text(&change.path));
        let mark = self.colour.paint(tone, mark);
        match notes.is_empty() {
            true => format!("{mark} {path}{slash}\n"),
            false => {
                let notes = self.colour.paint(Tone::Advice, &format!("[{}]", notes.join("; ")));
                format!("{mark} {path}{slash}  {notes}\n")
            }
        }
    }
}

/// Returns what a reader should look at in a change that is applied.
fn flags(change: &Change) -> Vec<&'static str> {
    let mut flags = Vec::new();
    if change.becomes_executable() {
        flags.push("executable");
    }
    if change.act != Act::Delete && runs_in_ci(&change.path) {
        flags.push("runs in CI");
    }
    flags
}

fn row_json(change: &Change) -> Value {
    let mut row = json!({
        "path": text(&change.path),
        "act": match change.act {
            Act::Add => "added",
            Act::Change => "changed",
            Act::Delete => "deleted",
        },
        "kind": match change.kind {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Link => "link",
            Kind::Other => "other",
        },
    });
    let mut set = |name: &str, value: Value| {
        if let Some(row) = row.as_object_mut() {
            row.insert(name.to_owned(), value);
        }
    };
    if let Some(new) = change.new.filter(|_| change.kind == Kind::File) {
        set("size", json!(new.size));
    }
    if let Some(held) = change.held {
        set("held", json!(held.reason()));
    }
    if change.is_conflict {
        set("conflict", json!(true));
    }
    if change.becomes_executable() {
        set("executable", json!(true));
    }
    if change.act != Act::Delete && runs_in_ci(&change.path) {
        set("runs_in_ci", json!(true));
    }
    row
}

pub(super) fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn reason(why: Left) -> String {
    match why {
        Left::Changed => "the host changed it meanwhile".to_owned(),
        Left::NotEmpty => "the directory has other files".to_owned(),
        Left::Errno(errno) => errno.desc().to_owned(),
    }
}
