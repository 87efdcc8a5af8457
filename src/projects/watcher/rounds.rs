//! Rounds: after a change, sets up the watches again, reads the project, and reports what differs.
//!
//! A change during a round is handled in the next one, as watches are set up before files are read.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;
use serde_json::{Map, Value};

use cell::tied;

use super::content::{self, Content};
use super::reports::{FRAME_BYTES, PATH_BYTES, WATCHED_FILES, WatchOrder, WatchReport, framed};
use super::watches::{Touched, Watches};
use crate::{Project, ProjectDirectory, ProjectError};

/// Time without a change after which a round begins.
const QUIET: Duration = Duration::from_millis(100);
/// Maximum time after the first change until a round begins.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Pause after a round or a check for events, as a multiple of its duration: at most one fifth of a
/// processor is used, however much changes.
const PAUSE_FACTOR: u32 = 4;
/// Minimum time between two rounds.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum time between two checks for events, as files outside the lists may change continuously.
const MIN_EVENT_INTERVAL: Duration = Duration::from_millis(50);
/// Time between rounds if changes are not notified, or the operator disabled watching files for
/// clients.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum size of an order in bytes.
const MAX_ORDER_BYTES: usize = 8 << 20;

/// How changes are noticed.
#[derive(Debug)]
pub(crate) enum Notices {
    /// An inotify(7) queue.
    Queue(OwnedFd),
    /// Only by polling, for this reason.
    None(String),
}

/// The project to watch.
#[derive(Debug)]
pub struct WatcherSpec {
    pub directory: ProjectDirectory,
    /// Lists that its `register.sh` produced.
    pub lists: Option<Map<String, Value>>,
    /// The project as main has read it.
    pub known: Project,
}

/// A project that is watched.
#[derive(Debug)]
pub(crate) struct Rounds {
    directory: ProjectDirectory,
    lists: Option<Map<String, Value>>,
    /// The project as last reported.
    known: Project,
    /// The last report that the project could not be read, if that is its state.
    unread: Option<WatchReport>,
    files: BTreeMap<String, Content>,
    notices: Notices,
    watches: Watches,
    /// True if folders are still watched for files that no order names any more.
    is_stale: bool,
    /// Bytes of an incomplete order.
    incoming: Vec<u8>,
}

/// Changes that no round has handled yet.
#[derive(Debug)]
struct Pending {
    touched: Touched,
    first: Instant,
    /// Time at which the round begins.
    due: Instant,
}

/// The link was closed, or the other side broke the protocol.
struct Ended;

impl From<Errno> for Ended {
    fn from(_: Errno) -> Self {
        Self
    }
}

impl Rounds {
    pub(crate) fn new(spec: WatcherSpec, notices: Notices) -> Self {
        let WatcherSpec { directory, lists, known } = spec;
        Self {
            directory,
            lists,
            known,
            unread: None,
            files: BTreeMap::default(),
            notices,
            watches: Watches::default(),
            is_stale: false,
            incoming: Vec::new(),
        }
    }

    /// Watches until the link ends.
    pub(crate) fn serve(mut self, link: &OwnedFd) {
        match self.rounds(link) {
            Ok(()) | Err(Ended) => {}
        }
    }

    fn rounds(&mut self, link: &OwnedFd) -> Result<(), Ended> {
        if let Notices::None(reason) = &self.notices {
            send(link, &WatchReport::Polled(reason.clone()))?;
        }
        // The first round finds changes since main read the project.
        let now = Instant::now();
        let mut pending = Some(Pending { touched: Touched::ALL, first: now, due: now });
        let mut rested = now;
        let mut heard = now;
        loop {
            let listens = pending.is_none() && Instant::now() >= heard;
            let due = match (&pending, &self.notices) {
                (Some(changes), _) => Some(changes.due),
                (None, Notices::None(_)) => Some(rested + self.polled()),
                (None, Notices::Queue(_)) => (!listens).then_some(heard),
            };
            // While changes are pending or events were just read, events stay in the queue: the
            // kernel merges equal ones.
            self.wait(link, due, listens)?;
            if pending.is_none() && self.is_stale {
                // Removes stale watches without reading lists.
                let touched = Touched::default();
                let first = Instant::now();
                pending = Some(Pending { touched, first, due: rested });
                continue;
            }
            let now = Instant::now();
            let is_due = due.is_none_or(|due| now >= due);
            // Woken by an order.
            if !listens && !is_due {
                continue;
            }
            let (seen, is_polled) = self.seen(is_due);
            heard = pause_end(now, MIN_EVENT_INTERVAL);
            pending = match pending {
                None if !seen.is_any() => None,
                None => {
                    let due = if is_polled { now } else { rested.max(now + QUIET) };
                    Some(Pending { touched: seen, first: now, due })
                }
                Some(before) => {
                    let touched = before.touched.or(seen);
                    let goes_on = seen.is_any() && !is_polled && now < before.first + MAX_DELAY;
                    let due = if goes_on { rested.max(now + QUIET) } else { rested };
                    Some(Pending { touched, due, ..before })
                }
            };
            if let Some(changes) = pending.take_if(|changes| is_due && changes.due <= now) {
                self.round(link, changes.touched)?;
                rested = pause_end(now, MIN_ROUND_INTERVAL);
            }
        }
    }

    /// Returns the time between rounds if changes are not notified.
    fn polled(&self) -> Duration {
        match self.known.settings.poll_seconds {
            0 => POLL_INTERVAL,
            seconds => Duration::from_secs(seconds),
        }
    }

    /// Returns what may have changed, and true if that was not notified.
    fn seen(&self, is_due: bool) -> (Touched, bool) {
        match &self.notices {
            Notices::Queue(queue) => (
                self.watches.take(queue, self.directory.layout(), |path| leads(&self.files, path)),
                false,
            ),
            Notices::None(_) if is_due => (Touched::ALL, true),
            Notices::None(_) => (Touched::default(), true),
        }
    }

    /// Waits for an order, for an event if `notices` is set, or until `due`.
    fn wait(&mut self, link: &OwnedFd, due: Option<Instant>, notices: bool) -> Result<(), Ended> {
        let timeout = match due {
            None => PollTimeout::NONE,
            Some(due) => {
                let left = due.saturating_duration_since(Instant::now()).as_millis() + 1;
                PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
            }
        };
        let mut watched = vec![PollFd::new(link.as_fd(), PollFlags::POLLIN)];
        if let (Notices::Queue(queue), true) = (&self.notices, notices) {
            watched.push(PollFd::new(queue.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut watched, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is_order = watched.first().is_some_and(|link| link.any().unwrap_or(false));
        if is_order { self.take_orders(link) } else { Ok(()) }
    }

    /// Reads what the link has received, and carries out each complete order.
    fn take_orders(&mut self, link: &OwnedFd) -> Result<(), Ended> {
        let mut buffer = [0; 16 << 10];
        let count = read(link, &mut buffer)?;
        if count == 0 {
            return Err(Ended);
        }
        self.incoming.extend_from_slice(buffer.get(..count).unwrap_or_default());
        loop {
            let Some((length, rest)) = self.incoming.split_first_chunk::<4>() else {
                return Ok(());
            };
            let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Ended)?;
            if length > MAX_ORDER_BYTES {
                return Err(Ended);
            }
            let Some(text) = rest.get(..length) else { return Ok(()) };
            let order: WatchOrder = serde_json::from_slice(text).map_err(|_| Ended)?;
            self.incoming.drain(..length + 4);
            self.obey(link, order)?;
        }
    }

    /// Replaces the watched files. Their content is compared from now on.
    fn obey(&mut self, link: &OwnedFd, order: WatchOrder) -> Result<(), Ended> {
        let mut before = std::mem::take(&mut self.files);
        let mut new = Vec::new();
        let wanted = order.files.into_iter().filter(|(path, _)| path.len() <= PATH_BYTES);
        for (path, since) in wanted.take(WATCHED_FILES) {
            match before.remove(&path) {
                Some(known) => drop(self.files.insert(path, known)),
                None => new.push((path, since)),
            }
        }
        self.files.extend(new.iter().map(|(path, _)| (path.clone(), Content::Absent)));
        self.is_stale |= !before.is_empty();
        self.lead(link, new.iter().map(|(path, _)| path))?;
        let mut updated = Vec::new();
        for (path, since) in new {
            let content = Content::read(&self.directory, &path);
            if content::may_have_changed(&self.directory, &path, since) {
                updated.push(path.clone());
            }
            self.files.insert(path, content);
        }
        send(link, &WatchReport::Ordered(order.number))?;
        self.tell_updated(link, updated)
    }

    fn tell_updated(&self, link: &OwnedFd, paths: Vec<String>) -> Result<(), Ended> {
        if paths.is_empty() { Ok(()) } else { send(link, &WatchReport::Updated(paths)) }
    }

    /// Sets up all watches again. If the kernel allows no more, polls from now on.
    fn lay(&mut self, link: &OwnedFd) -> Result<(), Ended> {
        self.is_stale = false;
        let Notices::Queue(queue) = &self.notices else { return Ok(()) };
        let laid = self.watches.lay(queue, &self.directory, self.files.keys());
        self.laid(link, laid)
    }

    /// Adds watches for these files without reading the tree, as clients may send orders often.
    fn lead<'f>(
        &mut self,
        link: &OwnedFd,
        files: impl Iterator<Item = &'f String>,
    ) -> Result<(), Ended> {
        let Notices::Queue(queue) = &self.notices else { return Ok(()) };
        let laid = self.watches.lead(queue, &self.directory, files);
        self.laid(link, laid)
    }

    fn laid(&mut self, link: &OwnedFd, laid: Result<(), String>) -> Result<(), Ended> {
        let Err(reason) = laid else { return Ok(()) };
        send(link, &WatchReport::Polled(reason.clone()))?;
        self.notices = Notices::None(reason);
        Ok(())
    }

    fn round(&mut self, link: &OwnedFd, touched: Touched) -> Result<(), Ended> {
        self.lay(link)?;
        if touched.lists {
            self.read(link)?;
        }
        let mut updated = Vec::new();
        for (path, known) in &mut self.files {
            let content = Content::read(&self.directory, path);
            if content != *known {
                updated.push(path.clone());
                *known = content;
            }
        }
        self.tell_updated(link, updated)
    }

    /// Reads the project, and reports it if it differs from the last report.
    fn read(&mut self, link: &OwnedFd) -> Result<(), Ended> {
        let report = match self.directory.read(self.lists.clone()) {
            Ok(project) => {
                let project = project.following(&self.known);
                let was_unread = self.unread.take().is_some();
                if project == self.known && !was_unread {
                    return Ok(());
                }
                self.known = project.clone();
                WatchReport::Lists(Box::new(project))
            }
            Err(error) => {
                let reason = error.to_string();
                let report = match &error {
                    // A faulty file in this folder invalidates all lists: `register.json`, and
                    // hooks that cannot be used.
                    ProjectError::Mistake(mistake)
                        if mistake.file.starts_with(&self.directory.layout().server) =>
                    {
                        WatchReport::Broken(reason)
                    }
                    // Other users could replace the scripts that were read.
                    ProjectError::WritableByOthers | ProjectError::ForeignOwner => {
                        WatchReport::Broken(reason)
                    }
                    ProjectError::Mistake(_) | ProjectError::Open(_) => WatchReport::Unread(reason),
                };
                if self.unread.as_ref() == Some(&report) {
                    return Ok(());
                }
                self.unread = Some(report.clone());
                report
            }
        };
        send(link, &report)
    }
}

/// Returns the end of the pause after work that began at `begun` and ends now.
fn pause_end(begun: Instant, min: Duration) -> Instant {
    Instant::now() + (begun.elapsed() * PAUSE_FACTOR).max(min)
}

/// Returns true for a watched file, and for a folder on the way to one.
fn leads(files: &BTreeMap<String, Content>, path: &str) -> bool {
    let is_below = |file: &String| file.strip_prefix(path).is_some_and(|it| it.starts_with('/'));
    files.contains_key(path)
        || files.range(format!("{path}/")..).next().is_some_and(|(file, _)| is_below(file))
}

/// Sends a whole report.
fn send(link: &OwnedFd, report: &WatchReport) -> Result<(), Ended> {
    let frame = framed(report).or_else(|| {
        let reason = format!("its lists are longer than {} M", FRAME_BYTES >> 20);
        framed(&WatchReport::Unread(reason))
    });
    let frame = frame.ok_or(Ended)?;
    Ok(tied::send(link, &frame)?)
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
