//! When the keys of a connection are renewed.

use std::time::Duration;

use russh::Limits;

/// When the other side wants it: OpenSSH does after 1 GB with ChaCha20-Poly1305, and after 64 GB with AES, as do others after 1 GB. `russh`
/// gives up a connection whose keys it begins to renew itself while more than two windows of data are under way to it, which many
/// streams at once have. It only does so before the nonces of ChaCha20-Poly1305 would repeat: those are 32 bits, and no packet of a
/// channel has less than 9 bytes.
pub const PEER_RENEWS_KEYS: Limits = Limits {
    rekey_write_limit: MOST_BYTES,
    rekey_read_limit: MOST_BYTES,
    rekey_time_limit: Duration::from_secs(365 * 24 * 60 * 60),
};

const MOST_BYTES: usize = 1 << 35;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_nonce_of_chacha20_is_used_twice() {
        // `data`: its type, the channel, the length.
        let least_bytes_of_a_packet = 1 + 4 + 4;
        assert!(PEER_RENEWS_KEYS.rekey_write_limit / least_bytes_of_a_packet < 1 << 32);
        assert!(PEER_RENEWS_KEYS.rekey_read_limit / least_bytes_of_a_packet < 1 << 32);
    }
}
