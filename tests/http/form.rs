//! `POST /run` with multipart forms: files in and out byte by byte, and forms that are refused.

use serde_json::{Value, json};

use crate::client::{Answer, Server};

const KIND: (&str, &str) = ("content-type", "multipart/form-data; boundary=b");
const AS_FORM: (&str, &str) = ("accept", "multipart/form-data");

/// Writes a form of parts: the head's rest behind `form-data`, and the content.
fn form(parts: &[(&str, &str)]) -> String {
    let part = |(head, content): &(&str, &str)| {
        format!("--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
    };
    parts.iter().map(part).collect::<String>() + "--b--\r\n"
}

fn ask(server: &Server, headers: &[(&str, &str)], parts: &[(&str, &str)]) -> Answer {
    let headers = [&[KIND], headers].concat();
    server.ask("POST", "/run", &headers, &form(parts))
}

/// Takes an answer apart: head and content of each part.
fn parts(answer: &Answer) -> Vec<(String, String)> {
    let kind = answer.header("content-type").expect("a type");
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").expect("a form");
    let mark = format!("\r\n--{boundary}");
    let body = format!("\r\n{}", answer.body);
    let mut pieces: Vec<&str> = body.split(mark.as_str()).collect();
    assert_eq!((pieces.remove(0), pieces.pop()), ("", Some("--\r\n")), "{answer:?}");
    let parted = |piece: &str| {
        let (head, content) = piece.trim_start_matches("\r\n").split_once("\r\n\r\n")?;
        Some((head.to_owned(), content.to_owned()))
    };
    pieces.into_iter().filter_map(parted).collect()
}

#[test]
fn files_go_in_and_come_out_as_parts_of_a_form() {
    let server = Server::start(&[]);
    let sent = [
        (
            "name=\"command\"",
            "pwd; cat; cat 'in/a b'; sort <in/x >'o \"ut'; printf -- '--b\\r\\n' >q; exit 3",
        ),
        ("name=\"stdin\"", "from stdin\n"),
        ("name=\"timeout_seconds\"", "20"),
        ("name=\"files\"; filename=\"in/a b\"", "it's a\n"),
        ("name=\"files\"; filename=\"in/x\"\r\nContent-Type: text/plain", "b\n--bx\na\n"),
        ("name=\"outputs\"", "o \"ut"),
        ("name=\"outputs\"", "q"),
        ("name=\"outputs\"", "absent"),
    ];
    let stdout = json!("/workspace\nfrom stdin\nit's a\n");
    // The answer is JSON by default.
    let plain = ask(&server, &[], &sent);
    let output = plain.message();
    assert_eq!(
        (plain.status, &output["stdout"], &output["exit_code"]),
        (200, &stdout, &json!(3)),
        "{plain:?}"
    );
    assert_eq!(output["files"][1]["content_base64"], "LS1iDQo=");
    assert_eq!(output["timeout_seconds"], json!(20.0));
    // In a form each file is a part.
    let answer = ask(&server, &[AS_FORM], &sent);
    let parts = parts(&answer);
    let (head, result) = parts.first().expect("a result");
    assert!(head.contains("name=\"result\"") && head.contains("application/json"), "{head}");
    let result: Value = serde_json::from_str(result).expect("JSON");
    assert_eq!((&result["stdout"], &result["exit_code"]), (&stdout, &json!(3)));
    let absent = "it is no regular file that can be read";
    let files = json!([{"path": "o \"ut"}, {"path": "q"}, {"path": "absent", "error": absent}]);
    assert_eq!(result["files"], files);
    let (head, sorted) = parts.get(1).expect("a file");
    assert!(head.contains("filename=\"o %22ut\""), "{head}");
    let mut lines: Vec<&str> = sorted.split('\n').collect();
    lines.sort_unstable();
    assert_eq!(lines, ["", "--bx", "a", "b"]);
    assert_eq!(parts.get(2).map(|(_, content)| content.as_str()), Some("--b\r\n"));
    assert_eq!(parts.len(), 3);
}

#[test]
fn large_binary_files_pass_in_forms_and_json() {
    let server = Server::start(&[]);
    // In JSON these would be very many values, and more than two megabytes are read.
    let large = "[,{:".repeat(1 << 20);
    let sent = [
        ("name=\"command\"", "md5sum <f | cut -c -32; wc -c <f"),
        ("name=\"timeout_seconds\"", "60"),
        ("name=\"files\"; filename=\"f\"", large.as_str()),
    ];
    let answer = ask(&server, &[], &sent);
    assert_eq!(answer.status, 200, "{answer:?}");
    let output = answer.message()["stdout"].clone();
    assert!(
        output.as_str().is_some_and(|output| output.ends_with(&format!("\n{}\n", 4 << 20))),
        "{output}"
    );
    let body = json!({"command": "md5sum <f | cut -c -32; wc -c <f", "timeout_seconds": 60,
                      "files": [{"path": "f", "content": large}]});
    let json =
        server.ask("POST", "/run", &[("content-type", "application/json")], &body.to_string());
    assert_eq!((json.status, &json.message()["stdout"]), (200, &output), "{json:?}");
    // Files and input have 8 MiB together.
    let most = "x".repeat((8 << 20) + 1);
    let refused = ask(&server, &[], &[sent[0], ("name=\"files\"; filename=\"f\"", &most)]);
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[test]
fn form_file_names_stay_in_the_directory() {
    let server = Server::start(&[]);
    let command = ("name=\"command\"", "ls");
    for name in [
        "../planted",
        "/tmp/planted",
        "a/../../planted",
        "",
        ".",
        "..",
        "a//planted",
        "./planted",
        "planted/",
    ] {
        let head = format!("name=\"files\"; filename=\"{name}\"");
        let refused = ask(&server, &[], &[command, (&head, "x")]);
        assert_eq!(refused.status, 400, "{name:?}: {refused:?}");
        let refused = ask(&server, &[], &[command, ("name=\"outputs\"", name)]);
        assert_eq!(refused.status, 400, "{name:?}: {refused:?}");
    }
    let nested = "--c\r\nContent-Disposition: file; filename=\"../planted\"\r\n\r\nx\r\n--c--\r\n";
    let head = "name=\"files\"; filename=\"f\"\r\nContent-Type: multipart/mixed; boundary=c";
    assert_eq!(ask(&server, &[], &[command, (head, nested)]).status, 400);
    // The same text is a file like any other where it does not claim to be a form.
    let plain = ask(&server, &[], &[command, ("name=\"files\"; filename=\"f\"", nested)]);
    assert_eq!((plain.status, &plain.message()["stdout"]), (200, &json!("f\n")), "{plain:?}");
    let many: Vec<(String, &str)> =
        (0..200).map(|number| (format!("name=\"files\"; filename=\"f{number}\""), "x")).collect();
    let mut parts = vec![command];
    parts.extend(many.iter().map(|(head, content)| (head.as_str(), *content)));
    assert_eq!(ask(&server, &[], &parts).status, 400, "too many");
    for body in ["", "--b", "--b--\r\n", "x", "--b\r\n\r\n\r\n--b--\r\n"] {
        assert_eq!(server.ask("POST", "/run", &[KIND], body).status, 400, "{body:?}");
    }
}
