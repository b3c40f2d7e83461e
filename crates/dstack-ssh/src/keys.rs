//! Keys: generation, parsing, fingerprints, and lines for `authorized_keys`.

use dstack_system::{Random, Secret};
use rand::SeedableRng;
use rand::rngs::StdRng;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::{Ed25519Keypair, KeypairData, RsaKeypair};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKey, PublicKey};

/// Why a key was refused. `Display` never shows key material.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not a private key in any known format, or protected by a passphrase.
    #[error("not a usable private key (an OpenSSH, PKCS#1 or PKCS#8 key without passphrase is needed)")]
    Private(#[source] Box<russh::keys::Error>),
    /// The private key is protected by a passphrase.
    #[error("the private key is protected by a passphrase; give one without")]
    Passphrase,
    /// Not a line `type base64 [comment]`.
    #[error("not a public key: `type base64 [comment]` on one line is needed")]
    Public(#[source] russh::keys::ssh_key::Error),
    /// The line has characters that could end a quoted argument or a line.
    #[error("a public key must be one line without quotes")]
    Characters,
    /// Generating or encoding a key failed.
    #[error("cannot generate a key")]
    Generate(#[source] russh::keys::ssh_key::Error),
}

/// A generated key pair as OpenSSH texts.
#[derive(Debug, Clone)]
pub struct KeyPair {
    /// Private key, PEM text (`-----BEGIN OPENSSH PRIVATE KEY-----`).
    pub private: Secret,
    /// Public key, one line `type base64 [comment]`.
    pub public: String,
}

impl KeyPair {
    fn new(data: KeypairData, comment: &str) -> Result<Self, KeyError> {
        let key = PrivateKey::new(data, comment).map_err(KeyError::Generate)?;
        let private = key.to_openssh(LineEnding::LF).map_err(KeyError::Generate)?;
        let public = key.public_key().to_openssh().map_err(KeyError::Generate)?;
        Ok(Self {
            private: Secret::new(private.as_str()),
            public,
        })
    }
}

/// A cryptographic generator seeded from `random`: the same seed gives the same key, as simulation needs.
fn generator(random: &Random) -> StdRng {
    StdRng::from_seed(random.bytes())
}

/// Generates an Ed25519 pair.
pub fn generate_ed25519(random: &Random, comment: &str) -> Result<KeyPair, KeyError> {
    KeyPair::new(
        KeypairData::Ed25519(Ed25519Keypair::from_seed(&random.bytes())),
        comment,
    )
}

/// Generates an RSA pair of 2048 bits: what dstack 0.22.5 uses for projects, users, gateways and replicas.
/// Takes a noticeable part of a second: call it off the async threads.
pub fn generate_rsa(random: &Random, comment: &str) -> Result<KeyPair, KeyError> {
    let pair = RsaKeypair::random(&mut generator(random), 2048).map_err(KeyError::Generate)?;
    KeyPair::new(KeypairData::Rsa(pair), comment)
}

/// Generates a server's host keys: Ed25519 and ECDSA P-256 (no RSA: slow to make and no client needs it).
pub fn generate_host_keys(random: &Random) -> Result<Vec<PrivateKey>, KeyError> {
    let ecdsa = Algorithm::Ecdsa {
        curve: EcdsaCurve::NistP256,
    };
    [Algorithm::Ed25519, ecdsa]
        .into_iter()
        .map(|algorithm| PrivateKey::random(&mut generator(random), algorithm).map_err(KeyError::Generate))
        .collect()
}

/// Parses a private key without passphrase: OpenSSH, PKCS#1 or PKCS#8 text.
pub fn parse_private(text: &str) -> Result<PrivateKey, KeyError> {
    let key = russh::keys::decode_secret_key(text, None).map_err(|error| match error {
        russh::keys::Error::KeyIsEncrypted => KeyError::Passphrase,
        other => KeyError::Private(Box::new(other)),
    })?;
    if key.is_encrypted() {
        return Err(KeyError::Passphrase);
    }
    Ok(key)
}

/// Parses a public key line `type base64 [comment]`.
pub fn parse_public(line: &str) -> Result<PublicKey, KeyError> {
    PublicKey::from_openssh(line.trim()).map_err(KeyError::Public)
}

/// Fingerprint of a public key line, as `ssh-keygen -l` shows it: `SHA256:...`.
pub fn fingerprint(line: &str) -> Result<String, KeyError> {
    Ok(parse_public(line)?.fingerprint(HashAlg::Sha256).to_string())
}

/// Brings a public key to the form `type base64 [comment]`, single spaces, fit for a quoted shell argument and for
/// one line of `authorized_keys`.
pub fn normalise_public(line: &str) -> Result<String, KeyError> {
    let line = line.trim();
    if line.contains(|c: char| c.is_control() || c == '\'' || c == '"') {
        return Err(KeyError::Characters);
    }
    parse_public(line)?;
    Ok(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ed25519_pair_fits_together_and_repeats_with_its_seed() {
        let pair = generate_ed25519(&Random::seeded(1), "me@here").unwrap();
        let parsed = parse_private(pair.private.expose()).unwrap();
        assert_eq!(parsed.public_key().to_openssh().unwrap(), pair.public);
        assert!(pair.public.starts_with("ssh-ed25519 ") && pair.public.ends_with(" me@here"));
        assert_eq!(
            generate_ed25519(&Random::seeded(1), "me@here").unwrap().public,
            pair.public
        );
        assert_ne!(
            generate_ed25519(&Random::seeded(2), "me@here").unwrap().public,
            pair.public
        );
    }

    #[test]
    fn an_rsa_pair_has_2048_bits() {
        let pair = generate_rsa(&Random::seeded(1), "").unwrap();
        let key = parse_private(pair.private.expose()).unwrap();
        assert_eq!(key.key_data().rsa().unwrap().key_size(), 2048);
        assert!(pair.public.starts_with("ssh-rsa "));
    }

    #[test]
    fn lines_are_normalised_and_bad_ones_refused() {
        let public = generate_ed25519(&Random::seeded(1), "").unwrap().public;
        let public = public.trim().to_owned();
        assert_eq!(
            normalise_public(&format!("  {public}   a  b \n")).unwrap(),
            format!("{public} a b")
        );
        assert!(matches!(
            normalise_public(&format!("{public} it's")),
            Err(KeyError::Characters)
        ));
        assert!(matches!(
            normalise_public(&format!("{public}\n{public}")),
            Err(KeyError::Characters)
        ));
        assert!(matches!(
            normalise_public("ssh-ed25519 AAAA"),
            Err(KeyError::Public(_))
        ));
        assert!(fingerprint(&public).unwrap().starts_with("SHA256:"));
    }

    #[test]
    fn a_key_with_passphrase_is_refused() {
        let key = PrivateKey::random(&mut StdRng::seed_from_u64(1), Algorithm::Ed25519).unwrap();
        let locked = key.encrypt(&mut StdRng::seed_from_u64(1), "secret").unwrap();
        let text = locked.to_openssh(LineEnding::LF).unwrap();
        assert!(matches!(parse_private(&text), Err(KeyError::Passphrase)));
        assert!(matches!(parse_private("hello"), Err(KeyError::Private(_))));
    }
}
