//! The transcript in docs/session.md is what the server does, for each caller.

#[path = "../../examples/story.rs"]
mod played;

use crate::support::{Caller, Check, Claim, Failed, Need, claim, equal};

/// The transcript as it was recorded.
const RECORDED: &str = include_str!("../../docs/session.md");

pub fn claims() -> Vec<Claim> {
    vec![claim("the_documented_session_runs", plays).needs(&[Need::Bc, Need::Gcc, Need::Git])]
}

fn plays(caller: &Caller) -> Check {
    let granted = caller.directory("granted")?;
    let mut make = caller.outside("/bin/bash");
    make.arg("-c").arg(played::PROJECT).current_dir(&granted);
    equal("the repository is made", make.status()?.code(), Some(0))?;
    let path = granted.display().to_string();
    let serve =
        caller.cofferdam(&[&["serve", "--workspace", &path], &played::OPTIONS[..]].concat());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut transcript = Vec::new();
    let played = runtime.block_on(played::play(serve, &mut transcript));
    let transcript = String::from_utf8(transcript)?;
    played.map_err(|error| Failed::from(format!("{error}; so far:\n{transcript}")))?;
    // The agent's commits have arrived, by git outside the cell.
    let log = "git -C granted/tally log --format='%an: %s' tally-without-a-loop";
    let handed = caller.bash_outside(log)?;
    equal("on the host", handed.trimmed(), "Agent: Tally without a loop\nOwner: Tally numbers")?;
    equal("the recorded calls are these", calls(RECORDED), calls(&transcript))
}

/// Returns the lines with calls: in replies, times and ids are different each time.
fn calls(transcript: &str) -> Vec<&str> {
    transcript.lines().filter(|line| line.starts_with("> ")).collect()
}
