//! Flag allow-lists: the words that a caller may give to a command, each by its exact name and
//! type.
//!
//! Pure: no I/O. An accepted argument vector consists of checked words only: no abbreviation, no
//! combined flags, no `--`, no value that could be read as a flag, and never a shell.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::conduct::Conduct;
use super::hooks::Hooks;
use super::reach::TooLarge;
use super::values::{Type, WordType, plain};
use model::call::{Argv, InvalidCall};
use model::nearest::nearest;

/// Maximum number of words that one call gives as flags and their values.
pub const MAX_WORDS: usize = 64;
/// Maximum total bytes of those words, the limit of the reference implementation.
pub const MAX_BYTES: usize = 2048;
/// Characters with a meaning in a shell. No shell runs here and no flag needs one of them: a word
/// with such a character was written for something else.
const FORBIDDEN: [char; 7] = [';', '&', '|', '`', '$', '>', '<'];

/// A command that callers may give flags to: one `[[tool]]` of a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredCommand {
    /// The tool's name, as rules know it.
    pub name: String,
    pub offered: Offered,
    /// The program, found in the cell.
    pub program: String,
    pub flags: Vec<Flag>,
    /// Flags that are always refused, each with the reason that the caller reads.
    pub refused: Vec<(String, String)>,
    /// Words that are not flags, in the order in which the program receives them, after the flags.
    pub positionals: Vec<Positional>,
    pub input: Input,
    pub conduct: Conduct,
    pub hooks: Hooks,
    /// Effect of the flag, for callers.
    pub description: String,
    pub changes: Changes,
    pub why: String,
}

/// Condition under which a server offers a tool that a rule allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// `[tools] on` names the tool.
    WhereNamed,
    /// Always, unless `[tools] off` names the tool.
    ByItself,
}

words! {
    /// How a program receives the text that a caller sends as `stdin`.
    pub enum Input {
        /// No standard input: the tool has no field `stdin`.
        None = "none",
        /// The program reads standard input if no file is named.
        Plain = "plain",
        /// The program reads standard input if the file is `-`, a word that no caller may send.
        Dash = "dash",
    }
}

/// Changes that a command may make, for callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    Nothing,
    Workspace,
}

/// A flag that may be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// Name with the dashes. Only exactly this word is the flag.
    pub name: String,
    pub takes: Takes,
    /// How often it may be given.
    pub times: usize,
    pub why: String,
}

/// Position of a flag's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    /// In the next word: `--indent 2`. A caller may also write `--indent=2` for a flag with two
    /// dashes; the program receives two words.
    Next(Type),
    /// After an equals sign in the same word, and only there: `--indent=2`.
    Equals(Type),
}

/// A word that is not a flag, given by the name of its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positional {
    pub name: String,
    /// Second name that callers may use. No list shows it.
    pub also: Option<String>,
    pub takes: Type,
    pub min: usize,
    pub max: usize,
    /// Text before the word, such as the `@` of dig(1).
    pub prefix: String,
    pub egress: PositionalEgress,
    pub why: String,
}

/// Meaning of a positional word for the network of the call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PositionalEgress {
    /// No meaning: the call may reach whatever its profile allows.
    #[default]
    Any,
    /// The call reaches what such words name, and nothing else.
    Only,
}

/// The reason why words were refused. Every text in it may be shown to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadWords {
    /// The word is not exactly a flag of the list.
    #[error("{tool}: `{word}` {why}")]
    Flag { tool: String, word: String, why: Cow<'static, str>, meant: String, taken: Vec<String> },
    /// A value has another form than its type.
    #[error("{tool}: {what} `{word}` {why}")]
    Value {
        tool: String,
        what: String,
        word: String,
        why: String,
        too_large: Option<Box<TooLarge>>,
        /// True for a place in the right form that the tool is not for.
        elsewhere: bool,
    },
    #[error("{tool}: `{flag}` needs a value in the next word")]
    NoValue { tool: String, flag: String },
    #[error("{tool}: {what} is given {given} times; at most {most} are taken")]
    TooMany { tool: String, what: String, given: usize, most: usize },
    /// A field is missing, or the tool has no field of this name.
    #[error("{tool}: {what} {why}")]
    Field { tool: String, what: String, why: &'static str },
    /// Each flag is allowed alone, but not in this combination.
    #[error("{tool}: {why}")]
    Together { tool: String, why: String },
    #[error("{tool}: there is no template `{name}`")]
    NoTemplate { tool: String, name: String, taken: Vec<String> },
    #[error("{tool}: {source}")]
    TooLong { tool: String, source: InvalidCall },
}

impl BadWords {
    /// Returns the advice for the caller, if there is any. It is computed only on demand, because
    /// every example under `refuses` is tried at each start.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Flag { word, meant, taken, .. } => {
                let takes = match taken.is_empty() {
                    true => "this tool takes no flags".to_owned(),
                    false => format!("extra_args takes {}", taken.join(", ")),
                };
                let near = nearest(meant, taken.iter().map(String::as_str));
                Some(match near.filter(|near| near.len() > 2 && near != word) {
                    Some(near) => format!("did you mean `{near}`? {takes}"),
                    None => takes,
                })
            }
            Self::NoTemplate { taken, .. } if !taken.is_empty() => {
                Some(format!("the templates are {}", taken.join(", ")))
            }
            Self::Value { elsewhere: true, .. } => Some(
                "the tool is for these places alone; the operator can name others with `within`"
                    .to_owned(),
            ),
            Self::NoTemplate { .. }
            | Self::Value { .. }
            | Self::NoValue { .. }
            | Self::TooMany { .. }
            | Self::Field { .. }
            | Self::Together { .. }
            | Self::TooLong { .. } => None,
        }
    }
}

impl DeclaredCommand {
    /// Returns the file argument that may be left out when there is standard input.
    pub fn file(&self) -> Option<&Positional> {
        self.positionals.iter().find(|one| one.takes.kind == WordType::Path && one.min == 0)
    }

    /// Builds the argument vector of these flags and positional words, if every one of them is allowed.
    ///
    /// # Errors
    /// The first word that is refused.
    pub fn argv(&self, words: &[String], given: &[(&str, &str)]) -> Result<Argv, BadWords> {
        self.argv_by(None, words, given)
    }

    /// Builds the argument vector as [`Self::argv`] does, with the words of a template before the
    /// caller's.
    ///
    /// # Errors
    /// The first word that is refused, or an unknown template.
    pub fn argv_by(
        &self,
        template: Option<&str>,
        words: &[String],
        given: &[(&str, &str)],
    ) -> Result<Argv, BadWords> {
        let mut chosen = Vec::new();
        if let Some(name) = template {
            let template = self.conduct.template(name).ok_or_else(|| BadWords::NoTemplate {
                tool: self.name.clone(),
                name: shown(name),
                taken: self.conduct.templates.iter().map(|one| one.name.clone()).collect(),
            })?;
            chosen.extend(template.args.iter().cloned());
        }
        self.flags(&self.hooks.replaced(&self.apart(words)), &mut chosen)?;
        if let Some(check) = self.hooks.failed_check(&chosen) {
            return Err(BadWords::Together { tool: self.name.clone(), why: check.why.clone() });
        }
        let defaults: Vec<String> = self.conduct.default_words(&chosen).cloned().collect();
        let mut argv = vec![self.program.clone()];
        argv.extend(self.conduct.always.iter().cloned().chain(defaults).chain(chosen));
        self.positionals(given, &mut argv)?;
        Argv::new(argv).map_err(|source| BadWords::TooLong { tool: self.name.clone(), source })
    }

    /// Splits `--flag=value` into two words if the list expects the value in the next word, so that
    /// the checks see one form of each call.
    pub fn apart(&self, words: &[String]) -> Vec<String> {
        let is_next = |name: &str| {
            let is = |flag: &Flag| flag.name == name && matches!(flag.takes, Takes::Next(_));
            name.starts_with("--") && self.flags.iter().any(is)
        };
        let parts = |word: &String| match word.split_once('=') {
            Some((name, value)) if is_next(name) => vec![name.to_owned(), value.to_owned()],
            Some(_) | None => vec![word.clone()],
        };
        words.iter().flat_map(parts).collect()
    }

    fn flags(&self, words: &[String], argv: &mut Vec<String>) -> Result<(), BadWords> {
        if words.len() > MAX_WORDS {
            return Err(self.too_many("extra_args", words.len(), MAX_WORDS));
        }
        let bytes = words.iter().map(String::len).sum();
        if bytes > MAX_BYTES {
            let source = InvalidCall::TooLong { field: "extra_args", bytes, limit: MAX_BYTES };
            return Err(BadWords::TooLong { tool: self.name.clone(), source });
        }
        if let Some(word) = words.iter().find(|word| word.contains(FORBIDDEN)) {
            return Err(self.refused(word, "has a character in it that means something to a shell"));
        }
        let mut seen: Vec<&str> = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            plain(word).map_err(|why| self.refused(word, why))?;
            let flag = self.flag(word)?;
            seen.push(&flag.name);
            let given = seen.iter().filter(|name| **name == flag.name).count();
            if given > flag.times {
                return Err(self.too_many(&format!("`{}`", flag.name), given, flag.times));
            }
            match &flag.takes {
                Takes::Nothing => argv.push(flag.name.clone()),
                Takes::Next(kind) => {
                    let value = words.next().ok_or_else(|| BadWords::NoValue {
                        tool: self.name.clone(),
                        flag: flag.name.clone(),
                    })?;
                    let value =
                        self.value(&format!("the value of `{}`", flag.name), kind, value)?;
                    argv.extend([flag.name.clone(), value]);
                }
                Takes::Equals(kind) => {
                    let value = word.split_once('=').map_or("", |(_, value)| value);
                    let value =
                        self.value(&format!("the value of `{}`", flag.name), kind, value)?;
                    argv.push(format!("{}={value}", flag.name));
                }
            }
        }
        Ok(())
    }

    fn positionals(&self, given: &[(&str, &str)], argv: &mut Vec<String>) -> Result<(), BadWords> {
        let known: BTreeSet<&str> = self.positionals.iter().map(|one| one.name.as_str()).collect();
        if let Some((name, _)) = given.iter().find(|(name, _)| !known.contains(name)) {
            let tool = self.name.clone();
            let what = format!("`{}`", shown(name));
            return Err(BadWords::Field { tool, what, why: "is no field of this tool" });
        }
        for one in &self.positionals {
            let values: Vec<&str> = given
                .iter()
                .filter(|(name, _)| *name == one.name)
                .map(|(_, value)| *value)
                .collect();
            if values.len() > one.max {
                return Err(self.too_many(&format!("`{}`", one.name), values.len(), one.max));
            }
            if values.len() < one.min {
                let what = format!("`{}`", one.name);
                let tool = self.name.clone();
                return Err(BadWords::Field { tool, what, why: "is missing" });
            }
            if values.is_empty() && self.input == Input::Dash && self.file() == Some(one) {
                argv.push("-".to_owned());
            }
            for value in values {
                let value = self.value(&one.name, &one.takes, value)?;
                argv.push(format!("{}{value}", one.prefix));
            }
        }
        Ok(())
    }

    fn value(&self, what: &str, kind: &Type, word: &str) -> Result<String, BadWords> {
        kind.check(word).map_err(|why| BadWords::Value {
            tool: self.name.clone(),
            what: what.to_owned(),
            word: shown(word),
            why,
            too_large: kind.too_large(word).map(Box::new),
            elsewhere: kind.is_elsewhere(word),
        })
    }

    /// Returns the flag that is written exactly like this word.
    fn flag(&self, word: &str) -> Result<&Flag, BadWords> {
        let name = word.split_once('=').map(|(name, _)| name);
        let is = |flag: &&Flag| match flag.takes {
            Takes::Nothing | Takes::Next(_) => flag.name == word,
            Takes::Equals(_) => name == Some(&flag.name),
        };
        self.flags.iter().find(is).ok_or_else(|| self.refused(word, self.diagnosis(word)))
    }

    /// Explains why a word is refused. Common mistakes have specific texts, so that an honest
    /// caller learns what to write instead.
    fn diagnosis(&self, word: &str) -> Cow<'static, str> {
        match self.refusal(word) {
            Some(why) => Cow::Owned(why.to_owned()),
            None => Cow::Borrowed(self.common_mistake(word)),
        }
    }

    /// Returns the reason that the tool's file gives against a flag.
    fn refusal(&self, word: &str) -> Option<&str> {
        let name = word.split('=').next().unwrap_or_default();
        let entry = self.refused.iter().find(|(flag, _)| flag == name);
        entry.map(|(_, why)| why.as_str())
    }

    fn common_mistake(&self, word: &str) -> &'static str {
        let starts = |start: &str| self.flags.iter().any(|flag| flag.name.starts_with(start));
        let named = |name: &str| self.flags.iter().find(|flag| flag.name == name);
        if !word.starts_with('-') && !self.flags.iter().any(|flag| flag.name.starts_with('+')) {
            return "is no flag, and only flags are taken here";
        }
        if matches!(word, "-" | "--") {
            return "is never taken";
        }
        if let Some((name, _)) = word.split_once('=') {
            return match named(name).map(|flag| &flag.takes) {
                Some(Takes::Nothing) => "has a value, and the flag takes none",
                Some(Takes::Next(_)) => "has its value in the same word; it must be the next word",
                Some(Takes::Equals(_)) | None => "is not a flag on this tool's list",
            };
        }
        if named(word).is_some() {
            return "needs its value in the same word, behind `=`";
        }
        if word.starts_with("--") {
            return match starts(word) {
                true => "is an abbreviation; flags are taken by their whole name only",
                false => "is not a flag on this tool's list",
            };
        }
        let letters = word.chars().skip(1);
        let short = |letter: char| named(&format!("-{letter}")).is_some();
        match word.chars().count() > 2 && letters.clone().take(1).all(short) {
            true => "puts several flags or a value in one word; write one flag a word",
            false => "is not a flag on this tool's list",
        }
    }

    fn refused(&self, word: &str, why: impl Into<Cow<'static, str>>) -> BadWords {
        BadWords::Flag {
            tool: self.name.clone(),
            word: shown(word),
            why: why.into(),
            // A flag that is refused for a stated reason gets no suggestion of a similar one.
            meant: match self.refusal(word) {
                Some(_) => String::new(),
                None => word.split('=').next().unwrap_or_default().to_owned(),
            },
            taken: self.flags.iter().map(|flag| flag.name.clone()).collect(),
        }
    }

    fn too_many(&self, what: &str, given: usize, most: usize) -> BadWords {
        BadWords::TooMany { tool: self.name.clone(), what: what.to_owned(), given, most }
    }
}

/// Escapes a caller's word and cuts it at 80 characters, for an error message.
pub(super) fn shown(word: &str) -> String {
    word.chars().take(80).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
#[path = "flags_tests.rs"]
mod tests;
