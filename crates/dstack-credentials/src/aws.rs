//! AWS: environment, profiles, SSO, web identity, processes, containers, instances; Signature Version 4.

mod profiles;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dstack_system::{Secret, env};
pub use reqsign_aws_v4::Credential;
use reqsign_aws_v4::{DefaultCredentialProvider, RequestSigner, StaticCredentialProvider};
use reqsign_core::{
    CommandExecute, CommandOutput, Context, Env, FileRead, HttpSend, ProvideCredential, Signer,
    SigningCredential,
};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use crate::CredentialError;

/// How long an endpoint that gives out credentials may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The region: as given, or `AWS_REGION`, or `AWS_DEFAULT_REGION`.
///
/// # Errors
/// None is set.
pub fn region(given: Option<&str>) -> Result<String, CredentialError> {
    given
        .map(str::to_owned)
        .or_else(|| env::var("AWS_REGION"))
        .or_else(|| env::var("AWS_DEFAULT_REGION"))
        .ok_or(CredentialError::Region)
}

/// Another endpoint for a service, as AWS's own programs take it: `AWS_ENDPOINT_URL_<SERVICE>`, or `AWS_ENDPOINT_URL` for all.
pub fn endpoint(service: &str) -> Option<String> {
    let own = format!("AWS_ENDPOINT_URL_{}", service.to_uppercase());
    env::var(&own).or_else(|| env::var("AWS_ENDPOINT_URL"))
}

/// The usual places in which this machine may have credentials.
fn surroundings() -> Result<Context, CredentialError> {
    Ok(Context::new()
        .with_env(Surroundings)
        .with_file_read(Files)
        .with_command_execute(Commands)
        .with_http_send(Sender(crate::http_client(TIMEOUT)?)))
}

/// Finds the credentials of this machine.
#[derive(Debug, Default)]
struct Finder(DefaultCredentialProvider);

impl Finder {
    async fn find(&self, context: &Context) -> Result<Credential, CredentialError> {
        if let Some(profile) = profiles::with_role(context).await {
            return Err(CredentialError::AwsProfileRole(profile));
        }
        match self.0.provide_credential(context).await {
            Ok(Some(credential)) => Ok(credential),
            Ok(None) => Err(CredentialError::Aws("none of the usual places has any".into())),
            Err(error) => Err(CredentialError::Aws(Box::new(error))),
        }
    }
}

impl ProvideCredential for Finder {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> reqsign_core::Result<Option<Credential>> {
        let found = self.find(context).await;
        let why = "this machine has no credentials that can be used";
        let found = found.map_err(|error| reqsign_core::Error::config_invalid(why).with_source(error));
        found.map(Some)
    }
}

/// The credentials of this machine, for clients that sign by themselves. They are kept until they end.
#[derive(Debug)]
pub struct Keys {
    context: Context,
    finder: Finder,
    kept: Mutex<Option<Credential>>,
}

impl Keys {
    /// Nothing is looked for yet.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn of_this_machine() -> Result<Self, CredentialError> {
        Ok(Self {
            context: surroundings()?,
            finder: Finder::default(),
            kept: Mutex::default(),
        })
    }

    /// Good for now.
    ///
    /// # Errors
    /// There are none that can be used.
    pub async fn current(&self) -> Result<Credential, CredentialError> {
        let mut kept = self.kept.lock().await;
        if let Some(credential) = kept.as_ref().filter(|credential| credential.is_valid()) {
            return Ok(credential.clone());
        }
        let found = self.finder.find(&self.context).await?;
        *kept = Some(found.clone());
        Ok(found)
    }
}

/// Signs requests to one service in one region; finds credentials when they are needed and again before they end.
#[derive(Debug, Clone)]
pub struct Aws {
    signer: Arc<Signer<Credential>>,
    region: String,
}

impl Aws {
    /// With the credentials of this machine, in this region or in that of the environment. Nothing is looked for yet.
    ///
    /// # Errors
    /// There is no region, or the HTTP client cannot be made.
    pub fn of_this_machine(service: &str, region: Option<&str>) -> Result<Self, CredentialError> {
        let region = self::region(region)?;
        let (context, finder) = (surroundings()?, Finder::default());
        let signer = Signer::new(context, finder, RequestSigner::new(service, &region));
        Ok(Self {
            signer: Arc::new(signer),
            region,
        })
    }

    /// With a key that is known.
    pub fn with_key(service: &str, region: &str, id: &str, secret: &Secret) -> Self {
        let provider = StaticCredentialProvider::new(id, secret.expose());
        let signer = Signer::new(Context::new(), provider, RequestSigner::new(service, region));
        Self {
            signer: Arc::new(signer),
            region: region.to_owned(),
        }
    }

    /// The region of the requests.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Adds the headers that say who asks. The body is signed, too.
    ///
    /// # Errors
    /// There are no credentials.
    pub async fn sign(&self, request: http::Request<Bytes>) -> Result<http::Request<Bytes>, CredentialError> {
        let (mut head, body) = request.into_parts();
        let digest = hex::encode(Sha256::digest(&body));
        if let Ok(digest) = http::HeaderValue::from_str(&digest) {
            head.headers.insert("x-amz-content-sha256", digest);
        }
        let signed = self.signer.sign(&mut head, None).await;
        signed.map_err(|error| CredentialError::Aws(Box::new(error)))?;
        Ok(http::Request::from_parts(head, body))
    }
}

/// The environment through our one place.
#[derive(Debug)]
struct Surroundings;

impl Env for Surroundings {
    fn var(&self, key: &str) -> Option<String> {
        env::var(key)
    }

    fn vars(&self) -> HashMap<String, String> {
        env::all().into_iter().collect()
    }

    fn home_dir(&self) -> Option<PathBuf> {
        env::home()
    }
}

#[derive(Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        let read = fs_err::tokio::read(path).await;
        read.map_err(|error| reqsign_core::Error::config_invalid("cannot read the file").with_source(error))
    }
}

/// Runs the `credential_process` of a profile.
#[derive(Debug)]
struct Commands;

impl CommandExecute for Commands {
    async fn command_execute<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> reqsign_core::Result<CommandOutput> {
        let ended = tokio::process::Command::new(program).args(args).output().await;
        let output = ended.map_err(|error| {
            reqsign_core::Error::config_invalid("cannot start a program").with_source(error)
        })?;
        Ok(CommandOutput {
            status: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }
}

#[derive(Debug)]
struct Sender(reqwest::Client);

impl HttpSend for Sender {
    async fn http_send(&self, request: http::Request<Bytes>) -> reqsign_core::Result<http::Response<Bytes>> {
        let failed = |error: reqwest::Error| {
            reqsign_core::Error::unexpected("the request for credentials failed")
                .with_source(error.without_url())
        };
        let request = reqwest::Request::try_from(request).map_err(failed)?;
        let response = self.0.execute(request).await.map_err(failed)?;
        let mut answer = http::Response::builder().status(response.status());
        if let Some(headers) = answer.headers_mut() {
            *headers = response.headers().clone();
        }
        let body = response.bytes().await.map_err(failed)?;
        answer
            .body(body)
            .map_err(|error| reqsign_core::Error::unexpected("the answer is malformed").with_source(error))
    }
}
