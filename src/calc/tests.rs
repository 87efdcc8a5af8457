//! Tests the calculator with the host's bc, which is spawned directly.

use std::process::Stdio;
use std::time::Instant;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::*;
use crate::patience::soon;

mod arithmetic;
mod differential;
mod functions;
mod plot;

/// Runs bc without a cell.
struct Direct;

impl Evaluate for Direct {
    async fn bc(
        &self,
        _tool: &'static str,
        program: String,
        wall: Duration,
    ) -> Result<BcRun, CalcError> {
        let internal = |error: std::io::Error| CalcError::Internal(error.to_string());
        let mut child = Command::new("bc")
            .args(["-l", "-q"])
            .env("BC_LINE_LENGTH", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(internal)?;
        let mut stdin = child.stdin.take();
        let whole = async {
            if let Some(stdin) = &mut stdin {
                stdin.write_all(program.as_bytes()).await?;
            }
            drop(stdin);
            child.wait_with_output().await
        };
        // Below the full time, which a failing test would wait for, but enough for a loaded
        // machine.
        let started = Instant::now();
        let patience = wall.min(Duration::from_secs(10));
        let output = match tokio::time::timeout(patience, whole).await {
            Err(_) => return Err(CalcError::Timeout(wall)),
            Ok(output) => output.map_err(internal)?,
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(BcRun {
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            took: started.elapsed(),
        })
    }
}

async fn evaluated(expression: &str, precision: u32) -> Result<(String, Option<bool>), String> {
    let calculated = calculate(&Direct, expression.to_owned(), precision).await;
    calculated.map(|it| (it.result, it.exact)).map_err(|error| error.to_string())
}

async fn assert_results(cases: &[(&str, u32, &str)]) {
    for (expression, precision, result) in cases {
        let expected = Ok(((*result).to_owned(), None));
        assert_eq!(evaluated(expression, *precision).await, expected, "{expression} @{precision}");
    }
}

#[tokio::test]
async fn the_seeds_examples_give_the_seeds_results() {
    assert_results(&[
        ("2+2", 20, "4"),
        ("355/113", 20, "3.14159292035398230088"),
        ("355/113", 10, "3.1415929204"),
        ("sqrt(2)", 15, "1.414213562373095"),
        ("s(3.14159/2)", 10, "1.0000000000"),
        ("sqrt(144)", 20, "12"),
        ("1/3", 20, "0.33333333333333333333"),
        ("a=5; b=10; a+b", 20, "15"),
    ])
    .await;
}

#[tokio::test]
async fn exact_values_drop_trailing_zeros_and_others_keep_every_place() {
    assert_results(&[
        ("4/2", 20, "2"),
        ("1/8", 20, "0.125"),
        ("-.5", 20, "-0.5"),
        ("0*-1", 20, "0"),
        ("-1/3", 3, "-0.333"),
        ("2/3", 3, "0.667"),
        ("sqrt(2)^2", 5, "2.00000"),
        ("1/1000", 2, "0.00"),
        ("-1/1000", 2, "0.00"),
        ("0.5", 0, "0"),
        ("1.5", 0, "2"),
        ("2.5", 0, "2"),
        ("1/4", 1, "0.2"),
        ("3/8", 2, "0.38"),
        ("1/3*3", 5, "1.00000"),
        ("0.1+0.2", 20, "0.3"),
    ])
    .await;
}

#[tokio::test]
async fn integers_are_exact_at_any_size_and_precision() {
    let power = "2037035976334486086268445688409378161051468393665936250636140449354381299763336706183397376";
    assert_results(&[
        ("2^300", 0, power),
        ("2^300", 20, power),
        ("(2^300)%1000007", 20, "385027"),
        ("10^30+1", 5, "1000000000000000000000000000001"),
    ])
    .await;
}

#[tokio::test]
async fn modulo_is_the_mathematical_one_with_the_sign_of_the_dividend() {
    assert_results(&[
        ("7%3", 20, "1"),
        ("7.5%2", 20, "1.5"),
        ("-7%3", 20, "-1"),
        ("7%-3", 20, "1"),
        ("1+17%5*2", 20, "5"),
        ("9%5%3", 20, "1"),
        ("a=17; a%5", 20, "2"),
        ("1%0.3", 20, "0.1"),
        ("2^10%1000", 20, "24"),
    ])
    .await;
}

#[tokio::test]
async fn bc_keeps_its_precedence_and_its_comparisons() {
    assert_results(&[
        ("-2^2", 20, "4"),
        ("2^3^2", 20, "512"),
        ("2^-3", 20, "0.125"),
        ("4^(4/2)", 20, "16"),
        ("3>2", 20, "1"),
        ("2>3", 20, "0"),
        ("1==1 && 2!=3", 20, "1"),
        ("6.02E23*2", 20, "1204000000000000000000000"),
        ("2\r\n3", 20, "3"),
        ("!0", 20, "1"),
        ("- -3", 20, "3"),
    ])
    .await;
}

#[tokio::test]
async fn known_constants_are_right_to_100_places() {
    let pi = "3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170680";
    let e = "2.7182818284590452353602874713526624977572470936999595749669676277240766303535475945713821785251664274";
    let root = "1.4142135623730950488016887242096980785696718753769480731766797379907324784621070388503875343276415727";
    assert_results(&[
        ("4*a(1)", 100, pi),
        ("e(1)", 100, e),
        ("sqrt(2)", 100, root),
        ("sqrt(2)", 50, "1.41421356237309504880168872420969807856967187537695"),
        ("l(e(1))", 30, "1.000000000000000000000000000000"),
    ])
    .await;
}

#[tokio::test]
async fn every_evaluation_starts_fresh() {
    assert_results(&[
        ("a=a+1; a", 20, "1"),
        ("a=a+1/3; a", 5, "0.33333"),
        ("i++; i", 20, "1"),
        ("last+1", 20, "1"),
        ("scale=5; 1/3", 20, "0.33333"),
        ("define f(x) { return (x*2/3) }\nf(2)", 4, "1.3333"),
        ("for (i=0; i<5; i++) { x=x+i%2 }\nx", 20, "2"),
    ])
    .await;
}

#[tokio::test]
async fn the_result_is_the_last_value_printed_and_may_be_absent() {
    assert_results(&[
        ("1+1; 2+2", 20, "4"),
        ("1/3\n2/3", 2, "0.67"),
        ("a=5", 20, ""),
        ("quit", 20, ""),
    ])
    .await;
}

#[tokio::test]
async fn what_depends_on_scale_or_base_is_bc_as_it_is() {
    assert_results(&[
        ("scale", 7, "7"),
        ("length(12345)", 20, "5"),
        ("obase=16; 255", 20, "FF"),
        ("x=length(7); 1/4", 20, "0.25"),
    ])
    .await;
}

#[tokio::test]
async fn digits_lost_at_a_low_scale_are_found_at_a_higher() {
    assert_results(&[
        ("(1/3-0.3333333333333333333333333333333333333)*10^37", 3, "0.333"),
        ("e(-1000)*10^450", 3, "5075958897549456.765"),
        ("1/3^1000*3^1000", 5, "1.00000"),
        ("e(-1000)", 5, "0.00000"),
        ("1/3-1/3", 5, "0"),
        ("0.1+0.2-0.3", 5, "0"),
        ("1/2-0.3-0.2", 5, "0"),
        ("l(1)", 5, "0"),
        ("e(1000)/e(999)", 20, "2.71828182845904523536"),
        ("1/(1/3-0.33333333333333333333333333333333)", 2, "300000000000000000000000000000000.00"),
    ])
    .await;
}

#[tokio::test]
async fn values_far_below_the_scale_keep_their_digits() {
    assert_results(&[
        ("x=10^-200;x*10^200", 20, "1"),
        ("x=1/10^65;x*10^65", 20, "1"),
        ("p=1;for(i=0;i<100;i++)p=p/10;p*10^100", 20, "1"),
        ("var(10^-40,3*10^-40)*10^80", 20, "2"),
        ("x=10^-300;y=x*x;y*10^600", 20, "1"),
        ("x=1/3;x^1000*3^1000", 5, "1.00000"),
        ("x=0.5;for(i=0;i<10;i++)x*=x;x*2^1024", 5, "1.00000"),
        (
            "h=6.62607015*10^-34;c=299792458;k=1.380649*10^-23;t=300;h*c/(k*t)",
            30,
            "0.000047959229250131126738222387",
        ),
        ("g=6.6743*10^-11;m=5.972*10^24;r=6371000;g*m/r^2", 10, "9.8199734262"),
        ("(1-c(10^-60))*2*10^120", 10, "1.0000000000"),
        ("(sqrt(10^300+1)-10^150)*10^150", 10, "0.5000000000"),
        ("x=4*a(1);(x/2-a(10^200))*10^200", 10, "1.0000000000"),
        ("(1-tanh(200))*e(400)", 10, "2.0000000000"),
        ("define f(x) { return (x/10^60) }\nf(7)*10^60", 10, "7"),
        ("stdev(10^-50,3*10^-50)*10^50", 10, "1.4142135624"),
        ("1/(e(-200)*e(-300))/e(500)", 10, "1.0000000000"),
        ("(((((((((((10^-70)))))))))))*10^70", 10, "1"),
    ])
    .await;
}

#[tokio::test]
async fn a_difference_cut_to_zero_counts_next_to_a_small_exact_number() {
    // The difference is 5*10^-251: 0 at the first two scales.
    const SMALL: &str = "(sqrt(10^500+1)-10^250+10^-250)";
    for (text, expected) in [
        ("SMALL*10^250", "1.50000000000000000000"),
        ("(1+SMALL)*10^250-10^250", "1.50000000000000000000"),
        ("x=SMALL;for(i=0;i<25;i++)x=x*10^10;x", "1.50000000000000000000"),
        ("x[3]=-SMALL;x[3]*10^125*10^125", "-1.50000000000000000000"),
        ("10^-250/SMALL", "0.66666666666666666667"),
        ("1/SMALL*10^-250", "0.66666666666666666667"),
        ("sqrt(SMALL)*10^125", "1.22474487139158904910"),
        ("SMALL^2*10^500", "2.25000000000000000000"),
        ("l(SMALL)-l(10^-250)", "0.40546510810816438198"),
        ("atan2(SMALL,10^-250)", "0.98279372324732906799"),
        ("SMALL<12*10^-251", "0"),
        ("mean(SMALL,10^-250)*10^250", "1.25000000000000000000"),
    ] {
        let text = text.replace("SMALL", SMALL);
        assert_eq!(evaluated(&text, 20).await, Ok((expected.to_owned(), None)), "{text}");
    }
}

#[tokio::test]
async fn a_zero_under_a_root_is_exact_and_soon_there() {
    assert_results(&[
        ("(-4+sqrt(4^2-4*1*4))/2", 20, "-2"),
        ("sqrt(s(0))", 20, "0"),
        ("2*pi*sqrt(0/9.81)", 20, "0"),
        ("sqrt(0)", 20, "0"),
        ("1+sqrt(1/2-0.5)*3", 20, "1"),
    ])
    .await;
}

#[tokio::test]
async fn powers_are_computed_to_the_digits_that_are_asked_for() {
    let started = Instant::now();
    assert_results(&[
        ("(1+0.05/365)^(365*30)", 20, "4.48122868852451524775"),
        ("(1+1/1000000)^1000000", 20, "2.71828046931937688382"),
        ("e(-3000)*10^1303", 10, "1.3078390189"),
        ("1.0001^-1000000", 50, "0.00000000000000000000000000000000000000000003738722"),
        ("1.1^3", 20, "1.331"),
        ("2^0.5", 10, "1.4142135624"),
        ("x=0.5;x^-1.5", 10, "2.8284271247"),
        ("0.999^100000*10^45", 5, "35.38528"),
    ])
    .await;
    let evaluated = evaluated("pi^1000", 0).await.map(|(result, exact)| (result.len(), exact));
    assert_eq!(evaluated, Ok((498, None)));
    assert!(started.elapsed() < soon(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn values_that_differ_by_what_was_cut_off_are_equal() {
    assert_results(&[
        ("1/3*3==1", 20, "1"),
        ("1/3*3!=1", 20, "0"),
        ("1/3*3<1", 20, "0"),
        ("1/3*3>=1", 20, "1"),
        ("sqrt(2)^2==2", 20, "1"),
        ("1+10^-300==1", 20, "0"),
        ("1+10^-300>1", 20, "1"),
        ("10^-200==2*10^-200", 20, "0"),
        ("10^-200>0", 20, "1"),
        ("sqrt(10^200+1)==10^100", 20, "0"),
        ("0.1+0.2==0.3", 20, "1"),
        ("1/3<0.33333333333333333333333333333333333333333333334", 20, "1"),
        ("n=0;for(x=0;x<1;x+=1/3)n+=1;n", 20, "3"),
    ])
    .await;
}

#[tokio::test]
async fn no_scale_is_too_high_to_be_written() {
    let long = evaluated("scale=65536;1/3", 20).await;
    assert_eq!(long, Ok(("0.33333333333333333333".to_owned(), None)));
    let raw = evaluated("scale=70000;x=scale;1/4", 20).await;
    assert_eq!(raw, Ok(("0.25".to_owned(), None)));
}

#[tokio::test]
async fn a_value_that_never_settles_is_reported_inexact() {
    // 1.4999… at every working scale; the true value is the tie 1.5.
    assert_eq!(evaluated("1/3*4.5", 0).await, Ok(("2".to_owned(), Some(false))));
}

#[tokio::test]
async fn errors_of_bc_are_reported_in_its_words() {
    let cases = [
        ("2/0", "BC error: Divide by zero"),
        ("a=0; 1/a", "BC error: Divide by zero"),
        ("7%0", "BC error: Modulo by zero"),
        ("sqrt(-1)", "BC error: Square root of a negative number"),
        ("l(0)", "BC error: logarithm of zero or a negative number"),
        ("l(-1)/2", "BC error: logarithm of zero or a negative number"),
        ("f(3)", "BC error: Function f not defined."),
        ("2+", "BC error: syntax error"),
        ("2 3", "BC error: syntax error"),
        (
            "(-2)^0.5",
            "BC error: pow(x, y): x must be above 0, or y a whole number and x not 0 below it",
        ),
        ("2^10^10", "BC error: exponent too large in raise"),
        (
            "system('ls')",
            "Invalid expression: dangerous pattern `system(` (starts a program) is not allowed",
        ),
        ("read()", "Invalid expression: read() is not allowed: a calculation has no input to read"),
        (
            "a%=2",
            "Invalid expression: `%=` is not taken here: write `a = a % b`, or use calculate_advanced",
        ),
    ];
    for (expression, message) in cases {
        assert_eq!(evaluated(expression, 20).await, Err(message.to_owned()), "{expression}");
    }
}

#[tokio::test]
async fn what_never_ends_is_a_timeout_of_the_whole_calculation() {
    for expression in ["9^9^9^9", "while (1) { a=1 }"] {
        let message = "Calculation timeout after 30s".to_owned();
        assert_eq!(evaluated(expression, 20).await, Err(message), "{expression}");
    }
}

#[tokio::test]
async fn advanced_scripts_are_bc_as_it_is_with_all_lines() {
    let run = |script: &str, precision: Option<u32>| {
        let script = script.to_owned();
        let precision = precision.unwrap_or(PRECISION);
        async move { calculate_advanced(&Direct, &script, precision, ScriptDigits::CutOff).await }
    };
    let plain = |result: &str, script: &str, precision| {
        let result = result.to_owned();
        let script = script.to_owned();
        Ok(CalculatedAdvanced { result, script, precision, warnings: Vec::new() })
    };
    let script = "scale=5\npi=4*a(1)\npi*2";
    assert_eq!(run(script, None).await, plain("6.28312", script, 20));
    let script = "print \"x = \", 1/3, \"\\n\" # it's raw\n7%3; a_b=2\na_b";
    assert_eq!(run(script, Some(3)).await, plain("x = .333\n.001\n2", script, 3));
    let failed = run("1\n2/0", None).await;
    assert_eq!(failed, Err(CalcError::Bc("Divide by zero\nit printed:\n1".to_owned())));
    assert_eq!(
        run("1\n2+\n3", None).await,
        Err(CalcError::Bc("syntax error (near line 3)\nit printed:\n1\n3".to_owned()))
    );
    let warned = run("2^0.5", None).await.map(|it| (it.result, it.warnings));
    assert_eq!(warned, Ok(("1".to_owned(), vec!["non-zero scale in exponent".to_owned()])));
    let long = format!("1+{}1", "1+".repeat(80));
    let evaluated = run(&long, None).await.map(|it| (it.result, it.script));
    assert_eq!(evaluated, Ok(("82".to_owned(), format!("{}...", &"1+".repeat(50)))));
}

#[tokio::test]
async fn a_script_with_rounding_prints_the_nearest_numbers() {
    let run = async |script: &str, precision| {
        let done = calculate_advanced(&Direct, script, precision, ScriptDigits::Rounded).await;
        done.map(|it| (it.result, it.warnings)).map_err(|error| error.to_string())
    };
    for (script, precision, printed) in [
        ("scale=5\npi=4*a(1)\npi*2", 20, "6.28319"),
        ("2/3", 4, "0.6667"),
        ("-2/3", 4, "-0.6667"),
        ("2/3", 0, "0"),
        ("scale=2; 1/8; 3/8; 10/4", 20, "0.12\n0.38\n2.50"),
        ("print \"x = \", 2/3, \"; y = \", 5, \"\\n\"", 3, "x = 0.667; y = 5"),
        ("for (i=1; i<4; i++) i/3", 2, "0.33\n0.67\n1.00"),
        ("s=scale; scale=0; a=7/2; scale=s; a; a/3", 3, "3\n1.000"),
        (
            "define f(x) { auto s; s=scale; scale=s+5; x=sqrt(x); scale=s; return (x/1) }\nf(3)",
            4,
            "1.7321",
        ),
        ("scale=6; s(1)^2+c(1)^2", 20, "1.000000"),
        ("scale", 7, "7"),
        ("2^100", 5, "1267650600228229401496703205376"),
        ("x=5", 5, ""),
    ] {
        let expected = Ok((printed.to_owned(), Vec::new()));
        assert_eq!(run(script, precision).await, expected, "{script} @{precision}");
    }
    // Newton's method prints a line more for each digit it needs.
    let steps = "x=1\nwhile (x*x-2 > 10^-scale(1/3)) { x=(x+2/x)/2; x }\nwhile (length(x) < 30) { x*=1.5; x }";
    let other =
        "not rounded: the script prints other lines or words if it calculates with more digits";
    let done = run(steps, 10).await.map(|(_, warnings)| warnings);
    assert_eq!(done, Ok(vec![other.to_owned()]));
    // The true value is a tie, and each run is just below it.
    let tie = run("1/3*3/20+1", 1).await;
    let unsure = "the last digit of some numbers may be wrong: more guard digits did not settle it";
    assert!(tie.as_ref().is_ok_and(|(_, warnings)| warnings[..] == [unsure.to_owned()]), "{tie:?}");
    for (script, message) in [
        ("2/0", "BC error: Divide by zero"),
        (
            "obase=2; 1/3",
            "Invalid expression: `round` is for decimal numbers, and the script has `obase`",
        ),
    ] {
        assert_eq!(run(script, 5).await, Err(message.to_owned()), "{script}");
    }
    // All runs together have the time of one calculation: the first takes it all.
    let slow = Slow(Duration::from_secs(29));
    let done = calculate_advanced(&slow, "2/3", 4, ScriptDigits::Rounded).await;
    assert_eq!(done, Err(CalcError::Timeout(Duration::from_secs(1))));
}

#[test]
fn results_have_the_seeds_fields() {
    let evaluated =
        Evaluated { result: "4".into(), expression: "2+2".into(), precision: 20, exact: None };
    let json = serde_json::json!({"result": "4", "expression": "2+2", "precision": 20});
    assert_eq!(serde_json::to_value(evaluated).ok(), Some(json));
}

/// A bc that reports this time for every run.
struct Slow(Duration);

impl Evaluate for Slow {
    async fn bc(
        &self,
        tool: &'static str,
        program: String,
        wall: Duration,
    ) -> Result<BcRun, CalcError> {
        if self.0 > wall {
            return Err(CalcError::Timeout(wall));
        }
        Direct.bc(tool, program, wall).await.map(|run| BcRun { took: self.0, ..run })
    }
}

#[tokio::test]
async fn all_evaluations_together_have_the_time_of_one_calculation() {
    let run = |seconds, expression: &str| {
        let expression = expression.to_owned();
        async move {
            let slow = Slow(Duration::from_secs(seconds));
            let evaluated = calculate(&slow, expression, 0).await;
            evaluated.map(|it| (it.result, it.exact)).map_err(|error| error.to_string())
        }
    };
    let timeout = Err("Calculation timeout after 30s".to_owned());
    // At the first two scales it seems to be the logarithm of 0.
    assert_eq!(run(20, "l(sqrt(10^500+1)-10^250)").await, timeout);
    assert_eq!(run(14, "a=5; a/2").await, Ok(("2".to_owned(), None)), "two evaluations fit");
    assert_eq!(run(16, "a=5; a/2").await, timeout, "two evaluations do not fit");
    // The first two scales share a run and do not resolve a tie; no time is left for the next.
    assert_eq!(run(16, "1/3*4.5").await, Ok(("2".to_owned(), Some(false))));
}
