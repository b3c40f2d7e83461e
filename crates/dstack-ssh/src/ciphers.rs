//! Which ciphers are wanted first.

use std::borrow::Cow;

use russh::Preferred;
use russh::cipher::{AES_256_GCM, Name};

/// The usual ones. AES comes first where this machine has instructions for it: so have nearly all servers, and OpenSSH does AES with
/// them several times as fast as ChaCha20-Poly1305, half of which it does in portable C.
pub(crate) fn preferred() -> Cow<'static, [Name]> {
    order(Preferred::DEFAULT.cipher.to_vec(), has_aes()).into()
}

fn order(mut ciphers: Vec<Name>, has_aes: bool) -> Vec<Name> {
    ciphers.sort_by_key(|cipher| !(has_aes && *cipher == AES_256_GCM));
    ciphers
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
pub(crate) fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) const fn has_aes() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use russh::cipher::CHACHA20_POLY1305;

    use super::*;

    #[test]
    fn aes_comes_first_where_it_is_quick_and_no_cipher_gets_lost() {
        let usual = Preferred::DEFAULT.cipher.to_vec();
        assert_eq!(order(usual.clone(), false), usual);
        assert_eq!(usual.first(), Some(&CHACHA20_POLY1305));
        let quick = order(usual.clone(), true);
        assert_eq!(quick.first_chunk::<2>(), Some(&[AES_256_GCM, CHACHA20_POLY1305]));
        assert_eq!(quick.len(), usual.len());
    }
}
