//! Reads arguments from the registers of a system call.

/// A path argument: the descriptor of the directory to start from, and the address of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathArgument {
    pub from: i32,
    pub text: u64,
}

/// Returns a path argument relative to the current directory.
pub(super) fn in_cwd(text: u64) -> PathArgument {
    PathArgument { from: libc::AT_FDCWD, text }
}

/// Returns a path argument relative to a descriptor.
pub(super) fn in_directory(from: u64, text: u64) -> PathArgument {
    PathArgument { from: int(from), text }
}

/// Returns an `int` argument: the low half of its register.
#[must_use]
pub fn int(value: u64) -> i32 {
    low(value).cast_signed()
}

/// Returns an unsigned `int` argument.
pub(super) fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_int_is_the_low_half_of_its_register() {
        assert_eq!(
            in_directory(0xffff_ffff_ffff_ff9c, 7),
            PathArgument { from: libc::AT_FDCWD, text: 7 }
        );
        assert_eq!((int(0xdead_beef_0000_0041), low(0xdead_beef_0000_01a4)), (0o101, 0o644));
    }
}
