//! Judges one request, and builds the request that is sent in its place.
//!
//! No byte of a request is passed on as written: hyper has parsed it, and writes a new one from the
//! parts kept here. Framing, target and hop-by-hop headers are rebuilt.

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, Scheme};
use hyper::{Method, Request, Uri, Version};

use super::grants::{PinnedRule, Readings, RequestRule, granting};
use super::scan::Needles;
use super::traces::Traces;
use crate::refusal::NetworkRefusal;

/// Headers that make some servers take a request for one of another method, as [`folded`] spells
/// them.
const METHOD_HEADERS: [&str; 10] = [
    "xhttpmethodoverride",
    "xhttpmethod",
    "xmethodoverride",
    "xmethod",
    "httpmethodoverride",
    "httpmethod",
    "methodoverride",
    "xoriginalmethod",
    "xforwardedmethod",
    "xrequestmethod",
];
/// Query parameters that do the same, spelt the same way. Some servers also read them from the body
/// of a POST, where they are not looked for.
const METHOD_PARAMETERS: [&str; 8] = [
    "method",
    "httpmethod",
    "methodoverride",
    "httpmethodoverride",
    "xhttpmethodoverride",
    "xhttpmethod",
    "xmethodoverride",
    "requestmethod",
];
/// Values of the parameter `method` that name a method. Any other value is an API's own parameter.
const METHODS: [&str; 18] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "CONNECT",
    "TRACE",
    "QUERY",
    "PURGE",
    "COPY",
    "MOVE",
    "MKCOL",
    "LOCK",
    "UNLOCK",
    "PROPFIND",
    "PROPPATCH",
];
/// Headers that make some servers take a request for one of another path or host, as [`folded`]
/// spells them.
const TARGET_HEADERS: [&str; 30] = [
    "forwarded",
    "xforwardedhost",
    "xforwardedserver",
    "xforwardeduri",
    "xforwardedurl",
    "xforwardedpath",
    "xforwardedprefix",
    "xhost",
    "xhosturl",
    "xhttphostoverride",
    "xoriginalhost",
    "xrealhost",
    "xoriginalurl",
    "xoriginaluri",
    "xoriginalpath",
    "xrewriteurl",
    "xrewriteuri",
    "xrewritepath",
    "xoverrideurl",
    "xoverrideuri",
    "xhttppathoverride",
    "xhttpdestinationurl",
    "xproxyurl",
    "xrequesturl",
    "xrequesturi",
    "xreplacedpath",
    "xenvoyoriginalhost",
    "xenvoyoriginalpath",
    "requesturl",
    "requesturi",
];
/// The header that names a second path for COPY and MOVE (RFC 4918).
const DESTINATION: &str = "destination";
/// Hop-by-hop headers, and headers about this end of the connection: rebuilt or left out.
const HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::PROXY_AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Where a connection leads.
#[derive(Debug)]
pub(super) struct Destination {
    /// With TLS exactly one name: that of the handshake.
    pub(super) names: Vec<String>,
    pub(super) port: u16,
    /// True if TLS ended here and the server's certificate was verified.
    pub(super) is_verified: bool,
    pub(super) rules: Vec<PinnedRule>,
}

/// The random seed of a cell, and the marks by which placeholders made from it are found.
#[derive(Debug, Clone)]
pub(super) struct CellSeed {
    pub(super) seed: [u8; 16],
    pub(super) marks: Needles,
}

impl CellSeed {
    pub(super) fn new(seed: [u8; 16]) -> Self {
        let mark = model::egress::placeholder_mark(&seed);
        Self { seed, marks: Needles::new([mark.as_bytes()]) }
    }
}

impl Destination {
    /// Returns the destination of a connection without TLS.
    pub(super) fn plain(port: u16, rules: Vec<PinnedRule>) -> Self {
        let mut names: Vec<_> = rules.iter().flat_map(|rule| &rule.names).cloned().collect();
        names.sort();
        names.dedup();
        Self { names, port, is_verified: false, rules }
    }

    /// Returns the destination of a TLS connection for `name`, with the rules that have the name.
    pub(super) fn verified(self, name: String) -> Self {
        let mut rules = self.rules;
        rules.retain(|rule| rule.names.contains(&name));
        Self { names: vec![name], port: self.port, is_verified: true, rules }
    }

    /// Returns the rules for requests to a host.
    fn rules_of<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a RequestRule> {
        let rules = self.rules.iter().filter(move |it| it.names.iter().any(|name| name == host));
        rules.map(|it| &it.rule)
    }

    fn scheme(&self) -> Scheme {
        if self.is_verified { Scheme::HTTPS } else { Scheme::HTTP }
    }

    fn default_port(&self) -> u16 {
        if self.is_verified { 443 } else { 80 }
    }

    /// Returns true if answers must be searched for secrets.
    pub(super) fn has_secrets(&self) -> bool {
        self.is_verified && self.rules.iter().any(|it| it.rule.injection.is_some())
    }

    /// Returns the traces of the secrets that requests to this destination may carry.
    pub(super) fn secrets(&self) -> Traces {
        let rules = self.rules.iter().filter(|_| self.is_verified);
        let injections = rules.filter_map(|it| it.rule.injection.as_ref());
        Traces::joined(injections.map(|injection| &injection.traces))
    }

    /// Describes a request for denials and the audit log: the method and the URL without the query.
    pub(super) fn shown(&self, parts: &Parts) -> String {
        let host =
            self.host(parts).unwrap_or_else(|_| self.names.first().map_or("", String::as_str));
        let port = self.port_text();
        let path: String = plain(parts.uri.path()).take(400).collect();
        let method: String = parts.method.as_str().chars().take(40).collect();
        format!("{method} {}://{host}{port}{path}", self.scheme())
    }

    fn port_text(&self) -> String {
        if self.port == self.default_port() { String::new() } else { format!(":{}", self.port) }
    }

    /// Returns the host that a request is for. Every host that the request names must be the
    /// connection's.
    fn host(&self, parts: &Parts) -> Result<&str, NetworkRefusal> {
        let mut hosts = parts.headers.get_all(header::HOST).iter();
        let host = hosts.next().map(|host| Authority::try_from(host.as_bytes()));
        let host =
            host.transpose().map_err(|_| NetworkRefusal::new("the header Host is no host"))?;
        if hosts.next().is_some() {
            return Err(NetworkRefusal::new("the header Host is there more than once"));
        }
        if parts.uri.scheme().is_some_and(|scheme| *scheme != self.scheme()) {
            return Err(NetworkRefusal::new("the URL has another scheme than the connection"));
        }
        let target = parts.uri.authority();
        let Some(first) = host.as_ref().or(target) else {
            return Err(NetworkRefusal::new("the request names no host"));
        };
        let name = self.names.iter().find(|name| self.is_named(first, name));
        match name.filter(|name| target.is_none_or(|target| self.is_named(target, name))) {
            Some(name) => Ok(name),
            None => {
                let other = target.unwrap_or(first);
                let other: String = other.as_str().chars().take(100).collect();
                Err(NetworkRefusal::new(format!(
                    "the request is for {other}, the connection for {}",
                    self.names.join(", ")
                )))
            }
        }
    }

    /// Returns the methods and paths by which a server may read a request, those of the request
    /// line first.
    fn readings(&self, parts: &Parts, host: &str) -> Result<Readings, NetworkRefusal> {
        let mut methods = vec![parts.method.as_str().to_owned()];
        methods.extend(overriding(parts));
        if methods.iter().skip(1).any(|method| matches!(method.as_str(), "TRACE" | "CONNECT")) {
            return Err(NetworkRefusal::new(
                "CONNECT and TRACE are never allowed, by no other name",
            ));
        }
        let mut paths = vec![parts.uri.path().to_owned()];
        for value in parts.headers.get_all(DESTINATION) {
            let invalid =
                || NetworkRefusal::new("the header Destination names no path of the host");
            let second = Uri::try_from(value.as_bytes()).map_err(|_| invalid())?;
            let is_here = second.authority().is_none_or(|it| self.is_named(it, host))
                && second.scheme().is_none_or(|scheme| *scheme == self.scheme());
            if !is_here {
                return Err(invalid());
            }
            paths.push(second.path().to_owned());
        }
        Ok(Readings { methods, paths })
    }

    /// Returns true if an authority is the host `name` on this port, without a user.
    fn is_named(&self, authority: &Authority, name: &str) -> bool {
        let port = authority.port_u16().unwrap_or(self.default_port());
        let is_plain = !authority.as_str().contains('@');
        // Spelt in full: no odd port text, no brackets.
        let text = authority.as_str();
        let is_spelt = text.len() == authority.host().len() || authority.port_u16().is_some();
        is_plain && is_spelt && port == self.port && authority.host().eq_ignore_ascii_case(name)
    }

    /// Judges a request and returns the head to send over `version`, with the secret if the rule
    /// has one.
    pub(super) fn judge(
        &self,
        mut parts: Parts,
        cell: &CellSeed,
        version: Version,
    ) -> Result<Outgoing, NetworkRefusal> {
        let host = self.host(&parts)?.to_owned();
        check_method(&parts)?;
        check_overrides(&parts.headers)?;
        let readings = self.readings(&parts, &host)?;
        let rule = granting(self.rules_of(&host), &readings)?;
        let injection = rule.injection.as_ref().filter(|_| self.is_verified);
        let has_secret = match injection {
            Some(injection) => injection.put(&mut parts.headers, &cell.seed, &cell.marks)?,
            None => false,
        };
        check_placeholders(&parts, cell)?;
        let takes_trailers = parts.headers.get_all(header::TE).iter().any(|it| it == "trailers");
        let mut headers = end_to_end(parts.headers);
        for name in [header::HOST, header::CONTENT_LENGTH, header::EXPECT] {
            headers.remove(name);
        }
        headers.remove("http2-settings");
        if self.has_secrets() {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if has_secret {
            // Ranges of an answer could each hold a part of the secret.
            headers.remove(header::RANGE);
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = format!("{host}{}", self.port_text());
        let uri = target(&self.scheme(), &authority, path, version)?;
        if version == Version::HTTP_2 {
            // gRPC needs them.
            takes_trailers
                .then(|| headers.insert(header::TE, HeaderValue::from_static("trailers")));
        } else {
            let host = HeaderValue::try_from(authority);
            headers.insert(
                header::HOST,
                host.map_err(|_| NetworkRefusal::new("the name is no host"))?,
            );
        }
        Ok(Outgoing { method: parts.method, uri, headers })
    }
}

/// The head of the request to send.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Outgoing {
    /// Makes the request from this head and a body.
    pub(super) fn with<B>(self, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        request
    }
}

/// Builds the target: absolute for HTTP/2, which turns it into pseudo-headers, otherwise the path.
fn target(
    scheme: &Scheme,
    authority: &str,
    path: &str,
    version: Version,
) -> Result<Uri, NetworkRefusal> {
    let uri = Uri::builder().path_and_query(path);
    let uri = match version == Version::HTTP_2 {
        true => uri.scheme(scheme.clone()).authority(authority),
        false => uri,
    };
    uri.build().map_err(|_| NetworkRefusal::new("the URL cannot be written"))
}

/// Refuses methods and upgrades that would make the connection a tunnel, and TRACE, which returns
/// the request's headers.
fn check_method(parts: &Parts) -> Result<(), NetworkRefusal> {
    if parts.method == Method::CONNECT {
        return Err(NetworkRefusal::new("CONNECT is never allowed where requests are read"));
    }
    if parts.method == Method::TRACE {
        return Err(NetworkRefusal::new("TRACE is never allowed: it returns credentials"));
    }
    let upgrades = parts.headers.get_all(header::UPGRADE).iter();
    // Clients offer h2c to any server, and a server may ignore it.
    let is_other =
        |value: &HeaderValue| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"h2c");
    if upgrades.into_iter().any(is_other) {
        return Err(NetworkRefusal::new(
            "an upgrade, as of WebSocket, is never allowed where requests are read",
        ));
    }
    Ok(())
}

/// Returns a path as it may be shown: other bytes than printable ASCII are encoded, as some
/// characters reverse the text around them.
fn plain(path: &str) -> impl Iterator<Item = char> {
    let encoded = |byte: u8| match byte {
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    path.bytes().map(encoded).flat_map(|text| text.chars().collect::<Vec<_>>())
}

/// Spells a header or parameter name in lower-case letters and digits only. Some servers treat all
/// other bytes alike: `X.HTTP_Method-Override`.
fn folded(name: &[u8]) -> String {
    let kept = name.iter().filter(|byte| byte.is_ascii_alphanumeric());
    kept.map(|byte| char::from(byte.to_ascii_lowercase())).collect()
}

/// Refuses headers that could make a server take the request for one of another target.
fn check_overrides(headers: &HeaderMap) -> Result<(), NetworkRefusal> {
    let overrides =
        |name: &&HeaderName| TARGET_HEADERS.contains(&folded(name.as_str().as_bytes()).as_str());
    match headers.keys().find(overrides) {
        Some(name) => {
            Err(NetworkRefusal::new(format!("the header {name} could name another target")))
        }
        None => Ok(()),
    }
}

/// Returns the methods in capital letters that headers and the query put in place of the request's.
fn overriding(parts: &Parts) -> Vec<String> {
    let mut methods = Vec::new();
    for (name, value) in &parts.headers {
        if METHOD_HEADERS.contains(&folded(name.as_str().as_bytes()).as_str()) {
            methods.extend(value.as_bytes().split(|byte| *byte == b',').map(method));
        }
    }
    for pair in parts.uri.query().unwrap_or_default().split(['&', ';']) {
        if let Some((name, value)) = pair.split_once('=') {
            methods.extend(by_parameter(name, value));
        }
    }
    methods
}

/// Returns the method that a query parameter names, if it is one of [`METHOD_PARAMETERS`].
fn by_parameter(name: &str, value: &str) -> Option<String> {
    // Decoded twice: a proxy before the server may decode it once more.
    let name = percent_decoded(percent_decoded(name));
    // PHP ends a name at a zero byte, and takes `[` for the beginning of an index.
    let end =
        name.iter().enumerate().position(|(at, byte)| *byte == 0 || (*byte == b'[' && at > 0));
    let name = name.get(..end.unwrap_or(name.len())).unwrap_or_default();
    if !METHOD_PARAMETERS.contains(&folded(name).as_str()) {
        return None;
    }
    let value = percent_decoded(percent_decoded(value.replace('+', " ")));
    let method = method(&value);
    let is_bare = name.trim_ascii().eq_ignore_ascii_case(b"method");
    (!is_bare || METHODS.contains(&method.as_str())).then_some(method)
}

/// Returns a method in the form in which servers compare it, with case ignored.
fn method(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim().to_ascii_uppercase()
}

/// Refuses a request with a placeholder in its target or headers. The placeholder of the rule's
/// secret has been replaced by now.
fn check_placeholders(parts: &Parts, cell: &CellSeed) -> Result<(), NetworkRefusal> {
    let target = parts.uri.to_string();
    if cell.marks.are_in(target.as_bytes()) || cell.marks.are_in(&percent_decoded(&target)) {
        return Err(misplaced("the URL"));
    }
    check_fields(&parts.headers, cell)
}

/// Refuses headers or trailers that hold a placeholder.
pub(super) fn check_fields(fields: &HeaderMap, cell: &CellSeed) -> Result<(), NetworkRefusal> {
    let holds = |name: &HeaderName, value: &HeaderValue| {
        let texts = [name.as_str().as_bytes(), value.as_bytes()];
        texts.iter().any(|text| cell.marks.are_in(text))
            || cell.marks.are_in(&percent_decoded(value))
    };
    match fields.iter().find(|(name, value)| holds(name, value)) {
        Some(_) => Err(misplaced("a header")),
        None => Ok(()),
    }
}

/// Makes the refusal of a placeholder where no secret is put in.
pub(super) fn misplaced(place: &str) -> NetworkRefusal {
    NetworkRefusal::new(format!(
        "{place} holds the placeholder of a secret, which only its rule's header may hold, over verified TLS"
    ))
}

/// Decodes percent-encoded bytes and keeps the rest.
fn percent_decoded(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.as_ref().len());
    let mut rest = text.as_ref();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let byte = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    decoded
}

/// Removes hop-by-hop headers: the known ones, and those that `Connection` names.
pub(super) fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    let connection = headers.get_all(header::CONNECTION).iter();
    let named = connection.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let named: Vec<_> =
        named.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
    headers
}
