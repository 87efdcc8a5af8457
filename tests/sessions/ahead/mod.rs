//! Programs executed before their job arrives: which jobs may get one, and that nothing else differs.
//!
//! One run of this program per caller checks them all (`single`): no cgroup limits an ordinary user's cells.

mod front;
mod jobs;

use std::time::Duration;

use super::single;
use crate::support::{Caller, Check as Verdict, For};
use front::{Check, Front};

/// Has this program check these claims.
pub const FLAG: &str = "--ahead";

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

/// Checks all claims against one supervisor.
pub fn main() -> ! {
    let mut front = Front::start().expect("a supervisor");
    single::judge(&CLAIMS, |claim| claim(&mut front))
}

/// Returns the names of the claims: they hold for each caller.
pub fn names() -> Vec<(String, For)> {
    CLAIMS.iter().map(|(name, _)| ((*name).to_owned(), For::Both)).collect()
}

pub fn check(caller: &Caller, name: &str) -> Verdict {
    single::verdict(FLAG, caller, name)
}

/// Minimum age that shows a program started before its job.
const AGE: Duration = Duration::from_millis(1_200);
