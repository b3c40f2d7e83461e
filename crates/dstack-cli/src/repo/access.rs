//! With which credentials a repository can be read: tried in the reference's order, with nothing of the user's own
//! git settings in between, so that what works here works on the job's machine.

use std::path::{Path, PathBuf};

use dstack_model::repos::RemoteRepoCreds;
use dstack_units::quoting::shell_word;

use super::git::run;
use super::url::RepoUrl;
use crate::error::{CliError, ErrorKind};
use crate::ssh::{config, keys};

/// Credentials that the user or the server gave.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// The private key of `--git-identity`.
    pub identity_file: Option<PathBuf>,
    /// Private key stored by the server.
    pub private_key: Option<String>,
    /// `--token`, or the token stored by the server.
    pub token: Option<String>,
}

/// Finds credentials with which `git ls-remote` succeeds.
///
/// # Errors
/// None do, or given ones do not.
pub async fn find(url: &RepoUrl, given: &Given, home: &Path) -> Result<RemoteRepoCreds, CliError> {
    if let Some(creds) = try_https(url, None).await? {
        return Ok(creds);
    }
    if let Some(path) = &given.identity_file {
        let found = try_key_file(url, path).await?;
        return found.ok_or_else(|| refused(url, &format!("the `{}` private SSH key", path.display())));
    }
    if let Some(key) = &given.private_key {
        let found = try_key(url, key).await?;
        return found.ok_or_else(|| refused(url, "the private SSH key stored by the server"));
    }
    if let Some(token) = &given.token {
        let found = try_https(url, Some(token)).await?;
        return found.ok_or_else(|| refused(url, "the token"));
    }
    match defaults(url, home).await? {
        Some(creds) => Ok(creds),
        None => Err(
            CliError::new(ErrorKind::RepoAccess, "No valid default Git credentials found.")
                .hint("pass valid `--token` or `--git-identity`"),
        ),
    }
}

fn refused(url: &RepoUrl, with: &str) -> CliError {
    CliError::new(
        ErrorKind::RepoAccess,
        format!("Cannot access `{}` using {with}", url.https(None)),
    )
    .hint("pass valid `--token` or `--git-identity`")
}

/// The user's own credentials, in the reference's order.
async fn defaults(url: &RepoUrl, home: &Path) -> Result<Option<RemoteRepoCreds>, CliError> {
    let ssh_config = crate::fs::read_if_exists(&home.join(".ssh/config"))?.unwrap_or_default();
    if let Some(path) = config::lookup(&ssh_config, &url.original_host, home).identity_file
        && let Ok(Some(creds)) = try_key_file(url, &path).await
    {
        return Ok(Some(creds));
    }
    if let Some(token) = hub_token(&home.join(".config/gh/hosts.yml"), &url.host)
        && let Some(creds) = try_https(url, Some(&token)).await?
    {
        return Ok(Some(creds));
    }
    let default_key = home.join(".ssh/id_rsa");
    if default_key.exists()
        && let Ok(found) = try_key_file(url, &default_key).await
    {
        return Ok(found);
    }
    Ok(None)
}

/// The token that the `gh` program keeps for a host.
fn hub_token(path: &Path, host: &str) -> Option<String> {
    let text = crate::fs::read_if_exists(path).ok()??;
    let hosts = crate::yaml::parse(&text).ok()?;
    hosts.get(host)?.get("oauth_token")?.as_str().map(str::to_owned)
}

async fn try_https(url: &RepoUrl, token: Option<&str>) -> Result<Option<RemoteRepoCreds>, CliError> {
    let reachable = list_remote(&url.https(token), None).await?;
    Ok(reachable.then(|| RemoteRepoCreds {
        clone_url: url.https(None),
        private_key: None,
        oauth_token: token.map(str::to_owned),
    }))
}

async fn try_key_file(url: &RepoUrl, path: &Path) -> Result<Option<RemoteRepoCreds>, CliError> {
    keys::read(path)?;
    let key = fs_err::read_to_string(path).map_err(|error| CliError::from_error(ErrorKind::SshKey, error))?;
    try_key_at(url, path, key).await
}

async fn try_key(url: &RepoUrl, key: &str) -> Result<Option<RemoteRepoCreds>, CliError> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("key");
    crate::fs::replace(&path, key.as_bytes(), crate::fs::Access::Private)?;
    try_key_at(url, &path, key.to_owned()).await
}

async fn try_key_at(url: &RepoUrl, path: &Path, key: String) -> Result<Option<RemoteRepoCreds>, CliError> {
    let reachable = list_remote(&url.ssh(), Some(path)).await?;
    Ok(reachable.then(|| RemoteRepoCreds {
        clone_url: url.ssh(),
        private_key: Some(key),
        oauth_token: None,
    }))
}

/// Whether a repository can be read with exactly these credentials.
async fn list_remote(url: &str, key: Option<&Path>) -> Result<bool, CliError> {
    let ssh = key.map(|key| {
        format!(
            "ssh -F none -i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes -o BatchMode=yes",
            shell_word(&key.display().to_string())
        )
    });
    let mut variables = vec![
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ASKPASS", ""),
        ("SSH_ASKPASS", ""),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_DIR", "/dev/null"),
    ];
    if let Some(ssh) = &ssh {
        variables.push(("GIT_SSH_COMMAND", ssh));
    }
    let arguments = ["-c", "credential.helper=", "ls-remote", "--symref", url, "HEAD"];
    Ok(run(Path::new("/"), &arguments, &variables).await?.ok)
}
