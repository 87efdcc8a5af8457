//! The calculator: bc in a cell, with results that are exact or correctly rounded.
//!
//! `calculate` evaluates at two working scales and doubles until both round to
//! the same result. Its result is the last value that the expression prints;
//! `calculate_advanced` is bc as it is, with all lines.

mod bases;
mod batch;
mod cache;
mod decimal;
mod estimate;
mod estimate_library;
mod evaluate;
pub mod ledger;
pub mod library;
mod near;
pub mod plot;
mod rewrite;
mod validate;

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use decimal::Decimal;
use estimate::Estimate;
use evaluate::{Fault, Readings, Sure, Value};
use rewrite::{Expression, Shape};

pub use batch::{Entry, MOST_EXPRESSIONS, calculate_batch};
pub use cache::Cache;
pub use evaluate::{BcRun, Evaluate, InCells};
pub use validate::EXPRESSION_CHARACTERS;

use super::Refusal;
use model::defaults::CALCULATOR_TIMEOUT;
use model::outcome::LimitKind;

/// Decimal places of a result unless asked otherwise.
pub const PRECISION: u32 = 20;
/// Most decimal places that can be asked for.
pub const MAX_PRECISION: u32 = 100;
/// What the text of a reply says when an expression printed nothing, such as a bare assignment.
pub const NOTHING_PRINTED: &str = "nothing printed";

/// Places by which the lowest working scale exceeds the asked precision.
const GUARD: u32 = 12;
/// An exact value leaves at least this many places of its working scale unused.
const UNUSED: usize = 5;
/// The working scale is doubled up to this multiple of the first.
const MOST_DOUBLED: u32 = 16;

/// Result of `calculate`; field names are the seed's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Calculated {
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
    /// What bc warned of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Why a calculation has no result. The texts are the seed's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalcError {
    #[error("Invalid expression: {0}")]
    Invalid(String),
    #[error("BC error: {0}")]
    Bc(String),
    #[error("Calculation timeout after {}s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("BC error: the calculation reached its {} limit", .0.name())]
    Limit(LimitKind),
    #[error("Internal server error: {0}")]
    Internal(String),
    #[error("the calculation was cancelled")]
    Cancelled,
    #[error(transparent)]
    Refused(Refusal),
}

/// Evaluates `expression` and rounds it to `precision` decimal places ([`MAX_PRECISION`] at most).
///
/// # Errors
/// When the expression is not taken, bc reports an error, or a limit ends it.
pub async fn calculate(
    bc: &impl Evaluate,
    expression: String,
    precision: u32,
) -> Result<Calculated, CalcError> {
    let (result, exact) =
        evaluated(bc, "calculate", &expression, precision, CALCULATOR_TIMEOUT).await?;
    Ok(Calculated { result, expression, precision, exact })
}

/// The value of one expression, and `Some(false)` if not every digit is sure, in at most `time`.
async fn evaluated(
    bc: &impl Evaluate,
    tool: &'static str,
    text: &str,
    precision: u32,
    time: Duration,
) -> Result<(String, Option<bool>), CalcError> {
    validate::expression(text)?;
    let text = library::resolved(text)?;
    let expression = Expression::new(&text);
    if expression.has_modulo_assignment() {
        let way_out = "write `a = a % b`, or use calculate_advanced";
        return Err(CalcError::Invalid(format!("`%=` is not taken here: {way_out}")));
    }
    let mut readings = Readings::new(bc, tool, &expression, time);
    Ok(match expression.shape() {
        Shape::Raw => (readings.printed(precision).await?, None),
        Shape::Integer => (readings.printed(0).await?, None),
        Shape::Stateful => agreed(&mut readings, precision, None).await?,
        Shape::Pure => {
            let estimate = Estimate::of(&expression);
            if near::serves(&expression, estimate)
                && let Some(result) = nearly(&mut readings, precision, estimate).await?
            {
                return Ok((result, None));
            }
            let (result, exact) = agreed(&mut readings, precision, estimate).await?;
            let beyond = estimate.is_some_and(|estimate| estimate.is_beyond());
            (result, if beyond { Some(false) } else { exact })
        }
    })
}

fn first_scale(precision: u32, estimate: Option<Estimate>) -> u32 {
    precision + GUARD + estimate.map_or(0, |estimate| estimate.places())
}

/// Evaluates at two scales that are near each other; none if that does not settle it.
async fn nearly<E: Evaluate>(
    readings: &mut Readings<'_, E>,
    precision: u32,
    estimate: Option<Estimate>,
) -> Result<Option<String>, CalcError> {
    let first = first_scale(precision, estimate);
    let [coarse, fine] = readings.pair(first, near::scale(first)).await?;
    let (Ok(Some(coarse)), Ok(Some(fine))) = (coarse, fine) else { return Ok(None) };
    Ok(near::settled(&coarse, &fine, evaluate::length(precision)))
}

/// Evaluates at doubling scales until two agree. The second value is
/// `Some(false)` if they never did.
async fn agreed<E: Evaluate>(
    readings: &mut Readings<'_, E>,
    precision: u32,
    estimate: Option<Estimate>,
) -> Result<(String, Option<bool>), CalcError> {
    let first = first_scale(precision, estimate);
    let places = evaluate::length(precision);
    let [mut coarse, mut fine] = readings.pair(first, 2 * first).await?;
    let mut scale = 2 * first;
    loop {
        let best = match (&coarse, &fine) {
            // An error at a low scale, such as a divisor cut to zero, may not be one at a higher.
            (_, Err(fault)) => return Err(fault.clone().into()),
            (_, Ok(None)) => return Ok((String::new(), None)),
            // Too small for any place that is kept, and so rounded, not exact.
            (Ok(Some(coarse)), Ok(Some(fine))) => {
                match settled(coarse, fine, scale, places, estimate) {
                    Some(result) => return Ok((result, None)),
                    None => &fine.number,
                }
            }
            (Ok(None) | Err(_), Ok(Some(fine))) => &fine.number,
        };
        // Cutting leaves a tie just below itself; these places are noise either way.
        let without_noise = best.rounded(evaluate::length(scale / 2).saturating_sub(UNUSED));
        let best =
            Decimal::parse(&without_noise).map_or(without_noise, |best| best.rounded(places));
        if scale >= first * MOST_DOUBLED {
            return Ok((best, Some(false)));
        }
        scale *= 2;
        let finer = match readings.one(scale).await {
            Err(CalcError::Timeout(_) | CalcError::Limit(_)) => return Ok((best, Some(false))),
            finer => finer?,
        };
        coarse = std::mem::replace(&mut fine, finer);
    }
}

/// The result, if two readings at working scales `scale / 2` and `scale` settle it.
fn settled(
    coarse: &Value,
    fine: &Value,
    scale: u32,
    places: usize,
    estimate: Option<Estimate>,
) -> Option<String> {
    if fine.sure == Sure::No {
        return None;
    }
    if fine.number.is_zero() && estimate.is_some_and(|estimate| estimate.is_nonzero()) {
        // Too small for any place that is kept, and so rounded, not exact.
        return Some(fine.number.rounded(places));
    }
    settle(&coarse.number, &fine.number, scale, places)
}

/// The result, if two values at working scales `scale / 2` and `scale` settle it.
fn settle(coarse: &Decimal, fine: &Decimal, scale: u32, places: usize) -> Option<String> {
    let unused = evaluate::length(scale / 2).saturating_sub(UNUSED);
    if coarse != fine || fine.places() > unused {
        return fine.agreed(coarse, places);
    }
    let whole = fine.places() <= places;
    Some(if whole { fine.to_string() } else { fine.rounded(places) })
}

/// Runs a bc script from a clean start, with `precision` as its first `scale`.
///
/// # Errors
/// When the script is not taken, bc reports an error, or a limit ends it.
pub async fn calculate_advanced(
    bc: &impl Evaluate,
    text: &str,
    precision: u32,
) -> Result<CalculatedAdvanced, CalcError> {
    validate::script(text)?;
    let script = library::resolved(&text.replace('\r', ""))?;
    // As bc has it, which is by the digits at hand.
    let before = format!("{}cofferdam_raw=1;scale={precision}\n", library::prelude(&script));
    let run =
        bc.bc("calculate_advanced", format!("{before}{script}\n"), CALCULATOR_TIMEOUT).await?;
    let (errors, warnings) = Fault::all(&run.stderr, before.lines().count());
    if let Some(error) = errors.into_iter().next() {
        return Err(error.into());
    }
    Ok(CalculatedAdvanced {
        result: run.stdout.trim_end().to_owned(),
        script: beginning(text),
        precision,
        warnings: warnings.into_iter().map(|warning| warning.to_string()).collect(),
    })
}

/// The first 100 characters, and a mark if there are more.
fn beginning(script: &str) -> String {
    match script.char_indices().nth(100) {
        Some((end, _)) => format!("{}...", script.get(..end).unwrap_or(script)),
        None => script.to_owned(),
    }
}

#[cfg(test)]
mod tests;
