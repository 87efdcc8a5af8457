//! Configuration files with one key each, to check that the program accepts every documented key.

use config::Config;
use config::document::{Document, FileKey, Form, KeyTable, Mistake};
use config::policy::Policy;
use config::profile::Profiles;
use config::schema::ConfigFile;
use toml::{Table as Toml, Value};

/// Other keys that a file of its kind, or one with the key, needs in order to be accepted, in addition to those that
/// are required everywhere. A path that ends with a dot applies to all keys below.
const NEEDED: &[(ConfigFile, &str, &str)] = &[
    (ConfigFile::Profile, "", "exec = { program = \"any\", why = \"w\" }"),
    (
        ConfigFile::Profile,
        "ahead.",
        "extends = \"bc\"\nexec = { program = \"/usr/bin/bc\", why = \"w\" }",
    ),
    (ConfigFile::Profile, "unix_sockets.", "sockets = { families = [\"unix\"], why = \"w\" }"),
    (
        ConfigFile::Profile,
        "egress.",
        "network = { class = \"allow-list\", why = \"w\" }\n\
         sockets = { families = [\"inet\"], why = \"w\" }\n\
         egress = [{ hosts = [\"a.b\"], nets = [\"10.0.0.0/8\"], ports = [443] }]",
    ),
    // Requests are read for names alone.
    (ConfigFile::Profile, "egress.http.", "egress = [{ nets = [] }]"),
    (
        ConfigFile::Profile,
        "egress.secret.",
        "egress = [{ nets = [], http = [{ methods = [\"GET\"], paths = [\"/\"] }] }]",
    ),
    (ConfigFile::Profile, "limits.", "workspace = { why = \"w\" }"),
    (ConfigFile::Server, "http.certificate", "[http]\nkey = \"/k\""),
    (ConfigFile::Server, "http.key", "[http]\ncertificate = \"/c\""),
    (
        ConfigFile::Server,
        "http.client_ca",
        "[http]\ncertificate = \"/c\"\nkey = \"/k\"\ncertificates = [{ client = \"a\", name = \"a.b\" }]",
    ),
    (
        ConfigFile::Server,
        "http.client_crl",
        "[http]\ncertificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\n\
         certificates = [{ client = \"a\", name = \"a.b\" }]",
    ),
    (
        ConfigFile::Server,
        "http.certificates.",
        "[http]\ncertificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"",
    ),
    (ConfigFile::Policy, "rule.", "[[rule]]\nprofile = \"bash\"\nmatches = [{ tool = \"bash\" }]"),
    (
        ConfigFile::Policy,
        "rule.not_matches.",
        "[[rule]]\ntools = [\"calculate\"]\nmatches = [{ tool = \"calculate\" }]",
    ),
    (ConfigFile::Policy, "rule.matches.command", "[[rule]]\ncommands = { deny = [\"git push\"] }"),
    (
        ConfigFile::Policy,
        "tool.",
        "[[tool]]\nname = \"cli_wc\"\nprogram = \"wc\"\naccepts = [{}]\nrefuses = [{ args = [\"--other\"] }]",
    ),
    (ConfigFile::Policy, "tool.profile", "[[tool]]\ncommand = \"wc\""),
    (
        ConfigFile::Policy,
        "tool.extends",
        "[[tool]]\npositional = [{ name = \"path\", kind = \"path\", min = 0, max = 1, why = \"w\" }]",
    ),
    (
        ConfigFile::Policy,
        "tool.refuses.",
        "[[tool]]\naccepts = [{ with = { path = \"a\" } }]\n\
         positional = [{ name = \"path\", kind = \"path\", min = 1, max = 1, why = \"w\" }]",
    ),
    (
        ConfigFile::Policy,
        "tool.summary",
        "[[tool]]\nread = [{ name = \"found\", pattern = \"/\", all = true, why = \"w\" }]",
    ),
    (ConfigFile::Policy, "tool.read.metric", "[[tool]]\nread = [{ all = true }]"),
    (ConfigFile::Policy, "tool.flag.arity", "[[tool]]\nflag = [{ kind = \"text\" }]"),
    (ConfigFile::Policy, "tool.flag.kind", "[[tool]]\nflag = [{ arity = 1 }]"),
    (ConfigFile::Policy, "tool.flag.equals", "[[tool]]\nflag = [{ arity = 1, kind = \"text\" }]"),
    (ConfigFile::Policy, "tool.flag.pattern", "[[tool]]\nflag = [{ arity = 1, kind = \"text\" }]"),
    (
        ConfigFile::Policy,
        "tool.flag.max_bytes",
        "[[tool]]\nflag = [{ arity = 1, kind = \"text\" }]",
    ),
    (ConfigFile::Policy, "tool.flag.range", "[[tool]]\nflag = [{ arity = 1, kind = \"int\" }]"),
    (ConfigFile::Policy, "tool.flag.values", "[[tool]]\nflag = [{ arity = 1, kind = \"choice\" }]"),
    (ConfigFile::Policy, "tool.flag.within", "[[tool]]\nflag = [{ arity = 1, kind = \"target\" }]"),
    (
        ConfigFile::Policy,
        "tool.flag.largest",
        "[[tool]]\nflag = [{ arity = 1, kind = \"target\" }]",
    ),
    (
        ConfigFile::Policy,
        "tool.positional.within",
        "[[tool]]\npositional = [{ kind = \"target\" }]",
    ),
    (
        ConfigFile::Policy,
        "tool.positional.largest",
        "[[tool]]\npositional = [{ kind = \"target\" }]",
    ),
    (
        ConfigFile::Policy,
        "tool.positional.egress",
        "[[tool]]\npositional = [{ kind = \"target\" }]",
    ),
    (ConfigFile::Policy, "tool.positional.range", "[[tool]]\npositional = [{ kind = \"int\" }]"),
    (
        ConfigFile::Policy,
        "tool.positional.values",
        "[[tool]]\npositional = [{ kind = \"choice\" }]",
    ),
    (
        ConfigFile::Policy,
        "tool.accepts.args",
        "[[tool]]\nflag = [{ flag = \"--indent\", arity = 1, kind = \"text\", why = \"w\" }]",
    ),
    (
        ConfigFile::Policy,
        "tool.accepts.with",
        "[[tool]]\npositional = [{ name = \"path\", kind = \"path\", min = 0, max = 1, why = \"w\" }]",
    ),
];

/// Returns a file with the value at the path, or without the key, and with all else that it needs.
pub fn file(kind: ConfigFile, path: &[&str], value: Option<Value>) -> Toml {
    let keys = kind.keys();
    let mut file = filled(&keys);
    let (last, tables) = path.split_last().expect("a key");
    let mut table = &keys;
    let mut place = &mut file;
    for name in tables {
        let key = table.keys.iter().find(|key| key.name == *name).expect("a key");
        table = key.form.table().expect("a table");
        merge(place, wrapped(key, filled(table)));
        place = at(place, name);
    }
    let whole = path.join(".");
    let is_for =
        |of: &str| of.is_empty() || whole == of || (of.ends_with('.') && whole.starts_with(of));
    for (_, _, more) in NEEDED.iter().filter(|(name, of, _)| *name == kind && is_for(of)) {
        merge(&mut file, more.parse().expect("TOML"));
    }
    let place = tables.iter().fold(&mut file, |table, name| at(table, name));
    match value {
        Some(value) => place.insert((*last).to_owned(), value),
        None => place.remove(*last),
    };
    file
}

/// Returns a table with the required keys alone, each as its example has it.
fn filled(table: &KeyTable) -> Toml {
    let mut filled = Toml::new();
    for key in table.keys.iter().filter(|key| key.is_required) {
        match key.form.table() {
            Some(table) => merge(&mut filled, wrapped(key, self::filled(table))),
            None => {
                filled.insert(key.name.to_owned(), value(&key.example().unwrap_or_default()));
            }
        }
    }
    filled
}

/// Returns a table with one key, whose value is the table or a list of it alone.
fn wrapped(key: &FileKey, table: Toml) -> Toml {
    let value = match matches!(key.form, Form::List(_)) {
        true => Value::Array(vec![Value::Table(table)]),
        false => Value::Table(table),
    };
    Toml::from_iter([(key.name.to_owned(), value)])
}

/// Adds the keys of `more`; tables are merged, and so are lists of one table each.
fn merge(into: &mut Toml, more: Toml) {
    for (name, value) in more {
        let mut value = value;
        match (into.get_mut(&name).and_then(table_in), table_in(&mut value)) {
            (Some(before), Some(more)) => merge(before, std::mem::take(more)),
            (Some(_) | None, _) => {
                into.insert(name, value);
            }
        }
    }
}

/// Returns a table, or the first one of a list.
fn table_in(value: &mut Value) -> Option<&mut Toml> {
    match value.is_array() {
        true => value.as_array_mut()?.first_mut()?.as_table_mut(),
        false => value.as_table_mut(),
    }
}

fn at<'t>(table: &'t mut Toml, name: &str) -> &'t mut Toml {
    table.get_mut(name).and_then(table_in).unwrap_or_else(|| panic!("no table `{name}`"))
}

/// Reads a value of TOML.
pub fn value(text: &str) -> Value {
    let file = format!("it = {text}").parse::<Toml>();
    let mut file = file.unwrap_or_else(|error| panic!("`{text}` is no value: {error}"));
    file.remove("it").expect("it")
}

/// Returns the meaning of a file to the program, without places in the file.
///
/// # Errors
/// When it has a mistake.
pub fn meaning(kind: ConfigFile, file: &Toml) -> Result<String, Mistake> {
    let document = Document::new("a.toml", &file.to_string());
    match kind {
        ConfigFile::Server => {
            let shown = Config::parse(Some(&document), 2)?.shown();
            let one = |shown: &config::ShownLine| format!("{} = {}\n", shown.key, shown.value);
            Ok(shown.iter().map(one).collect())
        }
        ConfigFile::Profile => {
            let profiles = Profiles::parse(&config::profile::shipped(), &[document])?;
            let own = |profile: &&model::profile::Profile| profile.name.as_str() == "node";
            Ok(format!("{:?}", profiles.iter().find(own)))
        }
        ConfigFile::Policy => {
            let policy = Policy::parse(&[document], &Profiles::compiled_in())?;
            let rules = policy.rules().iter();
            let rules = rules.map(|rule| (&rule.id, &rule.tools, &rule.effect, &rule.matches));
            Ok(format!("{:?} {:?}", rules.collect::<Vec<_>>(), policy.given_commands()))
        }
    }
}
