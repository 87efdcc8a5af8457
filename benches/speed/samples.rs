//! Times of one case: taken in turns, so that what disturbs the machine disturbs everybody.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;

/// One who takes part in a case: does the work once and says how long it took.
pub struct Contender<'a> {
    pub name: String,
    pub once: Box<dyn FnMut() -> Result<Duration> + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(name: &str, once: impl FnMut() -> Result<Duration> + 'a) -> Self {
        Self { name: name.to_owned(), once: Box::new(once) }
    }
}

/// Runs `once` and takes the time.
pub fn timed<T>(once: impl FnOnce() -> Result<T>) -> Result<Duration> {
    let started = Instant::now();
    once()?;
    Ok(started.elapsed())
}

/// Measurements of one contender.
pub struct Row {
    pub name: String,
    /// Sorted.
    times: Vec<Duration>,
}

impl Row {
    /// The time that a share of all samples, in percent, was not above.
    pub fn percentile(&self, percent: usize) -> Duration {
        let last = self.times.len().saturating_sub(1);
        self.times.get(last * percent / 100).copied().unwrap_or_default()
    }

    pub fn median(&self) -> Duration {
        self.percentile(50)
    }

    pub fn least(&self) -> Duration {
        self.percentile(0)
    }
}

/// A case with all its rows. The first row is what the others are compared with.
pub struct Table {
    pub title: String,
    pub rows: Vec<Row>,
    /// Part of the goal that the table shows, in words.
    pub goal: &'static str,
}

/// How often, and how long the machine rests between two samples: cells are built and taken
/// down meanwhile, so that a sample has the processors for itself.
#[derive(Clone, Copy)]
pub struct Rounds {
    pub count: usize,
    pub pause: Duration,
}

/// Measures contenders in turns, each round beginning with another.
pub fn interleaved(
    title: &str,
    goal: &'static str,
    rounds: Rounds,
    contenders: &mut [Contender<'_>],
) -> Result<Table> {
    let many = contenders.len();
    let mut times = vec![Vec::with_capacity(rounds.count); many];
    // The first two rounds fill caches and pools, and are not counted.
    for round in 0..rounds.count + 2 {
        for place in 0..many {
            let index = (place + round) % many;
            let Some(contender) = contenders.get_mut(index) else { continue };
            let took =
                (contender.once)().map_err(|error| format!("{}: {error}", contender.name))?;
            if let Some(times) = times.get_mut(index).filter(|_| round >= 2) {
                times.push(took);
            }
            std::thread::sleep(rounds.pause);
        }
    }
    let rows = contenders.iter().zip(times).map(|(contender, mut times)| {
        times.sort_unstable();
        Row { name: contender.name.clone(), times }
    });
    Ok(Table { title: title.to_owned(), rows: rows.collect(), goal })
}

/// Microseconds, for tables.
pub fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 10.0
}

/// How many times as long.
pub fn ratio(time: Duration, than: Duration) -> f64 {
    time.as_secs_f64() / than.as_secs_f64().max(f64::MIN_POSITIVE)
}

impl Table {
    /// Prints the table as text. If the control, the first contender a second time, is not at 1.00,
    /// differences of that size mean nothing.
    pub fn print(&self) {
        println!("\n{} ({} rounds)", self.title, self.rows.first().map_or(0, |r| r.times.len()));
        if !self.goal.is_empty() {
            println!("goal: {}", self.goal);
        }
        let Some(base) = self.rows.first() else { return };
        println!(
            "{:<34} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9}",
            "us", "p50", "p99", "min", "p50/", "p99/", "p50-"
        );
        for row in &self.rows {
            let p50 = row.median();
            let p99 = row.percentile(99);
            println!(
                "{:<34} {:>9.0} {:>9.0} {:>9.0} {:>7.2} {:>7.2} {:>+9.0}",
                row.name,
                micros(p50),
                micros(p99),
                micros(row.least()),
                ratio(p50, base.median()),
                ratio(p99, base.percentile(99)),
                micros(p50) - micros(base.median()),
            );
        }
    }

    pub fn json(&self) -> Value {
        let base = self.rows.first().map_or(Duration::ZERO, Row::median);
        let rows = self.rows.iter().map(|row| {
            json!({
                "name": row.name, "samples": row.times.len(),
                "p50_us": micros(row.median()), "p90_us": micros(row.percentile(90)),
                "p99_us": micros(row.percentile(99)), "min_us": micros(row.least()),
                "ratio_p50": ratio(row.median(), base),
            })
        });
        json!({ "case": self.title, "goal": self.goal, "rows": rows.collect::<Vec<_>>() })
    }
}
