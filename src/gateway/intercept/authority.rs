//! The certificate authority of one run of a server, and the certificates it issues for intercepted
//! hosts.
//!
//! *Invariant:* the key exists only in the memory of the gateway and its workers. Name constraints
//! in the authority's certificate limit it to the intercepted names, so that a stolen key is
//! useless for other hosts.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use model::egress::HostPattern;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyUsagePurpose, NameConstraints,
};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::key::CertificateKey;

/// Name of the authority. `trust` has the file name that OpenSSL derives from it.
const NAME: &str = "cofferdam egress gateway";
/// Cells share the host's clock; a test server's clock may lag.
const BACKDATED: Duration = Duration::from_secs(24 * 3600);
/// Longer than a server runs.
const AUTHORITY_LIFE: Duration = Duration::from_secs(5 * 365 * 24 * 3600);
/// Some clients reject certificates valid for more than 398 days.
const LEAF_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Age at which a host gets a new certificate.
const RENEWAL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum number of cached certificates: the cell chooses the names below a wildcard.
const MAX_LEAVES: usize = 256;

/// An authority for the hosts whose requests are intercepted.
pub struct InterceptAuthority {
    issuer: CertifiedIssuer<'static, CertificateKey>,
    leaves: Mutex<HashMap<String, (SystemTime, Arc<CertifiedKey>)>>,
}

impl fmt::Debug for InterceptAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InterceptAuthority(hidden)")
    }
}

impl InterceptAuthority {
    /// Generates a key and a certificate that is valid for `hosts` only.
    ///
    /// # Errors
    /// If no random numbers are available.
    pub fn generate<'a>(
        hosts: impl IntoIterator<Item = &'a HostPattern>,
    ) -> Result<Self, rcgen::Error> {
        let mut params = valid_for(AUTHORITY_LIFE, DnType::CommonName);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let name = |host: &HostPattern| {
            let host = host.to_string();
            // A name constraint covers all names below it.
            GeneralSubtree::DnsName(host.strip_prefix("*.").unwrap_or(&host).to_owned())
        };
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: hosts.into_iter().map(name).collect(),
            excluded_subtrees: vec![
                GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])),
                GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])),
            ],
        });
        let key = CertificateKey::generate()?;
        key.identify(&mut params);
        let issuer = CertifiedIssuer::self_signed(params, key)?;
        Ok(Self { issuer, leaves: Mutex::default() })
    }

    /// Returns the DER certificate, for cells to trust.
    pub fn certificate(&self) -> &[u8] {
        self.issuer.der()
    }

    /// Returns a key with a certificate for `host`, cached.
    pub(super) fn leaf(&self, host: &str) -> Result<Arc<CertifiedKey>, rcgen::Error> {
        let now = SystemTime::now();
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        let is_young = |made: SystemTime| now.duration_since(made).is_ok_and(|age| age < RENEWAL);
        if let Some((_, leaf)) = leaves.get(host).filter(|(made, _)| is_young(*made)) {
            return Ok(Arc::clone(leaf));
        }
        let leaf = Arc::new(self.issue(host)?);
        if leaves.len() >= MAX_LEAVES {
            leaves.clear();
        }
        leaves.insert(host.to_owned(), (now, Arc::clone(&leaf)));
        Ok(leaf)
    }

    fn issue(&self, host: &str) -> Result<CertifiedKey, rcgen::Error> {
        // Not the common name, which clients compare with the host; the alternative name is what
        // counts.
        let mut params = valid_for(LEAF_LIFE, DnType::OrganizationName);
        params.subject_alt_names = names(host)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // A new key each time: the serial number is derived from it and must differ.
        let key = CertificateKey::generate()?;
        key.identify(&mut params);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = ring::sign::any_supported_type(&key.into_private_key())
            .map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
        Ok(CertifiedKey::new(vec![CertificateDer::from(certificate)], key))
    }
}

/// Returns the alternative names of a certificate for `host`.
fn names(host: &str) -> Result<Vec<rcgen::SanType>, rcgen::Error> {
    Ok(CertificateParams::new([host.to_owned()])?.subject_alt_names)
}

/// Returns parameters of a certificate that is valid from now on.
fn valid_for(life: Duration, kind: DnType) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.not_before = (now - BACKDATED).into();
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
        let leaf = leaf.cert.first().expect("it");
        let now = UnixTime::now();
        verifier.verify_server_cert(leaf, &[], &name, &[], now).map(|_| ())
    }

    #[test]
    fn certificates_are_valid_for_intercepted_hosts_only() {
        let authority = authority(&["pypi.org", "*.example.net"]);
        for host in ["pypi.org", "a.example.net", "a.b.example.net"] {
            verified(&authority, host).expect(host);
        }
        for host in ["github.com", "example.org", "xpypi.org", "127.0.0.1", "10.0.0.1"] {
            verified(&authority, host).expect_err(host);
        }
    }

    #[test]
    fn certificates_are_cached_and_differ_in_their_keys() {
        let authority = authority(&["*.example.net"]);
        let first = authority.leaf("a.example.net");
        let again = authority.leaf("a.example.net");
        assert!(Arc::ptr_eq(&first.expect("one"), &again.expect("one")));
        let one = authority.leaf("b.example.net").expect("one");
        assert_ne!(one.cert, authority.leaf("a.example.net").expect("one").cert);
        for at in 0..2 * MAX_LEAVES {
            authority.leaf(&format!("h{at}.example.net")).expect("one");
        }
        assert!(authority.leaves.lock().expect("no panic").len() <= MAX_LEAVES);
    }
}
