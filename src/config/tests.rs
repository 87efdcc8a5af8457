//! Tests of the places of configuration, of the owners of files, and of what each file may say.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use model::defaults;
use server::{UID_BASE, UID_COUNT, WARM};

/// A directory with an empty place for each origin.
struct Places {
    root: tempfile::TempDir,
}

impl Places {
    fn new() -> io::Result<Self> {
        let root = tempfile::tempdir()?;
        fs::set_permissions(root.path(), Permissions::from_mode(0o755))?;
        Ok(Self { root })
    }

    /// A configuration directory here with these files.
    fn with(&self, name: &str, files: &[(&str, &str)]) -> io::Result<PathBuf> {
        let directory = fs::canonicalize(self.root.path())?.join(name);
        make(&directory)?;
        for (file, text) in files {
            let path = directory.join(file);
            make(path.parent().unwrap_or(&directory))?;
            fs::write(&path, text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o644))?;
        }
        Ok(directory)
    }

    /// Surroundings in which nothing is configured.
    fn bare(&self) -> HostContext {
        HostContext {
            cofferdam_config: None,
            xdg_config_home: None,
            home: None,
            system: self.root.path().join("no-such-place"),
            euid: nix::unistd::geteuid().as_raw(),
            cores: 4,
        }
    }
}

fn make(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))
}

/// Returns the result of `load` as text.
fn outcome(explicit: Option<&Path>, host: &HostContext) -> String {
    load(explicit, host).map_or_else(|error| error.to_string(), |l| l.origin.to_string())
}

#[test]
fn without_any_file_the_embedded_defaults_run() -> io::Result<()> {
    let places = Places::new()?;
    assert_eq!(outcome(None, &places.bare()), "embedded defaults");
    Ok(())
}

#[test]
fn the_first_place_found_is_the_one() -> io::Result<()> {
    let places = Places::new()?;
    let argument = places.with("argument", &[])?;
    let environment = places.with("environment", &[])?;
    let user = places.with("xdg/cofferdam", &[])?;
    let home = places.with("home/.config/cofferdam", &[])?;
    let system = places.with("system", &[])?;
    let parent = |path: &Path, up| path.ancestors().nth(up).map(|p| p.as_os_str().to_owned());
    let mut host = HostContext {
        cofferdam_config: Some(environment.clone().into_os_string()),
        xdg_config_home: parent(&user, 1),
        home: parent(&home, 2),
        system: system.clone(),
        ..places.bare()
    };
    let origin = |explicit, host: &HostContext| {
        load(explicit, host).map(|loaded| loaded.origin).map_err(|e| e.to_string())
    };
    assert_eq!(origin(Some(&argument), &host), Ok(Origin::Argument(argument.clone())));
    assert_eq!(origin(None, &host), Ok(Origin::Environment(environment)));
    host.cofferdam_config = None;
    assert_eq!(origin(None, &host), Ok(Origin::User(user)));
    host.xdg_config_home = None;
    assert_eq!(origin(None, &host), Ok(Origin::User(home)));
    host.home = Some("relative".into());
    assert_eq!(origin(None, &host), Ok(Origin::System(system)));
    Ok(())
}

#[test]
fn a_place_named_on_purpose_must_be_there() -> io::Result<()> {
    let places = Places::new()?;
    let gone = places.root.path().join("gone");
    let message = format!("cannot read {}: no such file or directory (ENOENT)", gone.display());
    assert_eq!(outcome(Some(&gone), &places.bare()), message);
    let named = HostContext { cofferdam_config: Some(gone.into()), ..places.bare() };
    assert_eq!(outcome(None, &named), message);
    let relative = HostContext { cofferdam_config: Some("conf".into()), ..places.bare() };
    assert_eq!(
        outcome(None, &relative),
        "$COFFERDAM_CONFIG is `conf`, which depends on the current directory\nhint: use an absolute path"
    );
    Ok(())
}

#[test]
fn what_others_can_write_is_refused() -> io::Result<()> {
    let files = [("cofferdam.toml", "schema = 1\n"), ("policies/a.toml", "schema = 1\n")];
    for (name, mode) in [
        ("", 0o775),
        ("", 0o757),
        ("cofferdam.toml", 0o664),
        ("cofferdam.toml", 0o646),
        ("policies", 0o775),
        ("policies/a.toml", 0o666),
        ("..", 0o777),
    ] {
        let places = Places::new()?;
        let directory = places.with("conf", &files)?;
        let changed = if name.is_empty() { directory.clone() } else { directory.join(name) };
        let changed = fs::canonicalize(changed)?;
        assert!(load(Some(&directory), &places.bare()).is_ok(), "{name} before");
        fs::set_permissions(&changed, Permissions::from_mode(mode))?;
        let expected = format!(
            "others can write {0}, so they could configure the sandbox\nhint: chmod go-w {0}",
            changed.display()
        );
        assert_eq!(outcome(Some(&directory), &places.bare()), expected, "{name} {mode:o}");
    }
    Ok(())
}

#[test]
fn files_of_another_user_are_refused() -> io::Result<()> {
    let places = Places::new()?;
    let directory = places.with("conf", &[("cofferdam.toml", "schema = 1\n")])?;
    // Ownership can only be given away by root.
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let file = directory.join("cofferdam.toml");
    std::os::unix::fs::chown(&file, Some(12_345), None)?;
    assert_eq!(
        outcome(Some(&directory), &places.bare()),
        format!(
            "{} belongs to uid 12345, which could configure the sandbox\n\
             hint: it must belong to root or to the user who starts cofferdam",
            file.display()
        )
    );
    Ok(())
}

#[test]
fn a_link_to_another_users_file_is_judged_by_the_file() -> io::Result<()> {
    let places = Places::new()?;
    let directory = places.with("conf", &[])?;
    let elsewhere = places.root.path().join("elsewhere.toml");
    fs::write(&elsewhere, "schema = 1\n")?;
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o666))?;
    let link = directory.join("cofferdam.toml");
    symlink(&elsewhere, &link)?;
    assert!(outcome(Some(&directory), &places.bare()).starts_with("others can write"));
    Ok(())
}

#[test]
fn each_part_is_optional_and_stands_for_itself() -> io::Result<()> {
    let places = Places::new()?;
    let policy = "schema = 1\n[[rule]]\nid = \"only\"\ntools = [\"t\"]\naction = \"deny\"\nwhy = \"w\"\n\
                  matches = [{ tool = \"t\" }]\n";
    let profile = "schema = 1\nname = \"mine\"\ndescription = \"d\"\nextends = \"bash\"\n";
    let directory = places.with(
        "conf",
        &[
            ("policies/a.toml", policy),
            ("policies/ignored.txt", "not read"),
            ("policies/.hidden.toml", "not read"),
            ("sandbox-profiles/mine.toml", profile),
        ],
    )?;
    let loaded = load(Some(&directory), &places.bare());
    let outcome = loaded.map(|loaded| {
        let rules: Vec<String> = loaded.policy.rules().iter().map(|rule| rule.id.clone()).collect();
        let names: Vec<String> = loaded.profiles.iter().map(|p| p.name.to_string()).collect();
        (rules, names, loaded.config.queue)
    });
    let queue = Setting { value: 256, source: ValueSource::Default };
    let expected = (
        vec!["only".to_owned()],
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
            "mine",
            "nested",
            "project-fetch",
        ]
        .map(str::to_owned)
        .to_vec(),
        queue,
    );
    assert_eq!(outcome.map_err(|e| e.to_string()), Ok(expected));
    Ok(())
}

#[test]
fn mistakes_are_reported_with_their_file() -> io::Result<()> {
    let places = Places::new()?;
    let directory =
        places.with("conf", &[("cofferdam.toml", "schema = 1\n[server]\nqeue = 3\n")])?;
    assert_eq!(
        outcome(Some(&directory), &places.bare()),
        format!(
            "{}/cofferdam.toml:3:1: unknown field `qeue`, expected one of `concurrency`, `queue`, \
             `uid_base`, `uid_count`, `egress`\nhint: did you mean `queue`?",
            directory.display()
        )
    );
    Ok(())
}

fn config(text: &str) -> Result<Config, String> {
    let document = crate::document::Document::new("c.toml", text);
    Config::parse(Some(&document), 4).map_err(|mistake| mistake.to_string())
}

fn lines(config: &Config) -> Vec<String> {
    let line = |shown: ShownLine| format!("{} = {} ({})", shown.key, shown.value, shown.source);
    config.shown().into_iter().map(line).collect()
}

/// The settings of projects, as they are shown where no source set them.
const PROJECT: [&str; 16] = [
    "project.hosts =  (default)",
    "project.hooks = false (default)",
    "project.workers = 16 (default)",
    "project.timeout = 30s (default)",
    "project.max_timeout = 600s (default)",
    "project.output = 10M (default)",
    "project.stderr = 10M (default)",
    "project.stderr_tail = 4K (default)",
    "project.resource = 10M (default)",
    "project.text = 100K (default)",
    "project.progress = 100 (default)",
    "project.messages = 100 (default)",
    "project.https_timeout = 15s (default)",
    "project.https_bytes = 10M (default)",
    "project.git_timeout = 30s (default)",
    "project.git_bytes = 50M (default)",
];

#[test]
fn every_value_is_shown_with_its_source() {
    let text = "schema = 1\n[server]\nconcurrency = 2\n\n[limits]\nmemory = \"3G\"\n";
    let shown = config(text).map(|config| lines(&config));
    let expected = [
        "server.concurrency = 2 (c.toml:3)".to_owned(),
        "server.queue = 256 (default)".to_owned(),
        format!("server.uid_base = {UID_BASE} (default)"),
        format!("server.uid_count = {UID_COUNT} (default)"),
        "server.egress =  (default)".to_owned(),
        format!("pool.warm = {WARM} (default)"),
        "cells.net = untouched (default)".to_owned(),
        "limits.cells = 26 (default)".to_owned(),
        "limits.memory = 3G (c.toml:6)".to_owned(),
        "limits.tmpfs = 5760M (default)".to_owned(),
        "limits.processes = 2560 (default)".to_owned(),
        "limits.scope = auto (default)".to_owned(),
        "sessions.most = 8 (default)".to_owned(),
        "sessions.idle = 1800s (default)".to_owned(),
        "sessions.yield = 45s (default)".to_owned(),
        "exec.default_timeout = 30s (default)".to_owned(),
        "exec.max_timeout = 300s (default)".to_owned(),
        "exec.working_dir = /workspace (default)".to_owned(),
        "exec.history = 100 (default)".to_owned(),
        "git.identity = true (default)".to_owned(),
        "git.elsewhere = true (default)".to_owned(),
        "toolchains.grant = auto (default)".to_owned(),
        "toolchains.cache = 4G (default)".to_owned(),
        "guard.names =  (default)".to_owned(),
        "workspace.keep =  (default)".to_owned(),
        "workspace.layer_bytes = 16G (default)".to_owned(),
        "workspace.layer_files = 1000000 (default)".to_owned(),
        "tools.groups = calc, shell (default)".to_owned(),
        "tools.off =  (default)".to_owned(),
        "tools.on =  (default)".to_owned(),
        "tools.files_changed = true (default)".to_owned(),
        "commands.timeout =  (default)".to_owned(),
        "commands.concurrency = 2 (default)".to_owned(),
        "commands.failures = 5 (default)".to_owned(),
        "commands.recovery = 60s (default)".to_owned(),
        "commands.max_args = 2048 (default)".to_owned(),
        "commands.max_stdout = 1M (default)".to_owned(),
        "commands.max_stderr = 256K (default)".to_owned(),
        "commands.memory =  (default)".to_owned(),
        "audit.file =  (default)".to_owned(),
        "audit.max_bytes = 64M (default)".to_owned(),
        "audit.keep = 5 (default)".to_owned(),
        "audit.on_error = continue (default)".to_owned(),
        "nested.sockets =  (default)".to_owned(),
        "http.allowed =  (default)".to_owned(),
        "http.hosts =  (default)".to_owned(),
        "http.origins =  (default)".to_owned(),
        "http.certificate =  (default)".to_owned(),
        "http.key =  (default)".to_owned(),
        "http.client_ca =  (default)".to_owned(),
        "http.client_crl =  (default)".to_owned(),
        "http.sessions = 64 (default)".to_owned(),
        "http.streams = 64 (default)".to_owned(),
        "http.rate = 10 (default)".to_owned(),
        "http.pre_stop =  (default)".to_owned(),
        "http.drain = 5s (default)".to_owned(),
        "http.token_list =  (default)".to_owned(),
        "http.tokens =  (default)".to_owned(),
        "http.certificates =  (default)".to_owned(),
        "http.jwt =  (default)".to_owned(),
        "secret =  (default)".to_owned(),
    ];
    let mut expected = expected.to_vec();
    let place = expected.iter().position(|line| line.starts_with("http.")).expect("a line");
    expected.splice(place..place, PROJECT.map(str::to_owned));
    assert_eq!(shown, Ok(expected));
}

#[test]
fn values_out_of_range_are_reported() {
    let outcome = |section: &str| config(&format!("schema = 1\n{section}\n")).map(|_| ());
    let at = |message: &str| Err(format!("c.toml:3:{message}"));
    assert_eq!(outcome("[server]\nconcurrency = 0"), at("15: must be above zero"));
    let small = at("13: a file of the log has 64K at least");
    assert_eq!(outcome("[audit]\nmax_bytes = \"63K\""), small);
    assert_eq!(outcome("[audit]\nmax_bytes = \"64K\""), Ok(()));
    assert_eq!(outcome("[audit]\nkeep = 1001"), at("8: at most 1000 rotated files are kept"));
    assert_eq!(outcome("[audit]\nkeep = 1000"), Ok(()));
    assert_eq!(outcome("[audit]\nkeep = 0"), at("8: must be above zero"));
    assert_eq!(
        outcome("[server]\nuid_base = 1000"),
        at("12: `uid_base` is 65536 at least: below are users of the machine")
    );
    assert_eq!(
        outcome("[server]\nuid_base = 4294967295"),
        at("12: `uid_base` and `uid_count` together go beyond the last uid")
    );
    assert_eq!(outcome("[audit]\nfile = \"log\""), at("8: a path must be absolute"));
    assert_eq!(outcome("[nested]\nsockets = { a = \"/run/a\" }"), Ok(()));
    let secret = |name: &str, from: &str| {
        outcome(&format!("[[secret]]\nname = \"{name}\"\nfrom = \"{from}\"\n"))
    };
    assert_eq!(secret("github", "env:GH_TOKEN"), Ok(()));
    assert!(secret("Git Hub", "env:GH_TOKEN").is_err_and(|outcome| outcome.contains("lower-case")));
    assert!(secret("github", "ghp_value").is_err_and(|outcome| outcome.contains("write `file:")));
    assert_eq!(outcome("[nested]\nsockets = { a = \"run/a\" }"), at("17: a path must be absolute"));
    assert_eq!(
        outcome("[nested]\nsockets = { \"../a\" = \"/run/a\" }"),
        at("13: a socket's name is lower-case letters, digits and dashes, at most 32")
    );
    assert_eq!(
        config("[server]\n").map(|_| ()),
        Err("c.toml:1:1: missing field `schema`".to_owned())
    );
}

#[test]
fn as_many_default_cells_as_may_run_fit_under_the_caps() -> Result<(), String> {
    let Config { concurrency, memory, tmpfs, cells, sessions, .. } = config("schema = 1\n")?;
    let private = defaults::WORKSPACE_BYTES + defaults::TMP_BYTES + defaults::SHM_BYTES;
    let running = u64::from(concurrency.value + sessions.value);
    assert!(tmpfs.value >= running * private, "{} for {running} cells", tmpfs.value);
    assert!(memory.value >= running * defaults::MEMORY);
    assert!(cells.value >= concurrency.value + sessions.value);
    Ok(())
}

proptest::proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC*") {
        let _told = config(&text);
    }
}
