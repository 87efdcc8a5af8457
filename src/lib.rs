//! cofferdam runs every call in a cell of its own: a shell for agents, without the machine.
//!
//! This page is an overview of the code. README.md has the user's view; SECURITY.md states which
//! protections hold and which do not.
//!
//! # Processes
//!
//! ```text
//! agent ── MCP ──▶ front end           mcp, service, policy; tokio; parses everything hostile
//!                    │ SOCK_SEQPACKET, frames of at most 64 KiB       (link ↔ wire)
//!                    │ socket, lists   ── watcher, only with a project: reads its folder when it changes  (watcher)
//!                  supervisor          pid 1 of its own pid namespace; one thread, poll, pidfds
//!                    │ SOCK_SEQPACKET  ── gateway ── worker of each cell that sends, only with egress  (gateway)
//!                    │ clone3; seven fresh namespaces                 (cell::enter)
//!                  cell init (pid 1)   reaps, counts refused calls, watches memory, ends the cell
//!                    │ forked when the cell is built, exec when it has a job
//!                  payload (pid 3)     bash, bc, a program: a minimal root, /workspace, /tmp
//! ```
//!
//! `main` starts the supervisor while it has one thread, no runtime and no secret, and then
//! becomes the confined front end ([`commands::start`], [`commands::confine`]). Cells are clones of
//! the small supervisor and never exec before the payload does.
//!
//! # One call, and the type that carries it
//!
//! | step | where | type | what it guarantees |
//! |---|---|---|---|
//! | message | [`mcp`] | tool arguments | the schema; unknown fields are refused |
//! | validated | [`service`] | [`model::call::Call`] | bounded lengths, no NUL, paths inside /workspace or /tmp |
//! | decided | [`policy`] | [`policy::Grant`] or [`policy::Denial`] | only `policy` can make a grant |
//! | sent | [`link`], [`model::wire`] | a frame with a [`model::job::Job`] | only a grant can be sent; every length is capped |
//! | planned | [`supervisor`] | [`cell::Design`] | everything of variable length is computed before the clone |
//! | run | [`cell`] | init and payload | built, measured, then handed the job |
//! | captured | [`capture`] | [`capture::Captured`] | head and tail are kept, the rest is counted |
//! | reported | [`service::report`], [`mcp::reply`], [`commands::run`] | [`model::outcome::Outcome`], [`model::receipt::Receipt`] | one outcome; what was measured |
//!
//! # Code map
//!
//! Every name except `commands` is a crate in `src/NAME/`, so Cargo enforces the dependencies.
//!
//! [`commands`]: a file or folder for each command. `start` has the order in which a process becomes a front end, `wiring`
//! joins configuration and grants, `launch` starts the supervisor.
//! *Architecture Invariant:* no runtime, no thread and no secret exists before the supervisor does.
//!
//! [`mcp`]: arguments in, results out, on rmcp. `lines` caps what is read, `tools` has a row for each tool: how it is listed and what a call of it does.
//! *Architecture Invariant:* nothing here starts a process; calls are made through [`service::Backend`].
//!
//! [`http`]: the same over a listener: the client of a request, limits on it, and a door for each client.
//! *Architecture Invariant:* a request reaches no door but its own client's.
//!
//! [`service`]: the functions that an agent can call: the shell, files, and bc with its rounding. Files are read and written
//! by the clerk (`src/helpers/clerk/`), a separate program in the cell.
//! *Architecture Invariant:* the text of a shell command is never parsed; an expression for bc is, because it
//! is combined with our own text.
//!
//! [`policy`]: which client may call which tool, and groups of tools. [`profile`]: how a call is confined. Both report
//! mistakes in files with file and line. [`config`] reads the files of both.
//! *Architecture Invariant:* `policy` and `profile` do no I/O, and nothing a caller sends changes them.
//!
//! [`model`], [`link`]: the types that both sides of the link share, and the front end's side.
//! *Architecture Invariant:* a frame names a profile, it never carries one; the supervisor checks
//! everything that it receives again.
//!
//! [`supervisor`]: the loop that makes, measures and ends cells; templates of their roots; caps over all.
//! *Architecture Invariant:* no JSON, no tokio, one thread, and no path is opened after boot.
//!
//! [`cell`]: namespaces and processes of one call. Read [`cell::enter`] first; each layer has a file. [`cell::mediate`]
//! answers system calls for the program: one reader, and a table from call to handler.
//! *Architecture Invariant:* `cell` does not know of `mcp`; between clone and exec there are only
//! system calls; no result of one is dropped.
//!
//! [`project`]: a folder of scripts, read into a list of tools, resources and prompts. In the cell the runner
//! (`src/helpers/runner/`) starts a script and handles its files, questions, downloads and report.
//! *Architecture Invariant:* it runs nothing, and follows no link.
//!
//! [`watcher`]: the process that reads a served project again when it changes, and sends the lists to the front end.
//! *Architecture Invariant:* it can read one directory, and has no secret and no client.
//!
//! [`jq`]: the program `jq` for scripts of a project, which is this binary under another name.
//! *Architecture Invariant:* it names no other crate of the workspace.
//!
//! [`audit`]: a chained log with a line for each decision and each end of a call.
//! *Architecture Invariant:* no value of an environment is in a line, and every line is bounded.
//!
//! [`selftest`]: the escape corpus, and how it is run against cofferdam or another sandbox.
//! *Architecture Invariant:* it makes no cell; `cofferdam run` does, as for any user.
//!
//! [`gateway`]: the network of cells, in separate processes: `gateway` knows the cells and forks a worker at a cell's first
//! packet, `worker` is the TCP/IP stack, judge, resolver and relays of a cell, `intercept` reads requests.
//! *Architecture Invariant:* nothing of the host's network namespace is in a cell; traffic without a rule is dropped.
//!
//! [`capture`]: output, bounded and escaped.
//! *Architecture Invariant:* a flood of output costs no memory beyond its caps.
//!
//! [`calc`]: results of bc that are exact or correctly rounded. The caller passes a function that runs bc.
//!
//! [`sys`]: system calls that no crate wraps.
//! *Architecture Invariant:* the only crate with `unsafe` apart from `helpers`, which are separate programs; one call a
//! block, and no decisions.
//!
//! Dependencies have one direction: `commands → http → mcp → service → policy → profile → model → sys`; `supervisor → cell → profile`.
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
//! - **policy**, **rule**: which client may call which tool. **grant**, **denial**: the two decisions.
//! - **profile**: how a cell is confined. **floor**: the protections that no profile lowers. **limits**: a cell's numbers.
//! - **tier**: which set of mechanisms holds a cell.
//! - **supervisor**: the process that makes cells. **template**: the root that cells of one key share.
//! - **plan**, **design**: everything that is computed before a cell is cloned.
//! - **cell**: namespaces and processes of one call. **init**: its pid 1. **payload**: the program's process.
//!   **shelter**: pid 2, whose memory the payload has until it execs.
//! - **enter**: the steps between clone and exec. **pool**: cells built before there is a job.
//! - **workspace**: the directory at `/workspace`: empty, or a granted one. **session**: a cell that outlives a call.
//! - **granted socket**: a Unix socket of the host that cells of a profile may connect to.
//! - **capture**: the part of the output that is kept. **spool**: a file for more of it. **outcome**: how a call ended.
//! - **receipt**: the protections of a call: measured, probed, configured.

#![deny(unreachable_pub)]

pub mod commands;
