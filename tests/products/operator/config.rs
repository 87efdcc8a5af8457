//! `cofferdam config`, unknown keys and options, and pages generated from the command line.

use std::io;

use super::{Configured, SMALL, TEAM, refused, shipped, well};

#[test]
fn an_unknown_name_is_refused_with_the_nearest_one() -> io::Result<()> {
    let configured = shipped()?;
    let cases = [
        (&["policy", "explain", "bsah"], "there is no tool `bsah`\nhint: did you mean `bash`?"),
        (&["profile", "show", "bahs"], "there is no profile `bahs`\nhint: did you mean `bash`?"),
        (
            &["profile", "show", "Ünknown"],
            "there is no profile `\\u{dc}nknown`\n\
             hint: `cofferdam profile list` shows those that are loaded",
        ),
        (
            &["policy", "explain", "zzz"],
            "there is no tool `zzz`\nhint: the tools are bash, bash_output, bash_input, bash_jobs, bash_kill, \
             calculate, calculate_advanced, calculate_batch, calculate_plot, calculate_functions, calculate_stats, \
             calculate_history, set_precision, sandbox_rules, get_tool_info, bash_exec, bash_exec_stream, pipeline, \
             get_working_dir, set_working_dir, get_env, system_info, process_info, which_command, command_help, \
             man_page, history_search, history_replay, macro_save, macro_run, macro_list, macro_delete, \
             edit, put_file, get_file, workspace_changes, workspace_diff",
        ),
        (
            &["profile", "check", "none.toml"],
            "cannot read none.toml: no such file or directory (ENOENT)",
        ),
    ];
    for (command, message) in cases {
        assert_eq!(configured.run(command)?, refused(&format!("cofferdam: {message}\n")));
    }
    let (code, stdout, stderr) = configured.run(&["polciy"])?;
    assert_eq!((code, stdout.as_str()), (Some(125), ""));
    assert!(stderr.contains("a similar subcommand exists: 'policy'"), "{stderr}");
    Ok(())
}

/// Every value with its source, where a few are configured.
const SHOWN: &str = "\
configuration: DIR (--config)

server.concurrency     10           DIR/cofferdam.toml:4
server.queue           7            DIR/cofferdam.toml:5
server.uid_base        2000000000   default
server.uid_count       65536        default
server.egress                       default
pool.warm              2            DIR/cofferdam.toml:8
cells.net              untouched    default
limits.cells           22           default
limits.memory          18G          default
limits.tmpfs           5G           DIR/cofferdam.toml:11
limits.processes       4608         default
limits.scope           auto         default
sessions.most          8            default
sessions.idle          1800s        default
sessions.yield         45s          default
exec.default_timeout   30s          default
exec.max_timeout       300s         default
exec.working_dir       /workspace   default
exec.history           9            BASH_MCP_MAX_HISTORY
git.identity           true         default
git.elsewhere          true         default
toolchains.grant       auto         default
toolchains.cache       4G           default
guard.names                         default
workspace.keep                      default
workspace.layer_bytes  16G          default
workspace.layer_files  1000000      default
tools.groups           calc, shell  default
tools.off                           default
tools.on                            default
tools.files_changed    true         default
commands.timeout                    default
commands.concurrency   2            default
commands.failures      5            default
commands.recovery      60s          default
commands.max_args      2048         default
commands.max_stdout    1M           default
commands.max_stderr    256K         default
commands.memory                     default
audit.file                          default
audit.max_bytes        64M          default
audit.keep             5            default
audit.on_error         continue     default
nested.sockets                      default
project.hosts                       default
project.hooks          false        default
project.workers        16           default
project.timeout        30s          default
project.max_timeout    600s         default
project.output         10M          default
project.stderr         10M          default
project.stderr_tail    4K           default
project.resource       10M          default
project.text           100K         default
project.progress       100          default
project.messages       100          default
project.https_timeout  15s          default
project.https_bytes    10M          default
project.git_timeout    30s          default
project.git_bytes      50M          default
http.allowed                        default
http.hosts                          default
http.origins                        default
http.certificate                    default
http.key                            default
http.client_ca                      default
http.client_crl                     default
http.sessions          64           default
http.streams           64           default
http.rate              10           default
http.pre_stop                       default
http.drain             5s           default
http.token_list                     default
http.tokens                         default
http.certificates                   default
http.jwt                            default
secret                              default

profile bash            embedded:sandbox-profiles/bash.toml
profile bc              embedded:sandbox-profiles/bc.toml
profile cli-curl        embedded:sandbox-profiles/cli-curl.toml
profile cli-dig         embedded:sandbox-profiles/cli-dig.toml
profile cli-file        embedded:sandbox-profiles/cli-file.toml
profile cli-jq          embedded:sandbox-profiles/cli-jq.toml
profile cli-nmap        embedded:sandbox-profiles/cli-nmap.toml
profile cli-ping        embedded:sandbox-profiles/cli-ping.toml
profile cli-traceroute  embedded:sandbox-profiles/cli-traceroute.toml
profile nested          embedded:sandbox-profiles/nested.toml
profile project-fetch   embedded:sandbox-profiles/project-fetch.toml
profile small           DIR/sandbox-profiles/small.toml
policy                  DIR/policies/team.toml
";

#[test]
fn config_show_prints_each_value_with_its_source() -> io::Result<()> {
    let server = "schema = 1\n\n[server]\nconcurrency = 10\nqueue = 7\n\n[pool]\nwarm = 2\n\n\
                  [limits]\ntmpfs = \"5G\"\n";
    let configured = Configured::with(&[
        ("cofferdam.toml", server),
        ("sandbox-profiles/small.toml", SMALL),
        ("policies/team.toml", TEAM),
    ])?;
    let history = [("BASH_MCP_MAX_HISTORY", "9")];
    assert_eq!(configured.run_with(&history, &["config", "show"])?, well(SHOWN));
    let (code, stdout, _) = configured.run(&["config", "show", "--json"])?;
    let json: serde_json::Value = serde_json::from_str(&stdout)?;
    let queue = serde_json::json!({
        "key": "server.queue",
        "value": "7",
        "source": { "kind": "file", "file": "DIR/cofferdam.toml", "line": 5 },
    });
    assert_eq!((code, json.pointer("/values/1")), (Some(0), Some(&queue)));
    Ok(())
}

#[test]
fn config_schema_prints_the_schemas_of_the_repository() -> io::Result<()> {
    let configured = shipped()?;
    let server = include_str!("../../../schemas/server.json");
    let schemas = [
        (&["config", "schema", "server"][..], server),
        (&["config", "schema"], server),
        (&["config", "schema", "policy"], include_str!("../../../schemas/policy.json")),
        (&["config", "schema", "profile"], include_str!("../../../schemas/profile.json")),
    ];
    for (command, schema) in schemas {
        assert_eq!(configured.run(command)?, well(schema));
    }
    Ok(())
}

#[test]
fn an_invalid_variable_is_refused_at_start() -> io::Result<()> {
    let configured = shipped()?;
    let cases = [
        (
            ("BASH_MCP_DEFAULT_TIMEOUT", "soon"),
            "BASH_MCP_DEFAULT_TIMEOUT: `soon` is not a time; write 500ms, 30s, 10m, 1h or bare seconds\n\
             hint: write seconds above 0, as 30, or a time as 5m; 1h at most",
        ),
        (
            ("BASH_MCP_WORKING_DIR", "/home"),
            "BASH_MCP_WORKING_DIR: the directory `/home` is not inside /workspace or /tmp\n\
             hint: it is a directory of the cell: /workspace, /tmp, or one inside of them",
        ),
        (
            ("BASH_MCP_MAX_HISTORY", "-1"),
            "BASH_MCP_MAX_HISTORY: `-1` is no number from 0 to 1000\n\
             hint: write how many commands are remembered; 0 for none",
        ),
    ];
    for (variable, message) in cases {
        for command in [&["serve"][..], &["config", "show"]] {
            let output = configured.run_with(&[variable], command)?;
            assert_eq!(output, refused(&format!("cofferdam: {message}\n")));
        }
    }
    let order = configured.run(&["serve", "--default-timeout", "60", "--max-timeout", "50"])?;
    let message = "--default-timeout: the default time is 60s and the most is 50s, by --max-timeout\n\
                   hint: a command that asks for no time must have one that it may ask for";
    assert_eq!(order, refused(&format!("cofferdam: {message}\n")));
    Ok(())
}

#[test]
fn completions_and_manual_pages_know_every_command() -> io::Result<()> {
    let configured = shipped()?;
    let commands = ["run", "serve", "calc", "doctor", "policy", "profile", "config"];
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, stderr) = configured.run(&["completions", shell])?;
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{shell}");
        let unknown: Vec<_> = commands.iter().filter(|name| !script.contains(*name)).collect();
        assert!(unknown.is_empty(), "{shell}: {unknown:?}");
    }
    let (code, page, _) = configured.run(&["man"])?;
    assert_eq!(code, Some(0));
    assert!(page.contains(".SH NAME"), "{page}");
    assert_eq!(configured.run(&["man", "--out", "."])?, well(""));
    for command in commands {
        let page = configured.directory.path().join(format!("cofferdam-{command}.1"));
        assert!(page.is_file(), "{}", page.display());
    }
    let (code, _, stderr) = configured.run(&["man", "--out", "nowhere"])?;
    let expected = "cofferdam: man: cannot write in nowhere: no such file or directory (ENOENT)\n";
    assert_eq!((code, stderr.as_str()), (Some(125), expected));
    Ok(())
}
