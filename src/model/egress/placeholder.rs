//! The placeholder of a secret, which a cell has instead of the secret.

/// Returns the placeholder of the secret `name` in the cell with this seed.
pub fn placeholder(name: &str, seed: &[u8; 16]) -> String {
    format!("cofferdam_{name}_{}", placeholder_mark(seed))
}

/// Returns the part that all placeholders of a cell share, by which they are found in a request.
pub fn placeholder_mark(seed: &[u8; 16]) -> String {
    seed.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{placeholder, placeholder_mark};

    #[test]
    fn a_placeholder_names_its_secret_and_its_cell() {
        let seed = std::array::from_fn(|at| u8::try_from(at).expect("small"));
        assert_eq!(
            placeholder("github", &seed),
            "cofferdam_github_000102030405060708090a0b0c0d0e0f"
        );
        assert!(placeholder("github", &seed).ends_with(&placeholder_mark(&seed)));
        assert_ne!(placeholder("github", &[0; 16]), placeholder("github", &[1; 16]));
    }
}
