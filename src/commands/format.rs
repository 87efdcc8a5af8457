//! Text in rows: a name and its description, aligned and wrapped; the limits of a cell as rows.

use serde_json::{Value, json};

use model::job::Limits;
use model::units::{Processors, Size, Time};
use service::capture::deceptive::{always_deceives, is_judged_by_neighbours};

/// Columns of wrapped text, if its words allow it.
const COLUMNS: usize = 100;

/// Names on the left, their descriptions in one column on the right.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: Vec<(String, String)>,
}

impl Rows {
    pub(crate) fn add(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.rows.push((plain(&name.into()), plain(&text.into())));
    }

    /// Formats one line for each row. A row without a description is only the name.
    pub(crate) fn text(&self) -> String {
        let width = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let line = |(name, text): &(String, String)| {
            let line = format!("{name:<width$}  {text}");
            format!("{}\n", line.trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

/// Puts text from a file on one line and escapes every character that a terminal would act on: a
/// file that is only checked may come from anyone.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => plain.push(' '),
            _ if acts(character) => plain.extend(character.escape_default()),
            _ => plain.push(character),
        }
    }
    plain
}

/// Quotes a word for a shell, if it needs that.
pub(crate) fn shell_word(word: &str) -> String {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@:,%".contains(&byte);
    match word.bytes().all(is_safe) && !word.starts_with('-') {
        true => word.to_owned(),
        false => format!("'{}'", plain_name(word).replace('\'', "'\\''")),
    }
}

/// Returns true if a terminal does not only show the character: control characters, and those that
/// hide or reverse text.
pub(crate) fn acts(character: char) -> bool {
    always_deceives(character) || character.is_control()
}

/// Escapes like [`plain`], and escapes what is invisible in a name.
pub(crate) fn plain_name(name: &str) -> String {
    let shown = |character: char| match acts_in_name(character) && !acts(character) {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    plain(&name.chars().map(shown).collect::<String>())
}

/// Returns true if a character must not stand in a name as it is. Joiners and selectors, which text may
/// have, would make two names look the same.
pub(crate) fn acts_in_name(character: char) -> bool {
    acts(character) || is_judged_by_neighbours(character)
}

/// Joins words with commas, in lines that start with `indent`.
pub(crate) fn wrapped<'a>(words: impl IntoIterator<Item = &'a str>, indent: &str) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    let mut text = String::new();
    let mut line = indent.to_owned();
    for (at, word) in words.iter().enumerate() {
        let comma = if at + 1 < words.len() { "," } else { "" };
        if line.len() > indent.len() && line.len() + 1 + word.len() + comma.len() > COLUMNS {
            text.push_str(&line);
            text.push('\n');
            indent.clone_into(&mut line);
        }
        if line.len() > indent.len() {
            line.push(' ');
        }
        line.push_str(word);
        line.push_str(comma);
    }
    text + &line + "\n"
}

/// Lists the limits of a cell by the keys of a profile, for people.
pub(crate) fn limits(limits: &Limits) -> Vec<(&'static str, String)> {
    let size = |bytes| Size(bytes).to_string();
    let processors = |hundredths| ("processors", Processors(hundredths).to_string());
    let listed = [
        ("timeout", Time(limits.wall).to_string()),
        ("cpu", Time(limits.cpu).to_string()),
        ("memory", size(limits.memory)),
        ("processes", limits.processes.to_string()),
        ("open_files", limits.open_files.to_string()),
        ("file_size", size(limits.file_size)),
        ("workspace", size(limits.workspace_bytes)),
        ("tmp", size(limits.tmp_bytes)),
        ("shm", size(limits.shm_bytes)),
        ("inodes", limits.inodes.to_string()),
        ("output", limits.output.map_or_else(|| "no bound".to_owned(), size)),
    ];
    // Few profiles limit processors; a limit that is not set is not listed.
    listed.into_iter().chain(limits.processors.map(processors)).collect()
}

/// Lists the limits for programs; each name has its unit.
pub(crate) fn limits_json(limits: &Limits) -> Value {
    json!({
        "timeout_s": limits.wall.as_secs_f64(),
        "cpu_s": limits.cpu.as_secs_f64(),
        "processors": limits.processors.map(|hundredths| f64::from(hundredths) / 100.0),
        "memory_bytes": limits.memory,
        "processes": limits.processes,
        "open_files": limits.open_files,
        "file_size_bytes": limits.file_size,
        "workspace_bytes": limits.workspace_bytes,
        "tmp_bytes": limits.tmp_bytes,
        "shm_bytes": limits.shm_bytes,
        "inodes": limits.inodes,
        "output_bytes": limits.output,
    })
}

/// Formats a value as indented JSON with a newline at its end.
///
/// # Errors
/// A value that JSON cannot hold.
pub(crate) fn pretty(value: &impl serde::Serialize) -> serde_json::Result<String> {
    Ok(inert(&serde_json::to_string_pretty(value)?) + "\n")
}

/// Escapes characters that a terminal would act on or that a name may hide. In JSON they are part of
/// strings, except line breaks, which are kept.
fn inert(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !acts_in_name(character) {
            text.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_nothing_that_a_terminal_acts_on_and_stays_what_it_is() {
        let value =
            serde_json::json!({ "a\u{9b}31m": ["\u{202e}x\u{7f}", "\u{e0041}", "é\n\u{200d}"] });
        let text = pretty(&value).unwrap_or_default();
        assert!(!text.chars().any(|one| one != '\n' && acts_in_name(one)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).ok(), Some(value));
    }

    #[test]
    fn rows_are_aligned_and_have_no_blanks_at_their_ends() {
        let mut rows = Rows::default();
        rows.add("a", "one");
        rows.add("longer", "");
        assert_eq!(rows.text(), "a       one\nlonger\n");
    }

    #[test]
    fn characters_that_a_terminal_acts_on_are_escaped() {
        assert_eq!(plain("a\u{1b}[2Jb\nc \u{202e}é\u{9b}"), "a\\u{1b}[2Jb c \\u{202e}é\\u{9b}");
    }

    #[test]
    fn invisible_characters_of_names_are_escaped() {
        let emoji = "\u{1f468}\u{200d}\u{1f469}";
        assert_eq!(plain(emoji), emoji);
        assert_eq!(plain_name(emoji), "\u{1f468}\\u{200d}\u{1f469}");
        assert_eq!(plain_name("a\u{fe0f}\n\u{200c}é\u{202e}"), "a\\u{fe0f} \\u{200c}é\\u{202e}");
        assert_eq!(plain_name("1\u{fe0e}\u{180b}\u{180f}"), "1\\u{fe0e}\\u{180b}\\u{180f}");
    }

    #[test]
    fn words_wrap_at_the_last_column_and_keep_their_commas() {
        let word = "x".repeat(47);
        let words = [word.as_str(); 3];
        assert_eq!(wrapped(words, "  "), format!("  {word}, {word},\n  {word}\n"));
        assert_eq!(wrapped(["read"], ""), "read\n");
    }

    #[test]
    fn a_shell_reads_a_quoted_word_as_one() {
        assert_eq!(shell_word("/home/u/p-1"), "/home/u/p-1");
        assert_eq!(shell_word("a b;c"), "'a b;c'");
        assert_eq!(shell_word("it's"), "'it'\\''s'");
        assert_eq!(shell_word("-x"), "'-x'");
        assert_eq!(shell_word("$(x)`y`"), "'$(x)`y`'");
    }
}
