//! SIGKILL at random under load: a thousand calls as root, a thousand as a user.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Book, Client, Heard};
use crate::dice::Dice;
use crate::host::{Host, MARK, Seen, kill_below};
use crate::support::{Caller, Check, equal, holds, kill, patience};

/// Calls that are open at once: more than run.
const WINDOW: usize = 10;
/// Calls under which cells are killed, and those of each server that is.
const CELLS: u32 = 600;
const SERVER: u32 = 20;
/// How often each server is killed.
const ROUNDS: u64 = 10;

fn serve(caller: &Caller) -> Result<Client, crate::support::Failed> {
    Client::start(caller.cofferdam(&["serve", "--tools", "exec"]))
}

fn ask(client: &mut Client, book: &mut Book, dice: &mut Dice, number: u32) -> bool {
    let rest = dice.below(40);
    let command = format!(
        "touch /dev/shm/{MARK}{number} /tmp/{MARK}{number}; sleep 0.0{rest:02}; echo {number}"
    );
    match client.ask(json!({"command": command})) {
        Some(id) => book.open.insert(id, format!("{number}\n")).is_none(),
        None => false,
    }
}

/// Kills processes below `supervisor` until stopped; returns how many.
fn killer(
    supervisor: u32,
    seed: u64,
) -> (Arc<AtomicBool>, Arc<AtomicU32>, std::thread::JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let kills = Arc::new(AtomicU32::new(0));
    let stopped = Arc::clone(&stop);
    let count = Arc::clone(&kills);
    let thread = std::thread::spawn(move || {
        let mut dice = Dice::new(seed);
        while !stopped.load(Ordering::Relaxed) {
            if kill_below(supervisor, dice.next()) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(dice.below(25)));
        }
    });
    (stop, kills, thread)
}

pub fn cells(caller: &Caller) -> Check {
    let before = Host::now(caller)?;
    let seed = crate::dice::seed();
    let mut dice = Dice::new(seed);
    let mut book = Book::default();
    let mut seen = Seen::default();
    let mut client = serve(caller)?;
    client.served()?;
    let supervisor = client.supervisor()?;
    let (stop, kills, thread) = killer(supervisor, seed);
    let mut requests = 0;
    let end = Instant::now() + 2 * patience();
    while (requests < CELLS || !book.open.is_empty()) && Instant::now() < end {
        while requests < CELLS && book.open.len() < WINDOW {
            requests += 1;
            holds("it takes calls", requests, ask(&mut client, &mut book, &mut dice, requests))?;
        }
        match client.hear(Duration::from_millis(20)) {
            Heard::Line(line) => book.take(&line)?,
            Heard::Nothing => {}
            Heard::End => return Err(format!("seed {seed}: the server ended: {book:?}").into()),
        }
        if requests % 50 == 0 {
            seen.look(client.child.id());
        }
    }
    stop.store(true, Ordering::Relaxed);
    holds("the killer ended", seed, thread.join().is_ok())?;
    let output = format!("seed {seed}: {} kills: {:?}", kills.load(Ordering::Relaxed), book.ends);
    equal(&output, book.open.len(), 0)?;
    // Effects of a kill on a call: it hits the program, its init, or the cell before it had a job.
    let known = book.count("exited")
        + book.count("killed")
        + book.count("the cell ended without a report")
        + book.count("the cell could not be made")
        + book.count("the cell did not measure up");
    equal(&output, known, CELLS)?;
    holds("kills met calls", &output, book.count("exited") < CELLS && book.count("exited") > 0)?;
    equal("the same supervisor", client.supervisor()?, supervisor)?;
    client.served()?;
    client.close()?;
    seen.gone()?;
    seen.groups_gone(caller)?;
    equal("left on the host", Host::now(caller)?, before)
}

/// Sessions that are used at once, and their calls.
const SESSIONS: u32 = 4;
const TURNS: u32 = 200;

pub fn shells(caller: &Caller) -> Check {
    let before = Host::now(caller)?;
    let seed = crate::dice::seed();
    let mut dice = Dice::new(seed);
    let mut book = Book::default();
    let mut seen = Seen::default();
    let mut client = Client::start(caller.cofferdam(&["serve", "--tools", "shell,exec"]))?;
    client.served()?;
    let supervisor = client.supervisor()?;
    let (stop, kills, thread) = killer(supervisor, seed);
    let mut idle: Vec<u32> = (0..SESSIONS).collect();
    let mut used = std::collections::BTreeMap::new();
    let mut requests = 0;
    // No step takes as long as a second.
    let end = Instant::now() + patience();
    while (requests < TURNS || !book.open.is_empty()) && Instant::now() < end {
        while requests < TURNS
            && let Some(session) = idle.pop()
        {
            requests += 1;
            let rest = dice.below(40);
            let name = format!("s{session}");
            let command =
                format!("touch /dev/shm/{MARK}{requests}; sleep 0.0{rest:02}; echo {requests}");
            let asked_for = json!({"command": command, "session": name});
            let id = client.ask_tool("bash", asked_for).ok_or("the server is gone")?;
            used.insert(id, session);
            holds("a new number", id, book.open.insert(id, format!("{requests}\n")).is_none())?;
        }
        match client.hear(Duration::from_millis(20)) {
            Heard::Line(line) => {
                let id = line.get("id").and_then(serde_json::Value::as_u64);
                idle.extend(id.and_then(|id| used.remove(&id)));
                book.take(&line)?;
            }
            Heard::Nothing => {}
            Heard::End => return Err(format!("seed {seed}: the server ended: {book:?}").into()),
        }
        if requests % 20 == 0 {
            seen.look(client.child.id());
        }
    }
    stop.store(true, Ordering::Relaxed);
    holds("the killer ended", seed, thread.join().is_ok())?;
    let output = format!("seed {seed}: {} kills: {:?}", kills.load(Ordering::Relaxed), book.ends);
    equal(&output, book.open.len(), 0)?;
    holds("kills met calls", &output, book.count("exited") < TURNS && book.count("exited") > 0)?;
    equal(&output, book.ends.values().sum::<u32>(), TURNS)?;
    equal("the same supervisor", client.supervisor()?, supervisor)?;
    every_session_works(&mut client)?;
    client.close()?;
    seen.gone()?;
    seen.groups_gone(caller)?;
    equal("left on the host", Host::now(caller)?, before)
}

/// Checks that each session works, with its shell or a new one.
fn every_session_works(client: &mut Client) -> Check {
    for session in 0..SESSIONS {
        let arguments = json!({"command": "echo alive", "session": format!("s{session}")});
        let result = client.call_tool("bash", arguments)?;
        let printed = result.pointer("/structuredContent/stdout").cloned();
        equal(&result.to_string(), printed, Some(json!("alive\n")))?;
    }
    Ok(())
}

/// Kills two servers and starts one: whichever number it takes, the groups of both are removed.
pub fn groups(caller: &Caller) -> Check {
    let mut seen = Seen::default();
    let mut servers = [serve(caller)?, serve(caller)?];
    for client in &mut servers {
        client.served()?;
        // Cells are made in advance after the first call.
        let had = seen.groups_left();
        let end = Instant::now() + patience();
        while seen.groups_left() == had && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            seen.look(client.child.id());
        }
        kill(client.supervisor()?, nix::sys::signal::Signal::SIGKILL)?;
    }
    drop(servers);
    seen.gone()?;
    holds("the control: the killed could not remove theirs", &seen, seen.groups_left() > 0)?;
    seen.groups_gone(caller)
}

/// Process of the server that is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Front,
    Supervisor,
}

pub fn supervisor(caller: &Caller) -> Check {
    killed(caller, Victim::Supervisor)
}

pub fn front(caller: &Caller) -> Check {
    killed(caller, Victim::Front)
}

fn killed(caller: &Caller, victim: Victim) -> Check {
    let before = Host::now(caller)?;
    let seed = crate::dice::seed();
    let mut dice = Dice::new(seed);
    let mut ends = std::collections::BTreeMap::new();
    let mut seen = Seen::default();
    for _ in 0..ROUNDS {
        let book = round(caller, victim, &mut dice, &mut seen)
            .map_err(|error| format!("seed {seed}: {}", error.message().unwrap_or_default()))?;
        for (end, count) in book.ends {
            *ends.entry(end).or_insert(0) += count;
        }
        seen.gone()?;
    }
    // Not only the ends: the calls that were under way were met.
    holds("calls were met", (seed, &ends), seen.count() > 2 * usize::try_from(ROUNDS)? + 5)?;
    if victim == Victim::Supervisor {
        let failed = ends.iter().filter(|(end, _)| end.contains("supervisor failure"));
        let failed: u32 = failed.map(|(_, count)| count).sum();
        holds("open calls get a reason", (seed, &ends), failed > 0)?;
    }
    seen.groups_gone(caller)?;
    equal("left on the host", Host::now(caller)?, before)
}

/// Kills one server at a random moment of its calls.
fn round(
    caller: &Caller,
    victim: Victim,
    dice: &mut Dice,
    seen: &mut Seen,
) -> Result<Book, crate::support::Failed> {
    let mut book = Book::default();
    let mut client = serve(caller)?;
    // A server that never came up would answer each call with that error, and stay.
    client.served()?;
    let pid = match victim {
        Victim::Front => client.child.id(),
        Victim::Supervisor => client.supervisor()?,
    };
    let doom = Instant::now() + Duration::from_millis(5 + dice.below(120));
    let mut alive = true;
    let mut requests = 0;
    let end = Instant::now() + patience();
    while Instant::now() < end {
        while alive && requests < SERVER && book.open.len() < WINDOW {
            requests += 1;
            alive = ask(&mut client, &mut book, dice, requests);
        }
        if Instant::now() >= doom && alive {
            seen.look(client.child.id());
            // Looking takes its time on a busy machine: one call is open whatever ended meanwhile.
            let last = json!({"command": "sleep 600; echo never"});
            book.open.extend(client.ask(last).map(|id| (id, "never\n".to_owned())));
            kill(pid, nix::sys::signal::Signal::SIGKILL)?;
            alive = false;
        }
        match client.hear(Duration::from_millis(2)) {
            Heard::Line(line) => book.take(&line)?,
            Heard::Nothing => {}
            Heard::End => break,
        }
    }
    // The client sees the end, and says of no call that it went well which it did not.
    let status = client.end(patience())?;
    match victim {
        Victim::Front => {
            use std::os::unix::process::ExitStatusExt;
            equal("killed", status.signal(), Some(9))?;
        }
        Victim::Supervisor => {
            equal("supervisor failure is an exit code", status.code(), Some(125))?;
            equal("calls without an answer", book.open.len(), 0)?;
        }
    }
    Ok(book)
}
