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
    /// Algorithm as the key names it, such as `ssh-ed25519`.
    pub(crate) kind: String,
    /// Type and key, without comment.
    pub(crate) line: String,
    /// What stands behind the key in its line, usually `user@host`.
    pub(crate) comment: Option<String>,
    /// `SHA256:` and the unpadded base64 of the key's hash, as `ssh-keygen -l` prints it.
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
    let (inner, fields) = split_field(&blob).ok_or(MALFORMED)?;
    if inner != kind.as_bytes() {
        return Err(MALFORMED.to_owned());
    }
    // A key of another type is named as such, whatever it consists of.
    if !KNOWN.contains(&kind) {
        return Err(format!("Unsupported key type: {kind}"));
    }
    if !is_complete(kind, fields) {
        return Err(MALFORMED.to_owned());
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

/// The first field of a key in wire format, and what follows it: each field has its length in four bytes in front.
fn split_field(blob: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = blob.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

/// Whether a key of a known type has all its fields and nothing else.
fn is_complete(kind: &str, mut rest: &[u8]) -> bool {
    let mut fields: Vec<&[u8]> = Vec::new();
    while let Some((field, after)) = split_field(rest) {
        fields.push(field);
        rest = after;
    }
    // Keys of devices say last for which application they are.
    if kind.starts_with("sk-") && fields.pop().is_none() {
        return false;
    }
    rest.is_empty()
        && match fields.as_slice() {
            [point] => kind.contains("ed25519") && point.len() == 32,
            [exponent, modulus] if kind == "ssh-rsa" => !exponent.is_empty() && !modulus.is_empty(),
            [curve, point] => {
                let name = kind.split('@').next().and_then(|name| name.rsplit('-').next());
                kind.contains("ecdsa") && name.map(str::as_bytes) == Some(*curve) && !point.is_empty()
            }
            _ => false,
        }
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
            // A type and nothing else, and half a key.
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJZCqKJ4Wjjx4bWIhg==",
        ] {
            assert_eq!(parse(text).unwrap_err(), MALFORMED, "{text}");
        }
    }

    fn line(fields: &[&[u8]]) -> String {
        let field = |field: &&[u8]| {
            let length = u32::try_from(field.len()).unwrap().to_be_bytes();
            [&length[..], field].concat()
        };
        let blob: Vec<u8> = fields.iter().flat_map(field).collect();
        let kind = String::from_utf8_lossy(fields[0]);
        format!("{kind} {}", STANDARD.encode(blob))
    }

    #[test]
    fn types_that_are_not_supported_are_named_whatever_the_key_consists_of() {
        let dss = "Unsupported key type: ssh-dss";
        assert_eq!(parse(&line(&[b"ssh-dss", b"x"])).unwrap_err(), dss);
        assert_eq!(parse(&line(&[b"ssh-dss"])).unwrap_err(), dss);
    }

    #[test]
    fn keys_of_every_known_type() {
        let (point, key, app) = (&[4; 65][..], &[1; 32][..], &b"ssh:"[..]);
        let lines = [
            line(&[b"ssh-rsa", &[1, 0, 1], &[7; 257]]),
            line(&[b"ecdsa-sha2-nistp256", b"nistp256", point]),
            line(&[b"ecdsa-sha2-nistp384", b"nistp384", point]),
            line(&[b"ecdsa-sha2-nistp521", b"nistp521", point]),
            line(&[b"ssh-ed25519", key]),
            line(&[b"sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", point, app]),
            line(&[b"sk-ssh-ed25519@openssh.com", key, app]),
        ];
        for (line, kind) in lines.iter().zip(KNOWN) {
            assert_eq!(parse(line).unwrap().kind, *kind);
        }
        assert_eq!(
            parse(&line(&[b"ecdsa-sha2-nistp256", b"nistp384", point])).unwrap_err(),
            MALFORMED
        );
    }
}
