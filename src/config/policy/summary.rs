//! Summary of a tool's output in one line, filled with the values of its readers: `{received} of
//! {sent} answered`.

/// Text of a summary, split into parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary(Vec<SummaryPart>);

/// Part of a summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SummaryPart {
    Text(String),
    /// Value of the reader of this name: its single value, the number of its lines, or one of its
    /// groups.
    Found {
        reader: String,
        group: Option<String>,
    },
}

impl Summary {
    /// Parses a text with `{NAME}` and `{NAME.GROUP}`. `has` returns true if a reader of the name
    /// finds the value.
    ///
    /// # Errors
    /// The reason, for the operator.
    pub(super) fn parse(
        text: &str,
        has: impl Fn(&str, Option<&str>) -> bool,
    ) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else {
                return Err("a `{` of `summary` has no `}`".to_owned());
            };
            parts.push(SummaryPart::Text(before.to_owned()));
            let (reader, group) = match name.split_once('.') {
                Some((reader, group)) => (reader, Some(group)),
                None => (name, None),
            };
            if !has(reader, group) {
                return Err(format!("no reader finds `{{{name}}}`"));
            }
            let reader = reader.to_owned();
            let group = group.map(str::to_owned);
            parts.push(SummaryPart::Found { reader, group });
            rest = after;
        }
        parts.push(SummaryPart::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// Returns the parts, in order.
    pub fn parts(&self) -> &[SummaryPart] {
        &self.0
    }
}
