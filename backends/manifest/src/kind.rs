use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Env, configure_error};
use dstack_compute::config::{BackendConfig, ManifestConfig, SplitConfig};
use dstack_compute::{Backend, BackendKind, Capabilities, ComputeError, ConfigureError};
use dstack_model::backends::{BackendType, NameError};
use serde_json::Value as Json;

use crate::backend::Machines;
use crate::client::{Client, Failure, config_scope};
use crate::manifest::{Check, List, Manifest};
use crate::template::{Item, Scope};

/// The kind of backends that a manifest describes, whose type is known from now on.
///
/// # Errors
/// There are too many types.
pub fn kind(env: Env, manifest: Manifest) -> Result<Arc<dyn BackendKind>, NameError> {
    let kind = BackendType::register(&manifest.kind)?;
    let manifest = Arc::new(manifest);
    Ok(Arc::new(ManifestKind { env, kind, manifest }))
}

/// The configuration with these values of the fields of a manifest.
pub fn config_of<'a>(manifest: &Manifest, fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Json {
    let mut config = serde_json::json!({"type": manifest.kind, "creds": {}});
    for (name, value) in fields {
        let is_secret = manifest.fields.get(name).is_some_and(|field| field.secret);
        let place = match is_secret {
            true => config.get_mut("creds"),
            false => Some(&mut config),
        };
        if let Some(Json::Object(place)) = place {
            place.insert(name.to_owned(), value.into());
        }
    }
    config
}

/// The kind of backends of one manifest.
#[derive(Debug, Clone)]
pub(crate) struct ManifestKind {
    pub(crate) env: Env,
    pub(crate) kind: BackendType,
    pub(crate) manifest: Arc<Manifest>,
}

impl ManifestKind {
    fn own(&self, config: BackendConfig) -> Result<ManifestConfig, String> {
        match config {
            BackendConfig::Manifest(config) if config.kind == self.kind => Ok(config),
            _ => Err(format!("the configuration is not one of {}", self.kind)),
        }
    }

    /// The path of a field, in configurations.
    fn path(&self, field: &str) -> Vec<String> {
        let is_secret = self.manifest.fields.get(field).is_some_and(|field| field.secret);
        let path = match is_secret {
            true => vec!["creds", field],
            false => vec![field],
        };
        path.into_iter().map(str::to_owned).collect()
    }

    /// Whether the configuration has the fields of the manifest, and no others.
    fn check_fields(&self, config: &ManifestConfig) -> Result<(), String> {
        let given = |name: &str, is_secret: bool| match is_secret {
            true => config
                .creds
                .get(name)
                .is_some_and(|secret| !secret.expose().is_empty()),
            false => config.options.get(name).is_some_and(|text| !text.is_empty()),
        };
        let fields = &self.manifest.fields;
        let mut needed = fields.iter().filter(|(_, field)| !field.optional);
        if let Some((name, _)) = needed.find(|(name, field)| !given(name, field.secret)) {
            return Err(format!("`{}` is missing", self.path(name).join(".")));
        }
        let is_field =
            |name: &str, is_secret: bool| fields.get(name).is_some_and(|field| field.secret == is_secret);
        let odd_secret = config.creds.keys().find(|name| !is_field(name, true));
        let odd_option = config.options.keys().find(|name| !is_field(name, false));
        match odd_secret
            .map(|name| format!("creds.{name}"))
            .or_else(|| odd_option.cloned())
        {
            Some(odd) => Err(format!(
                "backends of the type {} have no field `{odd}`",
                self.kind
            )),
            None => Ok(()),
        }
    }

    /// # Errors
    /// The request fails, or finds nothing where it has to.
    async fn check(&self, client: &Client, check: &Check, scope: &Scope) -> Result<(), ConfigureError> {
        let item = Item::new(&Json::Null, scope);
        if check.when.as_ref().is_some_and(|when| !when.is_true(&item)) {
            return Ok(());
        }
        let Some(items) = &check.items else {
            let answer = client.send(&check.request, scope).await;
            return answer.map(drop).map_err(|failure| self.failed(failure));
        };
        let list = List {
            request: check.request.clone(),
            items: items.clone(),
            pages: check.pages.clone(),
        };
        let found = client
            .list(&list, scope)
            .await
            .map_err(|failure| self.failed(failure))?;
        let fits = |entry: &Json| {
            let item = Item::new(entry, scope);
            check.filter.as_ref().is_none_or(|filter| filter.is_true(&item))
        };
        match found.iter().any(fits) {
            true => Ok(()),
            false => Err(self.lacks(check, scope)),
        }
    }

    fn failed(&self, failure: Failure) -> ConfigureError {
        match failure {
            Failure::NotAsked(text) => ConfigureError::Invalid(text),
            Failure::Api(error) => match configure_error(&error, &[]) {
                ConfigureError::Credentials { details, .. } => ConfigureError::Credentials {
                    fields: self.sent_fields(),
                    details,
                },
                other => other,
            },
        }
    }

    /// The fields by which requests say who asks, as far as they are secret.
    fn sent_fields(&self) -> Vec<Vec<String>> {
        let is_secret = |name: &&str| self.manifest.fields.get(*name).is_some_and(|field| field.secret);
        let sent = self.manifest.api.auth.fields().into_iter().filter(is_secret);
        sent.map(|name| self.path(name)).collect()
    }

    fn lacks(&self, check: &Check, scope: &Scope) -> ConfigureError {
        let field = check.field.as_deref().unwrap_or_default();
        let told = check
            .missing
            .as_ref()
            .and_then(|missing| missing.text(scope).ok());
        let details =
            told.unwrap_or_else(|| format!("{} has nothing of what the field names", self.manifest.title));
        ConfigureError::Credentials {
            fields: vec![self.path(field)],
            details: Some(details),
        }
    }
}

#[async_trait]
impl BackendKind for ManifestKind {
    fn kind(&self) -> BackendType {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        let able = &self.manifest.capabilities;
        Capabilities {
            create_instance: true,
            privileged: able.privileged,
            instance_volumes: able.instance_volumes,
            multinode: able.multinode,
            ..Capabilities::default()
        }
    }

    fn provisioning_timeout(&self, _: &str) -> Duration {
        self.manifest.machine.start_within.to_duration()
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        let own = self.own(config.clone()).map_err(ConfigureError::Invalid)?;
        self.check_fields(&own).map_err(ConfigureError::Invalid)?;
        let client = Client::new(&self.env, self.kind, &self.manifest, &own);
        let client = client.map_err(ConfigureError::Invalid)?;
        let scope = config_scope(&self.manifest, &own);
        for check in &self.manifest.check {
            self.check(&client, check, &scope).await?;
        }
        Ok(config.split())
    }

    fn open(&self, stored: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        let config = BackendConfig::join(stored).map_err(ComputeError::Configuration)?;
        let opened = self.own(config).and_then(|own| Machines::open(self.clone(), own));
        Ok(Arc::new(opened.map_err(ComputeError::Configuration)?))
    }
}
