//! Runs bc programs by what is given for that, and reads what they print.

use std::fmt;
use std::time::Duration;

use super::decimal::Decimal;
use super::library;
use super::rewrite::{Arithmetic, Expression, Shape};
use super::{CalcError, SPARE};

/// What bc left behind when it ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BcRun {
    pub stdout: String,
    pub stderr: String,
    /// Wall time it ran; waiting for a turn is not in it.
    pub took: Duration,
}

/// Something that runs bc: `bc -l` with `program` on its stdin and numbers on one line.
pub trait Evaluate: Sync {
    /// Runs one program for at most `wall`.
    fn bc(
        &self,
        tool: &'static str,
        program: String,
        wall: Duration,
    ) -> impl Future<Output = Result<BcRun, CalcError>> + Send;
}

/// One complaint of bc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) what: String,
    /// Line of the caller's text, where bc tells one; it may be the one after.
    line: Option<usize>,
    pub(super) syntax: bool,
    /// As [`Value::wants`], where a zero in doubt may be why.
    pub(super) wants: Option<u32>,
}

impl Fault {
    /// Errors and warnings in what bc wrote to stderr; `skipped` lines of the
    /// program came before the caller's text.
    pub(super) fn all(stderr: &str, skipped: usize) -> (Vec<Self>, Vec<Self>) {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for complaint in stderr.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some((place, what)) = complaint.split_once("): ")
                && complaint.starts_with("Runtime ")
            {
                let what = outside(place, what).unwrap_or_else(|| what.to_owned());
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

/// What is told where a function of the library divides by zero, because it has no value there.
fn outside(place: &str, what: &str) -> Option<String> {
    let (_, place) = place.split_once("func=")?;
    let (name, _) = place.split_once(',')?;
    let function = library::called(name).filter(|_| what == "Divide by zero")?;
    function.domain.map(|domain| match function.name {
        // Also what bc's own l(x) comes to.
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

/// Whether the digits at hand decide a value: those that were cut off may, where a function jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sure {
    Yes,
    No,
}

/// A number that was printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) number: Decimal,
    pub(super) sure: Sure,
    /// The scale at which a zero that counted on the way is one beyond doubt, and that leaves enough
    /// digits of the largest and the smallest value on the way.
    pub(super) wants: Option<u32>,
}

/// The value at one working scale: nothing printed, a number, or an error that a higher scale may not have.
pub(super) type Reading = Result<Option<Value>, Fault>;

/// Evaluates one expression at several scales, within the time of one calculation.
pub(super) struct Readings<'run, E> {
    bc: &'run E,
    tool: &'static str,
    /// The functions that the text needs.
    prelude: String,
    text: Text,
    shape: Shape,
    /// Time of all evaluations.
    time: Duration,
    left: Duration,
}

/// An expression as bc is given it.
#[derive(Debug, Clone)]
pub(super) struct Text {
    text: String,
    arithmetic: Arithmetic,
    decimals: usize,
    /// Digits that a result needs besides those of the sizes of values on the way.
    digits: u32,
}

impl Text {
    pub(super) fn of(expression: &Expression<'_>, precision: u32) -> Self {
        let (arithmetic, decimals) = (expression.arithmetic(), expression.decimals());
        let digits = precision.saturating_add(SPARE);
        Self { text: expression.rewritten(arithmetic), arithmetic, decimals, digits }
    }

    /// The program that evaluates it at a scale, and may ask for a higher one.
    pub(super) fn at(&self, scale: u32) -> String {
        self.asking(scale, self.digits)
    }

    /// As [`Text::at`]; with 0 `digits` the sizes of values ask for no higher scale.
    fn asking(&self, scale: u32, digits: u32) -> String {
        let Self { text, decimals, .. } = self;
        match self.arithmetic {
            Arithmetic::Fixed => format!("scale={scale}\n{text}\n"),
            Arithmetic::Floating => {
                format!("cofferdam_begin({scale},{decimals},{digits})\n{text}\n")
            }
        }
    }

    /// At two scales, with a mark between what they print that no expression can print.
    pub(super) fn at_both(&self, low: u32, high: u32) -> String {
        format!("{}print \"@\"\n{}", self.asking(low, 0), self.at(high))
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
        let (text, shape) = (Text::of(expression, precision), expression.shape());
        Self { bc, tool, prelude: library::prelude(&text.text), text, shape, time: left, left }
    }

    /// The last line printed at `scale`; a number in its normal form, in whatever base.
    pub(super) async fn printed(&mut self, scale: u32) -> Result<String, CalcError> {
        // One evaluation as it is: there is no second one for doubts.
        let program = format!("{}cofferdam_raw=1\n{}", self.prelude, self.text.at(scale));
        let run = self.run(program).await?;
        let (errors, warnings) = self.faults(&run.stderr);
        if let Some(fault) = errors.into_iter().chain(warnings).next() {
            return Err(fault.into());
        }
        let line = last_line(&run.stdout);
        Ok(Decimal::parse(line).map_or_else(|| line.to_owned(), |number| number.to_string()))
    }

    pub(super) async fn one(&mut self, scale: u32) -> Result<Reading, CalcError> {
        let program = format!("{}{}", self.prelude, self.text.at(scale));
        let run = self.run(program).await?;
        let (errors, warnings) = self.faults(&run.stderr);
        self.reading(&run.stdout, errors.into_iter().chain(warnings).next())
    }

    /// Two scales, in one process where evaluations cannot see each other.
    pub(super) async fn pair(&mut self, low: u32, high: u32) -> Result<[Reading; 2], CalcError> {
        if self.shape != Shape::Pure {
            return Ok([self.one(low).await?, self.one(high).await?]);
        }
        let program = format!("{}{}", self.prelude, self.text.at_both(low, high));
        let run = self.run(program).await?;
        let (errors, warnings) = self.faults(&run.stderr);
        let mut faults = errors.into_iter().chain(warnings);
        let (Some(first), second) = (faults.next(), faults.next()) else {
            let Some((low, high)) = run.stdout.split_once('@') else {
                return Err(CalcError::Internal("bc ended early".to_owned()));
            };
            return Ok([self.reading(low, None)?, self.reading(high, None)?]);
        };
        // bc does not say at which scale: of two complaints one is of each, a
        // single one is of the scale that printed nothing.
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
            // What was left is used up: told as the time of the whole calculation.
            Err(CalcError::Timeout(wall)) if *wall >= self.left => {
                return Err(CalcError::Timeout(self.time));
            }
            Err(_) => {}
        }
        run
    }

    fn faults(&self, stderr: &str) -> (Vec<Fault>, Vec<Fault>) {
        let (mut errors, warnings) = Fault::all(stderr, 0);
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
    // The library marks a doubtful value by `~`, and asks for a scale by a number between two `?`.
    printed.split('?').step_by(2).collect::<String>().replace('~', "")
}

/// The last number in what was printed, with the doubts of all of it.
pub(super) fn value(printed: &str) -> Option<Value> {
    let number = Decimal::parse(last_line(&without_marks(printed)))?;
    let sure = if printed.contains('~') { Sure::No } else { Sure::Yes };
    Some(Value { number, sure, wants: wants(printed) })
}

/// As [`Value::wants`].
fn wants(printed: &str) -> Option<u32> {
    printed.split('?').skip(1).step_by(2).filter_map(|scale| scale.parse().ok()).max()
}

pub(super) fn last_line(printed: &str) -> &str {
    printed.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default()
}

/// A count of places as a length; scales are far below any width of `usize`.
pub(super) fn length(places: u32) -> usize {
    usize::try_from(places).unwrap_or(usize::MAX)
}
