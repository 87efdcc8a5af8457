//! Finds the tool chains of the operator's home, which are granted read-only in addition to a workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
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
        let mut files = HostFiles::default();
        let taken: Vec<Taken> = granted.iter().map(Taken::new).collect();
        for toolchain in wanted {
            let mut all =
                |rows: &[&str]| rows.iter().flat_map(|row| files.matching(row, home)).collect();
            let secrets: Vec<PathBuf> = all(toolchain.credentials);
            let hosts: Vec<PathBuf> = all(toolchain.paths);
            let mut mounts = Vec::new();
            for host in hosts {
                match secrets.iter().find(|secret| secret.starts_with(&host)) {
                    Some(secret) => found.withheld.push((host, secret.clone())),
                    None => mounts.extend(grant(host, home, &taken)),
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
        if let Some(path) = found.path(path, home, &mut files) {
            found.env.insert("PATH".to_owned(), path);
        }
        found.mounts.extend(workspace_at_host_path(granted, &found.mounts));
        found
    }

    /// Returns the PATH of cells: directories of the operator's PATH that lie in granted tool chains, then the usual PATH.
    /// If there are no such directories, the operator's shell has not chosen versions. Then the directories of granted
    /// programs come last, so that they replace no program of the system.
    fn path(&self, path: &OsStr, home: &Path, files: &mut HostFiles) -> Option<String> {
        let chosen = self.shown(std::env::split_paths(path));
        if !chosen.is_empty() {
            return Some(format!("{}:{PATH}", chosen.join(":")));
        }
        let rows = PROGRAMS.iter().flat_map(|row| alternatives(row));
        let latest = rows.filter_map(|row| {
            let found = files.matching_one(&row, home).into_iter();
            found.max_by_key(|path| numbers(path.as_os_str()))
        });
        let others = self.shown(latest);
        (!others.is_empty()).then(|| format!("{PATH}:{}", others.join(":")))
    }

    /// Returns the paths in cells of the directories that lie in granted tool chains or contain a granted program.
    fn shown(&self, directories: impl Iterator<Item = PathBuf>) -> Vec<String> {
        let shown = directories.filter_map(|directory| {
            let real = directory.canonicalize().ok()?;
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

/// Files of the host that rows of the table name, each looked up once: most rows begin with the same directories, and most
/// of these are missing.
#[derive(Debug, Default)]
struct HostFiles {
    exist: BTreeMap<OsString, bool>,
    listings: BTreeMap<OsString, Rc<Listing>>,
}

impl HostFiles {
    /// Returns the existing paths that a row of the table matches.
    fn matching(&mut self, row: &str, home: &Path) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for path in alternatives(row) {
            all.extend(self.matching_one(&path, home));
        }
        all
    }

    fn matching_one(&mut self, row: &str, home: &Path) -> Vec<PathBuf> {
        // The home is not a pattern, even with a `*` in its name.
        let (start, below) = match row.strip_prefix("~/") {
            Some(below) => (home, below),
            None => (Path::new("/"), row.trim_start_matches('/')),
        };
        let mut paths = vec![start.to_owned()];
        // True if the paths are entries of a directory that was listed: rows look for some dozens of names in each.
        let mut are_entries = false;
        for part in below.split('/') {
            let is_pattern = part.contains(['*', '[']);
            if !is_pattern && are_entries {
                paths.retain(|parent| self.may_have(parent, part));
            }
            paths = match is_pattern {
                true => paths.iter().flat_map(|parent| self.entries_like(parent, part)).collect(),
                false => paths.iter().map(|parent| parent.join(part)).collect(),
            };
            paths.retain(|path| self.exists(path));
            are_entries = is_pattern;
        }
        paths
    }

    fn exists(&mut self, path: &Path) -> bool {
        if let Some(exists) = self.exist.get(path.as_os_str()) {
            return *exists;
        }
        let exists = path.exists();
        self.exist.insert(path.as_os_str().to_owned(), exists);
        exists
    }

    /// Returns true if a directory has an entry of this name, or if that is unknown.
    fn may_have(&mut self, directory: &Path, name: &str) -> bool {
        let listing = self.listing(directory);
        !listing.is_whole || listing.names.iter().any(|entry| entry == name)
    }

    /// Returns the entries of a directory whose names match a pattern.
    fn entries_like(&mut self, directory: &Path, pattern: &str) -> Vec<PathBuf> {
        let Ok(pattern) = Pattern::new(pattern) else { return Vec::new() };
        let fits = |name: &&OsString| name.to_str().is_some_and(|name| pattern.matches(name));
        let listing = self.listing(directory);
        listing.names.iter().filter(fits).map(|name| directory.join(name)).collect()
    }

    fn listing(&mut self, directory: &Path) -> Rc<Listing> {
        if let Some(listing) = self.listings.get(directory.as_os_str()) {
            return Rc::clone(listing);
        }
        // Cells could not read a directory either that cannot be read here.
        let mut listing = Listing { names: Vec::new(), is_whole: true };
        match std::fs::read_dir(directory) {
            Ok(entries) => {
                for entry in entries {
                    listing.is_whole &= entry.is_ok();
                    listing.names.extend(entry.map(|entry| entry.file_name()));
                }
            }
            Err(_) => listing.is_whole = false,
        }
        let listing = Rc::new(listing);
        self.listings.insert(directory.as_os_str().to_owned(), Rc::clone(&listing));
        listing
    }
}

/// The names in a directory.
#[derive(Debug)]
struct Listing {
    names: Vec<OsString>,
    /// False if some of them, or all, could not be read.
    is_whole: bool,
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

/// Returns the grant of a path of a row. The target of a link must end with the names of the path, so that
/// `~/.cargo/registry` is never `~/.ssh`.
fn grant(path: PathBuf, home: &Path, taken: &[Taken]) -> Option<MountRequest> {
    let host = path.canonicalize().ok()?;
    let is_same = match path.strip_prefix(home) {
        Ok(below) => host.ends_with(below),
        Err(_) => host == path,
    };
    let overlaps = |other: &Taken| touches(&other.host, &host) || touches(other.cell, &path);
    let fits = is_same && is_shown(&path) && !taken.iter().any(overlaps);
    fits.then_some(MountRequest { host, cell: path, access: Access::ReadOnly })
}

/// Returns true if a cell can have a mount of the host at this path.
fn is_shown(path: &Path) -> bool {
    let reserved = ["/tmp", "/dev", "/proc", "/workspace"];
    path.is_absolute() && !reserved.iter().chain(&LINKS).any(|other| path.starts_with(other))
}

/// Returns true if one of two paths lies below the other, or both are the same.
fn touches(first: &Path, second: &Path) -> bool {
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
