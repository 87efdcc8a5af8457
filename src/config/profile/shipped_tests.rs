//! Tests of compiled-in profiles that are parsed on first use.

use super::*;
use crate::profile::Profiles;
use model::profile::{Profile, SocketName, UnixSockets};
use model::receipt::Tier;

fn all() -> Profiles {
    Profiles::parse(&shipped(), &[]).unwrap_or_else(|mistake| panic!("{mistake}"))
}

#[test]
fn profiles_parsed_one_by_one_equal_those_parsed_together() {
    let names: Vec<String> = all().names().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "bash",
            "bc",
            "cli-curl",
            "cli-dig",
            "cli-file",
            "cli-jq",
            "cli-nmap",
            "cli-ping",
            "cli-traceroute",
            "nested",
            "project-fetch"
        ]
    );
    assert_eq!(Profiles::compiled_in(), all());
    assert_ne!(Profiles::compiled_in(), all().unaccounted());
}

#[test]
fn changes_to_all_profiles_apply_to_those_parsed_later() {
    let changed = |mut profiles: Profiles| {
        profiles
            .grant_sockets(&[SocketName::new("skills").unwrap_or_else(|| panic!("well formed"))]);
        profiles.in_tier(Tier::Bare)
    };
    assert_eq!(changed(Profiles::compiled_in()), changed(all()));
    let granted = changed(all());
    let takes = |profile: &&Profile| profile.unix_sockets != UnixSockets::None;
    assert!(granted.iter().filter(takes).all(|profile| !profile.granted_sockets.is_empty()));
    assert!(granted.iter().filter(takes).count() > 0, "at least one uses sockets");
    assert!(granted.iter().all(|profile| profile.tier == Tier::Bare));
}

#[test]
fn a_clone_that_is_changed_leaves_the_other_as_it_was() {
    let before = Profiles::compiled_in();
    let changed = before.clone().in_tier(Tier::Bare);
    assert!(changed.iter().all(|profile| profile.tier == Tier::Bare));
    assert_eq!(before, all());
}
