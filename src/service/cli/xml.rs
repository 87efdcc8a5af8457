//! An XML document that a tool printed, as a tree of elements.
//!
//! The document is hostile. The tree is bounded in depth and in size, and nothing that a document type or an entity
//! names is looked up.

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use serde_json::{Map, Value};

/// Deepest element of an XML document that is read.
pub(super) const DEPTH: usize = 64;
/// Maximum elements and attributes that are read.
pub(super) const NODES: usize = 50_000;

/// Reason why a document is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotXml {
    #[error("the output is no XML: {0}")]
    Malformed(String),
    #[error("the output is XML of more than {NODES} parts")]
    TooLarge,
    #[error("the output is XML of more than {DEPTH} levels")]
    TooDeep,
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
    pub(super) fn into_json(self) -> Map<String, Value> {
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

/// Reads a document, and returns its root.
///
/// # Errors
/// A document that is malformed, too large or too deep.
pub(super) fn root(output: &str) -> Result<Element, NotXml> {
    let bad = |error: &dyn std::fmt::Display| NotXml::Malformed(error.to_string());
    let mut reader = Reader::from_str(output);
    let mut open: Vec<Element> = Vec::new();
    let mut nodes: usize = 0;
    loop {
        match reader.read_event().map_err(|error| bad(&error))? {
            Event::Start(start) => {
                let element = element(&start, &mut nodes)?;
                open.push(element);
                if open.len() > DEPTH {
                    return Err(NotXml::TooDeep);
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

fn element(start: &BytesStart<'_>, nodes: &mut usize) -> Result<Element, NotXml> {
    let bad = |error: &dyn std::fmt::Display| NotXml::Malformed(error.to_string());
    let mut element = Element { name: start.name().as_ref().to_owned(), ..Element::default() };
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| bad(&error))?;
        let name = attribute.key.as_ref().to_owned();
        let value = attribute.normalized_value(XmlVersion::Implicit1_0);
        let value = value.map_err(|error| bad(&error))?.into_owned();
        element.attributes.push((name, value));
    }
    *nodes += 1 + element.attributes.len();
    if *nodes > NODES { Err(NotXml::TooLarge) } else { Ok(element) }
}
