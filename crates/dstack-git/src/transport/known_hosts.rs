//! Host keys that a user or an image knows (`known_hosts` of OpenSSH).
//!
//! Names are found as ssh writes them, in clear or hashed; patterns and certificates are not looked at.

use std::path::PathBuf;

use russh::keys::PublicKey;
use russh::keys::known_hosts::known_host_keys_path;

use super::TransportError;

/// The keys of a host in these files, of which any may be missing. Empty: the host is not known.
pub(super) fn keys_of(files: &[PathBuf], host: &str, port: u16) -> Result<Vec<PublicKey>, TransportError> {
    let mut keys = Vec::new();
    for file in files {
        let found = known_host_keys_path(&host.to_ascii_lowercase(), port, file);
        let found = found.map_err(|source| TransportError::KnownHosts {
            file: file.display().to_string(),
            host: host.to_owned(),
            source: source.into(),
        })?;
        keys.extend(found.into_iter().map(|(_, key)| key));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfxm8ZIR9ypxoW+l1MoWlHVHfHHIhcUtRwIMqOb0Dt";

    #[test]
    fn hosts_are_found_by_name_and_port() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_hosts");
        let text =
            format!("# mine\nplain.example.com,10.0.0.1 {KEY} comment\n[ports.example.com]:2222 {KEY}\n");
        fs_err::write(&file, text).unwrap();
        let files = [dir.path().join("missing"), file];
        let known = |host, port| keys_of(&files, host, port).unwrap().len();
        assert_eq!(known("plain.example.com", 22), 1);
        assert_eq!(known("Plain.Example.com", 22), 1);
        assert_eq!(known("plain.example.com", 2222), 0);
        assert_eq!(known("ports.example.com", 2222), 1);
        assert_eq!(known("other.example.com", 22), 0);
    }

    #[test]
    fn a_key_that_cannot_be_read_is_no_unknown_host() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_hosts");
        fs_err::write(&file, "h ssh-ed25519 AAAA\nother ssh-ed25519 AAAA\n").unwrap();
        let error = keys_of(std::slice::from_ref(&file), "h", 22).unwrap_err();
        assert!(error.to_string().contains("known_hosts"), "{error}");
        assert_eq!(keys_of(&[file], "i", 22).unwrap(), []);
    }
}
