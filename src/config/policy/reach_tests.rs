//! Property: whatever the arguments, the words of an accepted call name only its target.

use std::sync::LazyLock;

use proptest::prelude::*;

use crate::document::Document;
use crate::policy::flags::DeclaredCommand;
use crate::policy::{Policy, Profiles};

const TOOL: &str = r#"
schema = 1
[[tool]]
name = "scan"
program = "nmap"
why = "for this test"
accepts = [{ args = ["-sT"], with = { target = "10.0.0.1" } }]
refuses = [{ args = ["-iL"], with = { target = "10.0.0.1" } }]
[[tool.flag]]
flag = "-sT"
why = "for this test"
[[tool.flag]]
flag = "-p"
arity = 1
kind = "ports"
why = "for this test"
[[tool.flag]]
flag = "--rate"
arity = 1
equals = true
kind = "int"
range = [1, 10000]
why = "for this test"
[[tool.positional]]
name = "target"
kind = "target"
min = 1
max = 1
why = "for this test"
"#;

fn scan() -> &'static DeclaredCommand {
    static SCAN: LazyLock<DeclaredCommand> = LazyLock::new(|| {
        let document = Document::new("p.toml", TOOL);
        let policy = Policy::parse(&[document], &Profiles::compiled_in());
        let policy = policy.unwrap_or_else(|mistake| panic!("{mistake}"));
        policy.command("scan").cloned().unwrap_or_else(|| panic!("it is there"))
    });
    &SCAN
}

/// Generates words that lead a scanner or a client to another address, and parts of them.
fn trick() -> impl Strategy<Value = String> {
    let fixed = [
        "-sT",
        "-p",
        "80",
        "1-100",
        "--rate=5",
        "--rate",
        "=5",
        "-iL",
        "-iR",
        "--",
        "-",
        "-p80",
        "-sTp",
        "8.8.8.8",
        "10.0.0.9",
        "10.0.0.0/8",
        "@8.8.8.8",
        "@file",
        "-x",
        "-K",
        "-f",
        "--proxies=http://8.8.8.8",
        "--ra=5",
        "--rate=5=8.8.8.8",
        "--dns-servers",
        "--resume",
        "\u{2212}sT",
        "80,8.8.8.8",
        "-sT=8.8.8.8",
        "0x08080808",
        "134744072",
        "-oN",
        "--script=x",
        "--datadir",
        "--rate=99999999999999999999",
        "",
    ];
    prop_oneof![
        4 => prop::sample::select(fixed.to_vec()).prop_map(str::to_owned),
        1 => "[-@=./:0-9a-zA-Z]{0,12}",
    ]
}

fn target() -> impl Strategy<Value = String> {
    prop_oneof![
        "10\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}(/[0-9]{1,2})?",
        "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}",
        "(fd|fe|20)[0-9a-f]{2}::[0-9a-f]{1,4}(/1[0-2][0-9])?",
        "[-a-z0-9.]{1,8}(\\.lab\\.internal)?",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]
    #[test]
    fn no_sequence_of_arguments_leads_to_an_address_outside_the_target(
        words in prop::collection::vec(trick(), 0..7),
        targets in prop::collection::vec(target(), 0..3),
    ) {
        let command = scan();
        let given: Vec<(&str, &str)> = targets.iter().map(|target| ("target", target.as_str())).collect();
        let Ok(argv) = command.argv(&words, &given) else { return Ok(()) };
        // In place of the tool, a parser that takes each word for an address unless it is a flag or
        // the value of a flag.
        let mut places = Vec::new();
        let mut rest = argv.words().iter().skip(1);
        while let Some(word) = rest.next() {
            match word.as_str() {
                "-sT" => {}
                "-p" => {
                    let ports = rest.next().cloned().unwrap_or_default();
                    prop_assert!(ports.bytes().all(|b| b.is_ascii_digit() || b == b',' || b == b'-'));
                }
                other => match other.strip_prefix("--rate=") {
                    Some(rate) => prop_assert!(rate.parse::<u32>().is_ok_and(|rate| rate <= 10_000)),
                    None => places.push(other.to_owned()),
                },
            }
        }
        prop_assert_eq!(&places, &targets, "{:?}", argv.words());
        prop_assert_eq!(places.len(), 1);
    }
}

#[test]
fn some_arguments_of_the_property_are_accepted() {
    let argv = |words: &[&str], target: &str| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        scan().argv(&words, &[("target", target)]).is_ok()
    };
    assert!(argv(&["-sT", "-p", "1-100", "--rate=5"], "10.1.2.3/24"));
    assert!(argv(&["-p", "80"], "a.lab.internal") && argv(&[], "fd00::1"));
}
