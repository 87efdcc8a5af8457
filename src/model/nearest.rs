//! Spelling: the known word that was meant by another.

/// Returns the candidate nearest to `word`, if one is near enough to be what was meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (likeness(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// Returns how like two words are, from 0 to 1. One slip of the finger is near, however short the word is:
/// Jaro's measure sees nothing of `why` in `wyh`.
fn likeness(word: &str, candidate: &str) -> f64 {
    let likeness = strsim::jaro_winkler(word, candidate);
    if strsim::osa_distance(word, candidate) <= 1 { likeness.max(0.9) } else { likeness }
}
