//! The calculator's function library: parses `library.bc`, and adds the definitions that an
//! expression needs to its program.
//!
//! Callers write `sin(x)`, which becomes `cofferdam_sin(x)` for bc. Thus callers may redefine a
//! name without affecting the library. Lists of arguments become arrays by a function that is
//! generated for their length.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::CalcError;
use super::tokens::{Expression, Kind, Token};

/// Prefix of the names of the library in bc.
const PREFIX: &str = "cofferdam_";
/// Prefix of the names of functions that keep the digits of small values.
const RELATIVE: &str = "cofferdam_relative_";
/// Maximum length of a list: bc passes each value as an argument.
const MAX_LIST_VALUES: usize = 1000;

/// Type of a function's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gives {
    Number,
    /// An integer if the arguments are integers.
    Whole,
    /// Text that the function prints itself.
    Text,
}

/// Number of arguments of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// A fixed number; optional ones at the end are 0 if omitted.
    Values { least: usize, most: usize },
    /// Any number.
    List { least: usize },
}

/// A function that callers can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    pub name: &'static str,
    /// The call as documented: `logb(x, b)`.
    pub form: &'static str,
    pub about: &'static str,
    /// Arguments for which it has no value.
    pub domain: Option<&'static str>,
    pub section: &'static str,
    pub gives: Gives,
    pub takes: Arity,
}

/// A definition in `library.bc`.
#[derive(Debug)]
struct Definition {
    name: &'static str,
    /// Text that is passed to bc.
    text: String,
    /// Names of the library's functions that it calls.
    calls: Vec<&'static str>,
    /// Number of its parameters.
    parameters: usize,
    /// Unset for a helper that only the library calls.
    offered: Option<Function>,
}

static LIBRARY: LazyLock<Vec<Definition>> = LazyLock::new(|| read(include_str!("library.bc")));

/// Returns every function that callers can use, in the order of the file.
pub fn functions() -> impl Iterator<Item = &'static Function> {
    LIBRARY.iter().filter_map(|definition| definition.offered.as_ref()).chain([&FROM_BASE])
}

/// Describes all functions for an agent: a line each, under the headings of the file.
pub fn described() -> String {
    let mut text = String::new();
    let mut section = "";
    for function in functions() {
        if function.section != section {
            section = function.section;
            text.push_str(&format!("\n{section}\n"));
        }
        text.push_str(&format!("  {}: {}", function.form, function.about));
        if let Some(domain) = function.domain {
            text.push_str(&format!(" ({domain})"));
        }
        text.push('\n');
    }
    text.trim_start().to_owned()
}

/// The only function that is not evaluated by bc, which cannot parse its digits.
const FROM_BASE: Function = Function {
    name: "from_base",
    form: "from_base(digits, b)",
    about: "the number that the digits write in a base from 2 to 36, as from_base(FF, 16)",
    domain: None,
    section: "Bases",
    gives: Gives::Whole,
    takes: Arity::Values { least: 2, most: 2 },
};

/// Parses the file. Skips invalid definitions; a test checks that there are none.
fn read(file: &'static str) -> Vec<Definition> {
    let names: Vec<&'static str> = file.lines().filter_map(defined).collect();
    let mut definitions = Vec::new();
    let mut section = "";
    let mut described = None;
    let mut domain = None;
    let mut name = None;
    let mut body = String::new();
    let mut lines = file.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(form) = line.strip_prefix("#: ") {
            described = Some(form);
        } else if let Some(needs) = line.strip_prefix("#! ") {
            domain = Some(needs);
        } else if !line.starts_with('#') && !line.is_empty() {
            name = name.or_else(|| defined(line));
            body.push_str(line);
            body.push('\n');
            let ends = lines.peek().is_none_or(|next| next.starts_with('#') || next.is_empty());
            if let (Some(named), true) = (name, ends) {
                let (text, calls) = prefixed(&body, &names);
                let described = described.take();
                let domain = domain.take();
                let offered =
                    described.and_then(|described| function(named, described, domain, section));
                let parameters = parameters(&text);
                definitions.push(Definition { name: named, text, calls, parameters, offered });
                body.clear();
                name = None;
            }
        }
    }
    definitions
}

/// Returns the number of parameters of a definition.
fn parameters(definition: &str) -> usize {
    let between = definition.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    between.map_or(0, |(names, _)| names.split(',').filter(|name| !name.is_empty()).count())
}

/// Returns the name that a line defines.
fn defined(line: &'static str) -> Option<&'static str> {
    let rest = line.strip_prefix("define ")?;
    let rest = rest.strip_prefix("void ").unwrap_or(rest);
    rest.split_once('(').map(|(name, _)| name)
}

/// Parses `name(parameters)  description [kind]`.
fn function(
    name: &'static str,
    described: &'static str,
    domain: Option<&'static str>,
    section: &'static str,
) -> Option<Function> {
    let (form, about) = described.split_once("  ")?;
    let (about, gives) = match about.rsplit_once(" [") {
        Some((about, "whole]")) => (about, Gives::Whole),
        Some((about, "text]")) => (about, Gives::Text),
        Some(_) | None => (about, Gives::Number),
    };
    let inner = form.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')')?;
    let parameters: Vec<&str> = inner.split(", ").filter(|one| !one.is_empty()).collect();
    let most = parameters.len();
    let takes = if parameters.last() == Some(&"...") {
        Arity::List { least: most.saturating_sub(1).max(1) }
    } else {
        let least = parameters.iter().filter(|one| !one.ends_with('?')).count();
        Arity::Values { least, most }
    };
    Some(Function { name, form, about, domain, section, gives, takes })
}

/// Returns a definition with the library's names prefixed for bc, and the names that it calls.
fn prefixed(body: &str, names: &[&'static str]) -> (String, Vec<&'static str>) {
    let expression = Expression::new(body);
    let tokens = expression.tokens();
    let mut edits = Vec::new();
    let mut calls = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let known = names.iter().find(|name| **name == token.text);
        let called = tokens.get(index + 1).is_some_and(|next| next.text == "(");
        if let (Some(name), true) = (known, called) {
            edits.push((token.at, token.at, PREFIX.to_owned()));
            calls.push(*name);
        }
    }
    (edited(body, edits), calls)
}

/// Returns the text with these spans replaced, which are sorted by their beginning.
fn edited(text: &str, edits: Vec<(usize, usize, String)>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (from, to, with) in edits {
        out.push_str(text.get(done..from).unwrap_or_default());
        out.push_str(&with);
        done = to;
    }
    out.push_str(text.get(done..).unwrap_or_default());
    out
}

/// Splits a name in bc into the name of the definition and, for a list, the number of values.
fn known(name: &str) -> Option<(&'static Definition, Option<usize>)> {
    let name = name.strip_prefix(PREFIX)?;
    let find = |name: &str| LIBRARY.iter().find(|definition| definition.name == name);
    if let Some(definition) = find(name) {
        return Some((definition, None));
    }
    let (name, count) = name.rsplit_once('_')?;
    Some((find(name)?, Some(count.parse().ok()?)))
}

/// Returns the function with this name in bc.
pub(super) fn called(name: &str) -> Option<&'static Function> {
    let name = name.replacen(RELATIVE, PREFIX, 1);
    known(&name).and_then(|(definition, _)| definition.offered.as_ref())
}

/// Returns the type of the result of a function of the library, `None` for any other name.
pub(super) fn gives(name: &str) -> Option<Gives> {
    called(name).map(|function| function.gives)
}

/// Returns the name of a variant of a function that keeps the digits of small values. `None` if
/// there is no need for one: powers keep the digits themselves, and integers are never small.
pub(super) fn relative(name: &str) -> Option<String> {
    let function = called(name).filter(|function| function.gives == Gives::Number)?;
    let alone = function.takes == (Arity::Values { least: 0, most: 0 });
    let sees_to_it = alone || ["exp", "pow", "compound", "hypot"].contains(&function.name);
    (!sees_to_it).then(|| name.replacen(PREFIX, RELATIVE, 1))
}

/// Returns the definitions that a bc text needs, including their dependencies.
pub(super) fn prelude(text: &str) -> String {
    let (mut needed, mut lists, mut relatives) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let expression = Expression::new(text);
    for token in expression.tokens().iter().filter(|token| token.kind == Kind::Name) {
        let name = match token.text.strip_prefix(RELATIVE) {
            Some(name) => format!("{PREFIX}{name}"),
            None => token.text.to_owned(),
        };
        let Some((definition, count)) = known(&name) else { continue };
        needed.insert(definition.name);
        lists.extend(count.map(|count| (definition.name, count)));
        if name != token.text {
            needed.extend(["depth", "measure"]);
            relatives.insert(with_digits(&name, count.unwrap_or(definition.parameters)));
        }
    }
    let mut fresh: Vec<&str> = needed.iter().copied().collect();
    while let Some(name) = fresh.pop() {
        let calls = LIBRARY.iter().find(|definition| definition.name == name);
        for call in calls.map(|definition| definition.calls.iter()).into_iter().flatten() {
            if needed.insert(call) {
                fresh.push(call);
            }
        }
    }
    let definitions = LIBRARY.iter().filter(|definition| needed.contains(definition.name));
    let mut prelude: String = definitions.map(|definition| definition.text.as_str()).collect();
    for (name, count) in lists {
        prelude.push_str(&with_list(name, count));
    }
    prelude.extend(relatives);
    prelude
}

/// Defines a function that evaluates another one again if few or no digits are left of its value,
/// with as many places as its arguments have digits.
fn with_digits(name: &str, count: usize) -> String {
    let parameters: Vec<String> = (0..count).map(|index| format!("x{index}")).collect();
    let depth: String = parameters.iter().map(|x| format!("+{PREFIX}depth({x})")).collect();
    let sizes: String = parameters.iter().map(|x| format!("+{PREFIX}measure({x})")).collect();
    let exact: String = parameters.iter().map(|x| format!("&&scale({x})<s")).collect();
    let parameters = parameters.join(",");
    let relative = name.replacen(PREFIX, RELATIVE, 1);
    format!(
        "define {relative}({parameters}){{auto s,r\ns=0{sizes}\nr={name}({parameters})\n\
         if(r>{PREFIX}g||-r>{PREFIX}g)s={PREFIX}measure(r)\n\
         if(r>={PREFIX}t||-r>={PREFIX}t)return(r)\ns=scale\nscale=2*(s{depth})\n\
         r={name}({parameters})\nscale=s\nif(r==0{exact})return(0)\nreturn(r)}}\n"
    )
}

/// Defines a function that takes this number of values and passes them on as an array.
fn with_list(name: &str, count: usize) -> String {
    let parameters: Vec<String> = (0..count).map(|index| format!("x{index}")).collect();
    let assigned: String = (0..count).map(|index| format!("v[{index}]=x{index}\n")).collect();
    let parameters = parameters.join(",");
    format!(
        "define {PREFIX}{name}_{count}({parameters}){{auto v[]\n{assigned}return({PREFIX}{name}(v[],{count}))}}\n"
    )
}

/// Replaces the library's functions and constants in a caller's text by their names in bc.
///
/// # Errors
/// A call with too few or too many arguments, or a reserved name.
pub(super) fn resolved(text: &str) -> Result<String, CalcError> {
    let expression = Expression::new(text);
    let tokens = expression.tokens();
    let defined = Defined::new(tokens);
    let mut edits = Vec::new();
    let mut skip_to = 0;
    for (index, token) in tokens.iter().enumerate() {
        if token.kind != Kind::Name || index < skip_to {
            continue;
        }
        if token.text.starts_with(PREFIX) {
            let reason = format!("names that begin with `{PREFIX}` are taken");
            return Err(CalcError::Invalid(reason));
        }
        let next = tokens.get(index + 1).map(|next| next.text);
        if next != Some("(") {
            if next != Some("[") && !defined.has(token.text) {
                let constant = constant(token.text);
                edits.extend(
                    constant.map(|name| (token.at, token.end(), format!("{PREFIX}{name}()"))),
                );
            }
            continue;
        }
        if defined.defines(token.text) {
            continue;
        }
        let arguments = Arguments::after(tokens, index + 1);
        if token.text == FROM_BASE.name {
            let value =
                super::bases::literal(tokens.get(index + 2..arguments.close).unwrap_or_default())?;
            let end = tokens.get(arguments.close).map_or(text.len(), Token::end);
            edits.push((token.at, end, value));
            skip_to = arguments.close;
            continue;
        }
        if let Some(function) = functions().find(|function| function.name == token.text) {
            let (name, missing) = call(function, &arguments)?;
            edits.push((token.at, token.end(), name));
            let close = tokens.get(arguments.close).map_or(text.len(), |close| close.at);
            edits.extend((missing > 0).then(|| (close, close, ",0".repeat(missing))));
        } else if token.text == "log" {
            let reason = "`log` may mean several: write ln(x), log10(x), log2(x) or logb(x, b)";
            return Err(CalcError::Invalid(reason.to_owned()));
        }
    }
    edits.sort_by_key(|(from, to, _)| (*from, *to));
    Ok(edited(text, edits))
}

/// Constants, which are written without brackets.
pub(super) const CONSTANTS: [&str; 4] = ["pi", "e", "tau", "phi"];

pub(super) fn is_constant(name: &str) -> bool {
    CONSTANTS.contains(&name)
}

/// Returns the function of a constant.
fn constant(name: &str) -> Option<&'static str> {
    match name {
        "pi" => Some("pi"),
        "e" => Some("e_"),
        "tau" => Some("tau"),
        "phi" => Some("phi"),
        _ => None,
    }
}

/// Returns the name under which bc calls a function with this number of arguments, and the number
/// of omitted ones.
fn call(function: &Function, arguments: &Arguments) -> Result<(String, usize), CalcError> {
    let given = arguments.count;
    let name = function.name;
    let wrong = |takes: String| {
        let form = function.form;
        Err(CalcError::Invalid(format!("`{form}` takes {takes}, not {given}")))
    };
    match function.takes {
        Arity::List { least } if given < least => wrong(format!("{least} values or more")),
        Arity::List { .. } if given > MAX_LIST_VALUES => {
            wrong(format!("at most {MAX_LIST_VALUES} values"))
        }
        Arity::List { .. } => Ok((format!("{PREFIX}{name}_{given}"), 0)),
        Arity::Values { least, most } if given < least || given > most => {
            let count =
                if least == most { format!("{most}") } else { format!("{least} or {most}") };
            wrong(if count == "1" { "1 value".to_owned() } else { format!("{count} values") })
        }
        Arity::Values { most, .. } => Ok((format!("{PREFIX}{name}"), most - given)),
    }
}

/// The arguments of a call.
pub(super) struct Arguments {
    count: usize,
    /// Index of the closing bracket.
    pub(super) close: usize,
}

impl Arguments {
    pub(super) fn after(tokens: &[Token<'_>], open: usize) -> Self {
        let mut depth = 0_usize;
        let mut commas = 0;
        for (index, token) in tokens.iter().enumerate().skip(open) {
            match token.text {
                "(" | "[" => depth += 1,
                // Without an opening bracket there are no arguments.
                ")" | "]" if depth <= 1 => {
                    let count = if index == open + 1 { 0 } else { commas + 1 };
                    return Self { count, close: index };
                }
                ")" | "]" => depth -= 1,
                "," if depth == 1 => commas += 1,
                _ => {}
            }
        }
        Self { count: commas + 1, close: tokens.len() }
    }
}

/// Returns the functions that a text defines.
pub(super) fn defined_in<'text>(tokens: &[Token<'text>]) -> BTreeSet<&'text str> {
    Defined::new(tokens).functions
}

/// Names that a text defines or assigns.
pub(super) struct Defined<'text> {
    functions: BTreeSet<&'text str>,
    variables: BTreeSet<&'text str>,
}

impl<'text> Defined<'text> {
    pub(super) fn new(tokens: &[Token<'text>]) -> Self {
        let mut functions = BTreeSet::new();
        let mut variables = BTreeSet::new();
        let text = |index: usize| tokens.get(index).map(|token| token.text);
        for (index, token) in tokens.iter().enumerate() {
            let assigns = ["=", "+=", "-=", "*=", "/=", "%=", "^=", "++", "--"];
            let counted = index.checked_sub(1).and_then(text);
            if text(index + 1).is_some_and(|next| assigns.contains(&next))
                || counted.is_some_and(|before| matches!(before, "++" | "--"))
            {
                variables.insert(token.text);
            }
            if token.kind == Kind::Name && text(index + 1) == Some("[") {
                let close = Arguments::after(tokens, index + 1).close;
                let next = text(close + 1).is_some_and(|next| assigns.contains(&next));
                if next || counted.is_some_and(|before| matches!(before, "++" | "--")) {
                    variables.insert(token.text);
                }
            }
            let from = index + 1;
            if token.text == "define" {
                let name = from + usize::from(text(from) == Some("void"));
                functions.extend(text(name));
                let rest = tokens.iter().skip(name + 1).take_while(|token| token.text != ")");
                variables.extend(rest.map(|token| token.text));
            }
            if token.text == "auto" {
                let rest = tokens.iter().skip(from).take_while(|token| token.kind != Kind::Break);
                variables.extend(rest.map(|token| token.text));
            }
        }
        Self { functions, variables }
    }

    /// Returns the variables and arrays.
    pub(super) fn variables(&self) -> impl Iterator<Item = &'text str> {
        self.variables.iter().copied()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    pub(super) fn defines(&self, name: &str) -> bool {
        self.functions.contains(name)
    }
}
