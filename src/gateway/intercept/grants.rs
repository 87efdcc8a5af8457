//! Decides which requests a rule grants, and says why others are refused.

use model::egress::{EgressRule, PathPattern, RequestPath};

use super::secrets::{Injection, SecretValue};
use crate::refusal::NetworkRefusal;

/// Maximum number of characters of a path in a denial.
const MAX_SHOWN: usize = 200;

/// A rule of a profile, ready to judge requests.
#[derive(Debug, Clone)]
pub struct RequestRule {
    id: String,
    /// Granted methods with their paths; `None` grants everything.
    granted: Option<Vec<(Vec<String>, Vec<PathPattern>)>>,
    pub(super) injection: Option<Injection>,
}

impl RequestRule {
    /// Prepares a rule; `secret` is the value of the secret that it uses.
    ///
    /// # Errors
    /// If a path is not a valid glob, or a header name is invalid.
    pub fn new(rule: &EgressRule, secret: Option<SecretValue>) -> Result<Self, String> {
        let mut granted = Vec::new();
        for http in &rule.http {
            let globs = http.paths.iter().map(|path| PathPattern::parse(path));
            granted.push((http.methods.clone(), globs.collect::<Result<Vec<_>, _>>()?));
        }
        let injection =
            match (&rule.secret, secret) {
                (Some(secret_use), Some(value)) => {
                    let injection = Injection::new(secret_use, value);
                    Some(injection.ok_or_else(|| {
                        format!("`{}` is not a valid header name", secret_use.header)
                    })?)
                }
                (Some(secret_use), None) => {
                    return Err(format!("there is no secret `{}`", secret_use.name));
                }
                (None, _) => None,
            };
        let granted = (!granted.is_empty()).then_some(granted);
        Ok(Self { id: rule.id.clone(), granted, injection })
    }

    /// Judges one method with one path.
    fn judge(&self, method: &str, path: &RequestPath) -> Result<(), String> {
        let Some(granted) = &self.granted else { return Ok(()) };
        let with_method =
            || granted.iter().filter(|(methods, _)| methods.iter().any(|it| it == method));
        let patterns: Vec<_> = with_method().flat_map(|(_, patterns)| patterns).cloned().collect();
        if path.is_taken_by(&patterns) {
            return Ok(());
        }
        if with_method().next().is_some() {
            return Err(format!("rule {} takes {method} for other paths", self.id));
        }
        let mut methods: Vec<_> =
            granted.iter().flat_map(|(methods, _)| methods).map(String::as_str).collect();
        methods.dedup();
        Err(format!("rule {} takes {}", self.id, methods.join(", ")))
    }
}

/// A rule, with those of its names that the cell resolved to the address of a connection.
#[derive(Debug, Clone)]
pub struct PinnedRule {
    pub rule: RequestRule,
    /// In lower case.
    pub names: Vec<String>,
}

/// All the ways in which a server may read a request: any of these methods, on any of these paths.
/// The first of each is the one in the request line.
#[derive(Debug)]
pub(super) struct Readings {
    pub(super) methods: Vec<String>,
    pub(super) paths: Vec<String>,
}

/// Returns the first rule that grants a request in each of its readings. Two rules cannot grant it
/// together: the secret of the first would be sent with what only the second grants.
pub(super) fn granting<'a>(
    rules: impl IntoIterator<Item = &'a RequestRule>,
    readings: &Readings,
) -> Result<&'a RequestRule, NetworkRefusal> {
    let paths = readings.paths.iter().map(|path| RequestPath::parse(path));
    let paths = paths.collect::<Result<Vec<_>, _>>().map_err(NetworkRefusal::new)?;
    let mut refused = None;
    for rule in rules {
        match readings.judged_by(rule, &paths) {
            Ok(()) => return Ok(rule),
            Err(reason) => refused = refused.or(Some(reason)),
        }
    }
    let reason = refused.unwrap_or_else(|| "no rule".to_owned());
    Err(NetworkRefusal { reason, grant: readings.grant() })
}

impl Readings {
    /// Judges every reading by one rule.
    fn judged_by(&self, rule: &RequestRule, paths: &[RequestPath]) -> Result<(), String> {
        for (index, method) in self.methods.iter().enumerate() {
            for path in paths {
                rule.judge(method, path).map_err(|reason| match index {
                    0 => reason,
                    _ if is_plain(method) => format!("{reason}; a server may read it as {method}"),
                    _ => format!("{reason}; a header or the query names another method"),
                })?;
            }
        }
        Ok(())
    }

    /// Returns the keys of a rule that would grant the request. `None` for an encoded path, as
    /// globs match decoded paths, and for a path with a star, which would grant more than the
    /// request: the cell chose the path and the text of the method.
    fn grant(&self) -> Option<String> {
        let mut methods = self.methods.clone();
        methods.sort();
        methods.dedup();
        let is_fit = |path: &String| !path.contains(['%', ';', '*']);
        if !methods.iter().all(|method| is_plain(method)) || !self.paths.iter().all(is_fit) {
            return None;
        }
        let paths: Vec<String> =
            self.paths.iter().map(|path| path.chars().take(MAX_SHOWN).collect()).collect();
        let listed = |words: &[String]| words.join("\", \"");
        let methods = listed(&methods);
        let paths = listed(&paths);
        Some(format!("http = [{{ methods = [\"{methods}\"], paths = [\"{paths}\"] }}]"))
    }
}

/// Returns true for a method that may be shown as it is.
fn is_plain(method: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=20).contains(&method.len()) && method.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use model::egress::{HttpRule, Protocols};

    use super::*;

    fn rule(id: &str, http: &[(&[&str], &[&str])]) -> RequestRule {
        let words = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect();
        let http = http
            .iter()
            .map(|(methods, paths)| HttpRule { methods: words(methods), paths: words(paths) });
        let rule = EgressRule {
            id: id.into(),
            hosts: Vec::new(),
            nets: Vec::new(),
            ports: Vec::new(),
            protocols: Protocols::TCP,
            http: http.collect(),
            secret: None,
            why: String::new(),
        };
        RequestRule::new(&rule, None).expect("a rule")
    }

    /// Judges one method with one path.
    fn granting<'a>(
        rules: &'a [RequestRule],
        method: &str,
        path: &str,
    ) -> Result<&'a RequestRule, NetworkRefusal> {
        granted(rules, &[method], &[path])
    }

    fn granted<'a>(
        rules: &'a [RequestRule],
        methods: &[&str],
        paths: &[&str],
    ) -> Result<&'a RequestRule, NetworkRefusal> {
        let words = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect();
        super::granting(rules, &Readings { methods: words(methods), paths: words(paths) })
    }

    #[test]
    fn all_readings_of_a_request_need_one_and_the_same_rule() {
        let read = rule("read", &[(&["GET"], &["/**"])]);
        let anonymous = rule("anonymous", &[(&["DELETE"], &["/**"])]);
        let rules = [read, anonymous];
        for method in ["GET", "DELETE"] {
            assert!(granting(&rules, method, "/a").is_ok(), "{method}");
        }
        let refusal = granted(&rules, &["GET", "DELETE"], &["/a"]).expect_err("refused");
        assert_eq!(refusal.reason, "rule read takes GET; a server may read it as DELETE");
        assert_eq!(
            refusal.grant.as_deref(),
            Some(r#"http = [{ methods = ["DELETE", "GET"], paths = ["/a"] }]"#)
        );
        assert_eq!(
            granted(&rules, &["GET", "GET"], &["/a", "/b"]).map(|it| it.id.as_str()),
            Ok("read")
        );
        // A second path needs the same rule too.
        let rules =
            [rule("one", &[(&["COPY"], &["/one/**"])]), rule("two", &[(&["COPY"], &["/two/**"])])];
        assert!(granted(&rules, &["COPY"], &["/one/a", "/one/b"]).is_ok());
        assert!(granted(&rules, &["COPY"], &["/one/a", "/two/b"]).is_err());
        // A later rule that grants every reading suffices, whatever the rules before it grant.
        let rules =
            [rule("read", &[(&["GET"], &["/**"])]), rule("both", &[(&["GET", "PUT"], &["/**"])])];
        assert_eq!(granted(&rules, &["GET", "PUT"], &["/a"]).map(|it| it.id.as_str()), Ok("both"));
        // Text that the cell chose is not offered for copying.
        let refusal =
            granted(&rules, &["GET", "X\"], PATHS = [\"/**"], &["/a"]).expect_err("refused");
        assert_eq!((refusal.grant, refusal.reason.contains("PATHS")), (None, false));
    }

    #[test]
    fn a_request_needs_a_rule_with_its_method_and_its_path() {
        let pypi = [rule("pypi", &[(&["GET", "HEAD"], &["/simple/**", "/packages/**"])])];
        assert!(granting(&pypi, "GET", "/simple/x/").is_ok());
        let refusal = granting(&pypi, "POST", "/legacy/").expect_err("refused");
        assert_eq!(refusal.reason, "rule pypi takes GET, HEAD");
        assert_eq!(
            refusal.grant.as_deref(),
            Some(r#"http = [{ methods = ["POST"], paths = ["/legacy/"] }]"#)
        );
        let refusal = granting(&pypi, "GET", "/legacy/").expect_err("refused");
        assert_eq!(refusal.reason, "rule pypi takes GET for other paths");
        for path in ["/**", "/legacy/*", "/a%2fb"] {
            assert_eq!(granting(&pypi, "POST", path).expect_err("refused").grant, None, "{path}");
        }
        for method in ["get", "Get", "GETX", ""] {
            assert!(granting(&pypi, method, "/simple/x").is_err(), "{method}");
        }
        let clone = [
            rule("clone", &[(&["GET"], &["/**"]), (&["POST"], &["/*/*/git-upload-pack"])]),
            rule("any", &[]),
        ];
        assert!(granting(&clone[..1], "POST", "/o/r/git-upload-pack").is_ok());
        assert!(granting(&clone[..1], "POST", "/o/r/git-receive-pack").is_err());
        // Another rule for the same host adds to it, but no rule grants an ambiguous path.
        assert!(granting(&clone, "POST", "/o/r/git-receive-pack").is_ok());
        assert!(granting(&clone, "GET", "/a/%2e%2e/b").is_err());
        assert!(granting(&[], "GET", "/").is_err());
        let refusal = granting(&pypi, "POST", "/legacy/").expect_err("refused");
        assert!(!refusal.reason.contains("may read"), "{refusal:?}");
    }
}
