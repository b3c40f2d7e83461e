//! Reading a public key in OpenSSH's one-line format.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};

const KNOWN: &[&str] = &[
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-ed25519",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "sk-ssh-ed25519@openssh.com",
];
const MALFORMED: &str = "Invalid public key, must be in OpenSSH public key format";

/// What is kept of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedKey {
    /// `ssh-ed25519`, …
    pub(crate) kind: String,
    /// Type and key, without comment.
    pub(crate) line: String,
    /// Comment.
    pub(crate) comment: Option<String>,
    /// `SHA256:…`
    pub(crate) fingerprint: String,
    /// A name for keys without any: a short digest of the key.
    pub(crate) md5: String,
}

/// Parses a key. The error is the message of dstack 0.22.5.
pub(crate) fn parse(text: &str) -> Result<ParsedKey, String> {
    let text = text.trim();
    if text.contains(['\n', '\r']) {
        return Err(MALFORMED.to_owned());
    }
    let mut parts = text.splitn(3, [' ', '\t']);
    let (kind, encoded) = match (parts.next(), parts.next()) {
        (Some(kind), Some(encoded)) if !kind.is_empty() => (kind, encoded),
        _ => return Err(MALFORMED.to_owned()),
    };
    let blob = STANDARD.decode(encoded).map_err(|_| MALFORMED.to_owned())?;
    let inner = inner_type(&blob).ok_or(MALFORMED)?;
    if inner != kind {
        return Err(MALFORMED.to_owned());
    }
    if !KNOWN.contains(&kind) {
        return Err(format!("Unsupported key type: {kind}"));
    }
    let fingerprint = format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&blob)));
    Ok(ParsedKey {
        kind: kind.to_owned(),
        line: format!("{kind} {encoded}"),
        comment: parts
            .next()
            .map(str::trim)
            .filter(|comment| !comment.is_empty())
            .map(str::to_owned),
        md5: hex::encode(md5(&blob)),
        fingerprint,
    })
}

/// The type that the key itself names: a text with a length of four bytes in front.
fn inner_type(blob: &[u8]) -> Option<&str> {
    let (length, rest) = blob.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    // Something must follow the name.
    let name = rest.get(..length).filter(|_| rest.len() > length)?;
    std::str::from_utf8(name).ok()
}

fn md5(blob: &[u8]) -> impl AsRef<[u8]> {
    use md5::Digest as _;
    md5::Md5::digest(blob)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJZCqKJ4Wjjx4bWIhlFyJj5WVwKCYsXY7n5fJ3v3Pp0X me@here";

    #[test]
    fn a_key_with_comment() {
        let key = parse(KEY).unwrap();
        assert_eq!(
            (key.kind.as_str(), key.comment.as_deref()),
            ("ssh-ed25519", Some("me@here"))
        );
        assert!(key.fingerprint.starts_with("SHA256:") && !key.fingerprint.ends_with('='));
        assert_eq!(key.md5.len(), 32);
    }

    #[test]
    fn malformed_keys() {
        for text in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 ???",
            "ssh-ed25519 AAAA",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIA==",
        ] {
            assert_eq!(parse(text).unwrap_err(), MALFORMED, "{text}");
        }
    }

    #[test]
    fn dss_is_not_supported() {
        let blob = [&7_u32.to_be_bytes()[..], b"ssh-dss", b"x"].concat();
        let text = format!("ssh-dss {}", STANDARD.encode(blob));
        assert_eq!(parse(&text).unwrap_err(), "Unsupported key type: ssh-dss");
    }
}
