//! `[[tool]]` of a policy file as it is written: its keys, their defaults and examples. The reference of keys is made
//! from these comments. `commands` checks them.

use std::collections::BTreeMap;

use toml::Spanned;

use super::conduct::OutputForm;
use super::decimal::Decimal;
use super::flags::Input;
use super::hooks::{HookPoint, ReaderHealth, ReaderMetric};
use crate::document::Reason;
use model::units::Time;

table! {
    /// Program that is offered as a tool, with the flags that callers may use. A rule must allow
    /// the tool, and `[tools] on` of the server must list it.
    pub(super) struct WrittenCommand {
        /// Name of the tool: lower-case letters, digits and underscores. It replaces a shipped tool
        /// with the same name completely. Only a tool with `command` may omit it.
        ///
        /// Default: `cli_` and the name of the command. Example: `"cli_wc"`.
        pub(super) name: Option<Spanned<String>>,
        /// Program of a tool in short form: it is offered without an entry in `[tools] on`, a rule
        /// that allows it under `profile` is added unless a file has one, the field `path` is added
        /// unless the file has fields, and `accepts` and `refuses` are optional.
        ///
        /// Default: none, the long form. Example: `"wc"`.
        pub(super) command: Option<Spanned<String>>,
        /// Profile of the calls of a tool in short form, unless a rule names one.
        ///
        /// Default: `"bash"`. Example: `"nested"`.
        pub(super) profile: Option<Spanned<String>>,
        /// Tool that this one extends: a shipped one, or one above it in the file. Absent keys are
        /// taken from it. A flag replaces the flag with the same name; fields, templates and
        /// default words replace all of the other tool.
        ///
        /// Default: none. Example: `"cli_nmap"`.
        pub(super) extends: Option<Spanned<String>>,
        /// Program, which is looked up in the cell. Only a tool with `command`, or one that extends
        /// another, may omit it.
        ///
        /// Default: `command`, or the program of the extended tool. Example: `"wc"`.
        pub(super) program: Option<Spanned<String>>,
        /// Description for callers.
        ///
        /// Default: the value of `why`. Example: `"Count lines, words and bytes."`.
        pub(super) description: Option<Spanned<String>>,
        /// How the program receives the field `stdin` of a call.
        ///
        /// Default: `"plain"`. Example: `"none"`.
        pub(super) stdin: Option<Spanned<Input>>,
        /// Declares to callers that the command changes nothing. cofferdam does not enforce it.
        ///
        /// Default: `false`. Example: `true`.
        pub(super) read_only: bool = false,
        /// Timeout of a call that sets none itself. The rule and the profile can lower it.
        ///
        /// Default: `timeout` of `[commands]` in cofferdam.toml, else the value of the profile.
        /// Example: `"30s"`.
        pub(super) timeout: Option<Spanned<Time>>,
        /// Calls of the tool that run at the same time; others wait.
        ///
        /// Default: `concurrency` of `[commands]` in cofferdam.toml, else 2. Example: `5`.
        pub(super) concurrency: Option<Spanned<u32>>,
        /// Calls of the tool that may wait; a further one is answered with `resource_exhausted`.
        ///
        /// Default: `256`. Example: `16`.
        pub(super) queue: Option<u32>,
        /// Retries of a call that had no result.
        ///
        /// Default: none.
        pub(super) retries: Option<WrittenRetries>,
        /// Circuit breaker of the tool.
        ///
        /// Default: `failures` and `recovery` of `[commands]` in cofferdam.toml, else 5 and 60s.
        pub(super) breaker: Option<WrittenBreaker>,
        /// Arguments directly after the program's name; callers cannot change them.
        ///
        /// Default: `[]`. Example: `["-oX", "-"]`.
        pub(super) always: Option<Spanned<Vec<String>>>,
        /// Format of the standard output; `metadata` of the result then contains the parsed data.
        ///
        /// Default: `"text"`. Example: `"json"`.
        pub(super) output: Option<OutputForm>,
        /// Arguments that a call gets by default.
        pub(super) defaults "default": Vec<WrittenDefault> = Vec::new(),
        /// Named arguments that a call selects with the field `template`.
        pub(super) templates "template": Vec<WrittenTemplate> = Vec::new(),
        /// Conditions on combinations of flags.
        pub(super) checks "check": Vec<WrittenCheck> = Vec::new(),
        /// Replacements for words of the caller.
        pub(super) replacements "replace": Vec<WrittenReplacement> = Vec::new(),
        /// Patterns that extract values from the standard output.
        pub(super) readers "read": Vec<WrittenReader> = Vec::new(),
        /// Summary of the output in one line, for `metadata.summary`. `{NAME}` is the value that a
        /// reader found, or the number of lines if it has `all`; `{NAME.GROUP}` is a named group.
        /// If a value is missing, there is no summary.
        ///
        /// Default: none. Example: `"{found} pages"`.
        pub(super) summary: Option<Spanned<String>>,
        /// Scripts that check a call, change its flags or read its output, each in a separate cell.
        pub(super) hooks "hook": Vec<WrittenHook> = Vec::new(),
        /// Flags that are always refused, with a reason for the caller.
        pub(super) refused "refused": Vec<WrittenRefused> = Vec::new(),
        /// Flags that callers may use.
        pub(super) flags "flag": Vec<WrittenFlag> = Vec::new(),
        /// Flags in short form, each with its reason. A value is `TEXT`, `PATH`, `HOST`, `NETWORK`,
        /// `TARGET`, `PORTS`, `URL`, numbers such as `0..7` or `0.5..10`, or words such as
        /// `json|text`: `"--indent 0..7"` takes it as the next word, `"--indent=0..7"` after `=`.
        ///
        /// Default: `{}`. Example: `{ "-l" = "lines" }`.
        pub(super) short_flags "flags": BTreeMap<Spanned<String>, Reason> = BTreeMap::new(),
        /// Positional arguments, each a field of the tool, in the order in which the program gets
        /// them.
        pub(super) positionals "positional": Vec<WrittenPositional> = Vec::new(),
        /// Reason for the tool. Example: `"counting needs no shell"`.
        pub(super) why: Reason,
        /// Calls that must be accepted, at least one. They are tested when the file is read.
        ///
        /// Default: none, for a tool with `command`; other tools need it.
        pub(super) accepts: Option<Spanned<Vec<Spanned<Example>>>>,
        /// Calls that must be refused, at least one. They are tested when the file is read.
        ///
        /// Default: none, for a tool with `command`; other tools need it.
        pub(super) refuses: Option<Spanned<Vec<Spanned<Example>>>>,
    }
}

table! {
    /// Flag that is always refused.
    pub(super) struct WrittenRefused {
        /// Flag with its dashes. Example: `"-sS"`.
        pub(super) flag: Spanned<String>,
        /// Reason and alternative, shown to the caller after the flag. Example: `"needs raw
        /// sockets"`.
        pub(super) why: Reason,
    }
}

table! {
    /// Flag that callers may use, by its full name and as a separate word.
    pub(super) struct WrittenFlag {
        /// Flag with its one or two dashes, or one plus sign. Example: `"--indent"`.
        pub(super) flag: Spanned<String>,
        /// Number of values: 0 or 1.
        ///
        /// Default: 0, a flag alone. Example: `1`.
        pub(super) arity: Option<Spanned<u8>>,
        /// Whether the value follows `=` in the same word instead of being the next word.
        ///
        /// Default: `false`. Example: `true`.
        pub(super) equals: bool = false,
        /// How often the flag may be given.
        ///
        /// Default: `1`. Example: `4`.
        pub(super) times: Option<Spanned<usize>>,
        /// Type of the value; required for a flag with a value.
        ///
        /// Default: none. Example: `"text"`.
        pub(super) kind: Option<Spanned<WrittenKind>>,
        /// Reason for the flag. Example: `"spaces of each level"`.
        pub(super) why: Reason,
        .. pub(super) narrowing: Narrowing,
    }
}

table! {
    /// Positional argument: a field of the tool.
    pub(super) struct WrittenPositional {
        /// Name of the field: lower-case letters and underscores. Example: `"path"`.
        pub(super) name: Spanned<String>,
        /// Second name of the field, which is accepted but not listed, for clients that use another
        /// name.
        ///
        /// Default: none. Example: `"target"`.
        pub(super) also: Option<Spanned<String>>,
        /// Type of the words. Example: `"path"`.
        pub(super) kind: Spanned<WrittenKind>,
        /// Minimum number of words; with `0` the field is optional. Example: `0`.
        pub(super) min: usize,
        /// Maximum number of words. Example: `1`.
        pub(super) max: Spanned<usize>,
        /// Text that is put before the word.
        ///
        /// Default: none. Example: `"@"`.
        pub(super) prefix: Option<Spanned<String>>,
        /// Restricts the network of the call to the targets that these words name, within what the
        /// profile allows. For the kinds `host`, `cidr`, `target` and `url`.
        ///
        /// Default: everything that the profile allows. Example: `"only"`.
        pub(super) egress: Option<Spanned<WrittenHold>>,
        /// Reason for the field, which is also its description for callers. Example: `"the file to
        /// count"`.
        pub(super) why: Reason,
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
        /// Lowest and highest value; required for the kinds `int` and `decimal`.
        ///
        /// Default: none. Example: `[0, 7]`.
        pub(super) range: Option<Spanned<(Decimal, Decimal)>>,
        /// Accepted values; required for the kind `choice`.
        ///
        /// Default: none. Example: `["json", "text"]`.
        pub(super) values: Option<Spanned<Vec<String>>>,
        /// Maximum length of a value in bytes; at most 4096.
        ///
        /// Default: `4096`. Example: `64`.
        pub(super) max_bytes: Option<Spanned<usize>>,
        /// Targets that a value of the kinds `host`, `cidr`, `target` and `url` may name: networks,
        /// names, `*.NAME` for all names below one, or only `any`.
        ///
        /// Default: private networks and `*.lab.internal`. Example: `["10.20.0.0/16",
        /// "*.example.org"]`.
        pub(super) within: Option<Spanned<Vec<String>>>,
        /// Maximum number of addresses in a network.
        ///
        /// Default: `1024`. Example: `256`.
        pub(super) largest: Option<Spanned<u64>>,
    }
}

words! {
    /// Restriction of a call's network to a word.
    pub(super) enum WrittenHold {
        /// The cell reaches the targets that such words name, and nothing else.
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
    /// Example of a call.
    pub(super) struct Example {
        /// Flags and their values, as a caller gives them.
        ///
        /// Default: `[]`. Example: `["--indent", "2"]`.
        pub(super) args: Vec<String> = Vec::new(),
        /// Fields by name, each with one word.
        ///
        /// Default: `{}`. Example: `{ path = "notes/a.txt" }`.
        pub(super) with: BTreeMap<String, String> = BTreeMap::new(),
    }
}

table! {
    /// Retries of a call that had no result because of a limit, a timeout, or a cell that could not
    /// be started.
    pub(super) struct WrittenRetries {
        /// Attempts after the first; at most 5. Example: `2`.
        pub(super) times: Spanned<u32>,
        /// Time before the second attempt; it doubles before each further one.
        ///
        /// Default: `"500ms"`. Example: `"1s"`.
        pub(super) delay: Option<Time>,
        /// Exit codes after which the call is retried.
        ///
        /// Default: `[]`. Example: `[7, 28]`.
        pub(super) codes: Vec<u8> = Vec::new(),
        /// Reason for this entry. Example: `"a name server may be slow to answer once"`.
        _why "why": Reason,
    }
}

table! {
    /// Circuit breaker: after consecutive failures, calls are refused for some time. Failures are
    /// timeouts, limits, signals and a missing program, but not exit codes.
    pub(super) struct WrittenBreaker {
        /// Consecutive failures that open it; 1 to 10.
        ///
        /// Default: `failures` of `[commands]`, else 5. Example: `3`.
        pub(super) failures: Option<Spanned<u32>>,
        /// Time during which calls are refused; at most one hour. Then one call is let through, and
        /// its result closes or reopens the breaker.
        ///
        /// Default: `recovery` of `[commands]`, else 60s. Example: `"120s"`.
        pub(super) recovery: Option<Spanned<Time>>,
    }
}

table! {
    /// Arguments that a call gets by default.
    pub(super) struct WrittenDefault {
        /// Words, in order. Example: `["-T4"]`.
        pub(super) args: Spanned<Vec<String>>,
        /// Flags that replace these arguments.
        ///
        /// Default: `[]`. Example: `["-T0", "-T1"]`.
        pub(super) unless: Vec<String> = Vec::new(),
        /// Reason for this entry. Example: `"a scan of a near network need not be slow"`.
        _why "why": Reason,
    }
}

table! {
    /// Named arguments that a call selects with the field `template`.
    pub(super) struct WrittenTemplate {
        /// Name: lower-case letters. Example: `"quick"`.
        pub(super) name: Spanned<String>,
        /// Words, in order. Example: `["-T4", "--top-ports", "100"]`.
        pub(super) args: Spanned<Vec<String>>,
        /// Reason, which callers see. Example: `"the hundred most common ports"`.
        pub(super) why: Reason,
    }
}

table! {
    /// Condition on a combination of flags, checked before anything runs.
    pub(super) struct WrittenCheck {
        /// Flags whose calls are checked; with `[]` every call is. Example: `["-sn"]`.
        pub(super) given: Vec<String>,
        /// Flags of which the call needs at least one.
        ///
        /// Default: `[]`. Example: `["-sV"]`.
        pub(super) needs: Vec<String> = Vec::new(),
        /// Flags that the call must not have; `[]` if there is `needs`. Example: `["-p",
        /// "--top-ports"]`.
        pub(super) excludes: Vec<String>,
        /// Reason, which the caller sees. Example: `"a ping scan looks at no ports"`.
        pub(super) why: Spanned<Reason>,
    }
}

table! {
    /// Replacement for a word of the caller. The result is checked like the words of the caller.
    pub(super) struct WrittenReplacement {
        /// Exact word of the caller. Example: `"-sS"`.
        pub(super) word: Spanned<String>,
        /// Replacement; an empty list removes the word. Example: `["-sT"]`.
        pub(super) by: Spanned<Vec<String>>,
        /// Reason for this entry. Example: `"a cell has no raw sockets, and -sT gives the same port states"`.
        _why "why": Reason,
    }
}

table! {
    /// Pattern that extracts a value from the standard output, for `metadata.parsed`.
    pub(super) struct WrittenReader {
        /// Name of the value: lower-case letters and underscores. Example: `"replies"`.
        pub(super) name: Spanned<String>,
        /// Regular expression for a part of a line. Its named groups become fields, else its first
        /// group is the value.
        ///
        /// Example: `"(?<bytes>[0-9]+) bytes from (?<from>[^ :]+)"`.
        pub(super) pattern: Spanned<String>,
        /// Take all lines that match, at most 1000, instead of the first.
        ///
        /// Default: `false`. Example: `true`.
        pub(super) all: bool = false,
        /// Shows the number that is found in the server's metrics: the value, or the number of
        /// lines if the reader has `all`. The pattern has no named groups then, unless it has
        /// `all`.
        ///
        /// Default: none. Example: `"counter"`.
        pub(super) metric: Option<Spanned<ReaderMetric>>,
        /// Health of the tool after a call whose output has such a line, until the next call that
        /// ran. `why` is its reason.
        ///
        /// Default: none. Example: `"degraded"`.
        pub(super) health: Option<ReaderHealth>,
        /// Reason for this entry. Example: `"each answer, for a program"`.
        pub(super) why "why": Reason,
    }
}

table! {
    /// Bash script that runs in a separate cell with an empty workspace and without a network. It
    /// gets the call as JSON on standard input: `tool`, `fields`, `template`, `extra_args` before
    /// replacements, `argv` with all arguments of the program, and after the program `returncode`,
    /// `stdout` and `stderr`. A rule must allow the tool `hook`, or `reach` for a script at
    /// `reach`, which has the network of the call.
    pub(super) struct WrittenHook {
        /// Point of the call at which the script runs. Example: `"check"`.
        pub(super) at: HookPoint,
        /// Text of the script. If it fails or takes too long, the call is refused; after the
        /// program, the result lacks its data.
        ///
        /// Example: `"jq -e '.fields.target != \"10.0.0.1\"' > /dev/null || { echo 'not the
        /// router'; exit 1; }"`.
        pub(super) script: Spanned<String>,
        /// Timeout of the script; at most one minute.
        ///
        /// Default: `"5s"`. Example: `"1s"`.
        pub(super) timeout: Option<Spanned<Time>>,
        /// Remember answers until the operator clears them (SIGUSR2), so that the same call gets
        /// the same answer. Only for a check or a transform.
        ///
        /// Default: `false`. Example: `true`.
        pub(super) remember: bool = false,
        /// Reason for this entry. Example: `"the router is not to be scanned"`.
        _why "why": Reason,
    }
}
