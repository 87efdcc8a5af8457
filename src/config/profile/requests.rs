//! The keys `http` and `secret` of an egress rule: allowed requests, and a credential that is added
//! to them.

use std::collections::BTreeMap;

use toml::Spanned;

use super::schema::{WrittenEgress, WrittenHttp, WrittenSecretUse};
use crate::document::{Document, Mistake};
use model::call::Env;
use model::egress::{EgressRule, HttpRule, NetworkClass, PathPattern, Protocols, SecretUse};
use model::profile::name::is_dashed_word;

/// Headers that hyper and the gateway write, or that would change the meaning of a request.
const NOT_FOR_SECRETS: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Parses the requests that a rule allows.
pub(super) fn http(document: &Document, written: &[WrittenHttp]) -> Result<Vec<HttpRule>, Mistake> {
    let rules = written.iter().map(|written| {
        let methods = written.methods.get_ref().iter().map(|text| method(document, text));
        let paths = written.paths.get_ref().iter().map(|text| path(document, text));
        let rule = HttpRule {
            methods: methods.collect::<Result<_, _>>()?,
            paths: paths.collect::<Result<_, _>>()?,
        };
        for (list, span, key) in [
            (&rule.methods, written.methods.span(), "methods"),
            (&rule.paths, written.paths.span(), "paths"),
        ] {
            if list.is_empty() {
                return Err(document.mistake(span, format!("`{key}` is empty")));
            }
        }
        Ok(rule)
    });
    rules.collect()
}

fn method(document: &Document, written: &Spanned<String>) -> Result<String, Mistake> {
    let text = written.get_ref();
    let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
    let is_token = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    let message = match text.as_str() {
        "CONNECT" | "TRACE" => format!("`{shown}` is never allowed where requests are read"),
        _ if !is_token || !(1..=20).contains(&text.len()) => {
            format!("`{shown}` is no method; write it in capitals, as in a request")
        }
        _ => return Ok(text.clone()),
    };
    Err(document.mistake(written.span(), message))
}

fn path(document: &Document, written: &Spanned<String>) -> Result<String, Mistake> {
    let text = written.get_ref();
    let pattern = PathPattern::parse(text);
    let hint = "`*` stands for one segment, `**` for any number, as in `/simple/**`";
    pattern.map_err(|fault| document.mistake(written.span(), fault).with_hint(hint))?;
    Ok(text.clone())
}

/// Parses the use of a secret.
pub(super) fn secret(
    document: &Document,
    written: &WrittenSecretUse,
) -> Result<SecretUse, Mistake> {
    let mistake = |at: &Spanned<String>, message: &str| Err(document.mistake(at.span(), message));
    let name = written.name.get_ref();
    if !is_dashed_word(name, 64) {
        return mistake(
            &written.name,
            "a secret's name is of lower-case letters, digits and dashes",
        );
    }
    let header = written.header.get_ref().to_ascii_lowercase();
    if !is_dashed_word(&header, 64) {
        return mistake(&written.header, "a header's name is of letters, digits and dashes");
    }
    if NOT_FOR_SECRETS.contains(&header.as_str()) {
        return mistake(
            &written.header,
            "no secret is put in this header, which the gateway writes",
        );
    }
    let env = written.env.get_ref();
    // Like a variable of `[env]`, the name must not change what programs load.
    Env::new(BTreeMap::from([(env.clone(), String::new())]))
        .map_err(|error| document.mistake(written.env.span(), error.to_string()))?;
    let form = *written.form.get_ref();
    Ok(SecretUse { name: name.clone(), header, form, env: env.clone() })
}

/// Checks that a rule with `http` or `secret` covers only connections whose requests can be read.
pub(super) fn check(
    document: &Document,
    written: &WrittenEgress,
    rule: &EgressRule,
) -> Result<(), Mistake> {
    let id = &rule.id;
    let (message, hint) = if rule.secret.is_some() && rule.http.is_empty() {
        let hint = "add `http = [{ methods = […], paths = […] }]`: the requests that may carry it";
        (format!("rule `{id}` has a secret for every request"), hint)
    } else if !rule.intercepts() {
        return Ok(());
    } else if rule.hosts.is_empty() || !rule.nets.is_empty() {
        let hint = "list `hosts` alone; a rule of its own may have the networks";
        (
            format!("rule `{id}` reads requests, which is for names: no address has a certificate"),
            hint,
        )
    } else if rule.protocols != Protocols::TCP {
        (format!("rule `{id}` reads requests, which is for `tcp` alone"), "take `protocols` out")
    } else {
        return Ok(());
    };
    Err(document.mistake(written.id.span(), message).with_hint(hint))
}

/// Checks that hosts whose requests are read cannot be reached in another way, and that no variable
/// gets two values.
pub(super) fn check_all(
    rules: &[EgressRule],
    class: NetworkClass,
) -> Result<(), (String, &'static str)> {
    let reading = || rules.iter().filter(|rule| rule.intercepts());
    if let Some(rule) = reading().next().filter(|_| class != NetworkClass::AllowList) {
        let hint = "class `allow-list` is the one under which `http` and `secret` hold";
        let message = format!(
            "rule `{}` reads requests, but class `{}` reaches its hosts without the rule",
            rule.id,
            class.name()
        );
        return Err((message, hint));
    }
    let mut variables: BTreeMap<&str, &str> = BTreeMap::new();
    for secret in reading().filter_map(|rule| rule.secret.as_ref()) {
        let first = variables.entry(&secret.env).or_insert(&secret.name);
        if *first != secret.name {
            let message = format!("the variable {} is of two secrets", secret.env);
            return Err((message, "give each secret a variable of its own"));
        }
    }
    Ok(())
}
