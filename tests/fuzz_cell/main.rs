//! Random system calls in real cells, judged from outside: by canaries on the host, by a session that runs at the
//! same time, and by the server itself.
//!
//! COFFERDAM_FUZZ_SECONDS sets the duration (3), COFFERDAM_SEED the seed: a failure prints the seed, and
//! the same seed makes the same calls. `make fuzz` runs it as its target `cell`, and
//! COFFERDAM_KERNEL_TESTS=fuzz_cell tests/kernels/run runs it in a virtual machine.

#[path = "../support/mod.rs"]
mod support;

mod canaries;
#[path = "../support/client.rs"]
#[allow(dead_code, reason = "the faults use all of it")]
mod client;
#[path = "../support/dice.rs"]
mod dice;
#[path = "../support/host.rs"]
#[allow(dead_code, reason = "the faults use all of it")]
mod host;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use canaries::{Canaries, Day};
use client::Client;
use dice::seed;
use host::{Host, Seen};
use support::{Caller, Check, Failed, Need, claim, equal, holds};

/// The program of the cells.
const RANDOM: &str = include_str!("random.py");
/// Seconds of one cell.
const ROUND: u64 = 2;
/// Calls without which nothing was shown, and the cells that are tried for them.
const MIN_CALLS: u64 = 100;
const MAX_ROUNDS: u64 = 20;
/// Seconds that a call may take until its limit ends it.
const LIMIT: u64 = 20;

fn main() -> ExitCode {
    let claims = [
        claim("random_calls_in_cells_touch_nothing_outside", fuzzed),
        claim("a_canary_that_is_touched_is_seen", touched),
    ];
    support::run(support::Mostly::Compute, |tests| {
        tests.claims("", &claims.map(|claim| claim.alone().needs(&[Need::Python])));
    })
}

fn seconds() -> Duration {
    let given = std::env::var("COFFERDAM_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(3))
}

fn fuzzed(caller: &Caller) -> Check {
    let seed = seed();
    let end = Instant::now() + seconds();
    let canaries = Canaries::new(caller)?;
    let before = Host::now(caller)?;
    let day = Day::now()?;
    let mut client = Client::start(caller.cofferdam(&["serve", "--tools", "shell,exec"]))?;
    let mut fuzz = Fuzz { seen: Seen::default(), supervisor: 0, rounds: 0, made: 0 };
    fuzz.keeps_state(&mut client)?;
    fuzz.supervisor = client.supervisor()?;
    // At least so many calls, as an emulated machine is slow to begin with them.
    while (fuzz.made <= MIN_CALLS && fuzz.rounds < MAX_ROUNDS) || Instant::now() < end {
        let own = seed.wrapping_add(fuzz.rounds);
        let round = fuzz.round(&mut client, &canaries, own).and_then(|()| day.kept());
        round.map_err(|reason| {
            let reason = reason.message().unwrap_or_default().to_owned();
            Failed::from(format!("with COFFERDAM_SEED={own}: {reason}"))
        })?;
    }
    println!("cell: {} calls in {} cells, from seed {seed}", fuzz.made, fuzz.rounds);
    holds("calls that were made", fuzz.made, fuzz.made > MIN_CALLS)?;
    client.close()?;
    fuzz.seen.gone()?;
    canaries.untouched()?;
    equal("left on the host", Host::now(caller)?, before)
}

/// Progress of the fuzzing.
struct Fuzz {
    seen: Seen,
    supervisor: u32,
    rounds: u64,
    made: u64,
}

impl Fuzz {
    /// One cell, and a look at everything else afterwards.
    fn round(&mut self, client: &mut Client, canaries: &Canaries, seed: u64) -> Check {
        let command = format!(
            "/usr/bin/python3 - {seed} {ROUND} {} {} '{}' '{}' <<'PROGRAM'\n{RANDOM}PROGRAM\n",
            canaries.pid(),
            canaries.port()?,
            canaries.name,
            canaries.directory.display()
        );
        // The workspace is the session's: an earlier cell may have taken all rights to it away.
        let call = json!({ "command": command, "timeout": LIMIT, "working_dir": "/tmp" });
        let result = client.call(call)?;
        let output = |field| result.pointer(&format!("/structuredContent/{field}"));
        let code = output("exit_code").and_then(Value::as_u64);
        // Accepts every end of the program: an exit, a signal or a limit of the cell. 125 is a failure of cofferdam.
        holds("an end of the program's own", &result, !matches!(code, None | Some(125)))?;
        let printed = output("stdout").and_then(Value::as_str).unwrap_or_default();
        let made = printed.lines().rev().find_map(|line| line.strip_prefix("made ")?.parse().ok());
        self.made += made.unwrap_or(0_u64);
        self.rounds += 1;
        self.seen.look(client.child.id());
        self.keeps_state(client)?;
        equal("the same supervisor", client.supervisor()?, self.supervisor)?;
        canaries.untouched()
    }

    /// The shell of a session has what it had.
    fn keeps_state(&self, client: &mut Client) -> Check {
        let result = client.call_tool("bash", json!({ "command": "echo $((rounds++))" }))?;
        let printed = result.pointer("/structuredContent/stdout").and_then(Value::as_str);
        equal("a session at the same time", printed, Some(format!("{}\n", self.rounds).as_str()))
    }
}

/// The control of the judge: each kind of touch, outside any cell, is seen.
fn touched(caller: &Caller) -> Check {
    let touches = [
        "import os, signal; os.kill(PID, signal.SIGSTOP)",
        "import os; os.setpriority(os.PRIO_PROCESS, PID, 7)",
        "import resource; resource.prlimit(PID, resource.RLIMIT_NOFILE, (77, 77))",
        "open(PATH + '/secret', 'a').write('x')",
        "import os; os.chmod(PATH + '/secret', 0o604)",
        "open(PATH + '/new', 'w')",
        "import socket; socket.create_connection(('127.0.0.1', PORT))",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', DATAGRAM))",
        "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', PATH + '/socket')",
        "import socket; socket.socket(socket.AF_UNIX).connect('\\0' + NAME)",
    ];
    for touch in touches {
        let canaries = Canaries::new(caller)?;
        canaries.untouched()?;
        let facts = format!(
            "PID, PORT, DATAGRAM, NAME, PATH = {}, {}, {}, '{}', '{}'\n{touch}",
            canaries.pid(),
            canaries.port()?,
            canaries.datagram_port()?,
            canaries.name,
            canaries.directory.display()
        );
        let output = caller.python_outside(&facts)?;
        equal(touch, (output.code, output.stderr.as_str()), (0, ""))?;
        // The state of a process follows its signal.
        std::thread::sleep(Duration::from_millis(50));
        holds(touch, "untouched", canaries.untouched().is_err())?;
        std::fs::remove_dir_all(&canaries.directory)?;
    }
    Ok(())
}
