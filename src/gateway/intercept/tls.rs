//! The two TLS handshakes of an intercepted connection. The server's comes first, so that the cell
//! is offered the HTTP version that the server speaks.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Version;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{Acceptor, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsConnector};

use super::InterceptError;
use super::authority::InterceptAuthority;
use super::connection::{ByteStream, Upstream};

/// First byte of a TLS record that holds a handshake.
const HANDSHAKE: u8 = 0x16;
/// Time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
const H2: &[u8] = b"h2";
const HTTP11: &[u8] = b"http/1.1";

/// A connection of the cell, by how it begins.
pub(super) enum Begun<S> {
    Plain(Unread<S>),
    Tls(Box<Hello<S>>),
}

/// A connection whose ClientHello has been read.
pub(super) struct Hello<S>(StartHandshake<Unread<S>>);

impl<S: ByteStream> Hello<S> {
    /// Returns the name that the client asks for, in lower case.
    pub(super) fn name(&self) -> Option<String> {
        self.0.client_hello().server_name().map(str::to_ascii_lowercase)
    }

    /// Returns the HTTP versions that both the client and the gateway speak.
    fn versions(&self) -> Vec<Vec<u8>> {
        let hello = self.0.client_hello();
        let offered: Vec<_> = hello.alpn().into_iter().flatten().collect();
        let both = [H2, HTTP11].into_iter().filter(|version| offered.contains(version));
        both.map(<[u8]>::to_vec).collect()
    }
}

/// Waits for the first byte of the cell, which shows whether it speaks TLS.
pub(super) async fn begin<S: ByteStream>(mut client: S) -> io::Result<Begun<S>> {
    let mut first = [0];
    tokio::time::timeout(HANDSHAKE_TIMEOUT, client.read_exact(&mut first)).await??;
    let client = Unread { first: Some(first), stream: client };
    if first != [HANDSHAKE] {
        return Ok(Begun::Plain(client));
    }
    let hello = LazyConfigAcceptor::new(Acceptor::default(), client);
    Ok(Begun::Tls(Box::new(Hello(tokio::time::timeout(HANDSHAKE_TIMEOUT, hello).await??))))
}

/// TLS configuration of both sides: the authority for cells, the host's roots for servers.
#[derive(Debug)]
pub(super) struct Handshakes {
    pub(super) authority: InterceptAuthority,
    client: ClientConfig,
}

impl Handshakes {
    pub(super) fn new(authority: InterceptAuthority, roots: &[u8]) -> Result<Self, InterceptError> {
        let mut store = RootCertStore::empty();
        // A bundle may hold certificates that rustls rejects; the others count.
        store.add_parsable_certificates(CertificateDer::pem_slice_iter(roots).flatten());
        if store.is_empty() {
            return Err(
                rustls::Error::General("the bundle of roots holds no certificate".into()).into()
            );
        }
        let provider = Arc::new(ring::default_provider());
        let client =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut client = client.with_root_certificates(store).with_no_client_auth();
        client.resumption = Resumption::disabled();
        Ok(Self { authority, client })
    }

    /// Starts TLS with the server, whose certificate must be valid for `name`, then HTTP in a
    /// version that the cell speaks too. If the server cannot be verified, the returned upstream
    /// answers each request with the reason.
    pub(super) async fn connect<S: ByteStream>(
        &self,
        name: &str,
        hello: &Hello<S>,
        server: impl ByteStream,
    ) -> Result<(Version, Upstream), InterceptError> {
        let mut config = self.client.clone();
        config.alpn_protocols = hello.versions();
        let offered = version(config.alpn_protocols.first().map(Vec::as_slice));
        let broken = |reason: String| (offered, Upstream::broken(reason));
        let Ok(host) = ServerName::try_from(name.to_owned()) else {
            return Ok(broken("the name is none that a certificate can have".into()));
        };
        let connecting = TlsConnector::from(Arc::new(config)).connect(host, server);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => {
                let version = version(stream.get_ref().1.alpn_protocol());
                Ok((version, Upstream::new(stream, version).await?))
            }
            Ok(Err(error)) => Ok(broken(format!("the server's TLS cannot be trusted: {error}"))),
            Err(_) => Ok(broken("the server did not finish its TLS handshake".into())),
        }
    }

    /// Accepts the cell's TLS with a certificate for `name`.
    pub(super) async fn accept<S: ByteStream>(
        &self,
        name: &str,
        hello: Hello<S>,
        version: Version,
    ) -> Result<TlsStream<Unread<S>>, InterceptError> {
        let leaf = Arc::new(Leaf(self.authority.leaf(name)?));
        let provider = Arc::new(ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_no_client_auth().with_cert_resolver(leaf);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let chosen = if version == Version::HTTP_2 { H2 } else { HTTP11 };
        if !hello.versions().is_empty() {
            config.alpn_protocols = vec![chosen.to_vec()];
        }
        let accepted =
            tokio::time::timeout(HANDSHAKE_TIMEOUT, hello.0.into_stream(Arc::new(config))).await;
        accepted.map_err(io::Error::from).and_then(|it| it).map_err(InterceptError::Handshake)
    }
}

/// Returns the HTTP version that ALPN chose; HTTP/1.1 by default.
fn version(protocol: Option<&[u8]>) -> Version {
    if protocol == Some(H2) { Version::HTTP_2 } else { Version::HTTP_11 }
}

/// The one certificate of a connection.
#[derive(Debug)]
struct Leaf(Arc<CertifiedKey>);

impl ResolvesServerCert for Leaf {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// A stream whose first byte was read and is returned again.
#[derive(Debug)]
pub(super) struct Unread<S> {
    first: Option<[u8; 1]>,
    stream: S,
}

impl<S: ByteStream> AsyncRead for Unread<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buffer.put_slice(&first);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: ByteStream> AsyncWrite for Unread<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
