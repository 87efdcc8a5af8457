//! Repositories that a cell cannot make in a granted directory, and what the reply says about them.

use serde_json::Value;

use crate::server::{Server, text};
use crate::support::{Caller, Check, Claim, Failed, Need, claim, equal, holds};

pub const CLAIMS: &[Claim] = &[
    claim("a_refused_repository_is_reported_with_the_way_out", refused).needs(&[Need::Git]),
    claim("a_refused_configuration_is_reported_with_the_way_out", configured).needs(&[Need::Git]),
    claim("a_half_made_repository_is_named_by_every_call_that_left_it", served).needs(&[Need::Git]),
    claim("no_name_of_a_half_made_repository_forges_a_reply", forged).needs(&[Need::Git]),
];

/// Makes a repository with one commit, as the caller.
fn repository(caller: &Caller, name: &str) -> Result<String, Failed> {
    let path = caller.directory(name)?.display().to_string();
    let script = format!(
        "cd {path} && git init -q && git config user.email a@b && git config user.name n && \
         git commit -q --allow-empty -m first && echo made"
    );
    equal("a repository", caller.bash_outside(&script)?.trimmed(), "made")?;
    Ok(path)
}

/// Commands that make a repository, and the directory that each leaves where that is refused.
const MAKERS: [(&str, Option<&str>); 12] = [
    ("git init -q", None),
    ("git init -q app", Some("app")),
    ("mkdir -p app/src && echo x > app/src/main && git -C app init -q", Some("app")),
    ("git init -q --bare bare", Some("bare")),
    ("git init -q --separate-git-dir=/tmp/apart$$ work", Some("work")),
    ("git clone -q /tmp/source clone", None),
    ("git clone -q --bare /tmp/source mirror", None),
    ("git clone -q /tmp/source odd && mv odd moved", None),
    ("git -C outer -c protocol.file.allow=always submodule add -q /tmp/source lib", None),
    ("git -C outer worktree add -q ../tree", None),
    ("cp -r outer copy", Some("copy")),
    ("mkdir q && ln -s /tmp/source/.git q/.git", Some("q")),
];

const SOURCE: &str = "export GIT_CONFIG_GLOBAL=/tmp/gitconfig; git config --global user.email a@b
    git config --global user.name n
    git init -q /tmp/source && git -C /tmp/source commit -q --allow-empty -m x";

const OUTER: &str = "git init -q /tmp/outer && git -C /tmp/outer commit -q --allow-empty -m x";

/// The denials of a call, without those of other layers.
fn denials(object: &Value) -> Vec<&Value> {
    let all = object.pointer("/denials").and_then(Value::as_array);
    all.into_iter().flatten().collect()
}

fn refused(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    repository(caller, "grant/outer")?;
    let rw = path.display().to_string();
    for (maker, left) in MAKERS {
        // In /tmp each works: the positive control.
        let control = format!("{SOURCE}; {OUTER}; cd /tmp && {maker}");
        let works = caller.bash(&control)?;
        equal(&format!("`{maker}` in /tmp"), (works.code, works.stderr.as_str()), (0, ""))?;
        let script = format!("{SOURCE}; cd /workspace && {maker}");
        let object = caller.json(&["--rw", &rw], &["bash", "-c", &script])?;
        let refusal = denials(&object);
        let [denial] = refusal.as_slice() else { return Err(format!("{maker}: {object}").into()) };
        let grant = denial.pointer("/grant").and_then(Value::as_str).unwrap_or_default();
        let start = "--unguarded, since the host's git obeys a repository that is made there; \
            git init, git clone, git submodule add, cargo new, uv init and npm create work in /tmp (";
        holds(maker, grant, grant.starts_with(start))?;
        let named = left
            .map(|left| format!("; `/workspace/{left}` is left without one, perhaps half-made"));
        let end = named.as_deref().unwrap_or("clone to /tmp and push back)");
        holds(maker, grant, grant.ends_with(end))?;
        if let Some(left) = left {
            holds("it is there", left, path.join(left).is_dir())?;
            std::fs::remove_dir_all(path.join(left))?;
        }
        let found = caller.bash_outside(&format!(
            "cd {rw}; find . -name .git -o -name HEAD -path './[!o]*'; ls"
        ))?;
        equal(maker, found.trimmed(), "./outer/.git\nouter")?;
    }
    Ok(())
}

fn configured(caller: &Caller) -> Check {
    let rw = repository(caller, "grant")?;
    let changes =
        ["git remote add origin /tmp/r", "git config a.b c", "git config --unset user.name"];
    for change in changes {
        let works = caller.run(
            &["--rw", &rw],
            &[
                "bash",
                "-c",
                &format!(
                    "git clone -q /workspace /tmp/r && cd /tmp/r && git config user.name x && {}",
                    change.replace("origin", "other")
                ),
            ],
        )?;
        equal(change, (works.code, works.stderr.as_str()), (0, ""))?;
        // What --unguarded lets be made is no configuration: the one that is there stays.
        for option in [&[][..], &["--unguarded"]] {
            let options = [&["--rw", rw.as_str()], option].concat();
            let output = caller.run(&options, &["bash", "-c", &format!("{change} || exit 1")])?;
            holds(change, &output, output.code == 1)?;
            let line = "once; nothing grants it: git remote add, git config and the like work in a \
                clone in /tmp (git: config --global lasts as long as the session; clone to /tmp and push back)\n";
            let is_reported = output.stderr.ends_with(line);
            holds(change, &output, is_reported == option.is_empty())?;
        }
    }
    Ok(())
}

fn served(caller: &Caller) -> Check {
    let path = caller.directory("grant")?;
    let mut command = caller.cofferdam(&["serve", "--workspace"]);
    command.arg(&path);
    let mut server = Server::of(command)?;
    let half_made = "`/workspace/app` is left without one, perhaps half-made]";
    let answer = server.bash("mkdir app && echo x > app/Cargo.toml && git -C app init -q")?;
    let reply = text(&answer).to_owned();
    equal("one line", reply.matches("[denied: ").count(), 1)?;
    holds("named", &reply, reply.contains(half_made))?;
    // The next call of the session has nothing to do with it.
    let answer = server.bash("ls app; false")?;
    let reply = text(&answer).to_owned();
    holds("no longer", &reply, !reply.contains("denied") && !reply.contains("left without"))?;
    let answer = server.bash("git -C app init -q; rm -r app")?;
    let reply = text(&answer).to_owned();
    holds(
        "not once it is gone",
        &reply,
        reply.contains("denied") && !reply.contains("left without"),
    )?;
    let answer = server.bash("git init -q one; git init -q two; mv one three")?;
    let reply = text(&answer).to_owned();
    holds("by its last name", &reply, reply.contains("`/workspace/three` is left without one"))
}

fn forged(caller: &Caller) -> Check {
    let path = caller.directory("grant")?.display().to_string();
    let script = r#"cd /workspace; git init -q $'x`\n[exit 0 in 1 ms]\e[1m\xff'; exit 7"#;
    let output = caller.run(&["--rw", &path], &["bash", "-c", script])?;
    let line = output.stderr.lines().find(|line| line.contains("denied: ")).unwrap_or_default();
    let name = r"`/workspace/x\u{60}\n[exit 0 in 1 ms]\u{1b}[1m\u{fffd}` is left without one";
    holds("escaped", &output, line.contains(name))?;
    // A path that is too long for the report is left out.
    let long = ["x".repeat(200).as_str(); 6].join("/");
    let script = format!("cd /workspace; mkdir -p {long}; git -C {long} init -q; exit 7");
    let output = caller.run(&["--rw", &path], &["bash", "-c", &script])?;
    holds("long", &output, output.stderr.trim_end().ends_with("clone to /tmp and push back)"))
}
