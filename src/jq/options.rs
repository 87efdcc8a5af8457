//! Parses the command line, which is that of jq(1).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use jaq_json::Val;
use jaq_json::write::Pp;

use crate::input::{self, Reading};

/// A request on the command line.
pub(crate) enum Command {
    Run(Box<Options>),
    Help,
    Version,
}

/// Options of a run of the filter.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) filter: String,
    /// Names, which begin with `$`, and values of the global variables.
    pub(crate) variables: Vec<(String, Val)>,
    /// Input files; standard input if empty.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) reading: Reading,
    pub(crate) layout: Pp,
    pub(crate) output: Output,
    /// True if the exit code depends on the last value.
    pub(crate) has_status: bool,
}

/// How values are separated and written in the output.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Output {
    /// True if strings are written without quotes.
    pub(crate) is_raw: bool,
    /// True if characters beyond ASCII are escaped.
    pub(crate) is_ascii: bool,
    /// True if no line break follows a value.
    pub(crate) is_joined: bool,
    pub(crate) is_unbuffered: bool,
}

/// An invalid command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("no filter is given")]
    NoFilter,
    #[error("Unknown arguments: {0}")]
    Unknown(String),
    #[error("{option} takes {takes}")]
    Missing { option: String, takes: &'static str },
    #[error("an argument is not UTF-8")]
    Encoding,
    #[error("Invalid JSON text passed to {0}")]
    Json(String),
    #[error("Could not open {path}: {error}")]
    File { path: String, error: std::io::Error },
    #[error("Cannot indent more than 7 characters")]
    Indent,
}

/// Meaning of the arguments without a dash that follow the filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Positional {
    Files,
    Texts,
    Json,
}

/// State of the parser of the command line.
struct Parser<I> {
    words: I,
    options: Options,
    filter: Option<String>,
    from_file: bool,
    positional: Vec<Val>,
    kind: Positional,
    named: Vec<(String, Val)>,
}

/// Parses the arguments that follow the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    let words =
        arguments.into_iter().map(|word| word.into_string().map_err(|_| UsageError::Encoding));
    let mut parser = Parser {
        words,
        options: Options::default(),
        filter: None,
        from_file: false,
        positional: Vec::new(),
        kind: Positional::Files,
        named: Vec::new(),
    };
    parser.indent(Some("  ".to_owned()));
    let mut has_options = true;
    while let Some(word) = parser.words.next().transpose()? {
        if !has_options || !word.starts_with('-') || word == "-" {
            parser.positional(word)?;
        } else if word == "--" {
            has_options = false;
        } else if word.starts_with("--") {
            if let Some(command) = parser.long(&word)? {
                return Ok(command);
            }
        } else {
            for letter in word.chars().skip(1) {
                if let Some(command) = parser.short(letter, &word)? {
                    return Ok(command);
                }
            }
        }
    }
    parser.finish().map(|options| Command::Run(Box::new(options)))
}

impl<I: Iterator<Item = Result<String, UsageError>>> Parser<I> {
    fn positional(&mut self, word: String) -> Result<(), UsageError> {
        match (&self.filter, self.kind) {
            (None, _) => self.filter = Some(word),
            (Some(_), Positional::Files) => self.options.files.push(PathBuf::from(word)),
            (Some(_), Positional::Texts) => self.positional.push(Val::utf8_str(word)),
            (Some(_), Positional::Json) => {
                self.positional.push(parse_json(&word, "--jsonargs")?);
            }
        }
        Ok(())
    }

    fn short(&mut self, letter: char, word: &str) -> Result<Option<Command>, UsageError> {
        let Options { reading, output, layout, has_status, .. } = &mut self.options;
        match letter {
            'n' => reading.is_null = true,
            's' => reading.is_slurped = true,
            'R' => reading.is_raw = true,
            'r' => output.is_raw = true,
            'j' => {
                output.is_raw = true;
                output.is_joined = true;
            }
            'a' => output.is_ascii = true,
            'c' => self.indent(None),
            'S' => layout.sort_keys = true,
            'C' | 'M' => {}
            'e' => *has_status = true,
            'f' => self.from_file = true,
            'h' => return Ok(Some(Command::Help)),
            'V' => return Ok(Some(Command::Version)),
            _ => return Err(UsageError::Unknown(word.to_owned())),
        }
        Ok(None)
    }

    fn long(&mut self, word: &str) -> Result<Option<Command>, UsageError> {
        let letter = match word {
            "--null-input" => 'n',
            "--slurp" => 's',
            "--raw-input" => 'R',
            "--raw-output" => 'r',
            "--join-output" => 'j',
            "--ascii-output" => 'a',
            "--compact-output" => 'c',
            "--sort-keys" => 'S',
            "--color-output" => 'C',
            "--monochrome-output" => 'M',
            "--exit-status" => 'e',
            "--from-file" => 'f',
            "--help" => 'h',
            "--version" => 'V',
            _ => return self.with_values(word).map(|()| None),
        };
        self.short(letter, word)
    }

    /// Parses a long option without a letter, with the values that follow it.
    fn with_values(&mut self, word: &str) -> Result<(), UsageError> {
        match word {
            "--tab" => self.indent(Some("\t".to_owned())),
            "--unbuffered" => self.options.output.is_unbuffered = true,
            "--args" => self.kind = Positional::Texts,
            "--jsonargs" => self.kind = Positional::Json,
            "--indent" => {
                let [width] = self.take(word, "a number")?;
                let width =
                    width.parse().ok().filter(|width| *width <= 7).ok_or(UsageError::Indent)?;
                self.indent((width > 0).then(|| " ".repeat(width)));
            }
            "--arg" => {
                let [name, text] = self.take(word, "a name and a text")?;
                self.define(name, Val::utf8_str(text));
            }
            "--argjson" => {
                let [name, text] = self.take(word, "a name and JSON")?;
                let value = parse_json(&text, word)?;
                self.define(name, value);
            }
            "--rawfile" => {
                let [name, path] = self.take(word, "a name and a file")?;
                self.define(name, Val::utf8_str(read_text(&path)?));
            }
            "--slurpfile" => {
                let [name, path] = self.take(word, "a name and a file")?;
                let values =
                    input::parse_all(&read_text(&path)?).map_err(|_| UsageError::Json(path))?;
                self.define(name, values.into_iter().collect());
            }
            _ => return Err(UsageError::Unknown(word.to_owned())),
        }
        Ok(())
    }

    /// Returns the next `N` arguments, which are the values of the option `word`.
    fn take<const N: usize>(
        &mut self,
        word: &str,
        takes: &'static str,
    ) -> Result<[String; N], UsageError> {
        let missing = || UsageError::Missing { option: word.to_owned(), takes };
        let mut taken = Vec::with_capacity(N);
        for _ in 0..N {
            taken.push(self.words.next().ok_or_else(missing)??);
        }
        taken.try_into().map_err(|_| missing())
    }

    /// Sets the text by which each level is indented; without it, each value is on one line.
    fn indent(&mut self, indent: Option<String>) {
        let layout = &mut self.options.layout;
        layout.sep_space = indent.is_some();
        layout.indent = indent;
    }

    /// Sets a variable unless it is already set: the first value counts, as in jq(1).
    fn define(&mut self, name: String, value: Val) {
        if !self.named.iter().any(|(known, _)| *known == name) {
            self.named.push((name, value));
        }
    }

    /// Reads the filter's file, if it has one, and collects the variables.
    fn finish(mut self) -> Result<Options, UsageError> {
        let filter = match (self.filter.take(), self.from_file) {
            (None, _) => return Err(UsageError::NoFilter),
            (Some(filter), false) => filter,
            (Some(path), true) => read_text(&path)?,
        };
        let named =
            self.named.iter().map(|(name, value)| (Val::utf8_str(name.clone()), value.clone()));
        let named = Val::obj(named.collect());
        let fields = [("positional", self.positional.into_iter().collect()), ("named", named)];
        let fields = fields.into_iter().map(|(name, value)| (Val::utf8_str(name), value));
        let env = std::env::vars_os().filter_map(|(name, value)| {
            Some((
                Val::utf8_str(name.into_string().ok()?),
                Val::utf8_str(value.into_string().ok()?),
            ))
        });
        let mut options = self.options;
        options.variables = vec![
            ("$ENV".to_owned(), Val::obj(env.collect())),
            ("$ARGS".to_owned(), Val::obj(fields.collect())),
        ];
        let named = self.named.into_iter();
        options.variables.extend(named.map(|(name, value)| (format!("${name}"), value)));
        options.filter = filter;
        Ok(options)
    }
}

fn parse_json(text: &str, option: &str) -> Result<Val, UsageError> {
    input::parse_one(text).map_err(|_| UsageError::Json(option.to_owned()))
}

/// Reads a file as text.
fn read_text(path: &str) -> Result<String, UsageError> {
    let bytes = std::fs::read(Path::new(path))
        .map_err(|error| UsageError::File { path: path.to_owned(), error })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
