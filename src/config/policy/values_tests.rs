//! Types of words: an accepted word has exactly the promised form.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::policy::reach::TargetPlaces;

fn type_of(kind: WordType) -> Type {
    // Targets have separate tests.
    let reach = TargetReach { within: TargetPlaces::Any, largest: u128::MAX };
    Type { kind, pattern: None, max_bytes: WORD_BYTES, reach }
}

fn takes(kind: WordType, word: &str) -> bool {
    type_of(kind).check(word).is_ok()
}

/// Generates words close to the accepted forms: many pass, and many fail narrowly.
fn near() -> impl Strategy<Value = String> {
    prop_oneof![
        "[-a-z0-9.:/@%\\[\\]\\\\_x#?=]{1,24}",
        "(https?|ftp|file)://[-a-z0-9.@:\\[\\]]{1,16}(/[-a-z0-9{}\\[\\]%#?&=|`]{0,8})?",
        "[0-9]{1,3}(\\.[0-9x]{1,4}){1,3}(/[0-9]{1,3})?",
        "[0-9a-f:]{2,20}(/[0-9]{1,4})?",
        "\\PC{0,12}",
        any::<String>(),
    ]
}

fn decimal_of(text: &str) -> Decimal {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn every_decimal() -> WordType {
    WordType::Decimal(decimal_of("0")..=decimal_of("999999999999"))
}

#[test]
fn hosts_cidrs_and_urls_take_the_ordinary_ones() {
    for host in [
        "localhost",
        "a.example.com",
        "10.0.0.1",
        "::1",
        "xn--bcher-kva.example",
        "3com.com",
        "_sip._tcp.a.org",
    ] {
        assert!(takes(WordType::Host, host), "{host}");
    }
    for network in ["10.0.0.0/8", "0.0.0.0/0", "192.168.1.7/32", "fd00::/8", "::/0"] {
        assert!(takes(WordType::Cidr, network), "{network}");
    }
    for url in
        ["http://a", "https://a.example:8443/p?q=1#f", "http://[::1]:80/", "http://10.0.0.1/%41"]
    {
        assert!(takes(WordType::Url, url), "{url}");
    }
}

#[test]
fn addresses_in_other_forms_users_and_globs_are_refused() {
    for host in
        ["127.1", "0x7f.1", "0x7f000001", "2130706433", "a..b", "-a", "a-", "a.", "a b", "", "é"]
    {
        assert!(!takes(WordType::Host, host), "{host}");
    }
    for network in
        ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/+8", "::/129", "10/8", "a/8", "/8"]
    {
        assert!(!takes(WordType::Cidr, network), "{network}");
    }
    for url in [
        "ftp://a",
        "file:///etc/passwd",
        "HTTP://a",
        "http://",
        "http:///p",
        "http://u@a",
        "http://u:p@a",
        "http://a:0",
        "http://a:65536",
        "http://a/{1,2}",
        "http://a/[1-3]",
        "http://a\\@b",
        "http://[::1",
        "http://::1/",
        "http://a/ b",
        "http://a/\u{e9}",
        "-http://a",
        "http://127.1/",
        "http://a:",
    ] {
        assert!(!takes(WordType::Url, url), "{url}");
    }
}

proptest! {
    #[test]
    fn no_type_takes_a_word_that_could_be_a_flag_or_hide_something(word in near()) {
        let kinds = [
            WordType::Text, WordType::Int(0..=u64::MAX), every_decimal(), WordType::Path, WordType::Host, WordType::Cidr, WordType::Url,
            WordType::Choice(vec![word.clone()]),
        ];
        for kind in kinds {
            let Ok(passed) = type_of(kind.clone()).check(&word) else { continue };
            prop_assert!(!passed.starts_with('-') && !passed.is_empty(), "{:?}", kind);
            prop_assert!(!passed.chars().any(|c| c.is_control() || is_deceptive(c)), "{:?}", kind);
            // Only a path and a number are changed.
            if !matches!(kind, WordType::Path | WordType::Int(_) | WordType::Decimal(_)) {
                prop_assert_eq!(&passed, &word);
            }
        }
    }

    #[test]
    fn every_address_is_a_host_and_every_network_a_cidr(four in any::<u32>(), six in any::<u128>(), prefix in 0_u32..200) {
        let four = Ipv4Addr::from(four);
        let six = Ipv6Addr::from(six);
        prop_assert!(takes(WordType::Host, &four.to_string()) && takes(WordType::Host, &six.to_string()));
        prop_assert_eq!(takes(WordType::Cidr, &format!("{four}/{prefix}")), prefix <= 32);
        prop_assert_eq!(takes(WordType::Cidr, &format!("{six}/{prefix}")), prefix <= 128);
        let urls = [format!("http://{four}/"), format!("http://[{six}]/")];
        prop_assert!(urls.iter().all(|url| takes(WordType::Url, url)), "{:?}", urls);
    }

    #[test]
    fn a_host_is_labels_or_an_address_and_no_number_in_disguise(word in near()) {
        if takes(WordType::Host, &word) && word.parse::<IpAddr>().is_err() {
            prop_assert!(word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)));
            let label = |label: &str| {
                (1..=63).contains(&label.len()) && label.trim_matches('-') == label
            };
            prop_assert!(word.split('.').all(label), "{}", word);
            // inet_aton(3) would read a number here.
            let last = word.rsplit('.').next().unwrap_or_default();
            prop_assert!(last.parse::<u64>().is_err() && !last.to_lowercase().starts_with("0x"));
        }
    }

    #[test]
    fn a_url_is_http_with_a_host_and_no_user(word in near()) {
        if takes(WordType::Url, &word) {
            let rest = word.strip_prefix("http://").or_else(|| word.strip_prefix("https://"));
            let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
            prop_assert!(!authority.is_empty() && !authority.contains('@'));
            let odd = ['\\', '{', '}', ' ', '"', '`', '|', '<', '>', '^'];
            prop_assert!(word.is_ascii() && !word.contains(odd), "{}", word);
        }
    }

    #[test]
    fn a_choice_is_one_of_its_words_and_nothing_near_it(word in "[a-z]{0,4}|GET|get|GET |GETS|POST") {
        let values = || vec!["GET".to_owned(), "POST".to_owned()];
        prop_assert_eq!(takes(WordType::Choice(values()), &word), values().contains(&word));
    }

    #[test]
    fn a_number_is_digits_in_its_range_without_leading_zeros(word in "[-+ 0-9a-fx.e]{1,8}", low in 0_u64..50, span in 0_u64..1000) {
        let range = low..=low + span;
        let digits = word.bytes().all(|byte| byte.is_ascii_digit());
        let inside = digits && word.parse().is_ok_and(|number| range.contains(&number));
        let checked = type_of(WordType::Int(range)).check(&word);
        prop_assert_eq!(checked.is_ok(), inside);
        if let Ok(written) = checked {
            prop_assert!(written == "0" || !written.starts_with('0'));
        }
    }

    #[test]
    fn a_decimal_is_digits_with_one_point_in_its_range(word in "[0-9]{0,3}\\.?[0-9]{0,7}|[-+ 0-9a-fx.e]{1,8}") {
        let range = decimal_of("0.2")..=decimal_of("60");
        let checked = type_of(WordType::Decimal(range)).check(&word);
        // Compare with a double: six decimals are exact in one of this size.
        let plain = word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
            && word.starts_with(|c: char| c.is_ascii_digit())
            && !word.ends_with('.')
            && word.split('.').nth(1).is_none_or(|part| part.len() <= 6);
        let inside = plain && word.parse::<f64>().is_ok_and(|number| (0.2..=60.0).contains(&number));
        prop_assert_eq!(checked.is_ok(), inside, "{}", word);
        if let Ok(written) = checked {
            prop_assert_eq!(written.parse::<f64>(), word.parse::<f64>());
        }
    }

    #[test]
    fn a_path_is_inside_the_workspace_and_plain(word in "(/workspace|/tmp|/|\\.\\.|\\.|a|-f| |//){1,6}(/[a.]{1,3}){0,3}") {
        if let Ok(path) = type_of(WordType::Path).check(&word) {
            prop_assert!(path == "/workspace" || path.starts_with("/workspace/"), "{}", path);
            prop_assert!(!path.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")), "{}", path);
        }
    }
}
