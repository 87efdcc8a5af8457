//! Draws values as characters: chooses the displayed range, and adds axes and labels.

use super::Plot;

/// A drawing, with counts of the values that are not in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Lines of ASCII.
    pub plot: String,
    /// The ends of the range, as numbers.
    pub from: f64,
    pub to: f64,
    /// The minimum and maximum computed value, drawn or not.
    pub lowest: f64,
    pub highest: f64,
    /// Columns without a value: singularities, places where the function is not defined.
    pub gaps: usize,
    /// Columns whose value is outside the displayed range.
    pub beyond: usize,
}

/// Draws the values of the columns. Returns `None` if there is no value at all.
pub(super) fn drawn(plot: &Plot, from: f64, to: f64, values: &[Option<f64>]) -> Option<Drawn> {
    let mut sorted: Vec<f64> = values.iter().flatten().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let lowest = *sorted.first()?;
    let highest = *sorted.last()?;
    let (bottom, top) = shown(&sorted, lowest, highest);
    let rows = Rows { bottom, top, last: plot.height.saturating_sub(1) };
    let points: Vec<Option<u16>> =
        values.iter().map(|value| value.and_then(|value| rows.row_of(value))).collect();
    let zero = rows.row_of(0.0);
    let columns = f64::from(plot.width.saturating_sub(1));
    let origin = (from <= 0.0 && to >= 0.0).then(|| nearest(-from / (to - from) * columns));

    let labels = [short(top), short(bottom), "0".to_owned()];
    let margin = labels.iter().map(String::len).max().unwrap_or_default();
    let [highest_label, lowest_label, zero_label] = &labels;
    let mut text = String::new();
    for row in 0..plot.height {
        let label = match row {
            0 => highest_label.as_str(),
            row if row == rows.last => lowest_label.as_str(),
            row if Some(row) == zero => zero_label.as_str(),
            _ => "",
        };
        let line: String = (0..plot.width)
            .zip(&points)
            .map(|(column, point)| {
                match (*point == Some(row), zero == Some(row), origin == Some(column)) {
                    (true, _, _) => '*',
                    (false, true, true) => '+',
                    (false, true, false) => '-',
                    (false, false, true) => '|',
                    (false, false, false) => ' ',
                }
            })
            .collect();
        text.push_str(format!("{label:>margin$} |{line}").trim_end());
        text.push('\n');
    }
    text.push_str(&below(plot, margin, from, to));
    let finite = values.iter().flatten().count();
    let inside = points.iter().flatten().count();
    let gaps = values.len() - finite;
    let beyond = finite - inside;
    Some(Drawn { plot: text, from, to, lowest, highest, gaps, beyond })
}

/// Returns the line of the horizontal axis and its labels.
fn below(plot: &Plot, margin: usize, from: f64, to: f64) -> String {
    let width = usize::from(plot.width);
    let left = short(from);
    let right = short(to);
    let between = width.saturating_sub(left.len() + right.len());
    let empty = "";
    let variable = &plot.variable;
    format!(
        "{empty:>margin$} +{empty:-<width$}\n{empty:>margin$}  {left}{variable:^between$}{right}\n"
    )
}

/// Returns the displayed range. It excludes a few values far from all others, as near a
/// singularity, which would flatten the rest.
fn shown(sorted: &[f64], lowest: f64, highest: f64) -> (f64, f64) {
    let outside = sorted.len() / 20;
    let low = sorted.get(outside).copied().unwrap_or(lowest);
    let high = sorted.iter().rev().nth(outside).copied().unwrap_or(highest);
    let span = high - low;
    let far = |distance: f64| span > 0.0 && distance > 4.0 * span;
    let bottom = if far(low - lowest) { low - span / 4.0 } else { lowest };
    let top = if far(highest - high) { high + span / 4.0 } else { highest };
    if top > bottom {
        return (bottom, top);
    }
    // Draw a constant in the middle.
    let around = if top == 0.0 { 1.0 } else { top.abs() / 2.0 };
    (bottom - around, top + around)
}

/// The rows of a drawing, from top to bottom.
struct Rows {
    bottom: f64,
    top: f64,
    last: u16,
}

impl Rows {
    fn row_of(&self, value: f64) -> Option<u16> {
        let inside = value >= self.bottom && value <= self.top;
        let part = (self.top - value) / (self.top - self.bottom);
        inside.then(|| nearest(part * f64::from(self.last)))
    }
}

/// Rounds to the nearest whole number, for positions in a drawing.
fn nearest(position: f64) -> u16 {
    (0..u16::MAX).find(|whole| f64::from(*whole) + 0.5 > position).unwrap_or(u16::MAX)
}

/// Formats a number with about five digits at most.
fn short(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        return format!("{value:.2e}");
    }
    let places = match size {
        size if size >= 1000.0 => 1,
        size if size >= 1.0 => 3,
        _ => 5,
    };
    let text = format!("{value:.places$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}
