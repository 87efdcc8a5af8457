//! From settings to a supervisor that runs and a front end that is confined.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::error::CliError;
use super::streams::Streams;
use super::wiring::Settings;
use super::{confine, tier};
use crate::supervisor::{self, Caps, IdRange, Spec};
use audit::Audit;
use model::outcome::in_words;
use sys::signals;

/// How many instances of root share the configured range of host ids.
const INSTANCES: u32 = 64;

/// The front end's end of the link, and the log that calls are recorded in.
#[derive(Debug)]
pub struct Launched {
    pub link: OwnedFd,
    pub audit: Audit,
    pub streams: Streams,
}

/// As [`unrecorded`], for what makes calls on someone's behalf: with the log that is configured.
///
/// # Errors
/// As [`unrecorded`], or the log cannot be used.
pub fn recorded(settings: Settings) -> Result<Launched, CliError> {
    let config = &settings.loaded.config;
    let options = config.audit_file.value.clone().map(|file| audit::Options {
        file,
        max_bytes: config.audit_max_bytes.value,
        keep: config.audit_keep.value,
        on_error: config.audit_on_error.value,
    });
    with(settings, options.as_ref(), None)
}

/// Starts the supervisor, then confines this process. Called while there is one thread; what
/// comes back is the front end's end of the link.
///
/// # Errors
/// Why there is no supervisor, or which wall of the front end could not be put up.
pub fn unrecorded(settings: Settings) -> Result<OwnedFd, CliError> {
    with(settings, None, None).map(|launched| launched.link)
}

/// As [`unrecorded`], with the paths that commands name recorded in `record`.
///
/// # Errors
/// As [`unrecorded`].
pub fn recording_paths(settings: Settings, record: Arc<OwnedFd>) -> Result<OwnedFd, CliError> {
    with(settings, None, Some(record)).map(|launched| launched.link)
}

fn with(
    settings: Settings,
    log: Option<&audit::Options>,
    record: Option<Arc<OwnedFd>>,
) -> Result<Launched, CliError> {
    let config = &settings.loaded.config;
    let spec = Spec {
        profiles: settings.profiles,
        workspaces: settings.workspaces,
        sockets: settings.sockets,
        caps: Caps {
            cells: u16::try_from(config.cells.value).unwrap_or(u16::MAX),
            memory: config.memory.value,
            tmpfs: config.tmpfs.value,
            processes: u64::from(config.processes.value),
            warm: settings.warm,
            sessions: settings.sessions,
            session_idle: config.session_idle.value,
        },
        ids: IdRange { first: config.uid_base.value, count: config.uid_count.value / INSTANCES },
        own_ids: settings.own_ids,
        tier: settings.tier,
        scope: settings.scope,
        record,
        first: settings.first,
    };
    let started = supervisor::start(spec).map_err(|error| {
        let hint = tier::remedy(&error);
        CliError::new(error.to_string()).with_hint(hint)
    })?;
    // A limit of the operator's on files must cost lines of the log, and not this process. After the
    // supervisor is made, whose cells have every signal as usual.
    signals::ignore_file_size_signal()
        .map_err(|errno| CliError::new(format!("signals cannot be set: {errno}")))?;
    // After the supervisor, which must not hold it; before the walls, behind which no path opens.
    let audit = match log {
        Some(options) => Audit::open(options)
            .map_err(|error| CliError::new(format!("the audit log cannot be used: {error}")))?,
        None => Audit::off(),
    };
    let held =
        audit.directory().map_err(|error| CliError::new(format!("audit: {}", in_words(&error))))?;
    let streams = Streams::found();
    confine::confine(held.as_ref().map(AsFd::as_fd))?;
    // It holds the instance's lock and must live as long as this process.
    std::mem::forget(started.held);
    Ok(Launched { link: started.link, audit, streams })
}
