use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, bare_key, compute_error, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::runs::JobProvisioningData;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::Seeweb;
use crate::client::{Created, NewServer, Progress, Server, Status, message};
use crate::setup::script;

/// Longest name of a machine, which stands in its notes: its own name is the vendor's.
const NAME_LENGTH: usize = 60;

/// The user that the vendor's images have.
const USER: &str = "root";

const SSH_PORT: i64 = 22;

/// Of a key's hash, in its label, as dstack 0.22.5 has it.
const LABEL_DIGITS: usize = 20;

/// Pause while a machine starts: that takes minutes.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// What is noted of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Noted {
    server: Made,
    /// What makes it; `None`: that is not known.
    action: Option<i64>,
}

impl Noted {
    fn of(created: Created, call: &Call<'_>) -> Self {
        Self {
            server: Made::now(created.server.name, call),
            action: created.action_id,
        }
    }

    fn found(server: Server, call: &Call<'_>) -> Self {
        Self {
            server: Made::now(server.name, call),
            action: None,
        }
    }
}

#[async_trait]
impl Lifecycle<Machine> for Seeweb {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        let noted: Noted = call
            .make(
                "machine",
                LISTED_WITHIN,
                async || Ok(Noted::of(self.create(want, &name).await?, call)),
                // One that is being taken away is that of an attempt before this one.
                async || {
                    self.find(&name, |server| server.status != Status::Deleting, call)
                        .await
                },
            )
            .await?;
        let starting = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: STARTS_INTERVAL,
        };
        let server = match self.server(&noted.server.id).await? {
            None if noted.server.is_new(call) => return Ok(starting("the machine is listed")),
            None => return Err(ComputeError::Broken(gone())),
            Some(server) => server,
        };
        if let Some(end) = end_of(&server) {
            return Err(ComputeError::Broken(end));
        }
        let progress = match noted.action {
            None => None,
            Some(action) => {
                let progress = self.client.progress(action).await;
                progress.map_err(|error| compute_error(&error))?
            }
        };
        let is_made = match progress {
            Some(Progress::Failed) => {
                let text = "Seeweb could not make the machine".to_owned();
                return Err(ComputeError::Broken(text));
            }
            Some(progress) => progress == Progress::Completed,
            None => server.status == Status::Booted,
        };
        let address = server.ipv4.filter(|address| is_made && !address.is_empty());
        let Some(address) = address else {
            return Ok(starting("the machine starts"));
        };
        let id = noted.server.id;
        let mut place = machine_place(&want.offer, id, address, USER, SSH_PORT);
        place.backend_data = Some(json!({"action_id": noted.action}).to_string());
        Ok(Step::Ready(place))
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let all = self.servers().await?;
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let listed = all.iter().find(|server| server.name == place.instance_id);
            // Nothing is known of pages of the list: one that is not in it is asked for by its name.
            let server = match listed {
                Some(server) => Ok(Some(server.clone())),
                None => self.client.server(&place.instance_id).await,
            };
            signs.push(match server {
                Ok(None) => Some(Sign::Lost(gone())),
                Ok(Some(server)) => Some(end_of(&server).map_or(Sign::Well, Sign::Lost)),
                // Of the others it is told how they are.
                Err(error) => {
                    tracing::debug!(machine.id = place.instance_id, %error, "Seeweb does not tell how a machine is");
                    None
                }
            });
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let machine = known.place.as_ref().map(|place| Noted {
            server: Made::long_ago(place.instance_id.clone()),
            action: None,
        });
        let delete = async |machine: Noted| {
            let told = self.terminate(&machine.server.id).await?;
            Ok(machine.server.removal(call, told, ENDS_INTERVAL))
        };
        let find = async || self.find(&name, |_| true, call).await;
        call.unmake("machine", machine, LISTED_WITHIN, find, delete).await
    }
}

impl Seeweb {
    async fn create(&self, want: &MachineRequest, name: &str) -> Result<Created, ComputeError> {
        let (plan, region) = (want.offer.instance.name.as_str(), &*want.offer.region);
        let sold = self.sold().await.map_err(not_asked)?;
        let image = sold.image(plan, region)?;
        let new = NewServer {
            plan,
            image,
            location: region,
            notes: name,
            key: &self.key_label(want).await.map_err(not_asked)?,
            script: &script(&want.authorized_keys),
        };
        let created = self.client.create_server(&new).await;
        created.map_err(|error| {
            // What is free is not what it was.
            self.sold.forget();
            not_created(&error)
        })
    }

    /// The label of the account's key with which the project logs in, which is added if it is not there. It stays, as other machines
    /// have it.
    async fn key_label(&self, want: &MachineRequest) -> Result<String, ComputeError> {
        let key = want.authorized_keys.first().map_or("", String::as_str);
        if let Some(label) = self.find_key(key).await? {
            return Ok(label);
        }
        let digest = hex::encode(Sha256::digest(bare_key(key)));
        let label = format!("dstack-{}", digest.get(..LABEL_DIGITS).unwrap_or(&digest));
        match self.client.add_key(&label, key).await {
            Ok(()) => Ok(label),
            // Another call may have added it meanwhile.
            Err(error) if error.is_definite() => {
                let found = self.find_key(key).await?;
                found.ok_or_else(|| compute_error(&error))
            }
            Err(error) => Err(compute_error(&error)),
        }
    }

    async fn find_key(&self, key: &str) -> Result<Option<String>, ComputeError> {
        let wanted = bare_key(key);
        let all = self.client.keys().await;
        let all = all.map_err(|error| compute_error(&error))?;
        let found = all.into_iter().find(|known| bare_key(&known.key) == wanted);
        Ok(found.map(|known| known.label))
    }

    async fn find(
        &self,
        name: &str,
        is_wanted: impl Fn(&Server) -> bool,
        call: &Call<'_>,
    ) -> Result<Option<Noted>, ComputeError> {
        let all = self.servers().await?;
        let found = all
            .into_iter()
            .find(|server| server.notes.as_deref() == Some(name) && is_wanted(server));
        Ok(found.map(|server| Noted::found(server, call)))
    }

    /// All that are not over.
    async fn servers(&self) -> Result<Vec<Server>, ComputeError> {
        let all = self.client.servers().await;
        let mut all = all.map_err(|error| compute_error(&error))?;
        all.retain(|server| server.status != Status::Deleted);
        Ok(all)
    }

    /// `None`: the API says that there is none, and does not list it either.
    async fn server(&self, name: &str) -> Result<Option<Server>, ComputeError> {
        let found = self.client.server(name).await;
        if let Some(server) = found.map_err(|error| compute_error(&error))? {
            return Ok(Some(server));
        }
        let all = self.servers().await?;
        Ok(all.into_iter().find(|server| server.name == name))
    }

    pub(crate) async fn terminate(&self, name: &str) -> Result<Removal, ComputeError> {
        let status = self.server(name).await?.map(|server| server.status);
        match status {
            None | Some(Status::Deleted) => return Ok(Removal::Gone),
            Some(Status::Deleting) => {}
            Some(_) => {
                let deleted = self.client.delete_server(name).await;
                deleted.map_err(|error| compute_error(&error))?;
            }
        }
        // That it was accepted says nothing of when it is gone.
        Ok(Removal::Underway { again: ENDS_INTERVAL })
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let owned = |server: Server| {
            let name = server.notes?;
            Some(Owned {
                kind: OwnedKind::Machine,
                mark: OwnedMark::of_name(&name)?,
                id: server.name,
                name,
                region: server.location.unwrap_or_default(),
                price: None,
                made_at: server.creation_date,
            })
        };
        Ok(self.servers().await?.into_iter().filter_map(owned).collect())
    }
}

/// The vendor tells in words why it makes none.
fn not_created(error: &ApiError) -> ComputeError {
    let text = message(error);
    let lower = text.to_ascii_lowercase();
    let tells = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    match compute_error(error) {
        ComputeError::Refused(_)
            if tells(&["timeout", "timed out", "internal", "unknown error", "try again"]) =>
        {
            ComputeError::Unclear(text)
        }
        ComputeError::Refused(_) if tells(&["quota", "limit", "credit"]) => ComputeError::NoQuota(text),
        ComputeError::Refused(_)
            if tells(&[
                "not available",
                "no capacity",
                "lack of resources",
                "not activatable",
                "no host",
            ]) =>
        {
            ComputeError::NoCapacity(text)
        }
        other => other,
    }
}

fn gone() -> String {
    "Seeweb does not have the machine any more".to_owned()
}

/// Why a machine will never work (again).
fn end_of(server: &Server) -> Option<String> {
    match server.status {
        Status::Fail => Some("Seeweb could not start the machine".to_owned()),
        Status::Deleting | Status::Deleted => Some("Seeweb has ended the machine".to_owned()),
        Status::Booting | Status::Booted | Status::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn refusals_are_told_apart_by_their_words() {
        let told = |status: StatusCode, message: &str| {
            not_created(&ApiError::Status {
                api: "api.seeweb.it".to_owned(),
                status,
                body: json!({"status": "error", "message": message}).to_string(),
                retry_after: None,
            })
        };
        let bad = StatusCode::BAD_REQUEST;
        let text = "Plan ECS1GPU6 is not available in location it-fr2: lack of resources";
        assert_eq!(told(bad, text), ComputeError::NoCapacity(text.to_owned()));
        let text = "Server limit reached";
        assert_eq!(told(bad, text), ComputeError::NoQuota(text.to_owned()));
        assert!(matches!(told(bad, "unknown image"), ComputeError::Refused(_)));
        let forbidden = told(StatusCode::FORBIDDEN, "not available to you");
        assert!(matches!(forbidden, ComputeError::Credentials(_)), "{forbidden:?}");
        let away = told(StatusCode::INTERNAL_SERVER_ERROR, "no host");
        assert!(
            matches!(away, ComputeError::Unclear(_)),
            "it may have been made: {away:?}"
        );
    }
}
