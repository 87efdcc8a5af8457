//! The fuzz targets on their corpora and on mutations of them: what `make fuzz` looks for at length, on
//! the stable tool chain and in seconds.

#[path = "../support/dice.rs"]
mod dice;
#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use dice::Dice;

/// Mutations of each target: few, as this runs in every build.
const MUTATIONS: u32 = 400;
/// Byte strings for mutations in addition to single bits: the formats give them a meaning.
const WORDS: [&[u8]; 14] = [
    b"\0",
    b"\n",
    b"\"",
    b"{",
    b"]",
    b"=",
    b"-",
    b"..",
    b"/",
    b"\x1b[",
    b"\xff\xff\xff\xff\x0f",
    b"\xe2\x80\xae",
    b"99999999999999999999",
    b"LD_PRELOAD",
];

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(directory).expect("a corpus").flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("readable")).collect()
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn mutated(corpus: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = dice.pick(corpus).cloned().unwrap_or_default();
    for _ in 0..=dice.below(6) {
        let at = usize::try_from(dice.below(length(&bytes) + 1)).unwrap_or(0);
        let to = (at + usize::try_from(dice.below(16)).unwrap_or(0)).min(bytes.len());
        match dice.below(6) {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << dice.below(8);
                }
            }
            1 => drop(bytes.drain(at..to)),
            2 => {
                let again = bytes.get(at..to).unwrap_or_default().to_vec();
                drop(bytes.splice(at..at, again));
            }
            3 => {
                let word = dice.pick(&WORDS).copied().unwrap_or_default();
                drop(bytes.splice(at..at, word.iter().copied()));
            }
            4 => {
                let other = dice.pick(corpus).cloned().unwrap_or_default();
                let from = usize::try_from(dice.below(length(&other) + 1)).unwrap_or(0);
                bytes.truncate(at);
                bytes.extend(other.get(from..).unwrap_or_default());
            }
            _ => drop(bytes.splice(at..at, dice.bytes(16))),
        }
    }
    bytes
}

/// Runs a target on its corpus and on mutations; a failure prints seed and bytes.
fn holds(name: &str) {
    let (_, target) = targets::TARGETS.iter().find(|(own, _)| *own == name).expect("a target");
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "nothing to start from");
    for bytes in &corpus {
        target(bytes);
    }
    let seed = dice::seed();
    let mut dice = Dice::new(seed);
    for _ in 0..MUTATIONS {
        let bytes = mutated(&corpus, &mut dice);
        let ran = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
        assert!(ran.is_ok(), "seed {seed}: {}", bytes.escape_ascii());
    }
}

#[test]
fn frames_that_were_changed_decode_or_are_refused() {
    holds("frames");
}

#[test]
fn profiles_that_were_changed_stay_on_the_floor() {
    holds("profiles");
}

#[test]
fn mutated_policies_grant_no_more_than_profiles() {
    holds("policies");
}

#[test]
fn mutated_arguments_are_accepted_whole_or_refused() {
    holds("arguments");
}

#[test]
fn mutated_words_contain_no_unlisted_flag() {
    holds("flags");
}

#[test]
fn mutated_words_reach_only_the_target() {
    holds("reach");
}

#[test]
fn mutated_output_has_no_control_characters() {
    holds("output");
}

#[test]
fn mutated_expressions_end() {
    holds("calculator");
}

#[test]
fn lines_that_were_changed_are_messages_or_refused() {
    holds("lines");
}

#[test]
fn mediated_calls_are_read_as_by_the_kernel() {
    holds("mediated");
}

#[test]
fn mutated_git_configs_are_read_as_by_git() {
    holds("gitconfig");
}

#[test]
fn accepted_paths_stay_in_their_directory() {
    holds("paths");
}

#[test]
fn intercepted_requests_are_granted_requests() {
    holds("requests");
}

#[test]
fn packets_do_not_panic_or_spoof() {
    holds("packets");
}

#[test]
fn more_bytes_do_not_change_the_host() {
    holds("first_flight");
}

#[test]
fn names_that_are_judged_are_made_of_plain_labels() {
    holds("questions");
}

#[test]
fn mutated_run_files_stay_in_their_directory() {
    holds("run_bodies");
}

#[test]
fn a_token_that_was_changed_is_another() {
    holds("tokens");
}

#[test]
fn requests_have_one_host_framing_and_token() {
    holds("heads");
}

#[test]
fn mutated_tcp_lines_are_answered_and_freed() {
    holds("tcp_lines");
}

#[test]
fn every_target_has_a_corpus_and_a_fuzzer() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).expect("a manifest");
    for (name, _) in targets::TARGETS {
        assert!(!corpus(name).is_empty(), "{name}");
        let binary = std::fs::read_to_string(fuzz.join(format!("fuzz_targets/{name}.rs")));
        assert!(binary.expect("a fuzzer").contains(&format!("cofferdam_fuzz::{name}(bytes)")));
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
}
