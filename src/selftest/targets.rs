//! Sandboxes as data: the command before a program that they run, and what they do not claim.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::corpus::{Attack, ControlMode};
use model::shells::ShellKind;

const KNOWN: &str = include_str!("targets.toml");
/// Stands for the program and its arguments.
const PROGRAM: &str = "{}";
/// Stands for the same as one word, quoted for a shell.
const LINE: &str = "{line}";

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
    /// Topics and ids of attacks that it does not set out to hold, with the reasons.
    #[serde(default)]
    unclaimed: BTreeMap<String, String>,
    /// True if attacks that would harm the machine are not run.
    #[serde(default)]
    only_harmless: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    target: Vec<Sandbox>,
}

/// Returns the built-in sandboxes.
///
/// # Errors
/// A mistake in the file. A test finds it first.
pub fn known() -> Result<Vec<Sandbox>, String> {
    let file: File = toml::from_str(KNOWN).map_err(|error| format!("targets.toml: {error}"))?;
    Ok(file.target)
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
            unclaimed: BTreeMap::new(),
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

    /// Returns the command line that runs `argv` in the sandbox. `fill` replaces the other
    /// placeholders.
    pub(crate) fn around(&self, argv: Vec<String>, fill: impl Fn(&str) -> String) -> Vec<String> {
        let quoted: Vec<_> = argv.iter().map(|word| ShellKind::Sh.quoted(word)).collect();
        let line = quoted.join(" ");
        let has = |placeholder: &str| self.command.iter().any(|word| word.contains(placeholder));
        let is_placed = has(PROGRAM) || has(LINE);
        let mut words = Vec::new();
        for word in &self.command {
            match word.as_str() {
                PROGRAM => words.extend(argv.iter().cloned()),
                // Filled first: a placeholder in the line is text of the attack.
                other => words.push(fill(other).replace(LINE, &line)),
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
        let unclaimed = self.unclaimed.get(&attack.id).or(self.unclaimed.get(attack.topic));
        let is_harmless = attack.control == ControlMode::Outside && attack.control_run.is_none();
        match unclaimed {
            Some(why) => Some(format!("not claimed: {why}")),
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
        sandbox.around(argv, |word| word.replace("{probe}", "/p"))
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
            for part in sandbox.unclaimed.keys() {
                assert!(topics_and_ids.contains(part), "{}: {part}", sandbox.name);
            }
        }
    }

    #[test]
    fn what_a_sandbox_does_not_claim_and_what_harms_a_bare_machine_is_not_run() {
        let attacks = corpus().expect("well-formed");
        let attack = |id: &str| attacks.iter().find(|attack| attack.id == id).expect("well-formed");
        let bwrap = Sandbox::named_or_typed("bwrap").expect("well-formed");
        let why = bwrap.leaves_out(attack("R01"));
        assert_eq!(why.as_deref(), Some("not claimed: bwrap sets no limits"));
        assert_eq!(bwrap.leaves_out(attack("F01")), None);
        let bare = Sandbox::named_or_typed("bare").expect("well-formed");
        assert_eq!(bare.leaves_out(attack("F01")), None);
        let harmful =
            attacks.iter().find(|attack| attack.control == ControlMode::None).expect("well-formed");
        assert!(bare.leaves_out(harmful).is_some());
    }
}
