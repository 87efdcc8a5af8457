//! The certificate authority of a server's run, and the certificates of the hosts that it stands for.
//!
//! *Invariant:* its key is in the gateway and its workers alone; it is written nowhere. The authority's certificate
//! limits it to the intercepted names, so that a stolen key is of use against no others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use model::egress::HostPattern;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

/// Name of the authority. `trust` has the file name that OpenSSL makes of it.
const NAME: &str = "cofferdam egress gateway";
/// Clocks of cells are the host's; the server of a test may lag.
const BEFORE: Duration = Duration::from_secs(24 * 3600);
/// Longer than a server runs.
const AUTHORITY_LIFE: Duration = Duration::from_secs(5 * 365 * 24 * 3600);
/// Some clients take no certificate of more than 398 days.
const LEAF_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Age at which a host gets a new certificate.
const RENEWAL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Certificates kept: a wildcard's names are the cell's choice.
const KEPT: usize = 256;

/// An authority for the hosts whose requests are read.
pub struct InterceptAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    leaves: Mutex<HashMap<String, (SystemTime, Arc<CertifiedKey>)>>,
}

impl fmt::Debug for InterceptAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InterceptAuthority(hidden)")
    }
}

impl InterceptAuthority {
    /// Makes a key and a certificate that is valid for `hosts` alone.
    ///
    /// # Errors
    /// When no random numbers can be had.
    pub fn generate<'a>(
        hosts: impl IntoIterator<Item = &'a HostPattern>,
    ) -> Result<Self, rcgen::Error> {
        let mut params = lasting(AUTHORITY_LIFE, DnType::CommonName);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let name = |host: &HostPattern| {
            let host = host.to_string();
            // A constraint takes the names below its own.
            GeneralSubtree::DnsName(host.strip_prefix("*.").unwrap_or(&host).to_owned())
        };
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: hosts.into_iter().map(name).collect(),
            excluded_subtrees: vec![
                GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])),
                GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])),
            ],
        });
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer, leaves: Mutex::default() })
    }

    /// Returns the authority's certificate, which cells are told to trust.
    pub fn certificate(&self) -> &[u8] {
        self.issuer.der()
    }

    /// Returns a key with a certificate for `host`.
    pub(super) fn leaf(&self, host: &str) -> Result<Arc<CertifiedKey>, rcgen::Error> {
        let now = SystemTime::now();
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        let is_young = |made: SystemTime| now.duration_since(made).is_ok_and(|age| age < RENEWAL);
        if let Some((_, leaf)) = leaves.get(host).filter(|(made, _)| is_young(*made)) {
            return Ok(Arc::clone(leaf));
        }
        let leaf = Arc::new(self.issue(host)?);
        if leaves.len() >= KEPT {
            leaves.clear();
        }
        leaves.insert(host.to_owned(), (now, Arc::clone(&leaf)));
        Ok(leaf)
    }

    fn issue(&self, host: &str) -> Result<CertifiedKey, rcgen::Error> {
        // Not the common name, which clients compare with the host's; the alternative name is what counts.
        let mut params = lasting(LEAF_LIFE, DnType::OrganizationName);
        params.subject_alt_names = names(host)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // A key for each, so that serial numbers, which are made of it, differ.
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key =
            ring::sign::any_supported_type(&key).map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
        Ok(CertifiedKey::new(vec![CertificateDer::from(certificate)], key))
    }
}

/// Returns the alternative names of a certificate for `host`.
fn names(host: &str) -> Result<Vec<rcgen::SanType>, rcgen::Error> {
    Ok(CertificateParams::new([host.to_owned()])?.subject_alt_names)
}

/// Begins a certificate that is valid from now on.
fn lasting(life: Duration, kind: DnType) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + life).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(kind, NAME);
    params
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    fn authority(hosts: &[&str]) -> InterceptAuthority {
        let hosts: Vec<HostPattern> =
            hosts.iter().map(|host| host.parse().expect("a host")).collect();
        InterceptAuthority::generate(&hosts).expect("an authority")
    }

    /// Verifies the authority's certificate for `host` as a client would.
    fn verified(authority: &InterceptAuthority, host: &str) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(authority.certificate().to_vec())).expect("a root");
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().expect("a verifier");
        let leaf = authority.leaf(host).expect("a leaf");
        let name = ServerName::try_from(host.to_owned()).expect("a name");
        let (leaf, now) = (leaf.cert.first().expect("it"), UnixTime::now());
        verifier.verify_server_cert(leaf, &[], &name, &[], now).map(|_| ())
    }

    #[test]
    fn a_certificate_holds_for_intercepted_hosts_and_for_no_other() {
        let authority = authority(&["pypi.org", "*.example.net"]);
        for host in ["pypi.org", "a.example.net", "a.b.example.net"] {
            verified(&authority, host).expect(host);
        }
        for host in ["github.com", "example.org", "xpypi.org", "127.0.0.1", "10.0.0.1"] {
            verified(&authority, host).expect_err(host);
        }
    }

    #[test]
    fn certificates_are_kept_and_differ_in_their_keys() {
        let authority = authority(&["*.example.net"]);
        let (first, again) = (authority.leaf("a.example.net"), authority.leaf("a.example.net"));
        assert!(Arc::ptr_eq(&first.expect("one"), &again.expect("one")));
        let one = authority.leaf("b.example.net").expect("one");
        assert_ne!(one.cert, authority.leaf("a.example.net").expect("one").cert);
        for at in 0..2 * KEPT {
            authority.leaf(&format!("h{at}.example.net")).expect("one");
        }
        assert!(authority.leaves.lock().expect("no panic").len() <= KEPT);
    }
}
