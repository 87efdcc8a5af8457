//! Tests of the rounds in which a project is read again.

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
    assert!(matches!(&first, WatchReport::Unread(why) if why.contains("line break")), "{first:?}");
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
    assert!(matches!(&broken, WatchReport::Broken(why) if why.contains("policy.sh")), "{broken:?}");
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
    assert_eq!(watches.take(&queue, directory.layout(), is_file), none);
    // Neither in the lists nor the file; fewer events than the kernel keeps.
    put(&project_dir, "data/other", "");
    assert_eq!(watches.take(&queue, directory.layout(), is_file), none);
    put(&project_dir, "data/f", "");
    assert_eq!(
        watches.take(&queue, directory.layout(), is_file),
        Touched { lists: false, files: true }
    );
    put(&project_dir, "tools/a/b.sh", "");
    assert_eq!(
        watches.take(&queue, directory.layout(), is_file),
        Touched { lists: true, files: false }
    );
    let kept = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
    let kept: usize = kept.trim().parse().expect("a number");
    // Different names, so that the kernel does not merge the events.
    for number in 0..=kept / 2 {
        let [one, other] =
            ["x", "y"].map(|name| project_dir.path().join(format!("data/{name}{number}")));
        fs::create_dir(&one).expect("made");
        fs::rename(&one, &other).expect("renamed");
    }
    assert_eq!(watches.take(&queue, directory.layout(), is_file), Touched::ALL);
    while watches.take(&queue, directory.layout(), is_file).is_any() {}
    // A folder that was moved out of the project is no longer watched.
    fs::rename(project_dir.path().join("tools/a"), project_dir.path().join("data/a"))
        .expect("moved");
    assert_eq!(watches.take(&queue, directory.layout(), is_file), Touched::ALL);
    watches.lay(&queue, &directory, [&file].into_iter()).expect("laid");
    put(&project_dir, "data/a/c.sh", "");
    assert_eq!(watches.take(&queue, directory.layout(), is_file), none);
}
