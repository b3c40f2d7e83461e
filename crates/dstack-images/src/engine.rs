//! Asks this machine's Docker engine.

use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use dstack_plan::ImageConfig;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::registry::manifest::architecture_of;

/// An engine answers at once, or it does not work.
const LIMIT: Duration = Duration::from_secs(2);

/// Where the engine listens unless told otherwise.
const DEFAULT_SOCKET: &str = "unix:///var/run/docker.sock";

/// An image that the engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its configuration. The architecture is the one for which the engine has it.
    pub config: ImageConfig,
    /// It was pulled from a registry, where it may exist for more architectures.
    pub pulled: bool,
}

/// The Docker engine of this machine, perhaps.
#[derive(Debug)]
pub struct LocalEngine {
    host: String,
    docker: OnceCell<Docker>,
}

impl LocalEngine {
    /// The engine at `host` (in the form of `DOCKER_HOST`), or at the usual socket. Connects when first asked.
    pub fn new(host: Option<&str>) -> Self {
        Self {
            host: host.unwrap_or(DEFAULT_SOCKET).to_owned(),
            docker: OnceCell::new(),
        }
    }

    /// The image, if an engine answers and has it.
    pub async fn find(&self, image: &str) -> Option<Found> {
        let answer = timeout(LIMIT, self.inspect(image)).await;
        match answer {
            Ok(Ok(found)) => Some(found),
            Ok(Err(error)) => {
                // No engine is as usual as no such image.
                tracing::debug!(image, %error, "Not in the local engine");
                None
            }
            Err(_) => {
                tracing::warn!(image, host = self.host, "The Docker engine does not answer");
                None
            }
        }
    }

    /// Returns the directory in which the engine keeps images and containers; `None`: none answers, or it does not say.
    pub async fn data_root(&self) -> Option<String> {
        let info = async {
            let docker = self.docker.get_or_try_init(|| self.connect()).await?;
            docker.info().await
        };
        let info = timeout(LIMIT, info).await.ok()?.ok()?;
        info.docker_root_dir.filter(|dir| !dir.is_empty())
    }

    async fn inspect(&self, image: &str) -> Result<Found, Error> {
        let docker = self.docker.get_or_try_init(|| self.connect()).await?;
        let image = docker.inspect_image(image).await?;
        let config = image.config.unwrap_or_default();
        Ok(Found {
            config: ImageConfig {
                user: config.user.filter(|user| !user.is_empty()),
                entrypoint: config.entrypoint.unwrap_or_default(),
                cmd: config.cmd.unwrap_or_default(),
                architectures: image
                    .architecture
                    .as_deref()
                    .and_then(architecture_of)
                    .into_iter()
                    .collect(),
            },
            pulled: image.repo_digests.is_some_and(|digests| !digests.is_empty()),
        })
    }

    async fn connect(&self) -> Result<Docker, Error> {
        Docker::connect_with_host(&self.host)?.negotiate_version().await
    }
}
