//! Cache of answers from the host's resolvers, cache for their time to live: an answered question
//! does not leave the host again meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use hickory_proto::rr::{RData, RecordType};

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
pub(crate) struct DnsCache(HashMap<(String, RecordType), CachedAnswer>);

#[derive(Debug)]
struct CachedAnswer {
    answer: Message,
    since: Instant,
    until: Instant,
}

impl DnsCache {
    /// Returns the cached answer for a name and type, with its remaining times to live.
    pub(crate) fn get(&self, name: &str, kind: RecordType, now: Instant) -> Option<Message> {
        let cache = self.0.get(&(name.to_owned(), kind)).filter(|cache| now < cache.until)?;
        let passed = u32::try_from(now.duration_since(cache.since).as_secs()).unwrap_or(u32::MAX);
        let mut answer = cache.answer.clone();
        for record in answer.answers.iter_mut().chain(&mut answer.authorities) {
            record.ttl = record.ttl.saturating_sub(passed);
        }
        Some(answer)
    }

    /// Caches an answer that takes `bytes` bytes, unless its time to live forbids it.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        kind: RecordType,
        answer: &Message,
        bytes: usize,
        now: Instant,
    ) {
        let seconds = seconds(answer);
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

/// Returns for how many seconds an answer may be cached: the shortest time of its records, or for
/// an absence the time in the zone's SOA record. An absence without an SOA record is not cached.
fn seconds(answer: &Message) -> u32 {
    let kind = answer.queries.first().map(|query| query.query_type);
    let shortest = answer.answers.iter().map(|record| record.ttl).min().unwrap_or(MAX_TTL);
    if answer.answers.iter().any(|record| Some(record.record_type()) == kind) {
        return shortest.min(MAX_TTL);
    }
    let absences = answer.authorities.iter().filter_map(|record| {
        let RData::SOA(soa) = &record.data else { return None };
        Some(record.ttl.min(soa.minimum))
    });
    absences.min().unwrap_or(0).min(shortest).min(MAX_NEGATIVE_TTL)
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{MessageType, OpCode, Query};
    use hickory_proto::rr::rdata::SOA;
    use hickory_proto::rr::{Name, Record};

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).expect("a name")
    }

    fn answer(ttl: Option<u32>, soa: Option<(u32, u32)>) -> Message {
        let mut answer = Message::new(7, MessageType::Response, OpCode::Query);
        answer.add_query(Query::query(name("a.test."), RecordType::A));
        if let Some(ttl) = ttl {
            let data = RData::A(std::net::Ipv4Addr::new(192, 0, 2, 1).into());
            answer.add_answer(Record::from_rdata(name("a.test."), ttl, data));
        }
        if let Some((ttl, minimum)) = soa {
            let soa = SOA::new(name("test."), name("x.test."), 1, 2, 3, 4, minimum);
            answer.add_authority(Record::from_rdata(name("test."), ttl, RData::SOA(soa)));
        }
        answer
    }

    #[test]
    fn an_answer_is_cached_for_its_shortest_time_and_an_absence_for_its_zones() {
        assert_eq!(seconds(&answer(Some(60), None)), 60);
        assert_eq!(seconds(&answer(Some(0), None)), 0);
        assert_eq!(seconds(&answer(Some(1 << 20), None)), MAX_TTL);
        assert_eq!(seconds(&answer(None, Some((900, 30)))), 30);
        assert_eq!(seconds(&answer(None, Some((20, 900)))), 20);
        assert_eq!(seconds(&answer(None, Some((86_400, 86_400)))), MAX_NEGATIVE_TTL);
        // Without an SOA record an absence has no time to live.
        assert_eq!(seconds(&answer(None, None)), 0);
    }

    #[test]
    fn a_cached_answer_ages_and_expires() {
        let now = Instant::now();
        let later = |seconds| now.checked_add(Duration::from_secs(seconds)).expect("a time");
        let mut cache = DnsCache::default();
        let ttl = |cache: &DnsCache, kind, at| {
            let answer = cache.get("a.test", kind, at)?;
            answer.answers.first().map(|record| record.ttl)
        };
        cache.insert("a.test", RecordType::A, &answer(Some(60), None), 50, now);
        assert_eq!(ttl(&cache, RecordType::A, now), Some(60));
        assert_eq!(ttl(&cache, RecordType::A, later(59)), Some(1));
        assert_eq!(ttl(&cache, RecordType::A, later(60)), None);
        assert_eq!(ttl(&cache, RecordType::AAAA, now), None);
        cache.insert("a.test", RecordType::AAAA, &answer(Some(60), None), MAX_BYTES + 1, now);
        assert_eq!(ttl(&cache, RecordType::AAAA, now), None);
    }

    #[test]
    fn the_cache_is_bounded() {
        let now = Instant::now();
        let mut cache = DnsCache::default();
        for number in 0..MAX_ANSWERS + 9 {
            let ttl = 100 + u32::try_from(number).expect("small");
            let answer = answer(Some(ttl), None);
            cache.insert(&format!("{number}.test"), RecordType::A, &answer, 50, now);
        }
        assert_eq!(cache.0.len(), MAX_ANSWERS);
        // The answers with the nearest expiry were evicted.
        assert!(cache.get("0.test", RecordType::A, now).is_none());
        assert!(cache.get("9.test", RecordType::A, now).is_some());
    }
}
