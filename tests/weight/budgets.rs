//! The budgets, and what is said where one is not kept.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::support::{Check, holds};

const FILE: &str = "tests/weight/budgets.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budgets {
    budget: Vec<Budget>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    name: String,
    max: usize,
    /// How far above `max` a count may be, in percent: for what differs from run to run.
    tolerance: usize,
    /// Reason for the last change of `max`.
    why: String,
}

impl Budget {
    fn check(&self, counted: usize) -> Result<(), String> {
        let Self { name, max, tolerance, why } = self;
        if counted <= max + max * tolerance / 100 {
            return Ok(());
        }
        Err(format!(
            "{name}: {counted}, and the budget is {max} (+ {tolerance} %: {why})\n\
             hint: find what grew (`cargo test --test sessions weight::`), and take it back; if it is worth its weight, \
             raise the budget in {FILE} with the reason"
        ))
    }
}

fn all() -> Result<Vec<Budget>, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE))?;
    let Budgets { budget } = toml::from_str(&text)?;
    Ok(budget)
}

/// Compares a count with its budget.
pub fn keeps(name: &str, counted: usize) -> Check {
    let all = all().map_err(|error| format!("{FILE}: {error}"))?;
    let budget = all.iter().find(|budget| budget.name == name);
    let budget = budget.ok_or_else(|| format!("{FILE} has no budget `{name}`"))?;
    println!("{name}: {counted} of {}", budget.max);
    Ok(budget.check(counted)?)
}

/// The control: one more than is allowed is an error that names the budget and both numbers.
pub fn over_is_an_error() -> Check {
    let budget = Budget { name: "x".to_owned(), max: 200, tolerance: 5, why: "y".to_owned() };
    holds("at the tolerance", &budget, budget.check(210).is_ok())?;
    let over = budget.check(211).err().unwrap_or_default();
    holds("over it", &over, over.starts_with("x: 211, and the budget is 200 (+ 5 %: y)\nhint: "))
}
