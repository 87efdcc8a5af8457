//! Rounds: after a change the watches are laid anew, the project is read, and what differs is told.
//!
//! A change that comes during a round is seen in the next one: watches are laid before anything is read.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{read, write};
use project::{
    FRAME_BYTES, PATH_BYTES, Project, ProjectDirectory, ProjectError, WATCHED_FILES, WatchOrder,
    WatchReport, framed,
};
use serde_json::{Map, Value};

use crate::content::{self, Content};
use crate::start::WatcherSpec;
use crate::watches::{Touched, Watches};

/// Time without a change after which a round begins.
const QUIET: Duration = Duration::from_millis(100);
/// Time after which a round begins though changes go on.
const LONGEST: Duration = Duration::from_secs(1);
/// Rest after a round or a look at notices, in times of its length: however much changes, four fifths of a processor are
/// left alone.
const REST: u32 = 4;
/// Time between two rounds at least, however short they are.
const APART: Duration = Duration::from_millis(250);
/// Time between two looks at notices at least: files that are in no list can change for ever.
const UNHEARD: Duration = Duration::from_millis(50);
/// Time between rounds where nothing tells of changes, and where the operator has files not watched for clients.
const POLLED: Duration = Duration::from_secs(2);
/// Bytes of the longest order.
const ORDER_BYTES: usize = 8 << 20;
/// Folder of the files whose mistakes leave no list to be trusted: `register.json`, and hooks that cannot be used.
const DECIDES: &str = "server.d";

/// Source of notices of changes.
#[derive(Debug)]
pub(crate) enum Notices {
    /// Queue of inotify(7).
    Queue(OwnedFd),
    /// There are none, for this reason.
    None(String),
}

/// A project that is watched.
#[derive(Debug)]
pub(crate) struct Rounds {
    directory: ProjectDirectory,
    lists: Option<Map<String, Value>>,
    /// The project as it was told.
    known: Project,
    /// Reason why it could not be read again, as it was told.
    unread: Option<WatchReport>,
    files: BTreeMap<String, Content>,
    notices: Notices,
    watches: Watches,
    /// True if folders are watched for files that no order names any more.
    is_stale: bool,
    /// Bytes of an order that is not whole yet.
    incoming: Vec<u8>,
}

/// Changes that no round has seen yet.
#[derive(Debug)]
struct Pending {
    touched: Touched,
    first: Instant,
    /// Time of the round.
    due: Instant,
}

/// The link has ended, or the other side breaks its rules.
struct Ended;

impl From<Errno> for Ended {
    fn from(_: Errno) -> Self {
        Self
    }
}

impl Rounds {
    pub(crate) fn new(spec: WatcherSpec, notices: Notices) -> Self {
        let WatcherSpec { directory, lists, known } = spec;
        let (files, watches) = Default::default();
        let (unread, is_stale, incoming) = (None, false, Vec::new());
        Self { directory, lists, known, unread, files, notices, watches, is_stale, incoming }
    }

    /// Watches until the link ends.
    pub(crate) fn serve(mut self, link: &OwnedFd) {
        match self.rounds(link) {
            Ok(()) | Err(Ended) => {}
        }
    }

    fn rounds(&mut self, link: &OwnedFd) -> Result<(), Ended> {
        if let Notices::None(why) = &self.notices {
            tell(link, &WatchReport::Polled(why.clone()))?;
        }
        // Of changes since main has read it.
        let now = Instant::now();
        let mut pending = Some(Pending { touched: Touched::ALL, first: now, due: now });
        let (mut rested, mut heard) = (now, now);
        loop {
            let listens = pending.is_none() && Instant::now() >= heard;
            let due = match (&pending, &self.notices) {
                (Some(changes), _) => Some(changes.due),
                (None, Notices::None(_)) => Some(rested + self.polled()),
                (None, Notices::Queue(_)) => (!listens).then_some(heard),
            };
            // While changes are pending, or were looked for just now, notices are left where they are: the kernel joins
            // equal ones.
            self.wait(link, due, listens)?;
            if pending.is_none() && self.is_stale {
                // Lifts them, and reads no list.
                let (touched, first) = (Touched::default(), Instant::now());
                pending = Some(Pending { touched, first, due: rested });
                continue;
            }
            let now = Instant::now();
            let is_due = due.is_none_or(|due| now >= due);
            // An order came.
            if !listens && !is_due {
                continue;
            }
            let (seen, is_polled) = self.seen(is_due);
            heard = rest(now, UNHEARD);
            pending = match pending {
                None if !seen.is_any() => None,
                None => {
                    let due = if is_polled { now } else { rested.max(now + QUIET) };
                    Some(Pending { touched: seen, first: now, due })
                }
                Some(before) => {
                    let touched = before.touched.or(seen);
                    let goes_on = seen.is_any() && !is_polled && now < before.first + LONGEST;
                    let due = if goes_on { rested.max(now + QUIET) } else { rested };
                    Some(Pending { touched, due, ..before })
                }
            };
            if let Some(changes) = pending.take_if(|changes| is_due && changes.due <= now) {
                self.round(link, changes.touched)?;
                rested = rest(now, APART);
            }
        }
    }

    /// Returns the time between rounds where nothing tells of changes.
    fn polled(&self) -> Duration {
        match self.known.settings.poll_seconds {
            0 => POLLED,
            seconds => Duration::from_secs(seconds),
        }
    }

    /// Returns what may have changed, and true if nothing told of it.
    fn seen(&self, is_due: bool) -> (Touched, bool) {
        match &self.notices {
            Notices::Queue(queue) => {
                (self.watches.take(queue, |path| leads(&self.files, path)), false)
            }
            Notices::None(_) if is_due => (Touched::ALL, true),
            Notices::None(_) => (Touched::default(), true),
        }
    }

    /// Waits for an order, for a notice where one counts, or until `due`.
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

    /// Reads what has come on the link, and obeys each whole order.
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
            if length > ORDER_BYTES {
                return Err(Ended);
            }
            let Some(text) = rest.get(..length) else { return Ok(()) };
            let order: WatchOrder = serde_json::from_slice(text).map_err(|_| Ended)?;
            self.incoming.drain(..length + 4);
            self.obey(link, order)?;
        }
    }

    /// Watches other files than before. Their content counts from here on.
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
            let content = Content::of(&self.directory, &path);
            if content::may_have_changed(&self.directory, &path, since) {
                updated.push(path.clone());
            }
            self.files.insert(path, content);
        }
        tell(link, &WatchReport::Ordered(order.number))?;
        self.tell_updated(link, updated)
    }

    fn tell_updated(&self, link: &OwnedFd, paths: Vec<String>) -> Result<(), Ended> {
        if paths.is_empty() { Ok(()) } else { tell(link, &WatchReport::Updated(paths)) }
    }

    /// Lays the watches anew. Where the kernel takes no more, changes are looked for from then on.
    fn lay(&mut self, link: &OwnedFd) -> Result<(), Ended> {
        self.is_stale = false;
        let Notices::Queue(queue) = &self.notices else { return Ok(()) };
        let laid = self.watches.lay(queue, &self.directory, self.files.keys());
        self.laid(link, laid)
    }

    /// Adds watches for these files. Orders come as often as clients like, and the tree is not read for one.
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
        let Err(why) = laid else { return Ok(()) };
        tell(link, &WatchReport::Polled(why.clone()))?;
        self.notices = Notices::None(why);
        Ok(())
    }

    fn round(&mut self, link: &OwnedFd, touched: Touched) -> Result<(), Ended> {
        self.lay(link)?;
        if touched.lists {
            self.read(link)?;
        }
        let mut updated = Vec::new();
        for (path, known) in &mut self.files {
            let content = Content::of(&self.directory, path);
            if content != *known {
                updated.push(path.clone());
                *known = content;
            }
        }
        self.tell_updated(link, updated)
    }

    /// Reads the project, and tells what differs from what was told.
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
                let why = error.to_string();
                let report = match &error {
                    ProjectError::Mistake(mistake) if mistake.file.starts_with(DECIDES) => {
                        WatchReport::Broken(why)
                    }
                    // Others could put scripts of theirs in the place of those that were read.
                    ProjectError::WritableByOthers | ProjectError::ForeignOwner => {
                        WatchReport::Broken(why)
                    }
                    ProjectError::Mistake(_) | ProjectError::Open(_) => WatchReport::Unread(why),
                };
                if self.unread.as_ref() == Some(&report) {
                    return Ok(());
                }
                self.unread = Some(report.clone());
                report
            }
        };
        tell(link, &report)
    }
}

/// Returns the end of the rest after what began at `begun` and is done now.
fn rest(begun: Instant, least: Duration) -> Instant {
    Instant::now() + (begun.elapsed() * REST).max(least)
}

/// Returns true for a file that is watched, and for a folder on the way to one.
fn leads(files: &BTreeMap<String, Content>, path: &str) -> bool {
    let is_below = |file: &String| file.strip_prefix(path).is_some_and(|it| it.starts_with('/'));
    files.contains_key(path)
        || files.range(format!("{path}/")..).next().is_some_and(|(file, _)| is_below(file))
}

/// Sends a report, whole.
fn tell(link: &OwnedFd, report: &WatchReport) -> Result<(), Ended> {
    let frame = framed(report).or_else(|| {
        let why = format!("its lists are longer than {} M", FRAME_BYTES >> 20);
        framed(&WatchReport::Unread(why))
    });
    let frame = frame.ok_or(Ended)?;
    let mut rest = frame.as_slice();
    while !rest.is_empty() {
        match write(link, rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
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
        let held = tempfile::tempdir().expect("a directory");
        for folder in ["", "tools", "tools/a", "resources"] {
            let place = held.path().join(folder);
            fs::create_dir_all(&place).expect("made");
            fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        put(&held, "tools/a/a.sh", "");
        held
    }

    fn put(held: &tempfile::TempDir, path: &str, text: &str) {
        let place = held.path().join(path);
        fs::write(&place, text).expect("written");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o644)).expect("a mode");
    }

    /// Watches a project in a thread, unconfined.
    fn watched(held: &tempfile::TempDir, notices: Notices) -> UnixStream {
        let directory = ProjectDirectory::open(held.path()).expect("a directory");
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
    fn changes_are_looked_for_where_the_kernel_tells_of_none() {
        let held = project();
        put(&held, "resources/r", "one");
        let mut link = watched(&held, Notices::None("why".to_owned()));
        assert_eq!(report(&mut link), WatchReport::Polled("why".to_owned()));
        let order = order(4, "resources/r", u64::MAX);
        let frame = framed(&order).expect("it is short");
        std::io::Write::write_all(&mut link, &frame).expect("sent");
        assert_eq!(report(&mut link), WatchReport::Ordered(4));
        put(&held, "tools/a/b.sh", "");
        assert_eq!(tools(report(&mut link)), ["a", "b"]);
        put(&held, "resources/r", "two");
        assert_eq!(report(&mut link), WatchReport::Updated(vec!["resources/r".to_owned()]));
    }

    #[test]
    fn a_project_that_cannot_be_read_again_is_told_of_once_and_read_when_it_can_be() {
        let held = project();
        let mut link = watched(&held, Notices::Queue(queue()));
        put(&held, "tools/a/two\nlines.sh", "");
        let first = report(&mut link);
        assert!(
            matches!(&first, WatchReport::Unread(why) if why.contains("line break")),
            "{first:?}"
        );
        put(&held, "tools/a/other.txt", "");
        std::thread::sleep(QUIET * 4);
        fs::rename(held.path().join("tools/a/two\nlines.sh"), held.path().join("tools/a/two.sh"))
            .expect("renamed");
        assert_eq!(tools(report(&mut link)), ["a", "two"]);
    }

    #[test]
    fn reports_are_apart_however_often_the_lists_change() {
        let held = project();
        let begun = Instant::now();
        let mut link = watched(&held, Notices::Queue(queue()));
        for number in 0..6 {
            put(&held, &format!("tools/a/n{number}.sh"), "");
            assert!(tools(report(&mut link)).contains(&format!("n{number}")));
        }
        // The first change may be in the first round; a busy machine makes it longer only.
        assert!(begun.elapsed() >= APART * 5, "{:?}", begun.elapsed());
    }

    #[test]
    fn orders_add_watches_and_the_next_round_lifts_others() {
        let held = project();
        for folder in ["one", "two"] {
            fs::create_dir(held.path().join(folder)).expect("made");
            put(&held, &format!("{folder}/f"), "");
        }
        let mut link = watched(&held, Notices::Queue(queue()));
        let mut order = |number: u64, file: &str| {
            let order = order(number, file, u64::MAX);
            let frame = framed(&order).expect("it is short");
            std::io::Write::write_all(&mut link, &frame).expect("sent");
            assert_eq!(report(&mut link), WatchReport::Ordered(number));
        };
        order(1, "one/f");
        order(2, "two/f");
        put(&held, "one/f", "new");
        put(&held, "two/f", "new");
        assert_eq!(report(&mut link), WatchReport::Updated(vec!["two/f".to_owned()]));
    }

    #[test]
    fn a_change_that_came_before_the_order_counts_from_the_time_that_it_names() {
        let held = project();
        let mut link = watched(&held, Notices::Queue(queue()));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = u64::try_from(now.expect("a time").as_nanos()).expect("a time");
        let hour = 3600 * 1_000_000_000;
        let mut told = |number: u64, file: &str, since: u64| {
            let frame = framed(&order(number, file, since)).expect("it is short");
            std::io::Write::write_all(&mut link, &frame).expect("sent");
            assert_eq!(report(&mut link), WatchReport::Ordered(number));
            // Each report of a file before the next order's.
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
        assert_eq!(told(1, "tools/a/a.sh", now + hour), Vec::<String>::new());
        assert_eq!(told(3, "tools/a/a.sh", now - hour), ["tools/a/a.sh"]);
        assert_eq!(told(5, "tools/a/a.sh", u64::MAX), Vec::<String>::new());
        // One that is gone is known by its folder.
        fs::remove_file(held.path().join("tools/a/a.sh")).expect("removed");
        while !matches!(report(&mut link), WatchReport::Lists(_)) {}
        let mut told = |number: u64, since: u64| {
            let frame = framed(&order(number, "tools/a/a.sh", since)).expect("it is short");
            std::io::Write::write_all(&mut link, &frame).expect("sent");
            assert_eq!(report(&mut link), WatchReport::Ordered(number));
        };
        told(7, now - hour);
        assert_eq!(report(&mut link), WatchReport::Updated(vec!["tools/a/a.sh".to_owned()]));
    }

    #[test]
    fn a_hook_that_cannot_be_trusted_leaves_no_list_to_be_trusted() {
        let held = project();
        let folder = held.path().join("server.d");
        fs::create_dir(&folder).expect("made");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a mode");
        put(&held, "server.d/policy.sh", "");
        let mut link = watched(&held, Notices::Queue(queue()));
        let policy = held.path().join("server.d/policy.sh");
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
        let held = project();
        let mut link = watched(&held, Notices::Queue(queue()));
        let mode = |path: &str, mode: u32| {
            let place = held.path().join(path);
            fs::set_permissions(place, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let broken = |report: WatchReport, what: &str| {
            let is_told = |why: &str| why.contains(what);
            assert!(matches!(&report, WatchReport::Broken(why) if is_told(why)), "{report:?}");
        };
        mode("", 0o757);
        broken(report(&mut link), "others than its owner may write");
        mode("", 0o755);
        assert_eq!(tools(report(&mut link)), ["a"]);
        let folder = held.path().join("server.d");
        fs::create_dir(&folder).expect("made");
        mode("server.d", 0o755);
        let register = r#"{"version": 1, "tools": [{"name": "r", "path": "a/a.sh"}]}"#;
        put(&held, "server.d/register.json", register);
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
        let held = project();
        let directory = ProjectDirectory::open(held.path()).expect("a directory");
        fs::create_dir(held.path().join("data")).expect("made");
        let file = "data/f".to_owned();
        let (queue, mut watches) = (queue(), Watches::default());
        watches.lay(&queue, &directory, [&file].into_iter()).expect("laid");
        let is_file = |path: &str| path == file;
        let none = Touched::default();
        assert_eq!(watches.take(&queue, is_file), none);
        // Of neither the lists nor the file, and fewer than the kernel keeps.
        put(&held, "data/other", "");
        assert_eq!(watches.take(&queue, is_file), none);
        put(&held, "data/f", "");
        assert_eq!(watches.take(&queue, is_file), Touched { lists: false, files: true });
        put(&held, "tools/a/b.sh", "");
        assert_eq!(watches.take(&queue, is_file), Touched { lists: true, files: false });
        let kept = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
        let kept: usize = kept.trim().parse().expect("a number");
        // Names that differ, so that the kernel joins none.
        for number in 0..=kept / 2 {
            let [one, other] =
                ["x", "y"].map(|name| held.path().join(format!("data/{name}{number}")));
            fs::create_dir(&one).expect("made");
            fs::rename(&one, &other).expect("renamed");
        }
        assert_eq!(watches.take(&queue, is_file), Touched::ALL);
        while watches.take(&queue, is_file).is_any() {}
        // A folder that has left the project is watched no more.
        fs::rename(held.path().join("tools/a"), held.path().join("data/a")).expect("moved");
        assert_eq!(watches.take(&queue, is_file), Touched::ALL);
        watches.lay(&queue, &directory, [&file].into_iter()).expect("laid");
        put(&held, "data/a/c.sh", "");
        assert_eq!(watches.take(&queue, is_file), none);
    }
}
