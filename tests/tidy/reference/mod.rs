//! The reference of every key: made from the types that read the files, and held to what these take.

mod page;
mod source;
mod trial;

use std::path::Path;

use page::{Kind, choices, page};
use source::{Key, Sources, Table};
use toml::Value;

/// The three kinds of files, and the sources of the types that read each.
fn kinds() -> [Kind; 3] {
    let server = Sources::new(&[
        "config/commands.rs",
        "config/server.rs",
        "config/exec.rs",
        "config/http.rs",
        "config/nested.rs",
        "config/projects.rs",
        "config/secrets.rs",
        "policy/group.rs",
        "audit/lib.rs",
    ]);
    let profile = Sources::new(&[
        "profile/schema.rs",
        "model/profile/mod.rs",
        "model/egress/mod.rs",
        "model/profile/sockets.rs",
    ]);
    let policy = Sources::new(&[
        "policy/rules.rs",
        "policy/schema.rs",
        "policy/conduct.rs",
        "policy/hooks.rs",
        "policy/flags.rs",
    ]);
    [
        Kind { name: "Server", file: "cofferdam.toml", root: server.root() },
        Kind { name: "Profile", file: "sandbox-profiles/*.toml", root: profile.root() },
        Kind { name: "Policy", file: "policies/*.toml", root: policy.root() },
    ]
}

/// Calls `see` with each key of a table and of those in it, and the names that lead to it.
fn walk<'k>(table: &'k Table, path: &mut Vec<&'k str>, see: &mut dyn FnMut(&[&str], &'k Key)) {
    for key in &table.keys {
        path.push(&key.name);
        see(path, key);
        if let Some(table) = trial::inner(key) {
            walk(table, path, see);
        }
        path.pop();
    }
}

/// Collects the faults that `find` sees in each key.
fn faults(find: impl Fn(&Kind, &[&str], &Key) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for kind in &kinds() {
        walk(&kind.root, &mut Vec::new(), &mut |path, key| {
            let fault = find(kind, path, key);
            faults.extend(fault.map(|what| format!("{} {}: {what}", kind.name, path.join("."))));
        });
    }
    faults
}

fn assert_no_faults(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_page_matches_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration-reference.md");
    let made = page(&kinds());
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    let differs = made.lines().zip(there.lines()).find(|(made, there)| made != there);
    assert_eq!(differs, None, "UPDATE_SNAPSHOTS=1 writes it again");
    assert_eq!(made, there, "UPDATE_SNAPSHOTS=1 writes it again");
}

#[test]
fn every_key_has_description_default_and_example() {
    let ends = |text: &str| text.len() > 12 && text.ends_with('.');
    assert_no_faults(&faults(|_, _, key| {
        let is_table = trial::inner(key).is_some();
        let lacks = [
            (!ends(&key.text), "no description"),
            (!is_table && key.example.is_none(), "no example"),
            (!is_table && !key.is_required && key.default.is_none(), "no default"),
            (key.is_required && key.default.is_some(), "a default for what must be there"),
            (choices(&key.value).iter().any(|(_, text)| !ends(text)), "a word without comment"),
            (trial::inner(key).is_some_and(|table| !ends(&table.text)), "a table without comment"),
        ];
        lacks.iter().find(|(lacks, _)| *lacks).map(|(_, what)| (*what).to_owned())
    }));
}

#[test]
fn the_keys_are_those_that_the_parsers_take() {
    let mut seen = 0;
    for kind in &kinds() {
        let mut tables = vec![(Vec::new(), &kind.root)];
        walk(&kind.root, &mut Vec::new(), &mut |path, key| {
            let names = path.iter().map(|name| (*name).to_owned()).collect();
            tables.extend(trial::inner(key).map(|table| (names, table)));
        });
        for (names, table) in tables {
            let path: Vec<&str> = names.iter().map(String::as_str).chain(["zzz"]).collect();
            let file = trial::file(kind, &path, Some(Value::Boolean(true)));
            let output = trial::meaning(kind, &file).expect_err("an unknown key").message;
            let expected = output.strip_prefix("unknown field `zzz`, expected ").unwrap_or(&output);
            let taken: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
            let output: Vec<&str> = table.keys.iter().map(|key| key.name.as_str()).collect();
            assert_eq!(output, taken, "{} {names:?}", kind.name);
            seen += output.len();
        }
    }
    assert!(seen > 100, "only {seen} keys were found");
}

#[test]
fn every_example_is_taken() {
    assert_no_faults(&faults(|kind, path, key| {
        let file = trial::file(kind, path, Some(trial::value(key.example.as_deref()?)));
        trial::meaning(kind, &file).err().map(|mistake| format!("{mistake}\n{file}"))
    }));
}

#[test]
fn every_default_in_code_is_what_an_absent_key_means() {
    assert_no_faults(&faults(|kind, path, key| {
        let default = key.default.as_deref()?;
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
    let document = profile::document::Document::new("a.toml", text);
    let config = config::Config::parse(Some(&document), 2).expect("a server's file");
    let shown = config.shown();
    let value = |key| shown.iter().find(|one| one.key == key).map(|one| one.value.as_str());
    let of = ["limits.cells", "limits.memory", "limits.tmpfs", "limits.processes"].map(value);
    // Three calls and two sessions, and twice the one that is ready.
    assert_eq!(of, ["7", "5G", "2880M", "1280"].map(Some));
    let server = kinds().into_iter().find(|kind| kind.name == "Server").expect("the server");
    let mut named = Vec::new();
    let mut path = Vec::new();
    let mut lists = Vec::new();
    walk(&server.root, &mut path, &mut |path, key| {
        // A list of tables is one value, whatever is in the tables.
        let is_list = matches!(key.value, source::Form::Tables(_));
        let first = path.first().map(ToString::to_string).unwrap_or_default();
        let is_within = lists.contains(&first);
        if is_list {
            lists.extend((path.len() == 1).then_some(first));
            named.push(path.join("."));
        } else if path.len() == 2 && trial::inner(key).is_none() && !is_within {
            named.push(path.join("."));
        }
    });
    let keys: Vec<&str> = shown.iter().map(|one| one.key).collect();
    assert_eq!(named, keys, "`config show` shows what the reference has");
}
