//! Network traffic of a hostile cell: packets, the first bytes of connections, queries to the resolver.

use gateway::fuzzing;

/// Frames of a packet socket, each after its length: no packet upsets the stack or speaks for another address.
pub fn packets(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.expect("a runtime").block_on(async { fuzzing::packets(bytes) });
}

/// The first bytes of a connection: what names its host does not change with more of them.
pub fn first_flight(bytes: &[u8]) {
    fuzzing::first_flight(bytes);
}

/// A message to the resolver: a name that is judged is made of plain labels.
pub fn questions(bytes: &[u8]) {
    fuzzing::questions(bytes);
}
