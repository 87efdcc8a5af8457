//! Spelling suggestions: finds the known word that is closest to a misspelt one.

/// Returns the candidate closest to `word`, if it is close enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (likeness(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// Returns the similarity of two words, from 0 to 1. A single typing error counts as close however
/// short the word is, which Jaro's measure misses: `why` and `wyh`.
fn likeness(word: &str, candidate: &str) -> f64 {
    let likeness = strsim::jaro_winkler(word, candidate);
    if strsim::osa_distance(word, candidate) <= 1 { likeness.max(0.9) } else { likeness }
}
