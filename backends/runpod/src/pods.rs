//! The life of a container: its login to the image registry, then the pod.

use std::collections::HashMap;

use async_trait::async_trait;
use dstack_backend::Made;
use dstack_compute::{
    Call, ComputeError, Container, ContainerRequest, Known, LISTED_WITHIN, Lifecycle, RegistryLogin, Removal,
    Sign, Step,
};
use dstack_model::runs::JobProvisioningData;
use serde_json::json;

use crate::Runpod;
use crate::client::{Pod, PodStatus};
use crate::errors::{deployed, is_in_use, is_missing, not_made};
use crate::pieces::{ENDS_INTERVAL, NAME_LENGTH, STARTS_INTERVAL, end_of, place_of, sign_of, stage_of, told};
use crate::requests::{PodRequest, pod_request};

/// The piece with which private images are pulled.
const LOGIN: &str = "registry login";

const POD: &str = "pod";

#[async_trait]
impl Lifecycle<Container> for Runpod {
    async fn ensure(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        // What can never be made costs no call.
        pod_request(want, &name, None)?;
        let login: Option<String> = match &want.workload.registry {
            Some(login) => {
                let create = || self.create_login(&name, login);
                let find = || self.find_login(&name);
                Some(call.make(LOGIN, LISTED_WITHIN, create, find).await?)
            }
            None => None,
        };
        let request = pod_request(want, &name, login.as_deref())?;
        let create = async || Ok(Made::now(self.create_pod(&request).await?, call));
        let find = || self.find_pod(&name, call);
        let made: Made = call.make(POD, LISTED_WITHIN, create, find).await?;
        let waiting = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: STARTS_INTERVAL,
        };
        let Some(pod) = told(self.client.pod(&made.id).await)? else {
            return match made.is_new(call) {
                true => Ok(waiting("the pod is listed")),
                false => Err(ComputeError::Broken(
                    "Runpod does not have the pod any more".to_owned(),
                )),
            };
        };
        if let Some(end) = end_of(&pod) {
            return Err(ComputeError::Broken(end.to_owned()));
        }
        Ok(match place_of(&pod, &want.offer) {
            Some(place) => Step::Ready(place),
            None => waiting(stage_of(&pod)),
        })
    }

    async fn look(
        &self,
        known: &[Known<Container>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let listed = told(self.client.all_pods().await)?;
        let mut listed: HashMap<String, Pod> = listed.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            // A new pod may not be listed yet.
            let pod = match listed.remove(&place.instance_id) {
                Some(pod) => Some(pod),
                None => match told(self.client.pod(&place.instance_id).await) {
                    Ok(pod) => pod,
                    // Of the others it is told how they are.
                    Err(error) => {
                        tracing::debug!(pod.id = place.instance_id, %error, "Runpod does not tell how a pod is");
                        signs.push(None);
                        continue;
                    }
                },
            };
            signs.push(Some(match pod {
                Some(pod) => sign_of(place, &pod),
                None => Sign::Lost("Runpod does not have the pod any more".to_owned()),
            }));
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Container>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        let pod = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let find = || self.find_pod(&name, call);
        let delete = async |pod: Made| Ok(pod.removal(call, self.delete_pod(&pod.id).await?, ENDS_INTERVAL));
        let removal = call.unmake(POD, pod, LISTED_WITHIN, find, delete).await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        // The login is in use as long as there is the pod.
        let find = || self.find_login(&name);
        let delete = async |login: String| self.delete_login(&login).await;
        call.unmake(LOGIN, None, LISTED_WITHIN, find, delete).await
    }
}

impl Runpod {
    async fn create_login(&self, name: &str, login: &RegistryLogin) -> Result<String, ComputeError> {
        let body = json!({"name": name, "username": login.username, "password": login.password.expose()});
        let made = self.client.create_registry_record(&body).await;
        made.map_err(|error| not_made(&error))
    }

    async fn find_login(&self, name: &str) -> Result<Option<String>, ComputeError> {
        let records = told(self.client.registry_records().await)?;
        let found = records.into_iter().find(|record| record.name == name);
        Ok(found.map(|record| record.id))
    }

    pub(crate) async fn delete_login(&self, id: &str) -> Result<Removal, ComputeError> {
        match self.client.delete_registry_record(id).await {
            Ok(_) => Ok(Removal::Gone),
            Err(error) if is_missing(&error) => Ok(Removal::Gone),
            // By the pod that has just been deleted: nobody else knows of this login.
            Err(error) if is_in_use(&error) => Ok(Removal::Underway { again: ENDS_INTERVAL }),
            Err(error) => told(Err(error)),
        }
    }

    async fn create_pod(&self, request: &PodRequest) -> Result<String, ComputeError> {
        let made = match request {
            PodRequest::Secure(body) => self.client.create_pod(body).await,
            PodRequest::Community(input) => match self.client.deploy_pod(input).await {
                Ok(answer) => return deployed(answer),
                Err(error) => Err(error),
            },
        };
        made.map_err(|error| not_made(&error))
    }

    async fn find_pod(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let pods = told(self.client.single_pods().await)?;
        let found = pods
            .into_iter()
            .find(|pod| pod.name == name && pod.status != PodStatus::Terminated);
        Ok(found.map(|pod| Made::now(pod.id, call)))
    }

    pub(crate) async fn delete_pod(&self, id: &str) -> Result<Removal, ComputeError> {
        if !told(self.client.delete_pod(id).await)? {
            return Ok(Removal::Gone);
        }
        Ok(match told(self.client.pod(id).await)? {
            Some(pod) if pod.status != PodStatus::Terminated => Removal::Underway { again: ENDS_INTERVAL },
            _ => Removal::Gone,
        })
    }
}
