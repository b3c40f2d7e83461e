//! The connection to the engine, which may be away: not started yet after a boot, or being updated.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use tokio::sync::OnceCell;

use crate::error::chain;
use crate::runtime::RuntimeError;

/// Where the engine listens unless `DOCKER_HOST` says otherwise.
pub(crate) const DEFAULT_SOCKET: &str = "unix:///var/run/docker.sock";
/// Where the engine keeps images unless it says otherwise.
const DEFAULT_ROOT_DIR: &str = "/var/lib/docker";
/// An engine that does not answer within this time is away.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// From one look for an engine that is away to the next; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A connection to a container engine.
pub(super) struct Engine {
    host: String,
    connected: OnceCell<Connected>,
    /// Why it is away, while it is known to be.
    away: Mutex<Option<String>>,
}

struct Connected {
    docker: Docker,
    root_dir: PathBuf,
}

impl Engine {
    /// Does not connect yet.
    pub(super) fn at(host: Option<&str>) -> Self {
        Self {
            host: host.unwrap_or(DEFAULT_SOCKET).to_owned(),
            connected: OnceCell::new(),
            away: Mutex::default(),
        }
    }

    /// Its client. The first time it has to answer, to agree on a version of the API; from then on each call tells by itself
    /// whether it answers.
    pub(super) async fn docker(&self) -> Result<&Docker, RuntimeError> {
        let connected = self.connected.get_or_try_init(|| self.connect()).await?;
        Ok(&connected.docker)
    }

    /// Where it keeps images, as far as is known.
    pub(super) fn root_dir(&self) -> &Path {
        let connected = self.connected.get();
        connected.map_or(Path::new(DEFAULT_ROOT_DIR), |connected| &connected.root_dir)
    }

    /// Why it is away, while it is known to be.
    pub(super) fn away(&self) -> Option<String> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for it, and keeps [`Self::away`] true meanwhile.
    pub(super) async fn until_it_answers(&self) -> &Docker {
        let mut pause = FIRST_PAUSE;
        loop {
            let answered = self.ask().await;
            let reason = answered.as_ref().err().map(|error| chain(error));
            let before = std::mem::replace(
                &mut *self.away.lock().unwrap_or_else(PoisonError::into_inner),
                reason.clone(),
            );
            match (&before, &reason) {
                (None, Some(reason)) => {
                    tracing::warn!(error = reason, "the container engine does not answer");
                }
                (Some(_), None) => tracing::info!("the container engine answers again"),
                _ => {}
            }
            if let Ok(docker) = answered {
                return docker;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn ask(&self) -> Result<&Docker, RuntimeError> {
        let docker = self.docker().await?;
        self.within_limit(async { docker.ping().await.map(drop) }).await?;
        Ok(docker)
    }

    async fn connect(&self) -> Result<Connected, RuntimeError> {
        self.within_limit(async {
            let docker = Docker::connect_with_host(&self.host)?.negotiate_version().await?;
            let info = docker.info().await?;
            let root_dir = info
                .docker_root_dir
                .unwrap_or_else(|| DEFAULT_ROOT_DIR.to_owned());
            Ok(Connected {
                docker,
                root_dir: root_dir.into(),
            })
        })
        .await
    }

    async fn within_limit<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, RuntimeError> {
        let what = || format!("cannot reach the Docker engine at {}", self.host);
        tokio::time::timeout(ANSWER_LIMIT, answer)
            .await
            .map_err(|_| {
                RuntimeError::Other(format!(
                    "{}: no answer within {} s",
                    what(),
                    ANSWER_LIMIT.as_secs()
                ))
            })?
            .map_err(|error| RuntimeError::engine(what(), error))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;

    /// Answers as much of the API as connecting takes, for ever.
    async fn serve(path: &Path) {
        let listener = UnixListener::bind(path).unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            dstack_system::task::spawn("engine connection", async move {
                let body = r#"{"ApiVersion":"1.41","DockerRootDir":"/images"}"#;
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let mut request = [0; 4096];
                while let Ok(1..) = stream.read(&mut request).await {
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    }

    #[tokio::test]
    async fn an_engine_that_comes_later_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docker.sock");
        let waited_for = Engine::at(Some(&format!("unix://{}", path.display())));
        assert_eq!(waited_for.root_dir(), Path::new("/var/lib/docker"));
        let error = waited_for.docker().await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("cannot reach the Docker engine at unix:///"),
            "{error}"
        );
        let comes_later = async {
            while waited_for.away().is_none() {
                tokio::task::yield_now().await;
            }
            serve(&path).await;
        };
        tokio::select! {
            _ = waited_for.until_it_answers() => {}
            () = comes_later => panic!("the engine has ended"),
        }
        assert_eq!(
            (waited_for.away(), waited_for.root_dir()),
            (None, Path::new("/images"))
        );
    }
}
