//! The files that are compiled in: without any configuration, these hold.

use crate::document::Document;

/// The shipped policy.
#[must_use]
pub(crate) fn policies() -> Vec<Document> {
    vec![Document::new(
        "embedded:policies/default.toml",
        include_str!("../../policies/default.toml"),
    )]
}

/// The shipped profiles.
#[must_use]
pub(crate) fn profiles() -> Vec<Document> {
    let files = [
        ("base", include_str!("../../sandbox-profiles/base.toml")),
        ("bash", include_str!("../../sandbox-profiles/bash.toml")),
        ("bc", include_str!("../../sandbox-profiles/bc.toml")),
    ];
    let named =
        |(name, text)| Document::new(&format!("embedded:sandbox-profiles/{name}.toml"), text);
    files.into_iter().map(named).collect()
}
