//! cofferdam runs every call in a cell of its own: a shell for agents, without the machine.
//!
//! This page is the bird's eye view; five minutes here save an hour in the files. README.md has the
//! user's view; SECURITY.md states which protections hold and which do not.
//!
//! # Processes
//!
//! ```text
//! agent ── MCP ──▶ front end           mcp, service, policy; tokio; parses everything hostile
//!                    │ SOCK_SEQPACKET, frames of at most 64 KiB       (link ↔ wire)
//!                    │ socket, lists   ── watcher, only with a project: reads its folder again  (watcher)
//!                  supervisor          pid 1 of its own pid namespace; one thread, poll, pidfds
//!                    │ SOCK_SEQPACKET  ── gateway ── worker of each cell that sends, only with egress  (gateway)
//!                    │ clone3; seven fresh namespaces                 (cell::enter)
//!                  cell init (pid 1)   reaps, counts refused calls, watches memory, ends the cell
//!                    │ forked when the cell is built, exec when it has a job
//!                  payload (pid 3)     bash, bc, a program: a minimal root, /workspace, /tmp
//! ```
//!
//! `main` starts the supervisor while it has one thread, no runtime and no secret, and then
//! turns itself into the confined front end ([`commands::start`], [`commands::confine`]). Cells are clones of
//! the small supervisor and never exec before the payload does.
//!
//! # One call, and the type that carries it
//!
//! | step | where | type | what it guarantees |
//! |---|---|---|---|
//! | message | [`mcp`] | tool arguments | the schema; unknown fields are refused |
//! | validated | [`service`] | [`model::call::Call`] | bounded lengths, no NUL, paths inside /workspace or /tmp |
//! | decided | [`policy`] | [`policy::Grant`] or [`policy::Denial`] | a grant cannot be made elsewhere |
//! | sent | [`link`], [`model::wire`] | a frame with a [`model::job::Job`] | only a grant can be sent; every length is capped |
//! | planned | [`supervisor`] | [`cell::Design`] | all that has a length is computed before the clone |
//! | run | [`cell`] | init and payload | built, measured, then handed the job |
//! | captured | [`capture`] | [`capture::Captured`] | head and tail are kept, the rest is counted |
//! | told | [`service::report`], [`mcp::reply`], [`commands::run`] | [`model::outcome::Outcome`], [`model::receipt::Receipt`] | one story of the end; what was measured |
//!
//! # Code map
//!
//! Every name but `commands` is a crate in `src/NAME/`: Cargo holds the arrows.
//!
//! [`commands`]: one file per command. `start` has the order in which a process becomes a front end, `wiring` joins
//! configuration and grants, `launch` starts the supervisor.
//! *Architecture Invariant:* no runtime, no thread and no secret exists before the supervisor does.
//!
//! [`mcp`]: arguments in, results out, on rmcp. `lines` caps what is read, `tools` has a row for each tool: how it is listed and what a call of it does.
//! *Architecture Invariant:* nothing here starts a process; what runs is behind [`service::Backend`].
//!
//! [`http`]: the same over a listener: whose a request is, bounds on it, and a door for each client.
//! *Architecture Invariant:* a request reaches no door but its own client's.
//!
//! [`service`]: what an agent can call: the shell, files, and bc with its rounding. Files are read and written by the clerk
//! (`src/helpers/clerk/`), a program of its own in the cell.
//! *Architecture Invariant:* the text of a shell command is never looked at; bc's is, because it
//! must be put together with ours.
//!
//! [`policy`]: who may call what, and which tools are shown together. [`profile`]: how a call is confined, and mistakes in files with their place. [`config`] reads the files of both.
//! *Architecture Invariant:* `policy` and `profile` do no I/O, and nothing a caller sends changes them.
//!
//! [`model`], [`link`]: the words that the two sides of the link share, and its front end's side.
//! *Architecture Invariant:* a frame names a profile, it never carries one; what the supervisor
//! takes from the link it checks again.
//!
//! [`supervisor`]: the loop that makes, measures and ends cells; templates of their roots; caps over all.
//! *Architecture Invariant:* no JSON, no tokio, one thread, and no path is opened after boot.
//!
//! [`cell`]: namespaces and processes of one call. Read [`cell::enter`] first; each layer has a file. [`cell::mediate`]
//! answers system calls for the program: one reader, and a table from call to handler.
//! *Architecture Invariant:* `cell` does not know of `mcp`; between clone and exec there are only
//! system calls; no result of one is dropped.
//!
//! [`project`]: a folder of scripts, read into a list of tools, resources and prompts. In its cell the runner
//! (`src/helpers/runner/`) stands around a script: files, questions and downloads, and the report at the end.
//! *Architecture Invariant:* it runs nothing, and follows no link.
//!
//! [`watcher`]: the process that reads a served project again when it changes, and tells the front end.
//! *Architecture Invariant:* it can read one directory, and holds no secret and no client.
//!
//! [`jq`]: the program of that name that scripts of a project have, this binary by another name.
//! *Architecture Invariant:* nothing of the product is in it.
//!
//! [`audit`]: what was decided and how it ended, a line each, chained.
//! *Architecture Invariant:* no value of an environment is in a line, and every line is bounded.
//!
//! [`selftest`]: the escape corpus, and how it is run against cofferdam or another sandbox.
//! *Architecture Invariant:* it makes no cell; `cofferdam run` does, as for any user.
//!
//! [`gateway`]: the network of cells, in processes of its own: `gateway` keeps cells and forks a worker at a cell's first
//! packet, `worker` is its TCP/IP stack, judge, resolver and relays, `intercept` reads requests.
//! *Architecture Invariant:* nothing of the host's network namespace is in a cell; what no rule allows goes nowhere.
//!
//! [`capture`]: output, bounded and made harmless.
//! *Architecture Invariant:* a flood of output costs no memory beyond its caps.
//!
//! [`calc`]: results of bc that are exact or correctly rounded. What runs bc is given to it.
//!
//! [`sys`]: system calls that no crate wraps.
//! *Architecture Invariant:* beside `helpers`, which are programs of their own, the only place with `unsafe`, one call a
//! block, and no decisions.
//!
//! Arrows go one way: `commands → http → mcp → service → policy → profile → model → sys`; `supervisor → cell → profile`.
//!
//! # Invariants
//!
//! 1. Every program is executed through `supervisor` and `cell`; the front end cannot exec.
//! 2. Fail closed: no best-effort layer that is not named so in the reply.
//! 3. A cell is used for one call, or by one session.
//! 4. The boundary is the kernel, never the text of a command.
//! 5. The host never opens by path what a cell has written; the lower tier's sweeper removes by name.
//! 6. Nothing of the server's environment, descriptors or secrets reaches a cell.
//! 7. `unsafe` lives in `sys`, and in `helpers`, which have no standard library.
//! 8. A reply calls measured only what was measured, and probed only what was probed.
//!
//! # Glossary
//!
//! - **call**: what a caller asks for, validated. **job**: what of it goes to the supervisor.
//! - **policy**, **rule**: who may call what. **grant**, **denial**: its two answers.
//! - **profile**: how a cell is confined. **floor**: what no profile lowers. **limits**: a cell's numbers.
//! - **tier**: which set of mechanisms holds a cell.
//! - **supervisor**: the process that makes cells. **template**: the root that cells of one key share.
//! - **plan**, **design**: all that is computed before a cell is cloned.
//! - **cell**: namespaces and processes of one call. **init**: its pid 1. **payload**: the program's process.
//!   **shelter**: pid 2, whose memory the payload has until it execs.
//! - **enter**: the steps between clone and exec. **pool**: cells built before there is a job.
//! - **workspace**: what stands at `/workspace`: fresh, or a granted directory. **session**: a cell that outlives a call.
//! - **granted socket**: a Unix socket of the host that cells of a profile may connect to.
//! - **capture**: output as it was kept. **spool**: where more of it may be kept. **outcome**: how a call ended.
//! - **receipt**: what protected it: measured, probed, configured.

#![deny(unreachable_pub)]

pub mod commands;
