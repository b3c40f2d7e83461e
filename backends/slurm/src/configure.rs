//! Checks of a configuration: its texts, then all clusters at the same time.

use std::collections::HashSet;
use std::sync::Arc;

use dstack_compute::ConfigureError;
use dstack_compute::config::SlurmConfig;
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::cluster::Cluster;
use crate::commands::CommandError;
use crate::login::LoginError;
use crate::{MAX_CLUSTERS_AT_ONCE, SlurmKind};

/// Checks that all clusters can be used.
pub(crate) async fn check(kind: &SlurmKind, config: &SlurmConfig) -> Result<(), ConfigureError> {
    check_names(config).map_err(ConfigureError::Invalid)?;
    let clusters = kind.clusters(config).map_err(ConfigureError::Invalid)?;
    let ping = |(at, cluster): (usize, &Arc<Cluster>)| {
        let cluster = Arc::clone(cluster);
        async move {
            let error = cluster.commands.ping().await.err()?;
            Some((at, explain(&cluster, &error), error))
        }
    };
    let checks = stream::iter(clusters.iter().enumerate().map(ping)).buffered(MAX_CLUSTERS_AT_ONCE);
    let answers: Vec<Option<(usize, String, CommandError)>> = checks.collect().await;
    let failed: Vec<(usize, String, CommandError)> = answers.into_iter().flatten().collect();
    if failed.is_empty() {
        return Ok(());
    }
    let texts: Vec<&str> = failed.iter().map(|(_, text, _)| text.as_str()).collect();
    let details = format!("Failed to check clusters: {}", texts.join("; "));
    let fields: Vec<Vec<String>> = failed
        .iter()
        .flat_map(|(at, _, error)| fields(*at, error))
        .collect();
    Err(match fields.is_empty() {
        true => ConfigureError::Invalid(details),
        false => ConfigureError::Credentials {
            fields,
            details: Some(details),
        },
    })
}

fn check_names(config: &SlurmConfig) -> Result<(), String> {
    if config.clusters.is_empty() {
        return Err("clusters: at least one is needed".to_owned());
    }
    let mut names = HashSet::new();
    for (at, cluster) in config.clusters.iter().enumerate() {
        if cluster.name.trim().is_empty() {
            return Err(format!("clusters[{at}].name: a name is needed"));
        }
        if !names.insert(&cluster.name) {
            return Err(format!(
                "clusters[{at}].name: there are several clusters '{}'",
                cluster.name
            ));
        }
        for (field, text) in [("hostname", &cluster.hostname), ("user", &cluster.user)] {
            if text.trim().is_empty() {
                return Err(format!("cluster '{}', {field}: a text is needed", cluster.name));
            }
        }
    }
    Ok(())
}

fn explain(cluster: &Cluster, error: &CommandError) -> String {
    let problem = match error {
        CommandError::Login(error) => error.to_string(),
        failed @ CommandError::Failed { .. } => cluster.commands.explain(failed).details(),
    };
    format!(
        "(name={} hostname={}): {problem}",
        cluster.name, cluster.login.hostname
    )
}

/// Paths of the fields that are at fault.
fn fields(at: usize, error: &CommandError) -> Vec<Vec<String>> {
    let path = |parts: &[&str]| {
        let head = ["clusters".to_owned(), at.to_string()];
        head.into_iter()
            .chain(parts.iter().map(|part| (*part).to_owned()))
            .collect()
    };
    match error {
        CommandError::Login(LoginError::Key(_)) => vec![path(&["private_key", "content"])],
        CommandError::Login(LoginError::Denied(_)) => {
            vec![path(&["user"]), path(&["private_key", "content"])]
        }
        _ => Vec::new(),
    }
}
