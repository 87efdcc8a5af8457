//! Attacks on what stands outside a cell, of the same uid: each works where nothing holds it.

use std::process::Child;

use super::TIER;
use crate::support::{self, CALLS, Caller, Check, Failed, Finished, Who, equal, holds};

fn run_python(caller: &Caller, script: &str) -> Result<Finished, Failed> {
    caller.run(&["--tier", TIER], &["/usr/bin/python3", "-c", script])
}

/// A process of the caller's, outside of all cells.
struct Sentinel(Child);

impl Sentinel {
    fn start(caller: &Caller) -> Result<Self, Failed> {
        let mut command = caller.outside("sleep");
        Ok(Self(command.arg("86423").spawn()?))
    }

    fn is_alive(&mut self) -> Result<bool, Failed> {
        Ok(self.0.try_wait()?.is_none())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        if self.0.kill().and_then(|()| self.0.wait()).is_err() {
            eprintln!("a sentinel could not be ended");
        }
    }
}

/// Attacks on a file, with one word of output each.
const ON_A_FILE: &str = r#"
path = sys.argv[1] if len(sys.argv) > 1 else PATH
def read(): open(path).read()
def write(): open(path, "a").write("x")
def truncate(): os.truncate(path, 1)
def chmod(): os.chmod(path, 0o777)
def utime(): os.utime(path, (1, 1))
def own(): os.chown(path, -1, os.getgid())
def attribute(): os.setxattr(path, "user.x", b"x")
def got(): os.getxattr(path, "user.x")
def lgot(): os.getxattr(path, "user.x", follow_symlinks=False)
def listed(): os.listxattr(path)
def llisted(): os.listxattr(path, follow_symlinks=False)
def unlink(): os.unlink(path)
def link(): os.link(path, "l")
def rename(): os.rename(path, "r")
def beside(): open(os.path.dirname(path) + "/new", "w")
for attack in (read, write, truncate, chmod, utime, own, attribute, got, lgot, listed, llisted, link, beside, rename):
    print(attack.__name__, tried(attack))
"#;

pub fn files(caller: &Caller) -> Check {
    let file = caller.file("secret", "a secret of the caller's\n")?;
    let before = std::fs::metadata(&file)?;
    let script = format!("{CALLS}\nPATH = {:?}\n{ON_A_FILE}", file.display().to_string());
    let output = run_python(caller, &script)?;
    // Another's file that cannot be read is not linked at all (fs.protected_hardlinks).
    let link = if caller.who == Who::Root { "EPERM" } else { "EXDEV" };
    let expected = format!(
        "read EACCES\nwrite EACCES\ntruncate EACCES\nchmod EPERM\nutime EPERM\nown EPERM\n\
         attribute EPERM\ngot EOPNOTSUPP\nlgot EOPNOTSUPP\nlisted EOPNOTSUPP\n\
         llisted EOPNOTSUPP\nlink {link}\nbeside EACCES\nrename EACCES"
    );
    // Two names of one number.
    let text = output.trimmed().replace("ENOTSUP\n", "EOPNOTSUPP\n");
    equal("in a cell", (output.code, text.as_str()), (0, expected.as_str()))?;
    let after = std::fs::metadata(&file)?;
    let facts = |of: &std::fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        (of.len(), of.mode(), of.mtime(), of.uid(), of.gid(), of.nlink())
    };
    equal("the file", facts(&after), facts(&before))?;
    equal("the directory", std::fs::read_dir(&caller.home)?.count(), 1)?;
    // The control: all of it works outside (except attributes on filesystems that lack them).
    let output = caller.python_outside(&script)?;
    let worked = output.trimmed().replace("EOPNOTSUPP", "ok").replace("ENOTSUP", "ok");
    let all = "read ok\nwrite ok\ntruncate ok\nchmod ok\nutime ok\nown ok\nattribute ok\n\
        got ok\nlgot ok\nlisted ok\nllisted ok\nlink ok\n\
        beside ok\nrename ok";
    equal("outside", worked.as_str(), all)
}

pub fn granted(caller: &Caller) -> Check {
    let directory = caller.directory("models")?;
    let file = directory.join("m");
    std::fs::write(&file, "weights\n")?;
    caller.own(&file)?;
    let path = directory.display().to_string();
    let script = format!("cat {path}/m; echo x > {path}/m; touch {path}/n; ls {path}");
    let output = caller.run(&["--tier", TIER, "--ro", &path], &["bash", "-c", &script])?;
    equal("read and listed", output.stdout.as_str(), "weights\nm\n")?;
    equal("not written", std::fs::read_to_string(&file)?.as_str(), "weights\n")?;
    let output = caller.run(&["--tier", TIER], &["bash", "-c", &script])?;
    equal("without the grant", output.stdout.as_str(), "")
}

pub fn processes(caller: &Caller) -> Check {
    const ATTACKS: &str = r#"
def word(got): return got if isinstance(got, str) else "ok"
print("null", word(call(62, PID, 0)))
print("trace", word(call(101, 0x4206, PID, 0, 0)))
print("read", word(call(310, PID, struct.pack("QQ", 0, 1), 1, struct.pack("QQ", 0, 1), 1, 0)))
print("limit", word(call(302, PID, 7, struct.pack("QQ", 64, 64), None)))
print("nice", word(call(141, 0, PID, 19)))
print("affinity", word(call(203, PID, 8, struct.pack("Q", 1))))
print("memory", tried(lambda: open(f"/proc/{PID}/mem")))
print("environ", tried(lambda: open(f"/proc/{PID}/environ")))
print("cwd", tried(lambda: os.readlink(f"/proc/{PID}/cwd")))
print("terminate", word(call(62, PID, 15)))
"#;
    let mut sentinel = Sentinel::start(caller)?;
    let script = format!("{CALLS}\nPID = {}\n{ATTACKS}", sentinel.0.id());
    let output = run_python(caller, &script)?;
    let expected = "null EPERM\ntrace EPERM\nread EPERM\nlimit EPERM\nnice EPERM\naffinity EPERM\n\
        memory EACCES\nenviron EACCES\ncwd EACCES\nterminate EPERM";
    equal("in a cell", (output.code, output.trimmed()), (0, expected))?;
    holds("the sentinel", sentinel.0.id(), sentinel.is_alive()?)?;
    // The control, as the same user outside. Reading through a null pointer gives EFAULT.
    let output = caller.python_outside(&script)?;
    let all = "null ok\ntrace ok\nread EFAULT\nlimit ok\nnice ok\naffinity ok\nmemory ok\nenviron ok\n\
        cwd ok\nterminate ok";
    equal("outside", output.trimmed(), all)?;
    sentinel.0.wait()?;
    Ok(())
}

pub fn sockets(caller: &Caller) -> Check {
    const ATTACKS: &str = r#"
def connected(family, address):
    with socket.socket(family) as one: one.connect(address)
def sent(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as one: one.sendto(b"x", address)
def paired():
    one, other = socket.socketpair()
    one.send(b"x"); assert other.recv(1) == b"x"
def pair_of_datagrams():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try: one.sendto(b"x", PATH + ".d")
    except OSError as error:
        if error.errno != errno.EISCONN: raise
print("path", tried(lambda: connected(socket.AF_UNIX, PATH)))
print("tcp", tried(lambda: connected(socket.AF_INET, ("127.0.0.1", PORT))))
print("udp", tried(lambda: sent(socket.AF_INET, ("127.0.0.1", PORT))))
print("datagrams", tried(pair_of_datagrams))
print("pair", tried(paired))
"#;
    let path = caller.home.join("listening");
    let listener = std::os::unix::net::UnixListener::bind(&path)?;
    support::mode(&path, 0o777)?;
    let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = tcp.local_addr()?.port();
    let path = path.display().to_string();
    let script = format!("{CALLS}\nPATH = {path:?}\nPORT = {port}\n{ATTACKS}");
    let output = run_python(caller, &script)?;
    let expected = "path EPERM\ntcp EPERM\nudp EPERM\ndatagrams EPERM\npair ok";
    equal("in a cell", (output.code, output.trimmed()), (0, expected))?;
    listener.set_nonblocking(true)?;
    let refused = listener.accept().map(|_| ()).map_err(|error| error.kind());
    equal("no connection", refused, Err(std::io::ErrorKind::WouldBlock))?;
    let output = caller.python_outside(&script)?;
    equal("outside", output.trimmed(), "path ok\ntcp ok\nudp ok\ndatagrams ok\npair ok").or_else(
        |_| {
            equal("outside", output.trimmed(), "path ok\ntcp ok\nudp ok\ndatagrams ENOENT\npair ok")
        },
    )
}

pub fn objects(caller: &Caller) -> Check {
    const ATTACKS: &str = r#"
def word(got): return got if isinstance(got, str) else "ok"
key = 0x7e570000 | os.getpid() & 0xffff
shared = call(29, key, 4096, 0o1600)
print("shmget", word(shared))
if not isinstance(shared, str): call(31, shared, 0, None)
queue = call(68, key, 0o1600)
print("msgget", word(queue))
if not isinstance(queue, str): call(71, queue, 0, None)
print("mq_open", word(call(240, b"cofferdam-tiers", 0o100, 0o600, None)))
call(241, b"cofferdam-tiers")
"#;
    let script = format!("{CALLS}\n{ATTACKS}");
    let output = run_python(caller, &script)?;
    let expected = "shmget EPERM\nmsgget EPERM\nmq_open EPERM";
    equal("in a cell", (output.code, output.trimmed()), (0, expected))?;
    let output = caller.python_outside(&script)?;
    equal("outside", output.trimmed(), "shmget ok\nmsgget ok\nmq_open ok")
}
