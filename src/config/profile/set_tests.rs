//! Tests of profile files: accepted files, refused ones with their messages, and the resolved
//! shipped profiles.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use model::defaults::MIB;
use model::egress::{
    Egress, EgressLimits, EgressRule, HttpRule, NetworkClass, PortRange, Protocols, SecretForm,
    SecretUse,
};
use model::job::Limits;
use model::profile::calls::number;
use model::profile::{Exec, Family, HostPath, PathKind, Presence, ProcView, Requires, UnixSockets};

const HEAD: &str = "schema = 1\nname = \"a\"\ndescription = \"d\"\n";
const EXEC: &str = "exec = { program = \"any\", why = \"w\" }\n";

fn parsed(texts: &[&str]) -> Result<Profiles, Mistake> {
    let file = |text: &&str, number: usize| {
        Document::new(&format!("{number}.toml"), text).with_home(model::accounts::home())
    };
    let files: Vec<Document> = texts.iter().zip(1..).map(|(text, n)| file(text, n)).collect();
    Profiles::parse(&[], &files)
}

/// Returns the profile `a` of these files.
fn profile(texts: &[&str]) -> Result<Profile, String> {
    let profiles = parsed(texts).map_err(|mistake| mistake.to_string())?;
    let name = ProfileName::new("a").ok_or("name")?;
    profiles.get(&name).cloned().ok_or_else(|| "no profile `a`".to_owned())
}

/// Returns the mistake in a file that starts with [`HEAD`] and [`EXEC`], which are four lines.
fn mistake(rest: &str) -> String {
    profile(&[&format!("{HEAD}{EXEC}{rest}")])
        .map_or_else(|mistake| mistake, |p| format!("taken: {p:?}"))
}

fn shipped_profile(name: &str) -> Result<Profile, String> {
    let profiles = Profiles::parse(&shipped(), &[]).map_err(|mistake| mistake.to_string())?;
    ProfileName::new(name).and_then(|name| profiles.get(&name).cloned()).ok_or("missing".to_owned())
}

#[test]
fn a_profile_without_keys_has_the_defaults_and_no_host_paths() {
    let expected = Profile {
        name: ProfileName::new("a").unwrap_or_else(|| unreachable!("well formed")),
        description: "d".to_owned(),
        paths: Vec::new(),
        exec: Exec::Any,
        ahead: None,
        workspace: false,
        packaged_etc: false,
        proc: ProcView::None,
        egress: Egress::default(),
        families: BTreeSet::new(),
        unix_sockets: UnixSockets::None,
        granted_sockets: Vec::new(),
        calls: BTreeSet::new(),
        quiet: BTreeSet::new(),
        env: BTreeMap::new(),
        limits: Limits {
            wall: Duration::from_secs(600),
            cpu: Duration::from_secs(3600),
            processors: None,
            memory: 1024 * MIB,
            processes: 256,
            open_files: 1024,
            file_size: 512 * MIB,
            workspace_bytes: 0,
            tmp_bytes: 128 * MIB,
            shm_bytes: 64 * MIB,
            inodes: 100_000,
            output: Some(256 * MIB),
        },
        requires: Requires { landlock_abi: 2, memory_cgroup: false },
        tier: model::receipt::Tier::Full,
        terminal: None,
        makes_terminals: false,
        git_identity: None,
        script_sdk: &[],
        trust: Vec::new(),
    };
    assert_eq!(profile(&[&format!("{HEAD}{EXEC}")]), Ok(expected));
}

#[test]
fn a_later_layer_can_revoke_the_key_for_host_sockets() {
    let with = |key: &str| profile(&[&format!("{HEAD}{EXEC}{key}")]).map(|p| p.unix_sockets);
    let unix = "sockets = { families = [\"unix\"], why = \"w\" }\n";
    let private = "unix_sockets = { class = \"private\", why = \"w\" }\n";
    assert_eq!(with(""), Ok(UnixSockets::None));
    assert_eq!(with(&format!("{unix}{private}")), Ok(UnixSockets::Private));
    let parent = format!("{HEAD}{EXEC}{unix}{private}");
    let child = "schema = 1\nname = \"b\"\ndescription = \"d\"\nextends = \"a\"\n\
                 unix_sockets = { class = \"none\", why = \"w\" }\n";
    let profiles = parsed(&[&parent, child]);
    let name = ProfileName::new("b").unwrap_or_else(|| unreachable!("well formed"));
    let classes = profiles.map(|profiles| profiles.get(&name).map(|p| p.unix_sockets));
    assert_eq!(classes, Ok(Some(UnixSockets::None)));
    assert_eq!(
        mistake(private),
        "1.toml:5:43: `unix_sockets` is of no use without the family `unix`\n\
         hint: add `unix` to `sockets = { families = […] }`"
    );
}

#[test]
fn a_grant_without_a_why_is_refused() {
    let hint = "\nhint: every grant and every rule says why it is there";
    assert_eq!(
        mistake("[[path]]\nhost = \"/usr\"\n"),
        format!("1.toml:5:1: missing field `why`{hint}")
    );
    assert_eq!(
        mistake("[[syscalls]]\nnames = []\n"),
        format!("1.toml:5:1: missing field `why`{hint}")
    );
    assert_eq!(mistake("workspace = {}\n"), format!("1.toml:5:13: missing field `why`{hint}"));
    assert_eq!(
        mistake("workspace = { why = \" \" }\n"),
        format!("1.toml:5:21: `why` is blank{hint}")
    );
}

#[test]
fn unknown_keys_are_refused_at_every_level() {
    assert!(mistake("worksapce = { why = \"w\" }\n").ends_with("hint: did you mean `workspace`?"));
    assert!(mistake("[limits]\nmemroy = \"1G\"\n").ends_with("hint: did you mean `memory`?"));
    let path = "[[path]]\nhost = \"/usr\"\nwhy = \"w\"\nwritable = true\n";
    assert_eq!(
        mistake(path),
        "1.toml:8:1: unknown field `writable`, expected one of `host`, `cell`, `program`, `optional`, `why`"
    );
}

#[test]
fn an_unknown_call_is_reported_with_the_nearest_name() {
    assert_eq!(
        mistake("[[syscalls]]\nwhy = \"w\"\nnames = [\"read\", \"opennat\"]\n"),
        "1.toml:7:18: `opennat` is no system call\nhint: did you mean `openat`?"
    );
}

#[test]
fn an_ungrantable_call_is_refused_with_its_reason() {
    let refusal =
        |call: &str| mistake(&format!("[[syscalls]]\nwhy = \"w\"\nnames = [\"{call}\"]\n"));
    assert_eq!(
        refusal("mount"),
        "1.toml:7:10: no profile can grant `mount`: it changes or reads the mount tree, which is the wall of the cell"
    );
    assert_eq!(
        refusal("clone3"),
        "1.toml:7:10: no profile can grant `clone3`: its flags are behind a pointer; programs fall back to clone"
    );
    assert_eq!(refusal("socket"), "1.toml:7:10: `socket` is granted by the key `sockets`");
    assert_eq!(refusal("execve"), "1.toml:7:10: `execve` is granted by the key `exec`");
}

#[test]
fn calls_of_the_other_architecture_are_accepted_and_ignored() {
    let text = format!(
        "{HEAD}{EXEC}[[syscalls]]\nwhy = \"w\"\nnames = [\"open\", \"fstatat\", \"read\"]\n"
    );
    let here = ["open", "fstatat", "read"].iter().filter_map(|name| number(name)).collect();
    assert_eq!(profile(&[&text]).map(|profile| profile.calls), Ok(here));
}

#[test]
fn paths_are_absolute_and_normal() {
    let path = |host: &str| format!("[[path]]\nhost = \"{host}\"\nwhy = \"w\"\n");
    assert_eq!(mistake(&path("usr")), "1.toml:6:8: a path must be absolute, or begin with `~/`");
    assert_eq!(mistake(&path("/usr/../root")), "1.toml:6:8: a path must not contain `..`");
    assert_eq!(mistake(&path("/a\\u0000b")), "1.toml:6:8: a path contains a NUL byte");
    let home = model::accounts::home();
    let home = home.as_deref().and_then(std::path::Path::to_str).expect("a home");
    let below = profile(&[&format!("{HEAD}{EXEC}{}", path("~/tool"))]).map(|p| p.paths);
    let below = below.map(|paths| paths.into_iter().map(|path| path.host).collect::<Vec<_>>());
    assert_eq!(below, Ok(vec![format!("{home}/tool").into()]));
    let whole = format!(
        "1.toml:6:8: `{home}` is too wide to grant whole\nhint: name what is needed beneath it"
    );
    assert_eq!(mistake(&path("~/")), whole);
    assert_eq!(mistake(&path(home)), whole);
    let paths = profile(&[&format!("{HEAD}{EXEC}{}", path("//opt/./tool/"))]).map(|p| p.paths);
    let expected = HostPath {
        host: "/opt/tool".into(),
        cell: "/opt/tool".into(),
        kind: PathKind::Tree,
        presence: Presence::Required,
    };
    assert_eq!(paths, Ok(vec![expected]));
}

#[test]
fn paths_of_the_host_and_of_the_floor_are_not_granted() {
    let path = |keys: &str| mistake(&format!("[[path]]\nwhy = \"w\"\n{keys}\n"));
    assert_eq!(
        path("host = \"/run/docker.sock\""),
        "1.toml:7:8: `/run/docker.sock` is never granted: it is the host's own"
    );
    assert_eq!(
        path("host = \"/./proc\""),
        "1.toml:7:8: `/proc` is never granted: it is the host's own"
    );
    assert_eq!(
        path("host = \"/etc/\""),
        "1.toml:7:8: `/etc` is too wide to grant whole\nhint: name what is needed beneath it"
    );
    assert_eq!(
        path("host = \"/opt\"\ncell = \"/workspace/x\""),
        "1.toml:8:8: `/workspace/x` in the cell is made by cofferdam itself"
    );
    assert_eq!(
        path("host = \"/etc/passwd\""),
        "1.toml:7:8: `/etc/passwd` in the cell is made by cofferdam itself"
    );
    // Paths with one of these as a string prefix are different paths.
    let similar =
        "[[path]]\nhost = \"/runner\"\nwhy = \"w\"\n[[path]]\nhost = \"/process/1\"\nwhy = \"w\"\n";
    let count = profile(&[&format!("{HEAD}{EXEC}{similar}")]).map(|profile| profile.paths.len());
    assert_eq!(count, Ok(2));
}

#[test]
fn one_program_must_be_among_the_paths() {
    let text = format!("{HEAD}exec = {{ program = \"/usr/bin/bc\", why = \"w\" }}\n");
    assert_eq!(
        profile(&[&text]),
        Err("1.toml:4:20: `/usr/bin/bc` is in no [[path]] of this profile\n\
             hint: add [[path]] host = \"/usr/bin/bc\", program = true"
            .to_owned())
    );
}

#[test]
fn one_program_leaves_its_held_descriptor_out_of_reach() {
    let text = |limits: &str| {
        format!(
            "{HEAD}exec = {{ program = \"/opt/p\", why = \"w\" }}\n\
             [[path]]\nhost = \"/opt/p\"\nprogram = true\nwhy = \"w\"\n{limits}"
        )
    };
    let open_files = |limits| profile(&[&text(limits)]).map(|profile| profile.limits.open_files);
    assert_eq!(open_files(""), Ok(1000));
    assert_eq!(open_files("[limits]\nopen_files = 1000\n"), Ok(1000));
    assert_eq!(
        open_files("[limits]\nopen_files = 1001\n"),
        Err("1.toml:10:14: `open_files` is at most 1000 where one program is executed: \
             the descriptor it is held by must stay out of reach"
            .to_owned())
    );
}

#[test]
fn a_profile_adds_to_the_one_it_extends() {
    let parent = "schema = 1\nname = \"p\"\ndescription = \"parent\"\n\
                  [[syscalls]]\nwhy = \"w\"\nnames = [\"read\"]\n\
                  [[quiet]]\nwhy = \"w\"\nnames = [\"mincore\", \"mount\"]\n\
                  [limits]\nmemory = \"512M\"\ntmp = \"64M\"\n";
    let child = format!(
        "{HEAD}extends = \"p\"\n{EXEC}[[syscalls]]\nwhy = \"w\"\nnames = [\"write\", \"mincore\"]\n\
         [limits]\ntmp = \"32M\"\n"
    );
    let set = |names: &[&str]| names.iter().filter_map(|name| number(name)).collect();
    let profile = profile(&[parent, &child]);
    let resolved =
        profile.map(|p| (p.calls, p.quiet, p.limits.memory, p.limits.tmp_bytes, p.description));
    let expected =
        (set(&["read", "write", "mincore"]), set(&["mount"]), 512 * MIB, 32 * MIB, "d".to_owned());
    assert_eq!(resolved, Ok(expected));
}

#[test]
fn a_profile_without_exec_can_only_be_extended() {
    assert_eq!(profile(&[HEAD]), Err("no profile `a`".to_owned()));
}

#[test]
fn circles_and_missing_parents_are_reported() {
    let extends = |name: &str, parent: &str| {
        format!(
            "schema = 1\nname = \"{name}\"\ndescription = \"d\"\nextends = \"{parent}\"\n{EXEC}"
        )
    };
    assert_eq!(
        profile(&[&extends("a", "b"), &extends("b", "a")]),
        Err("2.toml:4:11: profiles extend each other in a circle: a -> b -> a".to_owned())
    );
    assert_eq!(
        profile(&[&extends("a", "a")]),
        Err("1.toml:4:11: profiles extend each other in a circle: a -> a".to_owned())
    );
    assert_eq!(
        profile(&[&extends("a", "basse"), &extends("base", "a")]),
        Err("1.toml:4:11: there is no profile `basse`\nhint: did you mean `base`?".to_owned())
    );
}

#[test]
fn two_files_with_one_name_are_a_mistake_and_a_given_one_replaces_a_shipped_one() {
    let text = format!("{HEAD}{EXEC}");
    assert_eq!(
        profile(&[&text, &text]),
        Err("2.toml:2:8: profile `a` is also in 1.toml".to_owned())
    );
    let given = Document::new("given", &text.replace("\"d\"", "\"given\""));
    let merged = Profiles::parse(&[Document::new("shipped", &text)], &[given]);
    let descriptions: Result<Vec<String>, Mistake> =
        merged.map(|profiles| profiles.iter().map(|p| p.description.clone()).collect());
    assert_eq!(descriptions, Ok(vec!["given".to_owned()]));
}

#[test]
fn limits_have_their_bounds() {
    assert_eq!(mistake("[limits]\nprocesses = 0\n"), "1.toml:6:13: must be above zero");
    assert_eq!(
        mistake("[limits]\ntimeout = \"2h\"\n"),
        "1.toml:6:11: `7200s` is above the most that any call gets, 3600s"
    );
    assert_eq!(
        mistake("[limits]\nmemory = \"64 MB\"\n"),
        "1.toml:6:10: `64 MB` is not a size; write 64M, 1G, 512K or bare bytes"
    );
    assert_eq!(
        mistake("[requires]\nlandlock_abi = 1\n"),
        "1.toml:6:16: `landlock_abi` is 2 at least"
    );
}

#[test]
fn no_cell_has_less_memory_than_it_can_start_with() {
    let tiny = "workspace = \"1M\"\ntmp = \"1M\"\nshm = \"1M\"\n";
    assert_eq!(
        mistake(&format!("[limits]\nmemory = \"8191K\"\n{tiny}")),
        "1.toml:6:10: `memory` of 8191K is less than a cell can start with\n\
         hint: 8M is the least; most programs need more"
    );
    assert!(mistake(&format!("[limits]\nmemory = \"8M\"\n{tiny}")).starts_with("taken"));
}

#[test]
fn tmpfs_caps_leave_half_of_the_memory() {
    assert_eq!(
        mistake("[limits]\nmemory = \"128M\"\ntmp = \"65M\"\nshm = \"1M\"\n"),
        "1.toml:6:10: /workspace and /tmp are 65M together; at most half of the memory, 64M, is left for them\n\
         hint: lower `tmp`, `shm` or `workspace` under [limits], or raise `memory`"
    );
    assert!(
        mistake("[limits]\nmemory = \"128M\"\ntmp = \"64M\"\nshm = \"33M\"\n")
            .contains("97M together")
    );
    assert!(
        mistake("[limits]\nmemory = \"128M\"\ntmp = \"64M\"\nshm = \"32M\"\n").starts_with("taken")
    );
}

#[test]
fn a_profile_cannot_set_variables_that_change_what_programs_load() {
    assert_eq!(
        mistake("[env]\nwhy = \"w\"\nset = { LD_PRELOAD = \"/tmp/x.so\" }\n"),
        "1.toml:7:22: env `LD_PRELOAD` is refused: it changes what programs load or run"
    );
}

#[test]
fn the_shipped_bc_has_one_program_and_nothing_else() {
    let bc = shipped_profile("bc")
        .map(|p| (p.exec, p.paths.len(), p.families, p.egress.class, p.proc, p.workspace));
    let expected = (
        Exec::Only("/usr/bin/bc".into()),
        1,
        BTreeSet::new(),
        NetworkClass::None,
        ProcView::None,
        false,
    );
    assert_eq!(bc, Ok(expected));
}

#[test]
fn the_shipped_bash_has_the_limits_of_the_rulings() {
    let bash = shipped_profile("bash")
        .map(|p| (p.limits, p.families, p.egress.class, p.proc, p.workspace));
    let limits = Limits {
        wall: Duration::from_secs(600),
        cpu: Duration::from_secs(3600),
        processors: None,
        memory: 1024 * MIB,
        processes: 256,
        open_files: 1024,
        file_size: 512 * MIB,
        workspace_bytes: 384 * MIB,
        tmp_bytes: 128 * MIB,
        shm_bytes: 64 * MIB,
        inodes: 100_000,
        output: Some(256 * MIB),
    };
    let families = BTreeSet::from([Family::Unix, Family::Inet, Family::Inet6]);
    assert_eq!(bash, Ok((limits, families, NetworkClass::Loopback, ProcView::Own, true)));
}

proptest::proptest! {
    #[test]
    fn arbitrary_text_after_a_good_start_never_panics(text in "\\PC*") {
        let _mistake = mistake(&text);
    }
}

const NETWORKED: &str = "network = { class = \"allow-list\", why = \"w\" }\n\
    sockets = { families = [\"inet\", \"inet6\"], why = \"w\" }\n";

#[test]
fn egress_rules_are_parsed_completely() {
    let text = format!(
        "{HEAD}{EXEC}{NETWORKED}[[egress]]\nid = \"lab\"\nhosts = [\"PyPI.org\", \"*.a.b\"]\n\
         nets = [\"10.20.0.0/16\"]\nports = [443, \"1-1024\"]\nprotocols = [\"tcp\", \"icmp\"]\nwhy = \"w\"\n\
         [egress_limits]\nconnections = 9\nsent = \"64M\"\n"
    );
    let egress = profile(&[&text]).map(|profile| profile.egress);
    let rule = EgressRule {
        id: "lab".to_owned(),
        hosts: ["pypi.org", "*.a.b"].map(|host| host.parse().expect("a host")).into(),
        nets: vec!["10.20.0.0/16".parse().expect("a net")],
        ports: vec![PortRange::one(443), PortRange { first: 1, last: 1024 }],
        protocols: Protocols { tcp: true, udp: false, icmp: true },
        http: Vec::new(),
        secret: None,
        why: "w".to_owned(),
    };
    let limits = EgressLimits { connections: 9, sent: Some(64 * MIB), ..EgressLimits::default() };
    assert_eq!(egress, Ok(Egress { class: NetworkClass::AllowList, rules: vec![rule], limits }));
}

#[test]
fn a_later_rule_of_the_same_name_replaces_the_earlier_one() {
    let rule = |host: &str| {
        format!("[[egress]]\nid = \"r\"\nhosts = [\"{host}\"]\nports = [443]\nwhy = \"w\"\n")
    };
    let base = format!("{HEAD}{EXEC}{NETWORKED}{}", rule("one.test")).replace("\"a\"", "\"b\"");
    let child = format!("{HEAD}extends = \"b\"\n{}", rule("two.test"));
    let rules = profile(&[&base, &child]).map(|profile| profile.egress.rules);
    let hosts = rules.map(|rules| rules.iter().map(|rule| rule.hosts.clone()).collect::<Vec<_>>());
    assert_eq!(hosts, Ok(vec![vec!["two.test".parse().expect("a host")]]));
}

#[test]
fn invalid_egress_rules_are_refused_with_a_hint() {
    let rule =
        |keys: &str| mistake(&format!("{NETWORKED}[[egress]]\nid = \"r\"\nwhy = \"w\"\n{keys}"));
    for (keys, said) in [
        ("ports = [443]\n", "names no destination"),
        ("hosts = [\"a.b\"]\n", "names no port"),
        ("hosts = [\"*.com\"]\nports = [443]\n", "top-level domain"),
        ("hosts = [\"*\"]\nports = [443]\n", "every name"),
        ("hosts = [\"localhost\"]\nports = [443]\n", "never reached"),
        ("nets = [\"127.0.0.0/8\"]\nports = [443]\n", "never reached"),
        ("nets = [\"169.254.169.254\"]\nports = [80]\n", "never reached"),
        ("nets = [\"10.0.0.1/8\"]\nports = [443]\n", "write 10.0.0.0/8"),
        ("hosts = [\"a.b\"]\nports = [0]\n", "is not a port"),
        ("hosts = [\"a.b\"]\nports = [\"9-1\"]\n", "is not a port"),
        ("hosts = [\"a.b\"]\nports = [443]\nprotocols = [\"icmp\"]\n", "which `icmp` has not"),
        ("hosts = [\"a.b\"]\nports = [443]\nprotocols = []\n", "`protocols` is empty"),
        ("hosts = [\"a.b\"]\nports = [443]\nwhy = \"\"\n", "duplicate key"),
    ] {
        assert!(rule(keys).contains(said), "{keys}: {}", rule(keys));
    }
    let plain = "[[egress]]\nid = \"r\"\nhosts = [\"a.b\"]\nports = [443]\nwhy = \"w\"\n";
    let loopback = format!("network = {{ class = \"loopback\", why = \"w\" }}\n{plain}");
    for refusal in [mistake(plain), mistake(&loopback)] {
        assert!(refusal.contains("means nothing where `network.class`"), "{refusal}");
    }
    let alone = mistake("network = { class = \"any\", why = \"w\" }\n");
    assert!(alone.contains("is of no use without sockets of `inet`"), "{alone}");
    let limit = mistake(&format!("{NETWORKED}[egress_limits]\nconnections = 257\n"));
    assert!(limit.contains("from 1 to 256"), "{limit}");
}

/// Returns a rule for `a.b` on port 443 with these keys.
fn reading(keys: &str) -> String {
    format!("[[egress]]\nid = \"r\"\nhosts = [\"a.b\"]\nports = [443]\nwhy = \"w\"\n{keys}")
}

const HTTP: &str = "http = [{ methods = [\"GET\"], paths = [\"/simple/**\"] }]\n";
const SECRET: &str = "secret = { name = \"github\", header = \"Authorization\", form = \"basic\", env = \"GH_TOKEN\" }\n";

#[test]
fn requests_and_secrets_of_a_rule_are_parsed_completely() {
    let text = format!("{HEAD}{EXEC}{NETWORKED}{}{HTTP}{SECRET}", reading(""));
    let rules = profile(&[&text]).map(|profile| profile.egress.rules);
    let rule = rules.as_ref().ok().and_then(|rules| rules.first()).expect("a rule");
    let http = HttpRule { methods: vec!["GET".into()], paths: vec!["/simple/**".into()] };
    assert_eq!(rule.http, [http]);
    let secret = SecretUse {
        name: "github".into(),
        header: "authorization".into(),
        form: SecretForm::Basic,
        env: "GH_TOKEN".into(),
    };
    assert_eq!((&rule.secret, rule.intercepts()), (&Some(secret), true));
}

#[test]
fn invalid_requests_and_secrets_are_refused_with_a_hint() {
    let rule = |keys: &str| mistake(&format!("{NETWORKED}{}", reading(keys)));
    let http = |methods: &str, paths: &str| {
        rule(&format!("http = [{{ methods = [{methods}], paths = [{paths}] }}]\n"))
    };
    let secret = |from: &str, to: &str| rule(&format!("{HTTP}{}", SECRET.replace(from, to)));
    for (refusal, said) in [
        (http("", "\"/\""), "`methods` is empty"),
        (http("\"GET\"", ""), "`paths` is empty"),
        (http("\"get\"", "\"/\""), "write it in capitals"),
        (http("\"*\"", "\"/\""), "is no method"),
        (http("\"CONNECT\"", "\"/\""), "never allowed"),
        (http("\"TRACE\"", "\"/\""), "never allowed"),
        (http("\"GET\"", "\"simple\""), "begins with `/`"),
        (http("\"GET\"", "\"/a/../b\""), "dot segment"),
        (http("\"GET\"", "\"/a?b\""), "without a query"),
        (rule(SECRET), "has a secret for every request"),
        (secret("github", "Git Hub"), "lower-case letters"),
        (secret("Authorization", "X Y"), "letters, digits and dashes"),
        (secret("Authorization", "Host"), "which the gateway writes"),
        (secret("\"basic\"", "\"digest\""), "unknown variant"),
        (secret("GH_TOKEN", "LD_PRELOAD"), "changes what programs load"),
        (secret("GH_TOKEN", "GH-TOKEN"), "GH-TOKEN"),
        (rule(&format!("{HTTP}nets = [\"10.0.0.0/8\"]\n")), "no address has a certificate"),
        (rule(&format!("{HTTP}protocols = [\"tcp\", \"udp\"]\n")), "for `tcp` alone"),
        (
            mistake(&format!("{NETWORKED}{}{HTTP}", reading("")).replace("allow-list", "any")),
            "reaches its hosts without the rule",
        ),
    ] {
        assert!(refusal.contains(said), "{said}: {refusal}");
    }
    let two = format!(
        "{NETWORKED}{}{HTTP}{SECRET}{}{HTTP}{}",
        reading(""),
        reading("").replace("\"r\"", "\"s\""),
        SECRET.replace("github", "gitlab")
    );
    assert!(mistake(&two).contains("GH_TOKEN is of two secrets"), "{}", mistake(&two));
}

#[test]
fn calls_of_shipped_profiles_reach_their_wall_time_limit_before_the_cpu_limit() -> Result<(), String>
{
    let profiles = Profiles::parse(&shipped(), &[]).map_err(|mistake| mistake.to_string())?;
    // If a process uses a whole processor, the two limits would race, and the reply would name
    // either of them.
    let raced: Vec<String> = profiles
        .iter()
        .filter(|profile| profile.limits.cpu <= profile.limits.wall)
        .map(|profile| {
            let limits = &profile.limits;
            format!("{}: cpu {:?}, timeout {:?}", profile.name, limits.cpu, limits.wall)
        })
        .collect();
    assert_eq!(raced, Vec::<String>::new());
    Ok(())
}
