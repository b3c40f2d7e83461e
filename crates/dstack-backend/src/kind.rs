use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::config::{BackendConfig, SplitConfig, TypedConfig};
use dstack_compute::{
    Backend, BackendKind, Capabilities, ComputeError, ConfigureError, JobNeeds, PROVISIONING_TIMEOUT,
};
use dstack_model::backends::BackendType;

/// What backends of one type need to be configured and opened; [`Kind`] makes the contract's [`BackendKind`] of it.
#[async_trait]
pub trait CloudKind: Debug + Send + Sync + Sized + 'static {
    /// Configuration of a backend. Its type is the backend's.
    type Config: TypedConfig;

    /// What backends of this type can do.
    fn capabilities() -> Capabilities;

    /// See [`BackendKind::provisioning_timeout`].
    fn provisioning_timeout(_instance_type: &str) -> Duration {
        PROVISIONING_TIMEOUT
    }

    /// See [`BackendKind::job_needs`].
    fn job_needs(_instance_type: &str) -> JobNeeds {
        JobNeeds::NONE
    }

    /// Checks a configuration with the cloud; returns it as it is to be stored.
    ///
    /// # Errors
    /// It cannot be used; with the fields at fault where the credentials are wrong.
    async fn check(&self, config: Self::Config) -> Result<Self::Config, ConfigureError>;

    /// Opens the backend of a configuration that was stored. The cloud is not asked.
    ///
    /// # Errors
    /// The configuration is wrong; the text names the field.
    fn open(kind: Kind<Self>, config: Self::Config) -> Result<Arc<dyn Backend>, String>;
}

/// A kind of backends, which those that it opened keep.
#[derive(Debug)]
pub struct Kind<C>(Arc<C>);

impl<C: CloudKind> Kind<C> {
    /// The kind of backends of a cloud.
    pub fn of(cloud: C) -> Arc<dyn BackendKind> {
        Arc::new(Self(Arc::new(cloud)))
    }
}

impl<C> Clone for Kind<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> Deref for Kind<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

#[async_trait]
impl<C: CloudKind> BackendKind for Kind<C> {
    fn kind(&self) -> BackendType {
        C::Config::KIND
    }

    fn capabilities(&self) -> Capabilities {
        C::capabilities()
    }

    fn provisioning_timeout(&self, instance_type: &str) -> Duration {
        C::provisioning_timeout(instance_type)
    }

    fn job_needs(&self, instance_type: &str) -> JobNeeds {
        C::job_needs(instance_type)
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        let own = C::Config::of(config.clone()).ok_or_else(|| ConfigureError::Invalid(not_of::<C>()))?;
        let checked: BackendConfig = self.check(own).await?.into();
        Ok(checked.split())
    }

    fn open(&self, stored: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        let config = BackendConfig::join(stored).map_err(ComputeError::Configuration)?;
        let own = C::Config::of(config).ok_or_else(|| ComputeError::Configuration(not_of::<C>()))?;
        C::open(self.clone(), own).map_err(ComputeError::Configuration)
    }
}

fn not_of<C: CloudKind>() -> String {
    format!("the configuration is not one of {}", C::Config::KIND)
}
