//! Plots, character by character.

use crate::plot::{self, Plot, calculate_plot};

use super::*;

async fn drawn(expression: &str, from: &str, to: &str) -> Result<plot::Drawn, String> {
    let [expression, variable, from, to] = [expression, "x", from, to].map(str::to_owned);
    let plot = Plot { expression, variable, from, to, width: 21, height: 5 };
    calculate_plot(&Direct, &plot).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_line_is_drawn_with_axes_and_labels() {
    let plot = drawn("2*x", "-1", "1").await.map(|drawn| drawn.plot);
    let expected = "\x20\
2 |          |       ***
   |          |  *****
 0 |--------*****--------
   |   *****  |
-2 |***       |
   +---------------------
    -1        x         1
";
    assert_eq!(plot, Ok(expected.to_owned()));
}

#[tokio::test]
async fn a_power_is_drawn_between_whole_exponents() {
    let plot = drawn("2^x", "0", "2").await.map(|drawn| drawn.plot);
    let power = drawn("pow(2, x)", "0", "2").await.map(|drawn| drawn.plot);
    assert_eq!(plot, power);
}

#[tokio::test]
async fn a_column_without_a_value_is_a_gap_and_one_far_from_all_others_is_beyond() {
    let evaluated = |drawn: plot::Drawn| (drawn.gaps, drawn.beyond, drawn.lowest, drawn.highest);
    assert_eq!(drawn("1/x", "-1", "1").await.map(evaluated), Ok((1, 0, -10.0, 10.0)));
    assert_eq!(drawn("sqrt(x)", "-10", "10").await.map(evaluated).map(|it| it.0), Ok(10));
    let far = drawn("pow(10, x)", "-100", "100").await.map(evaluated);
    assert_eq!(far.map(|it| (it.0, it.1, it.3)), Ok((0, 1, 1e100)));
    assert_eq!(drawn("7", "0", "pi").await.map(evaluated), Ok((0, 0, 7.0, 7.0)));
}

#[tokio::test]
async fn what_cannot_be_drawn_says_why() {
    let cases = [
        (
            "ln(x)",
            "-2",
            "-1",
            "BC error: the expression has no value in the range: logarithm of zero or a negative number",
        ),
        ("x", "1", "1", "Invalid expression: `from` must be below `to`"),
        ("x", "1/0", "1", "BC error: from and to have no value: Divide by zero"),
        (
            "y=x",
            "0",
            "1",
            "Invalid expression: a plot takes one expression in x, without assignments",
        ),
        (
            "x;1",
            "0",
            "1",
            "Invalid expression: a plot takes one expression in x, without assignments",
        ),
        ("2*", "0", "1", "BC error: syntax error"),
        (
            "while(1)1",
            "0",
            "1",
            "Invalid expression: a plot takes one expression in x, without assignments",
        ),
    ];
    for (expression, from, to, message) in cases {
        let evaluated = drawn(expression, from, to).await.map(|drawn| drawn.plot);
        assert_eq!(evaluated, Err(message.to_owned()), "{expression}");
    }
    for variable in ["1", "", "x y", "if", "scale", "cofferdam_at", "x)"] {
        let [expression, name, from, to] = ["1", variable, "0", "1"].map(str::to_owned);
        let plot = Plot { expression, variable: name, from, to, width: 21, height: 5 };
        let message = format!("`{variable}` cannot be the variable: it is a name such as x");
        let evaluated = calculate_plot(&Direct, &plot).await.map(|drawn| drawn.plot);
        assert_eq!(evaluated, Err(CalcError::Invalid(message)));
    }
}

#[tokio::test]
async fn a_variable_may_have_the_name_of_a_constant() {
    let [expression, variable, from, to] = ["e+0*pi", "e", "0", "pi"].map(str::to_owned);
    let plot = Plot { expression, variable, from, to, width: 21, height: 5 };
    let ends = calculate_plot(&Direct, &plot).await.map(|drawn| (drawn.lowest, drawn.highest));
    assert_eq!(ends, Ok((0.0, std::f64::consts::PI)));
}
