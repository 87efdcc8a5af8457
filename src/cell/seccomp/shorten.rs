//! Shortens a BPF program without changing its results, because the kernel checks and translates
//! the program for each cell.
//!
//! All jumps go forward, so that the new program is written from its end: the targets of an
//! instruction are already there. Unreachable instructions are left out.

use super::{IF_EQUAL, IF_GREATER, IF_GREATER_OR_EQUAL, Instruction, JUMP, RETURN, step};

/// Jump target in the new program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Index of a written instruction, counted from the end.
    At(usize),
    /// A return of this value: any one in reach can be used.
    Answer(u32),
}

/// Returns a shorter program with the same results; `None` if a jump leads out of the program.
pub(crate) fn shorten(program: &[Instruction]) -> Option<Vec<Instruction>> {
    // From the end, like the new program.
    let mut targets: Vec<Target> = Vec::with_capacity(program.len());
    let mut new = ReversedProgram(Vec::with_capacity(program.len()));
    for instruction in program.iter().rev() {
        let Instruction { code, jt, jf, k } = *instruction;
        let after = |skip: usize| targets.get(targets.len().checked_sub(skip + 1)?).copied();
        let target = match code {
            RETURN => Target::Answer(k),
            JUMP => after(usize::try_from(k).ok()?)?,
            IF_EQUAL | IF_GREATER | IF_GREATER_OR_EQUAL => {
                new.branch(instruction, after(usize::from(jt))?, after(usize::from(jf))?)
            }
            _ => {
                new.continue_at(after(0)?);
                new.put(instruction.clone())
            }
        };
        targets.push(target);
    }
    new.continue_at(*targets.last()?);
    new.0.reverse();
    Some(new.0)
}

/// The instructions of the new program in reverse order.
struct ReversedProgram(Vec<Instruction>);

impl ReversedProgram {
    fn put(&mut self, instruction: Instruction) -> Target {
        self.0.push(instruction);
        Target::At(self.0.len() - 1)
    }

    /// Makes the next instruction continue at `target`.
    fn continue_at(&mut self, target: Target) {
        if self.distance(target) != Some(0) {
            self.bring_near(target);
        }
    }

    /// Returns the number of instructions between the next one and `target`, if a branch can reach
    /// that far.
    fn distance(&self, target: Target) -> Option<u8> {
        let distance = match target {
            Target::At(at) => self.0.len().checked_sub(at + 1)?,
            Target::Answer(value) => {
                let near = self.0.iter().rev().take(usize::from(u8::MAX) + 1);
                near.enumerate().find(|(_, one)| one.code == RETURN && one.k == value)?.0
            }
        };
        u8::try_from(distance).ok()
    }

    /// Writes an instruction that returns or jumps like `target`.
    fn bring_near(&mut self, target: Target) -> Target {
        match target {
            Target::Answer(value) => self.put(step(RETURN, value)),
            Target::At(at) => {
                let skipped = self.0.len().saturating_sub(at + 1);
                self.put(step(JUMP, u32::try_from(skipped).unwrap_or(u32::MAX)))
            }
        }
    }

    fn branch(&mut self, instruction: &Instruction, yes: Target, no: Target) -> Target {
        if yes == no {
            return yes;
        }
        let mut yes = yes;
        let mut no = no;
        loop {
            match (self.distance(yes), self.distance(no)) {
                (Some(jt), Some(jf)) => {
                    return self.put(Instruction { jt, jf, ..instruction.clone() });
                }
                (None, _) => yes = self.bring_near(yes),
                (Some(_), None) => no = self.bring_near(no),
            }
        }
    }
}
