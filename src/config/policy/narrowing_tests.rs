//! Narrowing of calls: each target kind, several words, and spellings that could mean another
//! target.

use crate::document::Document;
use crate::policy::flags::DeclaredCommand;
use crate::policy::{Asked, Call, Policy, Principal};
use crate::profile::Profiles;
use model::call::{Argv, Env, Stdin};
use model::egress::Only;
use model::job::Workspace;

/// Returns a tool with these fields.
fn command(fields: &str, accepts: &str) -> DeclaredCommand {
    let text = format!(
        "schema = 1\n[[tool]]\nname = \"probe\"\nprogram = \"probe\"\nwhy = \"w\"\n\
         accepts = [{accepts}]\nrefuses = [{{ args = [\"-x\"] }}]\n{fields}"
    );
    let policy = Policy::parse(&[Document::new("p.toml", &text)], &Profiles::compiled_in());
    let policy = policy.unwrap_or_else(|mistake| panic!("{mistake}"));
    policy.command("probe").cloned().unwrap_or_else(|| panic!("declared"))
}

fn field(name: &str, kind: &str, rest: &str) -> String {
    format!(
        "[[tool.positional]]\nname = \"{name}\"\nkind = \"{kind}\"\nmin = 0\nmax = 9\n\
         egress = \"only\"\nwhy = \"w\"\n{rest}\n"
    )
}

/// Returns the network of such a call as text: rules, hosts, networks, ports, and the networks of
/// all addresses.
fn network(command: &DeclaredCommand, given: &[(&str, &str)]) -> String {
    let only = match command.only(given) {
        Ok(Some(only)) => only,
        Ok(None) => return "all".to_owned(),
        Err(bad) => return bad.to_string(),
    };
    let hosts = only.hosts.iter().map(ToString::to_string);
    let nets = only.nets.iter().map(ToString::to_string);
    let ports = only.ports.iter().map(|port| format!(":{port}"));
    let within = only.within.first().map(|net| format!("in {net}…"));
    let rules = only.rules.iter().map(|rules| format!("rules {rules:?}"));
    let all = rules.chain(hosts).chain(nets).chain(ports).chain(within);
    all.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_call_may_reach_the_words_that_hold_it_and_nothing_else() {
    let target = command(&field("target", "target", ""), "{ with = { target = \"10.0.0.1\" } }");
    for (word, expected) in [
        ("10.0.0.7", "10.0.0.7/32 in 10.0.0.0/8…"),
        ("10.0.0.7/30", "10.0.0.4/30 in 10.0.0.0/8…"),
        ("fd12::7", "fd12::7/128 in 10.0.0.0/8…"),
        ("Web.LAB.internal", "web.lab.internal in 10.0.0.0/8…"),
    ] {
        assert_eq!(network(&target, &[("target", word)]), expected, "{word}");
    }
    let two = [("target", "10.0.0.7"), ("target", "a.lab.internal")];
    assert_eq!(network(&target, &two), "a.lab.internal 10.0.0.7/32 in 10.0.0.0/8…");
    // A call without a target reaches nothing.
    assert_eq!(network(&target, &[]), "rules []");
    // A field without `egress` changes nothing, and a tool without such a field is not narrowed.
    let plain = field("path", "text", "").replace("egress = \"only\"\n", "");
    let both = command(&(field("target", "host", "") + &plain), "{}");
    assert_eq!(network(&both, &[("path", "10.0.0.9")]), "rules []");
    assert_eq!(network(&command(&plain, "{}"), &[("path", "10.0.0.9")]), "all");
}

#[test]
fn spellings_of_another_place_are_refused() {
    let any = command(
        &field("target", "target", "within = [\"any\"]"),
        "{ with = { target = \"8.8.8.8\" } }",
    );
    for (word, said) in [
        ("::ffff:10.0.0.1", "write the IPv4 network itself"),
        ("::ffff:10.0.0.0/120", "write the IPv4 network itself"),
        ("64:ff9b::a00:1", "write the IPv4 network itself"),
        ("2002:a00:1::/48", "write the IPv4 network itself"),
        ("127.0.0.1", "never reached"),
        ("::1", "never reached"),
        ("169.254.169.254", "never reached"),
        ("localhost", "never reached"),
        ("metadata.google.internal", "never reached"),
    ] {
        assert!(network(&any, &[("target", word)]).contains(said), "{word}");
    }
    // Unrestricted names and addresses leave the addresses to the profile.
    assert_eq!(network(&any, &[("target", "example.org")]), "example.org");
    assert_eq!(network(&any, &[("target", "8.8.8.8")]), "8.8.8.8/32");
    let listed = "within = [\"10.9.0.0/16\", \"*.example.org\"]";
    let listed = command(&field("target", "target", listed), "{}");
    assert_eq!(network(&listed, &[("target", "a.example.org")]), "a.example.org");
    let nets = command(&field("target", "host", "within = [\"10.9.0.0/16\"]"), "{}");
    assert_eq!(network(&nets, &[("target", "10.9.1.1")]), "10.9.1.1/32 in 10.9.0.0/16…");
}

#[test]
fn a_url_holds_a_call_to_its_port_too() {
    let url = field("url", "url", "").replace("max = 9", "max = 1");
    let url = command(&url, "{ with = { url = \"http://10.0.0.1/\" } }");
    for (word, expected) in [
        ("http://10.0.0.1/a?b#c", "10.0.0.1/32 :80 :443 in 10.0.0.0/8…"),
        ("https://10.0.0.1", "10.0.0.1/32 :443 in 10.0.0.0/8…"),
        ("http://10.0.0.1:8080/", "10.0.0.1/32 :8080 in 10.0.0.0/8…"),
        ("https://[fd12::1]:8443/", "fd12::1/128 :8443 in 10.0.0.0/8…"),
        ("http://[fd12::1]/", "fd12::1/128 :80 :443 in 10.0.0.0/8…"),
        ("http://A.lab.internal:81", "a.lab.internal :81 in 10.0.0.0/8…"),
    ] {
        assert_eq!(network(&url, &[("url", word)]), expected, "{word}");
    }
}

#[test]
fn fields_that_cannot_hold_a_call_are_mistakes() {
    let mistake = |fields: &str| {
        let text = format!(
            "schema = 1\n[[tool]]\nname = \"probe\"\nprogram = \"probe\"\nwhy = \"w\"\n\
             accepts = [{{}}]\nrefuses = [{{ args = [\"-x\"] }}]\n{fields}"
        );
        let parsed = Policy::parse(&[Document::new("p.toml", &text)], &Profiles::compiled_in());
        parsed.err().map(|mistake| mistake.to_string()).unwrap_or_default()
    };
    assert!(mistake(&field("file", "path", "")).contains("is for the kinds host"));
    let one = field("url", "url", "").replace("max = 9", "max = 1");
    assert!(mistake(&field("url", "url", "")).contains("the only word"));
    assert!(mistake(&(one.clone() + &field("host", "host", ""))).contains("the only word"));
    assert!(mistake(&(field("host", "host", "") + &one)).contains("the only word"));
    assert_eq!(mistake(&one), "");
    let dash = field("host", "host", "prefix = \"-\"");
    assert!(mistake(&dash).contains("without a dash"));
}

/// Returns a policy with two rules that allow `bash`, each with this further line.
fn rules(first: &str, second: &str) -> Policy {
    let rule = |id: &str, line: &str| {
        format!(
            "[[rule]]\nid = \"{id}\"\ntools = [\"bash\"]\naction = \"allow\"\nprofile = \"bash\"\n\
             why = \"w\"\nmatches = [{{ tool = \"bash\" }}]\n{line}\n"
        )
    };
    let text = format!("schema = 1\n{}{}", rule("a", first), rule("b", second));
    let policy = Policy::parse(&[Document::new("p.toml", &text)], &Profiles::compiled_in());
    policy.unwrap_or_else(|mistake| panic!("{mistake}"))
}

fn granted(policy: &Policy, only: Option<Only>) -> Option<Only> {
    let call = Call {
        tool: "bash".into(),
        argv: Argv::new(vec!["bash".to_owned()]).unwrap_or_else(|error| panic!("{error}")),
        script: None,
        stdin: Stdin::Empty,
        env: Env::default(),
        cwd: None,
        asked: Asked::default(),
        profile: None,
        only,
        correlation: None,
    };
    let profiles = Profiles::compiled_in();
    let grant = policy.decide(&Principal::local(), call, &profiles, Workspace::Fresh.into());
    grant.unwrap_or_else(|denial| panic!("{denial}")).into_job().only
}

#[test]
fn rules_narrow_a_network_to_what_all_of_them_allow() {
    let ids = |only: Option<Only>| only.and_then(|only| only.rules);
    assert_eq!(granted(&rules("", ""), None), None);
    let pypi = Some(vec!["pypi".to_owned()]);
    assert_eq!(
        ids(granted(&rules("egress = [\"pypi\", \"npm\"]", "egress = [\"pypi\"]"), None)),
        pypi
    );
    assert_eq!(ids(granted(&rules("egress = [\"pypi\"]", ""), None)), pypi);
    assert_eq!(ids(granted(&rules("egress = []", ""), None)), Some(Vec::new()));
    // A call that reaches nothing stays so, and keeps its target in addition to the rules.
    let nothing = Only { rules: Some(Vec::new()), ..Only::default() };
    assert_eq!(ids(granted(&rules("egress = [\"pypi\"]", ""), Some(nothing))), Some(Vec::new()));
    let target = Only {
        nets: vec!["10.0.0.1".parse().unwrap_or_else(|e| panic!("{e}"))],
        ..Only::default()
    };
    let both = granted(&rules("egress = [\"pypi\"]", ""), Some(target.clone()));
    assert_eq!(both, Some(Only { rules: pypi, ..target }));
}
