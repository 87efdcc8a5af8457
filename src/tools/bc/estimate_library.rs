//! How much the library's functions enlarge the error of what they are given.
//!
//! Where a size can leave a float's range (powers, factorials) it is followed as a logarithm, by
//! the rules of the operations that the function stands for. All others are what a float makes of
//! them, and as steep as they are there.

use std::f64::consts::{LN_10, PI, TAU};

use super::estimate::Estimate;

/// What is foreseen for one call; none where nothing can be.
pub(super) fn of(function: &str, arguments: &[Estimate]) -> Option<Estimate> {
    let ln = |x: &Estimate| x.applied("l");
    let power = |x: &Estimate, y: Estimate| ln(x).product(y).applied("e");
    match (function, arguments) {
        ("exp", [x]) => Some(x.applied("e")),
        ("sinh" | "cosh", [x]) => {
            let greatest = Estimate { value: x.value.abs(), ..*x }.applied("e");
            let value = if function == "sinh" { x.value.sinh() } else { x.value.cosh() };
            // Small where x is: not smaller than x.
            let size = if x.size < 0.0 && function == "sinh" { x.size } else { greatest.size };
            Some(Estimate { value, size, vanishing: x.vanishing && function == "sinh", ..greatest })
        }
        ("ln", [x]) => Some(ln(x)),
        ("log10", [x]) => Some(ln(x).quotient(exact(LN_10))),
        ("log2", [x]) => Some(ln(x).quotient(exact(2_f64.ln()))),
        ("logb", [x, b]) => Some(ln(x).quotient(ln(b))),
        ("pow", [x, y]) if y.value.fract() == 0.0 && y.error == Estimate::EXACT => {
            Some(x.power(*y))
        }
        ("pow", [x, y]) => Some(power(x, *y)),
        ("root", [x, n]) => Some(rooted(x, *n)),
        ("cbrt", [x]) => Some(rooted(x, exact(3.0))),
        ("fact", [n]) => logarithmic(factorial(n.value)?),
        ("perm", [n, k]) => logarithmic(factorial(n.value)? - factorial(n.value - k.value)?),
        ("binomial", [n, k]) => {
            logarithmic(factorial(n.value)? - factorial(n.value - k.value)? - factorial(k.value)?)
        }
        ("fib", [n]) => logarithmic(n.value * 0.208_987_640_249_978_7),
        _ => by_float(function, arguments),
    }
}

fn exact(value: f64) -> Estimate {
    let (size, error) = (value.abs().log10(), Estimate::EXACT);
    Estimate { value, size, error, vanishing: false, firm: true }
}

/// The n-th root, which keeps the sign.
fn rooted(x: &Estimate, n: Estimate) -> Estimate {
    let magnitude = Estimate { value: x.value.abs(), ..*x };
    let root = magnitude.applied("l").quotient(n).applied("e");
    Estimate { value: root.value.copysign(x.value), error: root.error.max(0.0), ..root }
}

/// A whole number above 0 of which the logarithm is known.
fn logarithmic(size: f64) -> Option<Estimate> {
    let known = size.is_finite();
    let estimate = Estimate { size, error: Estimate::EXACT, ..exact(10_f64.powf(size)) };
    known.then_some(Estimate { vanishing: false, ..estimate })
}

/// log10 of n!, by Stirling's formula.
fn factorial(n: f64) -> Option<f64> {
    if n < 0.0 {
        return None;
    }
    if n < 2.0 {
        return Some(0.0);
    }
    Some((n * n.ln() - n + 0.5 * (TAU * n).ln() + 1.0 / (12.0 * n)) / LN_10)
}

/// A function as a float has it, with its steepness measured in each argument.
fn by_float(function: &str, arguments: &[Estimate]) -> Option<Estimate> {
    let mut at: Vec<f64> = arguments.iter().map(|argument| argument.value).collect();
    let value = float(function, &at)?;
    let mut error = 0.0_f64;
    for (place, argument) in arguments.iter().enumerate() {
        if argument.error == Estimate::EXACT {
            continue;
        }
        let step = argument.value.abs().max(1.0) * 1e-6;
        let mut difference = |by: f64| {
            *at.get_mut(place)? = argument.value + by;
            let there = float(function, &at);
            *at.get_mut(place)? = argument.value;
            there.filter(|there| there.is_finite()).map(|there| (there - value).abs() / step)
        };
        let steepest = difference(step).into_iter().chain(difference(-step)).fold(0.0, f64::max);
        error = error.max(argument.error + steepest.log10().max(-20.0));
    }
    let finite = value.is_finite();
    let vanishing = value.abs() < 1e-10;
    let (size, firm) = (value.abs().log10(), arguments.iter().all(|argument| argument.firm));
    finite.then_some(Estimate { value, size, error, vanishing, firm })
}

fn float(function: &str, at: &[f64]) -> Option<f64> {
    let grown = |r: f64, n: f64| if r == 0.0 { n } else { ((1.0 + r).powf(n) - 1.0) / r };
    Some(match (function, at) {
        ("pi", []) => PI,
        ("tau", []) => TAU,
        ("e_", []) => std::f64::consts::E,
        ("phi", []) => (1.0 + 5_f64.sqrt()) / 2.0,
        ("floor", [x]) => x.floor(),
        ("ceil", [x]) => x.ceil(),
        ("trunc", [x]) => x.trunc(),
        ("frac", [x]) => x.fract(),
        ("round", [x, n]) => (x * 10_f64.powf(*n)).round() / 10_f64.powf(*n),
        ("abs", [x]) => x.abs(),
        ("sign", [x]) => x.signum(),
        ("mod", [a, b]) => a % b,
        ("hypot", [x, y]) => x.hypot(*y),
        ("sin", [x]) => x.sin(),
        ("cos", [x]) => x.cos(),
        ("tan", [x]) => x.tan(),
        ("cot", [x]) => x.tan().recip(),
        ("sec", [x]) => x.cos().recip(),
        ("csc", [x]) => x.sin().recip(),
        ("asin", [x]) => x.asin(),
        ("acos", [x]) => x.acos(),
        ("atan", [x]) => x.atan(),
        ("atan2", [y, x]) => y.atan2(*x),
        ("tanh", [x]) => x.tanh(),
        ("asinh", [x]) => x.asinh(),
        ("acosh", [x]) => x.acosh(),
        ("atanh", [x]) => x.atanh(),
        ("degrees", [x]) => x.to_degrees(),
        ("radians", [x]) => x.to_radians(),
        ("min", [first, rest @ ..]) => rest.iter().copied().fold(*first, f64::min),
        ("max", [first, rest @ ..]) => rest.iter().copied().fold(*first, f64::max),
        ("sum", list) => list.iter().sum(),
        ("mean", list) => list.iter().sum::<f64>() / counted(list),
        ("compound", [p, r, n]) => p * (1.0 + r).powf(*n),
        ("fv", [r, n, c]) => c * grown(*r, *n),
        ("pv", [r, n, c]) => -c * grown(*r, -n),
        ("pmt", [r, n, p]) => -p / grown(*r, -n),
        _ => return None,
    })
}

fn counted(list: &[f64]) -> f64 {
    list.iter().map(|_| 1.0).sum()
}
