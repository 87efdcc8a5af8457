//! Keys of certificates.
//!
//! rcgen has a type for them, with its feature `ring`. But cargo then also locks a parser of
//! certificates that is never built, with all that it depends on. So ring makes the keys here, and
//! rcgen signs with them by its own trait.

use rcgen::{
    CertificateParams, Error, KeyIdMethod, PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber,
    SignatureAlgorithm, SigningKey,
};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Length of serial numbers and of identifiers of keys (RFC 5280, RFC 7093).
const ID_BYTES: usize = 20;

/// A key of the curve P-256.
pub(super) struct CertificateKey {
    pair: EcdsaKeyPair,
    pkcs8: Vec<u8>,
}

impl CertificateKey {
    pub(super) fn generate() -> Result<Self, Error> {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random);
        let pkcs8 = pkcs8.map_err(|_| Error::RingUnspecified)?.as_ref().to_vec();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pkcs8, &random)
            .map_err(|error| Error::RingKeyRejected(error.to_string()))?;
        Ok(Self { pair, pkcs8 })
    }

    /// Numbers the certificate of this key, and gives its extensions the identifier of the key.
    /// Both are derived from the key, so that each key's certificate has another number.
    pub(super) fn identify(&self, params: &mut CertificateParams) {
        let mut serial = truncated_hash(self.der_bytes());
        if let Some(first) = serial.first_mut() {
            // The number is positive.
            *first &= 0x7f;
        }
        params.serial_number = Some(SerialNumber::from(serial));
        let identifier = truncated_hash(&self.subject_public_key_info());
        params.key_identifier_method = KeyIdMethod::PreSpecified(identifier);
    }

    pub(super) fn into_private_key(self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pkcs8).into()
    }
}

impl PublicKeyData for CertificateKey {
    fn der_bytes(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for CertificateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature = self.pair.sign(&SystemRandom::new(), message);
        signature.map(|it| it.as_ref().to_vec()).map_err(|_| Error::RingUnspecified)
    }
}

fn truncated_hash(bytes: &[u8]) -> Vec<u8> {
    digest(&SHA256, bytes).as_ref().iter().take(ID_BYTES).copied().collect()
}
