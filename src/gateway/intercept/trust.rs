//! Makes the files by which programs in a cell trust the run's authority in addition to the host's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// File name of the authority in a certificate directory: OpenSSL's hash of the authority's name.
const HASHED_NAME: &str = "6df93a24.0";
/// Default password of Java's key stores: the store holds nothing secret.
const JAVA_PASSWORD: &str = "changeit";

/// Variables that name the merged bundle for programs that do not look in /etc.
const BUNDLE_VARIABLES: [&str; 6] = [
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "GIT_SSL_CAINFO",
];

/// Contents of the files by which a cell trusts the authority, and how programs find them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustFiles {
    /// The host's bundle and the authority, in PEM: for the variables, and in place of the system's
    /// bundle.
    pub bundle: Vec<u8>,
    /// The authority only, in PEM: the file `hashed_name` in a certificate directory.
    pub authority: Vec<u8>,
    pub hashed_name: &'static str,
    /// Variables whose value is the path of the bundle.
    pub variables: [&'static str; 6],
    /// The whole bundle as Java's `cacerts` file, as Java reads no PEM.
    pub java: Vec<u8>,
}

/// The trust files of a cell as placed in a directory, and the variables that name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedTrust {
    /// Files by their names in the directory, which are those in Debian's /etc/ssl/certs.
    pub files: [(&'static str, Vec<u8>); 3],
    pub variables: Vec<(String, String)>,
}

impl TrustFiles {
    /// Returns the files of a cell by name, and the variables for programs to find them in
    /// `directory`.
    pub fn placed(self, directory: &str) -> PlacedTrust {
        let bundle = "ca-certificates.crt";
        let java = "java/cacerts";
        let path = format!("{directory}/{bundle}");
        let mut variables: Vec<_> =
            self.variables.iter().map(|name| ((*name).to_owned(), path.clone())).collect();
        let option = format!("-Djavax.net.ssl.trustStore={directory}/{java}");
        variables.push(("JAVA_TOOL_OPTIONS".to_owned(), option));
        let hashed = (self.hashed_name, self.authority);
        PlacedTrust { files: [(bundle, self.bundle), (java, self.java), hashed], variables }
    }

    /// Makes the files from the host's bundle and the authority's certificate.
    pub fn new(bundle: &[u8], authority: &[u8]) -> Self {
        let pem = pem(authority);
        let mut merged = bundle.to_vec();
        if !merged.is_empty() && !merged.ends_with(b"\n") {
            merged.push(b'\n');
        }
        merged.extend_from_slice(pem.as_bytes());
        let java = java_store(&merged);
        Self {
            bundle: merged,
            authority: pem.into_bytes(),
            hashed_name: HASHED_NAME,
            variables: BUNDLE_VARIABLES,
            java,
        }
    }
}

/// Encodes a certificate in PEM (RFC 7468).
fn pem(certificate: &[u8]) -> String {
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for (at, letter) in STANDARD.encode(certificate).chars().enumerate() {
        if at > 0 && at % 64 == 0 {
            text.push('\n');
        }
        text.push(letter);
    }
    text + "\n-----END CERTIFICATE-----\n"
}

/// Encodes the certificates of a bundle as a JKS key store, version 2. Every Java reads it, and
/// unlike PKCS#12 it needs no library for ASN.1 and old ciphers.
fn java_store(bundle: &[u8]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut count = 0_u32;
    for certificate in CertificateDer::pem_slice_iter(bundle).flatten() {
        count += 1;
        // A trusted entry: its alias, time of creation, and the certificate.
        entries.extend(2_u32.to_be_bytes());
        entries.extend(java_text(&format!("ca{count}")));
        entries.extend(0_u64.to_be_bytes());
        entries.extend(java_text("X.509"));
        entries.extend(u32::try_from(certificate.len()).unwrap_or(0).to_be_bytes());
        entries.extend_from_slice(&certificate);
    }
    let mut store = 0xfeed_feed_u32.to_be_bytes().to_vec();
    store.extend(2_u32.to_be_bytes());
    store.extend(count.to_be_bytes());
    store.extend(entries);
    // The checksum that the format prescribes, against accidental damage.
    let mut sum = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    let password: Vec<u8> = JAVA_PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    for part in [password.as_slice(), b"Mighty Aphrodite", &store] {
        sum.update(part);
    }
    store.extend_from_slice(sum.finish().as_ref());
    store
}

/// Encodes a text as Java's `DataOutput.writeUTF` does.
fn java_text(text: &str) -> Vec<u8> {
    let mut bytes = u16::try_from(text.len()).unwrap_or(0).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use model::egress::HostPattern;

    use super::*;
    use crate::intercept::InterceptAuthority;

    fn authority() -> Vec<u8> {
        let hosts: [HostPattern; 1] = ["a.example.test".parse().expect("a host")];
        InterceptAuthority::generate(&hosts).expect("an authority").certificate().to_vec()
    }

    #[test]
    fn a_bundle_has_the_hosts_certificates_and_the_authority() {
        let first = authority();
        let second = authority();
        // The host's bundle may end without a line break.
        let host = pem(&first);
        let files = TrustFiles::new(host.trim_end().as_bytes(), &second);
        let bundled: Vec<_> = CertificateDer::pem_slice_iter(&files.bundle).flatten().collect();
        assert_eq!(bundled, [CertificateDer::from(first), CertificateDer::from(second.clone())]);
        let alone: Vec<_> = CertificateDer::pem_slice_iter(&files.authority).flatten().collect();
        assert_eq!(alone, [CertificateDer::from(second)]);
    }

    #[test]
    fn openssl_finds_the_authority_by_the_name_of_its_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("it.pem");
        std::fs::write(&path, TrustFiles::new(b"", &authority()).authority).expect("a file");
        let hashed =
            Command::new("openssl").args(["x509", "-hash", "-noout", "-in"]).arg(path).output();
        let Ok(hashed) = hashed else {
            assert!(std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "openssl is not there");
            return;
        };
        assert_eq!(format!("{}.0", String::from_utf8_lossy(&hashed.stdout).trim()), HASHED_NAME);
    }
}
