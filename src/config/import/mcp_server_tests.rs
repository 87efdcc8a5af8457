//! Variables and YAML of the reference implementation: priorities, ranges, and what is refused.

use std::os::unix::fs::PermissionsExt;

use super::*;

const DECLARED: [&str; 4] = ["cli_nmap", "cli_nmap_intrusive", "cli_ping", "cli_wc"];

fn host() -> HostContext {
    HostContext::of_this_process()
}

/// Reads a file with this text, if there is one, and these variables.
fn read(text: Option<&str>, variables: &[(&str, &str)]) -> Result<McpSettings, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = directory.path().join("config.yaml");
    if let Some(text) = text {
        std::fs::write(&path, text).map_err(|error| error.to_string())?;
    }
    let variable = |name: &str| match name {
        FILE => text.map(|_| path.clone().into_os_string()),
        name => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()),
    };
    McpSettings::read(variable, &host())
        .map_err(|error| error.to_string().replace(&path.display().to_string(), "FILE"))
}

fn applied(text: Option<&str>, variables: &[(&str, &str)]) -> Result<Config, String> {
    let mut config = Config::parse(None, 2).map_err(|error| error.to_string())?;
    let settings = read(text, variables)?;
    settings.apply(&mut config, &DECLARED).map_err(|error| error.to_string())?;
    Ok(config)
}

/// The file of the documents.
const YAML: &str = "\
server:
  host: 127.0.0.1
  port: 8080
  transport: http
  shutdown_grace_period: 30
security:
  allow_intrusive: false
  allowed_targets: [RFC1918, .lab.internal]
  max_args_length: 1024
circuit_breaker:
  failure_threshold: 3
  recovery_timeout: 120.0
tool:
  default_timeout: 300
  default_concurrency: 2
  include_patterns: ['*']
  exclude_patterns: [cli_wc]
";

#[test]
fn the_file_counts_and_a_variable_overrides_it() -> Result<(), String> {
    let config = applied(Some(YAML), &[])?;
    let commands = &config.commands;
    assert_eq!(commands.timeout.value, Some(Duration::from_secs(300)));
    assert_eq!(commands.timeout.source, ValueSource::Given("tool.default_timeout"));
    assert_eq!((commands.failures.value, commands.max_args.value), (3, 1024));
    assert_eq!(commands.recovery.value, Duration::from_secs(120));
    assert_eq!(config.http.drain.value, Duration::from_secs(30));
    let names =
        |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>();
    assert_eq!(names(&config.tools_on.value), ["cli_nmap", "cli_ping", "cli_wc"]);
    assert_eq!(names(&config.tools_off.value), ["cli_wc"]);
    assert_eq!(read(Some(YAML), &[])?.http().as_deref(), Some("127.0.0.1:8080"));

    let variables = [
        ("MCP_DEFAULT_TIMEOUT_SEC", "90"),
        ("MCP_DEFAULT_CONCURRENCY", "4"),
        ("MCP_MAX_STDOUT_BYTES", "4096"),
        ("MCP_MAX_STDERR_BYTES", "2048"),
        ("MCP_MAX_MEMORY_MB", "256"),
        ("MCP_SECURITY_ALLOW_INTRUSIVE", "true"),
        ("TOOL_INCLUDE", "NmapTool, PingTool"),
        ("TOOL_EXCLUDE", "TestTool"),
        ("MCP_SERVER_TRANSPORT", "stdio"),
    ];
    let config = applied(Some(YAML), &variables)?;
    let commands = &config.commands;
    assert_eq!(commands.timeout.value, Some(Duration::from_secs(90)));
    assert_eq!(commands.timeout.source, ValueSource::Given("MCP_DEFAULT_TIMEOUT_SEC"));
    assert_eq!((commands.concurrency.value, commands.max_stdout.value), (4, 4096));
    assert_eq!((commands.max_stderr.value, commands.memory.value), (2048, Some(256 << 20)));
    assert_eq!(names(&config.tools_on.value), ["cli_nmap", "cli_nmap_intrusive", "cli_ping"]);
    // A name that is never a tool's there means nothing here, but to leave out one that has it.
    assert!(config.tools_off.value.is_empty());
    let left_out = applied(None, &[("TOOL_EXCLUDE", "Test*,*Wc*")])?;
    assert_eq!(names(&left_out.tools_off.value), ["cli_wc"]);
    let mut config = Config::parse(None, 2).map_err(|error| error.to_string())?;
    let settings = read(None, &[("TOOL_EXCLUDE", "TestTool")])?;
    settings.apply(&mut config, &["cli_test"]).map_err(|error| error.to_string())?;
    assert_eq!(names(&config.tools_off.value), ["cli_test"]);
    let narrower = "security:\n  allowed_targets: [RFC1918]\n";
    assert!(applied(Some(narrower), &[]).is_err_and(|notes| notes.contains("both and no others")));
    assert_eq!(read(Some(YAML), &variables)?.http(), None);
    Ok(())
}

/// Two rows can mean the same: the file has one of them, a variable the other.
#[test]
fn a_variable_overrides_the_file_by_its_meaning() -> Result<(), String> {
    let file = "security:\n  timeout_seconds: 200\n  concurrency_limit: 9\n";
    let usual = applied(Some(file), &[])?;
    assert_eq!(usual.commands.timeout.value, Some(Duration::from_secs(200)));
    assert_eq!(usual.commands.concurrency.value, 9);
    let variables = [("MCP_DEFAULT_TIMEOUT_SEC", "100"), ("MCP_DEFAULT_CONCURRENCY", "3")];
    let config = applied(Some(file), &variables)?;
    assert_eq!(config.commands.timeout.value, Some(Duration::from_secs(100)));
    assert_eq!(config.commands.concurrency.value, 3);
    // A value that the variable replaces is not reported as clamped, and one without effect is always reported.
    let file = "security:\n  timeout_seconds: 1\nlogging:\n  backup_count: 3\n";
    let more = [("MCP_DEFAULT_TIMEOUT_SEC", "100"), ("MCP_LOGGING_FILE_PATH", "/x")];
    let notes = read(Some(file), &more)?.notes;
    let starts: Vec<&str> = notes.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(starts, ["logging.backup_count", "MCP_LOGGING_FILE_PATH"], "{notes:?}");
    Ok(())
}

#[test]
fn a_number_out_of_range_is_set_to_the_nearest_and_reported() -> Result<(), String> {
    let variables = [
        ("MCP_DEFAULT_TIMEOUT_SEC", "5"),
        ("MCP_CIRCUIT_BREAKER_FAILURE_THRESHOLD", "99"),
        ("MCP_CIRCUIT_BREAKER_RECOVERY_TIMEOUT", "1e30"),
        ("MCP_DEFAULT_CONCURRENCY", "-4"),
        ("MCP_MAX_ARGS_LEN", "99999999999999999999"),
    ];
    let commands = applied(None, &variables)?.commands;
    assert_eq!(commands.timeout.value, Some(Duration::from_secs(60)));
    assert_eq!((commands.failures.value, commands.concurrency.value), (10, 1));
    assert_eq!((commands.recovery.value.as_secs(), commands.max_args.value), (3600, 2048));
    let notes = read(None, &variables)?.notes;
    let expected = [
        "MCP_DEFAULT_TIMEOUT_SEC is out of its range: 60 is used",
        "MCP_DEFAULT_CONCURRENCY is out of its range: 1 is used",
        "MCP_CIRCUIT_BREAKER_FAILURE_THRESHOLD is out of its range: 10 is used",
        "MCP_CIRCUIT_BREAKER_RECOVERY_TIMEOUT is out of its range: 3600 is used",
        "MCP_MAX_ARGS_LEN is out of its range: 2048 is used",
    ];
    assert_eq!(notes, expected);
    let format =
        read(Some("circuit_breaker:\n  expected_exception: Exception\n"), &[("LOG_FORMAT", "%s")])?;
    let by: Vec<&str> = format.notes.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(by, ["circuit_breaker.expected_exception", "LOG_FORMAT"]);
    let unused = read(None, &[("MCP_MAX_FILE_DESCRIPTORS", "64")])?.notes;
    assert_eq!(
        unused,
        ["MCP_MAX_FILE_DESCRIPTORS has no effect: `open_files` of a profile bounds descriptors"]
    );
    Ok(())
}

#[test]
fn a_setting_that_looks_like_a_protection_and_is_not_is_refused() {
    let refused = |text: Option<&str>, variables: &[(&str, &str)]| {
        applied(text, variables).err().unwrap_or_else(|| panic!("{text:?} {variables:?} is taken"))
    };
    let cases: [(&str, &str); 7] = [
        ("security:\n  allow_intrusve: false\n", "unknown key `security.allow_intrusve`"),
        ("securty:\n  allow_intrusive: false\n", "unknown key `securty.allow_intrusive`"),
        (
            "security:\n  allowed_targets: ['0.0.0.0/0']\n",
            "RFC1918 and .lab.internal are taken, both and no others",
        ),
        ("security:\n  allow_intrusive: maybe\n", "the value is neither true nor false"),
        ("tool:\n  default_timeout: soon\n", "the value is no number"),
        ("- a\n", "it is no map of sections"),
        ("tool: [\n", "it is no YAML: "),
    ];
    for (text, why) in cases {
        let notes = refused(Some(text), &[]);
        assert!(notes.contains(why), "{text}: {notes}");
    }
    assert!(refused(None, &[("TOOL_EXCLUDE", "NmpTool")]).contains("no tool is named `NmpTool`"));
    assert!(refused(None, &[("MCP_SERVER_TRANSPORT", "tcp")]).contains("stdio and http"));
    let relative = |name: &str| (name == FILE).then(|| "config.yaml".into());
    let notes = McpSettings::read(relative, &host()).map_err(|error| error.to_string());
    assert!(notes.is_err_and(|notes| notes.contains("depends on the current directory")));
}

#[test]
fn a_file_that_others_can_write_is_refused() -> Result<(), std::io::Error> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("config.yaml");
    std::fs::write(&path, "tool:\n  default_timeout: 70\n")?;
    let variable = |name: &str| (name == FILE).then(|| path.clone().into_os_string());
    assert!(McpSettings::read(variable, &host()).is_ok(), "the control");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    let notes = McpSettings::read(variable, &host()).map_err(|error| error.to_string());
    assert!(notes.is_err_and(|notes| notes.starts_with("others can write ")));
    Ok(())
}

#[test]
fn a_bomb_of_aliases_is_refused_and_soon() {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip("abcdefgh".chars()) {
        let all = vec![format!("*{before}"); 9].join(", ");
        text.push_str(&format!("{name}: &{name} [{all}]\n"));
    }
    assert!(read(Some(&text), &[]).is_err());
}

#[test]
fn tools_have_the_names_of_classes_too() {
    let names = ["cli_nmap", "cli_nmap_intrusive", "dig"].map(class_name);
    assert_eq!(names, ["NmapTool", "NmapIntrusiveTool", "DigTool"]);
    for (pattern, name, is) in [
        ("*", "x", true),
        ("cli_*", "cli_x", true),
        ("*x*", "axb", true),
        ("a*b", "ac", false),
        ("", "x", false),
    ] {
        assert_eq!(like(pattern, name), is, "{pattern} {name}");
    }
}
