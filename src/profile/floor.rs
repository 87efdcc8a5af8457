//! Stub.
use std::collections::BTreeMap;
use super::Profile;
use super::condition::Verdict;
use crate::receipt::MemoryHold;
pub fn verdicts(profile: &Profile, _memory: MemoryHold) -> BTreeMap<u32, Verdict> {
    profile.calls.iter().map(|n| (*n, Verdict::Allow)).collect()
}
