//! Conditions on the arguments of a system call.

/// One test of the low 32 bits of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    Equal { argument: u8, value: u32 },
    NotEqual { argument: u8, value: u32 },
    MaskedEqual { argument: u8, mask: u32, value: u32 },
}

/// What a filter says to one number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    AllowIf(Vec<Vec<Test>>),
    Errno(i32),
}
