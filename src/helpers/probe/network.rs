//! Attempts to connect to others, and to be connected to.

use core::ffi::CStr;

use crate::answer::{Answer, answer_or_refusal};
use crate::sys::{self, Result, number as calls};
use crate::words::number;

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const STREAM: usize = 1;
const DATAGRAM: usize = 2;

/// A socket address in the kernel's layout.
struct Address {
    bytes: [u8; 112],
    length: usize,
}

impl Address {
    fn new(family: u16) -> Self {
        Self { bytes: [0; 112], length: 0 }.with(&family.to_ne_bytes())
    }

    fn with(mut self, more: &[u8]) -> Self {
        let free = self.bytes.iter_mut().skip(self.length);
        free.zip(more).for_each(|(slot, byte)| *slot = *byte);
        self.length = (self.length + more.len()).min(self.bytes.len());
        self
    }

    fn family(&self) -> usize {
        let [low, high, ..] = self.bytes;
        usize::from(u16::from_ne_bytes([low, high]))
    }

    /// Parses `4 A.B.C.D PORT`, `6 PORT` (on this host), `path PATH` or `abstract NAME`.
    fn parse(words: &[&CStr]) -> Option<Self> {
        match words {
            [kind, host, port] if *kind == c"4" => {
                let mut parts = [0; 4];
                for (octet, part) in
                    parts.iter_mut().zip(host.to_bytes().split(|byte| *byte == b'.'))
                {
                    *octet = u8::try_from(number(part)?).ok()?;
                }
                Some(Self::new(AF_INET).with(&network_order(port)?).with(&parts).with(&[0; 8]))
            }
            [kind, port] if *kind == c"6" => {
                let mut loopback = [0; 16];
                if let Some(last) = loopback.last_mut() {
                    *last = 1;
                }
                Some(
                    Self::new(AF_INET6)
                        .with(&network_order(port)?)
                        .with(&[0; 4])
                        .with(&loopback)
                        .with(&[0; 4]),
                )
            }
            [kind, path] if *kind == c"path" => {
                Some(Self::new(AF_UNIX).with(path.to_bytes_with_nul()))
            }
            [kind, name] if *kind == c"abstract" => {
                Some(Self::new(AF_UNIX).with(&[0]).with(name.to_bytes()))
            }
            _ => None,
        }
    }

    fn connected(&self, kind: usize) -> Result<usize> {
        let socket = sys::call(calls::SOCKET, &[self.family(), kind, 0])?;
        sys::call(calls::CONNECT, &[socket, sys::address(&self.bytes), self.length])?;
        Ok(socket)
    }
}

fn network_order(port: &CStr) -> Option<[u8; 2]> {
    Some(u16::try_from(number(port.to_bytes())?).ok()?.to_be_bytes())
}

/// Connects a stream, or with `udp` as the first word a datagram socket, which only needs a route.
pub fn connect(words: &[&CStr]) -> Option<Answer> {
    let (kind, words) = kind(words);
    let address = Address::parse(words)?;
    Some(answer_or_refusal(address.connected(kind).map(|_| Answer::Done("connected"))))
}

/// Sends one byte as a datagram or on a stream.
pub fn send(words: &[&CStr]) -> Option<Answer> {
    let (kind, words) = kind(words);
    let address = Address::parse(words)?;
    let sent = address.connected(kind).and_then(|socket| {
        let byte = [b'x'];
        sys::call(calls::SENDTO, &[socket, sys::address(&byte), 1])
    });
    Some(answer_or_refusal(sent.map(|_| Answer::Done("sent"))))
}

fn kind<'a, 'b>(words: &'a [&'b CStr]) -> (usize, &'a [&'b CStr]) {
    match words {
        [first, rest @ ..] if *first == c"udp" => (DATAGRAM, rest),
        _ => (STREAM, words),
    }
}

/// Listens on a port of every address for two seconds, and reports whether a connection came.
pub fn listen(port: usize) -> Option<Answer> {
    const POLLIN: u64 = 1 << 32;
    let port = u16::try_from(port).ok()?;
    let address = Address::new(AF_INET).with(&port.to_be_bytes()).with(&[0; 12]);
    Some(answer_or_refusal(sys::call(calls::SOCKET, &[usize::from(AF_INET), STREAM, 0]).and_then(
        |socket| {
            sys::call(calls::BIND, &[socket, sys::address(&address.bytes), address.length])?;
            sys::call(calls::LISTEN, &[socket, 1])?;
            crate::print(format_args!("listening\n"));
            let mut wanted = [POLLIN | u64::try_from(socket).unwrap_or(u64::MAX)];
            let time = [2_u64, 0];
            let came =
                sys::call(calls::PPOLL, &[sys::address_mut(&mut wanted), 1, sys::address(&time)])?;
            Ok(Answer::Done(if came == 0 { "nobody came" } else { "reached" }))
        },
    )))
}
