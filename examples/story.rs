//! One afternoon of an agent with `cofferdam serve`, as an MCP client has it: clone, build, test, page, kill, mend.
//!
//! `make story` plays it and prints the transcript that docs/session.md shows. The client is that
//! of the Rust SDK (rmcp), so nothing here knows how a message looks on the wire. Every step is
//! checked: a story that differs ends with an error. `tests/sessions/story.rs` plays it too.

use std::error::Error;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::{RoleClient, RunningService, ServiceExt};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Makes the repository that is granted, in the current directory, as its owner would.
pub const PROJECT: &str = r##"set -e
git init -q -b main tally && cd tally
git config user.name Owner && git config user.email owner@example.org
cat > tally.c <<'END'
/* The sum of 1 to n. */
unsigned long long tally(unsigned long long n) {
    unsigned long long sum = 0;
    for (unsigned long long i = 1; i <= n; i++) sum += i;
    return sum;
}
END
cat > check.c <<'END'
#include <stdio.h>
unsigned long long tally(unsigned long long n);
static int failed;
static void check(unsigned long long n, unsigned long long sum) {
    int ok = tally(n) == sum;
    failed |= !ok;
    printf("%s - the sum of 1 to %llu is %llu\n", ok ? "ok" : "not ok", n, sum);
    fflush(stdout);
}
int main(void) {
    for (unsigned long long n = 0; n < 400; n++) check(n, n * (n + 1) / 2);
    puts("# large"), fflush(stdout);
    check(1000000000000000ULL, 2538972135152631808ULL);
    return failed;
}
END
printf 'check: tests\n\t./tests\ntests: check.c tally.c\n\tcc -O0 -o $@ $^\n' > Makefile
git add . && git commit -qm 'Tally numbers'
"##;

/// Options of `cofferdam serve` in addition to the granted directory.
pub const OPTIONS: [&str; 2] = ["--tools", "calc,math,shell"];

const PI: &str = "3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170680";

/// A client with its server, and the writer for the transcript.
struct Session<'w> {
    client: RunningService<RoleClient, ()>,
    out: &'w mut dyn Write,
    /// The tests in the background.
    job: Value,
}

/// Plays the whole story with the server that `serve` starts, whose /workspace has [`PROJECT`].
///
/// # Errors
/// The first step that went otherwise.
pub async fn play(serve: Command, out: &mut dyn Write) -> Outcome<()> {
    let mut server = tokio::process::Command::from(serve)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let replies = server.stdout.take().ok_or("the server has no output")?;
    let requests = server.stdin.take().ok_or("the server has no input")?;
    let client = ().serve((replies, requests)).await?;
    let mut session = Session { client, out, job: Value::Null };
    let tools = session.client.list_all_tools().await?;
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    session.say(&format!("tools: {}", names.join(", ")))?;
    session.build().await?;
    session.meanwhile().await?;
    session.find().await?;
    session.mend().await?;
    session.client.cancel().await?;
    let end = server.wait().await?;
    if end.success() { Ok(()) } else { Err(format!("the server ended with {end}").into()) }
}

impl Session<'_> {
    async fn build(&mut self) -> Outcome<()> {
        self.head("Clone the repository of the granted folder, and build it")?;
        // The host obeys `.git/hooks` and the like: no repository can be made in a granted folder.
        let reply = self.bash(json!({ "command": "git clone tally mine" })).await?;
        expect(&reply, "exit_code", &json!(1))?;
        self.head("In /tmp, then")?;
        let clone = "git clone -q tally /tmp/tally && cd /tmp/tally && make tests";
        let reply = self.bash(json!({ "command": clone })).await?;
        expect(&reply, "exit_code", &json!(0))
    }

    async fn meanwhile(&mut self) -> Outcome<()> {
        self.head("Run its tests in the background, and ask for other things")?;
        let tests = json!({ "command": "make check", "background": true, "tail": 1 });
        self.job = part(&self.bash(tests).await?, "job")?;
        let other = json!({ "command": "git log --oneline | wc -l" });
        let reply = self.bash(other).await?;
        expect(&reply, "stdout", &json!("1\n"))?;
        let plot = json!({
            "expression": "s(x)", "from": "-pi", "to": "pi", "width": 64, "height": 13,
        });
        let reply = self.call("calculate_plot", plot).await?;
        expect(&reply, "gaps", &json!(0))?;
        let reply = self.call("calculate", json!({ "expression": "pi", "precision": 100 })).await?;
        expect(&reply, "result", &json!(PI))
    }

    async fn find(&mut self) -> Outcome<()> {
        self.head("Page through the output of the tests")?;
        let job = self.job.clone();
        self.until_stuck(&job).await?;
        let page = json!({ "job": job, "since": {}, "max_output": 240 });
        let reply = self.call("bash_output", page).await?;
        let page = json!({ "job": job, "since": part(&reply, "next")?, "max_output": 240 });
        self.call("bash_output", page).await?;
        let reply = self.call("bash_output", json!({ "job": job, "tail": 2 })).await?;
        let last = part(&reply, "stdout")?;
        if !last.as_str().is_some_and(|last| last.ends_with(" is 79800\n# large\n")) {
            return Err(format!("the last two lines are {last}").into());
        }
        let reply = self.call("bash_output", json!({ "job": job, "grep": "^not ok" })).await?;
        expect(&reply, "stdout", &json!(""))?;

        self.head("It is stuck in the large one: kill it")?;
        self.call("bash_kill", json!({ "job": job })).await?;
        let reply = self.call("bash_jobs", json!({})).await?;
        let outcome = part(&reply, "jobs")?.pointer("/0/outcome").cloned();
        if outcome == Some(json!("running")) { Err("the job still runs".into()) } else { Ok(()) }
    }

    /// Waits, unseen, for the tests to be where they never end: on a busy machine that takes a while.
    async fn until_stuck(&mut self, job: &Value) -> Outcome<()> {
        let end = Instant::now() + Duration::from_secs(120);
        while Instant::now() < end {
            let ask = json!({ "job": job, "grep": "^# large$", "wait": 1 });
            let reply = self.call_quietly("bash_output", ask).await?;
            if part(&reply, "stdout")? == json!("# large\n") {
                return Ok(());
            }
        }
        Err("the tests did not get to the large one".into())
    }

    async fn mend(&mut self) -> Outcome<()> {
        self.head("Mend it, test it, and hand the change back")?;
        let mend = "cd /tmp/tally && cat > tally.c <<'END'\n\
            /* The sum of 1 to n. */\n\
            unsigned long long tally(unsigned long long n) {\n    \
            return n % 2 ? (n + 1) / 2 * n : n / 2 * (n + 1);\n\
            }\n\
            END\n\
            make check";
        let reply = self.bash(json!({ "command": mend, "tail": 3 })).await?;
        expect(&reply, "exit_code", &json!(0))?;
        let push = "git -c user.name=Agent -c user.email=agent@example.org \
                    commit -qam 'Tally without a loop' && git push -q origin HEAD:tally-without-a-loop";
        let reply = self.bash(json!({ "command": push })).await?;
        expect(&reply, "exit_code", &json!(0))
    }

    async fn bash(&mut self, arguments: Value) -> Outcome<CallToolResult> {
        self.call("bash", arguments).await
    }

    /// Calls a tool, and writes what was sent and the text that came back.
    async fn call(&mut self, tool: &'static str, arguments: Value) -> Outcome<CallToolResult> {
        writeln!(self.out, "\n> {tool} {}", shown(&arguments))?;
        let result = self.call_quietly(tool, arguments).await?;
        let output = serde_json::to_value(&result.content)?;
        for part in output.as_array().into_iter().flatten() {
            let text = part.get("text").and_then(Value::as_str).unwrap_or_default();
            for line in text.lines() {
                writeln!(self.out, "  {line}")?;
            }
        }
        Ok(result)
    }

    async fn call_quietly(
        &mut self,
        tool: &'static str,
        arguments: Value,
    ) -> Outcome<CallToolResult> {
        let given = arguments.as_object().cloned().unwrap_or_default();
        let request = CallToolRequestParams::new(tool).with_arguments(given);
        Ok(self.client.call_tool(request).await?)
    }

    fn head(&mut self, text: &str) -> Outcome<()> {
        Ok(writeln!(self.out, "\n# {text}")?)
    }

    fn say(&mut self, text: &str) -> Outcome<()> {
        Ok(writeln!(self.out, "{text}")?)
    }
}

/// Arguments as one reads them: a script of many lines stands on many.
fn shown(arguments: &Value) -> String {
    arguments.to_string().replace("\\n", "\n    ")
}

fn part(reply: &CallToolResult, name: &str) -> Outcome<Value> {
    let content = reply.structured_content.as_ref();
    let value = content.and_then(|content| content.get(name)).cloned();
    value.ok_or_else(|| format!("no `{name}` in {reply:?}").into())
}

fn expect(reply: &CallToolResult, name: &str, value: &Value) -> Outcome<()> {
    let found = part(reply, name)?;
    if found == *value { Ok(()) } else { Err(format!("`{name}` is {found}, not {value}").into()) }
}

#[allow(dead_code, reason = "a test plays the story without it")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let binary = std::env::args().nth(1).unwrap_or_else(|| "target/release/cofferdam".to_owned());
    let granted = tempfile::tempdir()?;
    let made = Command::new("bash").arg("-c").arg(PROJECT).current_dir(&granted).status()?;
    if !made.success() {
        return Err("the repository cannot be made: are git and bash here?".into());
    }
    let mut serve = Command::new(&binary);
    serve.arg("serve").arg("--workspace").arg(granted.path()).args(OPTIONS);
    let mut out = std::io::stdout();
    play(serve, &mut out).await?;
    // The owner's repository after the agent's work.
    let log = ["log", "--oneline", "--format=%an: %s", "tally-without-a-loop"];
    let log = Command::new("git").arg("-C").arg(granted.path().join("tally")).args(log).output()?;
    print!("\n# On the host\n\n$ git log --format='%an: %s' tally-without-a-loop\n");
    Ok(out.write_all(&log.stdout)?)
}
