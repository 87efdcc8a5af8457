//! Passes each packet of the cell to its connection or its flow, or starts one.

use std::net::SocketAddr;
use std::sync::Arc;

use nix::errno::Errno;

use super::connection::Attempt;
use super::flows::Flow;
use super::packet::{self, Body, Packet, RESOLVER};
use super::stack::{Ends, Stack, lock};
use super::{Worker, dns};

/// Returns true for the address of the cell's resolver.
fn is_resolver(address: SocketAddr) -> bool {
    RESOLVER.contains(&address.ip()) && address.port() == dns::PORT
}

impl Worker {
    /// Reads at most `max_packets` packets of the cell.
    pub(super) fn read(&self, max_packets: usize) -> Result<(), Errno> {
        let mut stack = lock(&self.connections.stack);
        for _ in 0..max_packets {
            let length = stack.read()?;
            let Some(packet) = packet::parse(stack.frame(length)) else { continue };
            *lock(&self.traffic.link.mac) = packet.mac;
            match packet.body {
                Body::Tcp { source, destination, opens, resets } => {
                    let ends = Ends {
                        cell: SocketAddr::new(packet.source, source),
                        remote: SocketAddr::new(packet.destination, destination),
                    };
                    self.segment(&mut stack, ends, packet, opens, resets);
                }
                Body::Udp { .. } | Body::Echo { .. } => {
                    let frame = stack.frame(length);
                    self.datagram(frame, &packet);
                }
            }
        }
        Ok(())
    }

    /// Passes a segment to its connection, or starts one.
    fn segment(&self, stack: &mut Stack, ends: Ends, packet: Packet, opens: bool, resets: bool) {
        let Some(attempt) = self.connections.segment(stack, ends, packet, opens, resets) else {
            return;
        };
        let Attempt { opening, guard } = attempt;
        let connections = Arc::clone(&self.connections);
        if is_resolver(ends.remote) {
            let resolver = Arc::clone(&self.resolver);
            tokio::spawn(async move {
                let Some(cell) = connections.accept(&opening) else { return };
                if cell.established().await.is_ok() {
                    resolver.answer_stream(cell).await;
                }
            });
        } else {
            let unlogged = Arc::clone(&connections.unlogged);
            tokio::spawn(guard.until_judged(async move {
                connections.carry(opening).await;
                connections.end_connecting(&ends);
                drop(unlogged);
            }));
        }
    }

    /// Passes a datagram or an echo request to its flow, or starts one.
    fn datagram(&self, frame: &[u8], packet: &Packet) {
        let (flow, payload, segment, sequence) = match &packet.body {
            Body::Udp { source, destination, payload, segment } => {
                let cell = SocketAddr::new(packet.source, *source);
                let remote = SocketAddr::new(packet.destination, *destination);
                (Flow { echo: false, cell, remote }, payload, *segment, 0)
            }
            Body::Echo { ident, sequence, payload } => {
                let cell = SocketAddr::new(packet.source, *ident);
                let remote = SocketAddr::new(packet.destination, 0);
                (Flow { echo: true, cell, remote }, payload, payload.len(), *sequence)
            }
            Body::Tcp { .. } => return,
        };
        let payload = frame.get(payload.clone()).unwrap_or_default();
        if is_resolver(flow.remote) {
            // A question without an answer is repeated by the client.
            if let Ok(permit) = self.resolver.questions.try_acquire()
                && let Some(guard) = self.traffic.unsent.add(self.traffic.call(), payload.len())
            {
                permit.forget();
                let resolver = Arc::clone(&self.resolver);
                let answering = resolver.answer_datagram(flow.cell, flow.remote, payload.to_vec());
                tokio::spawn(guard.until_judged(answering));
            }
            return;
        }
        // The kernel may leave several datagrams in one packet. An empty one counts too.
        let parts: Vec<&[u8]> = match payload.is_empty() {
            true => vec![payload],
            false => payload.chunks(segment.max(1)).collect(),
        };
        for part in parts {
            self.flows.pass_on(flow, part, packet.hops, sequence);
        }
    }
}
