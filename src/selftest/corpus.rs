//! The corpus as data: the attacks, their output on success, and their required output.

use std::collections::BTreeSet;

use regex::Regex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toml::{Table, Value};

use model::profile::calls::{self, CallMeaning};

/// The files, one per topic.
const FILES: [(&str, &str); 7] = [
    ("files", include_str!("escape/files.toml")),
    ("processes", include_str!("escape/processes.toml")),
    ("network", include_str!("escape/network.toml")),
    ("egress", include_str!("escape/egress.toml")),
    ("kernel", include_str!("escape/kernel.toml")),
    ("resources", include_str!("escape/resources.toml")),
    ("information", include_str!("escape/information.toml")),
];

/// Program that starts a control in namespaces (unshare(1)).
pub(crate) const NAMESPACES_PROGRAM: &str = "unshare";

/// Goal of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// To read, change or reach something outside of the sandbox.
    Escape,
    /// To reach kernel code that a sandboxed program does not need.
    Kernel,
    /// To use more resources than granted.
    Resource,
    /// To obtain information about the host.
    Information,
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Self::Escape => "escape",
            Self::Kernel => "kernel",
            Self::Resource => "resource",
            Self::Information => "information",
        }
    }
}

/// Severity of a breach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information about the host.
    Low,
    /// More kernel code, or more resources.
    Medium,
    /// Something outside of the sandbox is read, changed or reached.
    High,
}

impl Class {
    /// Returns the severity of a breach by an attack of this class.
    pub fn severity(self) -> Severity {
        match self {
            Self::Escape => Severity::High,
            Self::Kernel | Self::Resource => Severity::Medium,
            Self::Information => Severity::Low,
        }
    }
}

/// Returns the topics, in order.
pub fn topics() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(topic, _)| *topic)
}

/// How the positive control is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlMode {
    /// The same line, without a sandbox, as the user who runs the test.
    #[default]
    Outside,
    /// The same line as root of new namespaces, where it does no harm.
    Namespaces,
    /// Like `Outside`, but only if root runs the test, as other users cannot do it without a
    /// sandbox either.
    Root,
    /// No control; `no_control` gives the reason.
    None,
}

/// The users for whom an attack makes sense.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whom {
    #[default]
    Both,
    Root,
    User,
}

/// Outputs of a control that prove nothing, and the reason why a machine may give them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unshown {
    pub says: Vec<String>,
    pub why: String,
}

/// A known breach that docs/threat-model.md explains.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownBreach {
    pub when: When,
    pub why: String,
}

/// When a known breach is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    Always,
    /// On machines where no control group limits the memory of cells.
    BestEffortMemory,
}

/// Expected results in the tier `landlock+seccomp`, if they differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lower {
    /// Output of an attack that is held.
    #[serde(default)]
    pub held: Vec<String>,
    /// Why it is a breach in this tier, as docs/threat-model.md explains.
    pub breach: Option<String>,
    /// Why the attack is not applicable in this tier.
    pub not: Option<String>,
}

/// One file of the corpus.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    class: Class,
    /// Values of probes that do not set the key.
    #[serde(default)]
    shared: Table,
    probe: Vec<Table>,
}

/// Special way of starting the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartMode {
    #[default]
    Plain,
    /// With the directory `{dir}` open as descriptor 7.
    Leaking,
    /// With the directory `{dir}` as standard input.
    Within,
    /// In the process group of the sentinel.
    Grouped,
    /// Killed from outside after it has printed `ready`.
    Killed,
}

/// Network in which the attack and its control run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// That of this process.
    #[default]
    Host,
    /// A separate one, with servers that record their visitors: [`super::lab`].
    Lab,
}

/// Harm of the attack without a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Harm {
    /// No lasting harm.
    #[default]
    None,
    /// Ends processes or changes mounts of a host whose namespaces it shares.
    WhereShared,
}

/// One attack.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attack {
    pub id: String,
    #[serde(skip)]
    pub topic: &'static str,
    pub class: Class,
    pub title: String,
    /// The incident, man page or threat that it is based on.
    pub source: String,
    /// A line of bash, with placeholders that [`super::stage`] fills in.
    pub run: String,
    /// Required output in a cell of cofferdam; `exit N` is an exit code.
    pub held: Vec<String>,
    /// Additional outputs that count as held in another sandbox.
    #[serde(default)]
    pub elsewhere: Vec<String>,
    /// Output of a successful attack, unless one of the above matches.
    #[serde(deserialize_with = "whole_output")]
    pub breach: Regex,
    #[serde(default)]
    pub control: ControlMode,
    /// The line of the control, if it differs.
    pub control_run: Option<String>,
    pub no_control: Option<String>,
    pub unshown: Option<Unshown>,
    /// Programs that its lines need in addition to bash, coreutils, grep and sed.
    #[serde(default)]
    pub needs: Vec<String>,
    pub known: Option<KnownBreach>,
    #[serde(default, rename = "landlock_seccomp")]
    pub lower: Lower,
    #[serde(default)]
    pub whom: Whom,
    /// Options of `cofferdam run`.
    #[serde(default)]
    pub options: Vec<String>,
    /// Why the attack is not applicable to other sandboxes.
    pub ours: Option<String>,
    #[serde(default)]
    pub start: StartMode,
    #[serde(default)]
    pub harm: Harm,
    /// True if no other attack may run at the same time: it uses the whole machine, or its verdict
    /// depends on time.
    #[serde(default)]
    pub alone: bool,
    /// Seconds after which a call that has not ended counts as a breach.
    #[serde(default = "default_seconds")]
    pub within: u64,
    /// Bytes of output above which it counts as a breach.
    pub most_bytes: Option<u64>,
    /// A line that runs in another cell first.
    pub first: Option<String>,
    #[serde(default)]
    pub network: Network,
    /// Strings that occur in the record of the lab's servers if the attack was successful.
    #[serde(default)]
    pub unreached: Vec<String>,
}

impl Attack {
    /// Returns true if it is about a directory that is granted.
    pub(crate) fn is_granted_directory(&self) -> bool {
        self.options.iter().any(|option| option == "--ro" || option == "--rw")
    }

    /// Returns the programs that its control needs.
    pub(crate) fn control_needs(&self) -> impl Iterator<Item = &str> {
        let starts = (self.control == ControlMode::Namespaces).then_some(NAMESPACES_PROGRAM);
        self.needs.iter().map(String::as_str).chain(starts)
    }

    /// Returns a call in the attack's lines that only other architectures have.
    pub(crate) fn missing_call(&self) -> Option<&str> {
        let lines = [&self.first, &self.control_run].into_iter().flatten().chain([&self.run]);
        let mut calls =
            lines.flat_map(|line| line.split(' ')).filter_map(|word| word.strip_prefix('@'));
        calls.find(|name| calls::lookup(name) == Some(CallMeaning::Elsewhere))
    }
}

/// Parses the whole corpus.
///
/// # Errors
/// The file and the mistake in it. A test finds such mistakes first.
pub fn corpus() -> Result<Vec<Attack>, String> {
    let mut probes = Vec::new();
    let mut ids = BTreeSet::new();
    for (topic, text) in FILES {
        let file: File =
            toml::from_str(text).map_err(|mistake| format!("{topic}.toml: {mistake}"))?;
        let mut shared = file.shared;
        shared.insert("class".to_owned(), file.class.name().into());
        for entry in file.probe {
            let id = entry.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
            let attack = parse_attack(topic, &shared, entry)
                .map_err(|reason| format!("{topic}.toml: {id}: {reason}"))?;
            if !ids.insert(id.clone()) {
                return Err(format!("{topic}.toml: {id} is there twice"));
            }
            probes.push(attack);
        }
    }
    Ok(probes)
}

/// Parses one attack that is in no file of the corpus.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn single(text: &str) -> Result<Attack, String> {
    toml::from_str(text).map_err(|mistake| mistake.to_string())
}

/// Parses an attack; keys that its table does not set have the values of `shared`.
fn parse_attack(topic: &'static str, shared: &Table, mut entry: Table) -> Result<Attack, String> {
    if entry.contains_key("class") {
        return Err("`class` belongs to the whole file".to_owned());
    }
    for (key, value) in shared {
        entry.entry(key).or_insert_with(|| value.clone());
    }
    let attack: Attack = entry.try_into().map_err(|error: toml::de::Error| error.to_string())?;
    if attack.held.is_empty() {
        return Err("nothing that it says when it is held".to_owned());
    }
    if (attack.control == ControlMode::None) != attack.no_control.is_some() {
        return Err("`no_control` is the reason for `control = \"none\"`".to_owned());
    }
    Ok(Attack { topic, ..attack })
}

/// Parses a regular expression that must match a whole output.
fn whole_output<'de, D: Deserializer<'de>>(from: D) -> Result<Regex, D::Error> {
    let pattern = String::deserialize(from)?;
    Regex::new(&format!("^(?s:{pattern})$")).map_err(D::Error::custom)
}

fn default_seconds() -> u64 {
    20
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ids that a text cites: single ids, and both ends of each range.
    fn cited(text: &str) -> Vec<(char, u32, u32)> {
        let pattern = Regex::new("\\b([FPNEKRI])([0-9]{2,3})(?:–[FPNEKRI]([0-9]{2,3}))?\\b");
        let pattern = pattern.unwrap_or_else(|error| panic!("{error}"));
        let number =
            |text: Option<regex::Match<'_>>| text.and_then(|text| text.as_str().parse().ok());
        pattern
            .captures_iter(text)
            .filter_map(|captures| {
                let letter = captures.get(1)?.as_str().chars().next()?;
                let first = number(captures.get(2))?;
                Some((letter, first, number(captures.get(3)).unwrap_or(first)))
            })
            .collect()
    }

    #[test]
    fn the_documents_cite_each_attack_and_no_unknown_one() {
        let table = cited(include_str!("../../tests/escape/README.md"));
        let threat_model = cited(include_str!("../../docs/threat-model.md"));
        let probes = corpus().unwrap_or_else(|error| panic!("{error}"));
        let parts = |id: &str| {
            let mut letters = id.chars();
            Some((letters.next()?, letters.as_str().parse::<u32>().ok()?))
        };
        let ids: BTreeSet<(char, u32)> = probes.iter().filter_map(|one| parts(&one.id)).collect();
        for (letter, number) in &ids {
            let is_cited = table
                .iter()
                .any(|(of, first, last)| of == letter && (first..=last).contains(&number));
            assert!(is_cited, "{letter}{number:02} is not in the table");
        }
        for (letter, first, last) in table.into_iter().chain(threat_model) {
            assert!(ids.contains(&(letter, first)), "there is no {letter}{first:02}");
            assert!(ids.contains(&(letter, last)), "there is no {letter}{last:02}");
        }
    }

    #[test]
    fn the_corpus_is_well_formed_and_each_topic_has_its_own_ids() {
        let probes = corpus().unwrap_or_else(|error| panic!("{error}"));
        assert!(probes.len() >= 150, "{} probes", probes.len());
        for probe in &probes {
            let first = probe.topic.chars().next().map(|letter| letter.to_ascii_uppercase());
            assert_eq!(probe.id.chars().next(), first, "{}", probe.id);
            assert!(probe.title.len() > 3 && probe.source.len() > 4, "{}", probe.id);
        }
    }

    /// Programs that hosts often have and minimal images lack.
    const OFTEN_ABSENT: &str = "awk bc cc chroot curl find flock gcc gdb getent git hostname ip ipcmk \
        ipcs mawk mount nc ncat node nsenter openssl perl pgrep pkill prlimit ps python python3 script \
        setpriv setsid socat ss strace su sudo tar umount unshare wget xargs";

    /// Returns the words of a line that are commands, and some that are not.
    fn command_words(line: &str) -> BTreeSet<&str> {
        let ends = |letter: char| letter.is_whitespace() || ";|&(){}!\"'`$".contains(letter);
        let words = line.split(ends).filter(|word| !word.is_empty());
        // Words with a tag or `@` are arguments of the helper.
        words.filter(|word| !word.contains([':', '@', '.', '/', '='])).collect()
    }

    #[test]
    fn an_attack_names_the_programs_that_minimal_images_lack() {
        let absent: BTreeSet<&str> = OFTEN_ABSENT.split_whitespace().collect();
        for probe in corpus().unwrap_or_else(|error| panic!("{error}")) {
            let lines = [Some(&probe.run), probe.control_run.as_ref(), probe.first.as_ref()];
            let words = lines.into_iter().flatten().flat_map(|line| command_words(line));
            let used: BTreeSet<&str> = words.filter(|word| absent.contains(word)).collect();
            let named: BTreeSet<&str> = probe.needs.iter().map(String::as_str).collect();
            assert_eq!(used, named, "{}", probe.id);
        }
        // The control of this test.
        let words =
            command_words("({probe} x &); n=$(setsid a | cat) || unshare -r '@mount' s:mount");
        let found: Vec<&str> = words.intersection(&absent).copied().collect();
        assert_eq!(found, ["setsid", "unshare"]);
    }
}
