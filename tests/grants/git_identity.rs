//! The author of commits: which parts of the operator's git configuration reach a cell.

use std::path::{Path, PathBuf};

use crate::support::{Caller, Check, Claim, Failed, Finished, claim, equal, holds, patience};

pub const CLAIMS: &[Claim] = &[
    claim("commits_in_a_grant_have_the_operators_identity", commits),
    claim("other_git_configuration_does_not_reach_a_cell", nothing_else),
    claim("no_git_identity_unless_needed_and_wanted", not_given),
];

const CONFIG: &str = "[user]\n\tname = Op \\\"E\\\" Rator\n\temail = op@example.org\n\tsigningKey = canary\n\
    [credential]\n\thelper = canary\n[includeIf \"gitdir:**/work/\"]\n\tpath = work.gitconfig\n";

/// Makes a home with a configuration of git, and a repository at `name` below it.
fn home(caller: &Caller, name: &str) -> Result<(PathBuf, PathBuf), Failed> {
    let home = caller.directory(&name.replace('/', "-"))?;
    let repository = home.join(name);
    let at = home.display();
    let to = repository.display();
    let made = caller.bash_outside(&format!(
        "mkdir -p {to} && cd {to} && git init -q -b main . && echo text > file && git add file && \
         printf '[user]\\n email = work@example.org\\n' > {at}/work.gitconfig"
    ))?;
    equal("made", (made.stderr.as_str(), made.code), ("", 0))?;
    std::fs::write(home.join(".gitconfig"), CONFIG)?;
    caller.own(&home.join(".gitconfig"))?;
    Ok((home, repository))
}

fn run(caller: &Caller, home: &Path, options: &[&str], script: &str) -> Result<Finished, Failed> {
    let mut command = caller.run_command(options, &["bash", "-c", script]);
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME");
    Finished::run(command, patience())
}

const COMMIT: &str = "git commit -qm one && git log --format='%an <%ae>'";

fn commits(caller: &Caller) -> Check {
    for (name, email) in [("project", "op@example.org"), ("work/project", "work@example.org")] {
        let (home, repository) = home(caller, name)?;
        let output = run(caller, &home, &["--rw", &repository.display().to_string()], COMMIT)?;
        let expected = format!("Op \"E\" Rator <{email}>\n");
        equal(name, (output.stdout.as_str(), output.stderr.as_str()), (expected.as_str(), ""))?;
    }
    let (home, repository) = home(caller, "own")?;
    let own = format!("git -C {} config user.email own@example.org", repository.display());
    equal("set", caller.bash_outside(&own)?.code, 0)?;
    let output = run(caller, &home, &["--rw", &repository.display().to_string()], COMMIT)?;
    equal("the repository's own", output.stdout.as_str(), "Op \"E\" Rator <own@example.org>\n")
}

fn nothing_else(caller: &Caller) -> Check {
    let (home, repository) = home(caller, "project")?;
    let script =
        "git config --system --list; git config --global --list; grep -c canary /etc/gitconfig";
    let output = run(caller, &home, &["--rw", &repository.display().to_string()], script)?;
    let expected = "user.name=Op \"E\" Rator\nuser.email=op@example.org\nrerere.enabled=false\n0\n";
    equal("the identity, and no list of conflicts", output.stdout.as_str(), expected)
}

fn not_given(caller: &Caller) -> Check {
    let (home, repository) = home(caller, "project")?;
    let plain = home.join("plain");
    std::fs::create_dir(&plain)?;
    caller.own(&plain)?;
    let repository = repository.display().to_string();
    let plain = plain.display().to_string();
    let script = "cat /etc/gitconfig";
    let none = "cat: /etc/gitconfig: No such file or directory\n";
    let read_only = format!("{repository}:/workspace");
    for options in [&[][..], &["--rw", &plain], &["--ro", &read_only]] {
        let output = run(caller, &home, options, script)?;
        equal(&options.join(" "), (output.stdout.as_str(), output.stderr.as_str()), ("", none))?;
    }
    let config = home.join("config");
    std::fs::create_dir(&config)?;
    std::fs::write(config.join("cofferdam.toml"), "schema = 1\n[git]\nidentity = false\n")?;
    for path in [&config, &config.join("cofferdam.toml")] {
        caller.own(path)?;
    }
    let mut command = caller.run_command(&["--rw", &repository], &["bash", "-c", script]);
    command.env("HOME", &home).env("COFFERDAM_CONFIG", &config);
    let output = Finished::run(command, patience())?;
    holds(
        "switched off",
        &output.stderr,
        output.stdout.is_empty() && output.stderr.contains(none.trim()),
    )
}
