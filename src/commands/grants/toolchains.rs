//! Finds the tool chains of the operator's home, which are granted read-only in addition to a workspace.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use glob::Pattern;

use super::request::{LINKS, MountRequest};
use crate::commands::format::plain;
use config::profile::toolchains::{
    DOWNLOADED, PROGRAMS, TOOLCHAINS, Toolchain, ToolchainChoice, alternatives,
};
use model::accounts;
use model::job::Access;
use model::profile::{DownloadedVariable, PATH};

/// Grants and variables for the tool chains that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FoundToolchains {
    pub names: Vec<&'static str>,
    pub mounts: Vec<MountRequest>,
    pub env: BTreeMap<String, String>,
    /// Variables for cells without a network for downloads.
    pub downloaded: BTreeMap<String, DownloadedVariable>,
    /// Paths that are not granted, each with the file in it that may hold a credential.
    pub withheld: Vec<(PathBuf, PathBuf)>,
}

impl FoundToolchains {
    /// Reports on standard error which paths are not granted.
    pub(crate) fn print_withheld(&self) {
        for [path, secret] in self.shown_withheld() {
            eprintln!("cofferdam: {path} is not granted, since {secret} may hold a credential");
        }
    }

    /// Returns the withheld paths and the file that is the reason, escaped for a terminal.
    pub(crate) fn shown_withheld(&self) -> impl Iterator<Item = [String; 2]> {
        let shown = |path: &PathBuf| plain(&path.display().to_string());
        self.withheld.iter().map(move |(path, secret)| [shown(path), shown(secret)])
    }

    /// Finds the tool chains of the typed choice, else of the configured one, which is used only with a workspace.
    /// `granted` are the operator's other grants: no path is granted twice.
    pub(crate) fn detect(
        typed: Option<&ToolchainChoice>,
        configured: &ToolchainChoice,
        granted: &[MountRequest],
    ) -> Self {
        let has_workspace = granted.iter().any(|mount| mount.cell == Path::new("/workspace"));
        let choice = typed.or_else(|| has_workspace.then_some(configured));
        let wanted = match choice {
            Some(ToolchainChoice::Auto) => TOOLCHAINS.to_vec(),
            None | Some(ToolchainChoice::None) => return Self::default(),
            Some(ToolchainChoice::Only(names)) => names.clone(),
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let Some(home) = accounts::home() else { return Self::default() };
        Self::find(&wanted, &home, &path, granted)
    }

    fn find(wanted: &[Toolchain], home: &Path, path: &OsStr, granted: &[MountRequest]) -> Self {
        let mut found = Self::default();
        let mut files = HostFiles::new(home);
        let taken: Vec<Taken> = granted.iter().map(Taken::new).collect();
        for toolchain in wanted {
            let mut all = |rows: &[&str]| -> Vec<Rc<Matches>> {
                rows.iter().map(|row| files.matching(row)).collect()
            };
            let hosts = all(toolchain.paths);
            if hosts.iter().all(|row| row.paths.is_empty()) {
                continue;
            }
            let secrets = all(toolchain.credentials);
            let mut mounts = Vec::new();
            for host in hosts.iter().flat_map(|row| &row.paths) {
                let mut secrets = secrets.iter().flat_map(|row| &row.paths);
                match secrets.find(|secret| secret.starts_with(host)) {
                    Some(secret) => found.withheld.push((host.clone(), secret.clone())),
                    None => mounts.extend(files.grant(host, home, &taken)),
                }
            }
            if mounts.is_empty() {
                continue;
            }
            found.names.push(toolchain.name);
            found.mounts.extend(mounts);
            for (name, path) in toolchain.variables {
                let value = expanded(path, home).display().to_string();
                let name = (*name).to_owned();
                match DOWNLOADED.iter().find(|(known, _)| *known == name) {
                    Some(&(_, registry)) => {
                        found.downloaded.insert(name, DownloadedVariable { registry, value });
                    }
                    None => drop(found.env.insert(name, value)),
                }
            }
        }
        if let Some(path) = found.path(path, &mut files) {
            found.env.insert("PATH".to_owned(), path);
        }
        found.mounts.extend(workspace_at_host_path(granted, &found.mounts));
        found
    }

    /// Returns the PATH of cells: directories of the operator's PATH that lie in granted tool chains, then the usual PATH.
    /// If there are no such directories, the operator's shell has not chosen versions. Then the directories of granted
    /// programs come last, so that they replace no program of the system.
    fn path(&self, path: &OsStr, files: &mut HostFiles) -> Option<String> {
        let chosen = self.shown(std::env::split_paths(path), files);
        if !chosen.is_empty() {
            return Some(format!("{}:{PATH}", chosen.join(":")));
        }
        let rows = PROGRAMS.iter().flat_map(|row| alternatives(row));
        let latest = rows.filter_map(|row| {
            let found = files.matching(&row);
            found.paths.iter().max_by_key(|path| numbers(path.as_os_str())).cloned()
        });
        let latest: Vec<PathBuf> = latest.collect();
        let others = self.shown(latest.into_iter(), files);
        (!others.is_empty()).then(|| format!("{PATH}:{}", others.join(":")))
    }

    /// Returns the paths in cells of the directories that lie in granted tool chains or contain a granted program.
    fn shown(
        &self,
        directories: impl Iterator<Item = PathBuf>,
        files: &mut HostFiles,
    ) -> Vec<String> {
        let shown = directories.filter_map(|directory| {
            let real = files.resolved(&directory)?;
            let inside = |mount: &MountRequest| {
                let cell = match real.strip_prefix(&mount.host) {
                    // Joining an empty path would add a slash.
                    Ok(rest) if rest.as_os_str().is_empty() => mount.cell.clone(),
                    Ok(rest) => mount.cell.join(rest),
                    Err(_) if mount.host.parent() == Some(&real) && mount.host.is_file() => {
                        mount.cell.parent()?.to_owned()
                    }
                    Err(_) => return None,
                };
                cell.to_str().map(str::to_owned)
            };
            self.mounts.iter().find_map(inside)
        });
        let mut seen = BTreeSet::new();
        shown.filter(|path| !path.contains(':') && seen.insert(path.clone())).collect()
    }
}

/// Returns the numbers in a path, by which versions are compared.
fn numbers(path: &OsStr) -> Vec<u64> {
    let digits = path.as_bytes().split(|byte| !byte.is_ascii_digit());
    digits.filter_map(|digits| std::str::from_utf8(digits).ok()?.parse().ok()).collect()
}

/// Files of the host that rows of the table name. Most rows begin like another one, so what a beginning matches is
/// looked up once.
#[derive(Debug)]
struct HostFiles {
    /// What each beginning of a row matches, up to one of its slashes.
    matches: HashMap<String, Rc<Matches>>,
    directories: HashMap<PathBuf, Directory>,
    /// Directories with their paths without links.
    resolved: HashMap<PathBuf, PathBuf>,
}

/// The existing paths that a row matches.
#[derive(Debug, Default)]
struct Matches {
    paths: Vec<PathBuf>,
    /// True if the last name of the row is a pattern: rows look for some dozens of names in each of these directories.
    are_entries: bool,
}

/// Number of names that are looked up in a directory before it is listed.
const NAMES_UNLISTED: u8 = 2;

/// A directory in which rows look for names.
#[derive(Debug, Default)]
struct Directory {
    /// Number of names that were looked up.
    looked_up: u8,
    listing: Option<Rc<Listing>>,
}

impl HostFiles {
    fn new(home: &Path) -> Self {
        let start =
            |path: &Path| Rc::new(Matches { paths: vec![path.to_owned()], ..Matches::default() });
        // The home is not a pattern, even with a `*` in its name.
        let starts = [("~".to_owned(), start(home)), (String::new(), start(Path::new("/")))];
        Self { matches: starts.into(), directories: HashMap::new(), resolved: HashMap::new() }
    }

    /// Returns the existing paths that a row of the table matches.
    fn matching(&mut self, row: &str) -> Rc<Matches> {
        if let Some(known) = self.matches.get(row) {
            return Rc::clone(known);
        }
        let (before, last) = row.split_at(last_name(row));
        let parents = self.matching(before);
        let mut found = Matches::default();
        // Most of what rows name is missing.
        if !parents.paths.is_empty() {
            for choice in alternatives(last.trim_start_matches('/')) {
                let mut chosen = Rc::clone(&parents);
                for name in choice.split('/') {
                    chosen = Rc::new(self.below(&chosen, name));
                }
                found.are_entries |= chosen.are_entries;
                found.paths.extend_from_slice(&chosen.paths);
            }
        }
        let found = Rc::new(found);
        self.matches.insert(row.to_owned(), Rc::clone(&found));
        found
    }

    /// Returns the existing entries of these directories that a name or a pattern matches.
    fn below(&mut self, parents: &Matches, name: &str) -> Matches {
        let are_entries = name.contains(['*', '[']);
        let mut paths = Vec::new();
        if are_entries {
            let Ok(pattern) = Pattern::new(name) else { return Matches::default() };
            for parent in &parents.paths {
                let listing = self.listing(parent);
                let fits =
                    |entry: &&Entry| entry.name.to_str().is_some_and(|name| pattern.matches(name));
                let fitting = listing.entries.iter().filter(fits);
                paths.extend(fitting.filter_map(|entry| entry.existing(parent)));
            }
        } else {
            for parent in &parents.paths {
                match parents.are_entries.then(|| self.listed(parent)).flatten() {
                    Some(listing) => {
                        let entry = listing.entries.iter().find(|entry| entry.name == name);
                        paths.extend(entry.and_then(|entry| entry.existing(parent)));
                    }
                    None => paths.extend(Some(parent.join(name)).filter(|path| path.exists())),
                }
            }
        }
        Matches { paths, are_entries }
    }

    /// Returns the entries of a directory in which several names are looked up, if all of them are known.
    fn listed(&mut self, directory: &Path) -> Option<Rc<Listing>> {
        let known = self.directories.entry(directory.to_owned()).or_default();
        known.looked_up = known.looked_up.saturating_add(1);
        let is_due = known.looked_up > NAMES_UNLISTED || known.listing.is_some();
        is_due.then(|| self.listing(directory)).filter(|listing| listing.is_whole)
    }

    fn listing(&mut self, directory: &Path) -> Rc<Listing> {
        let known = self.directories.entry(directory.to_owned()).or_default();
        Rc::clone(known.listing.get_or_insert_with(|| Rc::new(Listing::read(directory))))
    }

    /// Returns the grant of a path of a row. The target of a link must end with the names of the path, so that
    /// `~/.cargo/registry` is never `~/.ssh`.
    fn grant(&mut self, path: &Path, home: &Path, taken: &[Taken]) -> Option<MountRequest> {
        let host = self.resolved(path)?;
        let is_same = match path.strip_prefix(home) {
            Ok(below) => host.ends_with(below),
            Err(_) => host == path,
        };
        let overlaps = |other: &Taken| touches(&other.host, &host) || touches(other.cell, path);
        let fits = is_same && is_shown(path) && !taken.iter().any(overlaps);
        let cell = path.to_owned();
        fits.then_some(MountRequest { host, cell, access: Access::ReadOnly })
    }

    /// Returns a path without links, as `canonicalize` does. Most paths have their directories in common, so each name is
    /// read once.
    fn resolved(&mut self, path: &Path) -> Option<PathBuf> {
        if let Some(known) = self.resolved.get(path) {
            return Some(known.clone());
        }
        let resolved = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if path.is_absolute() => {
                let path = self.resolved(parent)?.join(name);
                match path.read_link() {
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => path,
                    Err(_) => return None,
                    Ok(_) => path.canonicalize().ok()?,
                }
            }
            _ => path.canonicalize().ok()?,
        };
        self.resolved.insert(path.to_owned(), resolved.clone());
        Some(resolved)
    }
}

/// Returns the position of the slash before the last name of a row. Alternatives can contain slashes.
fn last_name(row: &str) -> usize {
    let mut is_choice = false;
    let slash = |(_, byte): &(usize, u8)| {
        // From the end on, a choice begins with its closing brace.
        is_choice = (is_choice || *byte == b'}') && *byte != b'{';
        *byte == b'/' && !is_choice
    };
    row.bytes().enumerate().rev().find(slash).map_or(0, |(at, _)| at)
}

/// The entries of a directory.
#[derive(Debug)]
struct Listing {
    entries: Vec<Entry>,
    /// False if some of them, or all, could not be read.
    is_whole: bool,
}

impl Listing {
    fn read(directory: &Path) -> Self {
        let mut listing = Self { entries: Vec::new(), is_whole: true };
        match std::fs::read_dir(directory) {
            Ok(entries) => {
                for entry in entries {
                    listing.is_whole &= entry.is_ok();
                    listing.entries.extend(entry.map(|entry| Entry {
                        name: entry.file_name(),
                        is_link: entry.file_type().is_ok_and(|kind| kind.is_symlink()),
                    }));
                }
            }
            // Nothing is below a file.
            Err(error) => listing.is_whole = error.kind() == ErrorKind::NotADirectory,
        }
        listing
    }
}

/// An entry of a directory.
#[derive(Debug)]
struct Entry {
    name: OsString,
    is_link: bool,
}

impl Entry {
    /// Returns the path of the entry, unless it is a link to a missing file.
    fn existing(&self, parent: &Path) -> Option<PathBuf> {
        let path = parent.join(&self.name);
        (!self.is_link || path.exists()).then_some(path)
    }
}

/// Replaces `~` in the path of a row.
fn expanded(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(below) => home.join(below),
        None => PathBuf::from(path),
    }
}

/// A grant of the operator, with the path of its host directory without links.
#[derive(Debug)]
struct Taken<'m> {
    host: PathBuf,
    cell: &'m Path,
}

impl<'m> Taken<'m> {
    fn new(mount: &'m MountRequest) -> Self {
        let host = mount.host.canonicalize().unwrap_or_else(|_| mount.host.clone());
        Self { host, cell: &mount.cell }
    }
}

/// Returns true if a cell can have a mount of the host at this path.
pub(super) fn is_shown(path: &Path) -> bool {
    let reserved = ["/tmp", "/dev", "/proc", "/workspace"];
    path.is_absolute() && !reserved.iter().chain(&LINKS).any(|other| path.starts_with(other))
}

/// Returns true if one of two paths lies below the other, or both are the same.
pub(super) fn touches(first: &Path, second: &Path) -> bool {
    second.starts_with(first) || first.starts_with(second)
}

/// Returns the workspace once more, at its path on the host, which files in it name, such as the scripts of a virtual
/// environment. `None` if another grant lies within the workspace, which covers a part or makes it read-only: at the
/// second path that grant would be missing.
fn workspace_at_host_path(
    granted: &[MountRequest],
    found: &[MountRequest],
) -> Option<MountRequest> {
    let workspace = Path::new("/workspace");
    let mount = granted.iter().find(|mount| mount.cell == workspace)?;
    let is_within =
        |mount: &MountRequest| mount.cell != workspace && mount.cell.starts_with(workspace);
    if granted.iter().any(is_within) {
        return None;
    }
    // Cells do not have the links of this path.
    let cell = mount.host.canonicalize().ok()?;
    let is_free = !granted.iter().chain(found).any(|other| touches(&cell, &other.cell));
    (is_free && is_shown(&cell)).then(|| MountRequest { cell, ..mount.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_like(name: &str, pattern: &str) -> bool {
        Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(name))
    }

    #[test]
    fn only_a_star_matches_any_text() {
        let cases = [
            ("go1.25.1", "go1*", true),
            ("ago1", "go1*", false),
            ("github.com", "*.*", true),
            ("cache", "*.*", false),
            ("init.gradle", "*.gradle", true),
            ("init.gradle.kts", "*.gradle", false),
            ("x", "*", true),
            ("aXbXc", "a*b*c", true),
            ("ab", "a*b*c", false),
        ];
        for (name, pattern, expected) in cases {
            assert_eq!(is_like(name, pattern), expected, "{name} {pattern}");
        }
    }

    #[test]
    fn in_opt_only_parts_of_tool_chains_are_granted() -> Result<(), String> {
        let opt = Toolchain::named("opt")?;
        let rows: Vec<String> = opt.paths.iter().flat_map(|row| alternatives(row)).collect();
        let is_granted = |path: &str| {
            let parts = |row: &str| row.split('/').count();
            let fits = |row: &&String| {
                let names = path.split('/').zip(row.split('/'));
                parts(path) >= parts(row)
                    && names.fold(true, |all, (name, part)| all && is_like(name, part))
            };
            rows.iter().any(|row| fits(&row))
        };
        for path in [
            "/opt/cmake-3.30.1/share/cmake-3.30/Modules",
            "/opt/go/src/fmt/print.go",
            "/opt/go1.25.1/bin/go",
            "/opt/gradle/gradle-8.10/lib/x.jar",
            "/opt/java/openjdk/lib/server/libjvm.so",
            "/opt/jdk-21.0.1/conf/security/java.security",
            "/opt/jdk1.8.0_202/jre/lib/rt.jar",
            "/opt/node-v22.1.0-linux-x64/lib/node_modules/npm/index.js",
            "/opt/python/3.11.4/lib/python3.11/os.py",
            "/opt/zig-linux-x86_64-0.13.0/zig",
        ] {
            assert!(is_granted(path), "{path}");
        }
        for path in [
            "/opt/cmake-ci/share/token",
            "/opt/go/env",
            "/opt/gradle/gradle.properties",
            "/opt/gradle-8.10/init.d/company.gradle",
            "/opt/java-service/config/application.properties",
            "/opt/java/openjdk/conf/management/jmxremote.password",
            "/opt/jdk-backup/lib/key",
            "/opt/node-billing/.env",
            "/opt/node/.env",
            "/opt/node/v20/etc/npmrc",
            "/opt/python-api/secrets.yml",
            "/opt/python/3.11.4/pip.conf",
            "/opt/python3/.condarc",
            "/opt/python3/etc/jupyter/jupyter_server_config.py",
        ] {
            assert!(!is_granted(path), "{path}");
        }
        Ok(())
    }

    #[test]
    fn no_path_through_a_link_of_the_cell_is_shown() {
        for path in ["/lib/project", "/sbin/project", "/tmp/project", "project"] {
            assert!(!is_shown(Path::new(path)), "{path}");
        }
        for path in ["/library/project", "/usr/lib/project", "/home/someone/project"] {
            assert!(is_shown(Path::new(path)), "{path}");
        }
    }
}
