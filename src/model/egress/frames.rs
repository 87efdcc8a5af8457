//! The frames between supervisor and gateway: SOCK_SEQPACKET packets of at most [`FRAME_BYTES`], in postcard.
//!
//! The gateway parses what cells send, so the supervisor does not trust its frames: texts are
//! bounded and escaped before they are shown. A cell's generation makes late frames harmless.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Connection, Only, Protocol, Tally};
pub use crate::wire::{CallId, FRAME_BYTES, WireError, decode, encode};

/// A cell, by its slot in the supervisor and the generation of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellKey {
    pub slot: u32,
    pub generation: u64,
}

/// From the supervisor to the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGateway {
    /// A cell exists. Descriptors, in this order: its packet socket, and the end of a pipe that
    /// hangs up when the cell's init has ended.
    Open {
        cell: CellKey,
        /// Index in the list of profiles that the gateway was started with.
        profile: u16,
        /// Random bytes that the placeholders of the cell's secrets are made from:
        /// [`super::placeholder`].
        seed: [u8; 16],
    },
    /// A call begins in the cell and ends the one before. Everything that follows counts for it.
    Begin {
        cell: CellKey,
        call: CallId,
        /// Restricts what the call may use of the profile's network; `None` means no restriction.
        only: Option<Only>,
    },
    /// The call is over: requests a [`FromGateway::Tally`] at once.
    Ask { cell: CellKey, call: CallId },
    /// The cell is gone: its connections are closed.
    Close { cell: CellKey },
}

impl ToGateway {
    /// Returns how many descriptors must come with the frame.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Open { .. } => 2,
            Self::Begin { .. } | Self::Ask { .. } | Self::Close { .. } => 0,
        }
    }
}

/// From the gateway to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGateway {
    /// The first frame: the gateway is confined, and serves.
    Up,
    /// A connection of the cell was closed or denied. Only for the audit log: the gateway drops the
    /// frame if the link is full.
    Connection { cell: CellKey, call: CallId, connection: Connection },
    /// The answer to [`ToGateway::Ask`].
    Tally { cell: CellKey, call: CallId, tally: Tally },
    /// The tally of a cell's last call, which its worker leaves with the gateway before it exits.
    Last { cell: CellKey, call: CallId, tally: Tally },
    /// The network of one cell, or of all, is gone.
    Failed { cell: Option<CellKey>, why: String },
}

/// From a worker to the gateway, on a separate link: workers cannot make sockets. Answered in
/// order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketRequest {
    /// A socket connected to this destination; the port of an echo request is ignored.
    Destination { protocol: Protocol, to: SocketAddr },
    /// A socket connected to one of the resolvers, by its index in the gateway's list.
    Resolver { protocol: Protocol, index: u8 },
    /// Asks for each address whether it is the host's own. At most [`MAX_ADDRESSES`] addresses.
    Own { addresses: Vec<IpAddr> },
}

/// Maximum number of addresses in one [`SocketRequest::Own`].
pub const MAX_ADDRESSES: usize = 64;

/// The answer to a [`SocketRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketAnswer {
    /// The socket accompanies the frame. A TCP socket may still be connecting.
    Socket,
    /// The cell may not reach the destination now.
    Refused { why: String },
    /// The host has no route there.
    NoRoute { errno: i32 },
    /// The socket cannot be made or connected.
    Failed { errno: i32 },
    /// In the order of the request; true for an address of the host, or one whose route is not
    /// known.
    Own { own: Vec<bool> },
}

/// Encodes the answer to [`ToGateway::Ask`], leaving out rows until it fits in a frame.
///
/// # Errors
/// If it does not fit even without rows.
pub fn encode_tally(cell: CellKey, call: CallId, mut tally: Tally) -> Result<Vec<u8>, WireError> {
    loop {
        match encode(&FromGateway::Tally { cell, call, tally: tally.clone() }) {
            Err(WireError::TooLarge) if !(tally.rows.is_empty() && tally.denied.is_empty()) => {
                tally.halve();
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Denied, HostPattern, TALLY_ROWS, TallyRow};
    use super::*;

    const CELL: CellKey = CellKey { slot: 3, generation: 7 };

    #[test]
    fn frames_read_back_as_they_were_written() {
        let only = Only {
            hosts: vec!["*.example.org".parse::<HostPattern>().expect("a host")],
            ..Only::default()
        };
        for frame in [
            ToGateway::Open { cell: CELL, profile: 2, seed: [7; 16] },
            ToGateway::Begin { cell: CELL, call: 9, only: Some(only) },
            ToGateway::Ask { cell: CELL, call: 9 },
            ToGateway::Close { cell: CELL },
        ] {
            let bytes = encode(&frame).expect("it fits");
            assert_eq!(decode::<ToGateway>(&bytes).expect("a frame"), frame);
        }
    }

    #[test]
    fn a_frame_with_an_invalid_name_is_refused() {
        // `*.example.org` is preceded by its length; any other pattern of that length is parsed
        // again.
        let only = Only {
            hosts: vec!["*.example.org".parse::<HostPattern>().expect("a host")],
            ..Only::default()
        };
        let mut bytes =
            encode(&ToGateway::Begin { cell: CELL, call: 9, only: Some(only) }).expect("it fits");
        let start = bytes.windows(2).position(|two| two == b"*.").expect("the pattern");
        bytes.splice(start..start + 13, *b"*.example_/rg");
        assert!(decode::<ToGateway>(&bytes).is_err());
    }

    #[test]
    fn a_tally_of_long_names_is_cut_until_it_fits() {
        let name = "n".repeat(400);
        let row =
            TallyRow { to: name.clone(), rule: name.clone(), connections: 1, sent: 1, received: 1 };
        let denied = Denied { to: name.clone(), why: name.clone(), count: 1, grant: Some(name) };
        let tally = Tally {
            rows: vec![row; TALLY_ROWS],
            denied: vec![denied; TALLY_ROWS],
            ..Tally::default()
        };
        let bytes = encode_tally(CELL, 1, tally).expect("it fits");
        let FromGateway::Tally { tally, .. } = decode(&bytes).expect("a frame") else {
            panic!("no tally")
        };
        let left = tally.rows.len() + tally.denied.len();
        assert!(
            left > 20 && tally.more == u64::try_from(2 * TALLY_ROWS - left).expect("a number"),
            "{left}"
        );
    }
}
