//! Encrypted Client Hello: a name within, which only the server can read, behind one that everybody can.

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

/// The name within.
const WITHIN: &str = "within.example.test";

/// Encryption that leaves all as it is, so that a test can look for what is in it.
#[derive(Debug)]
struct Clear;

impl Clear {
    fn sealed(plaintext: &[u8]) -> Vec<u8> {
        // With a tag, as of AES-128-GCM.
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

/// Of the server's side, which nobody has here.
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

/// Offers a name within, behind `public`, as a server's HTTPS record would have a client do.
fn behind(public: &str) -> EchMode {
    let prefixed = |bytes: Vec<u8>| {
        let length = u16::try_from(bytes.len()).expect("short").to_be_bytes();
        [&length[..], &bytes].concat()
    };
    let name = [&[u8::try_from(public.len()).expect("short")], public.as_bytes()].concat();
    // A number, the key with its kind, one suite, no bound on names, the public name, no extensions.
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

/// The ClientHello that a client sends.
async fn hello(lab: &Lab, mode: EchMode) -> Vec<u8> {
    let (client, mut far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(WITHIN).expect("a name");
    let connecting = lab.connector_with_ech(mode).connect(name, client);
    tokio::spawn(async move { drop(connecting.await) });
    let mut bytes = Vec::new();
    while read(&bytes) == FirstFlight::More {
        assert!(far.read_buf(&mut bytes).await.expect("it is sent") > 0, "no whole hello");
    }
    bytes
}

/// Returns true if the handshake went to its end, and did not take the name within.
fn is_rejected(error: &io::Error) -> bool {
    let told = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    matches!(
        told,
        Some(Error::PeerIncompatible(PeerIncompatible::ServerRejectedEncryptedClientHello(_)))
    )
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Where host and port alone are judged, this name is what is judged.
#[tokio::test]
async fn a_client_hello_with_ech_is_judged_by_its_outer_name() {
    let lab = api();
    for public in [HOST, "other.example.test"] {
        let bytes = hello(&lab, behind(public)).await;
        assert_eq!(read(&bytes), FirstFlight::Tls(Some(public.to_owned())));
        // The name within is there, and is not the one that was read.
        assert!(has(&bytes, WITHIN), "{public}");
    }
}

/// Where requests are judged, nobody is met by the name within: TLS ends at the gateway, which has no key for it.
#[tokio::test]
async fn no_request_is_sent_by_a_name_within_ech() {
    let lab = api();
    let refused = connected(&lab, WITHIN, behind(HOST)).await.expect_err("it was not taken");
    assert!(is_rejected(&refused), "{refused:?}");
    // The outer name must be one of the rule's, whatever is within: there is no handshake.
    let refused = connected(&lab, HOST, behind("other.example.org")).await.expect_err("no rule");
    assert!(!is_rejected(&refused), "{refused:?}");
    assert!(lab.seen().is_empty(), "{:?}", lab.seen());
    // What goes on to the server is the gateway's own ClientHello.
    let (server, mut far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(WITHIN).expect("a name");
    let connecting = lab.connector_with_ech(behind(HOST)).connect(name, lab.open_to(443, server));
    tokio::spawn(async move { drop(connecting.await) });
    let mut sent = Vec::new();
    while read(&sent) == FirstFlight::More {
        assert!(far.read_buf(&mut sent).await.expect("it is sent") > 0, "no whole hello");
    }
    assert_eq!(read(&sent), FirstFlight::Tls(Some(HOST.to_owned())));
    assert!(!has(&sent, WITHIN));
}

/// The control: an extension of that kind, with nothing in it, keeps nobody from what is granted, nor makes more of it.
#[tokio::test]
async fn requests_of_a_client_that_says_it_knows_ech_are_judged_as_others() {
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
