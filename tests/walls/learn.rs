//! `cofferdam profile learn`: a command behind the walls, what they refused it, and what becomes of that.

use std::path::Path;

use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Finished, Need, claim, equal, holds, mode, patience,
};

pub const CLAIMS: &[Claim] = &[
    claim("refusals_are_printed_and_change_nothing", printed).needs(&[Need::Python]),
    claim("ungrantable_refusals_are_printed_with_a_reason", never).needs(&[Need::Python]),
    claim("a_learned_profile_with_reasons_works", round).needs(&[Need::Python]),
    claim("a_missing_program_is_offered_as_a_path", program),
    claim("missing_host_files_are_offered_and_work", paths).needs(&[Need::Python]),
    claim("dangerous_grants_are_commented_out", comments),
    claim("a_command_that_nothing_was_refused_learns_nothing", nothing),
    claim("a_program_unknown_to_the_shell_is_located", elsewhere),
    claim("an_unknown_profile_gets_the_nearest_name", unknown),
];

/// vmsplice(2) may be granted, and is in no shipped profile.
const ASKS: &str = "import ctypes; ctypes.CDLL(None).vmsplice(-1, 0, 0, 0); print('done')";

const LEARNED: &str = "\
# What the command was refused under profile `bash`. It grants nothing yet:
# strike what is not needed, write each `why`, then `cofferdam profile check FILE`.
schema = 1
name = \"bash-learned\"
description = \"\"
extends = \"bash\"

# refused once; it maps pages into a pipe; rarely used, often attacked
[[syscalls]]
names = [\"vmsplice\"]
why = \"\"
";

/// `cofferdam profile learn OPTIONS -- ARGV`, to its end.
fn learn(caller: &Caller, options: &[&str], argv: &[&str]) -> Result<Finished, Failed> {
    let mut command = caller.cofferdam(&["profile", "learn"]);
    command.args(options).arg("--").args(argv);
    Finished::run(command, patience())
}

fn names(directory: &Path) -> std::io::Result<usize> {
    Ok(std::fs::read_dir(directory)?.count())
}

fn printed(caller: &Caller) -> Check {
    let before = names(&caller.home)?;
    let output = learn(caller, &[], &["python3", "-I", "-S", "-c", ASKS])?;
    equal("exit code", output.code, 0)?;
    equal("standard output", output.stdout.as_str(), LEARNED)?;
    equal(
        "standard error",
        output.stderr.as_str(),
        "done\ncofferdam: the command exited with 0\n",
    )?;
    equal("files", names(&caller.home)?, before)
}

fn never(caller: &Caller) -> Check {
    // ptrace(2) is 101, process_vm_readv(2), by which init records, 310: refused inside as they are
    // under `run`, and no profile changes that.
    let script = format!("{CALLS}\nprint(call(101, 0, 0, 0, 0), call(310, 1, 0, 0, 0, 0, 0))");
    let output = learn(caller, &[], &["python3", "-I", "-S", "-c", &script])?;
    let expected = "# Nothing that profile `bash` could grant was refused.\n\n\
                    # Refused, and no profile changes that:\n\
                    # ptrace, refused once: it reads or drives another process\n\
                    # process_vm_readv, refused once: it reads or drives another process\n";
    equal("standard output", output.stdout.as_str(), expected)?;
    holds("the calls themselves", &output, output.stderr.starts_with("EPERM EPERM\n"))
}

fn round(caller: &Caller) -> Check {
    let learned = learn(caller, &[], &["python3", "-I", "-S", "-c", ASKS])?.stdout;
    let configuration = caller.directory("configuration")?;
    caller.directory("configuration/sandbox-profiles")?;
    let write = |text: &str| caller.file("configuration/sandbox-profiles/learned.toml", text);
    let configuration = configuration.to_string_lossy().into_owned();
    let run = || {
        let options = ["--config", &configuration, "--profile", "bash-learned"];
        caller.json(&options, &["python3", "-I", "-S", "-c", ASKS])
    };
    write(&learned)?;
    let refused = caller.cofferdam(&["--config", &configuration, "profile", "list"]);
    let refused = Finished::run(refused, patience())?;
    equal("with blank reasons", refused.code, 125)?;
    holds("with blank reasons", &refused, refused.stderr.contains(":11:7: `why` is blank\n"))?;
    write(&learned.replace("why = \"\"", "why = \"this test asks for it\""))?;
    let ran = run()?;
    equal("outcome", ran.get("outcome"), Some(&serde_json::json!("exited")))?;
    equal("denials", ran.get("denials"), Some(&serde_json::json!([])))
}

fn program(caller: &Caller) -> Check {
    let tool = caller.file("a-tool", "#!/bin/sh\ntouch \"$HOME/ran\"\n")?;
    mode(&tool, 0o755)?;
    let tool = tool.to_string_lossy().into_owned();
    let output = learn(caller, &[], &[&tool])?;
    equal("exit code", output.code, 127)?;
    let expected = format!("[[path]]\nhost = \"{tool}\"\nwhy = \"\"\n");
    holds("standard output", &output, output.stdout.ends_with(&expected))?;
    let error = format!("cofferdam: `{tool}` was not found\n");
    equal("standard error", output.stderr.as_str(), error.as_str())?;
    holds("it was not run", "ran", !caller.home.join("ran").exists())
}

/// Loads a library and prints a file; the exit code is how many of the two were not there.
fn script(library: &Path, data: &Path) -> String {
    format!(
        "import ctypes, sys\n\
         missing = 0\n\
         for ask in (lambda: ctypes.CDLL({library:?}), lambda: print(open({data:?}).read(), end='')):\n    \
             try: ask()\n    \
             except OSError: missing += 1\n\
         sys.exit(missing)\n"
    )
}

/// A shared library that this very process has loaded: there is one wherever this test runs.
fn library() -> Result<std::path::PathBuf, Failed> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut words = maps.lines().filter_map(|line| line.split_whitespace().last());
    words
        .find(|word| word.contains("libgcc_s"))
        .map(Into::into)
        .ok_or_else(|| Failed::from("this test has no libgcc_s"))
}

fn paths(caller: &Caller) -> Check {
    let directory = tempfile::Builder::new().prefix("cofferdam-learn").tempdir_in("/var/tmp")?;
    mode(directory.path(), 0o755)?;
    let lib = directory.path().join("lib");
    std::fs::create_dir(&lib)?;
    mode(&lib, 0o755)?;
    let library = lib.join("libother.so.1");
    let data = directory.path().join("data.txt");
    std::fs::copy(self::library()?, &library)?;
    std::fs::write(&data, "from the host\n")?;
    mode(&library, 0o755)?;
    mode(&data, 0o644)?;
    let script = script(&library, &data);
    let argv = ["python3", "-I", "-S", "-c", &script];
    // Positive control, and that learning grants nothing: both are missing in the cell.
    let output = learn(caller, &[], &argv)?;
    equal("exit code", output.code, 0)?;
    equal("standard error", output.stderr.as_str(), "cofferdam: the command exited with 2\n")?;
    let table = |path: &Path| {
        format!(
            "\n# it was looked for: the host has it and the cell has not\n\
             [[path]]\nhost = {path:?}\nwhy = \"\"\n"
        )
    };
    let head = LEARNED.split("\n# refused").next().unwrap_or_default();
    let expected = format!("{head}{}{}", table(&data), table(&library));
    equal("standard output", output.stdout.as_str(), expected.as_str())?;
    caller.directory("configuration")?;
    caller.directory("configuration/sandbox-profiles")?;
    let text = output.stdout.replace("why = \"\"", "why = \"this test asks for it\"");
    let file = caller.file("configuration/sandbox-profiles/learned.toml", &text)?;
    let check = caller.cofferdam(&["profile", "check", &file.to_string_lossy()]);
    equal("profile check", Finished::run(check, patience())?.code, 0)?;
    let configuration = caller.home.join("configuration").to_string_lossy().into_owned();
    let options = ["--config", &configuration, "run", "--profile", "bash-learned", "--"];
    let ran = Finished::run(caller.cofferdam(&[options.as_slice(), &argv].concat()), patience())?;
    equal("with the grants", (ran.code, ran.stdout.as_str()), (0, "from the host\n"))
}

fn comments(caller: &Caller) -> Check {
    let output = learn(caller, &[], &["sh", "-c", "cat /etc/shadow; ls /run /home"])?;
    let expected = "# Nothing that profile `bash` could grant was refused.\n\n\
                    # Looked for, there on the host, and not offered:\n\
                    # /etc/shadow: secrets are kept there; grant it by hand, if it must be\n\
                    # /home: it is too wide to offer; name what is needed beneath it\n\
                    # /run: it is too wide to offer; name what is needed beneath it\n";
    equal("standard output", output.stdout.as_str(), expected)
}

/// A shell looks for a program in its PATH alone: the operator's names where the host has it.
fn elsewhere(caller: &Caller) -> Check {
    let directory = caller.directory("tools")?;
    std::fs::write(directory.join("hosts-own-tool"), "#!/bin/sh\n")?;
    let options = ["profile", "learn", "--", "sh", "-c", "nobodys-tool; hosts-own-tool"];
    let mut command = caller.cofferdam(&options);
    command.env("PATH", format!("/usr/bin:{}", directory.display()));
    let output = Finished::run(command, patience())?;
    let expected = "\n# the host has `hosts-own-tool` in ~/tools, which is not in this cell";
    holds("standard output", &output.stdout, output.stdout.contains(expected))
}

fn nothing(caller: &Caller) -> Check {
    let output = learn(caller, &[], &["sh", "-c", "echo out; exit 3"])?;
    equal("exit code", output.code, 0)?;
    let expected = "# Nothing that profile `bash` could grant was refused.\n";
    equal("standard output", output.stdout.as_str(), expected)?;
    equal("standard error", output.stderr.as_str(), "out\ncofferdam: the command exited with 3\n")
}

fn unknown(caller: &Caller) -> Check {
    let output = learn(caller, &["--profile", "bsah"], &["true"])?;
    let expected = "cofferdam: --profile: no profile `bsah`\nhint: did you mean `bash`?\n";
    equal("code and error", (output.code, output.stderr.as_str()), (125, expected))
}
