//! Checks of a declared tool before it takes effect: its flags, its fields and its examples.

mod conduct;
mod hooks;
mod short;

use std::ops::Range;

use toml::Spanned;

use super::decimal::Decimal;
use super::flags::{
    BadWords, Changes, DeclaredCommand, Flag, Input, Offered, Positional, PositionalEgress, Takes,
};
use super::hooks::HookPoint;
use super::pattern::LazyRegex;
use super::reach::{TargetPlaces, TargetReach};
use super::schema::{
    Example, Narrowing, WrittenCommand, WrittenFlag, WrittenKind, WrittenPositional,
};
use super::tools::RESERVED;
use super::values::{Type, WORD_BYTES, WordType, plain};
use crate::document::{Document, Mistake};
use model::egress::{HostPattern, Net};

/// Fields that every declared tool may have. The fields that a tool defines have other names.
const FIELDS: &[&str] =
    &["extra_args", "stdin", "template", "dry_run", "timeout_sec", "correlation_id"];

/// Checks one declared tool, including its examples.
pub(super) fn command(
    document: &Document,
    whole: &Spanned<WrittenCommand>,
    others: &[DeclaredCommand],
) -> Result<DeclaredCommand, Mistake> {
    let written = whole.get_ref();
    let name = &named(document, whole)?;
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.get_ref().is_empty() || !name.get_ref().chars().all(is_name) {
        let message = "a tool's name is lower-case letters, digits and underscores";
        return Err(document.mistake(name.span(), message));
    }
    if RESERVED.contains(&name.get_ref().as_str()) {
        let message =
            format!("rules know something else as `{}`; a tool has another name", name.get_ref());
        return Err(document.mistake(name.span(), message));
    }
    if others.iter().any(|other| other.name == *name.get_ref()) {
        let message = format!("there are two tools `{}`", name.get_ref());
        return Err(document.mistake(name.span(), message));
    }
    let base = written
        .extends
        .as_ref()
        .map(|base_name| extended(document, base_name, others))
        .transpose()?;
    let flags = flags(document, written, base.as_ref())?;
    let refused = refused(document, written, base.as_ref(), &flags)?;
    let why = written.why.as_str().to_owned();
    let mut new_positionals = positionals(document, written)?;
    if new_positionals.is_empty() && base.is_none() && written.command.is_some() {
        new_positionals.push(short::path());
    }
    let input = base.as_ref().map_or(Input::Plain, |base| base.input);
    let command = DeclaredCommand {
        name: name.get_ref().clone(),
        offered: match written.command {
            Some(_) => Offered::ByItself,
            None => Offered::WhereNamed,
        },
        program: program(document, name, written, base.as_ref())?,
        flags,
        refused,
        positionals: match (&base, new_positionals.is_empty()) {
            (Some(base), true) => base.positionals.clone(),
            (None, _) | (_, false) => new_positionals,
        },
        input: written.stdin.as_ref().map_or(input, |input| *input.get_ref()),
        hooks: hooks::hooks(document, written, base.as_ref().map(|base| &base.hooks))?,
        conduct: conduct::conduct(
            document,
            written,
            base.map(|base| base.conduct).unwrap_or_default(),
        )?,
        description: written.description.as_ref().map_or(&why, Spanned::get_ref).clone(),
        changes: if written.read_only { Changes::Nothing } else { Changes::Workspace },
        why,
    };
    if let Some(stdin) = written.stdin.as_ref().filter(|input| *input.get_ref() == Input::Dash)
        && command.file().is_none()
    {
        let message =
            "`stdin = \"dash\"` stands for a path that may be left out, and there is none";
        return Err(document.mistake(stdin.span(), message));
    }
    check_search(document, name, &command)?;
    check_examples(document, whole, &command)?;
    Ok(command)
}

/// Returns the name of a tool, with its place: as written, or derived from the command.
fn named(document: &Document, whole: &Spanned<WrittenCommand>) -> Result<Spanned<String>, Mistake> {
    let written = whole.get_ref();
    if let (Some(profile), None) = (&written.profile, &written.command) {
        let message = "`profile` is for a tool with `command`; a rule names that of this tool";
        return Err(document.mistake(profile.span(), message));
    }
    match (&written.name, &written.command) {
        (Some(name), _) => Ok(name.clone()),
        (None, Some(command)) => {
            Ok(Spanned::new(command.span(), short::tool_name(command.get_ref())))
        }
        (None, None) => Err(document.mistake(whole.span(), "missing field `name`")),
    }
}

/// Checks that a tool with a hook at `reach` has a field with `egress = "only"`.
fn check_search(
    document: &Document,
    name: &Spanned<String>,
    command: &DeclaredCommand,
) -> Result<(), Mistake> {
    let is_held = |one: &Positional| one.egress == PositionalEgress::Only;
    let searches = command.hooks.scripts_at(&[HookPoint::Reach]).next().is_some();
    match searches && !command.positionals.iter().any(is_held) {
        true => {
            let message =
                "a hook at `reach` is for tools with a field that has `egress = \"only\"`";
            Err(document.mistake(name.span(), message))
        }
        false => Ok(()),
    }
}

/// Returns the tool that is extended.
fn extended(
    document: &Document,
    base_name: &Spanned<String>,
    others: &[DeclaredCommand],
) -> Result<DeclaredCommand, Mistake> {
    let declared = others.iter().find(|other| other.name == *base_name.get_ref()).cloned();
    declared.or_else(|| super::shipped_command(base_name.get_ref())).ok_or_else(|| {
        let message = format!("there is no tool `{}` above it to extend", base_name.get_ref());
        document.mistake(base_name.span(), message)
    })
}

fn program(
    document: &Document,
    name: &Spanned<String>,
    written: &WrittenCommand,
    base: Option<&DeclaredCommand>,
) -> Result<String, Mistake> {
    match (written.program.as_ref().or(written.command.as_ref()), base) {
        (Some(program), _) => {
            let text = program.get_ref();
            match plain(text).is_err() || text.starts_with('-') {
                true => Err(document.mistake(program.span(), "a program is one plain word")),
                false => Ok(text.clone()),
            }
        }
        (None, Some(base)) => Ok(base.program.clone()),
        (None, None) => Err(document.mistake(name.span(), "a tool names its `program`")),
    }
}

/// Reads the flags of a tool. They come after those of the tool that it extends.
fn flags(
    document: &Document,
    written: &WrittenCommand,
    base: Option<&DeclaredCommand>,
) -> Result<Vec<Flag>, Mistake> {
    let mut new_flags: Vec<Flag> = Vec::new();
    for written in &written.flags {
        let flag = flag(document, written)?;
        if new_flags.iter().any(|other| other.name == flag.name) {
            let message = format!("there are two flags `{}`", flag.name);
            return Err(document.mistake(written.flag.span(), message));
        }
        new_flags.push(flag);
    }
    for (text, why) in &written.short_flags {
        let flag = short::flag(document, text, why)?;
        if new_flags.iter().any(|other| other.name == flag.name) {
            let message = format!("there are two flags `{}`", flag.name);
            return Err(document.mistake(text.span(), message));
        }
        new_flags.push(flag);
    }
    let is_replaced = |flag: &&Flag| new_flags.iter().any(|new| new.name == flag.name);
    let mut all: Vec<Flag> = base
        .map(|base| base.flags.iter().filter(|flag| !is_replaced(flag)).cloned().collect())
        .unwrap_or_default();
    all.extend(new_flags);
    Ok(all)
}

/// Reads the flags that are always refused, each with its reason.
fn refused(
    document: &Document,
    written: &WrittenCommand,
    base: Option<&DeclaredCommand>,
    flags: &[Flag],
) -> Result<Vec<(String, String)>, Mistake> {
    let taken = |name: &String| flags.iter().any(|flag| flag.name == *name);
    let inherited = base.map(|base| base.refused.as_slice()).unwrap_or_default();
    let mut all: Vec<_> = inherited.iter().filter(|(name, _)| !taken(name)).cloned().collect();
    for one in &written.refused {
        if taken(one.flag.get_ref()) {
            let message = format!("flag `{}` is taken and refused", one.flag.get_ref());
            return Err(document.mistake(one.flag.span(), message));
        }
        all.push((one.flag.get_ref().clone(), one.why.as_str().to_owned()));
    }
    Ok(all)
}

/// Mistake about a flag that is not written as one.
const NO_FLAG: &str = "a flag is one or two dashes or one plus, then letters, digits, dashes";

/// Returns true for one or two dashes or one plus, followed by letters, digits, dashes.
fn is_flag(name: &str) -> bool {
    let letters = name.strip_prefix('+').unwrap_or_else(|| name.trim_start_matches('-'));
    let dashes = name.len() - letters.len();
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=2).contains(&dashes) && !letters.is_empty() && letters.chars().all(is_letter)
}

fn flag(document: &Document, written: &WrittenFlag) -> Result<Flag, Mistake> {
    let name = written.flag.get_ref();
    let mistake = |message: &str| Err(document.mistake(written.flag.span(), message));
    if !is_flag(name) {
        return mistake(NO_FLAG);
    }
    let arity = written.arity.as_ref().map_or(0, |arity| *arity.get_ref());
    let takes = match (arity, &written.kind, written.equals) {
        (0, None, false) if written.narrowing.is_empty() => Takes::Nothing,
        (0, _, _) => return mistake("a flag with a type has `arity = 1`"),
        (1, Some(kind), equals) => {
            let takes = kind_of(document, kind, &written.narrowing)?;
            if equals { Takes::Equals(takes) } else { Takes::Next(takes) }
        }
        (1, None, _) => return mistake("a flag with a value says its `kind`"),
        (_, _, _) => return mistake("`arity` is 0 or 1"),
    };
    let times = written.times.as_ref().map_or(1, |times| *times.get_ref());
    if times == 0 {
        return mistake("`times` is at least 1");
    }
    Ok(Flag { name: name.clone(), takes, times, why: written.why.as_str().to_owned() })
}

impl Narrowing {
    fn is_empty(&self) -> bool {
        self.pattern.is_none()
            && self.range.is_none()
            && self.values.is_none()
            && self.max_bytes.is_none()
            && self.within.is_none()
            && self.largest.is_none()
    }
}

fn positionals(document: &Document, written: &WrittenCommand) -> Result<Vec<Positional>, Mistake> {
    let mut all: Vec<Positional> = Vec::new();
    for written in &written.positionals {
        for written in [Some(&written.name), written.also.as_ref()].into_iter().flatten() {
            let name = written.get_ref();
            let is_taken = |other: &Positional| {
                other.name == *name || other.also.as_deref() == Some(name.as_str())
            };
            if FIELDS.contains(&name.as_str()) || all.iter().any(is_taken) {
                let message = format!("there are two fields `{name}`");
                return Err(document.mistake(written.span(), message));
            }
        }
        let one = positional(document, written)?;
        check_hold(document, written, &one, &all)?;
        all.push(one);
    }
    Ok(all)
}

/// Checks that a field with `egress` names a target, and that a URL is the only word that holds the
/// network: with several words, the host of one could be combined with the port of another.
fn check_hold(
    document: &Document,
    written: &WrittenPositional,
    one: &Positional,
    others: &[Positional],
) -> Result<(), Mistake> {
    let Some(hold) = &written.egress else { return Ok(()) };
    if !one.takes.kind.is_target() {
        let message = "`egress` is for the kinds host, cidr, target and url";
        return Err(document.mistake(hold.span(), message));
    }
    let is_url = |one: &Positional| one.takes.kind == WordType::Url;
    let mut holding = others.iter().filter(|other| other.egress == PositionalEgress::Only);
    let joined = match is_url(one) {
        true => one.max > 1 || holding.next().is_some(),
        false => holding.any(is_url),
    };
    match joined {
        true => {
            let message = "a url with `egress` is the only word of its kind: max = 1, no other";
            Err(document.mistake(hold.span(), message))
        }
        false => Ok(()),
    }
}

fn positional(document: &Document, written: &WrittenPositional) -> Result<Positional, Mistake> {
    let max = *written.max.get_ref();
    if max == 0 || written.min > max {
        return Err(document.mistake(written.max.span(), "`max` is at least 1 and at least `min`"));
    }
    for name in [Some(&written.name), written.also.as_ref()].into_iter().flatten() {
        let text = name.get_ref();
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
            let message = "a field's name is lower-case letters and underscores";
            return Err(document.mistake(name.span(), message));
        }
    }
    let prefix = written.prefix.as_ref().map(Spanned::get_ref).cloned().unwrap_or_default();
    if let Some(text) = written.prefix.as_ref()
        && (plain(&prefix).is_err() || prefix.starts_with('-'))
    {
        return Err(document.mistake(text.span(), "`prefix` is plain text, without a dash first"));
    }
    Ok(Positional {
        name: written.name.get_ref().clone(),
        also: written.also.as_ref().map(Spanned::get_ref).cloned(),
        takes: kind_of(document, &written.kind, &written.narrowing)?,
        min: written.min,
        max,
        prefix,
        egress: match written.egress {
            Some(_) => PositionalEgress::Only,
            None => PositionalEgress::Any,
        },
        why: written.why.as_str().to_owned(),
    })
}

fn kind_of(
    document: &Document,
    kind: &Spanned<WrittenKind>,
    narrowing: &Narrowing,
) -> Result<Type, Mistake> {
    let mistake = |span: Range<usize>, message: &str| Err(document.mistake(span, message));
    let kind_is = *kind.get_ref();
    let is_number = matches!(kind_is, WrittenKind::Int | WrittenKind::Decimal);
    if let Some(range) = narrowing.range.as_ref().filter(|_| !is_number) {
        return mistake(range.span(), "`range` is for the kinds int and decimal");
    }
    if let Some(values) = narrowing.values.as_ref().filter(|_| kind_is != WrittenKind::Choice) {
        return mistake(values.span(), "`values` is for `kind = \"choice\"`");
    }
    let kind = match kind_is {
        WrittenKind::Text => WordType::Text,
        WrittenKind::Path => WordType::Path,
        WrittenKind::Host => WordType::Host,
        WrittenKind::Cidr => WordType::Cidr,
        WrittenKind::Target => WordType::Target,
        WrittenKind::Ports => WordType::Ports,
        WrittenKind::Url => WordType::Url,
        WrittenKind::Int => match narrowing.range.as_ref().and_then(|range| whole(range.get_ref()))
        {
            Some((low, high)) if low <= high => WordType::Int(low..=high),
            _ => return mistake(kind.span(), "an int has `range = [LOW, HIGH]`, whole numbers"),
        },
        WrittenKind::Decimal => match narrowing.range.as_ref().map(Spanned::get_ref) {
            Some((low, high)) if low <= high => WordType::Decimal(*low..=*high),
            _ => return mistake(kind.span(), "a decimal has `range = [LOW, HIGH]`"),
        },
        WrittenKind::Choice => match narrowing.values.as_ref().map(Spanned::get_ref) {
            Some(values) if !values.is_empty() => WordType::Choice(values.clone()),
            _ => return mistake(kind.span(), "a choice has `values = [\"…\"]`"),
        },
    };
    let pattern = match &narrowing.pattern {
        None => None,
        Some(text) => match LazyRegex::whole_word(document, text.get_ref()) {
            Some(pattern) => Some(pattern),
            None => return mistake(text.span(), "`pattern` is no regular expression"),
        },
    };
    let max_bytes = narrowing.max_bytes.as_ref().map_or(WORD_BYTES, |most| *most.get_ref());
    let reach = reach(document, &kind, narrowing)?;
    Ok(Type { kind, pattern, max_bytes: max_bytes.min(WORD_BYTES), reach })
}

/// Converts a range to whole numbers, if both bounds are whole.
fn whole(range: &(Decimal, Decimal)) -> Option<(u64, u64)> {
    let (low, high) = range;
    Some((low.whole()?, high.whole()?))
}

/// Reads the hosts and networks that a word may name.
fn reach(
    document: &Document,
    kind: &WordType,
    narrowing: &Narrowing,
) -> Result<TargetReach, Mistake> {
    let defaults = TargetReach::default();
    let within = narrowing.within.as_ref();
    let largest = narrowing.largest.as_ref();
    let span = within.map(Spanned::span).or_else(|| largest.map(Spanned::span));
    if let Some(span) = span.filter(|_| !kind.is_target()) {
        let message = "`within` and `largest` are for the kinds host, cidr, target and url";
        return Err(document.mistake(span, message));
    }
    let within = match within {
        None => defaults.within,
        Some(places) if *places.get_ref() == ["any"] => TargetPlaces::Any,
        Some(places) => {
            let mut hosts = Vec::new();
            let mut nets = Vec::new();
            for place in places.get_ref() {
                match (place.parse::<Net>(), place.parse::<HostPattern>()) {
                    (Ok(net), _) => nets.push(net),
                    (Err(_), Ok(host)) => hosts.push(host),
                    (Err(net), Err(_)) if place.contains(['/', ':']) => {
                        return Err(document.mistake(places.span(), net.to_string()));
                    }
                    (Err(_), Err(host)) => {
                        return Err(document.mistake(places.span(), host.to_string()));
                    }
                }
            }
            if hosts.is_empty() && nets.is_empty() {
                return Err(document.mistake(places.span(), "`within` names no place"));
            }
            TargetPlaces::Listed { hosts, nets }
        }
    };
    if let Some(zero) = largest.filter(|most| *most.get_ref() == 0) {
        return Err(document.mistake(zero.span(), "`largest` is at least 1"));
    }
    Ok(TargetReach {
        within,
        largest: largest.map_or(defaults.largest, |most| (*most.get_ref()).into()),
    })
}

/// Checks that the tool has examples of accepted and of refused calls, and tries each.
fn check_examples(
    document: &Document,
    whole: &Spanned<WrittenCommand>,
    command: &DeclaredCommand,
) -> Result<(), Mistake> {
    let written = whole.get_ref();
    let name = &command.name;
    for (list, key) in [(&written.accepts, "accepts"), (&written.refuses, "refuses")] {
        match list {
            None if written.command.is_some() => {}
            None => {
                return Err(document.mistake(whole.span(), format!("missing field `{key}`")));
            }
            Some(list) if list.get_ref().is_empty() => {
                let message = format!("tool `{name}` has no example under `{key}`");
                return Err(document.mistake(list.span(), message));
            }
            Some(_) => {}
        }
    }
    for example in written.accepts.iter().flat_map(Spanned::get_ref) {
        if let Err(bad) = tried(command, example.get_ref()) {
            let message = format!("tool `{name}` should accept this and does not: {bad}");
            return Err(document.mistake(example.span(), message));
        }
    }
    for example in written.refuses.iter().flat_map(Spanned::get_ref) {
        if tried(command, example.get_ref()).is_ok() {
            let message = format!("tool `{name}` should refuse this and accepts it");
            return Err(document.mistake(example.span(), message));
        }
    }
    Ok(())
}

fn tried(command: &DeclaredCommand, example: &Example) -> Result<(), BadWords> {
    let given: Vec<(&str, &str)> =
        example.with.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    command.argv(&example.args, &given).map(drop)
}
