//! Addresses of listeners, as they are typed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::commands::error::CliError;
use model::outcome::in_words;

/// Address of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Makes the error for an address that cannot be served.
pub(super) fn bad(fault: &impl std::fmt::Display) -> CliError {
    CliError::new(format!("--http: {fault}"))
}

/// Parses an address.
///
/// # Errors
/// Text that is no address of this machine, with a hint.
pub(super) fn endpoint(text: &str) -> Result<Endpoint, CliError> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = std::path::absolute(path).map_err(|error| bad(&in_words(&error)))?;
        return Ok(Endpoint::Unix(path));
    }
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let address = match local {
        Some(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        None => text.parse().ok(),
    };
    address.map(Endpoint::Tcp).ok_or_else(|| {
        bad(&format!("`{}` is no address", text.escape_default()))
            .with_hint("write IP:PORT as 127.0.0.1:8080 or [::1]:8080, or unix:PATH")
    })
}
