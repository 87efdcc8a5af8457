//! The log of a process: each event is one line, `key=value` or JSON, with the call it belongs to.
//!
//! *Invariant:* only events of this workspace's crates are written, whatever the filter says. Those of
//! libraries can have the arguments and the output of calls in them; ours name neither.

use std::fmt::Debug;
use std::io::Write;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use model::{clock, log};

/// Default log of a server: warnings that an operator should act on.
pub const SERVER_LOG: &str = "warn";
/// Default log of a command that makes one call, which reports the failure of that call itself.
pub const COMMAND_LOG: &str = "warn,cofferdam_supervisor::event_loop::dispatch=error";

/// Maximum characters of one value: a supervisor keeps lines up to a length.
const MAX_VALUE_CHARACTERS: usize = 200;

/// Form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    KeyValue,
    Json,
}

/// Logs to standard error, as `COFFERDAM_LOG` or else `RUST_LOG` says, and otherwise as `usual` does, in the
/// form that `COFFERDAM_LOG_FORMAT` names. A filter is a level, or `TARGET=LEVEL` separated by commas. All are read here, before confinement and before the
/// environment is cleared.
pub fn start(usual: &str) {
    let wanted = ["COFFERDAM_LOG", "RUST_LOG"].iter().find_map(|name| std::env::var(name).ok());
    let level = || std::env::var("LOG_LEVEL").ok().filter(|_| usual == SERVER_LOG);
    let wanted = wanted.or_else(|| Some(level_filter(&level()?)?.to_owned()));
    let wanted = wanted.unwrap_or_else(|| usual.to_owned());
    let filter = wanted.parse::<Targets>().unwrap_or_else(|error| {
        eprintln!("cofferdam: COFFERDAM_LOG or RUST_LOG is not understood: {error}");
        usual.parse().unwrap_or_default()
    });
    let format = match std::env::var("COFFERDAM_LOG_FORMAT").as_deref() {
        Ok("json") => Format::Json,
        Ok("text" | "") | Err(_) => Format::KeyValue,
        Ok(_) => {
            eprintln!("cofferdam: COFFERDAM_LOG_FORMAT is neither text nor json");
            Format::KeyValue
        }
    };
    if let Err(error) = Registry::default().with(filter).with(Lines(format)).try_init() {
        eprintln!("cofferdam: nothing can be logged: {error}");
    }
}

/// Returns the filter for a level in the words of Python, which the reference implementation of command-line tools
/// has in `LOG_LEVEL`; `None` for another word.
fn level_filter(level: &str) -> Option<&'static str> {
    match level.to_ascii_uppercase().as_str() {
        "DEBUG" => Some("debug"),
        "INFO" => Some("info"),
        "WARN" | "WARNING" => Some("warn"),
        "ERROR" | "CRITICAL" | "FATAL" => Some("error"),
        _ => None,
    }
}

/// Writes the lines.
#[derive(Debug)]
struct Lines(Format);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|_| is_ours(attributes.metadata())) else {
            return;
        };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let about = event.metadata();
        if !is_ours(about) {
            return;
        }
        let mut event_fields = Fields::default();
        event.record(&mut event_fields);
        let mut all = Fields::default();
        all.add("time", clock::now().into());
        all.add("level", about.level().as_str().to_ascii_lowercase().into());
        let is_message = |field: &(&str, Value)| field.0 == "message";
        let message = event_fields.0.iter().position(is_message);
        let message = message.map(|at| event_fields.0.remove(at).1);
        all.add("event", message.unwrap_or_else(|| about.name().into()));
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<Fields>() {
                all.0.extend(fields.0.iter().cloned());
            }
        }
        // A field of the event replaces a span's field of that name.
        all.0.retain(|(name, _)| event_fields.0.iter().all(|(other, _)| other != name));
        all.0.append(&mut event_fields.0);
        all.add("target", about.target().into());
        // `Output` counts lines that cannot be written; there is no other place to report them.
        log::Output.write_all(all.line(self.0).as_bytes()).unwrap_or_default();
    }
}

/// Returns true for events of this workspace's crates, whose names all start with `cofferdam`.
fn is_ours(about: &Metadata<'_>) -> bool {
    let root = about.target().split("::").next().unwrap_or_default();
    root == "cofferdam" || root.starts_with("cofferdam_")
}

/// Fields by their names, in their order.
#[derive(Debug, Default)]
struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    fn add(&mut self, name: &'static str, value: Value) {
        let short = value.as_str().map(|text| text.chars().take(MAX_VALUE_CHARACTERS).collect());
        self.0.push((name, short.map_or(value, Value::String)));
    }

    fn line(self, format: Format) -> String {
        match format {
            Format::Json => {
                let fields = self.0.into_iter().map(|(name, value)| (name.to_owned(), value));
                Value::Object(fields.collect::<Map<_, _>>()).to_string() + "\n"
            }
            Format::KeyValue => {
                let field = |(name, value): &(&str, Value)| format!("{name}={}", written(value));
                self.0.iter().map(field).collect::<Vec<_>>().join(" ") + "\n"
            }
        }
    }
}

/// Formats a value for `key=value`, in quotes if it is not one plain word.
fn written(value: &Value) -> String {
    let Some(text) = value.as_str() else { return value.to_string() };
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    // Control characters are escaped: a terminal would act on some, and a line must not have two ends.
    let is_escaped = |c: char| c.is_control() || matches!(c, '"' | '\\');
    let shown = |c: char| match is_escaped(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(shown).collect::<String>())
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_control_characters_stay_on_one_line() {
        let mut fields = Fields::default();
        fields.add("event", "two words\n\u{1b}[31m".into());
        fields.add("id", "a=\"b\\".into());
        fields.add("took", 12.into());
        fields.add("none", "".into());
        let line = Fields(fields.0.clone()).line(Format::KeyValue);
        let expected = "event=\"two words\\n\\u{1b}[31m\" id=\"a=\\\"b\\\\\" took=12 none=\"\"\n";
        assert_eq!(line, expected);
        let json: Value = serde_json::from_str(&fields.line(Format::Json)).unwrap_or_default();
        assert_eq!(json.get("event").and_then(Value::as_str), Some("two words\n\u{1b}[31m"));
    }
}
