//! Prevents connections to sockets of the host in a grant.
//!
//! A read-only mount does not prevent connect(2), and Landlock (up to ABI 7) has no right for it.
//! So if a cell has a directory of the host, init connects for it, on private copies of the address
//! and of the socket, and accepts a path only to a socket in a private directory of the cell.
//! Datagrams carry an address in memory that no filter can read: such cells have no datagram
//! sockets of unix, and pairs of them have sequenced packets (`datagrams`).
//!
//! bind(2) makes a name. If names are guarded, init binds too, in the directory that it has
//! checked.

use std::collections::BTreeMap;

use super::calls::{self, CallGroup, MediatedCall, TABLE};
use model::profile::calls::number;
use model::profile::condition::{All, Verdict};
use sys::Result;

/// Sockets of the family unix, as arguments of socket(2).
const STREAM: [u64; 6] = [1, 1, 0, 0, 0, 0];
const DATAGRAM: [u64; 6] = [1, 2, 0, 0, 0, 0];
const SEQUENCED: [u64; 6] = [1, 5, 0, 0, 0, 0];

/// Removes connect(2) from `verdicts`, so that the filter notifies the listener of it, and datagram
/// sockets, which need no connect; with `guarded` names also bind(2). Does nothing if the cell has
/// no sockets with paths.
///
/// # Errors
/// ENOTSUP: the guard does not support one of these verdicts.
pub fn take(verdicts: &mut BTreeMap<u32, Verdict>, guarded: bool) -> Result<Vec<MediatedCall>> {
    let socket = number("socket").and_then(|number| verdicts.get(&number));
    let has = |kind| socket.is_some_and(|socket| socket.allows(kind));
    if ![STREAM, DATAGRAM, SEQUENCED].iter().any(has) {
        return Ok(Vec::new());
    }
    let mut mediated = calls::take(verdicts, CallGroup::Connect)?;
    for row in TABLE.iter().filter(|row| row.group == CallGroup::Datagram) {
        let removed = without(verdicts, row.call, &[DATAGRAM]);
        if let (Some(number), false) = (number(row.call), removed.is_empty()) {
            mediated.push(MediatedCall { number, row, verdict: Verdict::AllowIf(removed) });
        }
    }
    if guarded {
        mediated.extend(calls::take(verdicts, CallGroup::Bind)?);
    }
    Ok(mediated)
}

/// Removes all sockets with paths, in cells whose init cannot check them.
pub fn close(verdicts: &mut BTreeMap<u32, Verdict>) {
    drop(without(verdicts, "socket", &[STREAM, DATAGRAM, SEQUENCED]));
    drop(without(verdicts, "socketpair", &[DATAGRAM]));
}

/// Removes the alternatives that allow one of these kinds, and returns them.
fn without(verdicts: &mut BTreeMap<u32, Verdict>, call: &str, kinds: &[[u64; 6]]) -> Vec<All> {
    let Some(number) = number(call) else { return Vec::new() };
    let mut removed = Vec::new();
    match verdicts.get_mut(&number) {
        Some(Verdict::AllowIf(any) | Verdict::AllowOrProbe(any, _)) => {
            let allows =
                |all: &mut All| kinds.iter().any(|kind| all.iter().all(|test| test.holds(kind)));
            removed.extend(any.extract_if(.., allows));
        }
        // Without conditions no single kind can be removed: the whole call is refused.
        Some(verdict @ Verdict::Allow) => *verdict = Verdict::Errno(libc::EPERM),
        Some(Verdict::Errno(_) | Verdict::Answered) | None => {}
    }
    if let Some(Verdict::AllowIf(any)) = verdicts.get(&number)
        && any.is_empty()
    {
        verdicts.remove(&number);
    }
    removed
}
