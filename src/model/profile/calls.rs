//! Names and numbers of system calls, from the kernel's own tables as the `syscalls` crate has them.

use syscalls::{aarch64, x86_64};

use crate::nearest::nearest;

/// Meaning of a call's name on the target architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMeaning {
    /// The call's number on this architecture.
    Here(u32),
    /// A call of another architecture, which needs no verdict here.
    Elsewhere,
}

/// Looks up a name; returns `None` if no supported architecture has it.
pub fn lookup(name: &str) -> Option<CallMeaning> {
    // Uses the kernel's name everywhere: for aarch64 the table has the C library's.
    let name = match name {
        "newfstatat" if cfg!(target_arch = "aarch64") => "fstatat",
        name => name,
    };
    if let Ok(call) = name.parse::<syscalls::Sysno>() {
        return u32::try_from(call.id()).ok().map(CallMeaning::Here);
    }
    let elsewhere = name.parse::<x86_64::Sysno>().is_ok() || name.parse::<aarch64::Sysno>().is_ok();
    elsewhere.then_some(CallMeaning::Elsewhere)
}

/// Returns the number of a call on this architecture.
pub fn number(name: &str) -> Option<u32> {
    match lookup(name) {
        Some(CallMeaning::Here(number)) => Some(number),
        Some(CallMeaning::Elsewhere) | None => None,
    }
}

/// Returns the name of a call on this architecture; a number that is not in the table is printed as
/// such.
pub fn name(number: u32) -> String {
    usize::try_from(number)
        .ok()
        .and_then(syscalls::Sysno::new)
        .map_or_else(|| format!("syscall {number}"), |call| call.name().to_owned())
}

/// Returns the closest name to `word` on any supported architecture.
pub fn nearest_name(word: &str) -> Option<&'static str> {
    let names = x86_64::Sysno::iter().map(|call| call.name());
    nearest(word, names.chain(aarch64::Sysno::iter().map(|call| call.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_the_table_is_found_by_its_name_and_number() {
        for call in syscalls::Sysno::iter() {
            let id = u32::try_from(call.id()).ok();
            assert_eq!(number(call.name()), id);
            assert_eq!(id.map(name), Some(call.name().to_owned()));
        }
    }

    #[test]
    fn a_name_of_the_other_architecture_is_known_and_has_no_number() {
        let other = if cfg!(target_arch = "x86_64") { "fstatat" } else { "open" };
        assert_eq!(lookup(other), Some(CallMeaning::Elsewhere));
        assert_eq!(number(other), None);
    }

    #[test]
    fn the_kernels_name_for_reading_attributes_is_known_everywhere() {
        let number = number("newfstatat");
        assert_eq!(number, Some(if cfg!(target_arch = "x86_64") { 262 } else { 79 }));
    }

    #[test]
    fn a_misspelt_name_is_unknown_and_has_a_nearest() {
        assert_eq!(lookup("opennat"), None);
        assert_eq!(nearest_name("opennat"), Some("openat"));
        assert_eq!(lookup(""), None);
    }

    #[test]
    fn a_number_beyond_the_table_is_printed_as_a_number() {
        assert_eq!(name(100_000), "syscall 100000");
        assert_eq!(name(u32::MAX), "syscall 4294967295");
    }
}
