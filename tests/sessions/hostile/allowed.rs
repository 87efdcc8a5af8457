//! The calls a confined front end may make at all, as this test expects them, and all the others.

use nix::errno::Errno;
use syscalls::Sysno;

use super::raw;

/// Allowed whatever their arguments are, or some of them. A call that is added to the product's list
/// is added here as well, or the sweep finds it.
const ALLOWED: &str = include_str!("allowed.txt");
/// uretprobe and uprobe: since Linux 6.11 the kernel answers these itself, before any filter, with a signal to a
/// process that is not in a probe.
pub const UNFILTERED: [u64; 2] = [335, 336];
/// Numbers of the x32 table carry this bit.
const X32: u64 = 0x4000_0000;
/// Beyond the last number of any kernel yet.
const NUMBERS: u64 = 1024;

/// Numbers of the calls that are allowed.
pub fn numbers() -> Vec<u64> {
    let calls = ALLOWED.split_whitespace().filter_map(|name| name.parse::<Sysno>().ok());
    calls.filter_map(|call| u64::try_from(call.id()).ok()).collect()
}

/// Makes every call that is not allowed, and every call of the x32 table. Returns the number tried, and the calls
/// that were not refused as expected.
pub fn sweep() -> (usize, Vec<String>) {
    let allowed = numbers();
    let native =
        (0..NUMBERS).filter(|number| !allowed.contains(number) && !UNFILTERED.contains(number));
    let all: Vec<u64> = native.chain((0..NUMBERS).map(|number| number | X32)).collect();
    let clone3 = u64::try_from(Sysno::clone3.id()).unwrap_or_default();
    let wrong = all.iter().filter_map(|number| {
        // So that the C library falls back to clone, whose flags a filter sees.
        let refusal = if *number == clone3 { Errno::ENOSYS } else { Errno::EPERM };
        match raw::call(*number, [0; 6]) {
            Err(errno) if errno == refusal => None,
            met => Some(format!("{number:#x}: {met:?}")),
        }
    });
    (all.len(), wrong.collect())
}
