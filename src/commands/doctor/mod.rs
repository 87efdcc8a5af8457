//! `cofferdam doctor`: each layer, its mechanism, and the exact remedy for a missing one.
//!
//! `table` lists every layer with its probe. A report is made of three parts: the host's layers, which are tried
//! before there is a cell; trials of profiles in real cells; and what was measured in the first of these cells.

mod cells;
mod container_filter;
mod directories;
mod granted_directory;
mod host_sockets;
mod kernel;
mod layer;
mod listener;
mod machine;
mod memory;
mod own_ids;
pub mod platform;
mod privileges;
pub(super) mod remedies;
mod report;
mod table;
mod trials;

use std::path::Path;

use clap::Args;

use self::cells::CellTrials;
use self::layer::{LayerCheck, LayerState, PROFILE, ProbeResult, missing};
use self::machine::Machine;
use self::own_ids::OwnIdFacts;
use self::report::{Finding, Report};
use self::table::CellFacts;
use super::error::{CliError, print_out};
use super::terminal::colour::Colour;
use super::{launch, settings};
use supervisor::{OwnIds, ScopeWish};

/// Layer of the supervisor, listed only if it does not start.
const SUPERVISOR: &str = "supervisor";

/// Returns true if cells can have a network. Needs a single-threaded caller.
pub(super) fn can_have_a_network() -> bool {
    trials::network().is_ok()
}

/// Arguments as typed.
#[derive(Debug, Clone, Copy, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam doctor\n  \
    cofferdam doctor --json\n  \
    cofferdam doctor --seccomp > cofferdam.json\n\n\
    Exit codes: 0 the default profiles and your own can run; 1 one of them cannot; 125 no report")]
pub struct DoctorArguments {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print a seccomp profile for the container in which cofferdam is to run, and probe nothing
    #[arg(long, conflicts_with = "json")]
    pub seccomp: bool,
}

/// Runs the command: 0 only if the default profiles and the operator's can run.
pub fn main(typed: &DoctorArguments, config: Option<&Path>) -> Result<u8, CliError> {
    if typed.seccomp {
        print_out(&container_filter::text()?)?;
        return Ok(0);
    }
    let report = probe(config)?;
    if typed.json {
        let text = serde_json::to_string_pretty(&report)
            .map_err(|error| CliError::new(format!("doctor: {}", error)))?;
        print_out(&format!("{text}\n"))?;
    } else {
        print_out(&report.text(Colour::of_output()))?;
    }
    Ok(match report.verdict {
        Finding::CanRun => 0,
        Finding::CannotRun => 1,
    })
}

/// Probes every layer by using it.
///
/// # Errors
/// A broken configuration, or a machine on which not even the probing works.
fn probe(config_directory: Option<&Path>) -> Result<Report, CliError> {
    let mut settings = settings::load(config_directory)?;
    let machine = Machine::examine(&settings)?;
    let platform = machine.platform;
    let mut layers = table::host(&machine);
    // A policy need not use the default profiles; they are tried all the same.
    let profiles = cells::profiles(&settings.loaded.profiles);
    settings.add_profiles(&profiles);
    // No program can be started once this process is confined.
    let granted_directory = granted_directory::probe(config_directory);
    // A server asks for a scope in the same way, and has sessions.
    settings.sessions = 1;
    let mut settings = settings.scoped(ScopeWish::Needed);
    let trials = cells::prepare(&settings, &profiles);
    // A server gives cells other ids than the operator's. Commands that make one call do not spend the time for that.
    settings.own_ids = OwnIds::Wanted;
    let scope_rule = settings.loaded.config.scope.value;
    let max_cells = u16::try_from(settings.loaded.config.cells.value).unwrap_or(u16::MAX);
    let own_ids = OwnIdFacts::read(max_cells);
    let mut was_measured = false;
    match launch::unrecorded(settings) {
        Ok(socket) => {
            let CellTrials { layers: tried, receipt, ready } = cells::run(socket, trials)?;
            layers.extend(tried);
            was_measured = receipt.is_some();
            if let Some(receipt) = &receipt {
                let ready = ready.as_ref();
                let own_ids = &own_ids;
                let facts = CellFacts { receipt, ready, own_ids, scope_rule, platform };
                layers.extend(table::cell(&facts));
            }
        }
        // The layers above name its reason, if a probe has found it.
        Err(error) => {
            let remedy = error.hint.as_deref().map(cells::for_report);
            let result = ProbeResult { remedy, ..missing(error.message) };
            layers.push(result.named(SUPERVISOR));
        }
    }
    if cells::has_shell(&layers) {
        layers.push(granted_directory.named(granted_directory::NAME));
    }
    let can_run = layers
        .iter()
        .filter(|layer| is_required(layer))
        .all(|layer| layer.state != LayerState::Missing);
    Ok(Report {
        tier: if was_measured { "namespaces+landlock+seccomp" } else { "none" }.to_owned(),
        verdict: if can_run { Finding::CanRun } else { Finding::CannotRun },
        layers,
    })
}

/// Returns true for layers without which a server would be of no use.
fn is_required(layer: &LayerCheck) -> bool {
    let others = [SUPERVISOR, cells::SESSION, granted_directory::NAME];
    layer.name.starts_with(PROFILE) || others.contains(&layer.name.as_str())
}
