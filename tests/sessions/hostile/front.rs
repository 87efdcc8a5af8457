//! The process that is taken over: started and confined as `serve` is, then hostile.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use cofferdam::commands::{launch, settings};
use model::job::{ListChanges, ProfileName, Workspace};
use model::outcome::Outcome;
use model::wire::{Carried, JobInput, Start};

use super::acts::{ACTS, Place};
use super::frames::{self, Hoard};
use super::link::{Check, Link};
use super::{allowed, calls};
use crate::dice::Dice;

/// Makes this program act as the front end of a test.
pub const FLAG: &str = "--taken-over";
/// Cells at once, as the test's configuration has them.
const SLOTS: u32 = 6;
/// Frames of one storm.
const FRAMES: u32 = 1500;

/// Plays `role` to its end.
pub fn main(role: &str, home: PathBuf, other: &str, seed: &str) -> ExitCode {
    let seed = seed.parse().unwrap_or_default();
    let played = match role {
        "bare" => act(home, other, false),
        "acts" => act(home, other, true),
        "sweep" => sweep(home),
        "calls" => confined(home).map(|link| {
            say("ready");
            // Until its supervisor was seen: some storms end themselves in a moment.
            std::io::stdin().read_line(&mut String::new()).unwrap_or_default();
            calls::storm(seed);
            drop(link);
        }),
        "frames" => storm(home, seed),
        other => Err(format!("no role {other}")),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // The one line that the test reads.
            say(&format!("seed {seed}: {reason}"));
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).unwrap_or_default();
}

/// Confines this process as `serve` does: the supervisor first, then the walls.
fn confined(home: PathBuf) -> Check<std::os::fd::OwnedFd> {
    let settings = settings::load(Some(&home.join("config"))).map_err(|error| error.text())?;
    launch::unrecorded(settings).map_err(|error| error.text())
}

fn act(home: PathBuf, other: &str, walls: bool) -> Check {
    let other = other.parse().map_err(|_| "no pid".to_owned())?;
    let place = Place::new(home.clone(), other).map_err(|errno| format!("a place: {errno}"))?;
    let link = if walls { Some(confined(home)?) } else { None };
    for act in &ACTS {
        match (act.tried)(&place) {
            Ok(()) => say(&format!("{}: ok", act.name)),
            Err(errno) => say(&format!("{}: {errno}", act.name)),
        }
    }
    drop(link);
    Ok(())
}

fn sweep(home: PathBuf) -> Check {
    let link = confined(home)?;
    let (count, wrong) = allowed::sweep();
    for line in wrong {
        say(&line);
    }
    say(&format!("swept {count}"));
    drop(link);
    Ok(())
}

fn storm(home: PathBuf, seed: u64) -> Check {
    let hoard = Hoard::new()?;
    let settings = settings::load(Some(&home.join("config"))).map_err(|error| error.text())?;
    let profile = ProfileName::new("bash").ok_or("a name")?;
    let limits = settings.loaded.profiles.get(&profile).ok_or("a profile")?.limits;
    let socket = launch::unrecorded(settings).map_err(|error| error.text())?;
    let mut link = Link::greeted(socket)?;
    let mut honest = Start {
        call: link.fresh(),
        profile,
        workspace: Workspace::Fresh,
        only: None,
        session_profile: None,
        session: None,
        changes: ListChanges::No,
        limits,
        stdin: JobInput::Empty,
        script: None,
        block: Carried::Sealed,
    };
    link.served(honest.clone())?;
    say("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| error.to_string())?;
    frames::storm(&mut link, &hoard, &honest, &mut Dice::new(seed), FRAMES)?;
    // Cells that were built for jobs which were taken back wait for others: these use them up.
    let bc = ProfileName::new("bc").ok_or("a name")?;
    for _ in 0..SLOTS {
        honest.call = link.fresh();
        link.served(honest.clone())?;
        let start = Start { call: link.fresh(), profile: bc.clone(), ..honest.clone() };
        let outcome = link.run(start, &["bc"])?;
        if outcome != (Outcome::Exited { code: 0 }) {
            return Err(format!("bc ended with {outcome:?}"));
        }
    }
    say("done");
    std::io::stdin().read_line(&mut line).map(drop).map_err(|error| error.to_string())
}
