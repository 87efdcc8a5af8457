//! Arguments that `cofferdam run` accepts, and the errors for those that it refuses.
#![expect(clippy::unwrap_used, reason = "a command line that does not parse is a failed test")]

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::commands::grants::request::MountRequest;
use clap::Parser;
use model::job::Access;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    run: RunArguments,
}

fn typed(words: &[&str]) -> RunArguments {
    Line::try_parse_from([&["run"], words].concat()).unwrap().run
}

fn checked(words: &[&str]) -> Result<RunRequest, CliError> {
    check(&typed(words), Some(Path::new("/home/me")))
}

fn refusal(words: &[&str]) -> String {
    checked(words).unwrap_err().text()
}

fn mount(host: &str, cell: &str, access: Access) -> MountRequest {
    MountRequest { host: PathBuf::from(host), cell: PathBuf::from(cell), access }
}

#[test]
fn every_flag_arrives_checked() {
    let request = checked(&[
        "--profile",
        "bc",
        "--ro",
        "/data:/data",
        "--ro",
        "/opt/x",
        "--rw",
        "/src/p",
        "--env",
        "A=b=c",
        "--cwd",
        "sub",
        "--timeout",
        "10m",
        "--memory",
        "64M",
        "--processes",
        "5",
        "--output",
        "1K",
        "--json",
        "--",
        "ls",
        "-la",
        "--json",
    ]);
    let profile = ProfileName::new("bc").unwrap();
    let expected = RunRequest {
        profile: profile.clone(),
        grants: GrantRequest {
            cells: GrantsFor::Call(profile),
            mounts: vec![
                mount("/data", "/data", Access::ReadOnly),
                mount("/opt/x", "/mnt/x", Access::ReadOnly),
                mount("/src/p", "/workspace", Access::ReadWrite),
            ],
            additions: ProfileAdditions::default(),
            sockets: Vec::new(),
            toolchains: None,
            has_scripts: false,
            layer: None,
            is_frozen: false,
        },
        call: Call {
            tool: "run".into(),
            argv: Argv::new(["ls", "-la", "--json"].map(str::to_owned).to_vec()).unwrap(),
            script: None,
            stdin: Stdin::Empty.open(),
            env: Env::new(BTreeMap::from([("A".to_owned(), "b=c".to_owned())])).unwrap(),
            cwd: Some(Cwd::new("--cwd", "/workspace/sub").unwrap()),
            asked: Asked {
                wall: Some(Duration::from_secs(600)),
                memory: Some(64 << 20),
                processes: Some(5),
                output: Some(1024),
            },
            profile: None,
            only: None,
            correlation: None,
        },
    };
    assert_eq!(request, Ok(expected));
}

#[test]
fn the_dashes_before_the_program_may_be_left_out() {
    let words = typed(&["ls", "-la", "--json"]);
    assert_eq!((words.call.argv.len(), words.json), (3, false));
}

#[test]
fn refusals_name_the_flag_and_the_way_out() {
    let cases: [(&[&str], &str); 9] = [
        (
            &["--profile", "No", "ls"],
            "cofferdam: --profile: `No` is not a profile's name\n\
             hint: lower-case letters, digits and dashes, such as bash or bc",
        ),
        (&["--env", "A", "ls"], "cofferdam: --env: `A` has no `=`\nhint: write --env NAME=VALUE"),
        (
            &["--env", "LD_PRELOAD=x", "ls"],
            "cofferdam: --env `LD_PRELOAD` is refused: it changes what programs load or run",
        ),
        (&["--cwd", "/etc", "ls"], "cofferdam: --cwd `/etc` is not inside /workspace or /tmp"),
        (
            &["--rw", "/", "ls"],
            "cofferdam: --rw: `/` is never granted as a whole\n\
             hint: grant the one directory that is needed",
        ),
        (
            &["--rw", "/home/me", "ls"],
            "cofferdam: --rw: `/home/me` is never granted as a whole\n\
             hint: grant the one directory that is needed",
        ),
        (
            &["--ro", "/a:/x/../y", "ls"],
            "cofferdam: --ro: `/a:/x/../y` has no usable path in the cell\n\
             hint: an absolute path without `..`, not /, /etc or /usr itself, not in /tmp, /dev or /proc, \
             and not through a link such as /lib",
        ),
        (
            &["--ro", "/a/n", "--ro", "/b/n", "ls"],
            "cofferdam: two host paths are granted at /mnt/n\n\
             hint: give one of them another place: HOST:CELL",
        ),
        (
            &["--rw", "/a:/mnt/a", "--ro", "/b:/workspace/x/y", "ls"],
            "cofferdam: /workspace/x/y lies in a /workspace that is not granted\n\
             hint: grant a directory there too (--rw DIR), or give this one another place, such as /mnt/NAME",
        ),
    ];
    for (words, expected) in cases {
        assert_eq!(refusal(words), expected);
    }
}

#[test]
fn a_bad_time_size_or_count_is_refused_where_it_stands() {
    for words in [
        ["--timeout", "0", "ls"],
        ["--timeout", "soon", "ls"],
        ["--memory", "lots", "ls"],
        ["--processes", "0", "ls"],
        ["--output", "-1", "ls"],
    ] {
        let error = Line::try_parse_from([&["run"], &words[..]].concat()).unwrap_err().to_string();
        assert!(error.contains(words[0]), "{error}");
    }
    assert!(Line::try_parse_from(["run"]).is_err());
}
