//! The form of the code: which module names which, where `unsafe` stands, and what fits a screen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Lines of a file above which a warning asks for a cut along ideas.
const FILE: usize = 600;

/// Words that begin a noun clause.
const CLAUSES: [&str; 6] = ["What", "Whether", "Who", "Where", "Whoever", "Whatever"];
/// Comment lines for each one that may hold a sentence that begins so: 2 %.
const LINES_PER_CLAUSE: usize = 50;

/// Crates of the workspace, and which of them each may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("sys", &[]),
    ("helpers", &[]),
    // Frames carry descriptors, which `sys` checks.
    ("model", &["sys"]),
    ("cell", &["model", "sys"]),
    ("gateway", &["cell", "model", "sys"]),
    ("supervisor", &["cell", "helpers", "model", "sys"]),
    // For the numbers of system calls, and those that the profile `bash` lists.
    ("selftest", &["config", "helpers", "model", "sys"]),
    // The watcher is a confined process.
    ("projects", &["cell", "sys"]),
    // An applet: nothing of the product is in it.
    ("jq", &[]),
    ("config", &["model"]),
    ("calc", &["model"]),
    ("mcp", &["calc", "config", "model", "projects", "service"]),
    ("http", &["config", "mcp", "model", "service"]),
    // An executor is made from the configuration in force; `sys` has the sockets of the link.
    ("service", &["calc", "config", "model", "sys"]),
];

/// Crates that the mechanism is built on: each is a direct dependency of a crate that uses it.
const MECHANISMS: &[&str] = &[
    "nix",
    "libc",
    "seccompiler",
    "caps",
    "landlock",
    "tokio",
    "serde_json",
    "rlimit",
    "tempfile",
];

/// Folders of the supervisor: each names only itself and those after it.
const FOLDERS: [&str; 5] = ["boot", "event_loop", "sessions", "cells", "rootfs"];

/// A source file: its path below the root, and its text.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl Source {
    /// The module of the crate's root that it is part of.
    fn module(&self) -> &str {
        let below = self.path.strip_prefix("src").unwrap_or(&self.path);
        let first = below.components().next().map(|part| part.as_os_str());
        let first = first.and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// Code of the product: not of its tests, which may look anywhere, nor of what builds it.
    pub(crate) fn is_product(&self) -> bool {
        let stem = self.path.file_stem().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        self.path.starts_with("src")
            && !["tests", "build"].contains(&stem)
            && !stem.ends_with("_tests")
    }

    /// Returns its lines with their numbers, without comments and without the tests at its end.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(self.text.len());
        let product = self.text.get(..end).unwrap_or_default();
        let lines = (1..).zip(product.lines());
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

pub(crate) fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for directory in ["src", "tests", "benches", "examples"] {
        collect(&root.join(directory), root, &mut found);
    }
    assert!(found.len() > 50, "only {} files were found", found.len());
    found
}

fn collect(directory: &Path, root: &Path, found: &mut Vec<Source>) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, root, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let path = path.strip_prefix(root).map(Path::to_owned).unwrap_or_default();
            found.push(Source { path, text });
        }
    }
}

/// Fails with every fault, so that one run shows them all.
pub(crate) fn assert_no_faults(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the answer of `cargo metadata` for the workspace, or for all of its dependencies.
pub(crate) fn metadata(options: &[&str]) -> serde_json::Value {
    let mut command = std::process::Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version=1", "--locked", "--offline"]).args(options);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("its JSON")
}

/// Returns a list in JSON, or an empty one.
pub(crate) fn list<'a>(value: &'a serde_json::Value, key: &str) -> &'a [serde_json::Value] {
    value.get(key).and_then(serde_json::Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) fn text<'a>(value: &'a serde_json::Value, key: &str) -> &'a str {
    value.get(key).and_then(serde_json::Value::as_str).unwrap_or_default()
}

#[test]
fn crates_depend_only_on_those_the_arrows_lead_to() {
    let metadata = metadata(&["--no-deps"]);
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for package in list(&metadata, "packages").iter().filter(|it| is_of_the_product(it)) {
        let Some(name) = text(package, "name").strip_prefix("cofferdam-") else { continue };
        let Some((known, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            faults.push(format!("`{name}` has no arrow yet"));
            continue;
        };
        seen.insert(*known);
        // Dependencies of its tests and its build script count too.
        for dependency in list(package, "dependencies") {
            let named = text(dependency, "name").strip_prefix("cofferdam-");
            if let Some(named) = named.filter(|named| !allowed.contains(named)) {
                faults.push(format!("`{name}` depends on `{named}`"));
            }
        }
    }
    assert_no_faults(&faults);
    assert_eq!(seen, CRATES.iter().map(|(name, _)| *name).collect(), "crates of the workspace");
}

/// Returns whether a package is a part of the program, and not an example.
fn is_of_the_product(package: &serde_json::Value) -> bool {
    !package_directory(package).parent().is_some_and(|parent| parent.ends_with("examples"))
}

/// The directory of a package.
fn package_directory(package: &serde_json::Value) -> PathBuf {
    Path::new(text(package, "manifest_path")).parent().map(Path::to_owned).unwrap_or_default()
}

#[test]
fn every_dependency_is_in_use() {
    let metadata = metadata(&["--no-deps"]);
    let mut faults = Vec::new();
    let mut mechanisms = BTreeSet::new();
    for package in list(&metadata, "packages").iter().filter(|it| is_of_the_product(it)) {
        let mut sources = Vec::new();
        let root = package_directory(package);
        // The root has the other crates in its own directory.
        let is_root = text(package, "name") == "cofferdam";
        let code = if is_root { root.join("src/commands") } else { root };
        collect(&code, Path::new(env!("CARGO_MANIFEST_DIR")), &mut sources);
        let normal = |it: &&serde_json::Value| it.get("kind").is_some_and(|kind| kind.is_null());
        for dependency in list(package, "dependencies").iter().filter(normal) {
            let name = match text(dependency, "rename") {
                "" => text(dependency, "name"),
                renamed => renamed,
            };
            let path = format!("{}::", name.replace('-', "_"));
            // `model::profile::` does not name the crate `profile`.
            let begins = |line: &str, at| {
                let before = line.get(..at).and_then(|before| before.chars().next_back());
                before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
            };
            let names = |line: &str| line.match_indices(&path).any(|(at, _)| begins(line, at));
            let mut lines = sources.iter().filter(|it| it.is_product()).flat_map(Source::code);
            if lines.any(|(_, line)| names(line)) {
                mechanisms.extend(MECHANISMS.iter().find(|mechanism| **mechanism == name));
            } else {
                faults.push(format!("`{}` does not use `{name}`", text(package, "name")));
            }
        }
    }
    assert_no_faults(&faults);
    assert_eq!(mechanisms, MECHANISMS.iter().collect(), "direct dependencies in use");
}

/// All that a package needs to run, itself included.
fn closure<'a>(metadata: &'a serde_json::Value, package: &str) -> BTreeSet<&'a str> {
    let packages = list(metadata, "packages");
    let name = |id: &str| {
        let found = packages.iter().find(|package| text(package, "id") == id);
        found.map_or("", |package| text(package, "name"))
    };
    let nodes = metadata.get("resolve").map_or(&[][..], |resolve| list(resolve, "nodes"));
    let mut found = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut next: Vec<&str> = nodes.iter().map(|node| text(node, "id")).collect();
    next.retain(|id| name(id) == package);
    while let Some(id) = next.pop() {
        if !found.insert(id) {
            continue;
        }
        names.insert(name(id));
        let node = nodes.iter().filter(|node| text(node, "id") == id);
        for dependency in node.flat_map(|node| list(node, "deps")) {
            let kinds = list(dependency, "dep_kinds").iter();
            let mut kinds = kinds.filter_map(|kind| kind.get("kind"));
            if kinds.any(serde_json::Value::is_null) {
                next.push(text(dependency, "pkg"));
            }
        }
    }
    names
}

#[test]
fn the_supervisor_has_no_runtime_json_or_toml() {
    let platform = format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = metadata(&[&platform]);
    let refused = ["tokio", "mio", "serde_json", "schemars", "rmcp", "toml"];
    for package in ["cofferdam-supervisor", "cofferdam-cell"] {
        let needs = closure(&metadata, package);
        assert!(needs.contains("nix") && needs.contains("cofferdam-sys"), "{needs:?}");
        let found: Vec<_> = refused.iter().filter(|name| needs.contains(**name)).collect();
        assert!(found.is_empty(), "`{package}` needs {found:?}");
    }
    let all = closure(&metadata, "cofferdam");
    assert!(refused.iter().all(|name| all.contains(name)), "the names would be found");
}

/// The name of a function, constant or module that this line makes public.
fn made_public(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace();
    let mut word = words.next()?;
    while word == "async" || (word == "const" && !line.contains(':')) {
        word = words.next()?;
    }
    if !["fn", "const", "static", "mod"].contains(&word) {
        return None;
    }
    let name = if word == "const" { words.find(|word| *word != "fn")? } else { words.next()? };
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn each_public_item_is_named_by_another_crate() {
    let mut sources = sources();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for directory in ["fuzz/src", "fuzz/fuzz_targets"] {
        collect(&root.join(directory), root, &mut sources);
    }
    let owner = |source: &Source| {
        let known = CRATES.iter().find(|(name, _)| source.path.starts_with(format!("src/{name}")));
        known.map_or("cofferdam", |(name, _)| *name)
    };
    let has_others = |source: &&Source| !["cofferdam", "helpers"].contains(&owner(source));
    let mut public = Vec::new();
    for source in sources.iter().filter(|source| source.is_product()).filter(has_others) {
        let lines = source.code();
        let names = lines.filter_map(|(number, line)| Some((number, made_public(line)?)));
        public.extend(names.map(|(number, name)| (source, number, name)));
    }
    assert!(public.len() > 500, "only {} public names were found", public.len());
    let mut naming: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    naming.extend(public.iter().map(|(_, _, name)| (*name, BTreeSet::new())));
    for source in &sources {
        let owner = owner(source);
        for word in source.text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if let Some(crates) = naming.get_mut(word) {
                crates.insert(owner);
            }
        }
    }
    let is_alone = |source: &Source, name: &str| {
        naming.get(name).is_none_or(|crates| crates.iter().all(|by| *by == owner(source)))
    };
    let alone = public.iter().filter(|(source, _, name)| is_alone(source, name));
    let faults = alone.map(|(source, number, name)| {
        format!("{}:{number}: `{name}` is of this crate alone", source.path.display())
    });
    assert_no_faults(&faults.collect::<Vec<_>>());
}

/// Returns the name of the type that a line at the left margin makes public.
fn public_type(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Helpers are separate programs, without the standard library and its `Result`.
#[test]
fn no_two_crates_share_the_name_of_a_public_type() {
    let (sources, mut owners) = (sources(), BTreeMap::<&str, BTreeSet<&str>>::new());
    for source in sources.iter().filter(|source| source.is_product()) {
        if ["commands", "helpers", "lib", "main"].contains(&source.module()) {
            continue;
        }
        for name in source.code().filter_map(|(_, line)| public_type(line)) {
            owners.entry(name).or_default().insert(source.module());
        }
    }
    assert!(owners.len() > 200, "only {} types were found", owners.len());
    let shared = owners.iter().filter(|(_, crates)| crates.len() > 1);
    let faults: Vec<String> = shared.map(|(name, of)| format!("`{name}` of {of:?}")).collect();
    assert_no_faults(&faults);
}

/// Names of other modules of the supervisor in the code of `source`, each with its folder.
fn named_in_the_supervisor(source: &Source, folder: &str) -> BTreeSet<(String, String)> {
    // In a module of several files `super` is the module itself.
    let is_flat = source.path.components().count() == 4;
    let mut found = BTreeSet::new();
    for (_, line) in source.code() {
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        for path in words.by_ref() {
            let parts: Vec<&str> = path.split("::").collect();
            match parts.as_slice() {
                ["crate", to, module, ..] if FOLDERS.contains(to) => {
                    found.insert(((*to).to_owned(), (*module).to_owned()));
                }
                ["super", module, ..] if is_flat => {
                    found.insert((folder.to_owned(), (*module).to_owned()));
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn supervisor_modules_have_no_import_cycles() {
    let mut faults = Vec::new();
    let mut edges = BTreeSet::new();
    for source in sources().iter().filter(|source| source.is_product()) {
        let Ok(below) = source.path.strip_prefix("src/supervisor") else { continue };
        let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
        let [folder, module, ..] = parts.as_slice() else { continue };
        let own = (folder.to_string(), module.trim_end_matches(".rs").to_owned());
        let position = |folder: &str| FOLDERS.iter().position(|name| *name == folder);
        for to in named_in_the_supervisor(source, folder) {
            if position(&to.0) < position(folder) {
                let path = source.path.display();
                faults.push(format!("{path}: `{folder}` names `{}`, which is above it", to.0));
            }
            if to != own {
                edges.insert((own.clone(), to));
            }
        }
    }
    assert!(edges.len() > 80, "only {} imports were found", edges.len());
    // A module is in no circle if it names no module that is left.
    loop {
        let before = edges.len();
        let from: BTreeSet<_> = edges.iter().map(|(from, _)| from.clone()).collect();
        edges.retain(|(_, to)| from.contains(to));
        if edges.len() == before {
            break;
        }
    }
    faults.extend(edges.iter().map(|((_, from), (_, to))| format!("a circle: {from} -> {to}")));
    assert_no_faults(&faults);
}

#[test]
fn unsafe_stands_in_sys_alone() {
    let sources = sources();
    let word = |line: &str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == "unsafe")
    };
    // `form.rs` contains the word itself, and an attacker makes any system call there is. The helper of
    // the self-test is a separate program without a library: its calls are in its own `sys`. The
    // clerk is another, with an allocator.
    let elsewhere = |source: &&Source| {
        !source.path.starts_with("src/sys")
            && !source.path.ends_with("tests/tidy/form.rs")
            && !source.path.ends_with("tests/sessions/hostile/raw.rs")
            && !source.path.ends_with("helpers/probe/sys.rs")
            && !source.path.ends_with("helpers/clerk/heap.rs")
    };
    let mut faults = Vec::new();
    for source in sources.iter().filter(elsewhere) {
        let found = source.code().filter(|(_, line)| word(line));
        faults.extend(found.map(|(number, _)| format!("{}:{number}", source.path.display())));
    }
    assert_no_faults(&faults);
    let inside = sources.iter().filter(|source| source.path.starts_with("src/sys"));
    let count = inside.flat_map(|source| source.code()).filter(|(_, line)| word(line)).count();
    assert!(count > 5, "the word would be found: {count}");
}

#[test]
fn policy_and_profile_do_no_io() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.is_product()) {
        let is_pure = ["document", "policy", "profile"]
            .iter()
            .any(|name| source.path.starts_with(Path::new("src/config").join(name)));
        if !is_pure && !source.path.starts_with("src/model/profile") {
            continue;
        }
        for (number, line) in source.code() {
            let does = ["std::fs", "std::io", "std::net", "std::process", "std::env", "nix::"];
            if does.iter().any(|what| line.contains(what)) {
                faults.push(format!("{}:{number}: {}", source.path.display(), line.trim()));
            }
        }
    }
    assert_no_faults(&faults);
}

#[test]
fn every_file_starts_with_its_purpose() {
    let mut faults = Vec::new();
    for Source { path, text } in &sources() {
        let lines = text.lines().count();
        if lines > FILE {
            println!("warning: {}: {lines} lines; is it one idea?", path.display());
        }
        if !text.starts_with("//! ") {
            faults.push(format!("{}: the first line is not its purpose", path.display()));
        }
    }
    assert_no_faults(&faults);
}

#[test]
fn nothing_is_discarded_or_left_to_do() {
    let marks = [["let _", " ="].concat(), ["TO", "DO"].concat(), ["FIX", "ME"].concat()];
    let mut faults = Vec::new();
    for Source { path, text } in &sources() {
        for (number, line) in (1..).zip(text.lines()) {
            for mark in marks.iter().filter(|mark| line.contains(mark.as_str())) {
                faults.push(format!("{}:{number}: {mark}", path.display()));
            }
        }
    }
    assert_no_faults(&faults);
}

/// Returns how many comment lines a text has, and the numbers of those in which a sentence begins with
/// a noun clause.
fn clauses(text: &str) -> (usize, Vec<usize>) {
    let mut lines = 0;
    let mut found = Vec::new();
    let mut begins = true;
    for (number, line) in (1..).zip(text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            begins = true;
            continue;
        };
        lines += 1;
        let comment = comment.trim_start_matches(['/', '!']).trim();
        begins |= comment.is_empty();
        let mut is_clause = false;
        for word in comment.split_whitespace() {
            let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
            is_clause |= begins && CLAUSES.contains(&bare);
            begins = word.ends_with(['.', ':']);
        }
        if is_clause {
            found.push(number);
        }
    }
    (lines, found)
}

#[test]
fn comments_begin_with_verbs_and_nouns() {
    let mut lines = 0;
    let mut faults = Vec::new();
    for Source { path, text } in &sources() {
        let (count, found) = clauses(text);
        lines += count;
        faults.extend(found.iter().map(|number| format!("{}:{number}", path.display())));
    }
    assert!(lines > 5000, "only {lines} comment lines were found");
    println!("{} of {lines} comment lines begin a noun clause", faults.len());
    if faults.len() * LINES_PER_CLAUSE > lines {
        assert_no_faults(&faults);
    }
}

#[test]
fn the_reader_of_comments_finds_noun_clauses() {
    let text = "//! What it is.\n\
        fn it() {} // What stands behind code is not read.\n\
        /// Returns it. Whether it is: Who knows.\n\
        // A sentence goes on in the next line,\n\
        // Where it ends.\n\
        // Nowhere\n\
        //\n\
        /// `Whoever` waits.\n";
    assert_eq!(clauses(text), (7, vec![1, 3, 8]));
    assert_eq!(clauses("Whether it is code.\n"), (0, Vec::new()));
}
