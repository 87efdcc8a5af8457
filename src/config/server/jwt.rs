//! `[http.jwt]` of `cofferdam.toml`: access tokens of an authorization server.

use std::path::PathBuf;

use toml::Spanned;

use super::clients::checked_client;
use super::settings::Kind;
use crate::document::{Item, Read, ReadError};

/// Maximum length of a URL or a scope, in bytes.
const MAX_TEXT: usize = 1024;
/// Maximum number of scopes that stand for clients.
const MAX_SCOPES: usize = 64;

/// Settings of access tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtSettings {
    pub issuer: String,
    pub audience: String,
    /// File with the public keys.
    pub keys: PathBuf,
    /// URL of this server as its clients write it, if it has one.
    pub resource: Option<String>,
    /// Clients, in the order in which they are looked for.
    pub clients: Vec<ScopeSetting>,
}

/// Scope of a token, and the client that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeSetting {
    pub client: String,
    pub scope: String,
}

table! {
    /// Access tokens of an authorization server (JSON Web Tokens, RFC 9068), which are verified
    /// with public keys from a file. Algorithms: RS256, PS256, ES256 and EdDSA with Ed25519.
    pub struct WrittenJwt {
        /// Issuer that tokens must name: the URL of the authorization server. Example:
        /// `"https://login.example"`.
        issuer: Spanned<String>,
        /// Audience that tokens must name; most servers use the URL of the resource. Example:
        /// `"https://shell.example/mcp"`.
        audience: Spanned<String>,
        /// Absolute path of the public keys as a JSON Web Key Set. Other users must not be able to
        /// write it. SIGHUP has it read again. Example: `"/etc/cofferdam/jwks.json"`.
        keys: Spanned<PathBuf>,
        /// URL of `/mcp` of this server as its clients write it. Clients find the authorization
        /// server by it (RFC 9728).
        ///
        /// Default: `audience`, if that is a URL. Example: `"https://shell.example/mcp"`.
        resource: Option<Spanned<String>> = None,
        /// Clients that tokens stand for.
        clients: Vec<WrittenScope>,
    }
}

table! {
    /// Client that tokens with a scope stand for; of several, the first that matches. Each subject
    /// is a separate client with its own sessions, history and files, whose name in the audit log
    /// is `CLIENT/SUBJECT`. The rules of a policy name `CLIENT`.
    pub struct WrittenScope {
        /// Name of the client: lower-case letters, digits and dashes. Example: `"agents"`.
        client: Spanned<String>,
        /// Scope that the token must have. Example: `"shell"`.
        scope: Spanned<String>,
    }
}

/// Settings of access tokens.
pub struct JwtValue;

impl Kind for JwtValue {
    type Value = JwtSettings;
    type Written = WrittenJwt;

    fn read(item: Item<'_>) -> Result<JwtSettings, ReadError> {
        let WrittenJwt { issuer, audience, keys, resource, clients } = WrittenJwt::read(item)?;
        if !keys.get_ref().is_absolute() {
            return Err(ReadError::new(keys.span(), "a path must be absolute"));
        }
        let issuer = url(issuer)?;
        let audience = word(audience)?;
        let resource = resource.map(url).transpose()?;
        if clients.is_empty() || clients.len() > MAX_SCOPES {
            return Err(item.error(format!("has 1 to {MAX_SCOPES} `clients`")));
        }
        let mut scopes: Vec<ScopeSetting> = Vec::new();
        for WrittenScope { client, scope } in clients {
            let place = scope.span();
            let one = ScopeSetting { client: checked_client(client)?, scope: word(scope)? };
            // Characters of a scope (RFC 6749, section 3.3).
            if one.scope.contains(['"', '\\']) {
                return Err(ReadError::new(place, "a scope has no quotes and no backslashes"));
            }
            if scopes.iter().any(|other| other.scope == one.scope) {
                return Err(ReadError::new(place, "another client has this scope"));
            }
            scopes.push(one);
        }
        let resource = resource.or_else(|| is_url(&audience).then(|| audience.clone()));
        let keys = keys.into_inner();
        Ok(JwtSettings { issuer, audience, keys, resource, clients: scopes })
    }

    fn show(jwt: &JwtSettings) -> String {
        let clients: Vec<&str> = jwt.clients.iter().map(|one| one.client.as_str()).collect();
        format!("{} for {}", jwt.issuer, clients.join(", "))
    }
}

/// Reads text of visible ASCII characters.
fn word(text: Spanned<String>) -> Result<String, ReadError> {
    let is_visible = text.get_ref().bytes().all(|byte| byte.is_ascii_graphic());
    match text.get_ref().len() {
        1..=MAX_TEXT if is_visible => Ok(text.into_inner()),
        _ => {
            let what = format!("has 1 to {MAX_TEXT} visible ASCII characters and no spaces");
            Err(ReadError::new(text.span(), what))
        }
    }
}

fn url(text: Spanned<String>) -> Result<String, ReadError> {
    let place = text.span();
    let text = word(text)?;
    match is_url(&text) {
        true => Ok(text),
        false => Err(ReadError::new(place, "is a URL such as `https://login.example`")),
    }
}

/// Returns true for a URL with a host that can be quoted in a header of HTTP.
fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['"', '\\', '#', '?'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::document::Document;

    const RIGHT: &str = "schema = 1\n[http.jwt]\nissuer = \"https://login.example\"\n\
                         audience = \"https://shell.example/mcp\"\nkeys = \"/k\"\n\
                         [[http.jwt.clients]]\nclient = \"agents\"\nscope = \"shell\"\n";

    fn read(text: &str) -> Result<JwtSettings, String> {
        let config = Config::parse(Some(&Document::new("f", text)), 2);
        let config = config.map_err(|bad| bad.to_string())?;
        config.http.jwt.value.ok_or_else(|| "absent".to_owned())
    }

    #[test]
    fn the_audience_is_the_resource_if_it_is_a_url() {
        let resource = |text: &str| read(text).map(|jwt| jwt.resource);
        let url = "https://shell.example/mcp".to_owned();
        assert_eq!(resource(RIGHT), Ok(Some(url.clone())));
        let named =
            RIGHT.replace("audience = \"https://shell.example/mcp\"", "audience = \"shell\"");
        assert_eq!(resource(&named), Ok(None));
        let both = named.replace("keys =", &format!("resource = \"{url}\"\nkeys ="));
        assert_eq!(resource(&both), Ok(Some(url)));
    }

    #[test]
    fn mistakes_are_reported() {
        let second = "[[http.jwt.clients]]\nclient = \"more\"\nscope = \"shell\"\n";
        for (text, expected) in [
            (RIGHT.replace("/k", "k"), "must be absolute"),
            (RIGHT.replace("https://login.example", "login.example"), "is a URL"),
            (RIGHT.replace("https://login.example", "https://login.example?a"), "is a URL"),
            (RIGHT.replace("scope = \"shell\"", "scope = \"a b\""), "no spaces"),
            (RIGHT.replace("scope = \"shell\"", "scope = 'a\"b'"), "no quotes"),
            (RIGHT.replace("client = \"agents\"", "client = \"local\""), "without a token"),
            (RIGHT.to_owned() + second, "another client has this scope"),
            (RIGHT.split("[[").next().unwrap_or_default().to_owned(), "missing field `clients`"),
        ] {
            let bad = read(&text).expect_err(&text);
            assert!(bad.contains(expected), "{text}: {bad}");
        }
    }
}
