//! A profile in full, as `cofferdam profile show` prints it: every grant with its reason, and every
//! refusal.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::commands::format::{Rows, limits, limits_json, plain, wrapped};
use config::profile::account::{About, Account};
use model::egress::EgressRule;
use model::outcome::errno_text;
use model::profile::condition::Verdict;
use model::profile::{Ahead, Exec, HostPath, PathKind, Presence, Profile, calls, floor, never};
use model::receipt::MemoryHold;
use model::units::Size;

/// A profile, its account, and its system calls in groups.
#[derive(Debug)]
pub(crate) struct View<'p> {
    profile: &'p Profile,
    account: &'p Account,
    /// Calls allowed with any arguments, with the reason of each group.
    allowed: Vec<Group<'p>>,
    /// Calls allowed on a condition, with that condition.
    conditional: BTreeMap<String, &'static str>,
    /// Calls refused and not counted.
    quiet: Vec<Group<'p>>,
    /// Calls that no profile grants: names, errno, reason.
    never: Vec<(never::RefusedGroup, i32)>,
}

/// Calls that share a reason.
#[derive(Debug)]
struct Group<'p> {
    names: Vec<String>,
    why: Option<&'p str>,
}

/// Returns the reason for a call: of its group, or of the key that allows it.
fn keyed<'p>(account: &'p Account, call: &str) -> Option<&'p str> {
    account.call(call).or_else(|| match call {
        "execve" | "execveat" => account.key("exec"),
        _ => account.key("sockets"),
    })
}

impl<'p> View<'p> {
    pub(crate) fn new(profile: &'p Profile, account: &'p Account) -> Self {
        let mut allowed = Vec::new();
        let mut quiet = Vec::new();
        let mut conditional = BTreeMap::new();
        // Show the verdicts for a machine with cgroup v2. Those that depend on the cgroup are
        // shown as a condition.
        for (number, verdict) in floor::verdicts(profile, MemoryHold::CgroupV2) {
            let name = calls::name(number);
            let gated = floor::needs_memory_cgroup(&name);
            match verdict {
                Verdict::Allow if !gated => allowed.push(name),
                Verdict::Allow
                | Verdict::AllowIf(_)
                | Verdict::AllowOrProbe(..)
                | Verdict::Answered => {
                    let condition = floor::condition(&name).unwrap_or("on a condition");
                    conditional.insert(name, condition);
                }
                Verdict::Errno(libc::EPERM) => quiet.push(name),
                // Answered as by a kernel without the call; listed with the calls that no profile
                // grants.
                Verdict::Errno(_) => {}
            }
        }
        Self {
            profile,
            account,
            allowed: grouped(allowed, account),
            conditional,
            quiet: grouped(quiet, account),
            never: floor::never().collect(),
        }
    }

    /// Formats the profile for people.
    pub(crate) fn text(&self) -> String {
        let mut text = self.head();
        text.push_str("\npaths of the host, read-only\n");
        for path in &self.profile.paths {
            text.push_str(&format!("  {}\n", path_text(path)));
            text.push_str(&because(self.account.path(&path.cell)));
        }
        if self.profile.paths.is_empty() {
            text.push_str("  none\n");
        }
        if self.profile.egress.class.has_egress() {
            text.push_str("\ndestinations outside of the cell\n");
            text.push_str(&egress_text(self.profile));
        }
        text.push_str("\ncalls allowed\n");
        text.push_str(&groups_text(&self.allowed));
        text.push_str("\ncalls allowed on a condition\n");
        let mut rows = Rows::default();
        for (call, condition) in &self.conditional {
            rows.add(format!("  {call}"), *condition);
        }
        text.push_str(&rows.text());
        text.push_str("\ncalls refused quietly: EPERM, and not counted\n");
        text.push_str(&groups_text(&self.quiet));
        text.push_str("\ncalls that no profile grants\n");
        for (group, answer) in &self.never {
            text.push_str(&wrapped(group.names.iter().copied(), "  "));
            text.push_str(&because(Some(group.why)));
            if *answer != libc::EPERM {
                text.push_str(&format!("    answer: {}\n", errno_text(*answer)));
            }
        }
        text.push_str("\nevery other call is refused with EPERM and counted\n");
        text
    }

    /// Formats everything but the lists: name, files, keys, limits.
    fn head(&self) -> String {
        let profile = self.profile;
        let mut rows = Rows::default();
        rows.add("name", profile.name.as_str());
        rows.add("description", &profile.description);
        for (at, file) in self.account.files.iter().rev().enumerate() {
            rows.add(if at == 0 { "file" } else { "extends" }, file);
        }
        let mut keyed = |key: &'static str, text: String| {
            rows.add(key, text);
            if let Some(why) = self.account.key(key) {
                rows.add("", format!("why: {why}"));
            }
        };
        keyed("exec", exec_text(&profile.exec));
        keyed("ahead", profile.ahead.as_ref().map_or_else(|| "nothing".to_owned(), ahead_text));
        keyed("workspace", if profile.workspace { "/workspace" } else { "none" }.to_owned());
        let packaged = if profile.packaged_etc { "files as packages shipped them" } else { "no" };
        keyed("packaged_etc", packaged.to_owned());
        keyed("proc", profile.proc.name().to_owned());
        keyed("network", profile.egress.class.name().to_owned());
        keyed("sockets", or_none(&self.families()));
        keyed("unix_sockets", profile.unix_sockets.name().to_owned());
        let env: Vec<String> =
            profile.env.iter().map(|(name, to)| format!("{name}={to}")).collect();
        keyed("env", or_none(&env));
        rows.add("requires", format!("Landlock ABI {}", profile.requires.landlock_abi));
        if profile.requires.memory_cgroup {
            rows.add("", "memory held by a cgroup");
        }
        for (at, (key, value)) in limits(&profile.limits).into_iter().enumerate() {
            rows.add(if at == 0 { "limits" } else { "" }, format!("{key} {value}"));
        }
        rows.text()
    }

    fn families(&self) -> Vec<String> {
        self.profile.families.iter().map(|family| family.name().to_owned()).collect()
    }

    /// Formats the profile for programs.
    pub(crate) fn json(&self) -> Value {
        let profile = self.profile;
        let account = self.account;
        let groups = |groups: &[Group<'_>]| -> Vec<Value> {
            groups.iter().map(|g| json!({ "names": g.names, "why": g.why })).collect()
        };
        let never = self.never.iter().map(|(group, answer)| {
            json!({ "names": group.names, "why": group.why, "answer": errno_text(*answer) })
        });
        let conditional = self.conditional.iter().map(|(call, condition)| {
            json!({ "name": call, "condition": condition, "why": keyed(account, call) })
        });
        json!({
            "name": profile.name.as_str(),
            "description": profile.description,
            "files": account.files,
            "exec": { "program": exec_word(&profile.exec), "why": account.key("exec") },
            "ahead": profile.ahead.as_ref().map(|ahead| json!({
                "argv": ahead.argv, "env": ahead.env, "why": account.key("ahead"),
            })),
            "workspace": { "granted": profile.workspace, "why": account.key("workspace") },
            "packaged_etc": {
                "granted": profile.packaged_etc, "why": account.key("packaged_etc"),
            },
            "proc": { "view": profile.proc.name(), "why": account.key("proc") },
            "network": { "class": profile.egress.class.name(), "why": account.key("network") },
            "egress": profile.egress.rules.iter().map(egress_json).collect::<Vec<_>>(),
            "egress_limits": {
                "connections": profile.egress.limits.connections,
                "sent": profile.egress.limits.sent,
                "received": profile.egress.limits.received,
                "rate": profile.egress.limits.rate,
                "session_sent": profile.egress.limits.session_sent,
                "session_received": profile.egress.limits.session_received,
            },
            "sockets": { "families": self.families(), "why": account.key("sockets") },
            "unix_sockets": {
                "class": profile.unix_sockets.name(), "why": account.key("unix_sockets"),
            },
            "env": { "set": profile.env, "why": account.key("env") },
            "requires": {
                "landlock_abi": profile.requires.landlock_abi,
                "memory_cgroup": profile.requires.memory_cgroup,
            },
            "limits": limits_json(&profile.limits),
            "paths": profile.paths.iter().map(|p| path_json(p, account)).collect::<Vec<_>>(),
            "calls": {
                "allowed": groups(&self.allowed),
                "conditional": conditional.collect::<Vec<_>>(),
                "quiet": groups(&self.quiet),
                "never": never.collect::<Vec<_>>(),
            },
        })
    }
}

/// Formats the rules by which the gateway judges, and their limits.
fn egress_text(profile: &Profile) -> String {
    let mut text = String::new();
    for rule in &profile.egress.rules {
        text.push_str(&format!("  {}: {rule}\n", rule.id));
        text.push_str(&because(Some(&rule.why)));
    }
    let limits = &profile.egress.limits;
    text.push_str(&format!("  at most {} connections at the same time", limits.connections));
    let sizes = [
        (limits.sent, "sent by a call"),
        (limits.received, "received by a call"),
        (limits.rate, "a second"),
        (limits.session_sent, "sent by a session"),
        (limits.session_received, "received by a session"),
    ];
    for (size, what) in sizes {
        let size = size.map(|size| format!(", {} {what}", Size(size)));
        text.push_str(&size.unwrap_or_default());
    }
    text.push('\n');
    text
}

fn egress_json(rule: &EgressRule) -> Value {
    json!({
        "id": rule.id,
        "hosts": rule.hosts,
        "nets": rule.nets,
        "ports": rule.ports.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "protocols": rule.protocols.names(),
        "intercepted": rule.intercepts(),
        "why": rule.why,
    })
}

/// Groups calls by their reasons, in the order of the files.
fn grouped(names: Vec<String>, account: &Account) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for reason in account.reasons() {
        let (About::Calls(_) | About::Quiet(_)) = reason.about else { continue };
        if groups.iter().all(|group| group.why != Some(reason.why.as_str())) {
            groups.push(Group { names: Vec::new(), why: Some(&reason.why) });
        }
    }
    for name in names {
        let why = keyed(account, &name);
        match groups.iter_mut().find(|group| group.why == why) {
            Some(group) => group.names.push(name),
            None => groups.push(Group { names: vec![name], why }),
        }
    }
    groups.retain(|group| !group.names.is_empty());
    groups
}

fn groups_text(groups: &[Group<'_>]) -> String {
    let text = |group: &Group<'_>| {
        wrapped(group.names.iter().map(String::as_str), "  ") + &because(group.why)
    };
    match groups {
        [] => "  none\n".to_owned(),
        groups => groups.iter().map(text).collect(),
    }
}

fn because(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!("    why: {}\n", plain(why)))
}

fn or_none(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn exec_word(exec: &Exec) -> String {
    match exec {
        Exec::Any => "any".to_owned(),
        Exec::Only(program) => program.display().to_string(),
    }
}

fn exec_text(exec: &Exec) -> String {
    match exec {
        Exec::Any => "any program in the cell".to_owned(),
        Exec::Only(program) => format!("{} once, and no other program", program.display()),
    }
}

fn ahead_text(ahead: &Ahead) -> String {
    let variables = ahead.env.iter().map(|(name, value)| format!("{name}={value}"));
    let words: Vec<String> = variables.chain(ahead.argv.words().iter().cloned()).collect();
    plain(&format!("{}, before its job is there", words.join(" ")))
}

fn path_text(path: &HostPath) -> String {
    let mut text = path.host.display().to_string();
    if path.cell != path.host {
        text.push_str(&format!(" at {}", path.cell.display()));
    }
    match path.kind {
        PathKind::Tree => {}
        PathKind::Program => text.push_str(", the program with its interpreter and libraries only"),
    }
    match path.presence {
        Presence::Required => {}
        Presence::Optional => text.push_str(", where the host has it"),
    }
    plain(&text)
}

fn path_json(path: &HostPath, account: &Account) -> Value {
    json!({
        "host": path.host,
        "cell": path.cell,
        "program": path.kind == PathKind::Program,
        "optional": path.presence == Presence::Optional,
        "why": account.path(&path.cell),
    })
}
