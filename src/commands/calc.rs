//! `cofferdam calc`: one expression, evaluated by bc in a cell.

use std::path::Path;

use clap::Args;

use crate::commands::error::{CliError, print_out};
use crate::commands::launch::{self, Launched};
use crate::commands::{settings, start};
use config::policy::Principal;
use model::job::Workspace;
use model::receipt::Tier;
use service::Caller;
use service::Executor;
use service::calculate::Calculation;
use service::host_programs::HostPrograms;
use service::report::Exact;
use service::request::Precision;
use supervisor::ScopeWish;

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam calc '2^300'\n  \
    cofferdam calc 'sqrt(2)' --precision 50")]
pub struct CalcArguments {
    /// The expression, as bc writes it
    #[arg(value_name = "EXPR", allow_hyphen_values = true)]
    pub expression: String,
    /// Decimal places of the result, 0 to 100
    #[arg(long, value_name = "N", default_value = "20", value_parser = precision)]
    pub precision: Precision,
    /// Isolation tier: namespaces+landlock+seccomp, or landlock+seccomp where user namespaces
    /// are refused; it is weaker, and every receipt says what it lacks
    #[arg(long, value_name = "TIER")]
    pub tier: Option<Tier>,
}

fn precision(text: &str) -> Result<Precision, String> {
    let places = text.parse().ok().and_then(Precision::new);
    places.ok_or_else(|| format!("`{text}` is not a whole number from 0 to 100"))
}

/// Runs the command: 0 with the value on standard output, else 125 with the reason.
pub fn main(typed: CalcArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let settings = settings::load(config)?.in_tier(typed.tier).scoped(ScopeWish::Never);
    let calculating = settings.clone();
    let Launched { link, audit, .. } = launch::recorded(settings)?;
    start::conducted(link, async |link| {
        let executor = Executor::new(
            calculating.executor(Workspace::Fresh, HostPrograms::default()),
            link,
            audit,
        );
        let scope = executor.scope(Principal::local());
        let expression = typed.expression.clone();
        let calculation = Calculation::new(&scope, None, Caller::default());
        let value = calculation.one(expression, typed.precision).await;
        let value = value
            .map_err(|refused| CliError { hint: refused.hint, ..CliError::new(refused.message) })?;
        if value.result.is_empty() {
            eprintln!("cofferdam: nothing printed");
            return Ok(0);
        }
        print_out(&format!("{}\n", value.result))?;
        if let Some(note) = value.scale_note(&typed.expression, typed.precision.places()) {
            eprintln!("cofferdam: {note}");
        }
        if value.exact == Exact::No {
            eprintln!("cofferdam: the last digits are not sure");
        }
        Ok(0)
    })
}
