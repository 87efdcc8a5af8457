//! Circles of files: a file must not name another one of its crate that names it in turn.
//!
//! Files in a circle can only be read together. A type that both sides need belongs in a file that
//! both may name. A module may name the files in its own folder by their bare names: they are parts
//! of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::form::{Source, assert_no_faults, sources};

/// The path of a module below the root of its crate.
type Module = Vec<String>;

/// The modules that each module of a crate names.
type Names = BTreeMap<Module, BTreeSet<Module>>;

/// Returns the crate of a source file of the product, and the module that the file is.
fn module_of(source: &Source) -> Option<(String, Module)> {
    let mut parts: Vec<String> = source
        .path
        .with_extension("")
        .strip_prefix("src")
        .ok()?
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    let is_elsewhere = |part: &String| ["tests", "benches", "build"].contains(&part.as_str());
    if parts.len() < 2 || parts.iter().any(is_elsewhere) || !source.is_product() {
        return None;
    }
    // The programs in `helpers` are crates, and the folder `commands` is a module of its crate.
    let root = match parts.first()?.as_str() {
        "helpers" if parts.len() > 2 => 2,
        "commands" => 0,
        _ => 1,
    };
    let name = parts.iter().take(root.max(1)).cloned().collect::<Vec<_>>().join("/");
    let mut module = parts.split_off(root);
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    Some((name, module))
}

/// Returns the code of a file without comments and without the tests at its end.
fn code_of(source: &Source) -> String {
    let mut code = String::new();
    for (_, line) in source.code() {
        // Tests that stand below another attribute.
        if line == "mod tests {" {
            break;
        }
        let line = line.split(" // ").next().unwrap_or_default();
        code.push_str(line);
        code.push(' ');
    }
    code
}

/// Returns the names that a `use` tree brings in, each with its full path.
fn imports(tree: &str, imported: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if let Some((prefix, rest)) = tree.split_once('{') {
        let mut depth = 0_i32;
        let branches = rest.strip_suffix('}').unwrap_or(rest).split(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        for branch in branches.filter(|branch| !branch.trim().is_empty()) {
            imports(&format!("{prefix}{}", branch.trim()), imported);
        }
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path.trim(), Some(alias.trim())),
        None => (tree, None),
    };
    let path = path.strip_suffix("::self").unwrap_or(path);
    let name = alias.or(path.rsplit("::").next()).unwrap_or_default();
    imported.push((name.to_owned(), path.to_owned()));
}

/// Returns the paths that a text names within its crate: those that begin with `crate`, `super` or
/// `self`, and those that begin with a name that it imports so.
fn paths_in(code: &str) -> Vec<String> {
    let is_local = |path: &str| {
        ["crate", "super", "self"].contains(&path.split("::").next().unwrap_or_default())
    };
    let mut imported = Vec::new();
    let mut body = String::new();
    for (index, statement) in code.split("use ").enumerate() {
        let before = body.chars().next_back();
        let is_use = index > 0 && before.is_none_or(|c| c.is_whitespace() || c == '{');
        match statement.split_once(';') {
            Some((tree, rest)) if is_use => {
                imports(tree, &mut imported);
                body.push_str(rest);
            }
            Some(_) | None => body.push_str(statement),
        }
    }
    imported.retain(|(_, path)| is_local(path));
    let known: BTreeMap<&str, &str> =
        imported.iter().map(|(name, path)| (name.as_str(), path.as_str())).collect();
    let mut paths: Vec<String> = imported.iter().map(|(_, path)| path.clone()).collect();
    for word in body.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':') {
        let Some((first, rest)) = word.split_once("::") else { continue };
        match known.get(first) {
            Some(path) => paths.push(format!("{path}::{rest}")),
            None if is_local(first) => paths.push(word.to_owned()),
            None => {}
        }
    }
    paths
}

/// Returns the module that a path leads to from `module`: the longest beginning that is one.
fn target(path: &str, module: &Module, all: &BTreeSet<Module>) -> Option<Module> {
    let mut parts = path.split("::").peekable();
    let mut full = match parts.next()? {
        "crate" => Vec::new(),
        "super" => module.split_last()?.1.to_vec(),
        _ => module.clone(),
    };
    while parts.next_if_eq(&"super").is_some() {
        full.pop();
    }
    full.extend(parts.map(str::to_owned));
    while !all.contains(&full) {
        full.pop()?;
    }
    Some(full)
}

/// Returns for each crate which modules name which.
fn named_modules(sources: &[Source]) -> BTreeMap<String, Names> {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for source in sources {
        if let Some((name, module)) = module_of(source) {
            crates.entry(name).or_default().insert(module, code_of(source));
        }
    }
    let names = |files: BTreeMap<Module, String>| -> Names {
        let all: BTreeSet<Module> = files.keys().cloned().collect();
        let named = |(module, code): (Module, String)| {
            let paths = paths_in(&code);
            let targets = paths.iter().filter_map(|path| target(path, &module, &all));
            let others = targets.filter(|other| *other != module).collect();
            (module, others)
        };
        files.into_iter().map(named).collect()
    };
    crates.into_iter().map(|(name, files)| (name, names(files))).collect()
}

/// Returns the modules that can be reached from one, by any number of steps.
fn reached<'n>(from: &Module, names: &'n Names) -> BTreeSet<&'n Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = names.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(names.get(module).into_iter().flatten());
        }
    }
    reached
}

/// Returns the circles among modules: sets in which each reaches each.
fn circles(names: &Names) -> BTreeSet<Vec<&Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        names.keys().map(|module| (module, reached(module, names))).collect();
    let is_mutual = |one: &Module, other: &Module| {
        reached.get(one).is_some_and(|all| all.contains(other))
            && reached.get(other).is_some_and(|all| all.contains(one))
    };
    let with = |module: &Module| {
        let all = names.keys().filter(|other| is_mutual(module, other));
        all.collect::<Vec<_>>()
    };
    names.keys().map(with).filter(|circle| !circle.is_empty()).collect()
}

#[test]
fn no_files_of_a_crate_name_each_other_in_a_circle() {
    let crates = named_modules(&sources());
    let edges: usize = crates.values().flat_map(BTreeMap::values).map(BTreeSet::len).sum();
    assert!(crates.len() > 15 && edges > 1000, "only {edges} names in {} crates", crates.len());
    let mut faults = Vec::new();
    for (name, names) in &crates {
        for circle in circles(names) {
            let files: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            faults.push(format!("a circle in {name}: {}", files.join(" ")));
        }
    }
    assert_no_faults(&faults);
}

#[test]
fn a_circle_is_found_by_every_way_of_naming_a_file() {
    let file = |path: &str, text: &str| Source { path: path.into(), text: text.to_owned() };
    let found = |a: &str, b: &str| {
        let sources = [
            file("src/x/lib.rs", "mod a;\nmod b;\n"),
            file("src/x/a.rs", a),
            file("src/x/b/mod.rs", "pub mod c;\n"),
            file("src/x/b/c.rs", b),
        ];
        let crates = named_modules(&sources);
        crates.get("x").map(circles).is_some_and(|circles| !circles.is_empty())
    };
    let uses_a = "use crate::a::A;\n";
    for back in [
        "use super::b::c::C;\n",
        "use crate::{\n    b::{self, c::{C, D}},\n};\n",
        "fn f() -> crate::b::c::C {}\n",
        "use super::b;\nfn f() -> b::c::C {}\n",
        "use super::b::c as other;\nfn f() -> other::C {}\n",
    ] {
        assert!(found(back, uses_a), "{back}");
    }
    for harmless in [
        "use super::b::B;\n",
        "// crate::b::c::C\n",
        "#[cfg(test)]\nmod tests {\n    use crate::b::c::C;\n}\n",
        "use other::b::c::C;\n",
    ] {
        assert!(!found(harmless, uses_a), "{harmless}");
    }
    assert!(found("use super::b::c::C;\n", "use super::super::a::A;\n"));
}
