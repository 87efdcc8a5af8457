//! The applet jq: the same output and the same exit code as jq(1), where this machine has it.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Options, filter and input of runs that both answer alike.
const ALIKE: &[(&[&str], &str)] = &[
    (&["."], r#"{"b":1,"a":[1,2.5,"x",null,true,{}],"c":[]}"#),
    (&["-c", "."], r#"{"b":1,"a":[1,2.5,"x",null,true,{}],"c":[]}"#),
    (&["-S", "."], r#"{"b":1,"a":{"d":1,"c":2}}"#),
    (&["--tab", "."], r#"{"b":[1]}"#),
    (&["--indent", "1", "."], r#"{"b":[1]}"#),
    (&["-r", ".a, .b"], r#"{"a":"x\ty","b":{"c":"\u00e9"}}"#),
    (&["-j", ".[]"], r#"["a","b",1]"#),
    (&["-ac", "."], r#"["é","😀"]"#),
    (&["-n", "-c", "[1,2,3] | map(. * 2)"], ""),
    (&["-nc", "[4/2, 1/3, 1e3, 0.1+0.2, 1e17, 1e-5, 100/10, 7%3, -1, 1.0]"], ""),
    (&["-nr", r#""\(4/2) and \"\(10/4)\" \("a\(6/3)")""#], ""),
    (&["-nc", "[(4/2|tostring), (6/3|tojson), ([8/2]|tojson), nan, infinite] | map(tostring)"], ""),
    (&["-s", "-c", "."], "1 2\n\"a\" [3]"),
    (&["-R", "."], "a b\nc\n"),
    (&["-Rsc", "split(\"\\n\")"], "a\nb\n"),
    (&["-Rs", "."], "a\u{e9}"),
    (&["-nR", "[inputs]"], "a\nb\n"),
    (&["-nc", "[inputs]"], "1 2 3"),
    (&["-nc", "input, input"], "1 2 3"),
    (&["-nc", "reduce inputs as $x (0; . + $x)"], "1 2 3"),
    (&["-c", "--arg", "a", "x", "--argjson", "b", "{\"c\":1}", "{$a, b: $b.c}"], "null"),
    (&["-c", "--args", "$ARGS.positional", "a", "b"], "null"),
    (&["-c", "--jsonargs", "$ARGS", "1", "{\"a\":2}"], "null"),
    (&["-e", ".a"], r#"{"a":false}"#),
    (&["-e", ".a"], r#"{"a":1}"#),
    (&["-e", "empty"], "1"),
    (&["-e", "true"], "1"),
    (&["-r", "@tsv"], r#"["a\tb",1,null,true,"c\\d\n"]"#),
    (&["-r", "@csv"], r#"["a\"b",1.5,null,false,"c"]"#),
    (&["-r", "@sh"], r#"["it's",1,true]"#),
    (&["-r", "@json, @text, @html, @uri, @base64"], r#""a<b>&\"é""#),
    (&["-r", "@base64d"], "\"aGVsbG8=\""),
    (&["-r", "@json \"x\\(.)y\", @uri \"?q=\\(.)\""], "\"a b\""),
    (&["-c", "fromjson, (fromjson|tojson)"], r#""{\"a\":[1,2]}""#),
    (&["-c", "try fromjson catch \"bad\""], "\"{\""),
    (&["-c", "[.[] | utf8bytelength, length]"], r#"["é","abc","😀"]"#),
    (&["-c", "[.[] | test(\"^a.c$\"), test(\"A\"; \"i\")]"], r#"["abc","xyz"]"#),
    (
        &["-c", "[match(\"(?<x>[a-z]+)([0-9]*)\"; \"g\") | .captures[0].name, .string]"],
        "\"ab12 c\"",
    ),
    (&["-c", "capture(\"(?<y>[0-9]{4})-(?<m>[0-9]{2})\")"], "\"on 2024-05-06\""),
    (
        &[
            "-c",
            "[gsub(\"a\"; \"b\"), sub(\"a\"; \"b\"), gsub(\"(?<l>[a-z])\"; \"<\\(.l)>\"), ascii_downcase, ascii_upcase]",
        ],
        "\"aAa\"",
    ),
    (&["-c", "[scan(\"[a-z]+\")], [splits(\", *\")], split(\", *\"; null)"], "\"a, b,c\""),
    (
        &["-c", "first(.[]), [limit(2; .[])], last, nth(1), until(length > 5; . + .) | length"],
        "[1,2,3]",
    ),
    (&["-c", "first(range(10; 20)), first(empty), isempty(empty)"], "null"),
    (&["-c", "todate, (todate|fromdate), strftime(\"%Y/%m/%d %H:%M\")"], "1425599621"),
    (
        &[
            "-c",
            "to_entries, (to_entries|from_entries), with_entries(.value += 1), keys, map_values(. * 2)",
        ],
        r#"{"b":1,"a":2}"#,
    ),
    (&["-c", "from_entries"], r#"[{"name":"a","value":1},{"key":"c","value":null}]"#),
    (
        &[
            "-c",
            "join(\"-\"), add, length, reverse, sort, unique, min, max, (map(tostring)|index(\"b\"))",
        ],
        r#"["c","a","b","a"]"#,
    ),
    (&["-c", "join(\",\")"], r#"["a",1,null,true]"#),
    (
        &["-c", "group_by(.a), unique_by(.a), sort_by(.b), min_by(.b), max_by(.b)"],
        r#"[{"a":1,"b":3},{"a":2,"b":1},{"a":1,"b":2}]"#,
    ),
    (
        &[
            "-c",
            "del(.a), del(.b[0]), delpaths([[\"a\"]]), (.c.d = 5), (.b |= map(. + 1)), (.a // \"x\"), .zz // \"x\"",
        ],
        r#"{"a":1,"b":[1,2]}"#,
    ),
    (
        &[
            "-c",
            "[paths], [leaf_paths], getpath([\"b\",0]), [paths(type == \"number\")], setpath([\"b\",1];9)",
        ],
        r#"{"a":1,"b":[1,{"c":2}]}"#,
    ),
    (&["-c", "tostream"], r#"{"a":1,"b":[1,2]}"#),
    (
        &["-c", "[.. | numbers], (walk(if type == \"number\" then . + 1 else . end))"],
        r#"{"a":1,"b":[1,{"c":2}]}"#,
    ),
    (&["-c", "if . > 1 then \"big\" elif . == 1 then \"one\" else \"small\" end"], "0 1 2"),
    (&["-c", "try error(\"x\") catch ., (try error({a:1}) catch .a), [.[]?], (.a?)"], "1"),
    (&["-c", "label $f | .[] | if . > 1 then break $f else . end"], "[1,2,3]"),
    (
        &["-c", "[foreach .[] as $x (0; . + $x)], [foreach .[] as $x (0; . + $x; [$x, .])]"],
        "[1,2,3]",
    ),
    (&["-c", ". as [$a, {b: $c}] | [$c, $a]"], r#"[1,{"b":2}]"#),
    (&["-c", "def f(x): x * 2; def g: 3; f(.) + g"], "4"),
    (
        &[
            "-c",
            "ltrimstr(\"a\"), rtrimstr(\"c\"), startswith(\"a\"), endswith(\"c\"), explode, (explode|implode), .[1:], .[:-1]",
        ],
        "\"abc\"",
    ),
    (
        &[
            "-c",
            "contains(\"b\"), inside(\"xabcx\"), indices(\"b\"), ascii_downcase, tojson, ([.]|tojson)",
        ],
        "\"aBbc\"",
    ),
    (&["-c", "any, all, any(. == true), flatten, (map(not))"], "[true,false]"),
    (
        &["-c", "floor, sqrt, (. * 1.5 | round, ceil, fabs), pow(.; 2), log10, tonumber, tostring"],
        "4",
    ),
    (
        &[
            "-c",
            "range(3), [range(0; 10; 4)], ([limit(3; repeat(1))]), ([.,1] | transpose? // \"no\")",
        ],
        "0",
    ),
    (
        &[
            "-c",
            "has(\"a\"), has(\"b\"), (.a | has(0)), (\"a\" | in({a:1})), ([1,[2]] | flatten(1)), ({} | .a.b.c)",
        ],
        r#"{"a":[1]}"#,
    ),
    (&["-c", "type, (.[] | type)"], r#"[null,1,"a",[],{},true]"#),
    (
        &["-c", ".[\"a b\"], .\"a b\", .[\"x\"]?, {\"k\\(1+1)\": 1, (\"a\"): 2, \"q\": .\"a b\"}"],
        r#"{"a b":1}"#,
    ),
    (&["-c", "IN(1,2), INDEX(.x?; .y?), input_line_number"], "1"),
    (&["-c", "[.[] | select(.a > 1 and (.b | not))] | length"], r#"[{"a":2},{"a":3,"b":true}]"#),
    (
        &["-c", ".a += 1 | .b -= 1 | .c *= 2 | .d //= 7 | .e |= empty"],
        r#"{"a":1,"b":1,"c":2,"e":1}"#,
    ),
    (
        &[
            "-c",
            ".a.b.c = 1, (.x.y |= 5), (.x[2].y += 1), (.n //= 3), (.l[1:] = [9]), (.q = (1,2)), ((.l[]|select(. > 1)) |= empty)",
        ],
        r#"{"l":[1,2]}"#,
    ),
    (
        &[
            "-c",
            "del(.a.b.c), del(.l[0,1]), del(.l[1:]), del(.[\"l\",\"m\"]), to_entries, (.l | .[length/2])",
        ],
        r#"{"l":[1,2,3,4],"m":1}"#,
    ),
    (&["-c", ".a /= 2 | .b = (.a / 2 | tostring), \"\\(.a / 4)\""], r#"{"a":8}"#),
    (&["-c", ".[] as {a: $x, b: [$y]} | {$x, $y}"], r#"[{"a":1,"b":[2]}]"#),
    (&["-c", "env.HOME | type, ($ENV.PATH | type), (now | type), (input_filename)"], "1"),
    (&["-c", "# a comment\n.a # more"], r#"{"a":1}"#),
    (
        &[
            "-c",
            "\"\\u00e9\\n\" + \"x\" * 3, (\"a,b\" / \",\"), ({a:{b:1}} * {a:{c:2}}), ([1,2,3] - [2])",
        ],
        "null",
    ),
    (
        &["-c", "getpath([\"a\",\"b\"]) , ([splits(\"x\")]? // 1), (tojson|fromjson), (.a|=.)"],
        r#"{"a":{"b":5}}"#,
    ),
    (&["-c", "halt_error"], "\"told\\n\""),
    (&["-c", ".a | error"], r#"{"a":"told"}"#),
    (&["-c", ".[0"], "[1]"),
    (&["-c", "nosuch"], "[1]"),
    (&["-c", ".a"], "[1] {\"a\":2}"),
    (&["--nosuch", "."], "1"),
    (&["-c", "."], "1234567890123456 \"\\ud83d\\ude00\" 1.10 [1E2]"),
    (&["-c", "."], ""),
    (
        &[
            "-c",
            "@base64 \"x\\(.a)\" , \"\\(.a | length)-\\(if .b then \"\\(.b / 2)\" else 1 end)\"",
        ],
        r#"{"a":"hi","b":8}"#,
    ),
    (
        &["-c", "[.[] | tojson], (.[1] | @json), (map(tostring) | join(\" \"))"],
        "[1.5,2.0,[3.0],{\"a\":4.0}]",
    ),
    (
        &["-rc", ".items[]? | [.id, (.tags // [] | join(\"|\"))] | @tsv"],
        r#"{"items":[{"id":1,"tags":["a","b"]},{"id":2}]}"#,
    ),
];

/// The applet, by its name.
fn applet(directory: &Path) -> PathBuf {
    let path = directory.join("jq");
    symlink(env!("CARGO_BIN_EXE_cofferdam"), &path).expect("a link");
    path
}

fn run(program: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("its input");
    // One that does not read it has ended.
    stdin.write_all(input.as_bytes()).ok();
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

fn stdout_and_code(output: &Output) -> (String, Option<i32>) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

#[test]
fn the_applet_answers_as_jq_does() {
    let real = Path::new("/usr/bin/jq");
    if !real.exists() {
        assert!(std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "this machine has no jq");
        eprintln!("there is no jq to compare with");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let applet = applet(directory.path());
    let mut faults = Vec::new();
    for (arguments, input) in ALIKE {
        let ours = run(&applet, arguments, input);
        let theirs = run(real, arguments, input);
        if stdout_and_code(&ours) != stdout_and_code(&theirs) {
            faults.push(format!(
                "{arguments:?} < {input}\n  ours {:?}\n  jq   {:?}\n  {}",
                stdout_and_code(&ours),
                stdout_and_code(&theirs),
                String::from_utf8_lossy(&ours.stderr)
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn files_and_programs_in_files_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let applet = applet(directory.path());
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_string_lossy().into_owned()
    };
    let one = write("1", "1 2\n");
    let two = write("2", "3\n");
    let program = write("f", ". + 1");
    let ours = |arguments: &[&str]| stdout_and_code(&run(&applet, arguments, ""));
    assert_eq!(ours(&["-f", &program, &one, &two]), ("2\n3\n4\n".to_owned(), Some(0)));
    assert_eq!(ours(&["-n", "--rawfile", "a", &one, "$a"]), ("\"1 2\\n\"\n".to_owned(), Some(0)));
    assert_eq!(ours(&["-nc", "--slurpfile", "a", &one, "$a"]), ("[1,2]\n".to_owned(), Some(0)));
    assert_eq!(ours(&[".", "/nonexistent"]), (String::new(), Some(2)));
    assert_eq!(ours(&["-n", "--argjson", "a", "{", "1"]), (String::new(), Some(2)));
}
