//! Narrows the network of a call to the targets that its words name.
//!
//! The gateway enforces this on the cell: it blocks a redirect, a second host in a flag, and an
//! address that the program makes up. The words were checked before; a word that cannot become a
//! network rule is refused here.

use core::net::IpAddr;

use super::flags::{BadWords, DeclaredCommand, Positional, PositionalEgress, shown};
use super::reach::{PRIVATE, TargetPlaces};
use super::values::{WordType, net, url_target};
use model::egress::{HostPattern, Net, Only, PortRange};

impl DeclaredCommand {
    /// Returns the narrowing for a call with these words, or `None` if no field of the tool has
    /// `egress = "only"`.
    ///
    /// # Errors
    /// A word that names a target which no call can reach.
    pub fn only(&self, given: &[(&str, &str)]) -> Result<Option<Only>, BadWords> {
        let is_holding = |one: &&Positional| one.egress == PositionalEgress::Only;
        let holding: Vec<&Positional> = self.positionals.iter().filter(is_holding).collect();
        if holding.is_empty() {
            return Ok(None);
        }
        let mut only = Only::default();
        let mut within: Option<Vec<Net>> = Some(Vec::new());
        for (name, word) in given {
            let Some(one) = holding.iter().find(|one| one.name == *name) else { continue };
            self.add(&mut only, one, word)?;
            // If one field may name any target, the addresses of all names stay unrestricted.
            within = match (within, &one.takes.reach.within) {
                (Some(mut nets), TargetPlaces::Private) => {
                    nets.extend(PRIVATE);
                    Some(nets)
                }
                (Some(mut all), TargetPlaces::Listed { hosts, nets }) if hosts.is_empty() => {
                    all.extend(nets);
                    Some(all)
                }
                (_, TargetPlaces::Listed { .. } | TargetPlaces::Any) | (None, _) => None,
            };
        }
        // Empty lists would not narrow anything, so allow no rule.
        if only.hosts.is_empty() && only.nets.is_empty() {
            return Ok(Some(Only { rules: Some(Vec::new()), ..Only::default() }));
        }
        only.within = within.unwrap_or_default();
        only.within.sort_unstable();
        only.within.dedup();
        match only.is_bounded() {
            true => Ok(Some(only)),
            false => {
                let what = "targets".to_owned();
                let limit = Only::MAX_ENTRIES;
                let given = only.hosts.len().max(only.nets.len()).max(only.within.len());
                Err(BadWords::TooMany { tool: self.name.clone(), what, given, most: limit })
            }
        }
    }

    fn add(&self, only: &mut Only, one: &Positional, word: &str) -> Result<(), BadWords> {
        let host = match one.takes.kind {
            WordType::Url => {
                let (host, ports) = url_target(word);
                only.ports.extend(ports.into_iter().map(PortRange::one));
                host
            }
            WordType::Host
            | WordType::Cidr
            | WordType::Target
            | WordType::Text
            | WordType::Int(_)
            | WordType::Decimal(_)
            | WordType::Path
            | WordType::Ports
            | WordType::Choice(_) => word,
        };
        let refused = |why: String| BadWords::Value {
            tool: self.name.clone(),
            what: one.name.clone(),
            word: shown(word),
            why: format!("cannot be reached: {why}"),
            too_large: None,
            elsewhere: false,
        };
        let written = match (net(host), host.parse::<IpAddr>()) {
            // Print the parsed network: the bits after the prefix have no meaning in a rule.
            (Some(net), _) => net.to_string(),
            (None, Ok(address)) => address.to_string(),
            (None, Err(_)) => {
                let host: HostPattern = host
                    .parse()
                    .map_err(|error: model::egress::InvalidHost| refused(error.to_string()))?;
                only.hosts.push(host);
                return Ok(());
            }
        };
        // Parse as a rule's network is parsed, which refuses mapped and translated spellings.
        let net: Net = written
            .parse()
            .map_err(|error: model::egress::InvalidNet| refused(error.to_string()))?;
        only.nets.push(net);
        Ok(())
    }
}

#[cfg(test)]
#[path = "narrowing_tests.rs"]
mod tests;
