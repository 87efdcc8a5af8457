//! Reads for which host a connection is, from its first bytes: the server name of TLS or the Host
//! header of HTTP.
//!
//! The bytes are peeked from the stack's receive buffer, so nothing is consumed and nothing has
//! reached the server yet.

/// Maximum number of bytes within which the host must be named.
pub(crate) const MAX_BYTES: usize = 16 << 10;

/// Result of reading the first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FirstFlight {
    /// More bytes are needed.
    More,
    /// A ClientHello, with its server name.
    Tls(Option<String>),
    /// The head of an HTTP/1 request, with its host without the port; `None` if the host is missing
    /// or ambiguous.
    Http(Option<String>),
    /// HTTP/2 without TLS, which is not supported.
    Http2,
    /// Neither TLS nor HTTP.
    Other,
    /// Begins like TLS or HTTP but cannot be parsed.
    Malformed,
}

/// Maximum length of an HTTP method, a token of capital letters (RFC 9110).
const MAX_METHOD_BYTES: usize = 20;

/// Reads the first bytes of a connection.
pub(crate) fn read(bytes: &[u8]) -> FirstFlight {
    let flight = match bytes.first() {
        None => FirstFlight::More,
        Some(0x16) => client_hello(bytes),
        Some(byte) if byte.is_ascii_uppercase() => request(bytes),
        Some(_) => FirstFlight::Other,
    };
    let full = bytes.len() >= MAX_BYTES;
    if full && flight == FirstFlight::More { FirstFlight::Malformed } else { flight }
}

/// A reader of big-endian fields; each method returns `None` past the end.
#[derive(Debug, Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn read_u8(&mut self) -> Option<usize> {
        self.take(1)?.first().map(|byte| usize::from(*byte))
    }

    fn read_u16(&mut self) -> Option<usize> {
        let bytes: [u8; 2] = self.take(2)?.try_into().ok()?;
        Some(usize::from(u16::from_be_bytes(bytes)))
    }

    /// Reads a field with a one-byte length prefix.
    fn short(&mut self) -> Option<Self> {
        let length = self.read_u8()?;
        self.take(length).map(Self)
    }

    /// Reads a field with a two-byte length prefix.
    fn long(&mut self) -> Option<Self> {
        let length = self.read_u16()?;
        self.take(length).map(Self)
    }
}

/// Reads a ClientHello, which may span several records (RFC 8446, 5.1).
fn client_hello(bytes: &[u8]) -> FirstFlight {
    let mut records = Fields(bytes);
    let mut message = Vec::new();
    loop {
        if let Some(hello) = whole(&message) {
            return match hello {
                Ok(hello) => server_name(hello).map_or(FirstFlight::Malformed, FirstFlight::Tls),
                Err(()) => FirstFlight::Malformed,
            };
        }
        let Some(kind) = records.read_u8() else { return FirstFlight::More };
        if kind != 0x16 {
            return FirstFlight::Malformed;
        }
        match records.read_u8() {
            None => return FirstFlight::More,
            Some(3) => {}
            Some(_) => return FirstFlight::Malformed,
        }
        if records.read_u8().is_none() {
            return FirstFlight::More;
        }
        let mut ahead = records;
        match ahead.read_u16() {
            None => return FirstFlight::More,
            // Empty handshake records are forbidden; a record has at most 16 KiB.
            Some(length) if length == 0 || length > MAX_BYTES => return FirstFlight::Malformed,
            Some(length) => {
                let part = ahead.take(length);
                // Waits for the whole record, even if the message ends within the part received.
                let Some(part) = part else { return FirstFlight::More };
                message.extend_from_slice(part);
                records = ahead;
            }
        }
    }
}

/// Returns the body of a ClientHello once it is complete; an error for any other message.
fn whole(message: &[u8]) -> Option<Result<&[u8], ()>> {
    let mut fields = Fields(message);
    if fields.read_u8()? != 1 {
        return Some(Err(()));
    }
    let high = fields.read_u8()?;
    let length = fields.read_u16()?;
    if high != 0 || length > MAX_BYTES {
        return Some(Err(()));
    }
    fields.take(length).map(Ok)
}

/// Returns the server name of a ClientHello (RFC 6066, 3), if any; `None` if the message is
/// malformed or has two.
fn server_name(hello: &[u8]) -> Option<Option<String>> {
    let mut fields = Fields(hello);
    fields.take(2 + 32)?;
    fields.short()?;
    fields.long()?;
    fields.short()?;
    if fields.0.is_empty() {
        return Some(None);
    }
    let mut extensions = fields.long()?;
    if !fields.0.is_empty() {
        return None;
    }
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.read_u16()?;
        let mut body = extensions.long()?;
        if kind != 0 {
            continue;
        }
        let mut list = body.long()?;
        let host = (list.read_u8()? == 0).then(|| list.long())??;
        if name.is_some() || !list.0.is_empty() || !body.0.is_empty() {
            return None;
        }
        name = Some(host_name(host.0)?);
    }
    Some(name)
}

/// Returns a name in lower case, without a trailing dot.
fn host_name(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let text = text.strip_suffix('.').unwrap_or(text);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (!text.is_empty() && text.len() <= 253 && text.bytes().all(plain))
        .then(|| text.to_ascii_lowercase())
}

/// Reads the head of a request.
fn request(bytes: &[u8]) -> FirstFlight {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match bytes.get(method) {
        None if method <= MAX_METHOD_BYTES => return FirstFlight::More,
        Some(b' ') if method <= MAX_METHOD_BYTES => {}
        // Another protocol, such as SSH, whose client sends first too.
        None | Some(_) => return FirstFlight::Other,
    }
    if bytes.starts_with(b"PRI ") {
        return FirstFlight::Http2;
    }
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return FirstFlight::More;
    };
    let head = bytes.get(..end).and_then(|head| std::str::from_utf8(head).ok());
    let Some(head) = head else { return FirstFlight::Malformed };
    let mut lines = head.split("\r\n");
    let target = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default();
    let mut hosts = Vec::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { return FirstFlight::Malformed };
        // Servers differ in how they read a space before the colon, or a folded line.
        if name.is_empty() || name.bytes().any(|byte| byte.is_ascii_whitespace()) {
            return FirstFlight::Malformed;
        }
        if name.eq_ignore_ascii_case("host") {
            hosts.push(authority(value.trim()));
        }
    }
    let in_target = target
        .split_once("://")
        .map(|(_, rest)| authority(rest.split(['/', '?']).next().unwrap_or_default()));
    FirstFlight::Http(match (hosts.as_slice(), in_target) {
        ([host], None) => host.clone(),
        // Servers use the host in the target (RFC 9112, 3.2.2).
        ([host], Some(other)) if *host == other => other,
        _ => None,
    })
}

/// Returns the host part of `host:port`.
fn authority(text: &str) -> Option<String> {
    let host = match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) => return None,
        None => text,
    };
    host_name(host.as_bytes())
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a hello of a known length")]
mod tests {
    use super::*;

    /// Builds a ClientHello with these bytes as its extensions, in records of `part` bytes.
    fn hello(extensions: &[u8], part: usize) -> Vec<u8> {
        let two = |length: usize| u16::try_from(length).expect("short").to_be_bytes();
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        body.extend_from_slice(&two(extensions.len()));
        body.extend_from_slice(extensions);
        let mut message = vec![1, 0];
        message.extend_from_slice(&two(body.len()));
        message.extend_from_slice(&body);
        let record = |part: &[u8]| [&[0x16, 3, 1][..], &two(part.len()), part].concat();
        message.chunks(part).flat_map(record).collect()
    }

    fn sni(name: &str) -> Vec<u8> {
        let two = |length: usize| u16::try_from(length).expect("short").to_be_bytes();
        let length = name.len();
        [&[0, 0][..], &two(length + 5), &two(length + 3), &[0], &two(length), name.as_bytes()]
            .concat()
    }

    #[test]
    fn a_name_is_read_however_it_is_split() {
        let name = Some("api.example.org".to_owned());
        for part in [1, 3, 50, 1_000] {
            let bytes = hello(&sni("API.example.org"), part);
            assert_eq!(read(&bytes), FirstFlight::Tls(name.clone()), "{part}");
            for end in 0..bytes.len() {
                assert_eq!(read(bytes.get(..end).expect("shorter")), FirstFlight::More, "{end}");
            }
        }
    }

    #[test]
    fn no_name_two_names_and_broken_lengths_are_distinguished() {
        assert_eq!(read(&hello(&[], 500)), FirstFlight::Tls(None));
        assert_eq!(read(&hello(&[0, 16, 0, 0], 500)), FirstFlight::Tls(None));
        let twice = [sni("a.org"), sni("b.org")].concat();
        assert_eq!(read(&hello(&twice, 500)), FirstFlight::Malformed);
        assert_eq!(read(&hello(&sni("a\0.org"), 500)), FirstFlight::Malformed);
        assert_eq!(read(&hello(&[0, 0, 0, 9, 1], 500)), FirstFlight::Malformed);
        assert_eq!(read(&[0x16, 3, 1, 0, 0]), FirstFlight::Malformed);
        assert_eq!(read(&[0x16, 3, 1, 0, 4, 2, 0, 0, 0]), FirstFlight::Malformed);
        let endless = [&[0x16, 3, 1, 0x40, 0][..], &[1; 20_000]].concat();
        assert_eq!(read(&endless), FirstFlight::Malformed);
    }

    #[test]
    fn bytes_after_the_extensions_make_a_client_hello_malformed() {
        let mut bytes = hello(&sni("a.org"), 1_000);
        assert_eq!(read(&bytes), FirstFlight::Tls(Some("a.org".to_owned())));
        // A lenient server might find another name there.
        let more = sni("b.org");
        bytes.extend_from_slice(&more);
        let added = u8::try_from(more.len()).expect("short");
        for at in [4, 8] {
            bytes[at] += added;
        }
        assert_eq!(read(&bytes), FirstFlight::Malformed);
    }

    #[test]
    fn a_request_names_one_host() {
        let host = |text: &str| read(text.as_bytes());
        let some = |name: &str| FirstFlight::Http(Some(name.to_owned()));
        assert_eq!(host("GET / HTTP/1.1\r\nHost: A.org:80\r\n\r\n"), some("a.org"));
        assert_eq!(host("GET http://a.org/x HTTP/1.1\r\nhost: a.org\r\n\r\n"), some("a.org"));
        for request in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n",
            "GET http://b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org@b.org\r\n\r\n",
        ] {
            assert_eq!(host(request), FirstFlight::Http(None), "{request:?}");
        }
        assert_eq!(host("GET / HTTP/1.1\r\nHost : a.org\r\n\r\n"), FirstFlight::Malformed);
        assert_eq!(host("GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n"), FirstFlight::Malformed);
        assert_eq!(host("GET / HTTP/1.1\r\nHost: a.org"), FirstFlight::More);
        assert_eq!(host("PRI * HTTP/2.0\r\n\r\n"), FirstFlight::Http2);
        assert_eq!(host("SSH-2.0-x\r\n"), FirstFlight::Other);
        assert_eq!(read(&[0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f]), FirstFlight::Other);
    }
}
