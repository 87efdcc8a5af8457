//! TLS with clients of other implementations: versions, resumption, and features that are off.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::client::{ALICE, Server, secret};

/// Makes a certificate of this machine with its key, and a token.
fn prepare(home: &Path) {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .arg("-keyout")
        .arg(home.join("key"))
        .arg("-out")
        .arg(home.join("certificate"))
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl runs").success());
    let key = std::fs::read_to_string(home.join("key")).expect("a key");
    secret(&home.join("key"), &key);
    secret(&home.join("token"), ALICE);
}

fn server() -> Server {
    let toml = "[http]\ncertificate = \"HOME/certificate\"\nkey = \"HOME/key\"\n\
                [[http.tokens]]\nclient = \"ci\"\nfile = \"HOME/token\"\n";
    Server::prepared(toml, &[], |home, _| prepare(home))
}

/// Speaks TLS by openssl with these options, and sends this text. Returns all that openssl says.
fn speak(server: &Server, options: &[&str], text: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &server.at, "-servername", "localhost", "-CAfile"]);
    command.arg(server.home.path().join("certificate")).args(options);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("openssl runs");
    let mut input = child.stdin.take().expect("a pipe");
    // One that has failed already takes no text.
    input.write_all(text.as_bytes()).unwrap_or_default();
    let output = child.wait_with_output().expect("it ends");
    drop(input);
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

const HEALTH: &str = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[test]
fn versions_that_are_safe_are_spoken_and_no_other() {
    let server = server();
    for version in ["-tls1_2", "-tls1_3"] {
        let text = speak(&server, &[version, "-quiet", "-verify_return_error"], HEALTH);
        assert!(text.contains("{\"status\":\"healthy\"}"), "{version}: {text}");
    }
    for version in ["-tls1", "-tls1_1"] {
        let options = [version, "-cipher", "ALL:@SECLEVEL=0"];
        let text = speak(&server, &options, HEALTH);
        assert!(!text.contains("healthy") && text.contains("alert"), "{version}: {text}");
    }
    // In clear, on the same port.
    let mut connection = server.connect();
    connection.send(HEALTH);
    assert_eq!(connection.answer().status, 0);
    // HTTP/2 is off, so its floods do not apply.
    let text = speak(&server, &["-tls1_3", "-alpn", "h2"], "");
    assert!(
        text.contains("No ALPN negotiated") || text.contains("no application protocol"),
        "{text}"
    );
}

#[test]
fn tls_sessions_resume_without_renegotiation() {
    let server = server();
    let kept = server.home.path().join("kept").display().to_string();
    let first = speak(&server, &["-tls1_3", "-sess_out", &kept, "-ign_eof"], HEALTH);
    assert!(first.contains("New, TLSv1.3"), "{first}");
    let again = speak(&server, &["-tls1_3", "-sess_in", &kept, "-ign_eof"], HEALTH);
    assert!(again.contains("Reused, TLSv1.3") && again.contains("healthy"), "{again}");
    // A request to agree on new keys (`R`), which TLS 1.2 has: the server does not.
    let text = speak(&server, &["-tls1_2"], "R\n");
    assert!(text.contains("Secure Renegotiation IS supported"), "by its sign alone: {text}");
    assert!(!text.contains("Verify return code: 0 (ok)\n---\nRENEGOTIATING\ndepth"), "{text}");
    assert_eq!(speak(&server, &["-tls1_3", "-quiet"], HEALTH).matches("healthy").count(), 1);
}

/// Returns the number of established connections to a server, as the kernel counts them.
fn established(server: &Server) -> usize {
    let port: u16 =
        server.at.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let at = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|line| line[1] == at && line[3] == "01").count()
}

#[test]
fn half_open_handshakes_keep_no_client_out_and_are_connections() {
    const LIMIT: usize = 512;
    let server = server();
    // The head of a record, of which nothing else comes.
    let begun = || {
        let mut stream = TcpStream::connect(&server.at).expect("it listens");
        stream.write_all(&[0x16, 3, 1, 2, 0]).expect("sent");
        stream
    };
    let held: Vec<TcpStream> = (0..LIMIT + 200).map(|_| begun()).collect();
    // Long before the time of a handshake is over.
    let end = Instant::now() + Duration::from_secs(5);
    while established(&server) > LIMIT {
        assert!(Instant::now() < end, "{} are open", established(&server));
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..3 {
        let text = speak(&server, &["-quiet"], HEALTH);
        assert!(text.contains("{\"status\":\"healthy\"}"), "{text}");
    }
    drop(held);
}

#[test]
fn a_token_is_needed_within_tls_as_well() {
    let server = server();
    let ask = |token: &str| {
        let text = format!(
            "GET /tools HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        );
        speak(&server, &["-quiet"], &text)
    };
    assert!(ask(ALICE).contains("HTTP/1.1 200"));
    assert!(ask(&ALICE.to_uppercase()).contains("HTTP/1.1 401"));
}
