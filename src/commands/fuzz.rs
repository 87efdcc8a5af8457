//! `cofferdam fuzz`: random system calls in a cell or in another sandbox, judged from outside.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::commands::error::{CliError, print_out};
use crate::commands::format;
use crate::commands::selftest::{NO_VERDICT, UNAVAILABLE, about, check_root, on_bench};
use model::clock;
use selftest::fuzz::{self, FuzzEnd, FuzzResult};
use selftest::judge::{Isolation, Target};
use selftest::report::RunAbout;
use selftest::targets::Sandbox;

/// Arguments as typed.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam fuzz --seconds 60\n  \
    cofferdam fuzz --target bwrap-hardened --seed 7 --rounds 1\n\n\
    Exit codes: 0 nothing outside was touched; 1 something was; 2 too few calls were made; 3 the sandbox does not start")]
pub struct FuzzArguments {
    /// Make the calls in another sandbox: a name of `selftest --targets`, or its command line
    #[arg(long, value_name = "NAME|COMMAND")]
    pub target: Option<String>,
    /// Seed of the first start; the others have the next numbers
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How long to start it again and again
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "rounds")]
    pub seconds: u64,
    /// How often to start it
    #[arg(long, value_name = "N")]
    pub rounds: Option<u64>,
    /// Run also where the sandbox shares processes or mounts with the host: the calls may end any
    /// process of this user
    #[arg(long)]
    pub disposable: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; the exit code is one of those above.
pub fn main(typed: &FuzzArguments) -> Result<u8, CliError> {
    let target = match &typed.target {
        Some(text) => Target::Other(Box::new(
            Sandbox::named_or_typed(text)
                .map_err(|reason| CliError::new(format!("fuzz: --target: {reason}")))?,
        )),
        None => Target::Own,
    };
    if target == Target::Own {
        check_root()?;
    }
    let about = about(&target, typed.target.as_deref())?;
    let target = match target {
        Target::Other(sandbox) => Target::Other(Box::new(sandbox.resolved())),
        Target::Own | Target::Lower | Target::Served(_) => target,
    };
    let seed = typed.seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs())
    });
    let end = match typed.rounds {
        Some(rounds) => FuzzEnd::Rounds(rounds),
        None => FuzzEnd::After(Duration::from_secs(typed.seconds)),
    };
    let result = on_bench(target, |bench| {
        if bench.isolation == Isolation::Shared && !typed.disposable {
            return Err(shared());
        }
        fuzz::rounds(bench, seed, end).map_err(|error| {
            CliError::new(format!("fuzz: from seed {seed}: {error}")).with_code(NO_VERDICT)
        })
    })?;
    print_out(&text(typed, &result, about)?)?;
    Ok(result.exit_code())
}

fn shared() -> CliError {
    CliError::new(
        "fuzz: the sandbox shares processes or mounts with the host, which random calls may harm",
    )
    .with_hint("on a machine that is thrown away afterwards: --disposable")
    .with_code(UNAVAILABLE)
}

fn text(typed: &FuzzArguments, result: &FuzzResult, about: RunAbout) -> Result<String, CliError> {
    if !typed.json {
        let lines = result.text();
        return Ok(lines.lines().map(|line| format!("{}\n", format::plain(line))).collect());
    }
    let about = RunAbout { time: clock::now(), ..about };
    result
        .json(&about)
        .map_err(|error| CliError::new(format!("fuzz: {error}")).with_code(NO_VERDICT))
}
