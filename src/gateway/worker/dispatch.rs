//! Passes each packet of the cell to its connection or its flow, or starts one.

use std::net::SocketAddr;
use std::sync::Arc;

use model::egress::frames::CallId;
use nix::errno::Errno;
use tokio::sync::mpsc;

use super::connection::Opening;
use super::flows::{self, Flow, Outgoing};
use super::packet::{self, Body, Packet, RESOLVER};
use super::stack::{self, CellStream, Ends, Reuse, Stack, lock};
use super::{Worker, dns};

/// Maximum pending connects; further SYNs are dropped and retransmitted by the cell.
pub(super) const MAX_CONNECTING: usize = 512;

/// A flow, with the channel to its task.
#[derive(Debug)]
pub(super) struct FlowHandle {
    /// The call in which the flow began, for which it counts.
    pub call: CallId,
    /// `None` once the flow is to end.
    pub packets: Option<mpsc::Sender<Outgoing>>,
}

/// One datagram on the network: the kernel may leave several in one packet of the cell.
#[derive(Debug)]
struct Part<'a> {
    payload: &'a [u8],
    hops: u8,
    sequence: u16,
}

impl Worker {
    /// Ends the time in which a SYN of these ends is dropped as a retransmitted one.
    pub(crate) fn end_connecting(&self, ends: &Ends) {
        lock(&self.connecting).remove(ends);
    }

    /// Reads at most `max_packets` packets of the cell.
    pub(super) fn read(self: &Arc<Self>, max_packets: usize) -> Result<(), Errno> {
        let mut stack = lock(&self.stack);
        for _ in 0..max_packets {
            let length = stack.read()?;
            let Some(packet) = packet::parse(stack.frame(length)) else { continue };
            *lock(&self.link.mac) = packet.mac;
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

    /// Passes a segment to its connection, or opens one.
    fn segment(
        self: &Arc<Self>,
        stack: &mut Stack,
        ends: Ends,
        packet: Packet,
        opens: bool,
        resets: bool,
    ) {
        match stack.reuse(&ends) {
            Reuse::Open => return stack.segment(&ends, packet.ip),
            // Dropped: the cell retransmits it, and by then the old connection is gone.
            Reuse::Ending if opens => return,
            Reuse::Ending => return stack.segment(&ends, packet.ip),
            Reuse::Free if stack.has(&ends) && !opens => return stack.segment(&ends, packet.ip),
            Reuse::Free => {}
        }
        let ip = stack.frame(packet.ip.end).get(packet.ip.start..).unwrap_or_default();
        if !opens {
            if !resets && !lock(&self.connecting).contains(&ends) {
                self.link.send(packet::reset(ip, &packet));
            }
            return;
        }
        let mut connecting = lock(&self.connecting);
        if connecting.len() >= MAX_CONNECTING || stack.connections() >= stack::MAX_CONNECTIONS {
            return;
        }
        // A retransmitted SYN while the host is still connecting.
        if !connecting.insert(ends) {
            return;
        }
        drop(connecting);
        let call = self.call();
        // Dropped if there is no room: the cell retransmits it.
        let Some(guard) = self.unsent.add(call, 0) else {
            self.end_connecting(&ends);
            return;
        };
        let opening = Opening { call, ends, syn: ip.to_vec(), packet };
        let worker = Arc::clone(self);
        if RESOLVER.contains(&ends.remote.ip()) && ends.remote.port() == dns::PORT {
            tokio::spawn(worker.resolver(opening));
        } else {
            let unlogged = Arc::clone(&self.unlogged);
            tokio::spawn(guard.until_judged(async move {
                worker.clone().connection(opening).await;
                worker.end_connecting(&ends);
                drop(unlogged);
            }));
        }
    }

    /// Accepts a connection to the resolver.
    async fn resolver(self: Arc<Self>, opening: Opening) {
        self.end_connecting(&opening.ends);
        let cell = CellStream::accept(&self.stack, &self.poke, opening.ends, &opening.syn);
        let Some(cell) = cell else { return };
        if cell.established().await.is_ok() {
            self.answer_stream(cell).await;
        }
    }

    /// Passes a datagram or an echo request to its flow, or starts one.
    fn datagram(self: &Arc<Self>, frame: &[u8], packet: &Packet) {
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
        if RESOLVER.contains(&flow.remote.ip()) && flow.remote.port() == dns::PORT {
            // A question without an answer is repeated by the client.
            if let Ok(permit) = self.questions.try_acquire()
                && let Some(guard) = self.unsent.add(self.call(), payload.len())
            {
                permit.forget();
                let answering =
                    Arc::clone(self).answer_datagram(flow.cell, flow.remote, payload.to_vec());
                tokio::spawn(guard.until_judged(answering));
            }
            return;
        }
        // An empty datagram is one packet too.
        let parts: Vec<&[u8]> = match payload.is_empty() {
            true => vec![payload],
            false => payload.chunks(segment.max(1)).collect(),
        };
        for part in parts {
            let part = Part { payload: part, hops: packet.hops, sequence };
            self.outgoing(flow, &part);
        }
    }

    /// Passes a part to its flow. Dropped if too much waits, as by a network.
    fn outgoing(self: &Arc<Self>, flow: Flow, part: &Part<'_>) {
        let mut flows = lock(&self.flows);
        let call = flows.get(&flow).map_or_else(|| self.call(), |handle| handle.call);
        let Some(guard) = self.unsent.add(call, part.payload.len()) else { return };
        let full = flows.len() >= flows::MAX_FLOWS;
        let handle = match flows.get(&flow) {
            Some(handle) => handle,
            None if full => return,
            None => {
                let (sender, packets) = mpsc::channel(flows::MAX_WAITING);
                tokio::spawn(Arc::clone(self).flow(flow, call, packets));
                flows.entry(flow).or_insert(FlowHandle { call, packets: Some(sender) })
            }
        };
        if let Some(sender) = &handle.packets {
            let outgoing = Outgoing {
                payload: part.payload.to_vec(),
                hops: part.hops,
                sequence: part.sequence,
                guard,
            };
            // A full queue drops the packet, as a network would; a closed one belongs to a flow that ends.
            sender.try_send(outgoing).unwrap_or_default();
        }
    }
}
