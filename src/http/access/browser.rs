//! Refuses requests that a page made a browser send: by a name that DNS leads to this machine, or from another origin.
//!
//! A page that a user has open can send requests to any port of the machine. It can neither choose the `Host` of its
//! request nor leave out the `Origin` of a request that changes something, so both are compared with the names of this
//! server.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri};

use crate::respond::Refusal;

/// Where this server can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerReach {
    /// This machine's own addresses.
    Loopback,
    /// Other machines too.
    Network,
    /// A Unix socket. A page can connect to it only where a port is forwarded to it.
    Socket,
}

/// Names and origins that requests may have.
#[derive(Debug, Clone)]
pub struct ServedNames {
    pub reach: ListenerReach,
    /// Further names of this server, in lower case and without a port.
    pub hosts: Vec<String>,
    /// Origins whose pages may use it: `https://app.example`.
    pub origins: Vec<String>,
}

/// Origin of a request that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestOrigin {
    /// No page, or a page of this server.
    Own,
    /// A page of a listed origin; a header of the answer allows it to read the answer.
    Listed(String),
}

impl ServedNames {
    /// Checks that a request was meant for this server.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<RequestOrigin, Refusal> {
        let host = host(uri, headers)?;
        if !self.is_ours(host.host()) {
            let message = "this server has no such name: use its address, or `[http] hosts`";
            return Err(forbidden(message));
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = match (origins.next(), origins.next()) {
            (None, _) => None,
            (Some(origin), None) => Some(origin.to_str().map_err(|_| foreign())?),
            (Some(_), Some(_)) => return Err(foreign()),
        };
        match origin {
            Some(origin) if self.origins.iter().any(|listed| listed == origin) => {
                Ok(RequestOrigin::Listed(origin.to_owned()))
            }
            Some(origin) if is_same(origin, &host) => Ok(RequestOrigin::Own),
            Some(_) => Err(foreign()),
            // Browsers name the site that sends a request without an origin, such as one for an image.
            None => match headers.get("sec-fetch-site").map(|site| site.as_bytes()) {
                None | Some(b"none" | b"same-origin") => Ok(RequestOrigin::Own),
                Some(_) => Err(foreign()),
            },
        }
    }

    /// Returns true for a name of this server. A numeric address cannot be rebound by DNS.
    fn is_ours(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let address = host.parse::<IpAddr>();
        match (self.reach, address) {
            (ListenerReach::Socket | ListenerReach::Network, Ok(_)) => true,
            // Clients of sockets send any word. A page cannot use a name without a dot, which no DNS zone has.
            (ListenerReach::Socket, Err(_)) if !host.contains('.') => true,
            (ListenerReach::Loopback, Ok(address)) => address.is_loopback(),
            (_, Err(_)) => host == "localhost" || self.hosts.contains(&host),
        }
    }
}

fn host(uri: &Uri, headers: &HeaderMap) -> Result<Authority, Refusal> {
    let mut named = headers.get_all(HOST).iter();
    let bad = || Refusal::new(StatusCode::BAD_REQUEST, "bad_request", "one `Host` is needed");
    let (Some(host), None) = (named.next(), named.next()) else { return Err(bad()) };
    let host = Authority::try_from(host.as_bytes()).map_err(|_| bad())?;
    // The absolute form, for proxies, names a host twice.
    match uri.authority() {
        Some(authority) if *authority != host => Err(bad()),
        Some(_) | None if host.as_str().contains('@') => Err(bad()),
        Some(_) | None => Ok(host),
    }
}

/// Returns true if an origin is the server's own, by the name that it was asked under.
fn is_same(origin: &str, host: &Authority) -> bool {
    let origin_host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    origin_host.is_some_and(|origin| origin.eq_ignore_ascii_case(host.as_str()))
}

fn forbidden(message: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, "forbidden", message)
}

fn foreign() -> Refusal {
    forbidden("pages of this origin may not use this server: list it in `[http] origins`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(reach: ListenerReach) -> ServedNames {
        ServedNames {
            reach,
            hosts: vec!["shell.example".to_owned()],
            origins: vec!["https://app.example".to_owned()],
        }
    }

    fn checked(
        reach: ListenerReach,
        headers: &[(&'static str, &str)],
    ) -> Result<RequestOrigin, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a value"));
        }
        let uri = Uri::from_static("/mcp");
        names(reach).check(&uri, &map).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn names_of_this_server_alone_pass() {
        for host in
            ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.9.9.9", "[::1]:1", "shell.example"]
        {
            assert_eq!(
                checked(ListenerReach::Loopback, &[("host", host)]),
                Ok(RequestOrigin::Own),
                "{host}"
            );
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "localhost.evil.example",
            "0.0.0.0",
        ] {
            assert_eq!(checked(ListenerReach::Loopback, &[("host", host)]), Err(403), "{host}");
        }
        assert_eq!(
            checked(ListenerReach::Network, &[("host", "10.0.0.1:8443")]),
            Ok(RequestOrigin::Own)
        );
        assert_eq!(checked(ListenerReach::Network, &[("host", "evil.example")]), Err(403));
        for host in ["d", "localhost:8080", "shell.example", "[::1]", "127.0.0.1"] {
            assert_eq!(
                checked(ListenerReach::Socket, &[("host", host)]),
                Ok(RequestOrigin::Own),
                "{host}"
            );
        }
        for host in ["evil.example:8080", "evil.", "127.0.0.1.evil.example"] {
            assert_eq!(checked(ListenerReach::Socket, &[("host", host)]), Err(403), "{host}");
        }
        assert_eq!(checked(ListenerReach::Loopback, &[]), Err(400));
        let twice = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(checked(ListenerReach::Loopback, &twice), Err(400));
        assert_eq!(
            checked(ListenerReach::Loopback, &[("host", "evil.example@localhost")]),
            Err(400)
        );
    }

    #[test]
    fn pages_of_other_origins_do_not_pass() {
        let from = |origin| {
            checked(ListenerReach::Loopback, &[("host", "localhost:8080"), ("origin", origin)])
        };
        assert_eq!(from("http://localhost:8080"), Ok(RequestOrigin::Own));
        assert_eq!(
            from("https://app.example"),
            Ok(RequestOrigin::Listed("https://app.example".to_owned()))
        );
        for origin in [
            "http://localhost:3000",
            "http://evil.example",
            "null",
            "http://localhost:8080.evil.example",
            "",
            "https://app.example.evil.example",
        ] {
            assert_eq!(from(origin), Err(403), "{origin}");
        }
        let site = |site| {
            checked(ListenerReach::Loopback, &[("host", "localhost"), ("sec-fetch-site", site)])
        };
        assert_eq!(
            (site("none"), site("same-origin")),
            (Ok(RequestOrigin::Own), Ok(RequestOrigin::Own))
        );
        assert_eq!((site("cross-site"), site("same-site")), (Err(403), Err(403)));
    }
}
