//! The DNS resolver of cells, at 10.0.2.3 and fd00::3: judges each name, and forwards questions
//! that it builds itself.
//!
//! A question can carry data out of the cell. So a name without a rule is refused here and not
//! forwarded, only a few record types are forwarded, answers are cached, and forwarded questions
//! count for the call. The resolver remembers each address that it returns, so that a connection
//! can be judged by the name it was resolved for.

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
use super::account::{Allowance, Direction};
use super::dns_cache::MAX_TTL;
use super::judge::Refusal;
use super::packet::{self, MTU, RESOLVER};
use super::stack::{CellStream, lock};

/// Port of resolvers.
pub(crate) const PORT: u16 = 53;
/// Code of the option "Extended DNS Error" (RFC 8914).
const EDE: u16 = 15;
/// Code of its error "Prohibited".
const PROHIBITED: u16 = 18;
/// Maximum size of an answer by UDP to a client that announces no size (RFC 1035).
const MAX_PLAIN_BYTES: u16 = 512;
/// Maximum size of an answer by UDP to a client that announces one.
const MAX_UDP_BYTES: u16 = 4_096;
/// Maximum size of answers that resolvers are asked for by UDP: smaller packets are not fragmented
/// (RFC 9715).
const MAX_UPSTREAM_BYTES: u16 = 1_232;
/// Time for the answer of one resolver.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often all resolvers are tried in turn.
const ROUNDS: usize = 2;
/// Maximum number of questions over one TCP connection.
const MAX_STREAM_QUESTIONS: usize = 1_000;
/// Time between two questions over one TCP connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Record types that are forwarded. Any other type number would carry two bytes of the cell's
/// choice.
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

/// The transport by which a question came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

impl Worker {
    /// Answers a datagram to the resolver.
    pub(crate) async fn answer_datagram(
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
    pub(crate) async fn answer_stream(self: Arc<Self>, mut cell: CellStream) {
        for _ in 0..MAX_STREAM_QUESTIONS {
            let Ok(Ok(length)) = timeout(IDLE_TIMEOUT, cell.read_u16()).await else { break };
            let mut question = vec![0; usize::from(length)];
            match timeout(IDLE_TIMEOUT, cell.read_exact(&mut question)).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => break,
            }
            let Some(answer) = self.answer(&question, Transport::Tcp).await else { break };
            let Ok(length) = u16::try_from(answer.len()) else { break };
            let mut message = length.to_be_bytes().to_vec();
            message.extend_from_slice(&answer);
            match timeout(IDLE_TIMEOUT, cell.write_all(&message)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
        cell.finish();
    }

    /// Returns the answer to a message; `None` if the message is not a question.
    async fn answer(&self, bytes: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let request = Message::from_vec(bytes).ok()?;
        if request.metadata.message_type != MessageType::Query {
            return None;
        }
        let mut answer = self.answer_question(&request).await;
        answer.metadata.id = request.metadata.id;
        answer.metadata.recursion_desired = request.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.queries.clone_from(&request.queries);
        if request.edns.is_none() {
            answer.edns = None;
        }
        let whole = answer.to_vec().ok()?;
        let max_bytes = match (transport, &request.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => MAX_PLAIN_BYTES,
            (Transport::Udp, Some(edns)) => {
                edns.max_payload().clamp(MAX_PLAIN_BYTES, MAX_UDP_BYTES)
            }
        };
        if whole.len() <= usize::from(max_bytes) {
            Some(whole)
        } else {
            answer.truncate().to_vec().ok()
        }
    }

    /// Answers a message that has exactly one question.
    async fn answer_question(&self, request: &Message) -> Message {
        let [question] = request.queries.as_slice() else {
            return failure(ResponseCode::FormErr);
        };
        if request.metadata.op_code != OpCode::Query || question.query_class != DNSClass::IN {
            return failure(ResponseCode::NotImp);
        }
        let Some(name) = plain_name(&question.name) else {
            return failure(ResponseCode::NXDomain);
        };
        let resolves = lock(&self.judge).resolves(&name);
        if let Err(refusal) = resolves {
            return self.prohibited(&name, refusal, ResponseCode::NXDomain);
        }
        // They hold the keys with which a client encrypts the name in its ClientHello.
        if matches!(question.query_type, RecordType::HTTPS | RecordType::SVCB) {
            return failure(ResponseCode::NoError);
        }
        if !TYPES.contains(&question.query_type) {
            let reason = "a question of a type that is not forwarded".to_owned();
            return self.prohibited(&name, Refusal { reason, grant: None }, ResponseCode::NotImp);
        }
        if let Some(local) = self.local(&name, question) {
            return self.filter_answer(&name, question, local).await;
        }
        match self.resolve(&name, question.query_type).await {
            Ok(answer) => self.filter_answer(&name, question, answer).await,
            Err(Unresolved::Silent) => failure(ResponseCode::ServFail),
            Err(Unresolved::Over(refusal)) => {
                self.prohibited(&name, refusal, ResponseCode::Refused)
            }
        }
    }

    /// Answers from the host's own table of names, if it has the name.
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

    /// Keeps the records of an upstream answer that the cell may see, and remembers their
    /// addresses.
    async fn filter_answer(&self, name: &str, question: &Query, upstream: Message) -> Message {
        let addresses = upstream.answers.iter().filter_map(|record| record.data.ip_addr());
        let addresses: Vec<IpAddr> = addresses.collect();
        let host_addresses = match addresses.is_empty() {
            true => Vec::new(),
            false => self.sockets.host_addresses(&addresses).await,
        };
        let mut answer = failure(upstream.metadata.response_code);
        let mut kept = 0_usize;
        let mut dropped = 0_usize;
        for mut record in upstream.answers {
            let kind = record.record_type();
            if kind != question.query_type && kind != RecordType::CNAME {
                continue;
            }
            let address = record.data.ip_addr();
            if let Some(address) = address {
                let mut judge = lock(&self.judge);
                if host_addresses.contains(&address) || !judge.may_disclose(name, address) {
                    dropped = dropped.saturating_add(1);
                    continue;
                }
                judge.pin(address, name);
                kept = kept.saturating_add(1);
            }
            record.ttl = record.ttl.min(MAX_TTL);
            answer.add_answer(record);
        }
        if kept == 0 && dropped > 0 {
            let reason = "its addresses are never reached, or private".to_owned();
            let grant = Some(format!("[[egress]] hosts = [\"{name}\"], nets = [its network]"));
            return self.prohibited(name, Refusal { reason, grant }, ResponseCode::NoError);
        }
        // The SOA record says for how long an absence may be cached.
        let absences = upstream.authorities.into_iter();
        for record in absences.filter(|record| record.record_type() == RecordType::SOA) {
            answer.add_authority(record);
        }
        answer
    }

    /// Counts a refusal and returns the answer that explains it (RFC 8914).
    fn prohibited(&self, name: &str, refusal: Refusal, code: ResponseCode) -> Message {
        let text = match &refusal.grant {
            Some(grant) => format!("{}; {grant}", refusal.reason),
            None => refusal.reason.clone(),
        };
        let mut data = PROHIBITED.to_be_bytes().to_vec();
        data.extend_from_slice(text.as_bytes());
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UPSTREAM_BYTES);
        edns.options_mut().insert(EdnsOption::Unknown(EDE, data));
        let mut answer = failure(code);
        answer.set_edns(edns);
        let mut account = lock(&self.account);
        let call = account.call();
        account.count_denied(call, name.to_owned(), refusal);
        drop(account);
        answer
    }

    /// Returns the cached answer for a name and type, or asks the host's resolvers.
    async fn resolve(&self, name: &str, kind: RecordType) -> Result<Message, Unresolved> {
        let cached = lock(&self.dns_cache).get(name, kind, Instant::now());
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let since = Instant::now();
        let mut forwarded = ForwardedQuestion { call: self.call(), sent: 0, received: 0 };
        let resolved = self.forward(name, kind, &mut forwarded).await;
        if let Ok((answer, bytes)) = &resolved {
            lock(&self.dns_cache).insert(name, kind, answer, *bytes, Instant::now());
        }
        if forwarded.sent > 0 {
            let end = match &resolved {
                Ok(_) => ConnectionEnd::Relayed,
                Err(Unresolved::Silent) => ConnectionEnd::Timeout,
                Err(Unresolved::Over(_)) => ConnectionEnd::Limit,
            };
            let milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let question = Connection {
                protocol: Protocol::Udp,
                name: Some(name.to_owned()),
                // The cell must not learn which of the host's resolvers answered.
                address: SocketAddr::new(RESOLVER[0], PORT),
                rule: None,
                sent: forwarded.sent,
                received: forwarded.received,
                milliseconds,
                end,
                request: Some(format!("{QUESTION}{kind}")),
            };
            self.audit(forwarded.call, question);
        }
        resolved.map(|(answer, _)| answer)
    }

    /// Asks the host's resolvers a question that the worker builds: only the name and the type come
    /// from the cell. Returns the answer and its size in bytes.
    async fn forward(
        &self,
        name: &str,
        kind: RecordType,
        forwarded: &mut ForwardedQuestion,
    ) -> Result<(Message, usize), Unresolved> {
        let question = question(name, kind).ok_or(Unresolved::Silent)?;
        let bytes = question.to_vec().map_err(|_| Unresolved::Silent)?;
        for _ in 0..ROUNDS {
            for resolver in 0..self.resolvers {
                let exchange = self.exchange(resolver, &question, &bytes, forwarded);
                match timeout(RESOLVER_TIMEOUT, exchange).await {
                    Ok(Ok(answer)) if answers(&answer.0) => return Ok(answer),
                    Ok(Err(ExchangeError::Over(refusal))) => return Err(Unresolved::Over(refusal)),
                    Ok(Ok(_) | Err(ExchangeError::Io)) | Err(_) => {}
                }
            }
        }
        Err(Unresolved::Silent)
    }

    /// Asks one resolver by UDP, and again by TCP if the answer was truncated.
    async fn exchange(
        &self,
        resolver: u8,
        question: &Message,
        bytes: &[u8],
        forwarded: &mut ForwardedQuestion,
    ) -> Result<(Message, usize), ExchangeError> {
        let socket = self.sockets.resolver(resolver).await?;
        self.count_bytes(forwarded, Direction::Sent, bytes.len()).await?;
        socket.send(bytes).await?;
        let mut buffer = vec![0; MTU];
        loop {
            let length = socket.recv(&mut buffer).await?;
            self.count_bytes(forwarded, Direction::Received, length).await?;
            let Some(answer) = read(buffer.get(..length).unwrap_or_default(), question) else {
                continue;
            };
            if !answer.metadata.truncation {
                return Ok((answer, length));
            }
            let mut stream = self.sockets.resolver_stream(resolver).await?;
            let length = u16::try_from(bytes.len()).map_err(|_| ExchangeError::Io)?;
            // Includes the two bytes of the length.
            self.count_bytes(forwarded, Direction::Sent, bytes.len().saturating_add(2)).await?;
            stream.write_u16(length).await?;
            stream.write_all(bytes).await?;
            let mut buffer = vec![0; usize::from(stream.read_u16().await?)];
            stream.read_exact(&mut buffer).await?;
            self.count_bytes(forwarded, Direction::Received, buffer.len().saturating_add(2))
                .await?;
            let answer = read(&buffer, question).ok_or(ExchangeError::Io)?;
            return Ok((answer, buffer.len()));
        }
    }

    /// Takes the bytes of a question or answer from the call's limits before they are moved; waits
    /// for the rate.
    async fn count_bytes(
        &self,
        forwarded: &mut ForwardedQuestion,
        direction: Direction,
        bytes: usize,
    ) -> Result<(), ExchangeError> {
        while let Some(time) = self.try_count(forwarded, direction, bytes)? {
            tokio::time::sleep(time).await;
        }
        Ok(())
    }

    /// Takes the bytes now if the rate allows. Otherwise returns the time after which to try again.
    fn try_count(
        &self,
        forwarded: &mut ForwardedQuestion,
        direction: Direction,
        bytes: usize,
    ) -> Result<Option<Duration>, ExchangeError> {
        let length = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut account = lock(&self.account);
        account.check_bytes_left(forwarded.call, direction, length).map_err(ExchangeError::Over)?;
        // A question is not sent unless the limits leave room for an answer.
        account
            .check_bytes_left(forwarded.call, Direction::Received, 1)
            .map_err(ExchangeError::Over)?;
        if let Allowance::Wait(time) = account.allowance_of_packet(forwarded.call, direction, bytes)
        {
            return Ok(Some(time));
        }
        match direction {
            Direction::Sent => {
                account.count_question(forwarded.call, bytes);
                forwarded.sent = forwarded.sent.saturating_add(length);
            }
            Direction::Received => {
                account.count_bytes(forwarded.call, direction, bytes);
                forwarded.received = forwarded.received.saturating_add(length);
            }
        }
        Ok(None)
    }
}

/// A question that is being forwarded, with the bytes it has cost its call.
#[derive(Debug)]
struct ForwardedQuestion {
    call: CallId,
    sent: u64,
    received: u64,
}

/// Why a question was not resolved.
#[derive(Debug)]
enum Unresolved {
    /// No resolver answered.
    Silent,
    /// A limit of the call is reached.
    Over(Refusal),
}

/// Why the exchange with one resolver failed.
#[derive(Debug)]
enum ExchangeError {
    Io,
    Over(Refusal),
}

impl From<io::Error> for ExchangeError {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

/// Builds the worker's own question: number, flags, class and options are independent of the
/// cell's.
fn question(name: &str, kind: RecordType) -> Option<Message> {
    let mut question = Message::new(number()?, MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(Name::from_ascii(format!("{name}.")).ok()?, kind));
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_UPSTREAM_BYTES);
    question.set_edns(edns);
    Some(question)
}

/// Draws a random question number. The library's generator would read a file, as it does in a
/// static program, and a worker can open no file.
fn number() -> Option<u16> {
    let mut bytes = [0; 2];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    drawn.is_ok_and(|length| length == bytes.len()).then_some(u16::from_ne_bytes(bytes))
}

/// Returns true for an answer that settles whether the name exists.
fn answers(answer: &Message) -> bool {
    matches!(answer.metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain)
}

/// Parses a message; `None` unless it answers this question.
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

/// Returns a name in lower case without a trailing dot; `None` if a label has other characters than
/// letters, digits, `-` and `_`.
fn plain_name(name: &Name) -> Option<String> {
    let plain = |label: &[u8]| {
        label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if name.is_root() || !name.iter().all(plain) {
        return None;
    }
    // Joined here, as the text of `Name` has a backslash before a leading hyphen.
    let labels: Option<Vec<_>> = name.iter().map(|label| std::str::from_utf8(label).ok()).collect();
    Some(labels?.join(".").to_ascii_lowercase())
}
