//! The quick cases: one call at a time, in turns with a bare process and the peers.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use serde_json::json;

use crate::client::Client;
use crate::direct::{Direct, Job};
use crate::peers::{bare, cofferdam, installed, run};
use crate::samples::{Contender, Rounds, interleaved, timed};
use crate::{Asked, Report, Result};

const TRUE: &[&str] = &["/bin/true"];
const BASH: &[&str] = &["bash", "-c", "true"];
/// With its whole path: some peers look in no `PATH`.
const COLD: &[&str] = &["/bin/bash", "-c", "true"];
const PIPE: &[&str] = &["bash", "-c", "echo hi | cat"];
const PI: &str = "scale=50\n4*a(1)\n";

/// A bare bc with its program in a file, as nothing but bc is to be compared.
fn bare_bc(name: &str) -> Result<Contender<'static>> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), PI)?;
    let once = move || {
        let path = file.path().to_string_lossy().into_owned();
        let input = std::fs::File::open(&path)?;
        timed(|| {
            let mut command = std::process::Command::new("bc");
            let output = command.args(["-l", "-q"]).stdin(input).output()?;
            match output.stdout.starts_with(b"3.14159265358979") {
                true => Ok(()),
                false => Err("bc gave another value".into()),
            }
        })
    };
    Ok(Contender::new(name, once))
}

/// Warm calls through the supervisor, each beside the bare command, which is there twice.
pub fn warm(asked: &Asked, direct: &Direct, report: &mut Report) -> Result<()> {
    let goal = "p50 at most 1.10x bare, p99 at most 1.5x";
    for (title, words) in [
        ("warm: /bin/true", TRUE),
        ("warm: bash -c true", BASH),
        ("warm: bash -c 'echo hi | cat'", PIPE),
    ] {
        let job = Job::bash(words);
        let mut all = [
            bare("bare", words),
            Contender::new("cofferdam, warm", || Ok(direct.call(&job)?.took)),
            bare("bare again (control)", words),
        ];
        report.table(&interleaved(title, goal, asked.rounds, &mut all)?);
    }
    let job = Job::bc(PI);
    let mut all = [
        bare_bc("bare")?,
        Contender::new("cofferdam, warm", || Ok(direct.call(&job)?.took)),
        bare_bc("bare again (control)")?,
    ];
    report.table(&interleaved("warm: bc, 4*a(1) at 50 places", goal, asked.rounds, &mut all)?);
    Ok(())
}

/// Tool calls over MCP, request line to reply line.
pub fn mcp(asked: &Asked, report: &mut Report) -> Result<()> {
    let private = RefCell::new(Client::start(&["serve"])?);
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_string_lossy().into_owned();
    let granted = RefCell::new(Client::start(&["serve", "--workspace", &path])?);
    let bash = json!({ "command": "true" });
    let ask = |client: &RefCell<Client>| Ok(client.borrow_mut().call("bash", &bash)?.0);
    let mut all = [
        bare("bare bash -c true", BASH),
        Contender::new("bash, private workspace", || ask(&private)),
        Contender::new("bash, writable grant", || ask(&granted)),
        bare("bare again (control)", BASH),
    ];
    let goal = "private: bare + 400 us; a grant waits for the end of the cell";
    report.table(&interleaved("mcp: bash `true`", goal, asked.rounds, &mut all)?);
    Ok(())
}

/// Calculations over MCP: one that is new, and one that was asked before.
pub fn calculate(asked: &Asked, report: &mut Report) -> Result<()> {
    let private = RefCell::new(Client::start(&["serve"])?);
    let count = Cell::new(0_u32);
    let mut all = [
        bare_bc("bare bc, one scale")?,
        Contender::new("calculate, another each time", || {
            count.set(count.get() + 1);
            let expression = format!("4*a(1)+{}", count.get());
            let arguments = json!({ "expression": expression, "precision": 50 });
            Ok(private.borrow_mut().call("calculate", &arguments)?.0)
        }),
        Contender::new("calculate, the same again", || {
            let arguments = json!({ "expression": "4*a(1)", "precision": 50 });
            Ok(private.borrow_mut().call("calculate", &arguments)?.0)
        }),
        bare_bc("bare again (control)")?,
    ];
    let goal = "bare bc + 400 us; the same again under 200 us";
    report.table(&interleaved("mcp: calculate 4*a(1) at 50 places", goal, asked.rounds, &mut all)?);
    Ok(())
}

/// One command in a cell, from the spawn of `cofferdam` to its end, beside the peers.
pub fn cold(asked: &Asked, report: &mut Report) -> Result<()> {
    let words: Vec<&str> = [cofferdam(), "run", "--"].iter().chain(COLD).copied().collect();
    let once = move || timed(|| run(&words));
    let mut all = vec![bare("bare", COLD), Contender::new("cofferdam run", once)];
    all.extend(installed(COLD));
    all.push(bare("bare again (control)", COLD));
    let rounds = Rounds { count: asked.rounds.count.min(100), pause: Duration::from_millis(20) };
    let goal = "at most 2.0x bare, and faster than bwrap, minijail and isolate";
    report.table(&interleaved("cold: run -- /bin/bash -c true", goal, rounds, &mut all)?);
    Ok(())
}

/// From the spawn of a server to its answer to `initialize`.
pub fn start(asked: &Asked, report: &mut Report) -> Result<()> {
    let mut all = [
        bare("bare /bin/true", TRUE),
        Contender::new("serve, to the initialize reply", || {
            Ok(Client::start(&["serve"])?.opened_in)
        }),
        bare("bare again (control)", TRUE),
    ];
    let rounds = Rounds { count: asked.rounds.count.min(50), pause: Duration::from_millis(30) };
    report.table(&interleaved("start: server", "at most 3000 us", rounds, &mut all)?);
    Ok(())
}
