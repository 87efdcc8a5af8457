//! The requests that a rule grants, and why others are refused.

use model::egress::{EgressRule, PathPattern, RequestPath};

use super::secrets::{Injection, SecretValue};

/// Characters of a path in a denial.
const SHOWN: usize = 200;

/// The reason for which a request is answered by the gateway and not by its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// The keys that would allow it; nothing where none can.
    pub(crate) grant: Option<String>,
}

impl Refusal {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), grant: None }
    }
}

/// A rule of a profile, ready to judge requests.
#[derive(Debug, Clone)]
pub struct RequestRule {
    id: String,
    /// Methods with paths that are granted; nothing stands for all.
    granted: Option<Vec<(Vec<String>, Vec<PathPattern>)>>,
    pub(super) injection: Option<Injection>,
}

impl RequestRule {
    /// Prepares a rule; `secret` is the value of the secret that it uses.
    ///
    /// # Errors
    /// When a path is no glob, or a header no name of one.
    pub fn new(rule: &EgressRule, secret: Option<SecretValue>) -> Result<Self, String> {
        let mut granted = Vec::new();
        for http in &rule.http {
            let globs = http.paths.iter().map(|path| PathPattern::parse(path));
            granted.push((http.methods.clone(), globs.collect::<Result<Vec<_>, _>>()?));
        }
        let injection = match (&rule.secret, secret) {
            (Some(place), Some(value)) => {
                let injection = Injection::new(place, value);
                Some(
                    injection
                        .ok_or_else(|| format!("`{}` is no name of a header", place.header))?,
                )
            }
            (Some(place), None) => return Err(format!("there is no secret `{}`", place.name)),
            (None, _) => None,
        };
        let granted = (!granted.is_empty()).then_some(granted);
        Ok(Self { id: rule.id.clone(), granted, injection })
    }

    /// Judges a method with a path.
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

/// A rule, with the names of it for which the cell was given the address of a connection.
#[derive(Debug, Clone)]
pub struct PinnedRule {
    pub rule: RequestRule,
    /// In lower case.
    pub names: Vec<String>,
}

/// The ways in which a server may read a request: by each of these methods, for each of these paths. The first of each is
/// what its first line says.
#[derive(Debug)]
pub(super) struct Readings {
    pub(super) methods: Vec<String>,
    pub(super) paths: Vec<String>,
}

/// Returns the first rule that grants a request in each of its readings. Two rules together do not grant one: the secret of
/// the first would be sent with what only the second grants.
pub(super) fn granting<'a>(
    rules: impl IntoIterator<Item = &'a RequestRule>,
    readings: &Readings,
) -> Result<&'a RequestRule, Refusal> {
    let paths = readings.paths.iter().map(|path| RequestPath::parse(path));
    let paths = paths.collect::<Result<Vec<_>, _>>().map_err(Refusal::new)?;
    let mut refused = None;
    for rule in rules {
        match readings.judged_by(rule, &paths) {
            Ok(()) => return Ok(rule),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    let why = refused.unwrap_or_else(|| "no rule".to_owned());
    Err(Refusal { why, grant: readings.grant() })
}

impl Readings {
    /// Judges every reading by one rule.
    fn judged_by(&self, rule: &RequestRule, paths: &[RequestPath]) -> Result<(), String> {
        for (at, method) in self.methods.iter().enumerate() {
            for path in paths {
                rule.judge(method, path).map_err(|why| match at {
                    0 => why,
                    _ if is_plain(method) => format!("{why}; a server may read it as {method}"),
                    _ => format!("{why}; a header or the query names another method"),
                })?;
            }
        }
        Ok(())
    }

    /// Returns the keys of a rule that would grant them. A glob is of a decoded path, so that an encoded one is not to be
    /// copied. Nor is one with a star, which would grant more than the request: its path is the cell's choice, as is the
    /// text of a method.
    fn grant(&self) -> Option<String> {
        let mut methods = self.methods.clone();
        methods.sort();
        methods.dedup();
        let is_fit = |path: &String| !path.contains(['%', ';', '*']);
        if !methods.iter().all(|method| is_plain(method)) || !self.paths.iter().all(is_fit) {
            return None;
        }
        let paths: Vec<String> =
            self.paths.iter().map(|path| path.chars().take(SHOWN).collect()).collect();
        let listed = |words: &[String]| words.join("\", \"");
        let (methods, paths) = (listed(&methods), listed(&paths));
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
    ) -> Result<&'a RequestRule, Refusal> {
        granted(rules, &[method], &[path])
    }

    fn granted<'a>(
        rules: &'a [RequestRule],
        methods: &[&str],
        paths: &[&str],
    ) -> Result<&'a RequestRule, Refusal> {
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
        assert_eq!(refusal.why, "rule read takes GET; a server may read it as DELETE");
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
        // A later rule that has all of it grants it, whatever those before it have.
        let rules =
            [rule("read", &[(&["GET"], &["/**"])]), rule("both", &[(&["GET", "PUT"], &["/**"])])];
        assert_eq!(granted(&rules, &["GET", "PUT"], &["/a"]).map(|it| it.id.as_str()), Ok("both"));
        // What a cell put there is not offered for copying.
        let refusal =
            granted(&rules, &["GET", "X\"], PATHS = [\"/**"], &["/a"]).expect_err("refused");
        assert_eq!((refusal.grant, refusal.why.contains("PATHS")), (None, false));
    }

    #[test]
    fn a_request_needs_a_rule_with_its_method_and_its_path() {
        let pypi = [rule("pypi", &[(&["GET", "HEAD"], &["/simple/**", "/packages/**"])])];
        assert!(granting(&pypi, "GET", "/simple/x/").is_ok());
        let refusal = granting(&pypi, "POST", "/legacy/").expect_err("refused");
        assert_eq!(refusal.why, "rule pypi takes GET, HEAD");
        assert_eq!(
            refusal.grant.as_deref(),
            Some(r#"http = [{ methods = ["POST"], paths = ["/legacy/"] }]"#)
        );
        let refusal = granting(&pypi, "GET", "/legacy/").expect_err("refused");
        assert_eq!(refusal.why, "rule pypi takes GET for other paths");
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
        // Another rule for the same host adds to it, but no rule takes a path that is ambiguous.
        assert!(granting(&clone, "POST", "/o/r/git-receive-pack").is_ok());
        assert!(granting(&clone, "GET", "/a/%2e%2e/b").is_err());
        assert!(granting(&[], "GET", "/").is_err());
        let refusal = granting(&pypi, "POST", "/legacy/").expect_err("refused");
        assert!(!refusal.why.contains("may read"), "{refusal:?}");
    }
}
