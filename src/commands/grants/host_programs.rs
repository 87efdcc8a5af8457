//! Programs in the operator's PATH that cells do not have, found before the front end is confined.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use model::accounts;
use model::profile::{Exec, PATH, Profile};
use service::host_programs::HostPrograms;

/// Maximum number of programs that are remembered.
const MAX_PROGRAMS: usize = 8192;

/// Finds the programs of PATH in directories that the cells of `profile` do not have.
pub(crate) fn find(profile: &Profile, granted: &[PathBuf]) -> HostPrograms {
    let path = std::env::var_os("PATH").unwrap_or_default();
    HostPrograms::new(outside(&path, accounts::home().as_deref(), profile, granted))
}

/// Finds one program as [`find`] does.
pub(crate) fn named(program: &str, profile: &Profile) -> HostPrograms {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |directory: &Path| !program.contains('/') && directory.join(program).is_file();
    let home = accounts::home();
    let all = elsewhere(&path, profile, &[], has);
    let directory = all.first().map(|directory| shown(directory, home.as_deref()));
    HostPrograms::new(directory.into_iter().map(|path| (program.to_owned(), path)).collect())
}

/// Returns true if the host has the file that cells of `profile` would run as this program: by its path, or in a
/// directory of their PATH.
pub(crate) fn is_in_cells(program: &str, profile: &Profile) -> bool {
    if let Exec::Only(path) = &profile.exec {
        return path.is_file();
    }
    let names: Vec<PathBuf> = match program.contains('/') {
        true => vec![PathBuf::from(program)],
        false => PATH.split(':').map(|directory| Path::new(directory).join(program)).collect(),
    };
    let on_the_host = |name: &PathBuf| {
        profile.paths.iter().any(|shown| match name.strip_prefix(&shown.cell) {
            Ok(below) if below.as_os_str().is_empty() => shown.host.is_file(),
            Ok(below) => shown.host.join(below).is_file(),
            Err(_) => false,
        })
    };
    names.iter().any(on_the_host)
}

/// Returns the directories of PATH that the cells do not have, of those that are `wanted`.
fn elsewhere(
    path: &OsStr,
    profile: &Profile,
    granted: &[PathBuf],
    wanted: impl Fn(&Path) -> bool,
) -> Vec<PathBuf> {
    let shown = profile.paths.iter().filter(|path| path.host == path.cell).map(|path| &path.host);
    let inside: Vec<&PathBuf> = shown.chain(granted).collect();
    // Bytes first: taking paths apart is slow, and every start of a server compares some hundreds.
    let is_below = |directory: &Path, one: &Path| {
        directory.as_os_str().as_bytes().starts_with(one.as_os_str().as_bytes())
            && directory.starts_with(one)
    };
    let is_inside = |directory: &Path| inside.iter().any(|one| is_below(directory, one));
    let is_resolved_inside = |directory: &Path| match directory.canonicalize() {
        Ok(resolved) => is_inside(&resolved),
        Err(_) => false,
    };
    let mut all: Vec<PathBuf> = Vec::new();
    for directory in std::env::split_paths(path) {
        // A path is resolved only if its text does not decide: that takes a system call for each part of it.
        if directory.is_absolute()
            && !all.contains(&directory)
            && !is_inside(&directory)
            && wanted(&directory)
            && !is_resolved_inside(&directory)
        {
            all.push(directory);
        }
    }
    all
}

/// Returns the names of programs outside of a cell, each with the first directory that has it.
fn outside(
    path: &OsStr,
    home: Option<&Path>,
    profile: &Profile,
    granted: &[PathBuf],
) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for directory in elsewhere(path, profile, granted, |_| true) {
        // A directory that cannot be read has no programs for the operator.
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        let path = shown(&directory, home);
        for entry in entries.take(MAX_PROGRAMS.saturating_sub(names.len())) {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if let (Ok(name), false) = (entry.file_name().into_string(), is_directory) {
                names.entry(name).or_insert_with(|| path.clone());
            }
        }
    }
    names
}

/// Shows a directory without the name of the operator's home.
fn shown(directory: &Path, home: Option<&Path>) -> String {
    match home.and_then(|home| directory.strip_prefix(home).ok()) {
        Some(below) => Path::new("~").join(below).display().to_string(),
        None => directory.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use model::profile::{HostPath, PathKind, Presence};

    use super::*;

    #[test]
    fn a_program_is_in_cells_where_a_shown_directory_or_file_has_it() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("present"), "").expect("written");
        let shown = |host: PathBuf, cell: &str| HostPath {
            cell: cell.into(),
            host,
            kind: PathKind::Tree,
            presence: Presence::Optional,
        };
        let with = |path| Profile { paths: vec![path], ..Profile::nothing() };
        let tree = with(shown(directory.path().to_owned(), "/usr/bin"));
        assert!(is_in_cells("present", &tree) && is_in_cells("/usr/bin/present", &tree));
        assert!(!is_in_cells("absent", &tree) && !is_in_cells("/bin/present", &tree));
        let one = with(shown(directory.path().join("present"), "/usr/bin/named"));
        assert!(is_in_cells("named", &one) && !is_in_cells("present", &one));
        let only = |path| Profile { exec: Exec::Only(path), ..Profile::nothing() };
        assert!(is_in_cells("x", &only(directory.path().join("present"))));
        assert!(!is_in_cells("x", &only(directory.path().join("absent"))));
    }

    #[test]
    fn programs_outside_of_the_cell_are_found_with_their_first_directory()
    -> Result<(), std::io::Error> {
        let home = tempfile::tempdir()?;
        let [cargo, other, usr] = ["cargo/bin", "other", "usr"].map(|name| home.path().join(name));
        for (directory, name) in [(&cargo, "cargo"), (&other, "cargo"), (&usr, "ls")] {
            std::fs::create_dir_all(directory)?;
            std::fs::write(directory.join(name), "")?;
        }
        std::fs::create_dir(cargo.join("directory"))?;
        let mut profile = Profile::nothing();
        profile.paths.push(HostPath {
            host: usr.clone(),
            cell: usr.clone(),
            kind: PathKind::Tree,
            presence: Presence::Required,
        });
        let path = std::env::join_paths([&usr, &cargo, &other, &home.path().join("absent")])
            .map_err(std::io::Error::other)?;
        let found = |granted: &[PathBuf]| outside(&path, Some(home.path()), &profile, granted);
        assert_eq!(found(&[]), [("cargo".to_owned(), "~/cargo/bin".to_owned())].into());
        assert_eq!(found(&[cargo]), [("cargo".to_owned(), "~/other".to_owned())].into());
        Ok(())
    }
}
