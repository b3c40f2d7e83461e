//! What the places of pods and claims say besides what all backends' do, as `backend_data`.

use dstack_compute::{Call, ComputeError, Removal};
use serde::{Deserialize, Serialize};

use crate::Known;
use crate::client::Cluster;
use crate::homes::{HOME, Home};
use crate::pieces::VISIBLE_WITHIN;

/// Unset in places of earlier builds and of dstack 0.22.5, which have other data or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PlaceData {
    pub(crate) home: Option<Home>,
    /// Of the pod, or the claim.
    pub(crate) uid: Option<String>,
    /// Public key that the SSH server of `ssh_proxy` shows: whoever goes that way pins it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ssh_proxy_host_key: Option<String>,
    /// Of a claim: pods get it without the right to write.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) read_only: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
const fn is_false(value: &bool) -> bool {
    !*value
}

impl PlaceData {
    pub(crate) fn read(backend_data: Option<&str>) -> Self {
        let data = backend_data.and_then(|text| serde_json::from_str(text).ok());
        data.unwrap_or_default()
    }

    pub(crate) fn write(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }
}

impl Known {
    /// The cluster and the namespace in which a request is made, noted before anything is.
    pub(crate) async fn make_home(&self, call: &Call<'_>) -> Result<(Home, Cluster), ComputeError> {
        let home = match call.made(HOME)? {
            Some(home) => home,
            None => {
                self.cluster.ensure_namespace().await?;
                call.make_once(HOME, || self.cluster.home()).await?
            }
        };
        let cluster = self.cluster.at(&home).await?;
        Ok((home, cluster))
    }

    /// The cluster and the namespace in which a request was made, by what is noted or its place tells.
    pub(crate) async fn home_of(&self, call: &Call<'_>, place: &PlaceData) -> Result<Cluster, ComputeError> {
        let noted = call.made(HOME)?;
        match noted.as_ref().or(place.home.as_ref()) {
            Some(home) => self.cluster.at(home).await,
            None => Ok(self.cluster.clone()),
        }
    }
}

/// Nothing is there any more.
pub(crate) async fn forget_home(call: &Call<'_>) -> Result<Removal, ComputeError> {
    let nothing = || async { Ok(None::<Home>) };
    let forget = |_| async { Ok(Removal::Gone) };
    call.unmake(HOME, None, VISIBLE_WITHIN, nothing, forget).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_others_is_no_obstacle() {
        for text in [
            None,
            Some(""),
            Some(r#"{"jump_pod_name": "p", "jump_pod_service_name": "s"}"#),
        ] {
            assert_eq!(PlaceData::read(text), PlaceData::default(), "{text:?}");
        }
        let data = PlaceData::read(Some(r#"{"read_only":true}"#));
        assert!(data.read_only);
        assert_eq!(PlaceData::read(data.write().as_deref()), data);
    }
}
