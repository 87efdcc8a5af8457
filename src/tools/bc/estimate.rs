//! How many places an expression can lose: by how much its operations enlarge
//! the error of what bc cuts off.
//!
//! Two working scales that agree prove nothing when both lost everything:
//! `e(-1000)*10^450` is 0 at scale 32 and at scale 64. So sizes and errors are
//! followed through the expression beforehand, as logarithms. Cancellation is
//! not foreseen here; it shows as disagreement and is met by doubling.

use std::iter::Peekable;
use std::slice::Iter;

use super::estimate_library;
use super::library;
use super::near;
use super::rewrite::{Expression, Kind, Token};

/// Most places added for a foreseen loss; more would only take bc's time.
const MOST_PLACES: u32 = 6000;
/// Decimal places of a float that are surely right after a few operations.
const FLOAT_PLACES: f64 = 10.0;
/// Brackets within brackets that are followed; beyond, nothing is foreseen.
const DEEPEST: u32 = 200;

/// What is known of a value before it is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    /// The value as far as a float tells; 0 or infinite beyond its range.
    pub(super) value: f64,
    /// log10 of the magnitude; minus infinity for 0.
    pub(super) size: f64,
    /// log10 of its error in units of the last working place; minus infinity for exact values.
    pub(super) error: f64,
    /// Whether the true value may be 0 although the float is not, as after cancellation.
    pub(super) vanishing: bool,
    /// Whether the float is right to several digits, and so is all that it was made of: nothing
    /// cancelled, nothing very small or large, only smooth functions.
    pub(super) firm: bool,
}

/// Whether a float is of a size that is followed without loss.
fn moderate(value: f64) -> bool {
    (1e-3..=1e15).contains(&value.abs())
}

impl Estimate {
    pub(super) const EXACT: f64 = f64::NEG_INFINITY;

    /// What is foreseen for an expression without state; none for one that is not understood.
    pub(super) fn of(expression: &Expression<'_>) -> Option<Self> {
        let mut parser = Parser { tokens: expression.tokens().iter().peekable(), depth: 0 };
        let mut last = None;
        while let Some(token) = parser.tokens.peek() {
            if token.kind == Kind::Break {
                parser.tokens.next();
                continue;
            }
            last = Some(parser.at_least(0)?);
            if parser.tokens.peek().is_some_and(|token| token.kind != Kind::Break) {
                return None;
            }
        }
        last
    }

    /// Working places to add so that what is cut off stays below the result's last place.
    pub(super) fn places(&self) -> u32 {
        (0..MOST_PLACES).find(|places| f64::from(*places) >= self.error).unwrap_or(MOST_PLACES)
    }

    /// Whether more places would be needed than are added.
    pub(super) fn is_beyond(&self) -> bool {
        self.error > f64::from(MOST_PLACES)
    }

    /// Whether the value is surely not 0, however small.
    pub(super) fn is_nonzero(&self) -> bool {
        self.size > f64::NEG_INFINITY && !self.vanishing
    }

    fn literal(text: &str) -> Option<Self> {
        let value: f64 = text.parse().ok()?;
        let (size, firm) = (value.abs().log10(), moderate(value));
        Some(Self { value, size, error: Self::EXACT, vanishing: false, firm })
    }

    pub(super) fn sum(self, other: Self, value: f64) -> Self {
        let larger = self.size.max(other.size);
        let size = if value == 0.0 { f64::NEG_INFINITY } else { larger };
        let vanishing = value.abs().log10() < larger - FLOAT_PLACES;
        let cancels = value.abs() < 1e-3 * self.value.abs().max(other.value.abs());
        let firm = self.firm && other.firm && moderate(value) && !cancels;
        Self { value, size, error: self.error.max(other.error), vanishing, firm }
    }

    pub(super) fn product(self, other: Self) -> Self {
        let error = (self.error + other.size).max(other.error + self.size).max(0.0);
        let (value, size) = (self.value * other.value, self.size + other.size);
        let firm = self.firm && other.firm && value.is_finite();
        let vanishing = self.vanishing || other.vanishing;
        Self { value, size, error, vanishing, firm }.without_nan()
    }

    pub(super) fn quotient(self, by: Self) -> Self {
        if by.size == f64::NEG_INFINITY {
            // bc will say so.
            return Self { error: 0.0, firm: false, ..by };
        }
        let error = (self.error - by.size).max(by.error + self.size - 2.0 * by.size).max(0.0);
        let (value, size) = (self.value / by.value, self.size - by.size);
        let firm = self.firm && by.firm && value.is_finite();
        Self { value, size, error, vanishing: self.vanishing, firm }.without_nan()
    }

    pub(super) fn power(self, exponent: Self) -> Self {
        let n = exponent.value;
        let size = self.size * n;
        // The relative error grows n-fold; a negative power is also cut once.
        let error = (self.error - self.size + size + n.abs().max(1.0).log10()).max(0.0);
        let value = self.value.powf(n);
        let exact = exponent.error == Self::EXACT && n.fract() == 0.0 && n.abs() <= 1e3;
        let firm = self.firm && exponent.firm && exact && value.is_finite();
        Self { value, size, error, firm, ..self }.without_nan()
    }

    pub(super) fn applied(self, function: &str) -> Self {
        let (value, size, slope) = match function {
            "sqrt" => (self.value.sqrt(), self.size / 2.0, -self.size / 2.0),
            "e" => {
                let size = self.value / std::f64::consts::LN_10;
                (self.value.exp(), size, size)
            }
            "l" => (self.value.ln(), self.value.ln().abs().log10(), -self.size),
            // Sine, cosine, arctangent, Bessel: no steeper than 1.
            _ => (self.value, self.size.min(1.0), 0.0),
        };
        let value = match function {
            "s" => self.value.sin(),
            "c" => self.value.cos(),
            "a" => self.value.atan(),
            _ => value,
        };
        // A float's logarithm ends where the float does; the size goes on.
        let (value, size) = match (function, value.is_finite()) {
            ("l", false) => (self.size * std::f64::consts::LN_10, self.size.abs().log10()),
            ("s" | "c" | "a", true) => (value, value.abs().log10()),
            _ => (value, size),
        };
        let vanishing = function != "e" && value.abs() < 10_f64.powf(-FLOAT_PLACES);
        // Where their arguments are reduced in few steps, and their values neither vanish nor leap.
        let firm = self.firm
            && match function {
                "e" => self.value.abs() <= 50.0,
                "s" | "c" | "a" => self.value.abs() <= 1e3 && moderate(value),
                "l" | "sqrt" => self.value > 0.0 && moderate(value),
                _ => false,
            };
        Self { value, size, error: (self.error + slope).max(0.0), vanishing, firm }.without_nan()
    }

    /// 0 times infinity and its like: nothing is known, so nothing is foreseen.
    fn without_nan(self) -> Self {
        let or = |number: f64, other| if number.is_nan() { other } else { number };
        Self {
            value: or(self.value, 0.0),
            size: or(self.size, f64::NEG_INFINITY),
            error: or(self.error, 0.0),
            ..self
        }
    }
}

/// Reads an expression by precedence, as bc does: a sign binds closer than `^`.
struct Parser<'tokens, 'text> {
    tokens: Peekable<Iter<'tokens, Token<'text>>>,
    depth: u32,
}

/// How closely a binary operator binds.
fn binding(operator: &str) -> Option<u8> {
    match operator {
        "||" | "&&" => Some(1),
        "==" | "!=" | "<" | ">" | "<=" | ">=" => Some(2),
        "+" | "-" => Some(3),
        "*" | "/" | "%" => Some(4),
        "^" => Some(5),
        _ => None,
    }
}

impl Parser<'_, '_> {
    fn at_least(&mut self, closeness: u8) -> Option<Estimate> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let mut left = self.operand()?;
        while let Some(operator) = self.tokens.peek().map(|token| token.text) {
            let Some(binds) = binding(operator).filter(|binds| *binds >= closeness) else { break };
            self.tokens.next();
            // `^` groups from the right, all others from the left.
            let right = self.at_least(if operator == "^" { binds } else { binds + 1 })?;
            left = match operator {
                "+" => left.sum(right, left.value + right.value),
                "-" => left.sum(right, left.value - right.value),
                "*" => left.product(right),
                "/" => left.quotient(right),
                "%" => Estimate { firm: false, ..left.sum(right, left.value % right.value) },
                "^" => left.power(right),
                _ => Estimate {
                    value: 1.0,
                    size: 0.0,
                    error: Estimate::EXACT,
                    vanishing: true,
                    firm: false,
                },
            };
        }
        self.depth -= 1;
        Some(left)
    }

    fn operand(&mut self) -> Option<Estimate> {
        let token = self.tokens.next()?;
        match (token.kind, token.text) {
            (Kind::Number, text) => Estimate::literal(text),
            (Kind::Operator, sign @ ("-" | "!")) => {
                let operand = self.at_least(6)?;
                let firm = operand.firm && sign == "-";
                Some(Estimate { value: -operand.value, firm, ..operand })
            }
            (Kind::Operator, "(") => {
                let inner = self.at_least(0)?;
                self.expect(")")?;
                Some(inner)
            }
            (Kind::Name, function) => {
                let arguments = self.arguments()?;
                match library::called(function) {
                    Some(function) => {
                        let estimate = estimate_library::of(function.name, &arguments)?;
                        let smooth = near::SMOOTH.contains(&function.name);
                        Some(Estimate { firm: estimate.firm && smooth, ..estimate })
                    }
                    None => arguments.last().map(|last| last.applied(function)),
                }
            }
            (Kind::Operator | Kind::Break, _) => None,
        }
    }

    fn arguments(&mut self) -> Option<Vec<Estimate>> {
        self.expect("(")?;
        let mut arguments = Vec::new();
        if self.tokens.next_if(|token| token.text == ")").is_some() {
            return Some(arguments);
        }
        loop {
            arguments.push(self.at_least(0)?);
            if self.tokens.next_if(|token| token.text == ",").is_none() {
                self.expect(")")?;
                return Some(arguments);
            }
        }
    }

    fn expect(&mut self, text: &str) -> Option<()> {
        self.tokens.next_if(|token| token.text == text).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Option<u32> {
        Estimate::of(&Expression::new(text)).map(|estimate| estimate.places())
    }

    #[test]
    fn losses_are_foreseen_where_small_values_are_enlarged() {
        let cases = [
            ("1/3", 0),
            ("4*a(1)", 1),
            ("sqrt(2)^2", 1),
            ("e(-1000)", 0),
            ("10^450", 0),
            ("e(-1000)*10^450", 450),
            ("1/3^1000*3^1000", 478),
            ("(1/3)^1000*3^1000", 478),
            ("1/3^-1000", 955),
            ("1/3/(1/10^30)", 60),
            ("1;1/3*10^7", 7),
            ("-(1/3)*1000", 3),
        ];
        for (text, expected) in cases {
            assert_eq!(places(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_not_guessed() {
        for text in ["a+1", "f 2", "(1", "1+", "sqrt", &"(".repeat(5000)] {
            assert_eq!(places(text), None, "{text}");
        }
    }
}
