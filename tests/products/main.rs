//! Products built on cells, over the real server: the calculator, command-line tools, `bash_exec` with its steps and
//! logs, script projects and the operator's commands.

mod calculator;
mod cli_tools;
#[path = "../http/client.rs"]
#[expect(dead_code, reason = "the tests of HTTP use more of it")]
mod client;
mod config_json;
#[path = "../support/deceptive.rs"]
mod deceptive;
mod exec;
mod go_server;
mod jq;
mod network;
mod operator;
mod projects;
mod projects_network;
#[path = "../support/server.rs"]
mod server;
mod tools_network;

use server::patience;
