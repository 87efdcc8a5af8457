//! The kernel's machine for seccomp programs (seccomp(2), Documentation/networking/filter.rst), in plain
//! steps: what the compiled program answers.

use sys::bpf::Instruction;

/// One call as a program sees it (struct seccomp_data).
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub arch: u32,
    pub number: u32,
    pub arguments: [u64; 6],
}

impl Call {
    fn word(&self, offset: u32) -> u32 {
        let halves = |value: u64| {
            let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
            (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
        };
        match offset {
            0 => self.number,
            4 => self.arch,
            // The instruction pointer, which no program of ours looks at.
            8 | 12 => 0,
            _ => {
                let index = usize::try_from((offset - 16) / 8).unwrap_or(usize::MAX);
                let argument = self.arguments.get(index).copied().expect("six arguments");
                if offset.is_multiple_of(8) { halves(argument).0 } else { halves(argument).1 }
            }
        }
    }
}

/// Runs a program to its answer. An instruction outside of the machine is a failed test.
pub fn run(program: &[Instruction], call: &Call) -> u32 {
    let mut at = 0_usize;
    let mut accumulator = 0_u32;
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at).expect("inside the program");
        at += 1;
        let mut branch = |holds: bool| at += usize::from(if holds { jt } else { jf });
        match code {
            0x20 => accumulator = call.word(k),
            0x54 => accumulator &= k,
            0x05 => at += usize::try_from(k).expect("a short jump"),
            0x15 => branch(accumulator == k),
            0x25 => branch(accumulator > k),
            0x35 => branch(accumulator >= k),
            0x45 => branch(accumulator & k != 0),
            0x06 => return k,
            other => panic!("an opcode that seccomp does not take: {other:#x}"),
        }
    }
}
