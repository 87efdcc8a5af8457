//! Counts requests with a wrong token by the address that they came from.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

/// Wrong tokens of one address in a minute that are answered as such.
const PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).expect("not zero");
/// Maximum addresses that are remembered; at the limit, those whose minute is over are forgotten.
const MAX_ADDRESSES: usize = 4096;

/// Counts failures of each IPv4 address, and of each IPv6 network of 64 bits, which one sender usually has as a whole.
#[derive(Debug)]
pub struct Failures(DefaultKeyedRateLimiter<IpAddr>);

impl Default for Failures {
    fn default() -> Self {
        Self(RateLimiter::keyed(Quota::per_minute(PER_MINUTE)))
    }
}

impl Failures {
    /// Counts a failure. Returns the time for which this address is to stop, if it has too many.
    pub(crate) fn note(&self, address: IpAddr) -> Result<(), Duration> {
        if self.0.len() >= MAX_ADDRESSES {
            self.0.retain_recent();
        }
        // Failures from more addresses than are remembered are counted together.
        let key =
            if self.0.len() >= MAX_ADDRESSES { IpAddr::from([0; 4]) } else { sender(address) };
        let now = DefaultClock::default().now();
        self.0.check_key(&key).map_err(|until| until.wait_time_from(now))
    }
}

/// Returns the key that all addresses of one sender share.
pub(super) fn sender(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_network_are_counted_together_and_of_others_apart() {
        let failures = Failures::default();
        let from = |text: &str| failures.note(text.parse().expect("an address")).is_ok();
        let answered = (0..20).filter(|host| from(&format!("2001:db8::{host}"))).count();
        assert_eq!(answered, 10);
        assert!(from("2001:db8:0:1::1") && from("192.0.2.1"), "others are not concerned");
    }

    #[test]
    fn a_flood_from_many_addresses_is_bounded_in_memory() {
        let failures = Failures::default();
        for address in 0..20_000_u32 {
            failures.note(IpAddr::from(address.to_be_bytes())).unwrap_or_default();
        }
        assert!(failures.0.len() <= MAX_ADDRESSES + 1, "{}", failures.0.len());
    }
}
