//! Answers of the host's resolvers that are kept for as long as they say: a question that was answered does not leave
//! the host again meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use hickory_proto::rr::{RData, RecordType};

/// Answers of a cell that are kept, and the bytes of the longest one.
pub(crate) const MAX_KEPT: usize = 512;
const MAX_BYTES: usize = 4_096;
/// Longest time for which an answer is kept, and for which an absence is (RFC 2308), in seconds.
pub(crate) const LONGEST: u32 = 3_600;
const LONGEST_ABSENCE: u32 = 300;

/// Kept answers by name and type.
#[derive(Debug, Default)]
pub(crate) struct KeptAnswers(HashMap<(String, RecordType), Kept>);

#[derive(Debug)]
struct Kept {
    answer: Message,
    since: Instant,
    until: Instant,
}

impl KeptAnswers {
    /// Returns the answer for a name and type, with what is left of its times.
    pub(crate) fn get(&self, name: &str, kind: RecordType, now: Instant) -> Option<Message> {
        let kept = self.0.get(&(name.to_owned(), kind)).filter(|kept| now < kept.until)?;
        let passed = u32::try_from(now.duration_since(kept.since).as_secs()).unwrap_or(u32::MAX);
        let mut answer = kept.answer.clone();
        for record in answer.answers.iter_mut().chain(&mut answer.authorities) {
            record.ttl = record.ttl.saturating_sub(passed);
        }
        Some(answer)
    }

    /// Keeps an answer of so many bytes, unless it says that it may not be kept.
    pub(crate) fn keep(
        &mut self,
        name: &str,
        kind: RecordType,
        (answer, bytes): (&Message, usize),
        now: Instant,
    ) {
        let seconds = seconds(answer);
        let until = now.checked_add(Duration::from_secs(u64::from(seconds)));
        let Some(until) = until.filter(|_| seconds > 0 && bytes <= MAX_BYTES) else { return };
        if self.0.len() >= MAX_KEPT {
            self.0.retain(|_, kept| now < kept.until);
        }
        if self.0.len() >= MAX_KEPT {
            let first = self.0.iter().min_by_key(|(_, kept)| kept.until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.0.remove(&first);
            }
        }
        let kept = Kept { answer: answer.clone(), since: now, until };
        self.0.insert((name.to_owned(), kind), kept);
    }
}

/// Returns for how many seconds an answer may be kept: by its records; where it has no data for the question, by the
/// SOA of the zone. One without either may not.
fn seconds(answer: &Message) -> u32 {
    let asked = answer.queries.first().map(|query| query.query_type);
    let shortest = answer.answers.iter().map(|record| record.ttl).min().unwrap_or(LONGEST);
    if answer.answers.iter().any(|record| Some(record.record_type()) == asked) {
        return shortest.min(LONGEST);
    }
    let absences = answer.authorities.iter().filter_map(|record| {
        let RData::SOA(soa) = &record.data else { return None };
        Some(record.ttl.min(soa.minimum))
    });
    absences.min().unwrap_or(0).min(shortest).min(LONGEST_ABSENCE)
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
    fn an_answer_is_kept_for_its_shortest_time_and_an_absence_for_that_of_its_zone() {
        assert_eq!(seconds(&answer(Some(60), None)), 60);
        assert_eq!(seconds(&answer(Some(0), None)), 0);
        assert_eq!(seconds(&answer(Some(1 << 20), None)), LONGEST);
        assert_eq!(seconds(&answer(None, Some((900, 30)))), 30);
        assert_eq!(seconds(&answer(None, Some((20, 900)))), 20);
        assert_eq!(seconds(&answer(None, Some((86_400, 86_400)))), LONGEST_ABSENCE);
        // Without an SOA nothing says for how long.
        assert_eq!(seconds(&answer(None, None)), 0);
    }

    #[test]
    fn a_kept_answer_ages_and_ends() {
        let now = Instant::now();
        let later = |seconds| now.checked_add(Duration::from_secs(seconds)).expect("a time");
        let mut kept = KeptAnswers::default();
        let of = |kept: &KeptAnswers, kind, at| {
            let answer = kept.get("a.test", kind, at)?;
            answer.answers.first().map(|record| record.ttl)
        };
        kept.keep("a.test", RecordType::A, (&answer(Some(60), None), 50), now);
        assert_eq!(of(&kept, RecordType::A, now), Some(60));
        assert_eq!(of(&kept, RecordType::A, later(59)), Some(1));
        assert_eq!(of(&kept, RecordType::A, later(60)), None);
        assert_eq!(of(&kept, RecordType::AAAA, now), None);
        kept.keep("a.test", RecordType::AAAA, (&answer(Some(60), None), MAX_BYTES + 1), now);
        assert_eq!(of(&kept, RecordType::AAAA, now), None);
    }

    #[test]
    fn no_more_answers_are_kept_than_the_bound() {
        let now = Instant::now();
        let mut kept = KeptAnswers::default();
        for number in 0..MAX_KEPT + 9 {
            let ttl = 100 + u32::try_from(number).expect("small");
            let answer = answer(Some(ttl), None);
            kept.keep(&format!("{number}.test"), RecordType::A, (&answer, 50), now);
        }
        assert_eq!(kept.0.len(), MAX_KEPT);
        // The ones that would have ended first have made room.
        assert!(kept.get("0.test", RecordType::A, now).is_none());
        assert!(kept.get("9.test", RecordType::A, now).is_some());
    }
}
