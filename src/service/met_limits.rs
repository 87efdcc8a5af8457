//! Names the limits that a failed command met, with their values and the key that raises them.
//!
//! Full filesystems and the end by SIGXFSZ are measured. The kernel counts no refusals by the limits on
//! open files and on processes in every cell, so that these are named where the last lines of standard
//! error have the text of the error. That text is the program's: a remark says only what the limit is.

use model::job::Limits;
use model::outcome::{Ended, LimitKind, Outcome};
use model::units::Size;

/// Lines of standard error that are looked at, from its end.
const LINES: usize = 20;
/// Exit code of a shell whose last program was ended by SIGXFSZ.
const ENDED_BY_SIGXFSZ: u8 = 128 + 25;

/// Texts of EMFILE, EFBIG and ENOSPC in the C library and in node.
const OPEN_FILES: [&str; 2] = ["Too many open files", "EMFILE"];
const FILE_SIZE: [&str; 3] = ["File too large", "EFBIG", "File size limit exceeded"];
const NO_SPACE: [&str; 2] = ["No space left on device", "ENOSPC"];
/// Texts of EAGAIN, which other calls return too, and words of which the line has one if a process or a
/// thread was not started.
const TRY_AGAIN: [&str; 3] = ["Resource temporarily unavailable", "EAGAIN", "errno=11"];
const STARTS: [&str; 5] = ["fork", "thread", "process", "spawn", "clone"];
/// Texts without the error: of dash, Python and Java.
const NOT_STARTED: [&str; 3] =
    ["Cannot fork", "can't start new thread", "unable to create native thread"];

/// Returns a remark for each limit that the command met. `stderr` is empty where it is not known.
pub fn remarks(ended: &Ended, stderr: &str, limits: &Limits) -> Vec<String> {
    let code = match ended.outcome {
        Outcome::Exited { code: 0 } | Outcome::Cancelled | Outcome::Failed(_) => return Vec::new(),
        Outcome::Limit(LimitKind::FileSize) => ENDED_BY_SIGXFSZ,
        Outcome::Exited { code } => code,
        Outcome::Signaled { .. } | Outcome::Timeout | Outcome::Limit(_) => 0,
    };
    let lines: Vec<&str> = stderr.lines().rev().take(LINES).collect();
    let says = |texts: &[&str]| lines.iter().any(|line| has_one(line, texts));
    let starts = |line: &&str| has_one(line, &TRY_AGAIN) && has_one(line, &STARTS);
    let Limits { open_files, processes, inodes, .. } = limits;
    let mut remarks = Vec::new();
    if says(&OPEN_FILES) {
        let limit = format!("a process may have {open_files} open files");
        remarks.push(remark(&limit, "open_files"));
    }
    if says(&NOT_STARTED) || lines.iter().any(starts) {
        let limit = format!("the cell may have {processes} processes and threads");
        remarks.push(remark(&limit, "processes"));
    }
    if code == ENDED_BY_SIGXFSZ || says(&FILE_SIZE) {
        let limit = format!("a file may have {}", Size(limits.file_size));
        remarks.push(remark(&limit, "file_size"));
    }
    let full = ended.full;
    let filesystems = [
        (full.workspace, "/workspace", limits.workspace_bytes, "workspace"),
        (full.tmp, "/tmp", limits.tmp_bytes, "tmp"),
        (full.shm, "/dev/shm", limits.shm_bytes, "shm"),
    ];
    let is_full = filesystems.iter().any(|(is_full, ..)| *is_full);
    for (_, path, bytes, key) in filesystems.into_iter().filter(|(is_full, ..)| *is_full) {
        let limit = format!("{path} is full: it may have {} and {inodes} files", Size(bytes));
        remarks.push(remark(&limit, key));
    }
    if !is_full && says(&NO_SPACE) {
        let sizes = filesystems.map(|(_, path, bytes, _)| format!("{path} {}", Size(bytes)));
        let limit = format!("private filesystems may have at most: {}", sizes.join(", "));
        remarks.push(remark(&limit, "workspace, tmp, shm"));
    }
    remarks
}

fn has_one(line: &str, texts: &[&str]) -> bool {
    texts.iter().any(|text| line.contains(text))
}

fn remark(limit: &str, key: &str) -> String {
    format!("{limit}; the operator can raise it: {key} under [limits] of the profile")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::outcome::FullFilesystems;

    fn limits() -> Limits {
        Limits {
            open_files: 1024,
            processes: 256,
            file_size: 512 << 20,
            workspace_bytes: 384 << 20,
            tmp_bytes: 128 << 20,
            shm_bytes: 64 << 20,
            inodes: 100_000,
            ..Limits::none()
        }
    }

    fn of(outcome: Outcome, stderr: &str) -> Vec<String> {
        remarks(&Ended::new(outcome), stderr, &limits())
    }

    #[test]
    fn an_error_text_is_followed_by_the_limit_and_its_key() {
        let raise = "the operator can raise it";
        let open_files = format!(
            "a process may have 1024 open files; {raise}: open_files under [limits] of the profile"
        );
        let processes = format!(
            "the cell may have 256 processes and threads; {raise}: processes under [limits] of the profile"
        );
        let file_size =
            format!("a file may have 512M; {raise}: file_size under [limits] of the profile");
        for (said, expected) in [
            ("OSError: [Errno 24] Too many open files: '/dev/null'\n", &open_files),
            ("Error: EMFILE: too many open files, open 'f'\n", &open_files),
            ("bash: fork: retry: Resource temporarily unavailable\n", &processes),
            ("/bin/sh: 1: Cannot fork\n", &processes),
            ("RuntimeError: can't start new thread\n", &processes),
            ("Error: spawn node EAGAIN\n", &processes),
            ("runtime: failed to create new OS thread (have 9 already; errno=11)\n", &processes),
            ("OSError: [Errno 27] File too large\n", &file_size),
        ] {
            assert_eq!(of(Outcome::Exited { code: 1 }, said), [expected.as_str()], "{said}");
            assert!(of(Outcome::Exited { code: 0 }, said).is_empty(), "{said}");
        }
        let read = "cat: -: Resource temporarily unavailable\n";
        assert!(of(Outcome::Exited { code: 1 }, read).is_empty(), "a read that would block");
        for ended in [Outcome::Limit(LimitKind::FileSize), Outcome::Exited { code: 153 }] {
            assert_eq!(of(ended, ""), [file_size.as_str()]);
        }
    }

    #[test]
    fn a_full_filesystem_is_named_and_without_one_all_sizes_are() {
        let full = FullFilesystems { tmp: true, ..FullFilesystems::default() };
        let ended = Ended { full, ..Ended::new(Outcome::Exited { code: 1 }) };
        let said = "dd: error writing '/tmp/x': No space left on device\n";
        let expected = "/tmp is full: it may have 128M and 100000 files; the operator can raise it: tmp \
                        under [limits] of the profile";
        assert_eq!(remarks(&ended, said, &limits()), [expected]);
        assert_eq!(remarks(&ended, "", &limits()), [expected]);
        let [sizes] = of(Outcome::Exited { code: 1 }, said).try_into().expect("one remark");
        assert!(sizes.contains("/workspace 384M, /tmp 128M, /dev/shm 64M"), "{sizes}");
    }
}
