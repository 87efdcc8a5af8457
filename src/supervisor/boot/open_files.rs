//! The share that a cell has of the machine's open files.

use std::fs;

/// Part of the machine's open files that all cells together may have.
const PART: u64 = 4;
/// Open files of the machine where the kernel does not say how many: its least (`NR_FILE`).
const MIN_MACHINE: u64 = 8192;

/// Returns the open files that a cell may have where at most `cells` run at once.
pub(super) fn share(cells: u16) -> u64 {
    let text = fs::read_to_string("/proc/sys/fs/file-max");
    share_of(text.ok().as_deref(), cells)
}

fn share_of(file_max: Option<&str>, cells: u16) -> u64 {
    let most = file_max.and_then(|text| text.trim().parse().ok()).unwrap_or(MIN_MACHINE);
    most / PART / u64::from(cells).max(1)
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
