//! The frames between supervisor and gateway: SOCK_SEQPACKET packets of at most [`FRAME_BYTES`], in postcard.
//!
//! The gateway parses what cells send, so the supervisor trusts nothing in its frames: texts are bounded and made
//! harmless before they are shown. The generation of a cell makes a late frame harmless.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Connection, Only, Protocol, Tally};
pub use crate::wire::{CallId, FRAME_BYTES, WireError, decode, encode};

/// A cell, by its place among the supervisor's cells and how often that place was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellKey {
    pub slot: u32,
    pub generation: u64,
}

/// From the supervisor to the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGateway {
    /// A cell exists. Descriptors, in this order: its packet socket, and the end of a pipe that hangs up when the
    /// cell's init has ended.
    Open {
        cell: CellKey,
        /// Index in the list of profiles that the gateway was started with.
        profile: u16,
        /// Random text of the cell, of which the placeholders of its secrets are made: [`super::placeholder`].
        seed: [u8; 16],
    },
    /// A call begins in the cell, and any before it is over. All that follows counts for it.
    Begin {
        cell: CellKey,
        call: CallId,
        /// Of what the profile allows, what this call may use; nothing narrows it if absent.
        only: Option<Only>,
    },
    /// The call is over: asks for a [`FromGateway::Tally`], at once.
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
    /// The first frame: it is confined, and serves.
    Up,
    /// A connection of the cell has closed, or was denied. Only for the audit log: the gateway drops it when the
    /// link is full.
    Connection { cell: CellKey, call: CallId, connection: Connection },
    /// The answer to [`ToGateway::Ask`].
    Tally { cell: CellKey, call: CallId, tally: Tally },
    /// The tally of a cell's last call, which its worker gives the gateway before it ends.
    Last { cell: CellKey, call: CallId, tally: Tally },
    /// The network of one cell, or of all, is gone.
    Failed { cell: Option<CellKey>, why: String },
}

/// From a worker to the gateway, on a link of its own: a worker makes no socket itself. Answered in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketRequest {
    /// A socket that is connected to this destination; the port of an echo request means nothing.
    Destination { protocol: Protocol, to: SocketAddr },
    /// A socket that is connected to one of the resolvers, by its index in the list that the gateway was started with.
    Resolver { protocol: Protocol, index: u8 },
    /// For each address, if it is the host's own. At most [`MOST_ADDRESSES`].
    Own { addresses: Vec<IpAddr> },
}

/// Most addresses of one [`SocketRequest::Own`].
pub const MOST_ADDRESSES: usize = 64;

/// The answer to a [`SocketRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketAnswer {
    /// The socket comes with the frame. One of TCP may still be connecting.
    Socket,
    /// The destination is not one that the cell may reach now.
    Refused { why: String },
    /// The host has no route there, by this errno.
    NoRoute { errno: i32 },
    /// The socket cannot be made or connected.
    Failed { errno: i32 },
    /// In the order of the request; true for an address of the host's own, or one whose route cannot be told.
    Own { own: Vec<bool> },
}

/// Encodes the answer to [`ToGateway::Ask`], leaving out rows until it fits in a frame.
///
/// # Errors
/// When it does not fit without any row.
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
    fn a_name_that_is_none_is_no_frame() {
        // `*.example.org` is told by its length before it; any other pattern of that length is read again.
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
