//! Finds expressions in which bc's own operators and functions lose no digits, because of the sizes of all values.
//!
//! The library's products, quotients, powers and functions do what bc's own do, as long as arguments and results are
//! positive and far from its bounds ([`Arithmetic::Floating`](super::rewrite::Arithmetic)). To parse them takes bc
//! longer than most expressions take. So sizes are computed here first, from the numbers in the expression.

use std::f64::consts::{E, PI, TAU};

use super::tokens::{Expression, Kind, Token};

/// Bounds of usual sizes: the library treats values from 10^-6 to 10^6 as bc does, at each scale.
const MIN_SIZE: f64 = 1e-5;
const MAX_SIZE: f64 = 1e5;
/// Part of a value by which a computed bound may be wrong: far more than an f64 is.
const ERROR: f64 = 1e-9;
/// Maximum number of tokens: bounds are computed recursively.
const MAX_TOKENS: usize = 100;
/// Maximum length of a number.
const MAX_NUMBER: usize = 20;

/// Returns true if every operand and every result has a usual size. Anything but numbers, sums, products, powers with a
/// digit as exponent, constants and functions of bc is refused.
pub(super) fn is_moderate(expression: &Expression<'_>) -> bool {
    let tokens = expression.tokens();
    if tokens.len() > MAX_TOKENS {
        return false;
    }
    let mut sizes = Sizes { tokens };
    sizes.sum().is_some() && sizes.tokens.is_empty()
}

/// Bounds of a value.
#[derive(Debug, Clone, Copy)]
struct Size {
    least: f64,
    greatest: f64,
}

impl Size {
    /// Returns the bounds of a value that was computed from two bounds of its argument.
    fn between(one: f64, other: f64) -> Option<Self> {
        let least = one.min(other);
        let greatest = one.max(other);
        let size = Self {
            least: least - least.abs() * ERROR,
            greatest: greatest + greatest.abs() * ERROR,
        };
        (size.least.is_finite() && size.greatest.is_finite()).then_some(size)
    }

    /// Returns the bounds, if they are those of a positive value of a usual size.
    fn usual(self) -> Option<Self> {
        (self.least >= MIN_SIZE && self.greatest <= MAX_SIZE).then_some(self)
    }

    /// Returns the bounds, if the value without its sign has a usual size.
    fn usual_without_sign(self) -> Option<Self> {
        self.usual().or_else(|| {
            Self { least: -self.greatest, greatest: -self.least }.usual()?;
            Some(self)
        })
    }
}

/// Tokens that are left.
struct Sizes<'t, 'text> {
    tokens: &'t [Token<'text>],
}

impl<'t, 'text> Sizes<'t, 'text> {
    fn next(&mut self) -> Option<&'t Token<'text>> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    /// Takes the next token if it is one of these operators.
    fn operator(&mut self, operators: &[&str]) -> Option<&'text str> {
        let token = self.tokens.first()?;
        let is_one = token.kind == Kind::Operator && operators.contains(&token.text);
        is_one.then(|| self.next())?.map(|token| token.text)
    }

    fn sum(&mut self) -> Option<Size> {
        let mut sum = self.product()?;
        while let Some(operator) = self.operator(&["+", "-"]) {
            let part = self.product()?;
            sum = match operator {
                "+" => {
                    Size { least: sum.least + part.least, greatest: sum.greatest + part.greatest }
                }
                _ => Size { least: sum.least - part.greatest, greatest: sum.greatest - part.least },
            };
        }
        Some(sum)
    }

    fn product(&mut self) -> Option<Size> {
        let mut product = self.power()?;
        while let Some(operator) = self.operator(&["*", "/"]) {
            let one = product.usual()?;
            let other = self.power()?.usual()?;
            product = match operator {
                "*" => Size::between(one.least * other.least, one.greatest * other.greatest),
                _ => Size::between(one.least / other.greatest, one.greatest / other.least),
            }?
            .usual()?;
        }
        Some(product)
    }

    fn power(&mut self) -> Option<Size> {
        let base = self.factor()?;
        if self.operator(&["^"]).is_none() {
            return Some(base);
        }
        let base = base.usual()?;
        let exponent = match self.next()?.text.as_bytes() {
            [digit @ b'1'..=b'9'] => i32::from(digit - b'0'),
            _ => return None,
        };
        // Powers group from the right.
        if self.operator(&["^"]).is_some() {
            return None;
        }
        Size::between(base.least.powi(exponent), base.greatest.powi(exponent))?.usual()
    }

    fn factor(&mut self) -> Option<Size> {
        if self.operator(&["-"]).is_some() {
            let Size { least, greatest } = self.factor()?;
            return Some(Size { least: -greatest, greatest: -least });
        }
        if self.operator(&["("]).is_some() {
            return self.bracket();
        }
        let token = self.next()?;
        match token.kind {
            Kind::Number => number(token.text),
            Kind::Name => {
                self.operator(&["("])?;
                if self.operator(&[")"]).is_some() {
                    return constant(token.text);
                }
                let argument = self.bracket()?;
                function(token.text, argument)
            }
            Kind::Operator | Kind::Break => None,
        }
    }

    fn bracket(&mut self) -> Option<Size> {
        let size = self.sum()?;
        self.operator(&[")"])?;
        Some(size)
    }
}

fn number(text: &str) -> Option<Size> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value: f64 = text.parse().ok().filter(|_| is_decimal && text.len() <= MAX_NUMBER)?;
    Size::between(value, value)
}

/// Returns the bounds of a constant of the library, which no argument makes large or small.
fn constant(name: &str) -> Option<Size> {
    let value = match name {
        "cofferdam_pi" => PI,
        "cofferdam_tau" => TAU,
        "cofferdam_e_" => E,
        "cofferdam_phi" => 1.618_033_988_749_895,
        _ => return None,
    };
    Size::between(value, value)
}

/// Returns the bounds of a function of bc, unless the library has its own. They are those of simpler functions: the
/// program has no logarithm for them.
fn function(name: &str, Size { least, greatest }: Size) -> Option<Size> {
    let argument = Size { least, greatest };
    match name {
        "sqrt" => argument.usual().and_then(|_| Size::between(least.sqrt(), greatest.sqrt())),
        "e" => {
            // Whole powers of e.
            let mut exponents = -10..=10;
            let above = exponents.clone().find(|exponent| f64::from(*exponent) >= greatest)?;
            let below = exponents.rfind(|exponent| f64::from(*exponent) <= least)?;
            Size::between(E.powi(below), E.powi(above))
        }
        // 1 - 1/x <= ln(x) <= x - 1
        "l" => {
            argument.usual()?;
            Size::between(1.0 - 1.0 / least, greatest - 1.0)?.usual_without_sign()
        }
        // x / (1 + x) <= atan(x) <= x
        "a" => {
            argument.usual()?;
            Size::between(least / (1.0 + least), greatest.min(2.0))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_decide_which_expressions_bc_evaluates_by_itself() {
        for (text, expected) in [
            ("1.5+1", true),
            ("100/7", true),
            ("4*a(1)+77", true),
            ("1000*(1+0.05)^9", true),
            ("sqrt(2)/3-l(2)*e(-1.5)", true),
            ("(3-2.5)*a(0.5)", true),
            ("0-5*2", true),
            ("-0.1+0.2", true),
            ("l(0.5)", true),
            ("2*cofferdam_pi()*5", true),
            // Too large, too small, negative, or of an unknown sign.
            ("1/3000000", false),
            ("99999*99999", false),
            ("(0.1+0.2-0.3)*5", false),
            ("(1-2)*3", false),
            ("-2*3", false),
            ("-2^2", false),
            ("1/0", false),
            ("5*0", false),
            ("l(1)", false),
            ("l(1.000001)", false),
            ("e(11)", false),
            ("sqrt(0)", false),
            ("1.5^99", false),
            ("2^2^2/3", false),
            ("2^0.5", false),
            ("2^(1+1)/3", false),
            // Not of numbers, sums, products, powers and functions of bc.
            ("A/3", false),
            ("x/3", false),
            ("5%3/2", false),
            ("1/3==2/6", false),
            ("j(1,2)", false),
            ("cofferdam_pi(1)/2", false),
            ("f()/2", false),
            ("1/3;2/3", false),
            ("(1/3", false),
            ("1/3)", false),
            ("a(1", false),
            ("s(1)", false),
            ("a 1", false),
            ("1//3", false),
            ("+1/3", false),
            ("++1/3", false),
            (".", false),
            ("1.2.3", false),
            ("0.123456789012345678901/3", false),
            ("", false),
        ] {
            assert_eq!(is_moderate(&Expression::new(text)), expected, "{text}");
        }
        let long = vec!["1"; MAX_TOKENS].join("+");
        assert!(!is_moderate(&Expression::new(&long)));
    }
}
