//! Tests of compiled-in profiles that are parsed on first use.

use std::collections::BTreeSet;
use std::path::Path;

use syscalls::{aarch64, x86_64};

use super::*;
use crate::profile::Profiles;
use crate::profile::layer::names;
use crate::profile::schema::{Written, WrittenCalls};
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

/// Returns the numbers of a profile's calls on one architecture.
fn calls(chain: &[&Layer<'_>], number: impl Fn(&str) -> Option<u32>) -> Calls {
    let numbers = |lists: fn(&Written) -> &[WrittenCalls]| -> BTreeSet<u32> {
        let all = chain.iter().flat_map(|layer| names(lists(&layer.written)));
        all.filter_map(|name| number(name.get_ref())).collect()
    };
    let allowed = numbers(|written| &written.syscalls);
    let quiet = numbers(|written| &written.quiet);
    let quiet = quiet.difference(&allowed).copied().collect();
    Calls { allowed: allowed.into_iter().collect(), quiet }
}

#[test]
fn prepared_profiles_have_the_content_of_their_files() {
    for (name, bytes) in PREPARED {
        let known = ProfileName::new(name).unwrap_or_else(|| panic!("well formed"));
        let chain = chain(name).unwrap_or_else(|| panic!("{name} is shipped"));
        let read = resolve(&known, &chain).unwrap_or_else(|mistake| panic!("{mistake}"));
        let on_x86_64 = |name: &str| u32::try_from(name.parse::<x86_64::Sysno>().ok()?.id()).ok();
        // The table has the C library's name of this call.
        let on_aarch64 = |name: &str| {
            let name = if name == "newfstatat" { "fstatat" } else { name };
            u32::try_from(name.parse::<aarch64::Sysno>().ok()?.id()).ok()
        };
        let made = Prepared {
            profile: Profile { calls: BTreeSet::new(), quiet: BTreeSet::new(), ..read.clone() },
            x86_64: calls(&chain, on_x86_64),
            aarch64: calls(&chain, on_aarch64),
        };
        let made = postcard::to_allocvec(&made).unwrap_or_else(|error| panic!("{error}"));
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("profile/prepared");
            let path = path.join(format!("{name}.postcard"));
            std::fs::write(path, &made).unwrap_or_else(|error| panic!("{error}"));
            continue;
        }
        assert!(made == bytes, "{name}: UPDATE_SNAPSHOTS=1 makes its bytes again");
        assert_eq!(profile(&known), Some(read));
    }
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
