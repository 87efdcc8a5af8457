//! Answers questions for names in a cell whose network is its loopback, and remembers the names for
//! the report.
//!
//! No name is known there, so that every question gets NXDOMAIN at once. An answer is needed all the
//! same: without one, the failure would look temporary (EAI_AGAIN), and installers would retry for a
//! minute. And by the questions a reply can list the hosts that the operator would have to grant.
//!
//! Programs of the cell send these messages. Init parses them with the rights of these programs, and
//! remembers only names that a rule of egress can have.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, recvmsg, sendmsg, socket,
};

use crate::report::{MAX_HOSTS, UnreachedHost};
use model::egress::{HostPattern, NetworkClass};
use model::outcome::DENIALS_COUNTED;
use model::profile::{Family, HOST_NAME, Profile};
use sys::Result;

/// Length of a message's header (RFC 1035, 4.1.1).
const HEADER_BYTES: usize = 12;
/// Maximum length of a question by UDP; longer ones are cut, and then not answered.
const MAX_QUESTION_BYTES: usize = 512;
/// Record types of addresses: A and AAAA.
const TYPES: [u16; 2] = [1, 28];

/// The socket that questions come to, and the names that were asked for.
#[derive(Debug, Default)]
pub(super) struct UnresolvedNames {
    socket: Option<OwnedFd>,
    asked: Vec<AskedName>,
}

/// A name, with the number of questions for each type of address: the C library asks for both at
/// once.
#[derive(Debug)]
struct AskedName {
    name: String,
    counts: [u32; 2],
}

/// A message with one question.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    /// In lower case, without the last dot; `None` if it is not the name of a host.
    name: Option<String>,
    record_type: u16,
    /// Length of the header and the question.
    length: usize,
}

/// Returns true if init answers questions in cells of `profile`.
#[must_use]
pub fn is_asked(profile: &Profile) -> bool {
    profile.egress.class == NetworkClass::Loopback && profile.families.contains(&Family::Inet)
}

/// Opens the socket at 127.0.0.1:53, where resolvers ask if resolv.conf(5) names no server. Needs
/// CAP_NET_BIND_SERVICE in the cell's network namespace.
///
/// # Errors
/// The errno of socket(2) or bind(2).
pub fn open() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 53))?;
    Ok(socket)
}

impl UnresolvedNames {
    pub(super) fn new(socket: Option<OwnedFd>) -> Self {
        Self { socket, asked: Vec::new() }
    }

    /// Returns the socket, for poll(2).
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Answers one question if there is one. A program that floods init gets one answer per turn.
    pub(super) fn answer(&mut self) {
        let Some(socket) = &self.socket else { return };
        let mut buffer = [0; MAX_QUESTION_BYTES];
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmsg::<SockaddrIn>(socket.as_raw_fd(), &mut parts, None, flags);
        // An error is one of an earlier answer, whose program has gone.
        let Ok(received) = received else { return };
        let Some(from) = received.address else { return };
        let length = received.bytes;
        let message = buffer.get_mut(..length).unwrap_or_default();
        let Some(question) = Question::parse(message) else { return };
        let answer = nothing_known(message, question.length);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match sendmsg(socket.as_raw_fd(), &[IoSlice::new(answer)], &[], flags, Some(&from)) {
            // As by a network: an answer may be lost, and the program asks again.
            Ok(_) | Err(_) => {}
        }
        self.record(question);
    }

    /// Remembers a name that a rule of egress can have.
    fn record(&mut self, question: Question) {
        let Some(name) = question.name.filter(|name| name != HOST_NAME) else { return };
        let Some(index) = TYPES.iter().position(|kind| *kind == question.record_type) else {
            return;
        };
        let known = self.asked.iter().position(|asked| asked.name == name);
        let known = match known {
            Some(known) => known,
            None if self.asked.len() >= MAX_HOSTS || name.parse::<HostPattern>().is_err() => return,
            None => {
                self.asked.push(AskedName { name, counts: [0; 2] });
                self.asked.len() - 1
            }
        };
        let asked = self.asked.get_mut(known);
        if let Some(count) = asked.and_then(|asked| asked.counts.get_mut(index)) {
            *count = count.saturating_add(1).min(DENIALS_COUNTED);
        }
    }

    /// Returns the names that were asked for since they were forgotten.
    pub(super) fn asked(&self) -> Vec<UnreachedHost> {
        let report = |asked: &AskedName| UnreachedHost {
            to: asked.name.clone(),
            count: asked.counts.into_iter().max().unwrap_or_default(),
        };
        self.asked.iter().map(report).collect()
    }

    pub(super) fn forget(&mut self) {
        self.asked.clear();
    }
}

impl Question {
    /// Parses a message. Returns `None` if it is not a query with exactly one question of class IN.
    fn parse(message: &[u8]) -> Option<Self> {
        let (header, mut rest) = message.split_first_chunk::<HEADER_BYTES>()?;
        let [_, _, flags, _, 0, 1, ..] = header else { return None };
        // QR, and four bits of the kind of query.
        if flags & 0b1111_1000 != 0 {
            return None;
        }
        let mut labels: Vec<&[u8]> = Vec::new();
        loop {
            let (length, after) = rest.split_first()?;
            // The two highest bits are those of a compressed name, which a question never has.
            if *length > 63 {
                return None;
            }
            let (label, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            if label.is_empty() {
                break;
            }
            labels.push(label);
        }
        let (fields, rest) = rest.split_first_chunk::<4>()?;
        let [high, low, 0, 1] = fields else { return None };
        let name = labels.join(&b'.').to_ascii_lowercase();
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        let name = String::from_utf8(name).ok().filter(|name| name.bytes().all(|b| is_plain(&b)));
        Some(Self {
            name,
            record_type: u16::from_be_bytes([*high, *low]),
            length: message.len() - rest.len(),
        })
    }
}

/// Turns a query into the answer that its name does not exist (NXDOMAIN): its header and its
/// question.
fn nothing_known(message: &mut [u8], length: usize) -> &[u8] {
    let message = message.get_mut(..length).unwrap_or_default();
    if let Some([_, _, flags, code, _, _, counts @ ..]) = message.first_chunk_mut::<HEADER_BYTES>()
    {
        const ANSWER: u8 = 0x80;
        const RECURSION_DESIRED: u8 = 0x01;
        const RECURSION_AVAILABLE: u8 = 0x80;
        const NXDOMAIN: u8 = 3;
        *flags = ANSWER | (*flags & RECURSION_DESIRED);
        *code = RECURSION_AVAILABLE | NXDOMAIN;
        *counts = [0; 6];
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a query of the C library for a name, with an additional record as EDNS has it.
    fn query(name: &[&str], record_type: u16) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in name {
            message.push(u8::try_from(label.len()).expect("a label"));
            message.extend(label.bytes());
        }
        message.push(0);
        message.extend(record_type.to_be_bytes());
        message.extend([0, 1]);
        message.extend([0, 0, 41, 4, 0xb0, 0, 0, 0, 0, 0, 0]);
        message
    }

    fn names_after(queries: &[Vec<u8>]) -> Vec<(String, u32)> {
        let mut names = UnresolvedNames::default();
        for message in queries {
            names.record(Question::parse(message).expect("a question"));
        }
        names.asked().into_iter().map(|asked| (asked.to, asked.count)).collect()
    }

    #[test]
    fn a_name_is_counted_once_for_both_types_of_address() {
        let pypi = ["PyPI", "org"];
        let queries = [query(&pypi, 1), query(&pypi, 28), query(&pypi, 1), query(&pypi, 28)];
        assert_eq!(names_after(&queries), [("pypi.org".to_owned(), 2)]);
        let mail = query(&pypi, 15);
        assert_eq!(names_after(&[mail]), [], "a name that is asked for no address");
    }

    #[test]
    fn a_name_that_no_rule_can_have_is_not_remembered() {
        let nul = query(&["a\0b", "org"], 1);
        let dot = query(&["a.b\"c", "org"], 1);
        let own = query(&["cofferdam"], 1);
        let local = query(&["printer", "local"], 1);
        let address = query(&["10", "0", "0", "1"], 1);
        assert_eq!(names_after(&[nul, dot, own, local, address, query(&[], 1)]), []);
        let many: Vec<_> = (0..20).map(|i| query(&[&format!("n{i}"), "org"], 1)).collect();
        assert_eq!(names_after(&many).len(), MAX_HOSTS);
    }

    #[test]
    fn an_answer_has_the_question_and_says_that_the_name_does_not_exist() {
        let mut message = query(&["pypi", "org"], 1);
        let length = Question::parse(&message).expect("a question").length;
        let answer = nothing_known(&mut message, length);
        let expected = [0xab, 0xcd, 0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(answer.get(..HEADER_BYTES), Some(&expected[..]));
        assert_eq!(answer.get(HEADER_BYTES..), Some(&b"\x04pypi\x03org\0\0\x01\0\x01"[..]));
    }

    #[test]
    fn a_message_that_is_not_one_question_is_not_answered() {
        let good = query(&["pypi", "org"], 1);
        for end in 0..HEADER_BYTES + 14 {
            assert_eq!(Question::parse(good.get(..end).expect("a part")), None, "{end}");
        }
        let with = |at: usize, byte: u8| {
            let mut message = good.clone();
            *message.get_mut(at).expect("a byte") = byte;
            message
        };
        let answer = with(2, 0x81);
        let update = with(2, 0x29);
        let two = with(5, 2);
        let compressed = with(HEADER_BYTES, 0xc0);
        let chaos = with(HEADER_BYTES + 13, 3);
        for message in [answer, update, two, compressed, chaos] {
            assert_eq!(Question::parse(&message), None, "{message:?}");
        }
    }
}
