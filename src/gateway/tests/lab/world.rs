//! The lab: namespaces, servers, the gateway, and cells.

#![allow(clippy::unwrap_used, reason = "a lab that cannot be made is a failed test")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cofferdam_gateway as gateway;
use model::egress::frames::{CellKey, FRAME_BYTES, FromGateway, ToGateway, decode, encode};
use model::egress::{
    Egress, EgressLimits, EgressRule, HttpRule, NetworkClass, Only, Protocols, SecretForm,
    SecretSource, SecretUse, Tally,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use sys::socket::{PacketWait, receive, send};

const SERVERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/servers.py");
const CELL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/cell.py");

/// Indexes of the lab's profiles.
pub(crate) const LIST: u16 = 0;
pub(crate) const ANY: u16 = 1;
pub(crate) const PRIVATE: u16 = 2;
pub(crate) const LIMITED: u16 = 3;
pub(crate) const READ: u16 = 4;
pub(crate) const SLOW: u16 = 5;
pub(crate) const WIDE: u16 = 6;

/// Seed of the placeholders of all cells.
pub(crate) const SEED: [u8; 16] = *b"0123456789abcdef";
/// The secret that the placeholders stand for.
pub(crate) const SECRET: &str = "ghp_Real/Value+42";

pub(crate) fn installed(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|path| path.join(name).exists())
}

/// Returns true if real root runs the lab, and not an ordinary user in a user namespace.
pub(crate) fn by_root() -> bool {
    std::env::var_os("GATEWAY_LAB_ROOT").is_some()
}

/// Runs this program again in new namespaces.
pub(crate) fn reenter() -> i32 {
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--mount", "--fork", "--kill-child", "--"]);
    command.arg(std::env::current_exe().unwrap()).args(std::env::args_os().skip(1));
    if nix::unistd::geteuid().is_root() {
        command.env("GATEWAY_LAB_ROOT", "1");
    }
    // An ordinary user of Debian has no directories of `sbin` in PATH.
    let paths = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{paths}:/usr/sbin:/sbin"));
    let status = command.env("GATEWAY_LAB", "1").status().unwrap();
    status.code().unwrap_or(1)
}

fn run(words: &str) {
    let mut parts = words.split_whitespace();
    let status = Command::new(parts.next().unwrap()).args(parts).status().unwrap();
    assert!(status.success(), "{words}");
}

fn rule(
    id: &str,
    hosts: &[&str],
    nets: &[&str],
    ports: &[&str],
    protocols: Protocols,
) -> EgressRule {
    EgressRule {
        id: id.to_owned(),
        hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        nets: nets.iter().map(|net| net.parse().unwrap()).collect(),
        ports: ports.iter().map(|port| port.parse().unwrap()).collect(),
        protocols,
        http: Vec::new(),
        secret: None,
        why: "the lab".to_owned(),
    }
}

/// Makes a rule with HTTP rules and a secret.
fn intercepting() -> EgressRule {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let http = HttpRule { methods: words(&["GET", "PUT"]), paths: words(&["/ok/**"]) };
    let secret = SecretUse {
        name: "token".to_owned(),
        header: "authorization".to_owned(),
        form: SecretForm::Bearer,
        env: "TOKEN".to_owned(),
    };
    let rule = rule("api", &["web.test", "api.test"], &[], &["80", "443"], Protocols::TCP);
    EgressRule { http: vec![http], secret: Some(secret), ..rule }
}

fn profiles() -> Vec<Egress> {
    let web = ["80", "443", "22", "7"];
    let named = [
        "web.test",
        "loop.test",
        "host.test",
        "mixed.test",
        "inside.test",
        "big.test",
        "*.wild.test",
    ];
    let nets =
        ["203.0.113.20", "2001:db8::20", "198.51.100.0/24", "2001:db8:1::/64", "203.0.113.99"];
    let rules = vec![
        rule("web", &named, &[], &web, Protocols::TCP),
        rule("lab", &[], &nets, &["1-65535"], Protocols::ALL),
        // One port of the operator's internal network.
        rule("inside", &[], &["10.77.0.20"], &["22"], Protocols::TCP),
    ];
    let profile = |class, rules: &[EgressRule]| Egress {
        class,
        rules: rules.to_vec(),
        limits: EgressLimits::default(),
    };
    let limits = EgressLimits {
        connections: 2,
        sent: Some(100_000),
        received: Some(300_000),
        ..EgressLimits::default()
    };
    let wide = EgressLimits { connections: 256, ..limits };
    vec![
        profile(NetworkClass::AllowList, &rules),
        profile(NetworkClass::Any, &[]),
        profile(NetworkClass::Private, &[]),
        Egress { limits, ..profile(NetworkClass::AllowList, &rules) },
        profile(NetworkClass::AllowList, &[intercepting()]),
        Egress {
            limits: EgressLimits { rate: Some(20_000), ..EgressLimits::default() },
            ..profile(NetworkClass::AllowList, &rules)
        },
        Egress { limits: wide, ..profile(NetworkClass::AllowList, &rules) },
    ]
}

/// Namespaces, servers and the gateway.
pub(crate) struct Lab {
    link: OwnedFd,
    pub gateway: i32,
    directory: tempfile::TempDir,
    servers: Vec<Child>,
    next: Mutex<u32>,
}

impl Lab {
    pub(crate) fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        run("ip link set lo up");
        // Distributions set this range; with the kernel's default only root may ping.
        let groups = if by_root() { "0 2147483647" } else { "0 0" };
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", groups).unwrap();
        certify(directory.path());
        let (link, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .unwrap();
        let resolver: SocketAddr = "203.0.113.53:53".parse().unwrap();
        let spec = gateway::GatewaySpec {
            profiles: profiles(),
            resolvers: vec![resolver],
            roots: std::fs::read(directory.path().join("cert")).unwrap(),
            secrets: vec![("token".to_owned(), SecretSource::File(directory.path().join("token")))],
            hosts: vec![("known.test".to_owned(), "203.0.113.20".parse().unwrap())],
            id: by_root().then_some(60_000),
        };
        let started = gateway::start(theirs, spec).unwrap();
        let servers = vec![wire(directory.path())];
        let lab = Self { link, gateway: started.pid, directory, servers, next: Mutex::new(0) };
        assert_eq!(lab.frame(), Some(FromGateway::Up));
        let trust = gateway::intercept::trust::TrustFiles::new(b"", &started.authority);
        std::fs::write(lab.path("authority"), trust.bundle).unwrap();
        lab
    }

    /// Returns the path of a file of the lab.
    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_string_lossy().into_owned()
    }

    /// Makes a cell of a profile, and begins a call in it.
    pub(crate) fn cell(&self, profile: u16) -> Cell<'_> {
        let cell = self.waiting_cell(profile);
        cell.begin(1, None);
        cell
    }

    /// Makes a cell without a call.
    pub(crate) fn waiting_cell(&self, profile: u16) -> Cell<'_> {
        let mut next = self.next.lock().unwrap();
        *next += 1;
        let key = CellKey { slot: *next, generation: 7 };
        let resolv = self.directory.path().join("resolv");
        std::fs::write(&resolv, "nameserver 10.0.2.3\noptions timeout:2 attempts:1\n").unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
                .unwrap();
        let (lifeline, lifeline_write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--", "python3", CELL]).arg(&resolv);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::from(lifeline_write));
        let init = command.spawn().unwrap();
        drop(command);
        let mut buffer = [0; 8];
        let mut received = receive(&ours, &mut buffer, PacketWait::Yes).unwrap();
        let packets = received.fds[0].take().expect("the packet socket");
        let open = encode(&ToGateway::Open { cell: key, profile, seed: SEED }).unwrap();
        send(&self.link, &open, &[packets.as_fd(), lifeline.as_fd()]).unwrap();
        Cell { lab: self, key, init, _link: ours }
    }

    pub(crate) fn send_frame(&self, frame: &ToGateway) {
        send(&self.link, &encode(frame).unwrap(), &[]).unwrap();
    }

    /// Returns true if a frame of the gateway waits.
    pub(crate) fn waiting(&self) -> bool {
        let mut waited = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
        poll(&mut waited, PollTimeout::from(100_u16)).unwrap() > 0
    }

    /// Returns the next frame of the gateway within five seconds.
    pub(crate) fn frame(&self) -> Option<FromGateway> {
        let mut waited = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
        if poll(&mut waited, PollTimeout::from(5_000_u16)).unwrap() == 0 {
            return None;
        }
        let mut buffer = vec![0; FRAME_BYTES];
        let received = receive(&self.link, &mut buffer, PacketWait::Yes).unwrap();
        (received.bytes > 0).then(|| decode(buffer.get(..received.bytes).unwrap()).unwrap())
    }

    /// Returns the pids of the gateway's workers, oldest first. The first eight children close
    /// packet sockets.
    pub(crate) fn workers(&self) -> Vec<i32> {
        let path = format!("/proc/{0}/task/{0}/children", self.gateway);
        let text = std::fs::read_to_string(path).unwrap();
        text.split_whitespace().skip(8).map(|pid| pid.parse().unwrap()).collect()
    }

    /// Returns what the servers have logged since the lab was built, such as the names that were asked for.
    pub(crate) fn server_log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("asked")).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // Fails only if the process has ended already.
            server.kill().unwrap_or_default();
            server.wait().unwrap();
        }
    }
}

/// Makes the servers' self-signed certificate, and the secret that one of them requires.
fn certify(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let at = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=web.test \
        -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:web.test,DNS:api.test";
    let mut openssl = Command::new("openssl");
    openssl.args(words.split_whitespace()).args(["-keyout", &at("key"), "-out", &at("cert")]);
    assert!(openssl.stderr(Stdio::null()).status().unwrap().success());
    std::fs::write(at("token"), SECRET).unwrap();
    std::fs::set_permissions(at("token"), PermissionsExt::from_mode(0o600)).unwrap();
}

/// Starts the servers in a new network namespace, connects it with this one, and puts a router
/// behind it.
fn wire(directory: &Path) -> Child {
    let at = |name: &str| directory.join(name).to_string_lossy().into_owned();

    let namespace = Command::new("unshare").args(["--net", "--", "sleep", "20"]).spawn().unwrap();
    let pid = namespace.id();
    std::thread::sleep(Duration::from_millis(300));
    run("ip link add h0 type veth peer name s0");
    run(&format!("ip link set s0 netns {pid}"));
    for (words, family) in [("203.0.113.1/24", "-4"), ("2001:db8::1/64", "-6")] {
        let nodad = if family == "-6" { "nodad" } else { "" };
        run(&format!("ip {family} addr add {words} dev h0 {nodad}"));
    }
    run("ip addr add 10.77.0.1/24 dev h0");
    run("ip link set h0 up");
    let inside = |words: &str| run(&format!("nsenter -t {pid} -n {words}"));
    inside("ip link set lo up");
    inside("ip link set s0 up");
    for address in
        ["203.0.113.10/24", "203.0.113.20/24", "203.0.113.53/24", "10.77.0.10/24", "10.77.0.20/24"]
    {
        inside(&format!("ip addr add {address} dev s0"));
    }
    for address in ["2001:db8::10/64", "2001:db8::20/64"] {
        inside(&format!("ip -6 addr add {address} dev s0 nodad"));
    }
    // A router with a host behind it, and an address that drops everything.
    inside("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    inside("ip route add blackhole 203.0.113.99/32");
    inside("ip route add prohibit 198.51.100.13/32");
    inside("ip route add 198.51.100.20/32 dev s0");
    inside("ip route add unreachable 198.51.100.14/32");
    run("ip route add 198.51.100.0/24 via 203.0.113.10");
    run("ip -6 route add 64:ff9b::/96 via 2001:db8::10");
    let mac = Command::new("nsenter")
        .args(["-t", &pid.to_string(), "-n", "ip", "-o", "link", "show", "s0"])
        .output()
        .unwrap();
    let text = String::from_utf8(mac.stdout).unwrap();
    let mac = text.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    run(&format!("ip neigh replace 203.0.113.99 dev h0 lladdr {mac}"));
    let mut servers = Command::new("nsenter");
    servers.args(["-t", &pid.to_string(), "-n", "python3", SERVERS]);
    servers.args([at("asked"), at("cert"), at("key")]);
    let mut servers = servers.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(servers.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    // The servers keep the namespace alive from here on.
    let mut namespace = namespace;
    namespace.kill().unwrap();
    namespace.wait().unwrap();
    servers
}

/// A cell: a network namespace whose link is handed to the gateway.
pub(crate) struct Cell<'a> {
    lab: &'a Lab,
    pub key: CellKey,
    init: Child,
    _link: OwnedFd,
}

impl Cell<'_> {
    pub(crate) fn begin(&self, call: u64, only: Option<Only>) {
        self.lab.send_frame(&ToGateway::Begin { cell: self.key, call, only });
    }

    /// Returns a command that runs in the cell.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.id().to_string(), "-n", "-m", "--", program]);
        command
    }

    /// Runs a command line in the cell; returns what it printed on both streams.
    pub(crate) fn run(&self, words: &str) -> String {
        let mut words = words.split_whitespace();
        let mut command = self.command(words.next().unwrap());
        text(&command.args(words).output().unwrap())
    }

    /// Runs Python in the cell.
    pub(crate) fn python(&self, script: &str) -> String {
        let prelude = "import socket,errno,time,ssl,os,sys,struct\n\
            def name(e): return errno.errorcode.get(e.errno, str(e))\n";
        let mut command = self.command("python3");
        let output = command.arg("-c").arg(format!("{prelude}{script}")).output().unwrap();
        text(&output).trim().to_owned()
    }

    /// Connects by TCP; returns `ok`, or the name of the errno.
    pub(crate) fn connect(&self, address: &str, port: u16) -> String {
        let family = if address.contains(':') { "socket.AF_INET6" } else { "socket.AF_INET" };
        self.python(&format!(
            "s=socket.socket({family})\ns.settimeout(3)\ntry:\n s.connect(('{address}',{port})); print('ok')\n\
             except socket.timeout: print('timeout')\nexcept OSError as e: print(name(e))"
        ))
    }

    /// Returns the tally of a call.
    pub(crate) fn tally(&self, call: u64) -> Tally {
        self.lab.send_frame(&ToGateway::Ask { cell: self.key, call });
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            match self.lab.frame() {
                Some(FromGateway::Tally { cell, call: tallied, tally })
                    if (cell, tallied) == (self.key, call) =>
                {
                    return tally;
                }
                Some(_) => {}
                None => break,
            }
        }
        panic!("no tally");
    }
}

impl Drop for Cell<'_> {
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        self.init.kill().unwrap_or_default();
        self.init.wait().unwrap();
    }
}

fn text(output: &Output) -> String {
    let streams = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&streams).into_owned()
}
