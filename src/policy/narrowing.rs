//! The narrowing of a call's network to the places that its words name.
//!
//! The gateway holds the cell to it: a redirect, a second name in a flag, or an address that the program makes up
//! lead nowhere. Words are checked before; what cannot be a rule of egress is refused here.

use core::net::IpAddr;

use super::flags::{BadWords, DeclaredCommand, Positional, PositionalEgress, shown};
use super::reach::{PRIVATE, TargetPlaces};
use super::values::{WordType, net, url_place};
use model::egress::{HostPattern, Net, Only, PortRange};

impl DeclaredCommand {
    /// Returns the narrowing of a call with these words: nothing if no field of the tool holds its network.
    ///
    /// # Errors
    /// A word that names a place which no call reaches.
    pub fn only(&self, given: &[(&str, &str)]) -> Result<Option<Only>, BadWords> {
        let is_held = |one: &&Positional| one.egress == PositionalEgress::Only;
        let held: Vec<&Positional> = self.positionals.iter().filter(is_held).collect();
        if held.is_empty() {
            return Ok(None);
        }
        let mut only = Only::default();
        let mut within: Option<Vec<Net>> = Some(Vec::new());
        for (name, word) in given {
            let Some(one) = held.iter().find(|one| one.name == *name) else { continue };
            self.add(&mut only, one, word)?;
            // One field that may lead anywhere leaves the addresses of all names open.
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
        // Lists without an entry would narrow nothing.
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
                let most = Only::MAX_ENTRIES;
                let given = only.hosts.len().max(only.nets.len()).max(only.within.len());
                Err(BadWords::TooMany { tool: self.name.clone(), what, given, most })
            }
        }
    }

    fn add(&self, only: &mut Only, one: &Positional, word: &str) -> Result<(), BadWords> {
        let host = match one.takes.kind {
            WordType::Url => {
                let (host, ports) = url_place(word);
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
            // Written anew: bits behind the prefix are the tool's to read, and mean the network.
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
        // Read as a rule's network is, so that mapped and translated spellings are refused.
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
