//! Checks that each tool parses exactly the arguments that its schema describes.

use std::collections::BTreeSet;
use std::time::Duration;

use config::document::Mistake;
use config::policy::Policy;
use config::policy::tools::NAMES;
use config::profile::Profiles;
use model::job::ProfileName;
use model::receipt::{MemoryHold, Tier};
use serde_json::{Map, Value, json};

use rmcp::model::{JsonObject, Tool};
use service::request::ExecOptions;
use service::rules::Rules;

use super::*;
use crate::arguments::{field_names, parse};

/// Returns the rules of the shipped shell, with a choice of two profiles.
fn in_force() -> Option<InForce> {
    let profiles = Profiles::compiled_in();
    let profile = profiles.get(&ProfileName::new("bash")?)?;
    let view = None;
    let hold = MemoryHold::BestEffort;
    let rules = Rules::of(profile, view, Tier::Full, hold, Duration::from_secs(30));
    let profiles = vec!["bash".to_owned(), "bc".to_owned()];
    Some(InForce { rules, options: ExecOptions { profiles, ..ExecOptions::default() } })
}

/// A tool, its fields, and the result of parsing arguments of it.
struct Form {
    tool: Tool,
    fields: &'static [&'static str],
    parse: fn(Option<JsonObject>) -> Result<(), String>,
}

impl Form {
    fn of<T: BuiltIn>(in_force: &InForce) -> Self {
        Self {
            tool: T::describe(in_force),
            fields: field_names::<T>(),
            parse: |given| parse::<T>(given).map(|_| ()).map_err(|bad| bad.message),
        }
    }

    fn properties(&self) -> Map<String, Value> {
        let properties = self.tool.input_schema.get("properties").and_then(Value::as_object);
        properties.cloned().unwrap_or_default()
    }

    /// Returns the smallest call: a value for each required field.
    fn least(&self) -> Map<String, Value> {
        let required = self.tool.input_schema.get("required").and_then(Value::as_array);
        let names = required.into_iter().flatten().filter_map(Value::as_str);
        let properties = self.properties();
        let value = |name: &str| properties.get(name).map(sample).unwrap_or_default();
        names.map(|name| (name.to_owned(), value(name))).collect()
    }
}

macro_rules! forms {
    ($($arguments:ident $name:literal: $group:expr, $rule:expr, $runs:expr;)*) => {
        fn forms() -> Vec<Form> {
            let in_force = in_force();
            in_force.map_or_else(Vec::new, |given| vec![$(Form::of::<$arguments>(&given)),*])
        }
    };
}

config::with_tools!(forms);

/// Returns a value that a schema describes.
fn sample(schema: &Value) -> Value {
    let field = |name: &str| schema.get(name).cloned();
    let of_list = |name: &str| schema.get(name).and_then(|list| list.get(0)).cloned();
    if let Some(value) = field("default").or_else(|| of_list("enum")) {
        return value;
    }
    if let Some(first) = of_list("anyOf") {
        return sample(&first);
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => json!("x"),
        Some("boolean") => json!(true),
        Some("integer") => field("minimum").unwrap_or(json!(1)),
        Some("number") => json!(1.5),
        Some("array") => {
            let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(1);
            let item = schema.get("items").map(sample).unwrap_or_default();
            Value::Array((0..least).map(|_| item.clone()).collect())
        }
        Some("object") => {
            let required = schema.get("required").and_then(Value::as_array);
            let names = required.into_iter().flatten().filter_map(Value::as_str);
            let of = |name: &str| schema.get("properties").and_then(|all| all.get(name));
            names.map(|name| (name.to_owned(), of(name).map(sample).unwrap_or_default())).collect()
        }
        Some(_) | None => Value::Null,
    }
}

/// Returns a value of another type than a schema describes.
fn other_than(schema: &Value) -> Value {
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => json!(5),
        Some("integer") => json!(1.5),
        Some(_) | None => json!({ "x": 5 }),
    }
}

#[test]
fn the_fields_that_are_parsed_are_those_of_the_schema() {
    let forms = forms();
    let names: Vec<&str> = forms.iter().map(|form| form.tool.name.as_ref()).collect();
    assert_eq!(names, NAMES);
    for form in &forms {
        let properties = form.properties();
        let described: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
        assert_eq!(described, form.fields.iter().copied().collect(), "{}", form.tool.name);
    }
}

#[test]
fn every_result_may_be_a_reason_and_a_hint_alone() {
    for Form { tool, .. } in forms() {
        let schema = tool.output_schema.as_deref().cloned().unwrap_or_default();
        assert_eq!(schema.get("required"), None, "{}", tool.name);
        let properties = schema.get("properties").and_then(Value::as_object);
        for name in ["error", "hint", "notes"] {
            assert!(properties.is_some_and(|all| all.contains_key(name)), "{}: {name}", tool.name);
        }
    }
}

#[test]
fn a_value_that_the_schema_describes_is_parsed_and_one_of_another_type_is_not() {
    for form in &forms() {
        let tool = &form.tool.name;
        let least = form.least();
        assert_eq!((form.parse)(Some(least.clone())), Ok(()), "{tool}");
        for (name, schema) in form.properties() {
            let with = |value: Value| {
                let mut given = least.clone();
                given.insert(name.clone(), value);
                (form.parse)(Some(given))
            };
            let value = sample(&schema);
            assert_eq!(with(value.clone()), Ok(()), "{tool}: `{name}` as {value}");
            let other = other_than(&schema);
            assert!(with(other.clone()).is_err(), "{tool}: `{name}` as {other}");
        }
        for name in least.keys() {
            let mut without = least.clone();
            without.remove(name);
            assert!((form.parse)(Some(without)).is_err(), "{tool} without `{name}`");
        }
    }
}

#[test]
fn no_shipped_flag_list_has_the_name_of_a_tool() -> Result<(), Mistake> {
    let policy = Policy::parse(&config::policy::shipped(), &Profiles::compiled_in())?;
    assert!(!policy.commands().is_empty());
    let taken = policy.commands().iter().find(|command| NAMES.contains(&command.name.as_str()));
    assert_eq!(taken, None);
    Ok(())
}
