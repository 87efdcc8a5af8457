//! The table of keys: its JSON Schemas and its reference are in the repository, and what they say of each key is true.

mod page;
mod trial;

use std::path::{Path, PathBuf};

use config::document::{FileKey, Form, KeyTable};
use config::schema::ConfigFile;
use page::page;

/// Calls `see` with each key of a table and of those in it, and the names that lead to it.
fn walk<'k>(
    table: &'k KeyTable,
    path: &mut Vec<&'k str>,
    see: &mut dyn FnMut(&[&str], &'k FileKey),
) {
    for key in &table.keys {
        path.push(key.name);
        see(path, key);
        if let Some(table) = key.form.table() {
            walk(table, path, see);
        }
        path.pop();
    }
}

/// Collects the faults that `find` sees in each key.
fn faults(find: impl Fn(ConfigFile, &[&str], &FileKey) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for kind in ConfigFile::ALL {
        walk(&kind.keys(), &mut Vec::new(), &mut |path, key| {
            let fault = find(kind, path, key);
            faults.extend(fault.map(|what| format!("{kind:?} {}: {what}", path.join("."))));
        });
    }
    faults
}

fn assert_no_faults(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Checks that a file of the repository has this text, or writes it.
fn assert_file(path: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, made).expect("written");
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    let differs = made.lines().zip(there.lines()).find(|(made, there)| made != there);
    assert_eq!(differs, None, "UPDATE_SNAPSHOTS=1 writes it again");
    assert!(made == there, "UPDATE_SNAPSHOTS=1 writes it again");
}

#[test]
fn the_page_and_the_schemas_match_the_table_of_keys() {
    assert_file("docs/configuration-reference.md", &page());
    for kind in ConfigFile::ALL {
        let path = format!("schemas/{}.json", page::heading(kind).to_lowercase());
        let schema = kind.json_schema();
        assert!(serde_json::from_str::<serde_json::Value>(&schema).is_ok(), "{path} is JSON");
        assert_file(&path, &schema);
    }
}

#[test]
fn each_file_of_the_repository_names_its_schema() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("examples/tools/cofferdam.toml")];
    let folders = ["policies", "sandbox-profiles"];
    for folder in folders
        .iter()
        .flat_map(|name| [PathBuf::from(name), Path::new("examples/tools").join(name)])
    {
        let entries = std::fs::read_dir(root.join(folder)).expect("a folder");
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    let mut seen = 0;
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "toml")) {
        let text = std::fs::read_to_string(file).expect("a file");
        let line = text.lines().next().and_then(|line| line.strip_prefix("#:schema "));
        let schema = line.map(|path| file.with_file_name(path));
        assert!(schema.is_some_and(|path| path.is_file()), "{}", file.display());
        seen += 1;
    }
    assert!(seen > 15, "only {seen} files were found");
}

#[test]
fn every_key_has_description_default_and_example() {
    let ends = |text: &str| text.len() > 12 && text.ends_with('.');
    assert_no_faults(&faults(|_, _, key| {
        let is_table = key.form.table().is_some();
        let lacks = [
            (!ends(&key.text()), "no description"),
            (!is_table && key.example().is_none(), "no example"),
            (!is_table && !key.is_required && key.default().is_none(), "no default"),
            (key.is_required && key.default().is_some(), "a default for a required key"),
            (
                key.form.words().iter().any(|(_, text)| !ends(text.trim_end())),
                "a word without comment",
            ),
            (
                key.form.table().is_some_and(|table| !ends(table.comment.trim_end())),
                "a table without comment",
            ),
        ];
        lacks.iter().find(|(lacks, _)| *lacks).map(|(_, what)| (*what).to_owned())
    }));
}

#[test]
fn every_example_is_taken() {
    assert_no_faults(&faults(|kind, path, key| {
        let file = trial::file(kind, path, Some(trial::value(&key.example()?)));
        trial::meaning(kind, &file).err().map(|mistake| format!("{mistake}\n{file}"))
    }));
    let mut keys = 0;
    let count = &mut |_: &[&str], _: &FileKey| keys += 1;
    ConfigFile::ALL.iter().for_each(|kind| walk(&kind.keys(), &mut Vec::new(), count));
    assert!(keys > 200, "only {keys} keys were found");
}

#[test]
fn every_default_in_code_is_what_an_absent_key_means() {
    assert_no_faults(&faults(|kind, path, key| {
        let default = key.default()?;
        let code = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        let code = code.filter(|code| !code.contains('`'))?;
        let absent = trial::meaning(kind, &trial::file(kind, path, None));
        let file = trial::file(kind, path, Some(trial::value(code)));
        let written = trial::meaning(kind, &file);
        let is_same = absent.is_ok() && absent == written;
        (!is_same).then(|| format!("{absent:?}\n  is not what the default means: {written:?}"))
    }));
}

#[test]
fn the_defaults_in_words_are_what_the_server_computes() {
    let text = "schema = 1\n[server]\nconcurrency = 3\n[sessions]\nmost = 2\n[pool]\nwarm = 1\n";
    let document = config::document::Document::new("a.toml", text);
    let config = config::Config::parse(Some(&document), 2).expect("a server's file");
    let shown = config.shown();
    let value = |key| shown.iter().find(|one| one.key == key).map(|one| one.value.as_str());
    let of = ["limits.cells", "limits.memory", "limits.tmpfs", "limits.processes"].map(value);
    // Three calls and two sessions, and twice the one that is ready.
    assert_eq!(of, ["7", "5G", "2880M", "1280"].map(Some));
    let server = ConfigFile::Server.keys();
    let mut named = Vec::new();
    let mut path = Vec::new();
    let mut lists = Vec::new();
    walk(&server, &mut path, &mut |path, key| {
        // A list of tables is one value, whatever is in the tables.
        let is_list = matches!(key.form, Form::List(_)) && key.form.table().is_some();
        let first = path.first().map(ToString::to_string).unwrap_or_default();
        let is_within = lists.contains(&first);
        if is_list && path.len() <= 2 {
            lists.extend((path.len() == 1).then_some(first));
            named.push(path.join("."));
        } else if path.len() == 2 && !is_within {
            named.push(path.join("."));
        }
    });
    let keys: Vec<&str> = shown.iter().map(|one| one.key).collect();
    assert_eq!(named, keys, "`config show` shows what the reference has");
}
