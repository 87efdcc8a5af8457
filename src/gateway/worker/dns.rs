//! The DNS resolver of cells, at 10.0.2.3 and fd00::3: judges each name, and forwards questions
//! that it builds itself.
//!
//! A question can carry data out of the cell. So a name without a rule is refused here and not
//! forwarded, only a few record types are forwarded, answers are cached, and forwarded questions
//! count for the call. The resolver remembers each address that it returns, so that a connection
//! can be judged by the name it was resolved for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::base::Ttl;
use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use model::egress::frames::CallId;
use model::egress::{Connection, ConnectionEnd, Protocol, QUESTION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::account::{Allowance, Direction};
use super::dns_cache::{DnsCache, MAX_TTL};
use super::dns_message::{
    Answer, DnsQuestion, Request, UpstreamAnswer, UpstreamQuestion, address, address_record,
    plain_name,
};
use super::packet::{self, MTU, RESOLVER};
use super::stack::{CellStream, lock};
use super::traffic::{CellTraffic, audit_line, milliseconds_since};
use crate::refusal::NetworkRefusal;

/// Port of resolvers.
pub(crate) const PORT: u16 = 53;
/// Maximum size of an answer by UDP to a client that announces no size (RFC 1035).
const MAX_PLAIN_BYTES: u16 = 512;
/// Maximum size of an answer by UDP to a client that announces one.
const MAX_UDP_BYTES: u16 = 4_096;
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
const TYPES: [Rtype; 13] = [
    Rtype::A,
    Rtype::AAAA,
    Rtype::CNAME,
    Rtype::MX,
    Rtype::TXT,
    Rtype::SRV,
    Rtype::NS,
    Rtype::SOA,
    Rtype::PTR,
    Rtype::CAA,
    Rtype::NAPTR,
    Rtype::DS,
    Rtype::DNSKEY,
];

/// The transport by which a question came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

/// The resolver of a cell.
#[derive(Debug)]
pub(super) struct Resolver {
    pub traffic: Arc<CellTraffic>,
    pub cache: Mutex<DnsCache>,
    /// A permit for each question by UDP that may be answered at once.
    pub questions: Semaphore,
    /// Number of resolvers that the gateway knows.
    pub resolvers: u8,
    /// Names of the host's own table.
    pub hosts: Arc<Vec<(String, IpAddr)>>,
}

impl Resolver {
    /// Answers a datagram to the resolver.
    pub(super) async fn answer_datagram(
        self: Arc<Self>,
        from: SocketAddr,
        resolver: SocketAddr,
        bytes: Vec<u8>,
    ) {
        if let Some(answer) = self.answer(&bytes, Transport::Udp).await {
            self.traffic.link.send(packet::datagram(resolver, from, &answer));
        }
        self.questions.add_permits(1);
    }

    /// Answers questions over a connection to the resolver (RFC 7766).
    pub(super) async fn answer_stream(&self, mut cell: CellStream) {
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
        let request = Request::read(bytes)?;
        let answer = self.answer_question(&request).await;
        let max_bytes = match (transport, request.max_udp_bytes) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => MAX_PLAIN_BYTES,
            (Transport::Udp, Some(bytes)) => bytes.clamp(MAX_PLAIN_BYTES, MAX_UDP_BYTES),
        };
        request.reply(&answer, max_bytes)
    }

    /// Answers a message that has exactly one question.
    async fn answer_question(&self, request: &Request) -> Answer {
        let [question] = request.questions.as_slice() else {
            return Answer::empty(Rcode::FORMERR);
        };
        if request.opcode != Opcode::QUERY || question.qclass() != Class::IN {
            return Answer::empty(Rcode::NOTIMP);
        }
        let Some(name) = plain_name(question.qname()) else {
            return Answer::empty(Rcode::NXDOMAIN);
        };
        let resolves = lock(&self.traffic.judge).resolves(&name);
        if let Err(refusal) = resolves {
            return self.prohibited(&name, refusal, Rcode::NXDOMAIN);
        }
        // They hold the keys with which a client encrypts the name in its ClientHello.
        if [Rtype::HTTPS, Rtype::SVCB].contains(&question.qtype()) {
            return Answer::empty(Rcode::NOERROR);
        }
        if !TYPES.contains(&question.qtype()) {
            let refusal = NetworkRefusal::new("a question of a type that is not forwarded");
            return self.prohibited(&name, refusal, Rcode::NOTIMP);
        }
        if let Some(local) = self.local(&name, question) {
            return self.filter_answer(&name, question, local).await;
        }
        match self.resolve(&name, question.qtype()).await {
            Ok(answer) => self.filter_answer(&name, question, answer).await,
            Err(Unresolved::Silent) => Answer::empty(Rcode::SERVFAIL),
            Err(Unresolved::Over(refusal)) => self.prohibited(&name, refusal, Rcode::REFUSED),
        }
    }

    /// Answers from the host's own table of names, if it has the name.
    fn local(&self, name: &str, question: &DnsQuestion) -> Option<Answer> {
        let known = self.hosts.iter().filter(|(known, _)| known == name);
        let addresses: Vec<IpAddr> = known.map(|(_, address)| *address).collect();
        if addresses.is_empty() {
            return None;
        }
        let kind = |address: &IpAddr| match address {
            IpAddr::V4(_) => Rtype::A,
            IpAddr::V6(_) => Rtype::AAAA,
        };
        let wanted = addresses.into_iter().filter(|address| kind(address) == question.qtype());
        let records = wanted.map(|address| address_record(question.qname().clone(), 60, address));
        Some(Answer { records: records.collect(), ..Answer::empty(Rcode::NOERROR) })
    }

    /// Keeps the records of an upstream answer that the cell may see, and remembers their
    /// addresses.
    async fn filter_answer(&self, name: &str, question: &DnsQuestion, upstream: Answer) -> Answer {
        let addresses: Vec<IpAddr> = upstream.records.iter().filter_map(address).collect();
        let host_addresses = match addresses.is_empty() {
            true => Vec::new(),
            false => self.traffic.sockets.host_addresses(&addresses).await,
        };
        let mut answer = Answer::empty(upstream.code);
        let mut kept = 0_usize;
        let mut dropped = 0_usize;
        for mut record in upstream.records {
            let kind = record.rtype();
            if kind != question.qtype() && kind != Rtype::CNAME {
                continue;
            }
            if let Some(address) = address(&record) {
                let mut judge = lock(&self.traffic.judge);
                if host_addresses.contains(&address) || !judge.may_disclose(name, address) {
                    dropped = dropped.saturating_add(1);
                    continue;
                }
                judge.pin(address, name);
                kept = kept.saturating_add(1);
            }
            record.set_ttl(record.ttl().min(Ttl::from_secs(MAX_TTL)));
            answer.records.push(record);
        }
        if kept == 0 && dropped > 0 {
            let reason = "its addresses are never reached, or private".to_owned();
            let grant = Some(format!("[[egress]] hosts = [\"{name}\"], nets = [its network]"));
            return self.prohibited(name, NetworkRefusal { reason, grant }, Rcode::NOERROR);
        }
        // The SOA record says for how long an absence may be cached.
        let absences = upstream.authorities.into_iter();
        answer.authorities = absences.filter(|record| record.rtype() == Rtype::SOA).collect();
        answer
    }

    /// Counts a refusal and returns the answer that explains it (RFC 8914).
    fn prohibited(&self, name: &str, refusal: NetworkRefusal, code: Rcode) -> Answer {
        let text = match &refusal.grant {
            Some(grant) => format!("{}; {grant}", refusal.reason),
            None => refusal.reason.clone(),
        };
        let answer = Answer { explanation: Some(text), ..Answer::empty(code) };
        let mut account = lock(&self.traffic.account);
        let call = account.call();
        account.count_denied(call, name.to_owned(), refusal);
        drop(account);
        answer
    }

    /// Returns the cached answer for a name and type, or asks the host's resolvers.
    async fn resolve(&self, name: &str, kind: Rtype) -> Result<Answer, Unresolved> {
        let cached = lock(&self.cache).get(name, kind, Instant::now());
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let since = Instant::now();
        let mut forwarded = ForwardedQuestion { call: self.traffic.call(), sent: 0, received: 0 };
        let resolved = self.forward(name, kind, &mut forwarded).await;
        if let Ok((answer, bytes)) = &resolved {
            lock(&self.cache).insert(name, kind, answer, *bytes, Instant::now());
        }
        if forwarded.sent > 0 {
            let end = match &resolved {
                Ok(_) => ConnectionEnd::Relayed,
                Err(Unresolved::Silent) => ConnectionEnd::Timeout,
                Err(Unresolved::Over(_)) => ConnectionEnd::Limit,
            };
            // The cell must not learn which of the host's resolvers answered.
            let address = SocketAddr::new(RESOLVER[0], PORT);
            let question = Connection {
                sent: forwarded.sent,
                received: forwarded.received,
                milliseconds: milliseconds_since(since),
                request: Some(format!("{QUESTION}{kind}")),
                ..audit_line(Protocol::Udp, address, Some(name.to_owned()), end)
            };
            self.traffic.audit(forwarded.call, question);
        }
        resolved.map(|(answer, _)| answer)
    }

    /// Asks the host's resolvers a question that the worker builds: only the name and the type come
    /// from the cell. Returns the answer and its size in bytes.
    async fn forward(
        &self,
        name: &str,
        kind: Rtype,
        forwarded: &mut ForwardedQuestion,
    ) -> Result<(Answer, usize), Unresolved> {
        let question = number().and_then(|number| UpstreamQuestion::new(number, name, kind));
        let question = question.ok_or(Unresolved::Silent)?;
        for _ in 0..ROUNDS {
            for resolver in 0..self.resolvers {
                let exchange = self.exchange(resolver, &question, forwarded);
                match timeout(RESOLVER_TIMEOUT, exchange).await {
                    Ok(Ok((resolved, bytes))) if resolved.is_settled => {
                        return Ok((resolved.answer, bytes));
                    }
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
        question: &UpstreamQuestion,
        forwarded: &mut ForwardedQuestion,
    ) -> Result<(UpstreamAnswer, usize), ExchangeError> {
        let bytes = question.bytes.as_slice();
        let socket = self.traffic.sockets.resolver(resolver).await?;
        self.count_bytes(forwarded, Direction::Sent, bytes.len()).await?;
        socket.send(bytes).await?;
        let mut buffer = vec![0; MTU];
        loop {
            let length = socket.recv(&mut buffer).await?;
            self.count_bytes(forwarded, Direction::Received, length).await?;
            let answer = question.read_answer(buffer.get(..length).unwrap_or_default());
            let Some(answer) = answer else { continue };
            if !answer.is_truncated {
                return Ok((answer, length));
            }
            let mut stream = self.traffic.sockets.resolver_stream(resolver).await?;
            let length = u16::try_from(bytes.len()).map_err(|_| ExchangeError::Io)?;
            // Includes the two bytes of the length.
            self.count_bytes(forwarded, Direction::Sent, bytes.len().saturating_add(2)).await?;
            stream.write_u16(length).await?;
            stream.write_all(bytes).await?;
            let mut buffer = vec![0; usize::from(stream.read_u16().await?)];
            stream.read_exact(&mut buffer).await?;
            self.count_bytes(forwarded, Direction::Received, buffer.len().saturating_add(2))
                .await?;
            let answer = question.read_answer(&buffer).ok_or(ExchangeError::Io)?;
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
        let mut account = lock(&self.traffic.account);
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
    Over(NetworkRefusal),
}

/// Why the exchange with one resolver failed.
#[derive(Debug)]
enum ExchangeError {
    Io,
    Over(NetworkRefusal),
}

impl From<io::Error> for ExchangeError {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

/// Draws a random question number.
fn number() -> Option<u16> {
    let mut bytes = [0; 2];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    drawn.is_ok_and(|length| length == bytes.len()).then_some(u16::from_ne_bytes(bytes))
}
