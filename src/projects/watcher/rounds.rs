//! Rounds: after a change, sets up the watches again, reads the project, and reports what differs.
//!
//! A change during a round is handled in the next one, as watches are set up before files are read.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{read, write};
use serde_json::{Map, Value};

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
/// Folder in which a faulty file invalidates all lists: `register.json`, and hooks that cannot be
/// used.
const POLICY_FOLDER: &str = "server.d";

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
            Notices::Queue(queue) => {
                (self.watches.take(queue, |path| leads(&self.files, path)), false)
            }
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
                    ProjectError::Mistake(mistake) if mistake.file.starts_with(POLICY_FOLDER) => {
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
    let mut unsent = frame.as_slice();
    while !unsent.is_empty() {
        match write(link, unsent) {
            Ok(written) => unsent = unsent.get(written..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use rustix::fs::inotify;

    use super::*;

    fn queue() -> OwnedFd {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        inotify::init(flags).expect("a queue")
    }

    fn project() -> tempfile::TempDir {
        let project_dir = tempfile::tempdir().expect("a directory");
        for folder in ["", "tools", "tools/a", "resources"] {
            let path = project_dir.path().join(folder);
            fs::create_dir_all(&path).expect("made");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        put(&project_dir, "tools/a/a.sh", "");
        project_dir
    }

    fn put(project_dir: &tempfile::TempDir, path: &str, text: &str) {
        let path = project_dir.path().join(path);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
    }

    /// Watches a project on a thread, unconfined.
    fn watched(project_dir: &tempfile::TempDir, notices: Notices) -> UnixStream {
        let directory = ProjectDirectory::open(project_dir.path()).expect("a directory");
        let known = directory.read(None).expect("a project");
        let rounds = Rounds::new(WatcherSpec { directory, lists: None, known }, notices);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        std::thread::spawn(move || rounds.serve(&OwnedFd::from(theirs)));
        ours
    }

    fn report(link: &mut UnixStream) -> WatchReport {
        let mut length = [0; 4];
        link.read_exact(&mut length).expect("a report in time");
        let mut text = vec![0; usize::try_from(u32::from_le_bytes(length)).expect("a length")];
        link.read_exact(&mut text).expect("the report");
        serde_json::from_slice(&text).expect("a report")
    }

    fn order(number: u64, file: &str, since: u64) -> WatchOrder {
        WatchOrder { number, files: BTreeMap::from([(file.to_owned(), since)]) }
    }

    fn tools(report: WatchReport) -> Vec<String> {
        let WatchReport::Lists(project) = report else { panic!("{report:?}") };
        project.tools.iter().map(|tool| tool.name.clone()).collect()
    }

    #[test]
    fn changes_are_looked_for_where_the_kernel_reports_no_change() {
        let project_dir = project();
        put(&project_dir, "resources/r", "one");
        let mut link = watched(&project_dir, Notices::None("why".to_owned()));
        assert_eq!(report(&mut link), WatchReport::Polled("why".to_owned()));
        let order = order(4, "resources/r", u64::MAX);
        let frame = framed(&order).expect("it is short");
        std::io::Write::write_all(&mut link, &frame).expect("sent");
        assert_eq!(report(&mut link), WatchReport::Ordered(4));
        put(&project_dir, "tools/a/b.sh", "");
        assert_eq!(tools(report(&mut link)), ["a", "b"]);
        put(&project_dir, "resources/r", "two");
        assert_eq!(report(&mut link), WatchReport::Updated(vec!["resources/r".to_owned()]));
    }

    #[test]
    fn a_project_that_cannot_be_read_again_has_text_of_once_and_read_when_it_can_be() {
        let project_dir = project();
        let mut link = watched(&project_dir, Notices::Queue(queue()));
        put(&project_dir, "tools/a/two\nlines.sh", "");
        let first = report(&mut link);
        assert!(
            matches!(&first, WatchReport::Unread(why) if why.contains("line break")),
            "{first:?}"
        );
        put(&project_dir, "tools/a/other.txt", "");
        std::thread::sleep(QUIET * 4);
        fs::rename(
            project_dir.path().join("tools/a/two\nlines.sh"),
            project_dir.path().join("tools/a/two.sh"),
        )
        .expect("renamed");
        assert_eq!(tools(report(&mut link)), ["a", "two"]);
    }

    #[test]
    fn reports_are_apart_however_often_the_lists_change() {
        let project_dir = project();
        let begun = Instant::now();
        let mut link = watched(&project_dir, Notices::Queue(queue()));
        for number in 0..6 {
            put(&project_dir, &format!("tools/a/n{number}.sh"), "");
            assert!(tools(report(&mut link)).contains(&format!("n{number}")));
        }
        // The first change may be in the first round; a busy machine only makes it longer.
        assert!(begun.elapsed() >= MIN_ROUND_INTERVAL * 5, "{:?}", begun.elapsed());
    }

    #[test]
    fn orders_add_watches_and_the_next_round_lifts_others() {
        let project_dir = project();
        for folder in ["one", "two"] {
            fs::create_dir(project_dir.path().join(folder)).expect("made");
            put(&project_dir, &format!("{folder}/f"), "");
        }
        let mut link = watched(&project_dir, Notices::Queue(queue()));
        let mut order = |number: u64, file: &str| {
            let order = order(number, file, u64::MAX);
            let frame = framed(&order).expect("it is short");
            std::io::Write::write_all(&mut link, &frame).expect("sent");
            assert_eq!(report(&mut link), WatchReport::Ordered(number));
        };
        order(1, "one/f");
        order(2, "two/f");
        put(&project_dir, "one/f", "new");
        put(&project_dir, "two/f", "new");
        assert_eq!(report(&mut link), WatchReport::Updated(vec!["two/f".to_owned()]));
    }

    #[test]
    fn a_change_that_came_before_the_order_counts_from_the_time_that_it_names() {
        let project_dir = project();
        let mut link = watched(&project_dir, Notices::Queue(queue()));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = u64::try_from(now.expect("a time").as_nanos()).expect("a time");
        let hour = 3600 * 1_000_000_000;
        let mut report_since = |number: u64, file: &str, since: u64| {
            let frame = framed(&order(number, file, since)).expect("it is short");
            std::io::Write::write_all(&mut link, &frame).expect("sent");
            assert_eq!(report(&mut link), WatchReport::Ordered(number));
            // A report for each file before the next order's.
            let frame = framed(&order(number + 1, "absent", u64::MAX)).expect("it is short");
            std::io::Write::write_all(&mut link, &frame).expect("sent");
            let next = report(&mut link);
            if let WatchReport::Updated(paths) = next {
                assert_eq!(report(&mut link), WatchReport::Ordered(number + 1));
                paths
            } else {
                assert_eq!(next, WatchReport::Ordered(number + 1));
                Vec::new()
            }
        };
        assert_eq!(report_since(1, "tools/a/a.sh", now + hour), Vec::<String>::new());
        assert_eq!(report_since(3, "tools/a/a.sh", now - hour), ["tools/a/a.sh"]);
        assert_eq!(report_since(5, "tools/a/a.sh", u64::MAX), Vec::<String>::new());
        // A file that is gone is recognized by its folder.
        fs::remove_file(project_dir.path().join("tools/a/a.sh")).expect("removed");
        while !matches!(report(&mut link), WatchReport::Lists(_)) {}
        let mut report_since = |number: u64, since: u64| {
            let frame = framed(&order(number, "tools/a/a.sh", since)).expect("it is short");
            std::io::Write::write_all(&mut link, &frame).expect("sent");
            assert_eq!(report(&mut link), WatchReport::Ordered(number));
        };
        report_since(7, now - hour);
        assert_eq!(report(&mut link), WatchReport::Updated(vec!["tools/a/a.sh".to_owned()]));
    }

    #[test]
    fn a_hook_that_cannot_be_trusted_leaves_no_list_to_be_trusted() {
        let project_dir = project();
        let folder = project_dir.path().join("server.d");
        fs::create_dir(&folder).expect("made");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a mode");
        put(&project_dir, "server.d/policy.sh", "");
        let mut link = watched(&project_dir, Notices::Queue(queue()));
        let policy = project_dir.path().join("server.d/policy.sh");
        fs::set_permissions(&policy, fs::Permissions::from_mode(0o664)).expect("a mode");
        let broken = report(&mut link);
        assert!(
            matches!(&broken, WatchReport::Broken(why) if why.contains("policy.sh")),
            "{broken:?}"
        );
        fs::set_permissions(&policy, fs::Permissions::from_mode(0o644)).expect("a mode");
        assert!(matches!(report(&mut link), WatchReport::Lists(_)));
    }

    #[test]
    fn a_script_that_others_could_have_written_leaves_no_list_to_be_trusted() {
        let project_dir = project();
        let mut link = watched(&project_dir, Notices::Queue(queue()));
        let mode = |path: &str, mode: u32| {
            let path = project_dir.path().join(path);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let broken = |report: WatchReport, what: &str| {
            let has_text = |why: &str| why.contains(what);
            assert!(matches!(&report, WatchReport::Broken(why) if has_text(why)), "{report:?}");
        };
        mode("", 0o757);
        broken(report(&mut link), "others than its owner may write");
        mode("", 0o755);
        assert_eq!(tools(report(&mut link)), ["a"]);
        let folder = project_dir.path().join("server.d");
        fs::create_dir(&folder).expect("made");
        mode("server.d", 0o755);
        let register = r#"{"version": 1, "tools": [{"name": "r", "path": "a/a.sh"}]}"#;
        put(&project_dir, "server.d/register.json", register);
        assert_eq!(tools(report(&mut link)), ["r"]);
        for path in ["tools/a/a.sh", "tools/a", "tools"] {
            mode(path, 0o775);
            broken(report(&mut link), "chmod go-w");
            mode(path, 0o755);
            assert_eq!(tools(report(&mut link)), ["r"], "{path}");
        }
    }

    #[test]
    fn events_that_were_lost_are_as_a_change_of_everything() {
        let project_dir = project();
        let directory = ProjectDirectory::open(project_dir.path()).expect("a directory");
        fs::create_dir(project_dir.path().join("data")).expect("made");
        let file = "data/f".to_owned();
        let queue = queue();
        let mut watches = Watches::default();
        watches.lay(&queue, &directory, [&file].into_iter()).expect("laid");
        let is_file = |path: &str| path == file;
        let none = Touched::default();
        assert_eq!(watches.take(&queue, is_file), none);
        // Neither in the lists nor the file; fewer events than the kernel keeps.
        put(&project_dir, "data/other", "");
        assert_eq!(watches.take(&queue, is_file), none);
        put(&project_dir, "data/f", "");
        assert_eq!(watches.take(&queue, is_file), Touched { lists: false, files: true });
        put(&project_dir, "tools/a/b.sh", "");
        assert_eq!(watches.take(&queue, is_file), Touched { lists: true, files: false });
        let kept = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
        let kept: usize = kept.trim().parse().expect("a number");
        // Different names, so that the kernel does not merge the events.
        for number in 0..=kept / 2 {
            let [one, other] =
                ["x", "y"].map(|name| project_dir.path().join(format!("data/{name}{number}")));
            fs::create_dir(&one).expect("made");
            fs::rename(&one, &other).expect("renamed");
        }
        assert_eq!(watches.take(&queue, is_file), Touched::ALL);
        while watches.take(&queue, is_file).is_any() {}
        // A folder that was moved out of the project is no longer watched.
        fs::rename(project_dir.path().join("tools/a"), project_dir.path().join("data/a"))
            .expect("moved");
        assert_eq!(watches.take(&queue, is_file), Touched::ALL);
        watches.lay(&queue, &directory, [&file].into_iter()).expect("laid");
        put(&project_dir, "data/a/c.sh", "");
        assert_eq!(watches.take(&queue, is_file), none);
    }
}
