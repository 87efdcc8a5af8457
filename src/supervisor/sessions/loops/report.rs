//! What the shell of a session reports; any process of its cell may have written it.

/// The byte before the number of the process that runs a command beside the shell.
pub(crate) const STARTED: char = 'j';

/// Returns the number in a report of the copy of the shell; any process of the cell may have written it.
pub(crate) fn started(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes.strip_suffix(&[0])?).ok()?;
    text.strip_prefix(STARTED)?.parse().ok()
}

/// The byte before the report: the input is open.
pub(crate) const OPEN: u8 = b'o';

/// The report of the shell at the end of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoopReport {
    pub status: u8,
    /// As the shell has it; a program may lie about its own directory.
    pub cwd: String,
}

impl LoopReport {
    /// Longest report that is read: a status, a path, and room.
    pub(crate) const BYTES: usize = 8192;

    /// Reads a report; any process of the cell may have written it.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes.strip_suffix(&[0])?);
        let (status, cwd) = text.split_once(' ')?;
        Some(Self { status: status.parse().ok()?, cwd: cwd.to_owned() })
    }
}

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

    #[test]
    fn a_report_is_a_status_and_a_directory() {
        let told = |status, cwd: &str| Some(LoopReport { status, cwd: cwd.to_owned() });
        assert_eq!(LoopReport::parse(b"0 /workspace\0"), told(0, "/workspace"));
        assert_eq!(LoopReport::parse(b"130 /a b\n c\0"), told(130, "/a b\n c"));
        for forged in [&b"0 /workspace"[..], b"256 /\0", b"-1 /\0", b"\0", b"", b"x /\0"] {
            assert_eq!(LoopReport::parse(forged), None, "{forged:?}");
        }
    }
}
