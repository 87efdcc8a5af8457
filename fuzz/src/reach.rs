//! Arguments against the places that they lead to: a recorder reads an accepted argument vector as the program
//! would, and no place in it is another than the call's target.

use std::net::IpAddr;
use std::sync::LazyLock;

use config::document::Document;
use config::policy::Policy;
use config::policy::flags::{DeclaredCommand, Takes};
use config::profile::Profiles;
use model::egress::{Net, Only};

/// Tools with the traps of scanners and clients: a value that is a place, one that is free, words that are replaced,
/// several targets, a template.
const TOOLS: &str = r#"
schema = 1
[[tool]]
name = "scan"
program = "nmap"
why = "for this target"
accepts = [{ args = ["-sT"], with = { target = "10.0.0.1" } }]
refuses = [{ args = ["-iL", "x"], with = { target = "10.0.0.1" } }]
always = ["-oX", "-"]
[[tool.flag]]
flag = "-sT"
why = "for this target"
[[tool.flag]]
flag = "-p"
arity = 1
kind = "ports"
why = "for this target"
[[tool.flag]]
flag = "--exclude"
arity = 1
kind = "cidr"
why = "for this target"
[[tool.flag]]
flag = "--via"
arity = 1
equals = true
kind = "host"
why = "for this target"
[[tool.replace]]
word = "-sS"
by = ["-sT"]
why = "for this target"
[[tool.template]]
name = "quick"
args = ["--top-ports", "100"]
why = "for this target"
[[tool.positional]]
name = "target"
kind = "target"
min = 1
max = 2
why = "for this target"

[[tool]]
name = "fetch"
program = "curl"
why = "for this target"
accepts = [{ args = ["-H", "Accept: x"], with = { url = "http://10.0.0.1/" } }]
refuses = [{ args = ["-K", "x"], with = { url = "http://10.0.0.1/" } }]
[[tool.flag]]
flag = "-L"
why = "for this target"
[[tool.flag]]
flag = "-H"
arity = 1
times = 4
kind = "text"
pattern = "[A-Za-z-]+: [^@]*"
why = "for this target"
[[tool.positional]]
name = "url"
kind = "url"
min = 1
max = 1
why = "for this target"
"#;

/// Maximum number of addresses of a network by default.
const LARGEST: u32 = 10;

/// A choice of tool, fields and words, one a line: `name: value` is a field, `@template` a template, everything else a
/// word of `extra_args`.
pub fn reach(bytes: &[u8]) {
    static COMMANDS: LazyLock<Vec<DeclaredCommand>> = LazyLock::new(|| {
        let profiles = Profiles::compiled_in();
        let policy = Policy::parse(&[Document::new("fuzz.toml", TOOLS)], &profiles);
        let all = policy.map(|policy| policy.commands().to_vec()).unwrap_or_default();
        // The shipped ones too, as far as they are about places.
        let leads =
            |one: &DeclaredCommand| one.positionals.iter().any(|it| it.takes.kind.is_target());
        all.into_iter().filter(leads).collect()
    });
    assert!(COMMANDS.len() >= 2, "the tools of this target are read");
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.lines();
    let choice = lines.next().map_or(0, str::len);
    let Some(command) = COMMANDS.get(choice % COMMANDS.len()) else { return };
    let own = COMMANDS.iter().take(2).any(|own| own == command);
    let (fields, words): (Vec<&str>, Vec<&str>) = lines.partition(|line| {
        line.split_once(": ")
            .is_some_and(|(name, _)| command.positionals.iter().any(|it| it.name == name))
    });
    let given: Vec<(&str, &str)> =
        fields.iter().filter_map(|field| field.split_once(": ")).collect();
    let (templates, words): (Vec<&str>, Vec<&str>) =
        words.into_iter().partition(|word| word.starts_with('@') && word.len() < 12);
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let template = templates.first().map(|name| name.trim_start_matches('@'));
    let Ok(argv) = command.argv_by(template, &words, &given) else { return };
    let only = command.only(&given);
    for place in recorded(command, argv.words().iter().skip(1).map(String::as_str), template) {
        let named = given.iter().any(|(_, value)| *value == place);
        assert!(named || is_value(command, &words, place), "{place} of {:?}", argv.words());
        // Where the gateway holds the call, the target is within the hold; what cannot be held is refused.
        if let Ok(Some(only)) = &only {
            assert!(!named || is_within(only, place), "{place} of {only} for {:?}", argv.words());
        }
        // Places of the shipped tools may be others by their rows.
        assert!(!own || is_private(place), "{place} of {:?}", argv.words());
    }
}

/// Returns every place that a program with these words would go to: each operand, and each value of a flag that takes
/// a place. A word that is neither on the list, a value nor an operand would be a flag that was not allowed.
fn recorded<'w>(
    command: &DeclaredCommand,
    words: impl Iterator<Item = &'w str>,
    template: Option<&str>,
) -> Vec<&'w str> {
    let mut operators: Vec<&String> = command.conduct.always.iter().collect();
    operators.extend(command.conduct.defaults.iter().flat_map(|one| &one.args));
    let chosen = template.and_then(|name| command.conduct.template(name));
    operators.extend(chosen.iter().flat_map(|one| &one.args));
    let mut places = Vec::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if operators.iter().any(|one| *one == word) {
            continue;
        }
        if !word.starts_with('-') {
            // Behind a prefix stands a place whatever else there is: `@` of dig(1) names the server to ask.
            let prefixes = command.positionals.iter().filter(|it| !it.prefix.is_empty());
            let behind = prefixes.filter_map(|it| word.strip_prefix(it.prefix.as_str())).next();
            let is_free = |it: &config::policy::flags::Positional| !it.takes.kind.is_target();
            let all_are_places = !command.positionals.iter().any(is_free);
            places.extend(behind.or(all_are_places.then_some(word)));
            continue;
        }
        let flag = command.flags.iter().find(|flag| match flag.takes {
            Takes::Nothing | Takes::Next(_) => flag.name == word,
            Takes::Equals(_) => word.split_once('=').is_some_and(|(name, _)| name == flag.name),
        });
        let flag = flag.unwrap_or_else(|| panic!("{word} is no flag of {}", command.name));
        let (kind, value) = match &flag.takes {
            Takes::Nothing => continue,
            Takes::Next(kind) => (kind, words.next().expect("a value")),
            Takes::Equals(kind) => (kind, word.split_once('=').expect("a value").1),
        };
        assert!(!value.starts_with('-') && !value.starts_with('@'), "{word} {value}");
        places.extend(kind.kind.is_target().then_some(value));
    }
    places
}

/// Returns true if a place is what a call is held to, whole.
fn is_within(only: &Only, path: &str) -> bool {
    let (host, prefix) = host_of(path);
    match host.parse::<IpAddr>() {
        Ok(address) => only.nets.iter().any(|net| net.covers(&Net::new(address, prefix))),
        Err(_) => only.hosts.iter().any(|name| name.matches(&host.to_ascii_lowercase())),
    }
}

/// Returns the host of a URL, a network or a host, and the length of its prefix.
fn host_of(path: &str) -> (&str, u8) {
    let Some((_, rest)) = path.split_once("://") else {
        return match path.split_once('/') {
            Some((host, prefix)) => (host, prefix.parse().unwrap_or(u8::MAX)),
            None => (path, u8::MAX),
        };
    };
    let (host, _) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((six, _)) => (six, u8::MAX),
        None => (host.split(':').next().unwrap_or_default(), u8::MAX),
    }
}

/// Returns true if the caller gave this place as the value of a flag.
fn is_value(command: &DeclaredCommand, words: &[String], path: &str) -> bool {
    let is = |word: &String| {
        word == path || word.split_once('=').is_some_and(|(_, value)| value == path)
    };
    command.flags.iter().any(|flag| !matches!(flag.takes, Takes::Nothing)) && words.iter().any(is)
}

/// Decides without the code under test whether a place is private: an address, a network that is not large, a name
/// of the laboratory, or a URL of one of these.
fn is_private(path: &str) -> bool {
    let path = match path.split_once("://") {
        None => path,
        Some(("http" | "https", rest)) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (host, _) = rest.split_at(end);
            if host.contains('@') || host.contains('\\') {
                return false;
            }
            match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
                Some((six, _)) => six,
                None => host.split(':').next().unwrap_or_default(),
            }
        }
        Some(_) => return false,
    };
    let (host, prefix) = match path.split_once('/') {
        Some((host, prefix)) => (host, prefix.parse::<u32>().ok()),
        None => (path, Some(u32::MAX)),
    };
    let Some(prefix) = prefix else { return false };
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(four)) => {
            let small = prefix >= 32 - LARGEST;
            let private = match four.octets() {
                [10, ..] | [192, 168, ..] => true,
                [172, second, ..] => (16..32).contains(&second),
                _ => false,
            };
            small && private
        }
        Ok(IpAddr::V6(six)) => prefix >= 128 - LARGEST && six.octets()[0] & 0xfe == 0xfc,
        Err(_) => host.to_ascii_lowercase().ends_with(".lab.internal") && prefix == u32::MAX,
    }
}
