//! The calculator against a floating-point library: generated expressions, some thousands, at up to
//! 100 places.
//!
//! An expression is built together with its value, at 3,000 bits. Its result must be that value,
//! correctly rounded; where the value does not exist, there must be an error.

use astro_float_num::{BigFloat, Consts, Radix, RoundingMode};

use super::*;

const BITS: usize = 3072;
const NEAREST: RoundingMode = RoundingMode::ToEven;
/// Expressions of one test; there are four.
const EXPRESSIONS: usize = 600;
/// Expressions of one batch: few enough that its time suffices on a busy machine.
const BATCH: usize = 20;

/// Numbers that only the seed decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        let count = u64::try_from(choices.len()).unwrap_or(1);
        let place = usize::try_from(self.below(count)).unwrap_or(0);
        choices.get(place).copied().unwrap_or_else(|| panic!("no choice"))
    }
}

/// An expression and its value.
#[derive(Clone)]
struct Valued {
    text: String,
    value: BigFloat,
}

struct Maker {
    dice: Dice,
    consts: Consts,
    functions: Vec<Unary>,
}

/// A function of one value, here and there.
type Unary = (&'static str, fn(&BigFloat, &mut Consts) -> BigFloat);

const FUNCTIONS: &[Unary] = &[
    ("sqrt", |x, _| x.sqrt(BITS, NEAREST)),
    ("cbrt", |x, _| x.cbrt(BITS, NEAREST)),
    ("exp", |x, cc| x.exp(BITS, NEAREST, cc)),
    ("e", |x, cc| x.exp(BITS, NEAREST, cc)),
    ("ln", |x, cc| x.ln(BITS, NEAREST, cc)),
    ("l", |x, cc| x.ln(BITS, NEAREST, cc)),
    ("log10", |x, cc| x.log10(BITS, NEAREST, cc)),
    ("log2", |x, cc| x.log2(BITS, NEAREST, cc)),
    ("sin", |x, cc| x.sin(BITS, NEAREST, cc)),
    ("cos", |x, cc| x.cos(BITS, NEAREST, cc)),
    ("tan", |x, cc| x.tan(BITS, NEAREST, cc)),
    ("s", |x, cc| x.sin(BITS, NEAREST, cc)),
    ("c", |x, cc| x.cos(BITS, NEAREST, cc)),
    ("a", |x, cc| x.atan(BITS, NEAREST, cc)),
    ("asin", |x, cc| x.asin(BITS, NEAREST, cc)),
    ("acos", |x, cc| x.acos(BITS, NEAREST, cc)),
    ("atan", |x, cc| x.atan(BITS, NEAREST, cc)),
    ("sinh", |x, cc| x.sinh(BITS, NEAREST, cc)),
    ("cosh", |x, cc| x.cosh(BITS, NEAREST, cc)),
    ("tanh", |x, cc| x.tanh(BITS, NEAREST, cc)),
    ("asinh", |x, cc| x.asinh(BITS, NEAREST, cc)),
    ("acosh", |x, cc| x.acosh(BITS, NEAREST, cc)),
    ("atanh", |x, cc| x.atanh(BITS, NEAREST, cc)),
    ("abs", |x, _| x.abs()),
    ("-", |x, _| x.neg()),
];

impl Maker {
    fn new(seed: u64) -> Self {
        let consts = Consts::new().unwrap_or_else(|_| panic!("no constants"));
        Self { dice: Dice(seed), consts, functions: FUNCTIONS.to_vec() }
    }

    fn number(&mut self) -> Valued {
        let places = self.dice.of(&[0, 0, 0, 1, 2, 3, 5, 20, 40]);
        let mut digits = self.dice.of(&[9_u64, 99, 999, 100_000]);
        digits = self.dice.below(digits) + 1;
        let zeros = self.dice.of(&[0, 0, 0, 0, 0, 0, 1, 5, 25]);
        let sign = self.dice.of(&["", "", "-"]);
        let text = format!("{sign}{digits}{}", "0".repeat(zeros));
        let text = if places == 0 {
            text
        } else {
            let fraction = format!("{digits:0>places$}");
            format!("{sign}{}.{fraction}", self.dice.of(&[0, 0, 1, 12]))
        };
        let value = BigFloat::parse(&text, Radix::Dec, BITS, NEAREST, &mut self.consts);
        Valued { text, value }
    }

    /// Generates an expression up to this depth; `None` if its value is out of bounds.
    fn expression(&mut self, depth: u32) -> Option<Valued> {
        let made = match self.dice.below(if depth == 0 { 1 } else { 8 }) {
            0 => self.number(),
            1..=3 => self.function(depth)?,
            4 => self.power(depth)?,
            _ => self.operation(depth)?,
        };
        // Neither what takes bc for ever nor what is nothing but a rounding of the reference.
        let reasonable = |exponent: i32| (-700..700).contains(&exponent);
        let value = &made.value;
        (value.is_nan() || value.is_zero() || value.exponent().is_some_and(reasonable))
            .then_some(made)
    }

    fn function(&mut self, depth: u32) -> Option<Valued> {
        let (name, function) = self.dice.of(&self.functions);
        let inner = self.expression(depth - 1)?;
        let grows = matches!(name, "exp" | "e" | "sinh" | "cosh");
        if grows && inner.value.exponent().is_some_and(|exponent| exponent > 9) {
            // Thousands of digits, for which bc takes its time.
            return None;
        }
        let value = function(&inner.value, &mut self.consts);
        if value.is_nan() && self.is_at_an_edge(&inner.value) {
            return None;
        }
        Some(Valued { text: format!("{name}({})", inner.text), value })
    }

    /// Returns true if a value is so near to an end of a domain (0, 1, -1) that the digits that bc
    /// cuts off decide on which side it is, which README mentions.
    fn is_at_an_edge(&self, value: &BigFloat) -> bool {
        let one = BigFloat::from_word(1, BITS);
        let near = |distance: BigFloat| distance.exponent().is_some_and(|exponent| exponent < -35);
        near(value.clone()) || near(value.abs().sub(&one, BITS, NEAREST))
    }

    fn power(&mut self, depth: u32) -> Option<Valued> {
        let base = self.expression(depth - 1)?;
        let exponent = self.dice.of(&["2", "3", "7", "-1", "-4", "0.5", "1.3", "-2.7"]);
        let real = exponent.contains('.');
        if base.value.is_zero() || (real && base.value.is_negative()) {
            return None;
        }
        let power = BigFloat::parse(exponent, Radix::Dec, BITS, NEAREST, &mut self.consts);
        let mut value = base.value.abs().pow(&power, BITS, NEAREST, &mut self.consts);
        if base.value.is_negative() && ["3", "7", "-1"].contains(&exponent) {
            value = value.neg();
        }
        let text = if real || self.dice.below(2) == 0 {
            format!("pow({}, {exponent})", base.text)
        } else {
            format!("({})^{exponent}", base.text)
        };
        Some(Valued { text, value })
    }

    fn operation(&mut self, depth: u32) -> Option<Valued> {
        let left = self.expression(depth - 1)?;
        let right = self.expression(depth - 1)?;
        let operator = self.dice.of(&["+", "-", "*", "/"]);
        let a = &left.value;
        let b = &right.value;
        let value = match operator {
            "+" => a.add(b, BITS, NEAREST),
            "-" => a.sub(b, BITS, NEAREST),
            "*" => a.mul(b, BITS, NEAREST),
            _ if b.is_zero() => astro_float_num::NAN,
            _ => a.div(b, BITS, NEAREST),
        };
        Some(Valued { text: format!("({}{operator}({}))", left.text, right.text), value })
    }

    /// Returns true if the result is the value rounded to this number of places.
    fn is_rounded(&mut self, result: &str, value: &BigFloat, precision: u32) -> bool {
        let cc = &mut self.consts;
        let mut read = |text: &str| BigFloat::parse(text, Radix::Dec, BITS, NEAREST, cc);
        // Half a unit of the last place, and what the reference may be off.
        let most = read(&format!("5.00000000000001e-{}", precision + 1));
        let difference = read(result).sub(value, BITS, NEAREST).abs();
        !difference.is_nan() && difference.cmp(&most).is_some_and(|order| order <= 0)
    }
}

async fn compare(seed: u64) {
    let mut maker = Maker::new(seed);
    let mut compared = 0;
    let mut errors = 0;
    let mut unsure = 0;
    while compared < EXPRESSIONS {
        let precision = maker.dice.of(&[0, 1, 5, 20, 20, 50, 100]);
        let mut some = Vec::new();
        while some.len() < BATCH {
            let depth = maker.dice.of(&[1, 2, 2, 3]);
            some.extend(maker.expression(depth));
        }
        let texts: Vec<String> = some.iter().map(|one| one.text.clone()).collect();
        let evaluated = calculate_batch(&Direct, &texts, precision, Some(CALCULATOR_TIMEOUT)).await;
        let evaluated = evaluated.unwrap_or_else(|error| panic!("{error}"));
        for (Valued { text, value }, evaluated) in some.iter().zip(evaluated) {
            compared += 1;
            match evaluated {
                Ok((_, Some(false))) => unsure += 1,
                Ok((result, _)) => assert!(
                    maker.is_rounded(&result, value, precision),
                    "{text} at {precision}: {result}, not {value}"
                ),
                Err(CalcError::Timeout(_)) => unsure += 1,
                Err(error) => {
                    errors += 1;
                    assert!(value.is_nan() || value.is_inf(), "{text} at {precision}: {error}");
                }
            }
        }
    }
    assert!(compared > 5 * errors, "most have a value: {errors} errors of {compared}");
    assert!(unsure * 50 < compared, "nearly all are sure: {unsure} unsure of {compared}");
}

#[tokio::test]
async fn generated_expressions_have_the_value_of_another_arithmetic_1() {
    compare(1).await;
}

#[tokio::test]
async fn generated_expressions_have_the_value_of_another_arithmetic_2() {
    compare(2).await;
}

#[tokio::test]
async fn generated_expressions_have_the_value_of_another_arithmetic_3() {
    compare(3).await;
}

#[tokio::test]
async fn generated_expressions_have_the_value_of_another_arithmetic_4() {
    compare(4).await;
}

/// Returns true if `near` suffices for an expression in the notation of callers.
fn serves(text: &str) -> bool {
    let text = library::resolved(text).unwrap_or_default();
    let expression = Expression::new(&text);
    expression.shape() == Shape::Pure && near::suffices_for(&expression)
}

#[tokio::test]
async fn values_at_two_scales_near_each_other_are_those_of_another_arithmetic() {
    let mut maker = Maker::new(5);
    maker
        .functions
        .retain(|(name, _)| ["s", "c", "a", "l", "e", "exp", "ln", "sqrt"].contains(name));
    for _ in 0..EXPRESSIONS / BATCH / 5 {
        let precision = maker.dice.of(&[0, 1, 5, 20, 20, 50, 100]);
        let mut some = Vec::new();
        while some.len() < BATCH {
            let depth = maker.dice.of(&[1, 2, 2, 3]);
            let made = maker.expression(depth);
            some.extend(made.filter(|one| serves(&one.text) && !one.value.is_nan()));
        }
        let texts: Vec<String> = some.iter().map(|one| one.text.clone()).collect();
        let evaluated = calculate_batch(&Direct, &texts, precision, Some(CALCULATOR_TIMEOUT)).await;
        let evaluated = evaluated.unwrap_or_else(|error| panic!("{error}"));
        for (Valued { text, value }, evaluated) in some.iter().zip(evaluated) {
            let result = match evaluated {
                Ok((result, None)) => result,
                // A tie, as of l(e(-12.45)).
                Ok((_, Some(false))) => continue,
                other => panic!("{text} at {precision}: {other:?}"),
            };
            assert!(
                maker.is_rounded(&result, value, precision),
                "{text} at {precision}: {result}, not {value}"
            );
        }
    }
}

/// Expressions whose digits may be lost between two scales, or be exact at one of them.
const TREACHEROUS: &[&str] = &[
    "e(1)+10^-60",
    "e(1)*10^-60*10^60",
    "e(-1000)*10^450",
    "e(-40)*10^17",
    "4*a(1)+(1+e(-130)-1)*10^57",
    "4*a(1)+(e(-130)/(1+10^-31-1))/(1+10^-31-1)",
    "(e(1)+10^-30-e(1))*10^30+s(1)",
    "e(1)^20-e(20)+a(1)",
    "sqrt(10^40+1)-10^20+c(1)",
    "sqrt(e(2))",
    "sqrt(e(1)*e(1))*l(3)",
    "e(l(2))",
    "e(l(2)/2)^2+a(1)",
    "l(e(7))*s(2)",
    "1/998001*e(1)",
    "a(1)/a(1)",
    "a(1)*4/pi",
    "s(1)^2+c(1)^2",
    "e(1)+1/2^70",
    "c(0.000001)",
    "e(0.0000000001)",
    "s(355)",
    "s(100000*pi+1)",
    "a(1000000)*2",
    "l(1.0001)*10^4",
    "e(40)/e(39)",
    "e(30)-e(29)",
];

#[tokio::test]
async fn two_near_scales_settle_on_the_value_of_twice_the_scale() {
    let mut settled = 0;
    let time = CALCULATOR_TIMEOUT;
    for text in TREACHEROUS {
        let text = library::resolved(text).unwrap_or_default();
        let expression = Expression::new(&text);
        if !near::suffices_for(&expression) {
            continue;
        }
        for precision in [0, 5, 20, 50] {
            let mut readings = Readings::new(&Direct, "calculate", &expression, precision, time);
            let near = evaluate_until_agreed(&mut readings, precision, Second::Near).await;
            let twice = evaluate_until_agreed(&mut readings, precision, Second::Double).await;
            settled += 1;
            // Nines to the end are the same value as 1 with or without its zeros.
            let value = |evaluated: Result<(String, Option<bool>), CalcError>| {
                evaluated.map(|(result, exact)| (Decimal::parse(&result), exact))
            };
            assert_eq!(value(near), value(twice), "{text} at {precision}");
        }
    }
    assert!(settled > 20, "most are not even tried: {settled}");
}
