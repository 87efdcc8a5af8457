//! Client certificates: names, authorities, revocation and expiry, and requests that have a token too.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::client::{ALICE, Server, secret};

const TLS: &str = "[http]\ncertificate = \"HOME/certificate\"\nkey = \"HOME/key\"\n\
                   client_ca = \"HOME/ca.pem\"\n";
const NAMES: &str = "[[http.certificates]]\nclient = \"ci\"\nname = \"ci.example\"\n\
                     [[http.certificates]]\nclient = \"bot\"\nname = \"spiffe://example/bot\"\n\
                     [[http.certificates]]\nclient = \"ops\"\nname = \"ops.example\"\noperator = true\n";
const TOKEN: &str = "[[http.tokens]]\nclient = \"token\"\nfile = \"HOME/token\"\n";

fn openssl(home: &Path, arguments: &str) {
    let words = arguments.split_whitespace();
    let ended = Command::new("openssl").args(words).current_dir(home).output();
    let ended = ended.expect("openssl runs");
    assert!(ended.status.success(), "{arguments}: {}", String::from_utf8_lossy(&ended.stderr));
}

const CURVE: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// Makes an authority.
fn authority(home: &Path, name: &str) {
    let extensions =
        "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign";
    openssl(
        home,
        &format!(
            "req -x509 {CURVE} -subj /CN={name} {extensions} -keyout {name}.key -out {name}.pem"
        ),
    );
    fs::write(home.join(format!("{name}.index")), "").expect("written");
    fs::write(home.join(format!("{name}.number")), "01\n").expect("written");
    fs::write(
        home.join(format!("{name}.conf")),
        format!(
            "[ca]\ndefault_ca=own\n[own]\ndatabase={name}.index\ncrlnumber={name}.number\ndefault_md=sha256\n\
             default_crl_days=2\ncertificate={name}.pem\nprivate_key={name}.key\n\
             serial={name}.serial\nnew_certs_dir=.\npolicy=any\nunique_subject=no\n[any]\ncommonName=supplied\n"
        ),
    )
    .expect("written");
}

/// Makes a certificate of a client with this name, which an authority has signed.
fn client(home: &Path, file: &str, by: &str, names: &str) {
    openssl(home, &format!("req {CURVE} -subj /CN={file} -keyout {file}.key -out {file}.csr"));
    fs::write(
        home.join(format!("{file}.ext")),
        format!("subjectAltName={names}\nextendedKeyUsage=clientAuth\n"),
    )
    .expect("written");
    openssl(
        home,
        &format!(
            "x509 -req -in {file}.csr -CA {by}.pem -CAkey {by}.key -CAcreateserial -extfile {file}.ext \
             -days 2 -out {file}.pem"
        ),
    );
}

fn prepare(home: &Path) {
    authority(home, "ca");
    authority(home, "other");
    for (file, names) in [
        ("ci", "DNS:ci.example"),
        ("bot", "URI:spiffe://example/bot"),
        ("ops", "DNS:ops.example"),
        ("both", "DNS:ci.example,URI:spiffe://example/bot"),
        ("unknown", "DNS:other.example"),
        ("wild", "DNS:*.example"),
        ("mail", "email:ci@ci.example"),
    ] {
        client(home, file, "ca", names);
    }
    client(home, "forged", "other", "DNS:ci.example");
    client(home, "old", "ca", "DNS:ci.example");
    let dates = "-startdate 20200101000000Z -enddate 20200102000000Z";
    openssl(
        home,
        &format!(
            "ca -batch -notext -rand_serial -config ca.conf {dates} -extfile old.ext -in old.csr -out old.pem"
        ),
    );
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    openssl(
        home,
        &format!(
            "req -x509 {CURVE} -subj /CN=localhost -addext {names} -keyout key -out certificate"
        ),
    );
    let key = fs::read_to_string(home.join("key")).expect("a key");
    secret(&home.join("key"), &key);
    secret(&home.join("token"), ALICE);
}

fn started(more: &str) -> Server {
    let toml = format!("{TLS}{more}{NAMES}");
    Server::prepared(&toml, &[], |home, _| prepare(home))
}

/// Sends a request with the certificate of a client, and returns all that openssl prints.
fn speak(server: &Server, certificate: Option<&str>, options: &[&str], text: &str) -> String {
    let home = server.home.path();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &server.at, "-quiet", "-no_ign_eof"]).args(options);
    if let Some(name) = certificate {
        command.arg("-cert").arg(home.join(format!("{name}.pem")));
        command.arg("-key").arg(home.join(format!("{name}.key")));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.arg("-ign_eof").spawn().expect("openssl runs");
    let mut input = child.stdin.take().expect("a pipe");
    // A refused handshake takes no text.
    input.write_all(text.as_bytes()).unwrap_or_default();
    let output = child.wait_with_output().expect("it ends");
    drop(input);
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    printed(&output.stdout) + &printed(&output.stderr)
}

fn request(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n")
}

/// Status of a request with a certificate; 0 if there is no answer.
fn status(server: &Server, certificate: Option<&str>, path: &str, headers: &str) -> u16 {
    let text = speak(server, certificate, &[], &request(path, headers));
    let line = text.lines().find_map(|line| line.strip_prefix("HTTP/1.1 "));
    line.and_then(|line| line.get(..3)).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn a_certificate_names_its_client_and_no_other_is_served() {
    let server = started("");
    let of = |name: &str| status(&server, Some(name), "/tools", "");
    assert_eq!([of("ci"), of("bot")], [200, 200]);
    // Names that no client has, or that two have; a wildcard is no name.
    assert_eq!([of("unknown"), of("both"), of("wild"), of("mail")], [401; 4]);
    server.said("a certificate that names no client");
    // Refused in the handshake: another authority with the right name, an expired one, and no certificate.
    assert_eq!([of("forged"), of("old"), status(&server, None, "/tools", "")], [0; 3]);
    for version in ["-tls1_2", "-tls1_3"] {
        let with = speak(&server, Some("ci"), &[version], &request("/tools", ""));
        assert!(with.contains("HTTP/1.1 200"), "{version}: {with}");
        let without = speak(&server, None, &[version], &request("/health", ""));
        assert!(!without.contains("HTTP/1.1"), "{version}: {without}");
    }
}

#[test]
fn the_operators_certificate_has_the_rights_of_the_operator() {
    let server = started("");
    assert_eq!(status(&server, Some("ops"), "/config", ""), 200);
    assert_eq!(status(&server, Some("ci"), "/config", ""), 403);
    assert_eq!(status(&server, Some("ops"), "/mcp", ""), 403, "it runs nothing");
}

#[test]
fn a_request_has_a_certificate_or_a_token_and_not_both() {
    let server = started(TOKEN);
    let token = format!("authorization: Bearer {ALICE}\r\n");
    let wrong = format!("authorization: Bearer {}\r\n", ALICE.to_uppercase());
    assert_eq!(status(&server, Some("ci"), "/tools", ""), 200);
    assert_eq!(status(&server, None, "/tools", &token), 200);
    assert_eq!(
        status(&server, None, "/tools", ""),
        401,
        "a connection without a certificate is served"
    );
    for header in [&token, &wrong, &format!("{token}{token}"), "authorization: \r\n"] {
        assert_eq!(status(&server, Some("ci"), "/tools", header), 400, "{header}");
    }
    assert_eq!(status(&server, Some("unknown"), "/tools", &token), 400);
    // A header of a proxy that ends TLS names no client.
    let named = "x-ssl-client-s-dn: CN=ci\r\nx-client-cert: ci.example\r\nx-forwarded-client-cert: URI=spiffe://example/bot\r\n";
    assert_eq!(status(&server, None, "/tools", named), 401);
}

#[test]
fn a_revoked_certificate_is_refused_after_the_list_is_read_again() {
    let crl = |home: &Path| openssl(home, "ca -config ca.conf -gencrl -out crl.pem");
    let toml = format!("{TLS}client_crl = \"HOME/crl.pem\"\n{NAMES}");
    let server = Server::prepared(&toml, &[], |home, _| {
        prepare(home);
        crl(home);
    });
    let of = |name: &str| status(&server, Some(name), "/tools", "");
    assert_eq!([of("ci"), of("bot")], [200, 200]);
    // A connection of the client that is revoked: its next request is refused.
    let home = server.home.path();
    let mut kept = Command::new("openssl");
    kept.args(["s_client", "-connect", &server.at, "-quiet", "-ign_eof", "-cert"]);
    kept.arg(home.join("ci.pem")).arg("-key").arg(home.join("ci.key"));
    kept.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut kept = kept.spawn().expect("openssl runs");
    let mut input = kept.stdin.take().expect("a pipe");
    let first = "GET /tools HTTP/1.1\r\nhost: localhost\r\n\r\n";
    input.write_all(first.as_bytes()).expect("it is open");
    let mut output = std::io::BufReader::new(kept.stdout.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).expect("an answer");
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    openssl(home, "ca -config ca.conf -revoke ci.pem");
    crl(home);
    let pid = i32::try_from(server.child.id()).expect("a pid");
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::SIGHUP).expect("it runs");
    server.said("cofferdam_reload");
    input.write_all(request("/tools", "").as_bytes()).expect("it is open");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut output, &mut rest).expect("the rest");
    kept.wait().expect("it ends");
    assert!(rest.contains("HTTP/1.1 401") && rest.contains("not valid"), "{rest}");
    assert_eq!([of("ci"), of("bot")], [0, 200]);
}

#[test]
fn a_resumed_tls_session_is_verified_again() {
    let server = started("");
    let home = server.home.path().join("kept").display().to_string();
    let first =
        speak(&server, Some("ci"), &["-tls1_3", "-sess_out", &home], &request("/tools", ""));
    assert!(first.contains("HTTP/1.1 200"), "{first}");
    let again = speak(&server, Some("ci"), &["-tls1_3", "-sess_in", &home], &request("/tools", ""));
    assert!(again.contains("HTTP/1.1 200"), "{again}");
    // After the files were read again no earlier session is resumed: without its certificate a client is nobody.
    let pid = i32::try_from(server.child.id()).expect("a pid");
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::SIGHUP).expect("it runs");
    server.said("cofferdam_reload");
    let later = speak(&server, None, &["-tls1_3", "-sess_in", &home], &request("/tools", ""));
    assert!(!later.contains("HTTP/1.1 200"), "{later}");
}

#[test]
fn unfit_files_of_authorities_are_refused_at_the_start() {
    let start = |name: &str, text: &str| {
        let toml = format!("{TLS}client_crl = \"HOME/crl.pem\"\n{NAMES}");
        let arguments = ["--http", "127.0.0.1:0"];
        let command = Command::new(crate::client::PROGRAM);
        let (home, mut command) = crate::client::configured_command(command, &toml, &arguments);
        prepare(home.path());
        openssl(home.path(), "ca -config ca.conf -gencrl -out crl.pem");
        fs::write(home.path().join(name), text).expect("written");
        let ended = command.stdin(Stdio::null()).output().expect("it runs");
        assert_eq!(ended.status.code(), Some(125), "{name}: {ended:?}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    assert!(start("ca.pem", "").contains("ca.pem"));
    assert!(
        start("ca.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .contains("ca.pem")
    );
    assert!(start("crl.pem", "").contains("no revocation list"));
    assert!(
        start("crl.pem", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
            .contains("ca.pem")
    );
}
