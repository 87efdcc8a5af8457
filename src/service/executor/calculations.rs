//! Calculations: `bc` runs in cells, or a remembered result is returned.

use std::time::{Duration, Instant};

use super::Scope;
use crate::Caller;
use crate::calculate::{InCells, uncalculated};
use crate::capture::Captured;
use crate::capture::text::render;
use crate::refused::Refused;
use crate::report::{Batch, BatchValue, Calculated, Exact, Plotted, Shortened, ValueOrigin};
use crate::request::Precision;
use calc::plot::Plot;
use model::defaults::INLINE_CHARACTERS;

impl Scope {
    /// Evaluates one expression and rounds it to `precision` decimal places.
    pub async fn calculate(
        &self,
        expression: String,
        precision: Precision,
        within: Option<Duration>,
        caller: Caller,
    ) -> Result<Calculated, Refused> {
        let started = Instant::now();
        let cells = InCells::new(&self.workbench, caller).within(within);
        let places = precision.places();
        if let Some(result) = self.cache.get(&expression, places.into()) {
            if let Err(error) = cells.remembered(&expression) {
                return Err(uncalculated(cells, error));
            }
            return Ok(self.calculated(result, ValueOrigin::Remembered, started));
        }
        let done = calc::calculate(&cells, expression, places.into()).await;
        let done = match done {
            Ok(done) => done,
            Err(error) => return Err(uncalculated(cells, error)),
        };
        let shortened = self.shortened(&cells, &done.result, INLINE_CHARACTERS);
        let receipt = cells.receipt();
        self.cache.put(&done);
        let exact = if done.exact == Some(false) { Exact::No } else { Exact::Yes };
        let ran = ValueOrigin::InCell(receipt.map(Box::new));
        Ok(Calculated { exact, shortened, ..self.calculated(done.result, ran, started) })
    }

    /// Runs a bc script and returns every line of its output.
    pub async fn calculate_advanced(
        &self,
        script: String,
        precision: Precision,
        within: Option<Duration>,
        caller: Caller,
    ) -> Result<Calculated, Refused> {
        let started = Instant::now();
        let cells = InCells::new(&self.workbench, caller).within(within);
        let done = calc::calculate_advanced(&cells, &script, precision.places().into()).await;
        let done = match done {
            Ok(done) => done,
            Err(error) => return Err(uncalculated(cells, error)),
        };
        let shortened = self.shortened(&cells, &done.result, INLINE_CHARACTERS);
        let receipt = cells.receipt();
        let ran = ValueOrigin::InCell(receipt.map(Box::new));
        let warnings = done.warnings;
        Ok(Calculated { warnings, shortened, ..self.calculated(done.result, ran, started) })
    }

    /// Evaluates each expression on its own; the error of one stands in its own entry.
    pub async fn calculate_batch(
        &self,
        expressions: Vec<String>,
        precision: Precision,
        within: Option<Duration>,
        caller: Caller,
    ) -> Result<Batch, Refused> {
        let started = Instant::now();
        let cells = InCells::new(&self.workbench, caller);
        let places = u32::from(precision.places());
        let done = calc::calculate_batch(&cells, &expressions, places, within).await;
        let entries = match done {
            Ok(entries) => entries,
            Err(error) => return Err(uncalculated(cells, error)),
        };
        // All results together have the room of one output: each its share, if they need more.
        let lengths = entries.iter().filter_map(|entry| entry.as_ref().ok());
        let length: usize = lengths.map(|(result, _)| result.len()).sum();
        let most = match length > INLINE_CHARACTERS {
            true => INLINE_CHARACTERS / entries.len().max(1),
            false => INLINE_CHARACTERS,
        };
        let entry = |entry: calc::BatchEntry| match entry {
            Ok((result, sure)) => {
                let shortened = self.shortened(&cells, &result, most);
                let exact = if sure == Some(false) { Exact::No } else { Exact::Yes };
                Ok(BatchValue { result, shortened, exact })
            }
            Err(error) => Err(error.with_hint()),
        };
        let entries = entries.into_iter().map(entry).collect();
        let receipt = cells.receipt();
        Ok(Batch {
            entries,
            took: started.elapsed(),
            receipt,
            unrecorded: self.workbench.audit.trouble(),
        })
    }

    /// Plots a function.
    pub async fn calculate_plot(
        &self,
        plot: Plot,
        within: Option<Duration>,
        caller: Caller,
    ) -> Result<Plotted, Refused> {
        let started = Instant::now();
        let cells = InCells::new(&self.workbench, caller).within(within);
        let done = calc::plot::calculate_plot(&cells, &plot).await;
        match done {
            Ok(drawn) => Ok(Plotted {
                drawn,
                took: started.elapsed(),
                receipt: cells.receipt(),
                unrecorded: self.workbench.audit.trouble(),
            }),
            Err(error) => Err(uncalculated(cells, error)),
        }
    }

    fn calculated(&self, result: String, ran: ValueOrigin, since: Instant) -> Calculated {
        let took = since.elapsed();
        let unrecorded = self.workbench.audit.trouble();
        let exact = Exact::Yes;
        let warnings = Vec::new();
        Calculated { result, shortened: None, exact, warnings, took, ran, unrecorded }
    }

    /// Shortens a result of more than `most` characters to its head and tail, and keeps the whole for `bash_output`.
    fn shortened(&self, cells: &InCells<'_>, result: &str, most: usize) -> Option<Shortened> {
        // A result is text of bc and ASCII but for strings of a script.
        if result.chars().count() <= most {
            return None;
        }
        let text = render(&Captured::of(result.as_bytes()), &Captured::of(&[]), most).stdout;
        let number = |c: char| c.is_ascii_digit() || c == '.' || c == '-';
        let digits = result.chars().filter(char::is_ascii_digit).count();
        let digits = result.chars().all(number).then_some(digits);
        let output_id = if self.lists("bash_output") { cells.keep(result) } else { None };
        Some(Shortened { text, digits, output_id })
    }
}
