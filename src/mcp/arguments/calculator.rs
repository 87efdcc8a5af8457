//! Arguments of the calculator's tools beyond one expression.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::{Arguments, Seconds};
use calc::MOST_EXPRESSIONS;
use calc::ledger::REMEMBERED;
use calc::plot::{HEIGHT, Plot, WIDTH};
use service::request::Precision;

/// Calculations that `calculate_history` returns when it is not asked for a number.
pub(crate) const USUAL_HISTORY: u16 = 20;

/// Arguments of `calculate_batch`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculateBatchArguments {
    pub expressions: Expressions,
    pub precision: Option<Precision>,
    pub timeout: Option<Seconds>,
}

impl Arguments for CalculateBatchArguments {
    const FIELDS: &'static [&'static str] = &["expressions", "precision", "timeout"];
}

/// 1 to [`MOST_EXPRESSIONS`] expressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expressions(pub Vec<String>);

impl<'de> Deserialize<'de> for Expressions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expressions = Vec::<String>::deserialize(deserializer)?;
        if expressions.is_empty() || expressions.len() > MOST_EXPRESSIONS {
            let expected = format!("1 to {MOST_EXPRESSIONS} expressions");
            return Err(de::Error::invalid_length(expressions.len(), &expected.as_str()));
        }
        Ok(Self(expressions))
    }
}

/// Arguments of `calculate_plot`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculatePlotArguments {
    pub expression: String,
    pub variable: Option<String>,
    pub from: End,
    pub to: End,
    pub width: Option<Within<{ WIDTH.0 }, { WIDTH.2 }>>,
    pub height: Option<Within<{ HEIGHT.0 }, { HEIGHT.2 }>>,
    pub timeout: Option<Seconds>,
}

impl Arguments for CalculatePlotArguments {
    const FIELDS: &'static [&'static str] =
        &["expression", "variable", "from", "to", "width", "height", "timeout"];
}

impl CalculatePlotArguments {
    /// Returns the plot, with defaults for absent fields.
    pub fn plot(self) -> Plot {
        Plot {
            expression: self.expression,
            variable: self.variable.unwrap_or_else(|| "x".to_owned()),
            from: self.from.0,
            to: self.to.0,
            width: self.width.map_or(WIDTH.1, |width| width.0),
            height: self.height.map_or(HEIGHT.1, |height| height.0),
        }
    }
}

/// An end of a range: a number, or an expression such as `-2*pi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End(String);

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EndVisitor;
        impl Visitor<'_> for EndVisitor {
            type Value = End;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or an expression")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<End, E> {
                Ok(End(text.to_owned()))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<End, E> {
                Ok(End(value.to_string()))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<End, E> {
                Ok(End(value.to_string()))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<End, E> {
                // Never with an exponent, which bc would not take.
                Ok(End(value.to_string()))
            }
        }
        deserializer.deserialize_any(EndVisitor)
    }
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within<const LEAST: u16, const MOST: u16>(pub u16);

impl<'de, const LEAST: u16, const MOST: u16> Deserialize<'de> for Within<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = f64::deserialize(deserializer)?;
        // JSON has one kind of number: `20.0` is a whole number there.
        let whole = (LEAST..=MOST).find(|whole| f64::from(*whole) == given);
        let expected = format!("a whole number from {LEAST} to {MOST}");
        let unexpected = de::Unexpected::Float(given);
        whole.map(Self).ok_or_else(|| de::Error::invalid_value(unexpected, &expected.as_str()))
    }
}

/// Calculations that `calculate_history` can be asked for, at most: all that are kept.
pub(crate) const MOST_HISTORY: u16 = 200;
const _: () = assert!(REMEMBERED == 200);

/// Arguments of `calculate_history`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculateHistoryArguments {
    pub limit: Option<Within<1, MOST_HISTORY>>,
}

impl Arguments for CalculateHistoryArguments {
    const FIELDS: &'static [&'static str] = &["limit"];
}

/// Arguments of `calculate_stats`: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculateStatsArguments {}

impl Arguments for CalculateStatsArguments {
    const FIELDS: &'static [&'static str] = &[];
}

/// Arguments of `calculate_functions`: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculateFunctionsArguments {}

impl Arguments for CalculateFunctionsArguments {
    const FIELDS: &'static [&'static str] = &[];
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed parse is a failed test")]
mod tests {
    use super::super::parse;
    use super::*;

    fn error_of<A: Arguments + fmt::Debug>(text: &str) -> String {
        parse::<A>(serde_json::from_str(text).unwrap()).unwrap_err().message
    }

    #[test]
    fn a_plot_has_its_usual_size_and_its_ends_are_numbers_or_expressions() {
        let text = r#"{"expression":"t^2","variable":"t","from":-1e-7,"to":"2*pi"}"#;
        let plot =
            parse::<CalculatePlotArguments>(serde_json::from_str(text).unwrap()).unwrap().plot();
        let expected = Plot {
            expression: "t^2".to_owned(),
            variable: "t".to_owned(),
            from: "-0.0000001".to_owned(),
            to: "2*pi".to_owned(),
            width: 72,
            height: 20,
        };
        assert_eq!(plot, expected);
    }

    #[test]
    fn what_is_out_of_range_is_named_with_its_range() {
        let plot =
            error_of::<CalculatePlotArguments>(r#"{"expression":"x","from":0,"to":1,"width":201}"#);
        let expected = "calculate_plot: `width`: invalid value: floating point `201.0`, expected a whole number from 20 to 200";
        assert_eq!(plot, expected);
        let many = format!(r#"{{"expressions":[{}"1"]}}"#, r#""1","#.repeat(100));
        for (text, given) in [(r#"{"expressions":[]}"#, 0), (many.as_str(), 101)] {
            let expected = format!(
                "calculate_batch: `expressions`: invalid length {given}, expected 1 to 100 expressions"
            );
            assert_eq!(error_of::<CalculateBatchArguments>(text), expected);
        }
    }
}
