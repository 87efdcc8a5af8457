//! Macros: commands that a client keeps under a name, to run them again with other parameters.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Limits: macros of a client, commands of one macro, and bytes of all macros together.
const MAX_MACROS: usize = 64;
pub const MAX_COMMANDS: usize = 32;
const MAX_BYTES: usize = 1 << 20;
/// Length of the longest name in bytes, and the pattern of a name for the schema.
pub const NAME_BYTES: usize = 64;
pub const NAME_PATTERN: &str = "^[A-Za-z0-9._-]+$";

/// Macros of one client.
#[derive(Debug, Default)]
pub struct Macros(Mutex<BTreeMap<String, Vec<String>>>);

/// Existence of a macro of that name before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    None,
    Replaced,
}

impl Macros {
    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Vec<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores commands under a name, in place of earlier ones.
    pub fn save(&self, name: &str, commands: Vec<String>) -> Result<Before, String> {
        check(name, &commands)?;
        let size = |name: &str, commands: &[String]| {
            name.len() + commands.iter().map(String::len).sum::<usize>()
        };
        let mut held = self.held();
        let others = || held.iter().filter(|(other, _)| *other != name);
        if others().count() >= MAX_MACROS {
            return Err(format!("there are {MAX_MACROS} macros already"));
        }
        let bytes = others().map(|(name, commands)| size(name, commands)).sum::<usize>();
        if bytes + size(name, &commands) > MAX_BYTES {
            return Err(format!("all macros together have {MAX_BYTES} bytes at most"));
        }
        let before = held.insert(name.to_owned(), commands);
        Ok(if before.is_some() { Before::Replaced } else { Before::None })
    }

    pub fn get(&self, name: &str) -> Option<Vec<String>> {
        self.held().get(name).cloned()
    }

    /// Returns every macro with its commands, by name.
    pub fn all(&self) -> BTreeMap<String, Vec<String>> {
        self.held().clone()
    }

    pub fn delete(&self, name: &str) -> Option<Vec<String>> {
        self.held().remove(name)
    }
}

fn check(name: &str, commands: &[String]) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES || !name.chars().all(plain) {
        let what = "letters, digits, dots, dashes and underscores";
        return Err(format!("`name`: expected 1 to {NAME_BYTES} {what}"));
    }
    if !(1..=MAX_COMMANDS).contains(&commands.len()) {
        let count = commands.len();
        return Err(format!("`commands`: expected 1 to {MAX_COMMANDS}, not {count}"));
    }
    match commands.iter().position(|command| command.trim().is_empty()) {
        Some(at) => Err(format!("`commands[{at}]` is empty")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(count: usize) -> Vec<String> {
        vec!["true".to_owned(); count]
    }

    #[test]
    fn a_macro_is_kept_in_the_place_of_the_one_before_it() {
        let macros = Macros::default();
        assert_eq!(macros.save("a.b-c_1", commands(1)), Ok(Before::None));
        assert_eq!(macros.save("a.b-c_1", commands(32)), Ok(Before::Replaced));
        assert_eq!(macros.get("a.b-c_1"), Some(commands(32)));
        assert_eq!(macros.delete("a.b-c_1"), Some(commands(32)));
        assert_eq!(macros.get("a.b-c_1"), None);
    }

    #[test]
    fn names_commands_and_all_macros_together_are_bounded() {
        let macros = Macros::default();
        let refused = |name: &str, commands| macros.save(name, commands).err().unwrap_or_default();
        for name in ["", "a b", "a/b", "é", &"x".repeat(65)] {
            assert!(refused(name, commands(1)).starts_with("`name`: expected 1 to 64"), "{name}");
        }
        assert_eq!(refused("a", commands(0)), "`commands`: expected 1 to 32, not 0");
        assert_eq!(refused("a", commands(33)), "`commands`: expected 1 to 32, not 33");
        assert_eq!(refused("a", vec!["true".into(), " \n".into()]), "`commands[1]` is empty");
        let large = vec!["x".repeat(MAX_BYTES - 1)];
        assert_eq!(macros.save("a", large.clone()), Ok(Before::None));
        // A replaced macro's own size counts as free.
        assert_eq!(macros.save("a", large), Ok(Before::Replaced));
        assert_eq!(refused("b", commands(1)), "all macros together have 1048576 bytes at most");
        macros.delete("a");
        for number in 0..MAX_MACROS {
            assert_eq!(macros.save(&number.to_string(), commands(1)), Ok(Before::None));
        }
        assert_eq!(refused("one-more", commands(1)), "there are 64 macros already");
        assert_eq!(macros.save("0", commands(2)), Ok(Before::Replaced));
    }
}
