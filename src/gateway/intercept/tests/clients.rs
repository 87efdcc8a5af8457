//! Tests of interception with programs that people use. A missing program skips its test, unless
//! `COFFERDAM_MUST_RUN` is set.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use model::egress::SecretForm;
use tokio::net::TcpListener;

use super::lab::{HOST, Lab, SECRET, Seen, placeholder, rule};
use crate::intercept::trust::TrustFiles;

/// A lab that clients reach by TCP, with the files by which they trust its authority.
struct Served {
    lab: std::sync::Arc<Lab>,
    port: u16,
    directory: tempfile::TempDir,
    variables: [&'static str; 6],
}

impl Served {
    async fn new(lab: Lab) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let directory = tempfile::tempdir().expect("a directory");
        let trust = TrustFiles::new(b"", &lab.authority);
        let variables = trust.variables;
        std::fs::write(directory.path().join("bundle.pem"), trust.bundle).expect("a file");
        std::fs::write(directory.path().join("cacerts"), trust.java).expect("a file");
        let hosts = format!("127.0.0.1 localhost {HOST}\n");
        std::fs::write(directory.path().join("hosts"), hosts).expect("a file");
        let lab = std::sync::Arc::new(lab);
        let front = std::sync::Arc::clone(&lab);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut near = front.open(port);
                tokio::spawn(async move {
                    drop(tokio::io::copy_bidirectional(&mut stream, &mut near).await);
                });
            }
        });
        Self { lab, port, directory, variables }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{HOST}:{}{path}", self.port)
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a program that resolves the host by a private hosts file and trusts the bundle; `None`
    /// if it is not installed.
    async fn run(&self, words: &[&str]) -> Option<Output> {
        let name = words.first().copied().unwrap_or_default();
        let is_there = |name: &str| {
            let paths = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&paths).any(|path| path.join(name).exists())
        };
        if !is_there(name) || !is_there("unshare") {
            assert!(std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "{name} is not there");
            return None;
        }
        let script =
            format!("mount --bind {}/hosts /etc/hosts && exec \"$@\"", self.path().display());
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"]).args(words);
        command.current_dir(self.path()).env("HOME", self.path()).stdin(Stdio::null());
        for variable in self.variables {
            command.env(variable, self.path().join("bundle.pem"));
        }
        command.env("TOKEN", placeholder()).env("GIT_TERMINAL_PROMPT", "0");
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
        Some(output.expect("it runs"))
    }
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Makes a server that requires the secret, and answers with the length of the body.
fn guarded(alpn: &[&str]) -> Lab {
    let rules = vec![rule(&[(&["GET", "PUT"], &["/ok/**"])], Some(SecretForm::Bearer))];
    Lab::tls(rules, alpn, HOST).answering(|seen: &Seen| {
        let wanted = format!("Bearer {SECRET}");
        let is_known = seen.headers.get("authorization").is_some_and(|value| *value == *wanted);
        let answer = format!(
            "{} {} {}\n",
            if is_known { "welcome" } else { "who?" },
            seen.body.len(),
            wanted
        );
        Response::new(Full::from(answer))
    })
}

const AUTHORIZATION: &str = r#"-H"Authorization: Bearer $TOKEN""#;

#[tokio::test]
async fn curl_uses_a_secret_that_it_never_has() {
    for (version, line) in [("--http1.1", "HTTP/1.1"), ("--http2", "HTTP/2.0")] {
        let served = Served::new(guarded(&["h2", "http/1.1"])).await;
        let url = served.url("/ok/a");
        let script = format!("env; curl -sSi {version} {AUTHORIZATION} {url}");
        let Some(output) = served.run(&["sh", "-c", &script]).await else { return };
        let said = text(&output);
        assert!(said.contains("welcome 0 Bearer ****"), "{said}");
        assert!(!said.contains(SECRET) && said.contains(&placeholder()), "{said}");
        assert!(served.lab.seen()[0].line.ends_with(line), "{:?}", served.lab.seen());
        // A body of several windows, and a request that is refused before its body is read.
        std::fs::write(served.path().join("file"), vec![b'x'; 3_000_000]).expect("a file");
        let script = format!("curl -sSi {version} {AUTHORIZATION} -T file {url}");
        let said = text(&served.run(&["sh", "-c", &script]).await.expect("curl"));
        assert!(said.contains("welcome 3000000 "), "{said}");
        let script = format!("curl -sSi {version} -T file {}", served.url("/no"));
        let said = text(&served.run(&["sh", "-c", &script]).await.expect("curl"));
        assert!(said.contains("403") && said.contains("takes PUT for other paths"), "{said}");
    }
}

#[tokio::test]
async fn clients_of_several_libraries_trust_the_authority() {
    let served = Served::new(guarded(&["h2", "http/1.1"])).await;
    let url = served.url("/ok/a");
    let python = format!(
        "import os, urllib.request as r; q = r.Request('{url}', headers={{'Authorization': 'Bearer ' + os.environ['TOKEN']}}); \
         print(r.urlopen(q).read().decode())"
    );
    let node = format!(
        "fetch('{url}', {{headers: {{Authorization: 'Bearer ' + process.env.TOKEN}}}}).then(async r => console.log(await r.text()))"
    );
    let wget = format!(
        "wget -qO- --ca-certificate=bundle.pem --header=\"Authorization: Bearer $TOKEN\" {url}"
    );
    let gnutls = ["sh", "-c", &wget];
    for words in [&["python3", "-c", &python][..], &["node", "-e", &node], &gnutls] {
        if words[0] == "sh" && !Path::new("/usr/bin/wget").exists() {
            continue;
        }
        let Some(output) = served.run(words).await else { continue };
        assert!(text(&output).contains("welcome 0 Bearer ****"), "{words:?}: {}", text(&output));
    }
}

#[tokio::test]
async fn java_reads_the_store() {
    let served = Served::new(guarded(&["http/1.1"])).await;
    let program = format!(
        "public class Get {{ public static void main(String[] words) throws Exception {{ \
         var it = new java.net.URL(\"{}\").openConnection(); \
         it.setRequestProperty(\"Authorization\", \"Bearer \" + System.getenv(\"TOKEN\")); \
         System.out.print(new String(it.getInputStream().readAllBytes())); }} }}",
        served.url("/ok/a")
    );
    std::fs::write(served.path().join("Get.java"), program).expect("a file");
    let listed = ["keytool", "-list", "-keystore", "cacerts", "-storepass", "changeit"];
    let Some(output) = served.run(&listed).await else { return };
    assert!(text(&output).contains("trustedCertEntry"), "{}", text(&output));
    if !Path::new("/usr/bin/javac").exists() {
        return;
    }
    let words = ["java", "-Djavax.net.ssl.trustStore=cacerts", "Get.java"];
    let output = served.run(&words).await.expect("java");
    assert!(text(&output).contains("welcome 0 Bearer ****"), "{}", text(&output));
}

#[tokio::test]
async fn pip_installs_from_an_index_and_uploads_nowhere() {
    let rules = vec![rule(&[(&["GET", "HEAD"], &["/simple/**", "/packages/**"])], None)];
    let wheel = wheel();
    let lab = Lab::tls(rules, &["http/1.1"], HOST).answering(move |seen: &Seen| {
        let is_index = seen.line.contains("/simple/");
        let index = "<a href=\"/packages/tiny-1.0-py3-none-any.whl\">tiny-1.0-py3-none-any.whl</a>";
        let mut answer =
            Response::new(Full::from(if is_index { Bytes::from(index) } else { wheel.clone() }));
        let kind = if is_index { "text/html" } else { "application/octet-stream" };
        answer.headers_mut().insert("content-type", kind.parse().expect("a value"));
        answer
    });
    let served = Served::new(lab).await;
    let index = served.url("/simple/");
    let words = [
        "python3",
        "-m",
        "pip",
        "--isolated",
        "install",
        "--no-cache-dir",
        "--no-deps",
        "--target",
        "out",
        "--index-url",
        &index,
        "tiny",
    ];
    let Some(output) = served.run(&words).await else { return };
    assert!(served.path().join("out/tiny.py").exists(), "{}", text(&output));
    let script = format!("curl -sS -F a=b {}", served.url("/legacy/"));
    let said = text(&served.run(&["sh", "-c", &script]).await.expect("curl"));
    assert!(said.contains("rule api takes GET, HEAD"), "{said}");
}

/// Builds the smallest package that pip accepts: an uncompressed archive.
fn wheel() -> Bytes {
    let directory = tempfile::tempdir().expect("a directory");
    let script = "import zipfile\nwith zipfile.ZipFile('w.whl', 'w') as z:\n z.writestr('tiny.py', '')\n \
        z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')\n \
        z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n \
        z.writestr('tiny-1.0.dist-info/RECORD', '')\n";
    let made = Command::new("python3").args(["-c", script]).current_dir(directory.path()).status();
    made.ok()
        .and_then(|_| std::fs::read(directory.path().join("w.whl")).ok())
        .unwrap_or_default()
        .into()
}

#[tokio::test]
async fn git_clones_a_private_repository_and_pushes_nothing() {
    let repositories = tempfile::tempdir().expect("a directory");
    let made = Command::new("sh").current_dir(repositories.path()).args(["-c", concat!(
        "git init -q -b main w && cd w && echo secret plans > plans && git add . && ",
        "git -c user.name=a -c user.email=a@example.test commit -qm begin && cd .. && mkdir o && ",
        "git clone -q --bare w o/r.git && git -C o/r.git config http.receivepack true"
    )]).output();
    if !made.is_ok_and(|made| made.status.success()) {
        assert!(std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "git is not there");
        return;
    }
    let http: &[(&[&str], &[&str])] =
        &[(&["GET"], &["/**"]), (&["POST"], &["/*/*/git-upload-pack"])];
    let rules = vec![rule(http, Some(SecretForm::Basic))];
    let root = repositories.path().to_owned();
    let lab = Lab::tls(rules, &["h2", "http/1.1"], HOST)
        .answering(move |seen: &Seen| backend(&root, seen));
    let served = Served::new(lab).await;
    let url = format!("https://x-access-token:$TOKEN@{HOST}:{}/o/r.git", served.port);
    let script = format!(
        "env; git clone -q {url} cloned && cat cloned/plans && grep -r . cloned/.git/config"
    );
    let Some(output) = served.run(&["sh", "-c", &script]).await else { return };
    let said = text(&output);
    assert!(said.contains("secret plans") && said.contains(&placeholder()), "{said}");
    assert!(!said.contains(SECRET), "{said}");
    // The positive control: with another password the server refuses.
    let script =
        format!("git clone -q https://x-access-token:wrong@{HOST}:{}/o/r.git again", served.port);
    let said = text(&served.run(&["sh", "-c", &script]).await.expect("git"));
    assert!(said.contains("Authentication failed"), "{said}");
    let script = "cd cloned && git -c user.name=a -c user.email=a@example.test commit -q --allow-empty -m x && git push -q";
    let output = served.run(&["sh", "-c", script]).await.expect("git");
    assert!(!output.status.success() && text(&output).contains("403"), "{}", text(&output));
    assert!(
        served
            .lab
            .events()
            .iter()
            .any(|event| event.starts_with("POST ") && event.contains("git-receive-pack; rule api")),
        "{:?}",
        served.lab.events()
    );
}

/// Runs git's CGI program for clients that have the secret.
fn backend(root: &Path, seen: &Seen) -> Response<Full<Bytes>> {
    use base64::Engine as _;
    let wanted =
        base64::engine::general_purpose::STANDARD.encode(format!("x-access-token:{SECRET}"));
    if seen.headers.get("authorization").is_none_or(|value| *value != *format!("Basic {wanted}")) {
        let answer =
            Response::builder().status(401).header("www-authenticate", "Basic realm=\"r\"");
        return answer.body(Full::default()).expect("an answer");
    }
    let mut words = seen.line.split(' ');
    let method = words.next().unwrap_or_default();
    let uri = words.next().unwrap_or_default();
    let uri: hyper::Uri = uri.parse().expect("a URL");
    let header = |name| seen.headers.get(name).and_then(|it| it.to_str().ok()).unwrap_or_default();
    let mut command = Command::new("git");
    command.arg("http-backend").env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1");
    command.env("REQUEST_METHOD", method).env("PATH_INFO", uri.path());
    command.env("QUERY_STRING", uri.query().unwrap_or_default()).env("REMOTE_USER", "a");
    command.env("CONTENT_TYPE", header("content-type")).env("GIT_PROTOCOL", header("git-protocol"));
    command.env("HTTP_CONTENT_ENCODING", header("content-encoding"));
    command.env("CONTENT_LENGTH", seen.body.len().to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("git");
    child.stdin.take().expect("a pipe").write_all(&seen.body).expect("it is read");
    let output = child.wait_with_output().expect("it ends").stdout;
    let end = output.windows(4).position(|it| it == b"\r\n\r\n").expect("a head");
    let mut answer = Response::builder();
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        let Some((name, value)) = line.split_once(": ") else { continue };
        answer = match name {
            "Status" => answer.status(value.get(..3).unwrap_or_default()),
            _ => answer.header(name, value),
        };
    }
    answer.body(Full::from(output[end + 4..].to_vec())).expect("an answer")
}
