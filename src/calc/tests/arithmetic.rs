//! The calculator against arithmetic done in another way.

use proptest::prelude::*;

use super::*;
use crate::rewrite::Arithmetic;

/// Divides a by b to `places` decimal places, half to even, by long division.
fn divided(a: i64, b: i64, places: usize) -> String {
    let negative = (a < 0) != (b < 0);
    let a = u128::from(a.unsigned_abs());
    let b = u128::from(b.unsigned_abs());
    let mut digits = vec![a / b];
    let mut remainder = a % b;
    for _ in 0..places {
        digits.push(remainder * 10 / b);
        remainder = remainder * 10 % b;
    }
    let exact = remainder == 0;
    let odd = digits.last().is_some_and(|digit| digit % 2 == 1);
    if remainder * 2 > b || (remainder * 2 == b && odd) {
        let mut carry = 1;
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit += carry;
            carry = u128::from(place > 0 && *digit == 10);
            *digit = if carry == 1 { 0 } else { *digit };
        }
    }
    let mut parts = digits.iter().map(u128::to_string);
    let whole = parts.next().unwrap_or_default();
    let fraction = parts.collect::<String>();
    let fraction = if exact { fraction.trim_end_matches('0') } else { &fraction };
    let point = if fraction.is_empty() { "" } else { "." };
    let zero = digits.iter().all(|digit| *digit == 0);
    let sign = if negative && !zero { "-" } else { "" };
    format!("{sign}{whole}{point}{fraction}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn quotients_are_those_of_long_division(
        a in -1_000_000_000_000i64..1_000_000_000_000,
        b in prop_oneof![-40i64..0, 1i64..40, 1i64..1_000_000_000],
        precision in 0u32..=100,
    ) {
        let expected = divided(a, b, evaluate::length(precision));
        let evaluated = evaluated_now(&format!("{a}/{b}"), precision);
        prop_assert_eq!(evaluated.ok(), Some(Ok((expected, None))));
    }

    /// Checks with sqrt(n^2+2k)-n, which is k/n except for k^2/2n^3, which is below every returned place.
    #[test]
    fn a_cut_off_part_counts_next_to_exact_numbers_of_its_size(
        e in 30u32..220, k in 1i64..10, m in 1i64..10, form in 0usize..4, steps in 1u32..6,
    ) {
        let small = format!("(sqrt(10^{}+{})-10^{e}+{m}*10^-{e})", 2 * e, 2 * k);
        let step = e / steps;
        let large = format!("{}*10^{}", format!("*10^{step}").repeat(evaluate::length(steps)), e - step * steps);
        let (text, (a, b)) = match form {
            0 => (format!("{small}{large}"), (k + m, 1)),
            1 => (format!("(7+{small}){large}-7*10^{e}"), (k + m, 1)),
            2 => (format!("x={small};1/x*10^-{e}"), (1, k + m)),
            _ => (format!("y=3*10^-{e};{small}/y"), (k + m, 3)),
        };
        let result = evaluated_now(&text, 20).ok().and_then(Result::ok);
        prop_assert!(result.as_ref().is_some_and(|(_, exact)| exact.is_none()), "{text}: {result:?}");
        let value = result.and_then(|(result, _)| Decimal::parse(&result));
        prop_assert_eq!(value, Decimal::parse(&divided(a, b, 20)), "{}", text);
    }

    #[test]
    fn integer_expressions_have_the_value_of_integer_arithmetic(expression in sum(2)) {
        let (text, value) = expression;
        let expected = value.map_or_else(
            || Err("BC error: Modulo by zero".to_owned()),
            |value| Ok((value.to_string(), None)),
        );
        prop_assert_eq!(evaluated_now(&text, 20).ok(), Some(expected), "{}", text);
    }
}

fn evaluated_now(
    expression: &str,
    precision: u32,
) -> std::io::Result<Result<(String, Option<bool>), String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(evaluated(expression, precision)))
}

/// One operator: what it does, unless it divides by zero.
type Apply = fn(i128, i128) -> Option<i128>;
type Operator = (&'static str, Apply);

/// Generates an expression with its value; `None` if it divides by zero.
type Valued = (String, Option<i128>);

fn chain(part: BoxedStrategy<Valued>, operators: [Operator; 2]) -> BoxedStrategy<Valued> {
    let rest =
        prop::collection::vec((prop::sample::select(operators.to_vec()), part.clone()), 0..4);
    let joined = |(first, rest): (Valued, Vec<(Operator, Valued)>)| {
        rest.into_iter().fold(first, |(text, value), ((operator, apply), (right, by))| {
            (format!("{text}{operator}{right}"), value.zip(by).and_then(|(a, b)| apply(a, b)))
        })
    };
    (part, rest).prop_map(joined).boxed()
}

/// Sums of products of numbers and of sums in brackets.
fn sum(depth: u32) -> BoxedStrategy<Valued> {
    let number = (-30i128..100).prop_map(|value| (value.to_string(), Some(value)));
    let factor = if depth == 0 {
        number.boxed()
    } else {
        let bracketed = sum(depth - 1).prop_map(|(text, value)| (format!("({text})"), value));
        prop_oneof![3 => number, 1 => bracketed].boxed()
    };
    let product = chain(factor, [("*", |a, b| a.checked_mul(b)), (" % ", |a, b| a.checked_rem(b))]);
    chain(product, [(" + ", |a, b| Some(a + b)), (" - ", |a, b| Some(a - b))])
}

/// Expressions of numbers, operators and functions of bc.
fn plain_expression() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        (1_u32..2000).prop_map(|whole| whole.to_string()),
        prop::sample::select(vec!["pi", "e", "tau", "phi"]).prop_map(str::to_owned),
        (0_u32..50, 1_u32..100_000).prop_map(|(whole, rest)| format!("{whole}.{rest:05}")),
    ];
    number.prop_recursive(5, 24, 2, |inner| {
        prop_oneof![
            (inner.clone(), prop::sample::select(vec!["+", "-", "*", "/"]), inner.clone())
                .prop_map(|(one, operator, other)| format!("({one}{operator}{other})")),
            (inner.clone(), 1_u32..10).prop_map(|(base, exponent)| format!("{base}^{exponent}")),
            (prop::sample::select(vec!["s", "a", "l", "e", "sqrt"]), inner)
                .prop_map(|(function, argument)| format!("{function}({argument})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_global_rejects: 100_000, ..ProptestConfig::default() })]
    #[test]
    fn where_bcs_own_operators_are_used_the_librarys_give_the_same(
        text in plain_expression().prop_map(|text| library::resolved(&text).unwrap_or_default()).prop_filter("not moderate", |text| {
            let expression = Expression::new(text);
            let is_own = expression.arithmetic() == Arithmetic::Own;
            is_own && expression.rewritten(Arithmetic::Floating).contains("cofferdam_")
        }),
        precision in 0_u32..60,
    ) {
        let expression = Expression::new(&text);
        let digits = precision + SPARE_PLACES;
        let low = first_scale(precision);
        let own = expression.rewritten(Arithmetic::Own);
        let librarys = expression.rewritten(Arithmetic::Floating);
        let at = |scale, digits| {
            format!("cofferdam_begin({scale},5,{digits})\n{librarys}\nprint \"@\"\nscale={scale}\n{own}\nprint \"@\"\n")
        };
        let program = format!("{}{}{}", at(low, 0), at(near::scale(low), digits), at(2 * low, digits));
        let program = format!("{}{program}", library::prelude(&program));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = runtime.block_on(Direct.bc("test", program, Duration::from_secs(60)))?;
        prop_assert_eq!(run.stderr, "");
        let printed: Vec<&str> = run.stdout.split('@').collect();
        prop_assert_eq!(printed.len(), 7);
        for pair in printed.chunks_exact(2) {
            prop_assert_eq!(pair.first(), pair.last());
        }
    }
}
