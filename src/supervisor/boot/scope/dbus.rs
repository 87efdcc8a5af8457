//! Writes and parses the few D-Bus messages that are needed to ask for a scope.
//!
//! Little-endian only, like all supported machines; other answers are refused. Written by hand,
//! because nine tenths of a D-Bus library would parse types that never occur here. The program
//! `busctl` could send the request, but it cannot wait for the job and check the manager's uid and
//! pid namespace, its start takes 13 ms or more, and a machine may lack it.

/// Maximum length of a message that is read: signals of the manager have some kilobytes.
const MESSAGE_BYTES: usize = 64 << 10;
/// Bytes of a header before its fields, including their length.
const FIXED_HEADER_BYTES: usize = 16;

/// Message types (D-Bus specification, "Message Format").
pub(crate) const CALL: u8 = 1;
pub(crate) const ERROR: u8 = 3;
pub(crate) const SIGNAL: u8 = 4;

/// Header fields that are written or read here.
mod field {
    pub(crate) const PATH: u8 = 1;
    pub(crate) const INTERFACE: u8 = 2;
    pub(crate) const MEMBER: u8 = 3;
    pub(crate) const ERROR_NAME: u8 = 4;
    pub(crate) const REPLY_SERIAL: u8 = 5;
    pub(crate) const DESTINATION: u8 = 6;
    pub(crate) const SIGNATURE: u8 = 8;
}

/// The bytes are not a D-Bus message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Writes values in the wire format, each aligned as its type requires.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn word(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    /// Writes a `t`.
    pub(crate) fn long(&mut self, value: u64) {
        self.align(8);
        self.0.extend(value.to_le_bytes());
    }

    /// Writes a length: no text written here comes close to the maximum.
    fn length(&mut self, length: usize) {
        self.word(u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// Writes a string or an object path.
    pub(crate) fn text(&mut self, text: &str) {
        self.length(text.len());
        self.0.extend(text.as_bytes());
        self.byte(0);
    }

    pub(crate) fn signature(&mut self, text: &str) {
        self.byte(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.byte(0);
    }

    /// Writes an array whose elements are aligned to `align`; its length does not include the
    /// padding before the first element.
    pub(crate) fn array(&mut self, align: usize, elements: impl FnOnce(&mut Self)) {
        self.word(0);
        let length_at = self.0.len() - 4;
        self.align(align);
        let first = self.0.len();
        elements(self);
        let length = u32::try_from(self.0.len() - first).unwrap_or(u32::MAX);
        if let Some(field) = self.0.get_mut(length_at..length_at + 4) {
            field.copy_from_slice(&length.to_le_bytes());
        }
    }

    /// Writes a structure, which is aligned to eight bytes.
    pub(crate) fn structure(&mut self, members: impl FnOnce(&mut Self)) {
        self.align(8);
        members(self);
    }
}

/// A method and its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method<'a> {
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
    pub name: &'a str,
}

/// Builds a method call with `body`, whose types are given by `signature`.
pub(crate) fn call(serial: u32, method: &Method<'_>, signature: &str, body: &Writer) -> Vec<u8> {
    let mut message = Writer::default();
    for byte in [b'l', CALL, 0, 1] {
        message.byte(byte);
    }
    message.length(body.0.len());
    message.word(serial);
    message.array(8, |fields| {
        let texts = [
            (field::PATH, "o", method.path),
            (field::INTERFACE, "s", method.interface),
            (field::MEMBER, "s", method.name),
            (field::DESTINATION, "s", method.destination),
        ];
        for (code, kind, text) in texts {
            fields.structure(|one| {
                one.byte(code);
                one.signature(kind);
                one.text(text);
            });
        }
        if !signature.is_empty() {
            fields.structure(|one| {
                one.byte(field::SIGNATURE);
                one.signature("g");
                one.signature(signature);
            });
        }
    });
    message.align(8);
    message.0.extend(&body.0);
    message.0
}

/// A received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub kind: u8,
    /// Serial of the call that the message answers; 0 if it answers no call.
    pub answers: u32,
    pub member: &'a str,
    pub error: &'a str,
    pub signature: &'a str,
    body: &'a [u8],
}

/// Returns the length of the message that begins here; `None` while too few bytes have arrived.
///
/// # Errors
/// The bytes are not the start of a message, or it is longer than allowed.
pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut head = Reader { bytes, at: 0 };
    let Some(start) = bytes.get(..4) else { return Ok(None) };
    if start.first() != Some(&b'l') || start.get(3) != Some(&1) {
        return Err(Malformed);
    }
    head.at = 4;
    let (Some(body), Some(_serial), Some(fields)) = (head.word(), head.word(), head.word()) else {
        return Ok(None);
    };
    let size = |length: u32| usize::try_from(length).ok().filter(|length| *length <= MESSAGE_BYTES);
    let body = size(body).ok_or(Malformed)?;
    let fields = size(fields).ok_or(Malformed)?;
    let whole = (FIXED_HEADER_BYTES + fields).next_multiple_of(8) + body;
    if whole > MESSAGE_BYTES { Err(Malformed) } else { Ok(Some(whole)) }
}

impl<'a> Message<'a> {
    /// Parses a message that consists of exactly `bytes`.
    ///
    /// # Errors
    /// The bytes are not a complete message.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if length(bytes)? != Some(bytes.len()) {
            return Err(Malformed);
        }
        Self::parse(bytes).ok_or(Malformed)
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader { bytes, at: 12 };
        let end = FIXED_HEADER_BYTES.checked_add(usize::try_from(reader.word()?).ok()?)?;
        let mut message = Self {
            kind: *bytes.get(1)?,
            answers: 0,
            member: "",
            error: "",
            signature: "",
            body: bytes.get(end.next_multiple_of(8)..)?,
        };
        reader.bytes = bytes.get(..end)?;
        while reader.at < end {
            reader.align(8);
            let code = reader.byte()?;
            match (code, reader.signature()?) {
                (field::REPLY_SERIAL, "u") => message.answers = reader.word()?,
                (field::MEMBER, "s") => message.member = reader.text()?,
                (field::ERROR_NAME, "s") => message.error = reader.text()?,
                (field::SIGNATURE, "g") => message.signature = reader.signature()?,
                (_, "s" | "o") => drop(reader.text()?),
                (_, "u") => drop(reader.word()?),
                (_, "g") => drop(reader.signature()?),
                _ => return None,
            }
        }
        Some(message)
    }

    /// Returns a reader of the body.
    pub(crate) fn body(&self) -> Reader<'a> {
        Reader { bytes: self.body, at: 0 }
    }
}

/// Reads values in the wire format; `None` if the bytes end too early or are invalid.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(crate) fn word(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn terminated(&mut self, length: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }

    /// Reads a string or an object path.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.word()?).ok()?;
        self.terminated(length)
    }

    fn signature(&mut self) -> Option<&'a str> {
        let length = usize::from(self.byte()?);
        self.terminated(length)
    }
}
