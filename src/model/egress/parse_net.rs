//! Parses a network of a rule, and refuses those that no rule can allow.

use std::net::IpAddr;
use std::str::FromStr;

use super::net::Net;
use super::never;

/// Why a network is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNet {
    #[error("`{0}` is not a network; write 10.20.0.0/16, fd12::/48 or one address")]
    NotANet(String),
    #[error("`{0}` has bits behind its prefix; write {1}")]
    Bits(String, Net),
    #[error("`{0}` holds addresses of IPv4 within IPv6; write the IPv4 network itself")]
    Translated(String),
    #[error("`{0}` is never reached: {1}")]
    Never(String, &'static str),
}

impl FromStr for Net {
    type Err = InvalidNet;

    fn from_str(text: &str) -> Result<Self, InvalidNet> {
        let shown = || text.chars().take(80).flat_map(char::escape_default).collect::<String>();
        let not_a_net = || InvalidNet::NotANet(shown());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| not_a_net())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = match prefix {
            None => longest,
            // `parse` would also accept a sign and leading zeros.
            Some(text) if text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map_err(|_| not_a_net())?
            }
            Some(_) => return Err(not_a_net()),
        };
        if prefix > longest {
            return Err(not_a_net());
        }
        let net = Self::new(address, prefix);
        if net.first() != address {
            return Err(InvalidNet::Bits(shown(), net));
        }
        if never::is_translation(&net) {
            return Err(InvalidNet::Translated(shown()));
        }
        match never::net(&net) {
            Some(reason) => Err(InvalidNet::Never(shown(), reason)),
            None => Ok(net),
        }
    }
}

impl TryFrom<String> for Net {
    type Error = InvalidNet;

    fn try_from(text: String) -> Result<Self, InvalidNet> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_networks_are_refused_each_with_its_reason() {
        let refusal = |text: &str| text.parse::<Net>().err().map(|error| error.to_string());
        for (text, said) in [
            ("10.20.0.1/16", "write 10.20.0.0/16"),
            ("10.20.0.0/33", "not a network"),
            ("10.20.0.0/+8", "not a network"),
            ("10.20/16", "not a network"),
            ("010.20.0.0/16", "not a network"),
            ("fd12::/129", "not a network"),
            ("", "not a network"),
            ("127.0.0.0/8", "never reached"),
            ("127.0.0.1", "never reached"),
            ("169.254.169.254", "never reached"),
            ("fe80::/64", "never reached"),
            ("224.0.0.0/8", "never reached"),
            ("::1", "never reached"),
            ("100.100.100.200", "never reached"),
            ("::ffff:127.0.0.0/104", "IPv4 network itself"),
            ("2002:7f00::/24", "IPv4 network itself"),
            ("64:ff9b::/96", "IPv4 network itself"),
            ("2001::/32", "IPv4 network itself"),
        ] {
            assert!(
                refusal(text).is_some_and(|refusal| refusal.contains(said)),
                "{text}: {:?}",
                refusal(text)
            );
        }
    }
}
