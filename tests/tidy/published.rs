//! What Cargo's registry asks of each package: it builds from the files in its own directory, and says where it is from.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::form::{assert_no_faults, list, metadata, sources, text};

/// Returns the packages of the workspace that may be published.
fn published(metadata: &Value) -> Vec<&Value> {
    let packages = list(metadata, "packages").iter();
    packages.filter(|package| package.get("publish").is_some_and(Value::is_null)).collect()
}

#[test]
fn each_crate_of_the_program_can_be_published() {
    let metadata = metadata(&["--no-deps"]);
    let packages = published(&metadata);
    let names: Vec<&str> = packages.iter().map(|package| text(package, "name")).collect();
    let kept: Vec<&str> = list(&metadata, "packages")
        .iter()
        .map(|package| text(package, "name"))
        .filter(|name| !names.contains(name))
        .collect();
    assert_eq!(kept, ["cofferdam-demo"], "an example, and nothing that the program needs");

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let texts = std::fs::read_to_string(root.join("packaging/clients/description.toml"));
    let texts: Value = toml::from_str(&texts.expect("the texts of the packages")).expect("TOML");
    let repository = format!("https://github.com/{}/cofferdam", text(&texts, "owner"));
    let mut faults = Vec::new();
    for package in &packages {
        let name = text(package, "name");
        let mut fault = |what: &str| faults.push(format!("{name}: {what}"));
        for key in ["description", "homepage", "license", "readme"] {
            if text(package, key).is_empty() {
                fault(&format!("no {key}"));
            }
        }
        if text(package, "repository") != repository {
            fault(&format!("`repository` should be {repository}"));
        }
        if list(package, "categories").is_empty() || list(package, "keywords").is_empty() {
            fault("no categories or keywords");
        }
        // A path has no meaning in the registry: the version of the same release stands for it.
        let exact = format!("={}", text(package, "version"));
        for dependency in list(package, "dependencies") {
            let other = text(dependency, "name");
            if names.contains(&other) && text(dependency, "req") != exact {
                fault(&format!("`{other}` is needed as {exact}"));
            }
        }
    }
    assert_no_faults(&faults);
}

/// Returns the paths that a line of code compiles in as files, relative to the file that it is in.
fn compiled_in(line: &str) -> impl Iterator<Item = &str> {
    let parts = ["include_str!(\"", "include_bytes!(\"", "include!(\""].into_iter();
    parts.flat_map(move |part| line.split(part).skip(1).filter_map(|rest| rest.split('"').next()))
}

/// Returns a path without its `..` parts, or `None` if it leads out of the root.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut kept = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => kept.pop().then_some(())?,
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => kept.push(part),
        }
    }
    Some(kept)
}

/// Files of other directories are in a package by a link in its own, which Cargo follows.
#[test]
fn compiled_in_files_are_in_the_directory_of_their_package() {
    let mut faults = Vec::new();
    let mut count = 0;
    for source in sources().iter().filter(|source| source.is_product()) {
        // The package of the program has the directory `src/commands`.
        let package: PathBuf = source.path.components().take(2).collect();
        let directory = source.path.parent().unwrap_or(Path::new(""));
        for (number, line) in source.code() {
            for name in compiled_in(line) {
                count += 1;
                let is_inside =
                    plain(&directory.join(name)).is_some_and(|path| path.starts_with(&package));
                if !is_inside {
                    let place = source.path.display();
                    faults
                        .push(format!("{place}:{number}: {name} is not in {}", package.display()));
                }
            }
        }
    }
    assert_no_faults(&faults);
    assert!(count > 40, "only {count} files were found");
    let line = "a(include_str!(\"../../x.toml\"), include_bytes!(\"y\"))";
    assert_eq!(compiled_in(line).collect::<Vec<_>>(), ["../../x.toml", "y"]);
    assert_eq!(plain(Path::new("src/a/b/../../../x")), Some(PathBuf::from("x")));
}
