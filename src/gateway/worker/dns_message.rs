//! Messages of the DNS, as the resolver of cells reads and writes them.
//!
//! A message is read whole before a part of it is used, with each name unpacked: a message that
//! cannot be read to its end is ignored.

use std::net::IpAddr;
use std::str::FromStr as _;

use domain::base::iana::{Class, ExtendedErrorCode, Opcode, OptRcode, Rcode, Rtype};
use domain::base::name::FlattenInto as _;
use domain::base::opt::exterr::ExtendedError;
use domain::base::opt::{Opt, OptRecord};
use domain::base::{
    Message, MessageBuilder, Name, ParsedName, Question, Record, RecordSection, StaticCompressor,
    Ttl,
};
use domain::rdata::{A, Aaaa, ZoneRecordData};

/// Maximum size of answers that resolvers are asked for by UDP: smaller packets are not fragmented
/// (RFC 9715).
const MAX_UPSTREAM_BYTES: u16 = 1_232;

pub(crate) type DnsName = Name<Vec<u8>>;
pub(crate) type DnsRecord = Record<DnsName, ZoneRecordData<Vec<u8>, DnsName>>;
pub(crate) type DnsQuestion = Question<DnsName>;

/// The answer to a question.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) code: Rcode,
    pub(crate) records: Vec<DnsRecord>,
    pub(crate) authorities: Vec<DnsRecord>,
    /// Why the question was refused (RFC 8914).
    pub(crate) explanation: Option<String>,
}

impl Answer {
    /// Returns an answer without records.
    pub(crate) fn empty(code: Rcode) -> Self {
        Self { code, records: Vec::new(), authorities: Vec::new(), explanation: None }
    }
}

/// A DNS query of a cell.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: u16,
    recursion_desired: bool,
    pub(crate) opcode: Opcode,
    pub(crate) questions: Vec<DnsQuestion>,
    /// Size of the answers by UDP that the client announces.
    pub(crate) max_udp_bytes: Option<u16>,
}

impl Request {
    /// Reads a message; `None` if it is not a question.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let message = Message::from_slice(bytes).ok()?;
        let header = message.header();
        if header.qr() {
            return None;
        }
        let questions = questions(message)?;
        let sections = Sections::read(message)?;
        Some(Self {
            id: header.id(),
            recursion_desired: header.rd(),
            opcode: header.opcode(),
            questions,
            max_udp_bytes: sections.max_udp_bytes,
        })
    }

    /// Writes the reply to this message. An answer that takes more than `max_bytes` is left out, and
    /// the reply says so.
    pub(crate) fn reply(&self, answer: &Answer, max_bytes: u16) -> Option<Vec<u8>> {
        self.write(answer, Some(max_bytes)).or_else(|| self.write(answer, None))
    }

    /// Writes a reply of at most so many bytes; one without records if that is `None`.
    fn write(&self, answer: &Answer, max_bytes: Option<u16>) -> Option<Vec<u8>> {
        let mut builder = MessageBuilder::from_target(StaticCompressor::new(Vec::new())).ok()?;
        // The first size that is too long.
        builder.set_push_limit(usize::from(max_bytes.unwrap_or(u16::MAX)).saturating_add(1));
        let header = builder.header_mut();
        header.set_id(self.id);
        header.set_qr(true);
        header.set_tc(max_bytes.is_none());
        header.set_rd(self.recursion_desired);
        header.set_ra(true);
        header.set_rcode(answer.code);
        let mut builder = builder.question();
        for question in &self.questions {
            builder.push(question).ok()?;
        }
        let mut builder = builder.answer();
        for record in answer.records.iter().filter(|_| max_bytes.is_some()) {
            builder.push(record).ok()?;
        }
        let mut builder = builder.authority();
        for record in answer.authorities.iter().filter(|_| max_bytes.is_some()) {
            builder.push(record).ok()?;
        }
        let mut builder = builder.additional();
        if let Some(text) = answer.explanation.as_ref().filter(|_| self.max_udp_bytes.is_some()) {
            let code = ExtendedErrorCode::PROHIBITED;
            let error = ExtendedError::<Vec<u8>>::new_with_str(code, text).ok()?;
            builder
                .opt(|opt| {
                    opt.set_udp_payload_size(MAX_UPSTREAM_BYTES);
                    opt.push(&error)
                })
                .ok()?;
        }
        Some(builder.finish().into_target())
    }
}

/// A question of the worker to a resolver: number, flags, class and options are independent of
/// the cell's.
#[derive(Debug)]
pub(crate) struct UpstreamQuestion {
    id: u16,
    name: DnsName,
    kind: Rtype,
    pub(crate) bytes: Vec<u8>,
}

/// An answer of a resolver.
#[derive(Debug)]
pub(crate) struct UpstreamAnswer {
    pub(crate) answer: Answer,
    /// Parts are left out because they would not fit.
    pub(crate) is_truncated: bool,
    /// True if the answer settles whether the name exists.
    pub(crate) is_settled: bool,
}

impl UpstreamQuestion {
    pub(crate) fn new(id: u16, name: &str, kind: Rtype) -> Option<Self> {
        let name = DnsName::from_str(name).ok()?;
        let mut builder = MessageBuilder::from_target(StaticCompressor::new(Vec::new())).ok()?;
        let header = builder.header_mut();
        header.set_id(id);
        header.set_rd(true);
        let mut builder = builder.question();
        builder.push(Question::new_in(&name, kind)).ok()?;
        let mut builder = builder.additional();
        let with_size = builder.opt(|opt| {
            opt.set_udp_payload_size(MAX_UPSTREAM_BYTES);
            Ok(())
        });
        with_size.ok()?;
        let bytes = builder.finish().into_target();
        Some(Self { id, name, kind, bytes })
    }

    /// Reads a message; `None` unless it answers this question.
    pub(crate) fn read_answer(&self, bytes: &[u8]) -> Option<UpstreamAnswer> {
        let message = Message::from_slice(bytes).ok()?;
        let header = message.header();
        if !header.qr() || header.id() != self.id {
            return None;
        }
        let questions = questions(message)?;
        let [question] = questions.as_slice() else { return None };
        // Letters of names are compared without their case.
        if question.qtype() != self.kind || question.qname() != &self.name {
            return None;
        }
        let sections = Sections::read(message)?;
        let code = sections.code.unwrap_or_else(|| header.rcode().into());
        Some(UpstreamAnswer {
            answer: Answer {
                code: header.rcode(),
                records: sections.answers,
                authorities: sections.authorities,
                explanation: None,
            },
            is_truncated: header.tc(),
            is_settled: [OptRcode::NOERROR, OptRcode::NXDOMAIN].contains(&code),
        })
    }
}

/// Returns a record with an address, of class IN.
pub(crate) fn address_record(name: DnsName, seconds: u32, address: IpAddr) -> DnsRecord {
    let data = match address {
        IpAddr::V4(v4) => ZoneRecordData::A(A::new(v4)),
        IpAddr::V6(v6) => ZoneRecordData::Aaaa(Aaaa::new(v6)),
    };
    Record::new(name, Class::IN, Ttl::from_secs(seconds), data)
}

/// Returns the address that a record has.
pub(crate) fn address(record: &DnsRecord) -> Option<IpAddr> {
    if let ZoneRecordData::A(a) = record.data() {
        return Some(a.addr().into());
    }
    let ZoneRecordData::Aaaa(aaaa) = record.data() else { return None };
    Some(aaaa.addr().into())
}

/// Returns a name in lower case without a trailing dot; `None` if a label has other characters than
/// letters, digits, `-` and `_`.
pub(crate) fn plain_name(name: &DnsName) -> Option<String> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let labels = name.iter().filter(|label| !label.is_root());
    let labels = labels.map(|label| {
        let label = label.as_slice();
        std::str::from_utf8(label).ok().filter(|_| label.iter().all(plain))
    });
    let labels: Option<Vec<_>> = labels.collect();
    labels.filter(|labels| !labels.is_empty()).map(|labels| labels.join(".").to_ascii_lowercase())
}

fn questions(message: &Message<[u8]>) -> Option<Vec<DnsQuestion>> {
    let owned = |question: Question<ParsedName<&[u8]>>| {
        let name: DnsName = question.qname().flatten_into();
        Question::new(name, question.qtype(), question.qclass())
    };
    message.question().map(|question| question.ok().map(owned)).collect()
}

/// The records that follow the questions of a message.
struct Sections {
    answers: Vec<DnsRecord>,
    authorities: Vec<DnsRecord>,
    /// Size of datagrams that the sender announces.
    max_udp_bytes: Option<u16>,
    /// The code with the bits that the header has no room for.
    code: Option<OptRcode>,
}

impl Sections {
    fn read(message: &Message<[u8]>) -> Option<Self> {
        let mut section = message.answer().ok()?;
        let answers = records(&mut section)?;
        let mut section = section.next_section().ok()??;
        let authorities = records(&mut section)?;
        let section = section.next_section().ok()??;
        let mut edns: Option<OptRecord<&[u8]>> = None;
        for record in section {
            let record = record.ok()?;
            if record.rtype() != Rtype::OPT {
                continue;
            }
            // A second one has no meaning (RFC 6891).
            if edns.is_some() {
                return None;
            }
            edns = Some(record.into_record::<Opt<_>>().ok()??.into());
        }
        Some(Self {
            answers,
            authorities,
            max_udp_bytes: edns.as_ref().map(OptRecord::udp_payload_size),
            code: edns.as_ref().map(|edns| edns.rcode(message.header())),
        })
    }
}

/// Reads the records of a section.
fn records(section: &mut RecordSection<'_, [u8]>) -> Option<Vec<DnsRecord>> {
    type Parsed<'a> = ZoneRecordData<&'a [u8], ParsedName<&'a [u8]>>;
    let owned = section.map(|record| {
        let record = record.ok()?.into_record::<Parsed<'_>>().ok()??;
        Some(record.flatten_into())
    });
    owned.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: u16 = 0x1234;

    fn forwarded(name: &str, kind: Rtype) -> UpstreamQuestion {
        UpstreamQuestion::new(ID, name, kind).expect("a question")
    }

    fn addresses(count: u8) -> Answer {
        let name = || DnsName::from_str("a.test").expect("a name");
        let record = |number| address_record(name(), 60, IpAddr::from([192, 0, 2, number]));
        Answer { records: (0..count).map(record).collect(), ..Answer::empty(Rcode::NOERROR) }
    }

    #[test]
    fn a_question_has_the_name_the_type_and_the_workers_size() {
        let bytes = forwarded("a-b._c.test", Rtype::MX).bytes;
        let expected = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\x01\x03a-b\x02_c\x04test\0\0\x0f\0\x01\
            \0\0\x29\x04\xd0\0\0\0\0\0\0";
        assert_eq!(bytes, expected);
        let request = Request::read(&bytes).expect("a question");
        let names: Vec<_> =
            request.questions.iter().filter_map(|question| plain_name(question.qname())).collect();
        assert_eq!(names, ["a-b._c.test"]);
        assert_eq!(request.max_udp_bytes, Some(MAX_UPSTREAM_BYTES));
        assert!(UpstreamQuestion::new(ID, "a..test", Rtype::A).is_none());
        assert!(UpstreamQuestion::new(ID, &"a".repeat(64), Rtype::A).is_none());
    }

    #[test]
    fn only_an_answer_to_the_question_is_read() {
        let question = forwarded("a.test", Rtype::A);
        let request = Request::read(&question.bytes).expect("a question");
        let reply = request.reply(&addresses(2), 512).expect("a reply");
        let read = question.read_answer(&reply).expect("an answer");
        let found: Vec<_> = read.answer.records.iter().filter_map(address).collect();
        assert_eq!(found, [IpAddr::from([192, 0, 2, 0]), IpAddr::from([192, 0, 2, 1])]);
        assert!(read.is_settled && !read.is_truncated);
        assert!(forwarded("A.TEST", Rtype::A).read_answer(&reply).is_some());
        assert!(forwarded("b.test", Rtype::A).read_answer(&reply).is_none());
        assert!(forwarded("a.test", Rtype::AAAA).read_answer(&reply).is_none());
        assert!(question.read_answer(&question.bytes).is_none(), "it is a question");
        let other = UpstreamQuestion::new(1, "a.test", Rtype::A).expect("a question");
        assert!(other.read_answer(&reply).is_none(), "it has another number");
        for end in 0..reply.len() {
            let part = reply.get(..end).expect("within");
            assert!(question.read_answer(part).is_none(), "{end} bytes");
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_left_out() {
        let question = forwarded("a.test", Rtype::A);
        let request = Request::read(&question.bytes).expect("a question");
        let whole = request.reply(&addresses(40), u16::MAX).expect("a reply");
        let length = u16::try_from(whole.len()).expect("short");
        assert_eq!(request.reply(&addresses(40), length), Some(whole));
        let reply = request.reply(&addresses(40), length - 1).expect("a reply");
        let read = question.read_answer(&reply).expect("an answer");
        assert!(read.is_truncated && read.answer.records.is_empty());
    }

    #[test]
    fn an_explanation_is_written_for_a_client_that_knows_of_it() {
        let answer =
            Answer { explanation: Some("no rule".to_owned()), ..Answer::empty(Rcode::NXDOMAIN) };
        let bytes = forwarded("a.test", Rtype::A).bytes;
        let request = Request::read(&bytes).expect("a question");
        let reply = request.reply(&answer, 512).expect("a reply");
        let option = b"\0\0\x29\x04\xd0\0\0\0\0\0\x0d\0\x0f\0\x09\0\x12no rule";
        assert!(reply.ends_with(option), "{reply:?}");
        let mut plain = bytes;
        plain.truncate(plain.len() - 11);
        plain.splice(10..12, [0, 0]);
        let request = Request::read(&plain).expect("a question");
        let reply = request.reply(&answer, 512).expect("a reply");
        assert_eq!(reply.len(), plain.len());
    }

    #[test]
    fn messages_that_cannot_be_read_to_their_end_are_ignored() {
        let header = |questions: u8, additional: u8| {
            [0, 7, 1, 0, 0, questions, 0, 0, 0, 0, 0, additional].to_vec()
        };
        let option: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\0";
        let question: &[u8] = b"\x01a\x04test\0\0\x01\0\x01";
        let is_read = |parts: &[&[u8]]| Request::read(&parts.concat()).is_some();
        assert!(is_read(&[&header(1, 1), question, option]));
        assert!(!is_read(&[&header(1, 2), question, option]), "half of a record is missing");
        assert!(!is_read(&[&header(1, 2), question, option, option]), "two records of EDNS");
        assert!(!is_read(&[&header(2, 0), question]), "a question is missing");
        assert!(!is_read(&[&header(1, 0), b"\xc0\x0c\0\x01\0\x01"]), "a pointer to itself");
        assert!(!is_read(&[&header(1, 0), b"\xc0\x0e\xc0\x0c\0\x01\0\x01"]), "a pointer ahead");
        assert!(!is_read(&[&header(1, 0), b"\x41a\0\0\x01\0\x01"]), "a label of no known kind");
        let long = [b"\x3f".as_slice(), &[b'a'; 63]].concat().repeat(4);
        assert!(!is_read(&[&header(1, 0), &long, b"\0\0\x01\0\x01"]), "a name of 257 bytes");
    }

    #[test]
    fn names_are_judged_by_plain_labels() {
        let name = |labels: &[&[u8]]| {
            let labels = labels.iter().map(|label| {
                let length = u8::try_from(label.len()).expect("short");
                [&[length], *label].concat()
            });
            let bytes = [labels.collect::<Vec<_>>().concat(), vec![0]].concat();
            plain_name(&DnsName::from_octets(bytes).expect("a name"))
        };
        assert_eq!(name(&[b"-A_b", b"TEST"]).as_deref(), Some("-a_b.test"));
        for labels in [&[b"a.b".as_slice(), b"test"], &[b"a\0", b"test"], &[b"\xc3\xa9", b"test"]] {
            assert_eq!(name(labels), None);
        }
        assert_eq!(name(&[]), None);
    }

    proptest! {
        #[test]
        fn changed_answers_are_read_or_ignored_and_replies_stay_within_their_size(
            changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6),
            kind in 0_u16..70,
            data in proptest::collection::vec(any::<u8>(), 0..60),
            max_bytes in 12_u16..600,
        ) {
            let question = forwarded("a.b.c.test", Rtype::A);
            let mut bytes = question.bytes.clone();
            bytes.splice(2..12, [0x81, 0x80, 0, 1, 0, 1, 0, 1, 0, 1]);
            bytes.truncate(bytes.len() - 11);
            for _ in 0..3 {
                bytes.extend_from_slice(b"\xc0\x0c");
                bytes.extend_from_slice(&kind.to_be_bytes());
                bytes.extend_from_slice(b"\0\x01\0\0\0\x3c");
                bytes.extend_from_slice(&u16::try_from(data.len()).expect("short").to_be_bytes());
                bytes.extend_from_slice(&data);
            }
            for (place, value) in changes {
                let place = usize::from(place) % bytes.len();
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = value;
                }
            }
            let request = Request::read(&question.bytes).expect("a question");
            if let Some(read) = question.read_answer(&bytes) {
                let reply = request.reply(&read.answer, max_bytes).expect("a reply");
                let again = question.read_answer(&reply).expect("an answer");
                let records = again.answer.records.len();
                let fits = reply.len() <= usize::from(max_bytes);
                prop_assert!(fits || again.is_truncated && records == 0);
            }
            Request::read(&bytes);
        }
    }
}
