//! The lists of a review, for people and as JSON.

use std::io::IsTerminal;

use serde_json::{Value, json};

use crate::commands::error::{CliError, print_out};
use crate::commands::format::{acts_in_name, plain, pretty};
use crate::commands::layers::change::{Act, Change, Kind};
use crate::commands::layers::files::{encoded, split};
use crate::commands::layers::journal::Finished;
use crate::commands::layers::judge::Held;
use crate::commands::layers::layer::Layer;
use crate::commands::layers::step::Left;
use crate::commands::terminal::colour::{Colour, Tone};
use cell::mediate::names;
use service::report::runs_in_ci;

/// How results are printed, decided before the process is confined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub colour: Colour,
    pub is_terminal: bool,
}

impl Output {
    pub(super) fn detect(json: bool) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { json, colour: Colour::of_output(), is_terminal }
    }

    /// Prints the changes of a layer, with their digest if there is one.
    pub(super) fn list(
        &self,
        layer: &Layer,
        changes: &[Change],
        digest: Option<&str>,
    ) -> Result<(), CliError> {
        let is_in_use = layer.is_in_use();
        let is_interrupted = is_interrupted(layer);
        if self.json {
            return print_out(&pretty(&json!({
                "layer": layer.id,
                "directory": layer.base.path().to_string_lossy(),
                "in_use": is_in_use,
                "interrupted_apply": is_interrupted,
                "digest": digest,
                "changes": changes.iter().map(row_json).collect::<Vec<Value>>(),
            }))?);
        }
        let directory = plain(&layer.base.path().display().to_string());
        let used = if is_in_use { " (in use)" } else { "" };
        if is_interrupted {
            eprintln!(
                "cofferdam: an apply of the layer {} was interrupted: some of its changes may be on the host; \
                 --apply judges the rest again and writes it, --discard leaves the rest out",
                layer.id
            );
        }
        if changes.is_empty() {
            eprintln!("cofferdam: the layer {}{used} has no changes to {directory}", layer.id);
            return Ok(());
        }
        eprintln!("cofferdam: changes to {directory} in the layer {}{used}", layer.id);
        print_out(&self.rows(changes))?;
        let count = changes.iter().filter(|change| change.is_applicable()).count();
        let not_changed = if is_interrupted { "" } else { "the host has not changed; " };
        eprintln!(
            "cofferdam: {not_changed}--apply writes {count} of {} changes, --diff shows them, --discard removes them",
            changes.len()
        );
        match digest {
            Some(digest) => eprintln!(
                "cofferdam: `--apply --if {digest}` does so only if the list is still this one"
            ),
            None if is_in_use => eprintln!(
                "cofferdam: `--apply --if DIGEST` needs a list of the layer when no cell uses it"
            ),
            None => {}
        }
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
            eprintln!("cofferdam: {} was not applied: {}", quoted(path), reason(*why));
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
                    "interrupted_apply": is_interrupted(layer),
                })
            };
            let rows: Vec<Value> = layers.iter().map(row).collect();
            return print_out(&pretty(&json!({ "layers": rows }))?);
        }
        let mut lines = String::new();
        for (layer, has_changes) in layers {
            let directory = plain(&layer.base.path().display().to_string());
            let state = if *has_changes { "changes" } else { "no changes" };
            let used = match (layer.is_in_use(), is_interrupted(layer)) {
                (true, _) => ", in use",
                (false, true) => ", an apply was interrupted",
                (false, false) => "",
            };
            lines.push_str(&format!("{}  {directory}  {state}{used}\n", layer.id));
        }
        print_out(&lines)
    }

    fn rows(&self, changes: &[Change]) -> String {
        changes.iter().map(|change| self.row(change)).collect()
    }

    pub(crate) fn row(&self, change: &Change) -> String {
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
        let mut path = format!("{}{slash}", quoted(&change.path));
        if let Some(target) = &change.target {
            path.push_str(&format!(" -> {}", quoted(target)));
        }
        let mark = self.colour.paint(tone, mark);
        match notes.is_empty() {
            true => format!("{mark} {path}\n"),
            false => {
                let notes = self.colour.paint(Tone::Advice, &format!("[{}]", notes.join("; ")));
                format!("{mark} {path}  {notes}\n")
            }
        }
    }
}

/// Returns true if an apply of a layer was interrupted, and none is running.
fn is_interrupted(layer: &Layer) -> bool {
    !layer.is_in_use() && layer.is_unfinished()
}

/// Files by which a build or a test of the project runs what is in it.
const BUILD_FILES: [&str; 55] = [
    "Makefile",
    "GNUmakefile",
    "Justfile",
    "Taskfile.yml",
    "CMakeLists.txt",
    "meson.build",
    "build.ninja",
    "configure",
    "configure.ac",
    "BUILD",
    "BUILD.bazel",
    "WORKSPACE",
    "MODULE.bazel",
    "Cargo.toml",
    "build.rs",
    "package.json",
    "setup.py",
    "setup.cfg",
    "pyproject.toml",
    "conftest.py",
    "noxfile.py",
    "tox.ini",
    "Rakefile",
    "Gemfile",
    "Gruntfile.js",
    "gulpfile.js",
    "pom.xml",
    "build.gradle",
    "build.gradle.kts",
    "build.zig",
    "Dockerfile",
    ".pre-commit-config.yaml",
    "Taskfile.yaml",
    "Makefile.am",
    ".bazelrc",
    "build.sbt",
    "rust-toolchain",
    "rust-toolchain.toml",
    ".npmrc",
    ".yarnrc.yml",
    "gradlew",
    "mvnw",
    "settings.gradle",
    "settings.gradle.kts",
    "flake.nix",
    "shell.nix",
    "default.nix",
    "docker-compose.yml",
    "docker-compose.yaml",
    "compose.yml",
    "compose.yaml",
    "Vagrantfile",
    "lefthook.yml",
    "lefthook.yaml",
    ".overcommit.yml",
];

/// Returns true if a path is that of a file by which a build runs programs.
fn builds(path: &[u8]) -> bool {
    let ends =
        [&b".cargo/config.toml"[..], b".cargo/config", b".mvn/extensions.xml", b".mvn/jvm.config"];
    ends.iter().any(|end| path.ends_with(end))
        || BUILD_FILES.iter().any(|name| names::may_be(split(path).1, name))
}

/// Returns what a reader should look at in a change that is applied.
pub(super) fn flags(change: &Change) -> Vec<&'static str> {
    let mut flags = Vec::new();
    if change.becomes_executable() {
        flags.push("executable");
    }
    if change.act != Act::Delete && runs_in_ci(&change.path) {
        flags.push("runs in CI");
    }
    if change.act != Act::Delete && change.kind != Kind::Directory && builds(&change.path) {
        flags.push("build file");
    }
    flags
}

pub(crate) fn row_json(change: &Change) -> Value {
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
    // Two names can have the same text.
    if std::str::from_utf8(&change.path).is_err() {
        set("path_encoded", json!(encoded(&change.path)));
    }
    if let Some(new) = change.new.filter(|_| change.kind == Kind::File) {
        set("size", json!(new.size));
    }
    if let Some(target) = &change.target {
        set("target", json!(text(target)));
    }
    if let Some(held) = change.held {
        set("held", json!(held.reason()));
        if held == Held::Repository && change.kind == Kind::Directory {
            set("repository", json!(true));
        }
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
    if change.act != Act::Delete && change.kind != Kind::Directory && builds(&change.path) {
        set("build_file", json!(true));
    }
    row
}

/// Returns a path as a list shows it: in quotes, with the escapes of C, if it has what a terminal or
/// a reader could take for something else.
pub(super) fn quoted(path: &[u8]) -> String {
    let is_plain = |text: &str| {
        let is_odd = |character: char| acts_in_name(character) || matches!(character, '"' | '\\');
        let looks_on = text.contains("  ") || text.contains(" -> ");
        !looks_on && text.trim() == text && !text.contains(is_odd)
    };
    if let Ok(text) = std::str::from_utf8(path)
        && is_plain(text)
    {
        return text.to_owned();
    }
    let mut quoted = "\"".to_owned();
    for part in path.utf8_chunks() {
        for character in part.valid().chars() {
            match character {
                '"' | '\\' => quoted.extend(['\\', character]),
                '\n' => quoted.push_str("\\n"),
                '\t' => quoted.push_str("\\t"),
                _ if acts_in_name(character) => {
                    let mut bytes = [0; 4];
                    octal(&mut quoted, character.encode_utf8(&mut bytes).as_bytes());
                }
                _ => quoted.push(character),
            }
        }
        octal(&mut quoted, part.invalid());
    }
    quoted.push('"');
    quoted
}

fn octal(quoted: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|byte| quoted.push_str(&format!("\\{byte:03o}")));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_look_like_another_or_like_a_note() {
        for path in ["src/main.rs", "a b", "naïve", "[x]", "it's"] {
            assert_eq!(quoted(path.as_bytes()), path);
        }
        for (path, shown) in [
            (&b"a  [executable]"[..], r#""a  [executable]""#),
            (b"a -> b", r#""a -> b""#),
            (b"a ", r#""a ""#),
            (b"\"", r#""\"""#),
            (b"a\\b", r#""a\\b""#),
            (b"a\nM b", r#""a\nM b""#),
            (b"\x1b[2J", r#""\033[2J""#),
            (b"\xff", r#""\377""#),
            ("\u{fffd}".as_bytes(), "\u{fffd}"),
            ("\u{202e}x".as_bytes(), r#""\342\200\256x""#),
            ("a\u{200d}".as_bytes(), r#""a\342\200\215""#),
            ("a\u{fe0f}".as_bytes(), r#""a\357\270\217""#),
        ] {
            assert_eq!(quoted(path), shown);
        }
    }
}
