//! The files of packages for clients and registries: made from one description and from the entries that `setup`
//! writes. `UPDATE_SNAPSHOTS=1` writes them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

type Failed = Box<dyn std::error::Error>;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cofferdam");
const README: &str = include_str!("../../README.md");

/// Texts that the packages share.
struct Description {
    /// `[package]` of Cargo.toml, with the members of `[workspace.package]` in it.
    package: Value,
    /// `packaging/clients/description.toml`.
    texts: Value,
}

impl Description {
    fn read() -> Result<Self, Failed> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |path: &str| -> Result<Value, Failed> {
            Ok(toml::from_str(&fs::read_to_string(root.join(path))?)?)
        };
        let manifest = read("Cargo.toml")?;
        let mut package = manifest["package"].clone();
        for (name, value) in manifest["workspace"]["package"].as_object().ok_or("no table")? {
            package[name] = value.clone();
        }
        Ok(Self { package, texts: read("packaging/clients/description.toml")? })
    }

    fn package(&self, name: &str) -> Value {
        self.package[name].clone()
    }

    fn text(&self, name: &str) -> Value {
        self.texts[name].clone()
    }

    fn repository(&self) -> String {
        format!("https://github.com/{}/cofferdam", self.texts["owner"].as_str().unwrap())
    }

    /// Name in the MCP registry, which asks for the account that publishes.
    fn registered_name(&self) -> String {
        format!("io.github.{}/cofferdam", self.texts["owner"].as_str().unwrap())
    }
}

/// Returns the entry that `setup` writes for a client, with `command` for the program and `workspace` for the project.
fn entry(
    client: &str,
    file: &str,
    servers: &str,
    command: &str,
    workspace: &str,
) -> Result<Value, Failed> {
    let directory = tempfile::tempdir()?;
    let project = directory.path().canonicalize()?;
    let output = Command::new(PROGRAM)
        .args(["setup", client, "--yes"])
        .current_dir(&project)
        .env("HOME", project.join("home"))
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::null())
        .output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written: Value = serde_json::from_str(&fs::read_to_string(project.join(file))?)?;
    let text = written[servers]["cofferdam"].to_string();
    let project = project.to_str().ok_or("no UTF-8")?;
    assert!(text.contains(PROGRAM) && text.contains(project), "{text}");
    let replaced = text.replace(PROGRAM, command).replace(project, workspace);
    Ok(serde_json::from_str(&replaced)?)
}

/// Compares a file of the repository with what is made for it, or writes it.
fn check(path: &str, made: &Value) -> Result<(), Failed> {
    let text = format!("{}\n", serde_json::to_string_pretty(made)?);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&file, &text)?;
    }
    let there = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(there, text, "{path}: UPDATE_SNAPSHOTS=1 writes it again");
    Ok(())
}

/// Returns the tools that a client shows before it has started the server, each with its first sentence.
fn tools() -> Result<Vec<Value>, Failed> {
    let listed: Value = serde_json::from_str(include_str!("../snapshots/tools_list.json"))?;
    let listed = listed["tools"].as_array().ok_or("no list")?;
    let first = |text: &str| text.split_inclusive(". ").next().unwrap_or(text).trim().to_owned();
    let shown = listed.iter().map(|tool| {
        let description = tool["description"].as_str().unwrap_or_default();
        json!({ "name": tool["name"], "description": first(description) })
    });
    Ok(shown.collect())
}

#[test]
fn the_bundle_starts_what_setup_writes() -> Result<(), Failed> {
    let about = Description::read()?;
    let program = "server/cofferdam";
    let command = format!("${{__dirname}}/{program}");
    let started =
        entry("claude-code", ".mcp.json", "mcpServers", &command, "${user_config.workspace}")?;
    let tools = tools()?;
    assert!(tools.len() > 20, "{}", tools.len());
    let manifest = json!({
        "manifest_version": "0.3",
        "name": "cofferdam",
        "display_name": about.text("title"),
        "version": about.package("version"),
        "description": about.package("description"),
        "long_description": about.text("long_description"),
        "author": { "name": "the cofferdam authors", "url": about.repository() },
        "repository": { "type": "git", "url": about.repository() },
        "icon": "icon.png",
        "server": { "type": "binary", "entry_point": program, "mcp_config": started },
        "tools": tools,
        "tools_generated": true,
        "keywords": about.package("keywords"),
        "license": about.package("license"),
        "compatibility": { "platforms": ["linux"] },
        "user_config": {
            "workspace": {
                "type": "directory",
                "title": about.text("workspace_title"),
                "description": about.text("workspace_description"),
                "required": true
            }
        }
    });
    check("packaging/clients/mcpb/manifest.json", &manifest)
}

#[test]
fn plugins_start_what_setup_writes() -> Result<(), Failed> {
    let about = Description::read()?;
    let directory = "packaging/clients/claude-code";
    let started =
        entry("claude-code", ".mcp.json", "mcpServers", "cofferdam", "${CLAUDE_PROJECT_DIR}")?;
    check(&format!("{directory}/.mcp.json"), &json!({ "mcpServers": { "cofferdam": started } }))?;
    let plugin = json!({
        "name": "cofferdam",
        "version": about.package("version"),
        "description": about.package("description"),
        "author": { "name": "the cofferdam authors", "url": about.repository() },
        "repository": about.repository(),
        "license": about.package("license"),
        "keywords": about.package("keywords")
    });
    check(&format!("{directory}/.claude-plugin/plugin.json"), &plugin)?;
    let marketplace = json!({
        "name": "cofferdam",
        "owner": { "name": "the cofferdam authors" },
        "plugins": [{
            "name": "cofferdam",
            "source": "./",
            "description": about.package("description")
        }]
    });
    check(&format!("{directory}/.claude-plugin/marketplace.json"), &marketplace)?;

    let settings = ".gemini/settings.json";
    let started = entry("gemini", settings, "mcpServers", "cofferdam", "${workspacePath}")?;
    let extension = json!({
        "name": "cofferdam",
        "version": about.package("version"),
        "description": about.package("description"),
        "mcpServers": { "cofferdam": started },
        // Its own shell, as `setup` says.
        "excludeTools": ["run_shell_command"]
    });
    check("packaging/clients/gemini/gemini-extension.json", &extension)
}

#[test]
fn registries_start_what_setup_writes() -> Result<(), Failed> {
    let about = Description::read()?;
    let version = about.package("version");
    let description = about.package("description");
    // The registry's schema takes 100 characters.
    assert!(description.as_str().is_some_and(|text| text.chars().count() <= 100), "{description}");
    let started = entry("claude-code", ".mcp.json", "mcpServers", "cofferdam", "{workspace}")?;
    let words = started["args"].as_array().ok_or("no arguments")?;
    assert_eq!(words, &["serve", "--workspace", "{workspace}"]);
    let workspace = json!({
        "type": "named",
        "name": words[1],
        "description": about.text("workspace_description"),
        "format": "filepath",
        "isRequired": true
    });
    let arguments = json!([{ "type": "positional", "value": words[0] }, workspace]);
    let package = |registry: &str, runtime: &str| {
        json!({
            "registryType": registry,
            "identifier": "cofferdam",
            "version": version,
            "runtimeHint": runtime,
            "packageArguments": arguments,
            "transport": { "type": "stdio" }
        })
    };
    let server = json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": about.registered_name(),
        "title": about.text("title"),
        "description": description,
        "version": version,
        "repository": { "url": about.repository(), "source": "github" },
        "packages": [package("npm", "npx"), package("pypi", "uvx")]
    });
    check("packaging/clients/server.json", &server)?;

    let platform = |cpu: &str| {
        json!({
            "name": format!("cofferdam-linux-{cpu}"),
            "version": version,
            "description": format!("The program of cofferdam for Linux on {cpu}"),
            "license": about.package("license"),
            "repository": { "type": "git", "url": format!("git+{}.git", about.repository()) },
            "os": ["linux"],
            "cpu": [cpu],
            "files": ["bin/cofferdam"],
            "preferUnplugged": true
        })
    };
    let launcher = json!({
        "name": "cofferdam",
        "version": version,
        "description": description,
        "keywords": about.package("keywords"),
        "license": about.package("license"),
        "repository": { "type": "git", "url": format!("git+{}.git", about.repository()) },
        // The proof of ownership that the MCP registry looks for.
        "mcpName": about.registered_name(),
        "bin": { "cofferdam": "bin/cofferdam.js" },
        "files": ["bin/cofferdam.js"],
        "engines": { "node": ">=18" },
        "os": ["linux"],
        "cpu": ["x64", "arm64"],
        "optionalDependencies": {
            "cofferdam-linux-arm64": version,
            "cofferdam-linux-x64": version
        }
    });
    check("packaging/npm/launcher/package.json", &launcher)?;
    check("packaging/npm/cofferdam-linux-x64.json", &platform("x64"))?;
    check("packaging/npm/cofferdam-linux-arm64.json", &platform("arm64"))
}

/// Returns a text as a part of a query: letters, digits and `-._~` as they are.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[test]
fn links_of_the_readme_add_what_setup_writes() -> Result<(), Failed> {
    let project = "${workspaceFolder}";
    let cursor = entry("cursor", ".cursor/mcp.json", "mcpServers", "cofferdam", project)?;
    let config = encoded(&STANDARD.encode(cursor.to_string()));
    let cursor = format!("https://cursor.com/en/install-mcp?name=cofferdam&config={config}");
    let mut vscode = entry("vscode", ".vscode/mcp.json", "servers", "cofferdam", project)?;
    vscode["name"] = json!("cofferdam");
    // Pages cannot link to `vscode:` themselves.
    let inner = format!("vscode:mcp/install?{}", encoded(&vscode.to_string()));
    let vscode = format!("https://insiders.vscode.dev/redirect?url={}", encoded(&inner));
    for link in [cursor, vscode] {
        assert!(README.contains(&format!("]: {link}\n")), "README.md should have the link {link}");
    }
    Ok(())
}

/// PyPI's page of the package is the proof that the registry looks for there.
#[test]
fn the_page_of_the_wheel_names_the_registered_server() -> Result<(), Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("packaging/python/README.md"))?;
    let proof = format!("<!-- mcp-name: {} -->", Description::read()?.registered_name());
    assert!(page.contains(&proof), "packaging/python/README.md should have the line {proof}");
    Ok(())
}

/// The paths of the units, of the AppArmor profile and of the packages are one path.
#[test]
fn units_and_profile_name_the_program_of_the_packages() -> Result<(), Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    for (manager, address) in [("system", "127.0.0.1:8080"), ("user", "%t/cofferdam.sock")] {
        let read = |unit: &str| fs::read_to_string(root.join("systemd").join(manager).join(unit));
        // The settings, without comments.
        let values = |text: &str, key: &str| -> Vec<String> {
            text.lines().filter_map(|line| line.strip_prefix(key)).map(str::to_owned).collect()
        };
        let service = read("cofferdam.service")?;
        assert_eq!(values(&service, "ExecStart="), ["/usr/bin/cofferdam serve --http systemd"]);
        assert_eq!(values(&service, "KillMode="), ["mixed"], "{manager}");
        assert_eq!(values(&service, "Requires="), ["cofferdam.socket"], "{manager}");
        let socket = read("cofferdam.socket")?;
        assert_eq!(values(&socket, "ListenStream="), [address]);
        // A socket at a path needs it; other kinds ignore it.
        assert_eq!(values(&socket, "SocketMode="), ["0600"], "{manager}");
        assert_eq!(values(&socket, "Accept="), [""; 0], "{manager}");
    }
    let profile = fs::read_to_string(root.join("apparmor/cofferdam"))?;
    assert!(profile.contains("profile cofferdam /usr/{,local/}bin/cofferdam "), "{profile}");
    Ok(())
}
