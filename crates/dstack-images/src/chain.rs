//! The local engine first, then a registry.

use std::time::Duration;

use async_trait::async_trait;
use dstack_plan::ImageConfig;
use tokio::time::timeout;

use crate::{ImageError, Images, LocalEngine, RegistryCredentials};

/// How long a registry may take to say for which architectures there is an image that the engine has already.
const ARCHITECTURES_LIMIT: Duration = Duration::from_secs(2);

/// What the engine has needs no registry.
#[derive(Debug)]
pub struct Chain<R> {
    engine: LocalEngine,
    registry: R,
}

impl<R: Images> Chain<R> {
    /// Asks `registry` for what `engine` does not have.
    pub fn new(engine: LocalEngine, registry: R) -> Self {
        Self { engine, registry }
    }
}

#[async_trait]
impl<R: Images> Images for Chain<R> {
    async fn config(
        &self,
        image: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, ImageError> {
        let Some(found) = self.engine.find(image).await else {
            return self.registry.config(image, credentials).await;
        };
        if !found.pulled {
            return Ok(found.config);
        }
        // The engine has it for this machine; other machines may have other processors.
        let asked = timeout(ARCHITECTURES_LIMIT, self.registry.config(image, credentials)).await;
        match asked {
            Ok(Ok(config)) => Ok(config),
            Ok(Err(_)) | Err(_) => Ok(found.config),
        }
    }
}
