//! `cofferdam selftest serve`: the escape corpus against a server of MCP with a shell tool.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

use super::{ChoiceArguments, NO_VERDICT, ReportArguments, UNAVAILABLE, about, chosen, judged};
use crate::commands::error::{CliError, print_out};
use model::outcome::in_words;
use selftest::judge::Target;
use selftest::mcp_client::{HttpAddress, ServerAddress, Surroundings, ToolClient};
use selftest::served::{AllowedHarm, Planted, ServerPlace, ToolServer};

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam selftest serve http://127.0.0.1:8080/mcp --here\n  \
    cofferdam selftest serve --plant\n  \
    cofferdam selftest serve https://agents.example/mcp --token-file token --tool run --argument script\n  \
    cofferdam selftest serve -- npx some-shell-server\n\n\
    Only attacks that do no harm are sent, unless --disposable says that the server's machine is thrown away.\n\
    Exit codes: those of `cofferdam selftest`; 3 if the server cannot be reached or its tool runs no command")]
pub struct ServeArguments {
    /// Address of the server (streamable HTTP)
    #[arg(value_name = "URL", required_unless_present_any = ["words", "plant"], conflicts_with = "words")]
    pub url: Option<String>,
    /// Name of its shell tool
    #[arg(long, value_name = "NAME", default_value = "bash")]
    pub tool: String,
    /// The argument of the tool that takes a command
    #[arg(long, value_name = "NAME", default_value = "command")]
    pub argument: String,
    /// Further arguments of each call, as a JSON object
    #[arg(long, value_name = "JSON")]
    pub arguments: Option<String>,
    /// File with a token, sent as `Authorization: Bearer`
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
    /// The server runs on this machine as this user: attack targets of this machine
    #[arg(long, conflicts_with = "canaries")]
    pub here: bool,
    /// Targets on the server's machine, as the command of --plant has printed them
    #[arg(long, value_name = "SECRET:PID")]
    pub canaries: Option<String>,
    /// Print the commands that plant targets on the server's machine, and that check them afterwards
    #[arg(long)]
    pub plant: bool,
    /// Send also attacks that harm the server's machine if they succeed
    #[arg(long)]
    pub disposable: bool,
    #[command(flatten)]
    pub choice: ChoiceArguments,
    /// Only these attacks, by their ids
    #[arg(long = "id", value_name = "ID,…", value_delimiter = ',')]
    pub ids: Vec<String>,
    #[command(flatten)]
    pub reports: ReportArguments,
    /// Command that serves on its standard streams; it is started on this machine for each attack
    #[arg(value_name = "COMMAND", last = true)]
    pub words: Vec<String>,
}

/// Runs the command; the exit code is the verdict's.
pub(super) fn main(typed: &ServeArguments) -> Result<u8, CliError> {
    if typed.plant {
        let planted = Planted::generate().map_err(|error| mistake("--plant", &in_words(&error)))?;
        let [plant, check] = planted.commands();
        print_out(&format!(
            "on the server's machine, as the server's user:\n  {plant}\n\
             afterwards, with the number that it printed for PID:\n  {check}\n"
        ))?;
        return Ok(0);
    }
    let probes = chosen(&typed.choice, &typed.ids)?;
    let mut served = served(typed)?;
    let directory = std::env::temp_dir();
    check_tool(&served, &directory)?;
    served.find_room(selftest::PROBE, &directory).map_err(|error| {
        CliError::new(format!("selftest: {}: {error}", typed.tool))
            .with_hint("--tool and --argument name the tool and its argument that takes a command of a shell")
            .with_code(UNAVAILABLE)
    })?;
    if served.place == ServerPlace::Elsewhere(None) {
        eprintln!(
            "selftest: without targets on the server's machine, many attacks are not run: --here if the server runs on \
             this machine, else --plant"
        );
    }
    let target = Target::Served(Box::new(served));
    let name = typed.url.clone().unwrap_or_else(|| format!("-- {}", typed.words.join(" ")));
    let about = about(&target, Some(&name))?;
    judged(target, &probes, about, &typed.reports)
}

fn mistake(option: &str, reason: &str) -> CliError {
    CliError::new(format!("selftest: {option}: {reason}")).with_code(NO_VERDICT)
}

/// Makes the target from the arguments.
fn served(typed: &ServeArguments) -> Result<ToolServer, CliError> {
    let token = typed.token_file.as_ref().map(|file| {
        let text = std::fs::read_to_string(file);
        text.map(|text| text.trim().to_owned()).map_err(|error| {
            mistake("--token-file", &format!("{}: {}", file.display(), in_words(&error)))
        })
    });
    let address = match &typed.url {
        Some(url) => {
            let address = HttpAddress::parse(url, token.transpose()?);
            ServerAddress::Http(
                address.map_err(|reason| CliError::new(format!("selftest: {reason}")))?,
            )
        }
        None => ServerAddress::Command(typed.words.clone()),
    };
    let arguments: Map<String, Value> = match &typed.arguments {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            mistake("--arguments", &format!("it is not a JSON object: {error}"))
        })?,
        None => Map::new(),
    };
    let planted = typed.canaries.as_deref().map(Planted::parse).transpose();
    let planted = planted.map_err(|reason| mistake("--canaries", &reason))?;
    let place = match (typed.here, &address) {
        // A command is started here.
        (true, _) | (false, ServerAddress::Command(_)) => ServerPlace::Here,
        (false, ServerAddress::Http(_)) => ServerPlace::Elsewhere(planted),
    };
    let harm = match typed.disposable {
        true => AllowedHarm::Disposable,
        false => AllowedHarm::Harmless,
    };
    let client = ToolClient {
        address,
        tool: typed.tool.clone(),
        argument: typed.argument.clone(),
        arguments,
    };
    Ok(ToolServer::new(client, place, harm))
}

/// Checks that the server has the tool.
fn check_tool(served: &ToolServer, directory: &std::path::Path) -> Result<(), CliError> {
    let tools = served.client.tools(Surroundings { directory, secret: "" });
    let tools = tools.map_err(|error| {
        CliError::new(format!("selftest: {}: {error}", served.client.address))
            .with_code(UNAVAILABLE)
    })?;
    let tool = &served.client.tool;
    if tools.contains(tool) {
        return Ok(());
    }
    Err(CliError::new(format!("selftest: the server has no tool `{tool}`"))
        .with_hint(format!("--tool names one of: {}", tools.join(", ")))
        .with_code(UNAVAILABLE))
}
