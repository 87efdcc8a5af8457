//! The documents: their table of defaults, their examples, their links and their lengths.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::Config;
use config::document::Document;
use config::policy::Policy;
use model::defaults::{self, GIB, KIB, MIB};
use model::outcome::DENIALS_COUNTED;
use model::{call, job};

const README: &str = include_str!("../../README.md");
const SECURITY: &str = include_str!("../../SECURITY.md");
const THREAT_MODEL: &str = include_str!("../../docs/threat-model.md");
const CONFIGURATION: &str = include_str!("../../docs/configuration.md");
const COMMAND_TOOLS: &str = include_str!("../../docs/command-tools.md");

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(GIB) => format!("{} GiB", bytes / GIB),
        _ if bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        _ if bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} bytes"),
    }
}

fn length(bytes: usize) -> String {
    u64::try_from(bytes).map_or_else(|_| "?".to_owned(), size)
}

fn time(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// The rows of the table under `heading`, without its head.
fn table(heading: &str) -> BTreeMap<&'static str, &'static str> {
    let (_, section) = CONFIGURATION.split_once(heading).unwrap_or_default();
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    rows.take_while(|line| line.starts_with('|'))
        .skip(2)
        .filter_map(|line| line.trim_matches('|').split_once('|'))
        .map(|(what, value)| (what.trim(), value.trim()))
        .collect()
}

fn shipped(name: &str) -> Option<job::Limits> {
    let profiles = config::profile::Profiles::parse(&config::profile::shipped(), &[]).ok()?;
    Some(profiles.get(&job::ProfileName::new(name)?)?.limits)
}

#[test]
fn the_table_of_defaults_is_the_constants() {
    let (Some(bash), Some(bc)) = (shipped("bash"), shipped("bc")) else {
        panic!("the shipped profiles bash and bc are there")
    };
    let least = defaults::CONCURRENCY_MIN;
    let expected: Vec<(&str, String)> = vec![
        ("time of a `bash` call", time(defaults::TIMEOUT)),
        ("time of a calculation", time(defaults::CALCULATOR_TIMEOUT)),
        ("longest time that a call may ask for", time(call::MAX_TIMEOUT)),
        ("from TERM until the cell is killed", time(defaults::GRACE)),
        ("memory of a cell", size(defaults::MEMORY)),
        ("memory of a calculation", size(bc.memory)),
        ("processes and threads of a cell", defaults::PROCESSES.to_string()),
        ("processes of a calculation", bc.processes.to_string()),
        ("open files of a process", defaults::OPEN_FILES.to_string()),
        ("largest file", size(defaults::FILE_SIZE)),
        ("`/workspace` without a grant", size(defaults::WORKSPACE_BYTES)),
        ("`/tmp`", size(defaults::TMP_BYTES)),
        ("`/dev/shm`", size(defaults::SHM_BYTES)),
        ("files and directories in each of these", defaults::INODES.to_string()),
        ("command", length(call::SCRIPT_BYTES)),
        ("standard input of a tool call", length(call::STDIN_BYTES)),
        ("environment of a call", length(call::ENV_BYTES)),
        ("output shown in a reply", format!("{} characters", defaults::INLINE_CHARACTERS)),
        ("output at which a call is ended", size(defaults::OUTPUT_BYTES)),
        ("refused calls counted", DENIALS_COUNTED.to_string()),
        ("calls at once", format!("twice the processors, {least} at least")),
        ("calls that may wait", defaults::QUEUE.to_string()),
    ];
    let expected: BTreeMap<&str, &str> =
        expected.iter().map(|(what, value)| (*what, value.as_str())).collect();
    assert_eq!(table("## Defaults"), expected);
    // The profile of `bash` leaves every one of them as it is.
    assert_eq!(
        (bash.memory, bash.processes, bash.wall, bc.wall),
        (defaults::MEMORY, defaults::PROCESSES, defaults::TIMEOUT, defaults::CALCULATOR_TIMEOUT)
    );
}

/// The examples in TOML that begin with the line of a schema, in their order.
fn examples() -> Vec<Document> {
    let pages = [COMMAND_TOOLS, CONFIGURATION];
    let blocks = pages.iter().flat_map(|page| page.split("```toml\n").skip(1));
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let blocks = blocks.filter(|block| block.starts_with("schema = 1\n"));
    blocks.map(|block| Document::new("docs", block)).collect()
}

#[test]
fn documented_examples_are_accepted() {
    let examples = examples();
    let [switch, api, short, tool, profile, policy, server] = examples.as_slice() else {
        panic!("there are seven, not {}", examples.len())
    };
    let short =
        Policy::parse(std::slice::from_ref(short), &config::profile::Profiles::compiled_in());
    let short = short.unwrap_or_else(|mistake| panic!("{mistake}"));
    assert!(short.terms("cli_wc", &config::profile::Profiles::compiled_in()).is_ok());
    assert!(
        short.terms("bash", &config::profile::Profiles::compiled_in()).is_ok(),
        "the shipped rules stay"
    );
    let on = Config::parse(Some(switch), 2).map(|config| config.tools_on.value);
    assert_eq!(
        on.map(|on| on.into_iter().collect()),
        Ok(vec!["cli_file".to_owned(), "cli_jq".to_owned()])
    );
    let shipped = config::profile::Profiles::parse(&config::profile::shipped(), &[])
        .unwrap_or_else(|m| panic!("{m}"));
    let declared = Policy::parse(std::slice::from_ref(tool), &shipped);
    assert_eq!(declared.map(|policy| policy.command("cli_wc").is_some()), Ok(true));
    let reaching =
        config::profile::Profiles::parse(&config::profile::shipped(), std::slice::from_ref(api));
    let reaching = reaching.unwrap_or_else(|mistake| panic!("{mistake}"));
    let written = job::ProfileName::new("api").and_then(|name| reaching.get(&name).cloned());
    assert!(written.is_some_and(|it| it.egress.rules.iter().any(|rule| rule.id == "api")));
    let profiles = config::profile::Profiles::parse(
        &config::profile::shipped(),
        std::slice::from_ref(profile),
    );
    let profiles = profiles.unwrap_or_else(|mistake| panic!("{mistake}"));
    let policy = Policy::parse(std::slice::from_ref(policy), &profiles);
    assert_eq!(policy.map(|policy| policy.rules().len()), Ok(1));
    let config = Config::parse(Some(server), 2);
    assert_eq!(config.map(|config| (config.concurrency.value, config.queue.value)), Ok((4, 32)));
}

#[test]
fn every_layer_of_security_md_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let exists = |name: &str| {
        let places = [format!("tests/{name}"), format!("tests/{name}.rs"), name.to_owned()];
        places.iter().any(|place| root.join(place).exists())
    };
    let (_, layers) = SECURITY.split_once("\n## Layers\n").expect("a part about layers");
    let (layers, _) = layers.split_once("\n## ").expect("a part behind it");
    let mut faults = Vec::new();
    for layer in layers.split("\n### ").skip(1) {
        let title = layer.lines().next().unwrap_or_default();
        let tests = layer.split_once("\n- Tests: ").map_or("", |(_, tests)| tests);
        let mut names = tests.split('`').skip(1).step_by(2).filter(|name| !name.contains(' '));
        faults.extend(
            names.clone().filter(|name| !exists(name)).map(|name| format!("{title}: {name}")),
        );
        if names.next().is_none() {
            faults.push(format!("{title}: no test"));
        }
    }
    assert!(layers.matches("\n### ").count() > 20, "the layers were not found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_readme_opens_with_the_first_commands() {
    let install =
        README.lines().position(|line| line.trim_start().starts_with("sh target/dist/install.sh"));
    let demo = README.lines().position(|line| line.trim_start().starts_with("make demo"));
    let test = README.lines().position(|line| line.trim_start().starts_with("make test"));
    assert!(demo.is_some_and(|line| line < 12), "make demo: line {demo:?}");
    assert_eq!(install.map(|line| line + 1), demo);
    assert_eq!(test, demo.map(|line| line + 1));
}

#[test]
fn the_first_pages_are_short() {
    assert!(README.lines().count() < 200, "README.md: {} lines", README.lines().count());
    let words = SECURITY.split_whitespace().count();
    assert!(words <= 3_480, "SECURITY.md: {words} words");
    let words = THREAT_MODEL.split_whitespace().count();
    assert!(words <= 3_900, "docs/threat-model.md: {words} words");
}

/// The anchor that a heading gets where the page is shown.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// The headings and the link targets of a page, without its code blocks.
fn parts(text: &str) -> (Vec<String>, Vec<String>) {
    let mut in_code = false;
    let mut headings = Vec::new();
    let mut links = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        if in_code || line.starts_with("    ") {
            continue;
        }
        if line.starts_with('#') {
            headings.push(anchor(line.trim_start_matches('#')));
        }
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        links.extend(targets.map(str::to_owned));
    }
    (headings, links)
}

/// Returns the pages of the repository, and the notes that stand next to its tests.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect::<Vec<_>>()
    };
    let tests = std::fs::read_dir(root.join("tests")).into_iter().flatten().flatten();
    let notes: Vec<PathBuf> = tests.flat_map(|folder| names(&folder.path())).collect();
    [names(root), names(&root.join("docs")), notes].concat()
}

#[test]
fn every_link_leads_to_a_file_and_heading() {
    let pages = pages();
    assert!(pages.len() > 12, "only {} pages were found", pages.len());
    let mut faults = Vec::new();
    let mut followed = 0;
    for page in &pages {
        let (_, links) = parts(&std::fs::read_to_string(page).unwrap_or_default());
        for link in links.iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let directory = page.parent().unwrap_or(page);
            let target = if file.is_empty() { page.clone() } else { directory.join(file) };
            let there = target.exists()
                && (heading.is_empty() || {
                    let text = std::fs::read_to_string(&target).unwrap_or_default();
                    parts(&text).0.iter().any(|one| one == heading)
                });
            followed += 1;
            if !there {
                faults.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(followed > 40, "only {followed} links were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
