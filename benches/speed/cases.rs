//! The quick cases: one call at a time, in turns with a bare process and the peers.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

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

/// Warm calls through the supervisor, each compared with the bare command, which runs twice.
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

/// Cells with a network and cells without, one for each call, over MCP: of a pool, and built when they are asked for.
pub fn egress(asked: &Asked, report: &mut Report) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let none = directory.path().join("cofferdam.toml");
    std::fs::write(&none, "schema = 1\n[pool]\nwarm = 0\n")?;
    let cold = directory.path().to_string_lossy().into_owned();
    let goals = [("warm", None, "at most 10 us more"), ("cold", Some(cold), "at most 450 us more")];
    for (title, config, goal) in goals {
        let start = |words: &[&str]| {
            let config = config.iter().flat_map(|place| ["--config", place.as_str()]);
            let all: Vec<&str> =
                config.chain(["serve", "--tools", "exec"]).chain(words.iter().copied()).collect();
            Client::start(&all).map(RefCell::new)
        };
        let without = start(&[])?;
        let again = start(&[])?;
        let with = start(&["--egress", "example.org:443"])?;
        let command = json!({ "command": "true" });
        let ask = |client: &RefCell<Client>| Ok(client.borrow_mut().call("bash_exec", &command)?.0);
        let mut all = [
            Contender::new("a cell without a network", || ask(&without)),
            Contender::new("a cell with egress", || ask(&with)),
            Contender::new("without again (control)", || ask(&again)),
        ];
        report.table(&interleaved(&format!("egress: {title}"), goal, asked.rounds, &mut all)?);
    }
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

/// One command in a cell, from the spawn of `cofferdam` to its end, compared with the peers.
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

/// Scripts of a project: one among a thousand, its list, and the first call of a server.
pub fn project(asked: &Asked, report: &mut Report) -> Result<()> {
    let small = made_project(1)?;
    let large = made_project(1000)?;
    let words = |held: &TempDir| {
        let project = held.path().to_string_lossy().into_owned();
        ["serve", "--toolchains", "none", "--project", &project].map(str::to_owned).to_vec()
    };
    let start = |held: &TempDir| {
        let words = words(held);
        Client::start(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let one = RefCell::new(start(&small)?);
    let many = RefCell::new(start(&large)?);
    let ask =
        |client: &RefCell<Client>, tool: &str| Ok(client.borrow_mut().call(tool, &json!({}))?.0);
    let mut all = [
        bare("bare bash -c true", BASH),
        Contender::new("a tool, of one", || ask(&one, "t0000")),
        Contender::new("a tool, of 1,000", || ask(&many, "t0999")),
        bare("bare again (control)", BASH),
    ];
    let goal = "bare + 5 ms; no slower among 1,000";
    report.table(&interleaved("project: a tool that does nothing", goal, asked.rounds, &mut all)?);
    let mut all = [
        bare("bare /bin/true", TRUE),
        Contender::new("every page of 1,000 tools", || {
            let mut took = Duration::ZERO;
            let mut params = json!({ "limit": 200 });
            loop {
                let (time, result) = many.borrow_mut().list("tools/list", &params)?;
                took += time;
                match result.get("nextCursor") {
                    Some(cursor) => params = json!({ "limit": 200, "cursor": cursor }),
                    None => return Ok(took),
                }
            }
        }),
        bare("bare again (control)", TRUE),
    ];
    let title = "project: the list of 1,000 tools";
    report.table(&interleaved(title, "at most 50 ms", asked.rounds, &mut all)?);
    let mut all = [
        bare("bare /bin/true", TRUE),
        Contender::new("serve, to the first result", || {
            timed(|| start(&small)?.call("t0000", &json!({})))
        }),
        Contender::new("the same with 1,000 tools", || {
            timed(|| start(&large)?.call("t0999", &json!({})))
        }),
        bare("bare again (control)", TRUE),
    ];
    let rounds = Rounds { count: asked.rounds.count.min(50), pause: Duration::from_millis(30) };
    report.table(&interleaved("project: the first call", "at most 50 ms", rounds, &mut all)?);
    Ok(())
}

/// Makes a project with so many tools, each with a description and a schema.
fn made_project(tools: usize) -> Result<TempDir> {
    let held = tempfile::tempdir()?;
    let schema = json!({ "type": "object", "properties": { "value": { "type": "string", "description": "A value" } } });
    for number in 0..tools {
        let name = format!("t{number:04}");
        let folder = held.path().join("tools").join(&name);
        std::fs::create_dir_all(&folder)?;
        let meta = json!({ "name": name, "description": "Does nothing, as a tool of a thousand", "inputSchema": schema });
        std::fs::write(folder.join("tool.sh"), "true\n")?;
        std::fs::write(folder.join("tool.meta.json"), meta.to_string())?;
    }
    let status =
        std::process::Command::new("chmod").args(["-R", "go-w"]).arg(held.path()).status()?;
    if status.success() { Ok(held) } else { Err("chmod failed".into()) }
}
