//! Names of clients, as each kind of credential has them.

use toml::Spanned;

use crate::document::ReadError;
use model::profile::name::is_dashed_word;

/// Checks the name of a client in a file.
pub(super) fn checked_client(client: Spanned<String>) -> Result<String, ReadError> {
    match client_fault(client.get_ref()) {
        Some(fault) => Err(ReadError::new(client.span(), fault)),
        None => Ok(client.into_inner()),
    }
}

/// Returns the reason why a client cannot have this name, if there is one.
#[must_use]
pub fn client_fault(name: &str) -> Option<&'static str> {
    if !is_dashed_word(name, 32) {
        return Some("a client's name is lower-case letters, digits and dashes, at most 32");
    }
    let is_taken = ["local", "http", "tcp"].contains(&name);
    is_taken.then_some("this name is that of clients without a token of their own")
}
