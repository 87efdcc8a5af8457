//! A program that is executed before its job is there: who may have it, and that nothing else differs.
//!
//! The supervisor starts only from a process with one thread, so this test has a `main` of its own
//! and no harness. Root runs it for itself and then for an ordinary user, whose cells no cgroup holds.

mod front;
mod jobs;
#[path = "../support/link.rs"]
mod link;
#[path = "../support/patience.rs"]
mod patience;

use std::os::unix::process::CommandExt;
use std::time::Duration;

use sys::process;

use front::{Check, Front};

/// An ordinary user: an id that nothing else on the machine has.
const USER: u32 = 64_322;
/// Set where this program runs for that user.
const AGAIN: &str = "COFFERDAM_TEST_AS_USER";

type Claim = (&'static str, fn(&mut Front) -> Check);

const CLAIMS: [Claim; 7] = [
    ("nothing_is_executed_before_a_job_of_its_kind_came", jobs::lazy),
    ("two_programs_wait_and_a_job_with_other_input_gets_one", jobs::waits),
    ("each_serves_one_job_and_leaves_nothing_to_the_next", jobs::once),
    ("a_job_that_differs_in_more_gets_a_cell_without_it", jobs::differs),
    ("the_walls_and_the_receipt_are_those_of_any_cell", jobs::walls),
    ("the_limits_of_a_job_hold_and_begin_with_it", jobs::limits),
    ("one_that_dies_is_noticed_and_no_job_is_lost", jobs::dies),
];

fn main() {
    let who = if std::env::var_os(AGAIN).is_some() { "as a user" } else { "as it was started" };
    let mut failed = 0;
    // First: its programs are told from those of the supervisor below by their time.
    if nix::unistd::geteuid().is_root() && !as_user().expect("the test can be started again") {
        failed += 1;
    }
    let mut front = Front::start().expect("a supervisor");
    for (name, claim) in CLAIMS {
        match claim(&mut front) {
            Ok(()) => println!("test {name} {who} ... ok"),
            Err(why) => {
                failed += 1;
                println!("test {name} {who} ... FAILED: {why}");
            }
        }
    }
    let passed = CLAIMS.len().saturating_sub(failed);
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    process::exit_now(i32::from(failed > 0));
}

/// Runs the same as an ordinary user, from a directory that everybody may enter.
fn as_user() -> std::io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::Builder::new().prefix("cofferdam-test-").tempdir()?;
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755))?;
    let copy = directory.path().join("ahead");
    std::fs::copy(std::env::current_exe()?, &copy)?;
    let mut command = std::process::Command::new(&copy);
    command.env_clear().env(AGAIN, "1").current_dir("/").uid(USER).gid(USER);
    Ok(command.status()?.success())
}

/// How old a program must be to be told from one that began with its job.
const AGE: Duration = Duration::from_millis(1_200);
