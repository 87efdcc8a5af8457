//! Computes a cell's share of the machine's open files.

use std::fs;

/// All cells together may have this fraction of the machine's open files: a quarter.
const DIVISOR: u64 = 4;
/// The kernel's minimum for a machine (`NR_FILE`), used if the actual limit cannot be read.
const MIN_MACHINE: u64 = 8192;

/// Returns the number of open files that a cell may have if at most `cells` run at once.
pub(super) fn share(cells: u16) -> u64 {
    let text = fs::read_to_string("/proc/sys/fs/file-max");
    share_of(text.ok().as_deref(), cells)
}

fn share_of(file_max: Option<&str>, cells: u16) -> u64 {
    let max = file_max.and_then(|text| text.trim().parse().ok()).unwrap_or(MIN_MACHINE);
    max / DIVISOR / u64::from(cells).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cells_together_may_have_a_quarter() {
        assert_eq!(share_of(Some("2466177\n"), 10), 61_654);
        assert_eq!(share_of(Some("9223372036854775807\n"), 16), (1 << 57) - 1);
        assert_eq!(share_of(Some("4000"), 0), 1000);
        assert_eq!(share_of(None, 16), 128);
    }
}
