//! A digest of a list of changes: with it, a person applies what the list has shown or nothing.

use sha2::{Digest, Sha256};

use crate::commands::layers::change::{Act, Change, Kind};
use crate::commands::layers::files::Seen;

/// Bytes of the digest that are shown.
const BYTES: usize = 12;

/// Returns the digest of a list. Contents are represented by identity, size and the time of the last
/// change, which the kernel sets.
pub(crate) fn of(changes: &[Change]) -> String {
    let mut digest = Sha256::new();
    for change in changes {
        let length = u64::try_from(change.path.len()).unwrap_or(u64::MAX);
        digest.update(length.to_le_bytes());
        digest.update(&change.path);
        let act: u8 = match change.act {
            Act::Add => 0,
            Act::Change => 1,
            Act::Delete => 2,
        };
        let kind: u8 = match change.kind {
            Kind::File => 0,
            Kind::Directory => 1,
            Kind::Link => 2,
            Kind::Other => 3,
        };
        digest.update([act, kind, u8::from(change.is_applicable())]);
        let target = change.target.as_deref().unwrap_or_default();
        let length = u64::try_from(target.len()).unwrap_or(u64::MAX);
        digest.update([u8::from(change.target.is_some())]);
        digest.update(length.to_le_bytes());
        digest.update(target);
        for seen in [&change.new, &change.old] {
            digest.update([u8::from(seen.is_some())]);
            seen.iter().for_each(|seen| add(&mut digest, seen));
        }
    }
    digest.finalize().iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect()
}

fn add(digest: &mut Sha256, seen: &Seen) {
    let Seen { device, inode, mode, size, modified, changed, owner: (uid, gid) } = seen;
    digest.update(device.to_le_bytes());
    digest.update(inode.to_le_bytes());
    digest.update(size.to_le_bytes());
    for number in [mode, uid, gid] {
        digest.update(number.to_le_bytes());
    }
    for number in [modified.0, modified.1, changed.0, changed.1] {
        digest.update(number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::layers::files::Stamp;

    #[test]
    fn every_part_of_a_change_is_in_the_digest() {
        let seen = Seen {
            device: 1,
            inode: 2,
            mode: 0o100_644,
            size: 3,
            modified: Stamp(4, 5),
            changed: Stamp(6, 7),
            owner: (8, 9),
        };
        let change = Change {
            path: b"a".to_vec(),
            act: Act::Change,
            kind: Kind::File,
            new: Some(seen),
            old: Some(seen),
            target: None,
            held: None,
            is_conflict: false,
            is_movable: true,
        };
        let first = of(std::slice::from_ref(&change));
        assert_eq!(first.len(), 24);
        assert_eq!(first, of(std::slice::from_ref(&change)));
        let others = [
            Change { path: b"b".to_vec(), ..change.clone() },
            Change { act: Act::Add, ..change.clone() },
            Change { kind: Kind::Link, ..change.clone() },
            Change { target: Some(b"a".to_vec()), ..change.clone() },
            Change { is_conflict: true, ..change.clone() },
            Change { old: None, ..change.clone() },
            Change { new: Some(Seen { inode: 3, ..seen }), ..change.clone() },
            Change { new: Some(Seen { size: 4, ..seen }), ..change.clone() },
            Change { new: Some(Seen { mode: 0o100_755, ..seen }), ..change.clone() },
            Change { new: Some(Seen { changed: Stamp(6, 8), ..seen }), ..change.clone() },
            Change { old: Some(Seen { owner: (8, 0), ..seen }), ..change.clone() },
        ];
        for other in others {
            assert_ne!(of(std::slice::from_ref(&other)), first, "{other:?}");
        }
        assert_ne!(of(&[change.clone(), change]), first);
    }
}
