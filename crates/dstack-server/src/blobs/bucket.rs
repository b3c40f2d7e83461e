//! A bucket in S3 or Google Cloud Storage, or in a store that speaks as one of them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_credentials::CredentialError;
use dstack_credentials::aws::{self, Keys};
use dstack_credentials::google::Google;
use object_store::aws::{AmazonS3Builder, AwsCredential};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::path::{Path, PathPart};
use object_store::{
    BackoffConfig, ClientOptions, CredentialProvider, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
    StaticCredentialProvider,
};

use crate::settings::Settings;

/// For one request.
const TIMEOUT: Duration = Duration::from_secs(60);
/// For all tries of it: a request of a client waits meanwhile.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a bucket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// Two are set.
    #[error("DSTACK_SERVER_S3_BUCKET and DSTACK_SERVER_GCS_BUCKET are both set: unset one of them")]
    Both,
    /// The settings make no sense.
    #[error("the bucket {bucket} cannot be used as it is set")]
    Settings {
        /// Name of the bucket.
        bucket: String,
        /// What the client of the bucket answered.
        #[source]
        source: object_store::Error,
    },
    /// There are no credentials for it.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// It does not do what it is asked for.
    #[error("the bucket {bucket} failed")]
    Failed {
        /// Name of the bucket.
        bucket: String,
        /// What the client of the bucket answered.
        #[source]
        source: object_store::Error,
    },
}

/// A bucket of S3 or Google Cloud Storage, in which uploads are objects.
#[derive(Debug, Clone)]
pub struct Bucket {
    name: String,
    store: Arc<dyn ObjectStore>,
}

impl Bucket {
    /// The one that is set, if any. It is not asked for anything yet.
    ///
    /// # Errors
    /// Two are set, or the settings make no sense.
    pub fn of(settings: &Settings) -> Result<Option<Self>, BucketError> {
        match (&settings.s3_bucket, &settings.gcs_bucket) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(BucketError::Both),
            (Some(bucket), None) => {
                let keys = Arc::new(AmbientKeys(Keys::of_this_machine()?));
                let region = aws::region(settings.s3_region.as_deref()).ok();
                Self::s3(bucket, region.as_deref(), aws::endpoint("s3"), keys).map(Some)
            }
            (None, Some(bucket)) => Self::gcs(bucket, settings.gcs_endpoint.as_deref()).map(Some),
        }
    }

    /// In S3.
    ///
    /// # Errors
    /// The settings make no sense.
    pub fn s3(
        bucket: &str,
        region: Option<&str>,
        endpoint: Option<String>,
        keys: Arc<dyn CredentialProvider<Credential = AwsCredential>>,
    ) -> Result<Self, BucketError> {
        dstack_http::install_crypto();
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(region.unwrap_or("us-east-1"))
            .with_credentials(keys)
            .with_retry(retry())
            .with_client_options(client(endpoint.as_deref()));
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        Self::made(bucket, builder.build())
    }

    /// In Google Cloud Storage. Another endpoint than Google's is asked without credentials, unless there is a file of them.
    ///
    /// # Errors
    /// The settings make no sense, or the file of credentials cannot be read.
    pub fn gcs(bucket: &str, endpoint: Option<&str>) -> Result<Self, BucketError> {
        dstack_http::install_crypto();
        let mut builder = GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_retry(retry())
            .with_client_options(client(endpoint));
        if let Some(endpoint) = endpoint {
            builder = builder.with_base_url(endpoint.trim_end_matches('/'));
        }
        if Google::is_anonymous(endpoint) {
            // Not `with_skip_signature`, which puts do not heed.
            let nobody = GcpCredential {
                bearer: String::new(),
            };
            builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(nobody)));
        }
        Self::made(bucket, builder.build())
    }

    fn made<S: ObjectStore>(
        bucket: &str,
        store: Result<S, object_store::Error>,
    ) -> Result<Self, BucketError> {
        let store = store.map_err(|source| BucketError::Settings {
            bucket: bucket.to_owned(),
            source,
        })?;
        Ok(Self {
            name: bucket.to_owned(),
            store: Arc::new(store),
        })
    }

    /// Stores an object, whole or not at all.
    ///
    /// # Errors
    /// The bucket refuses or cannot be reached.
    pub async fn put(&self, key: &[&str], content: Vec<u8>) -> Result<(), BucketError> {
        let put = self.store.put(&path(key), PutPayload::from(content)).await;
        put.map(drop).map_err(|source| self.failed(source))
    }

    /// Reads an object; `None`: it is not there.
    ///
    /// # Errors
    /// The bucket refuses or cannot be reached.
    pub async fn get(&self, key: &[&str]) -> Result<Option<Vec<u8>>, BucketError> {
        let read = async { self.store.get(&path(key)).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn failed(&self, source: object_store::Error) -> BucketError {
        BucketError::Failed {
            bucket: self.name.clone(),
            source,
        }
    }
}

/// Names come from clients: none can lead out of its place.
fn path(key: &[&str]) -> Path {
    key.iter().map(|part| PathPart::from(*part)).collect()
}

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 4,
        retry_timeout: REQUEST_TIMEOUT,
    }
}

fn client(endpoint: Option<&str>) -> ClientOptions {
    ClientOptions::new()
        .with_timeout(TIMEOUT)
        // Whoever sets an address without TLS wants it.
        .with_allow_http(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")))
}

/// The credentials of this machine, as the client of S3 wants them.
#[derive(Debug)]
struct AmbientKeys(Keys);

#[async_trait]
impl CredentialProvider for AmbientKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>, object_store::Error> {
        let found = self
            .0
            .current()
            .await
            .map_err(|error| object_store::Error::Generic {
                store: "S3",
                source: Box::new(error),
            })?;
        Ok(Arc::new(AwsCredential {
            key_id: found.access_key_id,
            secret_key: found.secret_access_key,
            token: found.session_token,
        }))
    }
}
