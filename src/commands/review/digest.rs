//! A digest of a list of changes: with it, a person applies what the list has shown or nothing.
//!
//! Contents are represented by the times that the kernel sets. While a program can write to a file
//! through a mapping of it (mmap(2)), its contents change without another time, on tmpfs always. So there
//! is a digest only of a layer that no cell used since before it was listed, and each start changes it.

use sha2::{Digest, Sha256};

use crate::commands::layers::change::{Act, Change, Kind};
use crate::commands::layers::files::Seen;
use crate::commands::layers::layer::Layer;

/// Bytes of the digest that are shown.
const BYTES: usize = 12;

/// A layer before it is listed.
pub(crate) struct Unlisted {
    /// The last start that used it; `None` if it is in use, or an apply of it was interrupted.
    last_start: Option<Vec<u8>>,
}

impl Unlisted {
    /// Looks at a layer that is about to be listed.
    pub(crate) fn of(layer: &Layer) -> Self {
        // Before the question whether the layer is in use: a start that begins after that has another one.
        let last_start = layer.last_start().ok();
        let is_quiet = !layer.is_in_use() && !layer.is_unfinished();
        Self { last_start: last_start.filter(|_| is_quiet) }
    }

    /// Returns the digest of a list; `None` if the files may change without a sign.
    pub(crate) fn digest(&self, changes: &[Change]) -> Option<String> {
        self.last_start.as_ref().map(|last_start| of(last_start, changes))
    }
}

fn of(last_start: &[u8], changes: &[Change]) -> String {
    let mut digest = Sha256::new();
    let length = u64::try_from(last_start.len()).unwrap_or(u64::MAX);
    digest.update(length.to_le_bytes());
    digest.update(last_start);
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
        let digest = |changes: &[Change]| of(b"start", changes);
        let first = digest(std::slice::from_ref(&change));
        assert_eq!(first.len(), 24);
        assert_eq!(first, digest(std::slice::from_ref(&change)));
        assert_ne!(first, of(b"another", std::slice::from_ref(&change)));
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
            assert_ne!(digest(std::slice::from_ref(&other)), first, "{other:?}");
        }
        assert_ne!(digest(&[change.clone(), change]), first);
    }
}
