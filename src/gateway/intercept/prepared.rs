//! Interception in the gateway: prepared before the gateway is confined, and handed to each worker
//! in part.

use model::egress::{HostPattern, SecretSource};

use super::grants::{PinnedRule, RequestRule};
use super::secrets::{SecretError, SecretValue};
use super::{CellInterception, InterceptAuthority, InterceptError, Intercepted, Interception};
use crate::GatewaySpec;

/// Why interception cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    #[error("rule `{rule}` uses secret `{name}`, which the server does not have")]
    NoSecret { rule: String, name: String },
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("rule `{rule}`: {fault}")]
    Rule { rule: String, fault: String },
    #[error("the authority of this run cannot be made: {0}")]
    Authority(#[from] rcgen::Error),
    #[error("servers cannot be verified")]
    Roots(#[from] InterceptError),
}

/// The authority, the roots, and the rules of all profiles with their secrets.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// `None` if no rule of any profile needs it.
    interception: Option<Interception>,
    /// Rules, by the index of their profile and their index in it.
    rules: Vec<Vec<RequestRule>>,
}

impl Prepared {
    /// Reads the secrets and makes the authority. Must run before the process gives up its ids and
    /// root directory.
    pub(crate) fn new(spec: &GatewaySpec) -> Result<Self, PrepareError> {
        let all = || spec.profiles.iter().flat_map(|profile| &profile.rules);
        let hosts: Vec<&HostPattern> =
            all().filter(|rule| rule.intercepts()).flat_map(|rule| &rule.hosts).collect();
        let interception = match hosts.is_empty() {
            true => None,
            false => Some(Interception::new(InterceptAuthority::generate(hosts)?, &spec.roots)?),
        };
        let rules = spec.profiles.iter().map(|profile| {
            let rules = profile.rules.iter().map(|rule| {
                let secret =
                    rule.secret.as_ref().map(|it| secret(&spec.secrets, &rule.id, &it.name));
                RequestRule::new(rule, secret.transpose()?)
                    .map_err(|fault| PrepareError::Rule { rule: rule.id.clone(), fault })
            });
            rules.collect::<Result<Vec<_>, _>>()
        });
        let rules = rules.collect::<Result<_, _>>()?;
        Ok(Self { interception, rules })
    }

    /// Returns the DER certificate of the authority; empty without one.
    pub(crate) fn authority(&self) -> Vec<u8> {
        self.interception.as_ref().map(|it| it.certificate().to_vec()).unwrap_or_default()
    }

    /// Takes out what the worker of a cell needs: the rules of its profile, and the authority if
    /// `intercepts`. Erases the secrets of all other profiles.
    pub(crate) fn take_for_cell(
        &mut self,
        profile: usize,
        seed: [u8; 16],
        intercepts: bool,
    ) -> CellRequests {
        let rules = self.rules.get_mut(profile).map(std::mem::take).unwrap_or_default();
        self.rules.clear();
        let interception = self.interception.take().filter(|_| intercepts);
        let cell = interception.map(|interception| interception.for_cell(seed));
        CellRequests { cell: cell.unwrap_or_else(|| CellInterception::without_tls(seed)), rules }
    }
}

/// Reads the secret of a rule.
fn secret(
    secrets: &[(String, SecretSource)],
    rule: &str,
    name: &str,
) -> Result<SecretValue, PrepareError> {
    let entry = secrets.iter().find(|(known, _)| known == name);
    let missing = || PrepareError::NoSecret { rule: rule.to_owned(), name: name.to_owned() };
    let (_, source) = entry.ok_or_else(missing)?;
    Ok(SecretValue::read(name, source)?)
}

/// Interception in a worker: the rules of its profile, and the means to apply them.
#[derive(Debug)]
pub(crate) struct CellRequests {
    pub(crate) cell: CellInterception,
    rules: Vec<RequestRule>,
}

impl CellRequests {
    /// Describes a connection by the rules that match its address, each given by index with the
    /// matching names.
    pub(crate) fn intercepted(&self, port: u16, named: &[(usize, Vec<String>)]) -> Intercepted {
        let rules = named.iter().filter_map(|(index, names)| {
            let rule = self.rules.get(*index)?.clone();
            Some(PinnedRule { rule, names: names.clone() })
        });
        Intercepted { port, rules: rules.collect() }
    }
}

#[cfg(test)]
mod tests {
    use model::egress::{Egress, EgressRule, HttpRule, Protocols};

    use super::*;

    #[test]
    fn a_worker_has_the_authority_only_if_its_rules_intercept() {
        let http = HttpRule { methods: vec!["GET".to_owned()], paths: vec!["/**".to_owned()] };
        let rule = EgressRule {
            id: "api".to_owned(),
            hosts: vec!["a.example.test".parse().expect("a host")],
            nets: Vec::new(),
            ports: vec!["443".parse().expect("a port")],
            protocols: Protocols::TCP,
            http: vec![http],
            secret: None,
            why: String::new(),
        };
        let intercepting = Egress { rules: vec![rule], ..Egress::default() };
        let spec = GatewaySpec {
            profiles: vec![intercepting, Egress::default()],
            resolvers: Vec::new(),
            hosts: Vec::new(),
            roots: crate::intercept::trust::TrustFiles::new(b"", &root()).authority,
            secrets: Vec::new(),
            id: None,
        };
        for (profile, intercepts) in [(0, true), (1, false)] {
            let mut prepared = Prepared::new(&spec).expect("prepared");
            let requests = prepared.take_for_cell(profile, [7; 16], intercepts);
            assert_eq!(requests.cell.handshakes.is_some(), intercepts);
            assert!(prepared.interception.is_none() && prepared.rules.is_empty());
        }
    }

    fn root() -> Vec<u8> {
        let hosts: [HostPattern; 1] = ["b.example.test".parse().expect("a host")];
        InterceptAuthority::generate(&hosts).expect("an authority").certificate().to_vec()
    }
}
