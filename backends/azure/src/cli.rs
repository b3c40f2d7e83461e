//! Tokens of the login that the Azure CLI (`az`) has on this machine.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use dstack_backend::one_line;
use dstack_system::Secret;
use dstack_units::Time;
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

/// `az` starts slowly, and asks Microsoft Entra itself.
const LIMIT: Duration = Duration::from_secs(30);

/// Of a token whose end is not told (before version 2.54): tokens hold for an hour at least, and the CLI may have had it for a while.
const SHORT_LIFETIME: u64 = 600;

/// `az`, as it is found in `PATH`.
#[derive(Debug, Clone)]
pub(crate) struct AzureCli {
    program: OsString,
}

/// What it tells.
#[derive(Debug)]
pub(crate) struct CliToken {
    pub(crate) text: Secret,
    /// Seconds for which the token is still good.
    pub(crate) expires_in: u64,
}

impl AzureCli {
    /// `az`, in the folders of `PATH`.
    pub(crate) fn installed() -> Self {
        Self { program: "az".into() }
    }

    /// A token for a resource, in a tenant.
    ///
    /// # Errors
    /// There is no such program, nobody is logged in, or it does not end; the cause with its remedy.
    pub(crate) async fn token(&self, resource: &str, tenant: &str, now: Time) -> Result<CliToken, String> {
        let mut command = Command::new(&self.program);
        command
            .args([
                "account",
                "get-access-token",
                "--output",
                "json",
                "--only-show-errors",
            ])
            .args(["--resource", resource, "--tenant", tenant])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ended = timeout(LIMIT, command.output()).await;
        let ended = ended.map_err(|_| format!("`az` has not ended within {} s", LIMIT.as_secs()))?;
        let output = ended.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "the Azure CLI (`az`) is not installed".to_owned(),
            _ => format!("`az` does not start: {error}"),
        })?;
        if !output.status.success() {
            let said = one_line(&String::from_utf8_lossy(&output.stderr));
            return Err(format!(
                "`az account get-access-token --tenant {tenant}` failed ({}): {said}. Log in with `az login --tenant {tenant}`",
                output.status
            ));
        }
        // What it prints is the token: it is not repeated.
        let told: Told = serde_json::from_slice(&output.stdout)
            .map_err(|_| "`az account get-access-token` does not print what it should".to_owned())?;
        Ok(told.token(now))
    }
}

#[derive(Deserialize)]
struct Told {
    #[serde(rename = "accessToken")]
    access_token: Secret,
    /// In seconds since 1970. `expiresOn` is in the machine's own time zone, which it does not name.
    #[serde(default)]
    expires_on: Option<i64>,
}

impl Told {
    fn token(self, now: Time) -> CliToken {
        let left = |ends: i64| u64::try_from(ends - now.to_jiff().as_second()).unwrap_or(0);
        CliToken {
            text: self.access_token,
            expires_in: self.expires_on.map_or(SHORT_LIFETIME, left),
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a program of the test's own
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// As `az`, with this text as a shell script.
    fn az(dir: &tempfile::TempDir, text: &str) -> AzureCli {
        let program = dir.path().join("az");
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        AzureCli {
            program: program.into(),
        }
    }

    const RESOURCE: &str = "https://management.azure.com";

    #[tokio::test]
    async fn the_login_of_the_cli_is_asked_for_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let now = Time::from_millis(1_764_000_000_000);
        let asked = dir.path().join("asked");
        let text = format!(
            "printf '%s\\n' \"$@\" > {}; echo '{{\"accessToken\": \"t\", \"expiresOn\": \"2025-11-24 17:00:00\", \"expires_on\": 1764003600}}'",
            asked.display()
        );
        let token = az(&dir, &text).token(RESOURCE, "a b;c", now).await.unwrap();
        assert_eq!((token.text.expose(), token.expires_in), ("t", 3600));
        let asked = std::fs::read_to_string(asked).unwrap();
        let words = "account get-access-token --output json --only-show-errors --resource https://management.azure.com --tenant";
        let words: Vec<&str> = words.split(' ').chain(["a b;c"]).collect();
        assert_eq!(asked.lines().collect::<Vec<_>>(), words, "no shell reads it");
        let old = az(
            &dir,
            r#"echo '{"accessToken": "t", "expiresOn": "2025-11-24 17:00:00"}'"#,
        );
        assert_eq!(
            old.token(RESOURCE, "t", now).await.unwrap().expires_in,
            SHORT_LIFETIME
        );
    }

    #[tokio::test]
    async fn what_keeps_it_from_telling_one_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let now = Time::from_millis(0);
        let out = az(
            &dir,
            "echo 'ERROR: Please run az login to setup account.' >&2; exit 1",
        );
        let error = out.token(RESOURCE, "t1", now).await.unwrap_err();
        assert!(
            error.contains("Please run az login") && error.contains("az login --tenant t1"),
            "{error}"
        );
        let odd = az(&dir, "echo secret-token");
        let error = odd.token(RESOURCE, "t1", now).await.unwrap_err();
        assert!(
            error.contains("does not print") && !error.contains("secret-token"),
            "{error}"
        );
        let none = AzureCli {
            program: dir.path().join("none").into(),
        };
        let error = none.token(RESOURCE, "t1", now).await.unwrap_err();
        assert!(error.contains("not installed"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let began = tokio::time::Instant::now();
        let error = az(&dir, "exec sleep 600")
            .token(RESOURCE, "t1", Time::from_millis(0))
            .await;
        assert!(error.unwrap_err().contains("within 30 s"));
        assert!(began.elapsed() < LIMIT * 2, "{:?}", began.elapsed());
    }
}
