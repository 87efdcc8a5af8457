//! Places in a granted directory that a repository's configuration names: git runs or obeys these too.
//!
//! A small reader of git's configuration (git-config(1)): what it cannot be sure of, it takes for a
//! place to guard.

use std::path::{Component, Path, PathBuf};

/// Configurations are a few kilobytes; of a larger one this much is read.
const MOST: u64 = 1 << 20;

/// Paths below `root` that the configuration of the repository at `git` names as its hooks or as
/// more configuration. `host` is what `root` is called on the host.
pub fn places(git: &Path, root: &Path, host: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for file in ["config", "config.worktree"] {
        let file = git.join(file);
        // What we may not read, the cell may not either; git will not, as this user.
        let Some(text) = read(&file) else { continue };
        let settings = settings(&text);
        let place = |base: &Path, value: &str| within(root, host, base, value);
        let valued = |key: &str| {
            let key = key.to_owned();
            settings.iter().filter(move |(name, _)| *name == key).map(|(_, value)| value.as_str())
        };
        // Where hooks run: the work tree, which a submodule's repository names.
        let tree = git.parent().unwrap_or(git).to_owned();
        let named = valued("core.worktree").filter_map(|value| place(git, value));
        let trees: Vec<PathBuf> = [tree, git.to_owned()].into_iter().chain(named).collect();
        for value in valued("core.hookspath") {
            for hooks in trees.iter().filter_map(|tree| place(tree, value)) {
                // husky runs what lies beside its hooks.
                let husky = hooks.parent().filter(|parent| parent.ends_with(".husky"));
                found.extend(husky.map(Path::to_owned));
                found.push(hooks);
            }
        }
        found.extend(valued("include.path").filter_map(|value| place(git, value)));
    }
    found.sort();
    found.dedup();
    // Of what is named by a guess only, the guess must not stand for a whole tree.
    found.retain(|path| path != root && !git.starts_with(path));
    found
}

fn read(file: &Path) -> Option<String> {
    use std::io::Read;
    if !file.symlink_metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    std::fs::File::open(file).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The place of a value below `root`, or nothing where it leads elsewhere.
fn within(root: &Path, host: &Path, base: &Path, value: &str) -> Option<PathBuf> {
    let value = Path::new(value);
    let path = if value.is_absolute() {
        root.join(value.strip_prefix(host).ok()?)
    } else {
        base.join(value)
    };
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain.starts_with(root).then_some(plain)
}

/// Settings by their names, section and key in lower case, subsections left out: what is included
/// on a condition counts as included.
fn settings(text: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.replace("\\\r\n", "").replace("\\\n", "").lines() {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let (head, after) = rest.rsplit_once(']').unwrap_or((rest, ""));
            let name = head.split([' ', '\t', '"', '.']).next().unwrap_or_default();
            section = name.to_ascii_lowercase();
            if section == "includeif" {
                section = "include".to_owned();
            }
            // A setting may follow on the same line.
            line = after.trim();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim().to_ascii_lowercase();
        found.push((format!("{section}.{key}"), unquoted(value)));
    }
    found
}

/// A value without its quotes, its escapes and its comment.
fn unquoted(value: &str) -> String {
    let mut text = String::new();
    let mut quoted = false;
    let mut characters = value.trim().chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => quoted = !quoted,
            '\\' => text.extend(characters.next()),
            '#' | ';' if !quoted => break,
            other => text.push(other),
        }
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: &str) -> std::io::Result<Vec<String>> {
        let root = tempfile::tempdir()?;
        let git = root.path().join("project/.git");
        std::fs::create_dir_all(&git)?;
        std::fs::write(git.join("config"), config)?;
        let places = places(&git, root.path(), Path::new("/srv/grant"));
        let below = places.iter().filter_map(|place| place.strip_prefix(root.path()).ok());
        Ok(below.map(|place| place.display().to_string()).collect())
    }

    #[test]
    fn hooks_elsewhere_are_found_however_they_are_written() -> std::io::Result<()> {
        for config in [
            "[core]\n\thooksPath = githooks\n",
            "[CORE] HooksPath=\"githooks\" ; ours\n",
            "[core]\nhookspath = git\\\nhooks # ours\n",
            "[core]\n hooksPath = /srv/grant/project/githooks\n",
            "[core]\n hooksPath = ./x/../githooks\n",
        ] {
            let found = of(config)?;
            assert!(found.contains(&"project/githooks".to_owned()), "{config}: {found:?}");
        }
        Ok(())
    }

    #[test]
    fn the_directory_of_husky_is_guarded_with_its_hooks() -> std::io::Result<()> {
        let found = of("[core]\n\thooksPath = .husky/_\n")?;
        for place in ["project/.husky", "project/.husky/_"] {
            assert!(found.contains(&place.to_owned()), "{found:?}");
        }
        Ok(())
    }

    #[test]
    fn included_files_are_found_and_what_lies_elsewhere_is_not() -> std::io::Result<()> {
        let config = "[include]\n path = ../shared.gitconfig\n\
            [includeIf \"gitdir:~/a].b/\"]\n path = ../../more\n\
            [include]\n path = /etc/gitconfig\n path = ~/.gitconfig2\n path = ../../../../up\n\
            [user]\n path = ../not-this\n";
        let found = of(config)?;
        assert_eq!(found, ["more", "project/.git/~/.gitconfig2", "project/shared.gitconfig"]);
        Ok(())
    }
}
