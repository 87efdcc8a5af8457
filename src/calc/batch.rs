//! Evaluates many expressions in one call. Those that cannot affect each other share one bc, and so
//! one cell.
//!
//! If a shared run fails because of an error or its time, the group is halved and evaluated again.
//! An expression without a result after that, or without enough digits, is evaluated alone as by
//! `calculate`.

use std::time::{Duration, Instant};

use super::evaluate::{self, Evaluate, Text, value};
use super::rewrite::Shape;
use super::tokens::Expression;
use super::{CalcError, Pair, Second, evaluate as evaluate_one, first_scale, library, spelling};
use model::defaults::CALCULATOR_TIMEOUT;

/// Maximum number of expressions in one call.
pub const MAX_EXPRESSIONS: usize = 100;

/// Default time limit of each expression.
pub const ENTRY_TIME: Duration = Duration::from_secs(5);
/// Time limit of a shared run; short, so that an expression that does not end is soon isolated.
const SHARED_TIME: Duration = Duration::from_millis(1500);
/// Time after which each remaining expression gets only [`SHARED_TIME`].
const WHOLE_TIME: Duration = Duration::from_secs(60);

const TOOL: &str = "calculate_batch";

/// A value, with `Some(false)` if digits may be wrong, or the error.
pub type BatchEntry = Result<(String, Option<bool>), CalcError>;

/// An expression that may share its bc with others.
struct Shared {
    /// Position in the call.
    index: usize,
    text: Text,
    /// The two scales of the evaluation; unset for integers.
    scales: Option<(u32, u32)>,
    second: Second,
}

impl Shared {
    fn new(index: usize, text: &str, precision: u32) -> Option<Self> {
        let text = spelling::to_bc(text).ok()?;
        let expression = Expression::new(&text);
        if expression.has_modulo_assignment() {
            return None;
        }
        let low = first_scale(precision);
        let second = Second::for_expression(&expression);
        let scales = match expression.shape() {
            Shape::Integer => None,
            Shape::Pure => Some((low, second.scale(low))),
            Shape::Stateful | Shape::Raw => return None,
        };
        Some(Self { index, text: Text::new(&expression, precision), scales, second })
    }

    /// Returns the part of the program that evaluates the expression. It prints as many marks as
    /// [`Shared::read`] consumes.
    fn program(&self) -> String {
        let evaluation = match self.scales {
            None => self.text.program_at(0),
            Some((low, high)) => self.text.program_at_both(low, high),
        };
        format!("{evaluation}print \"@\"\n")
    }

    /// Returns the result if the output proves it.
    fn read<'a>(
        &self,
        printed: &mut impl Iterator<Item = &'a str>,
        precision: u32,
    ) -> Option<String> {
        let mut next = || printed.next().and_then(value);
        let Some((low, high)) = self.scales else {
            return next().map(|value| value.number.to_string());
        };
        let coarse = Ok(next());
        let fine = Ok(next());
        Pair { low, coarse, high, fine, second: self.second }.settled(evaluate::length(precision))
    }
}

/// Implements the tool `calculate_batch`: returns the result or error of each expression, in order.
///
/// # Errors
/// Refused, cancelled, or bc cannot be run.
pub async fn calculate_batch(
    bc: &impl Evaluate,
    expressions: &[String],
    precision: u32,
    time: Option<Duration>,
) -> Result<Vec<BatchEntry>, CalcError> {
    let time = time.unwrap_or(ENTRY_TIME).min(CALCULATOR_TIMEOUT);
    let end = Instant::now() + WHOLE_TIME.max(2 * time);
    let mut entries: Vec<Option<BatchEntry>> = expressions.iter().map(|_| None).collect();
    let numbered = expressions.iter().enumerate();
    let shared = numbered.filter_map(|(index, text)| Shared::new(index, text, precision)).collect();
    // A stack, so that the halves of a group are evaluated next, the first half first.
    let mut groups: Vec<Vec<Shared>> = vec![shared];
    while let Some(mut group) = groups.pop() {
        if group.len() < 2 {
            continue;
        }
        match run_shared(bc, &group, precision, time.min(SHARED_TIME)).await? {
            Some(results) => {
                for (index, result) in results {
                    if let Some(entry) = entries.get_mut(index) {
                        *entry = Some(Ok((result, None)));
                    }
                }
            }
            None => {
                let second = group.split_off(group.len() / 2);
                groups.extend([second, group]);
            }
        }
    }
    let mut done = Vec::with_capacity(entries.len());
    for (entry, text) in entries.into_iter().zip(expressions) {
        done.push(match entry {
            Some(entry) => entry,
            None => run_alone(bc, text, precision, time.min(left(end).max(SHARED_TIME))).await?,
        });
    }
    Ok(done)
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Evaluates a group in one bc. Returns `None` if one of its expressions fails or the run does not
/// end in `time`.
async fn run_shared(
    bc: &impl Evaluate,
    group: &[Shared],
    precision: u32,
    time: Duration,
) -> Result<Option<Vec<(usize, String)>>, CalcError> {
    let texts: String = group.iter().map(Shared::program).collect();
    let program = format!("{}{texts}", library::prelude(&texts));
    let run = match bc.bc(TOOL, program, time).await {
        Ok(run) => run,
        Err(CalcError::Timeout(_) | CalcError::Limit(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !run.stderr.trim().is_empty() {
        return Ok(None);
    }
    let mut printed = run.stdout.split('@');
    let results = group.iter().map(|shared| (shared.index, shared.read(&mut printed, precision)));
    Ok(Some(results.filter_map(|(index, result)| Some((index, result?))).collect()))
}

/// Evaluates one expression alone. An error that is not caused by the expression ends the whole
/// call.
async fn run_alone(
    bc: &impl Evaluate,
    text: &str,
    precision: u32,
    time: Duration,
) -> Result<BatchEntry, CalcError> {
    match evaluate_one(bc, TOOL, text, precision, time).await {
        Err(
            error @ (CalcError::Refused
            | CalcError::Cancelled
            | CalcError::Internal(_)
            | CalcError::NoBc),
        ) => Err(error),
        entry => Ok(entry),
    }
}
