//! The gate before a release: compares the program with the last release's, in turns, and its size with its budget.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::client::Client;
use crate::peers::{cofferdam, run};
use crate::samples::{Contender, Rounds, Table, interleaved, timed};
use crate::{Asked, Report, Result};

/// How much slower or larger the program may be, in percent.
const MAX_MORE: f64 = 5.0;
/// Runs of a case that is over: a disturbance of the machine seldom hits the same case three times.
const MAX_RUNS: usize = 3;
const BUDGETS: &str = "tests/weight/budgets.toml";
const SIZE: &str = "release: stripped program";

/// One case for a program: a contender that does it once.
type Case = fn(&'static str) -> Result<Box<dyn FnMut() -> Result<Duration>>>;

const CASES: [(&str, Case); 6] = [
    ("--version", version),
    ("start: to the reply to initialize", start),
    ("session call: bash true", |program| call(program, "shell", "bash")),
    ("fresh cell: bash_exec true", |program| call(program, "exec", "bash_exec")),
    ("calculate, another each time", calculate),
    ("cold run: /bin/bash -c true", cold),
];

/// Compares all cases, and fails with the names of those that are over.
pub fn gate(asked: &Asked, report: &mut Report) -> Result<()> {
    let mut over: Vec<String> = size(asked.against)?.into_iter().collect();
    if let Some(before) = asked.against {
        for (name, case) in CASES {
            over.extend(compared(name, case, before, asked.rounds, report)?);
        }
    }
    if over.is_empty() {
        println!("\ngate: passed");
        return Ok(());
    }
    Err(format!("the gate is closed:\n  {}", over.join("\n  ")).into())
}

/// Measures a case until a run is not over, and returns what to report where every run was.
fn compared(
    name: &str,
    case: Case,
    before: &'static str,
    rounds: Rounds,
    report: &mut Report,
) -> Result<Option<String>> {
    let mut last = String::new();
    for _ in 0..MAX_RUNS {
        let mut all = [
            Contender { name: "before".to_owned(), once: case(before)? },
            Contender { name: "now".to_owned(), once: case(cofferdam())? },
            Contender { name: "before again (control)".to_owned(), once: case(before)? },
        ];
        let table = interleaved(name, "at most 5 % more", rounds, &mut all)?;
        report.table(&table);
        let more = percent_more(&table);
        if more <= MAX_MORE {
            return Ok(None);
        }
        last = format!("{name}: {more:.1} % more than before");
    }
    Ok(Some(last))
}

/// Returns how much longer the second row took than the two others, between which the noise shows.
fn percent_more(table: &Table) -> f64 {
    let median = |index: usize| table.rows.get(index).map_or(0.0, |row| row.median().as_secs_f64());
    let before = (median(0) + median(2)) / 2.0;
    (median(1) / before.max(f64::MIN_POSITIVE) - 1.0) * 100.0
}

fn version(program: &'static str) -> Result<Box<dyn FnMut() -> Result<Duration>>> {
    Ok(Box::new(move || timed(|| run(&[program, "--version"]))))
}

fn cold(program: &'static str) -> Result<Box<dyn FnMut() -> Result<Duration>>> {
    Ok(Box::new(move || timed(|| run(&[program, "run", "--", "/bin/bash", "-c", "true"]))))
}

fn start(program: &'static str) -> Result<Box<dyn FnMut() -> Result<Duration>>> {
    Ok(Box::new(move || Ok(Client::of(program, &["serve"])?.opened_in)))
}

fn call(
    program: &'static str,
    group: &str,
    tool: &'static str,
) -> Result<Box<dyn FnMut() -> Result<Duration>>> {
    let client = RefCell::new(Client::of(program, &["serve", "--tools", group])?);
    let command = json!({ "command": "true" });
    Ok(Box::new(move || Ok(client.borrow_mut().call(tool, &command)?.0)))
}

fn calculate(program: &'static str) -> Result<Box<dyn FnMut() -> Result<Duration>>> {
    let client = RefCell::new(Client::of(program, &["serve", "--tools", "calc"])?);
    let count = Cell::new(0_u32);
    Ok(Box::new(move || {
        count.set(count.get() + 1);
        let arguments = json!({ "expression": format!("2+{}", count.get()) });
        Ok(client.borrow_mut().call("calculate", &arguments)?.0)
    }))
}

/// Compares the size of the program without symbols with its budget, and with the program before.
fn size(before: Option<&str>) -> Result<Option<String>> {
    let now = stripped(cofferdam())?;
    let max = budget()?;
    println!("{SIZE}: {} KiB of {max}", now >> 10);
    if now >> 10 > max {
        let hint = "hint: find what grew, or raise the budget with the reason";
        return Ok(Some(format!("{SIZE}: {} KiB, and {BUDGETS} has {max}; {hint}", now >> 10)));
    }
    let Some(before) = before.map(stripped).transpose()? else { return Ok(None) };
    // Whole percents, without a fraction: MAX_MORE is one as well.
    let is_over = now * 100 > before * 105;
    println!("before: {} KiB", before >> 10);
    Ok(is_over.then(|| format!("{SIZE}: {} KiB, before {} KiB", now >> 10, before >> 10)))
}

/// Returns the bytes of a program without symbols.
fn stripped(program: &str) -> Result<u64> {
    let directory = tempfile::tempdir()?;
    let to = directory.path().join("stripped");
    let status = Command::new("strip").arg("-o").arg(&to).arg(program).status()?;
    if !status.success() {
        return Err(format!("strip {program}: {status}").into());
    }
    Ok(std::fs::metadata(to)?.len())
}

#[derive(Deserialize)]
struct Budgets {
    budget: Vec<Budget>,
}

#[derive(Deserialize)]
struct Budget {
    name: String,
    max: u64,
    tolerance: u64,
}

/// Returns the budget of the stripped program with its tolerance, in KiB.
fn budget() -> Result<u64> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(BUDGETS))?;
    let all: Budgets = toml::from_str(&text)?;
    let found = all.budget.iter().find(|budget| budget.name == SIZE);
    let found = found.ok_or_else(|| format!("{BUDGETS} has no budget `{SIZE}`"))?;
    Ok(found.max + found.max * found.tolerance / 100)
}
