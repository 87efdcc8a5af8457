//! The lab of these tests: a server with a test authority, interception in front of it, and records
//! of both.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::egress::{
    EgressRule, HostPattern, HttpRule, Protocols, SecretForm, SecretSource, SecretUse,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa};
use rustls::client::EchMode;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::intercept::key::CertificateKey;
use crate::intercept::{
    ByteStream, CellInterception, InterceptAuthority, Intercepted, Interception, PinnedRule,
    RequestEvents, RequestRule, SecretValue,
};
use crate::refusal::NetworkRefusal;

pub(super) const SEED: [u8; 16] = *b"0123456789abcdef";
pub(super) const SECRET: &str = "ghp_Real/Value+42";
pub(super) const HOST: &str = "api.example.test";

/// A request as the server received it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Method, target and version.
    pub(super) line: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Records the events of requests.
#[derive(Debug, Default)]
pub(super) struct RecordedEvents(pub(super) Mutex<Vec<String>>);

impl RequestEvents for RecordedEvents {
    fn denied(&self, request: &str, refusal: NetworkRefusal) {
        self.0.lock().expect("no panic").push(format!("{request}; {}", refusal.reason));
    }

    fn answered(&self, request: &str, status: u16) {
        self.0.lock().expect("no panic").push(format!("{request} {status}"));
    }
}

type Answer = Arc<dyn Fn(&Seen) -> Response<Full<Bytes>> + Send + Sync>;

/// The server: its TLS configuration, its answers, and the requests that it received.
#[derive(Clone)]
pub(super) struct Origin {
    tls: Option<ServerConfig>,
    answer: Answer,
    pub(super) seen: Arc<Mutex<Vec<Seen>>>,
}

impl Origin {
    /// Returns the server's side of a TLS handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.tls.clone().expect("a server with TLS")))
    }

    /// Serves one connection.
    pub(super) async fn serve(self, stream: impl ByteStream) {
        let Some(config) = self.tls.clone() else { return self.http(stream, false).await };
        let Ok(stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else { return };
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        self.http(stream, is_h2).await;
    }

    async fn http(self, stream: impl ByteStream, is_h2: bool) {
        let service = service_fn(move |request: Request<Incoming>| {
            let this = self.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let line = format!("{} {} {:?}", parts.method, parts.uri, parts.version);
                let seen = Seen { line, headers: parts.headers, body };
                let answer = (this.answer)(&seen);
                this.seen.lock().expect("no panic").push(seen);
                Ok::<_, hyper::Error>(answer)
            }
        });
        let io = TokioIo::new(stream);
        drop(match is_h2 {
            true => {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                builder.serve_connection(io, service).await
            }
            false => hyper::server::conn::http1::Builder::new().serve_connection(io, service).await,
        });
    }
}

/// The interception of one cell, with a server behind it.
pub(super) struct Lab {
    pub(super) origin: Origin,
    pub(super) events: Arc<RecordedEvents>,
    pub(super) cell: CellInterception,
    pub(super) authority: Vec<u8>,
    pub(super) rules: Vec<RequestRule>,
    /// Names of each rule that are resolved to the server's address.
    pub(super) names: Vec<Vec<String>>,
}

/// Makes a rule for [`HOST`]; with a form it puts the secret into `authorization`.
pub(super) fn rule(http: &[(&[&str], &[&str])], form: Option<SecretForm>) -> RequestRule {
    let words = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect();
    let http = http
        .iter()
        .map(|(methods, paths)| HttpRule { methods: words(methods), paths: words(paths) });
    let secret = form.map(|form| SecretUse {
        name: "token".into(),
        header: "authorization".into(),
        form,
        env: "TOKEN".into(),
    });
    let rule = EgressRule {
        id: "api".into(),
        hosts: vec![HOST.parse().expect("a host")],
        nets: Vec::new(),
        ports: Vec::new(),
        protocols: Protocols::TCP,
        http: http.collect(),
        secret,
        why: String::new(),
    };
    RequestRule::new(&rule, form.map(|_| secret_value())).expect("a rule")
}

fn secret_value() -> SecretValue {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), SECRET).expect("a file");
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600)).expect("a mode");
    SecretValue::read("token", &SecretSource::File(file.path().into())).expect("a secret")
}

/// Returns the placeholder of the secret in the lab's cell.
pub(super) fn placeholder() -> String {
    model::egress::placeholder("token", &SEED)
}

impl Lab {
    /// Makes a lab whose server offers the protocols `alpn` over TLS with a certificate for
    /// `certified`.
    pub(super) fn tls(rules: Vec<RequestRule>, alpn: &[&str], certified: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = CertificateKey::generate().expect("a key");
        key.identify(&mut params);
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a root");
        let key = CertificateKey::generate().expect("a key");
        let mut leaf = CertificateParams::new([certified.to_owned()]).expect("a name");
        key.identify(&mut leaf);
        let leaf = CertificateDer::from(leaf.signed_by(&key, &issuer).expect("a leaf"));
        let key = key.into_private_key();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().expect("versions");
        let mut config =
            config.with_no_client_auth().with_single_cert(vec![leaf], key).expect("a key");
        config.alpn_protocols = alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
        Self::new(
            rules,
            Some(config),
            &String::from_utf8(super::super::trust::TrustFiles::new(b"", issuer.der()).authority)
                .expect("text"),
        )
    }

    /// Makes a lab whose server speaks plain HTTP.
    pub(super) fn plain(rules: Vec<RequestRule>) -> Self {
        let mut lab = Self::tls(rules, &[], HOST);
        lab.origin.tls = None;
        lab
    }

    fn new(rules: Vec<RequestRule>, tls: Option<ServerConfig>, roots: &str) -> Self {
        let hosts: Vec<HostPattern> =
            vec![HOST.parse().expect("a host"), "*.example.test".parse().expect("hosts")];
        let authority = InterceptAuthority::generate(&hosts).expect("an authority");
        let interception = Interception::new(authority, roots.as_bytes()).expect("roots");
        let answer: Answer = Arc::new(|_| Response::new(Full::from("hello\n")));
        Self {
            origin: Origin { tls, answer, seen: Arc::default() },
            events: Arc::default(),
            authority: interception.certificate().to_vec(),
            cell: interception.for_cell(SEED),
            names: rules.iter().map(|_| vec![HOST.into()]).collect(),
            rules,
        }
    }

    /// Sets how the server answers.
    pub(super) fn answering(
        mut self,
        answer: impl Fn(&Seen) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        self.origin.answer = Arc::new(answer);
        self
    }

    /// Sets which names of each rule are resolved to the server's address.
    pub(super) fn pinned(mut self, names: &[&[&str]]) -> Self {
        let words = |words: &&[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        self.names = names.iter().map(words).collect();
        self
    }

    /// Opens a connection through interception to the server, on `port` as the cell sees it.
    pub(super) fn open(&self, port: u16) -> DuplexStream {
        let (server, far) = tokio::io::duplex(64 * 1024);
        tokio::spawn(self.origin.clone().serve(far));
        self.open_to(port, server)
    }

    /// Opens a connection through interception to `server`.
    pub(super) fn open_to(&self, port: u16, server: DuplexStream) -> DuplexStream {
        let (client, near) = tokio::io::duplex(64 * 1024);
        let rules = self.rules.iter().cloned().zip(self.names.iter().cloned());
        let rules = rules.map(|(rule, names)| PinnedRule { rule, names }).collect();
        let to = Intercepted { port, rules };
        let cell = self.cell.clone();
        let events = Arc::clone(&self.events);
        tokio::spawn(async move {
            // The client sees how it ended.
            drop(cell.serve(to, near, server, events).await);
        });
        client
    }

    /// Opens a TLS connection for `name` with these protocols, trusting the authority only.
    pub(super) async fn open_tls(
        &self,
        name: &str,
        alpn: &[&str],
    ) -> std::io::Result<tokio_rustls::client::TlsStream<DuplexStream>> {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        self.connector(alpn).connect(name, self.open(443)).await
    }

    /// Makes a TLS connection for HTTP/1.1 over an open stream.
    pub(super) async fn tls_over(&self, stream: DuplexStream) -> impl ByteStream {
        let name = ServerName::try_from(HOST).expect("a name");
        self.connector(&["http/1.1"]).connect(name, stream).await.expect("a handshake")
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.authority.clone())).expect("a root");
        roots
    }

    /// Makes a TLS client for HTTP/1.1 that offers Encrypted Client Hello.
    pub(super) fn connector_with_ech(&self, mode: EchMode) -> TlsConnector {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_ech(mode).expect("TLS 1.3");
        let mut config = config.with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    fn connector(&self, alpn: &[&str]) -> TlsConnector {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().expect("versions");
        let mut config = config.with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }

    /// Sends bytes over TLS as HTTP/1.1; returns everything that is received.
    pub(super) async fn raw_tls(&self, request: &str) -> String {
        let stream = self.open_tls(HOST, &["http/1.1"]).await.expect("a handshake");
        all(stream, request.as_bytes()).await
    }

    /// Sends bytes without TLS; returns everything that is received.
    pub(super) async fn raw(&self, request: &str) -> String {
        all(self.open(80), request.as_bytes()).await
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.origin.seen.lock().expect("no panic").clone()
    }

    pub(super) fn events(&self) -> Vec<String> {
        self.events.0.lock().expect("no panic").clone()
    }
}

/// Sends bytes, closes the sending side, and reads until the other side closes.
pub(super) async fn all(mut stream: impl ByteStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.expect("it is read");
    stream.flush().await.expect("it is read");
    stream.shutdown().await.expect("it is read");
    let mut answer = Vec::new();
    // A reset connection ends in an error; the bytes before it count.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}
