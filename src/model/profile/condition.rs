//! Conditions on the arguments of a system call: data that the seccomp compiler turns into BPF.

/// One comparison of one argument. A filter cannot follow pointers, so only values are tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// Index of the argument, 0 to 5.
    pub argument: u8,
    pub width: Width,
    pub op: Op,
    /// Value that the argument is compared with.
    pub value: u64,
}

/// How much of an argument the kernel reads, which is how much is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// An `int` or `unsigned int`: the kernel ignores the upper half, so a test of it could be
    /// evaded by setting any bits there.
    Low32,
    /// A `long`, a `size_t` or a pointer-sized set of flags.
    Full64,
}

/// The comparison; all are unsigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Eq,
    Ne,
    /// At most the value.
    Le,
    /// At least the value.
    Ge,
    /// Equal after masking the argument with this.
    MaskedEq(u64),
}

/// Tests that must all hold.
pub type All = Vec<Test>;

/// The filter's answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// Allowed if one of these holds; otherwise denied and counted. Never empty.
    AllowIf(Vec<All>),
    /// Same, but a known harmless probe among the denied calls is refused without counting.
    AllowOrProbe(Vec<All>, Probe),
    /// Refused with this errno, without counting.
    Errno(i32),
    /// Answered by the cell's init with the cell's values; the kernel would reveal the host's.
    Answered,
}

/// A denied call by which programs probe for a feature that they can do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The call is a probe if one of these holds.
    pub when: Vec<All>,
    /// Errno of a kernel without the feature; 0 if the call has no effect and its caller need not
    /// know.
    pub errno: i32,
}

impl Test {
    /// Returns a test of the low half of `argument` compared with `value`.
    pub const fn low(argument: u8, op: Op, value: u32) -> Self {
        Self { argument, width: Width::Low32, op, value: widen(value) }
    }

    /// Returns a test of all of `argument` compared with `value`.
    pub const fn full(argument: u8, op: Op, value: u64) -> Self {
        Self { argument, width: Width::Full64, op, value }
    }

    /// Returns a test that no bit of `bits` is set in the low half of `argument`.
    pub const fn none_of(argument: u8, bits: u32) -> Self {
        Self::low(argument, Op::MaskedEq(widen(bits)), 0)
    }

    /// Returns a test that the low half of `argument` equals `value`, apart from the bits in `ignored`.
    pub const fn besides(argument: u8, ignored: u32, value: u32) -> Self {
        Self::low(argument, Op::MaskedEq(widen(!ignored)), value)
    }

    /// Evaluates the test as the compiled filter must.
    #[must_use]
    pub fn holds(&self, arguments: &[u64; 6]) -> bool {
        // An argument that does not exist passes no test.
        let Some(argument) = arguments.get(usize::from(self.argument)) else { return false };
        let (argument, value) = match self.width {
            Width::Low32 => (argument & LOW_HALF, self.value & LOW_HALF),
            Width::Full64 => (*argument, self.value),
        };
        match self.op {
            Op::Eq => argument == value,
            Op::Ne => argument != value,
            Op::Le => argument <= value,
            Op::Ge => argument >= value,
            Op::MaskedEq(mask) => argument & mask == value,
        }
    }
}

const LOW_HALF: u64 = 0xffff_ffff;

/// Widens in constants, where `u64::from` is not available yet.
#[expect(clippy::as_conversions, reason = "widening loses nothing")]
const fn widen(value: u32) -> u64 {
    value as u64
}

impl Verdict {
    /// Allows a call if argument `argument` is one of `values`.
    pub fn one_of(argument: u8, values: &[u32]) -> Self {
        Self::AllowIf(values.iter().map(|v| vec![Test::low(argument, Op::Eq, *v)]).collect())
    }

    /// Allows a call if argument `argument` is in one of these ranges, inclusive.
    pub(crate) fn in_ranges(argument: u8, ranges: &[(u32, u32)]) -> Self {
        Self::AllowIf(ranges.iter().map(|range| within(argument, *range)).collect())
    }

    /// Returns true if a call with these arguments reaches the kernel.
    #[must_use]
    pub fn allows(&self, arguments: &[u64; 6]) -> bool {
        match self {
            Self::Allow => true,
            Self::AllowIf(any) | Self::AllowOrProbe(any, _) => {
                any.iter().any(|all| all.iter().all(|t| t.holds(arguments)))
            }
            Self::Errno(_) | Self::Answered => false,
        }
    }

    /// Returns the errno of a call with these arguments if it is refused without counting.
    #[must_use]
    pub fn quiet(&self, arguments: &[u64; 6]) -> Option<i32> {
        match self {
            Self::Errno(errno) => Some(*errno),
            Self::AllowOrProbe(_, probe) => {
                let probed = probe.when.iter().any(|all| all.iter().all(|t| t.holds(arguments)));
                (probed && !self.allows(arguments)).then_some(probe.errno)
            }
            Self::Allow | Self::AllowIf(_) | Self::Answered => None,
        }
    }
}

/// Returns the tests for a range: one for a single value or a range from 0, otherwise two.
pub(super) fn within(argument: u8, range: (u32, u32)) -> All {
    let (first, last) = range;
    match first {
        _ if first == last => vec![Test::low(argument, Op::Eq, first)],
        0 => vec![Test::low(argument, Op::Le, last)],
        _ => vec![Test::low(argument, Op::Ge, first), Test::low(argument, Op::Le, last)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_test_ignores_the_upper_half() {
        let test = Test::low(1, Op::Eq, 0x5412);
        assert!(test.holds(&[0, 0x5412, 0, 0, 0, 0]));
        assert!(test.holds(&[0, 0xdead_beef_0000_5412, 0, 0, 0, 0]));
        assert!(!test.holds(&[0x5412, 0x5413, 0, 0, 0, 0]));
    }

    #[test]
    fn a_full_test_sees_the_upper_half() {
        let test = Test::full(0, Op::MaskedEq(!0x600), 0);
        assert!(test.holds(&[0x600, 0, 0, 0, 0, 0]));
        assert!(!test.holds(&[1 << 40, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn a_masked_low_test_leaves_out_only_the_ignored_bits() {
        let test = Test::besides(1, 0x80800, 1);
        assert!(test.holds(&[0, 0x80801, 0, 0, 0, 0]));
        assert!(test.holds(&[0, 0xffff_ffff_0000_0001, 0, 0, 0, 0]));
        assert!(!test.holds(&[0, 3, 0, 0, 0, 0]));
        assert!(!test.holds(&[0, 0x8000_0001, 0, 0, 0, 0]));
    }

    #[test]
    fn an_argument_that_does_not_exist_passes_no_test() {
        assert!(!Test::low(6, Op::Ne, 1).holds(&[0; 6]));
    }

    #[test]
    fn ranges_include_their_ends_and_nothing_more() {
        let verdict = Verdict::in_ranges(0, &[(0, 2), (5, 5), (8, 9)]);
        let allowed: Vec<u64> =
            (0..12).filter(|value| verdict.allows(&[*value, 0, 0, 0, 0, 0])).collect();
        assert_eq!(allowed, [0, 1, 2, 5, 8, 9]);
    }

    #[test]
    fn a_probe_is_quiet_only_where_its_tests_hold_and_nothing_allows_it() {
        let probe = Probe { when: vec![vec![Test::low(0, Op::Ge, 16)]], errno: 97 };
        let verdict = Verdict::AllowOrProbe(vec![vec![Test::low(0, Op::Eq, 17)]], probe);
        let answers = [15, 16, 17].map(|family| {
            let arguments = [family, 0, 0, 0, 0, 0];
            (verdict.allows(&arguments), verdict.quiet(&arguments))
        });
        assert_eq!(answers, [(false, None), (false, Some(97)), (true, None)]);
    }

    #[test]
    fn an_empty_condition_allows_nothing() {
        assert!(!Verdict::AllowIf(Vec::new()).allows(&[0; 6]));
    }
}
