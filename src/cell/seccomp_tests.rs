//! Tests compiled filters against the meaning of their verdicts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Interprets a program like the kernel, according to seccomp(2) and the kernel's filter.rst.
fn interpret(program: &[Instruction], arch: u32, number: u32, arguments: &[u64; 6]) -> u32 {
    let mut memory = [0_u8; 64];
    memory[0..4].copy_from_slice(&number.to_le_bytes());
    memory[4..8].copy_from_slice(&arch.to_le_bytes());
    for (index, argument) in arguments.iter().enumerate() {
        memory[16 + 8 * index..24 + 8 * index].copy_from_slice(&argument.to_le_bytes());
    }
    let mut at = 0;
    let mut accumulator = 0_u32;
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            LOAD => {
                let from = usize::try_from(k).unwrap_or_default();
                let word = memory[from..from + 4].try_into().unwrap_or_default();
                accumulator = u32::from_le_bytes(word);
            }
            AND => accumulator &= k,
            JUMP => at += usize::try_from(k).unwrap_or_default(),
            IF_EQUAL => at += jump(accumulator == k),
            IF_GREATER => at += jump(accumulator > k),
            IF_GREATER_OR_EQUAL => at += jump(accumulator >= k),
            RETURN => return k,
            other => panic!("an opcode that seccomp does not know: {other:#x}"),
        }
    }
}

fn meaning(verdicts: &BTreeMap<u32, Verdict>, number: u32, arguments: &[u64; 6]) -> u32 {
    match verdicts.get(&number) {
        Some(verdict) if verdict.allows(arguments) => Action::Allow.value(),
        Some(verdict) => match verdict.quiet(arguments) {
            Some(errno) => Action::Errno(errno).value(),
            None => Action::Notify.value(),
        },
        None => Action::Notify.value(),
    }
}

fn argument() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(0xffff_ffff),
        Just(0x1_0000_0000),
        Just(0x1_0000_0001),
        Just(u64::MAX),
        0..8_u64,
        any::<u64>(),
    ]
}

fn test() -> impl Strategy<Value = Test> {
    let op = prop_oneof![
        Just(Op::Eq),
        Just(Op::Ne),
        Just(Op::Le),
        Just(Op::Ge),
        argument().prop_map(Op::MaskedEq),
    ];
    let width = prop_oneof![Just(Width::Low32), Just(Width::Full64)];
    (0..6_u8, width, op, argument()).prop_map(|(argument, width, op, value)| Test {
        argument,
        width,
        op,
        value,
    })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let all = || prop::collection::vec(test(), 1..4);
    let any = || prop::collection::vec(all(), 1..4);
    let probed = (any(), any(), 0..133_i32);
    prop_oneof![
        3 => Just(Verdict::Allow),
        1 => (1..133_i32).prop_map(Verdict::Errno),
        2 => any().prop_map(Verdict::AllowIf),
        1 => probed.prop_map(|(tests, when, errno)| {
            Verdict::AllowOrProbe(tests, Probe { when, errno })
        }),
    ]
}

proptest! {
    #[test]
    fn a_compiled_filter_means_what_its_verdicts_say(
        verdicts in prop::collection::btree_map(0..500_u32, verdict(), 0..80),
        numbers in prop::collection::vec(0..520_u32, 40),
        arguments in prop::collection::vec([argument(), argument(), argument(), argument(), argument(), argument()], 8),
    ) {
        let program = compile(&verdicts, Action::Notify)?;
        for number in numbers.iter().chain(verdicts.keys()) {
            for arguments in &arguments {
                prop_assert_eq!(
                    interpret(&program, ARCH, *number, arguments),
                    meaning(&verdicts, *number, arguments),
                    "number {} with {:x?}", number, arguments
                );
            }
        }
    }
}

/// Returns the expected action for a recorded call: a notification if the call is allowed,
/// otherwise EPERM.
fn recorded_meaning(verdicts: &BTreeMap<u32, Verdict>, number: u32, arguments: &[u64; 6]) -> u32 {
    match verdicts.get(&number) {
        Some(verdict) if verdict.allows(arguments) => Action::Notify.value(),
        Some(_) | None => Action::Errno(libc::EPERM).value(),
    }
}

proptest! {
    #[test]
    fn a_recorded_call_notifies_only_if_it_is_allowed(
        verdicts in prop::collection::btree_map(0..500_u32, verdict(), 1..40),
        every in 1..4_usize,
        arguments in prop::collection::vec([argument(), argument(), argument(), argument(), argument(), argument()], 8),
    ) {
        let passes = |verdict: &Verdict| matches!(verdict, Verdict::Allow | Verdict::AllowIf(_));
        let recorded: Vec<u32> = verdicts
            .iter()
            .filter(|(_, verdict)| passes(verdict))
            .map(|(number, _)| *number)
            .step_by(every)
            .collect();
        let program = payload_filter(&verdicts, &recorded)?;
        for number in 0..510 {
            for arguments in &arguments {
                let expected = match recorded.contains(&number) {
                    true => recorded_meaning(&verdicts, number, arguments),
                    false => meaning(&verdicts, number, arguments),
                };
                prop_assert_eq!(interpret(&program, ARCH, number, arguments), expected);
            }
        }
    }
}

#[test]
fn other_architectures_and_the_x32_table_are_refused_before_any_rule() {
    let verdicts = (0..500).map(|number| (number, Verdict::Allow)).collect();
    let program = compile(&verdicts, Action::Notify).unwrap_or_default();
    let refused = Action::Errno(libc::ENOSYS).value();
    const I386: u32 = 0x4000_0003;
    assert_eq!(interpret(&program, ARCH, 1, &[0; 6]), Action::Allow.value());
    assert_eq!(interpret(&program, I386, 1, &[0; 6]), refused);
    assert_eq!(interpret(&program, ARCH, X32 + 1, &[0; 6]), refused);
    assert_eq!(interpret(&program, ARCH, u32::MAX, &[0; 6]), refused);
}

#[test]
fn a_filter_without_verdicts_allows_no_call() {
    let program = compile(&BTreeMap::new(), Action::Errno(libc::EPERM)).unwrap_or_default();
    for number in [0, 1, 59, 231, 470] {
        let got = interpret(&program, ARCH, number, &[0; 6]);
        assert_eq!(got, Action::Errno(libc::EPERM).value());
    }
}

/// Some jumps in this program exceed a branch's 255 instructions.
#[test]
fn a_long_program_is_shorter_by_a_third() {
    let odd = |number| {
        Verdict::AllowIf(vec![vec![Test {
            argument: 0,
            op: Op::Eq,
            width: Width::Full64,
            value: u64::from(number),
        }]])
    };
    let verdicts: BTreeMap<u32, Verdict> =
        (0..300).map(|number| (2 * number, odd(number))).collect();
    let long = tree(&ranges(&verdicts, &[], Action::Notify), Action::Notify).len();
    let program = compile(&verdicts, Action::Notify).unwrap_or_default();
    assert!(3 * program.len() < 2 * long && program.len() > 300, "{} of {long}", program.len());
    for number in 0..700 {
        for argument in [u64::from(number / 2), 1 << 32, u64::MAX] {
            let arguments = [argument, 0, 0, 0, 0, 0];
            let expected = meaning(&verdicts, number, &arguments);
            assert_eq!(interpret(&program, ARCH, number, &arguments), expected, "{number}");
        }
    }
}

#[test]
fn a_filter_notifies_of_the_named_calls_and_is_the_same_for_all_others() {
    const I386: u32 = 0x4000_0003;
    let verdicts = (0..500).filter(|number| number % 7 != 0);
    let verdicts = verdicts.map(|number| (number, Verdict::Allow)).collect();
    let plain = compile(&verdicts, Action::Errno(libc::EPERM)).unwrap_or_default();
    for calls in [&[41_u32, 53][..], &[41], &[0, 198, 199]] {
        let program = notifying(calls, &plain);
        for number in (0..510).chain(X32..X32 + 60).chain([u32::MAX]) {
            for arch in [ARCH, I386, 0] {
                let expected = match calls.contains(&number) && arch == ARCH {
                    true => Action::Notify.value(),
                    false => interpret(&plain, arch, number, &[0; 6]),
                };
                assert_eq!(interpret(&program, arch, number, &[0; 6]), expected, "{number:#x}");
            }
        }
    }
}
