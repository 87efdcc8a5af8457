//! Lists the clients that `setup` knows: the file each reads, the form of an entry, and its own shell.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::Value;

/// Longest time of a call, in seconds, and some for the reply: clients give up earlier by themselves.
const MAX_CALL_SECONDS: u64 = 660;

/// A client, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    ClaudeCode,
    ClaudeDesktop,
    Codex,
    Cursor,
    Vscode,
    Gemini,
    Opencode,
}

/// File in which a client looks for servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConfigFile {
    /// Below the project's directory.
    OfProject(&'static str),
    /// Below the user's directory for configuration, `$XDG_CONFIG_HOME` or `~/.config`.
    OfUser(&'static str),
}

/// Language of a client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// JSON, in which comments are kept.
    Json,
    Toml,
}

/// Members of an entry, in the order in which they are written.
pub(super) type Entry = Vec<(&'static str, Value)>;

/// One client's ways.
#[derive(Debug)]
pub(super) struct ClientFacts {
    pub title: &'static str,
    pub file: ConfigFile,
    pub language: Language,
    /// Key of the table of servers.
    pub servers: &'static str,
    entry: fn(command: &str, arguments: [&str; 3]) -> Entry,
    /// Further steps for the user, one a line. The last says how the client's own shell is switched off.
    pub next: &'static [&'static str],
}

impl Client {
    /// Returns the facts of a client.
    pub(super) fn facts(self) -> &'static ClientFacts {
        match self {
            Self::ClaudeCode => &CLAUDE_CODE,
            Self::ClaudeDesktop => &CLAUDE_DESKTOP,
            Self::Codex => &CODEX,
            Self::Cursor => &CURSOR,
            Self::Vscode => &VSCODE,
            Self::Gemini => &GEMINI,
            Self::Opencode => &OPENCODE,
        }
    }
}

/// Returns an entry as most clients have it.
fn plain(command: &str, arguments: [&str; 3]) -> Entry {
    vec![("command", command.into()), ("args", arguments.as_slice().into())]
}

/// Returns an entry that names the transport, for clients that require it.
fn stdio(command: &str, arguments: [&str; 3]) -> Entry {
    let mut entry = plain(command, arguments);
    entry.insert(0, ("type", "stdio".into()));
    entry
}

// Each row follows the documentation of its client, whose address stands above it.

// https://code.claude.com/docs/en/mcp and https://code.claude.com/docs/en/settings
const CLAUDE_CODE: ClientFacts = ClientFacts {
    title: "Claude Code",
    file: ConfigFile::OfProject(".mcp.json"),
    language: Language::Json,
    servers: "mcpServers",
    entry: plain,
    next: &[
        "Claude Code asks once, at its next start here, whether to use the server.",
        "Switch its own shell off in .claude/settings.local.json: {\"permissions\": {\"deny\": [\"Bash\"]}}",
    ],
};

// https://modelcontextprotocol.io/docs/develop/connect-local-servers
const CLAUDE_DESKTOP: ClientFacts = ClientFacts {
    title: "Claude Desktop",
    file: ConfigFile::OfUser("Claude/claude_desktop_config.json"),
    language: Language::Json,
    servers: "mcpServers",
    entry: plain,
    next: &[
        "Quit Claude Desktop and start it again: it reads the file at its start.",
        "It has no shell of its own.",
    ],
};

// https://developers.openai.com/codex/mcp and https://developers.openai.com/codex/config-reference
const CODEX: ClientFacts = ClientFacts {
    title: "Codex",
    file: ConfigFile::OfProject(".codex/config.toml"),
    language: Language::Toml,
    servers: "mcp_servers",
    // Without it Codex gives up on a tool after about a minute.
    entry: |command, arguments| {
        vec![
            ("command", command.into()),
            ("args", arguments.as_slice().into()),
            ("tool_timeout_sec", MAX_CALL_SECONDS.into()),
        ]
    },
    next: &[
        "Codex reads the file of a project that you trust: it asks at its first start here.",
        "It asks before each call, and `codex exec` refuses them: default_tools_approval_mode = \"approve\" in the entry leaves that to the cell.",
        "Switch its own shell off: codex --disable shell_tool, or shell_tool = false under [features].",
    ],
};

// https://cursor.com/docs/context/mcp and https://cursor.com/docs/cli/reference/permissions
const CURSOR: ClientFacts = ClientFacts {
    title: "Cursor",
    file: ConfigFile::OfProject(".cursor/mcp.json"),
    language: Language::Json,
    servers: "mcpServers",
    entry: stdio,
    next: &[
        "Switch the server on in Cursor's settings, under MCP, if it is not.",
        "Cursor cannot be without its own terminal: let it ask each time (Auto-Run Mode), and refuse; \
         its command line takes {\"permissions\": {\"deny\": [\"Shell(*)\"]}} in .cursor/cli.json.",
    ],
};

// https://code.visualstudio.com/docs/copilot/reference/mcp-configuration
const VSCODE: ClientFacts = ClientFacts {
    title: "VS Code",
    file: ConfigFile::OfProject(".vscode/mcp.json"),
    language: Language::Json,
    servers: "servers",
    entry: stdio,
    next: &[
        "Start the server by the word above its entry, or MCP: List Servers, and trust it.",
        "Switch the terminal's tools off in the chat: Configure Tools, and clear `execute`.",
    ],
};

// https://geminicli.com/docs/tools/mcp-server and https://geminicli.com/docs/reference/configuration
const GEMINI: ClientFacts = ClientFacts {
    title: "Gemini CLI",
    file: ConfigFile::OfProject(".gemini/settings.json"),
    language: Language::Json,
    servers: "mcpServers",
    entry: |command, arguments| {
        vec![
            ("command", command.into()),
            ("args", arguments.as_slice().into()),
            ("timeout", (MAX_CALL_SECONDS * 1000).into()),
        ]
    },
    next: &[
        "Gemini CLI reads the file in a folder that you trust.",
        "Switch its own shell off in the same file: \"tools\": {\"exclude\": [\"run_shell_command\"]}",
    ],
};

// https://opencode.ai/docs/mcp-servers and https://opencode.ai/docs/permissions
const OPENCODE: ClientFacts = ClientFacts {
    title: "opencode",
    file: ConfigFile::OfProject("opencode.json"),
    language: Language::Json,
    servers: "mcp",
    entry: |command, arguments| {
        let words: Vec<&str> = std::iter::once(command).chain(arguments).collect();
        vec![("type", "local".into()), ("command", words.into()), ("enabled", true.into())]
    },
    next: &["Switch its own shell off in the same file: \"permission\": {\"bash\": \"deny\"}"],
};

impl ClientFacts {
    /// Returns the entry that starts `command` with this workspace: the project's directory, and how it is granted.
    pub(super) fn entry(&self, command: &str, workspace: &str) -> Entry {
        (self.entry)(command, ["serve", "--workspace", workspace])
    }

    /// Returns the path of the file, whose links are not followed.
    pub(super) fn path(&self, project: &Path, user: Option<&Path>) -> Option<PathBuf> {
        match self.file {
            ConfigFile::OfProject(below) => Some(project.join(below)),
            ConfigFile::OfUser(below) => user.map(|user| user.join(below)),
        }
    }
}
