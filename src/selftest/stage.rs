//! Targets of an attack: prepared before it and checked after it, always from outside.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::libc;

use super::corpus::Attack;
use super::remains::{self, Names};
use super::run_result::{Ran, RunEnd};
use super::traces::{contents, gets_hurt, has_datagram, with_argument};
use model::accounts;
use model::profile::{calls, floor};

/// Search path of programs without a sandbox.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// The profile of [`Stage::config`].
const PROFILE: &str = "shows";

/// Names of all placeholders.
const PLACEHOLDERS: [&str; 24] = [
    "abstract",
    "dir",
    "free",
    "grant",
    "hello",
    "hello_tls",
    "key",
    "marker",
    "name",
    "nameless",
    "port",
    "port6",
    "porthex",
    "probe",
    "rooted",
    "secret",
    "sentinel",
    "shm",
    "shows",
    "socket",
    "tmp",
    "udp",
    "unlisted",
    "user",
];

/// Returns true for the name of a placeholder. Lines have other words in braces, which are the
/// shell's.
pub(crate) fn is_placeholder(name: &str) -> bool {
    PLACEHOLDERS.contains(&name)
}

/// Where a line runs, and the values of two placeholders there.
#[derive(Debug, Clone)]
pub struct RunLocation {
    pub helper: String,
    pub tmp: String,
    /// True if `tmp` exists. In a sandbox with a separate `/tmp` it does not.
    pub made: bool,
}

impl RunLocation {
    /// Returns a line that first makes the directory, if it may be missing.
    pub fn entered(&self, line: &str) -> String {
        match !self.made && line.contains("{tmp}") {
            true => format!("mkdir -p {{tmp}} 2>/dev/null; {line}"),
            false => line.to_owned(),
        }
    }
}

/// First part of a line in a cell with egress: proves that its network works, with a host that a
/// rule allows. Connections that are refused later do not end the shell.
const HELLO: &str = "trap '' PIPE; exec 3<>/dev/tcp/web.lab/80; printf 'GET / HTTP/1.1\\r\\nHost: web.lab\\r\\n\\r\\n' >&3; \
    timeout 5 grep -m1 -o hello <&3; exec 3>&-";

/// First part of a line that uses TLS: proves that the same server is reachable by TLS, under the
/// name that a rule allows.
const HELLO_TLS: &str = "trap '' PIPE; exec 3<>/dev/tcp/web.lab/443; printf '\\x16\\x03\\x01\\x00\\x3f\\x01\\x00\\x00\\x3b\\x03\\x03\
    tls-for-web.lab-tls-for-web.lab-\\x00\\x00\\x02\\x13\\x01\\x01\\x00\\x00\\x10\\x00\\x00\\x00\\x0c\\x00\\x0a\
    \\x00\\x00\\x07web.lab' >&3; timeout 5 grep -a -m1 -o hello <&3; exec 3>&-";

/// The targets for one run.
#[derive(Debug)]
pub struct Stage {
    directory: tempfile::TempDir,
    helper: PathBuf,
    /// A directory that only the control may write to.
    pub work: PathBuf,
    /// A directory that attacks on grants get.
    pub grant: PathBuf,
    /// A directory that must not change, with a file that contains the secret.
    pub watched: PathBuf,
    /// Occurs in a file, in the environment and in an argument of the sentinel; it must not be
    /// printed.
    pub secret: String,
    /// Values of the placeholders.
    words: BTreeMap<&'static str, String>,
    sentinel: Option<Child>,
    tcp: Option<TcpListener>,
    tcp_6: Option<TcpListener>,
    udp: Option<UdpSocket>,
    paths: Vec<UnixListener>,
    /// A port on which no process of the host listens, and whether a connection to it succeeded.
    free: Option<(u16, Cell<bool>)>,
    /// A configuration with a profile that shows the granted directory at `/shown`, if a line needs
    /// one.
    config: Option<PathBuf>,
    /// The record of the lab's servers.
    record: PathBuf,
    /// True once a process of the attack was observed to be root of the host.
    rooted: Option<Cell<bool>>,
    before: BTreeMap<PathBuf, Vec<u8>>,
}

impl Stage {
    /// Prepares the targets that the lines of an attack name.
    ///
    /// # Errors
    /// A target cannot be prepared.
    pub fn new(probe: &Attack, helper: &Path) -> std::io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("cofferdam-selftest-").tempdir()?;
        open_to_all(directory.path())?;
        let [work, watched, grant] =
            ["work", "watched", "grant"].map(|name| directory.path().join(name));
        for subdirectory in [&work, &watched, &grant] {
            std::fs::create_dir(subdirectory)?;
            open_to_all(subdirectory)?;
        }
        let secret = random()?;
        std::fs::write(watched.join("secret"), format!("{secret}\n"))?;
        let record = directory.path().join("record");
        let mut stage = Self {
            directory,
            record,
            helper: helper.to_owned(),
            work,
            grant,
            watched,
            secret,
            words: BTreeMap::new(),
            sentinel: None,
            tcp: None,
            tcp_6: None,
            udp: None,
            paths: Vec::new(),
            free: None,
            config: None,
            rooted: None,
            before: BTreeMap::new(),
        };
        let lines = [Some(&probe.run), probe.control_run.as_ref(), probe.first.as_ref()];
        let lines: Vec<&str> =
            lines.into_iter().flatten().chain(&probe.options).map(String::as_str).collect();
        let names = |placeholder: &str| lines.iter().any(|line| line.contains(placeholder));
        let grant = stage.grant.clone();
        stage.add_file_words(&grant);
        if names("/.git") {
            repository(&grant)?;
        }
        if names("{shows}") {
            stage.config = Some(configuration(stage.directory.path(), &grant)?);
            stage.words.insert("{shows}", PROFILE.to_owned());
        }
        stage.add_targets(names)?;
        stage.before = contents(&stage.watched);
        Ok(stage)
    }

    fn add_file_words(&mut self, grant: &Path) {
        let text = |path: &Path| path.display().to_string();
        let name =
            self.directory.path().file_name().map(|name| name.to_string_lossy().into_owned());
        let unique = self.secret.chars().take(8).collect::<String>();
        // Positive, as the kernel shows it, and unlikely to be in use.
        let key = u32::from_str_radix(&unique, 16).unwrap_or(1) >> 1 | 1;
        let words = [
            ("{secret}", text(&self.watched.join("secret"))),
            ("{dir}", text(&self.watched)),
            ("{grant}", text(grant)),
            ("{name}", name.unwrap_or_default()),
            ("{key}", key.to_string()),
            ("{shm}", format!("cofferdam-{unique}")),
            ("{user}", user()),
        ];
        self.words.extend(words);
    }

    /// Uses targets that stand on another machine for the placeholders that they have values for.
    pub(crate) fn use_planted(&mut self, words: BTreeMap<&'static str, String>, secret: &str) {
        self.words.extend(words);
        secret.clone_into(&mut self.secret);
    }

    fn add_targets(&mut self, names: impl Fn(&str) -> bool) -> std::io::Result<()> {
        let mut words = BTreeMap::new();
        if names("{sentinel}") {
            let mut command = Command::new(&self.helper);
            command.args(["sleep", "120", &self.secret]).process_group(0);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let sentinel = command.spawn()?;
            await_command_line(sentinel.id())?;
            words.insert("{sentinel}", sentinel.id().to_string());
            self.sentinel = Some(sentinel);
        }
        if names("{port}") || names("{porthex}") {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            words.insert("{port}", port.to_string());
            words.insert("{porthex}", format!("{port:04X}"));
            self.tcp = Some(listener);
        }
        if names("{port6}") {
            // A machine without IPv6 has no target there.
            let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok();
            let port = listener.as_ref().and_then(|listener| listener.local_addr().ok());
            words.insert("{port6}", port.map_or(9, |address| address.port()).to_string());
            self.tcp_6 = listener.filter(|listener| listener.set_nonblocking(true).is_ok());
        }
        if names("{udp}") {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            words.insert("{udp}", socket.local_addr()?.port().to_string());
            self.udp = Some(socket);
        }
        if names("{free}") {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            words.insert("{free}", port.to_string());
            self.free = Some((port, Cell::new(false)));
        }
        if names("{socket}") || names("{abstract}") {
            self.listen_by_name(&mut words)?;
        }
        if names("{marker}") {
            let unique = self.secret.chars().take(8).collect::<String>();
            words.insert("{marker}", format!("marker-{unique}"));
        }
        if names("{rooted}") {
            let unique = self.secret.chars().take(8).collect::<String>();
            words.insert("{rooted}", format!("rooted-{unique}"));
            self.rooted = Some(Cell::new(false));
        }
        if names("{hello}") {
            words.insert("{hello}", HELLO.to_owned());
        }
        if names("{hello_tls}") {
            words.insert("{hello_tls}", HELLO_TLS.to_owned());
        }
        if names("{unlisted}") {
            words.insert("{unlisted}", unlisted());
        }
        self.words.extend(words);
        Ok(())
    }

    fn listen_by_name(
        &mut self,
        words: &mut BTreeMap<&'static str, String>,
    ) -> std::io::Result<()> {
        let path = self.directory.path().join("grant/socket");
        self.paths.push(UnixListener::bind(&path)?);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
        let name = format!("cofferdam-{}", self.secret.chars().take(8).collect::<String>());
        let address = SocketAddr::from_abstract_name(&name)?;
        self.paths.push(UnixListener::bind_addr(&address)?);
        words.insert("{socket}", path.display().to_string());
        words.insert("{abstract}", name);
        Ok(())
    }

    /// Fills in the placeholders of a line, and replaces calls (`@name`) by their numbers.
    pub fn fill(&self, line: &str, place: &RunLocation) -> String {
        // The flags for a file without a name differ between architectures (open(2)).
        let nameless = format!("0{:o}", libc::O_TMPFILE | libc::O_WRONLY);
        let mut text = line.replace("{probe}", &place.helper).replace("{tmp}", &place.tmp);
        text = text.replace("{nameless}", &nameless);
        for (placeholder, word) in &self.words {
            text = text.replace(placeholder, word);
        }
        let words = text.split(' ').map(|word| match word.strip_prefix('@') {
            Some(name) => calls::number(name).map_or(word.to_owned(), |number| number.to_string()),
            None => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns the configuration for the attack's cell; `None` to use the shipped profiles.
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Returns the file in which the servers of the lab record their visitors.
    pub(crate) fn record(&self) -> &Path {
        &self.record
    }

    fn recorded(&self) -> String {
        // The file does not exist without a lab.
        std::fs::read_to_string(&self.record).unwrap_or_default()
    }

    /// Returns true if the lab has ended by itself, so that its record is complete.
    pub(crate) fn is_recorded_whole(&self) -> bool {
        self.recorded().lines().last() == Some(super::lab::WHOLE)
    }

    /// Returns a string of [`Attack::unreached`] that no server has seen. Only the servers' records
    /// prove that a control reached them, not its output.
    pub(crate) fn unseen<'a>(&self, probe: &'a Attack) -> Option<&'a str> {
        let record = self.recorded();
        let is_unseen = |part: &&String| !record.lines().any(|line| line.contains(part.as_str()));
        probe.unreached.iter().find(is_unseen).map(String::as_str)
    }

    /// Returns the first line of the record that proves a successful attack.
    fn reached(&self, probe: &Attack) -> Option<String> {
        let record = self.recorded();
        let is_hit = |line: &&str| probe.unreached.iter().any(|part| line.contains(part.as_str()));
        record.lines().find(is_hit).map(str::to_owned)
    }

    /// Returns the process group of the sentinel.
    pub(crate) fn sentinel_group(&self) -> Option<i32> {
        i32::try_from(self.sentinel.as_ref()?.id()).ok()
    }

    /// Checks effects that are only visible while the attack runs.
    pub(crate) fn observe(&self) {
        if let Some((port, met)) = &self.free {
            let reached = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
            met.set(met.get() || reached);
        }
        if let (Some(seen), Some(word)) = (&self.rooted, self.words.get("{rooted}")) {
            let is_root = |pid: &i32| {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
                let status = status.unwrap_or_default();
                let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
                ids.is_some_and(|ids| ids.split_whitespace().any(|id| id == "0"))
            };
            seen.set(seen.get() || with_argument(word).iter().any(is_root));
        }
    }

    /// Returns the observed effects on targets, one sentence each.
    pub fn hits(&mut self, probe: &Attack, ran: &Ran) -> Vec<String> {
        let mut hits = Vec::new();
        let mut hit = |is_hit: bool, effect: &str| {
            if is_hit {
                hits.push(effect.to_owned());
            }
        };
        let printed = ran.stdout.contains(&self.secret) || ran.stderr.contains(&self.secret);
        hit(printed, "a secret of the host was printed");
        hit(ran.end == RunEnd::Overdue, "the call did not end in its time");
        let limit = probe.most_bytes.unwrap_or(u64::MAX);
        hit(ran.bytes > limit, "more output came than was allowed");
        hit(self.sentinel.as_mut().is_some_and(gets_hurt), "a process of the host was hurt");
        let is_reached = |accepted: std::io::Result<()>| accepted.is_ok();
        let tcp = [&self.tcp, &self.tcp_6].into_iter().flatten();
        let reached = tcp.map(|listener| listener.accept().map(drop)).any(is_reached);
        hit(reached, "a TCP listener of the host was reached");
        hit(self.udp.as_ref().is_some_and(has_datagram), "a UDP socket of the host was reached");
        let accepted = |listener: &UnixListener| {
            listener.set_nonblocking(true).is_ok() && listener.accept().is_ok()
        };
        hit(self.paths.iter().any(accepted), "a local socket of the host was reached");
        let is_free_port_reached = self.free.as_ref().is_some_and(|(_, met)| met.get());
        hit(is_free_port_reached, "a listener of the program was reached from the host");
        let rooted = self.rooted.as_ref().is_some_and(Cell::get);
        hit(rooted, "a process of it was root of the host");
        hit(contents(&self.watched) != self.before, "files of the host were changed");
        if let Some(line) = self.reached(probe) {
            hit(true, &format!("a server was reached that no rule has: {}", line.trim()));
        }
        hit(self.left_behind(), "System V or POSIX objects were left on the host");
        hit(self.outlived(), "a process outlived the call");
        // Ends other processes that a control has left running.
        remains::end_group(ran.group);
        hits
    }

    /// Removes the targets and everything that an attack has left in them.
    ///
    /// # Errors
    /// A target cannot be removed.
    pub fn clear(self) -> std::io::Result<()> {
        remains::remove_tree(self.directory.path())
    }

    fn left_behind(&self) -> bool {
        let word = |name: &str| self.words.get(name).map(String::as_str).unwrap_or_default();
        remains::objects(&self.helper, Names { key: word("{key}"), shared: word("{shm}") })
    }

    fn outlived(&self) -> bool {
        self.words.get("{marker}").is_some_and(|marker| remains::outlived(marker))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(sentinel) = &mut self.sentinel {
            // Both fail if the attack has ended the sentinel.
            sentinel.kill().unwrap_or_default();
            sentinel.wait().map(drop).unwrap_or_default();
        }
    }
}

fn open_to_all(path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// Makes a configuration with a profile that shows a directory of the host.
fn configuration(parent: &Path, shown: &Path) -> std::io::Result<PathBuf> {
    let config = parent.join("config");
    let profiles = config.join("sandbox-profiles");
    for directory in [&config, &profiles] {
        std::fs::create_dir(directory)?;
        open_to_all(directory)?;
    }
    let text = format!(
        "schema = 1\nname = \"{PROFILE}\"\nextends = \"bash\"\ndescription = \"a directory of the host\"\n\n\
         [[path]]\nhost = {:?}\ncell = \"/shown\"\nwhy = \"sockets of the host are in it\"\n",
        shown.display().to_string()
    );
    let file = profiles.join("shows.toml");
    std::fs::write(&file, text)?;
    // No other user may be able to write to a configuration, whatever the umask is.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
    Ok(config)
}

/// Makes a directory that git accepts as a repository.
fn repository(directory: &Path) -> std::io::Result<()> {
    let git = directory.join(".git");
    for name in ["hooks", "objects", "refs"] {
        std::fs::create_dir_all(git.join(name))?;
    }
    // A hook that is kept among the sources.
    std::fs::create_dir(directory.join("tools"))?;
    std::fs::write(directory.join("tools/hook"), "#!/bin/sh\n")?;
    std::os::unix::fs::symlink("../../tools/hook", git.join("hooks/post-commit"))?;
    std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n")?;
    std::fs::write(git.join("config"), "[core]\n\trepositoryformatversion = 0\n")
}

/// Returns 32 random hexadecimal digits.
pub(crate) fn random() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the name of the user who runs the test.
fn user() -> String {
    accounts::user(nix::unistd::geteuid().as_raw()).unwrap_or_else(|| "nobody".to_owned())
}

/// Returns the numbers of system calls that the profile `bash` does not list, separated by commas.
fn unlisted() -> String {
    let low = 0_u32;
    let high = 600;
    let shipped = config::profile::shipped();
    let profiles = config::profile::Profiles::parse(&shipped, &[]).ok();
    let name = model::job::ProfileName::new("bash");
    let profile = name.and_then(|name| profiles.as_ref()?.get(&name).cloned());
    let listed = profile.map(|profile| profile.calls).unwrap_or_default();
    // The first two are granted by a separate key of profiles. The others are never seen by a
    // filter: the kernel executes them, and answers calls outside of its trampolines with an error
    // or a signal.
    let excluded = ["execve", "execveat", "uprobe", "uretprobe"].into_iter();
    // A success of these does not show whether the kernel executed them.
    let excluded = excluded.chain(floor::without_effect());
    let excluded: Vec<Option<u32>> = excluded.map(calls::number).collect();
    let numbers =
        (low..high).filter(|number| !listed.contains(number) && !excluded.contains(&Some(*number)));
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

/// Waits until a started process has its command line. A start is reported when the program replaces this one, a moment
/// before.
///
/// # Errors
/// It has none after a second.
fn await_command_line(pid: u32) -> std::io::Result<()> {
    let path = format!("/proc/{pid}/cmdline");
    for _ in 0..1000 {
        if !std::fs::read(&path)?.is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(std::io::Error::from(std::io::ErrorKind::TimedOut))
}
