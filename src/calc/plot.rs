//! Plots a function with characters: a single bc computes the value of each column.

mod draw;

use super::evaluate::{Evaluate, Fault, value};
use super::library::{self, Gives};
use super::rewrite::Arithmetic;
use super::tokens::{Expression, KEYWORDS, Kind};
use super::{CalcError, spelling};
use model::defaults::CALCULATOR_TIMEOUT;

pub use draw::Drawn;

/// Minimum, default and maximum number of columns of a plot.
pub const WIDTH: (u16, u16, u16) = (20, 72, 200);
/// Minimum, default and maximum number of rows of a plot.
pub const HEIGHT: (u16, u16, u16) = (5, 20, 60);

const TOOL: &str = "calculate_plot";
/// Scale at which values are computed: more places than any plot shows.
const SCALE: u32 = 30;

/// Arguments of a plot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plot {
    pub expression: String,
    pub variable: String,
    /// Expressions, such as `-2*pi`.
    pub from: String,
    pub to: String,
    pub width: u16,
    pub height: u16,
}

/// Implements the tool `calculate_plot`.
///
/// # Errors
/// An invalid expression, one without a value anywhere in the range, or a limit that was reached.
pub async fn calculate_plot(bc: &impl Evaluate, plot: &Plot) -> Result<Drawn, CalcError> {
    let program = program(plot)?;
    let run = bc.bc(TOOL, program, CALCULATOR_TIMEOUT).await?;
    let (errors, warnings) = Fault::parse_all(&run.stderr, 0);
    if let Some(fault) = errors.iter().find(|fault| fault.syntax) {
        return Err(CalcError::Bc(fault.what.clone()));
    }
    let mut values = run.stdout.split('@').map(number);
    let (Some(from), Some(to)) = (values.next().flatten(), values.next().flatten()) else {
        return Err(without_value(&errors, "from and to have no value"));
    };
    if from >= to {
        return Err(CalcError::Invalid("`from` must be below `to`".to_owned()));
    }
    let values: Vec<Option<f64>> = values.take(usize::from(plot.width)).collect();
    let faults: Vec<Fault> = errors.into_iter().chain(warnings).collect();
    draw::drawn(plot, from, to, &values)
        .ok_or_else(|| without_value(&faults, "the expression has no value in the range"))
}

fn without_value(faults: &[Fault], what: &str) -> CalcError {
    match faults.first() {
        Some(fault) => CalcError::Bc(format!("{what}: {}", fault.what)),
        None => CalcError::Bc(what.to_owned()),
    }
}

/// Parses a printed value; `None` without a value, or for one outside the range of floats.
fn number(printed: &str) -> Option<f64> {
    let value = value(printed)?.number.to_string().parse::<f64>().ok()?;
    value.is_finite().then_some(value)
}

fn program(plot: &Plot) -> Result<String, CalcError> {
    let variable = variable(&plot.variable)?;
    let [function, from, to] =
        [&plot.expression, &plot.from, &plot.to].map(|text| plain(text, variable));
    let function = function?;
    let from = from?;
    let to = to?;
    let mut program = format!(
        "define cofferdam_at({variable}){{return({function})}}\ncofferdam_begin({SCALE},{SCALE},0)\n\
         ({from})\nprint \"@\"\n({to})\nprint \"@\"\n\
         cofferdam_from=({from})\ncofferdam_to=({to})\n"
    );
    let last = plot.width.saturating_sub(1);
    for column in 0..plot.width {
        let step = format!("(cofferdam_to-cofferdam_from)*{column}/{last}");
        program.push_str(&format!("cofferdam_at(cofferdam_from+{step})\nprint \"@\"\n"));
    }
    Ok(format!("{}{program}", library::prelude(&program)))
}

fn variable(name: &str) -> Result<&str, CalcError> {
    let expression = Expression::new(name);
    let is_name = match expression.tokens() {
        [token] => token.kind == Kind::Name && token.text == name && !KEYWORDS.contains(&name),
        _ => false,
    };
    let builtin = ["scale", "ibase", "obase", "last", "length", "sqrt", "read", "quit", "halt"];
    if is_name && !builtin.contains(&name) && !name.starts_with("cofferdam_") && name.len() <= 64 {
        return Ok(name);
    }
    let shown: String = name.chars().take(64).flat_map(char::escape_default).collect();
    Err(CalcError::Invalid(format!("`{shown}` cannot be the variable: it is a name such as x")))
}

/// Returns an expression without state in the form that is passed to bc.
fn plain(text: &str, variable: &str) -> Result<String, CalcError> {
    // Assigning the variable first makes it the caller's, even if it is named `e`.
    let assignment = format!("{variable}=0\n");
    let resolved = spelling::to_bc(&format!("{assignment}{text}"))?;
    let expression = Expression::new(resolved.strip_prefix(&assignment).unwrap_or(&resolved));
    let disallowed = expression.tokens().iter().find(|token| match token.kind {
        Kind::Break => true,
        Kind::Number => token.text == ".",
        Kind::Name => {
            KEYWORDS.contains(&token.text)
                || ["scale", "ibase", "obase", "last", "quit", "halt"].contains(&token.text)
                || library::gives(token.text) == Some(Gives::Text)
        }
        Kind::Operator => {
            let assigns = ["=", "+=", "-=", "*=", "/=", "%=", "^=", "++", "--", "{", "}"];
            assigns.contains(&token.text)
        }
    });
    match disallowed {
        Some(_) => {
            let reason = format!("a plot takes one expression in {variable}, without assignments");
            Err(CalcError::Invalid(reason))
        }
        None => Ok(expression.rewritten(Arithmetic::Floating)),
    }
}
