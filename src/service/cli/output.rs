//! The standard output of a tool as data: one JSON value, an XML document as JSON, or what its readers find in lines.
//!
//! The output is hostile; `xml` bounds what a document may become.

use serde_json::{Map, Value};

use config::policy::conduct::OutputForm;
use config::policy::hooks::{FoundLine, Hooks, ReaderHealth, ReaderMetric};
use config::policy::summary::SummaryPart;

use super::nmap;
use super::xml::{self, NotXml};

/// Data made of an output, by the name that it has in `metadata`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parsed {
    pub(super) fields: Map<String, Value>,
    /// The output for a reader, if the program prints it for programs.
    pub(super) readable: Option<String>,
}

/// Figures of one call for the metrics and the health of its tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Readings {
    /// Numbers with the names of their readers.
    pub(crate) numbers: Vec<(String, ReaderMetric, f64)>,
    /// The worst health that a reader found, with its reason.
    pub(crate) health: Option<(ReaderHealth, String)>,
}

/// Reason why an output is not in the form that its tool declares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unparsed {
    #[error("the output is no JSON: {0}")]
    Json(String),
    #[error(transparent)]
    Xml(#[from] NotXml),
    #[error("the output is XML, and not nmap's")]
    NotNmap,
}

/// Reads an output in the form that its tool declares; `None` where that is text, or there is no output.
pub(super) fn parse(form: OutputForm, output: &str) -> Option<Result<Parsed, Unparsed>> {
    if output.trim().is_empty() {
        return None;
    }
    let named = |name: &str, value: Value| {
        let fields = Map::from_iter([(name.to_owned(), value)]);
        Parsed { fields, readable: None }
    };
    match form {
        OutputForm::Text => None,
        OutputForm::Json => Some(
            serde_json::from_str(output)
                .map(|value| named("json", value))
                .map_err(|error| Unparsed::Json(error.to_string())),
        ),
        OutputForm::Xml => Some(
            xml::root(output)
                .map(|root| named("xml", Value::Object(root.into_json())))
                .map_err(Unparsed::from),
        ),
        OutputForm::Auto if output.trim_start().starts_with(['{', '[']) => {
            serde_json::from_str(output).ok().map(|value| Ok(named("json", value)))
        }
        OutputForm::Auto if output.trim_start().starts_with('<') => {
            // A page for a browser stays text even if it is well formed.
            let is_data = |root: &xml::Element| !root.name.eq_ignore_ascii_case("html");
            let root = xml::root(output).ok().filter(is_data)?;
            Some(Ok(named("xml", Value::Object(root.into_json()))))
        }
        OutputForm::Auto => None,
        OutputForm::Nmap => Some(xml::root(output).map_err(Unparsed::from).and_then(|root| {
            let fields = nmap::scan(&root).ok_or(Unparsed::NotNmap)?;
            Ok(Parsed { fields, readable: Some(nmap::report(&root)) })
        })),
    }
}

/// Returns the data that the readers of a tool find in its output, by reader; `None` for a tool without readers.
pub(super) fn found_by_readers(hooks: &Hooks, stdout: &str) -> Option<Map<String, Value>> {
    let value = |found: FoundLine| match found {
        FoundLine::Value(text) => number_or_text(text),
        FoundLine::Groups(groups) => {
            let field = |(name, text)| (name, number_or_text(text));
            Value::Object(groups.into_iter().map(field).collect())
        }
    };
    let mut all = Map::new();
    for reader in &hooks.readers {
        let mut found: Vec<Value> = reader.read(stdout).into_iter().map(value).collect();
        if reader.all {
            all.insert(reader.name.clone(), Value::Array(found));
        } else if let Some(first) = found.pop() {
            all.insert(reader.name.clone(), first);
        }
    }
    (!hooks.readers.is_empty()).then_some(all)
}

/// Returns the figures in what the readers with a metric or a health found.
pub(super) fn readings(hooks: &Hooks, found: &Map<String, Value>) -> Readings {
    let number = |value: &Value| match value {
        Value::Array(lines) => Some(u32::try_from(lines.len()).map_or(f64::MAX, f64::from)),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok().filter(|number: &f64| number.is_finite()),
        Value::Null | Value::Bool(_) | Value::Object(_) => None,
    };
    let is_found = |value: &&Value| value.as_array().is_none_or(|lines| !lines.is_empty());
    let mut readings = Readings::default();
    for reader in &hooks.readers {
        let value = found.get(&reader.name);
        if let (Some(metric), Some(number)) = (reader.metric, value.and_then(number)) {
            readings.numbers.push((reader.name.clone(), metric, number));
        }
        if let (Some(health), Some(_)) = (reader.health, value.filter(is_found)) {
            let reported = (health, reader.why.clone());
            readings.health = readings.health.into_iter().chain([reported]).max_by_key(|it| it.0);
        }
    }
    readings
}

/// Makes the summary of what the readers found; `None` where one of its parts was not found.
pub(super) fn summary(hooks: &Hooks, found: &Map<String, Value>) -> Option<String> {
    let shown = |value: &Value| match value {
        Value::Array(lines) => Some(lines.len().to_string()),
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Object(_) => None,
    };
    let part = |part: &SummaryPart| match part {
        SummaryPart::Text(text) => Some(text.clone()),
        SummaryPart::Found { reader, group: None } => shown(found.get(reader)?),
        SummaryPart::Found { reader, group: Some(group) } => shown(found.get(reader)?.get(group)?),
    };
    hooks.summary.as_ref()?.parts().iter().map(part).collect()
}

/// Converts digits to a number, for a program; text that a number would change stays text.
fn number_or_text(text: String) -> Value {
    let number = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
    number.map_or(Value::String(text), Value::from)
}

#[cfg(test)]
mod tests {
    use super::super::xml::{DEPTH, NODES};
    use super::*;
    use serde_json::json;

    fn of(form: OutputForm, output: &str) -> Result<Value, String> {
        let parsed = parse(form, output).unwrap_or_else(|| panic!("nothing was read"));
        parsed.map(|it| Value::Object(it.fields)).map_err(|error| error.to_string())
    }

    #[test]
    fn json_and_xml_become_data_and_text_stays_text() {
        assert_eq!(of(OutputForm::Json, "{\"a\": [1]}\n"), Ok(json!({ "json": { "a": [1] } })));
        let xml =
            "<?xml version=\"1.0\"?><!DOCTYPE r><r a='1'><b/>x &amp; y<b c=\"&lt;\">t</b></r>";
        let expected = json!({ "xml": { "r": {
            "@a": "1", "#text": "x & y", "b": ["", { "@c": "<", "#text": "t" }]
        } } });
        assert_eq!(of(OutputForm::Xml, xml), Ok(expected));
        assert!(parse(OutputForm::Text, "{}").is_none());
        assert!(parse(OutputForm::Json, " \n").is_none());
    }

    #[test]
    fn json_and_xml_are_recognised_where_a_tool_prints_anything() {
        assert_eq!(of(OutputForm::Auto, " {\"a\": 1}"), Ok(json!({ "json": { "a": 1 } })));
        assert_eq!(of(OutputForm::Auto, "[1]\n"), Ok(json!({ "json": [1] })));
        let xml = of(OutputForm::Auto, "<?xml version=\"1.0\"?><a>t</a>");
        assert_eq!(xml, Ok(json!({ "xml": { "a": "t" } })));
        let bare = of(OutputForm::Auto, "<a>t</a>\n");
        assert_eq!(bare, Ok(json!({ "xml": { "a": "t" } })));
        let page = "<html><p>t</p></html>";
        for text in ["{\"a\": ", "[x]", "<?xml version=\"1.0\"?><a>", "<a>", page, "text", "12"] {
            assert!(parse(OutputForm::Auto, text).is_none(), "{text}");
        }
    }

    #[test]
    fn an_output_in_another_form_says_so() {
        let error = of(OutputForm::Json, "x").expect_err("it is in another form");
        assert!(error.starts_with("the output is no JSON: "), "{error}");
        for text in ["<a>", "<a></b>", "x", "</a>", "<a>&x;</a>"] {
            let error = of(OutputForm::Xml, text).expect_err("it is in another form");
            assert!(error.starts_with("the output is no XML: "), "{text}: {error}");
        }
        assert_eq!(of(OutputForm::Nmap, "<a/>"), Err(Unparsed::NotNmap.to_string()));
    }

    #[test]
    fn entities_that_a_document_makes_are_never_looked_up() {
        let bomb = "<!DOCTYPE a [<!ENTITY x \"0123456789\"><!ENTITY y \"&x;&x;\">]><a>&y;</a>";
        assert_eq!(
            of(OutputForm::Xml, bomb),
            Err("the output is no XML: an entity `y`".to_owned())
        );
        let file = "<!DOCTYPE a [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><a b='&x;'/>";
        assert!(of(OutputForm::Xml, file).is_err());
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let deep = "<a>".repeat(DEPTH + 1);
        assert_eq!(of(OutputForm::Xml, &deep), Err(NotXml::TooDeep.to_string()));
        let wide = format!("<a>{}</a>", "<b/>".repeat(NODES));
        assert_eq!(of(OutputForm::Xml, &wide), Err(NotXml::TooLarge.to_string()));
        let fits = format!("<a>{}</a>", "<b/>".repeat(100));
        assert!(of(OutputForm::Xml, &fits).is_ok());
    }

    #[test]
    fn digits_become_numbers_and_nothing_else_does() {
        let read = |text: &str| number_or_text(text.to_owned());
        assert_eq!((read("12"), read("-3")), (json!(12), json!(-3)));
        for text in ["007", "+1", "1.5", "", "99999999999999999999"] {
            assert_eq!(read(text), json!(text));
        }
    }
}
