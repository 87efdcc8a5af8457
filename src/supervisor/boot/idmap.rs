//! The ids of this process's user namespace: root in a container has few of them
//! (user_namespaces(7)).

/// Host ids for a supervisor started by root: one for itself and one for each cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    pub first: u32,
    /// Ids per instance; each of several instances takes one such block.
    pub count: u32,
}

/// `/proc/self/uid_map` or `gid_map`: the ids of this namespace, and their numbers in the parent
/// namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdMap(Vec<Extent>);

/// The id that stands for unmapped ids (`/proc/sys/kernel/overflowuid`).
const OVERFLOW: u32 = 65_534;

/// The id of the host's root in this namespace, derived from the owner of its sysctls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostRoot {
    Shown(u32),
    /// The overflow id, which stands for every unmapped id and may also be that of a real user:
    /// `nobody`.
    Overflow {
        /// True if the kernel treats this process as the host's root.
        is_caller: bool,
    },
    Unknown,
}

impl HostRoot {
    /// Interprets the id that owns the host's sysctls.
    pub(crate) fn owner(id: Option<u32>, is_caller: impl FnOnce() -> bool) -> Self {
        match id {
            Some(OVERFLOW) => Self::Overflow { is_caller: is_caller() },
            Some(id) => Self::Shown(id),
            None => Self::Unknown,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub inside: u32,
    pub outside: u32,
    pub length: u32,
}

/// Parses `/proc/PID/uid_map` or `gid_map`, one extent per line.
pub(crate) fn extents(text: &str) -> Vec<Extent> {
    let extent = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        Some(Extent { inside: next()?, outside: next()?, length: next()? })
    };
    text.lines().filter_map(extent).collect()
}

impl IdMap {
    /// Reads the uid map of this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn of_this_process() -> std::io::Result<Self> {
        std::fs::read_to_string("/proc/self/uid_map").map(|text| Self::parse(&text))
    }

    /// Reads the gid map of this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn groups_of_this_process() -> std::io::Result<Self> {
        std::fs::read_to_string("/proc/self/gid_map").map(|text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        Self(extents(text))
    }

    /// Returns true if all `count` ids from `first` on exist here.
    pub(crate) fn covers(&self, first: u32, count: u32) -> bool {
        self.0.iter().any(|extent| {
            let skipped = first.checked_sub(extent.inside);
            skipped
                .and_then(|skipped| extent.length.checked_sub(skipped))
                .is_some_and(|left| left >= count)
        })
    }

    /// Translates an id to the parent namespace; on the host itself it is the same.
    pub(crate) fn outside(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|extent| {
            let offset = id.checked_sub(extent.inside)?;
            (offset < extent.length).then(|| extent.outside.checked_add(offset))?
        })
    }

    /// Translates an id to the host's, as far as this is possible from inside a namespace: 0 only
    /// for the host's root.
    pub(crate) fn on_the_host(&self, id: u32, host_root: HostRoot) -> u32 {
        let is_root = match host_root {
            HostRoot::Shown(root) => root == id,
            // The overflow id stands for unmapped ids. If it maps to an id other than 0 in the
            // parent namespace, it belongs to another user, unless a namespace in between maps the
            // host's root: then the kernel's answer decides.
            HostRoot::Overflow { is_caller } => {
                id == OVERFLOW && (is_caller || self.outside(id) == Some(0))
            }
            HostRoot::Unknown => false,
        };
        if is_root {
            return 0;
        }
        // The parent namespace may have a 0 that is not the host's root; the real id is unknown
        // then.
        match self.outside(id).unwrap_or(id) {
            0 => OVERFLOW,
            outside => outside,
        }
    }

    /// Returns the configured range if it exists here, otherwise a range of the same block size at
    /// the end of the longest extent, whose first ids people use. `None`: there is not room for one
    /// block.
    pub(crate) fn usable(&self, wanted: IdRange, blocks: u32) -> Option<IdRange> {
        if self.covers(wanted.first, wanted.count.checked_mul(blocks)?) {
            return Some(wanted);
        }
        let longest = self.0.iter().max_by_key(|extent| extent.length)?;
        // The lower half is left to the users of this namespace.
        let blocks = (longest.length / 2).checked_div(wanted.count)?.min(blocks);
        let taken = wanted.count.checked_mul(blocks).filter(|taken| *taken > 0)?;
        let first = longest.inside.checked_add(longest.length - taken)?;
        Some(IdRange { first, count: wanted.count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: IdRange = IdRange { first: 2_000_000_000, count: 1024 };

    #[test]
    fn the_host_has_the_configured_range() {
        let map = IdMap::parse("         0          0 4294967295\n");
        assert_eq!(map.usable(WANTED, 64), Some(WANTED));
        assert_eq!(map.outside(1000), Some(1000));
    }

    #[test]
    fn a_container_gets_a_range_from_its_upper_half() {
        let map = IdMap::parse("0 1000 1\n1 100000 65536\n");
        let range = map.usable(WANTED, 64);
        assert_eq!(range, Some(IdRange { first: 65537 - 32 * 1024, count: 1024 }));
        assert_eq!(map.outside(0), Some(1000));
        assert_eq!(map.outside(2), Some(100_001));
        assert_eq!(map.outside(70_000), None);
    }

    #[test]
    fn only_the_hosts_root_is_0_on_the_host() {
        let hidden = HostRoot::owner(Some(OVERFLOW), || false);
        let nested = IdMap::parse("0 0 1\n");
        let shown = HostRoot::owner(Some(0), || true);
        assert_eq!(nested.on_the_host(0, shown), 0, "the root of a namespace that root made");
        assert_eq!(nested.on_the_host(0, hidden), OVERFLOW, "root of one inside another");
        let renamed = IdMap::parse("64321 0 1\n");
        assert_eq!(renamed.on_the_host(64321, hidden), OVERFLOW);
        let shown = HostRoot::owner(Some(64321), || true);
        assert_eq!(renamed.on_the_host(64321, shown), 0, "root by another name");
        assert_eq!(IdMap::parse("0 1000 1\n").on_the_host(0, hidden), 1000);
    }

    #[test]
    fn the_user_nobody_of_a_container_is_not_the_hosts_root() {
        let map = IdMap::parse("0 100000 65536\n");
        let hidden = HostRoot::owner(Some(OVERFLOW), || false);
        assert_eq!(map.on_the_host(OVERFLOW, hidden), 165_534);
        let caller = HostRoot::owner(Some(OVERFLOW), || true);
        assert_eq!(map.on_the_host(OVERFLOW, caller), 0, "the kernel says so");
        assert_eq!(map.on_the_host(1000, caller), 101_000);
        let named = IdMap::parse("65534 0 1\n");
        assert_eq!(named.on_the_host(OVERFLOW, hidden), 0, "root that was named nobody");
    }

    #[test]
    fn a_single_id_is_too_few_for_a_range() {
        assert_eq!(IdMap::parse("0 1000 1\n").usable(WANTED, 64), None);
    }
}
