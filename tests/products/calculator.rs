//! The calculator's tools over the real server: batches, plots, and what a session remembers.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

use serde_json::{Value, json};

use crate::server::{Server, patience::soon};

/// The text of a refused calculation.
fn refusal(server: &mut Server, tool: &str, arguments: Value) -> String {
    let answer = server.result(tool, arguments);
    assert_eq!(answer["isError"], true, "{answer}");
    answer["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_requests_of_the_calculators_design_have_its_answers() {
    let mut server = Server::start(&[]);
    // The requests of the design, and the fields and values of the answers.
    let script = "scale=10\na=5\nb=10\na*b+sqrt(a)";
    let pi = "\nscale=5\npi=4*a(1)\npi*2\n";
    for (tool, arguments, result) in [
        ("calculate", json!({"expression": "355/113", "precision": 20}), "3.14159292035398230088"),
        ("calculate", json!({"expression": "2+2"}), "4"),
        ("calculate", json!({"expression": "355/113", "precision": 10}), "3.1415929204"),
        ("calculate", json!({"expression": "sqrt(2)", "precision": 15}), "1.414213562373095"),
        ("calculate", json!({"expression": "s(3.14159/2)", "precision": 10}), "1.0000000000"),
        ("calculate", json!({"expression": "sqrt(144)"}), "12"),
        ("calculate", json!({"expression": "1/3"}), "0.33333333333333333333"),
        ("calculate", json!({"expression": "a=5; b=10; a+b"}), "15"),
        ("calculate_advanced", json!({"script": script, "precision": 10}), "52.2360679774"),
        // The design has 6.28318, which is neither what bc prints nor the nearest number.
        ("calculate_advanced", json!({"script": pi}), "6.28312"),
        ("calculate_advanced", json!({"script": pi, "round": true}), "6.28319"),
        ("calculate_advanced", json!({"script": script, "round": true}), "52.2360679775"),
    ] {
        let answer = server.result(tool, arguments.clone());
        let content = &answer["structuredContent"];
        let text = answer["content"][0]["text"].as_str().unwrap_or_default();
        assert_eq!(serde_json::from_str::<Value>(text).ok().as_ref(), Some(content), "{arguments}");
        assert_eq!(content["result"], result, "{arguments}");
        assert_eq!(content["precision"], arguments.get("precision").cloned().unwrap_or(json!(20)));
        for (asked, name) in [("expression", "expression"), ("script", "script")] {
            let said = arguments.get(asked).unwrap_or(&Value::Null);
            assert_eq!(content.get(name).unwrap_or(&Value::Null), said, "{arguments}");
        }
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn the_calculators_design_has_its_errors_and_its_precision() {
    let mut server = Server::start(&[]);
    let long = "1+".repeat(5000) + "1";
    for (tool, arguments, beginning) in [
        ("calculate", json!({"expression": "2/0"}), "BC error: Divide by zero"),
        ("calculate", json!({"expression": "2+*3"}), "BC error: syntax error"),
        (
            "calculate",
            json!({"expression": "system('ls')"}),
            "Invalid expression: dangerous pattern `system(`",
        ),
        (
            "calculate",
            json!({"expression": "exec(1)"}),
            "Invalid expression: dangerous pattern `exec(`",
        ),
        ("calculate", json!({"expression": "`ls`"}), "Invalid expression: dangerous pattern ```"),
        ("calculate", json!({"expression": "$(ls)"}), "Invalid expression: dangerous pattern `$(`"),
        (
            "calculate",
            json!({"expression": "1 > /tmp/x"}),
            "Invalid expression: dangerous pattern `>/`",
        ),
        (
            "calculate",
            json!({"expression": "1 < /tmp/x"}),
            "Invalid expression: dangerous pattern `</`",
        ),
        ("calculate", json!({"expression": "2 ? 3"}), "Invalid expression: character `?`"),
        ("calculate", json!({"expression": long}), "Invalid expression: it has 10001 characters"),
        (
            "calculate",
            json!({"expression": "9^9^9^9", "timeout": 1}),
            "Calculation timeout after 1s",
        ),
        (
            "calculate_advanced",
            json!({"script": "obase=2; 1/3", "round": true}),
            "Invalid expression: `round` is for decimal numbers, and the script has `obase`",
        ),
    ] {
        let text = refusal(&mut server, tool, arguments.clone());
        assert!(text.starts_with(beginning), "{arguments}: {text}");
    }
    // `set_precision` holds for what comes after it, from 0 to 100.
    for places in [0, 100, 3] {
        let set = server.result("set_precision", json!({"precision": places}));
        assert_eq!(set["structuredContent"], json!({"precision": places}));
        let third = server.result("calculate", json!({"expression": "1/3"}));
        let expected =
            if places == 0 { "0".to_owned() } else { format!("0.{}", "3".repeat(places)) };
        assert_eq!(third["structuredContent"]["result"], expected);
    }
    for places in [json!(-1), json!(101), json!("x")] {
        refusal(&mut server, "set_precision", json!({"precision": places}));
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_batch_answers_expressions_in_order() {
    let mut server = Server::start(&["--tools", "calc,math"]);
    let expressions = json!(["1/3", "1/0", "isprime(2^61-1)", "a=2; a^10"]);
    let arguments = json!({"expressions": expressions, "precision": 3});
    let result = server.result("calculate_batch", arguments);
    let content = &result["structuredContent"];
    let expected = json!([
        {"expression": "1/3", "result": "0.333"},
        {"expression": "1/0", "error": "BC error: Divide by zero\nhint: a divisor is 0, or so near to 0 that it cannot be told from it"},
        {"expression": "isprime(2^61-1)", "result": "1"},
        {"expression": "a=2; a^10", "result": "1024"}
    ]);
    assert_eq!((&content["results"], &content["errors"]), (&expected, &json!(1)));
    assert_eq!(result["_meta"]["cofferdam/receipt"]["profile"], "bc");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn an_error_of_bc_has_a_hint() {
    let mut server = Server::start(&["--tools", "calc,math"]);
    for (expression, hint) in [
        ("2+", "hint: a product is written with `*`"),
        ("sqrt(-1)", "hint: there are real numbers only"),
        ("PI*2", "hint: names are in small letters: pi"),
        ("fact(-1)", "hint: calculate_functions says where a function has a value"),
    ] {
        let answer = server.result("calculate", json!({"expression": expression}));
        let text = answer["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.contains(hint) && answer["isError"] == true, "{expression}: {text}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_hundred_expressions_without_errors_share_a_cell() {
    let mut server = Server::start(&["--tools", "calc,math"]);
    let expressions: Vec<String> = (1..=100).map(|number| format!("sqrt({number})")).collect();
    let result = server.result("calculate_batch", json!({"expressions": expressions}));
    let results = result["structuredContent"]["results"].as_array().cloned().unwrap_or_default();
    assert_eq!(results.len(), 100);
    assert_eq!(results[1]["result"], "1.41421356237309504880");
    assert_eq!(results[99]["result"], "10");
    let many = vec!["1"; 101];
    let refused = server.result("calculate_batch", json!({"expressions": many}));
    let text = refused["content"][0]["text"].as_str().unwrap_or_default();
    let expected =
        "calculate_batch: `expressions`: invalid length 101, expected 1 to 100 expressions";
    assert_eq!((text, &refused["isError"]), (expected, &json!(true)));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_plot_is_drawn_in_a_cell() {
    let mut server = Server::start(&["--tools", "calc,math"]);
    let arguments = json!({
        "expression": "1/t", "variable": "t", "from": -1, "to": "2/2", "width": 21, "height": 5
    });
    let result = server.result("calculate_plot", arguments);
    let content = &result["structuredContent"];
    let rows = content["plot"].as_str().unwrap_or_default().lines().count();
    let facts = [&content["gaps"], &content["min"], &content["max"], &content["from"]];
    assert_eq!((rows, facts), (7, [&json!(1), &json!(-10.0), &json!(10.0), &json!(-1.0)]));
    assert_eq!(result["_meta"]["cofferdam/receipt"]["profile"], "bc");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn calculation_history_is_private_to_a_session() {
    let mut server = Server::start(&["--tools", "calc,math"]);
    for expression in ["1+1", "1/0"] {
        server.result("calculate", json!({"expression": expression}));
    }
    server.result("calculate_batch", json!({"expressions": ["2+2", "3+3"], "precision": 5}));
    let stats = server.result("calculate_stats", json!({}))["structuredContent"].clone();
    assert_eq!((&stats["calculations"], &stats["errors"]), (&json!(4), &json!(1)));
    assert_eq!(stats["tools"]["calculate_batch"]["calculations"], 2);
    assert_eq!(stats["pending"], 0, "nothing runs or waits");
    let history = server.result("calculate_history", json!({"limit": 3}));
    let expected = json!([
        {"number": 4, "tool": "calculate_batch", "expression": "3+3", "precision": 5, "result": "6"},
        {"number": 3, "tool": "calculate_batch", "expression": "2+2", "precision": 5, "result": "4"},
        {"number": 2, "tool": "calculate", "expression": "1/0", "precision": 20,
            "error": "BC error: Divide by zero"}
    ]);
    assert_eq!(history["structuredContent"]["calculations"], expected);
    assert_eq!(server.close(), Some(0));
    let mut other = Server::start(&["--tools", "calc,math"]);
    let none = other.result("calculate_history", json!({}));
    assert_eq!(none["structuredContent"], json!({"calculations": []}));
    assert_eq!(other.close(), Some(0));
}

#[test]
fn the_functions_are_listed_with_what_they_need() {
    let mut server = Server::start(&["--tools", "calc,math"]);
    let result = server.result("calculate_functions", json!({}));
    let functions = result["structuredContent"]["functions"].as_array().cloned();
    let fact = functions.unwrap_or_default().into_iter().find(|it| it["form"] == "fact(n)");
    let expected = json!({
        "form": "fact(n)", "gives": "n!, the factorial", "section": "Whole numbers",
        "domain": "n must be a whole number from 0 to 10000"
    });
    assert_eq!(fact.unwrap_or(Value::Null), expected);
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("Rounding\n  floor(x): "), "{text}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_calculation_ends_at_the_time_that_it_asks_for() {
    let mut server = Server::start(&[]);
    let started = std::time::Instant::now();
    for (tool, arguments) in [
        ("calculate", json!({"expression": "2^(2^30)", "timeout": 0.5})),
        ("calculate_advanced", json!({"script": "while (1) x = 1", "timeout": 0.5})),
    ] {
        let answer = server.result(tool, arguments);
        let text = answer["content"][0]["text"].as_str().unwrap_or_default();
        let expected = "Calculation timeout after 0.5s\nhint: ask for fewer places or smaller numbers, or split the calculation";
        assert_eq!((text, &answer["isError"]), (expected, &json!(true)));
    }
    assert!(started.elapsed() < soon(25), "{:?}", started.elapsed());
    let fine = server.result("calculate", json!({"expression": "1/8", "timeout": 600}));
    assert_eq!(fine["structuredContent"]["result"], "0.125");
    let lowered = json!(["timeout 600 s was lowered to 30 s, the most there is"]);
    assert_eq!(fine["structuredContent"]["warnings"], lowered);
    let none = server.result("calculate", json!({"expression": "1/8", "timeout": 0}));
    assert_eq!(none["isError"], true);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn an_endless_entry_does_not_delay_the_others() {
    let mut server = Server::start(&["--tools", "calc,math"]);
    let expressions = json!(["1+1", "2^(2^30)", "while (1) x = 1", "3+3", "1/3"]);
    let arguments = json!({"expressions": expressions, "timeout": 0.5, "precision": 2});
    let result = server.result("calculate_batch", arguments);
    let results = &result["structuredContent"]["results"];
    let output = |place: usize, field: &str| results[place][field].as_str().map(str::to_owned);
    let value = |text: &str| Some(text.to_owned());
    assert_eq!((output(0, "result"), output(3, "result")), (value("2"), value("6")));
    assert_eq!(output(4, "result"), value("0.33"));
    for place in [1, 2] {
        let error = output(place, "error").unwrap_or_default();
        assert!(error.starts_with("Calculation timeout after 0.5s\nhint: "), "{error}");
    }
    let plot = json!({"expression": "2^(10^9*x)", "from": 1, "to": 2, "timeout": 0.5});
    let plot = server.result("calculate_plot", plot);
    let text = plot["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("Calculation timeout after 0.5s"), "{text}");
    let stats = server.result("calculate_stats", json!({}))["structuredContent"].clone();
    let took = stats["tools"]["calculate_plot"]["totalTimeMs"].as_u64().unwrap_or_default();
    assert!(took >= 400, "the time of what failed is counted: {stats}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_script_reports_bc_warnings_and_partial_output() {
    let mut server = Server::start(&[]);
    let warned = server.result("calculate_advanced", json!({"script": "2^0.5"}));
    let expected = json!(["non-zero scale in exponent"]);
    assert_eq!(warned["structuredContent"]["warnings"], expected);
    assert_eq!(warned["content"][1]["text"], "warning: non-zero scale in exponent");
    let failed = server.result("calculate_advanced", json!({"script": "1\r\n2/0"}));
    let text = failed["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("BC error: Divide by zero\nit printed:\n1\nhint: "), "{text}");
    for script in ["print read()", "define f(x) { return read() }\nf(1)"] {
        let refused = server.result("calculate_advanced", json!({"script": script}));
        let text = refused["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with("Invalid expression: read() is not allowed"), "{text}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_scale_above_the_precision_is_noted() {
    let mut server = Server::start(&["--tools", "calc,math"]);
    let note = "`scale` in the expression adds no decimals: the result is rounded to `precision`, which is 20 \
                here; for more, leave out `scale` and pass a `precision` of up to 100";
    let cut = server.result("calculate", json!({"expression": "scale=50; 4*a(1)"}));
    let content = &cut["structuredContent"];
    assert_eq!(content["result"], "3.14159265358979323846");
    assert_eq!(content["notes"], json!([note]));
    let text = cut["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains(note), "{text}");
    for expression in ["scale=50; 1/8", "scale=20; 1/3", "scale=2; 1/3", "1/3", "scale=50; scale"] {
        let whole = server.result("calculate", json!({"expression": expression}));
        assert_eq!(whole["structuredContent"].get("notes"), None, "{expression}: {whole}");
    }
    // The note says to do this.
    let more = json!({"expression": "4*a(1)", "precision": 50});
    let more = server.result("calculate", more);
    let pi = "3.14159265358979323846264338327950288419716939937511";
    assert_eq!(more["structuredContent"]["result"], pi);
    assert_eq!(more["structuredContent"].get("notes"), None, "{more}");
    let batch = server.result("calculate_batch", json!({"expressions": ["1/3", "scale=5*9;1/3"]}));
    let results = &batch["structuredContent"]["results"];
    assert_eq!((results[0].get("notes"), &results[1]["notes"]), (None, &json!([note])));
    // bc as it is: the script's own scale counts.
    let script = server.result("calculate_advanced", json!({"script": "scale=30; 1/3"}));
    assert_eq!(script["structuredContent"]["result"], format!(".{}", "3".repeat(30)));
    assert_eq!(server.close(), Some(0));
}

/// Returns all of an output that a reply shortened, as `bash_output` reads it piece by piece.
fn whole(server: &mut Server, id: &Value) -> String {
    let mut read = String::new();
    loop {
        let arguments = json!({"output_id": id, "since": {"stdout": read.len()}});
        let piece = server.result("bash_output", arguments)["structuredContent"].clone();
        let text = piece["stdout"].as_str().unwrap_or_default().to_owned();
        if text.is_empty() {
            return read;
        }
        read.push_str(&text);
    }
}

#[test]
fn a_long_result_is_abridged_and_read_by_its_handle() {
    let mut server = Server::start(&["--tools", "calc,math,shell"]);
    let long = server.result("calculate", json!({"expression": "2^(2^18)"}));
    let content = &long["structuredContent"];
    assert_eq!((&content["digits"], &content["truncated"]), (&json!(78914), &json!(true)));
    let shown = content["result"].as_str().unwrap_or_default().to_owned();
    assert!(shown.len() <= 30_000 && shown.contains("bytes"), "{}", shown.len());
    assert!(long.to_string().len() < 70_000, "{}", long.to_string().len());
    let note = content["notes"][0].as_str().unwrap_or_default();
    assert!(note.starts_with("the result has 78914 digits"), "{note}");
    let all = whole(&mut server, &content["output_id"]);
    assert_eq!(all.trim_end().len(), 78914);
    assert!(all.starts_with(&shown[..1000]) && all.ends_with(&shown[shown.len() - 1000..]));
    let script = json!({"script": "for (i = 0; i < 20000; i++) i"});
    let script = server.result("calculate_advanced", script);
    let content = &script["structuredContent"];
    assert_eq!((content.get("digits"), &content["truncated"]), (None, &json!(true)));
    assert_eq!(whole(&mut server, &content["output_id"]).lines().count(), 20_000);
    let batch = json!({"expressions": ["2^(2^16)", "2^(2^16)+1", "1+1"]});
    let batch = server.result("calculate_batch", batch);
    let results = batch["structuredContent"]["results"].clone();
    assert_eq!((&results[2]["result"], results[2].get("output_id")), (&json!("2"), None));
    for (place, last) in [(0, '6'), (1, '7')] {
        assert_eq!(results[place]["digits"], 19729);
        let all = whole(&mut server, &results[place]["output_id"]);
        assert!(all.trim_end().ends_with(last), "{place}");
    }
    assert!(batch.to_string().len() < 70_000, "{}", batch.to_string().len());
    assert_eq!(server.close(), Some(0));
}
