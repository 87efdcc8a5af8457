//! The resolver that cells have, at 10.0.2.3 and fd00::3: names by rule, forwarded in questions of its own.
//!
//! A name that no rule has is answered here and is not forwarded: a question can carry data out. So can the type, of which
//! few are forwarded, and the number of questions: answers are kept, and what is forwarded counts for the call. Addresses that are told
//! are remembered, so that connections can be judged by the name that they were made for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use model::egress::frames::CallId;
use model::egress::{Connection, ConnectionEnd, Protocol, QUESTION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Worker;
use super::account::{Allowance, Way};
use super::judge::Refusal;
use super::kept::LONGEST;
use super::packet::{self, MTU, RESOLVER};
use super::stack::{CellStream, hold};

/// The port of resolvers.
pub(crate) const PORT: u16 = 53;
/// Code of the option "Extended DNS Error", and of its error "Prohibited" (RFC 8914).
const EDE: u16 = 15;
const PROHIBITED: u16 = 18;
/// Bytes of an answer by UDP to a client that says nothing of it (RFC 1035), and the most to one that does.
const PLAIN_BYTES: u16 = 512;
const MOST_BYTES: u16 = 4_096;
/// Bytes of answers that are asked for by UDP: such are not fragmented (RFC 9715).
const ASKED_BYTES: u16 = 1_232;
/// Time for one resolver's answer, and rounds of asking them all.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// Most questions over one TCP connection, and the time between two.
const QUESTIONS: usize = 1_000;
const IDLE: Duration = Duration::from_secs(30);
/// Types that are asked for. The number of any other would be two bytes of the cell's choice in each question.
const TYPES: [RecordType; 13] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::CNAME,
    RecordType::MX,
    RecordType::TXT,
    RecordType::SRV,
    RecordType::NS,
    RecordType::SOA,
    RecordType::PTR,
    RecordType::CAA,
    RecordType::NAPTR,
    RecordType::DS,
    RecordType::DNSKEY,
];

/// The way by which a question came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

impl Worker {
    /// Answers a datagram to the resolver.
    pub(crate) async fn asked(
        self: Arc<Self>,
        from: SocketAddr,
        resolver: SocketAddr,
        bytes: Vec<u8>,
    ) {
        if let Some(answer) = self.answer(&bytes, Transport::Udp).await {
            self.link.send(packet::datagram(resolver, from, &answer));
        }
        self.questions.add_permits(1);
    }

    /// Answers questions over a connection to the resolver (RFC 7766).
    pub(crate) async fn asked_by_stream(self: Arc<Self>, mut cell: CellStream) {
        for _ in 0..QUESTIONS {
            let Ok(Ok(length)) = timeout(IDLE, cell.read_u16()).await else { break };
            let mut question = vec![0; usize::from(length)];
            match timeout(IDLE, cell.read_exact(&mut question)).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => break,
            }
            let Some(answer) = self.answer(&question, Transport::Tcp).await else { break };
            let Ok(length) = u16::try_from(answer.len()) else { break };
            let mut message = length.to_be_bytes().to_vec();
            message.extend_from_slice(&answer);
            match timeout(IDLE, cell.write_all(&message)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
        cell.finish();
    }

    /// Returns the answer to a message; nothing to one that is no question.
    async fn answer(&self, bytes: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let asked = Message::from_vec(bytes).ok()?;
        if asked.metadata.message_type != MessageType::Query {
            return None;
        }
        let mut answer = self.answered(&asked).await;
        answer.metadata.id = asked.metadata.id;
        answer.metadata.recursion_desired = asked.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.queries.clone_from(&asked.queries);
        if asked.edns.is_none() {
            answer.edns = None;
        }
        let whole = answer.to_vec().ok()?;
        let most = match (transport, &asked.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => PLAIN_BYTES,
            (Transport::Udp, Some(edns)) => edns.max_payload().clamp(PLAIN_BYTES, MOST_BYTES),
        };
        if whole.len() <= usize::from(most) { Some(whole) } else { answer.truncate().to_vec().ok() }
    }

    /// Answers the one question of a message.
    async fn answered(&self, asked: &Message) -> Message {
        let [question] = asked.queries.as_slice() else {
            return failure(ResponseCode::FormErr);
        };
        if asked.metadata.op_code != OpCode::Query || question.query_class != DNSClass::IN {
            return failure(ResponseCode::NotImp);
        }
        let Some(name) = plain_name(&question.name) else {
            return failure(ResponseCode::NXDomain);
        };
        let resolves = hold(&self.judge).resolves(&name);
        if let Err(refusal) = resolves {
            return self.prohibited(&name, refusal, ResponseCode::NXDomain);
        }
        // They hold the keys by which a client hides the name in its ClientHello.
        if matches!(question.query_type, RecordType::HTTPS | RecordType::SVCB) {
            return failure(ResponseCode::NoError);
        }
        if !TYPES.contains(&question.query_type) {
            let why = "a question of a type that is not forwarded".to_owned();
            return self.prohibited(&name, Refusal { why, grant: None }, ResponseCode::NotImp);
        }
        if let Some(local) = self.local(&name, question) {
            return self.told_addresses(&name, question, local).await;
        }
        match self.resolved(&name, question.query_type).await {
            Ok(answer) => self.told_addresses(&name, question, answer).await,
            Err(Unresolved::Silent) => failure(ResponseCode::ServFail),
            Err(Unresolved::Over(refusal)) => {
                self.prohibited(&name, refusal, ResponseCode::Refused)
            }
        }
    }

    /// Returns the answer of the host's own table of names, where it has the name.
    fn local(&self, name: &str, question: &Query) -> Option<Message> {
        let known = self.hosts.iter().filter(|(known, _)| known == name);
        let addresses: Vec<IpAddr> = known.map(|(_, address)| *address).collect();
        if addresses.is_empty() {
            return None;
        }
        let mut answer = failure(ResponseCode::NoError);
        let kind = |address: &IpAddr| match address {
            IpAddr::V4(_) => RecordType::A,
            IpAddr::V6(_) => RecordType::AAAA,
        };
        let wanted = addresses.into_iter().filter(|address| kind(address) == question.query_type);
        for address in wanted {
            let data = match address {
                IpAddr::V4(v4) => RData::A(v4.into()),
                IpAddr::V6(v6) => RData::AAAA(v6.into()),
            };
            answer.add_answer(Record::from_rdata(question.name.clone(), 60, data));
        }
        Some(answer)
    }

    /// Returns of an upstream answer what the cell may be told, and remembers its addresses.
    async fn told_addresses(&self, name: &str, question: &Query, upstream: Message) -> Message {
        let addresses = upstream.answers.iter().filter_map(|record| record.data.ip_addr());
        let addresses: Vec<IpAddr> = addresses.collect();
        let own = match addresses.is_empty() {
            true => Vec::new(),
            false => self.sockets.own(&addresses).await,
        };
        let mut told = failure(upstream.metadata.response_code);
        let mut kept = 0_usize;
        let mut dropped = 0_usize;
        for mut record in upstream.answers {
            let kind = record.record_type();
            if kind != question.query_type && kind != RecordType::CNAME {
                continue;
            }
            let address = record.data.ip_addr();
            if let Some(address) = address {
                let mut judge = hold(&self.judge);
                if own.contains(&address) || !judge.tells(name, address) {
                    dropped = dropped.saturating_add(1);
                    continue;
                }
                judge.pin(address, name);
                kept = kept.saturating_add(1);
            }
            record.ttl = record.ttl.min(LONGEST);
            told.add_answer(record);
        }
        if kept == 0 && dropped > 0 {
            let why = "its addresses are never reached, or private".to_owned();
            let grant = Some(format!("[[egress]] hosts = [\"{name}\"], nets = [its network]"));
            return self.prohibited(name, Refusal { why, grant }, ResponseCode::NoError);
        }
        // For how long a name's absence may be kept.
        let absences = upstream.authorities.into_iter();
        for record in absences.filter(|record| record.record_type() == RecordType::SOA) {
            told.add_authority(record);
        }
        told
    }

    /// Counts a refusal and returns the answer that tells it (RFC 8914).
    fn prohibited(&self, name: &str, refusal: Refusal, code: ResponseCode) -> Message {
        let text = match &refusal.grant {
            Some(grant) => format!("{}; {grant}", refusal.why),
            None => refusal.why.clone(),
        };
        let mut data = PROHIBITED.to_be_bytes().to_vec();
        data.extend_from_slice(text.as_bytes());
        let mut edns = Edns::new();
        edns.set_max_payload(ASKED_BYTES);
        edns.options_mut().insert(EdnsOption::Unknown(EDE, data));
        let mut answer = failure(code);
        answer.set_edns(edns);
        let mut account = hold(&self.account);
        let call = account.call();
        account.denied(call, name.to_owned(), refusal);
        drop(account);
        answer
    }

    /// Returns the answer that is kept for a name and type, or that of the host's resolvers.
    async fn resolved(&self, name: &str, kind: RecordType) -> Result<Message, Unresolved> {
        let kept = hold(&self.kept).get(name, kind, Instant::now());
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let since = Instant::now();
        let mut asked = Asked { call: self.call(), sent: 0, received: 0 };
        let resolved = self.forwarded(name, kind, &mut asked).await;
        if let Ok((answer, bytes)) = &resolved {
            hold(&self.kept).keep(name, kind, (answer, *bytes), Instant::now());
        }
        if asked.sent > 0 {
            let end = match &resolved {
                Ok(_) => ConnectionEnd::Relayed,
                Err(Unresolved::Silent) => ConnectionEnd::Timeout,
                Err(Unresolved::Over(_)) => ConnectionEnd::Limit,
            };
            let milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let question = Connection {
                protocol: Protocol::Udp,
                name: Some(name.to_owned()),
                // Which of the host's it was is the host's own affair.
                address: SocketAddr::new(RESOLVER[0], PORT),
                rule: None,
                sent: asked.sent,
                received: asked.received,
                milliseconds,
                end,
                request: Some(format!("{QUESTION}{kind}")),
            };
            self.audit(asked.call, question);
        }
        resolved.map(|(answer, _)| answer)
    }

    /// Asks the host's resolvers in a question of the worker's making, with nothing of the cell's but name and type.
    /// Returns the answer and its bytes.
    async fn forwarded(
        &self,
        name: &str,
        kind: RecordType,
        asked: &mut Asked,
    ) -> Result<(Message, usize), Unresolved> {
        let question = question(name, kind).ok_or(Unresolved::Silent)?;
        let bytes = question.to_vec().map_err(|_| Unresolved::Silent)?;
        for _ in 0..ROUNDS {
            for resolver in 0..self.resolvers {
                let exchange = self.exchange(resolver, &question, &bytes, asked);
                match timeout(PATIENCE, exchange).await {
                    Ok(Ok(answer)) if answers(&answer.0) => return Ok(answer),
                    Ok(Err(Broken::Over(refusal))) => return Err(Unresolved::Over(refusal)),
                    Ok(Ok(_) | Err(Broken::Io)) | Err(_) => {}
                }
            }
        }
        Err(Unresolved::Silent)
    }

    /// Asks one resolver: by UDP, and by TCP where the answer is longer.
    async fn exchange(
        &self,
        resolver: u8,
        question: &Message,
        bytes: &[u8],
        asked: &mut Asked,
    ) -> Result<(Message, usize), Broken> {
        let socket = self.sockets.resolver(resolver).await?;
        self.counted(asked, Way::Sent, bytes.len()).await?;
        socket.send(bytes).await?;
        let mut buffer = vec![0; MTU];
        loop {
            let length = socket.recv(&mut buffer).await?;
            self.counted(asked, Way::Received, length).await?;
            let Some(answer) = read(buffer.get(..length).unwrap_or_default(), question) else {
                continue;
            };
            if !answer.metadata.truncation {
                return Ok((answer, length));
            }
            let mut stream = self.sockets.resolver_stream(resolver).await?;
            let length = u16::try_from(bytes.len()).map_err(|_| Broken::Io)?;
            // With the two bytes of the length.
            self.counted(asked, Way::Sent, bytes.len().saturating_add(2)).await?;
            stream.write_u16(length).await?;
            stream.write_all(bytes).await?;
            let mut buffer = vec![0; usize::from(stream.read_u16().await?)];
            stream.read_exact(&mut buffer).await?;
            self.counted(asked, Way::Received, buffer.len().saturating_add(2)).await?;
            let answer = read(&buffer, question).ok_or(Broken::Io)?;
            return Ok((answer, buffer.len()));
        }
    }

    /// Takes the bytes of a question or an answer from what the call may move, before they are moved; waits for the
    /// rate.
    async fn counted(&self, asked: &mut Asked, way: Way, bytes: usize) -> Result<(), Broken> {
        while let Some(time) = self.takes(asked, way, bytes)? {
            tokio::time::sleep(time).await;
        }
        Ok(())
    }

    /// Takes them if it can. Returns the time after which to try again where it cannot yet.
    fn takes(&self, asked: &mut Asked, way: Way, bytes: usize) -> Result<Option<Duration>, Broken> {
        let length = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut account = hold(&self.account);
        account.bytes_left(asked.call, way, length).map_err(Broken::Over)?;
        // Without room for an answer there is no question.
        account.bytes_left(asked.call, Way::Received, 1).map_err(Broken::Over)?;
        if let Allowance::Wait(time) = account.allowance_of_packet(asked.call, way, bytes) {
            return Ok(Some(time));
        }
        match way {
            Way::Sent => {
                account.questioned(asked.call, bytes);
                asked.sent = asked.sent.saturating_add(length);
            }
            Way::Received => {
                account.moved_by(asked.call, way, bytes);
                asked.received = asked.received.saturating_add(length);
            }
        }
        Ok(None)
    }
}

/// A question that is being forwarded, and the bytes that it has cost its call.
#[derive(Debug)]
struct Asked {
    call: CallId,
    sent: u64,
    received: u64,
}

/// Reason why a question has no answer.
#[derive(Debug)]
enum Unresolved {
    /// No resolver answered.
    Silent,
    /// A limit of the call is reached.
    Over(Refusal),
}

/// Reason why one resolver was not asked to the end.
#[derive(Debug)]
enum Broken {
    Io,
    Over(Refusal),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

/// Makes a question of the worker's: its number, flags, class and options are the same whatever the cell's were.
fn question(name: &str, kind: RecordType) -> Option<Message> {
    let mut question = Message::new(number()?, MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(Name::from_ascii(format!("{name}.")).ok()?, kind));
    let mut edns = Edns::new();
    edns.set_max_payload(ASKED_BYTES);
    question.set_edns(edns);
    Some(question)
}

/// Draws the number of a question. Not by the library: in a static program its source of random numbers is a file, and a
/// worker can open none.
fn number() -> Option<u16> {
    let mut bytes = [0; 2];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    drawn.is_ok_and(|length| length == bytes.len()).then_some(u16::from_ne_bytes(bytes))
}

/// Returns true for an answer that says something of the name.
fn answers(answer: &Message) -> bool {
    matches!(answer.metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain)
}

/// Reads an answer to this very question.
fn read(bytes: &[u8], question: &Message) -> Option<Message> {
    let answer = Message::from_vec(bytes).ok()?;
    let same = |one: &Query, other: &Query| {
        one.query_type == other.query_type && one.name.to_lowercase() == other.name.to_lowercase()
    };
    let matches = answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == question.metadata.id
        && answer.queries.len() == question.queries.len()
        && answer.queries.iter().zip(&question.queries).all(|(one, other)| same(one, other));
    matches.then_some(answer)
}

/// Returns an empty answer.
fn failure(code: ResponseCode) -> Message {
    Message::error_msg(0, OpCode::Query, code)
}

/// Returns the names that a message asks for and that can be judged.
pub(crate) fn names(bytes: &[u8]) -> Vec<String> {
    let queries = Message::from_vec(bytes).map(|message| message.queries).unwrap_or_default();
    queries.iter().filter_map(|query| plain_name(&query.name)).collect()
}

/// Returns a name in lower case without the dot at its end; nothing if it is not made of plain labels.
fn plain_name(name: &Name) -> Option<String> {
    let plain = |label: &[u8]| {
        label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if name.is_root() || !name.iter().all(plain) {
        return None;
    }
    // Put together here: a name's own text has a backslash before a label's first hyphen.
    let labels: Option<Vec<_>> = name.iter().map(|label| std::str::from_utf8(label).ok()).collect();
    Some(labels?.join(".").to_ascii_lowercase())
}
