//! Tests of Encrypted Client Hello: an inner name that only the server can read, behind an outer
//! name in the clear.

use std::io;

use rustls::client::{EchConfig, EchGreaseConfig, EchMode};
use rustls::crypto::hpke::{
    EncapsulatedSecret, Hpke, HpkeOpener, HpkePrivateKey, HpkePublicKey, HpkeSealer, HpkeSuite,
};
use rustls::internal::msgs::enums::{HpkeAead, HpkeKdf, HpkeKem};
use rustls::internal::msgs::handshake::HpkeSymmetricCipherSuite;
use rustls::pki_types::{EchConfigListBytes, ServerName};
use rustls::{Error, PeerIncompatible};
use tokio::io::AsyncReadExt as _;

use super::lab::{HOST, Lab, all, rule};
use crate::worker::first_flight::{FirstFlight, read};

/// The inner name.
const INNER_NAME: &str = "within.example.test";

/// HPKE that does not encrypt, so that a test can look into the result.
#[derive(Debug)]
struct Clear;

impl Clear {
    fn sealed(plaintext: &[u8]) -> Vec<u8> {
        // A tag of the length that AES-128-GCM has.
        [plaintext, &[0; 16]].concat()
    }

    fn secret() -> EncapsulatedSecret {
        EncapsulatedSecret(vec![1; 32])
    }
}

impl HpkeSealer for Clear {
    fn seal(&mut self, _: &[u8], plaintext: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(Self::sealed(plaintext))
    }
}

/// Fails the operations of a server, which no test needs.
fn no_server<T>() -> Result<T, Error> {
    Err(Error::General("clients do not open what is sealed".into()))
}

impl Hpke for Clear {
    fn seal(
        &self,
        _: &[u8],
        _: &[u8],
        plaintext: &[u8],
        _: &HpkePublicKey,
    ) -> Result<(EncapsulatedSecret, Vec<u8>), Error> {
        Ok((Self::secret(), Self::sealed(plaintext)))
    }

    fn setup_sealer(
        &self,
        _: &[u8],
        _: &HpkePublicKey,
    ) -> Result<(EncapsulatedSecret, Box<dyn HpkeSealer>), Error> {
        Ok((Self::secret(), Box::new(Self)))
    }

    fn open(
        &self,
        _: &EncapsulatedSecret,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &HpkePrivateKey,
    ) -> Result<Vec<u8>, Error> {
        no_server()
    }

    fn setup_opener(
        &self,
        _: &EncapsulatedSecret,
        _: &[u8],
        _: &HpkePrivateKey,
    ) -> Result<Box<dyn HpkeOpener>, Error> {
        no_server()
    }

    fn generate_key_pair(&self) -> Result<(HpkePublicKey, HpkePrivateKey), Error> {
        no_server()
    }

    fn suite(&self) -> HpkeSuite {
        let sym = HpkeSymmetricCipherSuite {
            kdf_id: HpkeKdf::HKDF_SHA256,
            aead_id: HpkeAead::AES_128_GCM,
        };
        HpkeSuite { kem: HpkeKem::DHKEM_X25519_HKDF_SHA256, sym }
    }
}

/// Offers the inner name behind `public`, as the HTTPS record of a server would have a client do.
fn ech_behind(public: &str) -> EchMode {
    let prefixed = |bytes: Vec<u8>| {
        let length = u16::try_from(bytes.len()).expect("short").to_be_bytes();
        [&length[..], &bytes].concat()
    };
    let name = [&[u8::try_from(public.len()).expect("short")], public.as_bytes()].concat();
    // Config id, key with its kind, one cipher suite, no maximum name length, the public name, no
    // extensions.
    let parts = [
        vec![7, 0, 0x20],
        prefixed(vec![1; 32]),
        prefixed(vec![0, 1, 0, 1]),
        vec![0],
        name,
        vec![0, 0],
    ];
    let config = [vec![0xfe, 0x0d], prefixed(parts.concat())].concat();
    let list = EchConfigListBytes::from(prefixed(config));
    EchMode::Enable(EchConfig::new(list, &[&Clear]).expect("a configuration"))
}

fn api() -> Lab {
    Lab::tls(vec![rule(&[(&["GET"], &["/ok/**"])], None)], &["http/1.1"], HOST)
}

/// Connects through interception for `name`.
async fn connected(
    lab: &Lab,
    name: &str,
    mode: EchMode,
) -> io::Result<tokio_rustls::client::TlsStream<tokio::io::DuplexStream>> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    lab.connector_with_ech(mode).connect(name, lab.open(443)).await
}

/// Returns the ClientHello that a client sends.
async fn hello(lab: &Lab, mode: EchMode) -> Vec<u8> {
    let (client, mut far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(INNER_NAME).expect("a name");
    let connecting = lab.connector_with_ech(mode).connect(name, client);
    tokio::spawn(async move { drop(connecting.await) });
    let mut bytes = Vec::new();
    while read(&bytes) == FirstFlight::More {
        assert!(far.read_buf(&mut bytes).await.expect("it is sent") > 0, "no whole hello");
    }
    bytes
}

/// Returns true if the handshake completed but the server rejected the inner name.
fn is_rejected(error: &io::Error) -> bool {
    let rejection = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    matches!(
        rejection,
        Some(Error::PeerIncompatible(PeerIncompatible::ServerRejectedEncryptedClientHello(_)))
    )
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Where host and port are judged, only the outer name counts.
#[tokio::test]
async fn a_client_hello_with_ech_is_judged_by_its_outer_name() {
    let lab = api();
    for public in [HOST, "other.example.test"] {
        let bytes = hello(&lab, ech_behind(public)).await;
        assert_eq!(read(&bytes), FirstFlight::Tls(Some(public.to_owned())));
        // The inner name is there, but it is not the one that was read.
        assert!(has(&bytes, INNER_NAME), "{public}");
    }
}

/// Where requests are judged, the inner name reaches no server: TLS ends at the gateway, which has
/// no key for it.
#[tokio::test]
async fn no_request_is_sent_by_a_name_within_ech() {
    let lab = api();
    let refused =
        connected(&lab, INNER_NAME, ech_behind(HOST)).await.expect_err("it was not taken");
    assert!(is_rejected(&refused), "{refused:?}");
    // Without a rule for the outer name there is no handshake, whatever the inner name is.
    let refused =
        connected(&lab, HOST, ech_behind("other.example.org")).await.expect_err("no rule");
    assert!(!is_rejected(&refused), "{refused:?}");
    assert!(lab.seen().is_empty(), "{:?}", lab.seen());
    // The server gets a ClientHello of the gateway.
    let (server, mut far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(INNER_NAME).expect("a name");
    let connecting =
        lab.connector_with_ech(ech_behind(HOST)).connect(name, lab.open_to(443, server));
    tokio::spawn(async move { drop(connecting.await) });
    let mut sent = Vec::new();
    while read(&sent) == FirstFlight::More {
        assert!(far.read_buf(&mut sent).await.expect("it is sent") > 0, "no whole hello");
    }
    assert_eq!(read(&sent), FirstFlight::Tls(Some(HOST.to_owned())));
    assert!(!has(&sent, INNER_NAME));
}

/// Positive control: an ECH extension with nothing in it neither blocks nor widens what is granted.
#[tokio::test]
async fn requests_of_a_client_with_grease_ech_are_judged_as_usual() {
    let lab = api();
    for (path, status) in [("/ok/a", "HTTP/1.1 200 "), ("/no", "HTTP/1.1 403 ")] {
        let mode = EchMode::Grease(EchGreaseConfig::new(&Clear, HpkePublicKey(vec![1; 32])));
        let stream = connected(&lab, HOST, mode).await.expect("a handshake");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        let answer = all(stream, request.as_bytes()).await;
        assert!(answer.starts_with(status), "{path}: {answer}");
    }
    let lines: Vec<_> = lab.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /ok/a HTTP/1.1"]);
}
