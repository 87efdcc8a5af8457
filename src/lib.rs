//! cofferdam runs each call in its own cell: a shell for agents that does not expose the machine.
//!
//! This page is an overview of the code. README.md has the user's view; SECURITY.md states which
//! protections hold and which do not.
//!
//! # Processes
//!
//! ```text
//! agent ── MCP ──▶ front end           mcp, service, config; tokio; parses everything hostile
//!                    │ SOCK_SEQPACKET, frames of at most 64 KiB       (link ↔ wire)
//!                    │ socket, lists   ── watcher, only with a project: reads its changed folder  (projects)
//!                    │ socket, answers ── reader of the workspace's layer, only with one  (commands::layer_reader)
//!                  supervisor          pid 1 of a new pid namespace; one thread, poll, pidfds
//!                    │ SOCK_SEQPACKET  ── gateway ── worker of each cell that sends, only with egress  (gateway)
//!                    │ clone3; seven fresh namespaces                 (cell::enter)
//!                  cell init (pid 1)   reaps, counts refused calls, watches memory, ends the cell
//!                    │ forked when the cell is built, exec when it has a job (or ahead of it)
//!                  payload (pid 3)     bash, bc, a program: a minimal root, /workspace, /tmp
//! ```
//!
//! `main` starts the supervisor while it has one thread, no runtime and no secret, and then
//! becomes the confined front end ([`commands::launch`], [`commands::confine`]). Cells are clones of
//! the small supervisor and never exec before the payload does.
//!
//! # One call, and the type that carries it
//!
//! | step | where | type | what it guarantees |
//! |---|---|---|---|
//! | message | [`mcp`] | tool arguments | the schema; unknown fields are refused |
//! | validated | [`service`] | [`model::call::Call`] | bounded lengths, no NUL, paths inside /workspace or /tmp |
//! | decided | [`config::policy`] | [`config::policy::Grant`] or [`config::policy::Denial`] | only `policy` can make a grant |
//! | sent | [`service::link`], [`model::wire`] | a frame with a [`model::job::Job`] | only a grant can be sent; every length is capped |
//! | planned | [`supervisor`] | [`cell::Design`] | everything of variable length is computed before the clone |
//! | run | [`cell`] | init and payload | built, measured, then handed the job |
//! | captured | [`service::capture`] | [`service::capture::Captured`] | head and tail are kept, the rest is counted |
//! | reported | [`service::report`], [`mcp::reply`], [`commands::run`] | [`model::outcome::Outcome`], [`model::receipt::Receipt`] | how the call ended; what was measured |
//!
//! # Code map
//!
//! Every name except `commands` is a crate in `src/NAME/` or a module of one. Cargo enforces the
//! dependencies of the crates.
//!
//! [`commands`]: a file or folder for each command. `grants` resolves what the operator grants, `launch` starts the
//! supervisor with it and confines the process, in this order; `start` makes the runtime after that.
//! *Architecture Invariant:* no runtime, no thread and no secret exists before the supervisor does.
//!
//! [`mcp`]: arguments in, results out, on rmcp. `lines` caps what is read, `tools` has a row for each tool: how it is listed and what a call of it does.
//! *Architecture Invariant:* nothing here starts a process; calls are made through [`service::Executor`].
//!
//! [`http`]: the same over a listener: authentication, bounds on requests, and a separate server for each client.
//! *Architecture Invariant:* a request reaches only the server of its client.
//!
//! [`service`]: what an agent can call: the shell, files, and bc with its rounding. Files are read and written by the clerk
//! (`src/helpers/clerk/`), a separate program in the cell.
//! *Architecture Invariant:* the text of a shell command is never looked at; bc's is, because it
//! must be put together with ours.
//!
//! [`config::policy`]: which caller may use what, and which tools are shown together. [`config::profile`]: how a call is confined,
//! resolved to a [`model::profile::Profile`]. [`config`] reads the files of both and of the server, and reports mistakes
//! with their line; each key is declared once, and its reader and JSON Schema follow from that.
//! *Architecture Invariant:* `policy` and `profile` do no I/O, and nothing a caller sends changes them.
//!
//! [`model`]: the types that both sides of the link share, and the floor below all profiles. [`service::link`]: the
//! front end's side.
//! *Architecture Invariant:* a frame names a profile, it never carries one; the supervisor checks
//! everything that it receives again.
//!
//! [`supervisor`]: the loop that makes, measures and ends cells; templates of their roots; caps over all.
//! *Architecture Invariant:* no JSON, no tokio, one thread, and after boot no path that a client or a cell
//! names is opened.
//!
//! [`cell`]: namespaces and processes of one call. Read [`cell::enter`] first; each layer has a file. [`cell::mediate`]
//! answers system calls for the program: one reader, and a table from call to handler.
//! *Architecture Invariant:* `cell` does not know of `mcp`; between clone and exec there are only
//! system calls; no result of one is dropped.
//!
//! [`projects`]: a folder of scripts, read into lists of tools, resources and prompts. In its cell the runner
//! (`src/helpers/runner/`) starts a script and serves it: files, questions and downloads, and the report at the end.
//! *Architecture Invariant:* it runs nothing, and follows no link.
//!
//! [`projects::watcher`]: the process that reads a served project again when it changes, and sends it to the front end.
//! *Architecture Invariant:* it can read one directory, and holds no secret and no client.
//!
//! [`jq`]: the program `jq` for scripts of a project; it is this binary under another name.
//! *Architecture Invariant:* it depends on no other crate of the product.
//!
//! [`service::audit`]: the log of decisions and ends of calls, one line each, chained by hashes.
//! *Architecture Invariant:* no value of an environment is in a line, and every line is bounded.
//!
//! [`selftest`]: the escape corpus, how it is run against cofferdam, another sandbox or a server with a shell tool, and
//! random system calls in any of them but the last.
//! *Architecture Invariant:* it makes no cell; `cofferdam run` does, as for any user.
//!
//! [`gateway`]: the network of cells, in separate processes: `event_loop` keeps cells and forks a worker at a cell's first
//! packet, `worker` is its TCP/IP stack, judge, resolver and relays, `intercept` reads requests.
//! *Architecture Invariant:* no cell has access to the host's network namespace; traffic that no rule allows is dropped.
//!
//! [`service::capture`]: output, bounded and escaped.
//! *Architecture Invariant:* a flood of output costs no memory beyond its caps.
//!
//! [`calc`]: results of bc that are exact or correctly rounded. The caller provides the function that runs bc.
//!
//! `helpers`: the programs that run inside cells, embedded as bytes: clerk, runner and probe.
//! *Architecture Invariant:* they have no standard library.
//!
//! [`sys`]: system calls that no crate wraps.
//! *Architecture Invariant:* except for `helpers`, which are separate programs, the only crate with `unsafe`, one call a
//! block, and no decisions.
//!
//! Dependencies have one direction: `commands → http → mcp → service → config → model → sys`; `supervisor → cell → model`.
//! docs/architecture.md has all of them.
//!
//! # Invariants
//!
//! 1. Every program is executed through `supervisor` and `cell`; the front end cannot exec.
//! 2. Fail closed: every best-effort layer is named so in the reply.
//! 3. A cell is used for one call, or by one session.
//! 4. The boundary is the kernel, never the text of a command.
//! 5. The host never opens a path that a cell has written; the lower tier's sweeper removes by name.
//! 6. Nothing of the server's environment, descriptors or secrets reaches a cell.
//! 7. `unsafe` lives in `sys`, and in `helpers`, which have no standard library.
//! 8. A reply calls measured only what was measured, and probed only what was probed.
//!
//! # Glossary
//!
//! - **call**: a validated request of a caller. **job**: the part of it that is sent to the supervisor.
//! - **policy**, **rule**: which caller may use what. **grant**, **denial**: the two decisions.
//! - **profile**: how a cell is confined. **floor**: the minimum that no profile lowers. **limits**: a cell's numbers.
//! - **tier**: the set of mechanisms that confines a cell.
//! - **supervisor**: the process that makes cells. **template**: the root that cells of one key share.
//! - **plan**, **design**: everything that is computed before a cell is cloned.
//! - **cell**: namespaces and processes of one call. **init**: its pid 1. **payload**: the program's process.
//!   **shelter**: pid 2, whose memory the payload has until it execs.
//! - **enter**: the steps between clone and exec. **pool**: cells built before there is a job.
//! - **workspace**: the directory at `/workspace`: fresh, of a session, or granted by the host. **session**: a cell that outlives a call.
//! - **granted socket**: a Unix socket of the host that cells of a profile may connect to.
//! - **capture**: output as it was kept. **spool**: where more of it may be kept. **outcome**: how a call ended.
//! - **receipt**: the protections of a call: measured, probed, configured.

#![deny(unreachable_pub)]

pub mod commands;
