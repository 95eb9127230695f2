//! Verification of signatures by ourselves, against a public key that the operator pinned.
//!
//! Many applications verify in software, so what C_Verify says proves little to them. And it finds the right label on the
//! wrong key.

use super::protocol::Signing;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
    VerificationAlgorithm,
};
use std::{fs, io, path::Path};
use x509_parser::{pem::parse_x509_pem, prelude::FromDer, x509::SubjectPublicKeyInfo};

/// A PEM file of a public key is smaller.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Why a public key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PinnedError {
    /// The file.
    #[error("cannot be read")]
    Read(#[source] io::Error),
    /// Its contents.
    #[error("is no PEM of a public key (`-----BEGIN PUBLIC KEY-----`, as `openssl pkey -pubout` writes it)")]
    Form,
    /// Another kind of key.
    #[error("is no key for this mechanism: {want}")]
    Kind {
        /// What would be.
        want: &'static str,
    },
}

/// A public key that signatures are held against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pinned {
    signing: Signing,
    key: Vec<u8>,
}

impl Pinned {
    pub(super) fn read(path: &Path, signing: Signing) -> Result<Self, PinnedError> {
        let length = fs::metadata(path).map_err(PinnedError::Read)?.len();
        if length > FILE_BYTES_MAX {
            return Err(PinnedError::Form);
        }
        Self::parse(&fs::read(path).map_err(PinnedError::Read)?, signing)
    }

    fn parse(pem: &[u8], signing: Signing) -> Result<Self, PinnedError> {
        let (_, pem) = parse_x509_pem(pem).map_err(|_bad| PinnedError::Form)?;
        Self::of_der(&pem.contents, signing)
    }

    fn of_der(der: &[u8], signing: Signing) -> Result<Self, PinnedError> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|_bad| PinnedError::Form)?;
        let key = info.subject_public_key.data.to_vec();
        // An uncompressed point has one byte and two coordinates (SEC 1 §2.3.3).
        let algorithm = info.algorithm.algorithm.to_id_string();
        let fits = match signing {
            Signing::EcdsaSha256 => algorithm == "1.2.840.10045.2.1" && key.len() == 65,
            Signing::EcdsaSha384 => algorithm == "1.2.840.10045.2.1" && key.len() == 97,
            Signing::RsaPkcsSha256 => algorithm == "1.2.840.113549.1.1.1",
        };
        let want = match signing {
            Signing::EcdsaSha256 => "ecdsa-sha256 needs a key on P-256",
            Signing::EcdsaSha384 => "ecdsa-sha384 needs a key on P-384",
            Signing::RsaPkcsSha256 => "rsa-pkcs-sha256 needs an RSA key of 2048 bits or more",
        };
        if fits { Ok(Self { signing, key }) } else { Err(PinnedError::Kind { want }) }
    }

    /// Whether `signature` is this key's over `challenge`.
    pub(super) fn verifies(&self, challenge: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn VerificationAlgorithm = match self.signing {
            Signing::EcdsaSha256 => &ECDSA_P256_SHA256_FIXED,
            Signing::EcdsaSha384 => &ECDSA_P384_SHA384_FIXED,
            Signing::RsaPkcsSha256 => &RSA_PKCS1_2048_8192_SHA256,
        };
        UnparsedPublicKey::new(algorithm, &self.key).verify(challenge, signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
    };

    /// As `openssl ec -pubout` writes it.
    const PEM: &str = "-----BEGIN PUBLIC KEY-----\n\
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE3dNkUW79ruk0qsVoHGo0EE5Tt1BG\n\
        Kmjybec/o6DJMIUKQMVgwg2Xwvcs5ZA3pw9A1n7yECRCCDUQQUkkDVoFAw==\n\
        -----END PUBLIC KEY-----\n";

    #[test]
    fn a_signature_of_another_key_or_challenge_is_none() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        let pinned = Pinned::of_der(&key.public_key_der(), Signing::EcdsaSha256).expect("a P-256 key");
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der(), &random);
        let signature = pair.expect("the same key").sign(&random, b"challenge").expect("signed");
        assert!(pinned.verifies(b"challenge", signature.as_ref()));
        assert!(!pinned.verifies(b"challengf", signature.as_ref()));
        assert!(!pinned.verifies(b"challenge", b""));
        let other = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        let other = Pinned::of_der(&other.public_key_der(), Signing::EcdsaSha256).expect("a P-256 key");
        assert!(!other.verifies(b"challenge", signature.as_ref()));
    }

    #[test]
    fn a_key_of_another_kind_is_refused() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key").public_key_der();
        for signing in [Signing::EcdsaSha256, Signing::RsaPkcsSha256] {
            assert!(matches!(Pinned::of_der(&key, signing), Err(PinnedError::Kind { .. })));
        }
        assert!(Pinned::of_der(&key, Signing::EcdsaSha384).is_ok());
        assert!(Pinned::parse(PEM.as_bytes(), Signing::EcdsaSha256).is_ok());
        assert!(matches!(Pinned::parse(b"nonsense", Signing::EcdsaSha384), Err(PinnedError::Form)));
    }
}
