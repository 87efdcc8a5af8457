//! Calls execve(2) with everything prepared: no allocation, and the path is used as given.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::check;

/// Pointers to the NUL-terminated strings of an argument vector and an environment, each
/// list ended by a null pointer, as execve(2) wants them.
///
/// The lists are allocated once, before any process is cloned, and refilled in place.
#[derive(Debug)]
pub struct Pointers {
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
}

impl Pointers {
    /// Allocates room for `argc` arguments and `envc` variables.
    pub fn with_room(argc: usize, envc: usize) -> Self {
        Self { argv: Vec::with_capacity(argc + 1), envp: Vec::with_capacity(envc + 1) }
    }

    /// Points at `strings`: first `argc` arguments, then variables.
    ///
    /// # Errors
    /// E2BIG if they exceed the room; the lists do not grow.
    pub fn fill<'a>(
        &'a mut self,
        argc: usize,
        strings: impl Iterator<Item = &'a CStr>,
    ) -> Result<Filled<'a>, Errno> {
        self.argv.clear();
        self.envp.clear();
        for (index, string) in strings.enumerate() {
            let list = if index < argc { &mut self.argv } else { &mut self.envp };
            // Leaves room for the null pointer at the end.
            if list.len() + 1 >= list.capacity() {
                return Err(Errno::E2BIG);
            }
            list.push(string.as_ptr());
        }
        self.argv.push(std::ptr::null());
        self.envp.push(std::ptr::null());
        Ok(Filled { pointers: self, strings: PhantomData })
    }
}

/// Filled [`Pointers`], and a borrow of the strings they point at.
#[derive(Debug)]
pub struct Filled<'a> {
    pointers: &'a Pointers,
    strings: PhantomData<&'a CStr>,
}

/// Executes `path` (execve(2)); returns only the error.
pub fn execve(path: &CStr, filled: &Filled<'_>) -> Errno {
    let Filled { pointers, strings: _ } = filled;
    // SAFETY: `path` is NUL-terminated; both lists end in null and point at NUL-terminated strings
    // that `filled` borrows.
    unsafe { libc::execve(path.as_ptr(), pointers.argv.as_ptr(), pointers.envp.as_ptr()) };
    Errno::last()
}

/// Executes the file that `program` is open on (execveat(2), AT_EMPTY_PATH); returns only the error.
pub fn execveat(program: impl AsFd, filled: &Filled<'_>) -> Errno {
    let Filled { pointers, strings: _ } = filled;
    // SAFETY: as for `execve`; the empty path names the descriptor itself.
    let result = check(unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_fd().as_raw_fd(),
            c"".as_ptr(),
            pointers.argv.as_ptr(),
            pointers.envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    });
    result.err().unwrap_or(Errno::UnknownErrno)
}
