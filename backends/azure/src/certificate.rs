//! An application that proves who it is by a certificate: the assertion (RFC 7523) that Microsoft Entra takes instead of a secret.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use dstack_units::Time;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// How long an assertion is good for.
const LIFETIME: Duration = Duration::from_secs(300);

/// More than any certificate with its chain and key has.
const LONGEST_FILE: u64 = 256 * 1024;

/// `alg` is PS256: the salt is as long as the hash, as TLS has it too.
const SCHEME: SignatureScheme = SignatureScheme::RSA_PSS_SHA256;

/// A certificate and its key.
#[derive(Debug)]
pub(crate) struct Certificate {
    /// SHA-256 of the certificate.
    thumbprint: String,
    key: Arc<dyn SigningKey>,
}

impl Certificate {
    /// From a file in PEM with the certificate, and its RSA key without a passphrase. Files are replaced when certificates are renewed.
    ///
    /// # Errors
    /// There is no such file, or not both are in it; what is wrong.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let found = fs_err::metadata(file).map_err(|error| error.to_string())?;
        if !found.is_file() || found.len() > LONGEST_FILE {
            return Err("AZURE_CLIENT_CERTIFICATE_PATH is no file of at most 256 KiB".to_owned());
        }
        let pem = fs_err::read(file).map_err(|error| error.to_string())?;
        Self::of_pem(&pem).map_err(|why| format!("AZURE_CLIENT_CERTIFICATE_PATH, {}: {why}", file.display()))
    }

    fn of_pem(pem: &[u8]) -> Result<Self, &'static str> {
        let certificate = CertificateDer::from_pem_slice(pem).map_err(
            |_| "there is no certificate in PEM in it. Of a file in PKCS #12: `openssl pkcs12 -in FILE.pfx -nodes -out FILE.pem`",
        )?;
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(
            |_| "there is no private key in PEM without a passphrase in it. Of one with a passphrase: `openssl pkey -in FILE.pem`",
        )?;
        let key = any_supported_type(&key).map_err(|_| "its private key is of an unknown kind")?;
        if key.choose_scheme(&[SCHEME]).is_none() {
            return Err("its private key is no RSA key");
        }
        Ok(Self {
            thumbprint: BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&certificate)),
            key,
        })
    }

    /// That it is this application that asks at `audience`. `id` is of this assertion alone.
    ///
    /// # Errors
    /// It cannot be signed.
    pub(crate) fn assertion(
        &self,
        client: &str,
        audience: &str,
        id: &str,
        now: Time,
    ) -> Result<String, String> {
        let signer = self.key.choose_scheme(&[SCHEME]);
        let signer = signer.ok_or("the key is no RSA key")?;
        let seconds = now.to_jiff().as_second();
        let header = json!({"alg": "PS256", "typ": "JWT", "x5t#S256": self.thumbprint});
        let claims = json!({"aud": audience, "iss": client, "sub": client, "jti": id, "iat": seconds, "nbf": seconds,
            "exp": (now + LIFETIME).to_jiff().as_second()});
        let [header, claims] = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
        let text = format!("{header}.{claims}");
        let signature = signer.sign(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::default_provider;
    use serde_json::Value;

    use super::*;

    /// A certificate that signed itself, with its key.
    const PEM: &str = include_str!("../tests/data/certificate.pem");

    /// As `openssl x509 -outform DER | openssl dgst -sha256` tells it.
    const THUMBPRINT: &str = "Sg2VVaz53ENbKnwDFJ01FMpsFz-vNlgKEUoci92hCmg";

    /// Its public key (PKCS#1).
    const PUBLIC_KEY: &str = "\
        3082010a0282010100b69f990ec71d7cd777ed5afe8f451b78ab6d88fcaecee5aa6e89e3de3b599d77bc9f8150504bb0afec9b515b4935\
        319af0d15005d6c3ff031bd1bdc8401bed8b4e740e4360e9537f37cc2f32b75b53da20192bf601e2c536fa4b62e0683c5331353ab122c0\
        016220d0b61828c31b7fbca510788bef420d640f7d1667d980f90fb3b2a7987045676757ebd3d7510ae92f41ad8d6cd3831d2aa9251224\
        edcff9450c665976debd71cd1c191d74438483f93049edf17fe88db73ac0553fba02a8da82390926cb20b9b759dd12085b92fd9fdb2296\
        746e04f235e7ac48b1909ce2f65ed521d19ae4a48155584731cb8398f2ac28b7213934407b9fd90e66c9ee1ba50203010001\
        ";

    fn is_signed(text: &str, signature: &str) -> bool {
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
        let key: Vec<u8> = PUBLIC_KEY
            .as_bytes()
            .chunks(2)
            .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
            .collect();
        let algorithms = default_provider().signature_verification_algorithms;
        let of_scheme = algorithms.mapping.iter().find(|(scheme, _)| *scheme == SCHEME);
        let verified = |algorithm: &&dyn rustls::pki_types::SignatureVerificationAlgorithm| {
            algorithm
                .verify_signature(&key, text.as_bytes(), &signature)
                .is_ok()
        };
        of_scheme.unwrap().1.iter().any(verified)
    }

    #[test]
    fn an_assertion_is_signed_by_the_key_of_the_certificate() {
        let found = Certificate::of_pem(PEM.as_bytes()).unwrap();
        let now = Time::from_millis(1_764_000_000_000);
        let jwt = found.assertion("client", "https://login", "id", now).unwrap();
        let parts: Vec<&str> = jwt.split('.').collect();
        let read = |part: &str| -> Value {
            serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
        };
        assert_eq!(
            read(parts[0]),
            json!({"alg": "PS256", "typ": "JWT", "x5t#S256": THUMBPRINT})
        );
        let claims = json!({"aud": "https://login", "iss": "client", "sub": "client", "jti": "id", "iat": 1_764_000_000,
            "nbf": 1_764_000_000, "exp": 1_764_000_300});
        assert_eq!(read(parts[1]), claims);
        let text = format!("{}.{}", parts[0], parts[1]);
        assert!(is_signed(&text, parts[2]) && !is_signed("another", parts[2]));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told() {
        let wrong = |pem: &str| Certificate::of_pem(pem.as_bytes()).unwrap_err();
        let (key, certificate) = PEM.split_at(PEM.find("-----BEGIN CERTIFICATE").unwrap());
        assert!(wrong(key).contains("no certificate"));
        assert!(wrong(certificate).contains("private key in PEM without a passphrase"));
        assert!(wrong("").contains("pkcs12"));
        let error = Certificate::read(Path::new("/none/certificate.pem")).unwrap_err();
        assert!(error.contains("/none/certificate.pem"), "{error}");
    }
}
