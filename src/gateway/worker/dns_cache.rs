//! Caches answers of the host's resolvers for their time to live: a question that was answered is not
//! sent again in this time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::base::{Rtype, Ttl};
use domain::rdata::ZoneRecordData;

use super::dns_message::Answer;

/// Maximum number of cached answers of a cell.
pub(crate) const MAX_ANSWERS: usize = 512;
/// Maximum size of a cached answer in bytes.
const MAX_BYTES: usize = 4_096;
/// Maximum time in seconds for which an answer is cached.
pub(crate) const MAX_TTL: u32 = 3_600;
/// Maximum time in seconds for which the absence of a record is cached (RFC 2308).
const MAX_NEGATIVE_TTL: u32 = 300;

/// Cached answers by name and type.
#[derive(Debug, Default)]
pub(crate) struct DnsCache(HashMap<(String, Rtype), CachedAnswer>);

#[derive(Debug)]
struct CachedAnswer {
    answer: Answer,
    since: Instant,
    until: Instant,
}

impl DnsCache {
    /// Returns the cached answer for a name and type, with its remaining times to live.
    pub(crate) fn get(&self, name: &str, kind: Rtype, now: Instant) -> Option<Answer> {
        let cache = self.0.get(&(name.to_owned(), kind)).filter(|cache| now < cache.until)?;
        let passed = u32::try_from(now.duration_since(cache.since).as_secs()).unwrap_or(u32::MAX);
        let mut answer = cache.answer.clone();
        for record in answer.records.iter_mut().chain(&mut answer.authorities) {
            record.set_ttl(record.ttl().saturating_sub(Ttl::from_secs(passed)));
        }
        Some(answer)
    }

    /// Caches an answer that takes `bytes` bytes, unless its time to live forbids it.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        kind: Rtype,
        answer: &Answer,
        bytes: usize,
        now: Instant,
    ) {
        let seconds = seconds(answer, kind);
        let until = now.checked_add(Duration::from_secs(u64::from(seconds)));
        let Some(until) = until.filter(|_| seconds > 0 && bytes <= MAX_BYTES) else { return };
        if self.0.len() >= MAX_ANSWERS {
            self.0.retain(|_, cache| now < cache.until);
        }
        if self.0.len() >= MAX_ANSWERS {
            let first = self.0.iter().min_by_key(|(_, cache)| cache.until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.0.remove(&first);
            }
        }
        let cache = CachedAnswer { answer: answer.clone(), since: now, until };
        self.0.insert((name.to_owned(), kind), cache);
    }
}

/// Returns for how many seconds an answer to a question of this type may be cached: the shortest
/// time of its records, or for an absence the time in the zone's SOA record. An absence without an
/// SOA record is not cached.
fn seconds(answer: &Answer, kind: Rtype) -> u32 {
    let shortest = answer.records.iter().map(|record| record.ttl().as_secs()).min();
    let shortest = shortest.unwrap_or(MAX_TTL);
    if answer.records.iter().any(|record| record.rtype() == kind) {
        return shortest.min(MAX_TTL);
    }
    let absences = answer.authorities.iter().filter_map(|record| {
        let ZoneRecordData::Soa(soa) = record.data() else { return None };
        Some(record.ttl().min(soa.minimum()).as_secs())
    });
    absences.min().unwrap_or(0).min(shortest).min(MAX_NEGATIVE_TTL)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::str::FromStr as _;

    use domain::base::iana::{Class, Rcode};
    use domain::base::{Record, Serial};
    use domain::rdata::Soa;

    use super::super::dns_message::{DnsName, address_record};
    use super::*;

    fn name(text: &str) -> DnsName {
        DnsName::from_str(text).expect("a name")
    }

    fn answer(ttl: Option<u32>, soa: Option<(u32, u32)>) -> Answer {
        let mut answer = Answer::empty(Rcode::NOERROR);
        if let Some(ttl) = ttl {
            let address = IpAddr::from([192, 0, 2, 1]);
            answer.records.push(address_record(name("a.test."), ttl, address));
        }
        if let Some((ttl, minimum)) = soa {
            let [refresh, retry, expire, minimum] = [2, 3, 4, minimum].map(Ttl::from_secs);
            let soa = Soa::new(
                name("test."),
                name("x.test."),
                Serial::from(1),
                refresh,
                retry,
                expire,
                minimum,
            );
            let ttl = Ttl::from_secs(ttl);
            answer.authorities.push(Record::new(name("test."), Class::IN, ttl, soa.into()));
        }
        answer
    }

    #[test]
    fn an_answer_is_cached_for_its_shortest_time_and_an_absence_for_its_zones() {
        assert_eq!(seconds(&answer(Some(60), None), Rtype::A), 60);
        assert_eq!(seconds(&answer(Some(0), None), Rtype::A), 0);
        assert_eq!(seconds(&answer(Some(1 << 20), None), Rtype::A), MAX_TTL);
        assert_eq!(seconds(&answer(None, Some((900, 30))), Rtype::A), 30);
        assert_eq!(seconds(&answer(None, Some((20, 900))), Rtype::A), 20);
        assert_eq!(seconds(&answer(None, Some((86_400, 86_400))), Rtype::A), MAX_NEGATIVE_TTL);
        // Without an SOA record an absence has no time to live.
        assert_eq!(seconds(&answer(None, None), Rtype::A), 0);
    }

    #[test]
    fn a_cached_answer_ages_and_expires() {
        let now = Instant::now();
        let later = |seconds| now.checked_add(Duration::from_secs(seconds)).expect("a time");
        let mut cache = DnsCache::default();
        let ttl = |cache: &DnsCache, kind, at| {
            let answer = cache.get("a.test", kind, at)?;
            answer.records.first().map(|record| record.ttl().as_secs())
        };
        cache.insert("a.test", Rtype::A, &answer(Some(60), None), 50, now);
        assert_eq!(ttl(&cache, Rtype::A, now), Some(60));
        assert_eq!(ttl(&cache, Rtype::A, later(59)), Some(1));
        assert_eq!(ttl(&cache, Rtype::A, later(60)), None);
        assert_eq!(ttl(&cache, Rtype::AAAA, now), None);
        cache.insert("a.test", Rtype::AAAA, &answer(Some(60), None), MAX_BYTES + 1, now);
        assert_eq!(ttl(&cache, Rtype::AAAA, now), None);
    }

    #[test]
    fn the_cache_is_bounded() {
        let now = Instant::now();
        let mut cache = DnsCache::default();
        for number in 0..MAX_ANSWERS + 9 {
            let ttl = 100 + u32::try_from(number).expect("small");
            let answer = answer(Some(ttl), None);
            cache.insert(&format!("{number}.test"), Rtype::A, &answer, 50, now);
        }
        assert_eq!(cache.0.len(), MAX_ANSWERS);
        // The answers with the nearest expiry were evicted.
        assert!(cache.get("0.test", Rtype::A, now).is_none());
        assert!(cache.get("9.test", Rtype::A, now).is_some());
    }
}
