//! Every function of the library against digits that another program computed (mpmath), and against
//! its domain.

use super::*;

/// Expressions with their values to more than 100 places.
const KNOWN: &str = include_str!("known_digits.tsv");

/// Values that are exact.
const EXACT: &[(&str, &str)] = &[
    ("floor(-2.5)", "-3"),
    ("floor(7)", "7"),
    ("ceil(2.000000000000000000000000000000001)", "3"),
    ("trunc(-2.9)", "-2"),
    ("frac(-2.75)", "-0.75"),
    ("round(2.5)", "3"),
    ("round(-2.5)", "-3"),
    ("round(2.345, 2)", "2.35"),
    ("round(1251, -2)", "1300"),
    ("abs(-3)", "3"),
    ("sign(-0.1)", "-1"),
    ("sign(0)", "0"),
    ("mod(-7, 3)", "-1"),
    ("pow(2, -3)", "0.125"),
    ("pow(4, 0.5)", "2"),
    ("pow(8, 4/2)", "64"),
    ("pow(0, 0)", "1"),
    ("pow(-2, 3)", "-8"),
    ("root(27, 3)", "3"),
    ("cbrt(-0.001)", "-0.1"),
    ("hypot(3, 4)", "5"),
    ("logb(8, 2)", "3"),
    ("log2(0.25)", "-2"),
    ("log10(1000)", "3"),
    ("log10(0.00000000000000000000000000000000000000000000000001)", "-50"),
    ("exp(0)", "1"),
    ("ln(1)", "0"),
    ("sin(0)", "0"),
    ("acos(1)", "0"),
    ("atan2(0, 1)", "0"),
    ("fact(0)", "1"),
    ("fact(25)", "15511210043330985984000000"),
    ("fact(10/2)", "120"),
    ("binomial(60, 30)", "118264581564861424"),
    ("binomial(3, 5)", "0"),
    ("perm(10, 4)", "5040"),
    ("gcd(84, -36, 120)", "12"),
    ("lcm(4, 6, 10)", "60"),
    ("modpow(3, 10^20, 10^9+7)", "139421235"),
    ("modpow(-2, 3, 5)", "2"),
    ("modinv(3, 11)", "4"),
    ("isprime(2^61-1)", "1"),
    ("isprime(2^127-1)", "1"),
    ("isprime(3215031751)", "0"),
    ("isprime(3825123056546413051)", "0"),
    ("isprime(1)", "0"),
    ("nextprime(10^12)", "1000000000039"),
    ("factor(360)", "2^3 * 3^2 * 5"),
    ("factor(1)", "1"),
    ("factor(1000003*1000033)", "1000003 * 1000033"),
    ("factor(3*(2^61-1))", "3 * 2305843009213693951"),
    ("fib(0)", "0"),
    ("fib(100)", "354224848179261915075"),
    ("min(3, -1, 2)", "-1"),
    ("max(3, -1, 2)", "3"),
    ("sum(1, 2.5, -4)", "-0.5"),
    ("mean(1, 2, 3, 4)", "2.5"),
    ("median(5, 1, 3)", "3"),
    ("median(4, 1, 3, 2)", "2.5"),
    ("var(1, 2, 3)", "1"),
    ("stdev(2, 4, 6)", "2"),
    ("pvar(1, 3)", "1"),
    ("pstdev(1, 3)", "1"),
    ("pmt(0, 10, 1000)", "100"),
    ("compound(100, 0.1, 2)", "121"),
    ("to_base(255, 16)", "FF"),
    ("to_base(-35, 36)", "-Z"),
    ("to_base(10, 2)", "1010"),
    ("from_base(FF, 16)", "255"),
    ("from_base(-zz, 36)+1", "-1294"),
    ("from_base(1e, 16)", "30"),
];

async fn batch(expressions: &[&str], precision: u32) -> Vec<(String, Result<String, String>)> {
    let mut evaluated = Vec::new();
    for some in expressions.chunks(MAX_EXPRESSIONS) {
        let some: Vec<String> = some.iter().map(|text| (*text).to_owned()).collect();
        let done = calculate_batch(&Direct, &some, precision, Some(CALCULATOR_TIMEOUT)).await;
        let done = done.unwrap_or_else(|error| panic!("{error}"));
        for (expression, entry) in some.into_iter().zip(done) {
            let entry = entry.map(|(result, exact)| match exact {
                Some(false) => format!("about {result}"),
                Some(true) | None => result,
            });
            evaluated.push((expression, entry.map_err(|error| error.to_string())));
        }
    }
    evaluated
}

#[tokio::test]
async fn every_digit_is_that_of_another_program_at_20_50_and_100_places() {
    let known: Vec<(&str, &str)> = KNOWN.lines().filter_map(|line| line.split_once('\t')).collect();
    assert!(known.len() > 45, "the file is read");
    let expressions: Vec<&str> = known.iter().map(|(expression, _)| *expression).collect();
    for precision in [20, 50, 100] {
        let evaluated = batch(&expressions, precision).await;
        let expected: Vec<_> = known
            .iter()
            .map(|(expression, digits)| {
                let digits = Decimal::parse(digits)
                    .map(|digits| digits.rounded(evaluate::length(precision)));
                ((*expression).to_owned(), digits.ok_or_else(|| "not digits".to_owned()))
            })
            .collect();
        for (evaluated, expected) in evaluated.iter().zip(&expected) {
            assert_eq!(evaluated, expected, "at {precision}");
        }
    }
}

#[tokio::test]
async fn exact_values_are_reported_unchanged() {
    let expressions: Vec<&str> = EXACT.iter().map(|(expression, _)| *expression).collect();
    for precision in [5, 20] {
        let evaluated = batch(&expressions, precision).await;
        for ((expression, evaluated), (_, value)) in evaluated.iter().zip(EXACT) {
            if value.split_once('.').is_none_or(|(_, places)| places.len() <= 5) {
                assert_eq!(evaluated, &Ok((*value).to_owned()), "{expression} at {precision}");
            }
        }
    }
}

#[test]
fn every_function_has_a_known_value() {
    let known = KNOWN.lines().filter_map(|line| line.split_once('\t'));
    let known: Vec<&str> = known.chain(EXACT.iter().copied()).map(|(text, _)| text).collect();
    for function in library::functions() {
        let called = format!("{}(", function.name);
        let constant = function.form.strip_suffix("()").map(|name| name.trim_end_matches('_'));
        let is_known =
            known.iter().any(|text| text.starts_with(&called) || Some(*text) == constant);
        assert!(is_known, "{} is in neither list", function.name);
    }
    let names: std::collections::BTreeSet<_> = library::functions().map(|it| it.name).collect();
    assert!(names.len() > 65 && names.len() == library::functions().count(), "{names:?}");
}

#[tokio::test]
async fn a_function_without_a_value_says_what_it_needs() {
    let cases = [
        ("fact(2.5)", "BC error: fact(n): n must be a whole number from 0 to 10000"),
        ("fact(-1)", "BC error: fact(n): n must be a whole number from 0 to 10000"),
        ("asin(1.1)", "BC error: asin(x): x must be from -1 to 1"),
        ("log10(0)", "BC error: log10(x): x must be above 0"),
        ("ln(-1)", "BC error: logarithm of zero or a negative number"),
        ("tan(pi/2)", "BC error: tan(x): x is at a pole, or too near to one to tell"),
        (
            "modinv(2, 4)",
            "BC error: modinv(a, m): a and m must be whole numbers without a common divisor, m from 1",
        ),
        ("var(1)", "BC error: var(...): two values are needed"),
        ("mean()", "Invalid expression: `mean(...)` takes 1 values or more, not 0"),
        ("atan2(1)", "Invalid expression: `atan2(y, x)` takes 2 values, not 1"),
        ("round(1, 2, 3)", "Invalid expression: `round(x, n?)` takes 1 or 2 values, not 3"),
        (
            "log(2)",
            "Invalid expression: `log` may mean several: write ln(x), log10(x), log2(x) or logb(x, b)",
        ),
        ("cofferdam_raw", "Invalid expression: names that begin with `cofferdam_` are taken"),
        (
            "from_base(12, 2)",
            "Invalid expression: from_base(digits, b) takes digits as they stand and a base from 2 to 36: `2` is no digit of base 2",
        ),
    ];
    for (expression, message) in cases {
        assert_eq!(evaluated(expression, 20).await, Err(message.to_owned()), "{expression}");
    }
}

#[tokio::test]
async fn where_a_function_jumps_cut_digits_do_not_decide_unsaid() {
    let unsure = |value: &str| Ok((value.to_owned(), Some(false)));
    assert_eq!(evaluated("floor(1/3*3)", 5).await, unsure("1.00000"));
    assert_eq!(evaluated("ceil(sqrt(2)^2)", 5).await, unsure("2.00000"));
    assert_eq!(evaluated("(1/3*3)%1", 5).await, unsure("0.00000"));
    assert_eq!(evaluated("sign(1/3-1/6-1/6)", 5).await, unsure("0.00000"));
    assert_results(&[
        // Decided, but only by more digits than the first scales have.
        ("floor(2-0.0000000000000000000000000000001)", 0, "1"),
        ("floor(1.99999999999999999999999999)", 3, "1"),
        ("floor(10/5)", 5, "2"),
    ])
    .await;
}

#[tokio::test]
async fn names_that_the_caller_gives_a_meaning_have_that_meaning() {
    assert_results(&[
        ("pi=3; pi*2", 5, "6"),
        ("e=2; e^3", 5, "8"),
        ("define fact(n) { return (n+1) }\nfact(3)", 5, "4"),
        ("define f(e) { return (e*2) }\nf(3)", 5, "6"),
        // Other functions do not use a redefined one.
        ("define pow(x,y) { return (7) }\ncompound(100, 0.1, 2)", 5, "121"),
        ("2*pi", 5, "6.28319"),
        ("e^2", 5, "7.38906"),
        ("e(1)", 5, "2.71828"),
        ("max(1, min(5, 3), mean(2, 4, 6))", 5, "4"),
        ("to_base(from_base(FF, 16)+1, 2)", 5, "100000000"),
    ])
    .await;
}

#[tokio::test]
async fn losses_within_functions_are_foreseen() {
    assert_results(&[
        ("exp(-1000)*10^450", 3, "5075958897549456.765"),
        ("pow(10.5, -400)*pow(10.5, 400)", 5, "1.00000"),
        ("sinh(1000)/cosh(1000)", 5, "1.00000"),
        ("fact(300)/fact(299)", 5, "300"),
        ("1/fact(200)*fact(200)", 5, "1.00000"),
    ])
    .await;
}

#[tokio::test]
async fn scripts_have_the_library_at_their_own_scale() {
    let run = |script: &str| {
        let script = script.to_owned();
        async move { calculate_advanced(&Direct, &script, 4, ScriptDigits::CutOff).await }
    };
    let evaluated =
        run("x = 30\nsin(radians(x)) # sin(x)\nprint \"gcd(4,6)\\n\"\nfloor(2.9999999)").await;
    assert_eq!(evaluated.map(|it| it.result), Ok(".4999\ngcd(4,6)\n2".to_owned()));
    let wrong = run("fact(3)\n2+").await;
    assert_eq!(wrong, Err(CalcError::Bc("syntax error (near line 3)\nit printed:\n6".to_owned())));
}

#[tokio::test]
async fn a_list_may_be_long() {
    let list = vec!["1"; 1000].join(",");
    let expression = format!("sum({list})");
    let evaluated = evaluated(&expression, 0).await;
    assert_eq!(evaluated, Ok(("1000".to_owned(), None)));
}

#[tokio::test]
async fn entries_of_a_batch_do_not_see_each_other_and_keep_their_order() {
    let expressions =
        ["a=5", "a+1", "1/0", "1/3", "2^0.5", "2+", "é", "sqrt(2)", "1/3*4.5", "scale"];
    let evaluated =
        batch(&expressions, 2).await.into_iter().map(|(_, entry)| entry).collect::<Vec<_>>();
    let error = |text: &str| Err(text.to_owned());
    let value = |text: &str| Ok(text.to_owned());
    let expected = [
        value(""),
        error("Invalid expression: `a` is read and nowhere assigned"),
        error("BC error: Divide by zero"),
        value("0.33"),
        value("1.41"),
        error("BC error: syntax error"),
        error("Invalid expression: character `é` at position 1 is not allowed"),
        value("1.41"),
        value("1.50"),
        value("2"),
    ];
    assert_eq!(evaluated, expected);
}
