//! The standard output of a tool as data: one JSON value, or an XML document as JSON.
//!
//! The output is hostile. What is made of it is bounded in depth and in size, and nothing that a document type or an
//! entity names is looked up.

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use serde_json::{Map, Value};

use policy::conduct::OutputForm;

use super::nmap;

/// Deepest element of an XML document that is read.
const DEPTH: usize = 64;
/// Maximum elements and attributes that are read.
const NODES: usize = 50_000;

/// Data made of an output, by the name that it has in `metadata`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parsed {
    pub(super) fields: Map<String, Value>,
}

/// Reason why an output is not in the form that its tool declares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unparsed {
    #[error("the output is no JSON: {0}")]
    Json(String),
    #[error("the output is no XML: {0}")]
    Xml(String),
    #[error("the output is XML of more than {NODES} parts")]
    TooLarge,
    #[error("the output is XML of more than {DEPTH} levels")]
    TooDeep,
    #[error("the output is XML, and not nmap's")]
    NotNmap,
}

/// Reads an output in the form that its tool declares; `None` where that is text, or there is no output.
pub(super) fn parse(form: OutputForm, output: &str) -> Option<Result<Parsed, Unparsed>> {
    if output.trim().is_empty() {
        return None;
    }
    let named =
        |name: &str, value: Value| Parsed { fields: Map::from_iter([(name.to_owned(), value)]) };
    match form {
        OutputForm::Text => None,
        OutputForm::Json => Some(
            serde_json::from_str(output)
                .map(|value| named("json", value))
                .map_err(|error| Unparsed::Json(error.to_string())),
        ),
        OutputForm::Xml => {
            Some(xml(output).map(|element| named("xml", Value::Object(element.into_json()))))
        }
        OutputForm::Auto if output.trim_start().starts_with(['{', '[']) => {
            serde_json::from_str(output).ok().map(|value| Ok(named("json", value)))
        }
        OutputForm::Auto if output.trim_start().starts_with("<?xml") => {
            let element = xml(output).ok()?;
            Some(Ok(named("xml", Value::Object(element.into_json()))))
        }
        OutputForm::Auto => None,
        OutputForm::Nmap => Some(
            xml(output)
                .and_then(|element| nmap::scan(&element).ok_or(Unparsed::NotNmap))
                .map(|fields| Parsed { fields }),
        ),
    }
}

/// Element of an XML document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) children: Vec<Element>,
    text: String,
}

impl Element {
    /// Returns the value of an attribute.
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the children of this name.
    pub(super) fn all<'e>(&'e self, name: &'e str) -> impl Iterator<Item = &'e Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// Returns the first child of this name.
    pub(super) fn first(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Converts it: attributes as `@name`, text as `#text`, children as lists by their names.
    fn into_json(self) -> Map<String, Value> {
        Map::from_iter([(self.name.clone(), self.content())])
    }

    fn content(self) -> Value {
        let mut all = Map::new();
        for (name, value) in self.attributes {
            all.insert(format!("@{name}"), Value::String(value));
        }
        for child in self.children {
            let list = all.entry(child.name.clone()).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                list.push(child.content());
            }
        }
        let text = self.text.trim();
        if all.is_empty() {
            return Value::String(text.to_owned());
        }
        if !text.is_empty() {
            all.insert("#text".to_owned(), Value::String(text.to_owned()));
        }
        Value::Object(all)
    }
}

/// Reads a document; its root.
fn xml(output: &str) -> Result<Element, Unparsed> {
    let bad = |error: &dyn std::fmt::Display| Unparsed::Xml(error.to_string());
    let mut reader = Reader::from_str(output);
    let mut open: Vec<Element> = Vec::new();
    let mut nodes: usize = 0;
    loop {
        match reader.read_event().map_err(|error| bad(&error))? {
            Event::Start(start) => {
                let element = element(&start, &mut nodes)?;
                open.push(element);
                if open.len() > DEPTH {
                    return Err(Unparsed::TooDeep);
                }
            }
            Event::Empty(start) => {
                let element = element(&start, &mut nodes)?;
                match open.last_mut() {
                    Some(parent) => parent.children.push(element),
                    None => return Ok(element),
                }
            }
            Event::End(_) => match (open.pop(), open.last_mut()) {
                (Some(element), Some(parent)) => parent.children.push(element),
                (Some(element), None) => return Ok(element),
                (None, _) => return Err(bad(&"an end without a beginning")),
            },
            Event::Text(text) => {
                if let Some(element) = open.last_mut() {
                    element.text.push_str(&text);
                }
            }
            Event::CData(text) => {
                if let Some(element) = open.last_mut() {
                    element.text.push_str(&text);
                }
            }
            Event::GeneralRef(entity) => {
                let name: &str = &entity;
                let known = entity
                    .resolve_char_ref()
                    .ok()
                    .flatten()
                    .map(String::from)
                    .or_else(|| {
                        quick_xml::escape::resolve_predefined_entity(name).map(str::to_owned)
                    })
                    .ok_or_else(|| bad(&format!("an entity `{}`", name.escape_debug())))?;
                if let Some(element) = open.last_mut() {
                    element.text.push_str(&known);
                }
            }
            Event::Eof => return Err(bad(&"it ends before its root does")),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

fn element(start: &BytesStart<'_>, nodes: &mut usize) -> Result<Element, Unparsed> {
    let bad = |error: &dyn std::fmt::Display| Unparsed::Xml(error.to_string());
    let mut element = Element { name: start.name().as_ref().to_owned(), ..Element::default() };
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| bad(&error))?;
        let name = attribute.key.as_ref().to_owned();
        let value = attribute.normalized_value(XmlVersion::Implicit1_0);
        let value = value.map_err(|error| bad(&error))?.into_owned();
        element.attributes.push((name, value));
    }
    *nodes += 1 + element.attributes.len();
    if *nodes > NODES { Err(Unparsed::TooLarge) } else { Ok(element) }
}

#[cfg(test)]
mod tests {
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
        for text in ["{\"a\": ", "[x]", "<?xml version=\"1.0\"?><a>", "<html>", "text", "12"] {
            assert!(parse(OutputForm::Auto, text).is_none(), "{text}");
        }
    }

    #[test]
    fn an_output_in_another_form_says_so() {
        let told = of(OutputForm::Json, "x").expect_err("it is in another form");
        assert!(told.starts_with("the output is no JSON: "), "{told}");
        for text in ["<a>", "<a></b>", "x", "</a>", "<a>&x;</a>"] {
            let told = of(OutputForm::Xml, text).expect_err("it is in another form");
            assert!(told.starts_with("the output is no XML: "), "{text}: {told}");
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
        assert_eq!(of(OutputForm::Xml, &deep), Err(Unparsed::TooDeep.to_string()));
        let wide = format!("<a>{}</a>", "<b/>".repeat(NODES));
        assert_eq!(of(OutputForm::Xml, &wide), Err(Unparsed::TooLarge.to_string()));
        let fits = format!("<a>{}</a>", "<b/>".repeat(100));
        assert!(of(OutputForm::Xml, &fits).is_ok());
    }
}
