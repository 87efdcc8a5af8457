//! The README's table of defaults says what the constants say.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam::config::Config;
use cofferdam::defaults::{self, GIB, KIB, MIB};
use cofferdam::document::Document;
use cofferdam::outcome::DENIALS_COUNTED;
use cofferdam::policy::Policy;
use cofferdam::{call, job, profile};

const README: &str = include_str!("../README.md");

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
    let (_, section) = README.split_once(heading).unwrap_or_default();
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    rows.take_while(|line| line.starts_with('|'))
        .skip(2)
        .filter_map(|line| line.trim_matches('|').split_once('|'))
        .map(|(what, value)| (what.trim(), value.trim()))
        .collect()
}

fn shipped(name: &str) -> Option<job::Limits> {
    let profiles = profile::Profiles::parse(&profile::shipped(), &[]).ok()?;
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
        ("most a caller may ever ask for", time(call::MAX_TIMEOUT)),
        ("from TERM until the cell is killed", time(defaults::GRACE)),
        ("memory of a cell", size(defaults::MEMORY)),
        ("memory of a calculation", size(bc.memory)),
        ("processes and threads of a cell", defaults::PROCESSES.to_string()),
        ("processes of a calculation", bc.processes.to_string()),
        ("open files of a process", defaults::OPEN_FILES.to_string()),
        ("largest file", size(defaults::FILE_SIZE)),
        ("`/workspace` when none is granted", size(defaults::WORKSPACE_BYTES)),
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
    let blocks = README.split("```toml\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let blocks = blocks.filter(|block| block.starts_with("schema = 1\n"));
    blocks.map(|block| Document::new("README.md", block)).collect()
}

#[test]
fn the_examples_of_tools_profile_policy_and_configuration_are_taken() {
    let examples = examples();
    let [switch, tool, profile, policy, server] = examples.as_slice() else {
        panic!("there are five, not {}", examples.len())
    };
    let on = Config::parse(Some(switch), 2).map(|config| config.tools_on.value);
    assert_eq!(
        on.map(|on| on.into_iter().collect()),
        Ok(vec!["cli_file".to_owned(), "cli_jq".to_owned()])
    );
    let shipped =
        profile::Profiles::parse(&profile::shipped(), &[]).unwrap_or_else(|m| panic!("{m}"));
    let declared = Policy::parse(std::slice::from_ref(tool), &shipped);
    assert_eq!(declared.map(|policy| policy.command("cli_wc").is_some()), Ok(true));
    let profiles = profile::Profiles::parse(&profile::shipped(), std::slice::from_ref(profile));
    let profiles = profiles.unwrap_or_else(|mistake| panic!("{mistake}"));
    let policy = Policy::parse(std::slice::from_ref(policy), &profiles);
    assert_eq!(policy.map(|policy| policy.rules().len()), Ok(1));
    let config = Config::parse(Some(server), 2);
    assert_eq!(config.map(|config| (config.concurrency.value, config.queue.value)), Ok((4, 32)));
}

#[test]
fn the_readme_opens_with_the_two_commands() {
    let demo = README.lines().position(|line| line.trim_start().starts_with("make demo"));
    let test = README.lines().position(|line| line.trim_start().starts_with("make test"));
    assert_eq!((demo, test), (Some(7), Some(8)));
}
