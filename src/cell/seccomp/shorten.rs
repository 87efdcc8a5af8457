//! A shorter program with the same answers: each cell has the kernel check and translate it anew.
//!
//! Every jump of these programs goes forward, so the new one is written from its end: the targets of an
//! instruction are there already. Unreachable instructions are left out.

use super::{IF_EQUAL, IF_GREATER, IF_GREATER_OR_EQUAL, Instruction, JUMP, RETURN, step};

/// New place of an instruction of the old program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Written, with so many behind it.
    At(usize),
    /// An answer: any that is near enough will do.
    Answer(u32),
}

/// Returns a shorter program with the same answers; `None` if a jump leads out of it.
pub(crate) fn shorten(program: &[Instruction]) -> Option<Vec<Instruction>> {
    // From the end, as the new program is.
    let mut places: Vec<Place> = Vec::with_capacity(program.len());
    let mut new = Written(Vec::with_capacity(program.len()));
    for instruction in program.iter().rev() {
        let Instruction { code, jt, jf, k } = *instruction;
        let after = |skip: usize| places.get(places.len().checked_sub(skip + 1)?).copied();
        let place = match code {
            RETURN => Place::Answer(k),
            JUMP => after(usize::try_from(k).ok()?)?,
            IF_EQUAL | IF_GREATER | IF_GREATER_OR_EQUAL => {
                new.branch(instruction, after(usize::from(jt))?, after(usize::from(jf))?)
            }
            _ => {
                new.go_on_to(after(0)?);
                new.put(instruction.clone())
            }
        };
        places.push(place);
    }
    new.go_on_to(*places.last()?);
    new.0.reverse();
    Some(new.0)
}

/// Instructions, the last first.
struct Written(Vec<Instruction>);

impl Written {
    fn put(&mut self, instruction: Instruction) -> Place {
        self.0.push(instruction);
        Place::At(self.0.len() - 1)
    }

    /// Makes the next instruction continue at `place`.
    fn go_on_to(&mut self, place: Place) {
        if self.distance(place) != Some(0) {
            self.bring_near(place);
        }
    }

    /// Returns how many instructions lie between what is written next and `place`, as far as a branch reaches.
    fn distance(&self, place: Place) -> Option<u8> {
        let distance = match place {
            Place::At(at) => self.0.len().checked_sub(at + 1)?,
            Place::Answer(value) => {
                let near = self.0.iter().rev().take(usize::from(u8::MAX) + 1);
                near.enumerate().find(|(_, one)| one.code == RETURN && one.k == value)?.0
            }
        };
        u8::try_from(distance).ok()
    }

    /// Writes an instruction that does what `place` does.
    fn bring_near(&mut self, place: Place) -> Place {
        match place {
            Place::Answer(value) => self.put(step(RETURN, value)),
            Place::At(at) => {
                let skipped = self.0.len().saturating_sub(at + 1);
                self.put(step(JUMP, u32::try_from(skipped).unwrap_or(u32::MAX)))
            }
        }
    }

    fn branch(&mut self, instruction: &Instruction, yes: Place, no: Place) -> Place {
        if yes == no {
            return yes;
        }
        let (mut yes, mut no) = (yes, no);
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
