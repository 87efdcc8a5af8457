//! Tests of the settings of a project.

use super::*;

fn of(set: &[(&str, &str)]) -> Result<ProjectSettings, SettingError> {
    ProjectSettings::default().over(|name| {
        set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn nothing_is_set_without_a_variable() {
    assert_eq!(of(&[]), Ok(ProjectSettings::default()));
    let set = of(&[("MCPBASH_ALLOW_PROJECT_HOOKS", "false"), ("MCPBASH_TOOL_ALLOWLIST", " ")]);
    assert_eq!(set, Ok(ProjectSettings::default()));
}

#[test]
fn tools_are_admitted_by_list_or_by_default() {
    let admits = |set: &[(&str, &str)], name| of(set).expect("settings").tools.admits(name);
    let list = [("MCPBASH_TOOL_ALLOWLIST", "a, b c")];
    assert_eq!(["a", "b", "c", "d"].map(|name| admits(&list, name)), [true, true, true, false]);
    assert!(admits(
        &[("MCPBASH_TOOL_ALLOWLIST", "*"), ("MCPBASH_TOOL_ALLOW_DEFAULT", "deny")],
        "x"
    ));
    assert!(!admits(&[("MCPBASH_TOOL_ALLOW_DEFAULT", "deny")], "x"));
    assert!(of(&[("MCPBASH_TOOL_ALLOW_DEFAULT", "no")]).is_err());
}

#[test]
fn scripts_get_variables_by_name_and_never_the_token() {
    let named = [("MCPBASH_TOOL_ENV_MODE", "allowlist"), ("KEY", "v"), ("OTHER", "w")];
    let with = |list| of(&[&named[..], &[("MCPBASH_TOOL_ENV_ALLOWLIST", list)]].concat());
    let env = with("KEY,ABSENT").expect("settings").env;
    assert_eq!(env, BTreeMap::from([("KEY".to_owned(), "v".to_owned())]));
    for bad in ["MCPBASH_REMOTE_TOKEN", "MCP_SDK", "A-B", "1A"] {
        assert!(with(bad).is_err(), "{bad}");
    }
    assert!(
        of(&[("MCPBASH_TOOL_ENV_MODE", "inherit"), ("MCPBASH_TOOL_ENV_INHERIT_ALLOW", "true")])
            .is_err()
    );
}

#[test]
fn numbers_have_bounds_and_one_beyond_them_is_reported() {
    let seconds = |value| {
        of(&[("MCPBASH_DEFAULT_TOOL_TIMEOUT", value)]).map(|it| (it.default_seconds, it.changes))
    };
    assert_eq!(seconds("5"), Ok((5, Vec::new())));
    let changes = |taken: u64, asked: u64| {
        let text = format!("MCPBASH_DEFAULT_TOOL_TIMEOUT is {taken}: {asked} is beyond 1 to 600");
        Ok((taken, vec![text]))
    };
    assert_eq!((seconds("0"), seconds("601")), (changes(1, 0), changes(600, 601)));
    assert!(seconds("x").is_err() && seconds("-1").is_err() && seconds("1.5").is_err());
    let lower = of(&[("MCPBASH_MAX_TIMEOUT_SECS", "10")]).expect("settings");
    assert_eq!((lower.default_seconds, lower.max_seconds), (10, 10));
    let set = of(&[
        ("MCPBASH_MAX_CONCURRENT_REQUESTS", "3"),
        ("MCPBASH_MAX_TOOL_OUTPUT_SIZE", "2048"),
        ("MCPBASH_MAX_LOGS_PER_MIN", "0"),
        ("MCPBASH_MAX_RESOURCE_BYTES", "999999999"),
    ]);
    let set = set.expect("settings");
    assert_eq!((set.workers, set.stream.output, set.stream.messages), (3, 2048, 1));
    assert_eq!((set.resource_bytes, set.downloads.file_bytes), (64 << 20, 64 << 20));
    assert_eq!(set.changes.len(), 2, "{:?}", set.changes);
}

#[test]
fn settings_without_effect_are_reported_and_a_level_is_one_of_eight() {
    let changes = of(&[("MCPBASH_STATIC_REGISTRY", "1")]).map(|it| it.changes);
    let why = format!("MCPBASH_STATIC_REGISTRY has no effect: {NO_REGISTRY}");
    assert_eq!(changes, Ok(vec![why]));
    for (name, why) in WITHOUT_EFFECT {
        let changes = of(&[(name, "true")]).map(|it| it.changes);
        assert_eq!(changes, Ok(vec![format!("{name} has no effect: {why}")]));
    }
    let level = |set: &[(&str, &str)]| of(set).map(|it| it.log_level);
    assert_eq!(level(&[("MCPBASH_LOG_LEVEL_DEFAULT", "Error")]), Ok("error"));
    let both = [("MCPBASH_LOG_LEVEL", "true"), ("MCPBASH_LOG_LEVEL_DEFAULT", "error")];
    assert_eq!(level(&both), Ok("debug"));
    assert!(level(&[("MCPBASH_LOG_LEVEL", "loud")]).is_err());
    let idle = |set: &[(&str, &str)]| of(set).map(|it| it.idle_seconds);
    assert_eq!(idle(&[("MCPBASH_IDLE_TIMEOUT", "60")]), Ok(60));
    let off = [("MCPBASH_IDLE_TIMEOUT", "60"), ("MCPBASH_IDLE_TIMEOUT_ENABLED", "false")];
    assert_eq!(idle(&off), Ok(0));
    let set = of(&[
        ("MCPBASH_SHUTDOWN_TIMEOUT", "1"),
        ("MCPBASH_REMOTE_TOKEN_MAX_FAILURES_PER_MIN", "3"),
        ("MCPBASH_RESOURCES_POLL_INTERVAL_SECS", "0"),
        ("MCPBASH_ENV_PAYLOAD_THRESHOLD", "65536"),
    ]);
    let set = set.expect("settings");
    assert_eq!((set.shutdown_seconds, set.token_failures, set.poll_seconds), (1, 3, 0));
    assert_eq!((set.argument_bytes, set.changes.len()), (32 << 10, 1));
}

#[test]
fn a_variable_overrides_the_file_and_hosts_are_added() {
    let file = ProjectSettings {
        workers: 2,
        hosts: vec!["both.org:443".to_owned()],
        ..ProjectSettings::default()
    };
    let set = |more: &[(&str, &str)]| {
        file.clone().over(|name| {
            more.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    };
    assert_eq!(set(&[]).map(|it| it.workers), Ok(2));
    let deny =
        |words| set(&[("MCPBASH_HTTPS_DENY_HOSTS", words)]).map(|it| it.downloads.https_deny);
    let named = ["a.org", "*.b.org", "c.org"].map(str::to_owned).to_vec();
    assert_eq!(deny("A.org *.b.org,c.org:443").ok(), Some(named));
    for word in ["*", "*.", "a*.org", "a..org", "https://a.org", ".a.org"] {
        deny(word).expect_err(word);
    }
    let hosts = [
        ("MCPBASH_MAX_CONCURRENT_REQUESTS", "5"),
        ("MCPBASH_HTTPS_ALLOW_HOSTS", "API.org, both.org other.org:8443"),
        ("MCPBASH_GIT_ALLOW_HOSTS", "git.org"),
    ];
    let without = set(&hosts).expect("settings");
    assert_eq!((without.workers, without.changes.len()), (5, 1));
    assert_eq!(without.hosts, ["both.org:443", "api.org:443", "other.org:8443"]);
    let with = set(&[&hosts[..], &[("MCPBASH_ENABLE_GIT_PROVIDER", "true")]].concat());
    let with = with.expect("settings");
    assert_eq!(with.hosts.last().map(String::as_str), Some("git.org:443"));
    // A host for one kind of downloads is refused to the other.
    assert_eq!(with.downloads.https_deny, ["git.org"]);
    assert_eq!(with.downloads.git_deny, ["api.org", "other.org"]);
    for all in ["MCPBASH_HTTPS_ALLOW_ALL", "MCPBASH_GIT_ALLOW_ALL"] {
        assert!(set(&[(all, "true")]).is_err(), "{all}");
    }
}
