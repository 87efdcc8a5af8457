//! A server with a shell tool as the sandbox: each line is sent as a command of one call.
//!
//! The server may run on another machine, and its tool may be no sandbox at all. So only attacks
//! that do no harm are sent unless the operator allows more, and targets outside are those of this
//! machine only if the operator says that the server runs here. On another machine the operator
//! plants a few by a command that is printed ([`Planted`]).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::corpus::{Attack, ControlMode, Harm, StartMode};
use super::mcp_client::{ServerAddress, Surroundings, ToolClient};
use super::run_result::{Ran, RunEnd};
use super::stage;
use model::profile::calls;
use model::shells::ShellKind;

/// Directories of the tool that are tried for the helper, the last two as the shell expands them.
const ROOMS: &str = "/tmp /var/tmp /dev/shm . \"$HOME\"";
/// Time of a call that prepares or measures.
const MAX_TRIAL_TIME: Duration = Duration::from_secs(30);
/// Placeholders that mean the same on every machine.
const ANYWHERE: [&str; 6] = ["probe", "tmp", "nameless", "unlisted", "key", "shm"];

/// A server, where it runs, and what may be tried there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolServer {
    pub client: ToolClient,
    pub place: ServerPlace,
    pub harm: AllowedHarm,
    /// Directory of the tool in which the helper can be executed.
    room: String,
    errors: ErrorOutput,
}

/// Where the server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerPlace {
    /// On this machine: all targets of an attack are reachable for a program that is not held.
    Here,
    Elsewhere(Option<Planted>),
}

/// Attacks that may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedHarm {
    /// Those that also run without a sandbox, and use up nothing.
    Harmless,
    /// All: the server's machine is thrown away afterwards.
    Disposable,
}

/// Whether the tool returns standard error apart from standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorOutput {
    Separate,
    /// Attacks are judged by standard output, so standard error is discarded.
    Mixed,
}

/// Targets that the operator has planted on the server's machine, all found by one secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planted {
    pub secret: String,
    pub pid: Option<u32>,
}

impl Planted {
    /// Makes the secret for new targets.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn generate() -> io::Result<Self> {
        Ok(Self { secret: stage::random()?, pid: None })
    }

    /// Parses `SECRET` or `SECRET:PID`, as the printed command prints it.
    ///
    /// # Errors
    /// The text is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (secret, pid) =
            text.split_once(':').map_or((text, None), |(secret, pid)| (secret, Some(pid)));
        let is_secret = secret.len() == 32 && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
        let pid = pid.map(str::parse).transpose().ok();
        match (is_secret, pid) {
            (true, Some(pid)) => Ok(Self { secret: secret.to_owned(), pid }),
            _ => Err("it is not what the command of --plant has printed".to_owned()),
        }
    }

    /// Returns the name of the directory. It does not give the secret away.
    fn name(&self) -> String {
        format!("cofferdam-{}", self.secret.get(..8).unwrap_or_default())
    }

    /// Returns the shell commands that plant the targets, and that check and remove them.
    pub fn commands(&self) -> [String; 2] {
        let directory = format!("/tmp/{}", self.name());
        let secret = &self.secret;
        let plant = format!(
            "s={secret}; d={directory}; (umask 022; mkdir $d && echo $s >$d/secret) && {{ \
             COFFERDAM_SELFTEST_SECRET=$s sh -c 'while :; do sleep 60; done' $s & echo --canaries $s:$!; }}"
        );
        let check = format!(
            "p=PID; d={directory}; [ \"$(ls -A $d)\" = secret ] && [ \"$(cat $d/secret)\" = {secret} ] && \
             kill -0 $p && grep -q '^State:.[SR]' /proc/$p/status && echo untouched; kill $p; rm -r $d"
        );
        [plant, check]
    }

    /// Returns the values of placeholders.
    fn words(&self) -> BTreeMap<&'static str, String> {
        let directory = format!("/tmp/{}", self.name());
        let mut words = BTreeMap::from([
            ("{secret}", format!("{directory}/secret")),
            ("{dir}", directory),
            ("{name}", self.name()),
        ]);
        words.extend(self.pid.map(|pid| ("{sentinel}", pid.to_string())));
        words
    }
}

impl ToolServer {
    pub fn new(client: ToolClient, place: ServerPlace, harm: AllowedHarm) -> Self {
        Self { client, place, harm, room: String::new(), errors: ErrorOutput::Separate }
    }

    /// Finds a directory for the helper, and how the tool returns standard error.
    ///
    /// # Errors
    /// The tool does not run commands, or the helper cannot be executed there.
    pub fn find_room(&mut self, helper: &[u8], directory: &Path) -> io::Result<()> {
        let id = stage::random()?;
        let close = calls::number("close").unwrap_or_default();
        let encoded = BASE64_STANDARD.encode(helper);
        let line = format!(
            "e={encoded}; for d in {ROOMS}; do f=$d/{}; printf %s $e | base64 -d >$f 2>/dev/null && chmod 755 $f && \
             [ \"$($f call {close} -1)\" = EBADF ] && room=$d; rm -f $f; [ -z \"$room\" ] || break; done; \
             printf '%s%s %s\\n' room- {id} \"$room\"; printf '%s%s\\n' error- {id} >&2",
            helper_name(&id)
        );
        let surroundings = Surroundings { directory, secret: &id };
        let reply = self.client.call(&line, MAX_TRIAL_TIME, surroundings)?;
        let prefix = format!("room-{id} ");
        let room = reply.text.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::trim);
        let said = || reply.text.trim().chars().take(300).collect::<String>();
        match room {
            None => Err(io::Error::other(format!("the tool does not run a command: {}", said()))),
            Some("") => Err(io::Error::other("the helper does not run in any directory there")),
            Some(room) => {
                self.room = room.to_owned();
                let is_mixed = reply.text.contains(&format!("error-{id}"));
                self.errors = if is_mixed { ErrorOutput::Mixed } else { ErrorOutput::Separate };
                Ok(())
            }
        }
    }

    /// Returns where a line runs. Each run has separate files there.
    pub(crate) fn location(&self, id: &str) -> stage::RunLocation {
        stage::RunLocation {
            helper: format!("{}/{}", self.room, helper_name(id)),
            tmp: format!("{}/cofferdam-work-{}", self.room, short(id)),
            made: false,
        }
    }

    /// Returns the values of placeholders that the operator has planted, with the secret in them.
    pub(crate) fn planted(&self) -> Option<(BTreeMap<&'static str, String>, &str)> {
        match &self.place {
            ServerPlace::Elsewhere(Some(planted)) => Some((planted.words(), &planted.secret)),
            ServerPlace::Here | ServerPlace::Elsewhere(None) => None,
        }
    }

    /// Runs a line of bash. `id` is the one of [`Self::location`].
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the call.
    pub(crate) fn run(
        &self,
        line: &str,
        id: &str,
        helper: &[u8],
        within: Duration,
        surroundings: Surroundings<'_>,
    ) -> io::Result<Ran> {
        let command = self.command(line, id, helper);
        let began = Instant::now();
        let reply = self.client.call(&command, within, surroundings);
        let took = began.elapsed();
        let (text, code, end) = match reply {
            Ok(reply) => {
                let (text, code) = between_marks(&reply.text, id);
                (text.to_owned(), code.or(reply.code), RunEnd::Own)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                (String::new(), None, RunEnd::Overdue)
            }
            Err(error) => return Err(error),
        };
        Ok(Ran {
            bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
            stdout: text,
            stderr: String::new(),
            code,
            took,
            end,
            // No process group of this machine.
            group: i32::MAX,
        })
    }

    /// Returns the command of one call: unpacks the helper if the line uses it, marks where the
    /// output begins and ends, and removes what was made.
    fn command(&self, line: &str, id: &str, helper: &[u8]) -> String {
        let place = self.location(id);
        let path = &place.helper;
        let mut parts = Vec::new();
        if line.contains(path.as_str()) {
            let encoded = BASE64_STANDARD.encode(helper);
            parts.push(format!("printf %s {encoded} | base64 -d >{path} && chmod 755 {path}"));
        }
        let errors = match self.errors {
            ErrorOutput::Separate => "",
            ErrorOutput::Mixed => " 2>/dev/null",
        };
        let quoted = ShellKind::Sh.quoted(line);
        // The words of a mark are joined by the shell: a reply may repeat the command.
        parts.push(format!("printf '\\n%s%s\\n' begin- {id}"));
        parts.push(format!("bash -c {quoted} </dev/null{errors}"));
        parts.push(format!("printf '\\n%s%s %s\\n' end- {id} $?"));
        parts.push(format!("rm -rf {path} {} 2>/dev/null", place.tmp));
        parts.join("; ")
    }

    /// Returns the reason for not sending an attack, if there is one.
    pub(crate) fn leaves_out(&self, attack: &Attack) -> Option<String> {
        let is_harmless = attack.control == ControlMode::Outside
            && attack.control_run.is_none()
            && attack.harm == Harm::None
            && attack.topic != "resources";
        if attack.start != StartMode::Plain {
            return Some("a server starts programs in its own way".to_owned());
        }
        if self.harm == AllowedHarm::Harmless && !is_harmless {
            return Some("not run: it could harm the server's machine (--disposable)".to_owned());
        }
        let reads_environment =
            attack.run.contains("environ") && !attack.run.contains("{sentinel}");
        let is_started = matches!(self.client.address, ServerAddress::Command(_));
        if reads_environment && !is_started {
            return Some("the environment of a server that runs already has no secret".to_owned());
        }
        let planted = self.planted().map(|(words, _)| words).unwrap_or_default();
        let is_known = |name: &str| {
            ANYWHERE.contains(&name) || planted.contains_key(format!("{{{name}}}").as_str())
        };
        let lines = attack.first.iter().chain([&attack.run]);
        let unknown = lines.flat_map(|line| placeholders(line)).find(|name| !is_known(name));
        match (&self.place, unknown) {
            (ServerPlace::Elsewhere(_), Some(name)) => Some(format!(
                "its target `{name}` is not on the server's machine (--here, --canaries)"
            )),
            (ServerPlace::Here | ServerPlace::Elsewhere(_), _) => None,
        }
    }
}

fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

fn helper_name(id: &str) -> String {
    format!("cofferdam-probe-{}", short(id))
}

/// Returns the names of placeholders in a line: lower-case letters, digits and underscores in braces
/// that start with a letter, but not expansions of the shell.
fn placeholders(line: &str) -> impl Iterator<Item = &str> {
    line.split('{').skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once('}')?;
        let is_name = name.starts_with(|first: char| first.is_ascii_lowercase())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        (is_name && super::stage::is_placeholder(name)).then_some(name)
    })
}

/// Returns the output between the marks, and the exit code of the end mark. Without an end mark,
/// as when an attack has ended the whole call, the output is all that follows the first.
fn between_marks<'t>(text: &'t str, id: &str) -> (&'t str, Option<i32>) {
    let begin = format!("begin-{id}");
    let end = format!("end-{id} ");
    let Some((_, rest)) = text.split_once(&begin) else { return (text, None) };
    match rest.split_once(&end) {
        Some((output, rest)) => {
            let code = rest.split_whitespace().next().and_then(|code| code.parse().ok());
            (output, code)
        }
        None => (rest, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::corpus;
    use serde_json::Map;

    fn served(place: ServerPlace, harm: AllowedHarm) -> ToolServer {
        let client = ToolClient {
            address: ServerAddress::Command(vec!["server".to_owned()]),
            tool: "bash".to_owned(),
            argument: "command".to_owned(),
            arguments: Map::new(),
        };
        let mut served = ToolServer::new(client, place, harm);
        served.room = "/tmp".to_owned();
        served
    }

    const ID: &str = "0123456789abcdef0123456789abcdef";

    /// A reply that repeats the command has no mark in it.
    #[test]
    fn output_is_what_stands_between_the_marks() {
        let served = served(ServerPlace::Here, AllowedHarm::Harmless);
        let command = served.command("echo x; exit 3", ID, b"helper");
        assert_eq!(between_marks(&command, ID), (command.as_str(), None));
        let output = std::process::Command::new("sh").args(["-c", &command]).output();
        let output = output.expect("a shell").stdout;
        let text = format!("$ {command}\n{}", String::from_utf8_lossy(&output));
        let (output, code) = between_marks(&text, ID);
        assert_eq!((output.trim(), code), ("x", Some(3)));
        assert_eq!(between_marks(&format!("begin-{ID}\nhalf"), ID), ("\nhalf", None));
    }

    #[test]
    fn the_helper_is_unpacked_only_for_lines_that_use_it() {
        let served = served(ServerPlace::Here, AllowedHarm::Harmless);
        let helper = served.location(ID).helper;
        assert_eq!(helper, "/tmp/cofferdam-probe-01234567");
        assert!(served.command(&format!("{helper} call 3"), ID, b"helper").contains("base64"));
        assert!(!served.command("true", ID, b"helper").contains("base64"));
    }

    #[test]
    fn only_attacks_that_can_be_judged_and_do_no_harm_are_sent() {
        let attacks = corpus().expect("well-formed");
        let attack = |id: &str| attacks.iter().find(|attack| attack.id == id).expect("known");
        let planted = || Planted::parse(&format!("{ID}:77")).expect("well-formed");
        let nearby = served(ServerPlace::Here, AllowedHarm::Harmless);
        let remote = served(ServerPlace::Elsewhere(Some(planted())), AllowedHarm::Harmless);
        let bare = served(ServerPlace::Elsewhere(None), AllowedHarm::Harmless);
        let is_sent = |served: &ToolServer, id: &str| served.leaves_out(attack(id)).is_none();
        // A secret, a process, a listener, a descriptor, memory.
        let sent =
            |served: &ToolServer| ["F01", "P01", "N01", "F08", "R01"].map(|id| is_sent(served, id));
        assert_eq!(sent(&nearby), [true, true, true, false, false]);
        assert_eq!(sent(&remote), [true, true, false, false, false]);
        assert_eq!(sent(&bare), [false; 5]);
        let disposable = served(ServerPlace::Here, AllowedHarm::Disposable);
        assert_eq!(sent(&disposable), [true, true, true, false, true]);
    }

    #[test]
    fn what_the_printed_command_plants_is_what_attacks_look_for() {
        let planted = Planted::generate().expect("random");
        let [plant, check] = planted.commands();
        let sh = |line: &str| {
            let output = std::process::Command::new("sh").args(["-c", line]).output();
            String::from_utf8_lossy(&output.expect("a shell").stdout).trim().to_owned()
        };
        // The sentinel must not hold the pipe of this test.
        let printed = sh(&format!(
            "{plant} >/tmp/{0}.out 2>&1; cat /tmp/{0}.out; rm /tmp/{0}.out",
            planted.name()
        ));
        let found = Planted::parse(printed.strip_prefix("--canaries ").unwrap_or_default());
        let found = found.expect("as printed");
        let words = found.words();
        let secret = words.get("{secret}").expect("planted");
        let text = std::fs::read_to_string(secret).expect("planted");
        assert_eq!(text.trim(), found.secret);
        let pid = found.pid.expect("started").to_string();
        assert_eq!(words.get("{sentinel}"), Some(&pid));
        assert_eq!(sh(&check.replace("PID", &pid)), "untouched");
        assert!(!Path::new(secret).exists());
        assert!(Planted::parse("x:1").is_err() && Planted::parse(&format!("{ID}:x")).is_err());
    }
}
