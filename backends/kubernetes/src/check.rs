//! Whether a cluster can be used, when the backend is configured.

use std::time::Duration;

use dstack_backend::configure_error;
use dstack_compute::ConfigureError;
use dstack_http::ApiError;
use futures_util::future::join_all;
use http::StatusCode;

use crate::client::Cluster;
use crate::errors::readable;
use crate::rights::RIGHTS;

/// Who does not answer within this time is not where the kubeconfig says.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The field that says where clusters are, and who enters them.
const FIELD: &str = "kubeconfig";

/// Whether the cluster answers, as who it says to be, and lets us do what is needed.
pub(crate) async fn check(cluster: &Cluster) -> Result<(), ConfigureError> {
    let region = &cluster.access.region;
    let Ok(answer) = tokio::time::timeout(ANSWERS_WITHIN, missing_rights(cluster)).await else {
        let seconds = ANSWERS_WITHIN.as_secs();
        return Err(wrong(format!(
            "context {region:?}: {} did not answer within {seconds} s. Is that its address, and may this server go there?",
            cluster.access.server
        )));
    };
    match answer {
        Ok(missing) if missing.is_empty() => Ok(()),
        Ok(missing) => Err(wrong(format!(
            "context {region:?}: its user may not {}. The roles that are needed are in the documentation of the backend",
            missing.join(", ")
        ))),
        // A wrong address, or a certificate that others have signed.
        Err(error @ ApiError::NotSent { .. }) => Err(wrong(format!("context {region:?}: {error}"))),
        Err(error) => Err(match configure_error(&readable(&error), &[&[FIELD]]) {
            ConfigureError::Credentials { fields, details } => ConfigureError::Credentials {
                fields,
                details: details.map(|text| format!("context {region:?}: {text}")),
            },
            ConfigureError::Invalid(text) => ConfigureError::Invalid(format!("context {region:?}: {text}")),
        }),
    }
}

fn wrong(details: String) -> ConfigureError {
    ConfigureError::Credentials {
        fields: vec![vec![FIELD.to_owned()]],
        details: Some(details),
    }
}

/// What is not allowed and has to be, as `create pods in team`.
async fn missing_rights(cluster: &Cluster) -> Result<Vec<String>, ApiError> {
    cluster.version().await?;
    let all = RIGHTS
        .iter()
        .flat_map(|right| right.verbs.iter().map(move |verb| (right, *verb)));
    let reviews = all.map(async |(right, verb)| {
        let is_allowed = match cluster.may(right, verb).await {
            // Who may not ask finds out.
            Err(error)
                if matches!(
                    error.status(),
                    Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
                ) =>
            {
                true
            }
            answer => answer?,
        };
        let place = match right.is_of_cluster {
            true => "all namespaces",
            false => cluster.namespace.as_str(),
        };
        Ok((!is_allowed).then(|| format!("{verb} {} in {place}", right.resource)))
    });
    let answers: Result<Vec<Option<String>>, ApiError> = join_all(reviews).await.into_iter().collect();
    Ok(answers?.into_iter().flatten().collect())
}
