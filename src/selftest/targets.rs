//! Sandboxes as data: the command before a program that they run, and what they do not claim.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::corpus::{Attack, ControlMode};
use model::shells::ShellKind;

const KNOWN: &str = include_str!("targets.toml");
/// Stands for the program and its arguments.
const PROGRAM: &str = "{}";
/// Stands for the same as one word, quoted for a shell.
const LINE: &str = "{line}";
/// Stands for the words that grant something.
const GRANTS: &str = "{grants}";
/// Stands for the path of the settings.
const SETTINGS: &str = "{settings}";

/// A sandbox other than cofferdam.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sandbox {
    pub name: String,
    pub about: String,
    /// Words of the command line; see `targets.toml` for the placeholders.
    pub command: Vec<String>,
    /// Command that prints the version.
    #[serde(default)]
    version: Vec<String>,
    /// What it does not set out to hold.
    #[serde(default)]
    unclaimed: Vec<Unclaimed>,
    /// How it grants what attacks on grants need; a missing one is not applicable.
    #[serde(default)]
    grants: GrantWords,
    /// Text of a file that the command names as `{settings}`. `{write}` is replaced by the granted
    /// directories, as JSON strings.
    settings: Option<String>,
    /// True if attacks that would harm the machine are not run.
    #[serde(default)]
    only_harmless: bool,
}

/// Attacks that a sandbox does not set out to hold.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unclaimed {
    /// Topics, names of groups, and ids.
    of: Vec<String>,
    why: String,
    /// Where its authors say so.
    source: String,
}

/// Words that grant something, at the placeholder `{grants}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantWords {
    /// A directory that may be read at the same path, `{path}`.
    read: Option<Vec<String>>,
    /// One that may be written to.
    write: Option<Vec<String>>,
    /// A second of time.
    second: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    groups: BTreeMap<String, Vec<String>>,
    target: Vec<Sandbox>,
}

/// What an attack is granted in another sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Granted {
    words: Vec<String>,
    /// Directories that may be written to.
    write: Vec<String>,
}

/// Returns the built-in sandboxes.
///
/// # Errors
/// A mistake in the file. A test finds it first.
pub fn known() -> Result<Vec<Sandbox>, String> {
    let file: File = toml::from_str(KNOWN).map_err(|error| format!("targets.toml: {error}"))?;
    let mut targets = file.target;
    for unclaimed in targets.iter_mut().flat_map(|target| &mut target.unclaimed) {
        let ids = unclaimed.of.iter().flat_map(|of| match file.groups.get(of) {
            Some(ids) => ids.clone(),
            None => vec![of.clone()],
        });
        unclaimed.of = ids.collect();
    }
    Ok(targets)
}

impl Sandbox {
    /// Finds a built-in sandbox by its name, or makes one from a typed command line, split at
    /// blanks.
    ///
    /// # Errors
    /// A command line without a word.
    pub fn named_or_typed(text: &str) -> Result<Self, String> {
        let known = known()?;
        if let Some(known) = known.into_iter().find(|known| known.name == text) {
            return Ok(known);
        }
        let command: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let name = command.first().ok_or("the target is empty")?.clone();
        Ok(Self {
            name,
            about: String::new(),
            command,
            version: Vec::new(),
            unclaimed: Vec::new(),
            grants: GrantWords::default(),
            settings: None,
            only_harmless: false,
        })
    }

    /// Replaces the program's name by its path in this process's PATH: attacks are run with another
    /// one.
    pub fn resolved(mut self) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = self.command.first_mut().filter(|program| !program.contains('/'));
        if let Some(program) = program {
            let mut files = std::env::split_paths(&path).map(|directory| directory.join(&*program));
            if let Some(found) = files.find(|file| file.is_file()) {
                *program = found.display().to_string();
            }
        }
        self
    }

    /// Returns what the options of `cofferdam run` are here, with placeholders; `None` if one has
    /// no equivalent.
    pub(crate) fn granted(&self, options: &[String]) -> Option<Granted> {
        let mut granted = Granted::default();
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let value = options.next()?;
            // Directories have the same path in the sandbox as outside.
            let (path, _) = value.split_once(':').unwrap_or((value, ""));
            let words = match (option.as_str(), value.as_str()) {
                ("--ro", _) => self.grants.read.as_ref()?,
                ("--rw", _) => self.grants.write.as_ref()?,
                ("--timeout", "1s") => self.grants.second.as_ref()?,
                _ => return None,
            };
            if option == "--rw" {
                granted.write.push(path.to_owned());
            }
            granted.words.extend(words.iter().map(|word| word.replace("{path}", path)));
        }
        Some(granted)
    }

    /// Returns true if the attack's options have an equivalent, so that it can be run although it
    /// is about options of cofferdam.
    pub(crate) fn grants_for(&self, attack: &Attack) -> bool {
        let is_outside = matches!(attack.control, ControlMode::Outside | ControlMode::Root);
        let has_line =
            !attack.is_granted_directory() || (is_outside && attack.control_run.is_some());
        !attack.options.is_empty() && has_line && self.granted(&attack.options).is_some()
    }

    /// Writes the settings, if it has some, next to a run's files. Returns their path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_settings(
        &self,
        directory: &Path,
        granted: &Granted,
        fill: impl Fn(&str) -> String,
    ) -> std::io::Result<String> {
        let file = directory.join("settings.json");
        if let Some(settings) = &self.settings {
            let write: Vec<_> =
                granted.write.iter().map(|path| serde_json::Value::from(fill(path))).collect();
            let write = serde_json::Value::from(write).to_string();
            std::fs::write(&file, settings.replace("{write}", &write))?;
        }
        Ok(file.display().to_string())
    }

    /// Returns the command line that runs `argv` in the sandbox. `fill` replaces the other
    /// placeholders.
    pub(crate) fn around(
        &self,
        argv: Vec<String>,
        granted: &Granted,
        settings: &str,
        fill: impl Fn(&str) -> String,
    ) -> Vec<String> {
        let quoted: Vec<_> = argv.iter().map(|word| ShellKind::Sh.quoted(word)).collect();
        let line = quoted.join(" ");
        let has = |placeholder: &str| self.command.iter().any(|word| word.contains(placeholder));
        let is_placed = has(PROGRAM) || has(LINE);
        let mut words = Vec::new();
        for word in &self.command {
            match word.as_str() {
                PROGRAM => words.extend(argv.iter().cloned()),
                GRANTS => words.extend(granted.words.iter().map(|word| fill(word))),
                // Filled first: a placeholder in the line is text of the attack.
                other => {
                    words.push(fill(other).replace(SETTINGS, settings).replace(LINE, &line));
                }
            }
        }
        if !is_placed {
            words.extend(argv);
        }
        words
    }

    /// Returns the first line that its version command prints; `None` if it prints nothing.
    pub fn version(&self) -> Option<String> {
        let (program, rest) = self.version.split_first()?;
        let output = Command::new(program).args(rest).stdin(Stdio::null()).output().ok()?;
        let printed = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        let text = String::from_utf8_lossy(printed);
        text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }

    /// Returns the reason for not running an attack against this sandbox, if there is one.
    pub(crate) fn leaves_out(&self, attack: &Attack) -> Option<String> {
        let is_of = |of: &String| *of == attack.id || of == attack.topic;
        let unclaimed = self.unclaimed.iter().find(|unclaimed| unclaimed.of.iter().any(is_of));
        let is_harmless = attack.control == ControlMode::Outside && attack.control_run.is_none();
        match unclaimed {
            Some(Unclaimed { why, source, .. }) => Some(format!("not claimed: {why} ({source})")),
            None if self.only_harmless && !is_harmless => {
                Some("not run: without a sandbox this could harm the machine".to_owned())
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::corpus;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn around(command: &str) -> Vec<String> {
        let sandbox = Sandbox::named_or_typed(command).expect("well-formed");
        let argv = ["bash", "-c", "echo '{probe}'"].map(str::to_owned).into();
        let granted = Granted::default();
        sandbox.around(argv, &granted, "/settings", |word| word.replace("{probe}", "/p"))
    }

    #[test]
    fn the_program_is_put_where_the_command_has_its_place() {
        let program = ["bash", "-c", "echo '{probe}'"].map(str::to_owned);
        assert_eq!(around("box -b {probe}"), [words("box -b /p"), program.to_vec()].concat());
        assert_eq!(
            around("box {} --end"),
            [words("box"), program.to_vec(), words("--end")].concat()
        );
        let line = r"'bash' '-c' 'echo '\''{probe}'\'''".to_owned();
        assert_eq!(around("box {line}"), [words("box"), vec![line]].concat());
        assert!(Sandbox::named_or_typed(" ").is_err());
    }

    #[test]
    fn built_in_sandboxes_are_well_formed() {
        let known = known().expect("well-formed");
        let topics_and_ids: Vec<String> = corpus()
            .expect("well-formed")
            .into_iter()
            .flat_map(|attack| [attack.topic.to_owned(), attack.id])
            .collect();
        for sandbox in &known {
            assert!(!sandbox.command.is_empty() && sandbox.about.len() > 10, "{}", sandbox.name);
            let same = known.iter().filter(|other| other.name == sandbox.name).count();
            assert_eq!(same, 1, "{}", sandbox.name);
            assert_eq!(Sandbox::named_or_typed(&sandbox.name).as_ref(), Ok(sandbox));
            for unclaimed in &sandbox.unclaimed {
                assert!(unclaimed.source.len() > 4, "{}: {}", sandbox.name, unclaimed.why);
                for part in &unclaimed.of {
                    assert!(topics_and_ids.contains(part), "{}: {part}", sandbox.name);
                }
            }
            let has_grants = sandbox.grants != GrantWords::default();
            let has_place = sandbox.command.iter().any(|word| word == GRANTS);
            assert!(has_place || !has_grants || sandbox.settings.is_some(), "{}", sandbox.name);
        }
    }

    #[test]
    fn options_of_an_attack_are_granted_where_the_sandbox_has_them() {
        let attacks = corpus().expect("well-formed");
        let attack = |id: &str| attacks.iter().find(|attack| attack.id == id).expect("known");
        let sandbox = |name: &str| Sandbox::named_or_typed(name).expect("well-formed");
        let is_run = |name: &str, id: &str| sandbox(name).grants_for(attack(id));
        // A directory for writing, one for reading, a limit of time, a profile.
        let run = |name: &str| ["F44", "F42", "P22", "N45"].map(|id| is_run(name, id));
        assert_eq!(run("bwrap"), [true, true, false, false]);
        assert_eq!(run("nsjail"), [true, true, true, false]);
        assert_eq!(run("srt"), [true, false, false, false]);
        assert_eq!(run("env"), [false; 4]);
        let granted = sandbox("bwrap").granted(&attack("F45").options).expect("equivalents");
        let bound = words("--bind {grant} {grant} --ro-bind {dir} {dir}");
        assert_eq!(granted.words, bound);
        let directory = tempfile::tempdir().expect("a directory");
        let srt = sandbox("srt");
        let granted = srt.granted(&attack("F44").options).expect("an equivalent");
        let written =
            srt.write_settings(directory.path(), &granted, |path| path.replace("{grant}", "/g"));
        let text = std::fs::read_to_string(written.expect("written")).expect("readable");
        let settings: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let write = settings.pointer("/filesystem/allowWrite");
        assert_eq!(write, Some(&serde_json::json!(["/g"])));
    }

    #[test]
    fn what_a_sandbox_does_not_claim_and_what_harms_a_bare_machine_is_not_run() {
        let attacks = corpus().expect("well-formed");
        let attack = |id: &str| attacks.iter().find(|attack| attack.id == id).expect("well-formed");
        let bwrap = Sandbox::named_or_typed("bwrap").expect("well-formed");
        let why = bwrap.leaves_out(attack("R01"));
        assert_eq!(why.as_deref(), Some("not claimed: it sets no limits (bwrap(1))"));
        assert_eq!(bwrap.leaves_out(attack("F01")), None);
        // Reading is allowed there, writing is not.
        let srt = Sandbox::named_or_typed("srt").expect("well-formed");
        assert!(srt.leaves_out(attack("F01")).is_some_and(|why| why.contains("README")));
        assert_eq!(srt.leaves_out(attack("F34")), None);
        let bare = Sandbox::named_or_typed("bare").expect("well-formed");
        assert_eq!(bare.leaves_out(attack("F01")), None);
        let harmful =
            attacks.iter().find(|attack| attack.control == ControlMode::None).expect("well-formed");
        assert!(bare.leaves_out(harmful).is_some());
    }
}
