//! Compiles filters and runs them.

use std::io::{self, Write};
use std::ops::ControlFlow;

use jaq_core::data::HasLut;
use jaq_core::load::{Arena, File, Loader, lex, parse};
use jaq_core::native::{Fun, bome, run, v};
use jaq_core::{Compiler, Ctx, DataT, Error as Failure, Exn, Filter, Lut, Vars};
use jaq_json::{Num, Val};
use jaq_std::input::{self, HasInputs, RcIter};

use crate::input::{Inputs, parse_one};
use crate::paths;
use crate::print::{compact, plain};
use crate::rewrite;

/// Definitions of the filters that the interpreter lacks.
const COMPAT: &str = include_str!("compat.jq");

/// Name under which the filter is added to the definitions.
const NAME: &str = "the_program";

/// A compiled filter.
pub(crate) struct Program(Filter<Kind>);

/// How a run ended.
pub(crate) enum Ended {
    Done,
    /// The filter failed; the error is printed.
    Failed,
    /// Input could not be read; the error is printed.
    BadInput,
    /// The filter called `halt` with this exit code.
    Halted(u8),
    /// Output could not be written.
    Unwritten(io::Error),
}

/// Type parameters for the interpreter.
struct Kind;

/// Data that filters can access in addition to their input.
struct Shared<'a> {
    lut: &'a Lut<Kind>,
    inputs: input::Inputs<'a, Val>,
}

impl DataT for Kind {
    type V<'a> = Val;
    type Data<'a> = &'a Shared<'a>;
}

impl<'a> HasLut<'a, Kind> for &'a Shared<'a> {
    fn lut(&self) -> &'a Lut<Kind> {
        self.lut
    }
}

impl<'a> HasInputs<'a, Val> for &'a Shared<'a> {
    fn inputs(&self) -> input::Inputs<'a, Val> {
        self.inputs
    }
}

impl Program {
    /// Compiles a filter with these global variables.
    ///
    /// # Errors
    /// Descriptions of the errors in the filter.
    pub(crate) fn compile(filter: &str, variables: &[(String, Val)]) -> Result<Self, Vec<String>> {
        let compat = jaq_core::load::parse(COMPAT, |parser| parser.defs()).unwrap_or_default();
        let body = rewrite::filter(parse_filter(filter)?);
        let program = parse::Def { name: NAME, args: Vec::new(), body };
        let defs = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
        let defs = defs.chain(compat).map(shorten_lifetime).chain([program]);
        let arena = Arena::default();
        let modules = Loader::new(defs)
            .load(&arena, File { path: (), code: NAME })
            .map_err(|_| vec!["the filter cannot be loaded".to_owned()])?;
        let names = variables.iter().map(|(name, _)| name.as_str());
        let compiled =
            Compiler::default().with_funs(funs()).with_global_vars(names).compile(modules);
        let filter = compiled.map_err(|errors| {
            let all = errors.into_iter().flat_map(|(_, errors)| errors);
            all.map(|(name, kind)| format!("{name} is not defined ({})", kind.as_str()))
                .collect::<Vec<_>>()
        })?;
        Ok(Self(filter))
    }

    /// Runs the filter on each input. Prints the error of an input for which the filter fails, and
    /// continues with the next one.
    pub(crate) fn run(
        &self,
        variables: Vec<Val>,
        inputs: Inputs,
        mut print: impl FnMut(Val) -> io::Result<()>,
    ) -> Ended {
        let Inputs { reading, values } = inputs;
        let remaining: RcIter<Box<dyn Iterator<Item = Result<Val, String>>>> = RcIter::new(values);
        let shared = Shared { lut: &self.0.lut, inputs: &remaining };
        let context = Ctx::<Kind>::new(&shared, Vars::new(variables));
        let mut has_failed = false;
        let null = reading.is_null.then_some(Ok(Val::Null));
        let mut next = null.into_iter().chain((&remaining).take_while(|_| !reading.is_null));
        loop {
            let value = match next.next() {
                None => break,
                Some(Ok(value)) => value,
                Some(Err(error)) => {
                    eprintln!("jq: error (at <stdin>): {error}");
                    return Ended::BadInput;
                }
            };
            let mut outputs = self.0.id.run((context.clone(), value));
            let ended = outputs.try_for_each(|output| match output {
                Ok(value) => print(value)
                    .map_err(Ended::Unwritten)
                    .map_or_else(ControlFlow::Break, ControlFlow::Continue),
                Err(end) => ControlFlow::Break(report_exception(end)),
            });
            match ended {
                // The last input decides the exit code, as in jq(1).
                ControlFlow::Continue(()) => has_failed = false,
                ControlFlow::Break(Ended::Failed) => has_failed = true,
                ControlFlow::Break(ended) => return ended,
            }
        }
        if has_failed { Ended::Failed } else { Ended::Done }
    }
}

/// Prints the error of a filter, or returns the exit code with which it halted.
fn report_exception(end: Exn<'_, Val>) -> Ended {
    let failure = match end.get_err() {
        Ok(failure) => failure,
        Err(end) => {
            return Ended::Halted(
                end.get_halt().map_or(5, |code| u8::try_from(code & 255).unwrap_or(5)),
            );
        }
    };
    match failure.into_val() {
        Val::TStr(text) => eprintln!("jq: error (at <stdin>): {}", String::from_utf8_lossy(&text)),
        value => {
            eprintln!("jq: error (at <stdin>) (not a string): {}", compact(&value));
        }
    }
    Ended::Failed
}

/// Returns the filters that are implemented in Rust.
fn funs() -> impl Iterator<Item = Fun<Kind>> {
    let additional: [Fun<Kind>; 7] = [
        run(("set_path", v(2), |mut cv| {
            // Variables are popped from the last to the first.
            let new = cv.0.pop_var();
            let path = cv.0.pop_var();
            let set = match &path {
                Val::Arr(path) => paths::set(cv.1, path, new),
                _ => Err("Path must be specified as an array".to_owned()),
            };
            bome(set.map_err(Failure::str))
        })),
        run(("delete_paths", v(1), |mut cv| {
            let deleted = cv.0.pop_var();
            bome(paths::delete_all(cv.1, &deleted).map_err(Failure::str))
        })),
        run(("divided", v(2), |mut cv| {
            let right = cv.0.pop_var();
            let left = cv.0.pop_var();
            bome((left / right).map(float_to_integer))
        })),
        run(("text_of", v(0), |cv| bome(Ok(Val::utf8_str(plain(&cv.1)))))),
        run(("json_of", v(0), |cv| bome(Ok(Val::utf8_str(compact(&cv.1)))))),
        run(("value_of", v(0), |cv| bome(parse_value(&cv.1)))),
        run(("halt_text", v(1), |mut cv| {
            let code = cv.0.pop_var();
            let written = match &cv.1 {
                Val::TStr(text) => io::stderr().write_all(text),
                value => io::stderr().write_all(format!("{}\n", compact(value)).as_bytes()),
            };
            bome(written.map(|()| code).map_err(Failure::str))
        })),
    ];
    let to_fun = run::<Kind>;
    let inputs = input::funs::<Kind>().into_vec().into_iter().map(to_fun);
    jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs()).chain(inputs).chain(additional)
}

/// Converts a float without a fraction to an integer, which can be an index.
fn float_to_integer(value: Val) -> Val {
    let text = match &value {
        Val::Num(Num::Float(float)) if float.fract() == 0.0 && float.abs() < 1e15 => {
            format!("{float}")
        }
        _ => return value,
    };
    text.parse().map_or(value, |number| Val::Num(Num::Int(number)))
}

/// Parses a string as one JSON document.
fn parse_value(value: &Val) -> Result<Val, Failure<Val>> {
    let text = match value {
        Val::TStr(text) => String::from_utf8_lossy(text),
        value => {
            return Err(Failure::str(format!("{} only strings can be parsed", compact(value))));
        }
    };
    parse_one(&text).map_err(|error| Failure::str(format!("{error} (while parsing '{text}')")))
}

/// Shortens the lifetime of a definition to that of the filter.
fn shorten_lifetime<'s>(def: parse::Def<&'static str>) -> parse::Def<&'s str> {
    def
}

/// Parses a filter; an empty one returns its input.
fn parse_filter(filter: &str) -> Result<parse::Term<&str>, Vec<String>> {
    if filter.trim().is_empty() {
        return Ok(parse::Term::Id);
    }
    let all = |errors: Vec<(&str, &str)>| {
        errors.into_iter().map(|(expected, found)| syntax_error(expected, found)).collect()
    };
    let tokens = lex::Lexer::new(filter).lex().map_err(|errors| {
        all(errors.into_iter().map(|(expected, found)| (expected.as_str(), found)).collect())
    })?;
    parse::Parser::new(&tokens).parse(|parser| parser.term()).map_err(|errors| {
        let found = |found| lex::Token::opt_as_str(found, filter);
        all(errors.into_iter().map(|(expected, it)| (expected.as_str(), found(it))).collect())
    })
}

fn syntax_error(expected: &str, found: &str) -> String {
    let found: String = found.chars().take(20).collect();
    let found = if found.is_empty() { "the end".to_owned() } else { format!("`{found}`") };
    format!("syntax error: expected {expected}, found {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_filters_of_compat_are_valid() {
        let defs = jaq_core::load::parse(COMPAT, |parser| parser.defs()).expect("definitions");
        assert!(defs.len() > 30, "{}", defs.len());
        assert!(Program::compile("update_paths(.a; 1) | assign_paths(.b; 2)", &[]).is_ok());
    }

    #[test]
    fn errors_say_what_was_found() {
        let errors_of = |filter| Program::compile(filter, &[]).err().unwrap_or_default();
        assert_eq!(errors_of(".a | nosuch"), ["nosuch is not defined (filter)"]);
        assert_eq!(errors_of("$x"), ["$x is not defined (variable)"]);
        assert!(
            errors_of(".[0")
                .first()
                .is_some_and(|error| error.starts_with("syntax error: expected closing bracket"))
        );
    }
}
