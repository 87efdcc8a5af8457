//! Tricks against a flag list, each with the exact text of its refusal.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::policy::reach::TargetReach;
use crate::policy::{Policy, Profiles};

fn command(tool: &str) -> DeclaredCommand {
    static POLICY: LazyLock<Policy> = LazyLock::new(|| {
        let profiles =
            Profiles::parse(&crate::profile::shipped(), &[]).unwrap_or_else(|e| panic!("{e}"));
        Policy::parse(&[], &profiles).unwrap_or_else(|e| panic!("{e}"))
    });
    POLICY.command(tool).cloned().unwrap_or_else(|| panic!("{tool} is shipped"))
}

fn words(args: &[&str]) -> Vec<String> {
    args.iter().map(|word| (*word).to_owned()).collect()
}

fn argv(tool: &str, args: &[&str], given: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let argv = command(tool).argv(&words(args), given).map_err(|bad| bad.to_string())?;
    Ok(argv.words().to_vec())
}

fn jq(args: &[&str]) -> Result<Vec<String>, String> {
    argv("cli_jq", args, &[("filter", ".")])
}

fn file(path: &str) -> Result<Vec<String>, String> {
    argv("cli_file", &[], &[("path", path)])
}

fn refusal(text: &str) -> Result<Vec<String>, String> {
    Err(text.to_owned())
}

#[test]
fn listed_flags_and_typed_words_become_an_argv() {
    let given = [("path", "a/./b.json"), ("filter", ".a | .[0]")];
    assert_eq!(
        argv("cli_jq", &["-r", "--indent", "3"], &given),
        Ok(words(&["jq", "-r", "--indent", "3", ".a | .[0]", "/workspace/a/b.json"]))
    );
    assert_eq!(file("a"), Ok(words(&["file", "/workspace/a"])));
}

#[test]
fn abbreviations_are_refused() {
    for word in ["--raw-o", "--ind", "--s", "--nul"] {
        let text = "is an abbreviation; flags are taken by their whole name only";
        assert_eq!(jq(&[word]), refusal(&format!("cli_jq: `{word}` {text}")));
    }
    assert_eq!(
        argv("cli_file", &["--comp"], &[]),
        refusal("cli_file: `--comp` is not a flag on this tool's list")
    );
}

#[test]
fn combined_flags_and_values_in_the_same_word_are_refused() {
    for word in ["-rc", "-rf", "-nf/etc/passwd"] {
        let text = "puts several flags or a value in one word; write one flag a word";
        assert_eq!(jq(&[word]), refusal(&format!("cli_jq: `{word}` {text}")));
    }
    assert_eq!(jq(&["-r=x"]), refusal("cli_jq: `-r=x` has a value, and the flag takes none"));
    for word in ["--to-command=sh", "--from-file=x", "--compress-p=sh"] {
        let text = format!("cli_jq: `{word}` is not a flag on this tool's list");
        assert_eq!(jq(&[word]), refusal(&text));
    }
}

#[test]
fn a_value_behind_the_equals_sign_of_a_long_flag_is_checked_and_passed_on_as_the_next_word() {
    let two = Ok(words(&["jq", "--indent", "2", "."]));
    assert_eq!((jq(&["--indent=2"]), jq(&["--indent", "2"])), (two.clone(), two));
    let value =
        |word: &str, why: &str| refusal(&format!("cli_jq: the value of `--indent` `{word}` {why}"));
    assert_eq!(jq(&["--indent="]), value("", "is empty"));
    assert_eq!(jq(&["--indent=-r"]), value("-r", "begins with a dash"));
    assert_eq!(jq(&["--indent=8"]), value("8", "is no whole number from 0 to 7"));
    assert_eq!(jq(&["--indent=2=3"]), value("2=3", "is no whole number from 0 to 7"));
    assert_eq!(
        jq(&["--indent=2", "--indent", "3"]),
        refusal("cli_jq: `--indent` is given 2 times; at most 1 are taken")
    );
    let next = refusal("cli_jq: `3` is no flag, and only flags are taken here");
    assert_eq!(jq(&["--indent=2", "3"]), next);
    assert_eq!(jq(&["--ind=2"]), refusal("cli_jq: `--ind=2` is not a flag on this tool's list"));
}

#[test]
fn option_files_and_flags_that_run_or_read_other_things_are_refused() {
    for word in ["-f", "--from-file", "-L", "--rawfile", "--slurpfile", "--arg", "--args", "-h"] {
        let text = format!("cli_jq: `{word}` is not a flag on this tool's list");
        assert_eq!(jq(&[word, "x"]), refusal(&text));
    }
    for word in ["-f", "-m", "-M", "-C", "-P", "-z", "-Z", "-s", "-S", "-L", "--files-from"] {
        let text = format!("cli_file: `{word}` is not a flag on this tool's list");
        assert_eq!(argv("cli_file", &[word, "x"], &[]), refusal(&text));
    }
    assert_eq!(jq(&["@x"]), refusal("cli_jq: `@x` is no flag, and only flags are taken here"));
}

#[test]
fn the_double_dash_and_the_lone_dash_are_refused() {
    assert_eq!(jq(&["--"]), refusal("cli_jq: `--` is never taken"));
    assert_eq!(jq(&["-"]), refusal("cli_jq: `-` is never taken"));
    assert_eq!(file("-"), refusal("cli_file: path `-` begins with a dash"));
}

#[test]
fn a_value_never_begins_with_a_dash() {
    assert_eq!(
        jq(&["--indent", "-f"]),
        refusal("cli_jq: the value of `--indent` `-f` begins with a dash")
    );
    assert_eq!(
        argv("cli_jq", &[], &[("filter", "-n")]),
        refusal("cli_jq: filter `-n` begins with a dash")
    );
    assert_eq!(jq(&["--indent"]), refusal("cli_jq: `--indent` needs a value in the next word"));
}

#[test]
fn control_characters_empty_words_and_look_alikes_are_refused_everywhere() {
    for (bad, is_shown) in [("\n", "\\n"), ("\r", "\\r"), ("\0", "\\0"), ("\u{1b}", "\\u{1b}")] {
        let text = "has a control character in it";
        let word = format!("-r{bad}");
        assert_eq!(jq(&[&word]), refusal(&format!("cli_jq: `-r{is_shown}` {text}")));
        let word = format!("a{bad}");
        assert_eq!(file(&word), refusal(&format!("cli_file: path `a{is_shown}` {text}")));
    }
    let dashes = "\u{2010}\u{2011}\u{2012}\u{2013}\u{2014}\u{2015}\u{2043}\u{2212}\u{fe63}\u{ff0d}";
    for dash in dashes.chars() {
        let text = "has a character in it that looks like a dash, or like nothing";
        for word in [format!("{dash}r"), format!("-{dash}slurp")] {
            assert_eq!(jq(&[&word]), refusal(&format!("cli_jq: `{word}` {text}")));
        }
        let word = format!("{dash}f");
        assert_eq!(file(&word), refusal(&format!("cli_file: path `{word}` {text}")));
    }
    assert_eq!(jq(&[""]), refusal("cli_jq: `` is empty"));
    assert_eq!(file(""), refusal("cli_file: path `` is empty"));
}

#[test]
fn a_path_stays_in_the_workspace() {
    for path in
        ["/etc/shadow", "../etc/shadow", "/workspace/../proc/1/environ", "/tmp/x", "/workspacex"]
    {
        let text = format!("cli_file: path `{path}` is not inside /workspace");
        assert_eq!(file(path), refusal(&text));
    }
    assert_eq!(file("a/-f"), Ok(words(&["file", "/workspace/a/-f"])));
}

#[test]
fn counts_and_ranges_hold() {
    assert_eq!(jq(&["-r", "-r"]), refusal("cli_jq: `-r` is given 2 times; at most 1 are taken"));
    assert_eq!(
        jq(&["-r"; 65]),
        refusal("cli_jq: extra_args is given 65 times; at most 64 are taken")
    );
    assert_eq!(argv("cli_jq", &[], &[]), refusal("cli_jq: `filter` is missing"));
    for value in ["8", "+1", "0x1", "1e0", "99999999999999999999"] {
        let text =
            format!("cli_jq: the value of `--indent` `{value}` is no whole number from 0 to 7");
        assert_eq!(jq(&["--indent", value]), refusal(&text));
    }
    let long = "x".repeat(4097);
    let text = format!("cli_jq: filter `{}` is longer than 4096 bytes", "x".repeat(80));
    assert_eq!(argv("cli_jq", &[], &[("filter", &long)]), refusal(&text));
}

#[test]
fn the_hint_for_a_refused_flag_lists_the_accepted_flags() {
    let bad = command("cli_file").argv(&words(&["-x"]), &[]).err();
    let hint = bad.as_ref().and_then(BadWords::hint);
    assert!(
        hint.as_ref().is_some_and(|hint| hint.starts_with("extra_args takes -b, --brief")),
        "{hint:?}"
    );
}

proptest! {
    #[test]
    fn accepted_words_are_only_what_the_list_has(
        args in prop::collection::vec(
            prop_oneof!["-{0,2}[a-zA-Z]{1,3}", "--(raw|raw-output|indent|tab)=?[0-9]?", "[0-9]{1,2}", "\\PC{0,3}"], 0..5),
        filter in "\\PC{1,8}",
        path in "[-./a-z–]{1,12}",
    ) {
        let jq = command("cli_jq");
        if let Ok(argv) = jq.argv(&args, &[("filter", &filter), ("path", &path)]) {
            let words = argv.words();
            let (last, rest) = words.split_last().expect("a path");
            prop_assert!(last == "/workspace" || last.starts_with("/workspace/"));
            prop_assert!(!last.split('/').any(|part| part == ".."));
            let (given, rest) = rest.split_last().expect("a filter");
            prop_assert_eq!(given, &filter);
            prop_assert!(!given.starts_with('-'));
            for (index, word) in rest.iter().enumerate().skip(1) {
                let listed = jq.flags.iter().any(|flag| flag.name == *word);
                let value = rest.get(index - 1).is_some_and(|flag| flag == "--indent")
                    && word.parse::<u8>().is_ok_and(|number| number <= 7);
                prop_assert!(listed || value, "{}", word);
            }
        }
    }
}

/// Returns a tool with one flag for each position of a value.
fn list() -> DeclaredCommand {
    let level = Type {
        kind: WordType::Int(0..=9),
        pattern: None,
        max_bytes: 8,
        reach: TargetReach::default(),
    };
    let flag = |name: &str, takes| Flag {
        name: name.to_owned(),
        takes,
        times: 2,
        why: "for this test".to_owned(),
    };
    DeclaredCommand {
        flags: vec![
            flag("--level", Takes::Equals(level.clone())),
            flag("-n", Takes::Next(level)),
            flag("-q", Takes::Nothing),
        ],
        positionals: Vec::new(),
        ..command("cli_jq")
    }
}

#[test]
fn a_value_behind_an_equals_sign_is_there_and_nowhere_else() {
    let argv = |args: &[&str]| match list().argv(&words(args), &[]) {
        Ok(argv) => Ok(argv.words().join(" ")),
        Err(bad) => Err(bad.to_string()),
    };
    assert_eq!(argv(&["--level=3", "-q"]), Ok("jq --level=3 -q".to_owned()));
    let cases: [(&[&str], &str); 8] = [
        (&["--level", "3"], "cli_jq: `--level` needs its value in the same word, behind `=`"),
        (&["--level="], "cli_jq: the value of `--level` `` is empty"),
        (&["--level=-1"], "cli_jq: the value of `--level` `-1` begins with a dash"),
        (&["--level=1=2"], "cli_jq: the value of `--level` `1=2` is no whole number from 0 to 9"),
        (&["--level=10"], "cli_jq: the value of `--level` `10` is no whole number from 0 to 9"),
        (&["--lev=1"], "cli_jq: `--lev=1` is not a flag on this tool's list"),
        (&["-n=1"], "cli_jq: `-n=1` has its value in the same word; it must be the next word"),
        (
            &["-qn"],
            "cli_jq: `-qn` puts several flags or a value in one word; write one flag a word",
        ),
    ];
    for (args, refusal) in cases {
        assert_eq!(argv(args), Err(refusal.to_owned()));
    }
}

proptest! {
    #[test]
    fn every_word_that_passes_is_a_flag_of_the_list_or_its_value(
        args in prop::collection::vec("-{0,3}(level|leve|n|q|nq)?[= ]?-?[0-9]{0,2}|\\PC{0,4}|\u{2212}q", 0..4),
    ) {
        if let Ok(argv) = list().argv(&args, &[]) {
            let mut rest = argv.words().iter().skip(1);
            let digit = |word: &str| word.len() == 1 && word.bytes().all(|b| b.is_ascii_digit());
            while let Some(word) = rest.next() {
                let fits = match word.as_str() {
                    "-q" => true,
                    "-n" => rest.next().is_some_and(|value| digit(value)),
                    _ => word.strip_prefix("--level=").is_some_and(digit),
                };
                prop_assert!(fits, "{:?}", argv.words());
            }
        }
    }
}
