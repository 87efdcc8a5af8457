//! Hooks as data: what they refuse and replace, and that their words pass the checks of a caller's
//! words.

use proptest::prelude::*;

use super::*;
use crate::document::Document;
use crate::policy::flags::DeclaredCommand;
use crate::policy::{Policy, Profiles};

const TOOL: &str = r#"
schema = 1
[[tool]]
name = "scan"
program = "nmap"
why = "for this test"
accepts = [{ args = ["-sS"] }, { args = ["-sT", "-p", "80"] }]
refuses = [{ args = ["-sU"] }, { args = ["-sn", "-p", "80"] }, { args = ["-q"] }]
[[tool.flag]]
flag = "-sT"
why = "for this test"
[[tool.flag]]
flag = "-sn"
why = "for this test"
[[tool.flag]]
flag = "-sV"
why = "for this test"
[[tool.flag]]
flag = "--intensity"
arity = 1
equals = true
kind = "int"
range = [0, 9]
why = "for this test"
[[tool.flag]]
flag = "-p"
arity = 1
kind = "ports"
why = "for this test"
[[tool.check]]
given = ["-sn"]
excludes = ["-p"]
why = "a ping scan looks at no ports"
[[tool.check]]
given = ["--intensity"]
needs = ["-sV"]
excludes = []
why = "--intensity is of -sV"
[[tool.replace]]
word = "-sS"
by = ["-sT"]
why = "a cell has no raw sockets"
[[tool.replace]]
word = "-q"
by = ["--script=evil", "-iL", "/etc/passwd"]
why = "a mistake of the operator's"
[[tool.replace]]
word = "-v"
by = []
why = "nothing reads it"
[[tool.read]]
name = "open"
pattern = "^(?<port>[0-9]+)/(?<protocol>tcp|udp) +open"
all = true
why = "for this test"
[[tool.read]]
name = "host"
pattern = "for ([^ ]+)$"
why = "for this test"
"#;

fn parsed(text: &str) -> Result<DeclaredCommand, String> {
    let document = Document::new("p.toml", text);
    let policy = Policy::parse(&[document], &Profiles::compiled_in()).map_err(|e| e.to_string())?;
    policy.command("scan").cloned().ok_or_else(|| "it is not there".to_owned())
}

fn tool() -> DeclaredCommand {
    parsed(TOOL).unwrap_or_else(|mistake| panic!("{mistake}"))
}

fn argv(args: &[&str]) -> Result<String, String> {
    let words: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
    let argv = tool().argv(&words, &[]).map_err(|bad| bad.to_string())?;
    Ok(argv.words().join(" "))
}

#[test]
fn combinations_of_flags_are_checked_after_replacements() {
    assert_eq!(argv(&["-sS", "-p", "80"]), Ok("nmap -sT -p 80".to_owned()));
    assert_eq!(argv(&["-v", "-sn"]), Ok("nmap -sn".to_owned()));
    let refused = |why: &str| Err(format!("scan: {why}"));
    assert_eq!(argv(&["-p", "80", "-sn"]), refused("a ping scan looks at no ports"));
    assert_eq!(argv(&["--intensity=3"]), refused("--intensity is of -sV"));
    assert_eq!(argv(&["--intensity=3", "-sV"]), Ok("nmap --intensity=3 -sV".to_owned()));
    // The words of a replacement are refused as if the caller had sent them.
    assert_eq!(argv(&["-q"]), refused("`--script=evil` is not a flag on this tool's list"));
    // The limit counts the words after replacement.
    assert_eq!(argv(&["-sS", "-sT"]), refused("`-sT` is given 2 times; at most 1 are taken"));
    // A replacement cannot make a flag of a value: the word would begin with a dash.
    let dash = "the value of `-p` `-sT` begins with a dash";
    assert_eq!(argv(&["-p", "-sS"]), refused(dash));
}

#[test]
fn a_tool_that_extends_another_keeps_its_checks_and_adds_hooks() -> Result<(), String> {
    let more = "[[tool]]\nname = \"scan_more\"\nextends = \"scan\"\nwhy = \"for this test\"\n\
        accepts = [{ args = [\"-sT\"] }]\nrefuses = [{ args = [\"-sn\", \"-p\", \"80\"] }]\n\
        [[tool.read]]\nname = \"host\"\npattern = \"x\"\nwhy = \"for this test\"\n";
    let document = Document::new("p.toml", &format!("{TOOL}{more}"));
    let policy = Policy::parse(&[document], &Profiles::compiled_in()).map_err(|e| e.to_string())?;
    let hooks = policy.command("scan_more").map(|command| &command.hooks);
    let numbers = hooks.map(|it| (it.checks.len(), it.replacements.len(), it.readers.len()));
    assert_eq!(numbers, Some((2, 3, 1)));
    Ok(())
}

#[test]
fn readers_find_lines_by_groups_or_one_value() {
    let output = "report for 10.0.0.2\n22/tcp  open ssh\n23/tcp closed x\n53/udp open domain\n";
    let lines: Vec<Vec<FoundLine>> =
        tool().hooks.readers.iter().map(|reader| reader.read(output)).collect();
    let group = |port: &str, protocol: &str| {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        FoundLine::Groups(vec![pair("port", port), pair("protocol", protocol)])
    };
    let expected = vec![
        vec![group("22", "tcp"), group("53", "udp")],
        vec![FoundLine::Value("10.0.0.2".to_owned())],
    ];
    assert_eq!(lines, expected);
    let flood = "1/tcp open\n".repeat(5000);
    let many = tool().hooks.readers.first().map(|reader| reader.read(&flood).len());
    assert_eq!(many, Some(MAX_LINES));
}

#[test]
fn a_mistake_in_a_hook_is_reported_at_its_position() {
    let with = |hook: &str| parsed(&format!("{TOOL}{hook}")).err().unwrap_or_default();
    let cases = [
        ("[[tool.check]]\ngiven = []\nexcludes = []\nwhy = \"x\"\n", "refuses nothing"),
        ("[[tool.read]]\nname = \"x\"\npattern = \"(\"\nwhy = \"x\"\n", "`pattern` is no regular"),
        ("[[tool.read]]\nname = \"host\"\npattern = \"x\"\nwhy = \"x\"\n", "two readers `host`"),
        ("[[tool.replace]]\nword = \"a\\nb\"\nby = []\nwhy = \"x\"\n", "control character"),
        ("[[tool.hook]]\nat = \"check\"\nscript = \" \"\nwhy = \"x\"\n", "a script is text"),
        (
            "[[tool.hook]]\nat = \"output\"\nscript = \"x\"\nremember = true\nwhy = \"x\"\n",
            "`remember` is for a check or a transform",
        ),
        (
            "[[tool.hook]]\nat = \"check\"\nscript = \"x\"\ntimeout = \"2m\"\nwhy = \"x\"\n",
            "`timeout` is above 0 and 1m at most",
        ),
        ("[[tool.hook]]\nat = \"check\"\nscript = \"x\"\nwhy = \" \"\n", "`why` is blank"),
        (
            "[[tool.hook]]\nat = \"reach\"\nscript = \"x\"\nwhy = \"x\"\n",
            "is for tools with a field that has `egress = \"only\"`",
        ),
        ("[[tool.hook]]\nat = \"later\"\nscript = \"x\"\nwhy = \"x\"\n", "unknown variant `later`"),
    ];
    for (hook, expected) in cases {
        let mistake = with(hook);
        assert!(mistake.starts_with("p.toml:") && mistake.contains(expected), "{hook}: {mistake}");
    }
    let five = "[[tool.hook]]\nat = \"check\"\nscript = \"x\"\nwhy = \"x\"\n".repeat(5);
    assert!(with(&five).contains("4 hooks at most"), "{}", with(&five));
}

#[test]
fn a_summary_names_what_a_reader_finds_and_nothing_else() {
    let with = |text: &str| {
        let summary = format!("name = \"scan\"\nsummary = \"{text}\"\n");
        parsed(&TOOL.replacen("name = \"scan\"\n", &summary, 1))
    };
    for text in ["{open} open at {host}", "no part", ""] {
        assert!(with(text).is_ok_and(|tool| tool.hooks.summary.is_some()), "{text}");
    }
    for (text, why) in [
        ("{closed}", "no reader finds `{closed}`"),
        ("{open.port}", "no reader finds `{open.port}`"),
        ("{host.name}", "no reader finds `{host.name}`"),
        ("{}", "no reader finds `{}`"),
        ("{open", "a `{` of `summary` has no `}`"),
    ] {
        let mistake = with(text).err().unwrap_or_default();
        assert!(mistake.starts_with("p.toml:") && mistake.contains(why), "{text}: {mistake}");
    }
}

proptest! {
    #[test]
    fn no_replacement_lets_through_a_word_that_the_list_has_not(
        args in prop::collection::vec(prop_oneof!["-(sS|sT|sn|sV|q|v|p|iL)", "--(intensity|script)=[a-z0-9]{0,2}", "[0-9,]{1,4}"], 0..6),
    ) {
        let tool = tool();
        if let Ok(argv) = tool.argv(&args, &[]) {
            let mut words = argv.words().iter().skip(1);
            while let Some(word) = words.next() {
                let fits = match word.as_str() {
                    "-sT" | "-sn" | "-sV" => true,
                    "-p" => words.next().is_some_and(|value| value.bytes().all(|b| b.is_ascii_digit() || b == b',')),
                    other => other.strip_prefix("--intensity=").is_some_and(|level| level.len() == 1),
                };
                prop_assert!(fits, "{:?}", argv.words());
            }
        }
    }
}
