//! The keys by which clients recognise the server.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use dstack_ssh::keys::{generate_host_keys, parse_private};
use dstack_system::Random;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;

/// The host key that a file has, as OpenSSH writes it.
pub(crate) fn read_host_key(
    path: &Path,
) -> Result<Vec<PrivateKey>, Box<dyn std::error::Error + Send + Sync>> {
    let text = fs_err::read_to_string(path)?;
    Ok(vec![parse_private(&text)?])
}

/// Fresh host keys for each start, stored like sshd's so that they can be looked at.
pub(crate) fn make_host_keys(
    dir: &Path,
) -> Result<Vec<PrivateKey>, Box<dyn std::error::Error + Send + Sync>> {
    let conf = dir.join("conf");
    fs_err::create_dir_all(&conf)?;
    let keys = generate_host_keys(&Random::system())?;
    for key in &keys {
        let kind = if key.algorithm().is_ecdsa() {
            "ecdsa"
        } else {
            "ed25519"
        };
        let path = conf.join(format!("ssh_host_{kind}_key"));
        write_private(&path, &key.to_openssh(LineEnding::LF)?)?;
        fs_err::write(
            path.with_extension("pub"),
            format!("{}\n", key.public_key().to_openssh()?.trim()),
        )?;
    }
    Ok(keys)
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // Created closed, not closed afterwards; an old file is replaced with its permissions.
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new("/")))?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    fs_err::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600))?;
    file.persist(path)?;
    Ok(())
}
