//! Flags in the help texts of real programs, and in texts that want more than they should get.

use super::*;

/// Lines of the help of jq 1.6, curl 7.88, nmap 7.93, ls of coreutils 9.1 and git 2.39.
const JQ: &str = "Usage:\tjq [options] <jq filter> [file...]
Some of the options include:
  -c               compact instead of pretty-printed output;
  -S               sort keys of objects on output;
  --tab            use tabs for indentation;
  --arg a v        set variable $a to value <v>;
  --slurpfile a f  set variable $a to an array of JSON texts read from <f>;
";
const CURL: &str = "Usage: curl [options...] <url>
 -d, --data <data>          HTTP POST data
 -f, --fail                 Fail fast with no output on HTTP errors
 -o, --output <file>        Write to file instead of stdout
 -O, --remote-name          Write output to a file named as the remote file
 -u, --user <user:password> Server user and password
     --max-redirs <num>     Maximum number of redirects allowed
 -j, --junk-session-cookies Ignore session cookies read from file
";
const NMAP: &str = "HOST DISCOVERY:
  -iL <inputfilename>: Input from list of hosts/networks
  -sL: List Scan - simply list targets to scan
  -n/-R: Never do DNS resolution/Always resolve [default: sometimes]
  -T<0-5>: Set timing template (higher is faster)
  --min-rate <number>: Send no slower than <number> per second
  -f; --mtu <val>: fragment packets (optionally w/given MTU)
  -oN/-oX/-oS/-oG <file>: Output scan in normal, XML, s|<rIpt kIddi3,
     and Grepable format, respectively, to the given filename.
";
const LS: &str = "Usage: ls [OPTION]... [FILE]...
  -a, --all                  do not ignore entries starting with .
      --color[=WHEN]         color the output WHEN; more info below
      --group-directories-first
                             group directories before files;
                             can be augmented with a --sort option
  -w, --width=COLS           set output width to COLS.  0 means no limit

The SIZE argument is an integer and optional unit.
";
const GIT: &str = "usage: git [-v | --version] [-h | --help] [-C <path>] [-c <name>=<value>]
           [--exec-path[=<path>]] [--html-path] [-p | --paginate | -P | --no-pager]
           [--git-dir=<path>]

   log       Show commit logs
";

/// Returns the flags that are taken, and the others with their reasons.
fn sorted(text: &str) -> (Vec<String>, Vec<String>) {
    let (taken, left): (Vec<HelpFlag>, Vec<HelpFlag>) =
        flags(text).into_iter().partition(|flag| flag.left_out.is_none());
    let shown = |flag: HelpFlag| format!("{}: {}", flag.form, flag.left_out.unwrap_or("-"));
    (taken.into_iter().map(|flag| flag.form).collect(), left.into_iter().map(shown).collect())
}

const PATH: &str = "names a file or a directory";
const JUNK: &str = "Ignore session cookies read from file";
const WRITES: &str = "may write, rename or remove files";
const SEVERAL: &str = "takes several values, which no flag can have";
const SILENT: &str = "its help does not say what it does";

#[test]
fn harmless_flags_of_real_programs_are_taken() {
    assert_eq!(sorted(JQ).0, ["-c", "-S", "--tab"]);
    let curl = ["-f", "--fail", "--max-redirs 0..1000000", "-j", "--junk-session-cookies"];
    assert_eq!(sorted(CURL).0, curl);
    assert_eq!(sorted(NMAP).0, ["-sL", "-n", "-R", "--min-rate 0..1000000"]);
    let ls = ["-a", "--all", "--color", "--group-directories-first"];
    assert_eq!(sorted(LS).0, [&ls[..], &["-w 0..1000000", "--width 0..1000000"]].concat());
    assert_eq!(sorted(GIT).0, [""; 0]);
}

#[test]
fn flags_that_write_run_or_name_paths_are_left_out_with_a_reason() {
    let line = |flag: &str, why: &str| format!("{flag}: {why}");
    assert_eq!(sorted(JQ).1, [line("--arg", SEVERAL), line("--slurpfile", SEVERAL)]);
    let text = "takes free text: choose numbers, words or a pattern for it";
    let expected = [
        line("-d TEXT", text),
        line("--data TEXT", text),
        line("-o PATH", PATH),
        line("--output PATH", PATH),
        line("-O", WRITES),
        line("--remote-name", WRITES),
        line("-u TEXT", text),
        line("--user TEXT", text),
    ];
    let (taken, left) = sorted(CURL);
    assert_eq!(left, expected);
    assert_eq!(flags(CURL).last().map(|flag| flag.about.as_str()), Some(JUNK));
    assert!(taken.contains(&"-j".to_owned()), "{taken:?}");
    let attached = "has its value in the same word: list each word as a flag";
    let written = ["-oN PATH", "-oX PATH", "-oS PATH", "-oG PATH"].map(|flag| line(flag, PATH));
    let before = [
        line("-iL PATH", PATH),
        line("-T", attached),
        line("-f TEXT", text),
        line("--mtu TEXT", text),
    ];
    assert_eq!(sorted(NMAP).1, [before, written].concat());
    let git: Vec<String> = sorted(GIT).1;
    let runs = "may run commands or load code";
    assert!(git.contains(&line("-C PATH", PATH)) && git.contains(&line("-v", SILENT)), "{git:?}");
    assert!(git.contains(&line("--exec-path", runs)), "{git:?}");
    assert!(git.contains(&line("--paginate", runs)), "{git:?}");
}

#[test]
fn every_word_against_a_flag_is_found_in_its_name_and_in_its_description() {
    for (why, words) in SUSPICIOUS {
        for word in *words {
            let text = format!("  --{word}  x\n  --plain  something {word} something\n");
            let all = flags(&text);
            assert_eq!(all.len(), 2, "{word}");
            assert!(all.iter().all(|flag| flag.left_out == Some(why)), "{word}: {all:?}");
        }
    }
    // A part of another word is not the word.
    assert_eq!(sorted("  --plain  something unwritable, keyless, runny\n").0, ["--plain"]);
}

#[test]
fn a_value_has_the_form_that_the_text_gives() {
    let form = |line: &str| flags(line).first().map(|flag| (flag.form.clone(), flag.left_out));
    let taken = |form: &str| Some((form.to_owned(), None));
    assert_eq!(form("  --when=always|never  colour\n"), taken("--when always|never"));
    assert_eq!(form("  --when {json,text}  the form\n"), taken("--when json|text"));
    assert_eq!(form("  -n NUM  lines\n"), taken("-n 0..1000000"));
    assert_eq!(form("  -n <num>, --lines <num>  lines\n"), taken("-n 0..1000000"));
    let path = |form: &str| Some((form.to_owned(), Some(PATH)));
    assert_eq!(form("  --to=OUTDIR  x\n"), path("--to PATH"));
    assert_eq!(form("  --from-file X  x\n"), path("--from-file PATH"));
    let network = Some(("--ask HOST".to_owned(), Some("names a place in a network")));
    assert_eq!(form("  --ask=HOSTNAME  x\n"), network);
    // The long name has the value, and the short one too.
    assert_eq!(form("  -w, --width=COLS  x\n"), taken("-w 0..1000000"));
}

#[test]
fn a_text_cannot_leave_its_line_or_act_on_a_terminal() {
    let all = flags("  --a\u{1b}[2J\u{8}b  one\r\u{202e}\"]\\ two\u{0}\n  -\u{2212}x  three\n");
    let shown: Vec<(&str, &str)> =
        all.iter().map(|flag| (flag.form.as_str(), flag.about.as_str())).collect();
    // The escape is gone; what is left of it begins a value.
    assert_eq!(shown, [("--a", "one?\"]\\ two")]);
    let many: String = (0..MAX_FLAGS + 9).map(|number| format!("  --f{number}  x\n")).collect();
    assert_eq!(flags(&many).len(), MAX_FLAGS);
    assert_eq!(flags("  -a  x\n  -a  y\n  --a  z\n").len(), 2);
    for nothing in ["", "-", "--", "---", "-----  x", "  - one\n  * two", "[]", "[-", "[-]"] {
        assert_eq!(flags(nothing), [], "{nothing}");
    }
}

#[test]
fn texts_of_all_parts_make_well_formed_flags_only() {
    let parts = [
        "-", "--", "a", "-b", " ", "  ", "=", "<", ">", "[", "]", "[=", "{x,y}", "|", "/", ",",
        ";", ": ", "\n", "\"", "\\", "é", "\u{1b}", "\t", "FILE", "NUM",
    ];
    // A linear congruential generator (Knuth): the same texts on every run.
    let mut state = 1_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(state >> 33).unwrap_or_default() % parts.len();
            text.push_str(parts.get(at).copied().unwrap_or_default());
        }
        for flag in flags(&text) {
            assert!(is_flag(name(&flag.form)), "{text:?}: {flag:?}");
            assert!(flag.about.chars().all(|c| matches!(c, ' '..='~')), "{text:?}: {flag:?}");
            assert!(!flag.form.contains(['"', '\\', '\n']), "{text:?}: {flag:?}");
        }
    }
}
