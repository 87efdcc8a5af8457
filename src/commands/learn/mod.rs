//! `cofferdam profile learn`: the refusals that a command met under a profile, as TOML to complete.
//!
//! The command runs as with `run`, under the same confinement, and its refusals are read. Nothing is
//! granted and no file is written. Each `why` is left blank, so that no loader accepts the text
//! unchanged.

mod last_lines;
mod missing_paths;
mod network;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::commands::error::{CliError, print_out};
use crate::commands::format::plain;
use crate::commands::grants::request::GrantsFor;
use crate::commands::grants::{GrantPlan, host_programs};
use crate::commands::launch;
use crate::commands::project::LearnedTool;
use crate::commands::run::arguments::{CallArguments, RunArguments, RunRequest, check};
use crate::commands::settings::Settings;
use crate::commands::terminal::filtered_output::FilteredOutput;
use crate::commands::{doctor, exit, run, settings, start};
use config::policy::{Grant, Policy};
use last_lines::LastLines;
use missing_paths::{HostExaminer, MissingPaths, quoted};
use model::accounts;
use model::egress::NetworkClass;
use model::job::ProfileName;
use model::outcome::{DENIALS_COUNTED, DeniedBy, DeniedCall, Failure, Outcome};
use model::profile::floor::{self, Grantable};
use model::profile::{PathKind, Profile, calls};
use network::NetworkRefusals;
use service::host_programs::HostPrograms;
use service::link::Link;
use service::report::{Cut, StreamReport};
use supervisor::ScopeWish;

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  \
    cofferdam profile learn --rw . -- make test > learned.toml\n\n\
    For a tool of a script project: cofferdam project learn NAME.\n\n\
    The command's own output goes to standard error. What is printed grants nothing: each `why`\n\
    is blank, and a file with a blank `why` is refused, until you have written the reason.\n\n\
    Listed are refused system calls, paths that exist on the host and not in the cell, and hosts with\n\
    their ports, which are not reached unless the profile allows them. Not listed are\n\
    calls that the profile refuses quietly, and paths that are not absolute. A command may have\n\
    stopped at a refusal before it met the next: grant, and learn again.\n\n\
    Exit codes: 0 when the command could be run, however it ended; else as `cofferdam run`")]
pub struct LearnArguments {
    // `--profile` is the one to learn beyond.
    #[command(flatten)]
    pub call: CallArguments,
}

/// Runs the command.
pub fn main(typed: &LearnArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let run = RunArguments { call: typed.call.clone(), ..RunArguments::default() };
    let request = check(&run, accounts::home().as_deref())?;
    of_request(request, settings::load(config)?, None)
}

/// Makes the call of a request, or that of a project's tool, and prints its refusals.
pub(in crate::commands) fn of_request(
    request: RunRequest,
    settings: Settings,
    tool: Option<LearnedTool>,
) -> Result<u8, CliError> {
    let RunRequest { call, profile: name, mut grants } = request;
    let named = settings.loaded.profiles.get(&name);
    let class = named.map(|profile| profile.egress.class).unwrap_or_default();
    grants.cells = GrantsFor::LearningCall(name.clone());
    grants.has_scripts = tool.is_some();
    if doctor::can_have_a_network() {
        // Without a rule the cell reaches no host, and the gateway reports the hosts that were looked for.
        grants.additions.network = NetworkClass::AllowList;
    }
    let GrantPlan { settings, workspace } = GrantPlan::resolve(grants, settings)?;
    let settings = settings.scoped(ScopeWish::Never);
    let argv = call.argv.words().to_vec();
    let profile = settings.profile(&name)?.clone();
    let grant = Policy::operator(call, &profile, workspace);
    // This comes first: once confined, this process sees no path of the host.
    let program = argv.first().and_then(|word| on_host(word, &profile));
    let programs = host_programs::find(&profile, &[]);
    let examiner = HostExaminer::start(&profile)
        .map_err(|error| CliError::new(format!("nothing can look at the host: {error}")))?;
    let socket = launch::recording_paths(settings, examiner.record())?;
    if std::io::stderr().is_terminal() {
        let program = tool.as_ref().map_or_else(|| plain(&argv.join(" ")), LearnedTool::name);
        let profile = &profile.name;
        eprintln!(
            "cofferdam: runs `{program}` under profile `{profile}`; refusals are shown when it has ended"
        );
    }
    let host = HostFacts { program, examiner, programs, class };
    start::conducted(socket, |link| conduct(link, grant, profile, host, tool))
}

/// A program that exists on the host and not in the cell.
#[derive(Debug, PartialEq, Eq)]
struct HostProgram {
    path: PathBuf,
    /// Kind of file: the libraries are known for ELF files only.
    kind: PathKind,
}

/// Facts about the host that must be read before confinement.
#[derive(Debug)]
struct HostFacts {
    program: Option<HostProgram>,
    examiner: HostExaminer,
    /// Programs that a shell in the cell may look for in vain.
    programs: HostPrograms,
    /// Class of network of the profile, without the additions of this command.
    class: NetworkClass,
}

/// Finds a program of this name on the host.
fn on_host(word: &str, profile: &Profile) -> Option<HostProgram> {
    let path = if word.contains('/') {
        Path::new(word).is_absolute().then(|| PathBuf::from(word)).filter(|path| path.is_file())
    } else {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|directory| directory.join(word)).find(|p| p.is_file())
    }?;
    let mut magic = [0; 4];
    let read = std::fs::File::open(&path).and_then(|mut file| file.read_exact(&mut magic));
    // With /usr the cell has the libraries in the loader's default directories.
    let has_libraries = profile.paths.iter().any(|path| path.cell == Path::new("/usr"));
    let kind = match read {
        Ok(()) if magic == *b"\x7fELF" && !has_libraries => PathKind::Program,
        Ok(()) | Err(_) => PathKind::Tree,
    };
    Some(HostProgram { path, kind })
}

async fn conduct(
    link: Link,
    grant: Grant,
    profile: Profile,
    host: HostFacts,
    mut tool: Option<LearnedTool>,
) -> Result<u8, CliError> {
    let running = link.start(grant, None, None).await?;
    // Both streams go to standard error: standard output is for the TOML alone.
    let to_stderr = || FilteredOutput::new(tokio::io::stderr(), &std::io::stderr());
    let mut stdout = to_stderr();
    let mut stderr = LastLines::new(to_stderr());
    let (ended, cancellation) = match &mut tool {
        None => {
            let input = tokio::io::stdin();
            run::follow(running, input, None, &mut stdout, &mut stderr).await?
        }
        Some(tool) => {
            let input = std::io::Cursor::new(tool.input());
            run::follow(running, input, None, tool, &mut stderr).await?
        }
    };
    let HostFacts { program, examiner, programs, class } = host;
    let mut learned = Refusals::new(&ended.denials, &profile);
    learned.network = NetworkRefusals::new(ended.network.as_ref(), class);
    let text = stderr.text();
    let ended_as = match &mut tool {
        None => end_text(&ended.outcome),
        Some(tool) => tool.end_text(&ended.outcome, &text),
    };
    let stderr = StreamReport { bytes: 0, text, cut: Cut::Whole };
    learned.absent = programs.remark(&ended.outcome, &stderr);
    let answer = examiner
        .ask()
        .map_err(|error| CliError::new(format!("the paths it looked for are lost: {error}")))?;
    learned.missing = MissingPaths::sort(answer);
    let code = match &ended.outcome {
        Outcome::Failed(Failure::NotFound { .. }) if program.is_some() => {
            // The program was recorded as a missing path too, and is reported once.
            let is_program =
                |path: &PathBuf| program.as_ref().is_some_and(|program| program.path == *path);
            learned.missing.offered.retain(|path| !is_program(path));
            learned.program = program;
            exit::code(&ended.outcome, cancellation)
        }
        Outcome::Failed(failure) => return Err(failure.clone().into()),
        Outcome::Cancelled => return Ok(exit::code(&ended.outcome, cancellation)),
        Outcome::Exited { .. }
        | Outcome::Signaled { .. }
        | Outcome::Timeout
        | Outcome::Limit(_) => 0,
    };
    eprintln!("cofferdam: {ended_as}");
    print_out(&learned.toml())?;
    Ok(code)
}

fn end_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Exited { code } => format!("the command exited with {code}"),
        Outcome::Signaled { signal } => format!("signal {signal} ended the command"),
        Outcome::Timeout => {
            "the command ran out of time; it may need more than is shown".to_owned()
        }
        Outcome::Limit(kind) => {
            format!("the command met its {} limit; it may need more than is shown", kind.name())
        }
        Outcome::Cancelled => "the command was cancelled".to_owned(),
        Outcome::Failed(failure) => failure.to_string(),
    }
}

/// Refusals that a command met, sorted by their remedy.
#[derive(Debug, PartialEq, Eq)]
struct Refusals {
    profile: ProfileName,
    /// Keys that take no list of calls, each as a line of TOML without its reason, with the calls
    /// that need it.
    keys: BTreeMap<String, Vec<String>>,
    /// Calls to grant by name, each with its known facts.
    calls: Vec<(String, String)>,
    /// Calls that no profile can grant, each with the reason.
    never: Vec<(String, String)>,
    /// Program itself, if it exists on the host and not in the cell.
    program: Option<HostProgram>,
    /// Remark about a program that a shell did not find and the host has.
    absent: Option<String>,
    /// Other missing paths that exist on the host and not in the cell.
    missing: MissingPaths,
    /// Destinations that were not reached.
    network: NetworkRefusals,
}

impl Refusals {
    fn new(denials: &[DeniedCall], profile: &Profile) -> Self {
        let name = profile.name.clone();
        let mut learned = Self {
            profile: name,
            keys: BTreeMap::new(),
            calls: Vec::new(),
            never: Vec::new(),
            program: None,
            absent: None,
            missing: MissingPaths::default(),
            network: NetworkRefusals::default(),
        };
        // Refusals by the guard of a grant do not depend on the profile.
        let filtered = denials.iter().filter(|denied| denied.by == DeniedBy::Filter);
        for denied in filtered {
            let call = calls::name(denied.number);
            let times = times(denied.count);
            match floor::grant_for(denied.number, profile) {
                Grantable::Key(line) if line.starts_with("[[syscalls]]") => {
                    let caution =
                        floor::caution(&call).map_or(String::new(), |text| format!("; {text}"));
                    learned.calls.push((call, format!("refused {times}{caution}")));
                }
                Grantable::Key(line) => {
                    learned.keys.entry(line).or_default().push(format!("{call}, refused {times}"));
                }
                Grantable::CallAndExec(_) => {
                    let refused = format!("{call}, refused {times}");
                    learned.keys.entry(floor::EXEC_ANY.to_owned()).or_default().push(refused);
                    learned.calls.push((call, format!("refused {times}")));
                }
                Grantable::MemoryCgroup(Some(_)) => {
                    let more = "allowed only where a memory cgroup holds the cell's memory";
                    learned.calls.push((call, format!("refused {times}; {more}")));
                }
                Grantable::MemoryCgroup(None) => {
                    let reason = "granted, but only where a memory cgroup holds the cell's memory";
                    learned.never.push((call, format!("refused {times}: {reason}")));
                }
                Grantable::Arguments(reason) | Grantable::Never(reason) => {
                    learned.never.push((call, format!("refused {times}: {reason}")));
                }
            }
        }
        learned
    }

    /// Formats a profile that extends the one used. It cannot be loaded: every `why` is blank.
    fn toml(&self) -> String {
        let mut text = String::new();
        if self.keys.is_empty()
            && self.calls.is_empty()
            && self.program.is_none()
            && self.missing.offered.is_empty()
            && self.network.is_empty()
        {
            text.push_str(&format!(
                "# Nothing that profile `{}` could grant was refused.\n",
                self.profile
            ));
        } else {
            text.push_str(&self.grants());
        }
        if let Some(absent) = &self.absent {
            text.push_str(&format!("\n# {}\n", plain(absent)));
        }
        if !self.never.is_empty() {
            text.push_str("\n# Refused, and no profile changes that:\n");
        }
        for (call, reason) in &self.never {
            text.push_str(&format!("# {call}, {reason}\n"));
        }
        text.push_str(&self.missing.comments());
        text.push_str(&self.network.comments());
        text
    }

    fn grants(&self) -> String {
        let profile = &self.profile;
        let mut text = format!(
            "# What the command was refused under profile `{profile}`. It grants nothing yet:\n\
             # strike what is not needed, write each `why`, then `cofferdam profile check FILE`.\n\
             schema = 1\nname = \"{profile}-learned\"\ndescription = \"\"\nextends = \"{profile}\"\n"
        );
        // Keys come before tables: in TOML the lines after a table's head belong to the table.
        for (line, calls) in &self.keys {
            let open = line.strip_suffix(" }").unwrap_or(line);
            text.push_str(&format!("\n# {}\n{open}, why = \"\" }}\n", calls.join("; ")));
        }
        text.push_str(&self.network.key());
        if let Some(program) = &self.program {
            let path = quoted(&program.path);
            let kind = match program.kind {
                PathKind::Program => "program = true\n",
                PathKind::Tree => "",
            };
            text.push_str(&format!(
                "\n# the program itself: the host has it and the cell has not\n\
                 [[path]]\nhost = {path}\n{kind}why = \"\"\n"
            ));
        }
        text.push_str(&self.missing.tables());
        text.push_str(&self.network.tables());
        for (call, what) in &self.calls {
            text.push_str(&format!("\n# {what}\n[[syscalls]]\nnames = [\"{call}\"]\nwhy = \"\"\n"));
        }
        text
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        DENIALS_COUNTED.. => format!("{DENIALS_COUNTED} times at least"),
        count => format!("{count} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::document::Document;
    use config::profile::{Profiles, shipped};

    fn denied(call: &str, count: u32) -> DeniedCall {
        let number = calls::number(call).unwrap_or(u32::MAX);
        DeniedCall { number, count, by: DeniedBy::Filter }
    }

    fn learned(profile: &str, denials: &[DeniedCall]) -> String {
        let profiles = Profiles::parse(&shipped(), &[]).unwrap_or_else(|e| panic!("{e}"));
        let profile = ProfileName::new(profile).and_then(|name| profiles.get(&name).cloned());
        Refusals::new(denials, &profile.unwrap_or_else(Profile::nothing)).toml()
    }

    fn loaded(text: &str) -> String {
        let document = Document::new("learned.toml", text);
        match Profiles::parse(&shipped(), &[document]) {
            Ok(_) => "loaded".to_owned(),
            Err(mistake) => mistake.to_string(),
        }
    }

    #[test]
    fn refusals_become_a_profile_that_is_invalid_until_its_reasons_are_written() {
        let text = learned("bc", &[denied("io_setup", 1), denied("socket", 2), denied("fork", 3)]);
        assert_eq!(
            text,
            "# What the command was refused under profile `bc`. It grants nothing yet:\n\
             # strike what is not needed, write each `why`, then `cofferdam profile check FILE`.\n\
             schema = 1\nname = \"bc-learned\"\ndescription = \"\"\nextends = \"bc\"\n\n\
             # fork, refused 3 times\nexec = { program = \"any\", why = \"\" }\n\n\
             # socket, refused 2 times\n\
             sockets = { families = [\"unix\", \"inet\", \"inet6\"], why = \"\" }\n\n\
             # refused once; asynchronous I/O of the older kind: databases use it, and its flags show what the host has in memory\n\
             [[syscalls]]\nnames = [\"io_setup\"]\nwhy = \"\"\n\n\
             # refused 3 times\n[[syscalls]]\nnames = [\"fork\"]\nwhy = \"\"\n"
        );
        let refusal = "learned.toml:9:33: `why` is blank\n\
             hint: every grant and every rule says why it is there";
        assert_eq!(loaded(&text), refusal);
        assert_eq!(loaded(&text.replace("why = \"\"", "why = \"a reason\"")), "loaded");
    }

    #[test]
    fn refusals_that_no_profile_lifts_are_comments_with_the_reason() {
        let text = learned("bash", &[denied("ptrace", DENIALS_COUNTED), denied("unshare", 1)]);
        assert_eq!(
            text,
            "# Nothing that profile `bash` could grant was refused.\n\n\
             # Refused, and no profile changes that:\n\
             # ptrace, refused 10000 times at least: it reads or drives another process\n\
             # unshare, refused once: cells make no namespaces\n"
        );
        assert_eq!(
            learned("bash", &[]),
            "# Nothing that profile `bash` could grant was refused.\n"
        );
    }

    #[test]
    fn a_program_that_the_host_has_is_offered_as_a_path() {
        let mut learned = Refusals::new(&[], &Profile::nothing());
        let path = PathBuf::from("/opt/a\"b");
        learned.program = Some(HostProgram { path, kind: PathKind::Program });
        let expected = "[[path]]\nhost = \"/opt/a\\\"b\"\nprogram = true\nwhy = \"\"\n";
        assert!(learned.toml().ends_with(expected), "{}", learned.toml());
    }
}
