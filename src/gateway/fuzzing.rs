//! Readers of hostile bytes, for the fuzz targets: each checks what must hold for any bytes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use std::os::fd::AsRawFd;
use tokio::io::Interest;

use crate::worker::dns_message::{Request, UpstreamQuestion, plain_name};
use crate::worker::first_flight::{self, FirstFlight};
use crate::worker::packet::{self, Body, CELL};
use crate::worker::stack::{self, Ends, Link, Stack};

/// Reads frames of a packet socket, each after its length in two bytes, as a worker does: what is taken is the cell's
/// own, lies within the frame, and upsets no stack. Must run inside a runtime.
pub fn packets(bytes: &[u8]) {
    let flags = SockFlag::SOCK_NONBLOCK;
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
    let (ours, theirs) = pair.expect("a pair");
    let socket = stack::async_fd(ours, Interest::READABLE).expect("a socket to wait for");
    let link = Arc::new(Link { socket, mac: Mutex::default() });
    let mut stack = Stack::new(link, 1);
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
        let (frame, after) = after.split_at(length);
        rest = after;
        if send(theirs.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT).is_ok() {
            packet(&mut stack);
        }
        let mut answer = vec![0; packet::HEAD + packet::MTU];
        while recv(theirs.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT).is_ok_and(|got| got > 0)
        {
        }
    }
}

fn packet(stack: &mut Stack) {
    let Ok(length) = stack.read() else { return };
    let frame = stack.frame(length).to_vec();
    let Some(packet) = packet::parse(&frame) else { return };
    assert!(CELL.contains(&packet.source), "another's address: {packet:?}");
    let ip = frame.get(packet.ip.clone()).expect("an IP packet within the frame");
    assert!(packet::reset(ip, &packet).is_none_or(|reset| reset.len() < 100));
    match packet.body {
        Body::Tcp { source, destination, opens, .. } => {
            let ends = Ends {
                cell: SocketAddr::new(packet.source, source),
                remote: SocketAddr::new(packet.destination, destination),
            };
            if opens && !stack.has(&ends) {
                stack.accept(ends, ip);
            } else {
                stack.segment(&ends, packet.ip);
            }
            stack.turn();
        }
        Body::Udp { payload, .. } | Body::Echo { payload, .. } => {
            assert!(frame.get(payload).is_some(), "a payload outside the frame");
        }
    }
}

/// Reads the first bytes of a connection: once they name a host, more bytes do not change it.
pub fn first_flight(bytes: &[u8]) {
    let whole = first_flight::read(bytes);
    for end in [bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let before = first_flight::read(bytes.get(..end).unwrap_or_default());
        if before != FirstFlight::More {
            assert_eq!(before, whole, "more bytes changed what the first ones say");
        }
    }
}

/// Reads a question to the resolver, and the same bytes as the answer to it: a name that it is
/// judged by is made of plain labels, and a reply is within its size.
pub fn questions(bytes: &[u8]) {
    let Some(request) = Request::read(bytes) else { return };
    let mut answer = bytes.to_vec();
    if let Some(flags) = answer.get_mut(2) {
        *flags |= 0x80;
    }
    for question in &request.questions {
        let Some(name) = plain_name(question.qname()) else { continue };
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        assert!(!name.is_empty() && name.bytes().all(plain), "{name:?}");
        let forwarded =
            UpstreamQuestion::new(request.id, &name, question.qtype()).expect("a question");
        let Some(resolved) = forwarded.read_answer(&answer) else { continue };
        let reply = request.reply(&resolved.answer, 4096).expect("a reply");
        let read = forwarded.read_answer(&reply).expect("an answer");
        assert!(reply.len() <= 4096 || read.is_truncated, "a reply of {} bytes", reply.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_of_a_cell_upset_no_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            super::questions(&bytes);
            super::first_flight(&bytes);
            super::first_flight(&[&[0x16, 3, 1, 0, 60, 1, 0, 0, 56][..], &bytes].concat());
            super::first_flight(&[&b"GET "[..], &bytes].concat());
        }

        #[test]
        fn segments_of_a_cell_upset_no_stack(
            segments in proptest::collection::vec((any::<u8>(), any::<u32>(), any::<u32>(), any::<u16>(), 0_u8..60), 1..30)
        ) {
            let mut bytes = Vec::new();
            for (flags, sequence, acknowledged, window, data) in segments {
                let frame = segment(flags, sequence, acknowledged, window, usize::from(data));
                bytes.extend_from_slice(&u16::try_from(frame.len()).expect("short").to_be_bytes());
                bytes.extend_from_slice(&frame);
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
            runtime.expect("a runtime").block_on(async { super::packets(&bytes) });
        }
    }

    /// Builds a segment of the cell to 203.0.113.20:7.
    fn segment(flags: u8, sequence: u32, acknowledged: u32, window: u16, data: usize) -> Vec<u8> {
        let total = u16::try_from(40 + data).expect("short").to_be_bytes();
        let mut frame = vec![0; 22];
        frame.extend_from_slice(&[8, 0, 0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend_from_slice(&[10, 0, 2, 15, 203, 0, 113, 20, 0x9c, 0x40, 0, 7]);
        frame.extend_from_slice(&sequence.to_be_bytes());
        frame.extend_from_slice(&acknowledged.to_be_bytes());
        frame.extend_from_slice(&[0x50, flags]);
        frame.extend_from_slice(&window.to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0]);
        frame.resize(frame.len() + data, b'x');
        frame
    }
}
