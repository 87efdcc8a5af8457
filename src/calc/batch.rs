//! Many expressions in one call: those that cannot see each other share a bc, and so a cell.
//!
//! What a shared run does not settle, because of an error, of time or of digits, is evaluated
//! again by halves and at last alone, as `calculate` would.

use std::time::{Duration, Instant};

use super::evaluate::{self, Evaluate, Text, value};
use super::rewrite::{Expression, Shape};
use super::{CalcError, Pair, Second, evaluated, first_scale, library, spelling};
use model::defaults::CALCULATOR_TIMEOUT;

/// Most expressions of one call.
pub const MOST_EXPRESSIONS: usize = 100;

/// Time of each expression, unless another is asked for.
pub const ENTRY_TIME: Duration = Duration::from_secs(5);
/// Time of a run that several expressions share: one that does not end is soon alone.
const SHARED_TIME: Duration = Duration::from_millis(1500);
/// Time after which expressions that are left get [`SHARED_TIME`] each.
const WHOLE_TIME: Duration = Duration::from_secs(60);

const TOOL: &str = "calculate_batch";

/// A value and `Some(false)` if not every digit is sure, or why there is none.
pub type BatchEntry = Result<(String, Option<bool>), CalcError>;

/// An expression that may share its bc with others.
struct Shared {
    /// Its place in the call.
    place: usize,
    text: Text,
    /// The scales at which it is evaluated; none for whole numbers.
    scales: Option<(u32, u32)>,
    second: Second,
}

impl Shared {
    fn of(place: usize, text: &str, precision: u32) -> Option<Self> {
        let text = spelling::understood(text).ok()?;
        let expression = Expression::new(&text);
        if expression.has_modulo_assignment() {
            return None;
        }
        let low = first_scale(precision);
        let second = Second::of(&expression);
        let scales = match expression.shape() {
            Shape::Integer => None,
            Shape::Pure => Some((low, second.scale(low))),
            Shape::Stateful | Shape::Raw => return None,
        };
        Some(Self { place, text: Text::of(&expression, precision), scales, second })
    }

    /// The part of the program that evaluates it; it prints as many marks as [`Shared::read`] takes.
    fn program(&self) -> String {
        let evaluation = match self.scales {
            None => self.text.at(0),
            Some((low, high)) => self.text.at_both(low, high),
        };
        format!("{evaluation}print \"@\"\n")
    }

    /// The result, if what was printed settles it.
    fn read<'a>(
        &self,
        printed: &mut impl Iterator<Item = &'a str>,
        precision: u32,
    ) -> Option<String> {
        let mut next = || printed.next().and_then(value);
        let Some((low, high)) = self.scales else {
            return next().map(|value| value.number.to_string());
        };
        let (coarse, fine) = (Ok(next()), Ok(next()));
        Pair { low, coarse, high, fine, second: self.second }.settled(evaluate::length(precision))
    }
}

/// The tool `calculate_batch`: each expression's own result or error, in the order given.
///
/// # Errors
/// When nothing can be run at all: denied, cancelled, no bc.
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
    let shared = numbered.filter_map(|(place, text)| Shared::of(place, text, precision)).collect();
    // First come, first served: the halves of a group come before what follows it.
    let mut groups: Vec<Vec<Shared>> = vec![shared];
    while let Some(mut group) = groups.pop() {
        if group.len() < 2 {
            continue;
        }
        match together(bc, &group, precision, time.min(SHARED_TIME)).await? {
            Some(results) => {
                for (place, result) in results {
                    if let Some(entry) = entries.get_mut(place) {
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
            None => alone(bc, text, precision, time.min(left(end).max(SHARED_TIME))).await?,
        });
    }
    Ok(done)
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Evaluates a group in one bc; none when it has an error somewhere or does not end in `time`.
async fn together(
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
    let results = group.iter().map(|one| (one.place, one.read(&mut printed, precision)));
    Ok(Some(results.filter_map(|(place, result)| Some((place, result?))).collect()))
}

/// Evaluates one expression by itself; an error that is not its own is one of the whole call.
async fn alone(
    bc: &impl Evaluate,
    text: &str,
    precision: u32,
    time: Duration,
) -> Result<BatchEntry, CalcError> {
    match evaluated(bc, TOOL, text, precision, time).await {
        Err(error @ (CalcError::Refused | CalcError::Cancelled | CalcError::Internal(_))) => {
            Err(error)
        }
        entry => Ok(entry),
    }
}
