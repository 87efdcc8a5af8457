//! Host directories that a profile shows: their files can be used, and no process can be reached through them.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::Server;
use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Finished, For, Live, Need, children, claim, equal, holds,
    kill, mode, patience, proc_file,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

pub const CLAIMS: &[Claim] = &[
    claim("a_socket_or_fifo_in_a_profile_path_is_unreachable", no_listener).needs(&[Need::Python]),
    claim("nor_does_one_in_usr_local", local).only(For::Root).needs(&[Need::Python]),
    claim("a_watch_there_does_not_see_the_host", watch).needs(&[Need::Python]),
    claim("programs_libraries_and_modules_there_work", programs).needs(&[Need::Python]),
    claim("it_is_one_filesystem_in_which_nothing_can_be_made", filesystem),
    claim("its_path_may_have_any_characters_and_is_not_shown", characters),
    claim("a_socket_that_is_itself_the_path_is_refused", itself),
    claim("where_mounts_lie_below_init_keeps_sockets_out", below)
        .only(For::Root)
        .needs(&[Need::Python, Need::Unshare]),
    claim("a_call_without_traffic_needs_no_gateway", silent),
];

/// A directory with a profile `tools` that shows it at `/tools`.
struct Shown {
    directory: PathBuf,
    config: String,
}

impl Shown {
    fn new(caller: &Caller) -> Result<Self, Failed> {
        Self::named(caller, "shown")
    }

    fn named(caller: &Caller, name: &str) -> Result<Self, Failed> {
        let directory = caller.directory(name)?;
        mode(&directory, 0o777)?;
        let config = configured(caller, &directory)?;
        Ok(Self { directory, config })
    }

    fn command(&self, caller: &Caller, argv: &[&str]) -> Command {
        let options = ["--config", &self.config, "run", "--profile", "tools", "--"];
        caller.cofferdam(&[&options, argv].concat())
    }

    fn run(&self, caller: &Caller, argv: &[&str]) -> Result<Finished, Failed> {
        Finished::run(self.command(caller, argv), patience())
    }

    fn python(&self, caller: &Caller, script: &str) -> Result<Finished, Failed> {
        self.run(caller, &["/usr/bin/python3", "-c", script])
    }
}

fn configured(caller: &Caller, path: &Path) -> Result<String, Failed> {
    caller.directory("config")?;
    caller.directory("config/sandbox-profiles")?;
    let profile = format!(
        "schema = 1\nname = \"tools\"\nextends = \"bash\"\ndescription = \"tools\"\n\n\
         [[path]]\nhost = {:?}\ncell = \"/tools\"\nwhy = \"tools\"\n",
        path.display().to_string()
    );
    caller.file("config/sandbox-profiles/tools.toml", &profile)?;
    Ok(caller.home.join("config").display().to_string())
}

/// Sockets and a FIFO of the host in a directory, which everybody may use.
struct Host {
    listener: UnixListener,
    datagrams: UnixDatagram,
    fifo: std::fs::File,
}

impl Host {
    fn new(directory: &Path) -> Result<Self, Failed> {
        let at = |name| directory.join(name);
        let listener = UnixListener::bind(at("stream"))?;
        listener.set_nonblocking(true)?;
        let datagrams = UnixDatagram::bind(at("datagrams"))?;
        datagrams.set_nonblocking(true)?;
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::empty())?;
        ["stream", "datagrams", "fifo"].iter().try_for_each(|name| mode(&at(name), 0o777))?;
        let mut options = std::fs::File::options();
        let fifo = options.read(true).custom_flags(libc::O_NONBLOCK).open(at("fifo"))?;
        Ok(Self { listener, datagrams, fifo })
    }

    /// How many connections, datagrams and bytes have come.
    fn met(&mut self) -> [usize; 3] {
        let connections = std::iter::from_fn(|| self.listener.accept().ok()).count();
        let mut buffer = [0; 16];
        let datagrams = std::iter::from_fn(|| self.datagrams.recv(&mut buffer).ok()).count();
        let mut bytes = [0; 16];
        [connections, datagrams, self.fifo.read(&mut bytes).unwrap_or(0)]
    }
}

/// Tries each way to connect to a listener below `base`.
fn ways(base: &str) -> String {
    format!(
        "{CALLS}
base = {base:?}
def unix(kind): return socket.socket(socket.AF_UNIX, kind)
def fifo():
    held = os.open(base + '/fifo', os.O_WRONLY | os.O_NONBLOCK)
    os.write(held, b'x')
print(tried(lambda: unix(socket.SOCK_STREAM).connect(base + '/stream')))
print(tried(lambda: unix(socket.SOCK_DGRAM).connect(base + '/datagrams')))
print(tried(lambda: unix(socket.SOCK_DGRAM).sendto(b'x', base + '/datagrams')))
os.chdir(base)
print(tried(lambda: unix(socket.SOCK_STREAM).connect('./stream')))
held = os.open('stream', os.O_PATH)
print(tried(lambda: unix(socket.SOCK_STREAM).connect(f'/proc/self/fd/{{held}}')))
os.symlink(base + '/stream', '/tmp/link-' + str(os.getpid()))
print(tried(lambda: unix(socket.SOCK_STREAM).connect('/tmp/link-' + str(os.getpid()))))
os.unlink('/tmp/link-' + str(os.getpid()))
print(tried(fifo))
"
    )
}

const REFUSED: &str = "ECONNREFUSED\nECONNREFUSED\nECONNREFUSED\nECONNREFUSED\nECONNREFUSED\n\
    ECONNREFUSED\nEACCES\n";

fn no_listener(caller: &Caller) -> Check {
    let shown = Shown::new(caller)?;
    let mut host = Host::new(&shown.directory)?;
    let outside = caller.python_outside(&ways(&shown.directory.display().to_string()))?;
    equal(&outside.stderr, outside.stdout.as_str(), "ok\n".repeat(7).as_str())?;
    equal("met by the control", host.met(), [4, 1, 1])?;
    let output = shown.python(caller, &ways("/tools"))?;
    equal(&output.stderr, output.stdout.as_str(), REFUSED)?;
    equal("met", host.met(), [0; 3])
}

/// A directory in `/usr/local`, removed on drop.
fn local(caller: &Caller) -> Check {
    let directory = tempfile::Builder::new().prefix("cofferdam-test-").tempdir_in("/usr/local")?;
    mode(directory.path(), 0o755)?;
    let mut host = Host::new(directory.path())?;
    let script = ways(&directory.path().display().to_string());
    equal("outside", caller.python_outside(&script)?.stdout, "ok\n".repeat(7))?;
    equal("met by the control", host.met(), [4, 1, 1])?;
    let output = caller.python(&script)?;
    equal(&output.stderr, output.stdout.as_str(), REFUSED)?;
    equal("met", host.met(), [0; 3])
}

/// Watches a directory for two seconds, and prints whether anything was seen.
fn watching(base: &str) -> String {
    format!(
        "{CALLS}
import time
held = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(held, b'{base}', 0xfff)
print('ready', flush=True)
time.sleep(2)
def seen(): return os.read(held, 4096) != b''
print(tried(seen))
"
    )
}

fn watch(caller: &Caller) -> Check {
    let shown = Shown::new(caller)?;
    let script = watching("/tools");
    let base = shown.directory.display().to_string();
    let mut control = caller.outside("/usr/bin/python3");
    control.args(["-c", &watching(&base)]);
    let cell = shown.command(caller, &["/usr/bin/python3", "-c", &script]);
    for (command, seen) in [(cell, "EAGAIN\n"), (control, "ok\n")] {
        let live = Live::start(command)?;
        for _ in 0..5 {
            let path = shown.directory.join("changing");
            std::fs::write(&path, "text")?;
            std::fs::read(&path)?;
            std::fs::remove_file(&path)?;
        }
        let output = live.finish(patience())?;
        equal(&output.stderr, output.stdout.as_str(), seen)?;
    }
    Ok(())
}

fn programs(caller: &Caller) -> Check {
    let shown = Shown::new(caller)?;
    let copy = |from: &str, to: &str| std::fs::copy(from, shown.directory.join(to));
    copy("/usr/bin/echo", "echo")?;
    let libm = caller.python_outside(
        "import ctypes, os\nctypes.CDLL('libm.so.6')\n\
         print([line.split()[-1] for line in open('/proc/self/maps') if 'libm' in line][0])",
    )?;
    copy(libm.trimmed(), "libm.so.6")?;
    std::fs::create_dir(shown.directory.join("package"))?;
    std::fs::write(shown.directory.join("package/__init__.py"), "word = 'imported'\n")?;
    std::fs::write(shown.directory.join("script"), "#!/tools/echo a\n")?;
    mode(&shown.directory.join("script"), 0o755)?;
    let script = "import ctypes, subprocess, sys\n\
        sys.path.insert(0, '/tools')\n\
        import package; print(package.word)\n\
        print(ctypes.CDLL('/tools/libm.so.6') is not None)\n\
        print(any('/tools/libm.so.6' in line for line in open('/proc/self/maps')))\n\
        print(subprocess.run(['/tools/echo', 'ran'], capture_output=True).stdout)\n\
        print(subprocess.run(['/tools/script'], capture_output=True).stdout)";
    let output = shown.python(caller, script)?;
    let expected = "imported\nTrue\nTrue\nb'ran\\n'\nb'a /tools/script\\n'\n";
    equal(&output.stderr, output.stdout.as_str(), expected)
}

fn filesystem(caller: &Caller) -> Check {
    let shown = Shown::new(caller)?;
    std::fs::create_dir_all(shown.directory.join("one/two"))?;
    std::fs::write(shown.directory.join("one/two/file"), "text\n")?;
    mode(&shown.directory.join("one/two/file"), 0o666)?;
    let output = shown.run(
        caller,
        &[
            "bash",
            "-c",
            "find /tools -xdev | wc -l; stat -c %d /tools /tools/one/two/file | uniq | wc -l
             cat /tools/one/two/file
             for try in 'echo x > /tools/one/two/file' 'touch /tools/new' 'rm /tools/one/two/file'; do
                 bash -c \"$try\" 2>&1 | grep -o '[A-Z][a-z-]* [a-z -]*$'
             done",
        ],
    )?;
    let refused = "Read-only file system\n".repeat(3);
    equal(&output.stderr, output.stdout, format!("4\n1\ntext\n{refused}"))?;
    equal("the host's", std::fs::read(shown.directory.join("one/two/file"))?, b"text\n")
}

fn characters(caller: &Caller) -> Check {
    let shown = Shown::named(caller, "a,b:c\\d e")?;
    std::fs::write(shown.directory.join("file"), "text\n")?;
    let output = shown.run(
        caller,
        &["bash", "-c", "cat /tools/file; grep -c ' /tools .*- overlay ' /proc/self/mountinfo; grep -c 'a,b' /proc/self/mountinfo"],
    )?;
    equal(&output.stderr, output.stdout.as_str(), "text\n1\n0\n")
}

fn itself(caller: &Caller) -> Check {
    let path = caller.home.join("socket");
    let listener = UnixListener::bind(&path)?;
    holds("a socket", &path, path.metadata()?.file_type().is_socket())?;
    let config = configured(caller, &path)?;
    let options = ["--config", &config, "run", "--profile", "tools", "--", "echo", "ran"];
    let output = Finished::run(caller.cofferdam(&options), patience())?;
    equal("refused", (output.code, output.stdout.as_str()), (125, ""))?;
    let reason = format!("`{}` is neither a directory nor a regular file", path.display());
    holds("why", &output.stderr, output.stderr.contains(&reason))?;
    holds(
        "no listener was reached",
        listener.as_raw_fd(),
        listener.set_nonblocking(true).is_ok() && listener.accept().is_err(),
    )
}

/// A directory with a mount below cannot be an overlay.
fn below(caller: &Caller) -> Check {
    let shown = Shown::new(caller)?;
    let mut host = Host::new(&shown.directory)?;
    std::fs::create_dir(shown.directory.join("below"))?;
    let script = caller.file(
        "script",
        &format!(
            "{CALLS}
print(open('/tools/below/file').read())
print(tried(lambda: socket.socket(socket.AF_UNIX).connect('/tools/stream')))
print(tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
own = socket.socket(socket.AF_UNIX); own.bind('/tmp/own'); own.listen()
print(tried(lambda: socket.socket(socket.AF_UNIX).connect('/tmp/own')))
"
        ),
    )?;
    let below = shown.directory.join("below").display().to_string();
    let mask = format!("mount -t tmpfs none {below} && echo -n mounted > {below}/file");
    let line = format!(
        "{} --config {} run --profile tools -- /usr/bin/python3 -c \"$(cat {})\"",
        caller.binary().display(),
        shown.config,
        script.display()
    );
    let mut command = caller.outside("unshare");
    command.args(["--mount", "bash", "-c", &format!("{mask}; {line}")]);
    let output = Finished::run(command, patience())?;
    equal(&output.stderr, output.stdout.as_str(), "mounted\nEPERM\nEPERM\nok\n")?;
    equal("met", host.met(), [0; 3])
}

fn silent(caller: &Caller) -> Check {
    let words = ["serve", "--tools", "exec", "--egress", "192.0.2.1:9"];
    let mut server = Server::of(caller.cofferdam(&words));
    let network = |server: &mut Server, command: &str| {
        let result = server.result("bash_exec", json!({ "command": command }));
        let at = |place| result.pointer(place).cloned().unwrap_or_default();
        (at("/isError"), at("/structuredContent/network"))
    };
    equal("before", network(&mut server, "true"), (json!(false), Value::Null))?;
    let is_gateway = |pid: &u32| {
        proc_file(*pid, "cmdline").is_ok_and(|name| name.starts_with(b"cofferdam-gateway"))
    };
    let gateways: Vec<u32> = children(server.child.id()).into_iter().filter(is_gateway).collect();
    let [gateway] = gateways.as_slice() else { return Err(format!("{gateways:?}").into()) };
    kill(*gateway, Signal::SIGSTOP)?;
    let nothing = network(&mut server, "true");
    // The control: the gateway is asked about what was sent, and does not answer.
    let some = network(&mut server, "echo x >/dev/udp/192.0.2.1/9");
    kill(*gateway, Signal::SIGCONT)?;
    equal("nothing was sent", nothing, (json!(false), Value::Null))?;
    let unknown = json!({ "connections": 0, "sent": 0, "received": 0, "incomplete": true });
    equal("something was sent", some, (json!(false), unknown))?;
    equal("code", server.close(), Some(0))
}
