//! Entry point when the program is built as an ordinary one, with the standard library.

use core::ffi::CStr;
use std::ffi::CString;
use std::process::ExitCode;

/// Passes the arguments to `answered`, whose result is the exit code.
pub fn run(answered: impl FnOnce(&[&CStr]) -> u8) -> ExitCode {
    let words: Vec<CString> = std::env::args().skip(1).flat_map(CString::new).collect();
    let words: Vec<&CStr> = words.iter().map(CString::as_c_str).collect();
    ExitCode::from(answered(&words))
}

/// Returns the environment variables as `NAME=VALUE`.
#[allow(dead_code, reason = "only one of the programs has some for others")]
pub fn environment() -> impl Iterator<Item = CString> {
    use std::os::unix::ffi::OsStrExt;
    std::env::vars_os()
        .flat_map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()))
}
