//! When the keys of a connection are renewed.

use std::time::Duration;

use russh::Limits;

use crate::ciphers::has_aes;

/// When the other side wants it: OpenSSH does after 1 GB with ChaCha20-Poly1305, and after 64 GB with AES, as do others after 1 GB. `russh`
/// gives up a connection whose keys it begins to renew itself while more than two windows of data are under way to it, which many
/// streams at once have. So it only does so after more than that; between two of ours, of which neither is first, after these limits.
pub fn peer_renews_keys() -> Limits {
    let bytes = match has_aes() {
        // AES is wanted first, and has nonces of 64 bits. A server that has it not renews keys after 1 GB.
        true => AFTER_OPENSSH,
        false => BEFORE_NONCES_REPEAT,
    };
    Limits {
        rekey_write_limit: bytes,
        rekey_read_limit: bytes,
        rekey_time_limit: Duration::from_secs(365 * 24 * 60 * 60),
    }
}

/// OpenSSH renews keys of AES after 2³² blocks of 16 bytes.
const AFTER_OPENSSH: usize = 1 << 37;

/// Nonces of ChaCha20-Poly1305 are 32 bits, and no packet of a channel has less than 9 bytes: its type, the channel, the length.
const BEFORE_NONCES_REPEAT: usize = 1 << 35;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_of_chacha20_last_where_it_comes_first_and_openssh_goes_first_with_aes() {
        let least_bytes_of_a_packet = 1 + 4 + 4;
        assert!(BEFORE_NONCES_REPEAT / least_bytes_of_a_packet < 1 << 32);
        const { assert!(AFTER_OPENSSH > 16 << 32) };
        let limits = peer_renews_keys();
        assert_eq!(limits.rekey_write_limit, limits.rekey_read_limit);
        assert_eq!(limits.rekey_read_limit == AFTER_OPENSSH, has_aes());
    }
}
