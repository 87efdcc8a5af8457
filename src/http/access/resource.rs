//! Metadata by which a client of MCP finds the authorization server that issues its token (RFC 9728), and the challenges
//! that lead to it (RFC 6750, section 3).

use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use crate::respond::json_response;
use config::jwt::JwtSettings;

/// Path of the metadata of a resource without a path; that of `/mcp` has `/mcp` after it.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
/// Challenge of a server without an authorization server.
const PLAIN: &str = "Bearer realm=\"cofferdam\"";

/// Reason for a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// There is no token.
    Missing,
    /// The token is not valid.
    Invalid,
    /// The token is valid, and lacks each of the scopes.
    Scope,
}

/// Metadata of this server.
#[derive(Debug)]
pub struct Resource {
    /// Path of the metadata, as the URL of the resource gives it.
    path: String,
    document: Value,
    url: String,
    scopes: Vec<String>,
}

impl Resource {
    /// Makes the metadata, if the configuration has a URL of this server.
    pub fn new(jwt: &JwtSettings) -> Option<Self> {
        let resource = jwt.resource.as_deref()?;
        let scopes: Vec<String> = jwt.clients.iter().map(|one| one.scope.clone()).collect();
        let (scheme, rest) = resource.split_once("://")?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = match path.trim_end_matches('/') {
            "" => WELL_KNOWN.to_owned(),
            path => format!("{WELL_KNOWN}/{path}"),
        };
        let document = json!({
            "resource": resource,
            "authorization_servers": [jwt.issuer],
            "scopes_supported": scopes,
            "bearer_methods_supported": ["header"],
            "resource_name": "cofferdam",
        });
        Some(Self { url: format!("{scheme}://{host}{path}"), path, document, scopes })
    }

    /// Returns the metadata for a path where clients look for it.
    pub(crate) fn answer(&self, path: &str) -> Option<Response> {
        let is_here = path == self.path || path == WELL_KNOWN;
        is_here.then(|| json_response(StatusCode::OK, &self.document))
    }
}

/// Makes the value of `WWW-Authenticate`.
pub(crate) fn challenge(resource: Option<&Resource>, reason: Challenge) -> HeaderValue {
    let mut text = PLAIN.to_owned();
    match reason {
        Challenge::Missing => {}
        Challenge::Invalid => text += ", error=\"invalid_token\"",
        Challenge::Scope => text += ", error=\"insufficient_scope\"",
    }
    if let Some(resource) = resource {
        text += &format!(", resource_metadata=\"{}\"", resource.url);
        // A client asks for the scopes of a challenge. Of several, each stands for another client.
        if resource.scopes.len() == 1 || reason == Challenge::Scope {
            text += &format!(", scope=\"{}\"", resource.scopes.join(" "));
        }
    }
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(PLAIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::jwt::ScopeSetting;

    fn settings(resource: Option<&str>, scopes: &[&str]) -> JwtSettings {
        let one =
            |scope: &&str| ScopeSetting { client: "agents".to_owned(), scope: (*scope).to_owned() };
        JwtSettings {
            issuer: "https://login.example".to_owned(),
            audience: "shell".to_owned(),
            keys: "/k".into(),
            resource: resource.map(str::to_owned),
            clients: scopes.iter().map(one).collect(),
        }
    }

    #[test]
    fn the_metadata_is_where_the_url_of_the_resource_says() {
        for (url, path) in [
            ("https://shell.example/mcp", "/.well-known/oauth-protected-resource/mcp"),
            ("https://shell.example/a/mcp", "/.well-known/oauth-protected-resource/a/mcp"),
            ("https://shell.example", "/.well-known/oauth-protected-resource"),
            ("https://shell.example:8443/", "/.well-known/oauth-protected-resource"),
        ] {
            let resource = Resource::new(&settings(Some(url), &["shell"])).expect("it has a URL");
            assert_eq!(resource.document.get("resource"), Some(&json!(url)));
            assert!(resource.answer(path).is_some() && resource.answer(WELL_KNOWN).is_some());
            assert!(resource.answer("/.well-known/oauth-protected-resource/other").is_none());
            let header = challenge(Some(&resource), Challenge::Missing);
            let origin = url.trim_end_matches('/').trim_end_matches("/a/mcp");
            let whole = format!("{}{path}\"", origin.trim_end_matches("/mcp"));
            assert!(header.to_str().is_ok_and(|text| text.contains(&whole)), "{header:?}");
        }
        assert!(Resource::new(&settings(None, &["shell"])).is_none());
    }

    #[test]
    fn a_challenge_names_the_fault_and_the_scope() {
        let one = Resource::new(&settings(Some("https://s.example/mcp"), &["shell"]));
        let two = Resource::new(&settings(Some("https://s.example/mcp"), &["a", "b"]));
        let metadata =
            "resource_metadata=\"https://s.example/.well-known/oauth-protected-resource/mcp\"";
        for (resource, reason, expected) in [
            (None, Challenge::Missing, PLAIN.to_owned()),
            (None, Challenge::Invalid, format!("{PLAIN}, error=\"invalid_token\"")),
            (one.as_ref(), Challenge::Missing, format!("{PLAIN}, {metadata}, scope=\"shell\"")),
            (two.as_ref(), Challenge::Missing, format!("{PLAIN}, {metadata}")),
            (
                two.as_ref(),
                Challenge::Scope,
                format!("{PLAIN}, error=\"insufficient_scope\", {metadata}, scope=\"a b\""),
            ),
        ] {
            assert_eq!(challenge(resource, reason), expected);
        }
    }
}
