//! Commands as forms (`multipart/form-data`, RFC 7578): files are sent and returned as they are, without base64.
//!
//! The whole body has been read within its bounds before. A part is a field or a file, never a nested form, and
//! never encoded, so that every parser takes the same bytes for a file.

use axum::body::{Body, Bytes};
use axum::extract::multipart::{Field, Multipart};
use axum::extract::{DefaultBodyLimit, FromRequest, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::respond::Refusal;
use service::apart::{FILES, FileIn};

/// Media type of forms.
pub(crate) const FORM_TYPE: &str = "multipart/form-data";
/// Parts of one form: files, outputs, and the three fields.
const MAX_PARTS: usize = 2 * FILES + 3;
/// Headers that say that a part is encoded.
const ENCODING_HEADER: HeaderName = HeaderName::from_static("content-transfer-encoding");

/// A request to run a command, read from a form or from JSON.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ParsedRun {
    pub(crate) command: String,
    pub(crate) timeout: Option<f64>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) files: Vec<FileIn>,
    pub(crate) outputs: Vec<String>,
}

/// Makes the refusal of a malformed request.
pub(crate) fn bad_request(message: String) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message)
}

/// Returns the media type of a body that is a form.
pub(crate) fn form_type(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut all = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(kind), None) = (all.next(), all.next()) else { return None };
    is_named(kind.to_str().ok()?, FORM_TYPE).then_some(kind)
}

/// Returns true if an answer may be a form.
pub(crate) fn takes_form(headers: &HeaderMap) -> bool {
    let all = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).any(|one| is_named(one, FORM_TYPE))
}

/// Returns true for this media type, whatever parameters it has.
fn is_named(text: &str, kind: &str) -> bool {
    text.split(';').next().is_some_and(|name| name.trim().eq_ignore_ascii_case(kind))
}

/// Reads a form.
///
/// # Errors
/// A body that is not a form, or has a field that is unknown, missing or repeated.
pub(crate) async fn read(kind: &HeaderValue, body: Bytes) -> Result<ParsedRun, Refusal> {
    let mut request = Request::new(Body::from(body));
    // `body` has bounded its size.
    DefaultBodyLimit::disable().apply(&mut request);
    request.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    let no_form = |reason: &str| bad_request(format!("the body is no {FORM_TYPE}: {reason}"));
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|error| no_form(&error.body_text()))?;
    let mut read = FormFields::default();
    for _ in 0..=MAX_PARTS {
        match form.next_field().await.map_err(|error| no_form(&error.body_text()))? {
            Some(field) => read.take(field).await?,
            None => return read.finish(),
        }
    }
    Err(bad_request(format!("a form has {MAX_PARTS} parts at most")))
}

/// Fields of a form so far.
#[derive(Default)]
struct FormFields {
    command: Option<String>,
    timeout: Option<f64>,
    stdin: Option<Vec<u8>>,
    files: Vec<FileIn>,
    outputs: Vec<String>,
}

impl FormFields {
    async fn take(&mut self, field: Field<'_>) -> Result<(), Refusal> {
        let is_nested = field.content_type().is_some_and(|kind| {
            kind.trim_start().get(..10).is_some_and(|it| it.eq_ignore_ascii_case("multipart/"))
        });
        let coding = field.headers().get(ENCODING_HEADER).map(HeaderValue::as_bytes);
        let is_plain = |coding: &[u8]| {
            [&b"binary"[..], b"8bit", b"7bit"]
                .iter()
                .any(|plain| coding.eq_ignore_ascii_case(plain))
        };
        if is_nested || !coding.is_none_or(is_plain) {
            return Err(bad_request("a part of a form is a field or a file, as it is".to_owned()));
        }
        let name = field.name().unwrap_or_default().to_owned();
        let path = field.file_name().map(str::to_owned);
        let bytes = field.bytes().await.map_err(|error| bad_request(error.body_text()))?.to_vec();
        match (name.as_str(), path) {
            ("command", _) => set_once(&mut self.command, &name, text(&name, bytes)?),
            ("timeout_seconds", None) => {
                let seconds = text(&name, bytes)?.trim().parse();
                let seconds = seconds.map_err(|_| bad_request(format!("`{name}` is a number")))?;
                set_once(&mut self.timeout, &name, seconds)
            }
            ("stdin", _) => set_once(&mut self.stdin, &name, bytes),
            ("outputs", None) => {
                self.outputs.push(text(&name, bytes)?);
                Ok(())
            }
            ("files", Some(path)) => {
                self.files.push(FileIn { path, bytes });
                Ok(())
            }
            ("files", None) => {
                Err(bad_request("a part `files` has its path as `filename`".to_owned()))
            }
            _ => {
                let known = "command, timeout_seconds, stdin, outputs, and files with a filename";
                Err(bad_request(format!("the parts of a form are {known}")))
            }
        }
    }

    fn finish(self) -> Result<ParsedRun, Refusal> {
        let Self { command, timeout, stdin, files, outputs } = self;
        let command =
            command.ok_or_else(|| bad_request("a part `command` is missing".to_owned()))?;
        Ok(ParsedRun { command, timeout, stdin: stdin.unwrap_or_default(), files, outputs })
    }
}

fn text(name: &str, bytes: Vec<u8>) -> Result<String, Refusal> {
    String::from_utf8(bytes).map_err(|_| bad_request(format!("`{name}` is not UTF-8")))
}

fn set_once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), Refusal> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(bad_request(format!("a form has one `{name}`"))),
    }
}

/// Part of an answer: its path if it is a file, its type, its bytes.
pub(crate) struct AnswerPart<'a> {
    pub(crate) name: &'static str,
    pub(crate) path: Option<&'a str>,
    pub(crate) kind: &'static str,
    pub(crate) bytes: &'a [u8],
}

/// Writes a form. `boundary` is random and made before the content, so the content cannot contain it.
pub(crate) fn write_form(boundary: &str, parts: &[AnswerPart<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for AnswerPart { name, path, kind, bytes } in parts {
        let path = path.map_or(String::new(), |path| format!("; filename=\"{}\"", escaped(path)));
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"{path}\r\n\
             content-type: {kind}\r\n\r\n"
        );
        body.extend(head.as_bytes());
        body.extend(*bytes);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{boundary}--\r\n").as_bytes());
    body
}

/// Escapes what would end a quoted name or its line, as browsers do.
fn escaped(path: &str) -> String {
    let one = |c: char| match c {
        '"' | '\u{0}'..='\u{1f}' | '\u{7f}' => format!("%{:02X}", u32::from(c)),
        _ => c.to_string(),
    };
    path.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: HeaderValue = HeaderValue::from_static("multipart/form-data; boundary=b");

    /// Makes a form of parts: the rest of the header after `form-data`, and the content.
    fn form(parts: &[(&str, &str)]) -> Bytes {
        let part = |(head, content): &(&str, &str)| {
            format!("--b\r\ncontent-disposition: form-data{head}\r\n\r\n{content}\r\n")
        };
        (parts.iter().map(part).collect::<String>() + "--b--\r\n").into()
    }

    async fn read_parts(parts: &[(&str, &str)]) -> Result<ParsedRun, String> {
        read(&KIND, form(parts)).await.map_err(|refusal| refusal.message)
    }

    #[tokio::test]
    async fn fields_and_files_are_taken_as_they_are() {
        let asked = read_parts(&[
            ("; name=\"command\"", "sort"),
            ("; name=\"stdin\"", "b\na\n"),
            ("; name=\"timeout_seconds\"", "2.5"),
            ("; name=\"outputs\"", "x"),
            ("; name=\"outputs\"", "y/z"),
            ("; name=\"files\"; filename=\"d/a b\"", "--b-\r\n,[{"),
        ])
        .await
        .expect("it is right");
        assert_eq!((asked.command.as_str(), asked.timeout), ("sort", Some(2.5)));
        assert_eq!(asked.stdin, b"b\na\n");
        assert_eq!(asked.outputs, ["x", "y/z"]);
        let file = FileIn { path: "d/a b".to_owned(), bytes: b"--b-\r\n,[{".to_vec() };
        assert_eq!(asked.files, [file]);
    }

    #[tokio::test]
    async fn text_that_readers_understand_differently_is_refused() {
        let command = ("; name=\"command\"", "true");
        for (part, reason) in [
            (("; name=\"command\"", "false"), "one `command`"),
            (("; name=\"comand\"", "x"), "the parts of a form are"),
            (("", "x"), "the parts of a form are"),
            (("; name=\"files\"", "x"), "filename"),
            (("; name=\"timeout_seconds\"", "soon"), "is a number"),
            (("; name=\"outputs\"; filename=\"f\"", "x"), "the parts of a form are"),
            (
                (
                    "; name=\"files\"; filename=\"f\"\r\ncontent-type: Multipart/Mixed; boundary=c",
                    "--c--",
                ),
                "as it is",
            ),
            (
                ("; name=\"files\"; filename=\"f\"\r\ncontent-transfer-encoding: base64", "aGk="),
                "as it is",
            ),
        ] {
            let refused = read_parts(&[command, part]).await.expect_err(part.0);
            assert!(refused.contains(reason), "{part:?}: {refused}");
        }
        assert!(read_parts(&[]).await.is_err_and(|error| error.contains("`command` is missing")));
        let many = vec![("; name=\"outputs\"", "x"); MAX_PARTS + 1];
        assert!(read_parts(&many).await.is_err_and(|error| error.contains("parts at most")));
        let cut = form(&[command]).slice(..40);
        assert!(read(&KIND, cut).await.is_err(), "it is broken off");
        let without = HeaderValue::from_static("multipart/form-data");
        assert!(read(&without, form(&[command])).await.is_err(), "it has no boundary");
    }

    #[test]
    fn a_form_is_known_by_its_one_type() {
        let of = |kinds: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for kind in kinds {
                headers.append(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            }
            form_type(&headers).is_some()
        };
        assert!(
            of(&["multipart/form-data; boundary=b"]) && of(&["Multipart/Form-Data ;boundary=b"])
        );
        assert!(!of(&["multipart/form-datax"]) && !of(&["application/json"]) && !of(&[]));
        assert!(!of(&["multipart/form-data; boundary=b", "application/json"]));
    }

    #[tokio::test]
    async fn a_written_form_is_read_back_and_a_name_ends_no_header() {
        let parts = [
            AnswerPart { name: "command", path: None, kind: "text/plain", bytes: b"true" },
            AnswerPart {
                name: "files",
                path: Some("a\"\r\nx-y: z"),
                kind: "application/octet-stream",
                bytes: b"\0\r\n--c",
            },
        ];
        let kind = HeaderValue::from_static("multipart/form-data; boundary=boundary-1");
        let asked = read(&kind, write_form("boundary-1", &parts).into()).await.expect("a form");
        let file = FileIn { path: "a%22%0D%0Ax-y: z".to_owned(), bytes: b"\0\r\n--c".to_vec() };
        assert_eq!((asked.command.as_str(), asked.files), ("true", vec![file]));
    }
}
