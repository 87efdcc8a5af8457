//! The calculator: evaluates expressions with bc, which the caller runs, and returns results that
//! are exact or correctly rounded.
//!
//! `calculate` evaluates at two working scales and raises them until both round to the same result,
//! which is the last value that the expression prints. `calculate_advanced` runs a bc script
//! unchanged and returns all lines.

#![deny(unreachable_pub)]

mod bases;
mod batch;
mod cache;
mod decimal;
mod evaluate;
pub mod ledger;
pub mod library;
mod moderate;
mod near;
#[cfg(test)]
#[path = "../../tests/support/patience.rs"]
mod patience;
pub mod plot;
mod rewrite;
mod rounding;
mod spelling;
mod tokens;
mod validate;

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use decimal::Decimal;
use evaluate::{Fault, Reading, Readings, Sure, Value};
use rewrite::Shape;
use rounding::GuardedScript;
use tokens::Expression;

pub use batch::{BatchEntry, ENTRY_TIME, MAX_EXPRESSIONS, calculate_batch};
pub use cache::Cache;
pub use evaluate::{BcRun, Evaluate};
pub use validate::EXPRESSION_CHARACTERS;

use model::defaults::CALCULATOR_TIMEOUT;
use model::outcome::LimitKind;

/// Default number of decimal places of a result.
pub const PRECISION: u32 = 20;
/// Maximum number of decimal places of a result.
pub const MAX_PRECISION: u32 = 100;

/// Places by which the lowest working scale exceeds the requested precision.
const GUARD_PLACES: u32 = 20;
/// Guard places that must remain beyond the result: more digits before the point need a higher
/// scale.
const SPARE_PLACES: u32 = 6;
/// Number of places of its working scale that an exact value leaves unused at least.
const MIN_UNUSED_PLACES: usize = 5;
/// Maximum number of rounds after the first two evaluations.
const MAX_FURTHER_ROUNDS: u32 = 5;
/// Maximum number of characters of a script's output that its error includes.
const MAX_PRINTED_CHARACTERS: usize = 4000;
/// Maximum working scale that is tried.
const MAX_SCALE: u32 = 8000;

/// Result of `calculate`; field names are the seed's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evaluated {
    /// The last value printed; empty if nothing was.
    pub result: String,
    pub expression: String,
    pub precision: u32,
    /// `false` if evaluations did not come to agree: digits of the result may be wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<bool>,
}

/// Result of `calculate_advanced`; field names are the seed's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CalculatedAdvanced {
    /// All lines the script printed.
    pub result: String,
    /// The script's first 100 characters.
    pub script: String,
    pub precision: u32,
    /// Warnings of bc.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Digits of the numbers that a script prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptDigits {
    /// Digits that bc prints, cut off at the script's scale.
    CutOff,
    /// Rounded to as many decimals as bc prints.
    Rounded,
}

/// The reason why a calculation has no result. The texts are part of the interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalcError {
    #[error("Invalid expression: {0}")]
    Invalid(String),
    /// A notation that bc does not have; the hint says how to write it.
    #[error("Invalid expression: {message}")]
    Notation { message: String, hint: String },
    #[error("BC error: {0}")]
    Bc(String),
    #[error("Calculation timeout after {}s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("BC error: the calculation reached its {} limit", .0.name())]
    Limit(LimitKind),
    #[error("Internal server error: {0}")]
    Internal(String),
    #[error("Internal server error: bc not found")]
    NoBc,
    #[error("the calculation was cancelled")]
    Cancelled,
    /// The caller, which runs bc, knows the reason.
    #[error("the calculation was refused")]
    Refused,
}

impl CalcError {
    /// Returns the message and the hint as one text.
    pub fn in_full(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self}\nhint: {hint}"),
            None => self.to_string(),
        }
    }

    /// Returns the way out, if one is known.
    pub fn hint(&self) -> Option<&str> {
        let message = match self {
            Self::Bc(message) => message.as_str(),
            Self::Timeout(_) | Self::Limit(_) => {
                return Some("ask for fewer places or smaller numbers, or split the calculation");
            }
            Self::Notation { hint, .. } => return Some(hint),
            Self::NoBc => {
                return Some("the operator can install bc where the profile looks for it");
            }
            Self::Invalid(_) | Self::Internal(_) | Self::Cancelled | Self::Refused => return None,
        };
        let hints = [
            (
                "syntax error",
                "a product is written with `*`, a power with `^`, an argument in brackets",
            ),
            (
                "parse error",
                "a product is written with `*`, a power with `^`, an argument in brackets",
            ),
            ("by zero", "a divisor is 0, or so near to 0 that it cannot be told from it"),
            ("Square root of a negative", "there are real numbers only"),
            ("not defined", "calculate_functions lists the functions that there are"),
            ("exponent", "powers as high as this have too many digits; modpow(b, e, m) needs few"),
            ("non-zero scale in exponent", "`^` cuts its exponent in scripts: write pow(x, y)"),
            ("not a number", "print numbers, or use calculate_advanced, which takes all output"),
        ];
        let known = hints.into_iter().rfind(|(part, _)| message.contains(part));
        Some(
            known.map_or("calculate_functions says where a function has a value", |(_, hint)| hint),
        )
    }
}

/// Evaluates `expression` and rounds it to `precision` decimal places ([`MAX_PRECISION`] at most).
///
/// # Errors
/// An invalid expression, an error of bc, or a limit that was reached.
pub async fn calculate(
    bc: &impl Evaluate,
    expression: String,
    precision: u32,
) -> Result<Evaluated, CalcError> {
    let (result, exact) =
        evaluate(bc, "calculate", &expression, precision, CALCULATOR_TIMEOUT).await?;
    Ok(Evaluated { result, expression, precision, exact })
}

/// Returns the value of one expression, and `Some(false)` if digits may be wrong, in at most
/// `time`.
async fn evaluate(
    bc: &impl Evaluate,
    tool: &'static str,
    text: &str,
    precision: u32,
    time: Duration,
) -> Result<(String, Option<bool>), CalcError> {
    let text = spelling::to_bc(text)?;
    let expression = Expression::new(&text);
    if expression.has_modulo_assignment() {
        let hint = "write `a = a % b`, or use calculate_advanced";
        return Err(CalcError::Invalid(format!("`%=` is not taken here: {hint}")));
    }
    let mut readings = Readings::new(bc, tool, &expression, precision, time);
    Ok(match expression.shape() {
        Shape::Raw => (readings.printed(precision).await?, None),
        Shape::Integer => (readings.printed(0).await?, None),
        Shape::Stateful => evaluate_until_agreed(&mut readings, precision, Second::Double).await?,
        Shape::Pure => {
            evaluate_until_agreed(&mut readings, precision, Second::for_expression(&expression))
                .await?
        }
    })
}

/// Returns a note on a result that has fewer decimals than the expression asked for by setting
/// `scale`.
///
/// The working scale is chosen by the precision, so the value of a `scale` above it has no effect.
#[must_use]
pub fn scale_note(expression: &str, result: &str, precision: u32) -> Option<String> {
    let text = spelling::to_bc(expression).ok()?;
    let decimals = result.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let cut = decimals >= evaluate::length(precision);
    if !cut || !Expression::new(&text).sets_scale_above(precision) {
        return None;
    }
    Some(format!(
        "`scale` in the expression adds no decimals: the result is rounded to `precision`, which is {precision} \
         here; for more, leave out `scale` and pass a `precision` of up to {MAX_PRECISION}"
    ))
}

/// The second working scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// Twice the first one.
    Double,
    /// A little above the first one.
    Near,
}

impl Second {
    fn for_expression(expression: &Expression<'_>) -> Self {
        if near::suffices_for(expression) { Self::Near } else { Self::Double }
    }

    fn scale(self, first: u32) -> u32 {
        match self {
            Self::Double => 2 * first,
            Self::Near => near::scale(first),
        }
    }
}

fn first_scale(precision: u32) -> u32 {
    precision + GUARD_PLACES
}

/// Two evaluations of an expression, with their scales.
struct Pair {
    low: u32,
    coarse: Reading,
    high: u32,
    fine: Reading,
    second: Second,
}

impl Pair {
    /// Returns the result if the two evaluations prove it.
    fn settled(&self, places: usize) -> Option<String> {
        let (Ok(Some(coarse)), Ok(Some(fine))) = (&self.coarse, &self.fine) else { return None };
        if fine.sure == Sure::No
            || self.requested_scale().is_some()
            || self.needed_scale(fine, places) > self.low
        {
            return None;
        }
        match self.second {
            Second::Near => near::settled(coarse, fine, places),
            Second::Double => settle(&coarse.number, &fine.number, self.low, places),
        }
    }

    /// Returns the scale that has as many digits as the result.
    fn needed_scale(&self, fine: &Value, places: usize) -> u32 {
        let digits = fine.number.whole_digits().saturating_add(places);
        u32::try_from(digits).unwrap_or(u32::MAX).saturating_add(SPARE_PLACES)
    }

    /// Returns the scale that the finer evaluation requests, if it is above its own.
    fn requested_scale(&self) -> Option<u32> {
        let wants = match &self.fine {
            Ok(value) => value.as_ref().and_then(|value| value.wants),
            Err(fault) => fault.wants,
        };
        wants.filter(|wants| *wants > self.high)
    }

    /// Returns the best known result, although it is not proved.
    fn best(&self, places: usize) -> Result<String, CalcError> {
        let fine = match &self.fine {
            Ok(Some(fine)) => &fine.number,
            Ok(None) => return Ok(String::new()),
            Err(fault) => return Err(fault.clone().into()),
        };
        // Truncation leaves a tie just below itself, and these last places are noise anyway.
        let without_noise =
            fine.rounded(evaluate::length(self.low).saturating_sub(MIN_UNUSED_PLACES));
        let best = Decimal::parse(&without_noise).map(|best| best.rounded(places));
        Ok(best.unwrap_or(without_noise))
    }

    /// Returns the next two scales, from the digits that the last evaluations have lost.
    fn next_scales(&self, precision: u32) -> (u32, u32) {
        let double = far_above(self.high);
        if let Some(wants) = self.requested_scale() {
            return (self.high, wants.max(double));
        }
        if let (Ok(Some(coarse)), Ok(Some(fine))) = (&self.coarse, &self.fine) {
            let lost = match fine.number.digits_apart(&coarse.number) {
                0 => 0,
                digits => first_scale(precision) + self.low.saturating_add(digits),
            };
            let needed = lost.max(self.needed_scale(fine, evaluate::length(precision)));
            if needed > self.high {
                return (needed, far_above(needed));
            }
        }
        (self.high, double)
    }
}

/// Scale from which functions are slow.
const SLOW_SCALE: u32 = 300;

/// Returns a scale far above another.
fn far_above(scale: u32) -> u32 {
    // Where functions are slow, a quarter is enough additional digits.
    if scale < SLOW_SCALE { 2 * scale } else { scale.saturating_add(scale / 4) }
}

/// Evaluates at two scales, and then at higher ones until two evaluations agree. The second value
/// is `Some(false)` if they never do.
async fn evaluate_until_agreed<E: Evaluate>(
    readings: &mut Readings<'_, E>,
    precision: u32,
    second: Second,
) -> Result<(String, Option<bool>), CalcError> {
    let places = evaluate::length(precision);
    let low = first_scale(precision);
    let high = second.scale(low);
    let [coarse, fine] = readings.pair(low, high).await?;
    let mut pair = Pair { low, coarse, high, fine, second };
    for _ in 0..MAX_FURTHER_ROUNDS {
        match &pair.fine {
            Ok(None) => return Ok((String::new(), None)),
            // An error that requests a higher scale, such as a divisor truncated to zero, may not
            // occur there.
            Err(fault) if pair.requested_scale().is_none() => return Err(fault.clone().into()),
            Ok(Some(_)) | Err(_) => {}
        }
        if let Some(result) = pair.settled(places) {
            return Ok((result, None));
        }
        let (low, high) = pair.next_scales(precision);
        if high > MAX_SCALE {
            break;
        }
        let further = if low == pair.high {
            readings.reading_at(high).await.map(|fine| [pair.fine.clone(), fine])
        } else {
            readings.pair(low, high).await
        };
        match further {
            Ok([coarse, fine]) => {
                pair = Pair { low, coarse, high, fine, second: Second::Double };
            }
            // An unproved error of bc is not a result, so the limit is reported instead.
            Err(limit @ (CalcError::Timeout(_) | CalcError::Limit(_))) => {
                match pair.requested_scale() {
                    Some(_) if pair.fine.is_err() => return Err(limit),
                    Some(_) | None => break,
                }
            }
            Err(error) => return Err(error),
        }
    }
    match pair.settled(places) {
        Some(result) => Ok((result, None)),
        None => pair.best(places).map(|best| (best, Some(false))),
    }
}

/// Returns the result if two values prove it: `coarse` at the scale `low`, `fine` at one far above.
fn settle(coarse: &Decimal, fine: &Decimal, low: u32, places: usize) -> Option<String> {
    let unused = evaluate::length(low).saturating_sub(MIN_UNUSED_PLACES);
    if coarse != fine || fine.places() > unused {
        return fine.agreed(coarse, places);
    }
    let is_exact = fine.places() <= places;
    Some(if is_exact { fine.to_string() } else { fine.rounded(places) })
}

/// Runs a bc script from a clean start, with `precision` as its first `scale`.
///
/// # Errors
/// An invalid script, an error of bc, or a limit that was reached.
pub async fn calculate_advanced(
    bc: &impl Evaluate,
    text: &str,
    precision: u32,
    digits: ScriptDigits,
) -> Result<CalculatedAdvanced, CalcError> {
    validate::script(text)?;
    let script = library::resolved(&text.replace('\r', ""))?;
    let guarded = match digits {
        ScriptDigits::CutOff => None,
        ScriptDigits::Rounded => Some(GuardedScript::new(&script)?),
    };
    // Functions use the script's own scale, as in bc.
    let preamble = format!("{}cofferdam_raw=1;scale={precision}\n", library::prelude(&script));
    let run =
        bc.bc("calculate_advanced", format!("{preamble}{script}\n"), CALCULATOR_TIMEOUT).await?;
    let (errors, warnings) = Fault::parse_all(&run.stderr, preamble.lines().count());
    let printed = run.stdout.trim_end();
    if let Some(error) = errors.into_iter().next() {
        return Err(match printed.is_empty() {
            true => error.into(),
            false => CalcError::Bc(format!("{error}\nit printed:\n{}", first_printed(printed))),
        });
    }
    let mut result = printed.to_owned();
    let mut warnings: Vec<String> =
        warnings.into_iter().map(|warning| warning.to_string()).collect();
    if let Some(guarded) = guarded {
        let left = CALCULATOR_TIMEOUT.saturating_sub(run.took);
        let rounded = guarded.round(bc, printed, precision, left).await?;
        result = rounded.text;
        warnings.extend(rounded.warning.map(str::to_owned));
    }
    Ok(CalculatedAdvanced { result, script: beginning(text), precision, warnings })
}

/// Returns the beginning of what a script printed before it failed.
fn first_printed(printed: &str) -> String {
    match printed.char_indices().nth(MAX_PRINTED_CHARACTERS) {
        Some((end, _)) => format!("{}...", printed.get(..end).unwrap_or(printed)),
        None => printed.to_owned(),
    }
}

/// Returns the first 100 characters, with `...` if there are more.
fn beginning(script: &str) -> String {
    match script.char_indices().nth(100) {
        Some((end, _)) => format!("{}...", script.get(..end).unwrap_or(script)),
        None => script.to_owned(),
    }
}

#[cfg(test)]
mod tests;
