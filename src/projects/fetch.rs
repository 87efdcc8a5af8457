//! Downloads for a project: an address that a script or a client asks for, taken apart, and the text that a shell runs
//! in a cell which reaches the host of that address alone.
//!
//! Whether the operator grants the host is not decided here, and a wrong reading of an address gains nothing: the
//! gateway holds the cell to the host and the port that were read.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::launch::ScriptLaunch;
use crate::output::{INTERNAL, INVALID, ScriptEnd, ScriptError, ScriptOutput};
use crate::settings::FetchBounds;
use crate::stream::StreamLimits;

/// Length of the longest address in bytes: a request is one line of a pipe.
const ADDRESS_BYTES: usize = 2048;
/// Length of the longest name of a branch, tag or commit, and of the longest path in a repository.
const REFERENCE_BYTES: usize = 200;
const PATH_BYTES: usize = 1024;
/// Seconds that a cell has beyond those of the download.
const GRACE: u64 = 3;
/// Characters of what a program says that are passed on.
const SAID: usize = 300;

/// One download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// Name of the host in lower case.
    pub host: String,
    pub port: u16,
    url: String,
    /// Branch, tag or commit, and the path of a file, for a repository.
    git: Option<(String, String)>,
    seconds: u64,
    bytes: u64,
    file_bytes: u64,
    agent: String,
}

/// Kind of a failure, by the words of the framework.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchFault {
    InvalidUrl,
    InvalidParams,
    /// The operator grants no such host, or the gateway refused its address.
    HostBlocked,
    Network,
    TooLong,
    NotFound,
    Redirect,
}

/// A download that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FetchError {
    pub fault: FetchFault,
    pub message: String,
    /// Place that a server sends to.
    pub location: Option<String>,
}

impl FetchFault {
    /// Returns the word of the framework.
    fn name(self) -> &'static str {
        match self {
            Self::InvalidUrl => "invalid_url",
            Self::InvalidParams => "invalid_params",
            Self::HostBlocked => "host_blocked",
            Self::Network | Self::NotFound => "network_error",
            Self::TooLong => "size_exceeded",
            Self::Redirect => "redirect",
        }
    }
}

impl FetchError {
    pub fn new(fault: FetchFault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), location: None }
    }

    /// Returns the reason as a script reads it.
    pub fn to_value(&self) -> Value {
        let mut error = json!({ "type": self.fault.name(), "message": self.message });
        if let (Some(location), Some(fields)) = (&self.location, error.as_object_mut()) {
            fields.insert("location".to_owned(), json!(location));
        }
        error
    }
}

impl From<FetchError> for ScriptError {
    /// Makes the error of a resource that was not read.
    fn from(error: FetchError) -> Self {
        let FetchError { fault, message, location } = error;
        let (code, message) = match fault {
            FetchFault::InvalidUrl | FetchFault::InvalidParams => {
                (INVALID, format!("Invalid resource URI: {message}"))
            }
            FetchFault::HostBlocked => (INVALID, format!("Resource is not granted: {message}")),
            FetchFault::NotFound => (-32002, "Resource not found".to_owned()),
            FetchFault::TooLong => (INTERNAL, format!("Resource is too large: {message}")),
            FetchFault::Network | FetchFault::Redirect => {
                (INTERNAL, format!("Resource could not be fetched: {message}"))
            }
        };
        Self { code, message, data: location.map(|location| json!({ "location": location })) }
    }
}

impl FetchRequest {
    /// Script for bash that fetches; its variables say what.
    pub const SCRIPT: &str = include_str!("sdk/fetch.sh");

    /// Reads the address of a resource: `https://HOST/PATH`, or `git+https://HOST/REPOSITORY#REF:PATH`.
    ///
    /// # Errors
    /// An address that is no such one.
    pub fn of(uri: &str, bounds: &FetchBounds) -> Result<Self, FetchError> {
        let bad = |why: &str| Err(FetchError::new(FetchFault::InvalidUrl, why));
        let (url, git) = match uri.strip_prefix("git+") {
            None => (uri.split('#').next().unwrap_or_default(), None),
            Some(rest) => match rest.split_once('#') {
                Some((url, fragment)) => (url, Some(place(fragment)?)),
                None => return bad("a git address is git+https://HOST/REPOSITORY#REF:PATH"),
            },
        };
        if url.len() > ADDRESS_BYTES {
            return bad("the address is longer than 2K");
        }
        let is_plain = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}".contains(c);
        if !url.chars().all(is_plain) {
            return bad("the address has characters that no address has; write them as %XX");
        }
        let Some(rest) = url.strip_prefix("https://") else {
            return bad("the address does not begin with https://");
        };
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0)),
            None => (authority, Some(443)),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let (true, Some(port)) = (!host.is_empty() && host.chars().all(is_name), port) else {
            return bad(
                "the address names no host, and perhaps a port, and nothing else before its path",
            );
        };
        let (seconds, bytes, deny) = match git {
            None => (bounds.https_seconds, bounds.https_bytes, &bounds.https_deny),
            Some(_) => (bounds.git_seconds, bounds.git_bytes, &bounds.git_deny),
        };
        let host = host.to_ascii_lowercase();
        if is_listed(deny, &host) {
            let why = format!("`{host}` is refused by the operator");
            return Err(FetchError::new(FetchFault::HostBlocked, why));
        }
        let url = url.to_owned();
        let agent = bounds.agent.clone();
        let file_bytes = bounds.file_bytes;
        Ok(Self { host, port, url, git, seconds, bytes, file_bytes, agent })
    }

    /// Reads the request of a script, which asks for less than the bounds or for as much. Returns the name by which it
    /// wants the answer too.
    ///
    /// # Errors
    /// A request without a name for its answer, so that no answer can be given.
    pub fn of_script(
        fields: &Map<String, Value>,
        bounds: &FetchBounds,
    ) -> Option<(String, Result<Self, FetchError>)> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let id = fields.get("id")?.as_str()?;
        let id = (!id.is_empty() && id.len() <= 64 && id.chars().all(is_word)).then_some(id)?;
        Some((id.to_owned(), Self::asked(fields, bounds)))
    }

    fn asked(fields: &Map<String, Value>, bounds: &FetchBounds) -> Result<Self, FetchError> {
        let url = fields.get("url").and_then(Value::as_str).unwrap_or_default();
        if url.starts_with("git+") {
            return Err(FetchError::new(
                FetchFault::InvalidUrl,
                "the address does not begin with https://",
            ));
        }
        let mut request = Self::of(url, bounds)?;
        let number = |key: &str| fields.get(key).and_then(Value::as_u64).filter(|it| *it > 0);
        request.seconds = number("seconds").unwrap_or(request.seconds).min(bounds.https_seconds);
        request.bytes = number("bytes").unwrap_or(request.bytes).min(bounds.https_bytes);
        if let Some(agent) = fields.get("agent").and_then(Value::as_str) {
            let is_plain = !agent.is_empty() && agent.len() <= 256;
            if !is_plain || agent.chars().any(char::is_control) {
                let why = "--user-agent is a line of at most 256 bytes";
                return Err(FetchError::new(FetchFault::InvalidParams, why));
            }
            request.agent = agent.to_owned();
        }
        let list = |key: &str| {
            let list = fields.get(key).and_then(Value::as_array).into_iter().flatten();
            list.filter_map(|one| one.as_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        let allow = list("allow");
        let deny = list("deny");
        let is_out = !allow.is_empty() && !is_listed(&allow, &request.host);
        if is_out || is_listed(&deny, &request.host) {
            let why = format!("the script allows itself no download from `{}`", request.host);
            return Err(FetchError::new(FetchFault::HostBlocked, why));
        }
        Ok(request)
    }

    /// Returns the place as rules have it.
    pub fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Makes the call of a cell for it; nothing of the project is in it.
    pub fn launch(&self, mark: String) -> ScriptLaunch {
        let (reference, path) = self.git.clone().unwrap_or_default();
        let how = if self.git.is_some() { "git" } else { "https" };
        let env = BTreeMap::from(
            [
                ("COFFERDAM_MARK", mark.clone()),
                ("COFFERDAM_HOW", how.to_owned()),
                ("COFFERDAM_URL", self.url.clone()),
                ("COFFERDAM_REFERENCE", reference),
                ("COFFERDAM_PATH", path),
                ("COFFERDAM_SECONDS", self.seconds.to_string()),
                ("COFFERDAM_BYTES", self.bytes.to_string()),
                ("COFFERDAM_FILE_BYTES", self.file_bytes.to_string()),
                ("COFFERDAM_AGENT", self.agent.clone()),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        let max = if self.git.is_some() { self.file_bytes } else { self.bytes };
        let output = usize::try_from(max).unwrap_or(usize::MAX);
        let limits = StreamLimits { output, ..StreamLimits::default() };
        ScriptLaunch::alone(env, self.seconds + GRACE, mark, limits)
    }

    /// Takes what was fetched out of the output of its cell. `refused` says what the gateway refused.
    ///
    /// # Errors
    /// The reason why there is nothing.
    pub fn fetched(
        &self,
        launch: &ScriptLaunch,
        output: &ScriptOutput,
        refused: Option<&str>,
    ) -> Result<Vec<u8>, FetchError> {
        let failed = |fault, message: String| Err(FetchError::new(fault, message));
        let place = self.place();
        match &output.end {
            ScriptEnd::Exited => {}
            ScriptEnd::TimedOut | ScriptEnd::Idle => {
                let seconds = self.seconds;
                return failed(FetchFault::Network, format!("{place} was not done in {seconds} s"));
            }
            ScriptEnd::Cancelled => {
                return failed(FetchFault::Network, "it was cancelled".to_owned());
            }
            ScriptEnd::Stopped(how) => {
                return failed(FetchFault::Network, format!("the cell of the download: {how}"));
            }
        }
        if let Some(why) = refused {
            return failed(FetchFault::HostBlocked, format!("{place} was refused: {why}"));
        }
        let Some(report) = &output.report else {
            return failed(FetchFault::TooLong, format!("{place} sends too much"));
        };
        let Some(report) = launch.report(report) else {
            return failed(FetchFault::Network, "the download did not come to its end".to_owned());
        };
        let said = String::from_utf8_lossy(report.error);
        let said: String = said.trim().chars().filter(|c| !c.is_control()).take(SAID).collect();
        let max = if self.git.is_some() { self.file_bytes } else { self.bytes };
        match report.exit_code {
            0 => Ok(report.output.to_vec()),
            3 => failed(FetchFault::NotFound, said),
            6 if self.git.is_some() => {
                let why = format!(
                    "{place}: the repository has more than {} bytes, or the file more than {max}",
                    self.bytes
                );
                failed(FetchFault::TooLong, why)
            }
            6 => failed(FetchFault::TooLong, format!("{place} sends more than {max} bytes")),
            7 => Err(FetchError {
                location: Some(said).filter(|location| !location.is_empty()),
                ..FetchError::new(
                    FetchFault::Redirect,
                    format!("{place} sends to another address, and no redirection is followed"),
                )
            }),
            _ => failed(FetchFault::Network, format!("{place}: {said}")),
        }
    }
}

/// Returns true if a list of hosts has this one: by its name, or by `*.` before the end of its name. A dot at the end
/// makes no difference.
fn is_listed(hosts: &[String], host: &str) -> bool {
    let plain = |name: &str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let host = plain(host);
    let is_it = |one: &String| match plain(one).strip_prefix('*') {
        Some(end) => host.len() > end.len() && host.ends_with(end),
        None => host == plain(one),
    };
    hosts.iter().any(is_it)
}

/// Reads `REF:PATH`, or the path alone.
fn place(fragment: &str) -> Result<(String, String), FetchError> {
    let (reference, path) = fragment.split_once(':').unwrap_or(("HEAD", fragment));
    let path = path.strip_prefix('/').unwrap_or(path);
    let is_word = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    // A word with a dash first would be a flag, and two dots are a range.
    let is_reference = reference.starts_with(|c: char| c.is_ascii_alphanumeric())
        && reference.len() <= REFERENCE_BYTES
        && reference.chars().all(is_word)
        && !reference.contains("..");
    let is_path = !path.is_empty()
        && path.len() <= PATH_BYTES
        && !path.chars().any(char::is_control)
        && path.split('/').all(|name| !["", ".", ".."].contains(&name));
    match is_reference && is_path {
        true => Ok((reference.to_owned(), path.to_owned())),
        false => {
            let why =
                "a git address ends with #REF:PATH: a branch, tag or commit, and a file of it";
            Err(FetchError::new(FetchFault::InvalidUrl, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &str) -> Result<FetchRequest, FetchError> {
        FetchRequest::of(uri, &FetchBounds::default())
    }

    #[test]
    fn an_address_names_its_host_and_port_in_one_reading() {
        for (uri, place) in [
            ("https://example.org", "example.org:443"),
            ("https://EXAMPLE.org/a?b=c#d", "example.org:443"),
            ("https://a-b.example.org:8443/[x]", "a-b.example.org:8443"),
            ("https://example.org?x=https://other.org", "example.org:443"),
        ] {
            assert_eq!(read(uri).map(|it| it.place()), Ok(place.to_owned()), "{uri}");
        }
        for uri in [
            "http://example.org/",
            "HTTPS://example.org/",
            "https://",
            "https:///etc/passwd",
            "https://a@b.org/",
            "https://a:b@c.org/",
            "https://example.org:0/",
            "https://example.org:65536/",
            "https://example.org:/",
            "https://example.org\\@other.org/",
            "https://[::1]/",
            "https://ex ample.org/",
            "https://example.org/\n",
            "https://example.org/\u{e9}",
            "git+https://example.org/r",
            "git+http://example.org/r#main:a",
            "file:///etc/passwd",
        ] {
            let fault = read(uri).map_err(|error| error.fault);
            assert_eq!(fault, Err(FetchFault::InvalidUrl), "{uri}");
        }
        read(&format!("https://e.org/{}", "a".repeat(2048))).expect_err("an address too long");
    }

    #[test]
    fn a_git_address_has_a_reference_and_a_path_that_are_no_flags() {
        let of = |uri: &str| read(uri).map(|it| it.git);
        let place = |reference: &str, path: &str| Ok(Some((reference.into(), path.into())));
        assert_eq!(of("git+https://e.org/r.git#v1.0:/a/b c"), place("v1.0", "a/b c"));
        assert_eq!(of("git+https://e.org/r#README.md"), place("HEAD", "README.md"));
        for fragment in [
            "",
            "main:",
            ":a",
            "-x:a",
            "--upload-pack=x:a",
            "a..b:c",
            "a b:c",
            "main:../a",
            "main:a//b",
            "m:\u{1}",
        ] {
            assert!(of(&format!("git+https://e.org/r#{fragment}")).is_err(), "{fragment}");
        }
    }

    #[test]
    fn a_script_asks_for_less_than_the_operator_allows_and_never_for_more() {
        let bounds = FetchBounds { https_bytes: 100, ..FetchBounds::default() };
        let of = |fields: Value| {
            let fields = fields.as_object().cloned().unwrap_or_default();
            FetchRequest::of_script(&fields, &bounds)
        };
        let asked = |more: Value| {
            let mut fields = json!({"id": "1-a", "url": "https://e.org/"});
            if let (Some(fields), Value::Object(more)) = (fields.as_object_mut(), more) {
                fields.extend(more);
            }
            of(fields).map(|(_, request)| request)
        };
        let request = asked(json!({"seconds": 600, "bytes": 1000})).and_then(Result::ok);
        assert_eq!(request.map(|it| (it.seconds, it.bytes)), Some((15, 100)));
        let request = asked(json!({"seconds": 5, "bytes": 10})).and_then(Result::ok);
        assert_eq!(request.map(|it| (it.seconds, it.bytes)), Some((5, 10)));
        let fault = |more: Value| asked(more).and_then(Result::err).map(|it| it.fault);
        assert_eq!(fault(json!({"allow": ["E.org"]})), None);
        assert_eq!(fault(json!({"allow": ["f.org"]})), Some(FetchFault::HostBlocked));
        assert_eq!(fault(json!({"deny": ["e.org"]})), Some(FetchFault::HostBlocked));
        assert_eq!(fault(json!({"deny": ["*.e.org"]})), None);
        let below = |deny: &str| json!({"deny": [deny], "url": "https://a.b.e.org./"});
        assert_eq!(fault(below("*.e.org")), Some(FetchFault::HostBlocked));
        assert_eq!(fault(below("a.b.e.org")), Some(FetchFault::HostBlocked));
        assert_eq!(fault(below("b.e.org")), None);
        assert_eq!(fault(json!({"agent": "a\nHost: b"})), Some(FetchFault::InvalidParams));
        assert_eq!(fault(json!({"url": "git+https://e.org/r#a"})), Some(FetchFault::InvalidUrl));
        for id in ["", "a b", "../x", "a\n"] {
            assert_eq!(of(json!({"id": id, "url": "https://e.org/"})), None, "{id}");
        }
        assert_eq!(of(json!({"url": "https://e.org/"})), None);
    }

    #[test]
    fn the_end_of_a_download_is_what_the_framework_calls_it() {
        let request = read("https://e.org/").expect("an address");
        let launch = request.launch("m".to_owned());
        let answer = |report: &str, refused: Option<&str>| {
            let report = Some(report.as_bytes().to_vec());
            let output = ScriptOutput {
                end: ScriptEnd::Exited,
                report,
                stderr: Vec::new(),
                stderr_bytes: 0,
            };
            request.fetched(&launch, &output, refused).map_err(|error| error.to_value())
        };
        assert_eq!(answer("m 0 0\n\nm\nbody\n", None), Ok(b"body\n".to_vec()));
        let kind = |code: u8, refused| {
            let error =
                answer(&format!("m {code} 4\nsaid\nm\nbody"), refused).expect_err("an error");
            let of = |name: &str| error.get(name).cloned().unwrap_or_default();
            (of("type"), of("location"))
        };
        assert_eq!(kind(7, None), (json!("redirect"), json!("said")));
        assert_eq!(kind(6, None).0, "size_exceeded");
        assert_eq!(kind(5, None).0, "network_error");
        assert_eq!(kind(0, Some("no rule")).0, "host_blocked");
    }
}
