//! Tool chains of a home: what a granted project finds of them, and what of the home it does not.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{Caller, Check, Claim, Failed, Finished, claim, equal, holds, patience};

pub const CLAIMS: &[Claim] = &[
    claim("a_project_finds_the_tool_chains_of_the_home", programs),
    claim("a_tool_chain_is_found_without_the_operators_path", empty_path),
    claim("credentials_next_to_a_tool_chain_are_hidden", credentials),
    claim("a_tool_chain_with_credentials_is_withheld", withheld),
    claim("no_cell_reads_a_credential_inside_of_a_tool_chain", inside),
    claim("a_part_is_granted_without_its_shared_parent", parts),
    claim("no_second_path_bypasses_a_nested_grant", covered),
    claim("tool_chains_are_read_only_and_links_are_skipped", contained),
    claim("tool_chains_are_chosen_by_name_or_left_out", chosen),
    claim("a_server_with_a_workspace_has_them_too", served),
];

/// Files that are where each tool keeps its credentials.
const CREDENTIALS: &[&str] = &[
    ".aws/credentials",
    ".cargo/config.toml",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/gh/hosts.yml",
    ".config/go/env",
    ".config/pip/pip.conf",
    ".docker/config.json",
    ".git-credentials",
    ".gradle/gradle.properties",
    ".local/share/uv/credentials/credentials.toml",
    ".m2/settings.xml",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".ssh/id_ed25519",
];
const CANARY: &str = "canary-of-the-operator";

/// A home with tool chains and a project, where cells can have something at its path: not below /tmp.
pub(super) struct Home {
    held: tempfile::TempDir,
}

impl Home {
    pub(super) fn new(caller: &Caller) -> Result<Self, Failed> {
        let directory = tempfile::Builder::new().prefix("home").tempdir_in("/var/tmp")?;
        let home = Self { held: directory };
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755))?;
        caller.own(home.path())?;
        home.file(caller, ".cargo/registry/src/package", "downloaded\n", 0o644)?;
        home.file(
            caller,
            ".cargo/bin/cargo",
            "#!/bin/sh\ncat $CARGO_HOME/registry/src/package\n",
            0o755,
        )?;
        home.file(caller, ".nvm/versions/node/v1/bin/npm", "#!/bin/sh\necho npm of $0\n", 0o755)?;
        home.file(caller, "elsewhere/secret", CANARY, 0o644)?;
        home.file(caller, ".m2/repository/jar", "jar\n", 0o644)?;
        for secret in CREDENTIALS {
            home.file(caller, secret, CANARY, 0o644)?;
        }
        // A virtual environment: its scripts name their interpreter by its path on the host.
        home.file(caller, "project/.venv/bin/python", "#!/bin/sh\necho ran \"$1\"\n", 0o755)?;
        let python = home.path().join("project/.venv/bin/python");
        let script = format!("#!{}\n", python.display());
        home.file(caller, "project/.venv/bin/pytest", &script, 0o755)?;
        // Links that lead elsewhere, and one that leads to the same in another place.
        std::fs::create_dir(home.path().join(".volta"))?;
        symlink("/etc", home.path().join(".volta/bin"))?;
        symlink(home.path().join(".ssh"), home.path().join(".volta/tools"))?;
        home.file(caller, "data/.deno/bin/deno", "", 0o755)?;
        symlink(home.path().join("data/.deno"), home.path().join(".deno"))?;
        Ok(home)
    }

    fn path(&self) -> &Path {
        self.held.path()
    }

    pub(super) fn file(&self, caller: &Caller, name: &str, text: &str, mode: u32) -> Check {
        let path = self.path().join(name);
        let mut parents: Vec<_> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents.into_iter().filter(|one| one.starts_with(self.path())) {
            if !parent.exists() {
                std::fs::create_dir(parent)?;
                caller.own(parent)?;
            }
        }
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
        Ok(caller.own(&path)?)
    }

    /// Gives a command this home and its PATH.
    fn with_home(&self, mut command: Command) -> Command {
        let home = self.path().display();
        let path = format!(
            "{home}/.nvm/versions/node/v1/bin:/usr/bin:{home}/.cargo/bin:{home}/.volta/bin"
        );
        command.env("HOME", self.path()).env("PATH", path).env_remove("CARGO_HOME");
        command
    }

    /// Runs a script in a cell with the project granted for writing.
    pub(super) fn run(
        &self,
        caller: &Caller,
        options: &[&str],
        script: &str,
    ) -> Result<Finished, Failed> {
        let project = self.path().join("project").display().to_string();
        let options = [&["--rw", &project], options].concat();
        let command = caller.run_command(&options, &["bash", "-c", script]);
        Finished::run(self.with_home(command), patience())
    }
}

fn programs(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let output = home.run(caller, &[], "cargo && npm && .venv/bin/pytest && pwd && echo $PATH")?;
    let at = home.path().display();
    let expected = format!(
        "downloaded\nnpm of {at}/.nvm/versions/node/v1/bin/npm\nran .venv/bin/pytest\n\
         /workspace\n{at}/.nvm/versions/node/v1/bin:{at}/.cargo/bin:/usr/local/bin:/usr/bin:/bin\n"
    );
    equal("all of them", (output.stdout.as_str(), output.code), (expected.as_str(), 0))?;
    // At either path the project is the same, and can be written to.
    let both = format!("echo 1 > made && cat {at}/project/made && echo 2 > {at}/project/made");
    equal("both paths", home.run(caller, &[], &both)?.stdout.as_str(), "1\n")?;
    let made = std::fs::read_to_string(home.path().join("project/made"))?;
    equal("on the host", made.as_str(), "2\n")?;
    // Files that the host obeys are guarded at their own path too.
    let hook = format!("cd {at}/project && mkdir -p .git/hooks; echo x > .envrc; ls -A");
    let output = home.run(caller, &[], &hook)?;
    holds(
        "guarded",
        &output.stdout,
        !output.stdout.contains(".envrc") && !output.stdout.contains(".git"),
    )
}

/// Starts as a graphical client does: with the system's PATH, or without PATH.
fn empty_path(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    for version in ["v9.2.0", "v10.0.1"] {
        let program = format!(".nvm/versions/node/{version}/bin/of-nvm");
        home.file(caller, &program, "#!/bin/sh\necho $0\n", 0o755)?;
    }
    home.file(caller, ".local/bin/uv", "#!/bin/sh\necho uv\n", 0o755)?;
    home.file(caller, ".local/bin/other", CANARY, 0o755)?;
    // Programs of the system are not replaced.
    home.file(caller, ".cargo/bin/sh", "#!/bin/bash\necho wrong\n", 0o755)?;
    let at = home.path().display();
    let [nvm, cargo] =
        [".nvm/versions/node/v10.0.1/bin", ".cargo/bin"].map(|own| format!("{at}/{own}"));
    let expected = format!(
        "/usr/bin/sh\ndownloaded\n{nvm}/of-nvm\nuv\n/usr/local/bin:/usr/bin:/bin:{cargo}:{nvm}:{at}/.local/bin:{at}/.deno/bin\n"
    );
    let project = home.path().join("project").display().to_string();
    let script = "type -P sh; cargo && of-nvm && uv && echo $PATH";
    for path in [None, Some(""), Some("/usr/local/bin:/usr/bin:/bin")] {
        let command = caller.run_command(&["--rw", &project], &["bash", "-c", script]);
        let mut command = home.with_home(command);
        match path {
            Some(path) => command.env("PATH", path),
            None => command.env_remove("PATH"),
        };
        let output = Finished::run(command, patience())?;
        equal("found", (output.stdout.as_str(), output.code), (expected.as_str(), 0))?;
    }
    // A program that was granted alone is found too, among others on PATH.
    let mut command = home.with_home(caller.run_command(&["--rw", &project], &["uv"]));
    command.env("PATH", format!("/usr/bin:{cargo}:{at}/.local/bin"));
    equal("a program", Finished::run(command, patience())?.trimmed(), "uv")
}

fn credentials(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let at = home.path().display();
    let every = CREDENTIALS.iter().map(|name| format!("cat {at}/{name}\n")).collect::<String>();
    let script = format!(
        "grep -rsl downloaded {at}/.cargo; {every} cat {at}/elsewhere/secret; grep -rs {CANARY} {at}; true"
    );
    let output = home.run(caller, &[], &script)?;
    // The search works: it finds what is granted.
    holds("found", &output.stdout, output.stdout.contains("/.cargo/registry/src/package"))?;
    holds("and no canary", &output.stdout, !output.stdout.contains(CANARY))?;
    let missing = output.stderr.matches("No such file").count();
    equal("each is simply not there", missing, CREDENTIALS.len() + 1)
}

fn withheld(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let at = home.path().display();
    let token = ".nvm/versions/node/v1/etc/npmrc";
    home.file(caller, token, CANARY, 0o644)?;
    let output = home.run(caller, &[], &format!("cat {at}/{token}; cargo; npm --version"))?;
    holds("not read", &output.stdout, !output.stdout.contains(CANARY))?;
    holds("others are there", &output.stdout, output.stdout.contains("downloaded"))?;
    let reason =
        format!("{at}/.nvm/versions is not granted, since {at}/{token} may hold a credential");
    holds("and reported", &output.stderr, output.stderr.contains(&reason))
}

/// Files below the paths of a row in which a user can put a credential, each with the path that is withheld for it.
const INSIDE: &[(&str, &str)] = &[
    (".cargo/git/checkouts/one-1/2/.git/modules/sub", ".cargo/git/checkouts/one-1/2"),
    (".gradle/wrapper/dists/g-8/hash/g-8/gradle.properties", ".gradle/wrapper"),
    (".gradle/wrapper/dists/g-8/hash/g-8/init.d/company.gradle", ".gradle/wrapper"),
    (".gradle/wrapper/dists/g-8/hash/g-8/init.d/company.gradle.kts", ".gradle/wrapper"),
    (".nvm/versions/node/v1/lib/node_modules/npm/npmrc", ".nvm/versions"),
    (".nvm/versions/io.js/v1/etc/npmrc", ".nvm/versions"),
    (".pyenv/versions/3/envs/mine/pip.conf", ".pyenv/versions/3"),
    (".pyenv/versions/3/envs/mine/src/one/.git/config", ".pyenv/versions/3"),
    (".pyenv/versions/3/etc/jupyter/jupyter_server_config.py", ".pyenv/versions/3"),
    (".pyenv/versions/miniconda3/.condarc", ".pyenv/versions/miniconda3"),
    (".pyenv/versions/miniconda3/envs/mine/.condarc", ".pyenv/versions/miniconda3"),
    (".pyenv/versions/miniconda3/conda-meta/history", ".pyenv/versions/miniconda3"),
    (".pyenv/versions/miniconda3/conda-meta/state", ".pyenv/versions/miniconda3"),
    (".pyenv/versions/miniconda3/envs/mine/.mambarc", ".pyenv/versions/miniconda3"),
    (".pyenv/versions/miniconda3/etc/conda/activate.d/keys.sh", ".pyenv/versions/miniconda3"),
    (".local/share/uv/python/3/lib/python3/distutils/distutils.cfg", ".local/share/uv/python"),
    (".sdkman/candidates/java/8/jre/lib/management/snmp.acl", ".sdkman/candidates/java"),
    (".sdkman/candidates/gradle/8/init.d/company.gradle", ".sdkman/candidates/gradle"),
    (".sdkman/candidates/java/8/jre/lib/management/jmxremote.password", ".sdkman/candidates/java"),
    (".sdkman/candidates/java/21/conf/management/jmxremote.password", ".sdkman/candidates/java"),
];

fn inside(caller: &Caller) -> Check {
    for (secret, path) in INSIDE {
        let home = Home::new(caller)?;
        let at = home.path().display();
        home.file(caller, secret, CANARY, 0o644)?;
        let output = home.run(caller, &[], &format!("cat {at}/{secret}; cargo"))?;
        equal(secret, output.stdout.as_str(), "downloaded\n")?;
        let reason =
            format!("{at}/{path} is not granted, since {at}/{secret} may hold a credential");
        holds("and reported", &output.stderr, output.stderr.contains(&reason))?;
    }
    // Other files that the tool installs there are no reason to hide it.
    let home = Home::new(caller)?;
    let readme = ".gradle/wrapper/dists/g-8/hash/g-8/init.d/readme.txt";
    home.file(caller, readme, "as installed\n", 0o644)?;
    let output = home.run(caller, &[], &format!("cat {}/{readme}", home.path().display()))?;
    equal("as installed", (output.stdout.as_str(), output.code), ("as installed\n", 0))
}

fn parts(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let at = home.path().display();
    let maven = [".m2/wrapper/dists/m-3/hash", ".m2/wrapper/dists/m-3-bin/hash/m-3"];
    for place in maven {
        home.file(caller, &format!("{place}/bin/mvn"), "#!/bin/sh\necho built\n", 0o755)?;
        home.file(caller, &format!("{place}/conf/settings.xml"), CANARY, 0o644)?;
    }
    home.file(caller, ".sdkman/candidates/sbt/1/bin/sbt", "#!/bin/sh\necho compiled\n", 0o755)?;
    home.file(caller, ".sdkman/candidates/sbt/1/conf/sbtopts", CANARY, 0o644)?;
    home.file(caller, ".pyenv/versions/3/bin/python", "#!/bin/sh\necho python\n", 0o755)?;
    home.file(caller, ".pyenv/versions/conda/.condarc", CANARY, 0o644)?;
    home.file(caller, "sdk/go1.25/bin/go", "#!/bin/sh\necho went\n", 0o755)?;
    home.file(caller, "sdk/android/release.keystore", CANARY, 0o644)?;
    home.file(caller, ".pyenv/plugins/one/bin/tool", "a plugin\n", 0o755)?;
    home.file(caller, ".pyenv/plugins/one/.git/config", CANARY, 0o644)?;
    home.file(caller, "go/pkg/mod/example.org/one@v1/one.go", "package one\n", 0o644)?;
    home.file(caller, "go/pkg/mod/cache/vcs/hash/config", CANARY, 0o644)?;
    home.file(caller, ".cargo/registry/index/one-1/.cache/on/e", "an entry\n", 0o644)?;
    home.file(caller, ".cargo/registry/index/one-1/.git/config", CANARY, 0o644)?;
    home.file(caller, ".cargo/git/db/one-1/objects/ab", "an object\n", 0o644)?;
    home.file(caller, ".cargo/git/db/one-1/FETCH_HEAD", CANARY, 0o644)?;
    home.file(caller, ".cargo/git/checkouts/one-1/2/lib.rs", "checked out\n", 0o644)?;
    let [one, other] = maven;
    let script = format!(
        "{at}/{one}/bin/mvn && {at}/{other}/bin/mvn && {at}/sdk/go1.25/bin/go; \
         {at}/.sdkman/candidates/sbt/1/bin/sbt; {at}/.pyenv/versions/3/bin/python; grep -rs {CANARY} {at}; \
         cd {at}; cat .pyenv/plugins/one/bin/tool go/pkg/mod/*/*/one.go .cargo/registry/index/*/.cache/*/* \
         .cargo/git/db/*/objects/* .cargo/git/checkouts/*/*/*; ls -A {one} {other} sdk go/pkg/mod .cargo/registry/index/*"
    );
    let output = home.run(caller, &[], &script)?;
    let expected = format!(
        "built\nbuilt\nwent\ncompiled\npython\na plugin\npackage one\nan entry\nan object\nchecked out\n.cargo/registry/index/one-1:\n.cache\n\n\
         {other}:\nbin\n\n{one}:\nbin\n\ngo/pkg/mod:\nexample.org\n\nsdk:\ngo1.25\n"
    );
    equal("the parts alone", output.stdout.as_str(), expected.as_str())
}

fn covered(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    home.file(caller, "project/vendor/file", "as it was\n", 0o644)?;
    home.file(caller, "project/secret/key", CANARY, 0o644)?;
    home.file(caller, "empty/nothing", "", 0o644)?;
    let at = home.path().display();
    let read_only = format!("{at}/project/vendor:/workspace/vendor");
    let cover = format!("{at}/empty:/workspace/secret");
    let script = format!(
        "cd /workspace; cat vendor/file; for to in vendor/file {at}/project/vendor/file; do echo new > $to; done; \
         cat secret/key {at}/project/secret/key"
    );
    let output = home.run(caller, &["--ro", &read_only, "--ro", &cover], &script)?;
    equal("read alone", output.stdout.as_str(), "as it was\n")?;
    let file = home.path().join("project/vendor/file");
    equal("on the host", std::fs::read_to_string(file)?.as_str(), "as it was\n")?;
    // Nor can a directory on the way be renamed: later cells would have no place for the grant.
    home.file(caller, "project/on/the/way", "", 0o644)?;
    let within = format!("{at}/empty:/workspace/on/the");
    let options = ["--ro", within.as_str()];
    let output =
        home.run(caller, &options, "mv on off || rm -rf on; mv other off; ls -d on off")?;
    equal("it stays", output.stdout.as_str(), "on\n")?;
    equal(
        "and again",
        home.run(caller, &options, "ls on; echo started")?.stdout.as_str(),
        "the\nstarted\n",
    )?;
    // A path of the cell's above a tool chain's: nothing is made in it.
    home.file(caller, "other/file", "", 0o644)?;
    let above = format!("{at}/other:{at}/.cargo");
    let output = home.run(caller, &["--ro", &above], "echo started")?;
    equal("above a tool chain", output.stdout.as_str(), "started\n")?;
    // The same directory by a path with `..`.
    let project = format!("{at}/project/../project");
    let command =
        caller.run_command(&["--rw", &project], &["cat", &format!("{at}/project/vendor/file")]);
    let output = Finished::run(home.with_home(command), patience())?;
    equal("by a path with ..", output.stdout.as_str(), "as it was\n")
}

fn contained(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let at = home.path().display();
    let script = format!(
        "touch {at}/.cargo/bin/x; rm {at}/.cargo/bin/cargo; echo x > {at}/.cargo/registry/src/package; \
         mkdir {at}/.cargo/new; ls {at}/.volta/bin/hostname; ls -A {at}"
    );
    let output = home.run(caller, &[], &script)?;
    equal("read-only", output.stderr.matches("Read-only file system").count(), 4)?;
    equal("and no link", output.stdout.as_str(), ".cargo\n.deno\n.m2\n.nvm\nproject\n")
}

fn chosen(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let list = format!("ls -A {} 2>&1; true", home.path().display());
    let output = home.run(caller, &["--toolchains", "rust"], &list)?;
    equal("one", output.stdout.as_str(), ".cargo\nproject\n")?;
    let output = home.run(caller, &["--toolchains", "none"], &list)?;
    holds("no such directory", &output.stdout, output.stdout.contains("No such file"))?;
    let output =
        home.run(caller, &["--toolchains", "none"], "echo $PATH; env | grep -c CARGO_HOME")?;
    equal("no variables", output.stdout.as_str(), "/usr/local/bin:/usr/bin:/bin\n0\n")?;
    let output = home.run(
        caller,
        &["--env", "PATH=/bin", "--env", "CARGO_HOME=/x"],
        "echo $PATH $CARGO_HOME",
    )?;
    equal("the operator's own word", output.stdout.as_str(), "/bin /x\n")?;
    // A cell that reaches the registry downloads for itself: the operator's downloads are read-only.
    let cargo = "echo $CARGO_HOME $CARGO_NET_OFFLINE";
    let output = home.run(caller, &[], cargo)?;
    let own = format!("{}/.cargo true\n", home.path().display());
    equal("without the registry", &output.stdout, &own)?;
    let output = home.run(caller, &["--egress", "cargo"], cargo)?;
    equal("with the registry", output.stdout.as_str(), "/cache/cargo\n")?;
    let output = home.run(caller, &["--egress", "example.org:443"], cargo)?;
    equal("with another host", &output.stdout, &own)?;
    let output = home.run(caller, &["--toolchains", "rusty"], "true")?;
    equal("refused", output.code, 125)?;
    holds("the nearest", &output.stderr, output.stderr.contains("did you mean `rust`?"))?;
    // Without a flag the configured value applies.
    let config = tempfile::tempdir()?;
    let file = config.path().join("cofferdam.toml");
    std::fs::write(file, "schema = 1\n[toolchains]\ngrant = \"none\"\n")?;
    std::fs::set_permissions(config.path(), PermissionsExt::from_mode(0o755))?;
    caller.own(config.path())?;
    let options = ["--config", &config.path().to_string_lossy()];
    let output = home.run(caller, &options, &list)?;
    holds("none by configuration", &output.stdout, output.stdout.contains("No such file"))?;
    let output =
        home.run(caller, &[options.as_slice(), &["--toolchains", "rust"]].concat(), &list)?;
    equal("the command line overrides it", output.stdout.as_str(), ".cargo\nproject\n")?;
    // Without a workspace of the host there are no tool chains.
    let command = home.with_home(caller.run_command(&[], &["bash", "-c", &list]));
    let output = Finished::run(command, patience())?;
    holds("not by default", &output.stdout, output.stdout.contains("No such file"))
}

fn served(caller: &Caller) -> Check {
    let home = Home::new(caller)?;
    let project = home.path().join("project").display().to_string();
    let serve = home.with_home(caller.cofferdam(&["serve", "--workspace", &project]));
    let mut server = crate::server::Server::of(serve)?;
    server.gives("cargo; .venv/bin/pytest > /dev/null && echo ran", 0, "downloaded\nran\n")?;
    server.gives(&format!("cat {}/.npmrc 2> /dev/null", home.path().display()), 1, "")
}
