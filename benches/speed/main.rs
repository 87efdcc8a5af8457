//! How long a call takes, compared with a bare process and other sandboxes: `cargo bench`.
//!
//! `benches/README.md` says how it measures. `cargo bench -- --help` has the options.

mod cases;
mod client;
mod clients;
mod direct;
mod gate;
mod machine;
mod peers;
mod samples;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use samples::{Rounds, Table};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const HELP: &str = "\
cargo bench [-- OPTIONS] [CASE…]

  --rounds N     samples of each contender in the quick cases (default 200)
  --seconds N    length of the sustained case (default 10)
  --json FILE    write every figure to FILE
  --program FILE the program that cases with a process of their own start, such as the one that
                 `cargo install` installs; by default the one that cargo built with the benchmark
  --against FILE the program that `gate` compares with: the last release's
  CASE           warm, mcp, egress, calculate, cold, start, project, sustained, clients, together,
                 memory, work, output; all of these by default
  gate           by itself: fails where the program is more than 5 % slower or larger than that of
                 --against, or larger than its budget";

/// Options of the run.
pub struct Asked {
    pub rounds: Rounds,
    pub seconds: u64,
    json: Option<String>,
    program: Option<String>,
    against: Option<&'static str>,
    cases: Vec<String>,
}

impl Asked {
    fn read(words: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut asked = Self {
            rounds: Rounds { count: 200, pause: Duration::from_millis(12) },
            seconds: 10,
            json: None,
            program: None,
            against: None,
            cases: Vec::new(),
        };
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--rounds" => asked.rounds.count = value()?.parse()?,
                "--seconds" => asked.seconds = value()?.parse()?,
                "--json" => asked.json = Some(value()?),
                "--program" => asked.program = Some(value()?),
                // For as long as the process lives, as each contender keeps it.
                "--against" => asked.against = Some(value()?.leak()),
                // Flag that cargo passes to every bench.
                "--bench" => {}
                "--help" => return Ok(None),
                option if option.starts_with('-') => {
                    return Err(format!("unknown: {option}").into());
                }
                case => asked.cases.push(case.to_owned()),
            }
        }
        Ok(Some(asked))
    }

    fn wants(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted == case)
    }
}

/// Everything that was measured, as it is printed and as it is kept.
#[derive(Default)]
pub struct Report {
    kept: Vec<Value>,
}

impl Report {
    pub fn table(&mut self, table: &Table) {
        table.print();
        self.kept.push(table.json());
    }

    /// Keeps figures that were printed already.
    pub fn keep(&mut self, figures: Value) {
        self.kept.push(figures);
    }

    /// A figure that is no time.
    pub fn figure(&mut self, case: &str, goal: &str, text: &str, value: Value) {
        println!("{case}: {text}");
        if !goal.is_empty() {
            println!("    goal: {goal}");
        }
        self.kept.push(json!({ "case": case, "goal": goal, "value": value }));
    }
}

fn main() -> ExitCode {
    let done = match Asked::read(std::env::args().skip(1)) {
        Ok(Some(asked)) => measure(&asked),
        Ok(None) => {
            println!("{HELP}");
            Ok(())
        }
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(asked: &Asked) -> Result<()> {
    asked.program.iter().for_each(|program| peers::measure(program));
    let mut report = Report::default();
    if asked.cases.iter().any(|case| case == "gate") {
        return gate::gate(asked, &mut report);
    }
    let tree = work::Tree::new()?;
    // First of all, while this process is small and has one thread.
    let direct = direct::start(8, tree.path())?;
    let machine = machine::describe();
    println!("{machine}");
    type Case = fn(&Asked, &direct::Direct, &work::Tree, &mut Report) -> Result<()>;
    let cases: [(&str, Case); 13] = [
        ("warm", |asked, direct, _, report| cases::warm(asked, direct, report)),
        ("mcp", |asked, _, _, report| cases::mcp(asked, report)),
        ("egress", |asked, _, _, report| cases::egress(asked, report)),
        ("calculate", |asked, _, _, report| cases::calculate(asked, report)),
        ("cold", |asked, _, _, report| cases::cold(asked, report)),
        ("start", |asked, _, _, report| cases::start(asked, report)),
        ("project", |asked, _, _, report| cases::project(asked, report)),
        ("sustained", |asked, direct, _, report| machine::sustained(asked, direct, report)),
        ("clients", |asked, direct, _, report| clients::clients(asked, direct, report)),
        ("together", |asked, direct, _, report| clients::together(asked, direct, report)),
        ("memory", |_, direct, _, report| machine::memory(direct, report)),
        ("work", |_, direct, tree, report| work::work(direct, tree, report)),
        ("output", |_, direct, _, report| work::output(direct, report)),
    ];
    for (_, case) in cases.iter().filter(|(name, _)| asked.wants(name)) {
        case(asked, &direct, &tree, &mut report)?;
    }
    if let Some(file) = &asked.json {
        let all = json!({ "machine": machine, "cases": report.kept });
        std::fs::write(file, format!("{all:#}\n"))?;
    }
    Ok(())
}
