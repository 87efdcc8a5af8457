//! Builds bc programs, has the caller run them, and parses their output.

use std::fmt;
use std::time::Duration;

use super::decimal::Decimal;
use super::library;
use super::rewrite::{Arithmetic, Shape};
use super::tokens::Expression;
use super::{CalcError, SPARE_PLACES};

/// Output of a bc that ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BcRun {
    pub stdout: String,
    pub stderr: String,
    /// Wall time of the run, without the time in a queue.
    pub took: Duration,
}

/// Runs `bc -l` with `program` on its stdin, set up to print each number on one line.
pub trait Evaluate: Sync {
    /// Runs one program for at most `wall`.
    fn bc(
        &self,
        tool: &'static str,
        program: String,
        wall: Duration,
    ) -> impl Future<Output = Result<BcRun, CalcError>> + Send;
}

/// An error or a warning of bc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) what: String,
    /// Line of the caller's text, if bc reports one; the fault may be in the line before.
    line: Option<usize>,
    pub(super) syntax: bool,
    /// See [`Value::wants`]: a doubtful zero may be the cause of the fault.
    pub(super) wants: Option<u32>,
}

impl Fault {
    /// Parses errors and warnings in the stderr of bc; `skipped` lines of the
    /// program came before the caller's text.
    pub(super) fn parse_all(stderr: &str, skipped: usize) -> (Vec<Self>, Vec<Self>) {
        let mut errors = Vec::new();
        let mut warnings = Vec::new();
        for complaint in stderr.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some((place, what)) = complaint.split_once("): ")
                && complaint.starts_with("Runtime ")
            {
                let what = domain_error(place, what).unwrap_or_else(|| what.to_owned());
                let fault = Self { what, line: None, syntax: false, wants: None };
                let warns = complaint.starts_with("Runtime warning");
                if warns {
                    warnings.push(fault)
                } else {
                    errors.push(fault)
                }
                continue;
            }
            let located = complaint.strip_prefix("(standard_in) ").and_then(|c| c.split_once(": "));
            let (line, what) = located.map_or((None, complaint), |(line, what)| {
                (line.parse::<usize>().ok().map(|line| line.saturating_sub(skipped).max(1)), what)
            });
            errors.push(Self { what: what.to_owned(), line, syntax: true, wants: None });
        }
        (errors, warnings)
    }
}

/// Describes the division by zero with which a function of the library reports an argument outside
/// its domain.
fn domain_error(place: &str, what: &str) -> Option<String> {
    let (_, place) = place.split_once("func=")?;
    let (name, _) = place.split_once(',')?;
    let function = library::called(name).filter(|_| what == "Divide by zero")?;
    function.domain.map(|domain| match function.name {
        // Applies to bc's l(x) as well.
        "ln" => domain.to_owned(),
        _ => format!("{}: {domain}", function.form),
    })
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} (near line {line})", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl From<Fault> for CalcError {
    fn from(fault: Fault) -> Self {
        Self::Bc(fault.to_string())
    }
}

/// States if the digits of a value are certain. They are not if truncated digits may decide on
/// which side of a jump a function is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sure {
    Yes,
    No,
}

/// A printed number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) number: Decimal,
    pub(super) sure: Sure,
    /// The scale that the program requests: one at which intermediate zeros are certain, and the
    /// largest and the smallest intermediate value keep enough digits.
    pub(super) wants: Option<u32>,
}

/// The outcome at one working scale: nothing printed, a number, or an error that may not occur at a
/// higher scale.
pub(super) type Reading = Result<Option<Value>, Fault>;

/// Evaluates one expression at several scales, within the time of one calculation.
pub(super) struct Readings<'run, E> {
    bc: &'run E,
    tool: &'static str,
    /// Definitions of the functions that the text uses.
    prelude: String,
    text: Text,
    shape: Shape,
    /// Maximum time of all evaluations together.
    time: Duration,
    /// Time that remains of it.
    left: Duration,
}

/// An expression in the form that is passed to bc.
#[derive(Debug, Clone)]
pub(super) struct Text {
    text: String,
    arithmetic: Arithmetic,
    decimals: usize,
    /// Digits that a result needs in addition to those for the size of intermediate values.
    digits: u32,
}

impl Text {
    pub(super) fn new(expression: &Expression<'_>, precision: u32) -> Self {
        let arithmetic = expression.arithmetic();
        let decimals = expression.decimals();
        let digits = precision.saturating_add(SPARE_PLACES);
        Self { text: expression.rewritten(arithmetic), arithmetic, decimals, digits }
    }

    /// Returns the program that evaluates the text at a scale, and may request a higher one.
    pub(super) fn program_at(&self, scale: u32) -> String {
        self.program_with_digits(scale, self.digits)
    }

    /// Returns the same as [`Text::program_at`]; with 0 `digits`, the size of values requests no higher scale.
    fn program_with_digits(&self, scale: u32, digits: u32) -> String {
        let Self { text, decimals, .. } = self;
        match self.arithmetic {
            Arithmetic::Fixed | Arithmetic::Own => format!("scale={scale}\n{text}\n"),
            Arithmetic::Floating => {
                format!("cofferdam_begin({scale},{decimals},{digits})\n{text}\n")
            }
        }
    }

    /// Returns the program for two scales. It prints a mark between them that no expression can
    /// print.
    pub(super) fn program_at_both(&self, low: u32, high: u32) -> String {
        format!("{}print \"@\"\n{}", self.program_with_digits(low, 0), self.program_at(high))
    }
}

impl<'run, E: Evaluate> Readings<'run, E> {
    pub(super) fn new(
        bc: &'run E,
        tool: &'static str,
        expression: &Expression<'_>,
        precision: u32,
        left: Duration,
    ) -> Self {
        let text = Text::new(expression, precision);
        let shape = expression.shape();
        let prelude = library::prelude(&text.program_at(0));
        Self { bc, tool, prelude, text, shape, time: left, left }
    }

    /// Returns the last line printed at `scale`, in normal form if it is a decimal number.
    pub(super) async fn printed(&mut self, scale: u32) -> Result<String, CalcError> {
        // Doubts are not marked, as there is no second evaluation to resolve them.
        let program = format!("{}cofferdam_raw=1\n{}", self.prelude, self.text.program_at(scale));
        let run = self.run(program).await?;
        let (errors, warnings) = self.faults(&run.stderr);
        if let Some(fault) = errors.into_iter().chain(warnings).next() {
            return Err(fault.into());
        }
        let line = last_line(&run.stdout);
        Ok(Decimal::parse(line).map_or_else(|| line.to_owned(), |number| number.to_string()))
    }

    pub(super) async fn reading_at(&mut self, scale: u32) -> Result<Reading, CalcError> {
        let program = format!("{}{}", self.prelude, self.text.program_at(scale));
        let run = self.run(program).await?;
        let (errors, warnings) = self.faults(&run.stderr);
        self.reading(&run.stdout, errors.into_iter().chain(warnings).next())
    }

    /// Evaluates at two scales, in one process if the evaluations cannot affect each other.
    pub(super) async fn pair(&mut self, low: u32, high: u32) -> Result<[Reading; 2], CalcError> {
        if self.shape != Shape::Pure {
            return Ok([self.reading_at(low).await?, self.reading_at(high).await?]);
        }
        let program = format!("{}{}", self.prelude, self.text.program_at_both(low, high));
        let run = self.run(program).await?;
        let (errors, warnings) = self.faults(&run.stderr);
        let mut faults = errors.into_iter().chain(warnings);
        let (Some(first), second) = (faults.next(), faults.next()) else {
            let Some((low, high)) = run.stdout.split_once('@') else {
                return Err(CalcError::Internal("bc ended early".to_owned()));
            };
            return Ok([self.reading(low, None)?, self.reading(high, None)?]);
        };
        // bc does not report the scale of a fault: two faults are one of each scale, a single one
        // is of the scale that printed nothing.
        let (low, high) = run.stdout.split_once('@').unwrap_or_default();
        let high = match second {
            None if !last_line(&without_marks(high)).is_empty() => self.reading(high, None)?,
            None | Some(_) => self.reading(high, Some(first.clone()))?,
        };
        Ok([self.reading(low, Some(first))?, high])
    }

    async fn run(&mut self, program: String) -> Result<BcRun, CalcError> {
        if self.left.is_zero() {
            return Err(CalcError::Timeout(self.time));
        }
        let run = self.bc.bc(self.tool, program, self.left).await;
        match &run {
            Ok(run) => self.left = self.left.saturating_sub(run.took),
            // All remaining time was used: report the time of the whole calculation.
            Err(CalcError::Timeout(wall)) if *wall >= self.left => {
                return Err(CalcError::Timeout(self.time));
            }
            Err(_) => {}
        }
        run
    }

    fn faults(&self, stderr: &str) -> (Vec<Fault>, Vec<Fault>) {
        let (mut errors, warnings) = Fault::parse_all(stderr, 0);
        // Lines of the rewritten program mean nothing to the caller.
        errors.iter_mut().for_each(|error| error.line = None);
        (errors, warnings)
    }

    fn reading(&self, printed: &str, fault: Option<Fault>) -> Result<Reading, CalcError> {
        match fault {
            Some(fault) if fault.syntax => return Err(fault.into()),
            Some(fault) => return Ok(Err(Fault { wants: wants(printed), ..fault })),
            None => {}
        }
        let text = || CalcError::Bc("the last line printed is not a number".to_owned());
        if last_line(&without_marks(printed)).is_empty() {
            return Ok(Ok(None));
        }
        value(printed).map(|value| Ok(Some(value))).ok_or_else(text)
    }
}

fn without_marks(printed: &str) -> String {
    // The library marks a doubtful value by `~`, and requests a scale by a number between two `?`.
    printed.split('?').step_by(2).collect::<String>().replace('~', "")
}

/// Returns the last printed number, with the doubts that were marked anywhere in the output.
pub(super) fn value(printed: &str) -> Option<Value> {
    let number = Decimal::parse(last_line(&without_marks(printed)))?;
    let sure = if printed.contains('~') { Sure::No } else { Sure::Yes };
    Some(Value { number, sure, wants: wants(printed) })
}

/// Returns the highest scale that the output requests, see [`Value::wants`].
fn wants(printed: &str) -> Option<u32> {
    printed.split('?').skip(1).step_by(2).filter_map(|scale| scale.parse().ok()).max()
}

pub(super) fn last_line(printed: &str) -> &str {
    printed.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default()
}

/// Converts a number of places to a length; scales fit into every width of `usize`.
pub(super) fn length(places: u32) -> usize {
    usize::try_from(places).unwrap_or(usize::MAX)
}
