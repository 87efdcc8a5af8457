//! Client certificates: which client the certificate of a connection names, as long as it is valid.
//!
//! rustls verifies a certificate in the handshake. A connection can last for longer than its certificate, and a resumed
//! TLS session has no certificate verified, so it is verified again here: at the first request, after the files were
//! read again, and each minute.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use webpki::EndEntityCert;

use super::ClientRights;
use config::certificates::CertificateSetting;
use config::policy::Principal;

/// Time for which a verified certificate is not verified again.
pub(super) const VERIFIED_TIME: Duration = Duration::from_secs(60);

/// Authorities whose certificates are accepted, and the clients that their certificates name.
#[derive(Debug, Clone)]
pub struct CertificateClients {
    pub verifier: Arc<dyn ClientCertVerifier>,
    pub names: Vec<CertificateSetting>,
}

/// Certificate that a client presented for its connection.
#[derive(Debug)]
pub(crate) struct PresentedCertificate {
    chain: Vec<CertificateDer<'static>>,
    /// Its names, read once.
    names: PresentedNames,
    /// Time of the last verification, and the verifier that was used.
    verified: Mutex<Option<(Instant, Arc<dyn ClientCertVerifier>)>>,
}

/// Names of a certificate: hosts in lower case, and URIs.
#[derive(Debug, Default, PartialEq, Eq)]
struct PresentedNames {
    hosts: BTreeSet<String>,
    uris: BTreeSet<String>,
}

/// Reason why a certificate names no client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateFault {
    Invalid,
    Unknown,
}

impl PresentedCertificate {
    /// Takes the certificates that a client sent, its own first. Returns `None` if it sent no certificate.
    pub(crate) fn new(chain: Option<&[CertificateDer<'_>]>) -> Option<Self> {
        let chain: Vec<_> = chain?.iter().map(|one| one.clone().into_owned()).collect();
        let names = PresentedNames::of(chain.first()?);
        Some(Self { chain, names, verified: Mutex::default() })
    }

    /// Returns true if the certificate is valid now.
    fn is_valid(&self, verifier: &Arc<dyn ClientCertVerifier>) -> bool {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = verified
            .as_ref()
            .is_some_and(|(at, by)| at.elapsed() < VERIFIED_TIME && Arc::ptr_eq(by, verifier));
        if is_fresh {
            return true;
        }
        let Some((own, others)) = self.chain.split_first() else { return false };
        let is_valid = verifier.verify_client_cert(own, others, UnixTime::now()).is_ok();
        *verified = is_valid.then(|| (Instant::now(), Arc::clone(verifier)));
        is_valid
    }
}

impl PresentedNames {
    /// Reads the names of a certificate. One that cannot be read has no names.
    fn of(certificate: &CertificateDer<'_>) -> Self {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Self::default() };
        Self {
            hosts: certificate.valid_dns_names().map(str::to_ascii_lowercase).collect(),
            uris: certificate.valid_uri_names().map(str::to_owned).collect(),
        }
    }

    /// Returns true if the certificate has this name of the configuration: a URI, which has a colon, or that of a host.
    fn have(&self, name: &str) -> bool {
        if name.contains(':') { self.uris.contains(name) } else { self.hosts.contains(name) }
    }
}

impl CertificateClients {
    /// Returns the client of a certificate.
    ///
    /// # Errors
    /// A certificate that is not valid any more, or whose names are of no client, or of more than one.
    pub(super) fn client(
        &self,
        certificate: &PresentedCertificate,
    ) -> Result<(Principal, ClientRights), CertificateFault> {
        if !certificate.is_valid(&self.verifier) {
            return Err(CertificateFault::Invalid);
        }
        let mut found =
            self.names.iter().filter(|one| certificate.names.have(&one.name)).map(of_name);
        let first = found.next().ok_or(CertificateFault::Unknown)?;
        match found.all(|other| other == first) {
            true => Ok(first),
            false => Err(CertificateFault::Unknown),
        }
    }

    /// Returns every client, some of them more than once.
    pub(super) fn clients(&self) -> impl Iterator<Item = (Principal, ClientRights)> {
        self.names.iter().map(of_name)
    }
}

fn of_name(one: &CertificateSetting) -> (Principal, ClientRights) {
    let rights = if one.operator { ClientRights::Operator } else { ClientRights::Agent };
    (Principal::named(&one.client), rights)
}
