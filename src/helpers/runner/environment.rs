//! Environment variables: those of the runner, and those that it adds for the script.

use alloc::borrow::Cow;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

/// Maximum size of a variable that the kernel takes (`MAX_ARG_STRLEN` in execve(2)), with its NUL.
const MAX_VARIABLE_BYTES: usize = 128 << 10;

/// Variables, each as `NAME=VALUE`.
pub struct Environment {
    all: Vec<Cow<'static, CStr>>,
}

impl Environment {
    /// Returns the variables that the runner was started with.
    pub fn inherited() -> Self {
        #[cfg(freestanding)]
        let all = crate::start::environment().map(Cow::Borrowed).collect();
        #[cfg(not(freestanding))]
        let all = crate::ordinary::environment().map(Cow::Owned).collect();
        Self { all }
    }

    /// Sets a variable. Removes it if the value is empty or longer than the kernel takes.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.all.retain(|one| value_of(one.to_bytes(), name).is_none());
        let text = [name, b"=", value].concat();
        let fits = !value.is_empty() && text.len() < MAX_VARIABLE_BYTES;
        if let (true, Ok(text)) = (fits, CString::new(text)) {
            self.all.push(Cow::Owned(text));
        }
    }

    /// Returns the value of a variable; empty if it is not set.
    pub fn get(&self, name: &[u8]) -> &[u8] {
        let value = self.all.iter().find_map(|one| value_of(one.to_bytes(), name));
        value.unwrap_or_default()
    }

    /// Returns the variables as execve(2) takes them: their addresses, then a zero.
    pub fn addresses(&self) -> Vec<usize> {
        addresses(self.all.iter().map(AsRef::as_ref))
    }
}

/// Returns texts as execve(2) takes them.
pub fn addresses<'t>(texts: impl Iterator<Item = &'t CStr>) -> Vec<usize> {
    let address = |text: &CStr| text.as_ptr().expose_provenance();
    texts.map(address).chain(core::iter::once(0)).collect()
}

fn value_of<'o>(one: &'o [u8], name: &[u8]) -> Option<&'o [u8]> {
    one.strip_prefix(name)?.strip_prefix(b"=")
}
