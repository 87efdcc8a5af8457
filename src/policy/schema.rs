//! `[[tool]]` of a policy file as it is written: its keys, their defaults and examples. The reference of keys is made
//! from these comments. `commands` checks them.

use std::collections::BTreeMap;

use toml::Spanned;

use super::conduct::OutputForm;
use super::decimal::Decimal;
use super::flags::Input;
use super::hooks::HookPoint;
use model::units::Time;
use profile::document::{Document, Mistake};
use profile::{table, words};

table! {
    /// Program as a tool, with the flags that callers may give it. A rule must allow the tool, and `[tools] on` of
    /// the server must name it.
    pub(super) struct WrittenCommand {
        /// Name of the tool: lower-case letters, digits and underscores. A shipped tool of the name is replaced, whole.
        /// Example: `"cli_wc"`.
        pub(super) name: Spanned<String>,
        /// Tool that this one adds to, above it in the file or shipped: it has its program, flags, fields, words and conduct,
        /// but for what it says itself. A flag replaces the one of its name; fields, templates and default words replace all.
        ///
        /// Default: none. Example: `"cli_nmap"`.
        pub(super) extends: Option<Spanned<String>>,
        /// Program, found in the cell. Only a tool that extends another may leave it out.
        ///
        /// Default: that of the tool that it extends. Example: `"wc"`.
        pub(super) program: Option<Spanned<String>>,
        /// Description for callers.
        ///
        /// Default: the reason. Example: `"Count lines, words and bytes."`.
        pub(super) description: Option<Spanned<String>>,
        /// Way in which the program gets the field `stdin` of a call.
        ///
        /// Default: `"plain"`. Example: `"none"`.
        pub(super) stdin: Option<Spanned<Input>>,
        /// Promise to callers that the command changes nothing; cofferdam does not hold it to that.
        ///
        /// Default: `false`. Example: `true`.
        pub(super) read_only: bool = false,
        /// Time of a call that asks for none. The rule and the profile may leave less.
        ///
        /// Default: `timeout` of `[commands]` in cofferdam.toml, else that of the profile. Example: `"30s"`.
        pub(super) timeout: Option<Spanned<Time>>,
        /// Calls of the tool that run at once; others wait for their turn.
        ///
        /// Default: `concurrency` of `[commands]` in cofferdam.toml, else 2. Example: `5`.
        pub(super) concurrency: Option<Spanned<u32>>,
        /// Calls of the tool that wait; one more is answered with `resource_exhausted`.
        ///
        /// Default: `256`. Example: `16`.
        pub(super) queue: Option<u32>,
        /// Further attempts of a call that had no result.
        ///
        /// Default: none.
        pub(super) retries: Option<WrittenRetries>,
        /// Circuit breaker, which every tool has.
        ///
        /// Default: `failures` and `recovery` of `[commands]` in cofferdam.toml, else 5 and 60s.
        pub(super) breaker: Option<WrittenBreaker>,
        /// Words behind the program's name, before all others; no caller can change them.
        ///
        /// Default: `[]`. Example: `["-oX", "-"]`.
        pub(super) always: Option<Spanned<Vec<String>>>,
        /// Form of the standard output, which `metadata` of the result then has as data.
        ///
        /// Default: `"text"`. Example: `"json"`.
        pub(super) output: Option<OutputForm>,
        /// Words that a call has unless it chooses others.
        pub(super) defaults "default": Vec<WrittenDefault> = Vec::new(),
        /// Words under a name, for the field `template` of a call.
        pub(super) templates "template": Vec<WrittenTemplate> = Vec::new(),
        /// Conditions on the flags of a call together.
        pub(super) checks "check": Vec<WrittenCheck> = Vec::new(),
        /// Words in the place of a caller's.
        pub(super) replacements "replace": Vec<WrittenReplacement> = Vec::new(),
        /// Readers of lines of the standard output.
        pub(super) readers "read": Vec<WrittenReader> = Vec::new(),
        /// One line about the output, for `metadata.summary`: `{NAME}` is what a reader found, the number of its lines with
        /// `all`; `{NAME.GROUP}` is a named group. Without one of them there is no summary.
        ///
        /// Default: none. Example: `"{found} pages"`.
        pub(super) summary: Option<Spanned<String>>,
        /// Scripts that check a call, change its flags, or read its output, each in a cell of its own.
        pub(super) hooks "hook": Vec<WrittenHook> = Vec::new(),
        /// Flags that are never taken, for which callers are told the reason.
        pub(super) refused "refused": Vec<WrittenRefused> = Vec::new(),
        /// Flags that callers may give.
        pub(super) flags "flag": Vec<WrittenFlag> = Vec::new(),
        /// Words that are no flags, each a field of the tool, in the order in which the program gets them.
        pub(super) positionals "positional": Vec<WrittenPositional> = Vec::new(),
        /// Reason for the tool. Example: `"counting needs no shell"`.
        pub(super) why: Spanned<String>,
        /// Calls that the list must take, one at least: tested when the file is read.
        pub(super) accepts: Spanned<Vec<Spanned<Example>>>,
        /// Calls that the list must refuse, one at least: tested when the file is read.
        pub(super) refuses: Spanned<Vec<Spanned<Example>>>,
    }
}

table! {
    /// Flag that is never taken, and the reason.
    pub(super) struct WrittenRefused {
        /// Flag with its dashes. Example: `"-sS"`.
        pub(super) flag: Spanned<String>,
        /// Reason and the way out, which callers read after the flag. Example: `"needs raw sockets"`.
        pub(super) why: Spanned<String>,
    }
}

table! {
    /// Flag that callers may give, by its whole name and as a word of its own.
    pub(super) struct WrittenFlag {
        /// Flag with its one or two dashes, or one plus sign. Example: `"--indent"`.
        pub(super) flag: Spanned<String>,
        /// Number of its values, 0 or 1.
        ///
        /// Default: 0, a flag alone. Example: `1`.
        pub(super) arity: Option<Spanned<u8>>,
        /// Place of the value: behind `=` in the flag's own word instead of in the next word.
        ///
        /// Default: `false`. Example: `true`.
        pub(super) equals: bool = false,
        /// Number of times that it may be given.
        ///
        /// Default: `1`. Example: `4`.
        pub(super) times: Option<Spanned<usize>>,
        /// Type of its value; a flag with a value has one.
        ///
        /// Default: none. Example: `"text"`.
        pub(super) kind: Option<Spanned<WrittenKind>>,
        /// Reason for the flag. Example: `"spaces of each level"`.
        pub(super) why: Spanned<String>,
        .. pub(super) narrowing: Narrowing,
    }
}

table! {
    /// Word that is no flag: a field of the tool.
    pub(super) struct WrittenPositional {
        /// Name of the field: lower-case letters and underscores. Example: `"path"`.
        pub(super) name: Spanned<String>,
        /// Second name, which callers may use and no list shows: for clients that know the field by it.
        ///
        /// Default: none. Example: `"target"`.
        pub(super) also: Option<Spanned<String>>,
        /// Type of its words. Example: `"path"`.
        pub(super) kind: Spanned<WrittenKind>,
        /// Smallest number of words; with `0` the field may be left out. Example: `0`.
        pub(super) min: usize,
        /// Largest number of words. Example: `1`.
        pub(super) max: Spanned<usize>,
        /// Text that the program gets before the word.
        ///
        /// Default: none. Example: `"@"`.
        pub(super) prefix: Option<Spanned<String>>,
        /// Hold of the call's network to such words, for the kinds `host`, `cidr`, `target` and `url`: `"only"` lets the
        /// cell reach what they name and nothing else, within what its profile allows.
        ///
        /// Default: none: what the profile allows. Example: `"only"`.
        pub(super) egress: Option<Spanned<WrittenHold>>,
        /// Reason for the field; it is its description for callers. Example: `"the file to count"`.
        pub(super) why: Spanned<String>,
        .. pub(super) narrowing: Narrowing,
    }
}

table! {
    /// Constraints on the value of a flag or on the words of a field.
    pub(super) struct Narrowing {
        /// Regular expression that the whole value matches.
        ///
        /// Default: none. Example: `"[a-z]+"`.
        pub(super) pattern: Option<Spanned<String>>,
        /// Lowest and highest value, for the kinds `int` and `decimal`, which need it.
        ///
        /// Default: none. Example: `[0, 7]`.
        pub(super) range: Option<Spanned<(Decimal, Decimal)>>,
        /// Values that are taken, for the kind `choice` alone, which needs them.
        ///
        /// Default: none. Example: `["json", "text"]`.
        pub(super) values: Option<Spanned<Vec<String>>>,
        /// Longest value in bytes; 4096 at most.
        ///
        /// Default: `4096`. Example: `64`.
        pub(super) max_bytes: Option<Spanned<usize>>,
        /// Places that a value of the kinds `host`, `cidr`, `target` and `url` may name: networks, names, `*.NAME` for all
        /// names below one, or `any` alone.
        ///
        /// Default: private networks and `*.lab.internal`. Example: `["10.20.0.0/16", "*.example.org"]`.
        pub(super) within: Option<Spanned<Vec<String>>>,
        /// Most addresses of a network.
        ///
        /// Default: `1024`. Example: `256`.
        pub(super) largest: Option<Spanned<u64>>,
    }
}

words! {
    /// Hold of a call's network to a word.
    pub(super) enum WrittenHold {
        /// The cell reaches what such words name.
        Only = "only",
    }
}

words! {
    /// Type of a word.
    pub(super) enum WrittenKind {
        /// Any text without control characters.
        Text = "text",
        /// A whole number within `range`.
        Int = "int",
        /// A number within `range`, with up to six decimals.
        Decimal = "decimal",
        /// A path inside `/workspace`.
        Path = "path",
        /// A host name or an address.
        Host = "host",
        /// A network, such as `10.0.0.0/8`.
        Cidr = "cidr",
        /// A host name, an address or a network.
        Target = "target",
        /// Ports and ranges of them, such as `22,80-90`.
        Ports = "ports",
        /// An http or https URL without a user.
        Url = "url",
        /// One of `values`.
        Choice = "choice",
    }
}

table! {
    /// Call that the list must, or must not, take.
    pub(super) struct Example {
        /// Flags and their values, as a caller gives them.
        ///
        /// Default: `[]`. Example: `["--indent", "2"]`.
        pub(super) args: Vec<String> = Vec::new(),
        /// Fields by name, one word each.
        ///
        /// Default: `{}`. Example: `{ path = "notes/a.txt" }`.
        pub(super) with: BTreeMap<String, String> = BTreeMap::new(),
    }
}

table! {
    /// Further attempts of a call that had no result: it met a limit, its time was over, or no cell could be made.
    pub(super) struct WrittenRetries {
        /// Attempts after the first, 5 at most. Example: `2`.
        pub(super) times: Spanned<u32>,
        /// Time before the second attempt; it doubles before each further one.
        ///
        /// Default: `"500ms"`. Example: `"1s"`.
        pub(super) delay: Option<Time>,
        /// Exit codes of the program that count as no result.
        ///
        /// Default: `[]`. Example: `[7, 28]`.
        pub(super) codes: Vec<u8> = Vec::new(),
        /// Reason for it. Example: `"a name server may be slow to answer once"`.
        pub(super) why: Spanned<String>,
    }
}

table! {
    /// Circuit breaker: after failures in a row, calls are refused for a while. Failures are timeouts, limits, signals
    /// and a program that is not there; an exit code is none.
    pub(super) struct WrittenBreaker {
        /// Failures in a row that open it, 1 to 10.
        ///
        /// Default: that of `[commands]`, else 5. Example: `3`.
        pub(super) failures: Option<Spanned<u32>>,
        /// Time for which calls are refused, one hour at most; then one is let through, and its end decides.
        ///
        /// Default: that of `[commands]`, else 60s. Example: `"120s"`.
        pub(super) recovery: Option<Spanned<Time>>,
    }
}

table! {
    /// Words that a call has unless it chooses others.
    pub(super) struct WrittenDefault {
        /// Words, in order. Example: `["-T4"]`.
        pub(super) args: Spanned<Vec<String>>,
        /// Flags that take their place.
        ///
        /// Default: `[]`. Example: `["-T0", "-T1"]`.
        pub(super) unless: Vec<String> = Vec::new(),
        /// Reason for it. Example: `"a scan of a near network need not be slow"`.
        pub(super) why: Spanned<String>,
    }
}

table! {
    /// Words under a name, which a call can choose by the field `template`.
    pub(super) struct WrittenTemplate {
        /// Name: lower-case letters. Example: `"quick"`.
        pub(super) name: Spanned<String>,
        /// Words, in order. Example: `["-T4", "--top-ports", "100"]`.
        pub(super) args: Spanned<Vec<String>>,
        /// Reason for it; callers are told. Example: `"the hundred most common ports"`.
        pub(super) why: Spanned<String>,
    }
}

table! {
    /// Condition on the flags of a call together, checked before anything runs.
    pub(super) struct WrittenCheck {
        /// Flags that it is about: a call with one of them is checked; `[]` is about every call. Example: `["-sn"]`.
        pub(super) given: Vec<String>,
        /// Flags of which such a call needs one.
        ///
        /// Default: `[]`. Example: `["-sV"]`.
        pub(super) needs: Vec<String> = Vec::new(),
        /// Flags that such a call may not have; `[]` where it has `needs`. Example: `["-p", "--top-ports"]`.
        pub(super) excludes: Vec<String>,
        /// Reason, which the caller is told. Example: `"a ping scan looks at no ports"`.
        pub(super) why: Spanned<String>,
    }
}

table! {
    /// Words in the place of one of the caller's. What comes of it is checked as the caller's own words are.
    pub(super) struct WrittenReplacement {
        /// Word of the caller's, exactly. Example: `"-sS"`.
        pub(super) word: Spanned<String>,
        /// Words in its place; none takes it out. Example: `["-sT"]`.
        pub(super) by: Spanned<Vec<String>>,
        /// Reason for it. Example: `"a cell has no raw sockets, and -sT gives the same port states"`.
        pub(super) why: Spanned<String>,
    }
}

table! {
    /// Reader of lines of the standard output, for `metadata.parsed`.
    pub(super) struct WrittenReader {
        /// Name of what is found: lower-case letters and underscores. Example: `"replies"`.
        pub(super) name: Spanned<String>,
        /// Regular expression for a part of a line. Its named groups become fields, else its first group is the value.
        ///
        /// Example: `"(?<bytes>[0-9]+) bytes from (?<from>[^ :]+)"`.
        pub(super) pattern: Spanned<String>,
        /// A list of all lines that match, 1000 at most, instead of the first alone.
        ///
        /// Default: `false`. Example: `true`.
        pub(super) all: bool = false,
        /// Reason for it. Example: `"each answer, for a program"`.
        pub(super) why: Spanned<String>,
    }
}

table! {
    /// Script of bash that runs in a cell of its own, with an empty workspace and without a network. It has the call as
    /// JSON on standard input: `tool`, `fields`, `template`, `extra_args` before replacements, `argv` with all words that the
    /// program gets (those of templates, defaults and replacements too), and after the program `returncode`, `stdout`
    /// and `stderr`. A rule must allow the tool `hook`; for a script at `reach`, which has the network of the call, `reach`.
    pub(super) struct WrittenHook {
        /// Point of the call at which it runs. Example: `"check"`.
        pub(super) at: HookPoint,
        /// The script. One that fails, or takes too long, refuses the call; after the program it leaves out its data.
        ///
        /// Example: `"jq -e '.fields.target != \"10.0.0.1\"' > /dev/null || { echo 'not the router'; exit 1; }"`.
        pub(super) script: Spanned<String>,
        /// Time of the script, one minute at most.
        ///
        /// Default: `"5s"`. Example: `"1s"`.
        pub(super) timeout: Option<Spanned<Time>>,
        /// Remember its answers until the operator clears them (SIGUSR2): the same call has the same answer. For a check or
        /// a transform.
        ///
        /// Default: `false`. Example: `true`.
        pub(super) remember: bool = false,
        /// Reason for it. Example: `"the router is not to be scanned"`.
        pub(super) why: Spanned<String>,
    }
}

/// Checks that a reason is not blank.
pub(super) fn why(document: &Document, why: &Spanned<String>) -> Result<String, Mistake> {
    if why.get_ref().trim().is_empty() {
        return Err(document
            .mistake(why.span(), "`why` is blank")
            .with_hint("every grant and every rule says why it is there"));
    }
    Ok(why.get_ref().clone())
}
