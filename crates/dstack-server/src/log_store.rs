//! Which store keeps the output of jobs: CloudWatch, Cloud Logging, Fluent Bit, or files, the first that is set. As in
//! dstack 0.22.5, one that refuses or is not set up right is reported, and files are used instead. One that only does not
//! answer is waited for in the background: logs must not be split over two places for a moment's outage.

mod late;

use std::sync::Arc;
use std::time::Duration;

use dstack_logs::{Durability, FileLogStore, LogError, LogStore};
use dstack_system::chain;
use dstack_system::clock::SharedClock;

use crate::settings::Settings;
use late::LateLogStore;

/// A store that does not answer for so long is not waited for any more: nobody can use a server that has not started.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The store did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", READ_TIMEOUT.as_secs())]
struct NoAnswer;

/// Opens it. Returns after [`READ_TIMEOUT`] at the latest.
pub async fn open(settings: &Settings, clock: &SharedClock) -> Arc<dyn LogStore> {
    let Some(name) = chosen(settings) else {
        return files(settings);
    };
    match open_in_time(name, settings, clock).await {
        Ok(store) => {
            tracing::info!("the output of jobs goes to {name}");
            store
        }
        Err(error @ LogError::Away { .. }) => {
            tracing::error!(
                store = name,
                error = %chain(&error),
                "the log store does not answer, and is tried again: until then, output of running jobs waits at their runners, \
                 and that of jobs that end may be lost"
            );
            let (settings, clock) = (settings.clone(), Arc::clone(clock));
            LateLogStore::start(name, move || {
                let (settings, clock) = (settings.clone(), Arc::clone(&clock));
                async move { open_in_time(name, &settings, &clock).await }
            })
        }
        Err(error) => {
            tracing::error!(
                store = name,
                error = %chain(&error),
                "cannot use the log store for the output of jobs, which is kept in files of this server instead"
            );
            files(settings)
        }
    }
}

fn files(settings: &Settings) -> Arc<dyn LogStore> {
    Arc::new(FileLogStore::new(&settings.dir, Durability::Synced))
}

async fn open_in_time(
    name: &'static str,
    settings: &Settings,
    clock: &SharedClock,
) -> Result<Arc<dyn LogStore>, LogError> {
    let opened = tokio::time::timeout(READ_TIMEOUT, remote(name, settings, clock)).await;
    opened.unwrap_or_else(|_| {
        Err(LogError::Away {
            store: name,
            source: NoAnswer.into(),
        })
    })
}

const CLOUDWATCH: &str = "CloudWatch Logs";
const GCP: &str = "GCP Logging";
const FLUENT_BIT: &str = "Fluent Bit";

/// The first that is set.
fn chosen(settings: &Settings) -> Option<&'static str> {
    let stores = [
        (CLOUDWATCH, &settings.cloudwatch_group),
        (GCP, &settings.gcp_logging_project),
        (FLUENT_BIT, &settings.fluentbit_host),
    ];
    stores
        .into_iter()
        .find(|(_, set)| set.is_some())
        .map(|(name, _)| name)
}

async fn remote(
    name: &'static str,
    settings: &Settings,
    clock: &SharedClock,
) -> Result<Arc<dyn LogStore>, LogError> {
    match name {
        #[cfg(feature = "cloudwatch")]
        CLOUDWATCH => cloudwatch(settings, clock).await,
        #[cfg(feature = "gcp-logging")]
        GCP => gcp(settings).await,
        #[cfg(feature = "fluent-bit")]
        FLUENT_BIT => fluent_bit(settings).await,
        name => {
            let _ = (settings, clock); // not every store needs them
            Err(LogError::Unusable {
                store: name,
                reason: "this program was built without it".to_owned(),
            })
        }
    }
}

#[cfg(feature = "cloudwatch")]
async fn cloudwatch(settings: &Settings, clock: &SharedClock) -> Result<Arc<dyn LogStore>, LogError> {
    use dstack_credentials::aws::Aws;
    use dstack_logs::cloudwatch::{CloudWatchConfig, CloudWatchLogStore};
    let config = CloudWatchConfig {
        group: settings.cloudwatch_group.clone().unwrap_or_default(),
        endpoint: None,
    };
    let aws = Aws::of_this_machine("logs", settings.cloudwatch_region.as_deref());
    let aws = aws.map_err(LogError::remote(CLOUDWATCH))?;
    Ok(Arc::new(
        CloudWatchLogStore::open(config, aws, Arc::clone(clock)).await?,
    ))
}

#[cfg(feature = "gcp-logging")]
async fn gcp(settings: &Settings) -> Result<Arc<dyn LogStore>, LogError> {
    use dstack_credentials::google::Google;
    use dstack_logs::gcp::{GcpLogStore, GcpLoggingConfig};
    let config = GcpLoggingConfig {
        project: settings.gcp_logging_project.clone().unwrap_or_default(),
        endpoint: settings.gcp_logging_endpoint.clone(),
    };
    let google = match Google::is_anonymous(config.endpoint.as_deref()) {
        true => None,
        false => Some(Google::of_this_machine().map_err(LogError::remote(GCP))?),
    };
    Ok(Arc::new(GcpLogStore::open(config, google).await?))
}

#[cfg(feature = "fluent-bit")]
async fn fluent_bit(settings: &Settings) -> Result<Arc<dyn LogStore>, LogError> {
    use dstack_logs::fluent_bit::{ElasticsearchConfig, FluentBitConfig, FluentBitLogStore};
    let elasticsearch = settings
        .elasticsearch_host
        .clone()
        .map(|host| ElasticsearchConfig {
            host,
            index: settings.elasticsearch_index.clone(),
            api_key: settings.elasticsearch_api_key.clone(),
        });
    let config = FluentBitConfig {
        host: settings.fluentbit_host.clone().unwrap_or_default(),
        port: settings.fluentbit_port,
        protocol: settings.fluentbit_protocol.parse()?,
        tag_prefix: settings.fluentbit_tag_prefix.clone(),
        elasticsearch,
    };
    Ok(Arc::new(FluentBitLogStore::open(config).await?))
}
