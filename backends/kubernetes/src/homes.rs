//! Where things were made. A context of a kubeconfig may be edited: what was made where it led before is not gone by that.

use dstack_compute::ComputeError;
use serde::{Deserialize, Serialize};

use crate::client::{Cluster, NamespaceUid};

/// Under which a home is noted in a call.
pub(crate) const HOME: &str = "home";

/// The namespace that every cluster has, see <https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces/>.
const SYSTEM: &str = "kube-system";

/// A namespace of a certain cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Home {
    /// The namespace in which things are.
    pub(crate) namespace: String,
    /// What tells the cluster from all others; unset where the user of the kubeconfig may see no namespace.
    cluster: Option<Identity>,
}

/// A namespace that stays as long as a cluster does, and its id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Identity {
    namespace: String,
    uid: String,
}

impl Cluster {
    /// Where things are made now.
    pub(crate) async fn home(&self) -> Result<Home, ComputeError> {
        let mut cluster = None;
        for namespace in [SYSTEM, &self.namespace] {
            if let NamespaceUid::Is(uid) = self.namespace_uid(namespace).await? {
                let namespace = namespace.to_owned();
                cluster = Some(Identity { namespace, uid });
                break;
            }
        }
        Ok(Home {
            namespace: self.namespace.clone(),
            cluster,
        })
    }

    /// This cluster in the namespace in which something was made.
    ///
    /// # Errors
    /// [`ComputeError::Configuration`]: it was made in another cluster than the one to which the context leads now.
    pub(crate) async fn at(&self, home: &Home) -> Result<Self, ComputeError> {
        if let Some(Identity { namespace, uid }) = &home.cluster {
            let found = self.namespace_uid(namespace).await?;
            // Nobody knows then whether it is the same cluster: what is in this one may be another's, and in the other one all is left.
            if found == NamespaceUid::Hidden {
                return Err(ComputeError::Configuration(format!(
                    "the user of the context {:?} may not see the namespace {namespace} any more, by which the cluster is known: allow \
                     `get` of namespaces",
                    self.access.region
                )));
            }
            if found != NamespaceUid::Is(uid.clone()) {
                return Err(ComputeError::Configuration(format!(
                    "the context {:?} does not lead any more to the cluster in which this was made (its namespace {namespace} has the uid \
                     {uid}): let the context lead there until it is removed, and give the other cluster a context of its own",
                    self.access.region
                )));
            }
        }
        Ok(self.in_namespace(&home.namespace))
    }
}
