//! Images of which nothing is known.

use async_trait::async_trait;
use dstack_images::{ImageError, Images, RegistryCredentials};
use dstack_plan::ImageConfig;

/// Asks nobody: what an image says of itself is not known.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnknownImages;

#[async_trait]
impl Images for UnknownImages {
    async fn config(
        &self,
        _image: &str,
        _credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, ImageError> {
        Ok(ImageConfig::default())
    }
}
