//! The bytes of a call's report; any process of its cell may have written them.

/// The byte before the pid of the process that runs a command next to the shell.
pub(crate) const STARTED: char = 'j';

/// Returns the number in a report of the copy of the shell; any process of the cell may have written it.
pub(crate) fn started(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes.strip_suffix(&[0])?).ok()?;
    text.strip_prefix(STARTED)?.parse().ok()
}

/// The byte that makes the supervisor look at the shell.
pub(crate) const RING: char = 'r';

/// Maximum bytes that are read for one call. The shell writes two.
pub(crate) const MAX_RINGS: usize = 8192;

/// Files of the mailbox that stand for the two digits of an exit code, to the base 16.
pub(crate) const SIXTEENS: &str = "sixteens";
pub(crate) const ONES: &str = "ones";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_shell_reports_its_number() {
        assert_eq!(started(b"j17\0"), Some(17));
        for forged in [&b"j17"[..], b"j\0", b"j-1\0", b"j1 /workspace\0", b"0 /workspace\0", b"\0"]
        {
            assert_eq!(started(forged), None, "{forged:?}");
        }
    }
}
